// The fastest plan of Hetu-Galvatron's space under its cost model.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/compat/hetu/cost.hpp>
#include <galvatron/compat/hetu/search/solver.hpp>
#include <galvatron/compat/hetu/search/space.hpp>
#include <galvatron/compat/hetu/search/stage.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron::search::hetu {

struct Statistics {
  std::int64_t cases = 0;  ///< (micro-batches, pipeline, buffer, embedding and head)
  int solved = 0;          ///< of them searched; bounds excluded the rest
  std::int64_t labels = 0;
  bool proven = true;  ///< no plan of the space is faster
  Seconds bound;       ///< no plan of the space is faster than this
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

/// The search, once.
class HetuSearch {
 public:
  HetuSearch(const cost::hetu::Model& model, const Options& options) : model_(model), options_(options) {}

  Result<Found> run() {
    const cost::hetu::Job& job = model_.job();
    Found out;
    for (const std::int64_t m : divisors(job.global_batch)) {
      if (options_.microbatches != 0 && m != options_.microbatches) continue;
      for (const int p : degrees(job.devices, options_.most_pipeline)) {
        if (p > m || p > job.layers) continue;
        const auto group = make_group(model_, options_, p, m);
        if (!group) return tl::unexpected<Error>(group.error());
        options_.coarse ? try_coarse(*group) : survey(*group);
      }
    }
    if (!options_.coarse) solve();
    out.statistics.cases = total_;
    out.statistics.solved = solved_;
    out.statistics.labels = work_.labels;
    if (best_time_ < infinite) {
      const auto priced = cost::hetu::price(model_, best_);
      if (!priced) return tl::unexpected<Error>(priced.error());
      out.feasible = true;
      out.plan = best_;
      out.price = *priced;
      out.statistics.proven = !(open_bound_ < best_time_ * tolerance);
      out.statistics.bound = out.statistics.proven ? priced->iteration : Seconds{open_bound_ / 1000};
    } else {
      say_why_infeasible(out);
    }
    return out;
  }

 private:
  static constexpr double tolerance = 1 - 1e-12;  // of sums in different orders

  struct Case {
    double bound;
    int pipeline;
    std::int64_t microbatches;
    int tensor;        // the most that layers and ends use
    std::size_t ends;  // index in the group
    friend bool operator<(const Case& a, const Case& b) {
      if (a.bound != b.bound) return a.bound < b.bound;
      if (a.microbatches != b.microbatches) return a.microbatches < b.microbatches;
      if (a.pipeline != b.pipeline) return a.pipeline < b.pipeline;
      return a.tensor != b.tensor ? a.tensor < b.tensor : a.ends < b.ends;
    }
  };

  // The tensor-parallel degrees that the buffer may be made for; a larger one admits more strategies.
  [[nodiscard]] std::vector<int> buffer_degrees(const Group& group) const {
    std::vector<int> out;
    for (const cost::hetu::LayerStrategy& s : group.strategies) out.push_back(s.tensor);
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    if (!model_.job().sequence_parallel && !out.empty()) out.erase(out.begin(), out.end() - 1);
    return out;
  }

  // Bounds of all cases of a group, and good plans for the most promising ones.
  void survey(const Group& group) {
    for (const int tensor : buffer_degrees(group)) {
      const std::vector<std::size_t> chosen = strategies_within(group, tensor);
      if (chosen.empty()) continue;
      const double buffer = model_.sequence_buffer(tensor, group.pipeline, group.microbatches);
      Solver solver(stages_of(model_, group, chosen), static_cast<double>(group.microbatches));
      double least = infinite;
      std::size_t best = 0;
      for (std::size_t e = 0; e < group.ends.size(); ++e) {
        const Ends& ends = group.ends[e];
        if (ends.strategy.tensor() > tensor) continue;
        ++total_;
        solver.set_ends(end_times(group, ends), capacities(model_, group, ends, buffer));
        const double bound = solver.bound();
        if (!(bound < best_time_ * tolerance)) {
          if (bound == infinite) need(group, solver, ends, buffer);
          continue;
        }
        cases_.push_back({bound, group.pipeline, group.microbatches, tensor, e});
        if (bound < least) {
          least = bound;
          best = e;
        }
      }
      if (least == infinite) continue;
      const Ends& ends = group.ends[best];
      solver.set_ends(end_times(group, ends), capacities(model_, group, ends, buffer));
      if (const auto solution = solver.rounded()) offer(group, chosen, ends, *solution);
    }
  }

  void solve() {
    std::sort(cases_.begin(), cases_.end());
    for (const Case& c : cases_) {
      if (!(c.bound < best_time_ * tolerance)) break;
      const Group group = *make_group(model_, options_, c.pipeline, c.microbatches);
      const std::vector<std::size_t> chosen = strategies_within(group, c.tensor);
      const Ends& ends = group.ends[c.ends];
      Solver solver(stages_of(model_, group, chosen), static_cast<double>(c.microbatches));
      solver.set_ends(end_times(group, ends),
                      capacities(model_, group, ends, model_.sequence_buffer(c.tensor, c.pipeline, c.microbatches)));
      if (const auto quick = solver.rounded()) offer(group, chosen, ends, *quick);
      ++solved_;
      Work work;
      work.most = most_labels - work_.labels;
      const auto solution = solver.fastest(best_time_ * tolerance, work);
      work_.labels += work.labels;
      if (work.exhausted) open_bound_ = std::min(open_bound_, c.bound);
      open_bound_ = std::min(open_bound_, solver.open_bound());
      if (solution) offer(group, chosen, ends, *solution);
    }
  }

