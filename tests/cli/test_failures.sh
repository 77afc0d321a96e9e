#!/usr/bin/env bash
# A rank of four fails on purpose, in every phase and in every way (src/comm/inject.h): the job ends within seconds (a rank
# that stands still: after the deadline), not with success, after one message that names the rank and its phase, and leaves
# no half of a model. By default each phase meets some of the ways; with TT_FULL=1 all of them.
. tests/cli/lib.sh

deadline=3
slowest=0

# The rank is described. Who reports may have missed another, which waits for this one.
stands() {
  said 'not complete after 3 s' 'missing: ranks' &&
    { grep -qE "^ +rank $rank \(host [^)]*\) $1" <<<"$output" || { why="rank $rank is not said to be: $1"; return 1; }; }
}

# fails PHASE OPERATION KIND RANK
fails() {
  local phase=$1 operation=$2 kind=$3 rank=$4 limit=10 errors good=1 start named=$4
  rm -rf "$tmp/out"
  start=$(date +%s%N)
  export TARTAN_FAIL=$rank:$phase:$operation:$kind
  run 4 sft "${sft_options[@]}" --max_steps 2 --ep_size 2 --ddp_timeout $deadline
  unset TARTAN_FAIL
  local tenths=$((($(date +%s%N) - start) / 100000000))
  case $kind in stop | spin) limit=$((deadline + 8)) ;; *) [ $tenths -le $slowest ] || slowest=$tenths ;; esac
  if [[ $kind =~ kill|exit && $output == *'BAD TERMINATION'* && $output != *'tartan: error: '* ]] && hydra; then
    [ $status != 0 ] && [ $seconds -le $limit ] && { [ "$phase" = save ] || [ ! -e "$tmp/out/model.safetensors" ]; }
    ok $? "$kind of rank $rank in $phase, $operation (told by the launcher)"
    return
  fi
  errors=$(grep -c '^tartan: error: ' <<<"$output")
  [ "$errors" = 1 ] || { why="$errors messages, expected 1"; good=0; }
  [ $status != 0 ] && [ $status != 124 ] || { why='it did not fail, or hung'; good=0; }
  [ $seconds -le $limit ] || { why="it took $seconds s, at most $limit expected"; good=0; }
  grep -qE "^(tartan: error:| ) rank $named \(host [^ ]+, pid [0-9]+, (step [12], )?phase $phase\)" <<<"$output" ||
    { why="rank $named and phase $phase are not named"; good=0; }
  case $kind in
    error | abort) said 'a failure on purpose' || good=0 ;;
    assert) said 'internal error: ' 'a failure on purpose' || good=0 ;;
    memory) said 'no memory, on purpose' || good=0 ;;
    segv) said 'crashed: segmentation fault' || good=0 ;;
    kill | exit) said 'has ended without a word' || good=0 ;;
    stop) stands 'is stopped; its last operation' || good=0 ;;
    spin) stands 'runs; its last operation' || good=0 ;;
  esac
  if [ -e "$tmp/out/model.safetensors" ] && [ "$phase" != save ]; then
    why='a model was left behind' good=0
  fi
  [ $good = 1 ]
  ok $? "$kind of rank $rank in $phase, $operation"
}

if ! mpi; then
  skip 'failures of ranks' 'this build has no MPI'
  finish
fi

places=('start configuration' 'check check' 'prepare prepare' 'open open-files' 'load load' 'forward dispatch-tokens'
  'forward gather-unit' 'backward dispatch-gradients' 'backward reduce-gradient' 'step gradient-norm' 'save save-write'
  'save save-publish' 'save checkpoint-begin' 'save checkpoint-write' 'save checkpoint-publish')
if [ -n "${TT_FULL:-}" ]; then
  for place in "${places[@]}"; do
    for kind in error abort assert memory segv kill exit stop spin; do
      # The deadline is one of the options, which ranks do not have before they have agreed on them.
      [[ $place == start* && $kind =~ stop|spin ]] && continue
      for rank in 0 1 3; do
        # shellcheck disable=SC2086
        fails $place $kind $rank
      done
    done
  done
else
  fails start configuration kill 0
  fails check check error 2
  fails prepare prepare exit 3
  fails open open-files memory 1
  fails load load kill 0
  fails forward dispatch-tokens error 3
  fails forward gather-unit segv 1
  fails backward gather-unit stop 3
  fails forward dispatch-tokens stop 2
  fails backward dispatch-gradients kill 2
  fails backward reduce-gradient assert 0
  fails step gradient-norm abort 1
  fails step gradient-norm stop 0
  fails save checkpoint-create error 1
  fails save checkpoint-write kill 2
  fails save checkpoint-publish abort 0
  fails save save-write error 2
  fails save save-publish kill 1
  fails save save-write spin 3
fi
# Gradients that are on their way in messages while the next layer computes.
export TARTAN_SHARED=0
fails backward reduce-gradient error 1
fails backward reduce-gradient kill 2
fails backward reduce-gradient stop 3
unset TARTAN_SHARED
# Of memory that ranks share each provides a part; what one cannot is the failure of all before anything is computed.
rm -rf "$tmp/out"
export TARTAN_FAIL=3:load:grow-shared:memory
run 4 sft "${sft_options[@]}" --ep_size 2
unset TARTAN_FAIL
why="$(grep -c '^tartan: error: ' <<<"$output") messages"
[ $status = 1 ] && [ "$why" = '1 messages' ] && said 'error: rank 3: no memory, on purpose' && [ ! -e "$tmp/out/model.safetensors" ]
ok $? 'a rank without memory to share'
# Hosts may have configurations of their own.
job=("$tartan" sft "${sft_options[@]}")
timeout --kill-after=5 60 "$mpirun" -n 1 "${job[@]}" : -n 1 "${job[@]}" --learning_rate 0.1 >"$tmp/said" 2>&1 </dev/null
status=$?
output=$(tr -d '\0' <"$tmp/said")
[ $status = 2 ] && said "rank 1: this rank is told 'learning_rate: 0.1', rank 0 'learning_rate: 2.0e-05'" && [ ! -e "$tmp/out/config.json" ]
ok $? 'ranks that are told different things'
echo "# the slowest to end without a deadline took 0.$slowest s" | sed -E 's/0\.([0-9]+)([0-9]) s/\1.\2 s/'

finish
