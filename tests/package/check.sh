#!/usr/bin/env bash
# check.sh install|deb|wheel|built CMAKE BUILD REPOSITORY: installs what a build folder has into an empty folder, prints
# a plan with it, removes it, and sees that nothing is left; `built` takes what scripts/package builds. Ends with 77
# where a tool is missing.
set -euo pipefail
kind=$1 cmake=$2 build=$3 repository=$4
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
skip() {
  echo "skipped: $*"
  exit 77
}
wrong() {
  echo "$*"
  exit 1
}
# whole FOLDER: what is installed there works and is complete.
whole() {
  "$1/bin/galvatron" plan --model gpt2-tiny --cluster 8xa100-80g --global-batch 16 --out "$place/plan.json" |
    grep -q '^gpt2-tiny on 8xa100-80g: 8 ranks'
  [ -s "$place/plan.json" ]
  rm "$place/plan.json"
  for file in man/man1/galvatron.1 bash-completion/completions/galvatron fish/vendor_completions.d/galvatron.fish; do
    [ -s "$1/share/$file" ] || wrong "share/$file is missing"
  done
  [ -n "$(find "$1/share/zsh" -name _galvatron -size +0)" ] || wrong "the completion of zsh is missing"
  grep -q '^\.SH GALVATRON PLAN' "$1/share/man/man1/galvatron.1"
}
empty() { [ -z "$(find "$1" -name '*galvatron*')" ] || wrong "left: $(find "$1" -name '*galvatron*')"; }

case $kind in
  install)
    for component in runtime development; do
      "$cmake" --install "$build" --prefix "$place/prefix" --component "$component" >/dev/null
    done
    whole "$place/prefix"
    [ -s "$place/prefix/include/galvatron/plan.hpp" ]
    "$cmake" -DBUILD="$build" -P "$repository/cmake/Uninstall.cmake" >/dev/null
    empty "$place/prefix"
    [ -z "$(find "$place/prefix" ! -type d)" ] || wrong "left: $(find "$place/prefix" ! -type d)"
    ! "$cmake" -DBUILD="$build" -P "$repository/cmake/Uninstall.cmake" 2>"$place/err" || wrong "removed twice"
    grep -q "nothing was" "$place/err"
    ;;
  deb)
    command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null || skip "no dpkg-dev"
    # The CUDA libraries, of which a build may know, are in no Debian package.
    cpack --config "$build/CPackConfig.cmake" -B "$place/out" -D CPACK_DEBIAN_COMPRESSION_TYPE=none \
      -D CPACK_DEBIAN_PACKAGE_SHLIBDEPS=OFF >"$place/log" 2>&1 || { cat "$place/log"; exit 1; }
    deb=$(echo "$place"/out/galvatron_*_*.deb)
    [ "$(dpkg-deb -f "$deb" Package)" = galvatron ]
    dpkg-deb -x "$deb" "$place/unpacked"
    whole "$place/unpacked/usr"
    for file in include/galvatron/plan.hpp share/doc/galvatron/copyright; do
      [ -s "$place/unpacked/usr/$file" ] || wrong "$file is missing"
    done
    for file in galvatronConfig.cmake libgalvatron_planner.a; do
      [ -n "$(find "$place/unpacked/usr" -name "$file")" ] || wrong "$file is missing"
    done
    ;;
  wheel)
    export GALVATRON_WHEEL_TAG
    GALVATRON_WHEEL_TAG=linux_$(uname -m)
    wheel=$(bash "$repository/packaging/wheel.sh" "$build" "$place/out" 2>"$place/err") || {
      grep -q 'install python3-wheel' "$place/err" && skip "no python3-wheel"
      cat "$place/err"
      exit 1
    }
    python=/usr/bin/python3
    "$python" -m venv "$place/venv" >/dev/null 2>&1 || skip "no python3-venv"
    "$place/venv/bin/pip" install -q --no-index --disable-pip-version-check "$wheel"
    whole "$place/venv"
    "$place/venv/bin/pip" uninstall -q -y galvatron
    empty "$place/venv"
    unset GALVATRON_WHEEL_TAG
    if readelf -d "$build/bin/galvatron" | grep -q NEEDED; then # a tag that says any machine would not be true
      ! bash "$repository/packaging/wheel.sh" "$build" "$place/out" 2>"$place/err" || wrong "a wheel for any machine"
      grep -q 'no platform tag is true' "$place/err"
    fi
    ;;
  built)
    "$repository/scripts/package"
    dpkg-deb -x "$repository"/build/packages/galvatron_*.deb "$place/unpacked"
    whole "$place/unpacked/usr"
    dpkg-deb -f "$repository"/build/packages/galvatron_*.deb Depends | grep -q libdnnl
    python3 -m zipfile -e "$repository"/build/packages/galvatron-*-py3-none-manylinux*.whl "$place/wheel"
    chmod +x "$place"/wheel/*/scripts/galvatron
    "$place"/wheel/*/scripts/galvatron plan --model gpt2-tiny --cluster 8xa100-80g --global-batch 16 >/dev/null
    ;;
esac
echo "$kind: fine"
