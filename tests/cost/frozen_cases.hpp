// The cases of the frozen counts: layers of all families under strategies of all kinds, in a fixed order.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/trainer_json.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::test {

/// One layer under one strategy in one batch.
struct CountCase {
  std::string group;  ///< layer and batch, in words; cases of one group follow each other
  LayerSpec layer;
  StrategySpec spec;
  cost::Batch batch;

  [[nodiscard]] std::string name() const { return group + ": " + strategy_text(spec); }
};

namespace frozen {

/// A model whose layers are counted, and the tokens of a sample.
struct CountedModel {
  std::string name;
  ModelSpec model;
  std::int64_t small;  ///< tokens of a short sequence
  std::int64_t large;  ///< and of a long one: with 64 samples beyond one chunk of a language model's head
  int cases;           ///< of a block, for each kind of strategy
  std::string trainer = "galvatron";
};

inline std::vector<CountedModel> counted_models() {
  const ModelSpec gpt_model =
      gpt("gpt", {.layers = 3, .hidden = 128, .heads = 16, .vocabulary = 1000, .positions = 128});
  // A tensor rank's part of the MLP has no 8-bit products, and its key/value heads are copied by Ulysses.
  const LlamaShape llama_shape{.layers = 3,
                               .hidden = 128,
                               .heads = 16,
                               .kv_heads = 4,
                               .ffn = 240,
                               .vocabulary = 777,
                               .positions = 128,
                               .head_dim = 8};
  const auto t5_model = [](bool gated) {
    return t5("t5", {.encoder_layers = 3,
                     .decoder_layers = 3,
                     .hidden = 128,
                     .heads = 16,
                     .ffn = 240,
                     .vocabulary = 777,
                     .source = 128,
                     .target = 32,
                     .tied = !gated,
                     .activation = gated ? ActivationKind::swiglu : ActivationKind::relu});
  };
  const ModelSpec swin_model = swin("swin", {.depths = {2, 2, 1, 0},
                                             .hidden = 64,
                                             .heads = {4, 8, 16, 0},
                                             .image = 32,
                                             .patch = 2,
                                             .window = 4,
                                             .classes = 70});
  return {
      {"gpt", gpt_model, 32, 128, 10},
      {"llama", llama("llama", llama_shape), 32, 128, 10},
      {"bert", bert("bert", {.layers = 3, .hidden = 128, .heads = 16, .vocabulary = 777, .positions = 128}), 32, 128,
       4},
      {"vit", vit("vit", {.layers = 3, .hidden = 128, .heads = 16, .image = 12, .patch = 4, .classes = 70}), 10, 10, 6},
      {"swin", swin_model, 256, 256, 3},
      {"t5", t5_model(false), 32, 128, 2},
      {"t5-gated", t5_model(true), 32, 128, 2},
      {"mixtral", moe("mixtral", {.dense = llama_shape, .experts = 4, .active_experts = 2}), 32, 128, 4},
      {"megatron gpt", gpt_model, 32, 128, 3, "megatron"},
      {"megatron-2022 gpt", gpt_model, 32, 128, 2, "megatron-2022"},
  };
}

/// The layers of a model that differ, and their names.
inline std::vector<std::pair<std::string, LayerSpec>> layers_that_differ(const ModelSpec& model) {
  std::vector<std::pair<std::string, LayerSpec>> out{{"embedding", model.embedding}};
  int number = 1;
  for (const LayerSpec& block : model.blocks) {
    const bool known = std::any_of(out.begin(), out.end(), [&](const auto& entry) { return entry.second == block; });
    if (!known) out.emplace_back("block " + std::to_string(number), block);
    ++number;
  }
  out.emplace_back("head", model.head);
  return out;
}

inline constexpr std::size_t batch_count = 24;

/// The facts of a trainer, for as long as the program runs.
inline const cost::RuntimeTraits& traits_named(const std::string& name) {
  static std::map<std::string, cost::Trainer> known;
  return known.try_emplace(name, *cost::find_trainer(name)).first->second.traits;
}

/// The batches: any two of their properties occur in every combination, as the columns of an orthogonal array do.
inline cost::Batch batch_of(const CountedModel& counted, std::size_t number) {
  const std::size_t row = number % 8;
  const bool a = row % 2 == 1;
  const bool b = row / 2 % 2 == 1;
  const bool c = row / 4 == 1;
  constexpr std::array precisions{Precision::fp32, Precision::bf16, Precision::fp8};
  return {.microbatch = a != b ? 64 : 16,
          .sequence = a != b ? counted.large : counted.small,
          .precision = precisions[number / 8 % 3],
          .microbatches = a != c ? 4 : 1,
          .stages = a ? 2 : 1,
          .splits_backward = b,
          .trainer = &traits_named(counted.trainer),
          .overlap = c,
          .moments = b != c ? Precision::bf16 : Precision::fp32};
}

inline std::string text_of(const cost::Batch& batch) {
  return std::string(name_of(batch.precision)) + ", " + std::to_string(batch.microbatches) + " x " +
         std::to_string(batch.microbatch) + " x " + std::to_string(batch.sequence) + " tokens, " +
         std::to_string(batch.stages) + (batch.stages == 1 ? " stage" : " stages") +
         (batch.splits_backward ? ", split backward" : "") + (batch.overlap ? ", overlap" : "") +
         (batch.moments == Precision::bf16 ? ", bf16 moments" : "");
}

/// All strategies of a kind with degrees of 1, 2 and 4 that fit a layer and a batch.
inline std::vector<StrategySpec> degrees_of(const StrategySpec& kind, const LayerSpec& layer,
                                            const cost::Batch& batch) {
  std::vector<StrategySpec> out;
  for (const bool strided : {false, true})
    for (const int tensor : {1, 2, 4})
      for (const int context : {1, 2, 4})
        for (const int data : {1, 2, 4}) {
          StrategySpec spec = kind;
          spec.tensor = tensor;
          spec.context = context;
          spec.data = data;
          spec.strided = strided;
          if (is_legal(spec) && is_fit(layer, spec, batch.microbatch, batch.sequence)) out.push_back(spec);
        }
  return out;
}

}  // namespace frozen

