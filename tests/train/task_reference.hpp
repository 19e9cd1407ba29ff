// The losses of a multi-task model in double precision, from the plainest loops (tests/runtime/reference.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include <galvatron/model/multi_task.hpp>
#include <galvatron/strategy/parameters.hpp>

#include "../runtime/encoder_decoder_reference.hpp"
#include "../runtime/reference.hpp"
#include "../runtime/reference_swin.hpp"
#include "run_tasks.hpp"

namespace galvatron::test {

class TaskReference {
 public:
  explicit TaskReference(const MultiTaskModel& model)
      : model_(model), graphs_(value_or_throw(task_graphs(model))), data_(model) {
    int number = 0;
    for (const Component& component : model.components)
      for (const LayerSpec& layer : component.layers) {
        Parameters& own = parameters.emplace_back();
        for (const ParameterPart part : parameter_parts)
          for (const ParameterTensor& tensor : parameter_layout(layer, part, 1, 1)) {
            auto& values = own[tensor.name];
            // What tests compare it with has no padding of the vocabulary.
            const std::int64_t count = tensor.name == ParameterName::table         ? layer.vocabulary * tensor.columns
                                       : tensor.name == ParameterName::logits_bias ? layer.vocabulary
                                                                                   : tensor.rows * tensor.columns;
            for (std::int64_t i = 0; i < count; ++i) values.push_back(toy_value(number, tensor.name, tensor.init, i));
          }
        ++number;
      }
  }

  std::vector<Parameters> parameters;  ///< of each layer, by its number

  /// The mean loss of a task's predictions in the first step.
  [[nodiscard]] double loss(int task) {
    const TaskGraph& graph = graphs_[static_cast<std::size_t>(task)];
    std::vector<Tensor> values;
    for (const TaskPass& pass : graph.passes) values.push_back(pass_of(task, graph, pass, values));
    const TaskSpec& spec = model_.task(task);
    return loss_ / static_cast<double>(spec.batch * predictions(model_, spec, graph));
  }
  /// The weighted sum of all tasks' losses.
  [[nodiscard]] double loss() {
    double sum = 0;
    for (int task = 0; task < static_cast<int>(model_.tasks.size()); ++task)
      sum += model_.task(task).weight * loss(task);
    return sum;
  }

 private:
  Tensor pass_of(int task, const TaskGraph& graph, const TaskPass& pass, const std::vector<Tensor>& values) {
    const Component& component = model_.component(pass.component);
    const Tokens tokens{pass.tokens, model_.task(task).batch};
    Tensor x;
    for (const int read : pass.inputs) {
      const Tensor& input = values[static_cast<std::size_t>(read)];
      x.insert(x.end(), input.begin(), input.end());  // tokens lie one behind the other
    }
    const Tensor memory = pass.memory < 0 ? Tensor{} : values[static_cast<std::size_t>(pass.memory)];
    for (int i = 0; i < static_cast<int>(component.layers.size()); ++i)
      x = layer_behind(task, pass, layer_of(model_, graph, pass, i),
                       parameters[static_cast<std::size_t>(model_.first_layer(pass.component) + i)], tokens,
                       std::move(x), memory);
    return x;
  }
  Tensor layer_behind(int task, const TaskPass& pass, const LayerSpec& layer, const Parameters& p, Tokens tokens,
                      Tensor x, const Tensor& memory) {
    auto& inputs = data_.inputs[static_cast<std::size_t>(task)];
    if (layer.kind == LayerKind::embedding)
      return embedded(layer, p, tokens, *inputs[static_cast<std::size_t>(pass.source)]);
    if (layer.kind == LayerKind::head) {
      loss_ = head(layer, p, tokens, x, *inputs.back(),
                   predictions(model_, model_.task(task), graphs_[static_cast<std::size_t>(task)]));
      return {};
    }
    if (layer.forward_pass == &adaptor_forward) return reference::norm_linear(layer, p, x);
    if (pools(layer)) {
      std::vector<std::int32_t> ids;
      if (layer.end_token != no_token) ids = read_tokens(tokens, *inputs[static_cast<std::size_t>(pass.source)]);
      return reference::norm_linear(layer, p, reference::pooled(layer, tokens, x, ids));
    }
    if (layer.position != PositionKind::relative) return reference::block(layer, tokens, p, x);
    if (!layer.memory.any()) return reference::encoder_decoder_block(layer, tokens, p, x);
    Tensor both = memory;
    both.insert(both.end(), x.begin(), x.end());
    const Tensor out = reference::encoder_decoder_block(layer, {layer.memory.of(pass.tokens), tokens.samples}, p, both);
    return {out.begin() + static_cast<std::ptrdiff_t>(memory.size()), out.end()};
  }
  static std::vector<std::int32_t> read_tokens(Tokens tokens, ToyInput& source) {
    std::vector<std::int32_t> out(reference::at(tokens.rows()));
    source.inputs(0, 0, tokens.samples, {0, tokens.sequence}, {out.data(), tokens.rows()});
    return out;
  }
  static Tensor embedded(const LayerSpec& layer, const Parameters& p, Tokens tokens, ToyInput& source) {
    if (layer.patch_width == 0) return reference::embedding(layer, tokens, p, read_tokens(tokens, source));
    const std::int64_t patches = tokens.sequence - (layer.class_token ? 1 : 0);
    std::vector<float> read(reference::at(patches * tokens.samples * layer.patch_width));
    source.patches(0, 0, tokens.samples, {0, patches},
                   View<float>{read.data(), static_cast<std::int64_t>(read.size())});
    const Tensor given(read.begin(), read.end());
    if (layer.class_token) return reference::image_embedding(layer, tokens, p, given);
    Tensor y = reference::linear(given, p.at(ParameterName::patch_weight),
                                 reference::find(p, ParameterName::patch_bias), layer.patch_width);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(y.size()); ++i)
      y[reference::at(i)] += p.at(ParameterName::positions)[reference::at(
          i / (tokens.samples * layer.hidden) * layer.hidden + i % layer.hidden)];
    if (layer.closing_norm)
      return reference::norm(layer, y, p.at(ParameterName::closing_gamma),
                             reference::find(p, ParameterName::closing_beta));
    return y;
  }
  static double head(const LayerSpec& layer, const Parameters& p, Tokens tokens, const Tensor& x, ToyInput& source,
                     std::int64_t count) {
    if (layer.head == HeadKind::contrastive) return reference::contrast(layer, p, x);
    if (layer.head == HeadKind::classifier) count = 1;
    std::vector<std::int32_t> targets(
        reference::at(layer.head == HeadKind::classifier ? tokens.samples : tokens.rows()), -1);
    const std::int64_t rows = count * tokens.samples;
    source.targets(0, 0, tokens.samples, {0, count}, {targets.data() + targets.size() - rows, rows});
    return layer.head == HeadKind::classifier ? reference::mean_classifier(layer, p, x, targets)
                                              : reference::head(layer, p, x, targets);
  }

  const MultiTaskModel& model_;
  std::vector<TaskGraph> graphs_;
  ToyData data_;
  double loss_ = 0;  ///< of the pass that ended in one last: the sum of its predictions
};

}  // namespace galvatron::test
