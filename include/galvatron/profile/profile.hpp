// What a profile may be asked for; a whole profile: sweeps over all measurements by all ranks, and what follows from
// them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/cluster.hpp>
#include <galvatron/cluster/mixed.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/profile/check.hpp>
#include <galvatron/profile/compute.hpp>
#include <galvatron/profile/measure.hpp>
#include <galvatron/profile/rank_groups.hpp>

namespace galvatron::train {

struct ProfileProgress {
  std::string step;   ///< what is being measured
  double share = 0;   ///< of the whole, 0..1
  double others = 0;  ///< of a host, when all is measured: the share of its cores that other programs took, 0..1
};

struct ProfileOptions {
  int ranks = 0;                                           ///< 0: one for each core
  int threads_per_rank = 0;                                ///< 0: the cores divided by the ranks, at least 1
  std::vector<Precision> precisions{};                     ///< empty: all that the processor has; with fp8 goes bf16
  Seconds time_budget{35};                                 ///< about what it takes; less is coarser
  std::vector<ModelSpec> models{};                         ///< whose products are measured as they are besides
  std::vector<PriceTerm> terms{};                          ///< what is measured, but the trainer; empty: all
  bool deterministic = true;                               ///< as TrainOptions::deterministic
  bool accepts_busy = false;                               ///< a doubtful profile of a host too (profile/check.hpp)
  bool tells_ranks_apart = false;                          ///< of a host: ranks of unequal speed are groups
  std::function<void(const ProfileProgress&)> progress{};  ///< called on rank 0's thread
};

namespace detail {

/// Puts bf16 before an fp8 that comes without: 8-bit products are all that fp8 measures besides.
inline void complete(std::vector<Precision>& precisions) {
  const auto has = [&](Precision p) { return std::ranges::find(precisions, p) != precisions.end(); };
  if (has(Precision::fp8) && !has(Precision::bf16)) precisions.insert(precisions.begin(), Precision::bf16);
}

/// A whole profile, in the order of its use. Rank threads share it; each process has its own. Rank 0 writes the
/// clusters.
class Profile {
 public:
  /// @param precisions  that are measured; of fp8 only what is not that of bf16
  /// @param cluster  with its devices, and those of a node
  Profile(ProfilePlan plan, std::vector<Precision> precisions, std::function<void(const ProfileProgress&)> progress,
          Cluster cluster)
      : plan_(std::move(plan)),
        precisions_(std::move(precisions)),
        ranks_(cluster.devices),
        progress_(std::move(progress)),
        cluster_(std::move(cluster)),
        shares_(watch_) {
    tables_.clusters.push_back(cluster_);
    const int node = plan_.measures(PriceTerm::inside_node) ? cluster_.devices_per_node : 1;
    const bool across = plan_.measures(PriceTerm::across_nodes) && cluster_.nodes() > 1;
    int groups = (node > 1 ? 1 : 0) + (across ? 1 : 0);  // the messages
    for (int n = 2; n <= node; ++n) groups += node % n == 0 ? (n == node ? 1 : 2) : 0;
    // Computation in one precision counts 7 steps; that of a single rank takes half the time of the others'.
    const int computation = (plan_.measures(PriceTerm::products) ? 4 : 0) +
                            (plan_.measures(PriceTerm::attention) ? 2 : 0) +
                            (plan_.measures(PriceTerm::memory_bound) ? 1 : 0);
    steps_ = (plan_.sweeps + first_sweep - 1) *
             (static_cast<double>(precisions_.size()) * computation * (ranks_ > 1 ? 2 : 1) +
              (ranks_ > 1 && groups > 0 ? groups + 1 : 0));
  }

  /// On every rank, on its thread. Not inline, so that a program may take it compiled (train/compiled.hpp).
  template <class Platform>
  void measure(comm::World& world, const Platform& platform);

  /// The share of the cores that others took, of each table in its quietest sweep; 0 where that is not watched.
  [[nodiscard]] double others() const { return shares_.mean(); }

  /// Afterwards, on rank 0: the cluster, of one group or several. The rates that serve where there is no table follow
  /// from the largest points.
  [[nodiscard]] MixedCluster finish() {
    const Link inside = link_of(tables_.inside, cluster_.devices_per_node, cluster_.inside_node);
    for (Cluster& group : tables_.clusters) {
      if (!group.gemm.empty()) group.device.rates.clear();
      for (const GemmTable& table : group.gemm) {
        if (table.kind != op::Kind::gemm_nt || table.concurrency > 1 || table.is_of_one_weight() || table.grouped)
          continue;
        double best = 0;
        const auto& axes = table.seconds.axes();
        std::size_t point = 0;
        for (const auto m : axes[0])
          for (const auto n : axes[1])
            for (const auto k : axes[2])
              best = std::max(best, 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) /
                                        table.seconds.seconds()[point++]);
        group.device.rates.push_back({table.precision, name_of(table.precision), best, 1.0});
      }
      for (const MemoryTable& table : group.memory_bound)
        if (table.kind == op::Kind::copy && table.concurrency <= 1) {
          group.device.memory_bandwidth =
              2.0 * static_cast<double>(table.seconds.axes()[0].back()) / table.seconds.seconds().back();
          group.device.memory_share = 1.0;
        }
      group.overlap_slowdown = tables_.overlap_slowdown;
      std::ranges::copy_if(tables_.inside, std::back_inserter(group.messages),
                           [&](const MessageTable& table) { return table.group <= group.devices_per_node; });
      group.across_nodes = link_of(tables_.across, cluster_.nodes(), inside);
      group.inside_node = cluster_.devices_per_node > 1 ? inside : group.across_nodes;
    }
    if (progress_) progress_({"done", 1.0, others()});
    MixedCluster out{cluster_.name, std::move(tables_.clusters), {}};
    std::vector<int> ends;  // of each group, the machine of its last rank
    int devices = 0;
    for (const Cluster& group : out.groups) {
      for (const int machine : ends)
        out.links.push_back(machine == devices / cluster_.devices_per_node ? inside : group.across_nodes);
      devices += group.devices;
      ends.push_back((devices - 1) / cluster_.devices_per_node);
    }
    return out;
  }

