// The trainers that come with the library, as the files that they would be: cost/trainer_json.hpp says what each key
// means, docs/trainers.md how to write one. A file says what differs from the trainer that it is `like`.
#pragma once

#include <string_view>

namespace galvatron::cost {

struct TrainerFile {
  std::string_view name;
  std::string_view text;
};

// clang-format off
inline constexpr TrainerFile trainer_files[] = {
{"megatron-2021", R"json({
  "format": "galvatron-trainer", "version": 1, "name": "megatron-2021",
  "expresses": { "target": "megatron", "schedules": ["1f1b", "interleaved"], "sequence": ["none"],
                 "recompute": ["none", "full"], "zero": [0], "context": false, "experts": false },
  "attention": { "kernel": "unfused", "dropout": true },
  "passes": { "keeps_outputs": true, "fused": false, "whole_logits": true },
  "overlap": { "tensor_pieces": 0, "gradients": false, "parameters": false, "prefetch": false,
               "scatters_sends": true },
  "states": { "gradient_bytes": 2, "message_bytes": 2 },
  "memory": { "context": "1GiB", "collectives": "1GiB", "fragmentation": 0.03, "shares_slots": true },
  "host": { "operation_seconds": 6e-6 },
  "devices": { "spread": 0.015 },
  "spread": { "time": 0.06, "memory": 0.03 },
  "sources": {
    "expresses": [
      "Narayanan et al., arXiv 2104.04473, sections 2 and 3.5: tensor, pipeline and data parallelism, 1F1B and",
      "interleaved 1F1B, whole layers recomputed"],
    "attention": [
      "arXiv 2104.04473, section 4.2: scale, mask and softmax are one kernel between two batched products; dropout",
      "of 0.1 as in GPT-3's recipe"],
    "passes": [
      "arXiv 2104.04473, section 4.2: bias + GELU and bias + dropout + add are fused; arXiv 2205.05198, section",
      "4.1, for what is kept; cross entropy on whole logits in fp32 (megatron/mpu/cross_entropy.py of v2.5)"],
    "overlap": [
      "arXiv 2104.04473, section 4.1: scatter/gather of pipeline messages over tensor ranks, which",
      "--no-scatter-gather-tensors-in-pipeline switches off; the all-reduce of data ranks follows the last backward",
      "pass (megatron/model/distributed.py of v2.5)"],
    "states": [
      "arXiv 2104.04473, section 5: mixed precision with fp16, whose gradients are kept and summed as fp16 unless",
      "--accumulate-allreduce-grads-in-fp32 is given; the fp32 copies of them live in the optimizer's step, where",
      "there are no activations (megatron/optimizer/optimizer.py of v2.5)"],
    "memory": [
      "pytorch/pytorch issue 107667: above 1000 MB of kernels before CUDA 11.7 loaded them lazily; NVIDIA/nccl",
      "issue 964: 544 MB for a communicator of 2 A100, 688 MB for more, most of which communicators of one process",
      "share; fragmentation is an assumption: shapes never change"],
    "host": "PyTorch: 5 to 10 us from one small operation to the next in public traces",
    "devices": [
      "Sinha et al., arXiv 2208.11035: products vary by 8 % between GPUs of one kind in a cluster, as the range of",
      "4 quartile distances, which is 5.4 standard deviations"],
    "spread": [
      "products, attention and messages have spreads of their own; what is left is the step's irregular part, an",
      "assumption"]
  } })json"},

{"megatron-2022", R"json({
  "format": "galvatron-trainer", "version": 1, "name": "megatron-2022", "like": "megatron-2021",
  "expresses": { "sequence": ["none", "megatron"], "recompute": ["none", "selective", "full"], "zero": [0, 1] },
  "sources": {
    "expresses": [
      "Korthikanti et al., arXiv 2205.05198: sequence parallelism and selective recomputation; --use-distributed-",
      "optimizer came in the spring of 2022 (megatron/arguments.py, from commit 329fe58 of February on)"]
  } })json"},

