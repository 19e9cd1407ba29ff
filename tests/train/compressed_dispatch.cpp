// Training with compressed dispatch: the same bits twice, the memory that was planned, and plain training where each
// choice has a bucket of its own.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <galvatron/train/compiled.hpp>
#include <galvatron/train/metrics.hpp>

#include "check_plan.hpp"
#include "compressed.hpp"
#include "toy_mixed.hpp"

using namespace galvatron;

using toy::compressing_plan;
using toy::exchanging_strategies;

TEST_CASE("training with compressed dispatch takes the planned memory, and twice gives the same bits") {
  for (const ResidualKind residual : residual_kinds) {
    const LshOptions lsh{.hashes = 2, .width = 2, .residual = residual};
    const ModelSpec model = with_dispatch(toy::experts(4), lsh);
    for (const StrategySpec& spec : exchanging_strategies) {
      const Plan plan = compressing_plan(model, spec, lsh, 2);
      REQUIRE(why_unfit(plan, model) == "");
      INFO(toy::text(plan), ", residual ", name_of(residual));
      const toy::Outcome outcome = toy::run(plan, model, 12);
      CHECK(outcome.memory_as_planned);
      CHECK(outcome.copies_agree);
      CHECK(outcome.losses.back() < 0.98 * outcome.losses.front());
      toy::check_same_bits(plan, model, 3);
    }
  }
}

TEST_CASE("training whose tokens are too different to compress is plain training") {
  const ModelSpec model = toy::experts(4);
  const toy::Outcome reference = toy::run(toy::single_rank(model), model, 4);
  for (const StrategySpec& spec : exchanging_strategies)
    for (const double imbalance : {1.1, 2.0}) {
      Plan plan = compressing_plan(model, spec, toy::compresses_nothing, 2);
      plan.expert_imbalance = imbalance;
      toy::check_plan(plan, model, reference);
    }
}

TEST_CASE("what dispatch did in a step is told layer by layer") {
  const ModelSpec model = toy::experts(4);
  const auto with_experts =
      std::ranges::count_if(model.blocks, [](const LayerSpec& block) { return block.experts > 0; });
  REQUIRE(with_experts > 0);
  const auto steps_of = [&](const Plan& plan) {
    std::vector<train::StepReport> out;
    train::TrainOptions options{.steps = 3, .learning_rate = {.peak = 1e-2}};
    options.on_step = [&](const train::StepReport& step) { out.push_back(step); };
    const auto source = toy::source_of(model, plan.sequence_length);
    const train::TrainReport report = train::train(plan, model, *source, options);
    for (std::size_t i = 0; i + 1 < report.steps.size(); ++i) CHECK(report.steps[i].layer_dispatch.empty());
    CHECK(std::ssize(report.steps.back().layer_dispatch) == with_experts);
    return out;
  };
  for (const StrategySpec& spec : exchanging_strategies) {
    CAPTURE(strategy_text(spec));
    Plan plan = compressing_plan(model, spec, {.hashes = 2, .width = 2}, 2);
    const auto compressed = steps_of(plan);
    for (StrategySpec& layer : plan.layers) layer.dispatch = DispatchKind::plain;
    const auto plain = steps_of(plan);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      CHECK(!plain[i].dispatch.is_compressed());
      CHECK(plain[i].dispatch.hashing_seconds == 0);
      CHECK(plain[i].dispatch.bytes > 0);
      CHECK(compressed[i].dispatch.rate() < 1);
      CHECK(compressed[i].dispatch.error() > 0);
      CHECK(compressed[i].dispatch.bytes > 0);
      CHECK(compressed[i].dispatch.bytes < plain[i].dispatch.bytes);
      CHECK(compressed[i].dispatch.hashing_seconds > 0);
      CHECK(compressed[i].dispatch.hashing_seconds < compressed[i].seconds);
      REQUIRE(std::ssize(compressed[i].layer_dispatch) == with_experts);
      double buckets = 0;
      double bytes = 0;
      for (const auto& [layer, sums] : compressed[i].layer_dispatch) {
        const LayerSpec& block = model.blocks[static_cast<std::size_t>(layer)];
        CHECK(block.experts > 0);
        CHECK(sums.rows ==
              static_cast<double>(block.active_experts * plan.global_batch * block.tokens.of(plan.sequence_length)));
        CHECK(sums.buckets >= 1);
        CHECK(sums.rate() <= 1);
        CHECK(sums.hashing_seconds > 0);
        buckets += sums.buckets;
        bytes += sums.bytes;
      }
      CHECK(buckets == compressed[i].dispatch.buckets);
      CHECK(bytes == compressed[i].dispatch.bytes);
    }
    const auto uncompressed = steps_of(compressing_plan(model, spec, toy::compresses_nothing, 2));
    CHECK(uncompressed.front().dispatch.rate() == 1);
    CHECK(uncompressed.front().dispatch.error() == 0);
  }
}

