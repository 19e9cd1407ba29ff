// A launch script or a list of arguments of Megatron-LM, Megatron-DeepSpeed or NeMo's command line as a TrainerJob.
//
// Source: megatron/training/arguments.py of NVIDIA/Megatron-LM from v2.5 (2021) to core 0.16 (2026), and
// megatron/arguments.py of bigscience-workshop/Megatron-DeepSpeed.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <galvatron/compat/check/job.hpp>
#include <galvatron/compat/check/script_words.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/cost/trainer_json.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/check.hpp>

namespace galvatron {

namespace detail {

/// Options that change neither the time nor the memory of a step here, whole or as the beginning of a name that ends in
/// a dash.
inline constexpr std::string_view megatron_ignored[] = {"--DDP-impl",
                                                        "--train-iters",
                                                        "--train-samples",
                                                        "--lr",
                                                        "--lr-",
                                                        "--min-lr",
                                                        "--weight-decay",
                                                        "--weight-decay-",
                                                        "--adam-",
                                                        "--clip-grad",
                                                        "--optimizer",
                                                        "--init-method-std",
                                                        "--seed",
                                                        "--data-path",
                                                        "--train-data-path",
                                                        "--valid-data-path",
                                                        "--test-data-path",
                                                        "--data-cache-path",
                                                        "--data-impl",
                                                        "--split",
                                                        "--vocab-file",
                                                        "--merge-file",
                                                        "--tokenizer-model",
                                                        "--tokenizer-name-or-path",
                                                        "--save",
                                                        "--save-interval",
                                                        "--load",
                                                        "--log-",
                                                        "--eval-",
                                                        "--exit-",
                                                        "--tensorboard-",
                                                        "--wandb-",
                                                        "--distributed-backend",
                                                        "--distributed-timeout-minutes",
                                                        "--num-workers",
                                                        "--no-load-optim",
                                                        "--no-load-rng",
                                                        "--no-save-optim",
                                                        "--no-save-rng",
                                                        "--ckpt-",
                                                        "--rdzv_",
                                                        "--rdzv-",
                                                        "--master_addr",
                                                        "--master_port",
                                                        "--master-addr",
                                                        "--master-port",
                                                        "--node_rank",
                                                        "--node-rank",
                                                        "--tee",
                                                        "--max_restarts",
                                                        "--max-restarts",
                                                        "--override-opt_param-scheduler",
                                                        "--override-opt-param-scheduler",
                                                        "--use-checkpoint-opt_param-scheduler",
                                                        "--rampup-batch-size",
                                                        "--initial-loss-scale",
                                                        "--loss-scale",
                                                        "--loss-scale-window",
                                                        "--hysteresis",
                                                        "--min-loss-scale",
                                                        "--accumulate-allreduce-grads-in-fp32",
                                                        "--timing-",
                                                        "--layernorm-epsilon",
                                                        "--norm-epsilon",
                                                        "--rotary-base",
                                                        "--rotary-percent",
                                                        "--rotary-seq-len-interpolation-",
                                                        "--use-rope-scaling",
                                                        "--rope-scaling-factor",
                                                        "--deepspeed_config",
                                                        "--deepspeed-config",
                                                        "--kill-switch-path",
                                                        "--no-masked-softmax-fusion",
                                                        "--no-gradient-accumulation-fusion",
                                                        "--no-bias-gelu-fusion",
                                                        "--no-bias-dropout-fusion",
                                                        "--no-bias-swiglu-fusion",
                                                        "--no-rope-fusion",
                                                        "--use-mcore-",
                                                        "--transformer-impl",
                                                        "--attention-softmax-in-fp32",
                                                        "--apply-layernorm-1p",
                                                        "--mock-data",
                                                        "--reset-position-ids",
                                                        "--reset-attention-mask",
                                                        "--eod-mask-loss",
                                                        "--no-mmap-bin-files",
                                                        "--no-create-attention-mask-in-dataloader",
                                                        "--manual-gc",
                                                        "--manual-gc-interval",
                                                        "--profile",
                                                        "--profile-",
                                                        "--dist-ckpt-",
                                                        "--use-dist-ckpt",
                                                        "--async-save",
                                                        "--auto-detect-ckpt-format",
                                                        "--calculate-per-token-loss",
                                                        "--no-async-tensor-model-parallel-allreduce",
                                                        "--distribute-saved-activations",
                                                        "--embed-layernorm",
                                                        "--partition-activations",
                                                        "--cross-entropy-loss-fusion",
                                                        "--cross-entropy-fusion-impl",
                                                        "--te-rng-tracker",
                                                        "--use-pytorch-profiler",
                                                        "--moe-router-load-balancing-type",
                                                        "--moe-aux-loss-coeff",
                                                        "--moe-z-loss-coeff",
                                                        "--moe-router-dtype",
                                                        "--moe-token-dispatcher-type",
                                                        "--moe-permute-fusion",
                                                        "--moe-grouped-gemm",
                                                        "--job-name",
                                                        "--nodes",
                                                        "--ntasks",
                                                        "--ntasks-per-node",
                                                        "--gres",
                                                        "--jobid",
                                                        "--partition",
                                                        "--account",
                                                        "--container-image",
                                                        "--container-mounts",
                                                        "--no-container-mount-home",
                                                        "--output",
                                                        "--error",
                                                        "--wait",
                                                        "--kill-on-bad-exit",
                                                        "--hostfile",
                                                        "--launcher",
                                                        "--local-ranks-filter",
                                                        "--redirects",
                                                        "--log_dir",
                                                        "--no-python",
                                                        "--use-tp-pp-dp-mapping",
                                                        "--abort-on-unmet-fault-tolerance",
                                                        "--bias-dropout-fusion",
                                                        "--decoupled-",
                                                        "--fp8-amax-",
                                                        "--fp8-margin",
                                                        "--fp8-interval",
                                                        "--tiktoken-",
                                                        "--empty-unused-memory-level"};

inline bool megatron_ignores(const std::string& option) {
  return std::ranges::any_of(megatron_ignored, [&](std::string_view known) {
    return known.ends_with('-') || known.ends_with('_') ? option.starts_with(known) : option == known;
  });
}

/// The options of a script, which are taken out one by one.
class MegatronOptions {
 public:
  explicit MegatronOptions(std::vector<ScriptOption> options) : options_(std::move(options)) {}

