"""Makes tiny random checkpoints of GPT-2, Llama, Mistral, Qwen, Gemma, Phi and mixtures of experts with Hugging Face
transformers and writes, beside this file, what tests/train/huggingface.cpp and tests/generate/generate.cpp compare galvatron with:
the checkpoints as save_pretrained() leaves them, what greedy decoding lets follow, the mean cross-entropy of tokens that
the models give, in float64, and its gradients as checkpoints of the same names.

    python tests/train/pytorch/huggingface.py       needs torch, safetensors and transformers
"""

import json
import pathlib
import shutil

import torch
import transformers

BATCH, SEQUENCE = 4, 16
PREDICTIONS = 5  # of a sample, for an encoder of 16 tokens
HERE = pathlib.Path(__file__).parent / "huggingface"


def tokens(vocabulary):
    """(B, S + 1): token i of a sample b is (7 b + 5 i + i^2) mod V."""
    i = torch.arange(SEQUENCE + 1)
    return torch.stack([(7 * b + 5 * i + i * i) % vocabulary for b in range(BATCH)])


def randomise(model):
    """Weights large enough that a wrong place shows, and biases of experts that change which are chosen."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(noise * 0.2 + (1.0 if is_norm else 0.0))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)


def loss_of(model, vocabulary):
    batch = tokens(vocabulary)
    logits = model.double()(input_ids=batch[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def greedy_of(model, vocabulary):
    """The ten tokens that transformers lets follow the first five of sample 0."""
    prompt = tokens(vocabulary)[:1, :5]
    with torch.no_grad():
        all_tokens = model.double().generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=10, do_sample=False, eos_token_id=None,
            pad_token_id=0)
    return all_tokens[0, 5:].tolist()


def save_gradients(model, vocabulary, name, loss_of=loss_of):
    """Of all parameters; the model's own values are lost."""
    model.zero_grad()
    loss_of(model, vocabulary).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    model.float().save_pretrained(HERE / "gradients" / name)
    for file in (HERE / "gradients" / name).glob("*.json"):
        file.unlink()


def balance_loss_of(model, vocabulary):
    """As it is in transformers' loss. Of a model with one layer of experts, where its pool of layers is that layer."""
    with torch.no_grad():
        loss = model.double()(input_ids=tokens(vocabulary)[:, :-1], output_router_logits=True).aux_loss
    return model.config.router_aux_loss_coef * loss.item()


def mixtures():
    """Names, configurations and classes of the mixtures of experts; first layers may have none."""
    base = dict(
        hidden_size=24, num_attention_heads=6, num_hidden_layers=2, intermediate_size=40, max_position_embeddings=20,
        vocab_size=61, rope_parameters={"rope_type": "default", "rope_theta": 500.0}, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=None)
    qwen = dict(base, num_key_value_heads=2, moe_intermediate_size=16, num_experts=6, num_experts_per_tok=3)
    deepseek = dict(
        base, num_key_value_heads=6, moe_intermediate_size=16, n_routed_experts=8, num_experts_per_tok=3,
        first_k_dense_replace=1, kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8,
        norm_topk_prob=False, routed_scaling_factor=1.5)
    yarn = {
        "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 10,
        "beta_fast": 32, "beta_slow": 0.05, "mscale": 1.0, "mscale_all_dim": 0.7}
    yield "mixtral", transformers.MixtralConfig(
        **dict(base, intermediate_size=16), num_key_value_heads=2, head_dim=4, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=6), transformers.MixtralForCausalLM
    yield "qwen2_moe", transformers.Qwen2MoeConfig(
        **qwen, shared_expert_intermediate_size=20, mlp_only_layers=[0]), transformers.Qwen2MoeForCausalLM
    yield "qwen3_moe", transformers.Qwen3MoeConfig(
        **qwen, head_dim=6, norm_topk_prob=True), transformers.Qwen3MoeForCausalLM
    yield "olmoe", transformers.OlmoeConfig(
        **dict(base, intermediate_size=16), num_key_value_heads=6, num_experts=4,
        num_experts_per_tok=2), transformers.OlmoeForCausalLM
    yield "deepseek_v2", transformers.DeepseekV2Config(
        **deepseek, q_lora_rank=None, n_shared_experts=2, topk_method="group_limited_greedy", n_group=4,
        topk_group=2), transformers.DeepseekV2ForCausalLM
    yield "deepseek_v3", transformers.DeepseekV3Config(
        **dict(deepseek, norm_topk_prob=True, rope_parameters=yarn), q_lora_rank=16, n_shared_experts=1, n_group=2,
        topk_group=1), transformers.DeepseekV3ForCausalLM


