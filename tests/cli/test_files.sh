#!/usr/bin/env bash
# Damaged and hostile files of every kind that the program reads: each is refused in one line that names it.
. tests/cli/lib.sh

# --- model folders: each file missing, empty, cut, noise, of another shape, a folder ---
fresh() {
  rm -rf "$tmp/m"
  cp -r "$model" "$tmp/m"
}
broken() { # broken NAME TEXT ...: sft refuses $tmp/m
  sft_refused 1 "$1" "${@:2}" -- --model_name_or_path "$tmp/m"
}
head -c 4000 "$model/model.safetensors" | od -v -t x1 | head -c 3000 >"$tmp/noise" # text that is no JSON
head -c 3000 /dev/urandom >"$tmp/random"
for file in config.json tokenizer.json model.safetensors; do
  fresh; rm "$tmp/m/$file"; broken "$file is missing" "$tmp/m" "$file"
  fresh; : >"$tmp/m/$file"; broken "$file is empty" "$tmp/m/$file"
  fresh; head -c 100 "$model/$file" >"$tmp/m/$file"; broken "$file is cut off" "$tmp/m/$file"
  fresh; cp "$tmp/noise" "$tmp/m/$file"; broken "$file is another text" "$tmp/m/$file"
  fresh; cp "$tmp/random" "$tmp/m/$file"; broken "$file is random" "$tmp/m/$file"
  fresh; rm "$tmp/m/$file"; mkdir "$tmp/m/$file"; broken "$file is a folder" "$tmp/m" "$file"
  fresh; ln -sf /dev/zero "$tmp/m/$file"; broken "$file is endless" "$tmp/m" "$file"
  fresh; rm "$tmp/m/$file"; mkfifo "$tmp/m/$file"; broken "$file is a pipe" "$tmp/m" "$file"
  fresh; echo '[]' >"$tmp/m/$file"; broken "$file is a list" "$tmp/m/$file"
  fresh; echo '{}' >"$tmp/m/$file"; broken "$file is an empty object" "$tmp/m/$file"
  fresh; printf '[%.0s' {1..100000} >"$tmp/m/$file"; broken "$file nests without end" "$tmp/m/$file"
done
fresh; printf '{"a": 1, "a": 2}' >"$tmp/m/config.json"; broken 'config.json with a key twice' "$tmp/m/config.json" '"a"'
fresh; sed -i 's/qwen3_moe/gpt5_moe/' "$tmp/m/config.json"; broken 'an unknown family' "$tmp/m/config.json" gpt5_moe qwen3_moe
fresh; sed -i 's/"vocab_size": 2048/"vocab_size": 2047/' "$tmp/m/config.json"; broken 'a vocabulary of another size' "$tmp/m" vocab
fresh; sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' "$tmp/m/config.json"; broken 'a layer too many' "$tmp/m" model.layers.2
for file in tokenizer_config.json; do
  fresh; cp "$tmp/random" "$tmp/m/$file"; broken "$file is random" "$tmp/m/$file"
  fresh; echo '[]' >"$tmp/m/$file"; broken "$file is a list" "$tmp/m/$file" object
  fresh; rm "$tmp/m/$file"
  sft_refused 2 'conversations without a chat template' "'$tmp/m'" chat_template_path -- --model_name_or_path "$tmp/m"
done
fresh; echo '{' >"$tmp/m/generation_config.json"
refused 1 'generation_config.json is cut off' "$tmp/m/generation_config.json" -- generate "$tmp/m" --text hi

