#!/usr/bin/env bash
# Run test programs and test scripts, each in its own process with a time limit, and add up their TAP lines.
#
#   tests/run.sh [FOLDER ...]     default: every folder under tests/
#
# A program is tests/FOLDER/test_*.c (built to $BUILD/tests/FOLDER/), a script is tests/FOLDER/test_*.sh; both print
# TAP ("ok 1 - name", "not ok 2 - name", "ok 3 # SKIP why") and exit non-zero on failure.
# Output of what passes is kept in $BUILD/tests/FOLDER/*.log and not shown.
# Environment: BUILD (build), TT_TEST_SECONDS (300, per program), TT_REFERENCE (folder with texts of others that
# some tests compare with; without it those are skipped).
set -u
cd "$(dirname "$0")/.."
export BUILD=${BUILD:-build}
limit=${TT_TEST_SECONDS:-300}
# Several ranks on few cores: MPI must yield while it waits, and containers run as root.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_hwloc_base_binding_policy=none
export CMOCKA_MESSAGE_OUTPUT=TAP
passed=0 failed=0 skipped=0
folders=${*:-$(cd tests && ls -d */ | tr -d /)}
for folder in $folders; do
  [ -d "tests/$folder" ] || { echo "tests/$folder: no such folder"; failed=$((failed + 1)); continue; }
  for source in tests/"$folder"/test_*.c tests/"$folder"/test_*.sh; do
    [ -e "$source" ] || continue
    name=$(basename "${source%.*}")
    log=$BUILD/tests/$folder/$name.log
    mkdir -p "$(dirname "$log")"
    case $source in
      *.c) command=("$BUILD/tests/$folder/$name") ;;
      *.sh) command=(bash "$source") ;;
    esac
    start=$(date +%s%N)
    timeout --kill-after=5 "$limit" "${command[@]}" >"$log" 2>&1 </dev/null
    status=$?
    seconds=$(( ($(date +%s%N) - start) / 100000000 ))
    # cmocka marks what it skips as "not ok 3 # SKIP name" or "ok 3 # SKIP name", by version: both are skipped.
    skip=$(grep -cE '^(not )?ok [0-9]+.*# *[Ss][Kk][Ii][Pp]' "$log")
    good=$(grep -cE '^ok [0-9]+|^not ok [0-9]+.*# *[Ss][Kk][Ii][Pp]' "$log")
    bad=$(grep -E '^not ok [0-9]+' "$log" | grep -cvE '# *[Ss][Kk][Ii][Pp]')
    # A program that crashed, hung or ran nothing counts as one failure even when no line says so.
    if [ "$bad" = 0 ] && { [ $status != 0 ] || [ "$good" = 0 ]; }; then bad=1; fi
    passed=$((passed + good - skip)) skipped=$((skipped + skip)) failed=$((failed + bad))
    printf '%-34s %4d passed %3d failed %3d skipped %4d.%d s\n' "$folder/$name" $((good - skip)) "$bad" "$skip" \
      $((seconds / 10)) $((seconds % 10))
    if [ "$bad" != 0 ]; then
      [ $status = 124 ] && echo "  stopped after $limit s"
      [ $status -gt 128 ] && echo "  ended by signal $((status - 128))"
      grep -vE '^ok |^1\.\.' "$log" | tail -n 40 | sed 's/^/  | /'
    fi
  done
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