{"megatron-2024", R"json({
  "format": "galvatron-trainer", "version": 1, "name": "megatron-2024", "like": "megatron-2022",
  "expresses": { "sequence": ["none", "megatron", "ulysses", "ring"], "zero": [0, 1], "context": true,
                 "experts": true, "fp8_recipes": ["tensorwise", "delayed"] },
  "attention": { "kernel": "cudnn", "dropout": false },
  "overlap": { "tensor_pieces": 4, "gradients": true, "parameters": true },
  "states": { "gradient_bytes": 4, "message_bytes": 4 },
  "memory": { "context": "512MiB", "collectives": "2GiB", "fragmentation": 0.03 },
  "sources": {
    "expresses": [
      "Megatron Core 0.8, docs/source/api-guide: context parallelism with all-gather, p2p or a2a exchange, expert",
      "parallelism, distributed optimizer; --fp8-format with Transformer Engine's DelayedScaling. Tensorwise is of",
      "later years, and what plan files without a recipe are priced with"],
    "attention": [
      "Transformer Engine, docs/examples/attention/attention.ipynb: cuDNN's fused attention comes first on Hopper and",
      "Blackwell, FlashAttention-2 on Ampere, where both are alike; published recipes from Llama on have no dropout"],
    "overlap": [
      "Megatron-LM README of 2024: its figures are with --overlap-grad-reduce, --overlap-param-gather and --tp-",
      "comm-overlap; Transformer Engine cuts a product into 4 pieces (num_splits of the method `pipeline` in",
      "transformer_engine/pytorch/module/base.py; a ring exchange into as many as tensor ranks), inside NVLink only"],
    "states": [
      "Megatron-LM, docs/source/distrib_optimizer.md of core 0.8, later docs/user-guide/features/dist_optimizer.md:",
      "bf16 parameters and fp32 gradients, 18 bytes a parameter, or 6 + 12 / d"],
    "memory": [
      "pytorch/pytorch issue 107667: some 300 MB of context with lazy loading, with Transformer Engine and cuDNN",
      "more; NVIDIA/nccl issue 964: 544 to 688 MB a communicator, of tensor, data and pipeline ranks"]
  } })json"},

{"megatron-2026", R"json({
  "format": "galvatron-trainer", "version": 1, "name": "megatron-2026", "like": "megatron-2024",
  "expresses": { "zero": [0, 1, 2, 3], "fp8_recipes": ["tensorwise", "delayed", "blockwise", "mxfp8"] },
  "sources": {
    "expresses": [
      "Megatron Core 0.14 and later: --use-megatron-fsdp with --data-parallel-sharding-strategy optim_grads and",
      "optim_grads_params (megatron/training/arguments.py; 0.12 and 0.13 call it --use-custom-fsdp); --fp8-recipe",
      "(docs/user-guide/features/low_precision_training.md)"]
  } })json"},

{"megatron-deepspeed", R"json({
  "format": "galvatron-trainer", "version": 1, "name": "megatron-deepspeed", "like": "megatron-2021",
  "expresses": { "target": "megatron", "schedules": ["1f1b"], "zero": [0, 1] },
  "states": { "gradient_bytes": 4, "message_bytes": 4 },
  "memory": { "fragmentation": 0.04 },
  "sources": {
    "expresses": "bigscience-workshop/Megatron-DeepSpeed: DeepSpeed's pipeline engine has 1F1B and ZeRO 1",
    "states": [
      "BigScience, arXiv 2211.05100, section 3.4: bf16 with gradients accumulated in fp32 by DeepSpeed's",
      "BF16_Optimizer"],
    "memory": "as megatron-2021; DeepSpeed keeps flat buckets beside the parameters"
  } })json"},

