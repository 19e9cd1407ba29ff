#include <galvatron/compat/export/export.hpp>

#include <doctest/doctest.h>

#include <string>

#include <galvatron/cluster/json.hpp>
#include <galvatron/compat/export/megatron.hpp>
#include <galvatron/cost/trainer_json.hpp>
#include <galvatron/model/huggingface.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/uniform.hpp>

#include "export_plans.hpp"

using namespace galvatron;
using namespace galvatron::testing;

namespace {

ModelSpec preset(const std::string& name) { return value_or_throw(load_model(name)); }

}  // namespace

TEST_CASE("an exported job is priced like the plan that it is") {
  const ModelSpec model = preset("gpt2-350m");
  const Cluster cluster = value_or_throw(load_cluster("8xa100-80g"));
  Plan plan =
      value_or_throw(uniform_plan(Strategy<ZeRO<1>, DataParallel<8>, Recompute<none>>(), model, {.global_batch = 64}));
  const auto job = [&](const Plan& of) { return job_cost(export_megatron(of), of, model, cluster).value(); };
  const PlanCost own = cost_of(plan, model, cluster).value();
  CHECK(job(plan).peak == own.peak());
  CHECK(job(plan).iteration == own.iteration);
  CHECK(job(plan).budget == cluster.device.memory - reserve_of(plan, cluster));
  CHECK(job(plan).fits());
  plan.predicted.budget = own.peak();
  CHECK(job(plan).budget == own.peak());
  CHECK(job(plan).fits());
  // Recomputing less than the job of Megatron-LM can, it fits the budget and the job does not.
  for (StrategySpec& layer : plan.layers) layer.recompute = RecomputeKind::cheap;
  CHECK(cost_of(plan, model, cluster).value().peak() < own.peak());
  plan.predicted.budget = cost_of(plan, model, cluster).value().peak();
  CHECK(job(plan).peak == own.peak());
  CHECK(!job(plan).fits());
  // Without a job of its own it is the plan.
  CHECK(job_cost({}, plan, model, cluster).value().peak == plan.predicted.budget);
  plan.layers.pop_back();
  CHECK(!job_cost({}, plan, model, cluster).has_value());
}

TEST_CASE("the command for a plan that a target can express repeats the job") {
  const ModelSpec model = preset("llama2-7b");
  Plan plan = plan_of({.data = 8});
  const auto command = [&](ExportTarget target, const std::string& name = "llama2-7b") {
    return search_command(plan, target, name, "8xa100-80g", model, {1'000}, "p.json");
  };
  CHECK(command(ExportTarget::megatron) ==
        "galvatron plan --model llama2-7b --cluster 8xa100-80g --global-batch 64 --seq 2048 --precision bf16 --space "
        "uniform,megatron --out p.json");
  CHECK(has(command(ExportTarget::hetu), " --space uniform,hetu --out"));
  plan.sequence_length = model.positions();
  plan.moments = Precision::bf16;
  plan.trainer = *cost::find_trainer("megatron");
  plan.schedule = ScheduleKind::interleaved;
  plan.predicted.budget = {999};
  CHECK(command(ExportTarget::megatron, "it's mine/config.json") ==
        "galvatron plan --model 'it'\\''s mine/config.json' --cluster 8xa100-80g --global-batch 64 --precision bf16 "
        "--moments bf16 --trainer megatron --memory 999 --space uniform,megatron --schedule 1f1b,interleaved --out "
        "p.json");
  CHECK(!has(command(ExportTarget::torchtitan), "--moments"));  // which it lacks
  CHECK(!has(command(ExportTarget::deepspeed), "--schedule"));
  plan.predicted.budget = {1'000};
  CHECK(!has(command(ExportTarget::megatron), "--memory"));
}

TEST_CASE("which models a target trains") {
  for (const char* name : {"gpt2-tiny", "llama2-70b", "mixtral-8x7b"})
    for (const ExportTarget target : export_targets) CHECK(why_not_trained(preset(name), target) == "");
  for (const char* name : {"bert-large", "vit-huge-32", "swin-huge-32", "t5-3b"})
    for (const ExportTarget target : export_targets) {
      CAPTURE(name);
      const std::string why = why_not_trained(preset(name), target);
      CHECK(why.empty() == (target == ExportTarget::deepspeed || target == ExportTarget::accelerate));
      CHECK((why.empty() || why.starts_with(name)));
    }
}

TEST_CASE("Ulysses with fewer key/value heads than context ranks is refused for Megatron-LM") {
  const ModelSpec model = preset("llama2-70b");
  const auto why = [&](const StrategySpec& spec) {
    Plan plan = plan_of(spec, {80});
    return why_not_run(export_megatron(plan), model, ExportTarget::megatron);
  };
  CHECK(why({.sequence = SequenceKind::ulysses, .context = 8}) == "");
  CHECK(why({.sequence = SequenceKind::ring, .context = 16}) == "");
  CHECK(has(why({.sequence = SequenceKind::ulysses, .context = 16}), "copies of the 8 key/value heads"));
  CHECK(has(why({.tensor = 2, .sequence = SequenceKind::ulysses, .context = 8}), "--space uniform,megatron"));
}

TEST_CASE("a plan whose stages have different numbers of ranks is refused by every target") {
  Plan plan = plan_of({.data = 4}, {4, 4});
  plan.stages[1].rank_count = 2;
  for (std::size_t i = 4; i < 8; ++i) plan.layers[i].data = 2;
  plan.head.data = 2;
  REQUIRE(why_inconsistent(plan) == "");
  for (const ExportTarget target :
       {ExportTarget::megatron, ExportTarget::torchtitan, ExportTarget::deepspeed, ExportTarget::hetu}) {
    const auto exported = export_plan(plan, target);
    REQUIRE(!exported);
    CHECK(exported.error().kind == ErrorKind::usage);
    CHECK(has(exported.error().message, "stages of 4 and of 2 ranks"));
  }
}
