# Shared by the scripts beside it; sourced, never run. Goes to the repository; `called_from` is where the caller was.
called_from=$PWD
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repository"

say() { printf '%s\n' "$@" >&2; } # a line for each argument
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
  [ -z "${list_rate:-}" ] || return 0
  local said
  said=$(apt-get update -q 2>&1 </dev/null) || { say "$said" && return 1; }
  list_rate=$(awk '/^Fetched/ { gsub(/[(,]/, ""); if ($3 == "MB" || $2 > 2000) rate = $(NF - 1) * ($NF ~ /^MB/ ? 1000 : 1) }
                   END { print (rate > 0 ? rate : 10000) }' <<<"$said") # kB/s; little says nothing about it
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

# phase NUMBER OF NAME [SECONDS]: ends the phase before, says what begins and, where it is known, what it takes; on a
# terminal, the time left until it ends. Phases without SECONDS show their own.
phase() {
  end_phase
  local left=${4:-0}
  [ "$left" -gt 0 ] || left=
  phase_name=$3 phase_begin=$SECONDS
  say "" "== [$1/$2] $phase_name${left:+: about $(duration "$left")}"
  [ -n "$left" ] && [ -t 2 ] || return 0
  (
    while sleep 1; do
      left=$((left - 1))
      [ "$left" -gt 0 ] && text="$(duration "$left") left" || text="a little longer"
      printf '\r\033[K%s' "$text" >&2
    done
  ) &
  phase_clock=$!
}
end_phase() {
  if [ -n "${phase_clock:-}" ]; then
    kill "$phase_clock" 2>/dev/null && wait "$phase_clock" 2>/dev/null || true
    printf '\r\033[K' >&2
    phase_clock=
  fi
  [ -z "${phase_name:-}" ] || say "$phase_name: $(duration $((SECONDS - phase_begin)))"
  phase_name=
}
end_phases() {
  end_phase
  say "" "In all: $(duration "$SECONDS")"
}
trap '[ -z "${phase_clock:-}" ] || kill "$phase_clock" 2>/dev/null || true' EXIT
duration() { if [ "$1" -lt 60 ]; then echo "$1 s"; else echo "$(($1 / 60)) min $(($1 % 60)) s"; fi; }

# estimate_packages PACKAGE...: package_seconds = what it takes to install those that are missing, from what they have to
# fetch, at twice the rate of the package lists, which are unpacked meanwhile, and to unpack.
estimate_packages() {
  local missing
  package_seconds=0
  command -v dpkg-query >/dev/null && [ "$(id -u)" = 0 ] || return 0
  mapfile -t missing < <(missing_of "$@")
  [ "${#missing[@]}" -gt 0 ] && update_package_lists || return 0
  package_seconds=$(apt-get install -y -q --no-install-recommends --print-uris "${missing[@]}" 2>/dev/null |
    awk -v rate="$list_rate" '$1 ~ /:\/\// { bytes += $3; ++count }
                              END { printf "%d", 1 + bytes / 2000 / rate + 0.12 * count }')
}

# cores: how many jobs to build with; at most one for every 2 GiB of memory.
cores() {
  local count memory
  count=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 2097152)}' /proc/meminfo 2>/dev/null || echo "$count")
  [ "${memory:-0}" -ge 1 ] || memory=1
  echo $((count < memory ? count : memory))
}
