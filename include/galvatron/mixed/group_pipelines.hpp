// The pipelines over groups of a mixed cluster that a search looks at: which groups take part, in which order, with how
// many stages each, in how many micro-batches, with which schedule.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/tuning.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/space.hpp>

namespace galvatron::search {

/// The stages of a pipeline on one group of devices.
struct GroupRun {
  int group = 0;
  int stages = 1;
  int ranks = 1;  ///< of each stage
  friend constexpr bool operator==(const GroupRun&, const GroupRun&) = default;
};

struct GroupPipeline {
  std::vector<GroupRun> runs;
  int microbatches = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;

  [[nodiscard]] int stages() const {
    int sum = 0;
    for (const GroupRun& run : runs) sum += run.stages;
    return sum;
  }
  /// Of every stage.
  [[nodiscard]] std::vector<StageDevices> devices() const {
    std::vector<StageDevices> out;
    for (const GroupRun& run : runs)
      out.insert(out.end(), static_cast<std::size_t>(run.stages), {run.group, run.ranks});
    return out;
  }
};

struct GroupPipelines {
  std::vector<GroupPipeline> all;
  bool narrowed = false;  ///< there are too many: numbers of micro-batches or stages, or groups at once, were left out
};

/// About, times the effort: a case takes as long as some hundred choices. Of more some are left out.
inline constexpr std::size_t most_group_pipelines = tuning::most_choices / 200;

namespace detail {

class FindGroupPipelines {
 public:
  FindGroupPipelines(const ModelSpec& model, const ClusterView& cluster, const SearchOptions& options)
      : model_(model), cluster_(cluster), options_(options), most_at_once_(cluster.count()) {
    for (const int m : divisors(static_cast<int>(options.global_batch)))
      if (options.microbatches == 0 || options.microbatches == m) counts_.push_back(m);
    for (int group = 0; group < cluster.count(); ++group) {
      degrees_.emplace_back();
      if (!cluster.group(group).lack_of(options.precision, options.trainer.traits.fp8_recipe).empty()) continue;
      degrees_.back() = divisors(cluster.group(group).devices, options.space.powers_of_two);
      std::erase_if(degrees_.back(), [this](int stages) { return stages >= layers(); });
    }
    // On devices of their own GPipe is never faster than 1F1B and never smaller. Virtual stages share layers evenly,
    // which is not for unequal devices.
    const auto allowed = [&](ScheduleKind kind) {
      return std::ranges::find(options.schedules, kind) != options.schedules.end();
    };
    if (allowed(ScheduleKind::zb_h1)) schedules_.push_back(ScheduleKind::zb_h1);
    if (allowed(ScheduleKind::one_f_one_b)) schedules_.push_back(ScheduleKind::one_f_one_b);
    if (allowed(ScheduleKind::gpipe) && !allowed(ScheduleKind::one_f_one_b)) schedules_.push_back(ScheduleKind::gpipe);
    find_twins();
  }

  GroupPipelines run() {
    extend(0);
    for (std::size_t most = tuning::few; is_full() && most > 1; --most) {
      counts_ = some_of(counts_, most);
      for (std::vector<int>& degrees : degrees_) degrees = some_of(degrees, std::max<std::size_t>(2, most / 2));
      most_at_once_ = std::min(most_at_once_, std::max(2, static_cast<int>(most) / 2));
      out_ = {{}, true};
      runs_seen_ = 0;
      extend(0);
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] int layers() const { return static_cast<int>(model_.blocks.size()); }
  // There are more than are looked at.
  [[nodiscard]] bool is_full() const { return out_.all.size() > most_ || runs_seen_ > most_; }

  // A group like another one before it, with the same links, stands behind it where both take part.
  void find_twins() {
    const auto is_twin = [&](int a, int b) {
      Cluster like = cluster_.group(a);
      like.name = cluster_.group(b).name;
      if (!(like == cluster_.group(b))) return false;
      for (int other = 0; other < cluster_.count(); ++other)
        if (other != a && other != b && !(cluster_.link(a, other) == cluster_.link(b, other))) return false;
      return true;
    };
    for (int b = 0; b < cluster_.count(); ++b) {
      int a = b - 1;
      while (a >= 0 && !is_twin(a, b)) --a;
      twins_.push_back(a);
    }
  }

  [[nodiscard]] bool uses(int group) const {
    return std::ranges::any_of(one_.runs, [=](const GroupRun& run) { return run.group == group; });
  }
  void extend(int stages) {
    ++runs_seen_;
    if (one_.runs.size() > 1) add();
    if (static_cast<int>(one_.runs.size()) == most_at_once_ || is_full()) return;
    for (int group = 0; group < cluster_.count(); ++group) {
      if (uses(group) || (nth(twins_, group) >= 0 && !uses(nth(twins_, group)))) continue;
      for (const int own : nth(degrees_, group)) {
        if (stages + own > layers()) break;
        one_.runs.push_back({group, own, cluster_.group(group).devices / own});
        extend(stages + own);
        one_.runs.pop_back();
      }
    }
  }
  // With all numbers of micro-batches and schedules.
  void add() {
    if (!options_.space.pipeline.allows(one_.stages())) return;
    // A tied table has one strategy at both ends, so that these have equally many ranks.
    if (model_.head.tied && one_.runs.front().ranks != one_.runs.back().ranks) return;
    for (const int m : counts_)
      for (const ScheduleKind schedule : schedules_) {
        one_.microbatches = m;
        one_.schedule = schedule;
        out_.all.push_back(one_);
      }
  }

  const ModelSpec& model_;
  ClusterView cluster_;
  const SearchOptions& options_;
  std::vector<int> counts_;                // of micro-batches
  std::vector<std::vector<int>> degrees_;  // (groups) numbers of stages on each; none: the group is of no use
  std::vector<ScheduleKind> schedules_;
  int most_at_once_;  // groups
  std::size_t most_ =
      most_group_pipelines * static_cast<std::size_t>(options_.effort) / static_cast<std::size_t>(options_.shares);
  std::size_t runs_seen_ = 0;
  std::vector<int> twins_;  // (groups) the last one before that is like it; -1: none
  GroupPipeline one_;       // that is being extended
  GroupPipelines out_;
};

}  // namespace detail

/// Pipelines over two groups or more. @param options  completed
inline GroupPipelines group_pipelines(const ModelSpec& model, const ClusterView& cluster,
                                      const SearchOptions& options) {
  return detail::FindGroupPipelines(model, cluster, options).run();
}

}  // namespace galvatron::search
