// Devices for the parts of a plan: islands first, biggest flows first, memory balanced; then a bounded local search.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/spindle/greedy.hpp>
#include <galvatron/spindle/problem.hpp>
#include <galvatron/spindle/solve.hpp>
#include <galvatron/spindle/terms.hpp>

namespace galvatron::spindle {

namespace detail {

/// Places wave after wave. A device is worth the bytes that need not move to it for a part: samples of its inputs, and
/// gradients of parameters that it has already, by a weight; among equals the one with the least memory is taken.
class GreedyPlacement {
 public:
  GreedyPlacement(const Problem& problem, const Terms& terms, const std::vector<Wave>& waves, const Flows& flows,
                  double gradient_weight)
      : problem_(problem), terms_(terms), waves_(waves), flows_(flows), gradient_weight_(gradient_weight) {
    bytes_.assign(static_cast<std::size_t>(problem.devices), 0);
    for (const Wave& wave : waves) stores_of_.emplace_back(wave.parts.size());
    holds_.resize(flows.stores().size());
    for (std::size_t s = 0; s < flows.stores().size(); ++s)
      for (const PartId id : flows.stores()[s].parts) stores_of_[id.wave][id.part].push_back(s);
  }

  Placement run() {
    for (std::size_t w = 0; w < waves_.size(); ++w) {
      free_.assign(bytes_.size(), 1);
      placement_.emplace_back(waves_[w].parts.size());
      for (const std::size_t p : order(w)) place({w, p});
    }
    return std::move(placement_);
  }

 private:
  // Parts that need several islands first, then those with the biggest flows.
  [[nodiscard]] std::vector<std::size_t> order(std::size_t wave) const {
    const std::vector<Part>& parts = waves_[wave].parts;
    std::vector<double> bytes(parts.size(), 0);
    for (const Flows::Flow& flow : flows_.into(wave)) bytes[flow.to.part] += flow.bytes;
    for (std::size_t p = 0; p < parts.size(); ++p)
      for (const std::size_t s : stores_of_[wave][p])
        if (!holds_[s].empty()) bytes[p] += flows_.stores()[s].gradient_bytes;
    std::vector<std::size_t> out(parts.size());
    std::iota(out.begin(), out.end(), std::size_t{0});
    std::ranges::sort(out, [&](std::size_t a, std::size_t b) {
      const auto key = [&](std::size_t p) {
        return std::tuple(parts[p].devices <= terms_.island_devices, -bytes[p], -parts[p].devices, p);
      };
      return key(a) < key(b);
    });
    return out;
  }

  void place(PartId id) {
    const int count = waves_[id.wave].parts[id.part].devices;
    weigh(id);
    std::vector<int> best;
    double most = 0;
    // Inside one island, the fullest of those that are equal.
    std::size_t fewest = 0;
    for (const std::vector<int>& island : islands()) {
      if (static_cast<int>(island.size()) < count) continue;
      const double worth = worth_of(island, count);
      if (!best.empty() && !(worth > most * (1 + 1e-12) || (worth >= most && island.size() < fewest))) continue;
      most = worth;
      fewest = island.size();
      best.assign(island.begin(), island.begin() + count);
    }
    if (best.empty()) best = over_islands(count);
    std::ranges::sort(best);
    take(id, std::move(best));
  }

  // What each device is worth for a part, bytes.
  void weigh(PartId id) {
    worth_.assign(bytes_.size(), 0);
    for (const Flows::Flow& flow : flows_.into(id.wave)) {
      if (flow.to != id) continue;
      const std::vector<int>& from = placement_[flow.from.wave][flow.from.part];
      for (const int device : from)
        worth_[static_cast<std::size_t>(device)] += 2 * flow.bytes / static_cast<double>(from.size());
    }
    for (const std::size_t s : stores_of_[id.wave][id.part])
      for (const int device : holds_[s])
        worth_[static_cast<std::size_t>(device)] += gradient_weight_ * flows_.stores()[s].gradient_bytes + 1;
  }

