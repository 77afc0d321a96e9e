#!/usr/bin/env bash
# The checks of test_shared on processes, more of them than most machines have cores for, and what a rank that fails leaves.
. tests/comm/lib.sh
program=${BUILD:-build}/tests/comm/test_shared
unset TARTAN_SHARED

needs_mpi 'processes that share memory'

for n in 1 2 3 5; do
  output=$(TARTAN_FAIL=$((n - 1)):refuse:grow-shared:memory timeout 60 "$mpirun" -n $n "$program" mpi 2>&1)
  report $? "$n processes"
done
output=$(timeout 60 "$mpirun" -n 3 "$program" mpi-apart 2>&1)
report $? 'one process that will not'
output=$(timeout 60 "$mpirun" -n 3 "$program" mpi-limit 2>&1)
report $? 'one process without addresses'
output=$(timeout 60 "$mpirun" -n 3 "$program" mpi-limited 2>&1) && grep -q 'addresses are limited (ulimit -v)' <<<"$output"
report $? 'one process whose addresses are limited'

# The others read its memory until the watchdog ends them, and then nothing is left: no process, no name.
# The number tells these processes from those of another run on the same machine.
output=$(timeout 60 "$mpirun" -n 3 "$program" mpi-killed $$ 2>&1)
status=$?
left=$(pgrep -fx "$program mpi-killed $$"; ls /dev/shm | grep tartan-shared)
output+=" (status $status, left: $left)"
[ $status != 0 ] && [ $status != 124 ] && grep -q 'rank 0 (.* has ended without a word' <<<"$output" &&
  ! grep -qi 'bus error\|segmentation' <<<"$output" && [ -z "$left" ]
report $? 'a process that is killed'
finish
