"""Seconds of the experts of Mixtral in Hugging Face transformers, on the shape of benchmark_experts: forward, and
backward with the gradients of the weights, without attention and norms.

usage: transformers_experts.py [--hidden 512] [--width 1024] [--experts 8] [--active 2] [--tokens 4096] [--rounds 9]
                               [--threads 2]

Prints a line for each way in which transformers computes experts: one after the other (eager), or grouped.
"""
import argparse
import statistics
import time

import torch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock


def timed(implementation, a):
    torch.manual_seed(0)
    config = MixtralConfig(hidden_size=a.hidden, intermediate_size=a.width, num_local_experts=a.experts,
                           num_experts_per_tok=a.active)
    config._experts_implementation = implementation
    block = MixtralSparseMoeBlock(config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    x = torch.randn(1, a.tokens, a.hidden, requires_grad=True)
    rounds = []
    for _ in range(a.rounds + 2):
        block.zero_grad(set_to_none=False)
        began = time.perf_counter()
        y = block(x)
        y = y[0] if isinstance(y, tuple) else y
        between = time.perf_counter()
        y.backward(torch.ones_like(y))
        rounds.append((between - began, time.perf_counter() - between))
    forward, backward = (1e3 * statistics.median(pair[i] for pair in rounds[2:]) for i in (0, 1))
    print(f"{implementation:12} forward {forward:8.1f} ms   backward {backward:8.1f} ms   step {forward + backward:8.1f} ms")


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("hidden", 512), ("width", 1024), ("experts", 8), ("active", 2), ("tokens", 4096),
                        ("rounds", 9), ("threads", 2)):
        parser.add_argument("--" + name, type=int, default=value)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for implementation in ("eager", "grouped_mm"):
        timed(implementation, arguments)


main()
