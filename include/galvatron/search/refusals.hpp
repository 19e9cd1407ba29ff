// Why a search has no answer, in words.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/search/build_problem.hpp>
#include <galvatron/search/case.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/space.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::search::detail {

/// Why these cases cannot be searched: a cluster's figures that make prices which are none.
inline std::string why_no_prices(const std::vector<Case>& cases, const Cluster& cluster) {
  bool good = true;
  const auto look = [&](double seconds) { good = good && std::isfinite(seconds) && seconds >= 0; };
  for (const Case& c : cases) {
    for (const Moves& moves : c.problem.moves)
      for (const auto* all : {&moves.relayout, &moves.input, &moves.output})
        std::for_each(all->begin(), all->end(), look);
    for (const LayerType& type : c.problem.types)
      for (const Choice& choice : type)
        for (const double seconds : {choice.forward, choice.backward, choice.synchronise, choice.update}) look(seconds);
  }
  if (good) return {};
  return "the cluster " + cluster.name +
         " gives work a price that is no number of seconds: its rates must be positive and finite, and its tables in "
         "range";
}

/// For the end of a message.
inline std::string and_hint(const Space& space) {
  const std::string hint = hint_at_all(space);
  return hint.empty() ? hint : "; " + hint;
}

/// Whether some degrees of the space spread every layer over so many devices, whatever they take.
inline bool some_degrees_fit(const ModelSpec& model, const Cluster& cluster, const SearchOptions& options,
                             int devices) {
  Space space = options.space;  // kinds that fit wherever their degrees do
  space.recompute.resize(std::min<std::size_t>(1, space.recompute.size()));
  const auto first = std::find(space.zero.begin(), space.zero.end(), true);
  if (first != space.zero.end()) std::fill(first + 1, space.zero.end(), false);
  const std::int64_t samples = options.global_batch / std::max(1, options.microbatches);
  const LayerKinds kinds(model);
  for (const int stages : pipeline_degrees(space, devices)) {
    if (stages > static_cast<int>(model.blocks.size())) break;
    const std::vector<StrategySpec> specs = strategies(space, devices / stages, cluster.devices_per_node);
    const auto is_spread = [&](const cost::LayerPrograms& kind) {
      return std::any_of(specs.begin(), specs.end(), [&](const StrategySpec& spec) {
        return is_fit(kind.layer(), spec, samples, options.sequence);
      });
    };
    if (std::all_of(kinds.programs.begin(), kinds.programs.end(), is_spread)) return true;
  }
  return false;
}

/// The nearest numbers of devices that some degrees fit, as a part of a sentence; empty where this number does, or none
/// near it.
inline std::string nearest_devices(const ModelSpec& model, const Cluster& cluster, const SearchOptions& options) {
  constexpr int most_tries = 256;
  const auto fits = [&](int devices) { return some_degrees_fit(model, cluster, options, devices); };
  if (fits(cluster.devices)) return {};
  std::vector<int> nearest;
  for (const int step : {-1, +1}) {
    int tries = 1;
    while (tries <= most_tries && cluster.devices + tries * step > 0 && !fits(cluster.devices + tries * step)) ++tries;
    const int devices = cluster.devices + tries * step;
    if (tries <= most_tries && devices > 0) nearest.push_back(devices);
  }
  return nearest.empty() ? "" : "; some degrees fit " + joined(nearest, " and ") + " devices";
}

inline std::string why_no_case(const ModelSpec& model, const Cluster& cluster, const SearchOptions& options) {
  const LayerSpec& block = model.blocks.front();
  return text_of(
      "no strategy of the space spreads ", model.name, " over ", cluster.devices, " devices",
      nearest_devices(model, cluster, options), ": pipeline x tensor x context x data degrees must multiply to ",
      cluster.devices, ", with at most ", model.blocks.size(), " stages, tensor degrees that divide ", block.heads,
      " heads, ", block.kv_heads, " key/value heads and ", block.ffn, " MLP columns, context ",
      "degrees that divide the sequence, and data degrees that divide a micro-batch of the ", options.global_batch,
      " samples; choose another number of devices or batch, or a wider --space", and_hint(options.space));
}

}  // namespace galvatron::search::detail