TEST_CASE("bytes of plain dispatch are those of the rows that go to other ranks, four times") {
  const ModelSpec model = toy::experts(2);
  Plan plan = toy::uniform(model, 1, {.data = 2, .expert = 2}, 1, ScheduleKind::one_f_one_b);
  plan.expert_imbalance = 2;  // all in one round
  double rows = 0;
  train::TrainOptions options{.steps = 1, .counts_loads = true};
  train::StepReport step;
  options.on_step = [&](const train::StepReport& report) { step = report; };
  const auto source = toy::source_of(model, plan.sequence_length);
  const train::TrainReport report = train::train(plan, model, *source, options);
  CHECK(step.layer_dispatch.size() == step.loads.size());
  for (std::size_t i = 0; i < step.loads.size(); ++i) {
    const LayerSpec& block = model.blocks[static_cast<std::size_t>(step.loads[i].layer)];
    const double all = static_cast<double>(block.active_experts * plan.global_batch) *
                       static_cast<double>(block.tokens.of(plan.sequence_length));
    // Forward and backward send rows there and back; backward also a weight and its gradient for each.
    const double of_row = 4.0 * static_cast<double>(block.hidden) * sizeof(float) + 2 * sizeof(float);
    const double sent = step.layer_dispatch[i].sums.bytes / of_row;
    CHECK(sent == std::floor(sent));
    CHECK(sent > 0);
    CHECK(sent < all);
    rows += sent;
  }
  CHECK(rows > 0);
}

TEST_CASE("metrics have what dispatch did, and null for layers that are not compressed") {
  train::StepReport report;
  CHECK(!nlohmann::json::parse(train::metrics_line(report)).contains("dispatch_bytes"));
  report.layer_dispatch = {{1, {.bytes = 7}}, {3, {4, 16, 10, 5, 0.25, 8}}};
  report.dispatch = train::total(report.layer_dispatch);
  const auto line = nlohmann::json::parse(train::metrics_line(report));
  CHECK(line.at("dispatch_bytes") == 15);
  CHECK(line.at("lsh_rate") == 0.5);
  CHECK(line.at("lsh_error") == 0.5);
  CHECK(line.at("hashing_seconds") == 0.25);
  CHECK(line.at("layer_lsh_rate") == nlohmann::json{nullptr, 0.5});
  CHECK(line.at("layer_lsh_error") == nlohmann::json{nullptr, 0.5});
  CHECK(line.at("layer_hashing_seconds") == nlohmann::json{nullptr, 0.25});
  const auto scalars = train::metrics_scalars(report);
  const auto value = [&](const std::string& tag) {
    const auto found = std::ranges::find(scalars, tag, &train::Scalar::tag);
    return found == scalars.end() ? -1 : found->value;
  };
  CHECK(value("dispatch/bytes") == 15);
  CHECK(value("dispatch/lsh_rate") == 0.5);
  CHECK(value("dispatch/hashing_seconds_layer_3") == 0.25);
  CHECK(value("dispatch/lsh_rate_layer_1") == -1);
  report.layer_dispatch.pop_back();
  report.dispatch = train::total(report.layer_dispatch);
  CHECK(!nlohmann::json::parse(train::metrics_line(report)).contains("lsh_rate"));
}

TEST_CASE("a plan that scales residuals needs a model that does") {
  const LshOptions lsh{.residual = ResidualKind::scaled};
  const ModelSpec model = toy::experts(4);
  const Plan plan = compressing_plan(model, {.data = 4, .expert = 4}, lsh, 1);
  CHECK(why_unfit(plan, model).find("gains of experts") != std::string::npos);
  CHECK(why_unfit(plan, with_dispatch(model, lsh)) == "");
}
