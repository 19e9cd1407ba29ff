// The headers that are compiled here are generated:
//   galvatron export tests/compat/frozen_everything.json --to header --name frozen_everything
//       --out tests/compat/frozen_everything.hpp
//   galvatron export examples/05_frozen_plan.json --to header --out examples/05_frozen_plan.hpp
#include <galvatron/compat/export/cpp_header.hpp>

#include <doctest/doctest.h>

#include <string>
#include <type_traits>

#include <galvatron/core/file.hpp>
#include <galvatron/plan/frozen.hpp>
#include <galvatron/plan/json.hpp>

#include "../../examples/05_frozen_plan.hpp"
#include "../folder.hpp"
#include "frozen_everything.hpp"

using namespace galvatron;

namespace {

// What a program knows of a plan when it is compiled.
constexpr auto& everything = frozen_everything::plan;
static_assert(everything.ranks() == 8 && everything.layers() == 8);
static_assert(everything.stages[1] == FrozenStage{4, 7, 4, 4});
static_assert(everything.microbatches == 8 && everything.virtual_stages == 2);
static_assert(everything.schedule == ScheduleKind::interleaved && everything.precision == Precision::bf16);
static_assert(everything.moments == Precision::bf16);
static_assert(everything.runs.size() == 7 && everything.runs[0].layers == 2);
static_assert(everything.layer(1) == everything.layer(0) && everything.layer(0).recompute == RecomputeKind::full);
static_assert(everything.layer(3) == StrategySpec{.sequence = SequenceKind::ring, .context = 2, .data = 2, .zero = 1});
static_assert(everything.layer(4) ==
              StrategySpec{.sequence = SequenceKind::ulysses, .context = 4, .recompute = RecomputeKind::none});
static_assert(everything.layer(7).expert == 4 && everything.layer(6).expert == 2 && everything.layer(5).expert == 1);
static_assert(everything.embedding.tensor == 4 && everything.head.zero == 2);
static_assert(everything.budget == 80_GiB && everything.predicted_stages[0].peak == 80_GiB - 1_B);
static_assert(everything.iteration.value == 1 && everything.samples_per_second == 1e22);

// Equal strategies are one type, whose degrees are part of it.
static_assert(
    std::is_same_v<frozen_everything::Strategy0,
                   Strategy<DataParallel<2>, ZeRO<3>, TensorParallel<2>, SequenceParallel<megatron>, Recompute<full>>>);
static_assert(frozen_everything::Strategies::size == 9);
static_assert(is_instantiated(frozen_everything::Strategies{}, everything.layer(5)));
static_assert(!is_instantiated(frozen_everything::Strategies{}, StrategySpec{.data = 4}));

// The plan that example 05 trains with.
static_assert(frozen_plan::plan.ranks() == 4 && frozen_plan::plan.global_batch == 16);
static_assert(frozen_plan::plan.layer(0) ==
              StrategySpec{.tensor = 2, .sequence = SequenceKind::megatron, .recompute = RecomputeKind::full});
static_assert(frozen_plan::plan.predicted_stages[0].peak == Bytes{9385472});

const std::string tests_folder = galvatron::test::tests_dir;

// The header is what the plan gives, and what the header gives is the plan.
template <class Frozen>
void check_frozen(const Frozen& frozen, const std::string& path, const std::string& name) {
  CAPTURE(path);
  Plan plan = value_or_throw(read_plan(path + ".json"));
  CHECK(value_or_throw(export_header(plan, name)).text == value_or_throw(read_text_file(path + ".hpp")));
  plan.predicted.alternatives.clear();
  CHECK(frozen.plan() == plan);
  CHECK(plan_text(frozen.plan()) == plan_text(plan));
}

}  // namespace

TEST_CASE("the header of a plan with everything in it is the plan") {
  check_frozen(frozen_everything::plan, tests_folder + "/compat/frozen_everything", "frozen_everything");
}

TEST_CASE("the header of the example is generated from its plan") {
  check_frozen(frozen_plan::plan, tests_folder + "/../examples/05_frozen_plan", "frozen_plan");
}

TEST_CASE("a header of a plan of which nothing was predicted has no figures") {
  Plan plan = value_or_throw(read_plan(tests_folder + "/compat/frozen_everything.json"));
  plan.predicted = {};
  const std::string text = value_or_throw(export_header(plan)).text;
  CHECK(text.find("predicted_stages") == std::string::npos);
  CHECK(text.find("FrozenPlan<2, 7, 0>") != std::string::npos);
  CHECK(text.find(".iteration = {0.0}") != std::string::npos);
}

TEST_CASE("names of headers are identifiers") {
  const Plan plan = value_or_throw(read_plan(tests_folder + "/compat/frozen_everything.json"));
  CHECK(export_header(plan, "my_plan2").value().text.find("namespace my_plan2 {") != std::string::npos);
  for (const char* name : {"", "2plans", "a-b", "a b", "_x", "a::b", "\xc3\xa9"}) {
    const auto refused = export_header(plan, name);
    REQUIRE(!refused);
    CHECK(refused.error().kind == ErrorKind::usage);
    CHECK(refused.error().message.find("identifier") != std::string::npos);
  }
}

TEST_CASE("a header of a plan for documents keeps them packed, in groups of every batch") {
  Plan plan = value_or_throw(read_plan(tests_folder + "/../examples/05_frozen_plan.json"));
  plan.packed = true;
  plan.stages = {{0, static_cast<int>(plan.layers.size()) - 1, 0, 4}};
  plan.predicted = {};
  for (StrategySpec& layer : plan.layers)
    layer = {.sequence = SequenceKind::ulysses, .context = 4, .zero = 3, .groups = SequenceGroupKind::per_batch};
  plan.embedding = plan.head = plan.layers.front();
  REQUIRE(why_inconsistent(plan) == "");
  const std::string text = value_or_throw(export_header(plan, "packed")).text;
  CHECK(text.find(".packed = true") != std::string::npos);
  CHECK(text.find("galvatron::SequenceGroups<galvatron::per_batch>") != std::string::npos);
  FrozenPlan<1, 1, 0> frozen;
  frozen.packed = true;
  CHECK(frozen.plan().packed);
}
