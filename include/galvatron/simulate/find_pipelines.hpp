// find_pipelines: plans of one pipeline on each of several groups of a mixed cluster (model/pipelines.hpp), each with
// stages, micro-batches, recomputation and a share of the batch of its own:
//
//     kind of all layers (tensor degree, split of the sequence), ZeRO-0 or 1, stages on each group
//       -> bound by the groups' speeds -> ways of each group to do b samples, for every b
//       -> shares of the least slowest pipeline (exact) -> the likeliest plans are simulated, with what moves, the
//       reductions and the update, and the best of them again with other shares
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/adapters.hpp>
#include <galvatron/model/pipelines.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/plan/task_costs.hpp>
#include <galvatron/plan/task_plan.hpp>
#include <galvatron/simulate/pipeline_ways.hpp>
#include <galvatron/simulate/wave_peaks.hpp>
#include <galvatron/simulate/wave_simulation.hpp>

namespace galvatron::simulate {

struct FoundPipelines {
  std::vector<std::int64_t> samples;  ///< of each pipeline
  std::int64_t sequence = 0;          ///< tokens of a sample
  MultiTaskModel model;
  WavePlan plan;
  WaveSimulation simulation;
  Bytes peak;  ///< of the fullest rank
};

struct PipelineSearchResult {
  std::optional<FoundPipelines> best;  ///< the fastest that is faster than what was asked for
  Seconds bound;      ///< the passes of none of these plans take less, as far as there are any; 0: there are none
  int simulated = 0;  ///< plans
  Seconds search;     ///< what the search took
};

namespace detail {

class PipelineSearch {
 public:
  static constexpr int most_simulated = 24;                    ///< plans with the shares of the least slowest pipeline
  static constexpr int most_improved = 24;                     ///< with other shares, of each of the best of those
  static constexpr std::size_t most_starts = 3;                ///< of these best
  static constexpr std::size_t most_instructions = 1'000'000;  ///< of the programs that are simulated, together
  static constexpr int most_stages = 16;                       ///< of a pipeline
  static constexpr int most_cuts = 30'000;     ///< of layers into stages; then what was found so far is simulated
  static constexpr std::size_t most_sets = 4;  ///< groups of which all sets are tried

  /// @param options  completed  @param cluster  beside the reserve
  PipelineSearch(const ModelSpec& model, const ClusterView& cluster, const search::SearchOptions& options,
                 Seconds upper)
      : model_(model), cluster_(cluster), options_(options), ways_(model, cluster, options), upper_(upper) {}

  PipelineSearchResult run() {
    for (const StrategySpec& kind : kinds())
      for (const std::vector<int>& groups : sets_of_groups()) {
        std::vector<int> stages(groups.size());
        if (may_be_faster(kind, groups)) try_stages(kind, groups, stages, 0);
      }
    std::ranges::stable_sort(candidates_, {}, &Candidate::seconds);
    std::vector<std::pair<Seconds, const Candidate*>> starts;
    for (const Candidate& candidate : candidates_) {
      if (result_.simulated == most_simulated || ends()) break;
      if (candidate.bound < upper_.value) starts.emplace_back(simulate(candidate), &candidate);
    }
    std::ranges::stable_sort(starts, {}, [](const auto& start) { return start.first; });
    if (starts.size() > most_starts) starts.resize(most_starts);
    for (const auto& [step, candidate] : starts) improve(*candidate, step);
    if (!starts.empty() && options_.space.zero[0]) {  // of no ZeRO, the best of these
      Candidate whole = *starts.front().second;
      whole.zero = 0;
      simulate(whole);
    }
    return std::move(result_);
  }

 private:
  /// Of each group, for every number of units.
  using Ways = std::vector<std::shared_ptr<const std::vector<PipelineWay>>>;
  struct Candidate {
    std::vector<int> groups;
    int zero = 0;
    std::shared_ptr<const Ways> ways;
    std::vector<std::size_t> units;  ///< of each group
    double seconds = 0, bound = 0;

    [[nodiscard]] const PipelineWay& way(std::size_t group) const { return (*(*ways)[group])[units[group]]; }
  };
  // ---- what is tried

