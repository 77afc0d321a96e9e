#!/usr/bin/env bash
# tartan sft as users run it: ranks agree with one process, runs repeat bit by bit, what output_dir holds, and a rank that
# dies. Batches of 6 rows over 21 rows: with 2 ranks the last step leaves one rank without a row, with 3 ranks one with one
# row and one with none.
. tests/cli/lib.sh

train() { # train RANKS ROWS_PER_RANK OUT ARGUMENTS ...
  local ranks=$1 rows=$2 out=$3
  shift 3
  run "$ranks" sft $runs/conversation/config.yaml --model_name_or_path "$model" --dataset_name "$data" \
    --output_dir "$tmp/$out" --per_device_train_batch_size "$rows" --gradient_accumulation_steps 1 --threads 1 "$@"
  [ $status = 0 ]
}

# Metrics without what the clock says.
untimed() { sed -E 's/"(tokens_per_second|tflops|train_runtime|train_[a-z]+_per_second)":[^,]*,//g' "$tmp/$1/metrics.jsonl"; }

same_run() { # bit by bit
  cmp "$tmp/$1/model.safetensors" "$tmp/$2/model.safetensors" || { why="weights of $1 and $2 differ"; return 1; }
  [ "$(untimed "$1")" = "$(untimed "$2")" ] || { why="metrics of $1 and $2 differ"; return 1; }
}

# What a run is judged by, within 1e-5: sums over ranks are rounded in other places, through 8 steps. What is left out
# comes behind the step (bytes sent depend on the ranks) or is time.
real='-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?'
judged() {
  sed -E 's/("step":[0-9]+).*/\1/' "$tmp/$1/metrics.jsonl" |
    grep -oE "\"(loss|grad_norm|learning_rate|entropy|num_tokens|mean_token_accuracy|epoch|step|train_loss)\":$real" |
    tr -d '"' | tr : ' '
}
same_metrics() {
  paste -d ' ' <(judged "$1") <(judged "$2") | awk '
    { d = $2 - $4; if (d < 0) d = -d
      size = $2 < 0 ? -$2 : $2
      if ($1 != $3 || d > 1e-5 * size + 1e-12) { print " ", $0; wrong = 1 } }
    END { exit wrong || NR != 8 * 8 + 4 }'
}

# A line of metrics.jsonl as the common trainer writes it; keys of tartan's own may follow.
valid_metrics() {
  local record="^\{\"loss\":$real,\"grad_norm\":$real,\"learning_rate\":$real,\"entropy\":$real,\"num_tokens\":[0-9]+"
  record+=",\"mean_token_accuracy\":$real,\"tokens_per_second\":$real,\"tflops\":$real,\"epoch\":$real,\"step\":[0-9]+(,.*)?\}\$"
  local final="^\{\"train_runtime\":$real,\"train_samples_per_second\":$real,\"train_steps_per_second\":$real"
  final+=",\"train_loss\":$real,\"num_tokens\":[0-9]+,\"epoch\":$real,\"step\":[0-9]+\}\$"
  [ "$(grep -cE "$record" "$1")" = 8 ] && [ "$(grep -cE "$final" "$1")" = 1 ] && [ "$(wc -l <"$1")" = 9 ]
}
holds_exactly() { # holds_exactly FOLDER FILE ...
  local folder=$1 files
  shift
  files=$(cd "$folder" && ls -A | tr '\n' ' ')
  [ "$files" = "$(printf '%s\n' "$@" | sort | tr '\n' ' ')" ] || { why="it holds $files"; return 1; }
}
parts=(config.json generation_config.json metrics.jsonl model.safetensors tartan_config.yaml tokenizer.json tokenizer_config.json)

