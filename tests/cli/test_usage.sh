#!/usr/bin/env bash
# What the program is asked for: commands, options, configuration files and their values. Everything wrong is told in one
# line that names the place, the value and the way out, with exit status 2, before anything is written.
. tests/cli/lib.sh

runs 'help' 0 --help
check 'help names every command' said sft certify init inspect render generate
for command in sft certify init inspect render generate; do
  runs "help of $command" 0 $command --help
  check "help of $command says how to call it" said "usage: " "tartan $command"
done
runs 'version' 0 --version
refused 2 'no command' 'command is missing' sft generate -- # nothing behind
refused 2 'an unknown command' "'sfft'" sft -- sfft
refused 2 'an option as command' "'--model'" sft -- --model x

refused 2 'sft without anything' model_name_or_path -- sft
sft_refused 2 'an unknown key' --learning_rat learning_rate -- --learning_rat 1
sft_refused 2 'an unknown key with dashes' --learning_rat learning_rate -- --learning-rat=1
sft_refused 2 'a name of another version' --max_seq_length max_length -- --max_seq_length 5
sft_refused 2 'a stray argument' "'stray'" -- stray
sft_refused 2 'a single dash' "'-x'" -- -x
sft_refused 2 'an option without a value' --learning_rate value -- --learning_rate
sft_refused 2 'a value that is not UTF-8' --output_dir UTF-8 -- --output_dir $'\xff'
value() { # value KEY VALUE [TEXT ...]: refused, with both named
  sft_refused 2 "$1 $2" "--$1" "$2" "${@:3}" -- "--$1" "$2"
}
value learning_rate nan finite
value learning_rate inf finite
value learning_rate -1 'at least 0'
value learning_rate fast number
value max_length 0 'at least 1'
value max_length 99999999999999999999 whole
value max_length 1.5 whole
value per_device_train_batch_size 0 'at least 1'
value per_device_train_batch_size 2305843009213693952 'at most'
value gradient_accumulation_steps 0 'at least 1'
value num_train_epochs 0 above
value warmup_steps 1e18 steps
value logging_steps 0 above
value adam_beta1 1.0 below
value seed -1 'at least 0'
value seed 99999999999 'at most'
value threads -1 'at least 0'
value threads 4294967297 'at most'
value ddp_timeout -1 'at least 0'
value bf16 maybe 'true or false'
value lr_scheduler_type straight linear
value optim adam adamw
value expert_dispatch foo alltoall
value ep_size 0 'at least 1'
sft_refused 2 'epochs without end' num_train_epochs -- --num_train_epochs 1e300 --max_steps -1
sft_refused 2 'no steps' max_steps -- --max_steps 0
sft_refused 2 'arguments of a schedule that has none' --lr_scheduler_kwargs "'num_cycles'" -- --lr_scheduler_kwargs '{"num_cycles": 1}'
sft_refused 2 'arguments that are cut off' --lr_scheduler_kwargs -- --lr_scheduler_kwargs '{"num_cycles"'
sft_refused 2 'fp32 products of bf16 weights' 'dtype: float32' 'bf16: true' -- --dtype bfloat16
sft_refused 2 'an EOS token that is not there' eos_token "'<nope>'" -- --eos_token '<nope>'
sft_refused 2 'a padding token that is not there' pad_token "'<nope>'" -- --pad_token '<nope>'
sft_refused 2 'packing is not built' --packing 'not supported yet' 'packing: false' -- --packing
sft_refused 2 'LoRA is not built' --use_peft 'not supported yet' 'use_peft: false' -- --use_peft
sft_refused 2 'evaluation is not built' --eval_strategy 'not supported yet' no -- --eval_strategy steps
# Large but possible values only cost what is used.
runs 'accumulation beyond the rows' 0 sft "${sft_options[@]}" --gradient_accumulation_steps 4611686018427387904 \
  --per_device_train_batch_size 1
