#!/usr/bin/env bash
# tartan on two hosts: a run with shared folders, and what is said of folders that one host does not have or has for itself.
. tests/cli/lib.sh
. tests/support/hosts.sh
if ! hosts_possible || ! hosts_up 2; then
  skip 'two hosts' 'needs root, ip, unshare and Open MPI'
  finish
fi
copy=$PWD/$tmp/model
mkdir -p "$copy" "$tmp/results" "$tmp/rows"
cp "$model"/* "$copy"
cp "$data" "$tmp/rows"
options=("${sft_options[@]}" --output_dir "$PWD/$tmp/results/out" --model_name_or_path "$copy"
  --dataset_name "$PWD/$tmp/rows/data.jsonl")

hosts_sft() { # hosts_sft STATUS TEXT ...
  local expected=$1
  shift
  hosts_run 1 sft "${options[@]}"
  why="expected exit status $expected"
  [ $status = "$expected" ] && said "$@"
}
hidden() { # hidden FOLDER PREPARE STATUS TEXT ...
  hosts_hide "$PWD/$tmp/$1" "$2"
  shift 2
  hosts_sft "$@"
}

check 'shared folders' hosts_sft 0 'saved in'
[[ $output != *'copies of their own'* ]]
ok $? 'nothing is said of them'
run 2 sft "${options[@]}" --output_dir "$tmp/here"
cmp "$tmp/here/model.safetensors" "$tmp/results/out/model.safetensors"
ok $? 'the same bits as on one host'
rm -rf "$tmp/results/out"

# Ranks 0 and 2 on one host, 1 and 3 on the other: pairs that own the same experts share memory, the world sends messages.
sent() { # sent FOLDER: bytes of gathered weights in its last record
  tail -n 2 "$1/metrics.jsonl" | grep -o '"gather-unit": *[0-9]*' | grep -o '[0-9]*$' | tail -n 1
}
mixed=(--ep_size 2 --max_steps 2 --logging_steps 1)
OMPI_MCA_rmaps_base_mapping_policy=node hosts_run 2 sft "${options[@]}" "${mixed[@]}"
[ $status = 0 ] && mixed_bytes=$(sent "$tmp/results/out")
ok $? 'some ranks share memory, some do not'
run 4 sft "${options[@]}" "${mixed[@]}" --output_dir "$tmp/shared"
shared_bytes=$(sent "$tmp/shared")
export TARTAN_SHARED=0
run 4 sft "${options[@]}" "${mixed[@]}" --output_dir "$tmp/messages"
unset TARTAN_SHARED
message_bytes=$(sent "$tmp/messages")
why="$shared_bytes, $mixed_bytes and $message_bytes bytes of gathered weights"
[ "$shared_bytes" -lt 1000 ] && [ "$mixed_bytes" -gt $((message_bytes / 20)) ] && [ "$mixed_bytes" -lt "$message_bytes" ]
ok $? 'what is shared is not sent'
cmp "$tmp/shared/model.safetensors" "$tmp/results/out/model.safetensors" &&
  cmp "$tmp/shared/model.safetensors" "$tmp/messages/model.safetensors"
ok $? 'the same bits all three ways'
rm -rf "$tmp/results/out"

check 'no model on one host' hidden model true 2 "host 'host2' (rank 1) has no '$copy/config.json'" "'host1'"
check 'another model on one host' hidden model "cp $PWD/$model/* . && sed -i s/10000.0/20000.0/ config.json" 1 \
  "'config.json' has other contents on host 'host2' (rank 1) than on host 'host1' (rank 0)"
check 'a copy on one host' hidden model "cp $PWD/$model/* ." 0 'copies of their own' 'saved in'
rm -rf "$tmp/results/out"
check 'other data on one host' hidden rows "head -n 5 $PWD/$data >data.jsonl" 1 \
  "data.jsonl' has other contents on host 'host2' (rank 1)"
check 'no data on one host' hidden rows true 2 "dataset_name: host 'host2' (rank 1) has no"
check 'results on one host only' hidden results true 2 "host 'host2' (rank 1) does not see the file that host 'host1'"
[ -z "$(ls -A "$tmp/results")" ]
ok $? 'nothing is left there'

hosts_hide "$copy" true
hosts_run 1 certify "$copy" --threads 1
[ $status = 2 ] && said "host 'host2' (rank 1) has no"
ok $? 'certify: no model on one host'
hosts_share
finish
