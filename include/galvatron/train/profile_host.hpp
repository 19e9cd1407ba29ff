// Measures this machine as a cluster of rank threads.
//
// Everything that ranks share is measured with all of them at work: cores, caches, memory bandwidth. What a rank
// computes is measured with one rank at work too, because pipelines leave ranks idle.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <omp.h>

#include <galvatron/cluster/cluster.hpp>
#include <galvatron/comm/thread/thread.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/train/detail/profile_compute.hpp>
#include <galvatron/train/detail/profile_grid.hpp>
#include <galvatron/train/detail/profile_messages.hpp>
#include <galvatron/train/detail/stopwatch.hpp>
#include <galvatron/train/pin.hpp>

namespace galvatron::train {

struct ProfileProgress {
  std::string step;  ///< what is being measured
  double share = 0;  ///< of the whole, 0..1
};

struct ProfileOptions {
  int ranks = 0;                                           ///< 0: one for each core
  int threads_per_rank = 0;                                ///< 0: the cores divided by the ranks, at least 1
  std::vector<Precision> precisions{};                     ///< empty: all that the processor has
  Seconds time_budget{35};                                 ///< about what it takes; less is coarser
  std::function<void(const ProfileProgress&)> progress{};  ///< called on rank 0's thread
};

namespace detail {

/// What is measured, and how thoroughly.
struct ProfilePlan {
  int sweeps = 3;               // over everything, seconds apart; the fastest counts
  double least = 0.5e-3;        // seconds for a point of computation in a sweep
  double least_message = 3e-3;  // and of communication
  double most_flops = 2.5e8;    // larger products and attentions are extrapolated
  std::int64_t most_elements = 1 << 22;
  std::int64_t most_bytes = 64 << 20;
  LogGrid<3>::Axes gemm;       // tokens, outputs or inputs, inputs or outputs
  LogGrid<3>::Axes attention;  // tokens, head dim, heads
  LogGrid<2>::Axes rows;       // rows, columns
  LogGrid<2>::Axes elements;   // elements, one column
  LogGrid<1>::Axes bytes;
};

/// The plan for a time budget. 35 s is what the full plan takes for 4 ranks on 2 cores in two precisions.
inline ProfilePlan profile_plan(double budget) {
  const double effort = std::clamp(budget / 35, 0.001, 10.0);
  ProfilePlan plan;
  plan.least = 0.5e-3 * std::min(effort, 4.0);
  plan.least_message = 3e-3 * effort;
  plan.most_flops = 2.5e8 * std::max(effort, 0.1);
  plan.most_bytes = effort >= 0.5 ? 64 << 20 : effort >= 0.1 ? 8 << 20 : 1 << 18;
  if (effort < 0.1) {
    plan.sweeps = 1;
    plan.most_elements = 1 << 16;
    plan.gemm = {{{16, 256}, {32, 256}, {32, 256}}};
    plan.attention = {{{32, 128}, {32, 64}, {1, 8}}};
    plan.rows = {{{16, 256}, {64, 256}}};
    plan.elements = {{{256, 1 << 16}, {1}}};
    plan.bytes = {{{64, 1 << 12, 1 << 18}}};
    return plan;
  }
  const LogGrid<3>::Axis features{32, 64, 128, 256, 512, 1024, 2048, 4096};
  plan.gemm = {{{16, 32, 64, 128, 256, 512, 1024, 2048, 4096}, features, features}};
  plan.attention = {{{32, 64, 128, 256, 512, 1024, 2048}, {16, 32, 64, 128}, {1, 4, 16, 64}}};
  plan.rows = {{{16, 128, 1024, 8192}, {64, 256, 1024, 4096}}};
  plan.elements = {{{256, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22}, {1}}};
  for (std::int64_t bytes = 64; bytes <= plan.most_bytes; bytes *= 4) plan.bytes[0].push_back(bytes);
  if (effort < 0.5) {
    plan.sweeps = 1;
    plan.gemm = {{{16, 128, 1024}, {32, 128, 512, 2048}, {32, 128, 512, 2048}}};
    plan.attention = {{{32, 128, 512}, {32, 64}, {1, 8, 64}}};
  }
  return plan;
}

/// Gathers the ranks' figures, point by point.
class Gathering {
 public:
  explicit Gathering(int ranks) : figures_(static_cast<std::size_t>(ranks)) {}
  void put(int rank, double seconds) { figures_[static_cast<std::size_t>(rank)].push_back(seconds); }
  void clear() {
    for (auto& figures : figures_) figures.clear();
  }
  /// The median of the ranks at a point; not positive when nothing was measured.
  [[nodiscard]] double median(std::size_t point) const {
    std::vector<double> values;
    for (const auto& figures : figures_)
      if (point < figures.size()) values.push_back(figures[point]);
    return median_of(std::move(values));
  }

