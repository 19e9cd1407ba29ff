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
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/checkpointer.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/comm/thread/world.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/model/task_mix.hpp>
#include <galvatron/plan/wave_plan.hpp>
#include <galvatron/plan/wave_plan_json.hpp>
#include <galvatron/rank/host_rank.hpp>
#include <galvatron/train/held_out.hpp>
#include <galvatron/train/move_states.hpp>
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

/// What every rank does, whatever a rank is: one plan after the other, a plan for every mix of tasks.
/// @param platform  HostPlatform or its like: what makes a rank's memory and device
template <class T, class Platform>
class TaskRankRun {
 public:
  using Rank = typename Platform::Rank;
  using Device = typename Rank::Device;
  using RankStage = TaskStage<Device, T>;

  TaskRankRun(comm::World& world, const Platform& platform, const MultiTaskModel& model, const TaskPlan& plan,
              const std::vector<TaskSources>& sources, const TaskTrainOptions& options, TaskTrainReport& report,
              std::mutex& report_mutex)
      : world_(world),
        platform_(platform),
        model_(model),
        plan_(plan),
        sources_(sources),
        options_(options),
        report_(report),
        report_mutex_(report_mutex),
        checkpoint_(options.checkpoint),
        vote_(world.control().everybody(), options.stop),
        step_(first_step(options)) {}

  void run() {
    for (TaskPlan now = plan_; train(now);) now = next_plan();
    if (failed_report_ != nullptr) std::rethrow_exception(failed_report_);
  }

 private:
  // Until the run ends, or the mix does: true then.
  bool train(const TaskPlan& plan) {
    Rank rank = platform_.make(memory_of(plan, precision_of<T>, world_.rank(), platform_.library_workspace()));
    RankMemory& memory = rank.memory();
    RankStage stage(rank.device(), world_, plan, memory);
    const comm::SendGuard guard(world_);  // nobody reads this rank's memory once it is gone
    begin(stage, plan);
    std::optional<Checkpointer<Device, RankStage>> checkpointer;
    if (!checkpoint_.folder.empty()) {
      // The lock is of the whole run.
      if (world_.rank() == 0 && checkpoint_.lock == nullptr)
        checkpoint_.lock = value_or_throw(FolderLock::take(checkpoint_.folder));
      checkpointer.emplace(checkpoint_, training_state(plan), rank.device(), world_, stage,
                           [this] { platform_.enter_beside(); });
    }
    if (options_.recorder != nullptr) stage.observe(&options_.recorder->rank(world_.rank()));
    stage.before_update([&] {
      if (options_.on_store) show_stores(stage);
      if (checkpointer) checkpointer->before_update();
    });
    steps(plan, stage, checkpointer);
    const bool goes_on = step_ < options_.steps && !vote_.ends();
    if (options_.on_store && !goes_on) show_stores(stage);
    if (goes_on && checkpointer) checkpointer->finish();
    report(memory, checkpointer);
    if (goes_on) kept_ = std::make_unique<KeptState>(rank.device(), stage, world_.rank());
    return goes_on;
  }

  // The state that the stage starts with.
  void begin(RankStage& stage, const TaskPlan& plan) {
    const runtime::ParameterSource initial =
        options_.initial ? options_.initial : runtime::initial_values(options_.seed, platform_.threads);
    if (kept_ != nullptr) {
      double moved = static_cast<double>(move_states(world_.control(), *kept_, plan.model, stage));
      kept_.reset();
      world_.control().everybody().all_reduce(View<double>(&moved, 1), comm::ReduceOp::sum);
      if (world_.rank() != 0) return;
      change_.costs.moved_bytes = static_cast<std::int64_t>(moved);
      change_.costs.seconds = steady_seconds() - last_;
      report_.mixes.push_back(change_);
      if (options_.on_mix) options_.on_mix(change_);
    } else if (options_.resume != nullptr) {
      restore(stage, *options_.resume, initial);
    } else {
      stage.initialise(initial);
    }
  }

