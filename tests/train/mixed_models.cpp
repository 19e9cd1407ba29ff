// BERT, ViT and Swin under plans whose layers differ and under the schedules that cut stages or backward into parts;
// these and T5 in bf16, and twice the same.
#include <array>
#include <random>

#include <doctest/doctest.h>

#include <galvatron/device/host/host.hpp>

#include "check_plan.hpp"
#include "random_strategy.hpp"
#include "toy_mixed.hpp"

namespace {

using namespace toy;

}  // namespace

TEST_CASE("a BERT, a ViT and a Swin whose layers all differ train as on one rank, whatever the schedule") {
  const auto seed = std::random_device{}();
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  for (const ModelSpec& model : {bert(8), vit(8), swin({2, 2, 4, 0})}) {
    const Outcome reference = run(single_rank(model), model, 6);
    for (const ScheduleKind schedule :
         {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1})
      for (int i = 0; i < 5; ++i) {
        const int stages = std::array{2, 2, 4}[random() % 3];
        Plan plan = uniform(model, stages, {.data = std::array{1, 2}[random() % 2]}, 4, schedule,
                            schedule == ScheduleKind::interleaved ? 2 : 1);
        spread_at_random(random, plan, model);
        INFO("seed " << seed << ", plan " << i);
        check_plan(plan, model, reference);
      }
  }
}

TEST_CASE("a BERT, a ViT, a Swin and a T5 give the same bits twice") {
  for (const ModelSpec& model : {bert(4), vit(4), swin({2, 2, 0, 0}), t5(4)}) {
    const Plan plan = uniform(model, 2, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 2}, 2,
                              ScheduleKind::one_f_one_b);
    check_same_bits(plan, model, 4);
  }
}

TEST_CASE("a BERT, a ViT, a Swin and a T5 train in bf16 like in fp32 to its precision") {
  if (!device::Host::supports(Precision::bf16)) {
    MESSAGE("skipped: this CPU has no bf16 arithmetic");
    return;
  }
  for (const ModelSpec& model : {bert(4), vit(4), swin({2, 2, 0, 0}), t5(4)}) {
    const Outcome reference = run(single_rank(model), model, 6);
    Plan plan = uniform(model, 2, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 3}, 2,
                        ScheduleKind::one_f_one_b);
    plan.precision = Precision::bf16;
    const Outcome outcome = run(plan, model, 6);
    for (std::size_t i = 0; i < reference.losses.size(); ++i)
      CHECK(std::abs(outcome.losses[i] - reference.losses[i]) < 0.05);
    CHECK(outcome.memory_as_planned);
  }
}
