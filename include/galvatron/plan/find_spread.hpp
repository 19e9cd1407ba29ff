// Spread plans: one stage whose data ranks are on several groups of unequal devices, each with as many samples as its
// device computes while the slowest computes its own, and with as much of ZeRO's states as memory leaves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/layer_pricer.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/asked_plan.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/search/build_problem.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/strategy/space.hpp>

namespace galvatron {

struct SpreadPlan {
  Plan plan;
  PlanCost cost;
};

namespace detail {

/// The plans of one stage on all devices of some groups, every layer with the same strategy.
class SpreadSearch {
 public:
  /// @param options  completed
  SpreadSearch(const ModelSpec& model, const ClusterView& cluster, const search::SearchOptions& options)
      : model_(model), cluster_(cluster), options_(options), kinds_(model), layers_(kinds_.programs.size(), 0) {
    for (const int kind : kinds_.of) ++layers_[static_cast<std::size_t>(kind)];
    counts_ =
        options.microbatches > 0 ? std::vector{options.microbatches} : divisors(static_cast<int>(options.global_batch));
  }

  /// The fastest of all sets of at least two groups; of more than most_sets groups, of those that leave out the slowest
  /// ones. None where memory or divisors allow none.
  /// @param upper  only plans that are faster
  std::optional<SpreadPlan> fastest(Seconds upper) {
    upper_ = upper;
    std::vector<int> order;
    for (int group = 0; group < cluster_.count(); ++group)
      if (cluster_.group(group).lack_of(options_.precision, options_.trainer.traits.fp8_recipe).empty())
        order.push_back(group);
    std::ranges::sort(order, std::greater<>(),
                      [this](int group) { return cluster_.group(group).peak_flops(options_.precision); });
    const std::size_t count = order.size();
    if (count > most_sets) {
      for (std::size_t n = 2; n <= count; ++n)
        try_groups({order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n)});
    } else {
      for (std::uint32_t set = (1U << count); set-- > 0;) {
        std::vector<int> groups;
        for (std::size_t i = 0; i < count; ++i)
          if ((set >> i & 1U) != 0) groups.push_back(order[i]);
        if (groups.size() > 1) try_groups(std::move(groups));
      }
    }
    return std::move(best_);
  }

 private:
  static constexpr std::size_t most_sets = 5;
  // Ranks that may be looked at, times the effort: each counts once for a plan, and once for each block of a plan that
  // is priced. Searches are limited by it, whatever the devices and the batch. 512 devices and a batch of 2,048 take a
  // twentieth of it.
  static constexpr double most_work = 3e9;
  // What it takes to find the states of a strategy, of each rank; to share samples out; to make prices of a number of
  // samples; to price a rank that is like no other, of each rank.
  static constexpr double work_of_strategy = 40;
  static constexpr double work_of_shares = 5e3;
  static constexpr double work_of_pricers = 3e4;
  static constexpr double work_of_rank = 16;
  /// One rank with so many samples.
  struct Load {
    double passes = 0;  ///< seconds of a micro-batch
    double once = 0;    ///< and once an iteration
    std::int64_t bytes = 0;
    std::int64_t states = 0;  ///< of them, where shards are equal
  };
  /// Prices of all kinds of layers where every data rank has so many samples.
  struct Pricers {
    cost::Batch batch;
    std::vector<cost::PassPrices> passes;
    std::vector<cost::LayerPricer> of;

    Pricers(const search::detail::LayerKinds& kinds, cost::Batch of_batch, const Cluster& cluster,
            cost::WorkPrices& prices)
        : batch(of_batch) {
      for (const cost::LayerPrograms& kind : kinds.programs)
        passes.emplace_back(kind.layer(), std::vector{of_batch.microbatches});
      for (std::size_t i = 0; i < passes.size(); ++i)
        of.emplace_back(kinds.programs[i], batch, cluster, prices, passes[i]);
    }
  };
  /// The devices of a group.
  struct Part {
    int group = 0;
    int data_ranks = 0;
    std::int64_t memory = 0;
    Cluster devices;  ///< as a stage on several groups sees them
    std::unique_ptr<cost::WorkPrices> prices;
    std::map<std::int64_t, Load> loads;  ///< by samples, of the strategy at hand
    /// By samples, and those of the ranks that exchange tokens, of the data degree at hand.
    std::map<std::pair<std::int64_t, std::int64_t>, std::unique_ptr<Pricers>> pricers{};
  };