  // Free devices of each island, those of most worth first.
  [[nodiscard]] std::vector<std::vector<int>> islands() const {
    std::vector<std::vector<int>> out(static_cast<std::size_t>(terms_.island_of(problem_.devices - 1)) + 1);
    for (int d = 0; d < problem_.devices; ++d)
      if (free_[static_cast<std::size_t>(d)] != 0) out[static_cast<std::size_t>(terms_.island_of(d))].push_back(d);
    for (std::vector<int>& island : out)
      std::ranges::sort(island, {}, [&](int d) {
        const auto at = static_cast<std::size_t>(d);
        return std::tuple(-worth_[at], bytes_[at], d);
      });
    return out;
  }
  [[nodiscard]] double worth_of(const std::vector<int>& devices, int count) const {
    double out = 0;
    for (int i = 0; i < std::min(count, static_cast<int>(devices.size())); ++i)
      out += worth_[static_cast<std::size_t>(devices[static_cast<std::size_t>(i)])];
    return out;
  }

  // As few islands as there can be, those of most free devices first, then of most worth.
  [[nodiscard]] std::vector<int> over_islands(int count) const {
    std::vector<std::vector<int>> all = islands();
    std::ranges::sort(all, [&](const std::vector<int>& a, const std::vector<int>& b) {
      const auto key = [&](const std::vector<int>& island) {
        return std::pair(-static_cast<int>(island.size()), -worth_of(island, count));
      };
      return key(a) < key(b);
    });
    std::vector<int> out;
    for (const std::vector<int>& island : all)
      for (const int device : island)
        if (static_cast<int>(out.size()) < count) out.push_back(device);
    return out;
  }

  void take(PartId id, std::vector<int> devices) {
    const Part& part = waves_[id.wave].parts[id.part];
    const double kept = terms_.sizes[static_cast<std::size_t>(part.metaop)].kept_bytes * part.operators / part.devices;
    for (const int device : devices) {
      free_[static_cast<std::size_t>(device)] = 0;
      bytes_[static_cast<std::size_t>(device)] += kept;
    }
    for (const std::size_t s : stores_of_[id.wave][id.part])
      for (const int device : devices)
        if (std::ranges::count(holds_[s], device) == 0) {
          holds_[s].push_back(device);
          bytes_[static_cast<std::size_t>(device)] += flows_.stores()[s].state_bytes;
        }
    placement_[id.wave][id.part] = std::move(devices);
  }

