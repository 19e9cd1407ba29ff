// uniform_plan: every layer with the strategy that the caller names as a type.
#include <doctest/doctest.h>

#include <string>

#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/uniform.hpp>

using namespace galvatron;

namespace {
ModelSpec tiny(int layers) {
  return gpt("tiny", {.layers = layers, .hidden = 64, .heads = 4, .vocabulary = 97, .positions = 32});
}
}  // namespace

TEST_CASE("a strategy type becomes a plan with that strategy in every layer") {
  const Strategy<ZeRO<3>, TensorParallel<2>, Recompute<full>> strategy({.data = 2});
  const auto plan = uniform_plan(strategy, tiny(5), {.global_batch = 8, .precision = Precision::bf16});
  REQUIRE(plan.has_value());
  CHECK(plan->ranks() == 4);
  CHECK(plan->global_batch == 8);
  CHECK(plan->sequence_length == 32);
  CHECK(plan->microbatches == 1);
  CHECK(plan->precision == Precision::bf16);
  CHECK(plan->stages == std::vector{PlanStage{0, 4, 0, 4}});
  CHECK(plan->layers == std::vector(5, strategy.spec()));
  CHECK(plan->embedding == strategy.spec());
  CHECK(plan->head == strategy.spec());
}

TEST_CASE("a pipeline degree cuts the blocks into stages, the last ones with more") {
  using Piped = Strategy<DataParallel<2>, Pipeline<3, ScheduleKind::gpipe>>;
  const auto plan = uniform_plan(Piped{}, tiny(7), {.global_batch = 12, .sequence = 16});
  REQUIRE(plan.has_value());
  CHECK(plan->ranks() == 6);
  CHECK(plan->schedule == ScheduleKind::gpipe);
  CHECK(plan->sequence_length == 16);
  CHECK(plan->microbatches == 3);
  CHECK(plan->stages == std::vector{PlanStage{0, 1, 0, 2}, PlanStage{2, 3, 2, 2}, PlanStage{4, 6, 4, 2}});
  CHECK(uniform_plan(Piped{}, tiny(7), {.global_batch = 12, .microbatches = 6})->microbatches == 6);
}

TEST_CASE("the interleaved schedule cuts stages into virtual stages") {
  using Interleaved = Strategy<DataParallel<1>, Pipeline<2, ScheduleKind::interleaved>>;
  const auto two = uniform_plan(Interleaved{}, tiny(8), {.global_batch = 8});
  REQUIRE(two.has_value());
  CHECK(two->virtual_stages == 2);
  CHECK(uniform_plan(Interleaved{}, tiny(8), {.global_batch = 8, .virtual_stages = 4})->virtual_stages == 4);
}

TEST_CASE("what the degrees do not divide is refused with the numbers") {
  const auto refused = [](const auto& strategy, int layers, const UniformOptions& options, const std::string& part) {
    const auto plan = uniform_plan(strategy, tiny(layers), options);
    REQUIRE_FALSE(plan.has_value());
    CHECK(plan.error().kind == ErrorKind::usage);
    CAPTURE(plan.error().message);
    CHECK(plan.error().message.find(part) != std::string::npos);
    CHECK(plan.error().message.find('\n') == std::string::npos);
  };
  refused(Strategy<DataParallel<1>, Pipeline<4>>{}, 3, {}, "3 layers, too few for 4 stages");
  refused(Strategy<DataParallel<1>, TensorParallel<3>>{}, 2, {}, "does not divide the attention heads");
  refused(Strategy<DataParallel<3>>{}, 2, {.global_batch = 8}, "data degree 3 does not divide a micro-batch of 8");
  refused(Strategy<DataParallel<1>, Pipeline<2>>{}, 2, {.global_batch = 9}, "2 micro-batches do not divide");
  refused(Strategy<DataParallel<1>>{}, 2, {.sequence = 33}, "longer than the model's positions");
  refused(Strategy<DataParallel<1>, Pipeline<2, ScheduleKind::zb_h1>>{}, 2, {.virtual_stages = 2}, "interleaved");
  refused(Strategy<DataParallel<1>, Pipeline<2, ScheduleKind::interleaved>>{}, 3, {}, "more than the plan's 3 layers");
}