 private:
  std::vector<std::vector<double>> figures_;  // one writer each
};

/// The measurements of one rank; rank 0 writes the cluster. Everything is measured in several sweeps, so that the
/// fastest of a point comes from the same, undisturbed machine as that of any other.
class HostProfile {
 public:
  HostProfile(comm::thread::World& world, Bench& bench, const ProfilePlan& plan, Gathering& gathering, Cluster& cluster,
              const std::function<void(const std::string&)>& tell)
      : world_(world), bench_(bench), plan_(plan), gathering_(gathering), cluster_(cluster), tell_(tell) {}

  /// Begins a sweep; the tables are written in the last one.
  void begin_sweep(int sweep) {
    last_ = sweep + 1 == plan_.sweeps;
    table_ = 0;
  }

  /// Every rank (or, when busy is 1, rank 0) measures all computation in format T.
  template <class T>
  void compute(int busy) {
    const bool at_work = world_.rank() < busy;
    const Precision precision = precision_of<T>;
    const std::string who =
        std::string(name_of(precision)) + ", " + std::to_string(busy) + (busy == 1 ? " rank" : " ranks");
    for (const GemmLayout layout : {GemmLayout::nt, GemmLayout::nn, GemmLayout::tn}) {
      announce(std::string("GEMM ") + name_of(layout) + ", " + who);
      // Of (m, n, k) the tokens are m forward and for the input's gradient, and k for the weight's.
      const auto& [tokens, columns, inner] = plan_.gemm;
      LogGrid<3>::Axes axes{tokens, columns, inner};
      if (layout == GemmLayout::tn) axes = {columns, inner, tokens};
      auto grid = on_grid<3>(std::move(axes), busy, at_work, [&](const auto& e) {
        if (2.0 * static_cast<double>(e[0]) * static_cast<double>(e[1]) * static_cast<double>(e[2]) >
                plan_.most_flops ||
            !Bench::gemm_fits(e[0], e[1], e[2]))
          return -1.0;
        return bench_.gemm<T>(layout, e[0], e[1], e[2], plan_.least);
      });
      if (is_final(grid)) cluster_.gemm.push_back({layout, precision, busy, grid.finish({1, 1, 1})});
    }
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      announce(std::string("attention ") + name_of(pass) + ", " + who);
      const double products = pass == Pass::forward ? 2 : 5;
      auto grid = on_grid<3>(plan_.attention, busy, at_work, [&](const auto& e) {
        const double flops = products * static_cast<double>(e[0] * e[0]) * static_cast<double>(e[1] * e[2]);
        if (flops > plan_.most_flops / 2 || !Bench::attention_fits(e[0], e[1], e[2])) return -1.0;
        return bench_.attention<T>(pass, e[0], e[1], e[2], plan_.least);
      });
      if (is_final(grid)) cluster_.attention.push_back({pass, true, precision, busy, grid.finish({2, 1, 1})});
    }
    announce("memory, " + who);
    for (int kind = 0; kind < memory_bound_kinds; ++kind) {
      const auto memory_kind = static_cast<MemoryBound>(kind);
      auto grid = on_grid<2>(has_rows(memory_kind) ? plan_.rows : plan_.elements, busy, at_work, [&](const auto& e) {
        if (e[0] * e[1] > plan_.most_elements || !Bench::memory_bound_fits(e[0], e[1])) return -1.0;
        return bench_.memory_bound<T>(memory_kind, e[0], e[1], plan_.least);
      });
      if (is_final(grid)) cluster_.memory_bound.push_back({memory_kind, precision, busy, grid.finish({1, 1})});
    }
  }