check 'is one step over all rows' said 'step 1/1' 'epoch 1.00'
rm -rf "$tmp/out"
runs 'a batch beyond the rows' 0 sft "${sft_options[@]}" --per_device_train_batch_size 1048576
rm -rf "$tmp/out"

sft_refused 2 'a mesh beyond the ranks' 'ep_size 3' '1 ranks' -- --ep_size 3
sft_refused 2 'fsdp_size beyond the ranks' 'fsdp_size 2' '1 ranks' -- --fsdp_size 2
sft_refused 2 'tp_size beyond the ranks' 'tp_size 2' '1 ranks' -- --tp_size 2

sft_refused 2 'no model' model_name_or_path -- --model_name_or_path ''
sft_refused 2 'a model that is not there' model_name_or_path "'some-team/some-model'" -- --model_name_or_path some-team/some-model
sft_refused 2 'a file as model' model_name_or_path "'$data'" folder -- --model_name_or_path "$data"
sft_refused 2 'no data' dataset_name -- --dataset_name ''
sft_refused 2 'data that is not there' dataset_name "'some-team/some-data'" -- --dataset_name some-team/some-data
sft_refused 2 'a folder without the split' dataset_name train.jsonl dataset_train_split -- --dataset_name "$model"
sft_refused 1 'an endless file as data' "'/dev/zero'" -- --dataset_name /dev/zero
sft_refused 1 'a template that is not there' chat_template_path "'nowhere.jinja'" -- --chat_template_path nowhere.jinja
sft_refused 1 'an endless template' chat_template_path "'/dev/zero'" -- --chat_template_path /dev/zero

sft_refused 2 'no output' output_dir -- --output_dir ''
cp "$data" "$tmp/file"
sft_refused 2 'a file as output' output_dir "'$tmp/file'" folder -- --output_dir "$tmp/file"
sft_refused 2 'an output below a file' output_dir "'$tmp/file/x'" -- --output_dir "$tmp/file/x"
sft_refused 2 'an output with a long name' output_dir 'too long' -- --output_dir "$(printf 'a%.0s' {1..5000})"
sft_refused 2 'the model as output' output_dir "'$model'" model_name_or_path -- --output_dir "$model"
sft_refused 2 'the model as output, to be overwritten' output_dir model_name_or_path -- --output_dir "$model/../$(basename "$model")/" --overwrite_output_dir
cp -r "$model" "$tmp/done"
sft_refused 2 'an output that holds a model' "'$tmp/done'" overwrite_output_dir -- --output_dir "$tmp/done"
if [ "$(id -u)" != 0 ]; then
  mkdir "$tmp/locked"
  chmod a-w "$tmp/locked"
  sft_refused 2 'an output that cannot be written' output_dir "'$tmp/locked'" -- --output_dir "$tmp/locked"
else
  skip 'an output that cannot be written' 'root writes everywhere'
fi

