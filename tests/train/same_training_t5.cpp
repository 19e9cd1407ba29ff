// A T5 under all uniform strategies, cut into stages anywhere, and under plans whose layers differ.
#include <array>
#include <random>
#include <vector>

#include "check_plan.hpp"
#include "random_strategy.hpp"
#include "same_training.hpp"
#include "toy_mixed.hpp"

namespace {

using namespace toy;

// Stages that begin with these blocks, the first of them 0.
void cut(Plan& plan, const std::vector<int>& begins, int ranks) {
  const int layers = static_cast<int>(plan.layers.size());
  plan.stages.clear();
  for (std::size_t i = 0; i < begins.size(); ++i)
    plan.stages.push_back(
        {begins[i], (i + 1 < begins.size() ? begins[i + 1] : layers) - 1, static_cast<int>(i) * ranks, ranks});
}

}  // namespace

TEST_CASE("a T5 trains on 4 ranks as on one, whatever the strategy") { check_same_training(t5(4), 4); }

TEST_CASE("a gated T5 trains on 8 ranks as on one, whatever the strategy") { check_same_training(t5(4, true), 8); }

TEST_CASE("a T5 is cut into stages inside the encoder, at its end and inside the decoder") {
  const ModelSpec model = t5(6, true);  // the decoder begins with block 3
  const Outcome reference = run(single_rank(model), model, 20);
  for (const std::vector<int>& begins : std::vector<std::vector<int>>{
           {0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}, {0, 1, 2}, {0, 2, 4}, {0, 3, 4}, {0, 4, 5}, {0, 1, 3, 5}})
    for (const ScheduleKind schedule : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1}) {
      const auto stages = static_cast<int>(begins.size());
      Plan plan = uniform(model, stages, {}, 4, schedule);
      cut(plan, begins, 1);
      check_plan(plan, model, reference);
      plan = uniform(model, stages, {.tensor = 2, .sequence = SequenceKind::megatron}, 2, schedule);
      cut(plan, begins, 2);
      check_plan(plan, model, reference);
    }
}

TEST_CASE("a T5 whose layers all differ trains as on one rank, whatever the schedule") {
  const auto seed = std::random_device{}();
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  const ModelSpec model = t5(8, true);
  const Outcome reference = run(single_rank(model), model, 6);
  for (const ScheduleKind schedule :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1})
    for (int i = 0; i < 8; ++i) {
      const int stages = std::array{2, 2, 4}[random() % 3];
      Plan plan = uniform(model, stages, {.data = std::array{1, 2, 4}[random() % 3]}, 2, schedule,
                          schedule == ScheduleKind::interleaved ? 2 : 1);
      if (schedule == ScheduleKind::interleaved) plan.microbatches = 4;
      spread_at_random(random, plan, model);
      INFO("seed " << seed << ", plan " << i);
      check_plan(plan, model, reference);
    }
}
