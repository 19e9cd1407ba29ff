// The loss of samples that a run does not train on: the same whatever the plan, and training is the same with it.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/data/validation_batches.hpp>
#include <galvatron/train/compiled.hpp>
#include <galvatron/train/metrics.hpp>

#include "random_plan.hpp"
#include "toy.hpp"
#include "toy_mixed.hpp"

namespace {

using namespace galvatron;

// The samples of later steps.
class LaterTokens final : public train::BatchSource {
 public:
  explicit LaterTokens(std::int64_t steps) : steps_(steps) {}
  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
              View<std::int32_t> out) override {
    tokens_.inputs(step + steps_, first, samples, range, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<std::int32_t> out) override {
    tokens_.targets(step + steps_, first, samples, range, out);
  }

 private:
  std::int64_t steps_;
  toy::Tokens tokens_{toy::sequence};
};

train::TrainOptions options_of(int steps) {
  return {.steps = steps, .learning_rate = {.peak = 1e-2, .floor = 1e-3, .steps = steps}};
}

// Losses and validation losses of three steps.
struct Losses {
  std::vector<double> training, validation;
};
Losses losses_of(const Plan& plan, const ModelSpec& model, std::int64_t samples) {
  toy::Tokens source(toy::sequence);
  train::TrainOptions options = options_of(3);
  train::ValidationBatches held_out(std::make_unique<LaterTokens>(100), plan.global_batch, samples);
  if (samples > 0)
    options.validation = {.source = &held_out,
                          .batches = (samples + plan.global_batch - 1) / plan.global_batch,
                          .predictions = samples * toy::sequence,
                          .every = 2};
  Losses out;
  for (const train::StepReport& step : train::train(plan, model, source, options).steps) {
    out.training.push_back(step.loss);
    if (step.validation_loss) out.validation.push_back(*step.validation_loss);
  }
  return out;
}

void check_plan(const Plan& plan, const ModelSpec& model, const Losses& expected) {
  CAPTURE(toy::text(plan));
  const Losses found = losses_of(plan, model, 11);
  REQUIRE(found.validation.size() == 2);  // after the second step and after the last
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(found.validation[i] == doctest::Approx(expected.validation[i]).epsilon(1e-5));
  CHECK(losses_of(plan, model, 0).training == found.training);
}

}  // namespace

TEST_CASE("the loss of a validation is that of one rank, and no training changes") {
  for (const ModelSpec& model : {toy::model(false, 4), toy::model(true, 4)}) {
    const Losses expected = losses_of(toy::single_rank(model), model, 11);
    using K = ScheduleKind;
    check_plan(
        toy::uniform(model, 1, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 3}, 2, K::gpipe),
        model, expected);
    check_plan(toy::uniform(model, 2, {.tensor = 2, .recompute = RecomputeKind::full}, 4, K::one_f_one_b), model,
               expected);
    check_plan(toy::uniform(model, 2, {.data = 2, .zero = 2}, 4, K::interleaved, 2), model, expected);
    check_plan(toy::uniform(model, 2, {.sequence = SequenceKind::ring, .context = 2}, 4, K::zb_h1), model, expected);
  }
}

TEST_CASE("validation of random plans gives one rank's loss") {
  const char* count = std::getenv("GALVATRON_VALIDATION_PLANS");
  const unsigned seed = 20261127;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const ModelSpec model = toy::model(true, 6);
  const Losses expected = losses_of(toy::single_rank(model), model, 11);
  for (int i = 0; i < (count != nullptr ? std::atoi(count) : 2);) {
    const auto plan = toy::random_plan(random, model);
    if (!plan || plan->ranks() > 8 || plan->global_batch != toy::global_batch) continue;
    check_plan(*plan, model, expected);
    ++i;
  }
}

TEST_CASE("the loss of a validation on the next step's samples is the next step's loss") {
  const ModelSpec model = toy::model(false, 2);
  const Plan plan = toy::uniform(model, 1, {.data = 2}, 2, ScheduleKind::gpipe);
  toy::Tokens source(toy::sequence);
  LaterTokens next(1);
  train::TrainOptions options = options_of(2);
  options.validation = {.source = &next,
                        .batches = 1,
                        .predictions = toy::global_batch * toy::sequence,
                        .every = 1,
                        .tokens_per_byte = 0.25};
  const auto report = train::train(plan, model, source, options);
  REQUIRE(report.steps[0].validation_loss);
  CHECK(*report.steps[0].validation_loss == doctest::Approx(report.steps[1].loss).epsilon(1e-9));
  CHECK(report.steps[0].validation_bits_per_byte == doctest::Approx(*report.steps[0].validation_loss * 0.36067376));
  const auto line = nlohmann::json::parse(train::metrics_line(report.steps[0]));
  CHECK(line.at("validation_loss") == *report.steps[0].validation_loss);
  CHECK_FALSE(line.contains("bits_per_byte"));
}

TEST_CASE("learning rates fall as their schedules say") {
  const auto rate = [](train::RateSchedule schedule, std::int64_t step) {
    return train::LearningRate{
        .peak = 1, .floor = 0.1, .warmup_steps = 10, .steps = 101, .schedule = schedule, .decay_steps = 20}
        .at(step);
  };
  using S = train::RateSchedule;
  for (const S schedule : train::rate_schedules) {
    CHECK(rate(schedule, 0) == doctest::Approx(0.1));
    CHECK(rate(schedule, 9) == 1);
    CHECK(rate(schedule, 10) == 1);
    CHECK(rate(schedule, 100) == doctest::Approx(schedule == S::constant ? 1 : 0.1));
  }
  CHECK(rate(S::cosine, 55) == doctest::Approx(0.55));
  CHECK(rate(S::linear, 55) == doctest::Approx(0.55));
  CHECK(rate(S::linear, 28) == doctest::Approx(0.82));
  CHECK(rate(S::wsd, 80) == 1);
  CHECK(rate(S::wsd, 90) == doctest::Approx(0.55));
}
