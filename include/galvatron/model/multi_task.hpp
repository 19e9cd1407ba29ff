// MultiTaskModel: a model of several tasks. Components are runs of layers whose parameters exist once; connections say
// whose outputs a component reads; a task is the data of some components, the component that ends in its loss, and what
// lies between them:
//
//     text ──────────────┐                                  text -> contrast <- vision     task 1
//     vision ────────────┼──> contrast                      audio -> contrast <- vision    task 2
//     audio ─────────────┘
//     vision -> adaptor ─┐
//     text embedding ────┴──> language model (loss)
//
// A component that reads several others has their tokens one behind the other, in the order of its connections; of
// those that a task does not use it has none. A decoder reads one component more, by cross attention. Every task has a
// batch and sequences of its own, so that a ModelGraph (model/graph.hpp), which is one batch's, is not enough.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/model/check.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron {

struct Component {
  std::string name;
  /// The first is an embedding where the component reads data; a head, if there is one, is the last.
  std::vector<LayerSpec> layers;
  std::vector<std::string> inputs{};  ///< components; none: it reads data
  std::string memory{};               ///< of a decoder: what its cross attention reads

  [[nodiscard]] bool reads_data() const { return inputs.empty(); }
  [[nodiscard]] bool has_loss() const { return !layers.empty() && layers.back().kind == LayerKind::head; }
  [[nodiscard]] bool reads_memory() const {
    return std::ranges::any_of(layers, [](const LayerSpec& layer) { return layer.memory.any(); });
  }
  /// What goes on of a sample of `tokens` tokens, and its width.
  [[nodiscard]] std::int64_t tokens_behind(std::int64_t tokens) const;
  [[nodiscard]] std::int64_t width_behind() const { return layers.back().after(0).width; }
};

struct TaskInput {
  std::string component;
  std::int64_t tokens = 0;  ///< of a sample; 0: as many as the component has positions
};

struct TaskSpec {
  std::string name;
  std::vector<TaskInput> inputs;  ///< what reads the task's data; of a language loss the last one's tokens have targets
  std::string loss;               ///< the component that ends it
  std::int64_t batch = 0;         ///< samples of a step
  double weight = 1;              ///< of the loss in the model's
};

struct MultiTaskModel {
  std::string name;
  std::vector<Component> components;
  std::vector<TaskSpec> tasks;
  /// There may be components that no task uses: they keep their parameters as they are (model/task_mix.hpp).
  bool has_idle = false;

