// TaskStage: one rank of a multi-task model, and the interpreter of its program.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/plan/task_costs.hpp>
#include <galvatron/plan/task_program.hpp>
#include <galvatron/rank/rank_memory.hpp>
#include <galvatron/train/recorder.hpp>
#include <galvatron/train/task_part.hpp>

namespace galvatron::train {

/// What a step of all tasks gave; equal on all ranks.
struct TaskStepResult {
  std::vector<double> losses;  ///< of each task: the mean of its predictions, in nats, without its weight
  double loss = 0;             ///< their weighted sum
  double gradient_norm = 0;    ///< before clipping
  /// False: the step changed no parameter.
  [[nodiscard]] bool is_finite() const { return std::isfinite(loss) && std::isfinite(gradient_norm); }
};

/// @tparam D  the device  @tparam T  element type of activations and working parameters
template <class D, class T>
class TaskStage {
 public:
  /// Takes all memory that the rank will ever use. The plan must outlive the stage.
  TaskStage(D& device, comm::World& world, const TaskPlan& plan, RankMemory& memory)
      : device_(device),
        world_(world),
        plan_(plan),
        parts_(plan.parts.size()),
        layers_(plan.layers.size()),
        assisted_(plan.parts.size()) {
    losses_ = memory.states.template take<double>(static_cast<std::int64_t>(plan.model.tasks.size()));
    for (std::size_t i = 0; i < layers_.size(); ++i)
      if (plan.places[i].holds(world.rank()))
        layers_[i] = std::make_unique<SharedLayer<D, T>>(device, memory, world, plan.layers[i], plan.places[i],
                                                         static_cast<int>(i), plan.layer_tokens[i]);
    // Tasks in sequence have the same memory for what a task keeps.
    const bool reuses = plan.order == TaskOrder::in_sequence;
    for (int task = 0; task < (reuses ? static_cast<int>(plan.model.tasks.size()) : 1); ++task) {
      if (reuses) memory.stash.restore_low(0);
      for (int i = 0; i < static_cast<int>(plan.parts.size()); ++i)
        if (!reuses || plan.part(i).where.task == task) make_part(i, memory);
    }
  }
  TaskStage(const TaskStage&) = delete;
  TaskStage& operator=(const TaskStage&) = delete;

  [[nodiscard]] D& device() { return device_; }

  /// Parameters from `source`, which runtime::initial_values(seed) makes for a new run; moments 0.
  void initialise(const runtime::ParameterSource& source) {
    for_stores([&](runtime::Store& store) { store.initialise(source); });
  }
  /// One step: all passes of all tasks, gradients reduced, clipped and applied, unless one is infinite or not a number.
  /// @param step     counts from 0; chooses the samples
  /// @param sources  of each task; null on a device that only counts
  /// @param clip     the largest gradient norm; 0 for no clipping
  TaskStepResult step(std::int64_t step, const std::vector<TaskSources>* sources, const device::AdamW& hyper,
                      double clip) {
    if (record_ != nullptr) record_->step_begins(step);
    passes(step, sources);
    if (before_update_) before_update_();
    const double began = steady_seconds();
    update(hyper, clip);
    world_.wait_sent();
    TaskStepResult out = result();
    record({TaskInstruction::Op::update, -1}, began, began);
    return out;
  }
  /// The losses of all tasks on a batch of theirs, samples of step 0 from batch * (the task's batch) on, without
  /// gradients or an update: a step's first half. Collective.
  /// @param rows  gets what this rank has of the rows that contrastive losses compare
  std::vector<double> evaluate(std::int64_t batch, const std::vector<TaskSources>& sources,
                               std::vector<TowerRows>& rows) {
    device_.clear_sums();
    device_.zero(raw_bytes(losses_));
    int last = -1;
    for (const TaskInstruction& instruction : plan_.program) {
      if (instruction.op != TaskInstruction::Op::forward) continue;
      const int task = plan_.part(instruction.part).where.task;
      wait_for_memory(task, last);
      TaskPart<D, T>* part = parts_[static_cast<std::size_t>(instruction.part)].get();
      if (part == nullptr) {
        assist(instruction);
        continue;
      }
      part->forward(instruction.microbatch, first_sample(instruction, 0, batch * plan_.model.task(task).batch),
                    &sources[static_cast<std::size_t>(task)], &rows);
    }
    world_.everybody().all_reduce(losses_, comm::ReduceOp::sum);
    world_.wait_sent();
    return result().losses;
  }
  /// Tells the record about every instruction from now on; null: nobody.
  void observe(RecordedSpans<TaskSpan>* record) { record_ = record; }
  /// Calls `before` in every step, when the parameters and moments are about to change.
  void before_update(std::function<void()> before) { before_update_ = std::move(before); }
  /// Calls `visit` for every parameter store on this rank.
  void visit(const runtime::StoreVisitor& visitor) {
    for_stores([&](runtime::Store& store) { visitor(store.view()); });
  }