  [[nodiscard]] std::vector<StrategySpec> kinds() const {
    std::vector<StrategySpec> out;
    const Space& space = options_.space;
    if (!space.context.allows(1) || !space.expert.allows(1)) return out;
    int most = 1;
    for (const Cluster& group : cluster_.groups())
      most = std::max(most, std::min(group.devices, group.devices_per_node));
    for (int tensor = 1; tensor <= most; tensor *= 2)
      for (const SequenceKind sequence : galvatron::detail::kinds_for(space, tensor, 1))
        if (const StrategySpec spec{.tensor = tensor, .sequence = sequence};
            space.tensor.allows(tensor) && ways_.fits(spec))
          out.push_back(spec);
    return out;
  }
  [[nodiscard]] std::vector<std::vector<int>> sets_of_groups() const {
    std::vector<int> able;
    for (int group = 0; group < cluster_.count(); ++group)
      if (cluster_.group(group).supports(options_.precision)) able.push_back(group);
    std::vector<std::vector<int>> out;
    const std::size_t count = able.size();
    if (count > most_sets) return {able};
    for (std::uint32_t set = (1U << count); set-- > 0;) {
      std::vector<int> groups;
      for (std::size_t i = 0; i < count; ++i)
        if ((set >> i & 1U) != 0) groups.push_back(able[i]);
      if (groups.size() > 1) out.push_back(std::move(groups));
    }
    return out;
  }
  [[nodiscard]] bool may_be_faster(const StrategySpec& kind, const std::vector<int>& groups) {
    double speed = 0;  // samples a second
    for (const int group : groups) {
      const double most = ways_.most_speed(group, kind);
      if (!(most > 0)) return false;
      speed += most;
    }
    const double seconds = static_cast<double>(options_.global_batch) / speed;
    if (result_.bound.value == 0 || seconds < result_.bound.value) result_.bound = {seconds};
    return seconds < upper_.value;
  }
  // Every number of stages on each group.
  void try_stages(const StrategySpec& kind, const std::vector<int>& groups, std::vector<int>& stages, std::size_t at) {
    if (options_.interrupted() || ways_.cuts() >= most_cuts) return;
    if (at == groups.size()) return try_pipelines(kind, groups, stages, options_.space.zero[1] ? 1 : 0);
    const Cluster& on = cluster_.group(groups[at]);
    for (const int degree : divisors(on.devices / kind.tensor)) {
      if (degree > std::min(most_stages, model_.layers()) || !options_.space.pipeline.allows(degree)) continue;
      stages[at] = degree;
      try_stages(kind, groups, stages, at + 1);
    }
  }
  void try_pipelines(const StrategySpec& kind, const std::vector<int>& groups, const std::vector<int>& stages,
                     int zero) {
    std::vector<StrategySpec> specs;
    int shards = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      StrategySpec& spec = specs.emplace_back(kind);
      spec.data = cluster_.group(groups[i]).devices / kind.tensor / stages[i];
      spec.zero = zero;
      if (!options_.space.data.allows(spec.data)) return;
      shards += spec.data;
    }
    const auto ways = std::make_shared<Ways>();
    double speed = 0;  // samples a second
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const std::vector<PipelineWay>& own = *ways->emplace_back(ways_.of(groups[i], stages[i], specs[i], shards));
      double most = 0;
      for (std::size_t n = 1; n < own.size(); ++n)
        most = std::max(most, static_cast<double>(n) * static_cast<double>(ways_.unit()) / own[n].bound);
      if (most == 0) return;
      speed += most;
    }
    if (static_cast<double>(options_.global_batch) / speed < upper_.value) share_out(groups, zero, ways);
  }

  // ---- shares of the batch