  /// All ranks measure collectives of every group size, and messages from each to the next.
  void communicate() {
    MessageBench bench(world_, bench_);
    const int size = world_.size();
    for (int n = 2; n <= size; ++n) {
      if (size % n != 0) continue;
      for (const bool strided : {false, true}) {
        if (strided && n == size) continue;
        announce("collectives of " + std::to_string(n) + (strided ? " ranks, strided" : " ranks"));
        const std::vector<int> members = bench.members(n, strided);
        auto& group = world_.group(members);
        for (const Message kind :
             {Message::all_reduce, Message::all_gather, Message::reduce_scatter, Message::broadcast}) {
          MeasuredGrid<1> grid(plan_.bytes);
          for (std::size_t i = 0; i < grid.seconds.size(); ++i)
            grid.seconds[i] = bench.collective(kind, group, plan_.bytes[0][i], plan_.least_message);
          if (is_final(grid)) cluster_.messages.push_back({kind, n, strided, size, grid.finish({1})});
        }
      }
    }
    announce("messages between ranks");
    MeasuredGrid<1> grid(plan_.bytes);
    for (std::size_t i = 0; i < grid.seconds.size(); ++i)
      grid.seconds[i] = bench.send(std::min(plan_.bytes[0][i], bench_.buffer().count / 2), plan_.least_message);
    if (is_final(grid)) cluster_.messages.push_back({Message::send, 2, false, size, grid.finish({1})});
    announce("computing beside communication");
    const double slowdown = bench.overlap_slowdown(std::max(plan_.least, 1e-3) * 20);
    if (world_.rank() != 0) return;
    slowdowns_.push_back(slowdown);
    cluster_.overlap_slowdown = median_of(slowdowns_);
  }

 private:
  void announce(const std::string& step) const {
    if (world_.rank() == 0) tell_(step);
  }

  /// Takes a sweep's figures of the next table into account. True on rank 0 in the last sweep: the grid then has the
  /// best of every point.
  template <int D>
  bool is_final(MeasuredGrid<D>& grid) {
    if (world_.rank() != 0) return false;
    if (best_.size() <= table_) best_.resize(table_ + 1, grid.seconds);
    std::vector<double>& best = best_[table_++];
    for (std::size_t point = 0; point < best.size(); ++point)
      if (!(best[point] <= grid.seconds[point])) best[point] = grid.seconds[point];  // one may be not a number
    grid.seconds = best;
    return last_;
  }

  /// Measures the points of a grid, rank by rank independently; rank 0 gets the medians of all.
  template <int D, class At>
  MeasuredGrid<D> on_grid(typename LogGrid<D>::Axes axes, int busy, bool at_work, const At& at) {
    MeasuredGrid<D> grid(std::move(axes));
    world_.everybody().barrier();
    if (world_.rank() == 0) gathering_.clear();
    world_.everybody().barrier();
    for (std::size_t point = 0; point < grid.seconds.size() && at_work; ++point)
      gathering_.put(world_.rank(), at(grid.extents(point)));
    world_.everybody().barrier();
    if (world_.rank() != 0) return grid;
    // A rank of one thread was timed in processor time; by the wall it shares its core.
    const double crowd = bench_.watch().by_core ? std::max(1.0, static_cast<double>(busy) / cluster_.cores) : 1.0;
    for (std::size_t point = 0; point < grid.seconds.size(); ++point)
      if (const double seconds = gathering_.median(point); seconds > 0) grid.seconds[point] = seconds * crowd;
    return grid;
  }

  comm::thread::World& world_;
  Bench& bench_;
  const ProfilePlan& plan_;
  Gathering& gathering_;
  Cluster& cluster_;
  const std::function<void(const std::string&)>& tell_;
  bool last_ = false;                      // sweep
  std::size_t table_ = 0;                  // of the sweep, in order
  std::vector<std::vector<double>> best_;  // (tables, points) seconds
  std::vector<double> slowdowns_;
};

}  // namespace detail

