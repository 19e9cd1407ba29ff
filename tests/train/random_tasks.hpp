// Random multi-task models, and random plans of waves for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/model/components.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/model/task_mix.hpp>
#include <galvatron/plan/wave_plan.hpp>

namespace galvatron::test {

/// A model of a few components of all kinds, with shared ones, and 1 to 7 tasks.
class RandomTasks {
 public:
  explicit RandomTasks(std::uint64_t seed) : random_(seed) {}

  MultiTaskModel model() {
    using K = ComponentKind;
    model_ = {"random", {}, {}};
    const bool towers = coin();
    const bool generates = coin();
    const bool language = coin() || (!towers && !generates);
    const std::int64_t vocabulary = between(20, 60);
    if (towers) {
      const std::int64_t e = 8 * between(1, 4);
      const int count = static_cast<int>(between(2, 4));
      std::vector<std::string> names;
      for (int i = 0; i < count; ++i) names.push_back(tower("tower" + std::to_string(i), coin(), vocabulary, e, true));
      add("contrast", {.kind = K::contrastive, .hidden = e}, names);
      for (int i = 0; i + 1 < count; ++i)  // every tower is used
        task({names[static_cast<std::size_t>(i)], names[static_cast<std::size_t>(i + 1)]}, "contrast");
      if (count > 2 && coin()) task({names[0], names[2]}, "contrast");
    }
    if (generates) {
      const std::int64_t h = 16 * between(1, 3);
      const std::string seen = tower("seen", false, vocabulary, h, false);
      const std::string read = tower("read", true, vocabulary, h, false);
      const std::string words =
          add("words", {.kind = K::text_embedding, .hidden = h, .vocabulary = vocabulary, .tokens = 8});
      add("encoder", {.kind = K::encoder, .layers = layers(), .hidden = h, .heads = 4, .ffn = 2 * h, .tokens = 32},
          {seen, read});
      add("decoder",
          {.kind = K::decoder,
           .layers = layers(),
           .hidden = h,
           .heads = 4,
           .ffn = 2 * h,
           .vocabulary = vocabulary,
           .tokens = 8},
          {words}, "encoder");
      task({seen, words}, "decoder", coin() ? 4 : 0);
      task({read, words}, "decoder", 6);
      if (coin()) task({seen, read, words}, "decoder");
      if (coin()) {
        add("classes", {.kind = K::classifier, .hidden = h, .vocabulary = between(2, 9), .tokens = 32}, {"encoder"});
        task({seen}, "classes");
      }
    }
    if (language) {
      const std::int64_t h = 16 * between(1, 3);
      const std::string image = tower("image", false, vocabulary, h, false);
      const std::string sound = tower("sound", false, vocabulary, h, false);
      const std::string text =
          add("text", {.kind = K::text_embedding, .hidden = h, .vocabulary = vocabulary, .tokens = 8});
      add("llm",
          {.kind = K::llama,
           .layers = layers(),
           .hidden = h,
           .heads = 4,
           .kv_heads = 2,
           .ffn = 2 * h,
           .vocabulary = vocabulary,
           .tokens = 40},
          {image, sound, text});
      task({image, text}, "llm");
      task({sound, text}, "llm", coin() ? 2 : 0);
      if (coin()) task({image, sound, text}, "llm");
      if (coin()) task({text}, "llm");
    }
    return value_or_throw(checked(std::move(model_)));
  }