  /// The number of a component; -1: no component has that name.
  [[nodiscard]] int find(std::string_view component) const {
    for (std::size_t i = 0; i < components.size(); ++i)
      if (components[i].name == component) return static_cast<int>(i);
    return -1;
  }
  [[nodiscard]] const Component& component(int i) const { return components[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const TaskSpec& task(int i) const { return tasks[static_cast<std::size_t>(i)]; }
  /// Layers before those of a component: layers are numbered in the order of the components.
  [[nodiscard]] int first_layer(int component) const {
    int sum = 0;
    for (int i = 0; i < component; ++i) sum += static_cast<int>(components[static_cast<std::size_t>(i)].layers.size());
    return sum;
  }
};

/// True for a layer with a forward pass of its own that makes one vector of a sample. Its graph says so: the address of
/// the function would be another one in a module that has a copy.
inline bool pools(const LayerSpec& layer) {
  if (layer.forward_pass == nullptr) return false;
  const forward::Graph graph = layer.forward_pass(layer);
  if (graph.has_loss()) return false;
  const forward::Rows rows = graph.rows(graph.outputs[0]);
  return rows == forward::Rows::samples || rows == forward::Rows::first_tokens;
}

inline std::int64_t Component::tokens_behind(std::int64_t tokens) const {
  return std::ranges::any_of(layers, pools) ? 1 : tokens;
}

/// One pass of a task through a component.
struct TaskPass {
  int component = 0;
  std::int64_t tokens = 0;    ///< of a sample
  int source = -1;            ///< which of the task's inputs it reads; -1: other passes
  std::vector<int> inputs{};  ///< passes whose outputs it reads
  int memory = -1;            ///< the pass that its cross attention reads
};

/// The passes of a task, each behind those that it reads; the last one ends in the loss.
struct TaskGraph {
  std::vector<TaskPass> passes;

  [[nodiscard]] const TaskPass& pass(int i) const { return passes[static_cast<std::size_t>(i)]; }
};

/// Layer `i` of a pass as it is for the sequences of its task.
inline LayerSpec layer_of(const MultiTaskModel& model, const TaskGraph& graph, const TaskPass& pass, int i) {
  LayerSpec layer = model.component(pass.component).layers[static_cast<std::size_t>(i)];
  if (pools(layer)) layer.place.after[0].tokens = {1, pass.tokens};
  if (layer.memory.any()) {
    const TaskPass& read = graph.pass(pass.memory);
    layer.memory = {model.component(read.component).tokens_behind(read.tokens), pass.tokens};
    layer.place.before[1] = layer.place.after[1] = {layer.memory, layer.hidden};
  }
  return layer;
}

/// Terms of the loss of one sample.
inline std::int64_t predictions(const MultiTaskModel& model, const TaskSpec& task, const TaskGraph& graph) {
  switch (model.component(graph.passes.back().component).layers.back().head) {
    case HeadKind::classifier:
      return 1;
    case HeadKind::contrastive:
      return 2;
    default:
      break;
  }
  const auto source = static_cast<int>(task.inputs.size()) - 1;
  return std::ranges::find(graph.passes, source, &TaskPass::source)->tokens;
}

namespace detail {

/// Reads a multi-task model, and says in one line what is wrong with it.
class TaskGraphs {
 public:
  explicit TaskGraphs(const MultiTaskModel& model) : model_(model) {}

  /// Errors (usage): see checked().
  Result<void> check() {
    return check_names()
        .and_then([this] { return check_components(); })
        .and_then([this] { return sort(); })
        .and_then([this] { return check_widths(); })
        .and_then([this] { return check_tasks(); });
  }
  /// Of a model whose components are right.
  Result<TaskGraph> graph(const TaskSpec& task) const {
    TaskGraph out;
    std::vector<int> pass_of(model_.components.size(), -1);
    for (const int c : order_) {
      TaskPass pass{.component = c};
      if (!enters(task, c, pass_of, pass)) continue;
      pass_of[at(c)] = static_cast<int>(out.passes.size());
      if (pass.source < 0)
        for (const int read : pass.inputs)
          pass.tokens += component(out.pass(read).component).tokens_behind(out.pass(read).tokens);
      out.passes.push_back(std::move(pass));
    }
    const int loss = model_.find(task.loss);
    if (loss < 0) return refuse(of(task) + "ends in " + quoted(task.loss) + ", which is no component");
    if (!component(loss).has_loss())
      return refuse(of(task) + "ends in " + quoted(task.loss) + ", which has no loss: its last layer is no head");
    if (pass_of[at(loss)] < 0) return refuse(of(task) + "has no way from its inputs to its loss, " + quoted(task.loss));
    return reduced(std::move(out), pass_of[at(loss)]);
  }

  /// The graphs of all tasks of a model that is right.
  Result<std::vector<TaskGraph>> all() {
    return check().and_then([this]() -> Result<std::vector<TaskGraph>> {
      std::vector<TaskGraph> out;
      for (const TaskSpec& task : model_.tasks) out.push_back(value_or_throw(graph(task)));
      return out;
    });
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  static std::string quoted(std::string_view name) { return "\"" + one_line(name, 60) + "\""; }
  static std::string of(const TaskSpec& task) { return "the task " + quoted(task.name) + " "; }
  [[nodiscard]] const Component& component(int i) const { return model_.component(i); }
  [[nodiscard]] tl::unexpected<Error> refuse(const std::string& why) const {
    return usage_error("the model " + quoted(model_.name) + ": " + why);
  }
  [[nodiscard]] Result<void> check_names() const {
    if (model_.components.empty()) return refuse("it has no components");
    if (model_.tasks.empty()) return refuse("it has no tasks");
    const auto doubled = [](const auto& items) {
      for (std::size_t i = 0; i < items.size(); ++i)
        for (std::size_t j = 0; j < i; ++j)
          if (items[i].name == items[j].name) return static_cast<int>(i);
      return -1;
    };
    if (const int i = doubled(model_.components); i >= 0)
      return refuse("two components have the name " + quoted(component(i).name));
    if (const int i = doubled(model_.tasks); i >= 0)
      return refuse("two tasks have the name " + quoted(model_.task(i).name));
    return {};
  }
  [[nodiscard]] Result<void> check_components() const {
    for (const Component& c : model_.components) {
      const std::string where = "the component " + quoted(c.name) + " ";
      if (c.layers.empty()) return refuse(where + "has no layers");
      if (c.reads_data() != (c.layers.front().kind == LayerKind::embedding))
        return refuse(where + (c.reads_data() ? "reads no other one, and so begins with an embedding of data"
                                              : "reads other ones, and so has no embedding"));
      if (c.memory.empty() == c.reads_memory())
        return refuse(where + (c.memory.empty() ? "has cross attention, and so reads a memory"
                                                : "reads a memory, but has no cross attention"));
      for (std::size_t i = 0; i < c.layers.size(); ++i) {
        const LayerSpec& layer = c.layers[i];
        const std::string of_layer = where + "(layer " + std::to_string(i) + "): ";
        if (i > 0 && layer.kind == LayerKind::embedding)
          return refuse(of_layer + "only the first layer is an embedding");
        if (i + 1 < c.layers.size() && (layer.kind == LayerKind::head || pools(layer)))
          return refuse(of_layer + "a head, or a projection of samples, is the last layer");
        const bool bundle = !layer.is_in_chain() && layer.forward_pass == nullptr && !layer.memory.any();
        if (bundle || layer.tied || layer.target.any() || layer.merges || layer.head == HeadKind::masked_language ||
            layer.has_jitter())
          return refuse(
              of_layer +
              "tied tables, targets, bundles, merged tokens, masked losses and noise belong to models of one task, "
              "whose plans are one chain of stages");
        if (layer.end_token != no_token && (!pools(layer) || layer.class_token || !c.reads_data() ||
                                            c.layers.front().patch_width > 0 || layer.end_token < largest_token))
          return refuse(of_layer + "only a projection behind tokens of data reads where texts end");
        if (const auto why = why_inconsistent(layer); !why.empty()) return refuse(of_layer + std::string(why));
        if (i > 0 && c.layers[i - 1].after(0).width != layer.input().width)
          return refuse(of_layer + "it is " + std::to_string(layer.input().width) +
                        " wide, and the layer before gives " + std::to_string(c.layers[i - 1].after(0).width));
      }
      for (const std::string* read : reads(c))
        if (model_.find(*read) < 0) return refuse(where + "reads " + quoted(*read) + ", which is no component");
    }
    return {};
  }
  static std::vector<const std::string*> reads(const Component& c) {
    std::vector<const std::string*> out;
    for (const std::string& input : c.inputs) out.push_back(&input);
    if (!c.memory.empty()) out.push_back(&c.memory);
    return out;
  }
  /// Components behind those that they read.
  Result<void> sort() {
    std::vector<bool> placed(model_.components.size(), false);
    while (order_.size() < placed.size()) {
      const std::size_t before = order_.size();
      for (int c = 0; c < static_cast<int>(placed.size()); ++c) {
        const auto list = reads(component(c));
        if (placed[at(c)] ||
            !std::ranges::all_of(list, [&](const std::string* read) { return placed[at(model_.find(*read))]; }))
          continue;
        placed[at(c)] = true;
        order_.push_back(c);
      }
      if (order_.size() > before) continue;
      const auto first = std::ranges::find(placed, false) - placed.begin();
      return refuse("a cycle: the component " + quoted(cycle_from(static_cast<int>(first), placed)) +
                    " reads what follows from its own output");
    }
    return {};
  }
  /// A component of a cycle that comes before `c`, which waits for it.
  [[nodiscard]] const std::string& cycle_from(int c, const std::vector<bool>& placed) const {
    for (std::size_t i = 0; i < placed.size(); ++i)
      for (const std::string* read : reads(component(c)))
        if (const int next = model_.find(*read); !placed[at(next)]) {
          c = next;
          break;
        }
    return component(c).name;
  }
  [[nodiscard]] Result<void> check_widths() const {
    for (const Component& c : model_.components)
      for (const std::string* read : reads(c)) {
        const Component& from = component(model_.find(*read));
        const std::string where = "the component " + quoted(c.name) + " reads " + quoted(from.name);
        if (from.has_loss()) return refuse(where + ", which ends in a loss");
        if (from.width_behind() != c.layers.front().input().width)
          return refuse(where + ", which is " + std::to_string(from.width_behind()) + " wide, but takes a width of " +
                        std::to_string(c.layers.front().input().width) + "; put an adaptor between them");
      }
    return {};
  }
  [[nodiscard]] Result<void> check_tasks() const {
    std::vector<bool> used(model_.components.size(), false);
    for (const TaskSpec& task : model_.tasks) {
      auto graph = check_task(task);
      if (!graph) return tl::unexpected<Error>(std::move(graph.error()));
      for (const TaskPass& pass : graph->passes) used[at(pass.component)] = true;
    }
    if (const auto unused = std::ranges::find(used, false); unused != used.end() && !model_.has_idle)
      return refuse("no task uses the component " + quoted(component(static_cast<int>(unused - used.begin())).name));
    return {};
  }
  [[nodiscard]] Result<TaskGraph> check_task(const TaskSpec& task) const {
    if (task.inputs.empty()) return refuse(of(task) + "has no data: it names no inputs");
    if (task.batch < 1)
      return refuse(of(task) + "has a batch of " + std::to_string(task.batch) + ": at least 1 sample");
    if (task.batch > model_limits::positions) return refuse(of(task) + "has a batch above 16777216");
    if (!(task.weight > 0 && task.weight <= 1e6)) return refuse(of(task) + "has a weight that is not from 0 to 1e6");
    for (std::size_t i = 0; i < task.inputs.size(); ++i)
      if (auto right = check_input(task, i); !right) return tl::unexpected<Error>(std::move(right.error()));
    return graph(task).and_then([&](TaskGraph made) { return check_passes(task, std::move(made)); });
  }
  [[nodiscard]] Result<void> check_input(const TaskSpec& task, std::size_t i) const {
    const auto& [name, tokens] = task.inputs[i];
    const int c = model_.find(name);
    if (c < 0) return refuse(of(task) + "has an input " + quoted(name) + ", which is no component");
    if (!component(c).reads_data())
      return refuse(of(task) + "has an input " + quoted(name) + ", which reads other components and no data");
    for (std::size_t j = 0; j < i; ++j)
      if (task.inputs[j].component == name) return refuse(of(task) + "has the input " + quoted(name) + " twice");
    const std::int64_t most = component(c).layers.front().positions;
    const bool images = component(c).layers.front().patch_width > 0;
    if (tokens < 0 || tokens > most || (images && tokens != 0 && tokens != most))
      return refuse(of(task) + "has samples of " + std::to_string(tokens) + " tokens for " + quoted(name) + ", which " +
                    (images ? "has images of " : "takes up to ") + std::to_string(most));
    return {};
  }
  [[nodiscard]] Result<TaskGraph> check_passes(const TaskSpec& task, TaskGraph graph) const {
    for (std::size_t i = 0; i < task.inputs.size(); ++i)
      if (std::ranges::find(graph.passes, static_cast<int>(i), &TaskPass::source) == graph.passes.end())
        return refuse(of(task) + "has an input " + quoted(task.inputs[i].component) + " that its loss does not use");
    for (const TaskPass& pass : graph.passes) {
      const Component& c = component(pass.component);
      const std::string where = of(task) + "gives " + quoted(c.name) + " ";
      if (c.reads_memory() && pass.memory < 0) return refuse(where + "no memory");
      if (c.layers.back().kind == LayerKind::head && c.layers.back().head == HeadKind::contrastive &&
          (pass.inputs.size() != 2 || pass.tokens != 2))
        return refuse(where + std::to_string(pass.inputs.size()) +
                      " inputs: a contrastive loss has two, each with one vector of a sample");
      if (pass.tokens > c.layers.front().positions)
        return refuse(where + std::to_string(pass.tokens) + " tokens, and it has " +
                      std::to_string(c.layers.front().positions) + " positions");
    }
    const LayerSpec& head = component(graph.passes.back().component).layers.back();
    const auto last = std::ranges::find(graph.passes, static_cast<int>(task.inputs.size()) - 1, &TaskPass::source);
    if (head.head == HeadKind::language && component(last->component).layers.front().patch_width > 0)
      return refuse(of(task) + "has a language loss, whose targets belong to its last input: that is one of tokens");
    return graph;
  }

  /// What the task gives a component; false: nothing.
  [[nodiscard]] bool enters(const TaskSpec& task, int c, const std::vector<int>& pass_of, TaskPass& pass) const {
    const Component& own = component(c);
    for (std::size_t i = 0; i < task.inputs.size(); ++i)
      if (task.inputs[i].component == own.name) {
        pass.source = static_cast<int>(i);
        pass.tokens = task.inputs[i].tokens > 0 ? task.inputs[i].tokens : own.layers.front().positions;
      }
    for (const std::string& input : own.inputs)
      if (const int read = pass_of[at(model_.find(input))]; read >= 0) pass.inputs.push_back(read);
    if (!own.memory.empty()) pass.memory = pass_of[at(model_.find(own.memory))];
    return pass.source >= 0 || !pass.inputs.empty();
  }
  /// The passes that the loss reads, in their order.
  static TaskGraph reduced(TaskGraph all, int loss) {
    std::vector<bool> kept(all.passes.size(), false);
    kept[at(loss)] = true;
    std::vector<int> number(all.passes.size(), -1);
    for (int i = loss; i >= 0; --i) {
      if (!kept[at(i)]) continue;
      for (const int read : all.pass(i).inputs) kept[at(read)] = true;
      if (all.pass(i).memory >= 0) kept[at(all.pass(i).memory)] = true;
    }
    TaskGraph out;
    for (int i = 0; i <= loss; ++i) {
      if (!kept[at(i)]) continue;
      number[at(i)] = static_cast<int>(out.passes.size());
      TaskPass& pass = out.passes.emplace_back(all.pass(i));
      for (int& read : pass.inputs) read = number[at(read)];
      if (pass.memory >= 0) pass.memory = number[at(pass.memory)];
    }
    return out;
  }

  const MultiTaskModel& model_;
  std::vector<int> order_;  ///< components, each behind those that it reads
};

}  // namespace detail

/// The model, if it is consistent. Errors (usage), one line each: names that come twice or that nothing has, a cycle, a
/// component that no task uses, widths that do not fit, a task without data, with a batch of 0, with data that its loss
/// does not use, or with more tokens than a component has positions.
inline Result<MultiTaskModel> checked(MultiTaskModel model) {
  if (auto right = detail::TaskGraphs(model).check(); !right) return tl::unexpected<Error>(std::move(right.error()));
  return model;
}

/// The graph of each task. Errors: those of checked().
inline Result<std::vector<TaskGraph>> task_graphs(const MultiTaskModel& model) {
  return detail::TaskGraphs(model).all();
}

/// Parameters of all components.
inline std::int64_t parameters(const MultiTaskModel& model) {
  std::int64_t sum = 0;
  for (const Component& component : model.components)
    for (const LayerSpec& layer : component.layers) sum += parameters(layer);
  return sum;
}

}  // namespace galvatron