  void try_groups(std::vector<int> groups) {
    std::ranges::sort(groups);
    int ranks = 0;
    for (const int group : groups) ranks += cluster_.group(group).devices;
    Space space = options_.space;
    if (!space.pipeline.allows(1)) return;
    space.powers_of_two = false;  // of data ranks there are as many as devices
    space.strided = space.by_nodes = false;
    parts_.clear();
    for (StrategySpec spec : strategies(space, ranks)) {
      const int degree = spec.tensor * spec.context;
      const bool divides = std::ranges::all_of(groups, [&](int group) {
        const Cluster& on = cluster_.group(group);
        return on.devices % degree == 0 && degree <= on.devices_per_node;
      });
      if (options_.interrupted()) return;
      if (!divides || spec.data < 2) continue;
      if (options_.space.powers_of_two &&
          ((spec.tensor & (spec.tensor - 1)) | (spec.context & (spec.context - 1))) != 0)
        continue;
      spec.shard_kind = ShardKind::by_ratio;
      if (!pays_for(work_of_strategy * ranks)) return;
      try_strategy(groups, ranks, spec);
    }
  }

  // Whether what is left of the work is enough; it is less by that then.
  bool pays_for(double work) {
    if (work > work_left_) return false;
    work_left_ -= work;
    return true;
  }

  // A plan of one stage with this strategy; its micro-batch and samples are set later.
  [[nodiscard]] Plan plan_with(const std::vector<int>& groups, int ranks, const StrategySpec& spec) const {
    Plan plan = asked_plan(model_, cluster_, options_);
    plan.overlap = std::ranges::all_of(groups, [&](int group) { return cost::can_overlap(cluster_.group(group)); });
    PlanStage stage{0, static_cast<int>(model_.blocks.size()) - 1, 0, ranks, groups.front()};
    for (const int group : groups)
      stage.rank_groups.insert(stage.rank_groups.end(), static_cast<std::size_t>(cluster_.group(group).devices), group);
    stage.sample_ratios.assign(static_cast<std::size_t>(ranks), 1);
    plan.stages = {std::move(stage)};
    plan.layers.assign(model_.blocks.size(), spec);
    plan.embedding = plan.head = spec;
    return plan;
  }

  void try_strategy(const std::vector<int>& groups, int ranks, const StrategySpec& spec) {
    const bool is_new = parts_.empty() || spec.data != plan_.embedding.data;
    plan_ = plan_with(groups, ranks, spec);
    if (!why_inconsistent(plan_).empty() || !why_unfit(plan_, model_).empty()) return;
    if (is_new) make_parts(groups);
    for (Part& part : parts_) {
      part.data_ranks = cluster_.group(part.group).devices / (spec.tensor * spec.context);
      part.loads.clear();
    }
    for (cost::LayerPrograms& kind : kinds_.programs) kind.add(spec, batch_of(plan_));
    exchanged_ = 0;
    find_states(spec);
    for (const int count : counts_) {
      plan_.microbatches = count;
      // Experts have tokens of all ranks, as many as in the mean: what a rank computes for them depends on the
      // micro-batch.
      exchanged_ = spec.exchanges_tokens()
                       ? std::max<std::int64_t>(plan_.microbatch() * spec.exchange_ranks() / spec.data, 1)
                       : 0;
      for (Part& part : parts_)
        if (exchanged_ > 0) part.loads.clear();
      if (!pays_for(work_of_shares)) return;
      if (const auto samples = balanced(options_.global_batch / count)) offer(*samples, spec);
    }
  }

  void make_parts(const std::vector<int>& groups) {
    parts_.clear();
    for (const int group : groups) {
      Part& part = parts_.emplace_back();
      part.group = group;
      part.memory = min(options_.memory, cluster_.group(group).device.memory).count;
      part.devices = spread_group(cluster_, plan_.stages.front(), group);
    }
    for (Part& part : parts_)
      part.prices = std::make_unique<cost::WorkPrices>(
          plan_.precision, part.devices, cost::busy_ranks(part.devices, cluster_.group(part.group).devices));
  }

