// TaskMix: which tasks of a multi-task model a step does, and with how many samples of each, from some step of a run
// on. Components that no task of a mix uses are idle: their parameters and moments stay as they are.
//
//     mixes        from step 1: all tasks       from step 201: text-vision=48,text-audio=16     from step 401: ..
//     text-vision  16 16 16 ..                  48 48 48 ..
//     text-audio   16 16 16 ..                  16 16 16 ..
//     depth        16 16 16 ..                  pauses
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/model/multi_task.hpp>

namespace galvatron {

struct TaskBatch {
  std::string task;
  std::int64_t batch = 0;  ///< samples of a step
  friend bool operator==(const TaskBatch&, const TaskBatch&) = default;
};

struct TaskMix {
  std::int64_t step = 0;         ///< the first under it; counts from 0
  std::vector<TaskBatch> tasks;  ///< those that are not named pause
};

/// The model with the tasks of a mix alone, in their order, and all components. Errors (usage): no task, one that the
/// model has not or that is named twice, a batch below 1, those of checked().
inline Result<MultiTaskModel> with_mix(MultiTaskModel model, const std::vector<TaskBatch>& mix) {
  using galvatron::detail::one_line;
  if (mix.empty()) return usage_error("a mix without tasks: name at least one");
  std::vector<TaskSpec> tasks;
  for (const TaskBatch& own : mix) {
    const std::string name = "\"" + one_line(own.task, 60) + "\"";
    if (std::ranges::find(model.tasks, own.task, &TaskSpec::name) == model.tasks.end())
      return usage_error("the model " + one_line(model.name, 60) + " has no task " + name + "; it has " +
                         joined(model.tasks, ", ", [](const TaskSpec& task) { return task.name; }));
    if (std::ranges::count(mix, own.task, &TaskBatch::task) > 1) return usage_error("the mix names " + name + " twice");
    if (own.batch < 1)
      return usage_error("the task " + name + " has a batch of " + std::to_string(own.batch) +
                         ": at least 1 sample; a task that pauses is left out of the mix");
  }
  for (const TaskSpec& task : model.tasks)
    if (const auto own = std::ranges::find(mix, task.name, &TaskBatch::task); own != mix.end())
      tasks.emplace_back(task).batch = own->batch;
  model.tasks = std::move(tasks);
  model.has_idle = true;
  return checked(std::move(model));
}

/// The mix that is in force in a step; null: all tasks of the model. @param mixes  by their steps
inline const TaskMix* mix_at(const std::vector<TaskMix>& mixes, std::int64_t step) {
  const auto after = std::ranges::upper_bound(mixes, step, {}, &TaskMix::step);
  return after == mixes.begin() ? nullptr : &*std::prev(after);
}
/// The model of that step. Errors (usage): those of with_mix().
inline Result<MultiTaskModel> model_at(const MultiTaskModel& model, const std::vector<TaskMix>& mixes,
                                       std::int64_t step) {
  const TaskMix* mix = mix_at(mixes, step);
  return mix == nullptr ? Result<MultiTaskModel>(model) : with_mix(model, mix->tasks);
}

/// No error when the mixes are by their steps, each step is one of the run's, and all are mixes of the model. Errors
/// (usage), one line each.
inline Result<void> check_mixes(const MultiTaskModel& model, const std::vector<TaskMix>& mixes, std::int64_t steps) {
  for (std::size_t i = 0; i < mixes.size(); ++i) {
    const std::int64_t step = mixes[i].step;
    if (step < 0 || step >= steps)
      return usage_error("a mix from step " + std::to_string(step + 1) + " on: the run has the steps 1 to " +
                         std::to_string(steps));
    if (i > 0 && mixes[i - 1].step >= step)
      return usage_error("a mix from step " + std::to_string(step + 1) + " on follows one from step " +
                         std::to_string(mixes[i - 1].step + 1) + ": each begins behind the one before");
    if (auto made = with_mix(model, mixes[i].tasks); !made) return tl::unexpected<Error>(std::move(made.error()));
  }
  return {};
}

/// The tasks of a text like `text-vision=48,text-audio=16`. Errors (usage): another form.
inline Result<std::vector<TaskBatch>> parse_task_batches(std::string_view text) {
  std::vector<TaskBatch> out;
  for (bool last = false; !last;) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    const std::size_t equals = part.rfind('=');
    TaskBatch& own = out.emplace_back();
    const std::string_view number = equals == std::string_view::npos ? "" : part.substr(equals + 1);
    const auto [end, failed] = std::from_chars(number.data(), number.data() + number.size(), own.batch);
    if (equals == 0 || number.empty() || failed != std::errc() || end != number.data() + number.size())
      return usage_error("\"" + galvatron::detail::one_line(std::string(part), 60) +
                         "\" is no TASK=BATCH with a number of samples, as in text-vision=48,text-audio=16");
    own.task = part.substr(0, equals);
    last = comma == text.size();
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return out;
}
/// The mix of a text like `201:text-vision=48,text-audio=16`, whose steps count from 1. Errors (usage): another form.
inline Result<TaskMix> parse_task_mix(std::string_view text) {
  const std::size_t colon = text.find(':');
  std::int64_t step = 0;
  const char* const begin = text.data();
  const char* const stop = begin + (colon == std::string_view::npos ? 0 : colon);
  const auto [end, failed] = std::from_chars(begin, stop, step);
  if (colon == std::string_view::npos || failed != std::errc() || end != stop)
    return usage_error("\"" + galvatron::detail::one_line(std::string(text), 60) +
                       "\" is no STEP:TASK=BATCH,..., as in 201:text-vision=48,text-audio=16");
  return parse_task_batches(text.substr(colon + 1)).map([&](std::vector<TaskBatch> tasks) {
    return TaskMix{std::max<std::int64_t>(step, 0) - 1, std::move(tasks)};  // below 0: check_mixes() tells
  });
}

}  // namespace galvatron
