// The trainer: runs a plan on rank threads of this machine.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <galvatron/checkpoint/checkpointer.hpp>
#include <galvatron/checkpoint/manifest.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/cluster/host.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/thread/world.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/rank/host_rank.hpp>
#include <galvatron/rank/stopwatch.hpp>
#include <galvatron/train/adapt.hpp>
#include <galvatron/train/expert_dispatch.hpp>
#include <galvatron/train/expert_loads.hpp>
#include <galvatron/train/move_states.hpp>
#include <galvatron/train/recorder.hpp>
#include <galvatron/train/recovery.hpp>
#include <galvatron/train/stage.hpp>
#include <galvatron/train/stop.hpp>
#include <galvatron/train/train_options.hpp>

namespace galvatron::train {

namespace detail {

inline StepReport::Packed packed_report(BatchSource& source, const Plan& plan, std::int64_t step) {
  const auto packing = source.packing(step);
  return {.microbatches = packing->microbatches(),
          .padding = packing->padding(),
          .groups = groups_text(*packing, plan.embedding.context),
          .waited = source.waited(step)};
}

/// The mean loss of the samples of a validation. Collective.
template <class Stage>
double validation_loss(Stage& stage, const Validation& validation) {
  double loss = 0;
  std::int64_t packed = 0;
  for (std::int64_t batch = 0; batch < validation.batches; ++batch) {
    loss += stage.evaluate(batch, *validation.source);
    if (const auto packing = validation.source->packing(batch)) packed += packing->tokens();
  }
  return loss / static_cast<double>(packed > 0 ? packed : validation.predictions);
}

/// What every rank does, whatever a rank is: one plan after the other, mostly one.
/// @param platform  HostPlatform or its like: what makes a rank's memory and device
template <class T, class Platform>
class RankRun {
 public:
  using Rank = typename Platform::Rank;
  using Device = typename Rank::Device;
  using RankStage = Stage<Device, T>;

  RankRun(comm::World& world, const Platform& platform, const Plan& plan, const ModelSpec& model,
          const LayerMaker<Device, T>& make, BatchSource& source, const TrainOptions& options, TrainReport& report,
          std::mutex& report_mutex)
      : world_(world),
        platform_(platform),
        plan_(plan),
        model_(model),
        make_(make),
        source_(source),
        options_(options),
        report_(report),
        report_mutex_(report_mutex),
        checkpoint_(options.checkpoint),
        vote_(world.control().everybody(), options.stop),
        adapter_(world.control().everybody(), options.adapt, plan, model),
        step_(first_step(options)) {}

  void run() {
    const Plan* running = &plan_;
    for (Plan adapted; train(*running); running = &adapted) adapted = adaptation_.plan;
    if (failed_report_ != nullptr) std::rethrow_exception(failed_report_);
  }

 private:
  // True: another plan is to go on.
  bool train(const Plan& plan) {
    const StagePlan stage_of_rank = stage_plan(plan, model_, world_.rank());
    Rank rank = platform_.make(memory_of(stage_of_rank, platform_.library_workspace()));
    RankMemory& memory = rank.memory();
    RankStage stage(rank.device(), world_, plan, model_, memory, make_, options_.counts_loads);
    const comm::SendGuard guard(world_);  // nobody reads this rank's memory once it is gone
    try {
      begin(rank, stage);
    } catch (const PeerFailure&) {
      if (kept_ != nullptr && options_.adapt.survivor)
        options_.adapt.survivor({world_.rank(), step_, kept_, last_report_});
      throw;
    }
    std::optional<Checkpointer<Device, RankStage>> checkpointer;
    if (!checkpoint_.folder.empty()) {
      // The lock is of the whole run.
      if (world_.rank() == 0 && checkpoint_.lock == nullptr)
        checkpoint_.lock = value_or_throw(FolderLock::take(checkpoint_.folder));
      checkpointer.emplace(checkpoint_, training_state(), rank.device(), world_, stage,
                           [this] { platform_.enter_beside(); });
      stage.before_update([&checkpointer] { checkpointer->before_update(); });
    }
    stage.repeat(options_.repeats);
    stage.take_fixed_groups(options_.late_groups_fixed);
    if (options_.recorder != nullptr) stage.observe(&options_.recorder->rank(world_.rank()));
    std::optional<Replan> next;
    const std::int64_t first = step_;
    try {
      next = steps(plan, rank, stage, checkpointer);
    } catch (const PeerFailure&) {
      if (options_.adapt.survivor) survive(plan, rank, stage, first);
      throw;
    }
    if (next && checkpointer) checkpointer->finish();
    report(memory, rank, checkpointer);
    if (!next) return false;
    kept_ = std::make_shared<KeptState>(rank.device(), stage, world_.rank());
    adaptation_ = {.step = step_,
                   .rank = next->rank,
                   .reason = adapter_.reason(next->rank),
                   .iteration = next->iteration,
                   .plan = std::move(next->plan)};
    return true;
  }

