"""Plain matrix products of the libraries in the baseline's environment, torch (MKL, oneDNN) and numpy (OpenBLAS): the best
of several products of N x N x N, GFLOP/s, as one line of JSON.

    python bench/baseline_roofs.py [threads]       2 by default
"""
import json
import os
import sys
import time

threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
import numpy  # noqa: E402
import torch  # noqa: E402


def best(product, n, runs=6):
    seconds = []
    for _ in range(runs):
        start = time.monotonic()
        product()
        seconds.append(time.monotonic() - start)
    return round(2e-9 * n**3 / min(seconds), 1)


def torch_product(dtype, n):
    x, w, y = (torch.rand(n, n).to(dtype) for _ in range(3))
    return best(lambda: torch.matmul(x, w.T, out=y), n)


def numpy_product(n):
    x, w, y = (numpy.random.rand(n, n).astype(numpy.float32) for _ in range(3))
    return best(lambda: numpy.matmul(x, w.T, out=y), n)


if __name__ == "__main__":
    torch.set_num_threads(threads)
    sizes = (2048, 4096)
    print(json.dumps({
        "threads": threads,
        "fp32_torch": max(torch_product(torch.float32, n) for n in sizes),
        "bf16_torch": max(torch_product(torch.bfloat16, n) for n in sizes),
        "fp32_numpy": max(numpy_product(n) for n in sizes),
    }))