{"pytorch-fsdp", R"json({
  "format": "galvatron-trainer", "version": 1, "name": "pytorch-fsdp",
  "expresses": { "target": "torchtitan", "schedules": ["1f1b"], "sequence": ["none"], "recompute": ["none", "full"],
                 "zero": [0, 2, 3], "tensor": false, "context": false, "pipeline": false, "experts": false,
                 "fp8_recipes": ["tensorwise", "rowwise", "mxfp8"] },
  "attention": { "kernel": "fa2", "dropout": false },
  "passes": { "keeps_outputs": true, "fused": false, "whole_logits": true, "rms_norm": 4, "gated_activation": 2,
              "rotary": 5 },
  "overlap": { "tensor_pieces": 0, "gradients": true, "parameters": true, "prefetch": true,
               "scatters_sends": false },
  "states": { "keeps_parameters": false, "gradient_bytes": 4, "message_bytes": 2 },
  "logits": { "bytes": 14 },
  "memory": { "context": "512MiB", "collectives": "1GiB", "fragmentation": 0.05, "shares_slots": true },
  "host": { "operation_seconds": 8e-6 },
  "devices": { "spread": 0.015 },
  "spread": { "time": 0.07, "memory": 0.04 },
  "sources": {
    "expresses": [
      "Zhao et al., arXiv 2304.11277: FULL_SHARD, SHARD_GRAD_OP and NO_SHARD; checkpoint_wrapper recomputes whole",
      "blocks"],
    "attention": [
      "torch.nn.functional.scaled_dot_product_attention: the flash backend is FlashAttention-2 since PyTorch 2.2"],
    "passes": [
      "transformers, models/llama/modeling_llama.py without compilation: RMSNorm is power, mean, scale and weight",
      "in fp32; SiLU and product are two kernels; rotary is two products, a rotation by slices and a sum;",
      "F.layer_norm and F.gelu are one kernel each"],
    "overlap": [
      "arXiv 2304.11277, section 3.3: a unit is gathered while the one before it computes, in both passes, and",
      "gradients are reduced behind it"],
    "states": [
      "arXiv 2304.11277, section 4.4: sharded parameters, gradients and states stay in fp32, and units are gathered",
      "and reduced in the 16-bit formats of MixedPrecision"],
    "logits": [
      "transformers of 2023 and 2024, LlamaForCausalLM: 16-bit logits, a copy in fp32, log-softmax in fp32 and its",
      "gradient"],
    "memory": [
      "pytorch/pytorch issue 107667 and NVIDIA/nccl issue 964; PyTorch's caching allocator leaves pieces between",
      "units of gathered parameters, as arXiv 2304.11277, section 3.4, describes: the share is an assumption"],
    "host": "eager PyTorch with FSDP's hooks: 5 to 10 us an operation in public traces",
    "devices": "arXiv 2208.11035, as megatron-2021",
    "spread": "an assumption, wider than Megatron-LM's: users' loops differ"
  } })json"},

{"pytorch-fsdp-compiled", R"json({
  "format": "galvatron-trainer", "version": 1, "name": "pytorch-fsdp-compiled", "like": "pytorch-fsdp",
  "passes": { "rms_norm": 1, "gated_activation": 1, "rotary": 1 },
  "logits": { "bytes": 8 },
  "host": { "operation_seconds": 4e-6 },
  "sources": {
    "passes": [
      "torch.compile (Ansel et al., ASPLOS 2024): Inductor makes one Triton kernel of a run of element-wise",
      "operations and a reduction"],
    "logits": "as above: upcast, softmax and gradient are fused, fp32 gradient and 16-bit logits remain",
    "host": "the same source: one compiled call a block instead of a dispatch an operation"
  } })json"},

{"torchtitan", R"json({
  "format": "galvatron-trainer", "version": 1, "name": "torchtitan", "like": "pytorch-fsdp-compiled",
  "expresses": { "schedules": ["1f1b", "gpipe", "interleaved"], "sequence": ["none", "megatron", "ring"],
                 "recompute": ["none", "full"], "tensor": true, "context": true, "pipeline": true, "experts": true },
  "states": { "message_bytes": 4 },
  "spread": { "time": 0.06 },
  "sources": {
    "expresses": [
      "Liang et al., arXiv 2410.06511: FSDP2, tensor parallelism with sequence parallelism, pipelines of",
      "torch.distributed.pipelining, context parallelism by ring"],
    "states": [
      "torchtitan/config/job_config.py of v0.2 (configs.py since): mixed_precision_reduce is float32, and nothing else",
      "can be given"],
    "spread": "an assumption: one code for all users"
  } })json"},

