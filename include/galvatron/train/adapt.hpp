// Adapting a run to what happens to its ranks: slow ones get less to do, lost ones are replaced.
//
// Every rank measures its own work in each step, without waiting for others (WorkWatch). After a window of steps all
// tell each other the medians, so that all come to the same decision, after the same step, without a word more:
//
//   steps      | 1 2 3 4 5 | 6 7 8 9 10 | 11 ..
//   rank 2       slow ................................
//   windows              agree        agree            replan() promises the margin twice in a row: states move,
//                                                      step 11 runs under the new plan, with the same samples
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/plan/replan.hpp>
#include <galvatron/train/move_states.hpp>
#include <galvatron/train/step_report.hpp>

namespace galvatron::train {

/// A change of the plan while a run goes on.
struct Adaptation {
  std::int64_t step = 0;  ///< the first that is done under the new plan; counts from 0
  int rank = 0;           ///< that it is because of, by its number before
  std::string reason;     ///< one clause, of the rank
  double seconds = 0;     ///< from the end of the last step, or the loss, until training goes on
  double iteration = 0;   ///< seconds of a step that are expected of the new plan; 0: nothing is known
  Plan plan;
};

/// What a rank that has lost others hands over: all that it keeps, as it was after so many steps.
struct Survivor {
  int rank = 0;
  std::int64_t step = 0;             ///< steps that its state has behind it; -1: an update was cut short, it has none
  std::shared_ptr<KeptState> state;  ///< null: none
  /// Of the last of these steps, in case the lost rank is rank 0 and ended before its own report; empty before the
  /// first.
  std::optional<StepReport> report{};
};

/// Ranks were lost, and this run goes on in place of one with them.
struct Loss {
  Adaptation adaptation;  ///< without its seconds
  double since = 0;       ///< when that was, on the steady clock
  /// Of the step before the adaptation's, where rank 0 was lost before it reported it.
  std::optional<StepReport> unreported{};
};

/// What a step took a rank, and the job.
struct StepSeconds {
  RankSeconds own;
  double all = 0;  ///< from step to step
};

/// Defaults change nothing.
struct AdaptOptions {
  bool on = false;  ///< shares follow the speeds of ranks; of ranks that compute on cores
  /// By how much of a step's time a new plan has to be faster than the one that runs.
  double margin = 0.1;
  std::int64_t window = 5;  ///< steps whose median counts
  int windows = 2;          ///< in a row that have to ask for it
  double pause = 0.05;      ///< seconds between the ends of two windows, at least; of short steps a window has more
  /// Whether this machine has the memory for a plan; null: it has.
  std::function<bool(const Plan&)> fits{};

  /// The plan for what is left when ranks are lost; null: their loss ends the run, as without --adapt.
  std::function<Result<Plan>(const Plan& before, int ranks)> plan_for{};
  int spare_ranks = 0;  ///< that take the place of lost ones, as long as there are some
  /// Takes what a rank has left when another one is lost. Called on the rank's thread, and need not return.
  std::function<void(Survivor&&)> survivor{};
  std::optional<Loss> loss{};
  /// Called on rank 0's thread before training goes on with `adaptation.step`, which may have been done and reported
  /// before. A step before it that was never reported is reported after this call.
  std::function<void(const Adaptation&)> on_adaptation{};
  /// For tests: called by each rank before each step; what it throws fails the rank.
  std::function<void(int rank, std::int64_t step)> before_step{};
  /// For tests: called by each rank with what it has measured of a step, which it may change.
  std::function<void(int rank, std::int64_t step, StepSeconds& measured)> measured{};
};

/// Where a run goes on whose state is in memory.
struct Continuation {
  const StateImages* states = nullptr;
  std::int64_t step = 0;  ///< done so far
};

/// The plan for the ranks that are left, and for spare ones, which are counted down. Throws Failure when no plan fits.
/// @param left  the ranks that still live, fewer than the plan's  @param why  a rank failed
inline Adaptation after_loss(const Plan& plan, const std::vector<int>& left, AdaptOptions& adapt,
                             const std::string& why) {
  Adaptation out;
  while (std::ranges::find(left, out.rank) != left.end()) ++out.rank;
  const int lost = plan.ranks() - static_cast<int>(left.size());
  const int spares = std::min(adapt.spare_ranks, lost);
  adapt.spare_ranks -= spares;
  out.reason = "was lost: " + why;
  out.plan = spares == lost ? plan : value_or_throw(adapt.plan_for(plan, plan.ranks() - lost + spares));
  return out;
}

/// What a rank has left, as KeptState::file().
struct StateCopy {
  int rank = 0;
  std::int64_t step = 0;  ///< steps that it has behind it
  std::span<const std::byte> file;
};

/// The state after the newest step of which the copies have all, and that step; nothing where no step has all. It reads
/// from the copies, which have to stay. Errors (usage): a copy is damaged.
inline Result<std::optional<std::pair<StateImages, std::int64_t>>> newest_state(const ModelSpec& model,
                                                                                const std::vector<StateCopy>& copies) {
  std::vector<std::int64_t> steps;
  for (const StateCopy& copy : copies) steps.push_back(copy.step);
  std::ranges::sort(steps, std::ranges::greater());
  steps.erase(std::ranges::unique(steps).begin(), steps.end());
  for (const std::int64_t step : steps) {
    StateImages images(model);
    for (const StateCopy& copy : copies)
      if (copy.step == step)
        if (auto added = images.add(copy.file, "the memory of rank " + std::to_string(copy.rank)); !added)
          return tl::unexpected<Error>(std::move(added.error()));
    if (images.complete()) return std::optional(std::pair(std::move(images), step));
  }
  return std::nullopt;
}

/// What survivors know of the last of the first `steps` steps, if it is not among the reported ones.
inline std::optional<StepReport> unreported_step(const std::vector<Survivor>& survivors,
                                                 const std::vector<StepReport>& reported, std::int64_t steps) {
  const auto is_last = [=](const StepReport& report) { return report.step == steps - 1; };
  if (std::ranges::any_of(reported, is_last)) return std::nullopt;
  for (const Survivor& survivor : survivors)
    if (survivor.report && is_last(*survivor.report)) return survivor.report;
  return std::nullopt;
}

/// Thresholds and memory of the decisions; the same on all ranks.
class Adapter {
 public:
  /// @param everybody  all ranks, for memory of the program  @param planned  the plan of the run, which outlives this
  Adapter(comm::Group& everybody, const AdaptOptions& options, const Plan& planned, const ModelSpec& model)
      : everybody_(everybody), options_(options), planned_(planned), model_(model), interval_(options.window) {}

