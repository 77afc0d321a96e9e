#!/usr/bin/env bash
# The checks of test_shared on processes, more of them than most machines have cores for, and what a rank that fails leaves.
# Run by tests/run.sh, which sets what Open MPI needs as root and with more ranks than cores.
set -u
program=${BUILD:-build}/tests/comm/test_shared
alone=${BUILD:-build}/tests/comm/test_comm
number=0 bad=0
unset TARTAN_SHARED

report() { # report VERDICT NAME: one TAP line, with the program's output when it failed
  number=$((number + 1))
  if [ "$1" = 0 ]; then
    echo "ok $number - $2"
  else
    echo "not ok $number - $2"
    bad=1
    sed 's/^/  /' <<<"$output"
  fi
}

if ! command -v "${MPIRUN:-mpirun}" >/dev/null || OMPI_COMM_WORLD_SIZE=1 "$alone" alone 2>&1 | grep -q 'without MPI'; then
  echo "ok 1 - processes that share memory # SKIP this build has no MPI"
  exit 0
fi

for n in 1 2 3 5; do
  output=$(TARTAN_FAIL=$((n - 1)):refuse:grow-shared:memory timeout 60 "${MPIRUN:-mpirun}" -n $n "$program" mpi 2>&1)
  report $? "$n processes"
done
output=$(timeout 60 "${MPIRUN:-mpirun}" -n 3 "$program" mpi-apart 2>&1)
report $? 'one process that will not'
output=$(timeout 60 "${MPIRUN:-mpirun}" -n 3 "$program" mpi-limit 2>&1)
report $? 'one process without addresses'

# The others read its memory until the watchdog ends them, and then nothing is left: no process, no name.
output=$(timeout 60 "${MPIRUN:-mpirun}" -n 3 "$program" mpi-killed 2>&1)
status=$?
left=$(pgrep -fx "$program mpi-killed"; ls /dev/shm | grep tartan-shared)
output+=" (status $status, left: $left)"
[ $status != 0 ] && [ $status != 124 ] && grep -q 'rank 0 (.* has ended without a word' <<<"$output" &&
  ! grep -qi 'bus error\|segmentation' <<<"$output" && [ -z "$left" ]
report $? 'a process that is killed'
echo "1..$number"
exit $bad
