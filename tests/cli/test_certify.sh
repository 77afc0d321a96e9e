#!/usr/bin/env bash
# tartan certify: every mesh of 1 to 4 ranks, batches with holes and positions, its outputs, and what it refuses.
. tests/cli/lib.sh
fixture=tests/fixtures/O1

certified() { # certified RANKS ARGUMENTS ...
  run "$1" certify "$fixture/model" --threads 1 "${@:2}"
  [ $status = 0 ] && said CERTIFIED " 69 parameters, 0 wrong" && ! said 'NOT CERTIFIED'
  local good=$?
  why=''
  return $good
}

# The loss that the report gives for the mesh is the reference library's: tolerance of tests/fixtures/README.md.
reference_loss() {
  local expected got
  expected=$(sed -nE '0,/"loss"/s/.*"loss": ([0-9.]+).*/\1/p' "$fixture/expected.json")
  got=$(sed -nE 's/^loss +([0-9.]+) on the mesh.*/\1/p' <<<"$output")
  why="loss $got, expected $expected"
  awk -v a="$got" -v b="$expected" 'BEGIN { d = a - b; exit !(b > 0 && d <= 5e-6 && d >= -5e-6) }'
}

# A line for each of the two layers; backward sends more than forward where it computes the block again: not in the last.
traffic() {
  why="no such lines in the report"
  awk '$1 == "layer" && $3 == "forward" && $5 == "backward" { n++; if ($4 + 0 <= 0 || $6 + 0 <= 0 || ($6 + 0 > $4 + 0) != (n == 1)) bad = 1 }
       END { exit bad || n != 2 }' <<<"$output"
}

check 'one process' certified 0
for isa in base avx2 avx512; do # a cap above what the machine has caps nothing
  export TARTAN_ISA=$isa
  check "one process, instructions of $isa" certified 0
done
unset TARTAN_ISA
check 'one process, a batch' certified 0 --batch $fixture/batch.json --save_outputs "$tmp/one.safetensors"
check 'the loss of the reference' reference_loss
runs 'the outputs are a safetensors file' 0 inspect "$tmp/one.safetensors" --tensors
check 'with loss, logits and gradients' said ' loss ' ' logits ' ' grad.model.layers.0.mlp.gate.weight '
check 'again' certified 0 --batch $fixture/batch.json --save_outputs "$tmp/again.safetensors"
check 'the same bytes' cmp "$tmp/one.safetensors" "$tmp/again.safetensors"
check 'by layer' certified 0 --by_layer --batch $fixture/batch.json
check 'which is said' said 'layer by layer' 'model.layers.0: output' 'model.norm and head: input gradient' '6 values and gradients between layers, 0 wrong'
check 'the loss of the reference by layer' reference_loss

cat >"$tmp/holes.json" <<'END'
{"input_ids": [[35, 57, 85, 15, 1, 85, 43], [60, 56, 87, 8, 29], [4, 9, 11, 12, 3, 5, 7], [2, 3]],
 "attention_mask": [[1, 0, 1, 1, 0, 0, 1], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [0, 0]],
 "labels": [[35, 57, 85, -100, 1, 85, 43], [60, 56, 87, 8, 29], [-100, -100, -100, -100, -100, -100, -100], [2, 3]]}
END
cat >"$tmp/positions.json" <<'END'
{"input_ids": [[35, 57, 85, 15, 1, 85, 43], [60, 56, 87, 8, 29]], "attention_mask": null, "labels": null,
 "position_ids": [[0, 1, 2, 0, 1, 0, 1], [7, 8, 9, 10, 11]]}
END
cat >"$tmp/nulls.json" <<'END'
{"input_ids": [[35, 57, 85, 15]], "attention_mask": null, "labels": null, "position_ids": null}
END
for batch in holes positions nulls; do
  check "one process, batch with $batch" certified 0 --batch "$tmp/$batch.json" --save_outputs "$tmp/$batch-0.safetensors"
done

# Every mesh of 2 to 4 ranks, one a line; the dispatchers that it allows take turns, with TT_FULL each has its turn on each.
meshes() {
  local ranks tp ep turn=0 kinds kind
  for ranks in 2 3 4; do
    for ((tp = 1; tp <= ranks; tp++)); do
      for ((ep = 1; ep <= ranks; ep++)); do
        ((ranks % tp == 0 && ranks % ep == 0)) || continue
        kinds=(alltoall allgather)
        ((tp == ep && 8 % ep == 0)) && kinds+=(allreduce) # O1 has 8 experts
        [ -n "${TT_FULL:-}" ] || kinds=("${kinds[turn++ % ${#kinds[@]}]}")
        for kind in "${kinds[@]}"; do
          echo "$ranks --tp_size $tp --ep_size $ep --expert_dispatch $kind"
        done
      done
    done
  done
}

