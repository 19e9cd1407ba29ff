"""Trains a toy GPT-2, Llama, BERT and ViT for a few steps with PyTorch in float64 and writes what
tests/train/pytorch_step.cpp compares galvatron with: losses, gradient norms, and of every tensor's gradient and change
the norm, the inner product with a fixed pseudo-random tensor, and three entries.

    python tests/train/pytorch/step.py              writes gpt2.json, llama.json, bert.json and vit.json beside this file
    python tests/train/pytorch/step.py --compare    shows instead how far PyTorch's own float32 is from them

Parameters and tokens are not stored: both sides make them with `noise`, which gives multiples of 2^-9 in [-1, 1).
"""

import argparse
import json
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F

STEPS = 6
BATCH, SEQUENCE = 4, 24
CLIP = 2.0
RATE = {"peak": 4e-3, "floor": 4e-4, "warmup_steps": 2}
ADAM = {"betas": (0.9, 0.95), "eps": 1e-8}
WEIGHT_DECAY = 0.1

GPT2 = dict(layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=256, vocabulary=97, positions=32, epsilon=1e-5)
LLAMA = dict(layers=2, hidden=64, heads=8, kv_heads=4, head_dim=8, ffn=96, vocabulary=97, positions=32, epsilon=1e-5,
             theta=10000.0)
BERT = dict(layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=256, vocabulary=97, positions=32, epsilon=1e-12,
            token_types=2)
VIT = dict(layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=256, vocabulary=10, positions=10, epsilon=1e-6,
           image=6, patch=2, channels=3)

# A tensor's place in this list is a part of its pseudo-random stream.
NAMES = ["table", "positions", "qkv_weight", "qkv_bias", "attention_out_weight", "attention_out_bias", "mlp_in_weight",
         "mlp_in_bias", "mlp_out_weight", "mlp_out_bias", "norm1_gamma", "norm1_beta", "norm2_gamma", "norm2_beta",
         "token_types", "class_token", "patch_weight", "patch_bias", "closing_gamma", "closing_beta",
         "transform_weight", "transform_bias", "logits_bias", "cross_query_weight", "cross_memory_weight",
         "cross_out_weight", "norm3_gamma", "relative_positions", "merge_weight", "merge_gamma", "merge_beta"]
CHECKSUM_STREAM = 5000
TOKEN_STREAM = 9000
LABEL_STREAM = 9100


def noise(stream, count):
    """The first `count` numbers of a stream: 32-bit integer arithmetic, then 10 bits as a number in [-1, 1)."""
    mask = np.uint64(0xFFFFFFFF)
    x = np.arange(count, dtype=np.uint64)
    x = (x * np.uint64(0x85EBCA77) + np.uint64(stream * 0x9E3779B1 & 0xFFFFFFFF) + np.uint64(0x27D4EB2F)) & mask
    x ^= x >> np.uint64(15)
    x = x * np.uint64(0x2C1B3C6D) & mask
    x ^= x >> np.uint64(12)
    x = x * np.uint64(0x297A2D39) & mask
    x ^= x >> np.uint64(15)
    return (x >> np.uint64(22)).astype(np.float64) / 512.0 - 1.0


def stream_of(layer, name):
    return layer * 64 + NAMES.index(name)


def parameter(layer, name, *shape):
    values = noise(stream_of(layer, name), math.prod(shape)) / (8.0 if len(shape) > 1 else 16.0)
    if name.endswith("gamma"):
        values = values + 1.0
    return torch.tensor(values).reshape(shape)


def tokens(step, vocabulary):
    """(B, S + 1): two batches take turns."""
    values = (noise(TOKEN_STREAM + step % 2, BATCH * (SEQUENCE + 1)) + 1.0) * 512.0
    return torch.tensor(values.astype(np.int64) % vocabulary).reshape(BATCH, SEQUENCE + 1)


