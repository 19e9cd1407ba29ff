// The trainer of multi-task models: runs a plan of waves on rank threads of this machine, or as a rank of any world.
//
//     const auto model = value_or_throw(find_multi_task_model("clip-toy"));
//     const auto graphs = value_or_throw(task_graphs(model));
//     const auto report = train::train_tasks<Tasks<in_sequence>>(model, plan_in_sequence(model, graphs, {}), sources,
//     {});
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <galvatron/checkpoint/checkpointer.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/comm/thread/world.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/plan/wave_plan.hpp>
#include <galvatron/rank/host_rank.hpp>
#include <galvatron/train/held_out.hpp>
#include <galvatron/train/recorder.hpp>
#include <galvatron/train/stop.hpp>
#include <galvatron/train/task_options.hpp>
#include <galvatron/train/task_stage.hpp>
#include <galvatron/train/trainer.hpp>

namespace galvatron::train {

namespace detail {

/// Which task's loss is not finite, in words.
inline std::string not_finite(const std::vector<TaskSpec>& tasks, const TaskStepResult& result, std::int64_t step) {
  const auto text = [](double value) { return std::isnan(value) ? "nan" : std::to_string(value); };
  std::string out = "step " + std::to_string(step + 1) + " gave ";
  bool named = false;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (std::isfinite(result.losses[i])) continue;
    out +=
        (named ? ", and " : "") + std::string("the task \"") + tasks[i].name + "\" a loss of " + text(result.losses[i]);
    named = true;
  }
  return out + (named ? "" : "a gradient norm of " + text(result.gradient_norm) + " with finite losses of all tasks");
}

/// What a checkpoint says of the run: a step's samples are those of all tasks.
inline TrainingState training_state(const TaskPlan& plan, const TaskTrainOptions& options, Precision precision) {
  TrainingState out{.model = plan.model.name,
                    .architecture = model_architecture(plan.model),
                    .step = first_step(options),
                    .seed = options.seed,
                    .streams = options.streams,
                    .precision = precision,
                    .learning_rate = options.learning_rate,
                    .adam = options.adam,
                    .clip = options.clip};
  for (const TaskSpec& task : plan.model.tasks) out.global_batch += task.batch;
  for (const PartPlan& part : plan.parts) out.sequence_length = std::max(out.sequence_length, part.tokens);
  return out;
}

/// What every rank does, whatever a rank is. Arguments as of train_rank().
template <class T, class Platform>
void train_task_rank(comm::World& world, const Platform& platform, const TaskPlan& plan,
                     const std::vector<TaskSources>& sources, const TaskTrainOptions& options, TaskTrainReport& report,
                     std::mutex& report_mutex) {
  platform.enter();
  typename Platform::Rank rank =
      platform.make(memory_of(plan, precision_of<T>, world.rank(), platform.library_workspace()));
  RankMemory& memory = rank.memory();
  using Device = typename Platform::Rank::Device;
  TaskStage<Device, T> stage(rank.device(), world, plan, memory);
  const comm::SendGuard guard(world);  // nobody reads this rank's memory once it is gone
  const runtime::ParameterSource initial =
      options.initial ? options.initial : runtime::initial_values(options.seed, platform.threads);
  if (options.resume != nullptr)
    restore(stage, *options.resume, initial);
  else
    stage.initialise(initial);
  std::optional<Checkpointer<Device, decltype(stage)>> checkpointer;
  if (!options.checkpoint.folder.empty())
    checkpointer.emplace(options.checkpoint, training_state(plan, options, precision_of<T>), rank.device(), world,
                         stage, [&platform] { platform.enter_beside(); });
  if (options.recorder != nullptr) stage.observe(&options.recorder->rank(world.rank()));
  std::int64_t step = first_step(options);
  const auto show_stores = [&] {
    rank.device().wait();
    stage.visit([&](const runtime::StoreView& store) { options.on_store(step, store); });
  };
  stage.before_update([&] {
    if (options.on_store) show_stores();
    if (checkpointer) checkpointer->before_update();
  });
  StopVote vote(world.control().everybody(), options.stop);
  std::exception_ptr failed_report;  // what on_step threw
  double last = steady_seconds();
  for (; step < options.steps && !vote.ends(); ++step) {
    device::AdamW hyper = options.adam;
    hyper.learning_rate = static_cast<float>(options.learning_rate.at(step));
    hyper.step = step + 1;
    hyper.seed = options.seed;
    const TaskStepResult result = stage.step(step, &sources, hyper, options.clip);
    world.check();
    std::string wrong = result.is_finite() ? std::string() : not_finite(plan.model.tasks, result, step);
    if (!wrong.empty() && options.on_nan == OnNan::stop)
      throw Failure(ErrorKind::machine,
                    wrong + ": use a smaller learning rate or weight of the task, or skip such steps");
    const double seconds = steady_seconds() - last;
    vote.after_step(failed_report != nullptr);
    const bool ends = step + 1 == options.steps || vote.ends();
    std::vector<TaskScore> scores;
    if (const HeldOut* const held_out = options.held_out; held_out != nullptr)
      if (ends || (held_out->every > 0 && (step + 1) % held_out->every == 0))
        scores = measure(stage, world.control(), plan, *held_out);
    if (world.rank() == 0) {
      report.steps.push_back({step, result.losses, result.loss, result.gradient_norm, options.learning_rate.at(step),
                              seconds, std::move(wrong), std::move(scores)});
      if (options.on_step && failed_report == nullptr) {
        try {
          options.on_step(report.steps.back());
        } catch (...) {
          failed_report = std::current_exception();
        }
      }
    }
    if (checkpointer) checkpointer->after_step(step + 1, ends);
    last = steady_seconds();
  }
  if (failed_report != nullptr) std::rethrow_exception(failed_report);
  if (options.on_store) show_stores();
  const std::lock_guard lock(report_mutex);
  if (step < options.steps) report.stopped = vote.asked_for();
  report.planned_memory[static_cast<std::size_t>(world.rank())] = memory.planned;
  report.measured_memory[static_cast<std::size_t>(world.rank())] = memory.measured();
  if (checkpointer) report.checkpoints[static_cast<std::size_t>(world.rank())] = checkpointer->report();
}

/// Trains the ranks that `start` starts, which calls its argument with the world and the platform of each.
template <class Start>
TaskTrainReport train_task_ranks(const TaskPlan& plan, const std::vector<TaskSources>& sources,
                                 const TaskTrainOptions& options, const Start& start) {
  if (sources.size() != plan.model.tasks.size())
    throw Failure(ErrorKind::usage, "there are " + std::to_string(plan.model.tasks.size()) + " tasks and data of " +
                                        std::to_string(sources.size()) + ": every task has its own");
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (sources[i].size() != plan.model.tasks[i].inputs.size())
      throw Failure(ErrorKind::usage, "the task \"" + plan.model.tasks[i].name + "\" has " +
                                          std::to_string(plan.model.tasks[i].inputs.size()) + " inputs and " +
                                          std::to_string(sources[i].size()) + " sources of data");
  TaskTrainReport report;
  report.planned_memory.resize(static_cast<std::size_t>(plan.ranks));
  report.measured_memory.resize(static_cast<std::size_t>(plan.ranks));
  report.checkpoints.resize(static_cast<std::size_t>(plan.ranks));
  std::mutex mutex;
  start([&](comm::World& world, const auto& platform) {
    if (options.precision == Precision::fp32)
      train_task_rank<float>(world, platform, plan, sources, options, report, mutex);
    else
      train_task_rank<bfloat16>(world, platform, plan, sources, options, report, mutex);
  });
  std::vector<double> seconds;
  for (std::size_t i = report.steps.size() > 1 ? 1 : 0; i < report.steps.size(); ++i)
    seconds.push_back(report.steps[i].seconds);
  report.iteration_seconds = median_of(std::move(seconds));
  return report;
}

}  // namespace detail

/// Trains as the plan says, one thread team for each of its ranks.
/// @tparam Policy   Tasks<in_sequence> or Tasks<in_waves>
/// @param  sources  of each task, one for each of its inputs; asked by all ranks at once
/// Throws Failure (usage) for a model, a plan or data that make no sense, Failure (machine), which names the task, when
/// a loss is no longer a number and on_nan is stop, and what failed first on any rank.
template <class Policy>
TaskTrainReport train_tasks(const MultiTaskModel& model, const WavePlan& waves, const std::vector<TaskSources>& sources,
                            const TaskTrainOptions& options) {
  const TaskPlan plan = value_or_throw(task_plan(model, waves, Policy::order));
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank : threads_per_rank(plan.ranks);
  HostPlatform::require(options.precision);
  return detail::train_task_ranks(plan, sources, options, [&](const auto& train_one) {
    comm::thread::run(
        plan.ranks,
        [&](comm::thread::World& world) {
          const PinnedRank pin(world.rank(), world.size(), threads);
          train_one(world, HostPlatform{threads, &pin});
        },
        options.world);
  });
}

}  // namespace galvatron::train