  /// Collective, after every step: at the end of a window all ranks know the seconds of all. True then.
  bool after_step(const StepSeconds& step) {
    window_.push_back(step);
    if (std::ssize(window_) < interval_) return false;
    const auto median = [&](auto&& of) {
      std::vector<double> values;
      // Of a long window of short steps the last ones tell most.
      for (std::size_t i = window_.size() - static_cast<std::size_t>(options_.window); i < window_.size(); ++i)
        values.push_back(of(window_[i]));
      std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
      return values[values.size() / 2];
    };
    Told mine{{median([](const StepSeconds& s) { return s.own.passes; }),
               median([](const StepSeconds& s) { return s.own.update; })},
              median([](const StepSeconds& s) { return s.all; }),
              0};
    mine.interval =
        std::max(static_cast<double>(options_.window), std::floor(std::min(options_.pause / mine.step, most_steps)));
    std::vector<Told> all(static_cast<std::size_t>(everybody_.size()));
    everybody_.all_gather(View<const Told>(&mine, 1), View<Told>(all.data(), everybody_.size()));
    ranks_.clear();
    for (const Told& told : all) ranks_.push_back(told.rank);
    step_ = all.front().step;
    interval_ = static_cast<std::int64_t>(all.front().interval);
    window_.clear();
    return true;
  }

  /// Of the last window, of each rank.
  [[nodiscard]] const std::vector<RankSeconds>& ranks() const { return ranks_; }

  /// After a window: the plan to go on with instead of `running`, if it is time for one; the same on all ranks.
  std::optional<Replan> decide(const Plan& running) {
    if (before_ > 0 && skip_ == 0) judge();
    if (skip_ > 0) {
      --skip_;
      return std::nullopt;
    }
    auto better = replan(planned_, running, model_, ranks_, step_, options_.fits);
    const bool pays = better && better->iteration < step_ * (1 - options_.margin);
    in_a_row_ = pays ? in_a_row_ + 1 : 0;
    if (in_a_row_ < options_.windows) return std::nullopt;
    in_a_row_ = 0;
    before_ = step_;
    expected_ = better->iteration;
    skip_ = skips_;
    return better;
  }

  /// What makes a rank the reason, as a clause.
  [[nodiscard]] std::string reason(int rank) const {
    std::vector<double> others;
    for (std::size_t i = 0; i < ranks_.size(); ++i)
      if (static_cast<int>(i) != rank) others.push_back(ranks_[i].total());
    if (others.empty()) return "its share takes too long";
    std::ranges::nth_element(others, others.begin() + std::ssize(others) / 2);
    return galvatron::detail::formatted("its share of a step takes %.2f times as long as the others'",
                                        ranks_[static_cast<std::size_t>(rank)].total() / others[others.size() / 2]);
  }

 private:
  static constexpr double most_steps = 32;
  static constexpr int most_skips = 32;

  struct Told {
    RankSeconds rank;
    double step = 0;
    double interval = 0;
  };

  // The first window after a change tells whether it was worth it. Where it was not, because something else takes the
  // time or ranks change faster than they are measured, the next one waits twice as long.
  void judge() {
    const bool kept_half = step_ < before_ - (before_ - expected_) / 2;
    skips_ = kept_half ? 1 : std::min(skips_ * 2, most_skips);
    if (!kept_half) skip_ = skips_;
    before_ = 0;
  }

  comm::Group& everybody_;
  const AdaptOptions& options_;
  const Plan& planned_;
  const ModelSpec& model_;
  std::int64_t interval_;
  std::vector<StepSeconds> window_;
  std::vector<RankSeconds> ranks_;
  double step_ = 0;
  int in_a_row_ = 0;
  double before_ = 0;    // seconds of a step before the last change, until it was judged
  double expected_ = 0;  // of it
  int skip_ = 0;         // windows in which nothing changes
  int skips_ = 1;        // after the next change
};

}  // namespace galvatron::train
