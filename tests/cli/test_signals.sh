#!/usr/bin/env bash
# A run of tartan sft that is told to end: by SIGUSR1 or SIGTERM, to the launcher, to one rank, twice.
. tests/cli/lib.sh
if ! command -v pgrep >/dev/null; then
  skip 'signals' 'no pgrep'
  finish
fi

# A rate that does not depend on the number of steps: then a run that is stopped after N is one of N steps. Without checkpoints
# it leaves its model.
options=("${sft_options[@]}" --lr_scheduler_type constant --logging_steps 1 --save_strategy no)

# until_true COMMAND ...: poll for up to 30 s, as long as the job lives.
until_true() {
  local i
  for ((i = 0; i < 600; i++)); do
    "$@" && return 0
    kill -0 "$job" 2>/dev/null || return 1
    sleep 0.05
  done
  return 1
}

# begin RANKS OUT ARGUMENTS ...: in the background.
begin() {
  local number=$1 command=()
  out=$tmp/$2
  shift 2
  [ "$number" = 0 ] || command=("$mpirun" -n "$number")
  timeout --kill-after=5 60 ${command[@]+"${command[@]}"} "$tartan" sft "${options[@]}" --output_dir "$out" \
    --max_steps 1000000 "$@" >"$tmp/said" 2>&1 </dev/null &
  job=$!
}
trained() { [ -s "$out/metrics.jsonl" ]; }
announced() { grep -q '1000000 steps' "$tmp/said"; }
find_processes() { # launcher: the process below timeout
  launcher=$(pgrep -P "$job")
  ranks=($(ranks_below "$job"))
  why='the run did not begin'
  [ ${#ranks[@]} -gt 0 ]
}

await() {
  local start=$SECONDS
  wait "$job"
  status=$? seconds=$((SECONDS - start)) output=$(tail -n 20 "$tmp/said")
}

# It ended well, said so once, and its records go up to the step that it names.
stopped_by() {
  await
  why='exit status'
  [ $status = 0 ] || return 1
  steps=$(sed -nE "s/^stopped by $1 after step ([0-9]+) of 1000000; saved in .*/\1/p" <<<"$output")
  why='no note, or several'
  [[ $steps =~ ^[0-9]+$ ]] || return 1
  why='records'
  grep -q "\"train_loss\":.*\"step\":$steps}" "$out/metrics.jsonl" &&
    [ "$(wc -l <"$out/metrics.jsonl")" = $((steps + 1)) ]
}

signalled() { # signalled SIGNAL RANKS OUT WHOM: launcher, or the number of a rank
  local signal=$1 whom=$4
  begin "$2" "$3"
  until_true trained && find_processes || { await; return 1; }
  case $whom in
    launcher) kill "-$signal" "$launcher" ;;
    *) kill "-$signal" "${ranks[$whom]}" ;;
  esac
  stopped_by "SIG$signal"
}

check 'SIGUSR1 ends a process after a step' signalled USR1 0 one 0
runs 'what it leaves is a model' 0 generate "$tmp/one" --prompt hello --max_new_tokens 2
run 0 sft "${options[@]}" --output_dir "$tmp/whole" --max_steps "$steps"
cmp "$tmp/one/model.safetensors" "$tmp/whole/model.safetensors"
ok $? 'the model of a run of so many steps'
check 'SIGTERM ends a process after a step' signalled TERM 0 term 0

# With checkpoints it leaves one, says how to go on, and goes on as if nothing had been.
leaves_a_checkpoint() { # leaves_a_checkpoint RANKS OUT WHOM
  local number=$1 name=$2 last options=("${options[@]}" --save_strategy steps)
  signalled USR1 "$number" "$name" "$3" || return 1
  why='no note on how to go on, or a model'
  said "saved in $out/checkpoint-$steps; go on with resume_from_checkpoint: true" || return 1
  [ -e "$out/checkpoint-$steps/tartan_manifest.json" ] && [ ! -e "$out/model.safetensors" ] || return 1
  last=$((steps + 2))
  run "$number" sft "${options[@]}" --output_dir "$out" --max_steps $last --resume_from_checkpoint true
  why="it did not go on from step $steps"
  [ $status = 0 ] && said "resumed: '$out/checkpoint-$steps'" || return 1
  run "$number" sft "${options[@]}" --output_dir "$tmp/$name-whole" --max_steps $last --save_strategy no
  why='not the run that was never stopped'
  cmp "$out/model.safetensors" "$tmp/$name-whole/model.safetensors" && [ "$(wc -l <"$out/metrics.jsonl")" = $((last + 1)) ]
}
check 'with checkpoints it leaves one' leaves_a_checkpoint 0 goes-on 0

# Senders such as timeout reach a process twice, by its number and by its group.
twice_at_once() {
  begin 0 twice
  until_true trained && find_processes || { await; return 1; }
  kill -USR1 "${ranks[0]}"
  kill -USR1 "${ranks[0]}" 2>/dev/null
  stopped_by SIGUSR1
}
check 'two signals at once are one' twice_at_once

# A step of many seconds, in which the signal comes again and again.
insistent() {
  local i
  for ((i = 0; i < 100; i++)); do cat "$data"; done >"$tmp/long.jsonl"
  TARTAN_KERNELS=ref begin 0 insistent --dataset_name "$tmp/long.jsonl" --gradient_accumulation_steps 1000
  until_true announced && find_processes || { await; return 1; }
  for ((i = 0; i < 50; i++)); do
    kill -USR1 "${ranks[0]}" 2>/dev/null || break
    sleep 0.1
  done
  await
  why='expected 138 without a model'
  [ $status = 138 ] && [ ! -e "$out/model.safetensors" ]
}
check 'a second signal ends it at once' insistent

if mpi; then
  check 'SIGUSR1 to the launcher of 2 ranks' signalled USR1 2 launcher launcher
  runs 'what they leave is a model' 0 inspect "$tmp/launcher"
  check 'SIGUSR1 to one of 2 ranks' signalled USR1 2 usr1 1
  check 'with checkpoints, 2 ranks' leaves_a_checkpoint 2 goes-on-2 1
  check 'SIGTERM to one of 2 ranks' signalled TERM 2 rank 1
  runs 'what it leaves is a model' 0 generate "$tmp/rank" --prompt hello --max_new_tokens 2
else
  skip 'ranks' 'built without MPI'
fi
finish
