// What a step takes beside its operators: moving activations, reducing gradients, memory.
//
// Devices have numbers; those of an island (NVLink) follow each other. A part on n devices gives each an equal share of
// the samples, in the order of their numbers. Three terms follow from the devices of all parts:
//
//     transfer   before a wave every device receives those samples of its inputs that it does not hold, and sends what
//                others lack; the wave starts when the slowest has both, forward and, reversed, backward
//     reduction  once a step, the gradients of an operator's parameters are added over all devices that ran it, for any
//                task: inside islands, of k devices at least, 2 (k - 1) / k of their bytes pass each device; over i
//                islands 2 (i - 1) / i of a k-th of them
//     memory     states of all parameters that a device ever uses, and the activations that it keeps
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <galvatron/spindle/problem.hpp>

namespace galvatron::spindle {

/// Bytes of a MetaOp. Those of activations are of all samples of its batch.
struct Sizes {
  double output_bytes = 0;    ///< between two of its operators, and to each of its successors
  double kept_bytes = 0;      ///< of an operator, from its forward to its backward pass
  double gradient_bytes = 0;  ///< of an operator's parameters
  double state_bytes = 0;     ///< parameters, gradients and moments of an operator
  int parameters = -1;        ///< MetaOps with the same number, of the same length, share parameters; -1: its own
};

/// Links and memory of the devices, and sizes of the MetaOps. Rates that are 0 cost nothing.
struct Terms {
  std::vector<Sizes> sizes;  ///< of each MetaOp
  int island_devices = 1;    ///< devices with fast links between them
  double island_rate = 0;    ///< bytes per second of a device inside its island, in each direction
  double rate = 0;           ///< and to other islands
  double wave_overhead = 0;  ///< seconds of a wave beside its parts
  double memory = 0;         ///< bytes of a device; 0: any
  [[nodiscard]] int island_of(int device) const { return device / island_devices; }
};

/// The problem with overheads and transfers as its search prices them: before devices are known, links inside islands
/// where one island has all devices, else between them.
inline Problem with_terms(Problem problem, const Terms& terms) {
  problem.wave_overhead = terms.wave_overhead;
  const double rate = problem.devices <= terms.island_devices ? terms.island_rate : terms.rate;
  for (std::size_t m = 0; m < problem.count(); ++m)
    problem.metaops[m].transfer = rate > 0 ? 2 * terms.sizes[m].output_bytes / rate : 0;
  return problem;
}

/// The devices of every part of every wave, ascending.
using Placement = std::vector<std::vector<std::vector<int>>>;

/// What a step with placed parts takes.
struct Price {
  double seconds = 0;
  double wave_seconds = 0;      ///< of all waves, with their overheads
  double transfer_seconds = 0;  ///< before them
  double reduce_seconds = 0;    ///< after them
  double peak_bytes = 0;        ///< of the device that has most
};

/// A part of a plan: wave and place in it.
struct PartId {
  std::size_t wave = 0;
  std::size_t part = 0;

  friend auto operator<=>(const PartId&, const PartId&) = default;
};

/// What the parts of a plan have to do with each other, whatever their devices.
class Flows {
 public:
  /// Activations that a part reads from another one.
  struct Flow {
    PartId from;
    PartId to;
    double bytes = 0;
  };
  /// Parameters that the same parts use.
  struct Store {
    std::vector<PartId> parts;
    double gradient_bytes = 0;
    double state_bytes = 0;
  };

