// The dynamic programs of the stages of one solver: made when a stage first needs them, and kept as long as they serve.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <galvatron/search/layout_relaxation.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/partition_bounds.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/relaxation.hpp>
#include <galvatron/search/stage_dp.hpp>
#include <galvatron/search/tuning.hpp>

namespace galvatron::search {

/// Where the search looks: a strategy of tied ends and, with one stage, workspaces of it.
struct Part {
  TiedEnds ends;
  std::int64_t least_workspace = 0;
  std::int64_t most_workspace = unlimited;
  double bound = 0;  ///< no assignment of it is faster
};

/// Those of the first and the last stage belong to a part of the search and serve one join; middle stages with the same
/// micro-batches in flight and the same layers ahead of them share one for all joins.
template <class Executor>
class StageDps {
 public:
  /// @param bounds    whatever the ends are
  constexpr StageDps(const Problem& problem, const Relaxation& relaxation, const PartitionBounds& bounds,
                     Executor* executor)
      : problem_(problem), relaxation_(relaxation), bounds_(bounds), executor_(executor) {}

  /// A stage that begins with layer `begin` and ends as these bounds allow.
  [[nodiscard]] constexpr StageRole role_of(int stage, int begin, const Part& part,
                                            const PartitionBounds& bounds) const {
    return {.stage = stage,
            .begin = begin,
            .shortest = std::max(bounds.earliest(stage + 1) - begin, 1 + (stage == 0 ? problem_.leading : 0)),
            .longest = bounds.latest(stage + 1) - begin,
            .tag = part.ends.tag,
            .least_workspace = std::max(part.least_workspace, relaxation_.ranges(0, stage).least_workspace(stage)),
            .most_workspace = part.most_workspace};
  }

  /// The numbers of those of a stage that begins with one of these layers, in their order; good until the next join.
  /// @param with_ends  the bounds of the part
  /// @param limits     their work is what is left for this stage and those behind it
  [[nodiscard]] constexpr std::vector<std::int32_t> of_stage(int stage, const std::vector<int>& begins,
                                                             const Part& part, const PartitionBounds& with_ends,
                                                             Limits limits) {
    if (stage == 0) ends_.clear();  // a join begins
    const bool is_of_end = is_end(stage);
    std::vector<Entry>& all = is_of_end ? ends_ : middle_;
    std::vector<std::int32_t> out;
    std::vector<std::int32_t> open;
    for (const int begin : begins) {
      if (is_of_end) ends_.push_back({{}, 0, begin, role_of(stage, begin, part, with_ends), 0, {}});
      out.push_back(is_of_end ? static_cast<std::int32_t>(ends_.size()) - 1
                              : middle(role_of(stage, begin, {}, bounds_)));
      const Entry& entry = nth(all, out.back());
      if (!entry.dp && std::find(open.begin(), open.end(), out.back()) == open.end()) open.push_back(out.back());
    }
    const StageLimit within = (is_of_end ? with_ends : bounds_).stage_limit();
    // Large ones share the work on their labels. Small ones are made several at the same time.
    constexpr auto at_most = static_cast<std::int64_t>(tuning::at_once);
    std::int64_t& largest = largest_[is_of_end ? 1 : 0];
    for (std::size_t first = 0, count = 0; first < open.size(); first += count) {
      const std::int64_t each = limits.share_of_work(problem_.stages() - stage);
      count = largest <= each / (2 * at_most) ? std::min(tuning::at_once, open.size() - first) : 1;
      Limits own = limits;
      own.work = each;
      share(executor_, count, [&](std::size_t i) { make(nth(all, open[first + i]), own, within); });
      largest = 0;
      for (std::size_t i = first; i < first + count; ++i) {
        const std::int64_t work = nth(all, open[i]).dp->work();
        largest = std::max(largest, work);
        work_ += work;
        if (limits.limits_work()) limits.work -= std::min(limits.work, work);
      }
    }
    return out;
  }
  [[nodiscard]] constexpr const StageDp<Executor>& dp(int stage, std::int32_t number) const {
    return *nth(is_end(stage) ? ends_ : middle_, number).dp;
  }
  /// The layers of one of the ends' stages take at least that, by its layout relaxation; 0 where there is none.
  [[nodiscard]] constexpr double least_seconds(std::int32_t number) const { return nth(ends_, number).least; }

