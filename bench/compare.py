#!/usr/bin/env python3
"""tartan and the baseline in turn in one run, on the same weights, tokens, precision and threads: ratios of medians.

    make bench all
    bench/setup_baseline.sh build/baseline
    bench/compare.py --python build/baseline/bin/python                              every case
    bench/compare.py --python ... --case step --layers 1 --tokens 1024 --repeats 3   some

Cases, each a table on standard output (Markdown); what runs is told on standard error:
    step        OLMoE shape, 1 and 2 layers, T = 512, 1024, 2048, fp32 and bf16, checkpointing on (at 1 layer also off)
    L4          OLMoE shape, 4 layers, bf16 weights and moments
    qwen3       Qwen3-MoE shape, 1 layer, bf16 weights and moments (fp32 state would take 18.6 GiB)
    ranks       two ranks of half the threads, ep_size 2 and 1, against one process of all threads with the same rows, and
                against the baseline's ways on two ranks
    start       from the start of the program to the end of the first step, a tiny model
    tokenise    chat rows of about 300 tokens through template and tokenizer, one thread
    checkpoint  loading and saving a model folder
    settings    what makes the baseline faster or slower: allocators, precisions, ways to compute experts

Every repetition starts each contender anew, in turn, and each other repetition backwards. Standard library only.
"""
import argparse
import dataclasses
import glob
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time

import launch
import measured
from launch import say
from measured import flat, median, ratio_text, spread

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)

# First losses and gradient norms of the same weights and tokens, relative. Losses: fp32 sums in another order; bf16 operands
# have 8 bits, and a loss is a mean over many tokens. Norms: torch adds up squares in fp32 without care and comes out too small,
# by 1.7 % for a tensor of 2^27 normal numbers, so they only show that it is the same gradient.
TOLERANCE = {"fp32": {"losses": 2e-5, "grad_norms": 5e-2}, "bf16": {"losses": 3e-3, "grad_norms": 5e-2}}

# glibc gives blocks of some MiB back to the system when they are freed, and the next step pays for new pages: on machines
# where these are slow that is a third of the baseline's step. What keeps them:
TUNED_GLIBC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(256 << 20),
               "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

# What imitates a machine of narrower instructions: tartan's products, oneDNN (which both sides have), MKL, torch's own kernels,
# and OpenBLAS (numpy's roof). torch asks oneDNN whether bf16 products are worth it, so it says no, as it does on such a machine.
INSTRUCTIONS = {"avx2": {"TARTAN_ISA": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
                         "ATEN_CPU_CAPABILITY": "avx2", "OPENBLAS_CORETYPE": "Haswell"}}


