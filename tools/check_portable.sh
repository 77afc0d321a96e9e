#!/usr/bin/env bash
# Whether tartan runs on other machines than the one that builds it.
#
#   tools/check_portable.sh objects   no object but those of kernels for AVX2 and AVX-512 (src/kernels/cpu/simd_avx*.c) holds
#                                     an instruction that the plainest x86-64 lacks; part of `make check`
#   tools/check_portable.sh starts    the program starts on an emulated x86-64 without AVX and computes a model's gradients;
#                                     part of `make check`
#   tools/check_portable.sh old       the tests of kernels there: some three minutes
#   tools/check_portable.sh clang     clang builds everything, tests too, without a warning
#   tools/check_portable.sh arm       the cross compiler builds everything for 64-bit Arm without a warning, and the tests of
#                                     kernels, and a model's gradients, pass on an emulated one
#   tools/check_portable.sh           all of it: some ten minutes
#
# Wants what Debian calls qemu-user-static, clang, gcc-aarch64-linux-gnu; a part whose programs are missing is skipped, and
# says so. Arm's libraries are packages of the distribution, unpacked into build/aarch64/root: nothing is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}
jobs=${JOBS:-2}
say() { echo "portable: $*"; }
have() { # have PART PROGRAM PACKAGE
  command -v "$2" >/dev/null && return
  say "$1: skipped, no $2 (Debian: $3)"
  return 1
}

# AVX and later encode instructions whose names begin with v; the rest of the list is BMI2 and FMA's neighbours, which
# compilers use freely once they are told of a newer machine.
newer='^(v[a-z0-9]+|mulx|pdep|pext|bzhi|shlx|shrx|sarx|rorx|andn|blsr|blsi|blsmsk)$'
uses_newer() { objdump -d --no-show-raw-insn "$1" | awk -F'\t' -v newer="$newer" \
  '{ split($2, word, " "); if (found == "" && word[1] ~ newer) found = word[1] } END { print found }'; }
objects() {
  local object found bad=0 seen=0
  case $(${CC:-cc} -dumpmachine) in x86_64*) ;; *) say "objects: skipped, not an x86-64"; return ;; esac
  have objects objdump binutils || return 0
  for object in $(find "$build/obj" -name '*.o'); do
    found=$(uses_newer "$object")
    case $object in
    */simd_avx2.o | */simd_avx512.o) # else the search would find nothing anywhere
      [ -n "$found" ] && seen=$((seen + 1)) ;;
    *) [ -z "$found" ] || { say "$object holds '$found', which not every x86-64 has"; bad=1; } ;;
    esac
  done
  [ $seen = 2 ] || { say "objects: found nothing in the kernels for AVX either"; bad=1; }
  [ $bad = 0 ] && say "objects: instructions beyond the plainest x86-64 are in simd_avx2.o and simd_avx512.o alone"
  return $bad
}

passes() { # passes NAME COMMAND ...: a test program, whose lines are shown when it fails
  local name=$1
  shift
  "$@" >"$build/portable.log" 2>&1 || { tail -n 30 "$build/portable.log"; say "$name: failed"; return 1; }
  say "$name: passes"
}

without_avx=(qemu-x86_64-static -cpu Nehalem)
can_do_without_avx() { # can_do_without_avx PART
  case $(${CC:-cc} -dumpmachine) in x86_64*) ;; *) say "$1: skipped, not an x86-64"; return 1 ;; esac
  have "$1" "${without_avx[0]}" qemu-user-static
}

starts() {
  can_do_without_avx starts || return 0
  case $(ldd "$build/tartan") in *san.so*) say "starts: skipped, sanitizers are not for emulators"; return ;; esac
  passes "starts: a model without AVX" "${without_avx[@]}" "$build/tartan" certify tests/fixtures/O1/model --threads 1
}

old() {
  can_do_without_avx old || return 0
  make -j"$jobs" BUILD="$build" "$build"/tests/kernels/test_{cpu,optimizer}
  local test
  for test in cpu optimizer; do passes "old: test_$test" "${without_avx[@]}" "$build/tests/kernels/test_$test"; done
}

clang() {
  have clang clang clang || return 0
  make -j"$jobs" CC=clang BUILD="$build/clang" all tests benches examples
  say "clang: builds without a warning"
  passes "clang: test_cpu" "$build/clang/tests/kernels/test_cpu"
}

# The libraries for Arm, of the release that this machine runs.
arm_libraries() { # arm_libraries FOLDER
  local folder=$1
  [ ! -e "$folder/complete" ] || return 0
  mkdir -p "$folder"/{apt/lists/partial,apt/cache/archives/partial,debs}
  : >"$folder/apt/status"
  cat >"$folder/apt/conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "$(id -un)";
Dir::State "$folder/apt";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt/cache";
Debug::NoLocking "true";
END
  export APT_CONFIG=$folder/apt/conf
  apt-get update -qq
  # Of what the -dev packages depend on: the libraries, and what they need to run. The compiler brings a libc to link with.
  local packages=(libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev libyaml-dev libdnnl-dev libcmocka-dev)
  local wanted='^(lib(jansson|pcre2|utf8proc|xxhash|yaml|dnnl|cmocka)[a-z0-9-]*|libc6|libgcc-s1|libgomp1|libstdc\+\+6)$'
  (cd "$folder/debs" && apt-get download -qq $(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts \
    --no-breaks --no-replaces --no-enhances "${packages[@]}" | grep -E "$wanted" | sort -u))
  local deb
  for deb in "$folder"/debs/*.deb; do dpkg-deb -x "$deb" "$folder"; done
  unset APT_CONFIG
  touch "$folder/complete"
}

arm() {
  have arm aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu && have arm qemu-aarch64-static qemu-user-static &&
    have arm dpkg-deb dpkg || return 0
  local root lib test
  mkdir -p "$build/aarch64"
  root=$(cd "$build/aarch64" && pwd)/root lib=/usr/lib/aarch64-linux-gnu
  arm_libraries "$root"
  export PKG_CONFIG_LIBDIR=$root$lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
  make -j"$jobs" CC=aarch64-linux-gnu-gcc MPI=0 BUILD="$build/aarch64" EXTRA="-idirafter $root/usr/include" \
    LDEXTRA="-L$root$lib -Wl,-rpath-link,$root$lib:$root/lib/aarch64-linux-gnu" all tests benches examples
  unset PKG_CONFIG_LIBDIR PKG_CONFIG_SYSROOT_DIR
  say "arm: builds without a warning"
  local emulate=(qemu-aarch64-static -L "$root")
  passes "arm: the program" "${emulate[@]}" "$build/aarch64/tartan" certify tests/fixtures/O1/model --threads 1
  for test in definitions properties cpu optimizer; do
    passes "arm: test_$test" "${emulate[@]}" "$build/aarch64/tests/kernels/test_$test"
  done
}

parts=("$@")
[ $# -gt 0 ] || parts=(objects starts old clang arm)
for part in "${parts[@]}"; do
  case $part in
  objects | starts | old | clang | arm) $part ;;
  *) echo "$0: no part '$part'" >&2; exit 2 ;;
  esac
done
