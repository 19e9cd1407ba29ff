// Training on packed documents is training on the same documents one by one on one rank, whatever shares them.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/plan/plan.hpp>

#include "check_plan.hpp"
#include "packed.hpp"
#include "random_plan.hpp"

using namespace galvatron;

namespace {

using toy::packed_plan;
constexpr std::int64_t longest = toy::longest_document;
constexpr std::size_t documents = toy::packed_documents;

struct PackedCase {
  int stages;
  StrategySpec spec;
};

}  // namespace

TEST_CASE("packed documents train as one by one, for every kind of strategy") {
  constexpr auto ulysses = SequenceKind::ulysses;
  constexpr auto ring = SequenceKind::ring;
  constexpr auto megatron = SequenceKind::megatron;
  const PackedCase cases[] = {
      {1, {}},
      {1, {.data = 2, .zero = 1}},
      {1, {.tensor = 2, .data = 2, .zero = 2, .recompute = RecomputeKind::none}},
      {1, {.tensor = 2, .sequence = megatron, .data = 2, .zero = 3}},
      {1, {.sequence = ulysses, .context = 4, .zero = 3, .recompute = RecomputeKind::selective}},
      {1, {.tensor = 2, .sequence = ulysses, .context = 2, .data = 2}},
      {1, {.sequence = ring, .context = 2, .data = 2, .recompute = RecomputeKind::full}},
      {1, {.sequence = ring, .context = 4, .zero = 3}},
      {1, {.tensor = 2, .sequence = megatron, .context = 2, .data = 1, .zero = 1}},
      {1, {.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .data = 2, .zero = 3}},
      {2, {.data = 2, .zero = 2}},
      {2, {.tensor = 2, .sequence = megatron, .context = 2}},
      {3, {.sequence = ring, .context = 2}},
  };
  std::mt19937 random(20251126);
  for (const bool llama : {false, true}) {
    const ModelSpec model = toy::model(llama, 3);
    const auto lengths = toy::random_lengths(random, 3, documents, longest);
    const auto run = [&](const Plan& plan, const toy::PackedTokens::Pack& pack) {
      toy::PackedTokens source(lengths, pack);
      return toy::run(plan, model, toy::RunOptions{.steps = 3, .source = &source});
    };
    const toy::Outcome reference =
        run(packed_plan(model, 1, {}, longest), [](std::int64_t, const auto& all) { return toy::one_by_one(all); });
    CHECK(reference.memory_as_planned);
    for (const PackedCase& one : cases) {
      const std::int64_t tokens = one.spec.context > 1 ? 24 : 40;
      const Plan plan = packed_plan(model, one.stages, one.spec, tokens);
      REQUIRE(why_inconsistent(plan) == "");
      REQUIRE(why_unfit(plan, model) == "");
      INFO(toy::text(plan));
      const auto seed = static_cast<unsigned>(random());
      const toy::Outcome outcome = run(plan, [&](std::int64_t step, const auto& all) {
        std::mt19937 own(seed + static_cast<unsigned>(step));
        return toy::random_packing(own, all, one.spec, {}, tokens);
      });
      toy::check_outcome(outcome, reference);
    }
  }
}

TEST_CASE("documents of one length train as samples do") {
  const ModelSpec model = toy::model(true, 2);
  toy::Tokens samples(longest);
  Plan equal = toy::single_rank(model);
  equal.global_batch = documents;
  equal.sequence_length = longest;
  const toy::Outcome reference = toy::run(equal, model, toy::RunOptions{.steps = 1, .source = &samples});
  toy::PackedTokens source({std::vector<std::int64_t>(documents, longest)}, [](std::int64_t, const auto& lengths) {
    std::mt19937 random(3);
    return toy::random_packing(random, lengths, {}, {}, 5 * longest);
  });
  toy::Outcome packed =
      toy::run(packed_plan(model, 1, {}, 5 * longest), model, toy::RunOptions{.steps = 1, .source = &source});
  CHECK(packed.losses.front() == doctest::Approx(reference.losses.front()).epsilon(1e-6));
  CHECK(toy::difference(packed.gradients, reference.gradients) < 1e-5);
}

