// WaveProblem: the passes of a multi-task model as Spindle's MetaOps, priced as the trainer runs them, and plans of
// waves of its solutions.
//
// An operator is one layer in one task's pass; a run of them is contracted to a MetaOp (spindle/contract.hpp). Layers
// before and behind a component's equal blocks (an embedding, a projection, a loss) go with its first and last block:
//
//     pass of a component     embedding  block  block  block  projection
//     operators of a MetaOp   [----- 0 ------]  [ 1 ]  [------ 2 ------]     each a third of all seconds
//
// Tensor degree and split of the sequence are a layer's, the same in all tasks, so that they are chosen for components.
// On a number of devices a layer runs on as many data ranks as that leaves and the task's batch divides into.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/plan/task_costs.hpp>
#include <galvatron/plan/wave_plan.hpp>
#include <galvatron/spindle/contract.hpp>
#include <galvatron/spindle/curve.hpp>
#include <galvatron/spindle/problem.hpp>
#include <galvatron/spindle/terms.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// What all parts of a plan have in common.
struct WaveKinds {
  /// Tensor degree and sequence split of each, where its layers allow them, and what it recomputes.
  std::vector<StrategySpec> components;
  int zero = 0;
};

/// The run of a pass that a MetaOp stands for.
struct MetaOpRun {
  int task = 0;
  int pass = 0;
  int component = 0;
  int layers = 0;   ///< of the component
  int leading = 0;  ///< of them before the block of operator 0
  int operators = 1;
  int main = 0;  ///< a block, with whose kind the devices of a part are counted

  /// The layers of operators [done, done + count).
  [[nodiscard]] std::pair<int, int> layers_of(int done, int count) const {
    return {done == 0 ? 0 : leading + done, done + count == operators ? layers - 1 : leading + done + count - 1};
  }
};

/// Seconds and bytes of layers as ranks run them; a price is computed once.
class WavePrices {
 public:
  struct Price {
    Seconds seconds;  ///< forward and backward, gradients' reduction left out
    Bytes kept;       ///< of a rank, from forward to backward
    Bytes states;     ///< of a rank with this strategy's ZeRO stage
  };

  /// All outlive this.
  WavePrices(const MultiTaskModel& model, const std::vector<TaskGraph>& graphs, const Cluster& cluster,
             train::LayerCosts& layers)
      : model_(model), graphs_(graphs), cluster_(cluster), layers_(layers) {
    for (int c = 0; c < static_cast<int>(model.components.size()); ++c) add_kinds_of(c);
  }

  [[nodiscard]] const MultiTaskModel& model() const { return model_; }
  [[nodiscard]] const std::vector<TaskGraph>& graphs() const { return graphs_; }
  [[nodiscard]] const Cluster& cluster() const { return cluster_; }
  [[nodiscard]] Precision precision() const { return layers_.precision(); }

  /// The wanted kind of a layer, or what of it fits the layer in all passes.
  [[nodiscard]] StrategySpec kind_of(int component, int layer, StrategySpec wanted) const {
    while (!fits(component, layer, wanted)) {
      if (wanted.sequence != SequenceKind::none)
        wanted.sequence = SequenceKind::none;
      else
        wanted.tensor = 1;
    }
    return wanted;
  }
  /// The kind of a run's layer: that of its blocks, or what of it fits the layer.
  [[nodiscard]] StrategySpec kind_in(const MetaOpRun& run, int layer, const WaveKinds& kinds) const {
    const StrategySpec& wanted = kinds.components[static_cast<std::size_t>(run.component)];
    return kind_of(run.component, layer, kind_of(run.component, run.main, wanted));
  }
  /// Its strategy in a part on so many devices: the most data ranks that the batch divides into.
  [[nodiscard]] StrategySpec strategy_on(StrategySpec kind, int devices, std::int64_t batch) const {
    kind.data = std::max(devices / kind.tensor, 1);
    while (batch % kind.data != 0) --kind.data;
    return kind;
  }
  /// Whether a layer is as the one before it, in all that is priced.
  [[nodiscard]] bool repeats(int component, int layer) const {
    const auto& layers = model_.component(component).layers;
    return layer > 0 && layers[static_cast<std::size_t>(layer)] == layers[static_cast<std::size_t>(layer) - 1];
  }

