#!/usr/bin/env python3
"""Whether a checkpoint of tartan holds all that training needs: torch goes on from it and arrives where tartan does.

  check_resume_with_torch.py MODEL [MODEL ...]      one table and one verdict for each model folder

    --steps N         steps before the checkpoint (default 3); with many, the last three hardly move an unused expert
    --ranks N         run tartan on N ranks (default 1), with --ep_size N, --tp_size N (default 1)
    --tartan PATH     the program (default build/tartan)
    --seed N          of the rows (default 1)
    --brief           print the worst tensor alone
    --KEY=VALUE       any other key of tartan sft, such as --save_dtype=bfloat16

For each folder tartan trains N + 3 steps in fp32 on random rows and leaves checkpoint-N and checkpoint-(N+3). From the
files of checkpoint-N alone a model of transformers (float32, eager attention, eager experts) and torch.optim.AdamW get
their weights, moments and number of updates, and its manifest gives the settings and the place in the data. Three
further steps there, with the common trainer's schedule, clipping and weight decay groups, must give the weights and
moments of checkpoint-(N+3), and the losses, norms and rates that tartan has logged.

Both start from the same bits, so what differs is the rounding of three steps. How near is near enough:
  a moment    norm of the difference over its norm. Moments are linear and quadratic in gradients, on which two correct
              implementations agree to 2e-5 (check_with_transformers.py); the second and third gradients are also taken
              at weights that differ. Five times that: 1e-4
  weights     norm of the difference over the norm of what the three steps have changed. AdamW divides by the root of v,
              so that an element with small gradients counts as much as any other, and its relative error is larger than
              that of the tensor. An expert without tokens moves by its decay alone, about a thousandth of itself, of
              which the rounding of three updates, 2^-24 each, is 2e-4. Ten times the moments' covers both: 1e-3
  loss        absolute 5e-6 at the first step, 5e-5 after; gradient norm relative 5e-6, then 1e-4; rate relative 1e-12
Left out are elements of which the root of v, v without its bias, is between 0 and 1e-6 at one of the three steps: there
rounding decides the direction of the step. Tensors that are not trained must keep their bits.
A control goes the same three steps without the moments, and must miss the weights by more than ten times the tolerance.
A choice of experts that is nearly a tie may fall either way; then much differs at once, and other seeds agree.

Exit status 0: all agree; 1: something differs; 2: wrong usage. For developers: needs torch, transformers, safetensors.
"""
import json
import os
import re
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, get_scheduler

from check_folders import each_folder, ok, parser, tartan, verdict
from check_with_transformers import on_disk, open_model

FURTHER, ROWS, MICRO = 3, 4, 2  # further steps; rows of a micro-batch on all ranks together; micro-batches of a step
MOMENT, WEIGHT, LOSS, NORM, RATE, SHAKY = 1e-4, 1e-3, (5e-6, 5e-5), (5e-6, 1e-4), 1e-12, 1e-6
STATE = ("exp_avg", "exp_avg_sq")


# --- the run of tartan ---


def make_rows(config, count, seed):
    """Rows of 4 to 12 tokens, the first two of which are not trained. None begins with the padding token: its embedding
    may be zero, and the gradient of a norm of nothing explodes."""
    g = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        ids = torch.randint(0, config.vocab_size, (int(torch.randint(4, 13, (1,), generator=g)),), generator=g).tolist()
        if ids[0] == config.pad_token_id:
            ids[0] = (ids[0] + 1) % config.vocab_size
        rows.append({"input_ids": ids, "labels": [-100, -100] + ids[2:]})
    return rows


def with_tokenizer(model, scratch):
    """The folder, or where it has no tokenizer, which rows of token ids do not need but training asks for, links to its
    files beside one of two letters."""
    if os.path.exists(os.path.join(model, "tokenizer.json")):
        return model
    folder = os.path.join(scratch, "model")
    os.mkdir(folder)
    for file in os.listdir(model):
        os.symlink(os.path.abspath(os.path.join(model, file)), os.path.join(folder, file))
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}, f)
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"eos_token": "a", "pad_token": "b"}, f)
    return folder


