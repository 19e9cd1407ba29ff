"""Makes and checks files for python_readers.sh, with the packages that users have: safetensors, and transformers and
tensorboard where they are installed.

    make MODEL    writes MODEL/model.safetensors, random weights with the names and layouts of published checkpoints
    plan MODEL    writes plan.json, two ranks
    check MODEL   compares MODEL-out and MODEL-bf16 with it, and reads MODEL-tensorboard
    exports NAME  compares the plan NAME.json with what torchtitan makes of NAME_torchtitan.py, and Accelerate of
                  NAME.yaml
"""

import json
import pathlib
import sys

import numpy as np
import safetensors
import safetensors.numpy

H, L, V, P = 128, 4, 256, 256


def shapes(model):
    out = {}
    if model == "gpt2-tiny":
        out["wte.weight"] = (V, H)
        out["wpe.weight"] = (P, H)
        for n in range(L):
            prefix = f"h.{n}."
            for norm in ("ln_1", "ln_2"):
                out[prefix + norm + ".weight"] = out[prefix + norm + ".bias"] = (H,)
            for name, inputs, outputs in (("attn.c_attn", H, 3 * H), ("attn.c_proj", H, H), ("mlp.c_fc", H, 4 * H),
                                          ("mlp.c_proj", 4 * H, H)):
                out[prefix + name + ".weight"] = (inputs, outputs)
                out[prefix + name + ".bias"] = (outputs,)
            out[prefix + "attn.bias"] = (1, 1, P, P)  # a mask that published files have
        out["ln_f.weight"] = out["ln_f.bias"] = (H,)
        return out
    kv, f = 64, 384
    out["model.embed_tokens.weight"] = out["lm_head.weight"] = (V, H)
    for n in range(L):
        prefix = f"model.layers.{n}."
        out[prefix + "input_layernorm.weight"] = out[prefix + "post_attention_layernorm.weight"] = (H,)
        for name, rows, columns in (("self_attn.q_proj", H, H), ("self_attn.k_proj", kv, H), ("self_attn.v_proj", kv, H),
                                    ("self_attn.o_proj", H, H), ("mlp.gate_proj", f, H), ("mlp.up_proj", f, H),
                                    ("mlp.down_proj", H, f)):
            out[prefix + name + ".weight"] = (rows, columns)
    out["model.norm.weight"] = (H,)
    return out


def make(model):
    random = np.random.default_rng(7)
    tensors = {name: (random.standard_normal(shape) * 0.1).astype(np.float32) for name, shape in shapes(model).items()}
    pathlib.Path(model).mkdir()
    safetensors.numpy.save_file(tensors, f"{model}/model.safetensors", metadata={"format": "pt"})


def plan(model):
    spec = dict(tensor=2, sequence="none", context=1, data=1, zero=0, expert=1, recompute="none")
    pathlib.Path("plan.json").write_text(json.dumps(dict(
        version=1, model=model, cluster="host", global_batch=4, sequence_length=16, precision="fp32", microbatches=1,
        schedule="1f1b", virtual_stages=1, stages=[dict(first_layer=0, last_layer=L - 1, ranks=[0, 2])],
        layers=[spec] * L, embedding=spec, head=spec, predicted={})))


def round_to_bf16(values):
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def check(model):
    before = {("" if model == "llama-tiny" else "transformer.") + name: tensor
              for name, tensor in safetensors.numpy.load_file(f"{model}/model.safetensors").items()
              if not name.endswith(".attn.bias")}
    after = safetensors.numpy.load_file(f"{model}-out/model.safetensors")
    assert after.keys() == before.keys(), before.keys() ^ after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == np.float32 and np.array_equal(after[name], tensor), name
    with safetensors.safe_open(f"{model}-bf16/model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        for name, tensor in before.items():
            part = file.get_slice(name)
            assert part.get_dtype() == "BF16" and tuple(part.get_shape()) == tensor.shape, name
    # A checkpoint's own files are safetensors, too.
    shards = sorted(pathlib.Path(f"{model}-saved/step-00000001").glob("*.safetensors"))
    assert len(shards) == 2
    names = [name for shard in shards for name in safetensors.numpy.load_file(shard)]
    assert len(names) == len(set(names)) and any(name.startswith("0.table.master[0:") for name in names)
    loss = json.loads(pathlib.Path(f"{model}.jsonl").read_text())["loss"]
    try:
        import torch
        import transformers
    except ImportError:
        print(f"{model}: no transformers here, the loss was not compared")
    else:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(f"{model}-out", dtype=torch.float32)
        for name, tensor in loaded.state_dict().items():
            if name in before:
                assert np.array_equal(tensor.numpy(), before[name]), name
        print(f"{model}: transformers loads it")
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print(f"{model}: no tensorboard here, the event file was not read")
    else:
        events = EventAccumulator(f"{model}-tensorboard")
        events.Reload()
        scalars = events.Scalars("train/loss")
        assert [s.step for s in scalars] == [1] and abs(scalars[0].value - loss) < 1e-5 * loss
        assert {"train/gradient_norm", "train/learning_rate", "speed/tokens_per_second"} <= set(events.Tags()["scalars"])
        print(f"{model}: tensorboard reads it")


def exports(name):
    layer = json.loads(pathlib.Path(f"{name}.json").read_text())["layers"][0]
    try:
        from torchtitan.config import ConfigManager
        import torchtitan.trainer
    except ImportError:
        print(f"{name}: no torchtitan here, its configuration was not read")
    else:
        sys.path.insert(0, ".")
        parallelism = ConfigManager().parse_args(["--module", f"{name}_torchtitan", "--config", "run"]).parallelism
        assert (parallelism.data_parallel_shard_degree, parallelism.tensor_parallel_degree,
                parallelism.context_parallel_degree) == (layer["data"], layer["tensor"], layer["context"]), parallelism
        print(f"{name}: torchtitan reads it")
    try:
        from accelerate.commands.config.config_args import load_config_from_file
    except ImportError:
        print(f"{name}: no accelerate here, its file was not read")
    else:
        sizes = load_config_from_file(f"{name}.yaml").parallelism_config
        assert (sizes["parallelism_config_dp_shard_size"], sizes["parallelism_config_tp_size"],
                sizes["parallelism_config_cp_size"]) == (layer["data"], layer["tensor"], layer["context"]), sizes
        print(f"{name}: Accelerate reads it")


{"make": make, "plan": plan, "check": check, "exports": exports}[sys.argv[1]](sys.argv[2])
