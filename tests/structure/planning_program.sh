#!/usr/bin/env bash
# planning_program.sh SOURCE COMPILER [FLAG...]: no GPU, BLAS, oneDNN, OpenMP or MPI header is reachable from a program
# that only plans, and it compiles, optimised, in less than GALVATRON_COMPILE_SECONDS (default 5) seconds of processor
# time. On a processor that is busy, or slower than a Zen 5 (which compiles standard_headers.cpp in 0.55 s with nothing
# else to do), the budget grows with what standard_headers.cpp takes; both are printed. Up to half more is allowed where g++
# allocates at most GALVATRON_COMPILE_MEGABYTES (default 900), which depends on no machine.
set -euo pipefail
source=$1 compiler=$2
shift 2
budget=${GALVATRON_COMPILE_SECONDS:-5}
export CCACHE_DISABLE=1 LC_ALL=C

reachable=$("$compiler" "$@" -M "$source" | tr ' ' '\n' | grep -E '\.(h|hpp|hh)$|/include/')
if grep -iE '/(cuda|cublas|cudnn|nccl|dnnl|cblas|openblas|omp\.h|mpi)|/galvatron/(device/host|comm/(thread|mpi|nccl)|train)/' \
    <<<"$reachable"; then
  echo "a planning program reaches the headers above"
  exit 1
fi

object=$(mktemp --suffix=.o)
trap 'rm -f "$object"' EXIT
TIMEFORMAT='%U %S'
# seconds_of SOURCE FLAG...: of processor time
seconds_of() {
  { time "$compiler" "${@:2}" -O2 -c "$1" -o "$object" >&2 2>/dev/null; } 2>&1 | tail -1 | awk '{print $1 + $2}'
}
least() { printf '%s\n' "$@" | sort -g | head -1; }

# The least of at most ten: on a shared machine a core may be slow for a while.
used= standard= allowed=
for _ in 1 2 3 4 5 6 7 8 9 10; do
  standard=$(least $standard "$(seconds_of "$(dirname "${BASH_SOURCE[0]}")/standard_headers.cpp" "$@")")
  used=$(least $used "$(seconds_of "$source" "$@")")
  allowed=$(awk -v standard="$standard" -v budget="$budget" \
    'BEGIN { print (standard > 0.55 ? budget * standard / 0.55 : budget) }')
  awk -v used="$used" -v allowed="$allowed" 'BEGIN { exit !(used < allowed) }' && break
done
echo "compiles in $used s of processor time, the standard headers alone in $standard s; $(wc -l <<<"$reachable") headers" \
  "are reachable"
awk -v used="$used" -v allowed="$allowed" 'BEGIN { exit !(used > 0 && used < allowed) }' && exit
echo "the budget is $allowed s here"
# On some machines large compilations slow down more than small ones.
megabytes=$("$compiler" "$@" -O2 -ftime-report -c "$source" -o "$object" 2>&1 | sed -nE 's/^ *TOTAL .* ([0-9]+)M *$/\1/p')
echo "the compiler allocates ${megabytes:-?} MB, at most ${GALVATRON_COMPILE_MEGABYTES:-900} are allowed"
[ "${megabytes:-1000000}" -le "${GALVATRON_COMPILE_MEGABYTES:-900}" ] &&
  awk -v used="$used" -v allowed="$allowed" 'BEGIN { exit !(used > 0 && used < 1.5 * allowed) }'