{"deepspeed", R"json({
  "format": "galvatron-trainer", "version": 1, "name": "deepspeed", "like": "pytorch-fsdp",
  "expresses": { "target": "deepspeed", "sequence": ["none", "ulysses"], "zero": [0, 1, 2, 3], "tensor": true,
                 "context": true, "pipeline": true, "experts": true, "fp8_recipes": ["tensorwise"] },
  "overlap": { "parameters": false },
  "states": { "keeps_parameters": true, "gradient_bytes": 2, "message_bytes": 2 },
  "memory": { "context": "512MiB", "collectives": "1GiB", "fragmentation": 0.07 },
  "host": { "operation_seconds": 10e-6 },
  "spread": { "time": 0.08, "memory": 0.05 },
  "sources": {
    "expresses": [
      "www.deepspeed.ai/docs/config-json: zero_optimization; tutorials of AutoTP, Ulysses and mixture of experts"],
    "overlap": [
      "config-json: overlap_comm hides gradients; parameters of stages 1 and 2 are gathered at the end of the step"],
    "states": [
      "Rajbhandari et al., arXiv 1910.02054, section 3: 2 + 2 + 12 bytes a parameter; communication_data_type is",
      "that of training"],
    "memory": [
      "as pytorch-fsdp; ZeRO 3 gathers parameters one by one, which fragments more, and keeps buckets of 5e8",
      "elements by default: an assumption"],
    "host": "eager PyTorch with hooks at every module and its parameters",
    "spread": "an assumption, wider than FSDP's: buckets and thresholds are users'"
  } })json"},

{"mosaicml", R"json({
  "format": "galvatron-trainer", "version": 1, "name": "mosaicml", "like": "pytorch-fsdp",
  "attention": { "kernel": "triton-fa1", "dropout": false },
  "passes": { "rms_norm": 1, "gated_activation": 2, "rotary": 5 },
  "states": { "message_bytes": 2 },
  "logits": { "bytes": 10 },
  "sources": {
    "attention": [
      "mosaicml/llm-foundry v0.1 to v0.5 of 2023, scripts/train/benchmarking/submit_benchmarks.py: attn_impl is",
      "triton, FlashAttention in Triton with ALiBi"],
    "passes": "llmfoundry/models/layers/norm.py: low-precision LayerNorm is one kernel; the rest is eager PyTorch",
    "states": [
      "the same script, --fsdp_config_mixed_precision PURE, and scripts/train/yamls/pretrain/mpt-7b.yaml: FSDP gathers",
      "and reduces in bf16"],
    "logits": [
      "llmfoundry/models/mpt/modeling_mpt.py: fused_crossentropy, flash-attn's, by default, without a second fp32 copy"]
  } })json"},

{"nemo", R"json({
  "format": "galvatron-trainer", "version": 1, "name": "nemo", "like": "megatron-2024",
  "expresses": { "fp8_recipes": ["tensorwise", "delayed", "mxfp8"] },
  "spread": { "time": 0.06, "memory": 0.04 },
  "sources": {
    "expresses": [
      "as megatron-2024; Megatron Bridge, bridge.training.mixed_precision: FP8 with delayed, with current scaling, and",
      "MXFP8"],
    "spread": [
      "NVIDIA NeMo's performance recipes run Megatron Core with overlaps of tensor, data and pipeline ranks on;",
      "what differs from it is an assumption"]
  } })json"},
};
// clang-format on

/// Other names of these trainers.
struct TrainerAlias {
  std::string_view name;
  std::string_view stands_for;
};
inline constexpr TrainerAlias trainer_aliases[] = {{"megatron", "megatron-2026"}};

}  // namespace galvatron::cost
