#!/usr/bin/env bash
# tartan inspect, render and generate: what they show, and what they refuse.
. tests/cli/lib.sh

# --- inspect ---
runs 'inspect a folder' 0 inspect "$model"
check 'shows the model and its files' said qwen3_moe '162496, 144064 active' model.safetensors 'tensors: 69'
runs 'inspect lists tensors' 0 inspect "$model" --tensors
check 'with type and shape' said 'model.layers.1.mlp.experts.7.down_proj.weight' 'F32      [32, 16]'
runs 'inspect a file' 0 inspect "$model/model.safetensors"
check 'shows its tensors' said 'tensors: 69' '649984 bytes'
refused 2 'inspect nothing' PATH -- inspect
refused 1 'inspect what is not there' "'nowhere'" -- inspect nowhere
refused 1 'inspect another file' "$data" safetensors -- inspect "$data"
refused 1 'inspect an endless file' "'/dev/zero'" -- inspect /dev/zero
refused 2 'inspect with a slip' "'--tensor'" "'--tensors'" -- inspect "$model" --tensor

# --- verify ---
runs 'verify a folder' 0 verify "$model"
check 'says what it looked at' said 'model: 69 tensors in 1 file' 'headers in order'
runs 'verify values' 0 verify "$model" --deep
check 'counts those that are not finite' said 'values: 0 NaN, 0 infinite'
runs 'verify shards' 0 verify tests/fixtures/O1-sharded/model
check 'reads the index' said '69 tensors in 3 files' 'headers and index in order'
runs 'verify a file' 0 verify "$model/model.safetensors"
mkdir -p "$tmp/adapter" "$tmp/cut"
cp "$model/model.safetensors" "$tmp/adapter/adapter_model.safetensors"
echo '{}' >"$tmp/adapter/adapter_config.json"
runs 'verify an adapter' 0 verify "$tmp/adapter"
check 'under its name' said 'adapter_model: 69 tensors'
size=$(stat -c %s "$tmp/adapter/adapter_model.safetensors")
printf '\377\377\377\377' | dd of="$tmp/adapter/adapter_model.safetensors" bs=1 seek=$((size - 4)) conv=notrunc status=none
runs 'verify does not read values unasked' 0 verify "$tmp/adapter"
for ranks in 0 3; do
  [ $ranks = 0 ] || mpi || continue
  run $ranks verify "$tmp/adapter" --deep
  [ $status = 1 ] && said 'model.norm.weight: 1 NaN, 0 infinite' 'values: 1 NaN, 0 infinite, in 1 tensors' 'tartan: error: '
  ok $? "verify finds a NaN, $ranks ranks"
done
ranks=0
head -c $((size - 1)) "$model/model.safetensors" >"$tmp/cut/model.safetensors"
refused 1 'verify a file that was cut' model.safetensors 'cut short' -- verify "$tmp/cut"
echo '{}' >"$tmp/cut/tartan_manifest.json"
refused 1 'verify what a manifest does not prove' tartan_manifest.json damaged -- verify "$tmp/cut"
refused 1 'verify a folder of other things' model.safetensors -- verify tests/cli
refused 1 'verify what is not there' "'nowhere'" -- verify nowhere
refused 1 'verify a file of another kind' config.json 'verify takes' -- verify "$model/config.json"
whole() { # a model folder that the next check damages
  rm -rf "$tmp/whole"
  cp -r "$model" "$tmp/whole"
}
whole
for part in trainer_state.json optimizer.safetensors optimizer.safetensors.index.json; do
  echo '{}' >"$tmp/whole/$part"
  refused 1 "verify a checkpoint of which $part is left" tartan_manifest.json missing -- verify "$tmp/whole"
  rm "$tmp/whole/$part"
done
runs 'verify what is left without them' 0 verify "$tmp/whole"
check 'matches it with its configuration' said 'config.json: every parameter has its tensor'
rm "$tmp/whole/config.json"
refused 1 'verify a model without configuration' config.json -- verify "$tmp/whole"
for edit in 's/"num_hidden_layers": 2/"num_hidden_layers": 3/ model.layers.2' \
  's/"num_hidden_layers": 2/"num_hidden_layers": 1/ model.layers.1' 's/"vocab_size": 2048/"vocab_size": 2047/ shape' \
  's/"tie_word_embeddings": false/"tie_word_embeddings": true/ tie_word_embeddings'; do
  whole
  sed -i "${edit% *}" "$tmp/whole/config.json"
  refused 1 "verify a model whose config.json says otherwise: ${edit##* }" "$tmp/whole" "${edit##* }" -- verify "$tmp/whole"
done
whole
printf '\2\0\0\0\0\0\0\0{}' >"$tmp/whole/model.safetensors"
refused 1 'verify a model without tensors' missing -- verify "$tmp/whole"
rm -r "$tmp/whole"
refused 2 'verify nothing' PATH -- verify

