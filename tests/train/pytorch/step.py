"""Trains a toy GPT-2 and a toy Llama for a few steps with PyTorch in float64 and writes what tests/train/pytorch_step.cpp
compares galvatron with: losses, gradient norms, and of every tensor's gradient and change the norm, the inner product
with a fixed pseudo-random tensor, and three entries.

    python tests/train/pytorch/step.py              writes gpt2.json and llama.json beside this file
    python tests/train/pytorch/step.py --compare    shows instead how far PyTorch's own float32 is from them

Parameters and tokens are not stored: both sides make them with `noise`, which gives multiples of 2^-9 in [-1, 1).
"""

import argparse
import json
import math
import pathlib

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

# A tensor's place in this list is a part of its pseudo-random stream.
NAMES = ["table", "positions", "qkv_weight", "qkv_bias", "attention_out_weight", "attention_out_bias", "mlp_in_weight",
         "mlp_in_bias", "mlp_out_weight", "mlp_out_bias", "norm1_gamma", "norm1_beta", "norm2_gamma", "norm2_beta"]
CHECKSUM_STREAM = 5000
TOKEN_STREAM = 9000


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


def make_parameters(spec, llama):
    """Layer 0 is the embedding, then the blocks, then the head."""
    h, q, kv, f = spec["hidden"], spec["heads"] * spec["head_dim"], spec["kv_heads"] * spec["head_dim"], spec["ffn"]
    p = {(0, "table"): parameter(0, "table", spec["vocabulary"], h)}
    if not llama:
        p[0, "positions"] = parameter(0, "positions", spec["positions"], h)
    for layer in range(1, spec["layers"] + 1):
        shapes = {"qkv_weight": (q + 2 * kv, h), "attention_out_weight": (h, q),
                  "mlp_in_weight": (2 * f if llama else f, h), "mlp_out_weight": (h, f),
                  "norm1_gamma": (h,), "norm2_gamma": (h,)}
        if not llama:
            shapes |= {"qkv_bias": (q + 2 * kv,), "attention_out_bias": (h,), "mlp_in_bias": (f,), "mlp_out_bias": (h,),
                       "norm1_beta": (h,), "norm2_beta": (h,)}
        for name, shape in shapes.items():
            p[layer, name] = parameter(layer, name, *shape)
    head = spec["layers"] + 1
    p[head, "norm1_gamma"] = parameter(head, "norm1_gamma", h)
    if llama:
        p[head, "table"] = parameter(head, "table", spec["vocabulary"], h)
    else:
        p[head, "norm1_beta"] = parameter(head, "norm1_beta", h)
    return p


def rotate(x, theta):
    """x (B, A, S, head_dim): pairs (j, j + head_dim / 2) turn by s * theta^(-2j / head_dim)."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequencies
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)


def loss_of(spec, llama, p, batch):
    inputs, targets = batch[:, :-1], batch[:, 1:]
    h = (spec["hidden"],)

    def norm(layer, number, x):
        gamma = p[layer, f"norm{number}_gamma"]
        if llama:
            return F.rms_norm(x, h, gamma, spec["epsilon"])
        return F.layer_norm(x, h, gamma, p[layer, f"norm{number}_beta"], spec["epsilon"])

    def linear(layer, name, x):
        return F.linear(x, p[layer, name + "_weight"], p.get((layer, name + "_bias")))

    x = F.embedding(inputs, p[0, "table"])
    if not llama:
        x = x + p[0, "positions"][:SEQUENCE]
    for layer in range(1, spec["layers"] + 1):
        heads = linear(layer, "qkv", norm(layer, 1, x)).unflatten(-1, (-1, spec["head_dim"])).transpose(1, 2)
        q, k, v = heads.split([spec["heads"], spec["kv_heads"], spec["kv_heads"]], dim=1)
        if llama:
            q, k = rotate(q, spec["theta"]), rotate(k, spec["theta"])
        group = spec["heads"] // spec["kv_heads"]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(layer, "attention_out", o.transpose(1, 2).flatten(2))
        u = linear(layer, "mlp_in", norm(layer, 2, x))
        if llama:
            gate, up = u.chunk(2, dim=-1)
            g = F.silu(gate) * up
        else:
            g = F.gelu(u, approximate="tanh")
        x = x + linear(layer, "mlp_out", g)
    head = spec["layers"] + 1
    logits = F.linear(norm(head, 1, x), p[head if llama else 0, "table"])
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


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


def train(spec, llama, dtype):
    p = {key: value.to(dtype).requires_grad_() for key, value in make_parameters(spec, llama).items()}
    before = {key: value.detach().clone() for key, value in p.items()}
    optimizer = torch.optim.AdamW(
        [{"params": [v for v in p.values() if v.dim() > 1], "weight_decay": WEIGHT_DECAY},
         {"params": [v for v in p.values() if v.dim() == 1], "weight_decay": 0.0}], **ADAM)
    steps = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step)
        optimizer.zero_grad()
        loss = loss_of(spec, llama, p, tokens(step, spec["vocabulary"]))
        loss.backward()
        record = {"loss": loss.item(), "gradients": checksums({key: value.grad for key, value in p.items()})}
        record["gradient_norm"] = torch.nn.utils.clip_grad_norm_(list(p.values()), CLIP).item()
        if 0 < step < STEPS - 1:
            del record["gradients"]
        steps.append(record)
        optimizer.step()
    changes = checksums({key: value.detach() - before[key] for key, value in p.items()})
    return {"command": "python tests/train/pytorch/step.py", "pytorch": torch.__version__, "model": spec,
            "batch": BATCH, "sequence": SEQUENCE, "clip": CLIP, "learning_rate": RATE,
            "adamw": {"beta1": ADAM["betas"][0], "beta2": ADAM["betas"][1], "epsilon": ADAM["eps"],
                      "weight_decay": WEIGHT_DECAY}, "steps": steps, "changes": changes}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="show the deviation of float32")
    compare = parser.parse_args().compare
    torch.set_num_threads(1)
    for name, spec, llama in [("gpt2", GPT2, False), ("llama", LLAMA, True)]:
        exact = train(spec, llama, torch.float64)
        for step in exact["steps"]:
            print(f"{name}: loss {step['loss']:.6f}, gradient norm {step['gradient_norm']:.6f}")
        if not compare:
            path = pathlib.Path(__file__).parent / f"{name}.json"
            path.write_text(json.dumps(exact, indent=1) + "\n")
            continue
        single = train(spec, llama, torch.float32)
        for a, b in zip(exact["steps"], single["steps"]):
            print(f"  float32: loss off by {abs(b['loss'] / a['loss'] - 1):.1e}, "
                  f"gradient norm by {abs(b['gradient_norm'] / a['gradient_norm'] - 1):.1e}")
        for kind, a, b in [("gradient", exact["steps"][0]["gradients"], single["steps"][0]["gradients"]),
                           ("last gradient", exact["steps"][-1]["gradients"], single["steps"][-1]["gradients"]),
                           ("change", exact["changes"], single["changes"])]:
            worst = max((abs(b[key]["product"] - a[key]["product"]) / a[key]["norm"], key) for key in a)
            print(f"  float32: {kind} off by at most {worst[0]:.1e} of its norm ({worst[1]})")


if __name__ == "__main__":
    main()
