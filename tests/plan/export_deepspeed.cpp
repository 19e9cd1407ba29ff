#include <galvatron/plan/export/deepspeed.hpp>

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "export_plans.hpp"

using namespace galvatron;
using namespace galvatron::testing;
using nlohmann::json;

TEST_CASE("DeepSpeed: batch, precision and ZeRO") {
  const Exported out = export_deepspeed(plan_of({.data = 8, .zero = 3}));
  check_whole(out);
  CHECK(json::parse(out.text) == json({{"train_batch_size", 64},
                                       {"train_micro_batch_size_per_gpu", 1},
                                       {"gradient_accumulation_steps", 8},
                                       {"bf16", {{"enabled", true}}},
                                       {"zero_optimization", {{"stage", 3}}}}));
  CHECK(told(out.set_elsewhere, "2048 tokens") == 1);
  CHECK(out.set_elsewhere.size() == 1);
  Plan plain = plan_of({.tensor = 2, .data = 4});
  plain.precision = Precision::fp32;
  const Exported tensor = export_deepspeed(plain);
  check_whole(tensor);
  CHECK(json::parse(tensor.text)["tensor_parallel"]["autotp_size"] == 2);
  CHECK(json::parse(tensor.text)["bf16"]["enabled"] == false);
}

TEST_CASE("DeepSpeed: 8-bit products are told, and bf16 written") {
  Plan plan = plan_of({.data = 8});
  plan.precision = Precision::fp8;
  plan.moments = Precision::bf16;
  const Exported out = export_deepspeed(plan);
  CHECK(told(out.not_expressed, "moments of the optimizer in bf16") == 1);
  CHECK(json::parse(out.text)["bf16"]["enabled"] == true);
  CHECK(told(out.not_expressed, "8-bit products") == 1);
}

TEST_CASE("DeepSpeed: the batch is micro-batch x accumulation x data ranks") {
  for (const int data : {1, 2, 4, 8}) {
    const json config = json::parse(export_deepspeed(plan_of({.tensor = 8 / data, .data = data})).text);
    CHECK(config["train_micro_batch_size_per_gpu"].get<int>() * config["gradient_accumulation_steps"].get<int>() *
              data ==
          config["train_batch_size"].get<int>());
  }
}

TEST_CASE("DeepSpeed: a pipeline has ZeRO 1 at most, and is the program's") {
  const Exported out = export_deepspeed(plan_of({.data = 4, .zero = 2}, {4, 4}));
  check_tells(out, "ZeRO 2 with a pipeline");
  CHECK(json::parse(out.text)["zero_optimization"]["stage"] == 1);
  CHECK(told(out.set_elsewhere, "PipelineModule(num_stages=2)") == 1);
  Plan plan = plan_of({.tensor = 2, .data = 2, .zero = 1}, {3, 5});
  plan.schedule = ScheduleKind::gpipe;
  const Exported uneven = export_deepspeed(plan);
  CHECK(told(uneven.not_expressed, "stages of 3, 5 layers") == 1);
  CHECK(told(uneven.not_expressed, "the schedule gpipe") == 1);
  CHECK(uneven.not_expressed.size() == 2);
  CHECK(told(uneven.set_elsewhere, "num_pp=2, num_mp=2, num_dp=2") == 1);
  CHECK(!json::parse(uneven.text).contains("tensor_parallel"));
}

TEST_CASE("DeepSpeed: sequences") {
  const Exported ulysses = export_deepspeed(plan_of({.sequence = SequenceKind::ulysses, .context = 2, .data = 4}));
  check_whole(ulysses);
  CHECK(json::parse(ulysses.text)["sequence_parallel_size"] == 2);
  check_tells(export_deepspeed(plan_of({.sequence = SequenceKind::ring, .context = 2, .data = 4})), "ring attention");
  check_tells(export_deepspeed(plan_of({.tensor = 2, .sequence = SequenceKind::megatron, .data = 4})),
              "Megatron sequence parallelism");
  check_tells(export_deepspeed(plan_of({.sequence = SequenceKind::ulysses, .context = 2, .data = 4, .zero = 3})),
              "data and context ranks together, 8");
}

TEST_CASE("DeepSpeed: recomputation is the model's, or all of a pipeline's") {
  Plan plan = plan_of({.data = 8, .zero = 1});
  plan.layers[0].recompute = plan.layers[1].recompute = RecomputeKind::full;
  const Exported model = export_deepspeed(plan);
  check_whole(model);
  CHECK(told(model.set_elsewhere, "full (layers 0-1), none (layers 2-7)") == 1);
  const StrategySpec full{.data = 4, .zero = 1, .recompute = RecomputeKind::full};
  Plan pipeline = plan_of(full, {4, 4});
  const Exported every = export_deepspeed(pipeline);
  check_whole(every);
  CHECK(json::parse(every.text)["pipeline"]["activation_checkpoint_interval"] == 1);
  pipeline.layers[3].recompute = RecomputeKind::none;
  check_tells(export_deepspeed(pipeline), "every layer or none");
  Plan kept = plan_of({.data = 4, .zero = 1}, {4, 4});
  kept.layers[3].recompute = RecomputeKind::never;
  check_whole(export_deepspeed(kept));
  CHECK(!json::parse(export_deepspeed(kept).text)["pipeline"].contains("activation_checkpoint_interval"));
}

TEST_CASE("DeepSpeed: experts are the model's") {
  Plan plan = plan_of({.data = 8, .expert = 4});
  const Exported out = export_deepspeed(plan);
  check_whole(out);
  CHECK(told(out.set_elsewhere, "ep_size=4") == 1);
}
