"""Makes tiny random GPT-2 and Llama checkpoints with Hugging Face transformers and writes, beside this file, what
tests/train/huggingface.cpp compares galvatron with: the checkpoints as save_pretrained() leaves them, and the mean
cross-entropy of tokens that the models give, in float64.

    python tests/train/pytorch/huggingface.py       needs torch, safetensors and transformers
"""

import json
import pathlib
import shutil

import torch
import transformers

BATCH, SEQUENCE = 4, 16
HERE = pathlib.Path(__file__).parent / "huggingface"


def tokens(vocabulary):
    """(B, S + 1): token i of a sample b is (7 b + 5 i + i^2) mod V."""
    i = torch.arange(SEQUENCE + 1)
    return torch.stack([(7 * b + 5 * i + i * i) % vocabulary for b in range(BATCH)])


def randomise(model):
    """Weights large enough that a wrong place shows."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(noise * 0.2 + (1.0 if is_norm else 0.0))


def loss_of(model, vocabulary):
    batch = tokens(vocabulary)
    with torch.no_grad():
        logits = model.double()(input_ids=batch[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).item()


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    gpt2 = transformers.GPT2Config(
        n_embd=24, n_layer=2, n_head=3, n_positions=20, vocab_size=61, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    llama = transformers.LlamaConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=4,
        intermediate_size=40, max_position_embeddings=20, vocab_size=61, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0}, tie_word_embeddings=False)
    losses = {}
    for name, config, kind, shard in (("gpt2", gpt2, transformers.GPT2LMHeadModel, "5GB"),
                                      ("llama", llama, transformers.LlamaForCausalLM, "20KB")):
        model = kind(config)
        randomise(model)
        model.eval()
        model.save_pretrained(HERE / name, max_shard_size=shard)
        (HERE / name / "generation_config.json").unlink(missing_ok=True)
        losses[name] = loss_of(model, config.vocab_size)
        if name == "llama":  # the same in 16 bits
            half = kind(config)
            randomise(half)
            with torch.no_grad():
                for parameter in half.parameters():
                    parameter.copy_(parameter.half().float())
            losses["llama-f16"] = loss_of(half.eval(), config.vocab_size)
            half.half().save_pretrained(HERE / "llama-f16")
            (HERE / "llama-f16" / "generation_config.json").unlink(missing_ok=True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (HERE / "losses.json").write_text(
        json.dumps({"batch": BATCH, "sequence": SEQUENCE, "losses": losses, "made_with": versions}, indent=2) + "\n")


main()