  // The plan of the mix that begins now. Rank 0 makes it for all.
  TaskPlan next_plan() {
    change_ = {
        .step = step_, .model = value_or_throw(model_at(model_, options_.mixes, step_)), .plan = {}, .costs = {}};
    const auto graphs = value_or_throw(task_graphs(change_.model));
    std::string text;
    if (world_.rank() == 0) {
      const double began = steady_seconds();
      change_.plan = options_.plan_for ? value_or_throw(options_.plan_for(change_.model, plan_.ranks))
                                       : PlannedMix{plan_by_levels(change_.model, graphs, plan_.ranks)};
      change_.costs.plan_seconds = steady_seconds() - began;
      text =
          nlohmann::json{{"order", change_.plan.order}, {"waves", to_json(change_.plan.waves, change_.model, graphs)}}
              .dump();
    }
    const auto told = nlohmann::json::parse(comm::shared_text(world_.control().everybody(), std::move(text)));
    told.at("order").get_to(change_.plan.order);
    change_.plan.waves = value_or_throw(waves_from_json(told.at("waves"), "the plan of rank 0", change_.model, graphs));
    return value_or_throw(task_plan(change_.model, change_.plan.waves, change_.plan.order));
  }

  /// What a checkpoint says of the run: a step's samples are those of all tasks.
  [[nodiscard]] TrainingState training_state(const TaskPlan& plan) const {
    TrainingState out{.model = plan.model.name,
                      .architecture = model_architecture(plan.model),
                      .step = first_step(options_),
                      .seed = options_.seed,
                      .data_tokens = options_.data_tokens,
                      .data_crc32c = options_.data_crc32c,
                      .streams = options_.streams,
                      .precision = precision_of<T>,
                      .learning_rate = options_.learning_rate,
                      .adam = options_.adam,
                      .clip = options_.clip};
    if (options_.single != nullptr) out.architecture = model_architecture(*options_.single);
    for (const TaskSpec& task : plan.model.tasks) out.global_batch += task.batch;
    for (const PartPlan& part : plan.parts) out.sequence_length = std::max(out.sequence_length, part.tokens);
    return out;
  }

  // Trains until the run ends, or until another mix begins.
  template <class Checkpoints>
  void steps(const TaskPlan& plan, RankStage& stage, Checkpoints& checkpointer) {
    const std::vector<std::size_t> numbers = numbers_of(plan.model.tasks);
    const std::vector<TaskSources> sources = chosen(sources_, numbers);
    std::optional<HeldOut> held_out;
    if (options_.held_out != nullptr) {
      held_out = *options_.held_out;
      held_out->sources = chosen(held_out->sources, numbers);
      held_out->samples = chosen(held_out->samples, numbers);
    }
    std::int64_t end = options_.steps;
    for (const TaskMix& mix : options_.mixes)
      if (mix.step > step_) end = std::min(end, mix.step);
    for (last_ = steady_seconds(); step_ < end && !vote_.ends(); ++step_) {
      device::AdamW hyper = options_.adam;
      hyper.learning_rate = static_cast<float>(options_.learning_rate.at(step_));
      hyper.step = step_ + 1;
      hyper.seed = options_.seed;
      const TaskStepResult result = stage.step(step_, &sources, hyper, options_.clip);
      world_.check();
      std::string wrong = result.is_finite() ? std::string() : not_finite(plan.model.tasks, result, step_);
      if (!wrong.empty() && options_.on_nan == OnNan::stop)
        throw Failure(ErrorKind::machine,
                      wrong + ": use a smaller learning rate or weight of the task, or skip such steps");
      const double seconds = steady_seconds() - last_;
      vote_.after_step(failed_report_ != nullptr);
      const bool ends = step_ + 1 == options_.steps || vote_.ends();
      std::vector<TaskScore> scores;
      if (held_out && (ends || (held_out->every > 0 && (step_ + 1) % held_out->every == 0)))
        scores = measure(stage, world_.control(), plan, *held_out);
      if (world_.rank() == 0) report_step(plan, numbers, result, seconds, std::move(wrong), std::move(scores));
      if (checkpointer) checkpointer->after_step(step_ + 1, ends);
      platform_.between_steps();
      last_ = steady_seconds();
    }
  }