  // The state that the stage starts with.
  void begin(Rank& rank, RankStage& stage) {
    const runtime::ParameterSource initial =
        options_.initial ? options_.initial : runtime::initial_values(options_.seed, platform_.threads);
    if (kept_ != nullptr) {
      move_states(world_.control(), *kept_, model_, stage, initial);
      kept_.reset();
      if (world_.rank() == 0) report(adaptation_, last_);
      return;
    }
    if (options_.goes_on != nullptr)
      restore(stage, *options_.goes_on->states, initial);
    else if (options_.resume != nullptr)
      restore(stage, *options_.resume, initial);
    else
      stage.initialise(initial);
    if constexpr (requires { rank.begin_search(); }) {
      if (options_.searches && world_.size() == 1) {  // on values of training: a GPU multiplies zeros faster
        rank.begin_search();
        stage.autotune(step_, &source_);
        rank.end_search();
      }
    }
    if (const auto& loss = options_.adapt.loss) {
      last_report_ = loss->unreported;
      if (world_.rank() != 0) return;
      report(loss->adaptation, loss->since);
      if (loss->unreported) report(*loss->unreported);
    }
  }

  [[nodiscard]] TrainingState training_state() const {
    return {.model = model_.name,
            .architecture = model_architecture(model_),
            .base = adapters_of(model_).rank > 0 ? options_.initial_name : "",
            .step = step_,
            .seed = options_.seed,
            .global_batch = plan_.global_batch,
            .sequence_length = plan_.sequence_length,
            .data_tokens = options_.data_tokens,
            .data_crc32c = options_.data_crc32c,
            .precision = plan_.precision,
            .learning_rate = options_.learning_rate,
            .adam = options_.adam,
            .clip = options_.clip};
  }

  // Trains until the run ends, or a plan is better than this one.
  template <class Checkpoints>
  std::optional<Replan> steps(const Plan& plan, Rank& rank, RankStage& stage, Checkpoints& checkpointer) {
    std::optional<Replan> next;
    for (last_ = steady_seconds(); step_ < options_.steps && !vote_.ends() && !next; ++step_) {
      if (options_.adapt.before_step) options_.adapt.before_step(world_.rank(), step_);
      device::AdamW hyper = options_.adam;
      hyper.learning_rate = static_cast<float>(options_.learning_rate.at(step_));
      hyper.step = step_ + 1;
      hyper.seed = options_.seed;
      const StepResult result = stage.step(step_, &source_, hyper, options_.clip);
      world_.check();
      const std::string wrong = result.is_finite() ? std::string() : not_finite(result, stage);
      const double seconds = steady_seconds() - last_;
      const bool measures = std::is_same_v<Platform, HostPlatform> && world_.size() > 1;
      StepSeconds measured{stage.own_seconds(), seconds};
      if (options_.adapt.measured) options_.adapt.measured(world_.rank(), step_, measured);
      const bool known = measures && adapter_.after_step(measured);
      std::optional<double> validation;
      if (options_.validation.source != nullptr &&
          ((step_ + 1) % options_.validation.every == 0 || step_ + 1 == options_.steps))
        validation = validation_loss(stage, options_.validation);
      if (world_.rank() == 0 || options_.adapt.survivor) {
        last_report_ = report_of(plan, result, wrong, seconds, rank.memory());
        if (known) last_report_->ranks = adapter_.ranks();
        if (validation) {
          last_report_->validation_loss = validation;
          last_report_->validation_bits_per_byte = bits_per_byte(*validation, options_.validation.tokens_per_byte);
        }
        if (world_.rank() == 0) report(*last_report_);
      }
      if (known && options_.adapt.on && step_ + 1 < options_.steps) next = adapter_.decide(plan);
      vote_.after_step(failed_report_ != nullptr);
      if (checkpointer) checkpointer->after_step(step_ + 1, step_ + 1 == options_.steps || vote_.ends());
      platform_.between_steps();
      last_ = steady_seconds();
    }
    if (vote_.ends()) next.reset();
    return next;
  }

