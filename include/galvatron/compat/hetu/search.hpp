// The fastest plan of Hetu-Galvatron's space under its cost model. It sweeps every number of micro-batches that divides
// the batch, every pipeline degree, and for one of each the strategies of layers and of the ends.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/compat/hetu/cost.hpp>
#include <galvatron/compat/hetu/search/solver.hpp>
#include <galvatron/compat/hetu/search/stage.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/strategy/space.hpp>

namespace galvatron::search::hetu {

struct Options {
  std::int64_t microbatches = 0;  ///< 0: every divisor of the batch
  bool coarse = false;            ///< one strategy for all layers
  int most_tensor = 8;            ///< largest degree of tensor and Ulysses parallelism
  int most_pipeline = 8;          ///< largest number of stages
  /// Only micro-batches that divide evenly among the data ranks; Hetu drops the remainder: 15 samples on 8 ranks are 8.
  bool whole_samples = false;
};

/// Embedding and head under a strategy, on the first and last stage; with one stage both are on it.
struct Ends {
  cost::hetu::EndStrategy strategy;
  std::vector<double> times;      ///< (p) on each stage
  std::vector<double> megabytes;  ///< (p) that are not the layers', without the sequence-parallel buffer
};

/// All strategies with p stages and m micro-batches.
struct Group {
  int pipeline = 1;
  std::int64_t microbatches = 1;
  std::vector<int> division;  ///< layers of each stage
  std::vector<cost::hetu::LayerStrategy> strategies;
  std::vector<cost::hetu::Cost> costs;  ///< of a layer, by strategy
  std::vector<Ends> ends;
};

/// Powers of two that divide `n`, up to `most`: the degrees that Hetu profiles.
inline std::vector<int> degrees(int n, int most) {
  std::vector<int> out = divisors(n, true);
  std::erase_if(out, [most](int degree) { return degree > most; });
  return out;
}

/// Throws Failure (usage): a figure that the profiles lack.
inline Group make_group(const cost::hetu::Model& model, const Options& options, int pipeline,
                        std::int64_t microbatches) {
  const cost::hetu::Job& job = model.job();
  Group group{pipeline, microbatches, cost::hetu::even_division(job.layers, pipeline), {}, {}, {}};
  const int stage = job.devices / pipeline;
  // Adds the end `which` of the model, on stage number `at`.
  const auto add_end = [&](Ends& ends, cost::hetu::End which, int at) {
    const cost::hetu::Cost cost = model.end(ends.strategy, which, pipeline, microbatches);
    const auto i = static_cast<std::size_t>(at);
    ends.times[i] = cost.no_sync;
    ends.megabytes[i] =
        std::ceil(cost.memory(model.in_flight(at, pipeline, microbatches)) + cost::hetu::reserved_megabytes);
  };
  const auto p = static_cast<std::size_t>(pipeline);
  for (const int degree : degrees(stage, options.most_tensor)) {
    if (model.local_batch(pipeline, degree, microbatches) < 1) continue;
    if (options.whole_samples && job.global_batch / microbatches % (stage / degree) != 0) continue;
    for (const bool ulysses : {false, true}) {
      if (ulysses && degree == 1) continue;
      const int shards = ulysses ? stage : stage / degree;
      for (const bool zero3 : {false, true}) {
        if (zero3 && (shards == 1 || job.data == cost::hetu::DataKind::zero3)) continue;
        for (const bool recompute : {false, true}) {
          group.strategies.push_back({ulysses ? 1 : degree, ulysses ? degree : 1, zero3, recompute});
          group.costs.push_back(model.layer(group.strategies.back(), pipeline, microbatches));
        }
        using cost::hetu::End;
        group.ends.push_back({{degree, ulysses, zero3},
                              std::vector<double>(p, 0),
                              std::vector<double>(p, cost::hetu::reserved_megabytes)});
        add_end(group.ends.back(), pipeline == 1 ? End::whole : End::first, 0);
        if (pipeline > 1) add_end(group.ends.back(), End::last, pipeline - 1);
      }
    }
  }
  return group;
}

struct Statistics {
  std::int64_t cases = 0;  ///< (micro-batches, pipeline, buffer, embedding and head)
  int solved = 0;          ///< of them searched; bounds excluded the rest
  bool proven = true;      ///< no plan of the space is faster
  Seconds bound;           ///< no plan of the space is faster than this
};

struct Found {
  bool feasible = false;
  cost::hetu::Plan plan;                 ///< when feasible
  cost::hetu::PlanPrice price;           ///< of the plan
  std::string reason;                    ///< when infeasible: one line
  std::optional<Bytes> smallest_memory;  ///< when infeasible: the least budget with a plan, if there is one
  Statistics statistics;
};

namespace detail {

class HetuSearch {
 public:
  HetuSearch(const cost::hetu::Model& model, const Options& options) : model_(model), options_(options) {}

