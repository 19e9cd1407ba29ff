"""Training steps of PyTorch on a GPU, on the models, batches and tokens of benchmark_gpu: torch.compile,
scaled_dot_product_attention, fused AdamW over fp32 parameters, bf16 by autocast, clipping at 1.

usage: pytorch_gpu.py [--steps N] [--device cuda] [--eager] [FAMILY:LAYERSxHIDDENxHEADSxVOCABULARY@BATCHxSEQUENCE ...]

FAMILY is gpt2, llama (rotary positions, RMSNorm, SwiGLU of width 2.6875 hidden, an untied head) or olmoe (of
transformers, with 64 experts, 8 of them active, of half the width, their products grouped; parameters and moments in
bf16). Exits with 77 where there is no such device.
"""
import argparse
import math
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from pytorch_step import Gpt

COMPARED = ["gpt2:12x768x12x50304@16x1024", "gpt2:48x1600x25x50304@8x1024", "llama:4x4096x32x32000@4x4096"]


def rotary(x, cosine, sine):
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1)


class LlamaBlock(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        inner = int(hidden * 2.6875)
        self.norm1 = nn.RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.norm2 = nn.RMSNorm(hidden)
        self.up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x, cosine, sine):
        b, s, h = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(rotary(q, cosine, sine), rotary(k, cosine, sine), v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, h))
        gate, up = self.up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, layers, hidden, heads, vocabulary):
        super().__init__()
        self.head_dim = hidden // heads
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList(LlamaBlock(hidden, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        half = self.head_dim // 2
        rates = 10000.0 ** (-torch.arange(half, device=x.device) / half)
        angles = torch.arange(tokens.shape[1], device=x.device)[:, None] * rates
        cosine, sine = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, cosine, sine)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class Olmoe(nn.Module):
    def __init__(self, layers, hidden, heads, vocabulary):
        super().__init__()
        from transformers import OlmoeConfig, OlmoeForCausalLM

        config = OlmoeConfig(vocab_size=vocabulary, hidden_size=hidden, intermediate_size=hidden // 2,
                             num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
                             num_experts=64, num_experts_per_tok=8, use_cache=False)
        config._attn_implementation, config._experts_implementation = "sdpa", "grouped_mm"
        self.model = OlmoeForCausalLM(config).to(torch.bfloat16)

    def forward(self, tokens, targets):
        logits = self.model(input_ids=tokens).logits
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


FAMILIES = {"gpt2": Gpt, "llama": Llama, "olmoe": Olmoe}


def step_seconds(shape, device, steps, eager):
    family, rest = shape.split(":")
    model_shape, data_shape = rest.split("@")
    batch, sequence = map(int, data_shape.split("x"))
    layers, hidden, heads, vocabulary = map(int, model_shape.split("x"))
    torch.manual_seed(1)
    with torch.device(device):  # initial values are made there
        model = FAMILIES[family](layers, hidden, heads, vocabulary).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    loss_of = model if eager else torch.compile(model)
    data = torch.randint(0, vocabulary, (batch, sequence + 1), device=device)
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    seconds = []
    for _ in range(steps + 3):
        wait()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = loss_of(data[:, :-1], data[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        wait()
        seconds.append(time.perf_counter() - start)
    if not math.isfinite(value):
        raise RuntimeError(f"{shape}: the loss is {value}")
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    return statistics.median(seconds[3:]), batch * sequence, parameters, memory


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=10)
    arguments.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments.add_argument("--eager", action="store_true", help="without torch.compile")
    arguments.add_argument("shapes", nargs="*", default=COMPARED)
    a = arguments.parse_args()
    if a.device == "cuda" and not torch.cuda.is_available():
        print("skipped: no CUDA device")
        return 77
    torch.set_float32_matmul_precision("high")
    print(f"{'PyTorch ' + torch.__version__:<44} {'ms':>10} {'tokens/s':>12} {'GiB':>8} {'parameters':>12}")
    for shape in a.shapes:
        seconds, tokens, parameters, memory = step_seconds(shape, a.device, a.steps, a.eager)
        print(f"{shape:<44} {seconds * 1e3:>10.2f} {tokens / seconds:>12.0f} {memory:>8.2f} {parameters / 1e6:>10.0f} M",
              flush=True)
        if a.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    return 0


if __name__ == "__main__":
    sys.exit(main())