# --- weights: every kind of lie in a header ---
weights=$tmp/m/model.safetensors
lie() { # lie NAME SED_SCRIPT TEXT ...: the header edited in place, its length kept by the script
  fresh
  sed -i "$2" "$weights"
  refused 1 "weights: $1" "$tmp/m" "${@:3}" -- certify "$tmp/m"
}
lie 'another type' '1s/"F32"/"F64"/' lm_head.weight
lie 'an unknown type' '1s/"F32"/"XYZ"/' XYZ
lie 'another shape' '1s/\[2048,32\]/[9999,99]/' bytes
lie 'a place that overlaps' '1s/"data_offsets":\[0,/"data_offsets":[4,/' bytes
lie 'a tensor twice' '1s/layers.1.mlp.gate/layers.0.mlp.gate/' layers.0.mlp.gate.weight twice
lie 'a tensor of another name' '1s/layers.1.mlp.gate/layers.7.mlp.gate/' layers.1.mlp.gate.weight missing
fresh; truncate -s 600000 "$weights"; broken 'weights: cut short' "$weights" 'cut short'
fresh; truncate -s +100 "$weights"; broken 'weights: bytes too many' "$weights" '100 bytes'
fresh; printf '\0\0\0\0\0\0\0\177' | dd of="$weights" conv=notrunc status=none; broken 'weights: a header without end' "$weights" header
fresh; printf '\0\0\0\0\0\0\0\0' | dd of="$weights" conv=notrunc status=none; broken 'weights: no header' "$weights" header
for at in 8 60 300 5000; do
  fresh
  printf '\377' | dd of="$weights" bs=1 seek=$at conv=notrunc status=none
  broken "weights: byte $at of the header flipped" "$weights"
done
shards() { # shards NAME INDEX TEXT ...: certify refuses a model of several files with this index
  rm -rf "$tmp/m"
  cp -r tests/fixtures/O1-sharded/model "$tmp/m"
  [ -z "$2" ] || printf '%s' "$2" >"$tmp/m/model.safetensors.index.json"
  [ "$1" != 'a file is missing' ] || rm "$tmp/m/model-00002-of-00003.safetensors"
  [ "$1" != 'a file is endless' ] || ln -sf /dev/zero "$tmp/m/model-00002-of-00003.safetensors"
  [ "$1" != 'files of two models' ] || cp "$model/model.safetensors" "$tmp/m"
  refused 1 "index: $1" "$tmp/m" "${@:3}" -- certify "$tmp/m"
}
shards 'a file is missing' '' model-00002-of-00003.safetensors
shards 'a file is endless' '' model-00002-of-00003.safetensors
shards 'files of two models' '' model.safetensors
shards 'an empty object' '{}' weight_map
shards 'a list' '[]' index.json
shards 'no tensor' '{"weight_map": {}}' weight_map
shards 'a number as file' '{"weight_map": {"a": 5}}' "'a'" string
shards 'a file elsewhere' '{"weight_map": {"a": "../m/model-00001-of-00003.safetensors"}}' "'a'" 'plain name'
shards 'a file from the root' '{"weight_map": {"a": "/dev/zero"}}' "'a'" 'plain name'
shards 'cut off' '{"weight_map": {"lm_head.w' index.json

# --- data ---
rows() { # rows NAME TEXT NEEDLE ...: refused by file and line
  printf '%b' "$2" >"$tmp/rows.jsonl"
  sft_refused 1 "data: $1" "$tmp/rows.jsonl" "${@:3}" -- --dataset_name "$tmp/rows.jsonl"
}
rows 'an empty file' '' 'no rows'
rows 'empty lines' '\n \n\n' 'no rows'
rows 'a text' 'hello\n' :1
rows 'cut off' '{"text": "a b c"}\n{"text": "a' :2
rows 'an array cut off' '[{"text": "a b c"},' 'cut off'
rows 'text behind the array' '[{"text": "a b c"}] x' behind
rows 'a number as row' '{"text": "a b c"}\n5\n' :2 object
rows 'a list of numbers' '[1, 2]' :1 object
rows 'columns of another task' '{"chosen": "a", "rejected": "b"}\n' :1 chosen completion
rows 'a column that nothing reads' '{"question": "a"}\n' :1 question messages
rows 'messages that are a text' '{"messages": "hi"}\n' :1 messages
rows 'no messages' '{"messages": []}\n' :1 messages
rows 'a message without role' '{"messages": [{"content": "a"}]}\n' :1 role
rows 'a message without content' '{"messages": [{"role": "user"}]}\n' :1 content
rows 'a number as text' '{"text": 5}\n' :1 text string
rows 'two shapes' '{"text": "a b c"}\n{"messages": [{"role": "user", "content": "a"}]}\n' :2
rows 'not UTF-8' '{"text": "a\377"}\n' :1
rows 'half a surrogate' '{"text": "\\ud800"}\n' :1
rows 'nothing to train' '{"text": ""}\n' train max_length
rows 'labels that train nothing' '{"input_ids": [1, 2], "labels": [-100, -100]}\n' train
rows 'a prompt alone' '{"prompt": "a"}\n' :1 completion
rows 'an id beyond the vocabulary' '{"input_ids": [1, 2, 2048]}\n' :1 2048 vocabulary
rows 'a negative id' '{"input_ids": [1, -1]}\n' :1 -1
rows 'an id beyond 32 bits' '{"input_ids": [1, 4294967297]}\n' :1 4294967297
rows 'labels of another length' '{"input_ids": [1, 2], "labels": [1]}\n' :1 labels
rows 'nesting without end' "{\"messages\": $(printf '[%.0s' {1..100000})\n" :1
cp "$tmp/random" "$tmp/rows.jsonl"
sft_refused 1 'data: random' "$tmp/rows.jsonl" -- --dataset_name "$tmp/rows.jsonl"
sft_refused 1 'rows that are cut to nothing' "$data" max_length -- --max_length 1

