#!/usr/bin/env bash
# The checks of test_comm over MPI, and what mpirun makes of ranks that abort, break an invariant or stall.
. tests/comm/lib.sh
program=$alone

needs_mpi 'ranks over MPI'

for n in 1 2 3 4; do
  output=$(timeout 60 "$mpirun" -n $n "$program" mpi 2>&1)
  report $? "$n ranks over MPI"
done

# MPICH's launcher tells the status of the rank that aborted, or the signal with which it has ended another. When a rank dies it
# kills the others at once, often before they can report; then its own message is all there is.
exact=1 orphans='rank 0 ('
"$mpirun" --version 2>&1 | grep -qi hydra && exact=0 orphans='Killed (signal 9)'

# ends_with MODE RANKS STATUS TEXT: mpirun ends within 10 s, with this status (or any but 0; so where it is not exact), and
# TEXT is shown.
ends_with() {
  local start=$SECONDS status
  output=$(timeout 30 "$mpirun" -n "$2" "$program" "$1" 2>&1)
  status=$?
  output+=$'\n'"status $status after $((SECONDS - start)) s, expected $3 and: $4"
  [ $((SECONDS - start)) -lt 10 ] && [ $status != 0 ] && { [ $exact = 0 ] || [ "$3" = any ] || [ $status = "$3" ]; } &&
    grep -qF "$4" <<<"${output%$'\n'*}"
  report $? "$1 ends all ranks"
}
ends_with mpi-abort 3 3 'phase start): the disk is full'
ends_with mpi-assert 3 1 'internal error: !last does not hold'
ends_with mpi-stall 3 1 'missing: ranks 2'
ends_with mpi-order 3 any ': ranks disagree about the order of operations'
ends_with mpi-sizes 3 any ': ranks disagree about sizes'
ends_with mpi-still 3 1 'phase load): load does not move: 0.000 of 0.000 GB done'
ends_with mpi-crash 3 any 'step 7, phase forward): crashed: segmentation fault'
# Open MPI's leaves those who remain a second here: of its two waits (docs/failures.md, Launchers) the second death can end but one.
ends_with mpi-orphans 4 any "$orphans"
# After a third death it would kill them at once, unless told to let them be. Of those who remain the lowest speaks, and no other.
if [ $exact = 1 ]; then
  output=$(timeout 30 "$mpirun" --enable-recovery -n 6 "$program" mpi-orphans 2>&1)
  [ "$(grep -c 'tartan: error: ' <<<"$output")" = 1 ] && grep -qF "$orphans" <<<"$output"
  report $? "one of those who remain speaks"
fi
output=$(timeout 30 "$mpirun" -n 3 "$program" mpi-slow 2>&1)
[ $? = 0 ] && [ "$(grep -c met <<<"$output")" = 3 ]
report $? "a slow transfer that moves is waited for"

# Bound to one core, a rank alone on the host takes all that mpirun has.
# nproc would heed the variables of OpenMP.
cpus=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
output=$(timeout 30 "$mpirun" --bind-to core -n 1 "$program" mpi-cpus 2>&1)
read -r threads before after <<<"$(tail -n 1 <<<"$output")"
output+=" (threads, CPUs before, CPUs after; expected $cpus threads and CPUs)"
[ "${threads:-0}" = "$cpus" ] && [ "${after:-0}" = "$cpus" ] && [ "${before:-0}" -le "$cpus" ]
report $? "a bound rank takes its share of the host"

# Without a launcher MPI is not started.
output=$("$program" alone 2>&1)
[ "$output" = 'one process' ]
report $? "alone without a launcher"

# Processes that a foreign launcher started do not find each other; each would train the whole job.
output=$(PMI_SIZE=2 timeout 30 "$program" alone 2>&1)
status=$?
[ $status = 2 ] && grep -qF 'the launcher started 2 processes, but MPI sees 1' <<<"$output"
report $? "a launcher of another MPI is refused"
finish