def train(options, model, rows, scratch):
    """Trains N + 3 steps; the two checkpoints and the logged records."""
    data, out = os.path.join(scratch, "rows.jsonl"), os.path.join(scratch, "out")
    with open(data, "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)
    keys = {"model_name_or_path": with_tokenizer(model, scratch), "dataset_name": data, "output_dir": out,
            "max_steps": options.steps + FURTHER, "save_steps": options.steps, "logging_steps": 1, "bf16": "false",
            "per_device_train_batch_size": ROWS * options.tp_size // options.ranks,
            "gradient_accumulation_steps": MICRO, "train_sampling_strategy": "sequential", "learning_rate": 0.01,
            "weight_decay": 0.1, "threads": 1}
    done = tartan(options, "sft", *(f"--{k}={v}" for k, v in keys.items()), *options.keys)
    if done.returncode:
        raise RuntimeError(f"tartan sft failed: {(done.stderr or done.stdout).strip()}")
    with open(os.path.join(out, "metrics.jsonl")) as f:
        records = [json.loads(line) for line in f]
    return [os.path.join(out, f"checkpoint-{n}") for n in (options.steps, options.steps + FURTHER)], records


# --- checkpoints ---


def read(folder, kind):
    """Tensors of the model or the optimizer, in one file or in several."""
    out = {}
    for file in sorted(os.listdir(folder)):
        if re.fullmatch(kind + r"(-\d+-of-\d+)?\.safetensors", file):
            out |= load_file(os.path.join(folder, file))
    return out


def manifest(folder):
    with open(os.path.join(folder, "tartan_manifest.json")) as f:
        return json.load(f)


def kept_weights(folder, state):
    """The weights as training keeps them: in the model's files, or beside the moments where those hold less."""
    parts = [on_disk(n, t) for n, t in read(folder, "model").items()]
    return {n: state.get("master." + n, t).float() for each in parts for n, t in each.items()}


def fill(name, tensor, source, prefix=""):
    """Copies what lies on disk into a parameter, or into its moment, part by part."""
    for part, view in on_disk(name, tensor).items():
        view.copy_(source[prefix + part])


# --- the continuation in torch ---


def decays(name):
    """The common trainer's rule."""
    name = name.lower()
    parts = name.split(".")
    return not (re.search("bias|layernorm|rmsnorm", name) or any(p == "norm" or p.endswith("_norm") for p in parts))


def make_optimizer(model, state, step, settings):
    """AdamW as it was behind the step; a new one when state is none."""
    parameters = dict(model.named_parameters())
    rate, decay = settings["learning_rate"], settings["weight_decay"]
    groups = [{"params": [p for n, p in parameters.items() if decays(n)], "weight_decay": decay, "initial_lr": rate},
              {"params": [p for n, p in parameters.items() if not decays(n)], "weight_decay": 0.0, "initial_lr": rate}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(settings["adam_beta1"], settings["adam_beta2"]),
                                  eps=settings["adam_epsilon"], foreach=False)
    for name, p in parameters.items() if state else ():
        optimizer.state[p] = {"step": torch.tensor(float(step))}
        for moment in STATE:
            optimizer.state[p][moment] = torch.empty_like(p)
            fill(name, optimizer.state[p][moment], state, moment + ".")
    return optimizer


def backward(model, rows, targets, coefficient):
    """Loss of a micro-batch: its share of the step's mean, and its balance loss; gradients are added."""
    width = max(len(r["input_ids"]) for r in rows)
    ids = torch.tensor([r["input_ids"] + [0] * (width - len(r["input_ids"])) for r in rows])
    mask = torch.tensor([[1] * len(r["input_ids"]) + [0] * (width - len(r["input_ids"])) for r in rows])
    labels = torch.tensor([r["labels"][1:] + [-100] * (width - len(r["labels"])) for r in rows])
    with_balance = {"output_router_logits": True} if coefficient else {}
    result = model(input_ids=ids, attention_mask=mask, use_cache=False, **with_balance)
    logits = result.logits[:, :-1].flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum") / targets
    if coefficient:
        loss = loss + coefficient / MICRO * result.aux_loss
    loss.backward()
    return loss.item()


def go_on(folder, rows, weights, state):
    """Three steps from the checkpoint: weights and moments under their names on disk, shaky elements, a record each."""
    about = manifest(folder)
    step, run = about["step"], about["train"]
    settings, at = run["settings"], run["position"]["rows"]
    model, complaints = open_model(folder)
    if complaints:
        raise RuntimeError(f"transformers: {complaints}")
    with torch.no_grad():
        for name, p in model.named_parameters():
            fill(name, p, weights)
    optimizer = make_optimizer(model, state, step, settings)
    scheduler = get_scheduler(settings["lr_scheduler_type"], optimizer, settings["warmup_steps"], run["total_steps"],
                              scheduler_specific_kwargs={"last_epoch": step - 1})
    coefficient = getattr(model.config, "router_aux_loss_coef", 0)
    shaky, records = {}, []
    for k in range(FURTHER):
        first = at + k * run["rows_per_step"]
        mine = rows[first:first + run["rows_per_step"]]
        targets = sum(t != -100 for r in mine for t in r["labels"][1:])
        loss = sum(backward(model, mine[i:i + ROWS], targets, coefficient) for i in range(0, len(mine), ROWS))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings["max_grad_norm"])
        records.append({"loss": loss, "grad_norm": norm.item(), "learning_rate": scheduler.get_last_lr()[0]})
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        for name, p in model.named_parameters():
            s = optimizer.state[p]
            root = (s["exp_avg_sq"] / (1 - settings["adam_beta2"] ** s["step"].item())).sqrt()
            for part, view in on_disk(name, (root > 0) & (root < SHAKY)).items():
                shaky[part] = shaky.get(part, False) | view
    out = {}
    for name, p in model.named_parameters():
        out |= on_disk(name, p.detach())
        for moment in STATE:
            out |= {f"{moment}.{part}": t for part, t in on_disk(name, optimizer.state[p][moment]).items()}
    return out, shaky, records


