#!/usr/bin/env bash
# site.sh REPOSITORY COMMAND: the documentation site is built, and no link in it leads nowhere. Ends with 77 where a
# package that it takes is missing.
set -euo pipefail
cd "$1"
source scripts/lib.sh
mapfile -t missing < <(missing_of "${packages_docs[@]}")
[ "${#missing[@]}" -eq 0 ] || {
  echo "skipped: not installed: ${missing[*]}"
  exit 77
}
scripts/docs --command "$2" --no-api
for page in index tutorial how-to/does-it-fit reference/command decisions/search examples/08_documents changelog; do
  [ -s "build/site/html/$page.html" ] || { echo "$page.html is missing"; exit 1; }
done
grep -q 'id="galvatron-hetu-plan"' build/site/html/reference/command.html