# --- chat templates ---
template() { # template STATUS NAME TEXT NEEDLE ...
  printf '%s' "$3" >"$tmp/chat.jinja"
  sft_refused "$1" "template: $2" "${@:4}" -- --chat_template_path "$tmp/chat.jinja"
}
template 1 'cut off' '{% for m in messages %}{{ m.content' "$tmp/chat.jinja:1"
template 1 'a block that is not closed' '{% for m in messages %}x' "$tmp/chat.jinja"
template 1 'an endless loop' '{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}' "$tmp/chat.jinja"
template 1 'refused roles, over two lines' "{{ raise_exception('no\nsuch role') }}" 'no such role'
cp "$tmp/random" "$tmp/chat.jinja"
sft_refused 1 'template: random' "$tmp/chat.jinja" -- --chat_template_path "$tmp/chat.jinja"
printf '%s' '{% for m in messages %}{{ m.content }}{% endfor %}' >"$tmp/chat.jinja"
sft_refused 2 'assistant_only_loss without marks' assistant_only_loss generation chat_template_path "$tmp/chat.jinja" \
  -- --assistant_only_loss --chat_template_path "$tmp/chat.jinja"
mkdir "$tmp/folder"
sft_refused 1 'a folder without a tokenizer as template' "$tmp/folder/tokenizer.json" -- --chat_template_path "$tmp/folder"

# --- pipes that nobody writes to ---
mkfifo "$tmp/pipe" "$tmp/pipe.safetensors"
refused 2 'a pipe as configuration' "'$tmp/pipe'" 'regular file' -- sft "$tmp/pipe"
sft_refused 1 'a pipe as data' "'$tmp/pipe'" 'regular file' -- --dataset_name "$tmp/pipe"
sft_refused 1 'a pipe as template' "'$tmp/pipe'" 'regular file' -- --chat_template_path "$tmp/pipe"
refused 1 'a pipe as batch' "'$tmp/pipe'" 'regular file' -- certify "$model" --batch "$tmp/pipe"
refused 1 'a pipe as geometry' "'$tmp/pipe'" 'regular file' -- init "$tmp/pipe" "$tmp/x"
refused 1 'a pipe as weights' "'$tmp/pipe.safetensors'" 'regular file' -- inspect "$tmp/pipe.safetensors"

# --- ranks ---
if mpi; then
  ranks=2
  fresh; rm "$tmp/m/config.json"; broken '2 ranks: config.json is missing' "$tmp/m/config.json"
  fresh; truncate -s 600000 "$weights"; broken '2 ranks: weights cut short' "$weights"
  rows '2 ranks: an id beyond the vocabulary' '{"input_ids": [1, 2, 2048]}\n' :1 2048
  ranks=
else
  skip 'ranks' 'built without MPI'
fi
finish