  Found run() {
    const cost::hetu::Job& job = model_.job();
    for (const int m : divisors(static_cast<int>(job.global_batch))) {
      if (options_.microbatches != 0 && m != options_.microbatches) continue;
      for (const int p : degrees(job.devices, options_.most_pipeline))
        if (p <= m && p <= job.layers) survey(make_group(model_, options_, p, m));
    }
    solve();
    found_.feasible = best_time_ < infinite;
    if (found_.feasible) {
      found_.price = value_or_throw(cost::hetu::price(model_, found_.plan));
      found_.statistics.proven = !(open_bound_ < best_time_ * tolerance);
      found_.statistics.bound = found_.statistics.proven ? found_.price.iteration : Seconds{open_bound_ / 1000};
    } else {
      say_why_infeasible();
    }
    return std::move(found_);
  }

 private:
  static constexpr double tolerance = 1 - 1e-12;  // of sums in different orders

  // What the layers of a case may choose from; the buffer is made for the most that they or the ends use.
  struct Choices {
    int tensor = 1;                       // the most of them
    std::vector<std::size_t> strategies;  // of the group
    friend auto operator<=>(const Choices&, const Choices&) = default;
  };
  struct Case {
    double bound;
    std::int64_t microbatches;
    int pipeline;
    Choices choices;
    std::size_t ends;  // index in the group
    friend auto operator<=>(const Case&, const Case&) = default;
  };

  // A larger buffer admits more strategies. With one strategy for all layers each is a choice of its own.
  [[nodiscard]] std::vector<Choices> choices_of(const Group& group) const {
    std::vector<Choices> out;
    std::set<int> tensors;
    for (std::size_t i = 0; i < group.strategies.size(); ++i) {
      tensors.insert(group.strategies[i].tensor);
      if (options_.coarse) out.push_back({group.strategies[i].tensor, {i}});
    }
    if (options_.coarse || tensors.empty()) return out;
    if (!model_.job().sequence_parallel) tensors = {*tensors.rbegin()};
    for (const int tensor : tensors) {
      out.push_back({tensor, {}});
      for (std::size_t i = 0; i < group.strategies.size(); ++i)
        if (group.strategies[i].tensor <= tensor) out.back().strategies.push_back(i);
    }
    return out;
  }

  [[nodiscard]] Solver solver_of(const Group& group, const Choices& choices) const {
    std::vector<Stage> stages;
    for (int i = 0; i < group.pipeline; ++i) {
      const double in_flight = model_.in_flight(i, group.pipeline, group.microbatches);
      Stage& stage = stages.emplace_back();
      stage.count = group.division[static_cast<std::size_t>(i)];
      for (const std::size_t s : choices.strategies) {
        const cost::hetu::Cost& cost = group.costs[s];
        stage.items.push_back({cost.no_sync, cost.sync - cost.no_sync, std::ceil(cost.memory(in_flight))});
      }
    }
    return {std::move(stages), static_cast<double>(group.microbatches)};
  }
  [[nodiscard]] double buffer_of(const Group& group, const Choices& choices, const Ends& ends) const {
    return model_.sequence_buffer(std::max(choices.tensor, ends.strategy.tensor()), group.pipeline, group.microbatches);
  }
  void set_ends(Solver& solver, const Group& group, const Choices& choices, const Ends& ends) const {
    const double usable = cost::hetu::Model::usable_megabytes(model_.job().memory_gigabytes);
    std::vector<double> capacities;  // of the layers of each stage, whole MB
    for (const double megabytes : ends.megabytes)
      capacities.push_back(std::floor(usable - buffer_of(group, choices, ends) - megabytes + 1e-9));
    solver.set_ends(ends.times, capacities);
  }