  /// @param busy  ranks of a node that work at the same time; 0: all
  const Price& operator()(const MetaOpRun& run, int layer, const StrategySpec& spec, int busy) {
    const TaskGraph& graph = graphs_[static_cast<std::size_t>(run.task)];
    const TaskPass& pass = graph.pass(run.pass);
    while (repeats(run.component, layer)) --layer;
    const LayerSpec own = layer_of(model_, graph, pass, layer);
    const std::int64_t batch = model_.task(run.task).batch;
    const std::int64_t memory = own.memory.any() ? own.memory.of(pass.tokens) : 0;
    const Key key{run.component,
                  layer,
                  batch,
                  pass.tokens,
                  memory,
                  spec.tensor,
                  spec.sequence,
                  spec.data,
                  spec.zero,
                  spec.recompute,
                  cluster_.cores > 0 ? busy : 0};
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    const cost::LayerCounts& counts = layers_(own, spec, batch, pass.tokens);
    const auto seconds = [&](const op::WorkList& work) { return cost::time_of(work, precision(), cluster_, busy); };
    return known_.emplace(key, Price{seconds(counts.forward) + seconds(counts.backward), counts.stash, counts.states})
        .first->second;
  }

 private:
  using Key =
      std::tuple<int, int, std::int64_t, std::int64_t, std::int64_t, int, SequenceKind, int, int, RecomputeKind, int>;
  using KindKey = std::tuple<int, int, int, SequenceKind>;

  void add_kinds_of(int component) {
    passes_[component];  // none, where no task uses it
    for (const TaskGraph& graph : graphs_)
      for (const TaskPass& pass : graph.passes)
        if (pass.component == component) passes_[component].emplace_back(&graph, &pass);
  }
  [[nodiscard]] bool fits(int component, int layer, const StrategySpec& kind) const {
    if (kind.tensor == 1) return true;
    while (repeats(component, layer)) --layer;
    const KindKey key{component, layer, kind.tensor, kind.sequence};
    if (const auto known = fits_.find(key); known != fits_.end()) return known->second;
    const bool fit = std::ranges::all_of(passes_.at(component), [&](const auto& use) {
      const auto& [graph, pass] = use;
      return is_fit(layer_of(model_, *graph, *pass, layer), kind, 1, pass->tokens);
    });
    return fits_[key] = fit;
  }

  const MultiTaskModel& model_;
  const std::vector<TaskGraph>& graphs_;
  const Cluster& cluster_;
  train::LayerCosts& layers_;
  std::map<int, std::vector<std::pair<const TaskGraph*, const TaskPass*>>> passes_;  // of each component
  mutable std::map<KindKey, bool> fits_;
  std::map<Key, Price> known_;
};

/// MetaOps with the parts of the model that they stand for.
struct WaveProblem {
  spindle::Problem problem;
  spindle::Terms terms;
  std::vector<MetaOpRun> runs;  ///< of each MetaOp, in the order of tasks and passes
};

namespace detail {

/// Makes the problem of a model under some kinds.
class WaveProblemMaker {
 public:
  WaveProblemMaker(WavePrices& prices, const WaveKinds& kinds) : prices_(prices), kinds_(kinds) {}

  /// @param alone  parts are priced as if no other ranks worked beside them
  WaveProblem make(bool alone) {
    WaveProblem out;
    out.problem.devices = prices_.cluster().devices;
    add_runs(out);
    for (std::size_t m = 0; m < out.runs.size(); ++m) {
      spindle::MetaOp& metaop = out.problem.metaops[m];
      const MetaOpRun& run = out.runs[m];
      metaop.operators = run.operators;
      for (const int n : counts_of(run)) metaop.curve.add(n, seconds_of(run, n, alone) / run.operators);
    }
    add_terms(out);
    return out;
  }

 private:
  [[nodiscard]] const TaskGraph& graph(const MetaOpRun& run) const {
    return prices_.graphs()[static_cast<std::size_t>(run.task)];
  }
  [[nodiscard]] std::int64_t batch(const MetaOpRun& run) const { return prices_.model().task(run.task).batch; }

