#!/usr/bin/env bash
# Steps of two ranks on two hosts that a slow link joins: what gathering weights and summing gradients cost, and how much of it
# hides behind compute. The hosts are pretended: network namespaces of this machine, their links held to a rate by tc.
#
#   bench/limited_link.sh [RATE [PROGRAM ...]]      default 3gbit build/bench/bench_step; several are run in turn, twice
#
# Needs root, ip, tc and Open MPI. SHAPE="--layers 4 ..." names another shape.
set -u
cd "$(dirname "$0")/.." || exit 1
rate=${1:-3gbit}
shift
[ $# -gt 0 ] || set -- build/bench/bench_step
tmp=build/limited-link mpirun=mpirun
mkdir -p "$tmp"
mpi() { command -v mpirun >/dev/null; }
. tests/support/hosts.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
shape=(${SHAPE:---layers 8 --hidden 1024 --width 512 --experts 16 --heads 8 --chosen 4 --vocab 8192 --tokens 1024})
hosts_possible && hosts_up 2 || { echo "limited_link.sh: needs root, network namespaces and Open MPI" >&2; exit 1; }

# run PROGRAM: the lines of its result that matter here
run() {
  hosts_start 300 1 "$@" "${shape[@]}" --threads 1 --warmup 1 --steps 3 --profile 2>&1 |
    grep -E '^step|^  (gather|reduce|waiting) |error' || echo "  no result: $*"
}

for turn in 1 2; do
  for program; do
    for limit in 100gbit "$rate"; do
      hosts_limit "$limit" || exit 1
      echo "$program, $limit"
      run "$PWD/$program"
    done
  done
done