  const Problem& problem_;
  const Terms& terms_;
  const std::vector<Wave>& waves_;
  const Flows& flows_;
  double gradient_weight_;
  Placement placement_;
  std::vector<double> bytes_;  // of each device
  std::vector<double> worth_;
  std::vector<char> free_;
  std::vector<std::vector<std::vector<std::size_t>>> stores_of_;  // of each part
  std::vector<std::vector<int>> holds_;                           // devices of each store
};

/// Bytes above the limit, seconds, bytes: less is better, in this order.
inline std::tuple<double, double, double> rank_of(const Price& price, const Terms& terms) {
  return {terms.memory > 0 ? std::max(0.0, price.peak_bytes - terms.memory) : 0, price.seconds, price.peak_bytes};
}

/// Two parts of a wave exchange devices, or a device takes the place of another one, in this wave or in all from it on,
/// as long as the price falls.
inline void improve_placement(const Problem& problem, const Terms& terms, Pricing& pricing, Placement& placement,
                              int trials) {
  std::mt19937_64 random(1);
  const auto draw = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  auto best = rank_of(pricing(placement), terms);
  // An exchange that is made twice is undone.
  const auto keep_or_undo = [&](const auto& exchange) {
    exchange();
    const auto rank = rank_of(pricing(placement), terms);
    if (rank < best)
      best = rank;
    else
      exchange();
  };
  for (int trial = 0; trial < trials; ++trial) {
    const std::size_t wave = draw(placement.size());
    if (trial % 3 == 0) {
      std::vector<std::vector<int>>& parts = placement[wave];
      const std::size_t a = draw(parts.size());
      const std::size_t b = draw(parts.size());
      if (a == b || parts[a].size() != parts[b].size()) continue;
      keep_or_undo([&] { std::swap(parts[a], parts[b]); });
    } else {
      const auto a = static_cast<int>(draw(static_cast<std::size_t>(problem.devices)));
      const auto b = static_cast<int>(draw(static_cast<std::size_t>(problem.devices)));
      if (a == b) continue;
      keep_or_undo([&] {
        for (std::size_t w = wave; w < (trial % 3 == 1 ? wave + 1 : placement.size()); ++w)
          for (std::vector<int>& part : placement[w]) {
            bool changes = false;
            for (int& device : part) {
              const int to = device == a ? b : device == b ? a : device;
              changes = changes || to != device;
              device = to;
            }
            if (changes) std::ranges::sort(part);
          }
      });
    }
  }
}

}  // namespace detail

inline constexpr int placement_trials = 1000;

/// Devices of every part.
/// @param trials  exchanges that the local search tries
inline Placement place(const Problem& problem, const Terms& terms, const std::vector<Wave>& waves,
                       int trials = placement_trials) {
  Pricing pricing(problem, terms, waves);
  Placement out;
  std::tuple<double, double, double> best;
  for (const double weight : {2.0, 0.5, 0.1}) {
    Placement placement = detail::GreedyPlacement(problem, terms, waves, pricing.flows(), weight).run();
    const auto rank = detail::rank_of(pricing(placement), terms);
    if (!out.empty() && !(rank < best)) continue;
    best = rank;
    out = std::move(placement);
  }
  detail::improve_placement(problem, terms, pricing, out, trials);
  return out;
}

/// A plan, its devices, and what all of it takes.
struct PlacedPlan {
  Plan plan;  ///< its seconds are those of the search, before devices were known
  Placement placement;
  Price price;
};

/// Plans to place: those that the search with terms and the search without went through, down to Spindle's greedy
/// waves. Of the terms they depend on transfers and the overhead of waves alone.
struct PlansToPlace {
  Problem priced;  ///< with terms
  Plan plan;       ///< the best before devices are known
  std::vector<std::vector<Wave>> waves;
};
inline PlansToPlace plans_to_place(const Problem& problem, const Terms& terms, const Limits& limits = {}) {
  PlansToPlace out{.priced = with_terms(problem, terms), .plan = {}, .waves = {}};
  out.plan = best_plan(out.priced, limits, &out.waves);
  if (has_transfers(out.priced) || terms.wave_overhead > 0) best_plan(problem, limits, &out.waves);
  out.plan.proven = false;
  // Both searches begin with the same waves.
  const auto same = [](const std::vector<Wave>& a, const std::vector<Wave>& b) {
    return std::ranges::equal(a, b, {}, &Wave::parts, &Wave::parts);
  };
  std::vector<std::vector<Wave>> different;
  for (std::vector<Wave>& waves : out.waves)
    if (std::ranges::none_of(different, [&](const auto& other) { return same(waves, other); }))
      different.push_back(std::move(waves));
  out.waves = std::move(different);
  return out;
}

/// All of these plans with their devices: those with the fewest bytes above the terms' memory first, the fastest of
/// equal ones first. Never proven.
template <class = void>
std::vector<PlacedPlan> placed_plans(const Problem& problem, const Terms& terms, const PlansToPlace& plans) {
  std::vector<PlacedPlan> out;
  for (const std::vector<Wave>& waves : plans.waves) {
    PlacedPlan& placed = out.emplace_back(PlacedPlan{plans.plan, place(problem, terms, waves), {}});
    placed.plan.waves = waves;
    placed.plan.seconds = step_seconds(plans.priced, waves);
    placed.price = Pricing(problem, terms, waves)(placed.placement);
  }
  std::ranges::stable_sort(out, {}, [&](const PlacedPlan& placed) { return detail::rank_of(placed.price, terms); });
  return out;
}
GALVATRON_IN_PLANNER(std::vector<PlacedPlan> placed_plans<>(const Problem&, const Terms&, const PlansToPlace&))

/// The fastest of the plans that a search finds, with their devices. Never proven.
/// Errors (infeasible): no plan fits into the memory of a device.
inline Result<PlacedPlan> best_placed_plan(const Problem& problem, const Terms& terms, const Limits& limits = {}) {
  PlacedPlan out = std::move(placed_plans(problem, terms, plans_to_place(problem, terms, limits)).front());
  if (terms.memory == 0 || out.price.peak_bytes <= terms.memory) return out;
  return tl::unexpected<Error>(
      Error{ErrorKind::infeasible,
            text_of("no plan of waves was found that fits into ",
                    format_bytes(Bytes{static_cast<std::int64_t>(terms.memory)}), " a device; the best takes ",
                    format_bytes(Bytes{static_cast<std::int64_t>(out.price.peak_bytes)}),
                    ", take more devices, smaller batches or more memory")});
}

}  // namespace galvatron::spindle