  // States of a rank without a shard, and all shards together.
  void find_states(const StrategySpec& spec) {
    const std::int64_t even = load(parts_.front(), 1).states;
    whole_ = even;
    sharded_ = 0;
    if (spec.zero == 0) return;
    std::vector<int> ratios(static_cast<std::size_t>(spec.ranks()), 1);
    std::fill_n(ratios.begin(), spec.tensor * spec.context, 0);
    cost::Batch batch = batch_of(plan_);
    batch.ratios.states = ratios;
    whole_ = 0;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      cost::LayerStores stores;
      const program::LayerProgram& program = kinds_.programs[i].of(spec, batch);
      whole_ += layers_[i] * cost::parameter_counts(spec, batch, program, stores).states.count;
    }
    sharded_ = (even - whole_) * spec.shards();
  }
  // Seconds of an iteration.
  [[nodiscard]] double seconds(const Load& at) const { return plan_.microbatches * at.passes + at.once; }
  // Bytes of a rank without a shard of states.
  [[nodiscard]] std::int64_t unsharded(const Load& at) const { return at.bytes - at.states + whole_; }

  // Of a rank of a part with so many samples. The prices of one number of micro-batches serve for all: they differ in
  // the gradients of weights that a first one writes and others add to.
  const Load& load(Part& part, std::int64_t samples) {
    const auto [at, is_new] = part.loads.try_emplace(samples);
    if (!is_new) return at->second;
    Load& out = at->second;
    const StrategySpec& spec = plan_.embedding;
    const auto [priced, unknown] = part.pricers.try_emplace({samples, exchanged_});
    if (unknown) {
      work_left_ -= work_of_pricers;
      cost::Batch batch = batch_of(plan_);
      batch.microbatch = samples * spec.data;
      batch.exchanged = {exchanged_, samples};
      priced->second = std::make_unique<Pricers>(kinds_, batch, part.devices, *part.prices);
    }
    std::int64_t forward = 0, backward = 0, borders = 0;
    for (std::size_t i = 0; i < kinds_.programs.size(); ++i) {
      const auto [prices, bytes] = priced->second->of[i](spec);
      const cost::LayerSeconds seconds = cost::layer_seconds(prices, part.devices);
      const auto layers = static_cast<double>(layers_[i]);
      out.passes += layers * (seconds.forward + seconds.backward).value;
      out.once += layers * (seconds.synchronise + seconds.update).value;
      out.bytes += layers_[i] * (bytes.states + bytes.stash).count;
      out.states += layers_[i] * bytes.states.count;
      forward = std::max(forward, bytes.forward_workspace.count);
      backward = std::max(backward, (bytes.activation + bytes.backward_workspace).count);
      borders = std::max(borders, bytes.activation.count);
    }
    out.bytes += std::max({forward, backward, borders}) + cluster_.group(part.group).device.library_workspace.count;
    return out;
  }

