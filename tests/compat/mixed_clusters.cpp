// Plans whose stages are on several groups of devices: a header has the groups, other trainers are refused.
#include <galvatron/compat/export/cpp_header.hpp>
#include <galvatron/compat/export/export.hpp>

#include <doctest/doctest.h>

#include "../says.hpp"

using namespace galvatron;

TEST_CASE("plans of mixed clusters are exported as headers alone") {
  Plan plan;
  plan.model = "llama-tiny";
  plan.global_batch = 4;
  plan.stages = {{0, 0, 0, 2, 0}, {1, 1, 2, 2, 1}};
  plan.layers = {{.data = 2}, {.data = 2}};
  plan.embedding = plan.head = {.data = 2};
  REQUIRE(why_inconsistent(plan).empty());
  const std::string text = value_or_throw(export_header(plan)).text;
  CHECK(says(text, ".rank_count = 2, .group = 1}"));
  CHECK(says(text, ".rank_count = 2},"));
  for (const ExportTarget target :
       {ExportTarget::megatron, ExportTarget::torchtitan, ExportTarget::deepspeed, ExportTarget::hetu}) {
    const auto refused = export_plan(plan, target);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().kind == ErrorKind::usage);
    CHECK(says(refused.error().message, "mixed clusters are not exported"));
    Plan uneven = plan;
    for (PlanStage& stage : uneven.stages) stage.group = 0;
    uneven.stages[1].sample_ratios = {3, 1};
    uneven.layers[1].shard_kind = ShardKind::by_ratio;
    const auto cut = export_plan(uneven, target);
    REQUIRE_FALSE(cut.has_value());
    CHECK(says(cut.error().message, "by ratios"));
    CHECK(says(value_or_throw(export_header(uneven)).text, "sample_ratios1{3, 1}"));
    Plan alone = plan;
    for (PlanStage& stage : alone.stages) stage.group = 1;
    if (target != ExportTarget::deepspeed) CHECK(export_plan(alone, target).has_value());
  }
}
