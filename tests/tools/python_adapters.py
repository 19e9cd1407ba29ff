"""Adapters that galvatron trains on random small models of transformers, read by peft: its model has the logits of the
merged weights, and the loss that `galvatron evaluate` gives. And adapters of random values that peft writes, read by
galvatron: its loss and its merged weights are those of peft.

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

    # The other way: random factors in 16 bits, as peft saves them.
    settings = json.loads(pathlib.Path(f"{name}-adapter/adapter_config.json").read_text())
    wanted = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=settings["target_modules"], fan_in_fan_out=settings["fan_in_fan_out"],
        use_rslora=seed % 2 == 0, task_type="CAUSAL_LM", lora_dropout=0.1)
    theirs = peft.get_peft_model(read(name, dtype=torch.float64), wanted).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in theirs.named_parameters():
            if "lora_" in key:
                parameter.copy_((torch.randn(parameter.shape, generator=generator) * 0.2).bfloat16())
        for parameter in theirs.parameters():
            parameter.data = parameter.data.bfloat16() if parameter.requires_grad else parameter.data
    theirs.save_pretrained(f"{name}-theirs")
    with torch.no_grad():
        logits = theirs.double()(ids).logits
    assert (logits - before).abs().max() > 1e-3 * scale, name
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), next_ids.flatten()).item()
    loss = json.loads(run("evaluate", "--checkpoint", name, "--adapter", f"{name}-theirs", "--data", f"{name}.npy",
                          "--seq", SEQUENCE, "--json", "--quiet"))["loss"]
    assert abs(loss - expected) < 1e-5 * expected, (name, loss, expected, config)
    run("export", name, "--to", "huggingface", "--adapter", f"{name}-theirs", "--out", f"{name}-theirs-merged")
    with torch.no_grad():
        merged = read(f"{name}-theirs-merged", dtype=torch.float64).eval()(ids).logits
    assert (logits - merged).abs().max() < 1e-5 * logits.abs().max(), (name, config)
    print(f"{name}: an adapter of peft gives peft's loss and merged weights")


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
