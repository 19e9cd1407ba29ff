// Programs of plans of waves: the memory of a micro-batch is used again when nobody reads it any more.
#include <galvatron/plan/task_plan.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <utility>

#include <galvatron/core/error.hpp>

#include "../train/random_tasks.hpp"

using namespace galvatron;

TEST_CASE("a micro-batch has a slot when the gradients of the one before have been taken") {
  // Of this seed a rank once waited for a gradient to be taken that others took behind what they waited for.
  constexpr std::uint64_t known = 3086712064;
  const std::uint64_t first = std::random_device{}();
  MESSAGE("seed ", first);
  int pipelined = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const std::uint64_t seed = trial == 0 ? known : first + static_cast<std::uint64_t>(trial);
    CAPTURE(seed);
    test::RandomTasks random(seed);
    const MultiTaskModel model = random.model();
    const WavePlan waves = random.plan(model, trial == 0 ? 16 : 1 << (trial % 5));
    pipelined += waves.in_flight > 1 ? 1 : 0;
    for (const TaskOrder order : {TaskOrder::in_waves, TaskOrder::in_sequence}) {
      const train::TaskPlan plan = value_or_throw(train::task_plan(model, waves, order));
      std::set<std::pair<int, int>> forward;  // passes that are done, by part and micro-batch
      std::set<std::pair<int, int>> backward;
      bool right = true;
      for (const TaskInstruction& instruction : plan.program) {
        const auto [op, part, microbatch] = instruction;
        if (op == TaskInstruction::Op::backward) {
          backward.emplace(part, microbatch);
          continue;
        }
        forward.emplace(part, microbatch);
        const int before = microbatch - plan.parts[static_cast<std::size_t>(part)].slots;
        if (before < 0) continue;
        right = right && backward.count({part, before}) > 0;
        for (const auto& edge : plan.edges) {
          if (edge.to == part) right = right && backward.count({edge.from, before}) > 0;
          if (edge.from == part) right = right && forward.count({edge.to, before}) > 0;
        }
      }
      CHECK(right);
    }
  }
  CHECK(pipelined > 0);
}