TEST_CASE("groups of every batch train as documents one by one") {
  std::mt19937 random(7);
  for (const SequenceKind kind : {SequenceKind::ulysses, SequenceKind::ring})
    for (const bool llama : {false, true}) {
      const ModelSpec model = toy::model(llama, 2);
      const auto lengths = toy::random_lengths(random, 3, documents, longest);
      const auto run = [&](const Plan& plan, const toy::PackedTokens::Pack& pack) {
        toy::PackedTokens source(lengths, pack);
        return toy::run(plan, model, toy::RunOptions{.steps = 3, .source = &source});
      };
      const toy::Outcome reference =
          run(packed_plan(model, 1, {}, longest), [](std::int64_t, const auto& all) { return toy::one_by_one(all); });
      for (const int tensor : {1, 2}) {
        const StrategySpec spec{.tensor = tensor,
                                .sequence = kind,
                                .context = 8 / tensor,
                                .zero = 3,
                                .groups = SequenceGroupKind::per_batch};
        const std::int64_t tokens = 12;
        const Plan plan = packed_plan(model, 1, spec, tokens);
        REQUIRE(why_inconsistent(plan) == "");
        REQUIRE(why_unfit(plan, model) == "");
        INFO(toy::text(plan));
        const std::vector<int> degrees = toy::context_degrees(model, spec);
        CHECK(degrees.size() >= 3);
        const toy::Outcome outcome = run(plan, [&](std::int64_t step, const auto& all) {
          std::mt19937 own(static_cast<unsigned>(99 + step));
          return toy::random_packing(own, all, spec, degrees, tokens);
        });
        toy::check_outcome(outcome, reference);
      }
    }
}

TEST_CASE("random plans train packed documents as one by one") {
  constexpr int steps = 2;
  const toy::RandomPlanBudget budget(10);
  std::mt19937 random(budget.seed);
  struct Model {
    ModelSpec model;
    std::vector<std::vector<std::int64_t>> lengths;
    toy::Outcome reference;
  };
  std::vector<Model> models;
  for (const bool llama : {false, true}) {
    const ModelSpec model = toy::model(llama, 3);
    const auto lengths = toy::random_lengths(random, steps, documents, longest);
    toy::PackedTokens source(lengths, [](std::int64_t, const auto& all) { return toy::one_by_one(all); });
    models.push_back(
        {model, lengths,
         toy::run(packed_plan(model, 1, {}, longest), model, toy::RunOptions{.steps = steps, .source = &source})});
  }
  const auto began = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  int done = 0;
  int changing = 0;
  for (; budget.goes_on(done, elapsed()); ++done) {
    std::optional<Plan> plan;
    const Model* model = nullptr;
    while (!plan) {
      model = &models[random() % models.size()];
      plan = toy::random_packed_plan(random, model->model);
    }
    const auto seed = static_cast<unsigned>(random());
    INFO("GALVATRON_RANDOM_SEED=" << budget.seed << ", plan " << done << " of " << plan->model << ": "
                                  << toy::text(*plan));
    toy::PackedTokens source(model->lengths, [&](std::int64_t step, const auto& all) {
      std::mt19937 own(seed + static_cast<unsigned>(step));
      return toy::random_packing(own, all, plan->embedding, toy::context_degrees(model->model, plan->embedding),
                                 plan->sequence_length / plan->embedding.context);
    });
    const toy::Outcome outcome = toy::run(*plan, model->model, toy::RunOptions{.steps = steps, .source = &source});
    toy::check_outcome(outcome, model->reference);
    changing += plan->embedding.groups == SequenceGroupKind::per_batch ? 1 : 0;
  }
  MESSAGE("seed " << budget.seed << ", " << done << " plans, " << changing << " with groups of every batch");
}
