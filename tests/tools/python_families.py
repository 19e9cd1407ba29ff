"""Random small models of every family that transformers and galvatron share: what the command makes of their folders is
what transformers makes of them.

    python_families.py GALVATRON [CASES [SEED]]      of each family (default: 1); needs torch, transformers, safetensors

Of each model: the loss of tokens (1e-6, against float64), the tokens that greedy decoding lets follow, and all weights
as they come back from a checkpoint of ours.
"""

import json
import math
import pathlib
import random
import subprocess
import sys
import time

import numpy as np
import safetensors.numpy
import torch
import transformers

SEQUENCE = 16


def rope(r, positions):
    kind = r.choice(["default", "default", "linear", "dynamic", "llama3", "yarn"])
    out = {"rope_type": kind, "rope_theta": r.choice([100.0, 500.0, 10000.0])}
    if kind != "default":
        out["factor"] = r.choice([2.0, 4.0, 8.0])
    if kind in ("llama3", "yarn"):
        out["original_max_position_embeddings"] = max(positions // 2, 4)
    if kind == "llama3":
        out |= {"low_freq_factor": r.choice([0.1, 0.5]), "high_freq_factor": r.choice([1.0, 2.0])}
    if kind == "yarn":
        out |= {"beta_fast": r.choice([2.0, 32.0]), "beta_slow": r.choice([0.1, 1.0])}
    return out


def dense(r):
    """What the configurations of Llama's kind have in common."""
    kv_heads = r.choice([1, 2, 3])
    heads = kv_heads * r.randint(1, 3)
    positions = r.randint(SEQUENCE + 12, 64)
    return dict(
        hidden_size=heads * 2 * r.randint(2, 6),  # several configurations ask for a multiple of the heads
        num_attention_heads=heads, num_key_value_heads=kv_heads,
        head_dim=2 * r.randint(2, 5), num_hidden_layers=r.randint(1, 4), intermediate_size=8 * r.randint(2, 8),
        max_position_embeddings=positions, vocab_size=256, rms_norm_eps=r.choice([1e-6, 1e-5, 1e-3]),
        rope_parameters=rope(r, positions), tie_word_embeddings=r.random() < 0.5, bos_token_id=None, eos_token_id=None,
        pad_token_id=None)


def gpt2(r):
    heads = r.randint(1, 4)
    return transformers.GPT2Config(
        n_embd=heads * 2 * r.randint(2, 6), n_head=heads, n_layer=r.randint(1, 4),
        n_positions=r.randint(SEQUENCE + 12, 64),
        n_inner=r.choice([None, 24, 40]), vocab_size=256, layer_norm_epsilon=r.choice([1e-5, 1e-3]),
        activation_function=r.choice(["gelu_new", "gelu", "quick_gelu", "relu", "gelu_pytorch_tanh"]),
        tie_word_embeddings=r.random() < 0.5, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=None,
        eos_token_id=None)


def llama(r):
    bias = r.random() < 0.5
    return transformers.LlamaConfig(**dense(r), attention_bias=bias, mlp_bias=bias)


def mistral(r):
    shape = dense(r)
    window = r.choice([None, shape["max_position_embeddings"], 5, SEQUENCE + 12])
    return transformers.MistralConfig(**shape, sliding_window=window)


def qwen2(r):
    shape = dense(r)
    slides = r.random() < 0.5
    return transformers.Qwen2Config(
        **shape, use_sliding_window=slides, sliding_window=7 if slides else None,
        max_window_layers=r.randint(0, shape["num_hidden_layers"] - 1))


def qwen3(r):
    return transformers.Qwen3Config(**dense(r))


def gemma(r):
    act = r.choice(["gelu_pytorch_tanh", "gelu"])
    return transformers.GemmaConfig(**dense(r), hidden_act=act)


def gemma_2_and_3(r):
    shape = dense(r)
    types = [r.choice(["sliding_attention", "full_attention"]) for _ in range(shape["num_hidden_layers"])]
    return shape | dict(query_pre_attn_scalar=r.choice([shape["head_dim"], 3, 24]), layer_types=types,
                        sliding_window=r.choice([1, 6, SEQUENCE + 12, 200]), attn_logit_softcapping=None,
                        final_logit_softcapping=r.choice([None, 1.5, 30.0]))


def gemma2(r):
    return transformers.Gemma2Config(**gemma_2_and_3(r) | dict(attn_logit_softcapping=r.choice([None, 0.5, 50.0])))


def gemma3(r):
    shape = gemma_2_and_3(r)
    far = {"rope_type": "default", "rope_theta": r.choice([500.0, 20000.0])}
    if r.random() < 0.5:
        far |= {"rope_type": "linear", "factor": 4.0}
    near = {"rope_type": "default", "rope_theta": r.choice([50.0, 100.0])}
    shape["rope_parameters"] = {"full_attention": far, "sliding_attention": near}
    return transformers.Gemma3TextConfig(**shape)


def phi(r):
    shape = dense(r)
    heads = shape["num_attention_heads"]
    shape.pop("head_dim")
    width = 2 * r.randint(3, 6)
    part = r.choice([0.5, 0.4, 1.0])
    while int(width * part) % 2 != 0 or int(width * part) == 0:
        width += 2
    shape["rope_parameters"] = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": part}
    shape |= dict(hidden_size=heads * width, layer_norm_eps=shape.pop("rms_norm_eps"))
    return transformers.PhiConfig(
        **shape, hidden_act=r.choice(["gelu_new", "gelu", "quick_gelu", "relu"]), resid_pdrop=0, embd_pdrop=0)


def phi3(r):
    shape = dense(r)
    width = shape.pop("head_dim")
    part = r.choice([1.0, 0.75, 0.5])
    while int(width * part) % 2 != 0:
        width += 2
    shape["hidden_size"] = shape["num_attention_heads"] * width
    shape["rope_parameters"] = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": part}
    return transformers.Phi3Config(**shape, sliding_window=r.choice([None, 8, SEQUENCE + 12]), resid_pdrop=0, embd_pdrop=0)


def experts(r):
    count = r.randint(2, 8)
    return dict(dense(r), num_experts_per_tok=r.randint(1, count)), count


def mixtral(r):
    shape, count = experts(r)
    return transformers.MixtralConfig(**shape, num_local_experts=count, sliding_window=None)


def qwen_experts(r):
    shape, count = experts(r)
    none = [0] if shape["num_hidden_layers"] > 1 and r.random() < 0.5 else []
    return dict(shape, num_experts=count, moe_intermediate_size=8 * r.randint(1, 4), mlp_only_layers=none,
                norm_topk_prob=r.random() < 0.5)


def qwen2_moe(r):
    return transformers.Qwen2MoeConfig(
        **qwen_experts(r), shared_expert_intermediate_size=8 * r.randint(1, 4), qkv_bias=r.random() < 0.5)


def qwen3_moe(r):
    return transformers.Qwen3MoeConfig(**qwen_experts(r))


def olmoe(r):
    shape, count = experts(r)
    shape |= dict(num_key_value_heads=shape["num_attention_heads"],
                  hidden_size=shape["num_attention_heads"] * shape.pop("head_dim"))
    return transformers.OlmoeConfig(**shape, num_experts=count, norm_topk_prob=r.random() < 0.5)


def deepseek(r, more):
    shape, _ = experts(r)
    groups = r.choice([1, 2])
    count = groups * r.randint(2, 4)
    shape.pop("head_dim")
    return dict(
        shape, num_key_value_heads=shape["num_attention_heads"], n_routed_experts=count,
        num_experts_per_tok=r.randint(1, 2), moe_intermediate_size=8 * r.randint(1, 4),
        n_shared_experts=r.randint(1, 2),
        first_k_dense_replace=r.randint(0, shape["num_hidden_layers"] - 1), kv_lora_rank=4 * r.randint(2, 4),
        q_lora_rank=r.choice([None, 12]), qk_nope_head_dim=2 * r.randint(1, 4), qk_rope_head_dim=4, v_head_dim=4,
        routed_scaling_factor=r.choice([1.0, 1.5]), n_group=groups, topk_group=1, **more)


def deepseek_v2(r):
    out = deepseek(r, dict(norm_topk_prob=False))
    out["topk_method"] = "greedy" if out["n_group"] == 1 else "group_limited_greedy"
    return transformers.DeepseekV2Config(**out)


def deepseek_v3(r):
    return transformers.DeepseekV3Config(**deepseek(r, dict(norm_topk_prob=r.random() < 0.5)))


FAMILIES = [gpt2, llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3, phi, phi3, mixtral, qwen2_moe, qwen3_moe, olmoe, deepseek_v2, deepseek_v3]


def made(config, seed):
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.2 + (1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0))
    return model.eval()


