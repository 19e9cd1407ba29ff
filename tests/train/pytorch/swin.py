"""Trains a toy Swin for a few steps with the Swin of Hugging Face's transformers in float64 and writes swin.json, as
step.py does for the other families: see there. Two stages of the model: 8 x 8 tokens in windows of 4 x 4, the second
block's shifted, then 4 x 4 tokens, which are one window.

    python tests/train/pytorch/swin.py              writes swin.json beside this file
    python tests/train/pytorch/swin.py --compare    shows instead how far PyTorch's own float32 is from it
"""

import step
import torch
import transformers

STAGES = 2
SWIN = dict(depths=[2, 2, 0, 0], hidden=32, heads=[2, 4, 0, 0], ffn_ratio=4, vocabulary=10, positions=64, epsilon=1e-5,
            image=16, patch=2, channels=3, window=4)


def make_parameters(spec, family):
    """Layer 0 is the embedding, then the blocks, then the head; what is merged belongs to the block behind."""
    p = {}

    def add(layer, **shapes):
        for name, shape in shapes.items():
            p[layer, name] = step.parameter(layer, name, *shape)

    h, numbers, distances = spec["hidden"], spec["channels"] * spec["patch"] ** 2, (2 * spec["window"] - 1) ** 2
    add(0, patch_weight=(h, numbers), patch_bias=(h,), closing_gamma=(h,), closing_beta=(h,))
    layer = 0
    for stage in range(STAGES):
        h, f = spec["hidden"] << stage, spec["ffn_ratio"] * (spec["hidden"] << stage)
        for block in range(spec["depths"][stage]):
            layer += 1
            if stage > 0 and block == 0:
                add(layer, merge_weight=(h, 2 * h), merge_gamma=(2 * h,), merge_beta=(2 * h,))
            add(layer, qkv_weight=(3 * h, h), qkv_bias=(3 * h,), attention_out_weight=(h, h), attention_out_bias=(h,),
                relative_positions=(distances, spec["heads"][stage]), mlp_in_weight=(f, h), mlp_in_bias=(f,),
                mlp_out_weight=(h, f), mlp_out_bias=(h,), norm1_gamma=(h,), norm1_beta=(h,), norm2_gamma=(h,),
                norm2_beta=(h,))
    add(layer + 1, norm1_gamma=(h,), norm1_beta=(h,), table=(spec["vocabulary"], h), logits_bias=(spec["vocabulary"],))
    return p


def named_as_theirs(spec, p):
    """Our parameters under the names, and in the shapes, of transformers."""
    out = {}

    def both(theirs, layer, ours, weight="weight", bias="bias"):
        out[theirs + ".weight"], out[theirs + ".bias"] = p[layer, f"{ours}_{weight}"], p[layer, f"{ours}_{bias}"]

    def norm(theirs, layer, ours):
        both(theirs, layer, ours, "gamma", "beta")

    patches = "swin.embeddings.patch_embeddings.projection"
    both(patches, 0, "patch")
    out[patches + ".weight"] = out[patches + ".weight"].reshape(-1, spec["channels"], spec["patch"], spec["patch"])
    norm("swin.embeddings.norm", 0, "closing")
    layer = 0
    for stage in range(STAGES):
        for block in range(spec["depths"][stage]):
            layer += 1
            if stage > 0 and block == 0:
                merge = f"swin.encoder.layers.{stage - 1}.downsample"
                norm(merge + ".norm", layer, "merge")
                out[merge + ".reduction.weight"] = p[layer, "merge_weight"]
            own = f"swin.encoder.layers.{stage}.blocks.{block}."
            for kind, number in ("q", 0), ("k", 1), ("v", 2):
                out[f"{own}attention.{kind}_proj.weight"] = p[layer, "qkv_weight"].chunk(3)[number]
                out[f"{own}attention.{kind}_proj.bias"] = p[layer, "qkv_bias"].chunk(3)[number]
            both(own + "attention.o_proj", layer, "attention_out")
            out[own + "attention.relative_position_bias.relative_position_bias_table"] = p[layer, "relative_positions"]
            both(own + "mlp.fc1", layer, "mlp_in")
            both(own + "mlp.fc2", layer, "mlp_out")
            norm(own + "layernorm_before", layer, "norm1")
            norm(own + "layernorm_after", layer, "norm2")
    norm("swin.layernorm", layer + 1, "norm1")
    out["classifier.weight"], out["classifier.bias"] = p[layer + 1, "table"], p[layer + 1, "logits_bias"]
    return out


def model_of(spec, dtype):
    config = transformers.SwinConfig(
        image_size=spec["image"], patch_size=spec["patch"], num_channels=spec["channels"], embed_dim=spec["hidden"],
        depths=spec["depths"][:STAGES], num_heads=spec["heads"][:STAGES], window_size=spec["window"],
        mlp_ratio=spec["ffn_ratio"], hidden_act="gelu_pytorch_tanh", layer_norm_eps=spec["epsilon"],
        num_labels=spec["vocabulary"], hidden_dropout_prob=0, attention_probs_dropout_prob=0, drop_path_rate=0,
        attn_implementation="eager")
    return transformers.SwinForImageClassification(config).to(dtype)


def loss_of(spec, family, p, number):
    dtype = p[1, "qkv_weight"].dtype
    model = model_of(spec, dtype)
    theirs = named_as_theirs(spec, p)
    assert set(theirs) == {name for name, _ in model.named_parameters()}
    pixels, targets = step.images(number, spec)
    logits = torch.func.functional_call(model, theirs, (pixels.to(dtype),)).logits
    return torch.nn.functional.cross_entropy(logits, targets)


if __name__ == "__main__":
    step.write([("swin", SWIN)], __doc__, make_parameters=make_parameters, loss_of=loss_of)
