// Low-rank adapters: losses and gradients of one rank under every strategy, the memory that was predicted; gradients
// that are those of the merged weights by the chain rule.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/checkpoint/merged.hpp>
#include <galvatron/model/adapters.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/runtime/parameter_store.hpp>

#include "same_training.hpp"

namespace {

using namespace galvatron;

ModelSpec adapted(const ModelSpec& model, const std::string& targets) {
  return value_or_throw(with_adapter_targets({.rank = 4, .alpha = 8}, targets).and_then([&](const AdapterSpec& a) {
    return with_adapters(model, a);
  }));
}

// B is not zero, so that A has a gradient from the first step on.
void start_adapted(int layer, const ParameterTensor& tensor, std::int64_t index, View<float> values) {
  ParameterTensor drawn = tensor;
  if (name_of(tensor.name).ends_with("adapter_b")) {
    drawn.init = ParameterInit::normal;
    drawn.deviation = 0.05;
  }
  runtime::initial_values(7)(layer, drawn, index, values);
}

toy::Outcome run_adapted(const Plan& plan, const ModelSpec& model, int steps) {
  return toy::run(plan, model, toy::RunOptions{.steps = steps, .initial = start_adapted});
}

void check_adapted(const Plan& plan, const ModelSpec& model, const toy::Outcome& reference) {
  toy::check_plan(plan, model, reference, [](const Plan& p, const ModelSpec& m, toy::RunOptions how) {
    how.initial = start_adapted;
    return toy::run(p, m, how);
  });
}

// @param step  of the plans only every so many
void check_adapters(const ModelSpec& model, int ranks, std::size_t step) {
  const toy::Outcome reference = run_adapted(toy::single_rank(model), model, 4);
  CHECK(reference.memory_as_planned);
  for (const auto& [key, gradient] : reference.gradients) {
    CHECK(name_of(key.second).find("adapter") != std::string_view::npos);  // nothing else is trained
    double squares = 0;
    for (const double x : gradient) squares += x * x;
    CHECK(squares > 0);
  }
  const std::vector<Plan> plans = toy::combinations(model, ranks);
  for (std::size_t i = 0; i < plans.size(); i += step) check_adapted(plans[i], model, reference);
}

// Tensors of the first step's gradients and of the parameters that it began with, whole.
struct Whole {
  std::vector<double> values;
  std::int64_t columns = 0;
  [[nodiscard]] double operator()(std::int64_t row, std::int64_t column) const {
    return values[static_cast<std::size_t>(row * columns + column)];
  }
};
Whole started(int layer, ParameterName name, std::int64_t rows, std::int64_t columns, const ModelSpec& model) {
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  for (const ParameterPart part : parameter_parts)
    for (const ParameterTensor& tensor : parameter_layout(model.layer(layer), part, 1, 1))
      if (tensor.name == name) start_adapted(layer, tensor, 0, {values.data(), rows * columns});
  return {{values.begin(), values.end()}, columns};
}

// dB = s dW A^T and dA = s B^T dW, with dW the gradient of merged weights in the model without adapters.
void check_against_merged(const ModelSpec& model) {
  const ModelSpec plain = without_adapters(model);
  const auto merged = [&](int layer, const ParameterTensor& tensor, std::int64_t index, View<float> values) {
    runtime::initial_values(7)(layer, tensor, index, values);
    for (const train::AdaptedLinear& linear : train::adapted_linears(model.layer(layer))) {
      if (linear.weight != tensor.name) continue;
      const Whole a = started(layer, linear.a, std::ssize(linear.parts) * linear.rank, linear.inputs, model);
      std::int64_t outputs = 0;
      for (const auto& part : linear.parts) outputs += part.rows;
      const Whole b = started(layer, linear.b, outputs, linear.rank, model);
      for (const auto& part : linear.parts)
        for (std::int64_t i = 0; i < values.count; ++i) {
          const std::int64_t row = (index + i) / linear.inputs;
          if (row < part.row || row >= part.row + part.rows) continue;
          for (std::int64_t k = 0; k < linear.rank; ++k)
            values[i] += static_cast<float>(2 * b(part.first_row + row - part.row, k) *
                                            a(part.first_rank + k, (index + i) % linear.inputs));
        }
    }
  };
  const toy::Outcome with = run_adapted(toy::single_rank(model), model, 1);
  const toy::Outcome without = toy::run(toy::single_rank(plain), plain, toy::RunOptions{.steps = 1, .initial = merged});
  CHECK(with.losses.front() == doctest::Approx(without.losses.front()).epsilon(1e-6));
  int compared = 0;
  for (int layer = 1; layer + 1 < model.layers(); ++layer)
    for (const train::AdaptedLinear& linear : train::adapted_linears(model.layer(layer))) {
      const Whole dw{without.gradients.at({layer, linear.weight}), linear.inputs};
      const Whole da{with.gradients.at({layer, linear.a}), linear.inputs};
      const Whole db{with.gradients.at({layer, linear.b}), linear.rank};
      const Whole a = started(layer, linear.a, std::ssize(linear.parts) * linear.rank, linear.inputs, model);
      const Whole b = started(layer, linear.b, std::ssize(db.values) / linear.rank, linear.rank, model);
      double error = 0, squares = 0;
      const auto compare = [&](double got, double expected) {
        error += (got - expected) * (got - expected);
        squares += expected * expected;
      };
      for (const auto& part : linear.parts)
        for (std::int64_t k = 0; k < linear.rank; ++k) {
          for (std::int64_t row = 0; row < part.rows; ++row) {
            double sum = 0;
            for (std::int64_t j = 0; j < linear.inputs; ++j)
              sum += 2 * dw(part.row + row, j) * a(part.first_rank + k, j);
            compare(db(part.first_row + row, k), sum);
          }
          for (std::int64_t j = 0; j < linear.inputs; ++j) {
            double sum = 0;
            for (std::int64_t row = 0; row < part.rows; ++row)
              sum += 2 * dw(part.row + row, j) * b(part.first_row + row, k);
            compare(da(part.first_rank + k, j), sum);
          }
        }
      CHECK(std::sqrt(error / squares) < 1e-5);
      ++compared;
    }
  CHECK(compared > 0);
}

const std::string llama_targets = "q,k,v,o,gate,up,down";
const std::string gpt_targets = "qkv,o,up,down";

}  // namespace

