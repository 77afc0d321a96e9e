#!/usr/bin/env bash
# Whether weights and optimizer state in bf16 learn what fp32 ones learn: the model and data of `make demo`, one process of one
# thread, several seeds (of the random weights, of the order of rows, of rounding), and then the loss
#   train  of the last 50 steps, which see the same rows in all kinds of one seed
#   held   of the final model on examples/chat/eval.jsonl, in fp32, token by token
# Noise is what the seed does: the deviation of fp32 masters' losses over the seeds, estimated from all kinds together. A kind
# passes when the mean over the seeds of its distance from the masters of the same seed is at most three standard errors of
# such a mean, 3 * noise * sqrt(2 / seeds); the bound is for kinds that share nothing with the masters, so it is a wide one,
# and the table says what was found.
#
#   BUILD=build STEPS=300 SEEDS="1 2 3" RUN=   RUN is put in front of each run, such as "nice" or "flock FILE"
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build} steps=${STEPS:-300} seeds=${SEEDS:-1 2 3}
tartan=$build/tartan out=$build/bf16-learning
mkdir -p "$out"

options() {
  case $1 in
  'fp32 throughout') echo --bf16 false ;;
  'fp32 masters') echo --bf16 true ;;
  'bf16 moments') echo --bf16 true --optim_state_dtype bfloat16 ;;
  'bf16 weights') echo --bf16 true --dtype bfloat16 ;;
  'bf16 weights and moments') echo --bf16 true --dtype bfloat16 --optim_state_dtype bfloat16 ;;
  esac
}
sft() { # sft MODEL DATA OUT ARGUMENTS ...: shows what it says when it fails
  local model=$1 data=$2 to=$3
  shift 3
  ${RUN:-} "$tartan" sft examples/chat/sft.yaml --model_name_or_path "$model" --dataset_name "$data" --output_dir "$to" \
    --overwrite_output_dir --ep_size 1 --threads 1 --save_strategy no "$@" >"$out/said" 2>&1 || { cat "$out/said" >&2; exit 1; }
}
values() { grep -oE "\"$1\":[0-9.e+-]+" "$2" | cut -d: -f2; }

echo "# $steps steps of 16 rows; $(git log -1 --format='commit %h' 2>/dev/null || true)" >"$out/losses"
for seed in $seeds; do
  rm -rf "$out/base"
  "$tartan" init examples/chat/config.json "$out/base" --tokenizer examples/chat/tokenizer --seed "$seed" >/dev/null 2>&1
  for kind in 'fp32 throughout' 'fp32 masters' 'bf16 moments' 'bf16 weights' 'bf16 weights and moments'; do
    sft "$out/base" examples/chat/train.jsonl "$out/run" --max_steps "$steps" --per_device_train_batch_size 16 \
      --seed "$seed" $(options "$kind")
    train=$(values loss "$out/run/metrics.jsonl" | tail -n 5 | awk '{ sum += $1 } END { print sum / NR }')
    sft "$out/run" examples/chat/eval.jsonl "$out/held" --num_train_epochs 1 --learning_rate 0 --weight_decay 0 --bf16 false
    echo "$seed|$kind|$train|$(values train_loss "$out/held/metrics.jsonl")" | tee -a "$out/losses" >&2
  done
done

awk -F'|' '
  /^#/ { next }
  !($2 in first) { first[$2] = ++kinds; name[kinds] = $2 }
  { if (!($1 in seen)) { seen[$1] = ++seeds }
    s = seen[$1]; x[first[$2], s, 1] = $3; x[first[$2], s, 2] = $4 }
  END {
    split("train held", what, " ")
    for (w = 1; w <= 2; w++) { # spread over seeds within a kind
      sum = 0
      for (k = 1; k <= kinds; k++) {
        mean[k, w] = 0
        for (s = 1; s <= seeds; s++) mean[k, w] += x[k, s, w] / seeds
        for (s = 1; s <= seeds; s++) sum += (x[k, s, w] - mean[k, w]) ^ 2
      }
      noise[w] = seeds > 1 ? sqrt(sum / (kinds * (seeds - 1))) : 0
      room[w] = 3 * noise[w] * sqrt(2 / seeds)
    }
    print "| | train, by seed | mean | from masters | held out, by seed | mean | from masters |"
    print "|---|---|---|---|---|---|---|"
    for (k = 1; k <= kinds; k++) {
      line = "| " name[k]
      for (w = 1; w <= 2; w++) {
        all = ""
        for (s = 1; s <= seeds; s++) all = all (s > 1 ? ", " : "") sprintf("%.4f", x[k, s, w])
        d = mean[k, w] - mean[first["fp32 masters"], w]
        line = line " | " all " | " sprintf("%.4f", mean[k, w]) " | " sprintf("%+.4f", d)
        if (name[k] ~ /^bf16/ && (d > room[w] || d < -room[w])) bad = bad name[k] ": " what[w] "; "
      }
      print line " |"
    }
    printf "\nnoise: train %.4f, held out %.4f; allowed: %.4f and %.4f\n", noise[1], noise[2], room[1], room[2]
    if (bad) print "beyond noise: " bad
    exit bad != ""
  }' "$out/losses"