  Flows(const Problem& problem, const Terms& terms, const std::vector<Wave>& waves) : flows_(waves.size()) {
    std::vector<PartId> last(problem.count());
    std::vector<int> done(problem.count(), 0);
    std::map<std::pair<int, int>, std::vector<PartId>> users;  // of parameters and operator
    for (PartId id; id.wave < waves.size(); ++id.wave)
      for (id.part = 0; id.part < waves[id.wave].parts.size(); ++id.part) {
        const Part& part = waves[id.wave].parts[id.part];
        const auto m = static_cast<std::size_t>(part.metaop);
        add_flows(problem, terms, id, done[m] > 0, last, part.metaop);
        const int parameters = terms.sizes[m].parameters < 0 ? -1 - part.metaop : terms.sizes[m].parameters;
        for (int k = 0; k < part.operators; ++k) users[{parameters, done[m] + k}].push_back(id);
        done[m] += part.operators;
        last[m] = id;
      }
    std::map<std::vector<PartId>, Store> stores;
    for (const auto& [key, parts] : users) {
      const PartId& first = parts.front();
      const Sizes& sizes = terms.sizes[static_cast<std::size_t>(waves[first.wave].parts[first.part].metaop)];
      Store& store = stores[parts];
      store.gradient_bytes += sizes.gradient_bytes;
      store.state_bytes += sizes.state_bytes;
    }
    for (auto& [parts, store] : stores) {
      store.parts = parts;
      stores_.push_back(std::move(store));
    }
  }

  /// Flows into the parts of a wave.
  [[nodiscard]] const std::vector<Flow>& into(std::size_t wave) const { return flows_[wave]; }
  [[nodiscard]] const std::vector<Store>& stores() const { return stores_; }

 private:
  void add_flows(const Problem& problem, const Terms& terms, PartId id, bool has_begun, const std::vector<PartId>& last,
                 int metaop) {
    const auto add = [&](int from) {
      const auto f = static_cast<std::size_t>(from);
      if (terms.sizes[f].output_bytes > 0) flows_[id.wave].push_back({last[f], id, terms.sizes[f].output_bytes});
    };
    if (has_begun) return add(metaop);
    for (const int before : problem.metaops[static_cast<std::size_t>(metaop)].after) add(before);
  }

  std::vector<std::vector<Flow>> flows_;  // of each wave
  std::vector<Store> stores_;
};

namespace detail {

/// Calls use(a, b, share) for every pair of devices that hold a common share of the samples, one of each set.
template <class Use>
void for_common_shares(const std::vector<int>& from, const std::vector<int>& to, const Use& use) {
  const auto n = static_cast<std::int64_t>(from.size());
  const auto m = static_cast<std::int64_t>(to.size());
  // In units of 1 / (n m): device i of `from` has [i m, (i + 1) m), device j of `to` has [j n, (j + 1) n).
  for (std::int64_t i = 0, j = 0, at = 0; i < n && j < m;) {
    const std::int64_t end = std::min((i + 1) * m, (j + 1) * n);
    use(from[static_cast<std::size_t>(i)], to[static_cast<std::size_t>(j)],
        static_cast<double>(end - at) / static_cast<double>(n * m));
    at = end;
    if (at == (i + 1) * m) ++i;
    if (at == (j + 1) * n) ++j;
  }
}

}  // namespace detail

/// Prices placements of one plan.
class Pricing {
 public:
  Pricing(const Problem& problem, const Terms& terms, const std::vector<Wave>& waves)
      : terms_(terms),
        waves_(waves),
        flows_(problem, terms, waves),
        devices_(static_cast<std::size_t>(problem.devices)) {
    base_ = waves_seconds(waves) + terms.wave_overhead * static_cast<double>(waves.size());
  }

  [[nodiscard]] const Flows& flows() const { return flows_; }
  [[nodiscard]] Price operator()(const Placement& placement) {
    Price out;
    out.wave_seconds = base_;
    for (std::size_t w = 0; w < waves_.size(); ++w) out.transfer_seconds += transfers_before(w, placement);
    add_stores(placement, out);
    out.seconds = out.wave_seconds + out.transfer_seconds + out.reduce_seconds;
    return out;
  }

 private:
  struct Traffic {
    double in = 0;
    double out = 0;
    double far_in = 0;  // from other islands
    double far_out = 0;
  };
  [[nodiscard]] static double seconds_of(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }
  [[nodiscard]] static const std::vector<int>& devices_of(const Placement& placement, PartId id) {
    return placement[id.wave][id.part];
  }

