"""Training steps of the baseline (transformers on torch) in one process, the counterpart of bench_step.c.

    python bench/baseline_step.py MODEL_FOLDER [--tokens 1024] [--rows 1] [--precision fp32] [--no_recompute]
                                  [--warmup 2] [--steps 5] [--threads 2] [--experts grouped_mm]
                                  [--compile]

Prints one line of JSON. Precision: fp32; bf16 (weights, gradients, moments, compute); amp (fp32 weights,
bf16 autocast).
"""
import argparse

import torch

from baseline import Clock, adamw, environment, load_model, peak_mib, print_line, token_ids


def run(args):
    torch.set_num_threads(args.threads)
    model = load_model(args.model, args.precision, not args.no_recompute, args.experts)
    optimizer = adamw(model.parameters())
    if args.compile:
        model.compile()
    clock, losses, norms = Clock(), [], []
    for step in range(args.warmup + args.steps):
        rows = [token_ids(step, row, args.rows, args.tokens, model.config.vocab_size) for row in range(args.rows)]
        ids = torch.cat(rows)
        clock.start()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "amp"):
            loss = model(input_ids=ids, labels=ids).loss
        clock.lap("forward")
        loss.backward()
        clock.lap("backward")
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clock.lap("optimizer")
        losses.append(loss.item())
        norms.append(norm.item())
    print_line(program="baseline", ranks=1, tokens=args.tokens, rows=args.rows, precision=args.precision,
               recompute=not args.no_recompute, losses=losses, grad_norms=norms, peak_rss_mib=peak_mib(),
               **environment(), **clock.report(args.warmup))


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--tokens", type=int, default=1024)
    p.add_argument("--rows", type=int, default=1)
    p.add_argument("--precision", choices=("fp32", "bf16", "amp"), default="fp32")
    p.add_argument("--no_recompute", action="store_true")
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--experts", default="grouped_mm", help="grouped_mm, batched_mm, eager")
    p.add_argument("--compile", action="store_true", help="torch.compile")
    run(p.parse_args())