def split(tensors, config):
    """What Phi-3 has in one tensor, as a Llama has it."""
    out = {}
    for key, tensor in tensors.items():
        if key.endswith("qkv_proj.weight"):
            width = config.hidden_size // config.num_attention_heads
            q, kv = config.num_attention_heads * width, config.num_key_value_heads * width
            for name, part in zip("qkv", np.split(tensor, [q, q + kv])):
                out[key.replace("qkv_proj", f"{name}_proj")] = part
        elif key.endswith("gate_up_proj.weight"):
            for name, part in zip(("gate", "up"), np.split(tensor, 2)):
                out[key.replace("gate_up_proj", f"{name}_proj")] = part
        else:
            out[key] = tensor
    return out


def compare(galvatron, name, config, seed):
    def run(*arguments):
        done = subprocess.run([galvatron, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, (arguments, done.stderr, config)
        return done.stdout

    model = made(config, seed)
    model.save_pretrained(name)
    tokens = np.random.default_rng(seed).integers(32, 127, SEQUENCE + 1).astype(np.uint16)
    np.save(f"{name}.npy", tokens)
    before = safetensors.numpy.load_file(f"{name}/model.safetensors")
    wide = model.double()
    ids = torch.tensor(tokens.astype(np.int64))[None]
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(wide(input_ids=ids[:, :-1]).logits[0], ids[0, 1:]).item()
        prompt = ids[:, :5]
        # Not with its cache, which is wrong for a sliding window of one token.
        text = wide.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False,
                             use_cache=False, eos_token_id=None, pad_token_id=0)[0, 5:].tolist()
    loss = json.loads(run("evaluate", "--checkpoint", name, "--data", f"{name}.npy", "--seq", SEQUENCE, "--json",
                          "--quiet"))["loss"]
    assert math.isclose(loss, expected, rel_tol=1e-6), (name, loss, expected, config)
    written = json.loads(run("generate", "--checkpoint", name, "--prompt", bytes(tokens[:5].tolist()).decode(),
                             "--tokens", 12, "--temperature", 0, "--end-token", -1, "--json", "--quiet"))["tokens"]
    assert written == text, (name, written, text, config)
    layer = dict(tensor=1, sequence="none", context=1, data=1, zero=0, expert=1, recompute="none")
    count = config.num_hidden_layers
    pathlib.Path(f"{name}.json").write_text(json.dumps(dict(
        version=1, model=f"{name}/config.json", cluster="host", global_batch=1, sequence_length=SEQUENCE,
        precision="fp32", microbatches=1, schedule="1f1b", virtual_stages=1,
        stages=[dict(first_layer=0, last_layer=count - 1, ranks=[0, 1])], layers=[layer] * count, embedding=layer,
        head=layer, predicted={})))
    run("train", "--plan", f"{name}.json", "--data", f"{name}.npy", "--steps", 1, "--lr", 0, "--warmup", 0,
        "--weight-decay", 0, "--init-from", name, "--checkpoint", f"{name}-saved", "--quiet")
    run("export", f"{name}-saved", "--to", "huggingface", "--out", f"{name}-out", "--quiet")
    after = safetensors.numpy.load_file(f"{name}-out/model.safetensors")
    if json.loads(pathlib.Path(f"{name}-out/config.json").read_text())["model_type"] == "llama":
        before = split(before, config)
    assert after.keys() == before.keys(), (name, sorted(after.keys() ^ before.keys()), config)
    for key, tensor in before.items():
        assert np.array_equal(after[key].reshape(tensor.shape), tensor), (name, key, config)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(f"{name}-out", dtype=torch.float32,
                                                               attn_implementation="eager")
    if hasattr(loaded, "set_experts_implementation"):
        loaded.set_experts_implementation("eager")
    with torch.no_grad():
        again = torch.nn.functional.cross_entropy(loaded.double()(input_ids=ids[:, :-1]).logits[0], ids[0, 1:]).item()
    assert math.isclose(again, expected, rel_tol=1e-6), (name, again, expected, config)


def main():
    galvatron = sys.argv[1]
    cases = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else time.time_ns() % 1000000
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"seed {seed}", flush=True)
    for family in FAMILIES:
        for case in range(cases):
            compare(galvatron, f"{family.__name__}-{case}", family(random.Random(f"{seed} {family.__name__} {case}")),
                    seed + case)
    print(f"{cases} models of each of {len(FAMILIES)} families: losses, greedy texts and weights are the same")


if __name__ == "__main__":
    main()
