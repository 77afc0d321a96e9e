# lib.sh - what the scripts of this folder share: the program, folders, runs with a time limit, one TAP line per check.
# Sourced by them; they are run by tests/run.sh, which sets what Open MPI needs as root and with more ranks than cores.
set -u
export LC_ALL=C
tartan=${BUILD:-build}/check/tartan
runs=tests/fixtures/sft/runs
model=$runs/model-qwen3_moe
data=$runs/conversation/data.jsonl
tmp=${BUILD:-build}/tests/tmp/cli/$(basename "$0" .sh)
rm -rf "$tmp"
mkdir -p "$tmp"
: >"$tmp/said" # where the output of the last command is
number=0 bad=0 output='' status=0 seconds=0

# ok VERDICT NAME: one TAP line; what the last command said and why it is wrong follow when VERDICT is not 0.
why=''
ok() {
  number=$((number + 1))
  if [ "$1" = 0 ]; then
    echo "ok $number - $2"
  else
    echo "not ok $number - $2"
    bad=1
    printf '%s\n' "$why" "exit status $status after $seconds s; output:" "$output" | head -c 4000 | sed 's/^/  /'
  fi
  why=''
}

# check NAME COMMAND ...: the command succeeds.
check() {
  local name=$1
  shift
  "$@"
  ok $? "$name"
}

skip() { # skip NAME WHY
  number=$((number + 1))
  echo "ok $number - $1 # SKIP $2"
}

finish() {
  echo "1..$number"
  exit $bad
}

mpirun=${MPIRUN:-mpirun}
mpi() { command -v "$mpirun" >/dev/null && "$tartan" --version | grep -q 'with MPI'; }

# MPICH's launcher, which kills all ranks when one dies, often before they can report.
hydra() { "$mpirun" --version 2>&1 | grep -qi hydra; }

# run RANKS ARGUMENTS ...: tartan alone (RANKS 0) or under mpirun; sets output, status, seconds. Never fails, never hangs.
run() {
  local ranks=$1 start=$SECONDS launcher=()
  shift
  [ "$ranks" = 0 ] || launcher=("$mpirun" -n "$ranks")
  timeout --kill-after=5 60 ${launcher[@]+"${launcher[@]}"} "$tartan" "$@" >"$tmp/said" 2>&1 <"${input:-/dev/null}"
  status=$? seconds=$((SECONDS - start))
  output=$(tr -d '\0' <"$tmp/said")
}

# The processes of tartan below a process; launchers may put some of their own between.
ranks_below() {
  local child
  for child in $(pgrep -P "$1"); do
    case $(readlink "/proc/$child/exe") in
      */tartan) echo "$child" ;;
      *) ranks_below "$child" ;;
    esac
  done
}

# runs NAME RANKS ARGUMENTS ...: it ends well.
runs() {
  local name=$1
  shift
  run "$@"
  [ $status = 0 ]
  ok $? "$name"
}

# said TEXT ...: the output has every TEXT.
said() {
  local text
  for text; do
    [[ $output == *"$text"* ]] || { why="not found: $text"; return 1; }
  done
}

# Names, sizes and sums of all that a refused command could have harmed.
listing() {
  find "$tmp" "$model" | sort
  find "$tmp" "$model" -type f ! -path "$tmp/said" -exec cksum {} + | sort
}

# One line of tartan's own, printable, and besides it warnings at most.
one_error() {
  local errors others
  errors=$(grep -c '^tartan: error: ' <<<"$output")
  [ "$errors" = 1 ] || { why="$errors error lines, expected 1"; return 1; }
  [ "$1" != 0 ] && return 0 # mpirun adds lines of its own
  others=$(grep -v '^tartan: ' <<<"$output")
  [ -z "$others" ] || { why="lines that are not tartan's: $others"; return 1; }
  ! grep -q '[[:cntrl:]]' <<<"${output//$'\n'/}" || { why='control characters in the message'; return 1; }
}

# refused STATUS NAME TEXT ... -- ARGUMENTS ...: the command ends with STATUS and one error line that has every TEXT, and
# leaves every file as it was. $ranks: under mpirun with so many.
refused() {
  local expected=$1 name=$2 texts=() before after good=1
  shift 2
  while [ "$1" != -- ]; do
    texts+=("$1")
    shift
  done
  shift
  before=$(listing)
  run "${ranks:-0}" "$@"
  after=$(listing)
  [ $status = "$expected" ] || { why="expected exit status $expected"; good=0; }
  one_error "${ranks:-0}" || good=0
  said ${texts[@]+"${texts[@]}"} || good=0
  [ $seconds -lt 20 ] || { why="it took $seconds s"; good=0; }
  [ "$before" = "$after" ] || { why="files changed: $(diff <(echo "$before") <(echo "$after") | head -n 5)"; good=0; }
  rm -rf "$tmp/out" # or what went wrong here would hide the next
  [ $good = 1 ]
  ok $? "$name"
}

# sft_refused STATUS NAME TEXT ... -- ARGUMENTS ...: the same for a run of sft that would work without ARGUMENTS.
sft_options=(--model_name_or_path "$model" --dataset_name "$data" --output_dir "$tmp/out" --threads 1 --bf16 false
  --max_steps 1)
sft_refused() {
  local head=()
  while [ "$1" != -- ]; do
    head+=("$1")
    shift
  done
  shift
  refused "${head[@]}" -- sft "${sft_options[@]}" "$@"
}

# numbers FILE: the elements of a safetensors file of F32, one a line.
numbers() {
  local header
  header=$(od -An -v -t u8 -N 8 "$1" | tr -d ' ')
  tail -c +$((header + 9)) "$1" | od -An -v -t f4 -w4
}

# near TOLERANCE FILE FILE: the same header, and elements whose difference is within TOLERANCE of their norm.
near() {
  local header
  header=$(od -An -v -t u8 -N 8 "$2" | tr -d ' ')
  cmp -n $((header + 8)) "$2" "$3" || { why='the headers differ'; return 1; }
  paste <(numbers "$2") <(numbers "$3") | awk -v tolerance="$1" '
    { d += ($1 - $2) ^ 2; n += $1 ^ 2 }
    END { good = n > 0 && sqrt(d) <= tolerance * sqrt(n); if (!good) print "  relative difference", sqrt(d / n); exit !good }'
}
