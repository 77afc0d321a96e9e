#!/usr/bin/env bash
# The public headers: each compiles alone, as C11 and as C++17, without a warning.
. tests/cli/lib.sh

compiles() { # compiles COMPILER FLAGS HEADER
  output=$(printf '#include "%s"\n' "$3" | timeout 60 $1 $2 -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only - 2>&1)
  status=$?
  [ $status = 0 ]
}

jansson=$(pkg-config --cflags jansson 2>/dev/null)
for header in include/tartan/*.h; do
  name=tartan/$(basename "$header")
  check "$name as C11" compiles "${CC:-cc}" "-std=c11 -x c $jansson" "$name"
  if command -v g++ >/dev/null; then
    check "$name as C++17" compiles g++ "-std=c++17 -x c++ $jansson" "$name"
  else
    skip "$name as C++17" 'no g++'
  fi
done
finish
