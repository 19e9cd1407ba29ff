#!/usr/bin/env bash
# python_readers.sh GALVATRON TESTS_DIR: what galvatron writes is read by the Python packages that users read it with.
# Exits with 77, which ctest takes for "skipped", where no Python has the package safetensors.
set -euo pipefail
galvatron=$1
tests=$2
candidates=("${GALVATRON_PYTHON:-}" "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python3}" python3 /usr/local/bin/python3 /opt/*/bin/python3)
python=
for candidate in "${candidates[@]}"; do
  if [ -n "$candidate" ] && "$candidate" -c 'import numpy, safetensors' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "skipped: no Python with the packages numpy and safetensors; name one in GALVATRON_PYTHON"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for i in $(seq 400); do echo "line $i of a text that is read again"; done >text.txt

"$python" "$tests/tools/python_readers.py" make gpt2-tiny
"$python" "$tests/tools/python_readers.py" make llama-tiny
for model in gpt2-tiny llama-tiny; do
  "$python" "$tests/tools/python_readers.py" plan "$model"
  "$galvatron" train --plan plan.json --data text.txt --steps 1 --lr 0 --warmup 0 --weight-decay 0 --init-from "$model" \
    --checkpoint "$model-saved" --tensorboard "$model-tensorboard" --metrics "$model.jsonl" --quiet
  "$galvatron" export "$model-saved" --to huggingface --out "$model-out"
  "$galvatron" export "$model-saved" --to huggingface --precision bf16 --out "$model-bf16"
  "$python" "$tests/tools/python_readers.py" check "$model"
done
"$galvatron" plan --model llama3-8b --cluster 16xa100-80g --global-batch 64 --space uniform,accelerate,dp=8,tp=2 \
  --out whole.json --quiet
"$galvatron" export whole.json --to torchtitan --strict --out whole_torchtitan.py --quiet
"$galvatron" export whole.json --to accelerate --strict --out whole.yaml --quiet
"$python" "$tests/tools/python_readers.py" exports whole
if "$python" -c 'import torch, transformers, peft' 2>/dev/null; then
  "$python" "$tests/tools/python_adapters.py" "$galvatron"
else
  echo "no torch, transformers and peft here: adapters were not read by peft"
fi
if "$python" -c 'import torch, transformers' 2>/dev/null; then
  "$python" "$tests/tools/python_families.py" "$galvatron" "${GALVATRON_FAMILY_CASES:-1}"
else
  echo "no torch and transformers here: models of all families were not compared"
fi