 private:
  /// On rank 0: a cluster for each group of ranks. Each rank has a core, or its part of one, whatever others do.
  void begin(const RankGroups& groups) {
    if (groups.count() < 2) return;
    tables_.clusters.assign(groups.count(), cluster_);
    int first = 0;
    for (std::size_t i = 0; i < groups.count(); ++i) {
      Cluster& group = tables_.clusters[i];
      group.devices = static_cast<int>(groups.sizes[i]);
      group.devices_per_node = std::min(group.devices, cluster_.devices_per_node);
      if (group.cores > 0) group.cores = group.devices_per_node * group.threads_per_rank;
      const int last = first + group.devices - 1;
      group.name += (group.devices == 1 ? " rank " : " ranks ") + std::to_string(first);
      if (last > first) group.name += "-" + std::to_string(last);
      first = last + 1;
    }
  }
  /// The rates of the largest groups and messages; without any tables, those given.
  static Link link_of(const std::vector<MessageTable>& tables, int members, Link link) {
    for (const MessageTable& table : tables) {
      const auto bytes = static_cast<double>(table.seconds.axes()[0].back());
      const double seconds = table.seconds.seconds().back();
      if (table.kind == op::Kind::send) link.send_bandwidth = bytes / seconds;
      if (table.group != members) continue;
      const double share = 1.0 - 1.0 / members;
      if (table.kind == op::Kind::all_reduce) {
        link.latency = {table.seconds.seconds().front() / (2.0 * (members - 1))};
        link.all_reduce_bandwidth = 2 * share * bytes / seconds;
      }
      if (table.kind == op::Kind::all_gather) link.bandwidth = share * bytes / seconds;
    }
    return link;
  }

  /// The time of the first sweep, in others: libraries make their kernels in it, and memory is touched.
  static constexpr double first_sweep = 2;

  ProfilePlan plan_;
  std::vector<Precision> precisions_;
  int ranks_;
  std::function<void(const ProfileProgress&)> progress_;
  Cluster cluster_;
  MeasuredTables tables_;  ///< rank 0's
  CoreWatch watch_;        ///< of all cores of the process: ranks are tied to some of them
  OthersShares shares_;    ///< rank 0's
  double steps_ = 0;
  double done_ = 0;  ///< rank 0's
};

template <class Platform>
void Profile::measure(comm::World& world, const Platform& platform) {
  platform.enter();
  double weight = first_sweep;
  const std::function<void(const std::string&)> tell = [this, &weight](const std::string& step) {
    if (progress_) progress_({step, std::min(done_ / steps_, 1.0)});
    done_ += weight;
  };
  Bench<Platform> bench(platform, plan_.sizes);
  std::optional<Bench<Platform>> larger;
  if (world.rank() == 0 && !(plan_.alone == plan_.sizes)) larger.emplace(platform, plan_.alone);
  if (ranks_ == 1) bench.search(true);
  using Rank = Measurements<Platform>;
  using Sweep = typename Rank::Sweep;
  const bool watches = plan_.watches_cores && world.rank() == 0;
  const RankGroups groups = plan_.tells_ranks_apart
                                ? measured_groups(world, bench, plan_.seconds_to_tell_apart, cluster_.devices_per_node)
                                : one_group(ranks_);
  if (world.rank() == 0) begin(groups);
  Rank rank(world, bench, larger ? *larger : bench, plan_, cluster_, groups, tables_, watches ? &shares_ : nullptr,
            tell);
  std::vector<int> busy_ranks{ranks_};
  if (ranks_ > 1 && groups.count() == 1) busy_ranks.push_back(1);
  const auto pass_over = [&](Sweep sweep) {
    rank.begin(sweep);
    for (const int busy : busy_ranks) {
      for (const Precision precision : precisions_) {
        if (precision == Precision::fp32) rank.template compute<float>(busy);
        if (precision == Precision::bf16) rank.template compute<bfloat16>(busy);
        if (precision == Precision::fp8) rank.template products<bfloat16>(busy, precision);
      }
      world.control().everybody().barrier();
    }
    if (ranks_ > 1) rank.communicate();
    rank.end();
  };
  for (int sweep = 0; sweep < plan_.sweeps; ++sweep) {
    pass_over(Sweep::all);
    weight = 1;
  }
  const auto goes_on = [&] {  // all ranks get rank 0's answer
    std::int32_t again = watch_.seconds() < plan_.again_until && rank.is_disturbed() ? 1 : 0;
    world.control().everybody().broadcast(View<std::int32_t>(&again, 1), 0);
    return again != 0;
  };
  while (plan_.watches_cores && goes_on()) pass_over(Sweep::disturbed);
  pass_over(Sweep::write);
  if (ranks_ == 1) bench.search(false);
}

}  // namespace detail

}  // namespace galvatron::train