def decoders():
    """Names, configurations and classes of Llama's kind, of Gemma and Phi, and GPT-2s of other activations."""
    base = dict(
        hidden_size=24, num_attention_heads=6, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=40,
        max_position_embeddings=20, vocab_size=61, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
        pad_token_id=None)
    plain = {"rope_type": "default", "rope_theta": 500.0}
    llama3 = {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 0.2, "high_freq_factor": 1.5,
        "original_max_position_embeddings": 12}
    linear = {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}
    dynamic = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}
    yield "llama3", transformers.LlamaConfig(
        **dict(base, hidden_size=48), rope_parameters=llama3), transformers.LlamaForCausalLM
    yield "llama-linear", transformers.LlamaConfig(**base, rope_parameters=linear), transformers.LlamaForCausalLM
    yield "llama-dynamic", transformers.LlamaConfig(**base, rope_parameters=dynamic), transformers.LlamaForCausalLM
    yield "mistral", transformers.MistralConfig(
        **base, head_dim=6, rope_parameters=plain, sliding_window=5), transformers.MistralForCausalLM
    yield "qwen2", transformers.Qwen2Config(
        **dict(base, tie_word_embeddings=True), rope_parameters=plain, use_sliding_window=True, sliding_window=4,
        max_window_layers=1), transformers.Qwen2ForCausalLM
    yield "qwen3", transformers.Qwen3Config(**base, head_dim=6, rope_parameters=plain), transformers.Qwen3ForCausalLM
    yield "gemma", transformers.GemmaConfig(
        **dict(base, tie_word_embeddings=True), head_dim=6, rope_parameters=plain), transformers.GemmaForCausalLM
    gemma = dict(base) | dict(query_pre_attn_scalar=10, tie_word_embeddings=True, head_dim=6, sliding_window=7,
                              attn_logit_softcapping=None, final_logit_softcapping=1.5)
    yield "gemma2", transformers.Gemma2Config(
        **dict(gemma, attn_logit_softcapping=0.5), rope_parameters=plain), transformers.Gemma2ForCausalLM
    yield "gemma3", transformers.Gemma3TextConfig(
        **gemma, layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"full_attention": linear, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}
    ), transformers.Gemma3ForCausalLM
    part = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    yield "phi", transformers.PhiConfig(
        **dict(base, hidden_size=48), rope_parameters=part), transformers.PhiForCausalLM
    yield "phi3", transformers.Phi3Config(
        **dict(base, hidden_size=48), rope_parameters=part, sliding_window=9), transformers.Phi3ForCausalLM
    for activation in ("gelu", "quick_gelu", "relu"):
        yield "gpt2-" + activation, transformers.GPT2Config(
            n_embd=24, n_layer=2, n_head=3, n_positions=20, vocab_size=61, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
            activation_function=activation), transformers.GPT2LMHeadModel


def encoder_decoders():
    base = dict(vocab_size=61, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4, n_positions=20, dropout_rate=0,
                tie_word_embeddings=False, use_cache=False)
    yield "t5", transformers.T5Config(**base, feed_forward_proj="gated-gelu"), transformers.T5ForConditionalGeneration
    yield "umt5", transformers.UMT5Config(**base), transformers.UMT5ForConditionalGeneration


