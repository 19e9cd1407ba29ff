// Models that are graphs: a loss inside, a second embedding, values that go past several layers. Their gradients are
// those of the sum of their losses, and every plan trains them as one rank does.
#include <galvatron/model/graph.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <galvatron/model/check.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/runtime/parameter_store.hpp>

#include "check_plan.hpp"
#include "random_plan.hpp"
#include "toy.hpp"

using namespace galvatron;

namespace {

/// The nodes of toy::model as a graph grows.
class GraphOf {
 public:
  GraphOf(const std::string& name, bool llama) : model_(toy::model(llama, 6)) { graph_.name = name; }

  NodeOutput embedding() {
    LayerSpec layer = model_.embedding;
    layer.tied = false;
    return {graph_.add(layer)};
  }
  NodeOutput block(NodeOutput x) { return {graph_.add(model_.blocks[0], x)}; }
  /// With cross attention.
  NodeOutput block(NodeOutput x, NodeOutput memory) {
    LayerSpec layer = model_.blocks[0];
    layer.memory = all_tokens;
    layer.forward_pass = block_forward;
    return {graph_.add(layer, x, memory)};
  }
  void head(NodeOutput x, double weight) {
    LayerSpec layer = model_.head;
    layer.tied = false;
    layer.loss_weight = weight;
    graph_.add(layer, x);
  }
  [[nodiscard]] ModelSpec model() const { return checked(chain_of(graph_).value()).value(); }

 private:
  ModelSpec model_;
  ModelGraph graph_;
};

/// Losses behind the second and the fourth block, of which one head follows another.
ModelSpec three_losses() {
  GraphOf g("three-losses", false);
  NodeOutput x = g.block(g.block(g.embedding()));
  g.head(x, 0.5);
  x = g.block(g.block(x));
  g.head(x, 0.25);
  g.head(x, 2.0);
  return g.model();
}

/// A second embedding goes through two blocks beside the first one, and two blocks attend to it.
ModelSpec two_inputs() {
  GraphOf g("two-inputs", true);
  const NodeOutput x = g.embedding();
  const NodeOutput memory = g.block(g.block(g.embedding()));
  const NodeOutput y = g.block(g.block(g.block(x, memory)), memory);
  g.head(g.block(y), 1.5);
  return g.model();
}

/// Both: a loss of the second input's own, before the first one reads it.
ModelSpec two_inputs_two_losses() {
  GraphOf g("two-inputs-two-losses", false);
  const NodeOutput x = g.embedding();
  const NodeOutput memory = g.block(g.embedding());
  g.head(memory, 0.75);
  g.head(g.block(g.block(x, memory)), 1.0);
  return g.model();
}

const std::vector<ModelSpec> models{three_losses(), two_inputs(), two_inputs_two_losses()};

/// The loss of one rank's first step from parameters moved along `direction`.
double loss_at(const ModelSpec& model, const toy::Gradients& direction, double distance) {
  toy::RunOptions options;
  options.initial = [&](int layer, const ParameterTensor& tensor, std::int64_t index, View<float> values) {
    runtime::initial_values(7)(layer, tensor, index, values);
    const std::vector<double>& along = direction.at({layer, tensor.name});
    for (std::int64_t i = 0; i < values.count; ++i)
      values[i] += static_cast<float>(distance * along[static_cast<std::size_t>(index + i)]);
  };
  return toy::run(toy::single_rank(model), model, options).losses.at(0);
}

}  // namespace

TEST_CASE("the gradient of a graph is the slope of its weighted losses") {
  for (const ModelSpec& model : models) {
    INFO(model.name);
    const toy::Outcome outcome = toy::run(toy::single_rank(model), model, 1);
    const double squares = outcome.norms.at(0) * outcome.norms.at(0);
    const double distance = 2e-3 / outcome.norms.at(0);
    const double rise = loss_at(model, outcome.gradients, distance) - loss_at(model, outcome.gradients, -distance);
    CHECK(rise == doctest::Approx(2 * distance * squares).epsilon(0.01));
  }
}

TEST_CASE("a stage of embeddings alone uses the memory that was predicted under each stage of ZeRO") {
  const ModelSpec model = two_inputs_two_losses();
  const int last = static_cast<int>(model.blocks.size()) - 1;
  for (int zero = 0; zero < 4; ++zero) {
    INFO("zero" << zero);
    Plan plan = toy::uniform(model, 2, {.data = 2, .zero = zero}, 2, ScheduleKind::one_f_one_b);
    plan.stages = {{0, 0, 0, 2}, {1, last, 2, 2}};  // the second embedding comes first of the other layers
    CHECK(toy::run(plan, model, 1).memory_as_planned);
  }
}

TEST_CASE("random plans of graphs train as one rank does, and use the memory that was predicted") {
  const toy::RandomPlanBudget budget(6);
  std::mt19937 random(budget.seed);
  const int plans = budget.plans > 0 ? budget.plans : 12;
  for (const ModelSpec& model : models) {
    const toy::Outcome reference = toy::run(toy::single_rank(model), model, 3);
    for (int done = 0; done < plans;) {
      const std::optional<Plan> plan = toy::random_plan(random, model);
      if (!plan) continue;
      INFO("GALVATRON_RANDOM_SEED=", budget.seed, ", plan ", done, " of ", model.name);
      toy::check_plan(*plan, model, reference);
      ++done;
    }
  }
}
