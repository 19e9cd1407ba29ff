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
  TaskPart(D& device, comm::World& world, RankMemory& memory, const TaskPlan& plan, int index,
           const std::vector<SharedLayer<D, T>*>& shared)
      : device_(device),
        world_(world),
        memory_(memory),
        plan_(plan.part(index)),
        local_(static_cast<int>(std::ranges::find(plan_.where.ranks, world.rank()) - plan_.where.ranks.begin())),
        context_(context_of()) {
    const TaskSpec& task = plan.model.tasks[static_cast<std::size_t>(plan_.where.task)];
    const double sample = task.weight / static_cast<double>(plan_.batch);
    const runtime::LossTerm loss{static_cast<float>(sample / static_cast<double>(plan_.predictions)), device::loss_sum};
    const auto token = static_cast<float>(sample / static_cast<double>(plan_.tokens));
    for (std::size_t i = 0; i < plan_.layers.size(); ++i) {
      programs_.push_back(std::make_unique<const program::LayerProgram>(
          program::lower(forward_of(plan_.layers[i]), plan_.where.strategy)));
      executors_.push_back(std::make_unique<runtime::Executor<D, T>>(context_, *programs_.back(), shared[i]->groups(),
                                                                     plan_.tokens, loss, token));
      slots_.push_back(executors_.back()->take_slot(memory.stash));
    }
    output_ = memory.stash.template take<T>(plan_.elements(local_, plan_.output()));
    for (const int e : plan_.reads) add_edge(plan, e, inputs_);
    for (const int e : plan_.feeds) add_edge(plan, e, outputs_);
  }
  TaskPart(const TaskPart&) = delete;
  TaskPart& operator=(const TaskPart&) = delete;

  [[nodiscard]] const PartPlan& plan() const { return plan_; }

  /// All layers forward; what goes on is offered to its readers. The device's sum of losses grows, if the loss is here.
  /// @param sources  of the task; null on a device that only counts
  /// @param rows     of a contrastive loss: gets what it reads; null: nobody asks for it
  /// @return  the steady clock when all that the part reads was there
  double forward(std::int64_t step, const TaskSources* sources, std::vector<TowerRows>* rows = nullptr) {
    const device::Scope scope(memory_.workspace);
    for (Edge& edge : inputs_) edge.forward.receive(world_, edge.value);
    const double moved = steady_seconds();
    if constexpr (!D::counts_only) read(step, *sources);
    for (std::size_t i = 0; i < executors_.size(); ++i) {
      if (rows != nullptr && plan_.layers[i].head == HeadKind::contrastive && plan_.layers[i].kind == LayerKind::head)
        rows->push_back(tower_rows(executors_[i]->input(slots_[i])));
      executors_[i]->run(Phase::forward, slots_[i], nullptr,
                         i + 1 < executors_.size() ? executors_[i + 1]->input(slots_[i + 1]) : output_);
    }
    for (Edge& edge : outputs_) edge.forward.post(world_, edge.value);
    return moved;
  }

  /// All layers backward; gradients of what was read are offered to those who made it.
  /// @return  as forward() does
  double backward() {
    const device::Scope scope(memory_.workspace);
    const View<T> border = memory_.workspace.template take<T>(plan_.border(local_));
    take_gradients(border);
    const double moved = steady_seconds();
    for (std::size_t i = executors_.size(); i-- > 0;) executors_[i]->run(Phase::backward, slots_[i], nullptr, border);
    // What was read is not needed any more: its gradient takes its place.
    const View<T> input = plan_.layers.front().kind == LayerKind::embedding ? View<T>{} : first_input();
    if (!input.empty()) device_.copy(raw_bytes(border.slice(0, input.count)), raw_bytes(input));
    if (!decoded_.empty())
      device_.copy(raw_bytes(border.slice(decoder_elements(), decoded_.count)), raw_bytes(decoded_));
    for (Edge& edge : inputs_) edge.backward.post(world_, edge.value);
    return moved;
  }

 private:
  struct Edge {
    Reshard forward, backward;
    View<T> value;  ///< on this side of it
  };

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
  void add_edge(const TaskPlan& plan, int number, std::vector<Edge>& edges) {
    const PartEdge& edge = plan.edge(number);
    const std::int64_t token = edge.width * static_cast<std::int64_t>(sizeof(T));
    Edge out{Reshard(plan.written(edge), plan.read(edge), token, world_.rank(), 2 * number),
             Reshard(plan.read(edge), plan.written(edge), token, world_.rank(), 2 * number + 1), output_};
    if (&edges == &inputs_ && edge.memory) {
      decoded_ = memory_.stash.template take<T>(edge.elements(plan_, local_));
      for (auto& slot : slots_) slot.pass_through[1] = decoded_;
      out.value = decoded_;
    } else if (&edges == &inputs_) {
      out.value = first_input();
    }
    edges.push_back(std::move(out));
  }
  [[nodiscard]] View<T> first_input() const { return executors_.front()->input(slots_.front()); }
  [[nodiscard]] std::int64_t decoder_elements() const { return plan_.elements(local_, plan_.layers.front().before(0)); }

  // The sum of the gradients that readers send, in the order of the edges, and zeros behind it.
  void take_gradients(View<T> border) {
    if (plan_.has_loss() && decoded_.empty()) return;
    if (!decoded_.empty()) device_.zero(raw_bytes(border));
    bool first = true;
    for (Edge& edge : outputs_) {
      const View<T> own = border.slice(0, output_.count);
      if (first) {
        edge.backward.receive(world_, own);
        first = false;
        continue;
      }
      const device::Scope scope(memory_.workspace);
      const View<T> more = memory_.workspace.template take<T>(output_.count);
      edge.backward.receive(world_, more);
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
  void read(std::int64_t step, const TaskSources& sources) {
    const Sharding::Range own = samples();
    const LayerSpec& first = plan_.layers.front();
    if (first.kind == LayerKind::embedding) {
      BatchSource& source = *sources[static_cast<std::size_t>(plan_.source)];
      if (first.patch_width > 0)
        device_.write(executors_.front()->input(slots_.front()),
                      [&](View<T> out) { source.patches(step, own.begin, own.count(), patches(), out); });
      else
        device_.write(slots_.front().tokens, [&](View<std::int32_t> out) {
          source.inputs(step, own.begin, own.count(), {0, plan_.tokens}, out);
        });
    }
    if (plan_.reads_ends()) read_ends(step, *sources[static_cast<std::size_t>(plan_.source)]);
    if (plan_.has_loss()) read_targets(step, *sources[static_cast<std::size_t>(plan_.source)]);
  }
  void read_ends(std::int64_t step, BatchSource& source) {
    const Sharding::Range own = samples();
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(plan_.tokens * own.count()));
    const View<std::int32_t> all(tokens.data(), std::ssize(tokens));
    source.inputs(step, own.begin, own.count(), {0, plan_.tokens}, all);
    device_.write(slots_.back().tokens, [&](View<std::int32_t> out) {
      runtime::write_text_ends(plan_.layers.back().end_token, View<const std::int32_t>(all), own.count(),
                               plan_.layout(plan_.tokens).region(local_).sequence_begin, out);
    });
  }
  void read_targets(std::int64_t step, BatchSource& source) {
    const Sharding::Range own = samples();
    const HeadKind kind = plan_.layers.back().head;
    device_.write(slots_.back().tokens, [&](View<std::int32_t> out) {
      if (kind == HeadKind::contrastive) {
        for (std::int64_t i = 0; i < out.count; ++i) out[i] = static_cast<std::int32_t>(own.begin + i % own.count());
        return;
      }
      if (kind == HeadKind::classifier) return source.targets(step, own.begin, own.count(), {0, 1}, out);
      // Tokens of other inputs stand before those that have targets.
      const std::int64_t rows = plan_.targets * own.count();
      std::fill_n(out.data, out.count - rows, -1);
      source.targets(step, own.begin, own.count(), {0, plan_.targets}, out.slice(out.count - rows, rows));
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
  std::vector<runtime::KeptBuffers<T>> slots_;
  View<T> output_;   ///< what goes on, until the backward pass
  View<T> decoded_;  ///< what cross attention reads, and then its gradient
  std::vector<Edge> inputs_, outputs_;
};

}  // namespace galvatron::train
