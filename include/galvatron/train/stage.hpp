// Stage: one rank's part of a model, and the interpreter of its schedule program.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/comm/call_clock.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/plan/rank_seconds.hpp>
#include <galvatron/plan/stage_plan.hpp>
#include <galvatron/rank/rank_memory.hpp>
#include <galvatron/runtime/make_layer.hpp>
#include <galvatron/schedule/schedule.hpp>
#include <galvatron/train/chunk.hpp>
#include <galvatron/train/expert_dispatch.hpp>
#include <galvatron/train/expert_loads.hpp>
#include <galvatron/train/non_finite.hpp>
#include <galvatron/train/recorder.hpp>

namespace galvatron::train {

/// What a step of the whole job gave; equal on all ranks.
struct StepResult {
  double loss = 0;           ///< mean cross-entropy of a prediction, in nats; of several losses their weighted sum
  double gradient_norm = 0;  ///< before clipping
  double balance_loss = 0;   ///< of the routers of all layers, with their coefficients: beside `loss`, not in it
  double z_loss = 0;         ///< the same
  std::int64_t tokens = 0;   ///< of packed documents; 0: those of the plan's samples
  std::vector<LayerDispatch> dispatch{};  ///< of layers with experts
  std::vector<ExpertLoads> loads{};       ///< of layers with experts, where the stage counts them
  /// False: the step changed no parameter.
  [[nodiscard]] bool is_finite() const { return std::isfinite(loss) && std::isfinite(gradient_norm); }
};

/// @tparam D  the device  @tparam T  element type of activations and working parameters
template <class D, class T>
class Stage {
 public:
  /// Takes all memory that the stage will ever use. Throws what `make` throws, see layer_maker(). With plan.overlap,
  /// traffic of the data ranks runs beside computation: gradients of ZeRO-0/1 beside the rest of the last backward
  /// pass, parameters of ZeRO-1/2 beside the next forward pass, and as ZeroPrefetch says. The same bits either way.
  /// @param counts_loads  StepResult::loads; whether or not, all else has the same bits. Not of more experts than
  ///                      LoadPlaces::fit()
  Stage(D& device, comm::World& world, const Plan& plan, const ModelSpec& model, RankMemory& memory,
        const LayerMaker<D, T>& make, bool counts_loads = false)
      : device_(device),
        world_(world),
        plan_(stage_plan(plan, model, world.rank())),
        schedule_(plan.schedule),
        virtual_stages_(plan.virtual_stages),
        packs_(plan.packed),
        microbatches_(plan.microbatches),
        program_(value_or_throw(
            schedule::stage_program(plan.schedule, plan_.stages, plan_.index, plan.microbatches, plan.virtual_stages))),
        load_places_(model),
        dispatch_places_(plan, model) {
    if (counts_loads && load_places_.fit()) loads_ = device_.loads().slice(0, load_places_.count());
    if (const std::int64_t count = dispatch_places_.count(); count > 0) {
      dispatch_ = device_.layer_sums().slice(0, count);
      sent_bytes_.resize(static_cast<std::size_t>(dispatch_places_.bytes(dispatch_).count));
    }
    const auto counts = [this](int layer) {
      return LayerCounts{load_places_.of(loads_, layer), dispatch_places_.of(dispatch_, sent_bytes_, layer)};
    };
    for (const ChunkPlan& chunk : plan_.chunks) {
      runtime::Layer<T>* first = chunks_.empty() ? nullptr : chunks_.front()->layers().front().get();
      chunks_.push_back(std::make_unique<Chunk<D, T>>(device, world, plan_, chunk, memory, make, counts, first));
    }
  }

  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  [[nodiscard]] D& device() { return device_; }

  /// Parameters from `source`, which initial_values(seed) makes for a new run; moments 0.
  void initialise(const runtime::ParameterSource& source) {
    for_stores([&](runtime::Store& store) { store.initialise(source); });
  }

  /// One step of the whole job: all micro-batches forward and backward, gradients reduced, clipped and applied, unless
  /// one is infinite or not a number.
  /// @param step  counts from 0; chooses the samples
  /// @param source  null on a device that only counts
  /// @param clip  the largest gradient norm; 0 for no clipping
  StepResult step(std::int64_t step, BatchSource* source, device::AdamW hyper, double clip) {
    step_ = step;
    source_ = source;
    seed_ = hyper.seed;
    if (observer_ != nullptr) observer_->step_begins(step);
    const comm::WorkWatch watch;
    const auto last = [&] {
      own_.passes = watch.seconds();
      observed({schedule::Op::step}, [&] { update(hyper, clip); });
      own_.update = watch.seconds() - own_.passes;
    };
    if (before_update_) {
      repeated(0, [this] { passes(); });
      before_update_();
      repeated(1, last);
    } else {
      repeated(2, [&] {
        passes();
        last();
      });
    }
    world_.wait_sent();
    return result();
  }

