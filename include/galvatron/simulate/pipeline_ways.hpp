// PipelineWays: how fast a group of equal devices does so many samples of a batch as one pipeline over the whole model.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/task_costs.hpp>
#include <galvatron/plan/task_plan.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/space.hpp>

namespace galvatron::simulate::detail {

/// A pipeline on a group, whatever its number of micro-batches is.
struct Pipeline {
  int stages = 1;
  StrategySpec spec;            ///< of all its layers
  std::int64_t microbatch = 1;  ///< samples over its data ranks
  std::vector<int> ends;        ///< behind the last layer of each stage
  double slowest = 0;           ///< seconds of a micro-batch on the slowest stage
  double all = 0;               ///< the same on all stages together
};
/// So many samples on a group.
struct PipelineWay {
  double seconds = std::numeric_limits<double>::infinity();  ///< 1F1B of equal stages, transfers left out
  double bound = std::numeric_limits<double>::infinity();    ///< of its passes
  std::shared_ptr<const Pipeline> pipeline;
  int microbatches = 0;
};

/// The batch is shared out in units of some samples. What layers cost and how they are cut is computed once.
class PipelineWays {
 public:
  static constexpr int most_microbatches = 4096;   ///< of a pipeline
  static constexpr std::int64_t most_units = 256;  ///< of the batch
  /// Samples of a micro-batch on each data rank.
  static constexpr std::array microbatches{1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64};

  /// All outlive this. @param options  completed
  PipelineWays(const ModelSpec& model, const ClusterView& cluster, const search::SearchOptions& options)
      : cluster_(cluster), options_(options), layers_(options.precision) {
    for (int i = 0; i < model.layers(); ++i) {
      const auto same = std::ranges::find_if(kinds_, [&](const LayerSpec* kind) { return *kind == model.layer(i); });
      kind_of_.push_back(static_cast<std::size_t>(same - kinds_.begin()));
      if (same == kinds_.end()) kinds_.push_back(&model.layer(i));
    }
    for (const int unit : divisors(static_cast<int>(options.global_batch))) {
      unit_ = unit;
      if (options.global_batch / unit <= most_units) break;
    }
  }

  [[nodiscard]] std::int64_t unit() const { return unit_; }
  [[nodiscard]] std::int64_t units() const { return options_.global_batch / unit_; }
  [[nodiscard]] train::LayerCosts& layers() { return layers_; }
  /// Pipelines that were cut.
  [[nodiscard]] int cuts() const { return cuts_; }

  [[nodiscard]] bool fits(const StrategySpec& spec) const {
    return std::ranges::all_of(
        kinds_, [&](const LayerSpec* layer) { return why_unfit(*layer, spec, 1, options_.sequence).empty(); });
  }
  /// Samples a second of a group, at the most: its stages take equally long, work without pause, and have memory
  /// enough.
  double most_speed(int group, StrategySpec spec) {
    const Cluster& on = cluster_.group(group);
    if (on.devices % spec.tensor != 0 || spec.tensor > on.devices_per_node) return 0;
    const int zero = options_.space.zero[1] ? 1 : 0;
    double most = 0;
    spec.zero = zero;
    for (const RecomputeKind recompute : options_.space.recompute)
      for (const std::int64_t each : microbatches) {
        spec.recompute = recompute;
        if (each > options_.global_batch) break;
        double seconds = 0;
        const std::vector<LayerPrice>& prices = prices_of(group, spec, each);
        for (const std::size_t kind : kind_of_) seconds += prices[kind].seconds;
        most = std::max(most, static_cast<double>(each * (on.devices / spec.tensor)) / seconds);
      }
    return most;
  }
  /// The fastest way of a group to do n units, for every n.
  std::shared_ptr<const std::vector<PipelineWay>> of(int group, int stages, StrategySpec spec, int shards) {
    auto& known = ways_[{group, stages, spec.tensor, static_cast<int>(spec.sequence), spec.zero > 0 ? shards : 0}];
    if (known != nullptr) return known;
    std::vector<PipelineWay> out(static_cast<std::size_t>(units()) + 1);
    for (const RecomputeKind recompute : options_.space.recompute) {
      spec.recompute = recompute;
      for (const std::int64_t each : microbatches) {
        const std::int64_t microbatch = each * spec.data;
        if (microbatch > options_.global_batch) break;
        const auto pipeline = cut(group, stages, spec, microbatch, shards);
        if (!pipeline) break;  // more samples take more memory
        for (std::int64_t n = 1; n <= units(); ++n) {
          const std::int64_t count = n * unit_ / microbatch;
          if (n * unit_ % microbatch != 0 || count > most_microbatches) continue;
          const double seconds = pipeline->all + static_cast<double>(count - 1) * pipeline->slowest;
          PipelineWay& way = out[static_cast<std::size_t>(n)];
          way.bound = std::min(way.bound, std::max(static_cast<double>(count) * pipeline->slowest, pipeline->all));
          if (!(seconds < way.seconds)) continue;
          way.seconds = seconds;
          way.pipeline = pipeline;
          way.microbatches = static_cast<int>(count);
        }
      }
    }
    return known = std::make_shared<const std::vector<PipelineWay>>(std::move(out));
  }

 private:
  /// Of a micro-batch.
  struct LayerPrice {
    double seconds = 0;
    Bytes stash, forward, backward;  ///< what is kept, and the workspaces
    Bytes input, output;             ///< of a stage that begins or ends with the layer
  };

