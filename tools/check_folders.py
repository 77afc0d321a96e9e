"""What the checks against the Python stack share: options that say how tartan is run, and a table with a verdict for each
model folder. Needs torch, transformers."""
import argparse
import os
import subprocess
import tempfile

import torch
from transformers.utils import logging


def parser(usage):
    p = argparse.ArgumentParser(usage=usage, add_help=True)
    p.add_argument("models", nargs="+")
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--ep_size", type=int, default=1)
    p.add_argument("--tp_size", type=int, default=1)
    p.add_argument("--tartan", default="build/tartan")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--brief", action="store_true")
    return p


def tartan(options, *arguments):
    """Runs tartan on the ranks and the mesh of the options."""
    command = [options.tartan, *arguments, "--ep_size", str(options.ep_size), "--tp_size", str(options.tp_size)]
    if options.ranks > 1:
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = ["mpirun", *root, "--oversubscribe", "-n", str(options.ranks), *command]
    return subprocess.run(command, capture_output=True, text=True)


def ok(good):
    return "ok" if good else "WRONG"


def verdict(options, good, text):
    """The last line of a folder."""
    print(f"  {'AGREES' if good else 'DIFFERS'}: {text}; {options.ranks} rank(s)\n", flush=True)
    return good


def each_folder(options, check):
    """check(options, folder, scratch) for each folder of the options; the exit status."""
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    good = True
    for folder in options.models:
        print(folder)
        with tempfile.TemporaryDirectory() as scratch:
            try:
                good &= check(options, folder, scratch)
            except Exception as e:  # one folder that fails must not hide the others
                print(f"  {type(e).__name__}: {e}\n  DIFFERS\n", flush=True)
                good = False
    return 0 if good else 1