  double transfers_before(std::size_t wave, const Placement& placement) {
    if (flows_.into(wave).empty() || (terms_.rate <= 0 && terms_.island_rate <= 0)) return 0;
    traffic_.assign(devices_, {});
    for (const Flows::Flow& flow : flows_.into(wave))
      detail::for_common_shares(devices_of(placement, flow.from), devices_of(placement, flow.to),
                                [&](int from, int to, double share) {
                                  if (from == to) return;
                                  Traffic& a = traffic_[static_cast<std::size_t>(from)];
                                  Traffic& b = traffic_[static_cast<std::size_t>(to)];
                                  const bool near = terms_.island_of(from) == terms_.island_of(to);
                                  (near ? a.out : a.far_out) += share * flow.bytes;
                                  (near ? b.in : b.far_in) += share * flow.bytes;
                                });
    double out = 0;
    for (const Traffic& t : traffic_)
      out = std::max(out, seconds_of(std::max(t.in, t.out), terms_.island_rate) +
                              seconds_of(std::max(t.far_in, t.far_out), terms_.rate));
    return 2 * out;  // gradients move the other way
  }

  // Gradients and memory.
  void add_stores(const Placement& placement, Price& price) {
    bytes_.assign(devices_, 0);
    reduce_.assign(devices_, 0);
    for (const Flows::Store& store : flows_.stores()) {
      find_users(store, placement);
      const double seconds = reduce_seconds(store.gradient_bytes);
      for (const int device : users_) {
        bytes_[static_cast<std::size_t>(device)] += store.state_bytes;
        reduce_[static_cast<std::size_t>(device)] += seconds;
      }
    }
    for (std::size_t w = 0; w < waves_.size(); ++w)
      for (std::size_t p = 0; p < waves_[w].parts.size(); ++p) {
        const Part& part = waves_[w].parts[p];
        const double kept = terms_.sizes[static_cast<std::size_t>(part.metaop)].kept_bytes * part.operators;
        for (const int device : placement[w][p]) bytes_[static_cast<std::size_t>(device)] += kept / part.devices;
      }
    price.peak_bytes = *std::ranges::max_element(bytes_);
    price.reduce_seconds = *std::ranges::max_element(reduce_);
  }

  // The devices of a store's parts, ascending.
  void find_users(const Flows::Store& store, const Placement& placement) {
    constexpr std::size_t bits = 64;
    used_.assign((devices_ + bits - 1) / bits, 0);
    for (const PartId id : store.parts)
      for (const int device : devices_of(placement, id))
        used_[static_cast<std::size_t>(device) / bits] |= std::uint64_t{1} << (static_cast<std::size_t>(device) % bits);
    users_.clear();
    for (std::size_t word = 0; word < used_.size(); ++word)
      for (std::uint64_t left = used_[word]; left != 0; left &= left - 1)
        users_.push_back(static_cast<int>(word * bits) + std::countr_zero(left));
  }
  // Of gradients over users_.
  [[nodiscard]] double reduce_seconds(double bytes) const {
    std::size_t islands = 0;
    std::size_t fewest = users_.size();
    for (std::size_t i = 0, begin = 0; i < users_.size(); ++i)
      if (i + 1 == users_.size() || terms_.island_of(users_[i]) != terms_.island_of(users_[i + 1])) {
        ++islands;
        fewest = std::min(fewest, i + 1 - begin);
        begin = i + 1;
      }
    const auto passed = [](std::size_t k) { return 2 * static_cast<double>(k - 1) / static_cast<double>(k); };
    return seconds_of(passed(fewest) * bytes, terms_.island_rate) +
           seconds_of(passed(islands) * bytes / static_cast<double>(fewest), terms_.rate);
  }

  const Terms& terms_;
  const std::vector<Wave>& waves_;
  Flows flows_;
  std::size_t devices_;
  double base_ = 0;
  std::vector<Traffic> traffic_;
  std::vector<double> bytes_;
  std::vector<double> reduce_;
  std::vector<int> users_;
  std::vector<std::uint64_t> used_;
};

}  // namespace galvatron::spindle