  // Samples of each part's ranks, so that the slowest of all ends as early as can be; the ranks may have more together
  // than the micro-batch. None where memory does not hold them.
  std::optional<std::vector<std::int64_t>> balanced(std::int64_t batch) {
    std::vector<std::int64_t> out(parts_.size());
    const auto most_within = [&](Part& part, double limit) {
      std::int64_t low = 0;
      std::int64_t high = divide_up(batch, part.data_ranks);
      while (low < high) {
        const std::int64_t middle = (low + high + 1) / 2;
        const Load& at = load(part, middle);
        if (seconds(at) <= limit && unsharded(at) <= part.memory)
          low = middle;
        else
          high = middle - 1;
      }
      return low;
    };
    const auto holds = [&](double limit) {
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        if (seconds(load(parts_[i], 0)) > limit) return false;  // it takes part in collectives
        sum += parts_[i].data_ranks * (out[i] = most_within(parts_[i], limit));
      }
      return sum >= batch;
    };
    double high = 0;
    for (Part& part : parts_) {
      if (unsharded(load(part, 0)) > part.memory) return std::nullopt;
      high = std::max(high, seconds(load(part, divide_up(batch, part.data_ranks))));
    }
    high = std::min(high, upper_.value);
    if (!holds(high)) return std::nullopt;
    double low = 0;
    while (low < high * (1 - 1e-6)) {
      const double middle = (low + high) / 2;
      holds(middle) ? high = middle : low = middle;
    }
    holds(high);
    return out;
  }

  // Of each data rank, whose parts' ranks could have `samples`: what is too much together goes, one by one, from the
  // ranks that take longest.
  [[nodiscard]] std::vector<std::int64_t> samples_of_ranks(std::vector<std::int64_t> samples, std::int64_t batch) {
    std::vector<int> lowered(parts_.size(), 0);  // ranks of a part that have one sample less than it says
    std::int64_t excess = -batch;
    for (std::size_t i = 0; i < parts_.size(); ++i) excess += parts_[i].data_ranks * samples[i];
    while (excess > 0) {
      std::size_t slowest = 0;
      double longest = -1;
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        if (samples[i] == 0) continue;
        const double own = seconds(load(parts_[i], samples[i]));
        if (own > longest) longest = own, slowest = i;
      }
      const auto fewer =
          static_cast<int>(std::min<std::int64_t>(excess, parts_[slowest].data_ranks - lowered[slowest]));
      excess -= fewer;
      lowered[slowest] += fewer;
      if (lowered[slowest] < parts_[slowest].data_ranks) continue;
      lowered[slowest] = 0;
      --samples[slowest];
    }
    std::vector<std::int64_t> out;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      out.insert(out.end(), static_cast<std::size_t>(lowered[i]), samples[i] - 1);
      out.insert(out.end(), static_cast<std::size_t>(parts_[i].data_ranks - lowered[i]), samples[i]);
    }
    return out;
  }

  void offer(const std::vector<std::int64_t>& samples, const StrategySpec& spec) {
    const std::vector<std::int64_t> counts = samples_of_ranks(samples, options_.global_batch / plan_.microbatches);
    Plan plan = plan_;
    PlanStage& stage = plan.stages.front();
    const int degree = spec.tensor * spec.context;
    for (std::size_t i = 0; i < stage.sample_ratios.size(); ++i)
      stage.sample_ratios[i] = static_cast<int>(counts[i / static_cast<std::size_t>(degree)]);
    if (!place_states(samples, stage, spec)) return;
    const auto unlike = static_cast<double>(stage.state_ratios.empty() ? 2 * parts_.size() : stage.rank_groups.size());
    if (!pays_for(stage.rank_count * (static_cast<double>(model_.blocks.size()) + work_of_rank * unlike))) return;
    auto cost = cost_of(plan, model_, cluster_, programs_);
    if (!cost || cost->iteration >= upper_ || !fits(*cost)) return;
    upper_ = cost->iteration;
    best_ = SpreadPlan{std::move(plan), std::move(*cost)};
  }

  // Equal shards of states where they fit, else as much on each as is free there; false where it does not fit at all.
  bool place_states(const std::vector<std::int64_t>& samples, PlanStage& stage, const StrategySpec& spec) {
    bool fit = true;
    std::int64_t free = 0;  // of all ranks that share a store
    std::vector<std::int64_t> left;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Load& at = load(parts_[i], samples[i]);
      fit = fit && at.bytes <= parts_[i].memory;
      left.push_back(parts_[i].memory - unsharded(at));
      free += parts_[i].data_ranks * spec.context * left.back();
    }
    if (fit) return true;
    if (free < sharded_) return false;
    const std::int64_t most = std::ranges::max(left);
    for (const int group : stage.rank_groups) {
      const auto part = std::ranges::find(parts_, group, &Part::group);
      const auto own = static_cast<double>(left[static_cast<std::size_t>(part - parts_.begin())]);
      stage.state_ratios.push_back(static_cast<int>(own / static_cast<double>(most) * most_ratio));
    }
    return true;
  }

  [[nodiscard]] bool fits(const PlanCost& cost) const {
    const PlanStageCost& stage = cost.stages.front();
    return stage.peak() <= min(options_.memory, cluster_.group(stage.group).device.memory);
  }

  const ModelSpec& model_;
  ClusterView cluster_;
  const search::SearchOptions& options_;
  Seconds upper_;
  search::detail::LayerKinds kinds_;
  std::vector<std::int64_t> layers_;  // of each kind
  std::vector<int> counts_;           // of micro-batches
  Plan plan_;                         // of the strategy that is tried
  std::vector<Part> parts_;           // of the groups
  std::int64_t exchanged_ = 0;        // samples of the ranks that exchange tokens, of the strategy at hand
  std::int64_t whole_ = 0;
  std::int64_t sharded_ = 0;
  double work_left_ = most_work * options_.effort / options_.shares;
  cost::ProgramStore programs_;  // of the plans that were priced
  std::optional<SpreadPlan> best_;
};

}  // namespace detail

/// The fastest plan of one stage over several groups of devices, all layers with one strategy, that is faster than
/// `upper`; nothing if no plan is. Samples are shared out exactly for the strategy and the micro-batches.
/// @param options  completed
inline std::optional<SpreadPlan> find_spread_plan(const ModelSpec& model, const ClusterView& cluster,
                                                  const search::SearchOptions& options, Seconds upper) {
  if (!cluster.is_mixed() || !options.trainer.is_own()) return std::nullopt;
  return detail::SpreadSearch(model, cluster, options).fastest(upper);
}

}  // namespace galvatron
