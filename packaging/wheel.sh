#!/usr/bin/env bash
# wheel.sh BUILD FOLDER: writes a wheel with the command of a build folder, its man page and completion of shells into
# FOLDER, and prints its path. The program must need no shared library unless GALVATRON_WHEEL_TAG names the platform.
set -euo pipefail
build=$1 out=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command=$build/bin/galvatron
fail() {
  printf 'wheel.sh: %s\n' "$*" >&2
  exit 2
}

python=
for candidate in python3 /usr/bin/python3; do
  ! "$candidate" -c 'import wheel' 2>/dev/null || { python=$candidate && break; }
done
[ -n "$python" ] || fail "the Python package wheel is missing; install python3-wheel"
tag=${GALVATRON_WHEEL_TAG:-}
if [ -z "$tag" ]; then
  ! readelf -ld "$command" | grep -qE 'NEEDED|INTERP' ||
    fail "$command needs shared libraries, so no platform tag is true; build the preset wheel"
  architecture=$(uname -m)
  tag=manylinux_2_17_$architecture.manylinux2014_$architecture.musllinux_1_1_$architecture
fi
version=$("$command" --version)
version=${version#galvatron }

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
name=galvatron-$version
DESTDIR=$place/installed cmake --install "$build" --component runtime --prefix /prefix >/dev/null
mkdir -p "$place/$name/$name.data/scripts" "$place/$name/$name.data/data" "$place/$name/$name.dist-info" "$out"
install -m 755 "$place/installed/prefix/bin/galvatron" "$place/$name/$name.data/scripts/galvatron"
cp -r "$place/installed/prefix/share" "$place/$name/$name.data/data/share"
sed "s/@VERSION@/$version/" "$here/METADATA.in" >"$place/$name/$name.dist-info/METADATA"
cp "$here/../LICENSE" "$place/$name/$name.dist-info/LICENSE"
{
  printf 'Wheel-Version: 1.0\nGenerator: galvatron\nRoot-Is-Purelib: false\n'
  printf 'Tag: py3-none-%s\n' ${tag//./ }
} >"$place/$name/$name.dist-info/WHEEL"
rm -f "$out/$name-"*.whl
"$python" -m wheel pack --dest-dir "$out" "$place/$name" >/dev/null
printf '%s\n' "$out/$name-"*.whl
