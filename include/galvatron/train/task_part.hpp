// TaskPart: one rank's share of a part, a run of layers of one task, forward and backward.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/sharding.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/plan/task_plan.hpp>
#include <galvatron/program/lower.hpp>
#include <galvatron/rank/rank_memory.hpp>
#include <galvatron/runtime/executor.hpp>
#include <galvatron/runtime/parameter_groups.hpp>
#include <galvatron/runtime/text_ends.hpp>
#include <galvatron/train/reshard.hpp>

namespace galvatron::train {

/// What a rank has of the rows that a contrastive loss compares, before they have unit length: of some samples, a row
/// of each of some of the two towers.
struct TowerRows {
  int task = 0;
  std::int64_t first_sample = 0, samples = 0;
  std::int64_t first_tower = 0, towers = 0;
  std::int64_t width = 0;
  std::vector<float> rows;  ///< (towers, samples, width)
};

/// Which of a task's samples a pass reads: of a step, from one of them on.
struct SamplePlace {
  std::int64_t step = 0;
  std::int64_t first = 0;
};

/// What a pass of a layer does with parameters: steps of its program that all ranks with shards take part in.
using ParameterSteps = std::array<std::vector<program::Step>, program::phases>;

inline ParameterSteps parameter_steps(const program::LayerProgram& program) {
  ParameterSteps out;
  for (std::size_t phase = 0; phase < out.size(); ++phase)
    for (const program::Step& step : program.phase[phase])
      if (step.code == program::Code::acquire || step.code == program::Code::open_gradients ||
          step.code == program::Code::close_gradients)
        out[phase].push_back(step);
  return out;
}

/// The parameters of a layer, for all parts that use it. Ranks need them at different times: what ZeRO gathers is
/// waited for by all of them together, when it begins.
/// @tparam D  the device  @tparam T  element type of activations and working parameters
template <class D, class T>
class SharedLayer {
 public:
  /// @param number  of the layer in the model  @param tokens  that go through it in a step
  SharedLayer(D& device, RankMemory& memory, comm::World& world, const LayerSpec& layer, const LayerRanks& ranks,
              int number, std::int64_t tokens)
      : context_(device, memory.workspace, world, world.group(ranks.tensor_group(world.rank())), &alone(world),
                 world.group(ranks.shards(world.rank())), alone(world), world.group(ranks.shards(world.rank())),
                 ranks.strategy, runtime::MicroBatch{1, 1}, 0, false),
        groups_(context_, layer, number, nullptr, nullptr, memory.states,
                runtime::BiasUpdate(layer, 1.0 / static_cast<double>(std::max<std::int64_t>(tokens, 1)))) {}
  SharedLayer(const SharedLayer&) = delete;
  SharedLayer& operator=(const SharedLayer&) = delete;

  runtime::ParameterGroups<D, T>& groups() { return groups_; }
  /// Takes part in the gathering of parameters and the reduction of gradients of a pass (ZeRO-2/3) that this rank does
  /// not compute.
  void assist(const std::vector<program::Step>& steps) {
    const device::Scope scope(context_.workspace);
    for (const program::Step& step : steps) {
      if (step.code == program::Code::acquire) groups_.acquire(step.group);
      if (step.code == program::Code::open_gradients) {
        groups_.open_gradients(step.group);
        context_.device.zero(raw_bytes(groups_.opened(step.group)));
      }
      if (step.code == program::Code::close_gradients) groups_.close_gradients(step.group);
    }
  }

 private:
  static comm::Group& alone(comm::World& world) {
    const int self[] = {world.rank()};
    return world.group(self);
  }
  runtime::Context<D> context_;
  runtime::ParameterGroups<D, T> groups_;
};

template <class D, class T>
class TaskPart {
  using Phase = program::Phase;

