#!/usr/bin/env python3
"""tartan and the baseline in turn in one run, on the same weights, tokens, precision and threads: ratios of medians.

    make bench all
    bench/setup_baseline.sh build/baseline
    bench/compare.py --python build/baseline/bin/python                              every case
    bench/compare.py --python ... --case step --layers 1 --tokens 1024 --repeats 3   some

Cases, each a table on standard output (Markdown); what runs is told on standard error:
    step        OLMoE shape, 1 and 2 layers, T = 512, 1024, 2048, fp32 and bf16, checkpointing on (at 1 layer also off)
    L4          OLMoE shape, 4 layers, bf16 weights and moments
    qwen3       Qwen3-MoE shape, 1 layer, bf16 weights and moments (fp32 ones do not fit in 24 GiB)
    ranks       two ranks of one thread, ep_size 2 and 1, against one process of two threads with the same rows, and against
                the baseline's ways on two ranks
    start       from the start of the program to the end of the first step, a tiny model
    tokenise    chat rows of about 300 tokens through template and tokenizer, one thread
    checkpoint  loading and saving a model folder
    settings    what makes the baseline faster or slower: allocators, precisions, ways to compute experts

Every repetition starts each contender anew, in turn, and each other repetition backwards. Standard library only.
"""
import argparse
import dataclasses
import glob
import json
import os
import re
import subprocess
import sys
import time

import measured
from measured import flat, median, ratio_text, spread

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)

# First losses and gradient norms of the same weights and tokens, relative. fp32: sums in another order. bf16: operands
# rounded to 8 bits; a loss is a mean over many tokens, a norm one over all parameters.
TOLERANCE = {"fp32": {"loss": 2e-5, "grad_norm": 1e-3}, "bf16": {"loss": 3e-3, "grad_norm": 3e-2}}