  /// This rank's own work in the last step, as far as the calling thread does it: of cores.
  [[nodiscard]] RankSeconds own_seconds() const { return own_; }
  /// Updates that masters and moments have behind them; none while one is being made, or was cut short by an exception.
  [[nodiscard]] std::optional<std::int64_t> updates() const {
    return updating_ ? std::nullopt : std::optional(updates_);
  }

  /// Of the step that was updated last, as step() returned it.
  StepResult result() {
    const auto values = sums();
    return {
        .loss = loss_sum() * (packing_ == nullptr ? plan_.token_weight : 1.0 / static_cast<double>(packing_->tokens())),
        .gradient_norm = std::sqrt(values[device::gradient_squares]),
        .balance_loss = values[device::balance_loss],
        .z_loss = values[device::z_loss],
        .tokens = packing_ == nullptr ? 0 : packing_->tokens(),
        .dispatch = dispatch(),
        .loads = loads()};
  }

  /// The passes of a step alone: parameters and moments stay, gradients are gone. For devices that learn from a step
  /// how they should do the others.
  void autotune(std::int64_t step, BatchSource* source) {
    step_ = step;
    source_ = source;
    passes();
    world_.wait_sent();
  }

  /// Collective, between two steps: the loss of the samples of step `step` of a source, summed over their predictions,
  /// in nats, by passes that go forward alone. No parameter changes, and no step that follows.
  double evaluate(std::int64_t step, BatchSource& source) {
    const auto infer = [this](const std::optional<runtime::Inference<T>>& how) {
      for (auto& chunk : chunks_)
        for (auto& layer : chunk->layers()) layer->infer(how);
    };
    step_ = step;
    source_ = &source;
    infer(runtime::Inference<T>{});
    begin_passes();
    for (schedule::Cursor next(program_); !next.at_end(); ++next)
      if (goes_forward((*next).op)) run(*next);
    world_.wait_sent();
    infer({});
    world_.everybody().all_reduce(device_.sums(), comm::ReduceOp::sum);
    return loss_sum();
  }

  /// Collective, after a step whose result is not finite: where that began.
  NonFinite find_non_finite() {
    NonFiniteSearch search;
    for (auto& chunk : chunks_) chunk->look_for_non_finite(search);
    return search.agree(world_.control().everybody());
  }

  /// From now on the device may do a step as it did the one before: see Device. Only where a rank is alone and nobody
  /// observes it, so that everything in a step is the device's, and samples are no packed documents.
  void repeat(bool repeats) { repeats_ = repeats && world_.size() == 1 && !packs_; }

  /// A step whose groups are not chosen yet takes those of the plan, instead of waiting.
  void take_fixed_groups(bool takes) { takes_fixed_groups_ = takes; }

  /// Tells `observer` about every instruction from now on; null: nobody.
  void observe(RecordedStep* observer) { observer_ = observer; }

  /// Calls `before` in every step, when the parameters and moments are about to change.
  void before_update(std::function<void()> before) { before_update_ = std::move(before); }

  /// Calls `visit` for every parameter store on this rank that is trained.
  void visit(const runtime::StoreVisitor& visitor) {
    for_stores([&](runtime::Store& store) {
      if (const runtime::StoreView view = store.view(); !view.layout->frozen) visitor(view);
    });
  }

 private:
  void for_stores(const std::function<void(runtime::Store&)>& f) {
    for (auto& chunk : chunks_)
      for (auto& layer : chunk->layers()) layer->for_each_store(f);
  }

  template <class F>
  void repeated(int number, const F& body) {
    if (repeats_ && observer_ == nullptr)
      device_.repeat(number, body);
    else
      body();
  }
  template <class F>
  void observed(const schedule::Instruction& instruction, const F& body) {
    const double began = observer_ != nullptr ? steady_seconds() : 0;
    body();
    if (observer_ != nullptr) observer_->ended(instruction, began);
  }

  static constexpr bool goes_forward(schedule::Op op) {
    return op == schedule::Op::receive_activation || op == schedule::Op::forward || op == schedule::Op::send_activation;
  }

  // Forward and backward of all micro-batches, with the reduction of gradients.
  void passes() {
    begin_passes();
    for_stores([](runtime::Store& store) { store.zero_gradients(); });
    for (schedule::Cursor next(program_); !next.at_end(); ++next)
      if (const schedule::Instruction instruction = *next; instruction.op != schedule::Op::step)
        observed(instruction, [&] { run(instruction); });
  }
  // The packing of the step, and sums of nothing.
  void begin_passes() {
    if (takes_fixed_groups_ && source_ != nullptr) {
      double late = source_->is_packed(step_) ? 0 : 1;
      world_.control().everybody().all_reduce(View<double>(&late, 1), comm::ReduceOp::max);
      if (late > 0) source_->pack_fixed(step_);
    }
    packing_ = source_ == nullptr ? nullptr : source_->packing(step_);
    if (packing_ != nullptr) {
      for (auto& chunk : chunks_) chunk->pack(packing_.get());
      microbatches_ = static_cast<int>(packing_->microbatches());
      program_ =
          value_or_throw(schedule::stage_program(schedule_, plan_.stages, plan_.index, microbatches_, virtual_stages_));
    }
    device_.clear_sums();
    if (!loads_.empty()) device_.zero(raw_bytes(loads_));
    if (!dispatch_.empty()) device_.zero(raw_bytes(dispatch_));
    std::ranges::fill(sent_bytes_, 0);
  }

