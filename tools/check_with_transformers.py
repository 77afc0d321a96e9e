#!/usr/bin/env python3
"""Whether transformers reads what tartan writes, and computes what tartan computes.

  check_with_transformers.py MODEL [MODEL ...]      one table and one verdict for each model folder

    --batch FILE      rows: input_ids, attention_mask, labels, position_ids (default: made from --seed)
    --ranks N         run tartan on N ranks (default 1), with --ep_size N, --tp_size N (default 1)
    --same_as FOLDER  the weights must also be those of this folder, byte by byte
    --tartan PATH     the program (default build/tartan)
    --seed N          of the default batch (default 1)
    --brief           of the gradients print the worst alone

For each folder `tartan certify MODEL --batch B --save_outputs F` computes loss, logits and the gradient of every
parameter in fp32. The folder is then opened with AutoModelForCausalLM (float32, eager attention, eager experts), which
must find every tensor and no other (but layers beyond num_hidden_layers), and the same batch goes through forward and backward there.

What is compared, and how near is near enough (rounding measured between implementations inside torch, times a few):
  logits      absolute 5e-5, at positions that the mask keeps
  loss        absolute 5e-6
  gradients   norm of the difference over the norm 2e-5; absolute 1e-6 by element for a tensor whose norm is below 1e-6
              of the largest
A choice of experts that is nearly a tie may fall either way; then logits and many gradients differ at once.

Exit status 0: all agree; 1: something differs; 2: wrong usage. For developers: needs torch, transformers, safetensors.
"""
import json
import os
import re
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from check_folders import each_folder, ok, parser, tartan, verdict

LOGITS, LOSS, GRADIENT, TINY = 5e-5, 5e-6, 2e-5, 1e-6


def make_batch(config, seed):
    """Four rows: whole; with a prompt that is not trained; padded; short and padded.

    None begins with the padding token: its embedding may be zero, and the gradient of a norm of nothing explodes."""
    vocab_size, pad = config.vocab_size, config.pad_token_id
    g = torch.Generator().manual_seed(seed)
    lengths, width = [12, 12, 9, 3], 12
    ids = torch.randint(0, vocab_size, (len(lengths), width), generator=g).tolist()
    for first in ids:
        if first[0] == pad:
            first[0] = (pad + 1) % vocab_size
    mask = [[int(c < n) for c in range(width)] for n in lengths]
    labels = [[t if m else -100 for t, m in zip(row, kept)] for row, kept in zip(ids, mask)]
    labels[1][:5] = [-100] * 5
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "position_ids": None}


def complete(batch):
    """Tensors of a batch file. What follows a position that the mask leaves out is no target."""
    ids = torch.tensor(batch["input_ids"])
    mask = torch.tensor(batch["attention_mask"]) if batch.get("attention_mask") else torch.ones_like(ids)
    labels = torch.tensor(batch["labels"]) if batch.get("labels") else ids.masked_fill(mask == 0, -100)
    labels[:, 1:] = labels[:, 1:].masked_fill(mask[:, :-1] == 0, -100)
    positions = torch.tensor(batch["position_ids"]) if batch.get("position_ids") else None
    return ids, mask, labels, positions


def run_certify(options, model, batch, outputs):
    done = tartan(options, "certify", model, "--batch", batch, "--save_outputs", outputs)
    if not os.path.exists(outputs):
        raise RuntimeError(f"tartan certify left no outputs: {(done.stderr or done.stdout).strip()}")
    return load_file(outputs), done.returncode


def is_further(name, config):
    """Whether a tensor belongs to a layer for the prediction of further tokens, which both sides leave alone."""
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    return bool(layer) and int(layer[1]) >= config.num_hidden_layers


def open_model(folder):
    """The model, and what its loader complains about."""
    config = AutoConfig.from_pretrained(folder)
    with_loss = getattr(config, "output_router_logits", False)
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    model.config.output_router_logits = with_loss
    report["unexpected_keys"] = [n for n in report.get("unexpected_keys", ()) if not is_further(n, config)]
    complaints = [f"{kind}: {sorted(map(str, names))}" for kind, names in report.items() if names]
    return model, complaints


def on_disk(name, t):
    """Views of the tensor t of a parameter, under the names that they have on disk: one matrix per expert."""
    stem, out = name.rsplit(".", 1)[0], {}
    if name.endswith("mlp.experts.gate_up_proj"):
        half = t.shape[1] // 2
        for e in range(t.shape[0]):
            out[f"{stem}.{e}.gate_proj.weight"], out[f"{stem}.{e}.up_proj.weight"] = t[e, :half], t[e, half:]
    elif name.endswith("mlp.experts.down_proj"):
        for e in range(t.shape[0]):
            out[f"{stem}.{e}.down_proj.weight"] = t[e]
    else:
        out[name] = t
    return out


