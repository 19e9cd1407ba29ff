// Plans of waves as JSON, and the programs that follow from them.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/model/pipelines.hpp>
#include <galvatron/plan/multi_task_plan.hpp>
#include <galvatron/plan/task_program.hpp>
#include <galvatron/plan/wave_plan_json.hpp>

#include "../says.hpp"

using namespace galvatron;

namespace {

struct Planned {
  MultiTaskModel model = value_or_throw(find_multi_task_model("ofasys-toy"));
  std::vector<TaskGraph> graphs = value_or_throw(task_graphs(model));
  WavePlan plan = plan_by_levels(model, graphs, 6);
};

}  // namespace

TEST_CASE("a plan of waves comes back from JSON as it was") {
  Planned planned;
  planned.plan.zero = 1;
  planned.plan.waves[0].parts[0].strategy.recompute = RecomputeKind::full;
  const nlohmann::json value = nlohmann::json::parse(to_json(planned.plan, planned.model, planned.graphs).dump());
  CHECK(value_or_throw(waves_from_json(value, "w.json", planned.model, planned.graphs)) == planned.plan);
  const auto refused = [&](const char* pointer, const nlohmann::json& changed) {
    nlohmann::json other = value;
    other[nlohmann::json::json_pointer(pointer)] = changed;
    const auto wrong = waves_from_json(other, "w.json", planned.model, planned.graphs);
    REQUIRE_FALSE(wrong.has_value());
    CHECK(says(wrong.error().message, "w.json"));
    return wrong.error().message;
  };
  CHECK(says(refused("/format", "galvatron-plan"), "galvatron-waves"));
  CHECK(says(refused("/version", 9), "version 9"));
  CHECK(says(refused("/waves/0/parts/0/task", "nap"), "nap"));
  CHECK(says(refused("/waves/0/parts/0/component", "text"), "caption"));
  CHECK(says(refused("/waves/0/parts/0/layers", {0}), "first and the last"));
  CHECK(says(refused("/waves/0/parts/0/ranks/0", 6), "from 0 to 5"));
  CHECK(says(refused("/waves/0/parts/0/sequence", "ring"), "ring"));
  CHECK(says(refused("/waves/0/parts/0/layers", {0, 9}), "4 layers"));
  CHECK(says(refused("/zero", 4), "zero"));
}

TEST_CASE("a plan of several pipelines comes back from JSON, and one that makes no sense is refused") {
  const ModelSpec model = value_or_throw(find_model("llama-tiny"));
  ReadMultiTaskPlan made;
  made.model = value_or_throw(pipelines_of(model, {12, 4}, 64));
  made.graphs = value_or_throw(task_graphs(made.model));
  made.plan.model = "llama-tiny";
  made.plan.cluster = "1xv100-32g+2xp100-16g";
  made.plan.global_batch = 16;
  made.plan.pipelines = {12, 4};
  made.plan.sequence_length = 64;
  made.plan.waves = {.ranks = 3, .zero = 1, .microbatches = {3, 2}, .in_flight = 2};
  made.plan.waves.waves = {
      {{{.task = 0, .pass = 0, .first = 0, .last = 5, .ranks = {0}}, {.task = 1, .first = 0, .last = 2, .ranks = {1}}}},
      {{{.task = 1, .pass = 0, .first = 3, .last = 5, .ranks = {2}}}}};
  made.plan.predicted.one_chain = {0.5};
  const nlohmann::json value = nlohmann::json::parse(to_json(made.plan, made.model, made.graphs).dump());
  CHECK(value.at("pipelines") == nlohmann::json{12, 4});
  const ReadMultiTaskPlan read = value_or_throw(multi_task_plan_from_json(value, "p.json"));
  CHECK(read.plan.waves == made.plan.waves);
  CHECK(read.plan.pipelines == made.plan.pipelines);
  CHECK(read.plan.predicted.one_chain.value == 0.5);
  CHECK(read.single->name == "llama-tiny");
  CHECK(read.model.tasks[1].weight == 0.25);
  const auto refused = [&](const char* pointer, const nlohmann::json& changed) {
    nlohmann::json other = value;
    if (changed.is_null())
      other.erase(std::string(pointer + 1));
    else
      other[nlohmann::json::json_pointer(pointer)] = changed;
    const auto wrong = multi_task_plan_from_json(other, "p.json");
    REQUIRE_FALSE(wrong.has_value());
    CHECK(wrong.error().message.find('\n') == std::string::npos);
    return wrong.error().message;
  };
  CHECK(says(refused("/pipelines", {12, 5}), "17 samples"));
  CHECK(says(refused("/pipelines", {16, 0}), "from 1"));
  CHECK(says(refused("/pipelines", nlohmann::json::array()), "1 to 1024 pipelines"));
  CHECK(says(refused("/pipelines", {16}), "pipeline-1"));
  CHECK(says(refused("/pipelines", "12,4"), "array"));
  CHECK(says(refused("/pipelines", nullptr), "sequence_length"));
  CHECK(says(refused("/tasks", {{"pipeline-0", 12}}), "one task"));
  CHECK(says(refused("/sequence_length", 4096), "4096 tokens"));
  CHECK(says(refused("/model", "gpt2-tiny"), "tied tables"));
  CHECK(says(refused("/model", "clip-toy"), "clip-toy"));
  CHECK(says(refused("/waves/1/parts/0/layers", {4, 5}), "does not follow"));
}

TEST_CASE("both orders run every part forward and backward once, in reverse") {
  const Planned planned;
  const auto parts = static_cast<int>(parts_of(planned.plan).size());
  const auto waves = task_program(planned.plan, in_waves, 3, {});
  const auto sequence = task_program(planned.plan, in_sequence, 3, {});
  REQUIRE(static_cast<int>(waves.size()) == 2 * parts);
  REQUIRE(sequence.size() == waves.size());
  for (int i = 0; i < parts; ++i) {
    CHECK(waves[static_cast<std::size_t>(i)] == TaskInstruction{TaskInstruction::Op::forward, i});
    CHECK(waves[static_cast<std::size_t>(2 * parts - 1 - i)] == TaskInstruction{TaskInstruction::Op::backward, i});
  }
  const auto task_of = [&](std::size_t i) {
    return parts_of(planned.plan)[static_cast<std::size_t>(sequence[i].part)].task;
  };
  for (std::size_t i = 1; i < sequence.size(); ++i) CHECK(task_of(i - 1) <= task_of(i));
}
