"""Makes tiny CLIPs of random shapes with Hugging Face transformers and writes, beside this file, what
tests/train/huggingface_clip.cpp compares galvatron with: the checkpoints as save_pretrained() leaves them, and
embeddings.json with the embeddings of texts and images and the contrastive loss that the models give, in float64.

    python tests/train/pytorch/clip.py       needs torch and transformers
"""

import json
import pathlib
import random
import shutil

import torch
import transformers

MODELS, BATCH = 20, 4
HERE = pathlib.Path(__file__).parent / "clip"


def shape(rng):
    """A config: every number that a CLIP has is drawn; 2 is the end token of files that are older than the right one."""

    def tower():
        heads = rng.choice([1, 2, 3, 4])
        hidden = heads * rng.choice([4, 6, 8])
        return {
            "hidden_size": hidden,
            "intermediate_size": rng.choice([2 * hidden, 4 * hidden, 3 * hidden + 4]),
            "num_hidden_layers": rng.choice([1, 2, 3]),
            "num_attention_heads": heads,
            "hidden_act": rng.choice(["quick_gelu", "quick_gelu", "gelu", "gelu_new"]),
            "layer_norm_eps": rng.choice([1e-5, 1e-6]),
        }

    vocabulary = rng.randrange(30, 90)
    patch = rng.choice([2, 4])
    text = {
        **tower(),
        "vocab_size": vocabulary,
        "max_position_embeddings": rng.randrange(5, 14),
        "bos_token_id": vocabulary - 2,
        "eos_token_id": rng.choice([2, vocabulary - 1, vocabulary - 1]),
    }
    vision = {**tower(), "image_size": patch * rng.choice([2, 3, 4]), "patch_size": patch, "num_channels": rng.choice([1, 3])}
    return {
        "text_config": text,
        "vision_config": vision,
        "projection_dim": rng.choice([8, 12, 20]),
        "logit_scale_init_value": rng.choice([2.6592, 0.3, 4.6052]),
    }


def texts(config):
    """(B, S): token s of sample b is (7 b + 5 s + s^2) mod (V - 2); a sample's text ends at (3 b + 4) mod S."""
    text = config["text_config"]
    vocabulary, positions = text["vocab_size"], text["max_position_embeddings"]
    s = torch.arange(positions)
    out = torch.stack([(7 * b + 5 * s + s * s) % (vocabulary - 2) for b in range(BATCH)])
    for b in range(BATCH):
        out[b, (3 * b + 4) % positions] = vocabulary - 1
    return out


def images(config):
    """(B, C, h, h): pixel (c, y, x) of sample b is ((37 b + 11 c + 5 y + 3 x + x y) mod 41) / 20 - 1."""
    vision = config["vision_config"]
    side = torch.arange(vision["image_size"])
    b = torch.arange(BATCH).view(-1, 1, 1, 1)
    c = torch.arange(vision["num_channels"]).view(1, -1, 1, 1)
    y, x = side.view(1, 1, -1, 1), side.view(1, 1, 1, -1)
    return ((37 * b + 11 * c + 5 * y + 3 * x + x * y) % 41).double() / 20 - 1


def randomise(model, seed):
    """Weights large enough that a wrong place shows; the logits' factor stays."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "logit_scale":
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(noise * 0.2 + (1.0 if is_norm else 0.0))


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    results = []
    for i in range(MODELS):
        config = shape(random.Random(100 + i))
        model = transformers.CLIPModel(transformers.CLIPConfig(**config)).eval()
        randomise(model, i)
        folder = HERE / f"{i:02d}"
        model.save_pretrained(folder)
        with torch.no_grad():
            out = model.double()(input_ids=texts(config), pixel_values=images(config), return_loss=True)
        results.append(
            {
                "text": out.text_embeds.flatten().tolist(),
                "vision": out.image_embeds.flatten().tolist(),
                "loss": out.loss.item(),
            }
        )
    (HERE / "embeddings.json").write_text(
        json.dumps({"command": "python tests/train/pytorch/clip.py", "transformers": transformers.__version__, "models": results})
    )


main()