 public:
  /// Takes all memory that the part will ever use but transient tensors; the rank is one of its ranks.
  /// @param shared  the parameters of its layers, in their order
  /// @param loss    (1): grows by what its predictions lose
  TaskPart(D& device, comm::World& world, RankMemory& memory, const TaskPlan& plan, int index,
           const std::vector<SharedLayer<D, T>*>& shared, View<double> loss)
      : device_(device),
        world_(world),
        memory_(memory),
        plan_(plan.part(index)),
        local_(static_cast<int>(std::ranges::find(plan_.where.ranks, world.rank()) - plan_.where.ranks.begin())),
        context_(context_of()) {
    const TaskSpec& task = plan.model.tasks[static_cast<std::size_t>(plan_.where.task)];
    const double sample = task.weight / static_cast<double>(task.batch);
    const runtime::LossTerm term{static_cast<float>(sample / static_cast<double>(plan_.predictions)), loss};
    const auto token = static_cast<float>(sample / static_cast<double>(plan_.tokens));
    for (std::size_t i = 0; i < plan_.layers.size(); ++i) {
      programs_.push_back(std::make_unique<const program::LayerProgram>(
          program::lower(forward_of(plan_.layers[i]), plan_.where.strategy)));
      executors_.push_back(std::make_unique<runtime::Executor<D, T>>(context_, *programs_.back(), shared[i]->groups(),
                                                                     plan_.tokens, term, token));
    }
    for (int i = 0; i < plan_.slots; ++i) {
      Slot& slot = slots_.emplace_back();
      for (const auto& executor : executors_) slot.layers.push_back(executor->take_slot(memory.stash));
      slot.input = executors_.front()->input(slot.layers.front());
      slot.output = memory.stash.template take<T>(plan_.elements(local_, plan_.output()));
    }
    for (const int e : plan_.reads) add_edge(plan, e, true);
    for (const int e : plan_.feeds) add_edge(plan, e, false);
  }
  TaskPart(const TaskPart&) = delete;
  TaskPart& operator=(const TaskPart&) = delete;

  [[nodiscard]] const PartPlan& plan() const { return plan_; }

  /// All layers forward; what goes on is offered to its readers. The sum of its task's loss grows, if the loss is here.
  /// @param at       where the micro-batch's samples begin
  /// @param sources  of the task; null on a device that only counts
  /// @param rows     of a contrastive loss: gets what it reads; null: nobody asks for it
  /// @return  the steady clock when all that the part reads was there
  double forward(int microbatch, SamplePlace at, const TaskSources* sources, std::vector<TowerRows>* rows = nullptr) {
    const device::Scope scope(memory_.workspace);
    Slot& slot = slot_of(microbatch);
    // What the micro-batch before has sent from this slot has been taken.
    for (Edge& edge : inputs_) world_.wait_sent(edge.backward_lane(microbatch));
    for (Edge& edge : outputs_) world_.wait_sent(edge.forward_lane(microbatch));
    for (Edge& edge : inputs_) edge.forward_of(microbatch).receive(world_, edge.value(slot));
    const double moved = steady_seconds();
    if constexpr (!D::counts_only) read(slot, at, *sources);
    for (std::size_t i = 0; i < executors_.size(); ++i) {
      if (rows != nullptr && plan_.layers[i].head == HeadKind::contrastive && plan_.layers[i].kind == LayerKind::head)
        rows->push_back(tower_rows(executors_[i]->input(slot.layers[i])));
      executors_[i]->run(Phase::forward, slot.layers[i], nullptr,
                         i + 1 < executors_.size() ? executors_[i + 1]->input(slot.layers[i + 1]) : slot.output);
    }
    for (Edge& edge : outputs_) edge.forward_of(microbatch).post(world_, slot.output);
    return moved;
  }

  /// All layers backward; gradients of what was read are offered to those who made it.
  /// @return  as forward() does
  double backward(int microbatch) {
    const device::Scope scope(memory_.workspace);
    Slot& slot = slot_of(microbatch);
    const View<T> border = memory_.workspace.template take<T>(plan_.border(local_));
    take_gradients(microbatch, slot, border);
    const double moved = steady_seconds();
    for (std::size_t i = executors_.size(); i-- > 0;)
      executors_[i]->run(Phase::backward, slot.layers[i], nullptr, border);
    // What was read is not needed any more: its gradient takes its place.
    const View<T> input = plan_.layers.front().kind == LayerKind::embedding ? View<T>{} : slot.input;
    if (!input.empty()) device_.copy(raw_bytes(border.slice(0, input.count)), raw_bytes(input));
    if (!slot.decoded.empty())
      device_.copy(raw_bytes(border.slice(decoder_elements(), slot.decoded.count)), raw_bytes(slot.decoded));
    for (Edge& edge : inputs_) edge.backward_of(microbatch).post(world_, edge.value(slot));
    return moved;
  }