  // Bounds of all cases of a group, and good plans for the most promising ones.
  void survey(const Group& group) {
    for (const Choices& choices : choices_of(group)) {
      Solver solver = solver_of(group, choices);
      double least = infinite;
      const Ends* best = nullptr;
      for (const Ends& ends : group.ends) {
        if (!options_.coarse && ends.strategy.tensor() > choices.tensor) continue;
        ++found_.statistics.cases;
        set_ends(solver, group, choices, ends);
        const double bound = solver.bound();
        if (bound == infinite) need(group, solver, ends, buffer_of(group, choices, ends));
        if (!(bound < best_time_ * tolerance)) continue;
        cases_.push_back(
            {bound, group.microbatches, group.pipeline, choices, static_cast<std::size_t>(&ends - group.ends.data())});
        if (!(bound < least)) continue;
        least = bound;
        best = &ends;
      }
      if (best == nullptr) continue;
      set_ends(solver, group, choices, *best);
      offer(group, choices, *best, solver.greedy());
    }
  }

  void solve() {
    std::sort(cases_.begin(), cases_.end());
    for (const Case& c : cases_) {
      if (!(c.bound < best_time_ * tolerance)) break;
      const Group group = make_group(model_, options_, c.pipeline, c.microbatches);
      const Ends& ends = group.ends[c.ends];
      Solver solver = solver_of(group, c.choices);
      set_ends(solver, group, c.choices, ends);
      offer(group, c.choices, ends, solver.greedy());
      ++found_.statistics.solved;
      const auto solution = solver.fastest(best_time_ * tolerance, work_);
      if (work_.exhausted) open_bound_ = std::min(open_bound_, c.bound);
      open_bound_ = std::min(open_bound_, solver.open_bound());
      if (solution) offer(group, c.choices, ends, *solution);
    }
  }

  // Takes note of the memory that a case would need.
  void need(const Group& group, const Solver& solver, const Ends& ends, double buffer) {
    double most = 0;
    for (std::size_t i = 0; i < group.division.size(); ++i) {
      double least = infinite;
      for (const Item& item : solver.stages()[i].items) least = std::min(least, item.memory);
      most = std::max(most, solver.stages()[i].count * least + ends.megabytes[i] + buffer);
    }
    smallest_ = std::min(smallest_, most);
  }

  void offer(const Group& group, const Choices& choices, const Ends& ends, const Solution& solution) {
    if (!(solution.time < best_time_)) return;
    best_time_ = solution.time;
    found_.plan = {group.pipeline, group.microbatches, group.division, {}, ends.strategy};
    for (const Counts& counts : solution.stages)
      for (std::size_t i = 0; i < choices.strategies.size(); ++i)
        found_.plan.layers.insert(found_.plan.layers.end(), static_cast<std::size_t>(counts.of[i]),
                                  group.strategies[choices.strategies[i]]);
  }

  void say_why_infeasible() {
    const cost::hetu::Job& job = model_.job();
    if (smallest_ == infinite) {
      found_.reason = text_of("no plan: a micro-batch of the ", job.global_batch,
                              " samples must have one sample for each data-parallel rank of ", job.devices,
                              " devices; choose a larger batch, fewer devices or fewer micro-batches");
      return;
    }
    const double bytes = cost::hetu::Model::budget_bytes(smallest_);
    if (bytes < 9e18) found_.smallest_memory = Bytes{static_cast<std::int64_t>(bytes)};
    const Bytes device{static_cast<std::int64_t>(std::min(9e18, job.memory_gigabytes * 1024 * 1024 * 1024))};
    found_.reason = text_of(
        "no plan fits ", format_bytes(device), " a device",
        job.memory_gigabytes > 20 ? ", of which a fifth is kept back" : "", ": the smallest budget that works is ",
        bytes < 9e18 ? text_of(found_.smallest_memory->count, " bytes (", format_bytes(*found_.smallest_memory), ")")
                     : "beyond 9e18 bytes");
  }

  const cost::hetu::Model& model_;
  const Options& options_;
  std::vector<Case> cases_;
  Found found_;
  double best_time_ = infinite;
  double open_bound_ = infinite;
  double smallest_ = infinite;
  Work work_;
};

}  // namespace detail

/// The fastest plan; deterministic, one thread. Errors (usage): micro-batches that do not divide the batch; of price.
inline Result<Found> search(const cost::hetu::Model& model, const Options& options) try {
  const cost::hetu::Job& job = model.job();
  if (options.microbatches != 0 && (options.microbatches < 1 || job.global_batch % options.microbatches != 0))
    return usage_error(text_of(options.microbatches, " micro-batches do not divide a batch of ", job.global_batch,
                               "; choose a divisor"));
  return detail::HetuSearch(model, options).run();
} catch (const Failure& failure) {
  return error_of(failure);
}

}  // namespace galvatron::search::hetu