if mpi; then
  while read -r ranks mesh; do
    rm -f "$tmp/mesh.safetensors"
    check "$ranks ranks $mesh" certified "$ranks" $mesh --batch $fixture/batch.json --save_outputs "$tmp/mesh.safetensors"
    check "$ranks ranks $mesh: the loss of the reference" reference_loss
    # Gradients of one tensor are within 2e-5 of its norm (tests/fixtures/README.md); so are all of them together.
    check "$ranks ranks $mesh: the outputs of one process" near 2e-5 "$tmp/one.safetensors" "$tmp/mesh.safetensors"
  done < <(echo 1 && meshes)
  check '3 ranks, layer by layer' certified 3 --ep_size 3 --batch $fixture/batch.json --by_layer
  check '4 ranks' certified 4 --ep_size 4 --batch $fixture/batch.json
  check 'the bytes that each layer sends, by direction' traffic
  for case in '3 3 holes' '2 1 positions' '4 2 nulls'; do
    set -- $case
    check "$1 ranks, ep_size $2, batch with $3" certified $1 --ep_size $2 --batch "$tmp/$3.json" --save_outputs "$tmp/$3-$1.safetensors"
    check "$1 ranks, batch with $3: the outputs of one process" near 2e-5 "$tmp/$3-0.safetensors" "$tmp/$3-$1.safetensors"
  done
  # Fewer experts than ranks that are to share them.
  sed -E 's/"(num_experts|num_local_experts)": 8/"\1": 2/' "$model/config.json" >"$tmp/two.json"
  runs 'a model of two experts' 0 init "$tmp/two.json" "$tmp/two"
  ranks=4 refused 2 'more ranks than experts' 'ep_size 4' '2' -- certify "$tmp/two" --ep_size 4
  ranks=3 refused 2 'ep_size that does not divide the ranks' 'ep_size 2' '3 ranks' -- certify "$model" --ep_size 2
  ranks=2 refused 2 'fsdp_size that does not fit the ranks' 'fsdp_size 3' '2 ranks' -- certify "$model" --fsdp_size 3
  ranks=2 refused 2 'allreduce without shared batches' expert_dispatch 'ep_size 2' 'tp_size 1' alltoall -- certify "$model" --ep_size 2 --expert_dispatch allreduce
  ranks=2 refused 1 'a model that is not there, 2 ranks' "nowhere/config.json" -- certify nowhere
else
  skip 'ranks' 'built without MPI'
fi
ranks=

refused 2 'no model' MODEL -- certify
refused 2 'two models' "'b' is one argument too many" -- certify "$model" b
refused 2 'an option with a slip' "'--ep_siz'" "'--ep_size'" -- certify "$model" --ep_siz 1
refused 2 'ep_size beyond the ranks' 'ep_size 2' '1 ranks' -- certify "$model" --ep-size=2
refused 2 'a huge ep_size' --ep_size 9999999999 -- certify "$model" --ep_size 9999999999
refused 2 'tp_size beyond the ranks' 'tp_size 2' '1 ranks' -- certify "$model" --tp_size 2
refused 2 'an unknown dispatcher' expert_dispatch "'foo'" alltoall -- certify "$model" --expert_dispatch foo
refused 2 'huge threads' --threads -- certify "$model" --threads 4294967297
refused 1 'a batch that is not there' "'nowhere'" -- certify "$model" --batch nowhere
refused 1 'an endless batch' "'/dev/zero'" -- certify "$model" --batch /dev/zero
refused 2 'an output with another ending' --save_outputs "'$tmp/x.bin'" .safetensors -- certify "$model" --save_outputs "$tmp/x.bin"
refused 2 'an output that is only an ending' --save_outputs .safetensors -- certify "$model" --save_outputs "$tmp/.safetensors"
cp -r "$model" "$tmp/own"
refused 2 'an output over the model' --save_outputs "'$tmp/own/model.safetensors'" -- certify "$tmp/own" --save_outputs "$tmp/own/model.safetensors"
refused 2 'an output in the model folder' --save_outputs "'$tmp/own/x.safetensors'" -- certify "$tmp/own/" --save_outputs "$tmp/own/x.safetensors"
batch() { # batch NAME JSON TEXT ...
  printf '%s' "$2" >"$tmp/batch.json"
  local name=$1
  shift 2
  refused 1 "batch: $name" "$@" -- certify "$model" --batch "$tmp/batch.json"
}
batch 'an empty file' '' "$tmp/batch.json"
batch 'a list' '[]' "$tmp/batch.json" input_ids
batch 'no ids' '{}' "$tmp/batch.json" input_ids
batch 'ids that are a number' '{"input_ids": 5}' input_ids
batch 'no row' '{"input_ids": []}' input_ids
batch 'a text as id' '{"input_ids": [[1, "a"]]}' input_ids 'column 1'
batch 'an id beyond the vocabulary' '{"input_ids": [[1, 2, 99999]]}' 'row 0' 'column 2' 99999 2048
batch 'an id beyond 32 bits' '{"input_ids": [[1, 4294967297]]}' input_ids 'column 1'
batch 'a negative id' '{"input_ids": [[1, -3]]}' 'column 1' -3
batch 'a label beyond the vocabulary' '{"input_ids": [[1, 2]], "labels": [[1, 2048]]}' 'column 1' 2048
batch 'a mask of 5' '{"input_ids": [[1, 2]], "attention_mask": [[1, 5]]}' attention_mask 'column 1' 5
batch 'a negative position' '{"input_ids": [[1, 2]], "position_ids": [[0, -1]]}' 'column 1' -1
batch 'labels for another row' '{"input_ids": [[1, 2], [3, 4]], "labels": [[1, 2]]}' labels '2 rows'
batch 'nothing trained' '{"input_ids": [[1, 2]], "labels": [[-100, -100]]}' 'no supervised target'
batch 'all masked' '{"input_ids": [[1, 2]], "attention_mask": [[0, 0]]}' 'no supervised target'
batch 'an unknown key' '{"input_ids": [[1, 2]], "mask": [[1, 1]]}' "'mask'" attention_mask
finish
