// Loads of experts: all choices of a step are counted once, whatever the plan, and counting them changes nothing else.
#include <galvatron/train/expert_loads.hpp>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <galvatron/train/metrics.hpp>
#include <galvatron/train/trainer.hpp>

#include "toy.hpp"
#include "toy_mixed.hpp"

using namespace galvatron;

namespace {

std::vector<train::StepReport> trained(const Plan& plan, const ModelSpec& model, bool counts) {
  std::vector<train::StepReport> out;
  train::TrainOptions options{.steps = 3, .learning_rate = {.peak = 1e-2}, .counts_loads = counts};
  options.on_step = [&](const train::StepReport& step) { out.push_back(step); };
  const auto source = toy::source_of(model, plan.sequence_length);
  const train::TrainReport report = train::train(plan, model, *source, options);
  for (std::size_t i = 0; i + 1 < report.steps.size(); ++i) CHECK(report.steps[i].loads.empty());
  CHECK(report.steps.back().loads.empty() == !counts);
  return out;
}

}  // namespace

TEST_CASE("all choices of a step are counted, and counting them changes no bit") {
  const ModelSpec model = toy::experts(8);
  std::vector<int> with_experts;
  for (std::size_t i = 0; i < model.blocks.size(); ++i)
    if (model.blocks[i].experts > 0) with_experts.push_back(static_cast<int>(i));
  REQUIRE(!with_experts.empty());
  for (const auto& [stages, spec] :
       {std::pair(1, StrategySpec{}),
        {1, {.tensor = 2, .data = 2, .zero = 1}},
        {1, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .expert = 4, .expert_tensor = 1}},
        {2, {.data = 2, .expert = 2, .recompute = RecomputeKind::full}},
        {1, {.tensor = 2, .data = 2, .expert = 2}},
        {1, {.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .expert = 4, .expert_tensor = 1}},
        {1, {.sequence = SequenceKind::ring, .context = 2, .data = 2, .zero = 3}}}) {
    CAPTURE(strategy_text(spec));
    const Plan plan = toy::uniform(model, stages, spec, 2, ScheduleKind::one_f_one_b);
    const auto counted = trained(plan, model, true);
    const auto plain = trained(plan, model, false);
    REQUIRE(counted.size() == plain.size());
    for (std::size_t step = 0; step < counted.size(); ++step) {
      CHECK(counted[step].loss == plain[step].loss);
      CHECK(counted[step].gradient_norm == plain[step].gradient_norm);
      CHECK(plain[step].loads.empty());
      REQUIRE(counted[step].loads.size() == with_experts.size());
      for (std::size_t i = 0; i < with_experts.size(); ++i) {
        const train::ExpertLoads& layer = counted[step].loads[i];
        const LayerSpec& block = model.blocks[static_cast<std::size_t>(layer.layer)];
        CHECK(layer.layer == with_experts[i]);
        REQUIRE(layer.choices.size() == static_cast<std::size_t>(block.experts));
        std::int64_t sum = 0;
        for (const std::int64_t count : layer.choices) sum += count;
        CHECK(sum == block.active_experts * plan.global_batch * block.tokens.of(plan.sequence_length));
        CHECK(layer.imbalance() >= 1);
      }
    }
  }
}

TEST_CASE("metrics have the loads of a step") {
  const train::StepReport report{.loads = {{1, {3, 1, 0, 0}}, {2, {1, 1, 1, 1}}}};
  const auto line = nlohmann::json::parse(train::metrics_line(report));
  CHECK(line.at("loads") == nlohmann::json{{3, 1, 0, 0}, {1, 1, 1, 1}});
  CHECK(line.at("load_imbalance") == nlohmann::json{3.0, 1.0});
  const auto scalars = train::metrics_scalars(report);
  CHECK(scalars.back().tag == "experts/load_imbalance_layer_2");
  CHECK(scalars.back().value == 1.0);
  CHECK(!nlohmann::json::parse(train::metrics_line({})).contains("loads"));
}

TEST_CASE("loads of layers lie one behind the other, and those that are too many have no room") {
  ModelSpec model = toy::experts(8);
  const train::LoadPlaces places(model);
  std::vector<float> all(static_cast<std::size_t>(places.count()));
  std::int64_t sum = 0;
  for (int layer = 0; layer < model.layers(); ++layer) {
    const View<float> own = places.of({all.data(), places.count()}, layer);
    CHECK(own.count == model.layer(layer).experts);
    sum += own.count;
  }
  CHECK(sum == places.count());
  CHECK(places.fit());
  for (LayerSpec& block : model.blocks) block.experts = device::most_loads;
  CHECK(train::LoadPlaces(model).fit() == (model.blocks.size() == 1));
}