  // Attention and feed-forward, no embedding, projection, adaptor or loss.
  [[nodiscard]] bool is_block(int component, int layer) const {
    const LayerSpec& own = prices_.model().component(component).layers[static_cast<std::size_t>(layer)];
    return own.kind == LayerKind::block && own.forward_pass == nullptr;
  }
  // The longest run of equal blocks of a component is its operators, unless it is the smaller part of them.
  void set_operators(MetaOpRun& run) const {
    int first = 0;
    int blocks = 0;
    run.operators = 0;
    for (int i = 0; i < run.layers; ++i) {
      if (!is_block(run.component, i)) continue;
      if (!prices_.repeats(run.component, i)) first = i;
      if (blocks++ == 0) run.main = i;
      if (i - first + 1 <= run.operators) continue;
      run.operators = i - first + 1;
      run.leading = first;
    }
    if (run.operators == 0) run.operators = 1;
    if (2 * run.operators > blocks) return;
    run.operators = run.layers;
    run.leading = 0;
  }
  void add_runs(WaveProblem& out) const {
    std::vector<spindle::Operator> operators;
    std::vector<MetaOpRun> of_operator;
    for (int task = 0; task < static_cast<int>(prices_.graphs().size()); ++task) {
      std::vector<int> last;  // operator of each pass
      const TaskGraph& graph = prices_.graphs()[static_cast<std::size_t>(task)];
      for (int p = 0; p < static_cast<int>(graph.passes.size()); ++p) {
        const TaskPass& pass = graph.pass(p);
        MetaOpRun run{.task = task, .pass = p, .component = pass.component};
        run.layers = static_cast<int>(prices_.model().component(pass.component).layers.size());
        set_operators(run);
        for (int i = 0; i < run.layers; ++i) {
          spindle::Operator& op = operators.emplace_back();
          op.kind = prices_.model().component(pass.component).name;
          op.input_size = pass.tokens;
          if (i > 0) {
            op.after = {static_cast<int>(operators.size()) - 2};
          } else {
            for (const int read : pass.inputs) op.after.push_back(last[static_cast<std::size_t>(read)]);
            if (pass.memory >= 0) op.after.push_back(last[static_cast<std::size_t>(pass.memory)]);
          }
          of_operator.push_back(run);
        }
        last.push_back(static_cast<int>(operators.size()) - 1);
      }
    }
    for (spindle::Run& run : value_or_throw(spindle::contract(operators))) {
      const MetaOpRun& own = of_operator[static_cast<std::size_t>(run.operators.front())];
      out.runs.push_back(own);
      spindle::MetaOp& metaop = out.problem.metaops.emplace_back();
      metaop.name = prices_.model().component(own.component).name + " of " + prices_.model().task(own.task).name;
      metaop.after = std::move(run.after);
      metaop.level = run.level;
    }
  }

  // Devices that the main kind of a pass divides equally.
  [[nodiscard]] std::vector<int> counts_of(const MetaOpRun& run) const {
    return spindle::valid_counts(batch(run), prices_.cluster().devices, prices_.kind_in(run, run.main, kinds_).tensor);
  }
  template <class Use>
  void for_layers(const MetaOpRun& run, int devices, int zero, bool alone, const Use& use) const {
    const int node = prices_.cluster().devices_per_node;
    for (int i = 0; i < run.layers; ++i) {
      StrategySpec spec = prices_.strategy_on(prices_.kind_in(run, i, kinds_), devices, batch(run));
      spec.zero = spec.data > 1 ? zero : 0;
      use(i, spec, prices_(run, i, spec, alone ? std::min(devices, node) : node));
    }
  }
  [[nodiscard]] double seconds_of(const MetaOpRun& run, int devices, bool alone) const {
    double out = 0;
    for_layers(run, devices, 0, alone,
               [&](int, const StrategySpec&, const WavePrices::Price& price) { out += price.seconds.value; });
    return out;
  }

  void add_terms(WaveProblem& out) const {
    const Cluster& cluster = prices_.cluster();
    // Of a large message.
    const auto rate = [&](std::int64_t same_node) {
      const op::Work send{.kind = op::Kind::send, .m = std::int64_t{64} << 20, .n = 1, .k = same_node};
      return static_cast<double>(send.m) / cost::time_of(send, prices_.precision(), cluster).value;
    };
    out.terms.island_devices = std::min(cluster.devices_per_node, cluster.devices);
    out.terms.island_rate = rate(2);
    out.terms.rate = cluster.nodes() > 1 ? rate(0) : out.terms.island_rate;
    for (std::size_t m = 0; m < out.runs.size(); ++m) {
      const MetaOpRun& run = out.runs[m];
      const std::vector<int>& counts = out.problem.metaops[m].curve.devices;
      out.terms.sizes.push_back(sizes_of(run, counts.front(), counts.back()));
    }
  }
  [[nodiscard]] spindle::Sizes sizes_of(const MetaOpRun& run, int fewest, int most) const {
    spindle::Sizes out;
    const double shares = run.operators;
    for_layers(run, fewest, 0, false, [&](int i, const StrategySpec& spec, const WavePrices::Price& price) {
      out.kept_bytes += static_cast<double>(price.kept.count) * spec.ranks() / shares;
      const LayerSpec& layer = prices_.model().component(run.component).layers[static_cast<std::size_t>(i)];
      out.gradient_bytes += 4.0 * static_cast<double>(parameters(layer)) / spec.tensor / shares;
    });
    for_layers(run, most, kinds_.zero, false, [&](int, const StrategySpec&, const WavePrices::Price& price) {
      out.state_bytes += static_cast<double>(price.states.count) / shares;
    });
    const TaskPass& pass = graph(run).pass(run.pass);
    const LayerSpec block = layer_of(prices_.model(), graph(run), pass, run.main);
    const BundlePart after = block.kind == LayerKind::head ? BundlePart{} : block.after(0);
    if (after.width > 0)
      out.output_bytes = static_cast<double>(batch(run) * after.tokens.of(pass.tokens) * after.width *
                                             element_bytes(prices_.precision()));
    out.parameters = run.component;
    return out;
  }

