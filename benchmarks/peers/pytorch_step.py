"""Seconds of a GPT-2 training step in PyTorch, on the same shapes as benchmark_training_step.

usage: pytorch_step.py [--compile] LAYERSxHIDDENxHEADSxVOCABULARY BATCH SEQUENCE fp32|bf16 STEPS [THREADS]

--compile trains torch.compile(model), whose compilation is part of the first steps: they are not counted.

The model is written as one writes GPT-2 in PyTorch: fused qkv, scaled_dot_product_attention, tanh GELU, tied head,
cross_entropy, fused AdamW, gradient clipping at 1. bf16 is torch.autocast over fp32 parameters.
"""
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, h))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, hidden, heads, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(1024, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def main():
    compiled = "--compile" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--compile"]
    layers, hidden, heads, vocabulary = map(int, arguments[0].split("x"))
    batch, sequence, precision, steps = int(arguments[1]), int(arguments[2]), arguments[3], int(arguments[4])
    if len(arguments) > 5:
        torch.set_num_threads(int(arguments[5]))
    torch.manual_seed(1)
    model = Gpt(layers, hidden, heads, vocabulary)
    if compiled:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    data = torch.randint(0, vocabulary, (batch, sequence + 1))
    seconds = []
    for _ in range(steps + 2 * compiled):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = model(data[:, :-1], data[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1 + 2 * compiled:])
    way = "compiled" if compiled else "eager"
    print(f"{median:.6f} s/step {batch * sequence / median:.1f} tokens/s, PyTorch {torch.__version__}, {way}")


if __name__ == "__main__":
    main()
