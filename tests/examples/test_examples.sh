#!/usr/bin/env bash
# The examples run, on one process and on meshes, and what they save is a model.
set -u
build=${BUILD:-build}
out=$build/tests/tmp/examples
mkdir -p "$out"
number=0 failed=0
check() { # name, command...
  number=$((number + 1))
  local name=$1; shift
  if timeout 60 "$@" >"$out/log" 2>&1; then echo "ok $number - $name"
  else echo "not ok $number - $name"; sed 's/^/# /' "$out/log"; failed=1; fi
}
model=tests/fixtures/O1/model
check "01-train on one process" "$build/examples/01-train" $model "$out/one"
cp "$out/log" "$out/one.log"
if "$build/check/tartan" --version | grep -q 'with MPI'; then
  check "01-train on 4 ranks, ep_size 2, tp_size 2" "${MPIRUN:-mpirun}" -n 4 "$build/examples/01-train" $model "$out/four" 2 2
  check "its model loads" "$build/check/tartan" inspect "$out/four"
else
  echo "ok $((number += 1)) - 01-train on 4 ranks # SKIP built without MPI"
fi
check "02-shared-batch on one process" "$build/examples/02-shared-batch" $model
cp "$out/log" "$out/alone.log"
# Losses of eight steps within 1e-5: sums over ranks are rounded in other places (as in tests/cli/test_sft.sh).
same_losses() {
  paste -d ' ' <(grep ^step "$out/alone.log") <(grep ^step "$out/shared.log") | awk '
    { d = $4 - $13; print; if (d < 0) d = -d; if ($2 != $11 || !(d <= 1e-5 * $4) || $8 != $17) bad = 1 }
    END { exit bad || NR != 8 }'
}
export -f same_losses; export out
if "$build/check/tartan" --version | grep -q 'with MPI'; then
  check "02-shared-batch on 4 ranks" "${MPIRUN:-mpirun}" -n 4 "$build/examples/02-shared-batch" $model
  cp "$out/log" "$out/shared.log"
  check "its mesh" grep -q 'ranks 4: fsdp_size 2, tp_size 2, ep_size 2' "$out/shared.log"
  check "its losses are those of one process" bash -c same_losses
else
  echo "ok $((number += 1)) - 02-shared-batch on 4 ranks # SKIP built without MPI"
fi
check "the loss falls" awk '/^step/ { if (!first) first = $4 + 0; last = $4 + 0 } END { exit !(last < first) }' "$out/one.log"
echo "1..$number"
exit $failed