  /// A plan of waves on so many ranks, an even number or 1: random device sets, runs of layers and strategies.
  WavePlan plan(const MultiTaskModel& model, int ranks) {
    graphs_ = value_or_throw(task_graphs(model));
    WavePlan out{.ranks = ranks, .zero = static_cast<int>(between(0, 3))};
    out.in_flight = static_cast<int>(between(1, 4));
    for (std::size_t t = 0; t < model.tasks.size(); ++t) {
      std::vector<int> counts{1};
      for (int m = 2; m <= model.tasks[t].batch && has_microbatches(model, graphs_[t]); ++m)
        if (model.tasks[t].batch % m == 0) counts.push_back(m);
      out.microbatches.push_back(counts[random_() % counts.size()]);
    }
    microbatches_ = out.microbatches;
    choose_kinds(model, ranks);
    std::map<std::pair<int, int>, int> done;  // layers of (task, pass)
    const auto layers_of = [&](int task, int pass) {
      return static_cast<int>(model.component(graphs_[at(task)].pass(pass).component).layers.size());
    };
    for (bool left = true; left;) {
      left = false;
      std::vector<std::pair<int, int>> ready;
      for (int t = 0; t < static_cast<int>(graphs_.size()); ++t)
        for (int p = 0; p < static_cast<int>(graphs_[at(t)].passes.size()); ++p) {
          if (done[{t, p}] == layers_of(t, p)) continue;
          left = true;
          const TaskPass& pass = graphs_[at(t)].pass(p);
          const auto is_done = [&](int read) { return read < 0 || done[{t, read}] == layers_of(t, read); };
          if (is_done(pass.memory) && std::ranges::all_of(pass.inputs, is_done)) ready.emplace_back(t, p);
        }
      std::shuffle(ready.begin(), ready.end(), random_);
      Wave wave;
      std::vector<int> pairs(at(std::max(ranks / 2, 1)));
      std::iota(pairs.begin(), pairs.end(), 0);
      std::shuffle(pairs.begin(), pairs.end(), random_);
      for (const auto& [t, p] : ready)
        if (auto part = this->part(model, t, p, done[{t, p}], ranks, pairs); !part.ranks.empty())
          wave.parts.push_back(std::move(part));
      for (const WavePart& part : wave.parts) done[{part.task, part.pass}] = part.last + 1;
      if (!wave.parts.empty()) out.waves.push_back(std::move(wave));
    }
    return out;
  }