# glibc gives blocks of some MiB back to the system when they are freed, and the next step pays for new pages: on machines
# where these are slow that is a third of the baseline's step. What keeps them:
TUNED_GLIBC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(256 << 20),
               "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def settings():
    """Environments of the baseline by name, those that this system has."""
    known = {"plain": {}, "thp": {"THP_MEM_ALLOC_ENABLE": "1"}, "glibc": TUNED_GLIBC}
    for name, more in (("tcmalloc", {}), ("jemalloc", {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always"})):
        found = sorted(glob.glob(f"/usr/lib/*/lib{name}*.so.*") + glob.glob(f"/usr/lib*/lib{name}*.so.*"))
        found = [f for f in found if "debug" not in f and "profiler" not in f]
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

    def run(self):
        if self.failure:
            return
        say(f"  {self.name}: {' '.join(self.command)}")
        env = {**os.environ, **self.env}
        start = time.monotonic()
        p = subprocess.Popen(self.command, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        result, said = None, []
        for line in p.stdout:
            said.append(line)
            if self.until and self.until in line and result is None:
                result = {"seconds": [time.monotonic() - start]}
            elif line.startswith("{"):
                result = json.loads(line)
        if p.wait() != 0 or result is None:
            self.failure = "".join(said[-3:]).strip().replace("\n", " ")[-200:] or f"exit status {p.returncode}"
            say(f"  {self.name} failed: {self.failure}")
        else:
            self.runs.append(result)

    def all(self, key):
        return [r[key] for r in self.runs]

    def seconds(self):
        return self.all("seconds")


def say(text):
    print(text, file=sys.stderr, flush=True)


def take_turns(contenders, repeats):
    for i in range(repeats):
        say(f"repetition {i + 1} of {repeats}")
        for c in contenders if i % 2 == 0 else contenders[::-1]:
            c.run()


class Bench:
    """What the cases need: the arguments, the programs, the model folders, the roofs."""

    def __init__(self, args):
        self.args = args
        self.env = {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
                    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
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

    def model(self, shape, layers):
        """A folder of random bf16 weights, made once."""
        folder = os.path.join(self.args.build, "bench-models", f"{shape}-{layers}")
        if os.path.exists(os.path.join(ROOT, folder, "config.json")):
            return folder
        say(f"making {folder}")
        config = os.path.join(ROOT, folder + ".json")
        os.makedirs(os.path.dirname(config), exist_ok=True)
        with open(config, "w") as f:
            subprocess.run([self.program("bench/bench_step"), "--shape", shape, "--layers", str(layers), "--config"], stdout=f,
                           cwd=ROOT, check=True)
        subprocess.run([self.program("tartan"), "init", config, folder], cwd=ROOT, check=True)
        return folder

    def measure_roofs(self):
        """The best plain products of all libraries at hand, GFLOP/s, and passes over memory, GB/s."""
        threads = str(self.args.threads)
        own = Contender("roofs", [self.program("bench/bench_roofs"), threads], self.env)
        python = Contender("roofs of the baseline's libraries", self.script("baseline_roofs.py") + [threads], self.env)
        take_turns([own, python], 1)
        rates = {}
        for c in (own, python):
            rates.update(c.runs[0] if c.runs else {})
        fp32 = {"oneDNN": rates.get("fp32_gflops"), "torch": rates.get("torch_fp32"), "numpy": rates.get("numpy_fp32")}
        bf16 = {"oneDNN": rates.get("bf16_gflops"), "torch": rates.get("torch_bf16")}
        fp32, bf16 = ({k: v for k, v in r.items() if v} for r in (fp32, bf16))
        self.roof = {"fp32": max(fp32.values()), "bf16": max(list(bf16.values()) + list(fp32.values()))}
        print(f"Plain products with {threads} threads, GFLOP/s: fp32 {fp32}, bf16 {bf16}. Memory, GB/s: copy {rates['copy_gbs']}, "
              f"triad {rates['triad_gbs']}.\n", flush=True)

    # --- contenders ------------------------------------------------------------------------------------------------

    def steps(self):
        return ["--warmup", str(self.args.warmup), "--steps", str(self.args.steps)]

    def tartan(self, model, tokens, precision, *more, ranks=1, threads=None, name=None):
        launch = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        command = launch + [self.program("bench/bench_step"), "--model", model, "--tokens", str(tokens), "--json", "--threads",
                            str(threads or self.args.threads)] + self.steps() + list(more)
        if precision == "bf16":
            command.append("--bf16")
        env = {**self.env, "OMP_NUM_THREADS": str(threads or self.args.threads)}
        return Contender(name or f"tartan {precision}", command, env, precision=precision)

    def baseline(self, model, tokens, precision, *more, name=None, env=None):
        command = self.script("baseline_step.py") + [model, "--tokens", str(tokens), "--precision", precision, "--threads",
                                                     str(self.args.threads)] + self.steps() + list(more)
        return Contender(name or f"baseline {precision}", command, env if env is not None else self.baseline_env,
                         precision=precision)


# --- reading results -------------------------------------------------------------------------------------------------


def seconds_text(c):
    return spread(flat(c.seconds()))


def phases_text(c):
    parts = [r["phases"] for r in c.runs if "phases" in r]
    return " / ".join(f"{median(p.get(k, 0) for p in parts):.2f}" for k in ("forward", "backward", "optimizer")) if parts else None


def agreement(a, b):
    """Whether two contenders started from the same loss and gradient norm."""
    kind = "fp32" if a.precision == b.precision == "fp32" else "bf16"
    first = {key: (a.runs[0][name][0], b.runs[0][name][0]) for key, name in (("loss", "losses"), ("grad_norm", "grad_norms"))}
    wrong = [key for key, (x, y) in first.items() if not abs(x - y) <= TOLERANCE[kind][key] * abs(y)]
    loss, norm = first["loss"], first["grad_norm"]
    return f"{loss[0]:.5f}, {loss[1]:.5f} ({loss[0] - loss[1]:+.1e})" + (f" FAIL: {wrong}, norms {norm}" if wrong else "")


def rate(c, tokens):
    return tokens / median(flat(c.seconds()))


def share(bench, c):
    """Useful GFLOP/s, and the shares of the roof without and with recomputation."""
    run, seconds = c.runs[0], median(flat(c.seconds()))
    roof = max(bench.roof.get(c.precision, 0), *c.all(f"roof_{c.precision}_gflops"), *c.all("roof_fp32_gflops"))
    useful, both = run["useful_gflop"] / seconds, (run["useful_gflop"] + run["recomputed_gflop"]) / seconds
    return f"{useful:.0f}", f"{100 * useful / roof:.0f} % / {100 * both / roof:.0f} %"


STEP_HEADER = ["case", "tartan s/step", "baseline", "s/step", "times as fast", "tok/s", "GFLOP/s", "share of the roof: useful / all",
               "forward / backward / optimizer s", "baseline's", "peak MiB, of the plan", "baseline's peak, ratio",
               "first losses (difference)"]


def step_row(bench, title, own, other, tokens):
    if not own.runs or not other.runs:
        return [title, own.failure or seconds_text(own), other.name, other.failure or seconds_text(other)] + [None] * 9
    peak, planned, others = (max(own.all("peak_rss_mib")), own.runs[0]["planned_mib"], max(other.all("peak_rss_mib")))
    gflops, shares = share(bench, own)
    return [title, seconds_text(own), other.name, seconds_text(other), ratio_text(other.seconds(), own.seconds()),
            f"{rate(own, tokens):.0f}", gflops, shares, phases_text(own), phases_text(other), f"{peak:.0f}, {peak / planned:.3f}",
            f"{others:.0f}, {peak / others:.2f}", agreement(own, other)]


def step_rows(bench, title, contenders, tokens):
    """Each of tartan's against the baseline of its own precision, and against the fastest where that is another."""
    own = [c for c in contenders if c.name.startswith("tartan")]
    others = [c for c in contenders if c not in own]
    ran = [c for c in others if c.runs]
    fastest = min(ran, key=lambda c: median(flat(c.seconds()))) if ran else None
    rows = []
    for c in own:
        same = [o for o in others if o.precision == c.precision]
        for o in same + ([fastest] if fastest and fastest not in same else []):
            rows.append(step_row(bench, f"{title}, {c.name}", c, o, tokens))
    return rows


def print_table(title, header, rows):
    print(f"### {title}\n\n{measured.table(header, rows)}\n", flush=True)


# --- cases -----------------------------------------------------------------------------------------------------------


def case_step(bench):
    args, rows = bench.args, []
    for layers in args.layers or [1, 2]:
        model = bench.model("olmoe", layers)
        for tokens in args.tokens or [512, 1024, 2048]:
            for keep in ([], ["--no_recompute"]) if layers == 1 else ([],):
                title = f"L = {layers}, T = {tokens}" + (", no checkpointing" if keep else "")
                if args.checkpointing and keep:
                    continue
                say(title)
                contenders = [bench.tartan(model, tokens, p, *keep) for p in args.precision]
                contenders += [bench.baseline(model, tokens, p, *keep) for p in args.precision]
                take_turns(contenders, args.repeats)
                rows += step_rows(bench, title, contenders, tokens)
    print_table(f"step, OLMoE shape, {args.threads} threads; baseline with {bench.setting}", STEP_HEADER, rows)


def half_state(bench, shape, layers, title):
    rows, model = [], bench.model(shape, layers)
    for tokens in bench.args.tokens or [1024]:
        contenders = [bench.tartan(model, tokens, "bf16", "--resident", "bf16", "--moments", "bf16"),
                      bench.baseline(model, tokens, "bf16")]
        take_turns(contenders, bench.args.repeats)
        rows += step_rows(bench, f"L = {layers}, T = {tokens}", contenders, tokens)
    print_table(f"{title}, bf16 weights and moments, {bench.args.threads} threads; baseline with {bench.setting}", STEP_HEADER, rows)


def case_L4(bench):
    half_state(bench, "olmoe", 4, "OLMoE shape")


def case_qwen3(bench):
    half_state(bench, "qwen3", 1, "Qwen3-MoE shape")


def case_ranks(bench):
    args, rows, model = bench.args, [], bench.model("olmoe", 1)
    torchrun = [os.path.join(os.path.dirname(args.python), "torchrun"), "--nproc_per_node", "2"]
    for tokens in args.tokens or [512, 1024]:
        for p in args.precision:
            own = [bench.tartan(model, tokens, p, "--ep_size", str(ep), ranks=2, threads=1, name=f"tartan 2 x 1, ep_size {ep}")
                   for ep in (2, 1)]
            one = bench.tartan(model, tokens, p, "--rows", "2", threads=2, name="tartan 1 x 2")
            others = [Contender(f"baseline {way}", torchrun + [os.path.join(HERE, "baseline_ranks.py"), model, "--way", way, "--tokens",
                                str(tokens), "--precision", p, "--threads", "1"] + bench.steps(),
                                {**bench.baseline_env, "OMP_NUM_THREADS": "1"}, precision=p) for way in ("ep", "ddp", "fsdp")]
            take_turns(own + [one] + others, args.repeats)
            ran = [o for o in others if o.runs]
            best = min(ran, key=lambda c: median(flat(c.seconds()))) if ran else None
            for c in own + [one] + others:
                rows.append([f"T = {tokens} a rank, {p}", c.name] + ([c.failure] if not c.runs else [
                    seconds_text(c), f"{rate(c, 2 * tokens):.0f}",
                    ratio_text(one.seconds(), c.seconds()) if one.runs else None,
                    f"{ratio_text(best.seconds(), c.seconds())}" if best else None,
                    f"{max(c.all('peak_rss_sum_mib' if c is not one else 'peak_rss_mib')):.0f}",
                    agreement(c, best) if best else None]))
    print_table(f"two ranks of one thread; baseline with {bench.setting}",
                ["case", "who", "s/step", "tok/s", "rate to tartan's one process", "rate to the baseline's best", "peak MiB, sum",
                 "first losses, of it and the best's (difference)"],
                [r + [None] * (8 - len(r)) for r in rows])


def case_start(bench):
    build = bench.args.build
    model, out, data = os.path.join(build, "bench-models", "tiny"), os.path.join(build, "bench-models", "out"), "examples/chat/train.jsonl"
    if not os.path.exists(os.path.join(ROOT, model)):
        subprocess.run([bench.program("tartan"), "init", "examples/chat/config.json", model, "--tokenizer", "examples/chat/tokenizer"],
                       cwd=ROOT, check=True)
    own = Contender("tartan", [bench.program("tartan"), "sft", "--model_name_or_path", model, "--dataset_name", data, "--output_dir", out,
                               "--overwrite_output_dir", "true", "--max_steps", "1", "--per_device_train_batch_size", "8",
                               "--max_length", "256", "--bf16", "false", "--save_strategy", "no"], bench.env, until="step 1/1")
    other = Contender("baseline", bench.script("baseline_start.py") + [model, data, out], bench.env, until="first step")
    take_turns([own, other], bench.args.repeats + 1)
    for c in (own, other):
        c.runs = c.runs[1:]  # the first one warms the caches of the disk
    rows = [[c.name, c.failure or seconds_text(c)] for c in (own, other)]
    if own.runs and other.runs:
        rows[0].append(ratio_text(other.seconds(), own.seconds()))
    print_table("from the start to the end of the first step, 7.9 M parameters, 4,000 rows", ["who", "s", "times as fast"],
                [r + [None] * (3 - len(r)) for r in rows])


def chat_rows(source, path, characters=1000):
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
        sys.exit("compare.py: the case tokenise needs --tokenizer FOLDER, such as the one of a Qwen3 model")
    data = os.path.join(ROOT, bench.args.build, "bench-models", "rows.jsonl")
    os.makedirs(os.path.dirname(data), exist_ok=True)
    chat_rows(bench.args.chat or os.path.join(ROOT, "examples/chat/train.jsonl"), data)
    own = Contender("tartan", [bench.program("bench/bench_tokenise"), bench.args.tokenizer, data], bench.env)
    other = Contender("baseline", bench.script("baseline_tokenise.py") + [bench.args.tokenizer, data], bench.env)
    take_turns([own, other], bench.args.repeats)
    rows, size = [], os.path.getsize(data)
    for c in (own, other):
        if not c.runs:
            rows.append([c.name, c.failure, None, None, None, None, None])
            continue
        n, tokens, s = c.runs[0]["rows"], c.runs[0]["tokens"], median(flat(c.seconds()))
        rows.append([c.name, f"{n / s:.0f}", f"{tokens / s:.0f}", f"{1e-6 * size / s:.2f}", tokens, f"{median(c.all('load_seconds')):.2f}",
                     ratio_text(other.seconds(), c.seconds()) if other.runs else None])
    if own.runs and other.runs and own.runs[0]["tokens"] != other.runs[0]["tokens"]:
        rows.append(["FAIL: they count different tokens"] + [None] * 6)
    print_table("template and tokenizer, one thread", ["who", "rows/s", "tokens/s", "MB/s", "tokens", "loading the tokenizer, s",
                                                       "times as fast"], rows)


def case_checkpoint(bench):
    model = bench.model("olmoe", 1)
    out = os.path.join(bench.args.build, "bench-models", "saved")
    commands = {"tartan": [bench.program("bench/bench_checkpoint"), model, out, "--threads", str(bench.args.threads)],
                "baseline": bench.script("baseline_checkpoint.py") + [model, out + "-baseline"]}
    os.makedirs(os.path.join(ROOT, out + "-baseline"), exist_ok=True)
    found = {name: {} for name in commands}
    for i in range(bench.args.repeats):
        for name in list(commands) if i % 2 == 0 else list(commands)[::-1]:
            say(f"  {name}: {' '.join(commands[name])}")
            text = subprocess.run(commands[name], cwd=ROOT, env={**os.environ, **bench.env}, text=True, capture_output=True).stdout
            for what, seconds in re.findall(r"^([a-z ]+?) +[\d.]+ GB +([\d.]+) s", text, re.M):
                found[name].setdefault(what, []).append([float(seconds)])
    rows = []
    for what in ("cold load", "warm load", "save"):
        a, b = (found[name].get(what) for name in commands)
        rows.append([what, a and spread(flat(a)), b and spread(flat(b)), ratio_text(b, a) if a and b else None])
    print_table("model folder of OLMoE shape, 1 layer, bf16", ["what", "tartan s", "baseline s", "times as fast"], rows)


def case_settings(bench):
    model, tokens = bench.model("olmoe", 1), (bench.args.tokens or [1024])[0]
    contenders = [bench.baseline(model, tokens, "fp32", name=f"fp32, {name}", env={**bench.env, **env})
                  for name, env in settings().items()]
    contenders += [bench.baseline(model, tokens, p, name=f"{p}, {bench.setting}") for p in ("bf16", "amp")]
    contenders += [bench.baseline(model, tokens, "fp32", "--experts", "eager", name=f"fp32, {bench.setting}, experts eager"),
                   bench.baseline(model, tokens, "fp32", "--compile", name=f"fp32, {bench.setting}, torch.compile")]
    take_turns(contenders, bench.args.repeats)
    print_table(f"settings of the baseline, L = 1, T = {tokens}", ["setting", "s/step", "forward / backward / optimizer s", "peak MiB"],
                [[c.name, c.failure or seconds_text(c), phases_text(c), f"{max(c.all('peak_rss_mib')):.0f}" if c.runs else None]
                 for c in contenders])


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
    p.add_argument("--self-test", action="store_true", help="of the statistics; runs nothing else")
    args = p.parse_args()
    if args.quick:
        args.warmup, args.steps, args.repeats = 1, 2, 1
    args.python = os.path.abspath(args.python)
    return args


def main():
    args = parse()
    if args.self_test:
        measured.self_test()
        return print("ok")
    bench = Bench(args)
    print(f"{machine()}; {args.repeats} repetition(s) in turn, {args.warmup} warm-up and {args.steps} timed steps each.\n", flush=True)
    if NEED_ROOFS & set(args.case):
        bench.measure_roofs()
    for name in args.case:
        say(f"case {name}")
        CASES[name](bench)


if __name__ == "__main__":
    main()