def masked_tokens(step, vocabulary):
    """Inputs and targets (B, S): 4 tokens of a sample are hidden by the last of the vocabulary; -100 is no target."""
    inputs = tokens(step, vocabulary)[:, :SEQUENCE].clone()
    targets = torch.full_like(inputs, -100)
    for sample in range(BATCH):
        for j in range((15 * SEQUENCE + 50) // 100):
            place = (5 * j + 3 * sample + step) % SEQUENCE
            targets[sample, place] = inputs[sample, place]
            inputs[sample, place] = vocabulary - 1
    return inputs, targets


def images(step, spec):
    """Images (B, C, h, w) and their classes (B). The numbers count patch by patch, a patch is (C, p, p)."""
    across, patch, channels = spec["image"] // spec["patch"], spec["patch"], spec["channels"]
    values = torch.tensor(noise(TOKEN_STREAM + step % 2, BATCH * channels * spec["image"] ** 2))
    pixels = values.reshape(BATCH, across, across, channels, patch, patch).permute(0, 3, 1, 4, 2, 5)
    labels = ((noise(LABEL_STREAM + step % 2, BATCH) + 1.0) * 512.0).astype(np.int64) % spec["vocabulary"]
    return pixels.reshape(BATCH, channels, spec["image"], spec["image"]), torch.tensor(labels)


def make_parameters(spec, family):
    """Layer 0 is the embedding, then the blocks, then the head."""
    llama = family == "llama"
    h, q, kv, f = spec["hidden"], spec["heads"] * spec["head_dim"], spec["kv_heads"] * spec["head_dim"], spec["ffn"]
    p = {}

    def add(layer, **shapes):
        for name, shape in shapes.items():
            p[layer, name] = parameter(layer, name, *shape)

    if family == "vit":
        numbers = spec["channels"] * spec["patch"] ** 2
        add(0, positions=(spec["positions"], h), class_token=(1, h), patch_weight=(h, numbers), patch_bias=(h,))
    else:
        add(0, table=(spec["vocabulary"], h))
        if not llama:
            add(0, positions=(spec["positions"], h))
        if family == "bert":
            add(0, token_types=(spec["token_types"], h), closing_gamma=(h,), closing_beta=(h,))
    for layer in range(1, spec["layers"] + 1):
        shapes = {"qkv_weight": (q + 2 * kv, h), "attention_out_weight": (h, q),
                  "mlp_in_weight": (2 * f if llama else f, h), "mlp_out_weight": (h, f),
                  "norm1_gamma": (h,), "norm2_gamma": (h,)}
        if not llama:
            shapes |= {"qkv_bias": (q + 2 * kv,), "attention_out_bias": (h,), "mlp_in_bias": (f,), "mlp_out_bias": (h,),
                       "norm1_beta": (h,), "norm2_beta": (h,)}
        add(layer, **shapes)
    head = spec["layers"] + 1
    add(head, norm1_gamma=(h,))
    if not llama:
        add(head, norm1_beta=(h,))
    if family in ("llama", "vit"):
        add(head, table=(spec["vocabulary"], h))
    if family == "bert":
        add(head, transform_weight=(h, h), transform_bias=(h,))
    if family in ("bert", "vit"):
        add(head, logits_bias=(spec["vocabulary"],))
    return p


def rotate(x, theta):
    """x (B, A, S, head_dim): pairs (j, j + head_dim / 2) turn by s * theta^(-2j / head_dim)."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequencies
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)


def loss_of(spec, family, p, step):
    llama = family == "llama"
    h = (spec["hidden"],)
    dtype = p[1, "qkv_weight"].dtype

    def norm(layer, number, x):
        gamma = p[layer, f"norm{number}_gamma"]
        if llama:
            return F.rms_norm(x, h, gamma, spec["epsilon"])
        return F.layer_norm(x, h, gamma, p[layer, f"norm{number}_beta"], spec["epsilon"])

    def norm_before(layer, number, x):
        return x if family == "bert" else norm(layer, number, x)

    def norm_after(layer, number, x):
        return norm(layer, number, x) if family == "bert" else x

    def linear(layer, name, x):
        return F.linear(x, p[layer, name + "_weight"], p.get((layer, name + "_bias")))

    if family == "vit":
        inputs, targets = images(step, spec)
        weight = p[0, "patch_weight"].reshape(-1, spec["channels"], spec["patch"], spec["patch"])
        x = F.conv2d(inputs.to(dtype), weight, p[0, "patch_bias"], stride=spec["patch"]).flatten(2).transpose(1, 2)
        x = torch.cat([p[0, "class_token"].expand(BATCH, 1, -1), x], dim=1) + p[0, "positions"]
    else:
        if family == "bert":
            inputs, targets = masked_tokens(step, spec["vocabulary"])
        else:
            batch = tokens(step, spec["vocabulary"])
            inputs, targets = batch[:, :-1], batch[:, 1:]
        x = F.embedding(inputs, p[0, "table"])
        if not llama:
            x = x + p[0, "positions"][:SEQUENCE]
        if family == "bert":
            x = x + F.embedding(torch.zeros_like(inputs), p[0, "token_types"])
            x = F.layer_norm(x, h, p[0, "closing_gamma"], p[0, "closing_beta"], spec["epsilon"])
    for layer in range(1, spec["layers"] + 1):
        heads = linear(layer, "qkv", norm_before(layer, 1, x)).unflatten(-1, (-1, spec["head_dim"])).transpose(1, 2)
        q, k, v = heads.split([spec["heads"], spec["kv_heads"], spec["kv_heads"]], dim=1)
        if llama:
            q, k = rotate(q, spec["theta"]), rotate(k, spec["theta"])
        group = spec["heads"] // spec["kv_heads"]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=family in ("gpt2", "llama"))
        x = norm_after(layer, 1, x + linear(layer, "attention_out", o.transpose(1, 2).flatten(2)))
        u = linear(layer, "mlp_in", norm_before(layer, 2, x))
        if llama:
            gate, up = u.chunk(2, dim=-1)
            g = F.silu(gate) * up
        else:
            g = F.gelu(u, approximate="tanh")
        x = norm_after(layer, 2, x + linear(layer, "mlp_out", g))
    head = spec["layers"] + 1
    if family == "vit":
        x = x[:, 0]
    if family == "bert":
        x = F.gelu(linear(head, "transform", x), approximate="tanh")
    table = p[head if family in ("llama", "vit") else 0, "table"]
    logits = F.linear(norm(head, 1, x), table, p.get((head, "logits_bias")))
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def rate_of(step):
    if step < RATE["warmup_steps"]:
        return RATE["peak"] * (step + 1) / RATE["warmup_steps"]
    progress = (step - RATE["warmup_steps"]) / (STEPS - RATE["warmup_steps"] - 1)
    return RATE["floor"] + 0.5 * (RATE["peak"] - RATE["floor"]) * (1 + math.cos(math.pi * progress))


def checksums(tensors):
    out = {}
    for (layer, name), tensor in tensors.items():
        values = tensor.detach().double().flatten()
        sign = torch.tensor(noise(CHECKSUM_STREAM + stream_of(layer, name), values.numel()))
        out[f"{layer}/{name}"] = {"norm": values.norm().item(), "product": (values @ sign).item(),
                                  "entries": [values[i].item() for i in (0, values.numel() // 2, values.numel() - 1)]}
    return out


def train(spec, family, dtype, make_parameters=make_parameters, loss_of=loss_of):
    p = {key: value.to(dtype).requires_grad_() for key, value in make_parameters(spec, family).items()}
    before = {key: value.detach().clone() for key, value in p.items()}
    optimizer = torch.optim.AdamW(
        [{"params": [v for v in p.values() if v.dim() > 1], "weight_decay": WEIGHT_DECAY},
         {"params": [v for v in p.values() if v.dim() == 1], "weight_decay": 0.0}], **ADAM)
    steps = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step)
        optimizer.zero_grad()
        loss = loss_of(spec, family, p, step)
        loss.backward()
        record = {"loss": loss.item(), "gradients": checksums({key: value.grad for key, value in p.items()})}
        record["gradient_norm"] = torch.nn.utils.clip_grad_norm_(list(p.values()), CLIP).item()
        if 0 < step < STEPS - 1:
            del record["gradients"]
        steps.append(record)
        optimizer.step()
    changes = checksums({key: value.detach() - before[key] for key, value in p.items()})
    command = f"python tests/train/pytorch/{pathlib.Path(sys.argv[0]).name}"
    return {"command": command, "family": family, "pytorch": torch.__version__, "model": spec, "batch": BATCH,
            "sequence": spec["positions"] if "image" in spec else SEQUENCE, "clip": CLIP, "learning_rate": RATE,
            "adamw": {"beta1": ADAM["betas"][0], "beta2": ADAM["betas"][1], "epsilon": ADAM["eps"],
                      "weight_decay": WEIGHT_DECAY}, "steps": steps, "changes": changes}


def write(models, description, **how):
    """For every (name, spec): trains in float64 and writes the file, or compares with float32."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="show the deviation of float32")
    compare = parser.parse_args().compare
    torch.set_num_threads(1)
    for name, spec in models:
        exact = train(spec, name, torch.float64, **how)
        for step in exact["steps"]:
            print(f"{name}: loss {step['loss']:.6f}, gradient norm {step['gradient_norm']:.6f}")
        if not compare:
            path = pathlib.Path(__file__).parent / f"{name}.json"
            path.write_text(json.dumps(exact, indent=1) + "\n")
            continue
        single = train(spec, name, torch.float32, **how)
        for a, b in zip(exact["steps"], single["steps"]):
            print(f"  float32: loss off by {abs(b['loss'] / a['loss'] - 1):.1e}, "
                  f"gradient norm by {abs(b['gradient_norm'] / a['gradient_norm'] - 1):.1e}")
        for kind, a, b in [("gradient", exact["steps"][0]["gradients"], single["steps"][0]["gradients"]),
                           ("last gradient", exact["steps"][-1]["gradients"], single["steps"][-1]["gradients"]),
                           ("change", exact["changes"], single["changes"])]:
            worst = max((abs(b[key]["product"] - a[key]["product"]) / a[key]["norm"], key) for key in a)
            print(f"  float32: {kind} off by at most {worst[0]:.1e} of its norm ({worst[1]})")


if __name__ == "__main__":
    write([("gpt2", GPT2), ("llama", LLAMA), ("bert", BERT), ("vit", VIT)], __doc__)