# --- render ---
sources=(--model_name_or_path "$model" --dataset_name "$data")
run 0 render "${sources[@]}" --rows 1 --ids --assistant_only_loss
[ $status = 0 ] && said '--- row 0 (line 1): 40 tokens' 'text: <|im_start|>user' '[[Brussels.<|im_end|>' '--- 21 rows'
ok $? 'render shows text and what is trained'
ids=$(sed -n 's/^ids://p' <<<"$output") labels=$(sed -n 's/^labels://p' <<<"$output")
paste <(tr ' ' '\n' <<<"$ids") <(tr ' ' '\n' <<<"$labels") | awk '
  NF == 2 { n++; if ($2 == -100) off++; else if ($2 == $1) on++; else wrong++ }
  END { exit !(n == 40 && on > 0 && off > 0 && !wrong) }'
ok $? 'render shows a label for each id: the id itself, or -100'
run 0 render $runs/completion_eval/config.yaml --eval_strategy no --model_name_or_path "$model" \
  --dataset_name $runs/completion_eval/data.jsonl --rows=2
[ $status = 0 ] && [ "$(grep -c '^--- row' <<<"$output")" = 2 ] && said '[['
ok $? 'render reads a configuration file'
refused 2 'render nothing' model_name_or_path -- render
for rows in 0 -1 x 99999999999999999999 ''; do
  refused 2 "render --rows '$rows'" --rows "'$rows'" -- render "${sources[@]}" --rows "$rows"
done
refused 2 'render --rows without a number' --rows -- render "${sources[@]}" --rows
refused 2 'render with a slip' --dataset_nam dataset_name -- render --dataset_nam x
refused 2 'render without data' dataset_name -- render --model_name_or_path "$model"
refused 2 'render data that is not there' "'nowhere'" -- render --model_name_or_path "$model" --dataset_name nowhere

# --- generate ---
short=(--max_new_tokens 3 --threads 1)
runs 'generate an answer' 0 generate "$model" --prompt 'Name the capital.' "${short[@]}"
answer=$output
check 'that is not empty' test -n "$answer"
runs 'generate with a system message' 0 generate "$model" --system 'Be short.' --prompt 'Name the capital.' "${short[@]}"
runs 'generate a continuation' 0 generate "$model" --text 'Name the' "${short[@]}"
printf 'Name the capital.\n\nName the capital.\r\nName the capital.' >"$tmp/questions"
input=$tmp/questions run 0 generate "$model" "${short[@]}"
[ "$output" = "$answer"$'\n'"$answer"$'\n'"$answer" ]
ok $? 'generate answers each line of standard input'
run 0 generate "$model" "${short[@]}"
[ $status = 0 ] && [ -z "$output" ]
ok $? 'generate says nothing to no question'
run 0 generate "$model" --chat "$data" --limit 2 "${short[@]}"
[ $status = 0 ] && said '0 of 2 answers right to the letter' 'expected: Ankara.'
ok $? 'generate compares with conversations'
# An answer that the model gives is right when it is expected.
run 0 generate "$model" --prompt 'hi' "${short[@]}"
printf '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "%s"}]}\n' "$output" >"$tmp/chat.jsonl"
run 0 generate "$model" --chat "$tmp/chat.jsonl" --quiet "${short[@]}"
[ "$output" = '1 of 1 answers right to the letter' ]
ok $? 'generate counts a right answer'

refused 2 'generate from nothing' MODEL -- generate
refused 1 'generate from what is not there' "nowhere/" -- generate nowhere --prompt hi
refused 1 'generate from no text' 'empty' -- generate "$model" --text ''
refused 1 'generate from a text that is not UTF-8' UTF-8 -- generate "$model" --text $'a\xff'
refused 1 'generate from a prompt that is not UTF-8' 'user message' UTF-8 -- generate "$model" --prompt $'a\xff'
refused 1 'generate with a system message that is not UTF-8' 'system message' UTF-8 -- generate "$model" --system $'\xff' --prompt hi
for tokens in -1 x 4611686018427387904; do
  refused 2 "generate $tokens tokens" --max_new_tokens "'$tokens'" -- generate "$model" --prompt hi --max_new_tokens "$tokens"
done
input=/dev/zero refused 1 'generate from an endless line' 'standard input' 1048576 -- generate "$model" "${short[@]}"
input=$model/model.safetensors refused 1 'generate from noise' UTF-8 -- generate "$model" --max_new_tokens 1
refused 1 'generate from conversations that are not there' "'nowhere'" -- generate "$model" --chat nowhere
conversations() { # conversations NAME TEXT NEEDLE ...
  printf '%b' "$2" >"$tmp/chat.jsonl"
  refused 1 "generate --chat: $1" "$tmp/chat.jsonl" "${@:3}" -- generate "$model" --chat "$tmp/chat.jsonl" "${short[@]}"
}
conversations 'an empty file' '' 'no rows'
conversations 'no messages' '{"text": "a"}\n' :1 messages
conversations 'messages that are numbers' '{"messages": [5, 6]}\n' :1 assistant
conversations 'a question last' '{"messages": [{"role": "user", "content": "a"}]}\n' :1 assistant
conversations 'cut off' '{"messages": [' :1
cp -r "$model" "$tmp/m"
rm "$tmp/m/tokenizer_config.json"
refused 2 'generate without a chat template' 'chat template' --text -- generate "$tmp/m" --prompt hi
finish
