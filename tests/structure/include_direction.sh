#!/usr/bin/env bash
# include_direction.sh REPOSITORY: the tree is the data flow. A folder includes itself and the folders before it; each
# library's headers are included in one place; headers have `#pragma once`.
set -uo pipefail
cd "$1/include/galvatron" || exit 1
order=(core op cluster model strategy schedule program cost search mixed flexsp hap spindle plan simulate compat device comm rank profile data runtime checkpoint train generate)
declare -A place
for i in "${!order[@]}"; do place[${order[i]}]=$i; done
wrong=0
say() {
  echo "$*"
  wrong=1
}

while IFS= read -r header; do
  grep -q '^#pragma once' "$header" || say "$header: no #pragma once"
  grep -nE '^ *# *include +"' "$header" /dev/null && say "$header: includes are written <galvatron/folder/file.hpp>"
  [[ $header == */* ]] || continue # umbrella headers may include everything
  folder=${header%%/*}
  if [ -z "${place[$folder]:-}" ]; then
    say "$header: folder $folder is not in the data flow (${order[*]})"
    continue
  fi
  while IFS= read -r included; do
    if [ ! -e "$included" ]; then
      say "$header includes <galvatron/$included>, which does not exist"
    elif [[ $included != */* ]]; then
      say "$header includes <galvatron/$included>, which is for programs"
    elif [ "${place[${included%%/*}]:-99}" -gt "${place[$folder]}" ]; then
      say "$header includes <galvatron/$included>, but ${included%%/*} comes after $folder (${order[*]})"
    fi
  done < <(sed -nE 's|^ *# *include +<galvatron/([^>]+)>.*|\1|p' "$header")
done < <(find . -name '*.hpp' -printf '%P\n' | sort)

# only LIBRARY REGEX PLACE...: headers that include what REGEX names live in the places given (path prefixes).
only() {
  local library=$1 regex=$2 header allowed
  shift 2
  while IFS= read -r header; do
    for allowed in "$@"; do
      [[ ${header#./} == "$allowed"* ]] && continue 2
    done
    say "$header includes $library, which belongs in: $*"
  done < <(grep -rlE "^ *# *include +[<\"]($regex)" --include='*.hpp' . | sort)
}
only CUDA 'cuda|cublas|cudnn|nccl' device/cuda comm/nccl comm/local_gpu
only oneDNN 'dnnl|oneapi' device/host
only BLAS 'cblas|openblas|mkl' device/host
only OpenMP 'omp\.h' device/host rank
only MPI 'mpi' comm/mpi
only PCRE2 'pcre2' data/splitter
only sentencepiece 'sentencepiece' data/sentencepiece
only utf8proc 'utf8proc' data/tokenizer_json
only Boost.Graph 'boost/graph' model/topological_order
exit "$wrong"