  /// Labels made so far.
  [[nodiscard]] constexpr std::int64_t work() const { return work_; }

 private:
  struct Entry {
    Slots slots;      // with chunks: minus the stage
    int devices = 0;  // their kind, and on which sides of the stage there are others
    int start = 0;    // first layer, or -1 - type for any start in a run of equal layers
    StageRole role;
    double least = 0;
    std::optional<StageDp<Executor>> dp;
  };

  [[nodiscard]] constexpr bool is_end(int stage) const { return stage == 0 || stage + 1 == problem_.stages(); }
  // The number of one for a middle stage; its dynamic program may have to be made.
  constexpr std::int32_t middle(StageRole role) {
    int start = role.begin;
    // Inside a run of equal layers one serves whatever layer a stage begins with.
    const int first = bounds_.earliest(role.stage);
    const int end = bounds_.latest(role.stage + 1);
    const int type = nth(problem_.layers, role.begin);
    const auto layers = problem_.layers.begin();
    if (problem_.chunks == 1 && std::all_of(layers + first, layers + end, [=](int other) { return other == type; })) {
      start = -1 - type;
      role.begin = first;
      role.shortest = std::max(1, bounds_.earliest(role.stage + 1) - bounds_.latest(role.stage));
      role.longest = end - first;
    }
    const Problem& own = problem_.on(role.stage);
    const int devices = 4 * problem_.device_kind(role.stage) + (role.stage == own.across_before ? 2 : 0) +
                        (role.stage == own.across_after ? 1 : 0);
    const Slots slots = problem_.chunks == 1 ? problem_.slots_of(role.stage, 0) : Slots{-role.stage};
    for (std::size_t i = middle_.size(); i-- > 0;) {  // the last is the widest
      if (!(middle_[i].slots == slots) || middle_[i].devices != devices || middle_[i].start != start) continue;
      const StageRole& made = middle_[i].role;
      if (made.shortest <= role.shortest && made.longest >= role.longest) return static_cast<std::int32_t>(i);
      role.shortest = std::min(role.shortest, made.shortest);
      role.longest = std::max(role.longest, made.longest);
      role.longest = std::min(role.longest, problem_.count() - problem_.trailing - role.begin);
      break;
    }
    middle_.push_back({slots, devices, start, role, 0, {}});
    return static_cast<std::int32_t>(middle_.size()) - 1;
  }

  constexpr void make(Entry& entry, const Limits& limits, const StageLimit& within) const {
    const Problem& own = problem_.on(entry.role.stage);
    std::optional<LayoutRelaxation> layouts;
    if (limits.seeks_proof() || problem_.stages() == 1) {
      layouts.emplace(own, entry.role, relaxation_.share(relaxation_.size() - 1));
      layouts->bound_layers();
      entry.least = layouts->seconds();
      if (entry.least == infinite) layouts.reset();
    }
    entry.dp.emplace(own, relaxation_, entry.role, limits, within, executor_, layouts ? &*layouts : nullptr);
  }

  const Problem& problem_;
  const Relaxation& relaxation_;
  const PartitionBounds& bounds_;
  Executor* executor_;
  std::int64_t work_ = 0;
  // Work on one of those made last, of middle stages and of ends.
  std::array<std::int64_t, 2> largest_{unlimited, unlimited};
  std::vector<Entry> ends_;    // of this join
  std::vector<Entry> middle_;  // of all joins
};

}  // namespace galvatron::search
