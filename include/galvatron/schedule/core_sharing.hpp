// Which cores the ranks of a host run on, and how much they slow each other down.
//
// A rank is tied to its cores (rank/host_rank.hpp): rank r of a node with t threads has the cores r t, r t + 1, ...
// modulo the cores of the node. So two stages of one rank each may share one of two cores while the other has nothing
// to do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

namespace galvatron::schedule {

/// The ranks and cores of pipeline stages.
struct CoreSharing {
  int cores = 0;                   ///< of a node; 0: every rank has cores of its own
  int threads = 1;                 ///< of a rank
  int node_ranks = 0;              ///< ranks of a node; 0: all ranks are on one
  std::vector<int> stage_ranks{};  ///< ranks of each stage, numbered one after the other; empty: one each

  /// With the ranks of so many stages said.
  [[nodiscard]] CoreSharing of_stages(std::size_t stages) const {
    CoreSharing out = *this;
    if (out.stage_ranks.empty()) out.stage_ranks.assign(stages, 1);
    return out;
  }
  [[nodiscard]] int ranks() const { return std::accumulate(stage_ranks.begin(), stage_ranks.end(), 0); }
  /// How much longer work takes on average when all ranks work.
  [[nodiscard]] double crowding() const { return crowding(ranks()); }
  /// The same of `ranks` ranks alone.
  [[nodiscard]] double crowding(int ranks) const {
    if (cores <= 0) return 1;
    const int together = node_ranks > 0 ? std::min(ranks, node_ranks) : ranks;
    return std::max(1.0, static_cast<double>(together) * threads / cores);
  }
};

/// Counts who runs on each core while stages begin and end work.
class CoreLoads {
 public:
  explicit CoreLoads(const CoreSharing& sharing) {
    if (sharing.cores <= 0) return;
    const int ranks = sharing.ranks();
    first_.push_back(0);
    for (const int count : sharing.stage_ranks)
      first_.push_back(first_.back() + static_cast<std::size_t>(count) * static_cast<std::size_t>(sharing.threads));
    const int node_ranks = sharing.node_ranks > 0 ? sharing.node_ranks : ranks;
    const int nodes = (ranks + node_ranks - 1) / node_ranks;
    loads_.assign(static_cast<std::size_t>(nodes) * static_cast<std::size_t>(sharing.cores), 0);
    for (int rank = 0; rank < ranks; ++rank)
      for (int i = 0; i < sharing.threads; ++i) {
        const int core = (rank % node_ranks * sharing.threads + i) % sharing.cores;
        cores_.push_back(static_cast<std::size_t>(rank / node_ranks * sharing.cores + core));
      }
  }

  void begin(std::size_t stage) { add(stage, 1); }
  void end(std::size_t stage) { add(stage, -1); }
  /// How much longer the work of a stage takes than on cores of its own: as long as on the fullest of its cores.
  [[nodiscard]] double slowness(std::size_t stage) const {
    int most = 1;
    for (const std::size_t core : cores_of(stage)) most = std::max(most, loads_[core]);
    return most;
  }

 private:
  void add(std::size_t stage, int change) {
    for (const std::size_t core : cores_of(stage)) loads_[core] += change;
  }
  // None where every rank has cores of its own.
  [[nodiscard]] std::span<const std::size_t> cores_of(std::size_t stage) const {
    if (first_.empty()) return {};
    return std::span(cores_).subspan(first_[stage], first_[stage + 1] - first_[stage]);
  }

  std::vector<std::size_t> first_;  // (stages + 1) of the threads of each
  std::vector<int> loads_;          // (nodes, cores) threads at work
  std::vector<std::size_t> cores_;  // (ranks, threads) where each runs
};

}  // namespace galvatron::schedule