check 'one process' train 0 6 one
check 'a line on progress' said 'step 8/8' 'saved in'
check 'what output_dir holds' holds_exactly "$tmp/one" "${parts[@]}"
check 'metrics are JSON lines with the keys of the common trainer' valid_metrics "$tmp/one/metrics.jsonl"
check 'tokenizer files are copies' cmp "$model/tokenizer.json" "$tmp/one/tokenizer.json"
check 'the same command again' train 0 6 again
check 'one process repeats bit by bit' same_run one again
runs 'the resolved configuration runs' 0 sft "$tmp/one/tartan_config.yaml" --output_dir "$tmp/resolved"
check 'and is the same run' same_run one resolved
check 'and resolves to itself' cmp <(grep -v ^output_dir "$tmp/one/tartan_config.yaml") <(grep -v ^output_dir "$tmp/resolved/tartan_config.yaml")
runs 'the trained model is a model' 0 certify "$tmp/one" --threads 1
check 'it is trained further' train 0 6 further --model_name_or_path "$tmp/one" --max_steps 1
check 'bf16 products, recomputation' train 0 6 bf16 --bf16 true --gradient_checkpointing true --max_steps 2
narrow=(--bf16 true --dtype bfloat16 --optim_state_dtype bfloat16 --max_steps 3 --save_steps 2)
check 'bf16 weights and moments' train 0 6 narrow "${narrow[@]}" --save_strategy steps
runs 'their checkpoint is whole' 0 verify "$tmp/narrow/checkpoint-2" --deep
runs 'and shows its types' 0 inspect "$tmp/narrow/checkpoint-2"
check 'as its manifest does' grep -q '"moments": "bfloat16"' "$tmp/narrow/checkpoint-2/tartan_manifest.json"
check 'it is gone on with' train 0 6 narrow2 "${narrow[@]}" --resume_from_checkpoint "$tmp/narrow/checkpoint-2"
check 'to the same bits' cmp "$tmp/narrow/model.safetensors" "$tmp/narrow2/model.safetensors"

check 'with a profile' train 0 6 profile --profile
check 'it prints where the time goes' said 'where the time goes' attention '100.0 %' "trace of " "$tmp/profile/trace.json"
check 'the trace stands beside the model' holds_exactly "$tmp/profile" "${parts[@]}" trace.json
check 'and the model is the same' cmp "$tmp/one/model.safetensors" "$tmp/profile/model.safetensors"
mkdir -p "$tmp/blocked/trace.json"
check 'a trace that cannot be written' train 0 6 blocked --profile
check 'costs a warning, not the model' cmp "$tmp/one/model.safetensors" "$tmp/blocked/model.safetensors"

train 0 6 one
[ $status = 2 ] && said 'already holds a model' overwrite_output_dir
ok $? 'a finished run is not written over'
echo mine >"$tmp/again/notes.txt"
check 'unless told to' train 0 6 again --overwrite_output_dir --max_steps 1
check 'files that are not of the model stay' holds_exactly "$tmp/again" notes.txt "${parts[@]}"
runs 'the new model is whole' 0 inspect "$tmp/again"

if mpi; then
  for ranks in 2 3; do
    check "$ranks ranks" train $ranks $((6 / ranks)) ranks$ranks
    check "$ranks ranks: the numbers of one process" same_metrics one ranks$ranks
    # Adam divides by the root of small second moments, which magnifies rounding: the tolerance of tests/fixtures/README.md.
    check "$ranks ranks: the weights of one process" near 1e-4 "$tmp/one/model.safetensors" "$tmp/ranks$ranks/model.safetensors"
  done
  check '2 ranks that share the experts' train 2 3 shared --ep_size 2
  check '2 ranks that share the experts: the numbers of one process' same_metrics one shared
  check '2 ranks that share the experts: the weights of one process' near 1e-4 "$tmp/one/model.safetensors" "$tmp/shared/model.safetensors"
  check '2 ranks that share each batch' train 2 6 tp --tp_size 2
  check '2 ranks that share each batch: the numbers of one process' same_metrics one tp
  check '2 ranks that share each batch: the weights of one process' near 1e-4 "$tmp/one/model.safetensors" "$tmp/tp/model.safetensors"
  check '2 ranks that share the experts: bytes of each layer' grep -qE '"layer":1,.*"bytes_forward":[1-9][0-9]*,"bytes_backward":[1-9]' "$tmp/shared/metrics.jsonl"
  check '2 ranks with a profile' train 2 3 profile2 --max_steps 2 --logging_steps 1 --profile
  check '2 ranks with a profile: who is slowest' said 'and 2 ranks' waiting '(rank 1)'
  check '2 ranks with a profile: both are in the records' grep -qE '"profile":\{"steps":1,"ranks":\[\{"step":.*\},\{"step":' "$tmp/profile2/metrics.jsonl"
  check '2 ranks with a profile: one trace of both' grep -q '"name":"rank 1"' "$tmp/profile2/trace.json"
