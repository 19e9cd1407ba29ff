#!/usr/bin/env bash
# check.sh CMAKE BUILD_DIR PROJECT COMPILER HOST CUDA: see CMakeLists.txt; HOST is 1 when galvatron::host was packaged,
# CUDA when galvatron::cuda was. The trainer is the program of the README.
set -euo pipefail
cmake=$1 build=$2 project=$3 compiler=$4 host=$5 cuda=$6
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

"$cmake" --install "$build" --prefix "$place/prefix" --component development >/dev/null
cp -r "$project" "$place/project"
sed -n '/^```cpp$/,/^```$/p' "$project/../../../README.md" | sed '/^```/d' >"$place/project/trainer.cpp"
"$cmake" -S "$place/project" -B "$place/build" -DCMAKE_PREFIX_PATH="$place/prefix" -DCMAKE_CXX_COMPILER="$compiler" \
  -DWITH_HOST="$host" -DWITH_CUDA="$cuda" >"$place/log" 2>&1 || { cat "$place/log"; exit 1; }
grep -q "galvatron: CMAKE_BUILD_TYPE is empty" "$place/log" || { cat "$place/log"; echo "no word on CMAKE_BUILD_TYPE"; exit 1; }
"$cmake" --build "$place/build"
"$place/build/planner"
"$place/build/linked_planner"
if [ "$host" != 0 ]; then
  mkdir "$place/run" && cd "$place/run"
  code=0
  "$place/build/trainer" >out 2>err || code=$?
  [ "$code" = 2 ] && [ "$(wc -l <err)" = 1 ] && grep -q '^cannot read text.txt: No such file' err ||
    { cat out err; echo "without data the README's program ended with $code"; exit 1; }
  cat "$project"/*.cpp "$project"/../../../docs/*.md >text.txt
  "$place/build/trainer" >out
  grep -q '^a rank used .*, as planned: ' out || { cat out; exit 1; }
  cd - >/dev/null
fi
[ "$cuda" = 0 ] || "$place/build/runner"
if "$cmake" -S "$place/project" -B "$place/missing" -DCMAKE_PREFIX_PATH="$place/prefix" -DCMAKE_CXX_COMPILER="$compiler" \
  -DWITH_HOST=0 -DEXTRA_COMPONENT=warp >/dev/null 2>&1; then
  echo "find_package accepted a component that does not exist"
  exit 1
fi
if [ "$host" != 0 ]; then
  if "$cmake" -S "$place/project" -B "$place/without" -DCMAKE_PREFIX_PATH="$place/prefix" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_DISABLE_FIND_PACKAGE_OneDNN=ON >"$place/log" 2>&1; then
    echo "find_package found the trainer without oneDNN"
    exit 1
  fi
  grep -q "oneDNN is not found" "$place/log" || { cat "$place/log"; exit 1; }
  ! grep -q "CMAKE_BUILD_TYPE is empty" "$place/log" || { cat "$place/log"; exit 1; }
fi
