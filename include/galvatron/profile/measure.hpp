// What a rank of the profiler measures, whatever it computes on: grids of sizes, how points that would take too long
// are filled in, and the weights of models, whose products are measured as they are, not between the points of a grid.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/cluster.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/profile/check.hpp>
#include <galvatron/profile/compute.hpp>
#include <galvatron/profile/messages.hpp>
#include <galvatron/profile/rank_groups.hpp>
#include <galvatron/rank/stopwatch.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::train::detail {

/// Seconds on a grid under construction; NaN where nothing was measured.
template <int D>
struct MeasuredGrid {
  typename LogGrid<D>::Axes axes;
  std::vector<double> seconds;

  explicit MeasuredGrid(typename LogGrid<D>::Axes grid_axes)
      : axes(std::move(grid_axes)), seconds(stride(-1), std::numeric_limits<double>::quiet_NaN()) {}
  /// Points from one extent of axis d to the next; of -1: all.
  [[nodiscard]] std::size_t stride(int d) const {
    std::size_t stride = 1;
    for (int i = D - 1; i > d; --i) stride *= axes[static_cast<std::size_t>(i)].size();
    return stride;
  }
  [[nodiscard]] std::size_t index(std::size_t point, int d) const {
    return point / stride(d) % axes[static_cast<std::size_t>(d)].size();
  }
  [[nodiscard]] std::array<std::int64_t, D> extents(std::size_t point) const {
    std::array<std::int64_t, D> out{};
    for (int d = 0; d < D; ++d) out[static_cast<std::size_t>(d)] = axes[static_cast<std::size_t>(d)][index(point, d)];
    return out;
  }

  /// Points without a value follow their lower neighbours by extent^growth; the smallest point must have one. Then
  /// falling values are evened out along every axis.
  [[nodiscard]] LogGrid<D> finish(const std::array<double, D>& growth) const {
    std::vector<double> logs(seconds.size());
    for (std::size_t point = 0; point < seconds.size(); ++point) {
      if (seconds[point] > 0) {
        logs[point] = std::log(seconds[point]);
        continue;
      }
      double sum = 0;
      int neighbours = 0;
      for (int d = 0; d < D; ++d) {
        const auto axis = static_cast<std::size_t>(d);
        const std::size_t i = index(point, d);
        if (i == 0) continue;
        sum += logs[point - stride(d)] +
               growth[axis] * std::log(static_cast<double>(axes[axis][i]) / static_cast<double>(axes[axis][i - 1]));
        ++neighbours;
      }
      logs[point] = neighbours > 0 ? sum / neighbours : std::log(1e-7);
    }
    for (int sweep = 0; sweep < 4; ++sweep)
      for (int d = 0; d < D; ++d)
        for (std::size_t point = 0; point < logs.size(); ++point)
          if (index(point, d) == 0) make_rise(&logs[point], axes[static_cast<std::size_t>(d)].size(), stride(d));
    for (double& value : logs) value = std::exp(value);
    return LogGrid<D>(axes, std::move(logs));
  }
};

/// A matrix that tokens are multiplied with.
struct Weight {
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  friend bool operator==(const Weight&, const Weight&) = default;
};

/// The products of a weight over numbers of tokens as a table of (m, n, k).
inline LogGrid<3>::Axes axes_of(op::Kind kind, const Weight& weight, const LogGrid<3>::Axis& tokens) {
  if (kind == op::Kind::gemm_nt) return {tokens, {weight.outputs}, {weight.inputs}};
  if (kind == op::Kind::gemm_nn) return {tokens, {weight.inputs}, {weight.outputs}};
  return {{{weight.outputs}, {weight.inputs}, tokens}};
}

/// The different weights of the models' layers on one of so many ranks or fewer, under every tensor degree.
inline std::vector<Weight> weights_of(std::span<const ModelSpec> models, int ranks) {
  std::vector<Weight> out;
  const auto add = [&](const LayerSpec& layer, int tensor) {
    const StrategySpec spec{.tensor = tensor};
    if (!is_fit(layer, spec, 1, layer.positions)) return;
    const cost::LayerCounts counts = cost::layer_counts(layer, spec, {.sequence = layer.positions});
    for (const op::Work& work : counts.forward)
      if (const Weight weight{work.n, work.k};
          work.kind == op::Kind::gemm_nt && std::ranges::find(out, weight) == out.end())
        out.push_back(weight);
  };
  for (const ModelSpec& model : models)
    for (int tensor = 1; tensor <= ranks; tensor *= 2) {
      add(model.embedding, tensor);
      for (const LayerSpec& block : model.blocks) add(block, tensor);
      add(model.head, tensor);
    }
  return out;
}

