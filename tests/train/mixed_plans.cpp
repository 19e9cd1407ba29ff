// labels: tsan
// Plans whose layers differ: random strategies for every layer, stages of unequal length, both schedules.
#include <chrono>
#include <cstddef>
#include <optional>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/host/host.hpp>

#include "check_plan.hpp"
#include "random_plan.hpp"
#include "toy.hpp"

namespace {

using namespace toy;

}  // namespace

TEST_CASE("random plans of all that is runnable train as one rank does, and use the memory that was predicted") {
  constexpr int steps = 4;
  const RandomPlanBudget budget(20);
  std::mt19937 random(budget.seed);
  const std::vector<ModelSpec> models = random_plan_models();
  std::vector<Outcome> references;
  for (const ModelSpec& model : models) references.push_back(run(single_rank(model), model, steps));
  SequenceTally tally;
  int done = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (budget.goes_on(done, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count())) {
    const std::size_t chosen = random() % models.size();
    const std::optional<Plan> plan = random_plan(random, models[chosen]);
    if (!plan) continue;
    INFO("GALVATRON_RANDOM_SEED=" << budget.seed << ", plan " << done << " of " << plan->model << ": " << text(*plan));
    const Outcome outcome = run(*plan, models[chosen], steps);
    CHECK(difference(outcome.losses, references[chosen].losses) < 1e-5);
    CHECK(difference(outcome.gradients, references[chosen].gradients) < 1e-5);
    CHECK(outcome.copies_agree);
    CHECK(outcome.memory_as_planned);
    tally.add(*plan);
    ++done;
  }
  MESSAGE("seed " << budget.seed << ", " << done << " plans; " << tally.text());
}

TEST_CASE("tensor ranks and context ranks with unequal heads, widths, vocabularies and tokens train as one rank does") {
  constexpr int steps = 3;
  const RandomPlanBudget budget(6);
  std::mt19937 random(budget.seed);
  std::vector<ModelSpec> models = random_plan_models();
  models.push_back(t5(2));
  models.push_back(swin({1, 1, 1, 1}));
  std::vector<std::optional<Outcome>> references(models.size());
  UnevenTally tally;
  int done = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (budget.goes_on(done, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count())) {
    const std::size_t chosen = random() % models.size();
    const ModelSpec& model = models[chosen];
    const std::optional<Plan> plan = random_uneven_plan(random, model);
    if (!plan) continue;
    INFO("GALVATRON_RANDOM_SEED=" << budget.seed << ", plan " << done << " of " << plan->model << ": " << text(*plan));
    if (!references[chosen]) references[chosen] = run(single_rank(model), model, steps);
    const Outcome outcome = run(*plan, model, steps);
    CHECK(difference(outcome.losses, references[chosen]->losses) < 1e-5);
    CHECK(difference(outcome.gradients, references[chosen]->gradients) < gradient_tolerance(model));
    CHECK(outcome.copies_agree);
    CHECK(outcome.memory_as_planned);
    tally.add(*plan, model);
    ++done;
  }
  MESSAGE("seed " << budget.seed << ", " << done << " plans; " << tally.text());
}

TEST_CASE("unequal shares of all that is cut train as one rank does") {
  const ModelSpec gpt = model(false, 4);
  const Outcome reference = run(single_rank(gpt), gpt, 3);
  for (const StrategySpec& spec : {StrategySpec{.tensor = 4, .data = 2},
                                   {.tensor = 4, .sequence = SequenceKind::megatron, .data = 2},
                                   {.sequence = SequenceKind::ulysses, .context = 4, .data = 2},
                                   {.sequence = SequenceKind::ring, .context = 4, .data = 2},
                                   {.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 4},
                                   {.tensor = 2, .sequence = SequenceKind::megatron, .context = 4}}) {
    Plan plan = uniform(gpt, 1, spec, 2, ScheduleKind::one_f_one_b);
    for (StrategySpec* own :
         {&plan.embedding, &plan.layers[0], &plan.layers[1], &plan.layers[2], &plan.layers[3], &plan.head}) {
      own->zero = 3;
      own->shard_kind = ShardKind::by_ratio;
    }
    plan.stages.front().head_ratios = {1, 0, 1, 2, 1, 0, 1, 2};
    plan.stages.front().width_ratios = {1, 10, 0, 3, 1, 10, 0, 3};
    plan.stages.front().vocabulary_ratios = {0, 1, 1, 0, 0, 1, 1, 0};
    plan.stages.front().token_ratios = {3, 0, 1, 2, 3, 0, 1, 2};
    check_plan(plan, gpt, reference);
  }
}

