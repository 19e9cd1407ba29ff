"""Trains a toy T5 as step.py does the other models, and writes t5.json beside this file. The arithmetic is that of
transformers' UMT5ForConditionalGeneration, which is T5 with a table of relative positions in every block.

    python tests/train/pytorch/t5.py              writes t5.json
    python tests/train/pytorch/t5.py --compare    shows instead how far PyTorch's own float32 is from it

Two units differ from the published weights': scores are scaled by head_dim^-1/2 here, which is in the query weights
there, and the output of a tied decoder is not scaled by H^-1/2, which can be in the weights of its last norm.
"""

import torch
import torch.nn.functional as F
from torch.func import functional_call
from transformers import UMT5Config, UMT5ForConditionalGeneration
from transformers.models.umt5 import modeling_umt5

import step
from step import BATCH, LABEL_STREAM, SEQUENCE, TOKEN_STREAM, noise, parameter

T5 = dict(encoder_layers=2, decoder_layers=2, hidden=64, heads=4, head_dim=16, ffn=256, vocabulary=97, source=32,
          target=16, buckets=32, epsilon=1e-6)
PREDICTIONS = 6  # of SEQUENCE tokens: 26 of text, of which 4 are one span, and the tokens of span and end

# The output of RMS norms in the precision of their input: the original makes their statistics in float32.
modeling_umt5.UMT5LayerNorm.forward = lambda self, x: F.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)


def batch_of(step_number, spec):
    """Encoder inputs (B, S), decoder inputs and targets (B, T); -100 is no target."""
    target = SEQUENCE * spec["target"] // spec["source"]

    def choice(stream, length):
        values = (noise(stream + step_number % 2, BATCH * (length + 1)) + 1.0) * 512.0
        return torch.tensor(values.astype("int64") % spec["vocabulary"]).reshape(BATCH, length + 1)

    inputs, wanted = choice(TOKEN_STREAM, SEQUENCE)[:, :SEQUENCE], choice(LABEL_STREAM, target)
    targets = wanted[:, 1:].clone()
    targets[:, PREDICTIONS:] = -100
    return inputs, wanted[:, :-1], targets


def make_parameters(spec, _):
    h, q, f = spec["hidden"], spec["heads"] * spec["head_dim"], spec["ffn"]
    layers = spec["encoder_layers"] + spec["decoder_layers"]
    shapes = {(0, "table"): (spec["vocabulary"], h), (layers + 1, "norm1_gamma"): (h,)}
    for layer in range(1, layers + 1):
        block = {"qkv_weight": (3 * q, h), "attention_out_weight": (h, q), "mlp_in_weight": (f, h),
                 "mlp_out_weight": (h, f), "norm1_gamma": (h,), "norm2_gamma": (h,),
                 "relative_positions": (spec["buckets"], spec["heads"])}
        if layer > spec["encoder_layers"]:
            block |= {"cross_query_weight": (q, h), "cross_memory_weight": (2 * q, h), "cross_out_weight": (h, q),
                      "norm3_gamma": (h,)}
        if layer == spec["encoder_layers"]:
            block |= {"closing_gamma": (h,)}
        shapes |= {(layer, name): shape for name, shape in block.items()}
    return {key: parameter(*key, *shape) for key, shape in shapes.items()}


def weights_of(spec, p):
    """The same parameters under the names of UMT5ForConditionalGeneration."""
    out = {name: p[0, "table"] for name in
           ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]}
    out["encoder.final_layer_norm.weight"] = p[spec["encoder_layers"], "closing_gamma"]
    layers = spec["encoder_layers"] + spec["decoder_layers"]
    out["decoder.final_layer_norm.weight"] = p[layers + 1, "norm1_gamma"]
    for layer in range(1, layers + 1):
        decodes = layer > spec["encoder_layers"]
        number = layer - 1 - (spec["encoder_layers"] if decodes else 0)
        block = f"{'decoder' if decodes else 'encoder'}.block.{number}.layer."
        self_attention, mlp = block + "0.", block + ("2." if decodes else "1.")
        for name, part in zip("qkv", p[layer, "qkv_weight"].chunk(3)):
            out[f"{self_attention}SelfAttention.{name}.weight"] = part
        out[self_attention + "SelfAttention.o.weight"] = p[layer, "attention_out_weight"]
        out[self_attention + "SelfAttention.relative_attention_bias.weight"] = p[layer, "relative_positions"]
        out[self_attention + "layer_norm.weight"] = p[layer, "norm1_gamma"]
        if decodes:
            cross = block + "1."
            out[cross + "EncDecAttention.q.weight"] = p[layer, "cross_query_weight"]
            for name, part in zip("kv", p[layer, "cross_memory_weight"].chunk(2)):
                out[f"{cross}EncDecAttention.{name}.weight"] = part
            out[cross + "EncDecAttention.o.weight"] = p[layer, "cross_out_weight"]
            out[cross + "layer_norm.weight"] = p[layer, "norm3_gamma"]
        out[mlp + "DenseReluDense.wi.weight"] = p[layer, "mlp_in_weight"]
        out[mlp + "DenseReluDense.wo.weight"] = p[layer, "mlp_out_weight"]
        out[mlp + "layer_norm.weight"] = p[layer, "norm2_gamma"]
    return out


def model_of(spec, dtype):
    config = UMT5Config(
        vocab_size=spec["vocabulary"], d_model=spec["hidden"], d_kv=spec["head_dim"], d_ff=spec["ffn"],
        num_layers=spec["encoder_layers"], num_decoder_layers=spec["decoder_layers"], num_heads=spec["heads"],
        relative_attention_num_buckets=spec["buckets"], dropout_rate=0.0, layer_norm_epsilon=spec["epsilon"],
        feed_forward_proj="relu", tie_word_embeddings=True, decoder_start_token_id=0, use_cache=False,
        attn_implementation="eager")
    model = UMT5ForConditionalGeneration(config).to(dtype)
    model.model_dim = 1
    return model


def loss_of(spec, _, p, step_number):
    model = model_of(spec, p[0, "table"].dtype)
    weights = weights_of(spec, p)
    assert weights.keys() == model.state_dict().keys()
    inputs, decoder_inputs, targets = batch_of(step_number, spec)
    return functional_call(model, weights, (), {"input_ids": inputs, "decoder_input_ids": decoder_inputs,
                                                "labels": targets}).loss


if __name__ == "__main__":
    step.write([("t5", T5)], __doc__, make_parameters=make_parameters, loss_of=loss_of)