/// What is measured, and how thoroughly.
struct ProfilePlan {
  BenchSizes sizes;             // of each rank
  BenchSizes alone;             // of the rank that computes while the others do not: beyond caches by itself
  double again_until = 0;       // seconds from the begin: until then what others disturbed is measured again
  bool watches_cores = false;   // on which the ranks compute: what others take of them
  int sweeps = 3;               // over everything, seconds apart; the fastest counts
  double least = 0.5e-3;        // seconds for a point of computation in a sweep
  double least_message = 3e-3;  // and of communication
  double most_flops = 2.5e8;    // larger products and attentions are extrapolated
  double fp32_share = 1;        // of that in fp32
  std::int64_t most_elements = 1 << 22;
  std::int64_t most_bytes = 64 << 20;
  LogGrid<3>::Axes gemm;          // tokens, outputs or inputs, inputs or outputs
  std::vector<Weight> weights{};  // whose products are measured besides, over the same tokens
  LogGrid<3>::Axes attention;     // tokens, head dim, heads
  LogGrid<2>::Axes rows;          // rows, columns
  LogGrid<2>::Axes elements;      // elements, one column
  LogGrid<1>::Axes bytes;
  std::vector<PriceTerm> terms{};  // what is measured of them; empty: all
  bool tells_ranks_apart = false;  // ranks that are as fast as each other have tables of their own
  double seconds_to_tell_apart = 1;

  [[nodiscard]] bool measures(PriceTerm term) const {
    return terms.empty() || std::ranges::find(terms, term) != terms.end();
  }
};

/// What rank 0 writes.
struct MeasuredTables {
  std::vector<Cluster> clusters;             // of each group of ranks, with what they compute
  std::vector<MessageTable> inside, across;  // messages in a node, and of groups with a rank in every node
  double overlap_slowdown = 1;
};

/// The measurements of one rank; rank 0 writes the tables. Everything is measured in several sweeps, so that the
/// fastest of a point comes from the same, undisturbed machine as that of any other.
template <class Platform>
class Measurements {
 public:
  /// @param alone  what a rank that computes alone has; may be `bench`
  /// @param cluster  how many ranks a node has  @param groups  of equal ranks
  /// @param shares  of rank 0, or null
  Measurements(comm::World& world, Bench<Platform>& bench, Bench<Platform>& alone, const ProfilePlan& plan,
               const Cluster& cluster, const RankGroups& groups, MeasuredTables& tables, OthersShares* shares,
               const std::function<void(const std::string&)>& tell)
      : world_(world),
        bench_(bench),
        alone_(alone),
        plan_(plan),
        cluster_(cluster),
        groups_(groups),
        tables_(tables),
        shares_(shares),
        tell_(tell) {}

  /// What a sweep does with each table: measures it, measures it if others disturbed it in all sweeps before, or writes
  /// the best of all sweeps.
  enum class Sweep : std::uint8_t { all, disturbed, write };

  /// All ranks begin the same one.
  void begin(Sweep sweep) {
    sweep_ = sweep;
    if (sweep == Sweep::disturbed) {
      again_.assign(table_, 0);
      if (shares_ != nullptr)
        for (std::size_t i = 0; i < table_; ++i) again_[i] = shares_->disturbed(i) ? 1 : 0;
      world_.control().everybody().broadcast(
          View<std::int32_t>(again_.data(), static_cast<std::int64_t>(again_.size())), 0);
    }
    table_ = 0;
    if (shares_ != nullptr) shares_->begin();
  }
  void end() {
    if (shares_ != nullptr) shares_->end();
  }
  /// Whether others disturbed a table in all sweeps so far; of rank 0.
  [[nodiscard]] bool is_disturbed() const {
    for (std::size_t i = 0; shares_ != nullptr && i < table_; ++i)
      if (shares_->disturbed(i)) return true;
    return false;
  }