def settings():
    """Environments of the baseline by name, those that this system has."""
    known = {"plain": {}, "thp": {"THP_MEM_ALLOC_ENABLE": "1"}, "glibc": TUNED_GLIBC}
    keep = {"tcmalloc": {}, "jemalloc": {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always"}}
    for name, more in keep.items():
        found = glob.glob(f"/usr/lib/*/lib{name}*.so.*") + glob.glob(f"/usr/lib*/lib{name}*.so.*")
        found = sorted(f for f in found if "debug" not in f and "profiler" not in f)
        if found:
            known[name] = {"LD_PRELOAD": found[0], **more}
    return known


@dataclasses.dataclass
class Contender:
    name: str
    command: list
    env: dict = dataclasses.field(default_factory=dict)
    until: str = ""  # measured is the time until a line has this, not a line of JSON
    precision: str = "fp32"
    runs: list = dataclasses.field(default_factory=list)
    failure: str = ""

    def run(self, limit):
        if self.failure:
            return
        results, start = [], time.monotonic()

        def hear(line):
            if self.until and self.until in line:
                results.append({"seconds": [time.monotonic() - start]})
            elif line.startswith("{"):
                results.append(json.loads(line))

        self.failure = launch.run(self.name, self.command, self.env, ROOT, limit, hear) or ("" if results else "printed no result")
        self.runs += results[:1] if self.until else results[-1:]

    def all(self, key):
        return [r[key] for r in self.runs]

    def seconds(self):
        return self.all("seconds")


class Bench:
    """What the cases need: the arguments, the programs, the model folders, the roofs."""

    def __init__(self, args):
        self.args = args
        if not os.access(args.python, os.X_OK):
            sys.exit(f"compare.py: there is no {args.python}; bench/setup_baseline.sh makes it, or say --python")
        self.env = {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
                    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
                    **INSTRUCTIONS.get(args.isa, {})}
        known = settings()
        name = args.setting or ("tcmalloc" if "tcmalloc" in known else "glibc")
        if name not in known:
            sys.exit(f"compare.py: --setting is '{name}'; here are {', '.join(known)}")
        self.setting, self.baseline_env = name, {**self.env, **known[name]}
        self.roof = {}

    def program(self, name):
        path = os.path.join(self.args.build, name)
        if not os.path.exists(os.path.join(ROOT, path)):
            sys.exit(f"compare.py: {path} is missing; run make bench all")
        return path

    def script(self, name):
        return [self.args.python, os.path.join(HERE, name)]

    def init(self, config, folder, *more):
        """A folder by tartan init, made once. It gets its name when it is whole."""
        path = os.path.join(ROOT, folder)
        if os.path.exists(path):
            return folder
        say(f"making {folder}")
        shutil.rmtree(path + ".part", ignore_errors=True)
        subprocess.run([self.program("tartan"), "init", config, folder + ".part", *more], cwd=ROOT, check=True)
        os.rename(path + ".part", path)
        return folder

    def model(self, shape, layers):
        """A folder of random bf16 weights."""
        folder = os.path.join(self.args.build, "bench-models", f"{shape}-{layers}")
        config = os.path.join(ROOT, folder + ".json")
        os.makedirs(os.path.dirname(config), exist_ok=True)
        describe = [self.program("bench/bench_step"), "--shape", shape, "--layers", str(layers), "--config"]
        with open(config, "w") as f:
            subprocess.run(describe, stdout=f, cwd=ROOT, check=True)
        return self.init(config, folder)

    def take_turns(self, contenders, repeats=None, cold=False):
        """Every repetition starts each contender anew. `cold`: one before them finds the disk's caches cold, and does not
        count."""
        repeats = repeats or self.args.repeats
        for i in range(-1 if cold else 0, repeats):
            say(f"repetition {i + 1} of {repeats}" if i >= 0 else "once to warm up")
            for c in contenders if i % 2 == 0 else contenders[::-1]:
                c.run(self.args.time_limit)
                if i < 0:
                    c.runs.clear()

    def measure_roofs(self):
        """The best plain products of all libraries at hand, GFLOP/s, and passes over memory, GB/s."""
        threads = str(self.args.threads)
        own = Contender("roofs", [self.program("bench/bench_roofs"), threads], self.env)
        python = Contender("the baseline's roofs", self.script("baseline_roofs.py") + [threads], self.env)
        self.take_turns([own, python], repeats=1)
        rates = {k: v for c in (own, python) for r in c.runs for k, v in r.items()}
        if not own.runs:
            sys.exit(f"compare.py: bench_roofs failed: {own.failure}")
        self.roof["fp32"] = max(v for k, v in rates.items() if k.startswith("fp32_"))
        self.roof["bf16"] = max(v for k, v in rates.items() if k.startswith(("fp32_", "bf16_")))
        print("\n".join(f"- {k}: {v}" for k, v in rates.items()) + "\n", flush=True)

    # --- contenders ------------------------------------------------------------------------------------------------

    def steps(self):
        return ["--warmup", str(self.args.warmup), "--steps", str(self.args.steps)]

    def tartan(self, name, model, tokens, precision, *more, ranks=1):
        threads = str(self.args.threads // ranks)
        command = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        command += [self.program("bench/bench_step"), "--json", "--profile", "--model", model, "--tokens", str(tokens), "--threads", threads]
        command += self.steps() + (["--bf16"] if precision == "bf16" else []) + list(more)
        return Contender(name, command, {**self.env, "OMP_NUM_THREADS": threads}, precision=precision)

    def baseline(self, name, model, tokens, precision, *more, env=None):
        command = self.script("baseline_step.py") + [model, "--tokens", str(tokens), "--precision", precision]
        command += ["--threads", str(self.args.threads)] + self.steps() + list(more)
        return Contender(name, command, self.baseline_env if env is None else env, precision=precision)

    def baseline_ranks(self, way, model, tokens, precision):
        torchrun, threads = os.path.join(os.path.dirname(self.args.python), "torchrun"), str(self.args.threads // 2)
        command = [torchrun, "--nproc_per_node", "2", os.path.join(HERE, "baseline_ranks.py"), model, "--way", way]
        command += ["--tokens", str(tokens), "--precision", precision, "--threads", threads] + self.steps()
        return Contender(f"baseline {way}", command, {**self.baseline_env, "OMP_NUM_THREADS": threads}, precision=precision)


# --- reading results ---------------------------------------------------------------------------------------------


def seconds_text(c):
    return spread(flat(c.seconds())) if c.runs else c.failure


def speed(c, than):
    """How many times as fast as another; None when one of them did not run."""
    return ratio_text(than.seconds(), c.seconds()) if c and than and c.runs and than.runs else None


def fastest(contenders):
    """None when all have failed."""
    return min((c for c in contenders if c.runs), key=lambda c: median(flat(c.seconds())), default=None)


def rate(c, tokens):
    return f"{tokens / median(flat(c.seconds())):.0f}" if c.runs else None


def peak_text(c, key="peak_rss_mib"):
    return f"{max(c.all(key)):.0f}" if c.runs else None


def phases_text(c):
    parts = [r["phases"] for r in c.runs if "phases" in r]
    names = ("forward", "backward", "optimizer")
    return " / ".join(f"{median(p.get(n, 0) for p in parts):.2f}" for n in names) if parts else None


def agreement(a, b):
    """Whether two contenders started from the same loss and gradient norm."""
    if not (a and b and a.runs and b.runs):
        return None
    allowed = TOLERANCE["fp32" if a.precision == b.precision == "fp32" else "bf16"]
    first = {key: (a.runs[0][key][0], b.runs[0][key][0]) for key in allowed}
    wrong = {key: pair for key, pair in first.items() if not abs(pair[0] - pair[1]) <= allowed[key] * abs(pair[1])}
    x, y = first["losses"]
    return f"{x:.5f}, {y:.5f} ({x - y:+.1e})" + (f" FAIL {wrong}" if wrong else "")


def shares(bench, c):
    """Useful GFLOP/s, and the shares of the roof without and with recomputation."""
    run, seconds = c.runs[0], median(flat(c.seconds()))
    roof = max([bench.roof[c.precision]] + c.all("roof_fp32_gflops") + c.all(f"roof_{c.precision}_gflops"))
    useful, both = run["useful_gflop"] / seconds, (run["useful_gflop"] + run["recomputed_gflop"]) / seconds
    return f"{useful:.0f}: {100 * useful / roof:.0f} % / {100 * both / roof:.0f} %"


def step_row(bench, title, own, other, tokens):
    row = {"case": f"{title}, {own.name}", "s/step": seconds_text(own), "against": other.name,
           "its s/step": seconds_text(other), "times as fast": speed(own, other), "tok/s": rate(own, tokens)}
    if not own.runs or not other.runs:
        return row
    peak, others, planned = max(own.all("peak_rss_mib")), max(other.all("peak_rss_mib")), own.runs[0]["planned_mib"]
    return {**row, "useful GFLOP/s: share of the roof, with recomputation": shares(bench, own),
            "forward / backward / optimizer": phases_text(own), "the other's": phases_text(other),
            "peak MiB": f"{peak:.0f}", "over the plan": f"{peak / planned:.3f}", "the other's peak": f"{others:.0f}",
            "ratio": f"{peak / others:.2f}", "first losses (difference)": agreement(own, other)}


def step_rows(bench, title, own, others, tokens):
    """Each of tartan's against the baseline of its own precision, and against the fastest where that is another."""
    best, rows = fastest(others), []
    for c in own:
        same = [o for o in others if o.precision == c.precision]
        rows += [step_row(bench, title, c, o, tokens) for o in same + [best] * (best is not None and best not in same)]
    return rows


def profile_row(title, c):
    """Where tartan's step goes, seconds."""
    names = c.runs[0]["profile"] if c.runs else {}
    return {"case": f"{title}, {c.name}", **{n: f"{median(r['profile'][n] for r in c.runs):.3f}" for n in names}}


def print_table(title, rows):
    print(f"### {title}\n\n{measured.table(rows)}\n", flush=True)


# --- cases -------------------------------------------------------------------------------------------------------


def case_step(bench):
    args, rows, profiles = bench.args, [], []
    for layers in args.layers or [1, 2]:
        model = bench.model("olmoe", layers)
        ways = [[], ["--no_recompute"]] if layers == 1 and not args.checkpointing else [[]]
        for tokens, way in itertools.product(args.tokens or [512, 1024, 2048], ways):
            title = f"L = {layers}, T = {tokens}" + (", no checkpointing" if way else "")
            say(title)
            own = [bench.tartan(f"tartan {p}", model, tokens, p, *way) for p in args.precision]
            others = [bench.baseline(f"baseline {p}", model, tokens, p, *way) for p in args.precision]
            bench.take_turns(own + others)
            rows += step_rows(bench, title, own, others, tokens)
            profiles += [profile_row(title, c) for c in own]
    print_table(f"step, OLMoE shape, {args.threads} threads; baseline with {bench.setting}", rows)
    print_table("where tartan's steps go, seconds", profiles)


def half_state(bench, shape, layers):
    rows, model = [], bench.model(shape, layers)
    for tokens in bench.args.tokens or [1024]:
        own = bench.tartan("tartan bf16", model, tokens, "bf16", "--resident", "bf16", "--moments", "bf16")
        other = bench.baseline("baseline bf16", model, tokens, "bf16")
        bench.take_turns([own, other])
        rows += step_rows(bench, f"L = {layers}, T = {tokens}", [own], [other], tokens)
    print_table(f"step, {shape} shape, bf16 weights and moments, {bench.args.threads} threads; baseline with {bench.setting}",
                rows)


def case_L4(bench):
    half_state(bench, "olmoe", 4)


def case_qwen3(bench):
    half_state(bench, "qwen3", 1)


def case_ranks(bench):
    rows, model = [], bench.model("olmoe", 1)
    for tokens, precision in itertools.product(bench.args.tokens or [512, 1024], bench.args.precision):
        two = [bench.tartan(f"tartan 2 ranks, ep_size {ep}", model, tokens, precision, "--ep_size", ep, ranks=2) for ep in "21"]
        one = bench.tartan("tartan 1 process", model, tokens, precision, "--rows", "2")
        others = [bench.baseline_ranks(way, model, tokens, precision) for way in ("ep", "ddp", "fsdp")]
        bench.take_turns(two + [one] + others)
        best = fastest(others)
        for c in two + [one] + others:
            rows.append({"case": f"T = {tokens} a rank, {precision}", "who": c.name, "s/step": seconds_text(c),
                         "tok/s": rate(c, 2 * tokens), "as fast as tartan 1 process": speed(c, one),
                         "as fast as the baseline's best": speed(c, best),
                         "peak MiB, sum": peak_text(c, "peak_rss_mib" if c is one else "peak_rss_sum_mib"),
                         "first losses, its and the best's (difference)": agreement(c, best)})
    threads = bench.args.threads
    print_table(f"two ranks, threads for each: {threads // 2}; one process: {threads}; baseline with {bench.setting}", rows)


def case_start(bench):
    model, out = (os.path.join(bench.args.build, "bench-models", name) for name in ("tiny", "out"))
    data = "examples/chat/train.jsonl"
    bench.init("examples/chat/config.json", model, "--tokenizer", "examples/chat/tokenizer")
    keys = {"model_name_or_path": model, "dataset_name": data, "output_dir": out, "overwrite_output_dir": "true",
            "max_steps": "1", "per_device_train_batch_size": "8", "max_length": "256", "bf16": "false", "save_strategy": "no"}
    own = Contender("tartan", [bench.program("tartan"), "sft"] + [f"--{k}={v}" for k, v in keys.items()], bench.env,
                    until="step 1/1")
    other = Contender("baseline", bench.script("baseline_start.py") + [model, data, out], bench.env, until="first step")
    bench.take_turns([own, other], cold=True)
    print_table("from the start to the end of the first step, 7.9 M parameters, 4,000 rows",
                [{"who": c.name, "s": seconds_text(c), "times as fast": speed(c, other)} for c in (own, other)])


def join_chats(source, path, characters=1000):
    """Conversations of `source` joined to rows of at least so many characters, about 300 tokens."""
    with open(source, encoding="utf-8") as f, open(path, "w", encoding="utf-8") as out:
        row, size = [], 0
        for line in f:
            messages = [m for m in json.loads(line)["messages"] if m["role"] != "system"]
            row += messages
            size += sum(len(m["content"]) + 20 for m in messages)
            if size >= characters:
                out.write(json.dumps({"messages": row}, ensure_ascii=False) + "\n")
                row, size = [], 0


def case_tokenise(bench):
    if not bench.args.tokenizer:
        return print("### template and tokenizer\n\nleft out: needs --tokenizer FOLDER, such as that of a Qwen3 model\n")
    data = os.path.join(ROOT, bench.args.build, "bench-models", "rows.jsonl")
    os.makedirs(os.path.dirname(data), exist_ok=True)
    join_chats(bench.args.chat or os.path.join(ROOT, "examples/chat/train.jsonl"), data)
    own = Contender("tartan", [bench.program("bench/bench_tokenise"), bench.args.tokenizer, data], bench.env)
    other = Contender("baseline", bench.script("baseline_tokenise.py") + [bench.args.tokenizer, data], bench.env)
    bench.take_turns([own, other])
    rows = []
    for c in (own, other):
        if not c.runs:
            rows.append({"who": c.name, "rows/s": c.failure})
            continue
        run, seconds = c.runs[0], median(flat(c.seconds()))
        same = not other.runs or run["tokens"] == other.runs[0]["tokens"]
        rows.append({"who": c.name, "rows/s": f"{run['rows'] / seconds:.0f}", "tokens/s": f"{run['tokens'] / seconds:.0f}",
                     "MB/s": f"{1e-6 * os.path.getsize(data) / seconds:.2f}", "times as fast": speed(c, other),
                     "tokens": f"{run['tokens']}" + ("" if same else " FAIL"),
                     "loading the tokenizer, s": f"{median(c.all('load_seconds')):.2f}"})
    print_table("template and tokenizer, one thread", rows)


def case_checkpoint(bench):
    model, threads = bench.model("olmoe", 1), str(bench.args.threads)
    folders = [os.path.join(bench.args.build, "bench-models", name) for name in ("saved", "saved-baseline")]
    for folder in folders:
        os.makedirs(os.path.join(ROOT, folder), exist_ok=True)
    commands = [[bench.program("bench/bench_checkpoint"), model, folders[0], "--threads", threads],
                bench.script("baseline_checkpoint.py") + [model, folders[1]]]
    seconds = [{}, {}]
    for i in range(bench.args.repeats):
        for side in (0, 1) if i % 2 == 0 else (1, 0):
            said = []
            launch.run(("tartan", "baseline")[side], commands[side], bench.env, ROOT, bench.args.time_limit, said.append)
            for what, s in re.findall(r"^([a-z ]+?) +[\d.]+ GB +([\d.]+) s", "".join(said), re.M):
                seconds[side].setdefault(what, []).append([float(s)])
    rows = []
    for what in ("cold load", "warm load", "save"):
        own, other = (side.get(what) for side in seconds)
        rows.append({"what": what, "tartan s": own and spread(flat(own)), "baseline s": other and spread(flat(other)),
                     "times as fast": own and other and ratio_text(other, own)})
    print_table("model folder of OLMoE shape, 1 layer, bf16", rows)


def case_settings(bench):
    model, tokens, own = bench.model("olmoe", 1), (bench.args.tokens or [1024])[0], bench.setting
    contenders = [bench.baseline(f"fp32, {name}", model, tokens, "fp32", env={**bench.env, **env})
                  for name, env in settings().items()]
    contenders += [bench.baseline(f"bf16, {own}", model, tokens, "bf16"), bench.baseline(f"amp, {own}", model, tokens, "amp"),
                   bench.baseline(f"fp32, {own}, experts eager", model, tokens, "fp32", "--experts", "eager"),
                   bench.baseline(f"fp32, {own}, torch.compile", model, tokens, "fp32", "--compile")]
    bench.take_turns(contenders)
    print_table(f"settings of the baseline, L = 1, T = {tokens}",
                [{"setting": c.name, "s/step": seconds_text(c), "forward / backward / optimizer": phases_text(c),
                  "peak MiB": peak_text(c)} for c in contenders])


CASES = {name[5:]: f for name, f in list(globals().items()) if name.startswith("case_")}
NEED_ROOFS = {"step", "L4", "qwen3"}


def machine():
    with open("/proc/cpuinfo") as f:
        info = f.read()
    with open("/proc/meminfo") as f:
        memory = int(re.search(r"MemTotal: +(\d+)", f.read()).group(1)) / 1048576
    name = re.search(r"model name\s*: (.*)", info)
    flags = re.search(r"flags\s*: (.*)", info)
    sets = [s for s in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flags and s in flags.group(1).split()]
    return f"{name.group(1) if name else '?'}, {os.cpu_count()} CPUs ({', '.join(sets)}), {memory:.0f} GiB"


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--case", nargs="+", choices=CASES, default=[c for c in CASES if c != "settings"])
    p.add_argument("--python", default="build/baseline/bin/python", help="of the baseline's environment")
    p.add_argument("--build", default="build")
    p.add_argument("--layers", nargs="+", type=int)
    p.add_argument("--tokens", nargs="+", type=int)
    p.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    p.add_argument("--checkpointing", action="store_true", help="step: leave out the runs without")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--quick", action="store_true", help="one warm-up step, two timed ones, one repetition")
    p.add_argument("--setting", help="of the baseline's allocator (default: tcmalloc where there is one, else glibc)")
    p.add_argument("--tokenizer", help="tokenise: folder of the tokenizer")
    p.add_argument("--chat", help="tokenise: a .jsonl of messages (default: examples/chat/train.jsonl)")
    p.add_argument("--isa", choices=INSTRUCTIONS, help="imitate a machine without wider instructions, for both sides")
    p.add_argument("--time-limit", type=float, default=1800, help="seconds after which a contender is ended (default 1800)")
    p.add_argument("--self-test", action="store_true", help="of the statistics and of how programs end; runs nothing else")
    args = p.parse_args()
    if args.quick:
        args.warmup, args.steps, args.repeats = 1, 2, 1
    if "ranks" in args.case and (args.threads < 2 or args.threads % 2):
        p.error(f"--threads is {args.threads}: the two ranks of case ranks need as many threads each; --case names other cases")
    args.python = os.path.abspath(args.python)
    return args


def main():
    args = parse()
    if args.self_test:
        measured.self_test()
        launch.self_test()
        return print("ok")
    bench = Bench(args)
    imitated = f", imitating {args.isa}" if args.isa else ""
    print(f"{machine()}{imitated}; {args.repeats} repetition(s) in turn, {args.warmup} warm-up and {args.steps} timed steps each.\n",
          flush=True)
    if NEED_ROOFS & set(args.case):
        bench.measure_roofs()
    for name in args.case:
        say(f"case {name}")
        CASES[name](bench)


if __name__ == "__main__":
    main()
