// A run that loses rank threads goes on with those that are left.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/checkpoint/folder.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/train/adapt.hpp>
#include <galvatron/train/train_options.hpp>

namespace galvatron::train::detail {

/// Calls train(plan, options, report), and again with the ranks that are left when some are lost: with their state in
/// memory where they have all of it, else after the newest checkpoint, else from where the run began.
template <class Train>
TrainReport with_recovery(const Plan& plan, const ModelSpec& model, const TrainOptions& options, const Train& train) {
  TrainReport report;
  TrainOptions with = options;
  Plan now = plan;
  std::mutex mutex;
  std::vector<Survivor> survivors;
  if (options.adapt.plan_for)
    with.adapt.survivor = [&](Survivor&& survivor) {
      const std::lock_guard lock(mutex);
      survivors.push_back(std::move(survivor));
    };
  std::vector<Survivor> kept;  // what `states` reads
  std::optional<StateImages> states;
  std::optional<Checkpoint> checkpoint;
  Continuation goes_on;
  for (;;) {
    std::string why;
    double since = 0;
    try {
      train(now, with, report);
      return report;
    } catch (const DeviceFailure& e) {
      const auto lost = now.ranks() - static_cast<int>(survivors.size());
      if (!options.adapt.plan_for || survivors.empty() || lost <= 0) throw;
      why = e.what();
      since = steady_seconds();
    }
    kept = std::exchange(survivors, {});
    std::vector<int> left;
    std::vector<StateCopy> copies;
    for (const Survivor& survivor : kept) {
      left.push_back(survivor.rank);
      if (survivor.state != nullptr) copies.push_back({survivor.rank, survivor.step, survivor.state->file()});
    }
    Adaptation next = after_loss(now, left, with.adapt, why);
    states.reset();
    std::optional<StepReport> unreported;
    if (auto newest = value_or_throw(newest_state(model, copies))) {
      states = std::move(newest->first);
      goes_on = {&*states, newest->second};
      with.goes_on = &goes_on;
      unreported = unreported_step(kept, report.steps, newest->second);
    } else {
      kept.clear();
      with.goes_on = nullptr;
      if (!options.checkpoint.folder.empty() && !list_checkpoints(options.checkpoint.folder).empty()) {
        checkpoint = value_or_throw(Checkpoint::open(options.checkpoint.folder, model));
        with.resume = &*checkpoint;
      }
    }
    next.step = first_step(with);
    std::erase_if(report.steps, [&](const StepReport& step) { return step.step >= next.step; });
    now = next.plan;
    with.adapt.loss = Loss{std::move(next), since, std::move(unreported)};
  }
}

}  // namespace galvatron::train::detail