/// Measures this machine with `ranks` rank threads, as training on it will use it: GEMM, attention and memory-bound
/// operations of device::Host over sizes with all ranks and with one rank at work, collectives and messages of
/// comm::thread over sizes and all group sizes that divide the ranks, and the slowdown of computing beside
/// communication. Errors: usage for impossible options; machine failures are thrown (DeviceFailure, PeerFailure).
inline Result<Cluster> profile_host(const ProfileOptions& options) {
  const int cores = usable_cores();
  const int ranks = options.ranks == 0 ? cores : options.ranks;
  if (ranks < 1 || ranks > 1024)
    return usage_error("cannot profile " + std::to_string(ranks) + " ranks: choose 1 to 1024");
  if (options.threads_per_rank < 0)
    return usage_error("cannot profile " + std::to_string(options.threads_per_rank) +
                       " threads a rank: choose 1 or more");
  if (!(options.time_budget.value > 0))
    return usage_error("the profile's time budget must be positive, e.g. 35 seconds");
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank : std::max(1, cores / ranks);
  std::vector<Precision> precisions = options.precisions;
  if (precisions.empty())
    for (const Precision precision : {Precision::fp32, Precision::bf16})
      if (device::Host::supports(precision)) precisions.push_back(precision);
  for (const Precision precision : precisions)
    if (!device::Host::supports(precision))
      return usage_error(std::string("this processor has no ") + name_of(precision) + " arithmetic: profile fp32");

  Cluster cluster = host_cluster(ranks, cores);
  cluster.threads_per_rank = threads;
  cluster.device.library_workspace = {device::Host::library_workspace_bytes(threads)};
  const detail::ProfilePlan plan = detail::profile_plan(options.time_budget.value);
  detail::Gathering gathering(ranks);

  // A pass of computation over one precision counts 6 steps; one of a single rank takes half the time of the others'.
  const int groups = [&] {
    int count = 0;
    for (int n = 2; n <= ranks; ++n) count += ranks % n == 0 ? (n == ranks ? 1 : 2) : 0;
    return count;
  }();
  const double steps =
      plan.sweeps * (static_cast<double>(precisions.size()) * (ranks > 1 ? 12 : 6) + (ranks > 1 ? groups + 2 : 0));
  double done = 0;
  const std::function<void(const std::string&)> tell = [&](const std::string& step) {
    if (options.progress) options.progress({step, std::min(done / steps, 1.0)});
    done += 1;
  };

  comm::thread::run(ranks, [&](comm::thread::World& world) {
    omp_set_num_threads(threads);
    const PinnedRank pinned(world.rank(), ranks, threads);
    detail::Bench bench(threads);
    detail::HostProfile profile(world, bench, plan, gathering, cluster, tell);
    const std::vector<int> busy_ranks = ranks > 1 ? std::vector{ranks, 1} : std::vector{1};
    for (int sweep = 0; sweep < plan.sweeps; ++sweep) {
      profile.begin_sweep(sweep);
      for (const int busy : busy_ranks) {
        for (const Precision precision : precisions) {
          if (precision == Precision::fp32) profile.compute<float>(busy);
          if (precision == Precision::bf16) profile.compute<bfloat16>(busy);
        }
        world.everybody().barrier();
      }
      if (ranks > 1) profile.communicate();
    }
  });

  // The rates that serve where there is no table follow from the largest points.
  cluster.device.rates.clear();
  for (const GemmTable& table : cluster.gemm) {
    if (table.layout != GemmLayout::nt || table.concurrency != 1) continue;
    double best = 0;
    const auto& axes = table.seconds.axes();
    std::size_t point = 0;
    for (const auto m : axes[0])
      for (const auto n : axes[1])
        for (const auto k : axes[2])
          best = std::max(best, 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) /
                                    table.seconds.seconds()[point++]);
    cluster.device.rates.push_back({table.precision, name_of(table.precision), best, 1.0});
  }
  for (const MemoryTable& table : cluster.memory_bound)
    if (table.kind == MemoryBound::copy && table.concurrency == 1) {
      cluster.device.memory_bandwidth =
          2.0 * static_cast<double>(table.seconds.axes()[0].back()) / table.seconds.seconds().back();
      cluster.device.memory_share = 1.0;
    }
  for (const MessageTable& table : cluster.messages) {
    const auto bytes = static_cast<double>(table.seconds.axes()[0].back());
    if (table.kind == Message::send) cluster.inside_node.send_bandwidth = bytes / table.seconds.seconds().back();
    if (table.group != ranks) continue;
    const double share = 1.0 - 1.0 / ranks;
    if (table.kind == Message::all_reduce) {
      cluster.inside_node.latency = {table.seconds.seconds().front() / (2.0 * (ranks - 1))};
      cluster.inside_node.all_reduce_bandwidth = 2 * share * bytes / table.seconds.seconds().back();
    }
    if (table.kind == Message::all_gather)
      cluster.inside_node.bandwidth = share * bytes / table.seconds.seconds().back();
  }
  cluster.across_nodes = cluster.inside_node;
  if (options.progress) options.progress({"done", 1.0});
  return cluster;
}

}  // namespace galvatron::train
