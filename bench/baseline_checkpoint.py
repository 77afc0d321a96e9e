"""Time and peak memory of transformers for what bench_checkpoint measures: load a model folder, save it.

    python bench/baseline_checkpoint.py MODEL_FOLDER OUT_FOLDER

Needs torch and transformers. "Cold": the system is asked to forget the files first. Each measurement is a process of its
own, so that peaks do not mix.
"""
import os
import resource
import subprocess
import sys
import time


def forget(folder):
    for name in os.listdir(folder):
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass
        finally:
            os.close(fd)


def size_of(folder):
    return sum(os.path.getsize(os.path.join(folder, n)) for n in os.listdir(folder) if n.endswith(".safetensors"))


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(what, model_folder, out_folder):
    import torch
    from transformers import AutoModelForCausalLM

    if what == "cold load":
        forget(model_folder)
    before = peak()
    start = time.monotonic()
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
    total = sum(p.double().sum().item() if p.numel() < 1000 else float(p.view(-1)[::4096].float().sum()) for p in model.parameters())
    seconds = time.monotonic() - start
    assert total == total
    if what == "save":
        before = peak()
        start = time.monotonic()
        model.save_pretrained(out_folder)
        for name in os.listdir(out_folder):  # as bench_checkpoint does
            fd = os.open(os.path.join(out_folder, name), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        seconds = time.monotonic() - start
    gigabytes = size_of(model_folder) / 1e9
    print(f"{what:14s} {gigabytes:8.3f} GB {seconds:8.3f} s {gigabytes / seconds:8.3f} GB/s   peak {peak():.0f} MiB ({before:.0f} before)")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        measure(sys.argv[3], sys.argv[1], sys.argv[2])
    elif len(sys.argv) == 3:
        for what in ("cold load", "warm load", "save"):
            subprocess.run([sys.executable, __file__, sys.argv[1], sys.argv[2], what], check=True)
    else:
        sys.exit(__doc__)