  void try_coarse(const Group& group) {
    std::vector<std::size_t> all(group.strategies.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    const std::vector<Stage> stages = stages_of(model_, group, all);
    for (const std::size_t s : all)
      for (const Ends& ends : group.ends) {
        ++total_;
        ++solved_;
        const int tensor = std::max(group.strategies[s].tensor, ends.strategy.tensor());
        const double buffer = model_.sequence_buffer(tensor, group.pipeline, group.microbatches);
        const std::vector<double> room = capacities(model_, group, ends, buffer);
        const std::vector<double> times = end_times(group, ends);
        Solution solution;
        std::vector<cost::hetu::StageTime> stage_times;
        double most = 0;
        bool fits = true;
        for (std::size_t i = 0; i < stages.size(); ++i) {
          const Item& item = stages[i].items[s];
          const int n = stages[i].count;
          stage_times.push_back({n * item.time + times[i], n * (item.time + item.excess)});
          fits = fits && n * item.memory <= room[i];
          most = std::max(most, n * item.memory + end_megabytes(group, ends, i) + buffer);
          Counts counts;
          counts.of.assign(all.size(), 0);
          counts.of[s] = n;
          solution.stages.push_back(std::move(counts));
        }
        smallest_ = std::min(smallest_, most);
        solution.time = cost::hetu::iteration_time(stage_times, static_cast<double>(group.microbatches));
        if (fits) offer(group, all, ends, solution);
      }
  }

  // Takes note of the memory that a case would need.
  void need(const Group& group, const Solver& solver, const Ends& ends, double buffer) {
    double most = 0;
    for (std::size_t i = 0; i < group.division.size(); ++i) {
      double least = infinite;
      for (const Item& item : solver.stages()[i].items) least = std::min(least, item.memory);
      most = std::max(most, solver.stages()[i].count * least + end_megabytes(group, ends, i) + buffer);
    }
    smallest_ = std::min(smallest_, most);
  }

  void offer(const Group& group, const std::vector<std::size_t>& chosen, const Ends& ends, const Solution& solution) {
    if (!(solution.time < best_time_)) return;
    best_time_ = solution.time;
    best_ = {group.pipeline, group.microbatches, group.division, {}, ends.strategy};
    for (const Counts& counts : solution.stages)
      for (std::size_t i = 0; i < chosen.size(); ++i)
        best_.layers.insert(best_.layers.end(), static_cast<std::size_t>(counts.of[i]), group.strategies[chosen[i]]);
  }

  void say_why_infeasible(Found& out) const {
    const cost::hetu::Job& job = model_.job();
    const auto text = [](std::int64_t n) { return std::to_string(n); };
    if (smallest_ == infinite) {
      out.reason = "no plan: a micro-batch of the " + text(job.global_batch) +
                   " samples must have one sample for each data-parallel rank of " + text(job.devices) +
                   " devices; choose a larger batch, fewer devices or fewer micro-batches";
      return;
    }
    const double bytes = cost::hetu::Model::budget_bytes(smallest_);
    if (bytes < 9e18) out.smallest_memory = Bytes{static_cast<std::int64_t>(bytes)};
    out.reason =
        "no plan fits " +
        format_bytes(Bytes{static_cast<std::int64_t>(std::min(9e18, job.memory_gigabytes * 1024 * 1024 * 1024))}) +
        " a device" + (job.memory_gigabytes > 20 ? ", of which a fifth is kept back" : "") +
        ": the smallest budget that works is " +
        (out.smallest_memory ? text(out.smallest_memory->count) + " bytes (" + format_bytes(*out.smallest_memory) + ")"
                             : "beyond 9e18 bytes");
  }

  static constexpr std::int64_t most_labels = 20'000'000;

  const cost::hetu::Model& model_;
  const Options& options_;
  std::vector<Case> cases_;
  cost::hetu::Plan best_;
  double best_time_ = infinite;
  double open_bound_ = infinite;
  double smallest_ = infinite;
  std::int64_t total_ = 0;
  int solved_ = 0;
  Work work_;
};

}  // namespace detail

/// The fastest plan. Errors (usage): micro-batches that do not divide the batch, figures that the profiles lack, times
/// that are no positive numbers. Deterministic. One thread.
inline Result<Found> search(const cost::hetu::Model& model, const Options& options) {
  const cost::hetu::Job& job = model.job();
  if (options.microbatches != 0 && (options.microbatches < 1 || job.global_batch % options.microbatches != 0))
    return usage_error(std::to_string(options.microbatches) + " micro-batches do not divide a batch of " +
                       std::to_string(job.global_batch) + "; choose a divisor");
  return detail::HetuSearch(model, options).run();
}

}  // namespace galvatron::search::hetu
