#!/usr/bin/env python3
"""Trains the tokenizers of this folder with Hugging Face's `tokenizers` and sentencepiece on texts of a Debian machine, and
writes what these make of 10,000 random strings: reference.txt. tests/data/tokenizer.cpp draws the same strings.

    python3 -m venv venv && venv/bin/pip install tokenizers sentencepiece && venv/bin/python make.py [--train]

Without --train the tokenizers stay as they are. Of the strings the ids are hashed (FNV-1a, 64 bits), 100 strings a hash."""
import io
import os
import sys

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

folder = os.path.dirname(os.path.abspath(__file__))
texts = ["/usr/share/common-licenses/" + name for name in ("GPL-3", "Apache-2.0", "MPL-2.0", "Artistic")]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")


def byte_level(pattern, normal, specials, vocabulary):
    tokenizer = Tokenizer(models.BPE())
    if normal:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True) if pattern is None else
                               pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                        pre_tokenizers.ByteLevel(add_prefix_space=False,
                                                                                 use_regex=False)]))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=specials, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train(texts, trainer)
    return tokenizer


def train():
    gpt2 = byte_level(None, False, ["<|endoftext|>"], 1000)
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
    gpt2.save(folder + "/gpt2.json")
    llama = byte_level(LLAMA3, False, ["<|begin_of_text|>", "<|end_of_text|>"], 1000)
    llama.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])])
    llama.add_tokens([AddedToken("licence", normalized=False, lstrip=True), AddedToken("License", rstrip=True)])
    llama.save(folder + "/llama3.json")
    text = open(folder + "/llama3.json").read().replace('"ignore_merges": false', '"ignore_merges": true')
    open(folder + "/llama3.json", "w").write(text)
    qwen = byte_level(QWEN2, True, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], 1000)
    qwen.save(folder + "/qwen2.json")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for name in texts for line in open(name)), model_writer=model, vocab_size=1000,
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity", character_coverage=0.9995,
        remove_extra_whitespaces=False,
        minloglevel=2)
    open(folder + "/sentencepiece.model", "wb").write(model.getvalue())


class Random:
    """splitmix64 (Steele et al., 2014)."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return (z ^ z >> 31) % n


# Ranges of characters: letters of several scripts, marks, digits, spaces, controls, symbols, emoji, anything of the first
# planes but surrogates.
RANGES = [(0x20, 0x7E), (0x61, 0x7A), (0x30, 0x39), (0x09, 0x0D), (0x20, 0x20), (0x0A, 0x0A), (0xA0, 0x17F),
          (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x669), (0x900, 0x97F),
          (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2150, 0x218B), (0x3000, 0x30FF), (0x4E00, 0x9FFF),
          (0xAC00, 0xD7A3), (0xFB00, 0xFB06), (0xFF10, 0xFF5A), (0x1D400, 0x1D7FF), (0x1F300, 0x1F64F), (0x85, 0x85),
          (0x180E, 0x180E), (0x0000, 0xD7FF), (0xE000, 0x1FFFF)]
WORDS = ["<|endoftext|>", "<|begin_of_text|>", "<|im_end|>", "licence", "License", "the ", "'s", "'LL", "\u017f'\u017f", " of",
         "software", "  ", "\r\n", "'re", "1234567", "e\u0301", "\u00e9"]


def string(random):
    out = ""
    for _ in range(random.below(24)):
        kind = random.below(4)
        if kind == 0:
            out += WORDS[random.below(len(WORDS))]
            continue
        first, last = RANGES[random.below(len(RANGES) if kind == 1 else 6)]
        for _ in range(1 + random.below(4)):
            out += chr(first + random.below(last - first + 1))
    return out


def main():
    if "--train" in sys.argv:
        train()
    random = Random(7)
    strings = [string(random) for _ in range(10000)]
    names = ["gpt2.json", "llama3.json", "qwen2.json", "sentencepiece.model"]
    with open(folder + "/reference.txt", "w") as out:
        for name in names:
            if name.endswith(".json"):
                tokenizer = Tokenizer.from_file(folder + "/" + name)
                ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in strings]
            else:
                processor = sentencepiece.SentencePieceProcessor(model_file=folder + "/" + name)
                ids = [processor.encode(text) for text in strings]
            print(name, sum(map(len, ids)), file=out)
            for block in range(0, len(ids), 100):
                value = 0xCBF29CE484222325
                for one in ids[block:block + 100]:
                    for number in [len(one)] + one:
                        for byte in number.to_bytes(4, "little"):
                            value = (value ^ byte) * 0x100000001B3 % 2**64
                print(f"{value:016x}", file=out)
            if "--show" in sys.argv:
                with open("/tmp/generate/" + name + ".ids", "w") as shown:
                    for text, one in zip(strings, ids):
                        print(repr(text), one, file=shown)


if __name__ == "__main__":
    main()