  /// Units of each group so that the slowest pipeline is as fast as can be.
  void share_out(const std::vector<int>& groups, int zero, const std::shared_ptr<const Ways>& ways) {
    const auto all = static_cast<std::size_t>(ways_.units());
    constexpr double never = std::numeric_limits<double>::infinity();
    // [group][units of the groups up to it]: the least slowest, and the units of the last one
    std::vector<std::vector<std::pair<double, std::size_t>>> best;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      auto& own = best.emplace_back(all + 1, std::pair{never, std::size_t{0}});
      for (std::size_t sum = 1; sum <= all; ++sum)
        for (std::size_t n = g == 0 ? sum : 1; n <= sum; ++n) {
          const double before = g == 0 ? 0 : best[g - 1][sum - n].first;
          own[sum] = std::min(own[sum], {std::max(before, (*(*ways)[g])[n].seconds), n});
        }
    }
    if (!(best.back()[all].first < never)) return;
    Candidate out{.groups = groups, .zero = zero, .ways = ways, .units = std::vector<std::size_t>(groups.size())};
    out.seconds = best.back()[all].first;
    std::size_t left = all;
    for (std::size_t g = groups.size(); g-- > 0;) {
      out.units[g] = best[g][left].second;
      out.bound = std::max(out.bound, out.way(g).bound);
      left -= out.units[g];
    }
    candidates_.push_back(std::move(out));
  }
  // ---- the whole step

  [[nodiscard]] bool ends() const { return options_.interrupted() || instructions_ > most_instructions; }

  /// Seconds of a step; it is kept if it is the best so far. Infinite: it does not fit.
  Seconds simulate(const Candidate& candidate) {
    constexpr Seconds never{std::numeric_limits<double>::infinity()};
    FoundPipelines found{.samples = {},
                         .sequence = options_.sequence,
                         .model = {},
                         .plan = plan_of(candidate),
                         .simulation = {},
                         .peak = {}};
    for (const std::size_t units : candidate.units)
      found.samples.push_back(static_cast<std::int64_t>(units) * ways_.unit());
    found.model = value_or_throw(pipelines_of(model_, found.samples, options_.sequence));
    const train::TaskPlan plan = value_or_throw(train::task_plan(found.model, found.plan, TaskOrder::in_waves));
    const train::TaskCosts costs(plan, ways_.layers());
    ++result_.simulated;
    instructions_ += plan.program.size();
    const std::vector<Bytes> peaks = peaks_of(plan, costs, options_.precision, cluster_);
    for (int rank = 0; rank < plan.ranks; ++rank)
      if (peaks[static_cast<std::size_t>(rank)] >
          min(options_.memory, cluster_.group(cluster_.group_of(rank)).device.memory))
        return never;
    found.peak = std::ranges::max(peaks);
    found.simulation = simulate_waves(plan, costs, cluster_, options_.precision);
    const Seconds step = found.simulation.step;
    if (step >= upper_) return step;
    upper_ = step;
    result_.best = std::move(found);
    return step;
  }
  /// Moves units from one group to another as long as that makes the step shorter.
  void improve(Candidate at, Seconds step) {
    int left = most_improved;
    for (bool better = true; better;) {
      better = false;
      for (std::size_t from = 0; from < at.units.size(); ++from)
        for (std::size_t to = 0; to < at.units.size(); ++to) {
          Candidate next = at;
          if (from == to || next.units[from] < 2 || left == 0 || ends()) continue;
          --next.units[from];
          ++next.units[to];
          if (next.way(from).pipeline == nullptr || next.way(to).pipeline == nullptr) continue;
          --left;
          const Seconds other = simulate(next);
          if (!(other < step)) continue;
          step = other;
          at = std::move(next);
          better = true;
        }
    }
  }
  /// Ranks are the devices in their order; those behind the last group that takes part are left out.
  [[nodiscard]] WavePlan plan_of(const Candidate& candidate) const {
    WavePlan out{.zero = candidate.zero};
    out.ranks = cluster_.first_device(candidate.groups.back()) + cluster_.group(candidate.groups.back()).devices;
    for (std::size_t k = 0; k < candidate.groups.size(); ++k) {
      const PipelineWay& way = candidate.way(k);
      out.microbatches.push_back(way.microbatches);
      out.in_flight = std::max(out.in_flight, way.pipeline->stages);
      int rank = cluster_.first_device(candidate.groups[k]);
      int first = 0;
      for (std::size_t stage = 0; stage < way.pipeline->ends.size(); ++stage) {
        WavePart part{.task = static_cast<int>(k),
                      .pass = 0,
                      .first = first,
                      .last = way.pipeline->ends[stage] - 1,
                      .ranks = {},
                      .strategy = way.pipeline->spec};
        part.strategy.zero = 0;  // the plan's
        for (int i = 0; i < part.strategy.ranks(); ++i) part.ranks.push_back(rank++);
        first = part.last + 1;
        if (out.waves.size() == stage) out.waves.emplace_back();
        out.waves[stage].parts.push_back(std::move(part));
      }
    }
    return out;
  }

  const ModelSpec& model_;
  ClusterView cluster_;
  const search::SearchOptions& options_;
  PipelineWays ways_;
  Seconds upper_;
  std::vector<Candidate> candidates_;
  std::size_t instructions_ = 0;
  PipelineSearchResult result_;
};

}  // namespace detail

/// The fastest plan of one pipeline on each of several groups that is faster than `upper`. Stages of a pipeline are
/// equally many devices of its group, all of them; every layer has the same tensor degree and split of the sequence
/// everywhere. The answer depends on the arguments alone, unless options.stop ends the search. Nothing is found for
/// clusters of one group, other trainers' plans, moments in bf16, adapters, forced micro-batches, and models that
/// pipelines_of() refuses.
/// @param options  as of find_plan()
inline PipelineSearchResult find_pipelines(const ModelSpec& model, const ClusterView& cluster,
                                           const search::SearchOptions& options, Seconds upper) {
  const double begin = steady_seconds();
  PipelineSearchResult out;
  const auto completed = search::completed(options, model, cluster);
  const bool runs = completed && cluster.is_mixed() && completed->space.spread && search::detail::may_mix(*completed) &&
                    completed->moments == Precision::fp32 && completed->precision != Precision::fp8 &&
                    completed->microbatches == 0 && adapters_of(model).rank == 0 &&
                    std::ranges::find(completed->schedules, ScheduleKind::one_f_one_b) != completed->schedules.end() &&
                    pipelines_of(model, {1}, completed->sequence);
  if (!runs) return out;
  const MixedCluster left = galvatron::detail::beside_reserve(cluster, *completed);
  out = detail::PipelineSearch(model, left, *completed, upper).run();
  out.search = {steady_seconds() - begin};
  return out;
}

}  // namespace galvatron::simulate