/// Every kind of strategy (named sequence split, ZeRO stage, recomputation) for every layer; degrees and batches take
/// turns.
inline std::vector<CountCase> count_cases() {
  std::vector<CountCase> out;
  for (const frozen::CountedModel& counted : frozen::counted_models())
    for (const auto& [name, layer] : frozen::layers_that_differ(counted.model)) {
      std::array<std::vector<CountCase>, frozen::batch_count> groups;
      std::size_t turn = 0;
      std::size_t number = 0;
      const int cases = layer.kind == LayerKind::block ? counted.cases : (counted.cases + 2) / 3;
      for (const SequenceKind sequence : named_sequence_kinds)
        for (int zero = 0; zero <= 3; ++zero)
          for (const RecomputeKind recompute : recompute_kinds) {
            const StrategySpec kind{.sequence = sequence, .zero = zero, .recompute = recompute};
            for (int i = 0; i < cases; ++i) {
              const std::size_t batch_number = (5 * static_cast<std::size_t>(i) + 7 * number) % frozen::batch_count;
              const cost::Batch batch = frozen::batch_of(counted, batch_number);
              const std::vector<StrategySpec> specs = frozen::degrees_of(kind, layer, batch);
              if (specs.empty()) continue;
              const StrategySpec spec = specs[turn++ % specs.size()];
              groups[batch_number].push_back(
                  {counted.name + " " + name + ", " + frozen::text_of(batch), layer, spec, batch});
            }
            ++number;
          }
      for (std::vector<CountCase>& group : groups) {
        for (CountCase& each : group) {
          const bool known = std::any_of(out.rbegin(), out.rbegin() + std::min<std::ptrdiff_t>(std::ssize(out), 128),
                                         [&](const CountCase& other) { return other.name() == each.name(); });
          if (!known) out.push_back(std::move(each));
        }
      }
    }
  return out;
}

/// Cases whose operations are written down one by one: of every kind of layer, and more of the plain blocks.
inline std::vector<CountCase> tallied_cases(const std::vector<CountCase>& cases) {
  std::vector<CountCase> out;
  for (std::size_t first = 0; first < cases.size();) {
    std::size_t end = first;
    while (end < cases.size() && cases[end].layer == cases[first].layer &&
           cases[end].batch.trainer == cases[first].batch.trainer)
      ++end;
    const std::size_t wanted = cases[first].layer.is_plain_block() ? 5 : 1;
    for (std::size_t i = 0; i < wanted; ++i) out.push_back(cases[first + (end - first) * (2 * i + 1) / (2 * wanted)]);
    first = end;
  }
  return out;
}

}  // namespace galvatron::test
