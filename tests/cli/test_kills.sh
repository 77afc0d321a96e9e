#!/usr/bin/env bash
# A trainer that saves behind every step is killed, again and again, at random instants: one rank or all, inside a save or
# anywhere. After each kill the checkpoints that have their names are whole, the run goes on from the newest, and what it ends
# with is, bit for bit, what a run ends with that was never killed. 10 kills; with TT_FULL=1 200.
. tests/cli/lib.sh
if ! command -v pgrep >/dev/null; then
  skip 'kills' 'no pgrep'
  finish
fi

kills=${TT_FULL:+200}
kills=${kills:-10}
RANDOM=${TT_SEED:-7}
ranks=0
mpi && ranks=2
train=(sft "${sft_options[@]}" --max_steps 25 --per_device_train_batch_size 2 --logging_steps 3 --save_steps 1
  --save_total_limit 3 --disable_tqdm true)

processes() { # those of tartan below a process
  local child
  for child in $(pgrep -P "$1"); do
    case $(readlink "/proc/$child/exe") in
      */tartan) echo "$child" ;;
      *) processes "$child" ;;
    esac
  done
}

checkpoints() { find "$out" -maxdepth 1 -name 'checkpoint-*' 2>/dev/null | grep -cE 'checkpoint-[0-9]+$'; }
resume_options() {
  resume=()
  [ "$(checkpoints)" = 0 ] || resume=(--resume_from_checkpoint true)
}

# begin ARGUMENTS ...: the run, or what is left of it, in the background.
begin() {
  local launcher=()
  [ $ranks = 0 ] || launcher=("$mpirun" -n $ranks)
  resume_options
  timeout --kill-after=5 60 ${launcher[@]+"${launcher[@]}"} "$tartan" "${train[@]}" --output_dir "$out" \
    ${resume[@]+"${resume[@]}"} "$@" >"$tmp/said" 2>&1 </dev/null &
  job=$!
}

await() {
  wait $job 2>/dev/null
  status=$?
  output=$(tr -d '\0' <"$tmp/said" | tail -n 30)
}

# In front of an operation of a save, after so many of that name.
kill_inside() {
  local operations=(checkpoint checkpoint-begin checkpoint-layout checkpoint-create checkpoint-write checkpoint-hashes
    checkpoint-publish checkpoint-prune stop)
  how="rank $((ranks ? RANDOM % ranks : 0)) in ${operations[RANDOM % 9]}"
  set -- $how
  TARTAN_FAIL="$2:*:$4:kill:$((1 + RANDOM % 4))" begin
  await
}

# At any instant behind the first step, often in the middle of writing.
kill_anywhere() {
  local i victims
  begin
  for ((i = 0; i < 400; i++)); do
    grep -q "saved '" "$tmp/said" && break
    kill -0 $job 2>/dev/null || break
    sleep 0.02
  done
  sleep 0.$(printf %03d $((RANDOM % 400)))
  victims=($(processes $job))
  how='all ranks'
  if [ ${#victims[@]} -gt 1 ] && [ $((RANDOM % 2)) = 0 ]; then
    how='one rank'
    victims=("${victims[RANDOM % ${#victims[@]}]}")
  fi
  [ ${#victims[@]} = 0 ] || kill -9 "${victims[@]}" 2>/dev/null
  await
}

# No checkpoint that has its name is less than whole.
nothing_broken() {
  local folder
  why="a broken checkpoint, after $how"
  ! grep -qE "passed over|is damaged|cut short" "$tmp/said" || return 1
  for folder in $(find "$out" -maxdepth 1 -name 'checkpoint-*' 2>/dev/null | grep -E 'checkpoint-[0-9]+$'); do
    "$tartan" verify "$folder" >"$tmp/verified" 2>&1 || { output=$(cat "$tmp/verified"); return 1; }
  done
}

killed_again_and_again() { # killed_again_and_again ARGUMENTS ...
  local i complete=0
  local -a base=("${train[@]}")
  train+=("$@")
  for ((i = 0; i < kills / 2; i++)); do
    if [ $((RANDOM % 2)) = 0 ]; then kill_inside; else kill_anywhere; fi
    nothing_broken || return 1
    [ $status != 0 ] && continue
    complete=$((complete + 1)) # it was done before it could be killed: once more
    cmp "$tmp/whole/model.safetensors" "$out/model.safetensors" || { why='other weights'; return 1; }
    rm -rf "$out"
  done
  begin
  await
  train=("${base[@]}")
  nothing_broken || return 1
  why='the last run failed'
  [ $status = 0 ] || return 1
  echo "# $((i - complete)) of $i runs were killed before their end"
  why='other weights'
  cmp "$tmp/whole/model.safetensors" "$out/model.safetensors" || return 1
  why='other records'
  [ "$(untimed "$tmp/whole")" = "$(untimed "$out")" ] || return 1
  why='left over'
  [ -z "$(find "$out" -name '*.tartan-*')" ] && [ "$(checkpoints)" = 3 ]
}
untimed() { sed -E 's/"(tokens_per_second|tflops|train_runtime|train_[a-z]+_per_second)":[^,]*,//g' "$1/metrics.jsonl"; }

runs 'a run that is not killed' $ranks "${train[@]}" --output_dir "$tmp/whole"
out=$tmp/out
check 'killed again and again' killed_again_and_again
rm -rf "$out"
check 'killed again and again, saving beside training' killed_again_and_again --async_save true
finish