  bool flip() { return coin(); }
  /// One to three mixes of the model's tasks, in a run of so many steps.
  std::vector<TaskMix> mixes(const MultiTaskModel& model, std::int64_t steps) {
    std::vector<TaskMix> out;
    for (std::int64_t step = between(1, 2); step < steps && out.size() < 3; step += between(1, 2)) {
      TaskMix& mix = out.emplace_back(TaskMix{step, {}});
      for (const TaskSpec& task : model.tasks)
        if (coin()) mix.tasks.push_back({task.name, between(1, 8)});
      if (mix.tasks.empty()) mix.tasks.push_back({model.tasks[random_() % model.tasks.size()].name, between(1, 8)});
    }
    return out;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  bool coin() { return random_() % 2 == 0; }
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  int layers() { return static_cast<int>(between(1, 3)); }
  std::string add(const std::string& name, const ComponentShape& shape, std::vector<std::string> inputs = {},
                  std::string memory = {}) {
    model_.components.push_back(component(name, shape, std::move(inputs), std::move(memory)));
    // Where ReLU bends, another order of sums gives another gradient.
    for (LayerSpec& layer : model_.components.back().layers)
      if (layer.activation == ActivationKind::relu) layer.activation = ActivationKind::gelu;
    return name;
  }
  std::string tower(const std::string& name, bool text, std::int64_t vocabulary, std::int64_t output, bool pools) {
    const std::int64_t h = 16 * between(1, 3);
    if (text)
      return add(name, {.kind = ComponentKind::text,
                        .layers = layers(),
                        .hidden = h,
                        .heads = 4,
                        .vocabulary = vocabulary,
                        .tokens = 8,
                        .causal = coin(),
                        .output = output,
                        .pools = pools,
                        .activation = activation(),
                        .embedding_norm = coin(),
                        .end_token = pools && coin() ? (coin() ? largest_token : between(0, 9)) : no_token});
    return add(name, {.kind = ComponentKind::patches,
                      .layers = layers(),
                      .hidden = h,
                      .heads = 4,
                      .tokens = between(3, 10),
                      .patch = between(3, 12),
                      .class_token = coin(),
                      .output = output,
                      .pools = pools,
                      .activation = activation(),
                      .embedding_norm = coin(),
                      .patch_bias = coin()});
  }
  ActivationKind activation() {
    constexpr ActivationKind kinds[] = {ActivationKind::gelu, ActivationKind::quick_gelu, ActivationKind::exact_gelu};
    return kinds[between(0, 2)];
  }
  void task(const std::vector<std::string>& inputs, const std::string& loss, std::int64_t last_tokens = 0) {
    TaskSpec out{"task" + std::to_string(model_.tasks.size()),
                 {},
                 loss,
                 between(1, 8),
                 0.25 * static_cast<double>(between(1, 8))};
    for (const std::string& input : inputs) out.inputs.push_back({input});
    out.inputs.back().tokens = last_tokens;
    model_.tasks.push_back(std::move(out));
  }

  /// A tensor degree and a split of the sequence for each layer that fits all passes through it.
  void choose_kinds(const MultiTaskModel& model, int ranks) {
    kinds_.clear();
    for (int c = 0; c < static_cast<int>(model.components.size()); ++c) {
      const StrategySpec wanted{.tensor = ranks > 1 && coin() ? 2 : 1};
      const bool cut = coin();
      for (int i = 0; i < static_cast<int>(model.component(c).layers.size()); ++i) {
        StrategySpec spec = wanted;
        if (spec.tensor > 1 && cut) spec.sequence = SequenceKind::megatron;
        if (!fits(model, c, i, spec)) spec.sequence = SequenceKind::none;
        if (!fits(model, c, i, spec)) spec.tensor = 1;
        kinds_[{c, i}] = spec;
      }
    }
  }
  bool fits(const MultiTaskModel& model, int component, int layer, const StrategySpec& spec) const {
    for (const TaskGraph& graph : graphs_)
      for (const TaskPass& pass : graph.passes)
        if (pass.component == component && !is_fit(layer_of(model, graph, pass, layer), spec, 1, pass.tokens))
          return false;
    return true;
  }
  /// A part that begins with a layer, on some of the pairs of ranks that are left, which it takes; or none.
  WavePart part(const MultiTaskModel& model, int task, int pass, int first, int ranks, std::vector<int>& pairs) {
    WavePart out{.task = task, .pass = pass, .first = first, .last = first, .ranks = {}};
    const int c = graphs_[at(task)].pass(pass).component;
    const auto layers = static_cast<int>(model.component(c).layers.size());
    const StrategySpec kind = kinds_.at({c, first});
    const auto most = first + static_cast<int>(between(0, layers));
    while (out.last + 1 < layers && out.last < most && kinds_.at({c, out.last + 1}) == kind) ++out.last;
    if (pairs.empty()) return out;
    out.strategy = kind;
    out.strategy.recompute = recompute_kinds[random_() % recompute_kinds.size()];
    std::vector<int> degrees;
    const std::int64_t batch = model.task(task).batch / microbatches_[at(task)];
    const int at_most = static_cast<int>(pairs.size()) * (kind.tensor > 1 || ranks == 1 ? 1 : 2);
    for (int d = 1; d <= at_most; ++d)
      if (batch % d == 0) degrees.push_back(d);
    out.strategy.data = degrees[random_() % degrees.size()];
    for (int n = 0; n < out.strategy.ranks();) {
      const int pair = pairs.back();
      pairs.pop_back();
      for (int k = 0; k < (ranks == 1 ? 1 : 2) && n < out.strategy.ranks(); ++k, ++n)
        out.ranks.push_back(ranks == 1 ? 0 : 2 * pair + k);
    }
    if (kind.tensor == 1 && coin()) std::shuffle(out.ranks.begin(), out.ranks.end(), random_);
    return out;
  }

  std::mt19937_64 random_;
  MultiTaskModel model_;
  std::vector<TaskGraph> graphs_;
  std::vector<int> microbatches_;  // of each task, in the plan
  std::map<std::pair<int, int>, StrategySpec> kinds_;
};

}  // namespace galvatron::test
