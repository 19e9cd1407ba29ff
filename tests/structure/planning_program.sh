#!/usr/bin/env bash
# planning_program.sh SOURCE COMPILER [FLAG...]: no GPU, BLAS, oneDNN, OpenMP or MPI header is reachable from a program
# that only plans, and it compiles, optimised, in less than GALVATRON_COMPILE_SECONDS (default 5) seconds of processor time.
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
# The least of at most ten: on a shared machine a core may be slow for a while.
least=
for _ in 1 2 3 4 5 6 7 8 9 10; do
  seconds=$({ time "$compiler" "$@" -O2 -c "$source" -o "$object" >&2 2>/dev/null; } 2>&1 | tail -1 | awk '{print $1 + $2}')
  least=$(printf '%s\n' $least "$seconds" | sort -g | head -1)
  awk -v used="$least" -v budget="$budget" 'BEGIN { exit !(used < budget) }' && break
done
seconds=$least
echo "compiles in $seconds s of processor time; $(wc -l <<<"$reachable") headers are reachable"
awk -v used="$seconds" -v budget="$budget" 'BEGIN { exit !(used > 0 && used < budget) }' ||
  { echo "the budget is $budget s"; exit 1; }
