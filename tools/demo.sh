#!/usr/bin/env bash
# Two minutes with tartan: random weights, fine-tuning on two ranks, and what the model answers afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}
out=$build/demo
tartan=$build/tartan
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
say() { printf '\n== %s\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }
if command -v mpirun >/dev/null && $tartan --version | grep -q 'with MPI'; then
  launch=(mpirun -n 2) mesh=() where="2 ranks, each owning half of the experts"
else
  launch=() mesh=(--ep_size 1) where="one process (this build has no MPI)"
fi

rm -rf "$out"
say "a small mixture-of-experts model with random weights"
run $tartan init examples/chat/config.json $out/base --tokenizer examples/chat/tokenizer
say "what a row of the training data looks like to the model"
run $tartan render examples/chat/sft.yaml --rows 1
say "fine-tuning on $where"
run ${launch[@]+"${launch[@]}"} $tartan sft examples/chat/sft.yaml ${mesh[@]+"${mesh[@]}"}
say "questions from the training data"
run $tartan generate $out/model --chat examples/chat/train.jsonl --limit 8
say "questions that it was never asked in training"
run $tartan generate $out/model --chat examples/chat/eval.jsonl --limit 60 --quiet
say "one more"
run $tartan generate $out/model --prompt "What is the capital of France?"
