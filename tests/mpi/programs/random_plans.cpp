// Random plans on processes: one start of 16 of them trains many plans, each on as many of the first ranks as it has.
// What one rank gives is the measure.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include <galvatron/comm/mpi/world.hpp>

#include "../../train/check_plan.hpp"
#include "../../train/packed.hpp"
#include "../../train/random_plan.hpp"
#include "../../train/run_plan.hpp"
#include "run_tests.hpp"

using namespace galvatron;

namespace {

comm::mpi::Runtime* runtime = nullptr;
std::optional<toy::RandomPlanBudget> budget;

/// The first ranks of a world, as a world of their own.
class FirstRanks final : public comm::World {
 public:
  FirstRanks(comm::World& world, int size) : comm::World(world.rank(), size), world_(world) {}
  comm::Group& group(std::span<const int> ranks) override { return world_.group(ranks); }

 private:
  void do_post(std::span<const comm::Piece> pieces) override { world_.post(pieces); }
  void do_receive(std::span<const comm::Piece> pieces) override { world_.receive(pieces); }
  void do_wait_sent(int lane) override { world_.wait_sent(lane); }

  comm::World& world_;
};

/// What rank 0 decides and all do.
bool agreed(comm::mpi::World& world, bool yes) {
  std::int32_t decision = yes ? 1 : 0;
  world.everybody().broadcast(View<std::int32_t>(&decision, 1), 0);
  return decision == 1;
}

/// Trains on the first ranks; losses and norms on all of the world.
/// @param source  as in toy::RunOptions
toy::Outcome run(comm::mpi::World& world, const Plan& plan, const ModelSpec& model, int steps,
                 train::BatchSource* source = nullptr) {
  toy::Outcome out;
  if (world.rank() < plan.ranks()) {
    FirstRanks part(world, plan.ranks());
    toy::run_on(part, plan, model, {.steps = steps, .source = source}, out);
  }
  for (std::vector<double>* numbers : {&out.losses, &out.norms}) {
    numbers->resize(static_cast<std::size_t>(steps));
    world.everybody().broadcast(View<double>(numbers->data(), steps), 0);
  }
  return out;
}

/// Draws plans while the budget lasts, and holds each to one rank's training and the predicted memory. Returns how
/// many.
/// @param draw  (model) -> a plan, or none where the numbers drawn do not go together
/// @param one   (plan, model) -> Outcome
template <class Draw, class One>
int try_plans(comm::mpi::World& world, std::mt19937& random, const std::vector<ModelSpec>& models,
              const std::vector<toy::Outcome>& references, const Draw& draw, const One& one) {
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  int done = 0;
  for (; agreed(world, budget->goes_on(done, elapsed())); ++done) {
    std::optional<Plan> plan;
    std::size_t chosen = 0;
    while (!plan || plan->ranks() > world.size()) {
      chosen = random() % models.size();
      plan = draw(models[chosen]);
    }
    INFO("GALVATRON_RANDOM_SEED=" << budget->seed << " on rank " << world.rank() << ", plan " << done << " of "
                                  << plan->model << ": " << toy::text(*plan));
    const toy::Outcome outcome = one(*plan, models[chosen]);
    CHECK(toy::difference(outcome.losses, references[chosen].losses) < 1e-5);
    toy::check_norms(outcome, references[chosen]);
    CHECK(outcome.memory_as_planned);
  }
  return done;
}

}  // namespace

TEST_CASE("random plans train as one rank does, and use the memory that was predicted") {
  constexpr int steps = 4;
  std::mt19937 random(budget->seed);
  const std::vector<ModelSpec> models = toy::random_plan_models();
  toy::SequenceTally tally;
  int done = 0;
  int widest = 0;
  comm::mpi::run(*runtime, [&](comm::mpi::World& world) {
    std::vector<toy::Outcome> references;
    for (const ModelSpec& model : models) references.push_back(run(world, toy::single_rank(model), model, steps));
    const auto draw = [&](const ModelSpec& model) { return toy::random_plan(random, model); };
    done = try_plans(world, random, models, references, draw, [&](const Plan& plan, const ModelSpec& model) {
      tally.add(plan);
      widest = std::max(widest, plan.ranks());
      return run(world, plan, model, steps);
    });
  });
  if (runtime->rank() == 0)
    MESSAGE("seed " << budget->seed << ", " << done << " plans on up to " << widest << " ranks; " << tally.text());
}

TEST_CASE("tensor ranks and context ranks with unequal shares train as one rank does") {
  constexpr int steps = 2;
  std::mt19937 random(budget->seed);
  const std::vector<ModelSpec> models{toy::model(false, 3), toy::model(true, 3), toy::attention_kinds(3)};
  toy::UnevenTally tally;
  int done = 0;
  comm::mpi::run(*runtime, [&](comm::mpi::World& world) {
    std::vector<toy::Outcome> references;
    for (const ModelSpec& model : models) references.push_back(run(world, toy::single_rank(model), model, steps));
    const auto draw = [&](const ModelSpec& model) { return toy::random_uneven_plan(random, model); };
    done = try_plans(world, random, models, references, draw, [&](const Plan& plan, const ModelSpec& model) {
      tally.add(plan, model);
      return run(world, plan, model, steps);
    });
  });
  if (runtime->rank() == 0) MESSAGE("seed " << budget->seed << ", " << done << " plans; " << tally.text());
}

TEST_CASE("random plans train packed documents as one rank does one by one") {
  constexpr int steps = 2;
  std::mt19937 random(budget->seed);
  const std::vector<ModelSpec> models{toy::model(false, 3), toy::model(true, 3)};
  const auto lengths = toy::random_lengths(random, steps, toy::packed_documents, toy::longest_document);
  int done = 0;
  int changing = 0;
  comm::mpi::run(*runtime, [&](comm::mpi::World& world) {
    std::vector<toy::Outcome> references;
    for (const ModelSpec& model : models) {
      toy::PackedTokens source(lengths, [](std::int64_t, const auto& all) { return toy::one_by_one(all); });
      references.push_back(run(world, toy::packed_plan(model, 1, {}, toy::longest_document), model, steps, &source));
    }
    const auto draw = [&](const ModelSpec& model) { return toy::random_packed_plan(random, model); };
    done = try_plans(world, random, models, references, draw, [&](const Plan& plan, const ModelSpec& model) {
      const auto seed = static_cast<unsigned>(random());
      const StrategySpec& spec = plan.embedding;
      changing += spec.groups == SequenceGroupKind::per_batch ? 1 : 0;
      toy::PackedTokens source(lengths, [&](std::int64_t step, const auto& all) {
        std::mt19937 own(seed + static_cast<unsigned>(step));
        return toy::random_packing(own, all, spec, toy::context_degrees(model, spec),
                                   plan.sequence_length / spec.context);
      });
      return run(world, plan, model, steps, &source);
    });
  });
  if (runtime->rank() == 0)
    MESSAGE("seed " << budget->seed << ", " << done << " packed plans, " << changing << " with groups of every batch");
}

int main(int count, char** values) {
  const toy::RandomPlanBudget own(10);
  return programs::run_tests(
      count, values,
      [&](comm::mpi::Runtime& mine, unsigned seed) {
        runtime = &mine;
        budget.emplace(own);
        budget->seed = seed;
      },
      own.seed);
}