else
  skip 'ranks' 'built without MPI'
fi

# The same command twice: the same bytes in the model and the same metrics.
twice() { # twice NAME RANKS ARGUMENTS ...
  local name="$1, $2 ranks" ranks=$2
  shift 2
  rm -rf "$tmp/first" "$tmp/second"
  check "$name" train "$ranks" 2 first --max_steps 3 --logging_steps 1 "$@"
  check "$name, again" train "$ranks" 2 second --max_steps 3 --logging_steps 1 "$@"
  check "$name: the same bits" same_run first second
}
worlds=(0)
mpi && worlds=(0 2 4)
for ranks in "${worlds[@]}"; do
  mesh=(--ep_size $((ranks ? 2 : 1)))
  twice 'fp32' "$ranks" --bf16 false "${mesh[@]}"
  twice 'bf16 products' "$ranks" --bf16 true "${mesh[@]}"
  [ -z "${TT_FULL:-}" ] || twice 'bf16 weights' "$ranks" --bf16 true --dtype bfloat16 "${mesh[@]}"
  [ -z "${TT_FULL:-}" ] || twice 'bf16 moments' "$ranks" --bf16 true --optim_state_dtype bfloat16 "${mesh[@]}"
done

# Without a launcher MPI is not started: it would fail with a transport that does not exist, and does under mpirun.
if mpi && ! OMPI_MCA_pml=none-of-these timeout 60 "$mpirun" -n 1 "$tartan" inspect "$model" >"$tmp/said" 2>&1; then
  export OMPI_MCA_pml=none-of-these
  check 'alone without a launcher MPI is not started' train 0 6 alone --max_steps 1
  unset OMPI_MCA_pml
else
  skip 'alone without a launcher MPI is not started' 'no way to make MPI fail'
fi

# One of mpirun's ranks is killed in the middle of a run: the others end too.
killed_rank_ends_all() {
  local out=$tmp/killed job victim i
  timeout --kill-after=5 60 "$mpirun" -n 3 "$tartan" sft "${sft_options[@]}" --output_dir "$out" --max_steps 1000000 \
    --logging_steps 1 >"$tmp/said" 2>&1 </dev/null &
  job=$!
  for ((i = 0; i < 300; i++)); do
    [ -s "$out/metrics.jsonl" ] && break
    sleep 0.1
  done
  victim=$(ranks_below $job | tail -n 1)
  why='no rank was found'
  [ -n "$victim" ] && kill -9 "$victim" || { kill $job; wait $job; return 1; }
  local start=$SECONDS
  wait $job
  status=$? seconds=$((SECONDS - start)) output=$(tail -n 20 "$tmp/said")
  why='mpirun ended with 0'
  [ $status != 0 ] || return 1
  why='it took too long'
  [ $seconds -lt 15 ] || return 1
  why='ranks are left'
  ! kill -0 "$victim" 2>/dev/null || return 1
  why='a model was left'
  [ ! -e "$out/model.safetensors" ]
}
if mpi && command -v pgrep >/dev/null; then
  check 'a rank that is killed ends the others' killed_rank_ends_all
else
  skip 'a rank that is killed ends the others' 'without MPI or pgrep'
fi
finish
