// LayerPricer: one layer under many strategies, whose counts and prices have much in common.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>

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
/// recomputation, and only what experts have and do depends on their degrees. An embedding and a head do not depend on
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
        others_ = {}, rest_ = {};
      degrees_ = degrees;
      passes_ = {};
      parameters_ = {};
      stores_ = {};
    }
    const program::LayerProgram& program = programs_.of(spec, batch_);
    if (layer_.kind != LayerKind::block) {
      std::optional<PricedLayer>& all = passes_[static_cast<std::size_t>(spec.zero)];
      if (!all) all = priced(pass_counts(spec, batch_, program), spec);
      return *all;
    }
    const std::optional<PricedLayer>& passes =
        passes_[2 * static_cast<std::size_t>(spec.recompute) + (spec.zero >= 2 ? 1 : 0)];
    if (!passes) add_passes(spec, program);
    const bool splits = batch_.splits_backward && splits_backward(layer_, spec);
    std::optional<PricedLayer>& parameters = parameters_[2 * static_cast<std::size_t>(spec.zero) + (splits ? 1 : 0)];
    if (!parameters) parameters = priced_parameters(spec, program, splits);
    return sum(*passes, *parameters);
  }

 private:
  [[nodiscard]] constexpr PricedLayer priced(const LayerCounts& counts, const StrategySpec& spec) const {
    return {layer_prices(counts, spec, cluster_, prices_), counts};
  }
  static constexpr PricedLayer sum(const PricedLayer& a, const PricedLayer& b) {
    PricedLayer out{a.prices + b.prices, a.bytes};
    out.bytes.add(b.bytes);
    return out;
  }
  constexpr PricedLayer priced_parameters(const StrategySpec& spec, const program::LayerProgram& program, bool splits) {
    const auto of = [&](std::span<const ParameterPart> parts) {
      return priced(parameter_counts(spec, batch_, program, stores_, parts), spec);
    };
    const std::span<const ParameterPart> parts(BlockStores::parts);
    if (layer_.experts == 0) return of(parts);
    std::optional<PricedLayer>& rest = rest_[2 * static_cast<std::size_t>(spec.zero) + (splits ? 1 : 0)];
    if (!rest) rest = of(parts.first(1));
    return sum(*rest, of(parts.last(1)));
  }
  // Messages that run beside products are priced with all of these, and not by parts.
  constexpr void add_passes(const StrategySpec& spec, const program::LayerProgram& program) {
    using detail::Steps;
    const bool divides = layer_.experts > 0 && batch_.trainer->tensor_pieces == 0;
    // Of micro-batches that add gradients of weights, and of those that write them.
    const auto both = [&](LayerCounts& counts) {
      for (op::WorkList* list : {&counts.backward, &counts.weights}) list->write_one_in(batch_.microbatches);
      const LayerPrices adds = layer_prices(counts, spec, cluster_, prices_);
      if (batch_.microbatches == 1) return std::array{adds, adds};
      counts.forward = {};
      for (op::WorkList* list : {&counts.backward, &counts.weights}) list->write_one_in(1);
      LayerPrices writes = layer_prices(counts, spec, cluster_, prices_);
      writes.passes.front() = adds.passes.front();
      return std::array{adds, writes};
    };
    const auto recompute = static_cast<std::size_t>(spec.recompute);
    if (divides && !others_[recompute]) {
      LayerCounts counts = pass_counts(spec, batch_, program, Steps::others);
      others_[recompute] = both(counts);
    }
    LayerCounts counts = pass_counts(spec, batch_, program, divides ? Steps::experts : Steps::all);
    const std::array<LayerPrices, 2> priced = both(counts);
    for (std::size_t i = 0; i < 2; ++i)
      passes_[2 * recompute + i] = PricedLayer{divides ? priced[i] + (*others_[recompute])[i] : priced[i], counts};
  }

  const LayerPrograms& programs_;
  const LayerSpec& layer_ = programs_.layer();
  const Batch& batch_;
  const Cluster& cluster_;
  WorkPrices& prices_;
  StrategySpec degrees_{.tensor = 0};  // of what follows
  // By what is recomputed, and whether all micro-batches write weight gradients; ends: by ZeRO.
  std::array<std::optional<PricedLayer>, std::max<std::size_t>(2 * recompute_kinds.size(), 4)> passes_{};
  std::array<std::optional<std::array<LayerPrices, 2>>, recompute_kinds.size()> others_{};  // of steps but experts'
  std::array<std::optional<PricedLayer>, 8> parameters_{};  // by stage of ZeRO, and whether backward is split
  std::array<std::optional<PricedLayer>, 8> rest_{};        // the same of all but experts
  BlockStores stores_;
};

}  // namespace galvatron::cost