  /// Layers cut into stages that fit into memory, the slowest as fast as can be; null: they do not fit.
  std::shared_ptr<const Pipeline> cut(int group, int stages, const StrategySpec& spec, std::int64_t microbatch,
                                      int shards) {
    const std::vector<LayerPrice>& prices = prices_of(group, spec, microbatch / spec.data);
    const std::vector<Bytes>& states = states_of(spec, shards);
    const Bytes budget = min(options_.memory, cluster_.group(group).device.memory) -
                         cluster_.group(group).device.library_workspace - losses_;
    const auto layers = static_cast<int>(kind_of_.size());
    constexpr double never = std::numeric_limits<double>::infinity();
    ++cuts_;
    const auto out = std::make_shared<Pipeline>(Pipeline{stages, spec, microbatch, {}, 0, 0});
    double largest = 0;
    for (const std::size_t kind : kind_of_) {
      out->all += prices[kind].seconds;
      largest = std::max(largest, prices[kind].seconds);
    }
    struct Cut {
      bool fits = false;
      double slowest = 0;   // of the stages
      double next = never;  // the least time within which a stage takes more layers
    };
    // Each stage takes as many layers as it can within a time.
    const auto cut_within = [&](double most, std::vector<int>* ends = nullptr) {
      Cut cut;
      int at = 0;
      for (int stage = 0; stage < stages; ++stage) {
        double seconds = 0;
        Bytes kept, own, forward, backward;
        const int first = at;
        const Bytes input = prices[kind_of_[static_cast<std::size_t>(first)]].input;
        for (; at < layers - (stages - stage - 1); ++at) {
          const std::size_t kind = kind_of_[static_cast<std::size_t>(at)];
          kept += prices[kind].stash;
          own += states[kind];
          forward = max(forward, prices[kind].forward);
          backward = max(backward, prices[kind].backward);
          const Bytes output = prices[kind].output;
          if (own + (kept + output) * (stages - stage) + max(forward, backward + max(input, output)) > budget) break;
          if (const double more = seconds + prices[kind].seconds; more <= most) {
            seconds = more;
          } else {
            cut.next = std::min(cut.next, more);
            break;
          }
        }
        if (at == first) return cut;
        cut.slowest = std::max(cut.slowest, seconds);
        if (ends != nullptr) ends->push_back(at);
      }
      cut.fits = at == layers;
      return cut;
    };
    // No stage takes less than `low`; a cut has none that takes more than `high`.
    double low = std::max(largest, out->all / stages) * (1 - 1e-9);
    double high = out->all * (1 + 1e-9);
    if (const Cut cut = cut_within(high); cut.fits)
      high = cut.slowest;
    else
      return nullptr;
    // With memory enough each stage takes what is even, or more, within the first of these times.
    for (double middle = std::min(low + largest, (low + high) / 2); low < high; middle = (low + high) / 2) {
      const Cut cut = cut_within(middle);
      if (cut.fits)
        high = cut.slowest;
      else
        low = cut.next;
    }
    out->slowest = high;
    cut_within(high, &out->ends);
    return out;
  }
  /// Of each kind of layer, with so many samples on a data rank. How many of those there are makes no difference to
  /// passes, nor do states in shards.
  const std::vector<LayerPrice>& prices_of(int group, StrategySpec spec, std::int64_t samples) {
    spec.data = 1;
    spec.zero = 0;
    const auto [at, is_new] = prices_.try_emplace(
        {group, spec.tensor, static_cast<int>(spec.sequence), static_cast<int>(spec.recompute), samples});
    if (!is_new) return at->second;
    const Cluster& on = cluster_.group(group);
    const int busy = std::min(on.devices, on.devices_per_node);
    for (const LayerSpec* layer : kinds_) {
      const cost::LayerCounts& counts = layers_(*layer, spec, samples, options_.sequence);
      const Seconds seconds = cost::time_of(counts.forward, options_.precision, on, busy) +
                              cost::time_of(counts.backward, options_.precision, on, busy);
      const bool ends = layer->kind == LayerKind::head;
      at->second.push_back({seconds.value, counts.stash, counts.forward_workspace, counts.backward_workspace,
                            elements(spec, samples, layer->before(0)),
                            ends ? Bytes{} : elements(spec, samples, layer->after(0))});
    }
    return at->second;
  }
  const std::vector<Bytes>& states_of(StrategySpec spec, int shards) {
    spec.data = shards;
    const auto [at, is_new] = states_.try_emplace({spec.tensor, static_cast<int>(spec.sequence), spec.zero, shards});
    if (is_new)
      for (const LayerSpec* layer : kinds_)
        at->second.push_back(layers_(*layer, spec, shards, layer->positions).states);
    return at->second;
  }
  [[nodiscard]] Bytes elements(const StrategySpec& spec, std::int64_t samples, const BundlePart& part) const {
    if (!part.tokens.any()) return {};
    const ActivationLayout layout = activation_layout(spec, 0, samples, part.tokens.of(options_.sequence));
    return train::region_bytes(layout.region(0).tokens() * part.width, element_bytes(options_.precision));
  }

  ClusterView cluster_;
  const search::SearchOptions& options_;
  train::LayerCosts layers_;
  std::vector<const LayerSpec*> kinds_;
  std::vector<std::size_t> kind_of_;  // of each layer
  std::int64_t unit_ = 1;
  int cuts_ = 0;
  const Bytes losses_ = train::region_bytes(static_cast<std::int64_t>(most_groups), sizeof(double));
  std::map<std::tuple<int, int, int, int, std::int64_t>, std::vector<LayerPrice>> prices_;
  std::map<std::tuple<int, int, int, int>, std::vector<Bytes>> states_;
  std::map<std::tuple<int, int, int, int, int>, std::shared_ptr<const std::vector<PipelineWay>>> ways_;
};

}  // namespace galvatron::simulate::detail
