// What one training step on one GPU consists of, and what it takes at least.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/model/model.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::bench {

/// A model's training step.
struct Step {
  const char* preset;
  std::int64_t batch;     ///< samples
  std::int64_t sequence;  ///< tokens of a sample
  int blocks = 0;         ///< the first ones of the model; 0: all
  RecomputeKind recompute = RecomputeKind::cheap;
  int microbatches = 1;
  Precision moments = Precision::fp32;  ///< of the optimizer

  [[nodiscard]] ModelSpec model() const {
    ModelSpec out = value_or_throw(find_model(preset));
    if (blocks > 0) {
      out.blocks.resize(static_cast<std::size_t>(blocks));
      for (LayerSpec& block : out.blocks) block.layers = blocks;
    }
    return out;
  }
  [[nodiscard]] std::string name() const {
    return std::string(preset) + (blocks > 0 ? ", " + std::to_string(blocks) + " blocks" : "") + ", " +
           std::to_string(batch) + " x " + std::to_string(sequence) +
           (microbatches > 1 ? " in " + std::to_string(microbatches) : "") +
           (recompute == RecomputeKind::cheap  ? ""
            : recompute == RecomputeKind::none ? ", outputs kept"
                                               : std::string(", recompute ") + name_of(recompute));
  }
};

/// What is compared with peers, and ten settings to predict.
inline std::vector<Step> compared_steps() {
  constexpr RecomputeKind keep = RecomputeKind::none;
  return {{"gpt2-124m", 16, 1024, 0, keep}, {"gpt2-1.5b", 8, 1024, 0, keep}, {"llama2-7b", 4, 4096, 4, keep}};
}
inline std::vector<Step> predicted_steps() {
  std::vector<Step> out = compared_steps();
  out.push_back({"gpt2-124m", 64, 1024});
  out.push_back({"gpt2-124m", 16, 1024, 0, RecomputeKind::full});
  out.push_back({"gpt2-124m", 16, 1024});
  out.push_back({"gpt2-774m", 8, 1024, 0, RecomputeKind::selective});
  out.push_back({"gpt2-1.5b", 16, 1024, 0, RecomputeKind::full, 2});
  out.push_back({"llama2-7b", 8, 4096, 4, RecomputeKind::cheap, 2});
  out.push_back({"llama2-7b", 8, 2048, 8, RecomputeKind::full});
  return out;
}

/// Beside transformers' in benchmarks/peers/pytorch_gpu.py.
inline std::vector<Step> steps_with_experts() { return {{"olmoe-1b-7b", 8, 4096, 4, RecomputeKind::none}}; }
/// Micro-batches and recomputation that one model may have on one GPU.
inline std::vector<Step> steps_to_choose_from() {
  std::vector<Step> out;
  for (const int microbatches : {1, 2, 4})
    for (const RecomputeKind recompute : {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full})
      out.push_back({"gpt2-774m", 16, 1024, 0, recompute, microbatches});
  return out;
}

/// All operations of a step on one rank, equal ones as one with their number in `times`.
inline std::vector<op::Work> work_of(const Step& step, Precision precision) {
  const ModelSpec model = step.model();
  const cost::Batch batch{.microbatch = step.batch / step.microbatches,
                          .sequence = step.sequence,
                          .precision = precision,
                          .microbatches = step.microbatches,
                          .moments = step.moments};
  std::vector<op::Work> all;
  const auto add = [&](const op::WorkList& list, int times) {
    for (op::Work work : list) {
      work.overlap = 0;
      const int more = work.times * times;
      work.times = 1;
      const auto same = std::find_if(all.begin(), all.end(), [&](op::Work other) {
        other.times = 1;
        return other == work;
      });
      if (same == all.end()) {
        work.times = more;
        all.push_back(work);
      } else {
        same->times += more;
      }
    }
  };
  const auto add_layer = [&](const LayerSpec& layer, RecomputeKind recompute) {
    const cost::LayerCounts counts = cost::layer_counts(layer, {.recompute = recompute}, batch);
    add(counts.forward, step.microbatches);
    add(counts.backward, step.microbatches);
    add(counts.synchronise, 1);
    add(counts.update, 1);
  };
  add_layer(model.embedding, RecomputeKind::cheap);
  for (const LayerSpec& block : model.blocks) add_layer(block, step.recompute);
  add_layer(model.head, RecomputeKind::cheap);
  return all;
}

/// With the shape of a product.
inline std::string name_of_work(const op::Work& work) {
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  const std::string name = (work.grouped ? "grouped " : "") + std::string(op::name_of(work.kind));
  if (op::is_gemm(work.kind)) return name + " " + text(work.m) + " x " + text(work.n) + " x " + text(work.k);
  if (op::is_attention(work.kind))
    return name + " " + text(work.m) + " heads, " + text(work.n) + " x " + text(work.k) + " x " + text(work.l);
  return name;
}

/// The least that work can take: its arithmetic at the peak, or its bytes, each operand once, at the bandwidth.
struct Chip {
  double flops = 989e12;       ///< of products and attention
  double bandwidth = 3.35e12;  ///< bytes/s
};
inline double floor_seconds(const op::Work& work, Precision precision, const Chip& chip) {
  op::Work once = work;
  once.times = 1;
  const double bytes = static_cast<double>(cost::bytes_of(once, precision).count);
  return work.times * std::max(op::flops_of(once).count / chip.flops, bytes / chip.bandwidth);
}

/// What no fusion of neighbours avoids: products and attention with their operands in memory, the table's rows, and the
/// optimizer's states.
inline bool is_inevitable(op::Kind kind) {
  return op::is_gemm(kind) || op::is_attention(kind) || kind == op::Kind::adamw || kind == op::Kind::adamw_bf16 ||
         kind == op::Kind::embedding_forward || kind == op::Kind::embedding_backward;
}

}  // namespace galvatron::bench