 private:
  /// What a micro-batch keeps from forward to backward.
  struct Slot {
    std::vector<runtime::KeptBuffers<T>> layers;
    View<T> input;    ///< of the first layer, and then its gradient
    View<T> decoded;  ///< what cross attention reads, and then its gradient
    View<T> output;   ///< what goes on, until the backward pass
  };
  struct Edge {
    std::vector<Reshard> forward, backward;  ///< for each slot of their writer
    int first_lane = 0;
    View<T> Slot::* place;  ///< on this side of it

    [[nodiscard]] View<T> value(const Slot& slot) const { return slot.*place; }
    [[nodiscard]] std::size_t forward_slot(int microbatch) const {
      return static_cast<std::size_t>(microbatch) % forward.size();
    }
    [[nodiscard]] std::size_t backward_slot(int microbatch) const {
      return static_cast<std::size_t>(microbatch) % backward.size();
    }
    [[nodiscard]] Reshard& forward_of(int microbatch) { return forward[forward_slot(microbatch)]; }
    [[nodiscard]] Reshard& backward_of(int microbatch) { return backward[backward_slot(microbatch)]; }
    [[nodiscard]] int forward_lane(int microbatch) const {
      return first_lane + static_cast<int>(forward_slot(microbatch));
    }
    [[nodiscard]] int backward_lane(int microbatch) const {
      return first_lane + static_cast<int>(forward.size() + backward_slot(microbatch));
    }
  };
  [[nodiscard]] Slot& slot_of(int microbatch) { return slots_[static_cast<std::size_t>(microbatch) % slots_.size()]; }

  [[nodiscard]] runtime::Context<D> context_of() {
    const StrategySpec& spec = plan_.where.strategy;
    const RankLayout layout = spec.rank_layout();
    const auto group = [&](RankModes modes) -> comm::Group& {
      std::vector<int> ranks = layout.group(modes, local_);
      for (int& rank : ranks) rank = plan_.where.ranks[static_cast<std::size_t>(rank)];
      return world_.group(ranks);
    };
    return runtime::Context<D>(device_, memory_.workspace, world_, group(RankMode::tp), &group(RankMode::cp),
                               group(shard_modes), group(RankMode::cp), group(shard_modes), spec,
                               runtime::MicroBatch{plan_.batch / spec.data, plan_.tokens}, plan_.batch, false);
  }
  void add_edge(const TaskPlan& plan, int number, bool is_input) {
    const PartEdge& edge = plan.edge(number);
    const std::int64_t token = edge.width * static_cast<std::int64_t>(sizeof(T));
    Edge& out = (is_input ? inputs_ : outputs_).emplace_back();
    out.first_lane = edge.lane;
    out.place = !is_input ? &Slot::output : edge.memory ? &Slot::decoded : &Slot::input;
    int lane = edge.lane;
    for (int i = 0; i < plan.part(edge.from).slots; ++i)
      out.forward.emplace_back(plan.written(edge), plan.read(edge), token, world_.rank(), lane++);
    for (int i = 0; i < plan.part(edge.to).slots; ++i)
      out.backward.emplace_back(plan.read(edge), plan.written(edge), token, world_.rank(), lane++);
    if (!is_input || !edge.memory) return;
    for (Slot& slot : slots_) {
      slot.decoded = memory_.stash.template take<T>(edge.elements(plan_, local_));
      for (auto& layer : slot.layers) layer.pass_through[1] = slot.decoded;
    }
  }
  [[nodiscard]] std::int64_t decoder_elements() const { return plan_.elements(local_, plan_.layers.front().before(0)); }

  // The sum of the gradients that readers send, in the order of the edges, and zeros behind it.
  void take_gradients(int microbatch, const Slot& slot, View<T> border) {
    if (plan_.has_loss() && slot.decoded.empty()) return;
    if (!slot.decoded.empty()) device_.zero(raw_bytes(border));
    bool first = true;
    for (Edge& edge : outputs_) {
      const View<T> own = border.slice(0, slot.output.count);
      if (first) {
        edge.backward_of(microbatch).receive(world_, own);
        first = false;
        continue;
      }
      const device::Scope scope(memory_.workspace);
      const View<T> more = memory_.workspace.template take<T>(slot.output.count);
      edge.backward_of(microbatch).receive(world_, more);
      device_.add(own.count, View<const T>(own), View<const T>(more), own);
    }
  }

