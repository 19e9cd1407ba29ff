"""Adapters that galvatron trains on random small models of transformers, read by peft: its model has the logits of the
merged weights, and the loss that `galvatron evaluate` gives.

    python_adapters.py GALVATRON      needs torch, transformers, peft and safetensors; works in the current folder
"""

import json
import pathlib
import random
import subprocess
import sys

import numpy as np
import peft
import torch
import transformers

import python_families

SEQUENCE = python_families.SEQUENCE


def compare(galvatron, name, config, seed, targets):
    def run(*arguments):
        done = subprocess.run([galvatron, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, (arguments, done.stderr, config)
        return done.stdout

    python_families.made(config, seed).save_pretrained(name)
    tokens = np.random.default_rng(seed).integers(32, 127, 40 * SEQUENCE + 1).astype(np.uint16)
    np.save(f"{name}.npy", tokens)
    spec = dict(tensor=1, sequence="none", context=1, data=2, zero=1, expert=1, recompute="none")
    count = config.num_hidden_layers
    pathlib.Path(f"{name}.json").write_text(json.dumps(dict(
        version=1, model=f"{name}/config.json", cluster="host", global_batch=4, sequence_length=SEQUENCE,
        precision="fp32", microbatches=1, schedule="1f1b", virtual_stages=1, lora=dict(rank=3, alpha=5, targets=targets),
        stages=[dict(first_layer=0, last_layer=count - 1, ranks=[0, 2])], layers=[spec] * count, embedding=spec,
        head=spec, predicted={})))
    run("train", "--plan", f"{name}.json", "--data", f"{name}.npy", "--steps", 6, "--lr", 0.02, "--warmup", 0,
        "--init-from", name, "--checkpoint", f"{name}-tuned", "--quiet")
    run("export", f"{name}-tuned", "--to", "huggingface", "--out", f"{name}-merged")
    run("export", f"{name}-tuned", "--to", "peft", "--out", f"{name}-adapter")
    loss = json.loads(run("evaluate", "--checkpoint", f"{name}-tuned", "--data", f"{name}.npy", "--seq", SEQUENCE,
                          "--json", "--quiet"))["loss"]
    read = transformers.AutoModelForCausalLM.from_pretrained
    base = read(name, dtype=torch.float64).eval()
    ids = torch.tensor(tokens[:-1].astype(np.int64)).reshape(-1, SEQUENCE)
    next_ids = torch.tensor(tokens[1:].astype(np.int64)).reshape(-1, SEQUENCE)
    with torch.no_grad():
        before = base(ids).logits
        adapted = peft.PeftModel.from_pretrained(base, f"{name}-adapter").eval()
        logits = adapted(ids).logits
        merged = read(f"{name}-merged", dtype=torch.float64).eval()(ids).logits
    scale = logits.abs().max()
    assert (logits - before).abs().max() > 1e-3 * scale, name  # they have learned something
    assert (logits - merged).abs().max() < 1e-5 * scale, (name, config)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), next_ids.flatten()).item()
    assert abs(loss - expected) < 1e-5 * expected, (name, loss, expected, config)
    print(f"{name} with adapters of {targets}: peft's logits are those of the merged weights")


def main():
    galvatron = sys.argv[1]
    transformers.logging.set_verbosity_error()
    llama = "q,k,v,o,gate,up,down"
    for name, targets in (("gpt2", "qkv,o,up,down"), ("gpt2", "qkv,down"), ("llama", llama), ("mistral", "q,v"),
                          ("qwen2", llama), ("qwen3", "k,o,up"), ("gemma", llama), ("phi", "q,k,v,o,up,down"),
                          ("phi3", "qkv,o,down")):
        seed = len(name) + len(targets)
        config = getattr(python_families, name)(random.Random(seed))
        compare(galvatron, f"{name}-{seed}", config, seed, targets)


if __name__ == "__main__":
    main()
