#!/usr/bin/env bash
# format.sh CLANG_FORMAT FILE...: every file is formatted as .clang-format says.
set -uo pipefail
clang_format=$1
shift
wrong=0
for file in "$@"; do
  if ! "$clang_format" --dry-run --Werror "$file" 2>/dev/null; then
    echo "$file"
    wrong=$((wrong + 1))
  fi
done
[ "$wrong" -eq 0 ] || { echo "$wrong files are not formatted; mend: cmake --build build/release --target format"; exit 1; }