  // The numbers of a mix's tasks in the model.
  [[nodiscard]] std::vector<std::size_t> numbers_of(const std::vector<TaskSpec>& tasks) const {
    std::vector<std::size_t> out;
    for (const TaskSpec& task : tasks)
      out.push_back(
          static_cast<std::size_t>(std::ranges::find(model_.tasks, task.name, &TaskSpec::name) - model_.tasks.begin()));
    return out;
  }
  template <class V>
  [[nodiscard]] static std::vector<V> chosen(const std::vector<V>& of_all, const std::vector<std::size_t>& numbers) {
    std::vector<V> out;
    for (const std::size_t number : numbers) out.push_back(of_all[number]);
    return out;
  }

  void report_step(const TaskPlan& plan, const std::vector<std::size_t>& numbers, const TaskStepResult& result,
                   double seconds, std::string wrong, std::vector<TaskScore> scores) {
    TaskStepReport out{.step = step_,
                       .losses = std::vector<double>(model_.tasks.size()),
                       .batches = std::vector<std::int64_t>(model_.tasks.size()),
                       .loss = result.loss,
                       .gradient_norm = result.gradient_norm,
                       .learning_rate = options_.learning_rate.at(step_),
                       .seconds = seconds,
                       .skipped = std::move(wrong)};
    if (!scores.empty()) out.held_out.resize(model_.tasks.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      out.losses[numbers[i]] = result.losses[i];
      out.batches[numbers[i]] = plan.model.tasks[i].batch;
      if (!scores.empty()) out.held_out[numbers[i]] = std::move(scores[i]);
    }
    if (!report_.mixes.empty() && report_.mixes.back().step == step_) out.mix = report_.mixes.back().costs;
    report_.steps.push_back(std::move(out));
    if (!options_.on_step || failed_report_ != nullptr) return;
    try {
      options_.on_step(report_.steps.back());
    } catch (...) {
      failed_report_ = std::current_exception();
    }
  }
  void show_stores(RankStage& stage) {
    stage.device().wait();
    stage.visit([&](const runtime::StoreView& store) { options_.on_store(step_, store); });
  }

  template <class Checkpoints>
  void report(const RankMemory& memory, const Checkpoints& checkpointer) {
    const std::lock_guard lock(report_mutex_);
    if (step_ < options_.steps) report_.stopped = vote_.asked_for();
    const auto i = static_cast<std::size_t>(world_.rank());
    if (memory.planned.total() >= report_.planned_memory[i].total()) {
      report_.planned_memory[i] = memory.planned;
      report_.measured_memory[i] = memory.measured();
    }
    if (checkpointer) report_.checkpoints[i].add(checkpointer->report());
  }

  comm::World& world_;
  const Platform& platform_;
  const MultiTaskModel& model_;  // with all tasks
  const TaskPlan& plan_;         // that the run begins with
  const std::vector<TaskSources>& sources_;
  const TaskTrainOptions& options_;
  TaskTrainReport& report_;
  std::mutex& report_mutex_;
  CheckpointOptions checkpoint_;
  StopVote vote_;
  std::int64_t step_;
  double last_ = 0;                   // when the last step ended
  std::exception_ptr failed_report_;  // what on_step threw
  MixChange change_;                  // the last one
  std::unique_ptr<KeptState> kept_;   // between two plans
};

