#!/usr/bin/env bash
# The Python environment of the baseline: transformers and TRL on torch, the versions that bench/README.md speaks of.
#
#   bench/setup_baseline.sh [FOLDER]        default build/baseline; then: bench/compare.py --python FOLDER/bin/python
#
# The ordinary torch brings libraries for GPUs along: 5.2 GB on the disk, some minutes. A local wheel for CPUs alone does as well
# (PIP_FIND_LINKS).
# An allocator that keeps its pages makes the baseline faster; compare.py takes tcmalloc where the system has it
# (Debian: libtcmalloc-minimal4).
set -euo pipefail
folder=${1:-build/baseline}
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet \
  torch==2.13.0 numpy==2.4.6 transformers==5.24.0 tokenizers==0.23.3 safetensors==0.8.0 \
  trl==1.16.0 datasets==5.2.0 accelerate==1.15.0
"$folder/bin/python" -c 'import torch, transformers as t; print("torch", torch.__version__, "transformers", t.__version__)'