# --- configuration files ---
yaml=$tmp/run.yaml
file() { # file NAME TEXT NEEDLE ...: refused by the file's name
  printf '%b' "$2" >"$yaml"
  refused 2 "file: $1" "$yaml" "${@:3}" -- sft "$yaml" "${sft_options[@]}"
}
file 'a list' '- seed\n' 'a mapping'
file 'a text' 'seed\n' 'a mapping'
file 'a tab' '\tseed: 1\n' :1
file 'a key twice' 'seed: 1\nseed: 2\n' :2 "'seed'"
file 'a key under two names' 'gradient_checkpointing: true\nactivation_checkpointing: true\n' :2 activation_checkpointing
file 'an unknown key' 'seed: 1\nlearning-rate: 1.0\n' :2 "'learning-rate'" learning_rate
file 'a list as value' 'seed: [1]\n' :1 "'seed'" '[1]' whole
file 'a mapping as value' 'seed: {a: 1}\n' :1 "'seed'" whole
file 'a number as text' 'output_dir: 5\n' :1 "'output_dir'" quotes
file 'not a number' 'learning_rate: .nan\n' :1 finite
file 'an integer beyond 64 bits' 'seed: 99999999999999999999\n' :1 99999999999999999999
file 'an anchor' 'seed: &a 1\n' :1 anchors
file 'two documents' 'seed: 1\n---\nseed: 2\n' :2 document
file 'an open quote' 'output_dir: "x\n' "$yaml:" quoted
file 'a NUL in a text' 'output_dir: "a\\0b"\n' :1 output_dir
file 'variables that are a number' 'env: 5\n' "'env'" mapping
file 'deep nesting' "seed: $(printf '[%.0s' {1..20000})" :1 deep
file 'not text' '\377\376\375\001\002' UTF
file 'a colon too many' 'seed: 1: 2\n' :1
refused 2 'a configuration that is not there' "'nowhere.yaml'" -- sft nowhere.yaml
refused 2 'a folder as configuration' "'$model'" 'regular file' -- sft "$model"
refused 2 'an endless configuration' "'/dev/zero'" -- sft /dev/zero
printf 'seed: 7 # %s\n' "$(head -c 2000000 /dev/zero | tr '\0' x)" >"$yaml"
refused 2 'a configuration of megabytes' "'$yaml'" accepted -- sft "$yaml"

# --- a key of config.json that no reader knows: told once, however often a command reads the file ---
odd=$tmp/odd
cp -r "$model" "$odd"
sed -i '1s/{/{"odd_key": 1,/' "$odd/config.json"
told_once() { # told_once NAME RANKS ARGUMENTS ...
  local lines
  run "${@:2}"
  lines=$(grep -c "^tartan: warning: .*1 unknown key without effect here: odd_key$" <<<"$output")
  [ $status = 0 ] && [ "$lines" = 1 ] || why="$lines lines, expected 1, and exit status 0"
  [ -z "$why" ]
  ok $? "a key without effect is told once: $1"
  rm -rf "$tmp/out"
}
told_once sft 0 sft "${sft_options[@]}" --model_name_or_path "$odd"
told_once certify 0 certify "$odd" --threads 1
told_once init 0 init "$odd/config.json" "$tmp/out"
told_once generate 0 generate "$odd" --prompt hi --max_new_tokens 1
told_once render 0 render --model_name_or_path "$odd" --dataset_name "$data"
told_once inspect 0 inspect "$odd"
told_once verify 0 verify "$odd"
if mpi; then
  told_once 'sft, 2 ranks' 2 sft "${sft_options[@]}" --model_name_or_path "$odd"
  told_once 'certify, 2 ranks' 2 certify "$odd" --threads 1
fi

# --- ranks: the message once, all end, the exit status is passed on ---
if mpi; then
  ranks=2
  refused 2 '2 ranks: an unknown command' "'sfft'" -- sfft
  sft_refused 2 '2 ranks: an unknown key' learning_rate -- --learning_rat 1
  sft_refused 2 '2 ranks: a mesh that is impossible' 'ep_size 3' '2 ranks' -- --ep_size 3
  sft_refused 2 '2 ranks: an output that holds a model' overwrite_output_dir -- --output_dir "$tmp/done"
  sft_refused 2 '2 ranks: an output below a file' "'$tmp/file/x'" -- --output_dir "$tmp/file/x"
  refused 2 '2 ranks: generate' 'one rank' -- generate "$model" --prompt hi
  ranks=
else
  skip 'ranks' 'built without MPI'
fi

# --- results that cannot be written ---
if [ -w /dev/full ]; then
  output=$(timeout 20 "$tartan" inspect "$model" --tensors 2>&1 >/dev/full)
  status=$?
  [ $status = 1 ] && one_error 0 && said 'standard output'
  ok $? 'a full disk is not success'
else
  skip 'a full disk is not success' 'no /dev/full'
fi
finish
