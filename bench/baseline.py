"""What the programs of the baseline share: the model, the token ids, the clock, the line that they print."""
import json
import resource
import statistics
import sys
import time

import torch
from transformers import AutoModelForCausalLM

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "amp": torch.float32}


def token_ids(step, row, rows, tokens, vocab):
    """Row `row` of the `rows` of a step, as bench_step.c makes it: every token of a run is a number of its own, hashed."""
    n = torch.arange(tokens, dtype=torch.int64) + (step * rows + row) * tokens
    x = (n * 0x9E3779B1) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x45D9F3B) & 0xFFFFFFFF
    return ((x ^ (x >> 16)) % vocab).unsqueeze(0)


def load_model(folder, precision, checkpointing, experts="grouped_mm"):
    torch.set_flush_denormal(True)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=DTYPES[precision], attn_implementation="sdpa", experts_implementation=experts
    )
    model.config.use_cache = False
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    return model


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, fused=True)


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Clock:
    """Seconds of the parts of each step: lap("forward") ends a part."""

    def __init__(self):
        self.steps = []

    def start(self):
        self.steps.append({})
        self.last = time.monotonic()

    def lap(self, part):
        now = time.monotonic()
        self.steps[-1][part] = now - self.last
        self.last = now

    def report(self, warmup):
        """Of the steps behind the warm-up: seconds of each, and the median of each part."""
        timed = self.steps[warmup:]
        return {
            "seconds": [sum(s.values()) for s in timed],
            "phases": {part: statistics.median(s[part] for s in timed) for part in timed[0]},
        }


def print_line(**fields):
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def environment():
    return {"torch": torch.__version__, "threads": torch.get_num_threads()}