  /// Every rank (or, when busy is 1, rank 0) measures matrix products of format T, or with fp8 those that round T; and
  /// grouped ones where a device has them.
  template <class T>
  void products(int busy, Precision precision = precision_of<T>) {
    if (!plan_.measures(PriceTerm::products)) return;
    Bench<Platform>& bench = bench_of(busy);
    const bool eight_bit = precision == Precision::fp8;
    const std::string who = words(precision, busy);
    using Kind = op::Kind;
    std::vector<op::Work> products{{.kind = Kind::gemm_nt},
                                   {.kind = Kind::gemm_nn},
                                   {.kind = Kind::gemm_tn},
                                   {.kind = Kind::gemm_tn, .writes_one_in = 1},
                                   {.kind = Kind::gemm_tn, .writes_one_in = op::Work::for_reduction}};
    // Elsewhere products of experts are those products, one after the other.
    if (Bench<Platform>::Device::groups_products && !eight_bit)
      for (std::size_t i = 0, alone = products.size(); i < alone; ++i) {
        products.push_back(products[i]);
        products.back().grouped = true;
      }
    for (op::Work product : products) {
      product.eight_bit = eight_bit;
      const bool reduces = product.writes_one_in == op::Work::for_reduction;
      announce(std::string(product.grouped ? "grouped GEMM " : "GEMM ") + op::layout_of(product.kind) +
               (reduces                   ? " for a reduction, "
                : product.always_writes() ? " written, "
                                          : ", ") +
               who);
      const auto measured = [&](LogGrid<3>::Axes axes) {
        return on_grid<3>(std::move(axes), busy, [&](const auto& e) {
          product.m = e[0];
          product.n = e[1];
          product.k = e[2];
          if (op::flops_of(product).count * (product.grouped ? bench.experts : 1) > most_flops(precision) ||
              !bench.gemm_fits(e[0], e[1], e[2], product.grouped) || (eight_bit && !cost::fits_8bit(e[0], e[1], e[2])))
            return -1.0;
          return bench.template gemm<T>(product, plan_.least);
        });
      };
      // Of (m, n, k) the tokens are m forward and for the input's gradient, and k for the weight's.
      const auto& [tokens, columns, inner] = plan_.gemm;
      const auto table_of = [&](const MeasuredGrid<3>& grid) {
        return GemmTable{product.kind,           product.always_writes(), precision, concurrency(busy),
                         grid.finish({1, 1, 1}), product.grouped,         reduces};
      };
      take(measured(product.kind == op::Kind::gemm_tn ? LogGrid<3>::Axes{columns, inner, tokens}
                                                      : LogGrid<3>::Axes{tokens, columns, inner}),
           &Cluster::gemm, table_of);
      if (product.grouped) continue;
      for (const Weight& weight : plan_.weights)
        take(measured(axes_of(product.kind, weight, tokens)), &Cluster::gemm,
             [&](const MeasuredGrid<3>& line) -> std::optional<GemmTable> {
               // A line of which most is extrapolated is no better than the grid.
               const auto known = std::ranges::count_if(line.seconds, [](double seconds) { return seconds > 0; });
               if (!(line.seconds.front() > 0) || 2 * known < std::ssize(line.seconds)) return std::nullopt;
               return table_of(line);
             });
    }
  }

  /// All computation in format T.
  template <class T>
  void compute(int busy) {
    products<T>(busy);
    Bench<Platform>& bench = bench_of(busy);
    const Precision precision = precision_of<T>;
    const std::string who = words(precision, busy);
    for (const op::Kind kind : op::attentions)
      for (const bool causal : {true, false}) {
        if (!plan_.measures(PriceTerm::attention)) break;
        announce(std::string("attention ") + op::pass_of(kind) + (causal ? ", " : " without a mask, ") + who);
        auto grids = on_grid<3>(plan_.attention, busy, [&](const auto& e) {
          const op::Work work{.kind = kind, .m = e[2], .n = e[0], .k = e[0], .l = e[1], .causal = causal};
          if (op::flops_of(work).count > most_flops(precision) / 2 || !bench.attention_fits(e[0], e[1], e[2]))
            return -1.0;
          return bench.template attention<T>(work, plan_.least);
        });
        take(std::move(grids), &Cluster::attention, [&](const MeasuredGrid<3>& grid) {
          return AttentionTable{kind, causal, precision, concurrency(busy), grid.finish({2, 1, 1})};
        });
      }
    if (!plan_.measures(PriceTerm::memory_bound)) return;
    announce("memory, " + who);
    for (const op::Kind kind : op::memory_bound) {
      auto grids = on_grid<2>(op::has_rows(kind) ? plan_.rows : plan_.elements, busy, [&](const auto& e) {
        if (e[0] * e[1] > plan_.most_elements || !bench.memory_bound_fits(e[0], e[1])) return -1.0;
        if (op::is_in_product(kind) && !bench.template has_gelu_in_product<T>()) return -1.0;
        return bench.template memory_bound<T>(kind, e[0], e[1], plan_.least);
      });
      take(std::move(grids), &Cluster::memory_bound, [&](const MeasuredGrid<2>& grid) -> std::optional<MemoryTable> {
        if (!(grid.seconds.front() > 0)) return std::nullopt;
        return MemoryTable{kind, precision, concurrency(busy), grid.finish({1, 1})};
      });
    }
  }

