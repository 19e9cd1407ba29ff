#!/usr/bin/env bash
# header_chains.sh INCLUDE_DIR UNIT_DIR HEADER...: writes UNIT_DIR/HEADER.cpp for each of the headers. Together these
# units compile every header alone. Most of such a unit is what the header includes, so a unit has a chain of headers:
# each includes the one before it, directly or not, and sees of it nothing that it would not see alone. Units of headers
# in chains of others have a comment. All headers are included twice.
set -euo pipefail
cd "$1"
units=$2
shift 2

# Prints chains, the last header first. The headers with most below them choose first, and take the header above them
# that has least below it and no header yet.
chains() {
  find . -name '*.hpp' -printf '%P\n' | sort | xargs awk -v wanted="$*" '
    function walk(top, at,   list, n, i) {
      n = split(direct[at], list, " ")
      for (i = 1; i <= n; i++)
        if (!((top, list[i]) in below)) {
          below[top, list[i]] = 1
          size[top]++
          walk(top, list[i])
        }
    }
    /^ *# *include +</ {
      sub(/^[^<]*</, ""); sub(/>.*/, "")
      direct[FILENAME] = direct[FILENAME] " " $0
    }
    END {
      n = split(wanted, header, " ")
      for (i = 1; i <= n; i++) walk(header[i], header[i])
      for (i = 1; i <= n; i++) {  # by what is below, most first
        for (j = i; j > 1 && size[header[j]] > size[header[j - 1]]; j--) {
          swapped = header[j]; header[j] = header[j - 1]; header[j - 1] = swapped
        }
      }
      for (i = 1; i <= n; i++)
        for (j = i - 1; j >= 1; j--)
          if (!(header[j] in before) && (header[j], header[i]) in below) {
            before[header[j]] = header[i]
            after[header[i]] = header[j]
            break
          }
      for (i = 1; i <= n; i++) {
        if (header[i] in after) continue
        line = header[i]
        for (h = header[i]; h in before; h = before[h]) line = line " " before[h]
        print line
      }
    }'
}

write() {  # only what is new, or make compiles it again
  [ -e "$1" ] && [ "$(<"$1")" = "$2" ] && return
  mkdir -p "${1%/*}"
  printf '%s\n' "$2" >"$1"
}

while read -ra chain; do
  once=
  for ((i = ${#chain[@]} - 1; i >= 0; i--)); do
    once+="#include <${chain[i]}>"$'\n'
    ((i == 0)) || write "$units/${chain[i]}.cpp" "// In the unit of ${chain[0]}."
  done
  write "$units/${chain[0]}.cpp" "$once${once%$'\n'}"
done < <(chains "$@")