TEST_CASE("stages with different numbers of ranks train as one rank does") {
  const ModelSpec gpt = model(false, 4);  // tied: both ends have as many ranks
  const ModelSpec llama = model(true, 4);
  const auto plan = [](const ModelSpec& m, const std::vector<StrategySpec>& of_stages, ScheduleKind schedule) {
    Plan out = single_rank(m);
    out.microbatches = 4;
    out.schedule = schedule;
    out.stages.clear();
    out.embedding = of_stages.front();
    out.head = of_stages.back();
    const int count = static_cast<int>(of_stages.size());
    const std::vector<PlanStage> even = even_stages(4, count, 1, 1);
    int rank = 0;
    for (int i = 0; i < count; ++i) {
      const StrategySpec& spec = of_stages[static_cast<std::size_t>(i)];
      const PlanStage& layers = even[static_cast<std::size_t>(i)];
      out.stages.push_back({layers.first_layer, layers.last_layer, rank, spec.ranks()});
      rank += spec.ranks();
      for (int l = layers.first_layer; l <= layers.last_layer; ++l) out.layers[static_cast<std::size_t>(l)] = spec;
    }
    return out;
  };
  const Outcome of_gpt = run(single_rank(gpt), gpt, 3);
  const Outcome of_llama = run(single_rank(llama), llama, 3);
  for (const ScheduleKind schedule : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1}) {
    check_plan(plan(gpt, {{.tensor = 2, .data = 2}, {}, {.data = 2, .zero = 3}, {.tensor = 2, .data = 2}}, schedule),
               gpt, of_gpt);
    check_plan(plan(llama, {{.tensor = 4, .sequence = SequenceKind::megatron}, {.data = 2, .zero = 1}}, schedule),
               llama, of_llama);
    check_plan(plan(llama, {{}, {.sequence = SequenceKind::ring, .context = 2, .data = 2}}, schedule), llama, of_llama);
  }
}

TEST_CASE("a plan that runs twice gives the same bits") {
  for (const bool llama : {false, true}) {
    const ModelSpec spec = model(llama, 4);
    for (const StrategySpec& strategy :
         {StrategySpec{.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 2},
          StrategySpec{.sequence = SequenceKind::ulysses, .context = 4, .zero = 3, .recompute = RecomputeKind::full},
          StrategySpec{.sequence = SequenceKind::ring, .context = 4, .recompute = RecomputeKind::selective},
          StrategySpec{.tensor = 2, .sequence = SequenceKind::megatron, .context = 2, .zero = 1},
          StrategySpec{.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .zero = 2}}) {
      const Plan plan = uniform(spec, 2, strategy, 2, ScheduleKind::one_f_one_b);
      check_same_bits(plan, spec, 8);
    }
  }
}

TEST_CASE("a plan that exchanges tokens of experts gives the same bits twice") {
  const ModelSpec spec = experts(4);
  for (const StrategySpec& strategy :
       {StrategySpec{.data = 4, .zero = 1, .expert = 4},
        StrategySpec{
            .tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 3, .expert = 4, .expert_tensor = 1},
        StrategySpec{.data = 4, .zero = 1, .expert = 4, .expert_nodes = 2},
        StrategySpec{.tensor = 2, .data = 2, .expert = 2, .recompute = RecomputeKind::full}})
    check_same_bits(uniform(spec, 2, strategy, 2, ScheduleKind::one_f_one_b), spec, 8);
}

TEST_CASE("what norms and activations give is the same bits, kept or computed again") {
  constexpr int steps = 4;
  struct Shape {
    int stages;
    StrategySpec spec;
    ScheduleKind schedule;
  };
  for (const ModelSpec& spec :
       {model(false, 4), model(true, 4), bert(4), t5(4), swin({2, 2, 0, 0}), attention_kinds(4), decoder_kinds(4)}) {
    const bool plain = spec.blocks.front().is_plain_block();
    for (const Shape& shape : {Shape{1, {}, ScheduleKind::one_f_one_b},
                               Shape{2, {.tensor = 2, .sequence = SequenceKind::megatron}, ScheduleKind::one_f_one_b},
                               Shape{2, {.data = 2, .zero = 3}, plain ? ScheduleKind::zb_h1 : ScheduleKind::gpipe}}) {
      for (const Precision precision : {Precision::fp32, Precision::bf16}) {
        if (!device::Host::supports(precision)) continue;
        Plan plan = uniform(spec, shape.stages, shape.spec, 2, shape.schedule);
        plan.precision = precision;
        INFO(text(plan));
        const Outcome again = run(plan, spec, steps);
        for (StrategySpec& layer : plan.layers) layer.recompute = RecomputeKind::none;
        const Outcome kept = run(plan, spec, steps);
        CHECK(differences(kept, again) == "");
        CHECK(kept.memory_as_planned);
      }
    }
  }
}

TEST_CASE("bf16 trains like fp32 to its precision, on one rank and on many") {
  if (!device::Host::supports(Precision::bf16)) {
    MESSAGE("skipped: this CPU has no bf16 arithmetic");
    return;
  }
  constexpr int steps = 10;
  const ModelSpec spec = model(false, 4);
  const Outcome reference = run(single_rank(spec), spec, steps);
  Plan single = single_rank(spec, Precision::bf16);
  CHECK(difference(run(single, spec, steps).losses, reference.losses) < 1e-2);
  std::vector<StrategySpec> strategies;
  for (const int zero : {0, 1, 2, 3})
    strategies.push_back({.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = zero});
  for (const RecomputeKind recompute : recompute_kinds) {
    for (const SequenceKind kind : {SequenceKind::ulysses, SequenceKind::ring})
      strategies.push_back({.sequence = kind, .context = 4, .zero = 1, .recompute = recompute});
    for (const SequenceKind kind : {SequenceKind::megatron, SequenceKind::megatron_ulysses})
      strategies.push_back({.tensor = 2, .sequence = kind, .context = 2, .zero = 1, .recompute = recompute});
  }
  for (const StrategySpec& strategy : strategies) {
    Plan plan = uniform(spec, 2, strategy, 2, ScheduleKind::one_f_one_b);
    plan.precision = Precision::bf16;
    INFO(text(plan));
    const Outcome outcome = run(plan, spec, steps);
    CHECK(difference(outcome.losses, reference.losses) < 1e-2);
    CHECK(outcome.memory_as_planned);
  }
}
