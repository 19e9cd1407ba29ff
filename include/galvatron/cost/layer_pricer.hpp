// LayerPricer: one layer under many strategies, whose counts and prices have much in common.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/cost/trainer.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost {

struct PricedLayer {
  LayerPrices prices;
  LayerBytes bytes;
};

/// Prices a layer under strategies of which those with equal degrees come one after the other, and among them those
/// with equal degrees but for experts'. They share most of what is to be counted and priced: of ZeRO the passes of a
/// block depend on whether micro-batches add weight gradients or write them, its parameters do not depend on
/// recomputation, and only what experts do depends on their degrees. An embedding and a head do not depend on
/// recomputation.
class LayerPricer {
 public:
  /// @param programs  of the layer under all strategies that it is asked about
  constexpr LayerPricer(const LayerPrograms& programs, const Batch& batch, const Cluster& cluster, WorkPrices& prices)
      : programs_(programs), batch_(batch), cluster_(cluster), prices_(prices) {}

  constexpr PricedLayer operator()(const StrategySpec& spec) {
    if (const StrategySpec degrees = spec.degrees(); !(degrees == degrees_)) {
      if (!(degrees.layout_degrees() == degrees_.layout_degrees()) ||
          degrees.exchanges_tokens() != degrees_.exchanges_tokens() || degrees.dispatch != degrees_.dispatch)
        others_ = {};
      degrees_ = degrees;
      passes_ = {};
      parameters_ = {};
    }
    const program::LayerProgram& program = programs_.of(spec, batch_);
    if (layer_.kind != LayerKind::block) {
      std::optional<PricedLayer>& all = passes_[static_cast<std::size_t>(spec.zero)];
      if (!all) all = priced(pass_counts(spec, batch_, program), spec);
      return *all;
    }
    const std::optional<PricedLayer>& passes = passes_[kind_of(spec, spec.zero >= 2)];
    if (!passes) add_passes(spec, program);
    const bool splits = batch_.splits_backward && splits_backward(layer_, spec);
    std::optional<PricedLayer>& parameters = parameters_[2 * static_cast<std::size_t>(spec.zero) + (splits ? 1 : 0)];
    if (!parameters) parameters = priced(parameter_counts(spec, batch_, program), spec);
    PricedLayer out{passes->prices + parameters->prices, passes->bytes};
    out.bytes.add(parameters->bytes);
    return out;
  }

 private:
  static constexpr std::size_t kinds = 2 * recompute_kinds.size();

  [[nodiscard]] constexpr PricedLayer priced(const LayerCounts& counts, const StrategySpec& spec) const {
    return {layer_prices(counts, spec, cluster_, prices_), counts};
  }
  // Of one micro-batch, all write their gradients of weights.
  [[nodiscard]] constexpr std::size_t kind_of(const StrategySpec& spec, bool writes) const {
    return 2 * static_cast<std::size_t>(spec.recompute) + (writes && batch_.microbatches > 1 ? 1 : 0);
  }
  // Messages that run beside products are priced with all of these, and not by parts.
  constexpr void add_passes(const StrategySpec& spec, const program::LayerProgram& program) {
    using detail::Steps;
    const bool divides = layer_.experts > 0 && !traits_of(batch_.trainer).overlaps_tensor;
    // Calls take(kind, counts) for micro-batches that add gradients of weights, and for those that write them.
    const auto for_both = [&](LayerCounts&& counts, const auto& take) {
      for (const bool writes : {false, true}) {
        for (op::WorkList* list : {&counts.backward, &counts.weights})
          list->write_one_in(writes ? 1 : batch_.microbatches);
        take(kind_of(spec, writes), counts);
      }
    };
    if (divides && !others_[kind_of(spec, false)])
      for_both(pass_counts(spec, batch_, program, Steps::others), [&](std::size_t kind, const LayerCounts& counts) {
        others_[kind] = layer_prices(counts, spec, cluster_, prices_);
      });
    for_both(pass_counts(spec, batch_, program, divides ? Steps::experts : Steps::all),
             [&](std::size_t kind, const LayerCounts& counts) {
               passes_[kind] = priced(counts, spec);
               if (divides) passes_[kind]->prices = passes_[kind]->prices + *others_[kind];
             });
  }

  const LayerPrograms& programs_;
  const LayerSpec& layer_ = programs_.layer();
  const Batch& batch_;
  const Cluster& cluster_;
  WorkPrices& prices_;
  StrategySpec degrees_{.tensor = 0};  // of what follows
  // By what is recomputed, and whether all micro-batches write weight gradients; ends: by ZeRO.
  std::array<std::optional<PricedLayer>, std::max<std::size_t>(kinds, 4)> passes_{};
  std::array<std::optional<LayerPrices>, kinds> others_{};  // likewise, of steps that are not of experts
  std::array<std::optional<PricedLayer>, 8> parameters_{};  // by stage of ZeRO, and whether backward is split
};

}  // namespace galvatron::cost