template <class T, class Platform>
void train_task_rank(comm::World& world, const Platform& platform, const MultiTaskModel& model, const TaskPlan& plan,
                     const std::vector<TaskSources>& sources, const TaskTrainOptions& options, TaskTrainReport& report,
                     std::mutex& report_mutex) {
  platform.enter();
  TaskRankRun<T, Platform>(world, platform, model, plan, sources, options, report, report_mutex).run();
}

/// The plan that a run begins with. Errors (usage): those of check_mixes() and task_plan().
inline Result<TaskPlan> first_task_plan(const MultiTaskModel& model, const WavePlan& waves, TaskOrder order,
                                        const TaskTrainOptions& options) {
  return check_mixes(model, options.mixes, options.steps)
      .and_then([&] { return model_at(model, options.mixes, first_step(options)); })
      .and_then([&](const MultiTaskModel& now) { return task_plan(now, waves, order); });
}

/// Trains the ranks that `start` starts, which calls its argument with the world and the platform of each.
/// @param model  with all tasks  @param plan  first_task_plan()
template <class Start>
TaskTrainReport train_task_ranks(const MultiTaskModel& model, const TaskPlan& plan,
                                 const std::vector<TaskSources>& sources, const TaskTrainOptions& options,
                                 const Start& start) {
  if (sources.size() != model.tasks.size())
    throw Failure(ErrorKind::usage, "there are " + std::to_string(model.tasks.size()) + " tasks and data of " +
                                        std::to_string(sources.size()) + ": every task has its own");
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (sources[i].size() != model.tasks[i].inputs.size())
      throw Failure(ErrorKind::usage, "the task \"" + model.tasks[i].name + "\" has " +
                                          std::to_string(model.tasks[i].inputs.size()) + " inputs and " +
                                          std::to_string(sources[i].size()) + " sources of data");
  TaskTrainReport report;
  report.planned_memory.resize(static_cast<std::size_t>(plan.ranks));
  report.measured_memory.resize(static_cast<std::size_t>(plan.ranks));
  report.checkpoints.resize(static_cast<std::size_t>(plan.ranks));
  std::mutex mutex;
  start([&](comm::World& world, const auto& platform) {
    if (options.precision == Precision::fp32)
      train_task_rank<float>(world, platform, model, plan, sources, options, report, mutex);
    else
      train_task_rank<bfloat16>(world, platform, model, plan, sources, options, report, mutex);
  });
  std::vector<double> seconds;
  const std::int64_t since = report.mixes.empty() ? 0 : report.mixes.back().step;
  for (const TaskStepReport& step : report.steps)
    if (step.step >= since) seconds.push_back(step.seconds);
  if (seconds.size() > 1) seconds.erase(seconds.begin());
  report.iteration_seconds = median_of(std::move(seconds));
  return report;
}

}  // namespace detail

/// Trains as the plan says, one thread team for each of its ranks.
/// @tparam Policy   Tasks<in_sequence> or Tasks<in_waves>
/// @param  waves    for the tasks of the first step (TaskTrainOptions::mixes)
/// @param  sources  of each task, one for each of its inputs; asked by all ranks at once
/// Throws Failure (usage) for a model, a plan or data that make no sense, Failure (machine), which names the task, when
/// a loss is no longer a number and on_nan is stop, and what failed first on any rank.
template <class Policy>
TaskTrainReport train_tasks(const MultiTaskModel& model, const WavePlan& waves, const std::vector<TaskSources>& sources,
                            const TaskTrainOptions& options) {
  const TaskPlan plan = value_or_throw(detail::first_task_plan(model, waves, Policy::order, options));
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank : threads_per_rank(plan.ranks);
  HostPlatform::require(options.precision);
  return detail::train_task_ranks(model, plan, sources, options, [&](const auto& train_one) {
    comm::thread::run(
        plan.ranks,
        [&](comm::thread::World& world) {
          PinnedRank pin(world.rank(), world.size(), threads, &SharedCores::of_process());
          train_one(world, HostPlatform{threads, &pin});
        },
        options.world);
  });
}

}  // namespace galvatron::train
