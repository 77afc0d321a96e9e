#!/usr/bin/env bash
# Make sure that what tartan builds with is there. Debian and its kin: installs what is missing from the distribution's
# packages (as root, or through sudo) and says what and why; does nothing when all is there. Elsewhere: names what is missing.
set -euo pipefail
needs=(
  "make|make|builds tartan"
  "gcc|gcc|compiles tartan (or clang: make CC=clang)"
  "pkg-config|pkg-config|finds the libraries"
  "libjansson-dev|jansson.h|JSON"
  "libyaml-dev|yaml.h|configuration files"
  "libpcre2-dev|pcre2.h|split patterns of tokenizers"
  "libutf8proc-dev|utf8proc.h|Unicode normal forms"
  "libxxhash-dev|xxhash.h|checksums"
  "libdnnl-dev|dnnl.h|matrix products"
  "libopenmpi-dev|mpicc|several processes (MPI); or another MPI with mpicc"
  "openmpi-bin|mpirun|starts them"
  "libcmocka-dev|cmocka.h|tests"
)
# A program on the PATH, or a header that the compiler finds.
there() {
  case $1 in
    *.h) echo "#include <stddef.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <$1>" | ${CC:-cc} -E -x c - -o /dev/null 2>/dev/null ;;
    gcc) command -v "${CC:-cc}" >/dev/null ;;
    *) command -v "$1" >/dev/null ;;
  esac
}
missing=()
for need in "${needs[@]}"; do
  IFS='|' read -r package probe why <<<"$need"
  if ! there "$probe"; then
    missing+=("$package")
    echo "setup: $package is missing: $why"
  fi
done
[ ${#missing[@]} = 0 ] && exit 0
if ! command -v apt-get >/dev/null; then
  echo "setup: install the equivalents of these Debian packages, then run make again: ${missing[*]}" >&2
  exit 1
fi
sudo=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "setup: as root: apt-get install ${missing[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
echo "setup: installing ${missing[*]} from the distribution's packages"
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
