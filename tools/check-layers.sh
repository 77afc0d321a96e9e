#!/usr/bin/env bash
# A folder under src/ uses only what stands above it in this list (docs/design.md): includes that point down, and
# mpi.h outside src/comm, fail the build.
set -u
cd "$(dirname "$0")/.."
order=(base tensor kernels comm mesh params shard moe model checkpoint lora data train cli)
declare -A level
for i in "${!order[@]}"; do level[${order[$i]}]=$i; done
status=0
while IFS=: read -r file line text; do
  from=${file#src/}; from=${from%%/*}
  to=$(sed -E 's/.*"([a-z]+)\/.*/\1/' <<<"$text")
  [ "$to" = tartan ] && continue
  if [ -z "${level[$to]:-}" ] || [ -z "${level[$from]:-}" ] || [ "${level[$to]}" -gt "${level[$from]}" ]; then
    echo "$file:$line: src/$from may not use \"$to/\": it stands below"; status=1
  fi
done < <(grep -nE '^#include "[a-z]+/' -r src --include='*.[ch]' --include='*.inc')
grep -nE '#include <mpi\.h>' -r src include --include='*.[ch]' | grep -v '^src/comm/' && { echo 'mpi.h belongs to src/comm alone'; status=1; }
exit $status
