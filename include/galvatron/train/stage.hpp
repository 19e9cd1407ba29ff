// Stage: one rank's part of a model, and the interpreter of its schedule program.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/nn/make_layer.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/schedule/schedule.hpp>
#include <galvatron/train/batch_source.hpp>
#include <galvatron/train/exchange.hpp>
#include <galvatron/train/rank_memory.hpp>
#include <galvatron/train/stage_plan.hpp>

namespace galvatron::train {

/// What a step of the whole job gave; equal on all ranks.
struct StepResult {
  double loss = 0;           ///< mean cross-entropy of a token, in nats
  double gradient_norm = 0;  ///< before clipping
};

/// @tparam D  the device  @tparam W  the world  @tparam T  element type of activations and working parameters
/// @tparam List  the strategies that are instantiated
template <class D, class W, class T, class List = InstantiatedStrategies>
class Stage {
  using G = typename W::Group;

 public:
  /// Takes all memory that the stage will ever use. Throws Failure (usage) when the plan names a strategy that is not
  /// in the list.
  Stage(D& device, W& world, const Plan& plan, const ModelSpec& model, RankMemory& memory)
      : device_(device),
        world_(world),
        memory_(memory),
        plan_(stage_plan(plan, model, world.rank())),
        program_(value_or_throw(schedule::make_program(plan.schedule, static_cast<int>(plan.stages.size()),
                                                       plan.microbatches))[static_cast<std::size_t>(plan_.index)]) {
    for (std::size_t i = 0; i < plan_.layers.size(); ++i) add_layer(plan, model, i);
    for (auto& layer : layers_) layer->take_stash(memory.stash, plan_.slots);
    const auto hidden = model.hidden();
    const auto exchange = [&](const ActivationLayout& from, const ActivationLayout& to) {
      return Exchange(from, to, world.rank(), hidden, static_cast<std::int64_t>(sizeof(T)));
    };
    for (std::size_t i = 0; i + 1 < plan_.layers.size(); ++i) {
      const bool changes = plan_.layouts[i] != plan_.layouts[i + 1];
      down_.push_back(changes ? exchange(plan_.layouts[i], plan_.layouts[i + 1]) : Exchange{});
      up_.push_back(changes ? exchange(plan_.layouts[i + 1], plan_.layouts[i]) : Exchange{});
    }
    if (plan_.has_previous) {
      receive_activation_ = exchange(plan_.previous, plan_.layouts.front());
      send_gradient_ = exchange(plan_.layouts.front(), plan_.previous);
      gradient_out_ = memory.boundary.template take<T>(elements(0));
    }
    if (plan_.has_next) {
      send_activation_ = exchange(plan_.layouts.back(), plan_.next);
      receive_gradient_ = exchange(plan_.next, plan_.layouts.back());
      activation_out_ = memory.boundary.template take<T>(elements(layers_.size() - 1));
    }
    std::vector<int> everybody(static_cast<std::size_t>(world.size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    everybody_ = &world.group(everybody);
  }

  /// Parameters from `source`, which initial_values(seed) makes for a new run; moments 0.
  void initialise(const nn::ParameterSource& source) {
    for (auto& layer : layers_) layer->initialise(source);
  }

  /// One step of the whole job: all micro-batches forward and backward, gradients reduced, clipped and applied.
  /// @param step  counts from 0; chooses the samples
  /// @param source  null on device::dry
  /// @param clip  the largest gradient norm; 0 for no clipping
  StepResult step(std::int64_t step, BatchSource* source, device::AdamW hyper, double clip) {
    step_ = step;
    source_ = source;
    loss_ = 0;
    for (auto& layer : layers_) layer->zero_gradients();
    for (const schedule::Instruction& instruction : program_) run(instruction, hyper, clip);
    world_.wait_sent();
    return result_;
  }

  /// Calls `visit` for every parameter store on this rank.
  void visit(const nn::StoreVisitor& visitor) {
    for (auto& layer : layers_) layer->visit(visitor);
  }

 private:
  void add_layer(const Plan& plan, const ModelSpec& model, std::size_t i) {
    const StagePlan::Entry& entry = plan_.layers[i];
    const int first = plan_.first_rank;
    const int local = world_.rank() - first;
    const int t = entry.spec.tensor;
    std::vector<int> tensor;
    std::vector<int> data;
    for (int r = 0; r < t; ++r) tensor.push_back(first + local / t * t + r);
    for (int r = 0; r < entry.spec.data; ++r) data.push_back(first + local % t + r * t);
    const nn::Context<D, G> context{device_,
                                    memory_.workspace,
                                    world_.group(tensor),
                                    world_.group(data),
                                    entry.spec,
                                    plan_.layouts[i].batch / entry.spec.data,
                                    plan.sequence_length};
    nn::Surroundings<G, T> around;
    around.number = entry.number;
    around.token_weight =
        static_cast<float>(1.0 / (static_cast<double>(plan.global_batch) * static_cast<double>(plan.sequence_length)));
    if (entry.layer.kind == LayerKind::head && entry.layer.tied && !plan_.has_previous)
      around.embedding = layers_.front().get();
    const bool end = entry.layer.kind != LayerKind::block;
    if (end && model.head.tied && (plan_.has_previous || plan_.has_next)) {
      const std::vector<int> pair{plan.stages.front().first_rank + local, plan.stages.back().first_rank + local};
      around.twin = &world_.group(pair);
    }
    layers_.push_back(value_or_throw(nn::make_layer<List, T>(context, entry.layer, around, memory_.states)));
  }

  [[nodiscard]] std::int64_t elements(std::size_t layer) const {
    return plan_.layouts[layer].region(world_.rank()).tokens() * plan_.hidden;
  }
  [[nodiscard]] bool changes_after(std::size_t layer) const { return plan_.layouts[layer] != plan_.layouts[layer + 1]; }
  [[nodiscard]] std::int64_t first_sample(std::size_t layer, int microbatch) const {
    const ActivationLayout& layout = plan_.layouts[layer];
    return microbatch * layout.batch + layout.region(world_.rank()).batch_begin;
  }
  [[nodiscard]] std::int64_t samples(std::size_t layer) const {
    return plan_.layouts[layer].batch / plan_.layouts[layer].data;
  }

  void run(const schedule::Instruction& instruction, const device::AdamW& hyper, double clip) {
    const int slot = instruction.microbatch % plan_.slots;
    switch (instruction.op) {
      case schedule::Op::receive_activation:
        receive_activation_.receive(world_, layers_.front()->input(slot));
        break;
      case schedule::Op::forward:
        forward(instruction.microbatch, slot);
        break;
      case schedule::Op::send_activation:
        send_activation_.post(world_, activation_out_);
        break;
      case schedule::Op::receive_gradient:
        gradient_ = memory_.workspace.template take<T>(elements(layers_.size() - 1));
        receive_gradient_.receive(world_, gradient_);
        break;
      case schedule::Op::backward:
        backward(slot);
        break;
      case schedule::Op::send_gradient:
        send_gradient_.post(world_, gradient_out_);
        break;
      case schedule::Op::reduce_gradients:
        for (std::size_t i = layers_.size(); i-- > 0;) layers_[i]->synchronise();
        break;
      case schedule::Op::step:
        update(hyper, clip);
        break;
      default:
        throw Failure(ErrorKind::internal, "this stage does not know an instruction of its schedule program");
    }
  }

  void forward(int microbatch, int slot) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const device::Scope scope(memory_.workspace);
      const LayerKind kind = plan_.layers[i].layer.kind;
      if constexpr (!D::counts_only) {
        if (kind == LayerKind::embedding)
          source_->inputs(step_, first_sample(i, microbatch), samples(i), layers_[i]->tokens(slot));
        if (kind == LayerKind::head)
          source_->targets(step_, first_sample(i, microbatch), samples(i), layers_[i]->tokens(slot));
      }
      const bool last = i + 1 == layers_.size();
      if (last) {
        if (plan_.has_next) world_.wait_sent();  // the last micro-batch has left the buffer
        layers_[i]->forward(slot, activation_out_);
        loss_ += layers_[i]->take_loss();
      } else if (!changes_after(i)) {
        layers_[i]->forward(slot, layers_[i + 1]->input(slot));
      } else {
        const View<T> y = memory_.workspace.template take<T>(elements(i));
        layers_[i]->forward(slot, y);
        move(down_[i], y, layers_[i + 1]->input(slot));
      }
    }
  }

