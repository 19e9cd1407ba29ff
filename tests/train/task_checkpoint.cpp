// Checkpoints of multi-task models: they go on under any plan of waves, any tasks and any number of ranks.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/model/multi_task_zoo.hpp>

#include "../folder.hpp"
#include "../says.hpp"
#include "random_tasks.hpp"
#include "run_tasks.hpp"

using namespace galvatron;

namespace {

constexpr std::uint64_t checkpoint_seed = 20261129;

MultiTaskModel toy_clip() { return value_or_throw(find_multi_task_model("clip-toy")); }

}  // namespace

TEST_CASE(
    "a run of several tasks goes on from its checkpoint, bit for bit under its plan, under any other as one rank") {
  MESSAGE("seed ", checkpoint_seed);
  for (std::uint64_t i = 0; i < 6; ++i) {
    test::RandomTasks random(checkpoint_seed + i);
    const MultiTaskModel model = random.model();
    const WavePlan plan = random.plan(model, 4);
    INFO("case ", i);
    const test::Folder folder;
    const test::TaskRun whole = test::run_tasks(
        model, plan, in_waves, {.steps = 6, .checkpoint = {.folder = folder.path, .every = 3, .keep = 9}});
    const auto middle = train::Checkpoint::open(folder.path / train::checkpoint_name(3), model);
    REQUIRE_MESSAGE(middle.has_value(), (middle ? std::string() : middle.error().message));
    CHECK(middle->training().step == 3);
    const test::TaskRun same = test::run_tasks(model, plan, in_waves, {.steps = 6, .resume = &*middle});
    REQUIRE(same.losses.size() == 3);
    CHECK(same.losses[0] == whole.losses[3]);
    CHECK(same.losses[2] == whole.losses[5]);
    CHECK(same.parameters == whole.parameters);
    for (const int ranks : {1, 2, 8}) {
      const test::TaskRun other =
          test::run_tasks(model, random.plan(model, ranks), in_waves, {.steps = 6, .resume = &*middle});
      for (std::size_t task = 0; task < model.tasks.size(); ++task)
        CHECK(other.losses[0][task] == doctest::Approx(whole.losses[3][task]).epsilon(1e-5));
    }
  }
}

TEST_CASE("tasks come and go between two runs: what components are left go on, and new ones begin") {
  const MultiTaskModel all = toy_clip();
  const auto plan = [](const MultiTaskModel& model, int ranks) {
    return plan_by_levels(model, value_or_throw(task_graphs(model)), ranks);
  };
  MultiTaskModel fewer = all;  // without sound
  fewer.tasks = {all.tasks[0], all.tasks[2]};
  fewer.components.erase(fewer.components.begin() + 2);
  fewer.components.back().inputs = {"text", "vision", "depth"};
  const test::Folder folder;
  const train::CheckpointOptions saving{.folder = folder.path, .every = 2, .keep = 9};
  const test::TaskRun first = test::run_tasks(all, plan(all, 4), in_waves, {.steps = 3, .checkpoint = saving});
  const auto of_all = value_or_throw(train::Checkpoint::open(folder.path / train::checkpoint_name(2), fewer));
  const test::TaskRun second = test::run_tasks(fewer, plan(fewer, 3), in_waves, {.steps = 3, .resume = &of_all});
  CHECK(second.losses[0][0] == doctest::Approx(first.losses[2][0]).epsilon(1e-5));

  const test::Folder other;
  test::run_tasks(fewer, plan(fewer, 2), in_waves, {.steps = 2, .checkpoint = {.folder = other.path}});
  const auto of_fewer = value_or_throw(train::Checkpoint::open(other.path, all));
  CHECK(of_fewer.has(0));
  CHECK_FALSE(of_fewer.has(all.first_layer(2)));  // sound
  const test::TaskRun third = test::run_tasks(all, plan(all, 4), in_waves, {.steps = 3, .resume = &of_fewer});
  for (const double loss : third.losses[0]) CHECK(std::isfinite(loss));
}

TEST_CASE("a checkpoint of other components is refused with its cause") {
  const MultiTaskModel model = toy_clip();
  const test::Folder folder;
  test::run_tasks(model, plan_by_levels(model, value_or_throw(task_graphs(model)), 2), in_waves,
                  {.steps = 1, .checkpoint = {.folder = folder.path}});
  const auto refused = [&](const auto& other) {
    const auto wrong = train::Checkpoint::open(folder.path, other);
    REQUIRE_FALSE(wrong.has_value());
    return wrong.error().message;
  };
  MultiTaskModel wider = model;
  wider.components[1].layers[1].ffn = 96;
  CHECK(says(refused(wider), "vision"));
  CHECK(says(refused(value_or_throw(find_multi_task_model("qwen-toy"))), "vision"));
  MultiTaskModel strange = model;
  for (Component& component : strange.components) component.name += "-2";
  CHECK(says(refused(strange), "none of the components"));
  CHECK(says(refused(value_or_throw(find_model("gpt2-tiny"))), "clip-toy"));
}