# --- comparison ---


def relative(ours, theirs, size, kept):
    """Norm of the difference over that of size, over the kept elements; without a difference 0."""
    difference, norm = (ours.double() - theirs.double())[kept].norm(), size.double()[kept].norm()
    return float(difference / norm) if difference else 0.0


def compare(ours, theirs, before, shaky):
    """Rows (name, shaky elements, errors of weights and of both moments), the worst first."""
    rows = []
    for name, bad in shaky.items():
        errors = [relative(ours[name], theirs[name], theirs[name] - before[name], ~bad)]
        errors += [relative(ours[f"{m}.{name}"], theirs[f"{m}.{name}"], theirs[f"{m}.{name}"], ~bad) for m in STATE]
        rows.append((name, int(bad.sum()), errors))
    return sorted(rows, key=lambda r: -max(e / t for e, t in zip(r[2], (WEIGHT, MOMENT, MOMENT))))


def check_records(ours, theirs):
    good = True
    for k, (a, b) in enumerate(zip(ours, theirs)):
        for key, unit, tolerance in (("loss", 1, LOSS[k > 0]), ("grad_norm", b["grad_norm"], NORM[k > 0]),
                                     ("learning_rate", a["learning_rate"], RATE)):
            error = abs(a[key] - b[key]) / unit
            fine = error <= tolerance  # false for NaN
            good &= fine
            print(f"  {'step ' + str(a['step']) + ': ' + key + f' {b[key]:.6g}':<72} {error:9.2e} of {tolerance:.0e}"
                  f"  {ok(fine)}")
    return good


def check_names(state, weights, trained):
    """State belongs to what is trained, each once and nothing else."""
    expected = {f"{m}.{n}" for m in STATE for n in trained}
    wrong = sorted(expected ^ {n for n in state if not n.startswith("master.")})
    wrong += sorted(n for n in state if n.startswith("master.") and n[7:] not in weights)
    if wrong:
        print(f"  {len(wrong)} tensors of the optimizer are missing or belong to nothing: {wrong[:3]}  WRONG")
    return not wrong


def check(options, folder, scratch):
    rows = make_rows(AutoConfig.from_pretrained(folder), (options.steps + FURTHER) * ROWS * MICRO, options.seed)
    (start, end), logged = train(options, folder, rows, scratch)
    state, last = read(start, "optimizer"), read(end, "optimizer")
    before, after = kept_weights(start, state), kept_weights(end, last)
    theirs, shaky, records = go_on(start, rows, before, state)
    good = check_names(state, before, shaky) & check_names(last, after, shaky)
    good &= check_records(logged[options.steps:options.steps + FURTHER], records)
    print(f"  {'':<58} {'shaky':>6} {'weights':>9} {'exp_avg':>9} {'exp_avg_sq':>10}\n"
          f"  {'tolerance':<58} {'':>6} {WEIGHT:9.0e} {MOMENT:9.0e} {MOMENT:10.0e}")
    table = compare(after | last, theirs, before, shaky)
    for i, (name, bad, (w, m, v)) in enumerate(table):
        fine = w <= WEIGHT and m <= MOMENT and v <= MOMENT
        good &= fine
        if not options.brief or i == 0 or not fine:
            print(f"  {name:<58} {bad:6} {w:9.2e} {m:9.2e} {v:10.2e}  {ok(fine)}")
    moved = [n for n in before if n not in shaky and not torch.equal(before[n], after[n])]
    if moved:
        print(f"  not trained, but other bits: {moved}  WRONG")
    forgetful, _, _ = go_on(start, rows, before, None)
    ours, theirs, old = (torch.cat([w[n].flatten() for n in shaky]) for w in (after, forgetful, before))
    missed = relative(ours, theirs, ours - old, ...)
    fine = missed > 10 * WEIGHT
    print(f"  {'control: without the moments, all weights together':<65} {missed:9.2e}"
          f"  {'misses, as it must' if fine else 'TOO NEAR'}")
    good &= fine and not moved
    worst = ", ".join(f"{max(r[2][i] for r in table):.1e}" for i in range(3))
    return verdict(options, good, f"{len(table)} tensors, {len(ours)} elements, {sum(r[1] for r in table)} of them shaky; "
                   f"worst {worst}")


def main():
    p = parser(__doc__)
    p.add_argument("--steps", type=int, default=3)
    options, options.keys = p.parse_known_args()
    if options.steps < 1 or ROWS * options.tp_size % options.ranks:
        p.error(f"--steps must be at least 1, and --ranks over --tp_size divide {ROWS}")
    return each_folder(options, check)


if __name__ == "__main__":
    sys.exit(main())