  // The gradient lies at one end of the workspace; a change of layout moves it to the other.
  void backward(int slot) {
    device::Region& ws = memory_.workspace;
    bool low = true;
    if (!plan_.has_next) gradient_ = ws.template take<T>(elements(layers_.size() - 1));
    for (std::size_t i = layers_.size(); i-- > 0;) {
      layers_[i]->backward(slot, gradient_);
      if (i == 0 || !changes_after(i - 1)) continue;
      const View<T> to = low ? ws.template take_high<T>(elements(i - 1)) : ws.template take<T>(elements(i - 1));
      move(up_[i - 1], gradient_, to);
      gradient_ = to;
      if (low)
        ws.restore_low(0);
      else
        ws.restore_high(0);
      low = !low;
    }
    if (plan_.has_previous) {
      world_.wait_sent();
      const auto bytes = [](View<T> v) {
        return View<std::byte>{reinterpret_cast<std::byte*>(v.data), v.count * static_cast<std::int64_t>(sizeof(T))};
      };
      device_.copy(bytes(gradient_), bytes(gradient_out_));
    }
    ws.restore_low(0);
    ws.restore_high(0);
  }

  void move(Exchange& exchange, View<T> from, View<T> to) {
    exchange.post(world_, from);
    exchange.receive(world_, to);
    world_.wait_sent();
  }

  void update(device::AdamW hyper, double clip) {
    double sums[2] = {loss_, 0};
    for (auto& layer : layers_) sums[1] += layer->gradient_norm_squared();
    everybody_->all_reduce(View<double>{sums, 2}, comm::ReduceOp::sum);
    result_.loss = sums[0] * plan_.token_weight;
    result_.gradient_norm = std::sqrt(sums[1]);
    if (clip > 0 && result_.gradient_norm > clip)
      hyper.gradient_scale = static_cast<float>(clip / result_.gradient_norm);
    for (auto& layer : layers_) layer->update(hyper);
  }

  D& device_;
  W& world_;
  RankMemory& memory_;
  StagePlan plan_;
  std::vector<schedule::Instruction> program_;
  std::vector<std::unique_ptr<nn::Layer<T>>> layers_;
  std::vector<Exchange> down_;  ///< activations from layer i to i + 1
  std::vector<Exchange> up_;    ///< gradients from layer i + 1 to i
  Exchange receive_activation_, send_activation_, receive_gradient_, send_gradient_;
  View<T> activation_out_;
  View<T> gradient_out_;
  View<T> gradient_;  ///< of the layer that is next in backward
  G* everybody_ = nullptr;
  BatchSource* source_ = nullptr;
  std::int64_t step_ = 0;
  double loss_ = 0;
  StepResult result_;
};

}  // namespace galvatron::train