 private:
  void make_part(int i, RankMemory& memory) {
    const PartPlan& part = plan_.part(i);
    if (std::ranges::find(part.where.ranks, world_.rank()) == part.where.ranks.end()) return note_assistance(i);
    std::vector<SharedLayer<D, T>*> own;
    for (std::size_t k = 0; k < part.layers.size(); ++k)
      own.push_back(layers_[static_cast<std::size_t>(part.number) + k].get());
    parts_[static_cast<std::size_t>(i)] =
        std::make_unique<TaskPart<D, T>>(device_, world_, memory, plan_, i, own, losses_.slice(part.where.task, 1));
  }
  // Parts of other ranks whose parameters are shared with this one.
  void note_assistance(int i) {
    const PartPlan& part = plan_.part(i);
    for (std::size_t k = 0; k < part.layers.size(); ++k) {
      const std::size_t number = static_cast<std::size_t>(part.number) + k;
      if (plan_.assists(part, k, world_.rank()))
        assisted_[static_cast<std::size_t>(i)].push_back(
            {layers_[number].get(), parameter_steps(program::lower(forward_of(part.layers[k]), part.where.strategy))});
    }
  }
  void assist(const TaskInstruction& instruction) {
    auto& layers = assisted_[static_cast<std::size_t>(instruction.part)];
    const bool forward = instruction.op == TaskInstruction::Op::forward;
    const auto phase = static_cast<std::size_t>(forward ? program::Phase::forward : program::Phase::backward);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const Assisted& own = layers[forward ? i : layers.size() - 1 - i];
      own.layer->assist(own.steps[phase]);
    }
  }
  void for_stores(const std::function<void(runtime::Store&)>& f) {
    for (auto& layer : layers_)
      if (layer) layer->groups().for_each_store(f);
  }
  // Those that a step changes.
  void for_used_stores(const std::function<void(runtime::Store&)>& f) {
    for (std::size_t i = 0; i < layers_.size(); ++i)
      if (layers_[i] && !plan_.places[i].idle) layers_[i]->groups().for_each_store(f);
  }
  // Tasks in sequence use the same memory: nobody reads that of the last one any more.
  void wait_for_memory(int task, int& last) {
    if (plan_.order == TaskOrder::in_sequence && task != last) world_.wait_sent();
    last = task;
  }
  // Forward and backward of all tasks, with the reduction of gradients over the ranks that keep them.
  void passes(std::int64_t step, const std::vector<TaskSources>* sources) {
    device_.clear_sums();
    device_.zero(raw_bytes(losses_));
    for_used_stores([](runtime::Store& store) { store.zero_gradients(); });
    int last = -1;  // task
    for (const TaskInstruction& instruction : plan_.program) {
      wait_for_memory(plan_.part(instruction.part).where.task, last);
      TaskPart<D, T>* part = parts_[static_cast<std::size_t>(instruction.part)].get();
      if (part == nullptr) {
        assist(instruction);
        continue;
      }
      const double began = steady_seconds();
      if (instruction.op == TaskInstruction::Op::backward) {
        record(instruction, began, part->backward(instruction.microbatch));
        continue;
      }
      const auto task = static_cast<std::size_t>(part->plan().where.task);
      const double moved = part->forward(instruction.microbatch, first_sample(instruction, step, 0),
                                         sources == nullptr ? nullptr : &(*sources)[task]);
      record(instruction, began, moved);
    }
    const double began = steady_seconds();
    for (const int layer : plan_.reductions)
      if (auto& own = layers_[static_cast<std::size_t>(layer)])
        own->groups().for_each_store([](runtime::Store& store) { store.synchronise(); });
    record({TaskInstruction::Op::reduce, -1}, began, began);
  }
  void record(const TaskInstruction& instruction, double began, double moved) {
    if (record_ != nullptr) record_->spans.push_back({instruction, {began}, {moved}, {steady_seconds()}});
  }
  // @param first  sample of the task's batch
  [[nodiscard]] SamplePlace first_sample(const TaskInstruction& instruction, std::int64_t step,
                                         std::int64_t first) const {
    return {step, first + instruction.microbatch * plan_.part(instruction.part).batch};
  }
  void update(const device::AdamW& hyper, double clip) {
    for_used_stores([](runtime::Store& store) { store.add_gradient_squares(); });
    const View<double> sums = device_.sums();
    world_.everybody().all_reduce(sums, comm::ReduceOp::sum);
    world_.everybody().all_reduce(losses_, comm::ReduceOp::sum);
    device_.clip_scale(View<const double>(sums), clip, device_.gradient_scale());
    device_.begin_update(hyper);
    for_used_stores([](runtime::Store& store) { store.update(); });
  }
  TaskStepResult result() {
    double sums[device::step_sums];
    device_.fetch(View<const double>(device_.sums()), sums);
    TaskStepResult out{.losses = std::vector<double>(plan_.model.tasks.size())};
    device_.fetch(View<const double>(losses_), out.losses.data());
    for (const PartPlan& part : plan_.parts) {
      if (!part.has_loss()) continue;
      double& loss = out.losses[static_cast<std::size_t>(part.where.task)];
      loss /= static_cast<double>(part.batch * part.microbatches * part.predictions);
      out.loss += loss * plan_.model.tasks[static_cast<std::size_t>(part.where.task)].weight;
    }
    out.gradient_norm = std::sqrt(sums[device::gradient_squares]);
    return out;
  }

  D& device_;
  comm::World& world_;
  const TaskPlan& plan_;
  std::vector<std::unique_ptr<TaskPart<D, T>>> parts_;      ///< null: of other ranks
  std::vector<std::unique_ptr<SharedLayer<D, T>>> layers_;  ///< the same
  struct Assisted {
    SharedLayer<D, T>* layer;
    ParameterSteps steps;
  };
  std::vector<std::vector<Assisted>> assisted_;  ///< layers of each part of other ranks
  View<double> losses_;                          ///< of the device, of each task
  std::function<void()> before_update_;
  RecordedSpans<TaskSpan>* record_ = nullptr;
};

}  // namespace galvatron::train