  // What is wrong with a step that is not finite, without the place.
  [[nodiscard]] std::string not_finite(const StepResult& result) const {
    const auto text = [](double value) { return std::isnan(value) ? "nan" : std::to_string(value); };  // no "-nan"
    return "step " + std::to_string(step_ + 1) + " gave a loss of " + text(result.loss) + " and a gradient norm of " +
           text(result.gradient_norm);
  }
  // The same with it; throws where that ends the run. Collective.
  std::string not_finite(const StepResult& result, RankStage& stage) const {
    std::string wrong = not_finite(result) + ", first seen in " + place_text(stage.find_non_finite());
    if (options_.on_nan == OnNan::stop)
      throw Failure(
          ErrorKind::machine,
          wrong + (step_ == 0 ? ": no parameter was updated yet, so it is not the learning rate; the weights that "
                                "the run began with are too large for this precision, or the model has no finite "
                                "loss on these data"
                              : ": training has diverged; use a smaller learning rate or more warm-up, or skip "
                                "such steps"));
    return wrong;
  }

  // Of the step at hand, as this rank knows it.
  StepReport report_of(const Plan& plan, const StepResult& result, const std::string& wrong, double seconds,
                       const RankMemory& memory) {
    const std::int64_t tokens = plan.packed ? result.tokens : plan.global_batch * plan.sequence_length;
    return {.step = step_,
            .loss = result.loss,
            .gradient_norm = result.gradient_norm,
            .balance_loss = result.balance_loss,
            .z_loss = result.z_loss,
            .dispatch = total(result.dispatch),
            .learning_rate = options_.learning_rate.at(step_),
            .seconds = seconds,
            .tokens = tokens,
            .tokens_per_second = static_cast<double>(tokens) / seconds,
            .mfu = plan_.predicted.mfu * plan_.predicted.iteration.value / seconds,
            .peak_memory = memory.measured().total(),
            .skipped = wrong,
            .loads = result.loads,
            .layer_dispatch = result.dispatch,
            .packed = plan.packed ? std::optional(packed_report(source_, plan, step_)) : std::nullopt,
            .bits_per_byte = bits_per_byte(result.loss, options_.tokens_per_byte)};
  }

  void report(const StepReport& step) {
    if (!report_.steps.empty()) report_.steps.back().loads.clear();
    if (!report_.steps.empty()) report_.steps.back().layer_dispatch.clear();
    report_.steps.push_back(step);
    if (!options_.on_step || failed_report_ != nullptr) return;
    try {
      options_.on_step(step);
    } catch (...) {
      failed_report_ = std::current_exception();
    }
  }

  void report(Adaptation adaptation, double since) {
    adaptation.seconds = steady_seconds() - since;
    report_.adaptations.push_back(adaptation);
    if (options_.adapt.on_adaptation) options_.adapt.on_adaptation(adaptation);
  }

  // Another rank is lost. @param first  the step that the plan at hand began with
  void survive(const Plan& plan, Rank& rank, RankStage& stage, std::int64_t first) {
    const auto updates = stage.updates();
    Survivor out{world_.rank(), updates ? first + *updates : -1, nullptr};
    if (updates) {
      out.state = std::make_shared<KeptState>(rank.device(), stage, world_.rank());
      if (out.step > step_ && !(last_report_ && last_report_->step == step_)) {  // updated, but not ended
        const StepResult result = stage.result();
        last_report_ = report_of(plan, result, result.is_finite() ? "" : not_finite(result), steady_seconds() - last_,
                                 rank.memory());
      }
      out.report = last_report_;
    }
    options_.adapt.survivor(std::move(out));
  }

  template <class Checkpoints>
  void report(const RankMemory& memory, Rank& rank, const Checkpoints& checkpointer) {
    const std::lock_guard lock(report_mutex_);
    if (step_ < options_.steps) report_.stopped = vote_.asked_for();
    const auto i = static_cast<std::size_t>(world_.rank());
    report_.planned_memory[i] = memory.planned;
    report_.measured_memory[i] = memory.measured();
    if (world_.rank() == 0) report_.remarks = rank.remarks();
    if (checkpointer) report_.checkpoints[i].add(checkpointer->report());
  }

