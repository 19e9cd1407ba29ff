"""Milliseconds of attention of packed documents in PyTorch, on the shapes of benchmark_packed_attention.

usage: packed_attention.py LENGTHS [--documents 64] [--longest 8192] [--heads 8] [--head-dim 64]
                           [--precision fp32|bf16] [--threads 2] [--rounds 7] [--device cpu|cuda]
                           [--ways one_by_one padded ..]

Ways, each once in every round; of one that PyTorch does not have on the device it prints why:
  one by one   scaled_dot_product_attention, causal, a call for each document
  flex         flex_attention, compiled, with a block mask by document and order
  nested       scaled_dot_product_attention, causal, of nested tensors with the jagged layout
  varlen       torch.nn.attention.varlen
  padded       scaled_dot_product_attention, causal, documents padded to the longest
"""
import argparse
import functools
import statistics
import time

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn


class Packed:
    """Queries, keys and values (tokens, heads, head_dim) of documents one behind the other."""

    def __init__(self, a, lengths, dtype):
        self.lengths = lengths
        self.device = a.device
        self.ends = torch.tensor([0] + lengths, device=a.device).cumsum(0)
        shape = (sum(lengths), a.heads, a.head_dim)
        self.leaves = [torch.randn(shape, dtype=dtype, device=a.device, requires_grad=True) for _ in range(3)]
        self.d = torch.randn(shape, dtype=dtype, device=a.device)

    def one_by_one(self):
        documents = zip(*(x.split(self.lengths) for x in self.leaves))
        return torch.cat([F.scaled_dot_product_attention(*(x[None].transpose(1, 2) for x in document), is_causal=True)[0]
                          .transpose(0, 1) for document in documents])

    @functools.cached_property
    def mask(self):
        document = torch.repeat_interleave(torch.arange(len(self.lengths)), torch.tensor(self.lengths)).to(self.device)
        return create_block_mask(lambda b, h, i, j: (document[i] == document[j]) & (i >= j), None, None,
                                 len(document), len(document), device=self.device)

    @functools.cached_property
    def flex_attention(self):
        return torch.compile(flex_attention)

    def flex(self):
        return self.flex_attention(*(x[None].transpose(1, 2) for x in self.leaves), block_mask=self.mask)[0] \
            .transpose(0, 1)

    def nested(self):
        jagged = [torch.nested.nested_tensor_from_jagged(x, self.ends).transpose(1, 2) for x in self.leaves]
        return F.scaled_dot_product_attention(*jagged, is_causal=True).transpose(1, 2).values()

    def varlen(self):
        ends, longest = self.ends.int(), max(self.lengths)
        return varlen_attn(*self.leaves, ends, ends, longest, longest, window_size=(-1, 0))


class Padded:
    def __init__(self, a, lengths, dtype):
        shape = (len(lengths), a.heads, max(lengths), a.head_dim)
        self.leaves = [torch.randn(shape, dtype=dtype, device=a.device, requires_grad=True) for _ in range(3)]
        self.d = torch.randn(shape, dtype=dtype, device=a.device)

    def padded(self):
        return F.scaled_dot_product_attention(*self.leaves, is_causal=True)


class Way:
    """Seconds of forward and backward, and why one of them cannot be."""

    def __init__(self, name, tensors, forward, device):
        self.name, self.tensors, self.forward, self.device = name, tensors, forward, device
        self.seconds, self.lacks = ([], []), [None, None]
        for passes in (2, 1):  # one that has no gradients may still attend
            for x in tensors.leaves:
                x.requires_grad_(passes == 2)
            try:
                out = forward()
                if passes == 2:
                    out.backward(tensors.d)
                break
            except Exception as why:
                self.lacks[passes - 1] = str(why).strip().splitlines()[0].split(". ")[0][:80]
        for x in tensors.leaves:
            x.requires_grad_(True)

    def now(self):
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def run(self):
        if self.lacks[0] is not None:
            return
        for x in self.tensors.leaves:
            x.grad = None
            x.requires_grad_(self.lacks[1] is None)
        began = self.now()
        out = self.forward()
        between = self.now()
        self.seconds[0].append(between - began)
        if self.lacks[1] is None:
            out.backward(self.tensors.d)
            self.seconds[1].append(self.now() - between)
        for x in self.tensors.leaves:
            x.requires_grad_(True)

    def __str__(self):
        if self.lacks[0] is not None:
            return f"{self.name:12} not here: {self.lacks[0]}"
        forward, backward = (1e3 * statistics.median(s) if s else None for s in self.seconds)
        if backward is None:
            return f"{self.name:12} forward {forward:8.2f} ms   no gradients: {self.lacks[1]}"
        return f"{self.name:12} forward {forward:8.2f} ms   backward {backward:8.2f} ms   both {forward + backward:8.2f} ms"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lengths")
    for name, value in (("documents", 64), ("longest", 8192), ("heads", 8), ("head-dim", 64), ("threads", 2),
                        ("rounds", 7)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--ways", nargs="+", default=["one_by_one", "flex", "nested", "varlen", "padded"])
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    lengths = [n for n in map(int, open(a.lengths)) if 1 <= n <= a.longest][:a.documents]
    dtype = torch.float32 if a.precision == "fp32" else torch.bfloat16
    packed = Packed(a, lengths, dtype)
    padded = Padded(a, lengths, dtype) if "padded" in a.ways else None
    ways = []
    for name in a.ways:
        tensors = padded if name == "padded" else packed
        ways.append(Way(name.replace("_", " "), tensors, getattr(tensors, name), a.device))
    for _ in range(a.rounds + 1):
        for way in ways:
            way.run()
    for way in ways:
        for seconds in way.seconds:
            del seconds[:1]
    print(f"{len(lengths)} documents, {sum(lengths)} tokens, the longest {max(lengths)}, {a.heads} heads of "
          f"{a.head_dim}, {a.precision}, {a.device}, {a.threads} threads, PyTorch {torch.__version__}")
    print(*ways, sep="\n")


main()
