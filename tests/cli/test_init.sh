#!/usr/bin/env bash
# tartan init: the same bytes on every number of ranks, types, seeds, tokenizer files; and what it refuses.
. tests/cli/lib.sh
config=$model/config.json

same_folder() { diff -r "$1" "$2" >/dev/null || { why="$1 and $2 differ"; return 1; }; }
differs() { ! cmp -s "$1" "$2" || { why="$1 and $2 are equal"; return 1; }; }

runs 'one process' 0 init "$config" "$tmp/one" --tokenizer "$model"
check 'a line says what was made' said '162496 parameters in 69 tensors, 1 file'
check 'tokenizer files come along' cmp "$model/tokenizer.json" "$tmp/one/tokenizer.json"
runs 'it is a model' 0 certify "$tmp/one" --threads 1
runs 'the same again' 0 init "$config" "$tmp/again" --tokenizer "$model" --seed 0
check 'the same bytes' same_folder "$tmp/one" "$tmp/again"
runs 'another seed' 0 init "$config" "$tmp/seed" --seed 1
check 'other weights' differs "$tmp/one/model.safetensors" "$tmp/seed/model.safetensors"
runs 'bfloat16' 0 init "$config" "$tmp/half" --dtype bfloat16
check 'in the configuration' grep -q '"bfloat16"' "$tmp/half/config.json"
run 0 inspect "$tmp/half"
check 'in the file' said 'BF16'
for ranks in 2 3; do
  if mpi; then
    runs "$ranks ranks" $ranks init "$config" "$tmp/ranks$ranks" --tokenizer "$model"
    check "$ranks ranks: the bytes of one process" same_folder "$tmp/one" "$tmp/ranks$ranks"
  else
    skip "$ranks ranks" 'built without MPI'
  fi
done
ranks=

refused 2 'no arguments' 'CONFIG.json OUT' -- init
refused 2 'an output is missing' 'CONFIG.json OUT' -- init "$config"
refused 2 'three arguments' "'c' is one argument too many" -- init "$config" "$tmp/x" c
refused 2 'a folder that holds a model' "'$tmp/one' already holds a model" -- init "$config" "$tmp/one"
refused 1 'an output below a file' "$config" -- init "$config" "$config/x"
refused 2 'an output without a name' "''" -- init "$config" ''
refused 2 'a type that no model has' '--dtype' int8 bfloat16 -- init "$config" "$tmp/x" --dtype int8
refused 2 'a negative seed' '--seed' -1 -- init "$config" "$tmp/x" --seed -1
refused 2 'a huge seed' '--seed' -- init "$config" "$tmp/x" --seed 99999999999999999999
refused 2 'a seed that is a word' '--seed' abc -- init "$config" "$tmp/x" --seed abc
refused 2 'a seed without a number' '--seed' -- init "$config" "$tmp/x" --seed
refused 2 'an option with a slip' "'--sed'" "'--seed'" -- init "$config" "$tmp/x" --sed 1
refused 2 'a tokenizer folder without one' '--tokenizer' "'nowhere/tokenizer.json'" -- init "$config" "$tmp/x" --tokenizer nowhere
refused 1 'a configuration that is not there' "'nowhere.json'" -- init nowhere.json "$tmp/x"
refused 1 'a folder as configuration' "'$model'" 'regular file' -- init "$model" "$tmp/x"
refused 1 'an endless file' "'/dev/zero'" 'regular file' -- init /dev/zero "$tmp/x"
geometry() { # geometry NAME JSON TEXT ...: refused by the name of the file that holds it
  printf '%s' "$2" >"$tmp/geometry.json"
  local name=$1
  shift 2
  refused 1 "$name" "$tmp/geometry.json" "$@" -- init "$tmp/geometry.json" "$tmp/x"
}
geometry 'an empty configuration' '' 'not valid JSON'
geometry 'a list as configuration' '[]' object
geometry 'a configuration without keys' '{}' model_type qwen3_moe
geometry 'an unknown family' '{"model_type": "gpt5_moe"}' gpt5_moe qwen3_moe
geometry 'no layers' "$(sed 's/"num_hidden_layers": 2/"num_hidden_layers": 0/' "$config")" num_hidden_layers
geometry 'sizes beyond the machine' "$(sed 's/"hidden_size": 32/"hidden_size": 4611686018427387904/' "$config")" hidden_size
geometry 'a size that is a text' "$(sed 's/"hidden_size": 32/"hidden_size": "32"/' "$config")" hidden_size '"32"'
geometry 'more experts a token than experts' "$(sed 's/"num_experts_per_tok": 2/"num_experts_per_tok": 9/' "$config")" num_experts_per_tok
if mpi; then
  ranks=2 refused 2 '2 ranks refuse a folder that holds a model' "'$tmp/one'" -- init "$config" "$tmp/one"
else
  skip '2 ranks refuse a folder that holds a model' 'built without MPI'
fi
finish