  [[nodiscard]] TowerRows tower_rows(View<T> input) const {
    const Region own = plan_.layout(plan_.tokens).region(local_);
    const Sharding::Range of = samples();
    TowerRows out{
        plan_.where.task,           of.begin, of.count(), own.sequence_begin, own.sequence_end - own.sequence_begin,
        plan_.layers.back().hidden, {}};
    std::vector<T> values(static_cast<std::size_t>(out.towers * out.samples * out.width));
    device_.fetch(View<const T>(input.slice(0, static_cast<std::int64_t>(values.size()))), values.data());
    out.rows.assign(values.begin(), values.end());
    return out;
  }

  // Samples of this rank.
  [[nodiscard]] Sharding::Range samples() const {
    const ActivationLayout layout = plan_.layout(plan_.tokens);
    return layout.samples().range(layout.place(local_).data);
  }
  void read(Slot& slot, SamplePlace at, const TaskSources& sources) {
    const Sharding::Range own = samples();
    const LayerSpec& first = plan_.layers.front();
    if (first.kind == LayerKind::embedding) {
      BatchSource& source = *sources[static_cast<std::size_t>(plan_.source)];
      if (first.patch_width > 0)
        device_.write(slot.input,
                      [&](View<T> out) { source.patches(at.step, at.first + own.begin, own.count(), patches(), out); });
      else
        device_.write(slot.layers.front().tokens, [&](View<std::int32_t> out) {
          source.inputs(at.step, at.first + own.begin, own.count(), {0, plan_.tokens}, out);
        });
    }
    if (plan_.reads_ends()) read_ends(slot, at, *sources[static_cast<std::size_t>(plan_.source)]);
    if (plan_.has_loss()) read_targets(slot, at, *sources[static_cast<std::size_t>(plan_.source)]);
  }
  void read_ends(Slot& slot, SamplePlace at, BatchSource& source) {
    const Sharding::Range own = samples();
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(plan_.tokens * own.count()));
    const View<std::int32_t> all(tokens.data(), std::ssize(tokens));
    source.inputs(at.step, at.first + own.begin, own.count(), {0, plan_.tokens}, all);
    device_.write(slot.layers.back().tokens, [&](View<std::int32_t> out) {
      runtime::write_text_ends(plan_.layers.back().end_token, View<const std::int32_t>(all), own.count(),
                               plan_.layout(plan_.tokens).region(local_).sequence_begin, out);
    });
  }
  void read_targets(Slot& slot, SamplePlace at, BatchSource& source) {
    const Sharding::Range own = samples();
    const HeadKind kind = plan_.layers.back().head;
    device_.write(slot.layers.back().tokens, [&](View<std::int32_t> out) {
      if (kind == HeadKind::contrastive) {
        for (std::int64_t i = 0; i < out.count; ++i) out[i] = static_cast<std::int32_t>(own.begin + i % own.count());
        return;
      }
      if (kind == HeadKind::classifier) return source.targets(at.step, at.first + own.begin, own.count(), {0, 1}, out);
      // Tokens of other inputs stand before those that have targets.
      const std::int64_t rows = plan_.targets * own.count();
      std::fill_n(out.data, out.count - rows, -1);
      source.targets(at.step, at.first + own.begin, own.count(), {0, plan_.targets}, out.slice(out.count - rows, rows));
    });
  }
  // Of every image, those that this rank has as tokens.
  [[nodiscard]] SequenceRange patches() const {
    const Region part = plan_.layout(plan_.tokens).region(local_);
    const std::int64_t others = plan_.layers.front().class_token ? 1 : 0;
    const std::int64_t first = std::max(part.sequence_begin - others, std::int64_t{0});
    return {first, part.sequence_end - others - first};
  }

  D& device_;
  comm::World& world_;
  RankMemory& memory_;
  const PartPlan& plan_;
  int local_;  ///< this rank's place among those of the part
  runtime::Context<D> context_;
  std::vector<std::unique_ptr<const program::LayerProgram>> programs_;
  std::vector<std::unique_ptr<runtime::Executor<D, T>>> executors_;
  std::vector<Slot> slots_;
  std::vector<Edge> inputs_, outputs_;
};

}  // namespace galvatron::train