  WavePrices& prices_;
  const WaveKinds& kinds_;
};

/// Gives tensor groups devices side by side that begin at a multiple of their number, so that a device has the same
/// rows of parameters in all parts: devices as they were placed, as far as whole groups allow. Smaller groups divide
/// larger ones. False: the devices do not suffice.
inline bool align(std::vector<std::vector<int>>& parts, const std::vector<int>& tensor, int devices) {
  std::vector<std::size_t> order(parts.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return tensor[a] > tensor[b]; });
  if (order.empty() || tensor[order.front()] == 1) return true;
  std::vector<char> taken(static_cast<std::size_t>(devices), 0);
  for (const std::size_t p : order) {
    const int t = tensor[p];
    std::vector<int> groups(static_cast<std::size_t>(devices / t), 0);  // devices of each that the part had
    for (const int device : parts[p])
      if (device / t < std::ssize(groups)) ++groups[static_cast<std::size_t>(device / t)];
    std::vector<int> by_overlap;
    for (int g = 0; g < std::ssize(groups); ++g)
      if (std::all_of(taken.begin() + g * t, taken.begin() + (g + 1) * t, [](char c) { return c == 0; }))
        by_overlap.push_back(g);
    std::ranges::stable_sort(by_overlap, [&](int a, int b) {
      return groups[static_cast<std::size_t>(a)] > groups[static_cast<std::size_t>(b)];
    });
    const std::size_t wanted = parts[p].size() / static_cast<std::size_t>(t);
    if (by_overlap.size() < wanted) return false;
    by_overlap.resize(wanted);
    std::ranges::sort(by_overlap);
    parts[p].clear();
    for (const int g : by_overlap)
      for (int d = g * t; d < (g + 1) * t; ++d) {
        parts[p].push_back(d);
        taken[static_cast<std::size_t>(d)] = 1;
      }
  }
  return true;
}

}  // namespace detail

/// The problem of a model under some kinds. Throws Failure for a model that makes no sense.
/// @param alone  parts are priced as if no other ranks of a node worked beside them
inline WaveProblem wave_problem(WavePrices& prices, const WaveKinds& kinds, bool alone = false) {
  return detail::WaveProblemMaker(prices, kinds).make(alone);
}

/// The plan that a solution stands for. A part whose layers have several kinds becomes parts of waves that follow each
/// other; layers that do not split as far as others run on the first devices.
/// @param placement  devices of every part, as of spindle::place
inline WavePlan wave_plan_of(const WavePrices& prices, const WaveKinds& kinds, const WaveProblem& of,
                             const std::vector<spindle::Wave>& waves, const spindle::Placement& placement) {
  WavePlan out{.ranks = of.problem.devices, .zero = kinds.zero};
  std::vector<int> done(of.runs.size(), 0);
  for (std::size_t w = 0; w < waves.size(); ++w) {
    const std::vector<spindle::Part>& parts = waves[w].parts;
    std::vector<int> tensor;
    for (const spindle::Part& part : parts) {
      const MetaOpRun& run = of.runs[static_cast<std::size_t>(part.metaop)];
      tensor.push_back(prices.kind_in(run, run.main, kinds).tensor);
    }
    std::vector<std::vector<int>> devices = placement[w];
    detail::align(devices, tensor, of.problem.devices);
    std::vector<Wave> follow;  // the wave, and those that its parts need besides
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const auto m = static_cast<std::size_t>(parts[p].metaop);
      const MetaOpRun& run = of.runs[m];
      const auto [first, last] = run.layers_of(done[m], parts[p].operators);
      done[m] += parts[p].operators;
      std::size_t next = 0;
      StrategySpec before{.tensor = 0};
      for (int i = first; i <= last; ++i) {
        const StrategySpec spec = prices.strategy_on(prices.kind_in(run, i, kinds), static_cast<int>(devices[p].size()),
                                                     prices.model().task(run.task).batch);
        if (spec == before) {
          follow[next - 1].parts.back().last = i;
          continue;
        }
        before = spec;
        if (follow.size() == next) follow.emplace_back();
        follow[next++].parts.push_back({.task = run.task,
                                        .pass = run.pass,
                                        .first = i,
                                        .last = i,
                                        .ranks = {devices[p].begin(), devices[p].begin() + spec.ranks()},
                                        .strategy = spec});
      }
    }
    std::ranges::move(follow, std::back_inserter(out.waves));
  }
  return out;
}

}  // namespace galvatron
