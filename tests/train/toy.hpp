// Toy models, their plans and a source of learnable tokens, for the tests of training.
#pragma once

#include <cstdint>
#include <string>

#include <galvatron/data/batch_source.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/spec.hpp>

#include "run_plan.hpp"

namespace toy {

using namespace galvatron;

/// A GPT (tied, learned positions, LayerNorm, GELU, biases) or a Llama (untied, rotary, RMSNorm, SwiGLU, grouped heads)
/// of width 64 with a vocabulary of 97, which no power of two divides.
inline ModelSpec model(bool llama, int layers) {
  LayerSpec block{.kind = LayerKind::block,
                  .hidden = 64,
                  .heads = 8,
                  .kv_heads = llama ? 4 : 8,
                  .head_dim = 8,
                  .ffn = 128,
                  .vocabulary = 97,
                  .positions = 32};
  block.layers = layers;
  block.tied = !llama;
  if (llama) {
    block.norm = NormKind::rms_norm;
    block.activation = ActivationKind::swiglu;
    block.position = PositionKind::rotary;
    block.bias = false;
  }
  ModelSpec out{.name = llama ? "toy-llama" : "toy-gpt", .embedding = block, .blocks = {}, .head = block};
  out.embedding.kind = LayerKind::embedding;
  out.head.kind = LayerKind::head;
  out.blocks.assign(static_cast<std::size_t>(layers), block);
  return out;
}

/// Tokens that follow a pattern, so that the loss falls.
class Tokens final : public train::BatchSource {
 public:
  explicit Tokens(std::int64_t sequence) : sequence_(sequence) {}
  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
              View<std::int32_t> out) override {
    fill(step, first, samples, range, 0, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<std::int32_t> out) override {
    fill(step, first, samples, range, 1, out);
  }

 private:
  void fill(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range, std::int64_t ahead,
            View<std::int32_t> out) const {
    if (range.first + range.count > sequence_ || out.count != range.count * samples)
      throw Failure(ErrorKind::internal, "a rank asks for tokens that are not there");
    for (std::int64_t s = range.first; s < range.first + range.count; ++s)
      for (std::int64_t i = 0; i < samples; ++i) {
        auto x = static_cast<std::uint64_t>(step * 1315423911 + (first + i) * 2654435761 + (s + ahead) * 97531);
        x ^= x >> 13U;
        x *= 0x9E3779B97F4A7C15U;
        x ^= x >> 31U;
        out[(s - range.first) * samples + i] =
            static_cast<std::int32_t>((x % 7) * static_cast<std::uint64_t>((s + ahead) % 5) + x % 13) % 97;
      }
  }
  std::int64_t sequence_;
};

inline constexpr std::int64_t global_batch = 8;
inline constexpr std::int64_t sequence = 16;

/// One stage on one rank, all layers alike.
inline Plan single_rank(const ModelSpec& model, Precision precision = Precision::fp32) {
  const int layers = static_cast<int>(model.blocks.size());
  Plan plan;
  plan.model = model.name;
  plan.cluster = "host";
  plan.global_batch = global_batch;
  plan.sequence_length = model.takes_images() ? model.positions() : sequence;
  plan.precision = precision;
  plan.stages = {{0, layers - 1, 0, 1}};
  plan.layers.assign(model.blocks.size(), {});
  return plan;
}

/// `stages` stages of equal ranks, blocks spread evenly, every layer with the same strategy.
inline Plan uniform(const ModelSpec& model, int stages, const StrategySpec& spec, int microbatches,
                    ScheduleKind schedule, int virtual_stages = 1) {
  Plan plan = single_rank(model);
  const int layers = static_cast<int>(model.blocks.size());
  const int ranks = spec.ranks();
  plan.microbatches = microbatches;
  plan.schedule = schedule;
  plan.virtual_stages = virtual_stages;
  plan.stages = even_stages(layers, stages, virtual_stages, ranks, schedule);
  plan.layers.assign(model.blocks.size(), spec);
  plan.embedding = plan.head = spec;
  return plan;
}

inline std::string text(const Plan& plan) {
  std::string out = std::string(name_of(plan.schedule)) + " v" + std::to_string(plan.virtual_stages) + " m" +
                    std::to_string(plan.microbatches) + " stages";
  for (const PlanStage& stage : plan.stages) {
    out += " " + std::to_string(stage.first_layer) + "-" + std::to_string(stage.last_layer) + "@" +
           std::to_string(stage.rank_count);
    for (const auto& [key, of, list] : ratio_lists)
      if (!(stage.*list).empty()) out += std::string(" ") + of + " " + joined(stage.*list, "-");
  }
  const auto add = [&](const StrategySpec& s) { out += " [" + strategy_text(s) + "]"; };
  add(plan.embedding);
  for (const StrategySpec& s : plan.layers) add(s);
  add(plan.head);
  return out;
}

}  // namespace toy