  comm::World& world_;
  const Platform& platform_;
  const Plan& plan_;  // that the run began with
  const ModelSpec& model_;
  const LayerMaker<Device, T>& make_;
  BatchSource& source_;
  const TrainOptions& options_;
  TrainReport& report_;
  std::mutex& report_mutex_;
  CheckpointOptions checkpoint_;
  StopVote vote_;
  Adapter adapter_;
  std::int64_t step_;
  double last_ = 0;                        // when the last step ended
  std::exception_ptr failed_report_;       // what on_step threw
  std::optional<StepReport> last_report_;  // of the last step that ended: on rank 0, and where others may be lost
  Adaptation adaptation_;                  // the last one
  std::shared_ptr<KeptState> kept_;        // between two plans
};

template <class T, class Platform>
void train_rank(comm::World& world, const Platform& platform, const Plan& plan, const ModelSpec& model,
                const LayerMaker<typename Platform::Rank::Device, T>& make, BatchSource& source,
                const TrainOptions& options, TrainReport& report, std::mutex& report_mutex) {
  platform.enter();
  RankRun<T, Platform>(world, platform, plan, model, make, source, options, report, report_mutex).run();
}

/// Trains the ranks that `start` starts, which calls its argument with the world and the platform of each.
/// @param report  keeps the steps of a run that fails
template <class List, class Start>
void train_ranks(const Plan& plan, const ModelSpec& model, BatchSource& source, const TrainOptions& options,
                 TrainReport& report, const Start& start) {
  report.steps.reserve(static_cast<std::size_t>(std::max<std::int64_t>(options.steps - first_step(options), 0)));
  const auto ranks = static_cast<std::size_t>(plan.ranks());
  report.planned_memory.assign(ranks, {});
  report.measured_memory.assign(ranks, {});
  report.checkpoints.assign(ranks, {});
  std::mutex mutex;
  start([&]<class Platform>(comm::World& world, const Platform& platform) {
    using Device = typename Platform::Rank::Device;
    const auto train = [&]<class T>(const LayerMaker<Device, T>& make) {
      train_rank<T>(world, platform, plan, model, make, source, options, report, mutex);
    };
    if (plan.precision == Precision::fp32)
      train(layer_maker<List, Device, float>());
    else
      train(layer_maker<List, Device, bfloat16>());
  });
  std::vector<double> seconds;
  for (std::size_t i = report.steps.size() > 1 ? 1 : 0; i < report.steps.size(); ++i)
    seconds.push_back(report.steps[i].seconds);
  report.iteration_seconds = median_of(std::move(seconds));
}

template <class List, class Start>
TrainReport train_ranks(const Plan& plan, const ModelSpec& model, BatchSource& source, const TrainOptions& options,
                        const Start& start) {
  TrainReport report;
  train_ranks<List>(plan, model, source, options, report, start);
  return report;
}

}  // namespace detail

/// Trains as the plan says, one thread team for each of its ranks. With AdaptOptions::plan_for a rank thread that ends
/// with a DeviceFailure is lost, and the others go on.
/// @tparam List  the strategies of the program; a trainer that names its strategy as a type lists only it
/// @param source  asked by all ranks at once
/// Throws what failed first on any rank: Failure (usage) for a plan that this program cannot run, DeviceFailure,
/// PeerFailure, or Failure (machine) when the loss or a gradient is no longer a number and on_nan is stop.
template <class List = InstantiatedStrategies>
TrainReport train(const Plan& plan, const ModelSpec& model, BatchSource& source, const TrainOptions& options) {
  HostPlatform::require(plan.precision);
  return detail::with_recovery(plan, model, options, [&](const Plan& now, const TrainOptions& with, TrainReport& out) {
    const int threads = threads_per_rank(with, now.ranks());
    detail::train_ranks<List>(now, model, source, with, out, [&](const auto& train_one) {
      comm::thread::run(
          now.ranks(),
          [&](comm::thread::World& world) {
            PinnedRank pin(world.rank(), world.size(), threads, &SharedCores::of_process());
            train_one(world, HostPlatform{threads, &pin});
          },
          with.world);
    });
  });
}

}  // namespace galvatron::train