  [[nodiscard]] bool has(const std::string& name) {
    seen_.insert(name);
    return std::ranges::find(options_, name, &ScriptOption::name) != options_.end();
  }
  [[nodiscard]] std::string text(const std::string& name, const std::string& otherwise = "") {
    seen_.insert(name);
    std::string out = otherwise;
    for (const ScriptOption& option : options_)  // the last one counts
      if (option.name == name && !option.values.empty()) out = option.values.front();
    return out;
  }
  /// All values of an option.
  [[nodiscard]] std::vector<std::string> values(const std::string& name) {
    seen_.insert(name);
    std::vector<std::string> out;
    for (const ScriptOption& option : options_)
      if (option.name == name) out = option.values;
    return out;
  }
  /// A positive number. `finish` reports text that is no positive number.
  [[nodiscard]] std::int64_t number(const std::string& name, std::int64_t otherwise) {
    const std::string found = text(name);
    if (found.empty()) return otherwise;
    std::int64_t value = 0;
    const auto [end, failure] = std::from_chars(found.data(), found.data() + found.size(), value);
    if (failure != std::errc{} || end != found.data() + found.size() || value < 0 || value > (1 << 20)) {
      if (bad_.empty())
        bad_ = name + " is \"" + one_line(found, 60) +
               "\" and no number up to 1048576: give the script the values of its variables, or write the number";
      return otherwise;
    }
    return value;
  }
  /// The same of numbers that scripts often take from a job's environment: text that is no number counts as not given.
  [[nodiscard]] std::int64_t known_number(const std::string& name, std::int64_t otherwise) {
    const bool was_bad = !bad_.empty();
    const std::int64_t value = number(name, otherwise);
    if (!was_bad) bad_.clear();
    return value;
  }
  [[nodiscard]] const std::string& bad() const { return bad_; }
  void sort_rest(TrainerJob& job) const {
    std::set<std::string> told;
    for (const ScriptOption& option : options_) {
      if (seen_.contains(option.name) || !told.insert(option.name).second) continue;
      (megatron_ignores(option.name) ? job.ignored : job.unknown).push_back(one_line(option.name, 80));
    }
  }
  [[nodiscard]] bool empty() const { return options_.empty(); }

