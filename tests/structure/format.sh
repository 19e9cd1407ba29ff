#!/usr/bin/env bash
# format.sh CLANG_FORMAT FILE...: every file is formatted as .clang-format says.
set -uo pipefail
clang_format=$1
shift
wrong=$(printf '%s\0' "$@" | xargs -0 -n 40 -P 2 "$clang_format" --dry-run --Werror 2>&1 |
  sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: error: .*/\1/p' | sort -u)
[ -z "$wrong" ] || {
  printf '%s\n' "$wrong"
  echo "$(wc -l <<<"$wrong") files are not formatted; mend: cmake --build build/release --target format"
  exit 1
}
