// Which ranks a group has.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/flexsp/problem.hpp>

namespace galvatron::flexsp {

/// Whether all degrees are powers of two: aligned ranges then hold them in descending order.
inline bool has_powers_only(const Problem& problem) {
  return std::ranges::all_of(problem.options, [](const GroupOption& option) {
    return std::has_single_bit(static_cast<unsigned>(option.degree));
  });
}

/// The problem with only those options whose degrees are powers of two.
inline Problem powers_of(const Problem& problem) {
  Problem out = problem;
  std::erase_if(out.options,
                [](const GroupOption& option) { return !std::has_single_bit(static_cast<unsigned>(option.degree)); });
  return out;
}

/// The first rank of each group, whose ranks follow each other. A group of at most a node lies inside one, a larger one
/// spans as few as it can. Powers of two lie at multiples of their degree if all degrees are such. Nothing where this
/// finds no ranks.
/// @param degrees  descending
inline std::optional<std::vector<int>> place(const Problem& problem, std::span<const int> degrees) {
  const int node = std::max(1, std::min(problem.node_devices, problem.devices));
  std::vector<std::pair<int, int>> gaps;  // first rank and number of free ranks inside a node
  std::vector<int> out;
  int next = 0;
  const auto close = [&](int until) {  // free ranks up to the next group of several nodes
    while (next < until) {
      const int end = std::min(until, (next / node + 1) * node);
      gaps.emplace_back(next, end - next);
      next = end;
    }
  };
  for (const int degree : degrees) {
    if (degree > node) {
      const int fewest = (degree + node - 1) / node;
      const int spans = (next + degree - 1) / node - next / node + 1;
      if (spans > fewest) close((next + node - 1) / node * node);
      if (next + degree > problem.devices) return std::nullopt;
      out.push_back(next);
      next += degree;
      continue;
    }
    close(problem.devices);
    auto best = gaps.end();  // the smallest that is large enough
    for (auto gap = gaps.begin(); gap != gaps.end(); ++gap)
      if (gap->second >= degree && (best == gaps.end() || gap->second < best->second)) best = gap;
    if (best == gaps.end()) return std::nullopt;
    out.push_back(best->first);
    best->first += degree;
    best->second -= degree;
  }
  return out;
}

/// Free devices of a micro-batch while groups are opened. Powers of two fit as long as there are enough; others need a
/// node that has enough ranks, or whole nodes and the rest in another one.
class FreeDevices {
 public:
  /// @param powers  all degrees are powers of two
  FreeDevices(const Problem& problem, bool powers) : total_(problem.devices) {
    if (powers) return;
    node_ = std::max(1, std::min(problem.node_devices, problem.devices));
    for (int first = 0; first < problem.devices; first += node_)
      nodes_.push_back(std::min(node_, problem.devices - first));
  }

  [[nodiscard]] int total() const { return total_; }
  [[nodiscard]] bool holds(int degree) const {
    if (degree > total_) return false;
    if (nodes_.empty()) return true;
    const auto rest = degree % node_;
    const auto whole = std::ranges::count(nodes_, node_);
    if (degree / node_ > whole) return false;
    // The rest may take a whole node that is left over.
    return rest == 0 || degree / node_ < whole ||
           std::ranges::any_of(nodes_, [&](int free) { return free >= rest && free < node_; });
  }
  /// Takes the devices of a group that it holds.
  void take(int degree) {
    total_ -= degree;
    if (nodes_.empty()) return;
    for (int whole = degree / node_; whole > 0; --whole) *std::ranges::find(nodes_, node_) = 0;
    const int rest = degree % node_;
    if (rest == 0) return;
    auto best = nodes_.end();  // the fullest that has enough
    for (auto at = nodes_.begin(); at != nodes_.end(); ++at)
      if (*at >= rest && (best == nodes_.end() || *at < *best)) best = at;
    *best -= rest;
  }

 private:
  int total_;
  int node_ = 1;
  std::vector<int> nodes_;  // free devices of each; empty: they do not matter
};

}  // namespace galvatron::flexsp