def loss_of_sides(model, vocabulary):
    """The encoder reads the first 16 tokens, the decoder the 16 behind them, of which it predicts five."""
    i = torch.arange(2 * SEQUENCE + 1)
    batch = torch.stack([(7 * b + 5 * i + i * i) % vocabulary for b in range(BATCH)])
    logits = model.double()(input_ids=batch[:, :SEQUENCE], decoder_input_ids=batch[:, SEQUENCE:-1]).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :PREDICTIONS].flatten(0, 1), batch[:, SEQUENCE + 1:SEQUENCE + 1 + PREDICTIONS].flatten())


def greedy_of_sides(model, vocabulary):
    """The ten tokens of the decoder that transformers lets follow the start token, of the first 16 of sample 0."""
    with torch.no_grad():
        text = model.double().generate(
            tokens(vocabulary)[:1, :SEQUENCE], max_new_tokens=10, do_sample=False, use_cache=True, eos_token_id=None,
            pad_token_id=0, decoder_start_token_id=0)
    return text[0, 1:].tolist()


def save(model, name, **how):
    model.save_pretrained(HERE / name, **how)
    (HERE / name / "generation_config.json").unlink(missing_ok=True)


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    gpt2 = transformers.GPT2Config(
        n_embd=24, n_layer=2, n_head=3, n_positions=20, vocab_size=61, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    llama = transformers.LlamaConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=4,
        intermediate_size=40, max_position_embeddings=20, vocab_size=61, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0}, tie_word_embeddings=False)
    losses, greedy = {}, {}
    for name, config, kind, shard in (("gpt2", gpt2, transformers.GPT2LMHeadModel, "5GB"),
                                      ("llama", llama, transformers.LlamaForCausalLM, "20KB")):
        model = kind(config)
        randomise(model)
        model.eval()
        save(model, name, max_shard_size=shard)
        losses[name] = loss_of(model, config.vocab_size).item()
        greedy[name] = greedy_of(model, config.vocab_size)
        save_gradients(model, config.vocab_size, name)
        if name == "llama":  # the same in 16 bits
            half = kind(config)
            randomise(half)
            with torch.no_grad():
                for parameter in half.parameters():
                    parameter.copy_(parameter.half().float())
            losses["llama-f16"] = loss_of(half.eval(), config.vocab_size).item()
            save(half.half(), "llama-f16")
    for name, config, kind in decoders():
        model = kind(config)
        randomise(model)
        model.eval()
        save(model, name)
        losses[name] = loss_of(model, config.vocab_size).item()
        greedy[name] = greedy_of(model, config.vocab_size)
        save_gradients(model, config.vocab_size, name)
    for name, config, kind in mixtures():
        model = kind(config)
        model.set_experts_implementation("eager")  # the others have no float64
        randomise(model)
        model.eval()
        save(model, name)
        if name in ("mixtral", "qwen3_moe"):  # all experts in one tensor
            save(model, name + "-together", save_original_format=False)
        losses[name] = loss_of(model, config.vocab_size).item()
        greedy[name] = greedy_of(model, config.vocab_size)
        if name == "qwen2_moe":
            balance = balance_loss_of(model, config.vocab_size)
        save_gradients(model, config.vocab_size, name)
    sides, greedy_sides = {}, {}
    for name, config, kind in encoder_decoders():
        model = kind(config)
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())  # as released weights have it
        model.config.tie_word_embeddings = False
        randomise(model)
        model.eval()
        save(model, name)
        sides[name] = loss_of_sides(model, config.vocab_size).item()
        greedy_sides[name] = greedy_of_sides(model, config.vocab_size)
        if name == "umt5":
            save_gradients(model, config.vocab_size, name, loss_of_sides)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (HERE / "losses.json").write_text(
        json.dumps({"batch": BATCH, "sequence": SEQUENCE, "losses": losses, "greedy": greedy,
                    "balance_loss_of_qwen2_moe": balance, "encoder_decoder_losses": sides,
                    "encoder_decoder_greedy": greedy_sides,
                    "made_with": versions}, indent=2) + "\n")


main()
