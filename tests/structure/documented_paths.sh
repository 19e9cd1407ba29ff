#!/usr/bin/env bash
# documented_paths.sh REPOSITORY: files that documents name exist, below the repository or below include/galvatron.
set -uo pipefail
cd "$1" || exit 1
wrong=0
while IFS=: read -r document path; do
  compgen -G "$path" >/dev/null || compgen -G "include/galvatron/$path" >/dev/null && continue
  echo "$document names \`$path\`, which does not exist"
  wrong=1
done < <(grep -oE '`[A-Za-z0-9_.*-]+(/[A-Za-z0-9_.*-]+)+\.(hpp|cpp|cu|sh|py|md|cmake)`' README.md CHANGELOG.md docs/*.md docs/*/*.md |
  tr -d '`' | sort -u)
exit "$wrong"
