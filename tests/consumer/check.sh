#!/usr/bin/env bash
# check.sh CMAKE BUILD_DIR PROJECT COMPILER HOST CUDA: see CMakeLists.txt; HOST is 1 when galvatron::host was packaged,
# CUDA when galvatron::cuda was.
set -euo pipefail
cmake=$1 build=$2 project=$3 compiler=$4 host=$5 cuda=$6
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

"$cmake" --install "$build" --prefix "$place/prefix" --component development >/dev/null
"$cmake" -S "$project" -B "$place/build" -DCMAKE_PREFIX_PATH="$place/prefix" -DCMAKE_CXX_COMPILER="$compiler" \
  -DWITH_HOST="$host" -DWITH_CUDA="$cuda" >"$place/log" || { cat "$place/log"; exit 1; }
"$cmake" --build "$place/build"
"$place/build/planner"
[ "$host" = 0 ] || "$place/build/trainer"
[ "$cuda" = 0 ] || "$place/build/runner"
if "$cmake" -S "$project" -B "$place/missing" -DCMAKE_PREFIX_PATH="$place/prefix" -DCMAKE_CXX_COMPILER="$compiler" \
  -DWITH_HOST=0 -DEXTRA_COMPONENT=warp >/dev/null 2>&1; then
  echo "find_package accepted a component that does not exist"
  exit 1
fi