  void run(const schedule::Instruction& instruction) {
    Chunk<D, T>& chunk = *chunks_[static_cast<std::size_t>(instruction.chunk)];
    switch (instruction.op) {
      case schedule::Op::receive_activation:
        return chunk.receive_activation(instruction.microbatch);
      case schedule::Op::forward:
        return chunk.forward(step_, instruction.microbatch, source_, seed_);
      case schedule::Op::send_activation:
        return chunk.send_activation(instruction.microbatch);
      case schedule::Op::receive_gradient:
        return chunk.receive_gradient(instruction.microbatch);
      case schedule::Op::backward:
      case schedule::Op::backward_input:
        return chunk.backward(instruction.microbatch, is_last(instruction));
      case schedule::Op::backward_weight:
        return chunk.backward_weight(instruction.microbatch, is_last(instruction));
      case schedule::Op::send_gradient:
        return chunk.send_gradient(instruction.microbatch);
      case schedule::Op::reduce_gradients:
        return reduce_gradients();
      case schedule::Op::step:
        break;
    }
  }

  [[nodiscard]] bool is_last(const schedule::Instruction& instruction) const {
    return instruction.microbatch + 1 == microbatches_;
  }

  void reduce_gradients() {
    for (std::size_t c = chunks_.size(); c-- > 0;) {
      const auto& layers = chunks_[c]->layers();
      for (std::size_t i = layers.size(); i-- > 0;)
        layers[i]->for_each_store([](runtime::Store& store) { store.synchronise(); });
    }
  }

  void update(const device::AdamW& hyper, double clip) {
    for_stores([](runtime::Store& store) { store.add_gradient_squares(); });
    const View<double> sums = device_.sums();
    world_.everybody().all_reduce(sums, comm::ReduceOp::sum);
    if (!loads_.empty()) world_.everybody().all_reduce(loads_, comm::ReduceOp::sum);
    add_dispatch();
    device_.clip_scale(View<const double>(sums), clip, device_.gradient_scale());
    device_.begin_update(hyper);
    updating_ = true;
    for_stores([](runtime::Store& store) { store.update(); });
    updating_ = false;
    ++updates_;
  }

  // The device's sums, as a step left them.
  std::array<double, device::step_sums> sums() {
    std::array<double, device::step_sums> values{};
    device_.fetch(View<const double>(device_.sums()), values.data());
    return values;
  }
  // Of all losses of the model, by their weights.
  double loss_sum() {
    const auto values = sums();
    double loss = 0;
    for (std::size_t i = 0; i < plan_.loss_weights.size(); ++i)
      loss += values[static_cast<std::size_t>(device::sum_of_loss(static_cast<int>(i)))] * plan_.loss_weights[i];
    return loss;
  }

  void add_dispatch() {
    if (dispatch_.empty()) return;
    device_.write(dispatch_places_.bytes(dispatch_), [this](View<double> to) {
      std::ranges::transform(sent_bytes_, to.begin(), [](std::int64_t bytes) { return static_cast<double>(bytes); });
    });
    world_.everybody().all_reduce(dispatch_, comm::ReduceOp::sum);
  }
  std::vector<LayerDispatch> dispatch() {
    std::vector<double> sums(static_cast<std::size_t>(dispatch_.count));
    if (!sums.empty()) device_.fetch(View<const double>(dispatch_), sums.data());
    return dispatch_places_.layers(sums);
  }

  std::vector<ExpertLoads> loads() {
    std::vector<float> counts(static_cast<std::size_t>(loads_.count));
    if (!counts.empty()) device_.fetch(View<const float>(loads_), counts.data());
    return load_places_.loads(counts);
  }

  D& device_;
  comm::World& world_;
  StagePlan plan_;
  ScheduleKind schedule_;
  int virtual_stages_;
  bool packs_;
  int microbatches_;  ///< of the step
  schedule::StageProgram program_;
  LoadPlaces load_places_;
  View<float> loads_;  ///< of the device; empty: they are not counted
  DispatchPlaces dispatch_places_;
  View<double> dispatch_;                 ///< of the device; empty: no tokens are exchanged
  std::vector<std::int64_t> sent_bytes_;  ///< of its layers, by this rank
  std::vector<std::unique_ptr<Chunk<D, T>>> chunks_;
  std::function<void()> before_update_;
  BatchSource* source_ = nullptr;
  std::shared_ptr<const Packing> packing_;  ///< of the step; null: equal sequences
  RecordedStep* observer_ = nullptr;
  std::int64_t step_ = 0;
  RankSeconds own_;
  std::int64_t updates_ = 0;
  bool updating_ = false;
  std::uint64_t seed_ = 0;  ///< of noise
  bool repeats_ = false;
  bool takes_fixed_groups_ = false;
};

}  // namespace galvatron::train
