// Ranks that are as fast as each other, and how that is measured.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/profile/compute.hpp>
#include <galvatron/rank/stopwatch.hpp>

namespace galvatron::train::detail {

/// Runs of ranks; those of one run are as fast as each other.
struct RankGroups {
  std::vector<std::size_t> sizes;  ///< ranks of each
  /// Of each, what a second of a rank's stopwatch takes by the wall while all ranks work.
  std::vector<double> crowds;

  [[nodiscard]] std::size_t count() const { return sizes.size(); }
};

/// One group of `ranks` ranks.
inline RankGroups one_group(int ranks) { return {{static_cast<std::size_t>(ranks)}, {1.0}}; }

/// How much faster than the slowest of its group a rank may be.
inline constexpr double alike_speeds = 1.15;

/// Groups of neighbours that are alike, each in one machine or of whole machines.
/// @param speeds, crowds  of each rank  @param node  ranks of a machine
inline RankGroups groups_of_speeds(const std::vector<double>& speeds, const std::vector<double>& crowds,
                                   std::size_t node) {
  RankGroups out;
  for (std::size_t first = 0, end = 0; first < speeds.size(); first = end) {
    double least = speeds[first];
    double most = speeds[first];
    for (end = first + 1; end < speeds.size(); ++end) {
      const double low = std::min(least, speeds[end]);
      const double high = std::max(most, speeds[end]);
      if (high > low * alike_speeds) break;
      least = low;
      most = high;
    }
    const std::size_t border = first / node * node + node;  // of the machine
    if (end > border) end = first % node == 0 ? end / node * node : border;
    out.sizes.push_back(end - first);
    out.crowds.push_back(median_of(
        {crowds.begin() + static_cast<std::ptrdiff_t>(first), crowds.begin() + static_cast<std::ptrdiff_t>(end)}));
  }
  return out;
}

/// Every rank multiplies matrices, all at the same time, in four windows that together take `seconds`; they agree on
/// the groups that this shows. A rank of one thread is timed in processor time, so how much of it the rank gets is
/// measured as well. The best window counts: other programs only ever slow a rank down.
/// @param node  ranks of a machine
template <class Platform>
RankGroups measured_groups(comm::World& world, Bench<Platform>& bench, double seconds, int node) {
  auto& all = world.control().everybody();
  const op::Work product{.kind = op::Kind::gemm_nt, .m = 256, .n = 256, .k = 256};
  const auto work = [&](double window) {
    std::vector<double> times;
    const double end = wall_seconds() + window;
    do times.push_back(bench.template gemm<float>(product, 1e-3));
    while (wall_seconds() < end);
    return median_of(std::move(times));
  };
  all.barrier();
  work(seconds / 4);  // until all are at work
  double once = std::numeric_limits<double>::max();
  double crowd = std::numeric_limits<double>::max();
  for (int window = 0; window < 4; ++window) {
    const double begin = wall_seconds();
    const double core_begin = core_seconds();
    once = std::min(once, work(seconds / 4));
    const double core = std::max(core_seconds() - core_begin, 1e-9);
    crowd = std::min(crowd, bench.watch().by_core ? (wall_seconds() - begin) / core : 1.0);
  }
  work(seconds / 4);  // until all have measured
  const std::vector<double> own{1 / (once * crowd), crowd};
  std::vector<double> everybodys(2 * static_cast<std::size_t>(world.size()));
  all.all_gather(View<const double>(own.data(), 2),
                 View<double>(everybodys.data(), static_cast<std::int64_t>(everybodys.size())));
  std::vector<double> speeds;
  std::vector<double> crowds;
  for (std::size_t i = 0; i < everybodys.size(); i += 2) {
    speeds.push_back(everybodys[i]);
    crowds.push_back(everybodys[i + 1]);
  }
  return groups_of_speeds(speeds, crowds, static_cast<std::size_t>(node));
}

}  // namespace galvatron::train::detail
