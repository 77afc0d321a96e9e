# lib.sh - what the scripts of this folder share. Sourced by them; they are run by tests/run.sh, which sets what Open MPI needs
# as root and with more ranks than cores.
set -u
mpirun=${MPIRUN:-mpirun}
alone=${BUILD:-build}/tests/comm/test_comm
number=0 bad=0 output=''

report() { # report VERDICT NAME: one TAP line, with what $output holds when it failed
  number=$((number + 1))
  if [ "$1" = 0 ]; then
    echo "ok $number - $2"
  else
    echo "not ok $number - $2"
    bad=1
    sed 's/^/  /' <<<"$output"
  fi
}

# needs_mpi NAME: leaves with that skipped where there is no MPI: a program without it refuses to be launched.
needs_mpi() {
  if ! command -v "$mpirun" >/dev/null || OMPI_COMM_WORLD_SIZE=1 "$alone" alone 2>&1 | grep -q 'without MPI'; then
    echo "ok 1 - $1 # SKIP this build has no MPI"
    exit 0
  fi
}

finish() {
  echo "1..$number"
  exit $bad
}