TEST_CASE("adapters of a Llama train under every strategy as on one rank") {
  check_adapters(adapted(toy::model(true, 4), "q,v,o,gate,down"), 4, 2);
  check_adapters(adapted(toy::model(true, 4), llama_targets), 8, 13);
}

TEST_CASE("adapters of a GPT train under every strategy as on one rank") {
  check_adapters(adapted(toy::model(false, 4), gpt_targets), 4, 2);
  check_adapters(adapted(toy::model(false, 4), "k,up"), 8, 29);
}

TEST_CASE("adapters have the gradients of merged weights by the chain rule") {
  check_against_merged(adapted(toy::model(true, 2), llama_targets));
  check_against_merged(adapted(toy::model(true, 2), "k,up"));
  check_against_merged(adapted(toy::model(false, 2), gpt_targets));
  check_against_merged(adapted(toy::model(false, 2), "q,v"));
}

TEST_CASE("adapters train in every schedule, and on ranks of unequal shards") {
  const ModelSpec model = adapted(toy::model(true, 8), "q,v,o,up,down");
  const toy::Outcome reference = run_adapted(toy::single_rank(model), model, 4);
  for (const ScheduleKind kind : schedule_kinds)
    check_adapted(toy::uniform(model, 2, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 1}, 4,
                               kind, usual_virtual_stages(kind)),
                  model, reference);
  StrategySpec uneven{.tensor = 3};
  uneven.shard_kind = ShardKind::by_ratio;
  for (const std::vector<int>& heads : {std::vector{2, 1, 1}, {3, 0, 1}}) {
    Plan plan = toy::uniform(model, 1, uneven, 1, ScheduleKind::gpipe);
    plan.stages.front().head_ratios = heads;
    plan.stages.front().width_ratios = {1, 3, 0};
    check_adapted(plan, model, reference);
  }
}

TEST_CASE("adapters beside a base in bfloat16 take the memory that was predicted, and learn") {
  if (!device::Host::supports(Precision::bf16)) {
    MESSAGE("skipped: this processor has no bf16 arithmetic");
    return;
  }
  const ModelSpec model = adapted(toy::model(true, 4), llama_targets);
  for (const int zero : {0, 1, 2, 3}) {
    Plan plan = toy::uniform(model, 1, {.tensor = 2, .data = 2, .zero = zero}, 2, ScheduleKind::gpipe);
    plan.precision = Precision::bf16;
    const toy::Outcome outcome = run_adapted(plan, model, 20);
    CHECK(outcome.memory_as_planned);
    CHECK(outcome.copies_agree);
    CHECK(outcome.losses.back() < outcome.losses.front() - 0.05);
  }
}

TEST_CASE("frozen layers have no gradients, and those of the others are the same") {
  for (const bool llama : {false, true}) {
    const ModelSpec whole = toy::model(llama, 4);
    ModelSpec model = whole;
    model.embedding.frozen = model.head.frozen = model.blocks[0].frozen = model.blocks[2].frozen = true;
    const toy::Outcome all = toy::run(toy::single_rank(whole), whole, 1);
    const toy::Outcome reference = toy::run(toy::single_rank(model), model, 4);
    CHECK(reference.losses.front() == all.losses.front());
    for (const auto& [key, gradient] : reference.gradients) {
      CHECK((key.first == 2 || key.first == 4));
      CHECK(gradient == all.gradients.at(key));
    }
    const std::vector<Plan> plans = toy::combinations(model, 4);
    for (std::size_t i = 0; i < plans.size(); i += 9) toy::check_plan(plans[i], model, reference);
    toy::check_plan(toy::uniform(model, 2, {.tensor = 2}, 4, ScheduleKind::zb_h1), model, reference);
  }
}
