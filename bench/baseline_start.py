"""Fine-tuning with TRL as its documentation shows it, for one step: what `tartan sft` is held against, from its start to
the end of its first step.

    python bench/baseline_start.py MODEL_FOLDER DATA.jsonl OUT_FOLDER

Prints "first step" when it is done, and leaves.
"""
import os
import sys

from datasets import load_dataset
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer


class Leave(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        print("first step", flush=True)
        os._exit(0)


if __name__ == "__main__":
    model, data, out = sys.argv[1:]
    config = SFTConfig(output_dir=out, max_steps=1, per_device_train_batch_size=8, max_length=256, bf16=False,
                       use_cpu=True, report_to="none", save_strategy="no")
    SFTTrainer(model=model, args=config, train_dataset=load_dataset("json", data_files=data, split="train"),
               callbacks=[Leave()]).train()
