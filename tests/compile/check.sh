#!/usr/bin/env bash
# check.sh SOURCE COMPILER [FLAG...]: SOURCE compiles as it is, and is refused, for the reason that it states, with
# GALVATRON_REJECT defined. The file says what must be refused and how:
#
#   // expect-error: galvatron: .* needs at least two ranks
#   #if GALVATRON_REJECT == 1
#   using Refused = Strategy<...>;
#   #endif
#
# The n-th expect-error line (an extended regular expression) belongs to GALVATRON_REJECT == n; with one line, #ifdef
# does. A file without such a line must only compile (a file of static_asserts).
set -uo pipefail
source=$1 compiler=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
compile() { LC_ALL=C "$compiler" "$@" -Wall -Wextra -Werror -fsyntax-only "$source" 2>"$log"; }

if ! compile "$@"; then
  echo "$source does not compile where it must:"
  grep -m 5 -E 'error' "$log" || head -20 "$log"
  exit 1
fi
mapfile -t sentences < <(sed -n 's|^// expect-error: *||p' "$source")
for i in "${!sentences[@]}"; do
  if compile "$@" -DGALVATRON_REJECT=$((i + 1)); then
    echo "$source compiles with GALVATRON_REJECT=$((i + 1)), but must be refused with: ${sentences[i]}"
    exit 1
  fi
  if ! grep -qE -- "${sentences[i]}" "$log"; then
    echo "$source is refused with GALVATRON_REJECT=$((i + 1)), but not with: ${sentences[i]}"
    grep -m 5 -E 'error' "$log"
    exit 1
  fi
done
echo "compiles, and is refused in ${#sentences[@]} ways"