def disk_gradients(model):
    """Gradients under their names on disk; that of a tied head is part of the embedding's."""
    out = {}
    for name, p in model.named_parameters():
        out |= on_disk(name, torch.zeros_like(p) if p.grad is None else p.grad)
    return out


def run_transformers(model, batch):
    ids, mask, labels, positions = complete(batch)
    extra = {} if positions is None else {"position_ids": positions}
    result = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False, **extra)
    result.loss.backward()
    return result.loss.item(), result.logits.detach(), mask, disk_gradients(model)


def compare_gradients(ours, theirs):
    """Rows (name, error, tolerance), the worst first."""
    rows, largest = [], max(float(g.norm()) for g in theirs.values())
    for name in sorted(set(ours) | set(theirs)):
        if name not in ours or name not in theirs:
            rows.append((name + (" only in transformers" if name in theirs else " only in tartan"), float("inf"), GRADIENT))
            continue
        a, b = ours[name].double(), theirs[name].double()
        if a.shape != b.shape:
            rows.append((f"{name} {list(a.shape)} against {list(b.shape)}", float("inf"), GRADIENT))
        elif float(b.norm()) < 1e-6 * largest:
            rows.append((name + " (tiny: absolute)", float((a - b).abs().max()), TINY))
        else:
            rows.append((name, float((a - b).norm() / b.norm()), GRADIENT))
    return sorted(rows, key=lambda r: -r[1] / r[2])


def tensors_of(folder):
    """name -> (type, shape, bytes) of all tensors of a folder."""
    out = {}
    for file in sorted(f for f in os.listdir(folder) if f.endswith(".safetensors")):
        with safe_open(os.path.join(folder, file), "pt") as f:
            for name in f.keys():
                t = f.get_tensor(name)
                out[name] = (t.dtype, tuple(t.shape), t.contiguous().view(torch.uint8).numpy().tobytes() if t.dim()
                             else t.reshape(1).view(torch.uint8).numpy().tobytes())
    return out


def compare_files(folder, other):
    a, b = tensors_of(folder), tensors_of(other)
    differ = sorted(n for n in set(a) | set(b) if a.get(n) != b.get(n))
    return len(a), differ


def row(name, error, tolerance):
    good = error <= tolerance  # false for NaN
    print(f"  {name:<62} {error:11.3e} {tolerance:11.3e}  {ok(good)}")
    return good


def check(options, folder, scratch):
    model, complaints = open_model(folder)
    good = not complaints
    for c in complaints:
        print(f"  transformers: {c}  WRONG")
    batch_file = options.batch or os.path.join(scratch, "batch.json")
    if not options.batch:
        with open(batch_file, "w") as f:
            json.dump(make_batch(model.config, options.seed), f)
    with open(batch_file) as f:
        batch = json.load(f)
    outputs = os.path.join(scratch, "outputs.safetensors")
    ours, code = run_certify(options, folder, batch_file, outputs)
    os.remove(outputs)
    loss, logits, mask, theirs = run_transformers(model, batch)
    print(f"  {'':<62} {'error':>11} {'tolerance':>11}")
    kept = mask.bool()
    good &= row("logits", float((ours["logits"] - logits)[kept].abs().max()), LOGITS)
    good &= row(f"loss {loss:.6f}", abs(float(ours["loss"]) - loss), LOSS)
    gradients = compare_gradients({n[5:]: t for n, t in ours.items() if n.startswith("grad.")}, theirs)
    for i, r in enumerate(gradients):
        good &= row(*r) if i == 0 or not options.brief or not r[1] <= r[2] else True
    if options.same_as:
        count, differ = compare_files(folder, options.same_as)
        good &= not differ
        print(f"  {count} tensors, {len(differ)} differ from {options.same_as} {differ[:3] if differ else ''}"
              f"  {ok(not differ)}")
    if code:
        print("  tartan certify itself does not pass  WRONG")
        good = False
    return verdict(options, good, f"{len(gradients)} gradients")


def main():
    p = parser(__doc__)
    p.add_argument("--batch")
    p.add_argument("--same_as")
    return each_folder(p.parse_args(), check)


if __name__ == "__main__":
    sys.exit(main())
