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
# Without these mpirun waits for the lost host long after its ranks have gone (docs/failures.md, Launchers).
hosts_options='--mca oob_tcp_keepalive_time 3 --mca oob_tcp_keepalive_intvl 2 --mca oob_tcp_keepalive_probes 2'
mkdir -p "$tmp/out"
echo before >"$tmp/out/note"

cut_in_the_middle() {
  local start
  hosts_run 2 sft "${sft_options[@]}" --output_dir "$PWD/$tmp/out" --model_name_or_path "$PWD/$model" \
    --dataset_name "$PWD/$data" --max_steps 1000000 --ep_size 2 --ddp_timeout $deadline &
  for ((i = 0; i < 300; i++)); do
    grep -q '^step 1/' "$tmp/said" && break
    sleep 0.1
  done
  hosts_cut 2
  start=$(date +%s%N)
  wait $!
  tenths=$((($(date +%s%N) - start) / 100000000))
  hosts_join 2
  output=$(tr -d '\0' <"$tmp/said")
}

cut_in_the_middle
echo "# $((tenths / 10)).$((tenths % 10)) s from the cut to the end of mpirun, with a deadline of $deadline s"
said 'rank 0 (host host1' "not complete after $deadline s" 'missing: ranks 2-3' 'rank 2 (host host2' 'sends no word for'
ok $? 'the report names the ranks behind the link'
why="it took $tenths tenths of a second"
[ $tenths -le 250 ]
ok $? 'mpirun ends'
left=
for ((i = 0; i < 100; i++)); do
  left=$(pgrep -f "output_dir $PWD/$tmp/out")
  [ -z "$left" ] && break
  sleep 0.1
done
why="processes left: $left"
[ -z "$left" ]
ok $? 'no rank is left on either side'
why="$(ls "$tmp/out")"
[ "$(cat "$tmp/out/note")" = before ] && [ ! -e "$tmp/out/model.safetensors" ]
ok $? 'nothing is half saved'
finish