 private:
  std::vector<ScriptOption> options_;
  std::set<std::string> seen_;
  std::string bad_;
};

/// Sliding windows: `--window-size 127,0` are the tokens before and behind the one that attends, -1 for all, and of
/// `--window-attn-skip-freq N` every N-th layer has no window.
inline void megatron_windows(MegatronOptions& options, TrainerJob& job) {
  const std::string size = options.text("--window-size");
  const std::string skips = options.text("--window-attn-skip-freq");
  const std::string_view numbers = std::string_view(size).substr(size.starts_with('(') ? 1 : 0);
  if (size.empty() || numbers.starts_with("-1")) return;
  const auto before = leading_number(numbers);
  if (!before || *before >= model_limits::positions)
    return job.assume("attention is priced without a sliding window: --window-size ", one_line(size, 40),
                      " names no tokens before the one that attends");
  const auto period = leading_number(skips);
  if (!skips.empty() && (!period || *period < 1))
    job.assume("all layers are priced with a sliding window: --window-attn-skip-freq ", one_line(skips, 40),
               " is no number");
  const auto every = static_cast<std::size_t>(period.value_or(0));
  for (std::size_t i = 0; i < job.model->blocks.size(); ++i)
    if (every == 0 || (i + 1) % every != 0) job.model->blocks[i].sliding_window = *before + 1;
}

/// The model of the arguments: GPT's blocks, or Llama's where they gate their activation.
inline void megatron_model(MegatronOptions& options, TrainerJob& job, std::int64_t ffn, std::int64_t vocabulary,
                           std::int64_t positions) {
  const std::int64_t layers = options.number("--num-layers", 0);
  const std::int64_t hidden = options.number("--hidden-size", 0);
  const std::int64_t heads = options.number("--num-attention-heads", 0);
  const std::int64_t kv_channels = options.number("--kv-channels", 0);
  const bool gated = options.has("--swiglu") || options.text("--glu-activation") == "swiglu";
  const bool groups = options.has("--group-query-attention") || options.has("--num-query-groups");
  const std::int64_t groups_given = options.number("--num-query-groups", heads);
  const std::int64_t kv_heads = groups ? groups_given : heads;
  const bool untied = options.has("--untie-embeddings-and-output-weights");
  const bool rms = options.text("--normalization", "LayerNorm") == "RMSNorm" || options.has("--use-rmsnorm");
  std::string position = options.text("--position-embedding-type", "learned_absolute");
  if (options.has("--use-rotary-position-embeddings")) position = "rope";
  const bool without_bias = options.has("--disable-bias-linear");
  if (layers < 1 || layers > 4096 || hidden < 1 || heads < 1 || hidden % heads != 0 || hidden > (1 << 20)) return;
  const bool squared = options.has("--squared-relu");
  const ActivationKind activation = gated     ? ActivationKind::swiglu
                                    : squared ? ActivationKind::squared_relu
                                              : ActivationKind::gelu;
  if (gated || rms || position == "rope" || kv_heads != heads) {
    if (kv_heads < 1 || heads % kv_heads != 0) return;
    job.model = llama("megatron", {.layers = static_cast<int>(layers),
                                   .hidden = hidden,
                                   .heads = heads,
                                   .kv_heads = kv_heads,
                                   .ffn = ffn,
                                   .vocabulary = vocabulary,
                                   .positions = positions,
                                   .head_dim = kv_channels,
                                   .tied = !untied,
                                   .activation = activation});
  } else {
    job.model = gpt("megatron", {.layers = static_cast<int>(layers),
                                 .hidden = hidden,
                                 .heads = heads,
                                 .vocabulary = vocabulary,
                                 .positions = positions,
                                 .ffn = ffn,
                                 .tied = !untied,
                                 .activation = activation});
    if (position != "learned_absolute") job.assume("positions by ", position, " are priced as a table of them");
    if (kv_channels > 0 && kv_channels != hidden / heads)
      job.assume("heads of ", kv_channels, " are priced as of ", hidden / heads);
  }
  if (without_bias && !gated) job.assume("biases are priced, although --disable-bias-linear leaves them out");
  megatron_windows(options, job);
}

inline void megatron_trainer(MegatronOptions& options, TrainerJob& job) {
  const bool deepspeed = options.has("--deepspeed") || options.has("--zero-stage");
  const bool old = options.has("--checkpoint-activations") || options.has("--activations-checkpoint-method") ||
                   options.has("--no-async-tensor-model-parallel-allreduce") || options.has("--DDP-impl");
  job.trainer = *cost::find_trainer(deepspeed ? "megatron-deepspeed" : old ? "megatron-2022" : "megatron-2026");
  cost::RuntimeTraits& traits = job.trainer.traits;
  const bool flash = options.has("--use-flash-attn") || options.has("--use-flash-attn-v2");
  const std::string backend = options.text("--attention-backend", "auto");
  if (flash || backend == "flash") traits.attention = op::AttentionKernel::fa2;
  if (backend == "fused") traits.attention = op::AttentionKernel::cudnn;
  if (backend == "unfused" || backend == "local") traits.attention = op::AttentionKernel::unfused;
  traits.passes.fused_attention = traits.attention != op::AttentionKernel::unfused;
  const std::string dropout = options.text("--attention-dropout", "0.1");
  const std::string hidden_dropout = options.text("--hidden-dropout", "0.1");
  const auto is_none = [](const std::string& text) { return text.find_first_not_of("0.") == std::string::npos; };
  traits.passes.dropout = !is_none(dropout) || !is_none(hidden_dropout);
  const bool overlaps_tensor = options.has("--tp-comm-overlap");
  const bool reduces = options.has("--overlap-grad-reduce");
  const bool gathers = options.has("--overlap-param-gather");
  const bool in_16_bits = options.has("--grad-reduce-in-bf16");
  const bool fp32_sums = options.has("--accumulate-allreduce-grads-in-fp32");
  if (!deepspeed && !old) {
    if (!overlaps_tensor) traits.tensor_pieces = 0;
    traits.overlaps_gradients = reduces;
    traits.overlaps_parameters = gathers;
    if (in_16_bits) traits.message_bytes = 2;  // and so is the buffer that they are summed in
  }
  if (options.has("--fp16") && !fp32_sums) traits.gradient_bytes = traits.message_bytes = 2;
  if (options.has("--bf16")) traits.gradient_bytes = in_16_bits ? 2 : 4;
  if (options.has("--bf16") && !in_16_bits) traits.message_bytes = 4;
  if (options.has("--tp-comm-overlap-cfg")) job.ignored.emplace_back("--tp-comm-overlap-cfg");
}

/// The recipe of 8-bit products, of which `delayed` is the usual one.
inline void megatron_recipe(MegatronOptions& options, TrainerJob& job) {
  const std::string name = options.text("--fp8-recipe", name_of(Fp8Recipe::delayed));
  if (job.precision != Precision::fp8) return;
  const std::vector<Fp8Recipe>& known = job.trainer.expressible.fp8_recipes;
  const auto recipe = std::ranges::find_if(known, [&](Fp8Recipe each) { return name == name_of(each); });
  if (recipe != known.end())
    job.trainer.traits.fp8_recipe = *recipe;
  else
    job.assume("the FP8 recipe ", one_line(name, 40), " is priced as ", name_of(job.trainer.traits.fp8_recipe));
}

/// How context ranks exchange: keys and values around a ring (p2p), or heads (a2a).
inline void megatron_exchange(MegatronOptions& options, TrainerJob& job) {
  const std::vector<std::string> kinds = options.values("--cp-comm-type");
  if (kinds.empty() || job.context == 1) return;
  const std::string& first = kinds.front();
  if (first.starts_with("a2a")) job.context_kind = SequenceKind::ulysses;
  const char* const priced = job.context_kind == SequenceKind::ulysses ? "a2a" : "p2p";
  if (first != priced) job.assume("--cp-comm-type ", one_line(first, 40), " is priced as ", priced);
  if (std::ranges::any_of(kinds, [&](const std::string& kind) { return kind != first; }))
    job.assume("--cp-comm-type differs from layer to layer, and is priced as ", priced, " in all");
}

}  // namespace detail

/// The job of a launch script. Errors (usage): no option of Megatron-LM, values that are no numbers.
inline Result<TrainerJob> megatron_job(std::string_view script) {
  detail::MegatronOptions options(script_options(script));
  TrainerJob job;
  job.kind = ConfigKind::megatron;
  if (!options.has("--num-layers") && !options.has("--tensor-model-parallel-size") &&
      !options.has("--micro-batch-size"))
    return usage_error(
        "no arguments of Megatron-LM: neither --num-layers nor --tensor-model-parallel-size nor --micro-batch-size");
  detail::megatron_trainer(options, job);
  job.tensor = options.number("--tensor-model-parallel-size", 1);
  job.pipeline = options.number("--pipeline-model-parallel-size", 1);
  job.context = options.number("--context-parallel-size", 1);
  job.expert = options.number("--expert-model-parallel-size", 1);
  job.expert_tensor = options.number("--expert-tensor-parallel-size", 0);
  job.samples = options.number("--micro-batch-size", 1);
  job.global_batch = options.number("--global-batch-size", 0);
  job.sequence = options.number("--seq-length", 0);
  job.sequence_parallel = options.has("--sequence-parallel");
  detail::megatron_exchange(options, job);
  if (options.has("--use-distributed-optimizer")) job.zero = 1;
  if (options.has("--use-megatron-fsdp") || options.has("--use-custom-fsdp")) {
    const bool renamed = options.has("--use-megatron-fsdp");
    if (renamed && !options.has("--data-parallel-sharding-strategy"))
      job.assume(
          "--data-parallel-sharding-strategy is not given: it is optim_grads_params from Megatron Core 0.18 on, "
          "no_shard before");
    const std::string strategy =
        options.text("--data-parallel-sharding-strategy", renamed ? "optim_grads_params" : "no_shard");
    job.zero = strategy == "optim_grads_params" ? 3 : strategy == "optim_grads" ? 2 : strategy == "optim" ? 1 : 0;
  }
  job.zero = static_cast<int>(std::min<std::int64_t>(options.number("--zero-stage", job.zero), 3));
  // DeepSpeed's BF16_Optimizer wants stage 0 and shards the optimizer's states itself.
  if (options.has("--deepspeed") && options.has("--bf16") && job.zero == 0) job.zero = 1;
  job.counts_embedding = options.has("--account-for-embedding-in-pipeline-split");
  job.counts_head = options.has("--account-for-loss-in-pipeline-split");
  const std::int64_t layers =
      options.number("--num-layers", 1) + (job.counts_embedding ? 1 : 0) + (job.counts_head ? 1 : 0);
  if (const std::int64_t each = options.number("--num-layers-per-virtual-pipeline-stage", 0); each > 0) {
    job.virtual_stages = std::max<std::int64_t>(layers / std::max<std::int64_t>(job.pipeline, 1) / each, 1);
    job.schedule = job.virtual_stages > 1 ? ScheduleKind::interleaved : job.schedule;
  }
  if (const std::int64_t stages = options.number("--num-virtual-stages-per-pipeline-rank", 0); stages > 1) {
    job.virtual_stages = stages;
    job.schedule = ScheduleKind::interleaved;
  }
  const std::string granularity = options.text("--recompute-granularity", "");
  const bool old_full = options.has("--checkpoint-activations") || options.has("--activations-checkpoint-method");
  if (granularity == "full" || old_full) {
    job.recompute = RecomputeKind::full;
    const std::string method =
        options.text("--recompute-method", options.text("--activations-checkpoint-method", "uniform"));
    const std::int64_t count = options.number("--recompute-num-layers", 1);
    if (method == "block") job.recompute_layers = count;
    if (method == "uniform" && count > 1)
      job.assume("layers are recomputed in groups of ", count, " and priced one by one, which keeps more inputs");
  } else if (granularity == "selective" || options.has("--recompute-activations")) {
    job.recompute = RecomputeKind::selective;
    const std::string modules = options.text("--recompute-modules", "core_attn");
    if (modules != "core_attn") job.assume("--recompute-modules ", detail::one_line(modules, 40), " as core_attn");
  }
  if (options.has("--fp8-format") || options.has("--fp8-hybrid") || options.has("--fp8-e4m3"))
    job.precision = Precision::fp8;
  else if (!options.has("--bf16") && !options.has("--fp16"))
    job.precision = Precision::fp32;
  detail::megatron_recipe(options, job);
  job.first_layers = options.number("--decoder-first-pipeline-num-layers", 0);
  job.last_layers = options.number("--decoder-last-pipeline-num-layers", 0);
  if (job.first_layers < 0 || job.first_layers > (1 << 20) || job.last_layers < 0 || job.last_layers > (1 << 20))
    return usage_error("a stage of the configuration has less than one layer, or more than 2^20");
  for (const char* const drawing : {"--pipeline-model-parallel-layout", "--pp-partition-method"})
    if (options.has(drawing)) job.assume(drawing, " is priced as stages that are as equal as possible");
  if (options.has("--num-experts") && options.number("--num-experts", 0) > 1)
    return usage_error(
        "a model of experts (--num-experts): check has no arguments of experts yet; plan with "
        "`galvatron plan --model`");
  const std::int64_t hidden = options.number("--hidden-size", 0);
  const std::int64_t ffn = options.number("--ffn-hidden-size", hidden <= (1 << 20) ? 4 * hidden : 0);
  std::int64_t vocabulary = options.number("--vocab-size", 0);
  const std::string tokenizer = options.text("--tokenizer-type", "GPT2BPETokenizer");
  if (vocabulary == 0) {
    vocabulary = tokenizer == "GPT2BPETokenizer" ? 50257 : tokenizer == "Llama2Tokenizer" ? 32000 : 128256;
    if (tokenizer != "GPT2BPETokenizer" && tokenizer != "Llama2Tokenizer")
      job.assume("the vocabulary of ", detail::one_line(tokenizer, 40), " has 128256 tokens: say --vocab-size");
  }
  const std::int64_t multiple =
      std::clamp<std::int64_t>(options.number("--make-vocab-size-divisible-by", 128), 1, 1 << 20) *
      std::clamp<std::int64_t>(job.tensor, 1, 1 << 16);
  vocabulary = options.number("--pad-vocab-size-to", vocabulary);
  vocabulary = std::min<std::int64_t>((vocabulary + multiple - 1) / multiple * multiple, 1 << 28);
  const std::int64_t positions = std::max(options.number("--max-position-embeddings", job.sequence), job.sequence);
  if (positions > 0 && positions <= (1 << 24) && ffn > 0 && ffn <= (1 << 24))
    detail::megatron_model(options, job, ffn, vocabulary, positions);
  const auto of_launcher = [&](std::initializer_list<const char*> names, std::int64_t otherwise) {
    for (const char* const name : names)
      if (options.has(name)) return options.known_number(name, 0);  // 0: the scheduler knows
    return otherwise;
  };
  const std::int64_t each = of_launcher({"--nproc_per_node", "--nproc-per-node", "--num_gpus"}, 0);
  const std::int64_t nodes = of_launcher({"--nnodes", "--num_nodes"}, 1);
  if (each > 0 && each <= 1024 && nodes <= (1 << 16)) job.devices = each * nodes;
  if (!options.bad().empty()) return usage_error(options.bad());
  if ((job.counts_embedding || job.counts_head) && (job.first_layers > 0 || job.last_layers > 0))
    return usage_error(
        "Megatron-LM takes lengths of first and last stages, or ends that count as layers (--account-for-*), not both");
  options.sort_rest(job);
  return job;
}

}  // namespace galvatron