  /// All ranks measure collectives of every group size inside their nodes, messages from each to the next there, and
  /// both between nodes.
  void communicate() {
    MessageBench<Platform> bench(world_, bench_);
    const int node = plan_.measures(PriceTerm::inside_node) ? cluster_.devices_per_node : 1;
    const int nodes = plan_.measures(PriceTerm::across_nodes) ? world_.size() / cluster_.devices_per_node : 1;
    if (node == 1 && nodes == 1) return;
    for (int n = 2; n <= node; ++n) {
      if (node % n != 0) continue;
      for (const bool strided : {false, true}) {
        if (strided && n == node) continue;
        announce("collectives of " + std::to_string(n) + (strided ? " ranks, strided" : " ranks"));
        for (const op::Kind kind :
             {op::Kind::all_reduce, op::Kind::all_gather, op::Kind::reduce_scatter, op::Kind::broadcast})
          measure(tables_.inside, bench, kind, bench.members(node, n, strided), strided);
      }
    }
    if (node > 1) {
      announce("messages between ranks");
      measure(tables_.inside, bench, op::Kind::send, bench.members(node, node, false), false);
    }
    if (nodes > 1) {
      announce("messages between machines");
      for (const op::Kind kind : {op::Kind::all_reduce, op::Kind::all_gather, op::Kind::send})
        measure(tables_.across, bench, kind, bench.members(world_.size(), nodes, true), true);
    }
    if (sweep_ == Sweep::write) return;
    announce("computing beside communication");
    const double least = std::max(plan_.least, 1e-3) * 20;
    const double slowdown = cluster_.cores > 0 ? bench.overlap_slowdown(least) : bench.own_overlap_slowdown(least);
    if (world_.rank() != 0) return;
    slowdowns_.push_back(slowdown);
    tables_.overlap_slowdown = median_of(slowdowns_);
  }

 private:
  static std::string words(Precision precision, int busy) {
    return std::string(name_of(precision)) + ", " + std::to_string(busy) + (busy == 1 ? " rank" : " ranks");
  }
  [[nodiscard]] double most_flops(Precision precision) const {
    return plan_.most_flops * (precision == Precision::fp32 ? plan_.fp32_share : 1);
  }
  void announce(const std::string& step) const {
    if (world_.rank() == 0 && sweep_ != Sweep::write) tell_(step);
  }
  Bench<Platform>& bench_of(int busy) { return busy == 1 ? alone_ : bench_; }
  /// Of tables, by ranks of a node; those of several groups are of all ranks at work, and serve whatever others do.
  [[nodiscard]] int concurrency(int busy) const {
    return groups_.count() > 1 ? 0 : std::min(busy, cluster_.devices_per_node);
  }

  /// Begins the next table; all ranks agree whether it is measured now.
  bool begin_table() {
    const std::size_t table = table_++;
    return sweep_ == Sweep::all || (sweep_ == Sweep::disturbed && again_[table] != 0);
  }

  /// A collective, or messages around a ring, over all sizes.
  void measure(std::vector<MessageTable>& tables, MessageBench<Platform>& bench, op::Kind kind,
               const std::vector<int>& members, bool strided) {
    std::vector<MeasuredGrid<1>> grids(1, MeasuredGrid<1>(plan_.bytes));
    std::vector<double>& seconds = grids.front().seconds;
    const bool measures = begin_table();
    const std::int64_t room = bench_.buffer().count / (kind == op::Kind::send ? 2 : 1);
    for (std::size_t i = 0; i < seconds.size() && measures; ++i) {
      const std::int64_t bytes = plan_.bytes[0][i];
      if (bytes > room) continue;
      if (kind == op::Kind::send)
        seconds[i] = bench.send(members, bytes, plan_.least_message);
      else
        seconds[i] = bench.collective(kind, world_.group(members), bytes, plan_.least_message);
    }
    if (measures && shares_ != nullptr) shares_->add(table_ - 1);
    const int group = kind == op::Kind::send ? 2 : static_cast<int>(members.size());
    if (is_final(grids))
      tables.push_back({kind, group, strided, concurrency(cluster_.devices_per_node), grids.front().finish({1})});
  }

