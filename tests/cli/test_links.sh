#!/usr/bin/env bash
# The link between two hosts is cut in the middle of a run, so that MPI waits for ever: the watchdogs report it at the deadline,
# each side ends by itself, and what was there before stays.
. tests/cli/lib.sh
. tests/support/hosts.sh
if ! hosts_possible || ! hosts_up 2; then
  skip 'a link that is cut' 'needs root, ip, unshare and Open MPI'
  finish
fi
deadline=3
mkdir -p "$tmp/out"
echo before >"$tmp/out/note"
ranks_left() { pgrep -f "^$PWD/$tartan sft .*--output_dir $PWD/$tmp/out" >/dev/null; }

hosts_run 2 sft "${sft_options[@]}" --output_dir "$PWD/$tmp/out" --model_name_or_path "$PWD/$model" \
  --dataset_name "$PWD/$data" --max_steps 1000000 --ep_size 2 --ddp_timeout $deadline &
for ((i = 0; i < 300; i++)); do
  grep -q '^step 1/' "$tmp/said" && break
  sleep 0.1
done
hosts_cut 2
start=$(date +%s%N)
# mpirun itself may wait for its daemon behind the link for ever; what is promised is that the ranks end.
for ((i = 0; i < 300; i++)); do
  ranks_left || break
  sleep 0.1
done
tenths=$((($(date +%s%N) - start) / 100000000))
echo "# $((tenths / 10)).$((tenths % 10)) s from the cut to the end of all ranks, with a deadline of $deadline s"
why="left after 30 s: $(pgrep -fa "output_dir $PWD/$tmp/out")"
! ranks_left
ok $? 'no rank is left on either side'
output=$(tr -d '\0' <"$tmp/said")
# Whom the operation misses depends on where ranks were: one within a host may wait for a rank that waits across the link.
said '(host host1, ' "not complete after $deadline s" 'rank 2 (host host2' 'rank 3 (host host2' 'sends no word for'
ok $? 'the report names the ranks behind the link'
hosts_join 2
pkill -KILL -f "plm_rsh_agent $PWD/$hosts_agent" 2>/dev/null
wait 2>/dev/null
why="$(ls "$tmp/out")"
[ "$(cat "$tmp/out/note")" = before ] && [ ! -e "$tmp/out/model.safetensors" ]
ok $? 'nothing is half saved'
finish
