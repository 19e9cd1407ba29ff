# Shared by the scripts beside it; sourced, never run. Goes to the repository; `called_from` is where the caller was.
called_from=$PWD
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repository"

say() { printf '%s\n' "$*" >&2; }
fail() {
  local code=$1
  shift
  say "$(basename "$0"): $*"
  exit "$code"
}

# What each script needs, as Debian package names. `helpful` ones are used if the package archive has them.
packages_build=(g++ cmake ninja-build nlohmann-json3-dev libexpected-dev libcli11-dev libboost-graph-dev libdnnl-dev zlib1g-dev
                libyaml-cpp-dev libtomlplusplus-dev)
packages_test=(doctest-dev)
packages_mpi=(libopenmpi-dev openmpi-bin) # ranks as processes; used if the package archive has them
packages_tokenizers=(libpcre2-dev libsentencepiece-dev libutf8proc-dev) # real tokenizers; the same
packages_package=(dpkg-dev python3-wheel) # packages of the command
packages_docs=(mkdocs mkdocs-material python3-pymdownx python3-pygments doxygen)
packages_helpful=(ccache mold doxygen libbenchmark-dev clang-19 libclang-rt-19-dev clang-tidy-19 clang-format-19 iproute2
                  dpkg-dev python3-wheel python3-venv man-db zsh fish mkdocs mkdocs-material python3-pymdownx
                  python3-pygments)

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
missing_of() {
  local package
  for package in "$@"; do installed "$package" || printf '%s\n' "$package"; done
}

# need PACKAGE...: installs what is missing when root; otherwise says what root must run, and ends with 2.
need() {
  local missing
  command -v dpkg-query >/dev/null || return 0 # another distribution: cmake says what it does not find
  mapfile -t missing < <(missing_of "$@")
  [ "${#missing[@]}" -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] ||
    fail 2 "as root, run first: apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  install_packages "${missing[@]}" ||
    fail 2 "apt-get could not install ${missing[*]}: check the network and the package sources in /etc/apt"
}

# want PACKAGE...: as need, but goes on without them.
want() {
  local missing available=() package
  command -v dpkg-query >/dev/null || return 0
  mapfile -t missing < <(missing_of "$@")
  [ "${#missing[@]}" -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ]; then
    say "Not installed, what needs them is left out: ${missing[*]}"
    return 0
  fi
  update_package_lists || return 0
  for package in "${missing[@]}"; do
    [ -z "$(apt-cache show "$package" 2>/dev/null)" ] || available+=("$package")
  done
  [ "${#available[@]}" -eq 0 ] || install_packages "${available[@]}" ||
    say "Could not install ${available[*]}; what needs them is left out"
}

update_package_lists() {
  [ -n "${package_lists_updated:-}" ] || quietly apt-get update -q || return 1
  package_lists_updated=yes
}
install_packages() {
  say "Installing with apt-get: $*"
  update_package_lists && DEBIAN_FRONTEND=noninteractive quietly apt-get install -y -q --no-install-recommends "$@"
}

# quietly COMMAND...: shows the end of its output only if it fails.
quietly() {
  local log
  log=$(mktemp)
  if "$@" >"$log" 2>&1 </dev/null; then
    rm -f "$log"
  else
    tail -n 30 "$log" >&2
    rm -f "$log"
    return 1
  fi
}

# cores: how many jobs to build with; at most one for every 2 GiB of memory.
cores() {
  local count memory
  count=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 2097152)}' /proc/meminfo 2>/dev/null || echo "$count")
  [ "${memory:-0}" -ge 1 ] || memory=1
  echo $((count < memory ? count : memory))
}