  /// Takes a sweep's figures of the table into account, those of each group. True on rank 0 when the best of all sweeps
  /// is written: the grids then have the best of every point.
  template <int D>
  bool is_final(std::vector<MeasuredGrid<D>>& grids) {
    if (world_.rank() != 0) return false;
    if (best_.size() < table_)
      for (best_.resize(table_); const MeasuredGrid<D>& grid : grids) best_.back().push_back(grid.seconds);
    for (std::size_t i = 0; i < grids.size(); ++i) {
      std::vector<double>& best = best_[table_ - 1][i];
      std::vector<double>& seconds = grids[i].seconds;
      for (std::size_t point = 0; point < best.size(); ++point)  // either may be not a number
        if (seconds[point] > 0 && !(best[point] <= seconds[point])) best[point] = seconds[point];
      if (sweep_ == Sweep::write) seconds = best;
    }
    return sweep_ == Sweep::write;
  }

  /// What is_final() does; in the end each group's cluster gets the table that `table_of` makes of its grid, if any.
  template <int D, class Table, class Of>
  void take(std::vector<MeasuredGrid<D>> grids, std::vector<Table> Cluster::* tables, const Of& table_of) {
    if (!is_final(grids)) return;
    for (std::size_t i = 0; i < grids.size(); ++i)
      if (std::optional<Table> table = table_of(grids[i])) (tables_.clusters[i].*tables).push_back(std::move(*table));
  }

  /// Measures the points of a grid, each of the first `busy` ranks independently; rank 0 gets the medians of each
  /// group.
  template <int D, class At>
  std::vector<MeasuredGrid<D>> on_grid(typename LogGrid<D>::Axes axes, int busy, const At& at) {
    std::vector<MeasuredGrid<D>> grids(groups_.count(), MeasuredGrid<D>(std::move(axes)));
    MeasuredGrid<D>& grid = grids.front();
    if (!begin_table()) return grids;
    auto& all = world_.control().everybody();
    const std::size_t points = grid.seconds.size();
    std::vector<double> own(points, -1.0);  // not positive: not measured
    std::vector<double> everybodys(points * static_cast<std::size_t>(world_.size()));
    all.barrier();
    for (std::size_t point = 0; point < points && world_.rank() < busy; ++point) own[point] = at(grid.extents(point));
    all.all_gather(View<const double>(own.data(), static_cast<std::int64_t>(points)),
                   View<double>(everybodys.data(), static_cast<std::int64_t>(everybodys.size())));
    if (world_.rank() != 0) return grids;
    // A rank of one thread was timed in processor time; by the wall it shares its core.
    const int on_a_node = std::min(busy, cluster_.devices_per_node);
    const double shared = bench_.watch().by_core ? std::max(1.0, static_cast<double>(on_a_node) / cluster_.cores) : 1.0;
    std::size_t first = 0;
    for (std::size_t i = 0; i < grids.size(); ++i) {
      const double crowd = groups_.count() > 1 ? groups_.crowds[i] : shared;
      const std::size_t end = std::min(first + groups_.sizes[i], static_cast<std::size_t>(busy));
      for (std::size_t point = 0; point < points; ++point) {
        std::vector<double> values;
        for (std::size_t rank = first; rank < end; ++rank) values.push_back(everybodys[rank * points + point]);
        if (const double seconds = median_of(std::move(values)); seconds > 0) grids[i].seconds[point] = seconds * crowd;
      }
      first = end;
    }
    if (shares_ != nullptr) shares_->add(table_ - 1);
    return grids;
  }

  comm::World& world_;
  Bench<Platform>& bench_;
  Bench<Platform>& alone_;
  const ProfilePlan& plan_;
  const Cluster& cluster_;
  const RankGroups& groups_;
  MeasuredTables& tables_;
  OthersShares* shares_;
  const std::function<void(const std::string&)>& tell_;
  Sweep sweep_ = Sweep::all;
  std::size_t table_ = 0;                               // of the sweep, those that have begun
  std::vector<std::int32_t> again_;                     // (tables): those that Sweep::disturbed measures
  std::vector<std::vector<std::vector<double>>> best_;  // (tables, groups, points) seconds
  std::vector<double> slowdowns_;
};

}  // namespace galvatron::train::detail
