#include <galvatron/compat/export/deepspeed.hpp>

#include <doctest/doctest.h>

#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "export_plans.hpp"

using namespace galvatron;
using namespace galvatron::testing;
using nlohmann::json;

namespace {

Exported deepspeed(const Plan& plan) {
  auto out = export_deepspeed(plan);
  REQUIRE(out.has_value());
  return std::move(*out);
}

}  // namespace

TEST_CASE("DeepSpeed: batch, precision and ZeRO") {
  const Exported out = deepspeed(plan_of({.data = 8, .zero = 3}));
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
  const Exported tensor = deepspeed(plain);
  check_whole(tensor);
  check_same_job(tensor, plain);
  CHECK(json::parse(tensor.text)["tensor_parallel"]["autotp_size"] == 2);
  // It would be compared with micro-batch x accumulation x all ranks.
  CHECK(!json::parse(tensor.text).contains("train_batch_size"));
  CHECK(told(tensor.set_elsewhere, "a step has 64 samples, and DeepSpeed reports 128") == 1);
  CHECK(json::parse(tensor.text)["bf16"]["enabled"] == false);
}

TEST_CASE("DeepSpeed: 8-bit products are told, and bf16 written") {
  Plan plan = plan_of({.data = 8});
  plan.precision = Precision::fp8;
  plan.moments = Precision::bf16;
  const Exported out = deepspeed(plan);
  CHECK(told(out.not_expressed, "moments of the optimizer in bf16") == 1);
  CHECK(json::parse(out.text)["bf16"]["enabled"] == true);
  CHECK(told(out.not_expressed, "8-bit products") == 1);
}

TEST_CASE("DeepSpeed: the batch is micro-batch x accumulation x data ranks") {
  for (const int data : {1, 2, 4, 8}) {
    StrategySpec spec{.context = 8 / data, .data = data};
    if (spec.context > 1) spec.sequence = SequenceKind::ulysses;
    const json config = json::parse(deepspeed(plan_of(spec)).text);
    CHECK(config["train_micro_batch_size_per_gpu"].get<int>() * config["gradient_accumulation_steps"].get<int>() *
              data ==
          config["train_batch_size"].get<int>());
  }
}

TEST_CASE("DeepSpeed: a pipeline has ZeRO 1 at most, and is the program's") {
  const Exported out = deepspeed(plan_of({.data = 4, .zero = 2}, {4, 4}));
  check_tells(out, "ZeRO 2 with a pipeline");
  CHECK(json::parse(out.text)["zero_optimization"]["stage"] == 1);
  CHECK(out.job.value().layers.front().zero == 1);
  CHECK(told(out.set_elsewhere, "PipelineModule(num_stages=2)") == 1);
  Plan plan = plan_of({.tensor = 2, .data = 2, .zero = 1}, {3, 5});
  plan.schedule = ScheduleKind::gpipe;
  const Exported uneven = deepspeed(plan);
  CHECK(told(uneven.not_expressed, "stages of 3, 5 layers") == 1);
  CHECK(told(uneven.not_expressed, "the schedule gpipe") == 1);
  CHECK(uneven.not_expressed.size() == 2);
  CHECK(uneven.job.value().schedule == ScheduleKind::one_f_one_b);
  CHECK(uneven.job.value().stages.front().last_layer == 3);
  CHECK(told(uneven.set_elsewhere, "num_pp=2, num_mp=2, num_dp=2") == 1);
  CHECK(!json::parse(uneven.text).contains("tensor_parallel"));
}

TEST_CASE("DeepSpeed: sequences") {
  const Exported ulysses = deepspeed(plan_of({.sequence = SequenceKind::ulysses, .context = 2, .data = 4}));
  check_whole(ulysses);
  CHECK(json::parse(ulysses.text)["sequence_parallel_size"] == 2);
  CHECK(json::parse(ulysses.text)["data_parallel_size"] == 4);  // the one is ignored without the other
  CHECK(told(ulysses.set_elsewhere, "over the 4 data ranks alone") == 1);
  const Exported ring = deepspeed(plan_of({.sequence = SequenceKind::ring, .context = 2, .data = 4}));
  check_tells(ring, "ring attention");
  CHECK(ring.job.value().layers.front().sequence == SequenceKind::ulysses);
  check_tells(deepspeed(plan_of({.tensor = 2, .sequence = SequenceKind::megatron, .data = 4})),
              "Megatron sequence parallelism");
  const Plan sharded = plan_of({.sequence = SequenceKind::ulysses, .context = 2, .data = 4, .zero = 3});
  check_whole(deepspeed(sharded));
  check_same_job(deepspeed(sharded), sharded);
}

TEST_CASE("DeepSpeed: context ranks beside a pipeline or tensor ranks are refused") {
  const auto refused = [](const Plan& plan, const std::string& why) {
    const auto out = export_deepspeed(plan);
    REQUIRE(!out.has_value());
    CHECK(out.error().kind == ErrorKind::usage);
    CHECK(has(out.error().message, why));
    CHECK(has(out.error().message, "--space uniform,deepspeed"));
  };
  refused(plan_of({.sequence = SequenceKind::ulysses, .context = 2, .data = 2}, {4, 4}), "beside a pipeline");
  refused(plan_of({.tensor = 2, .sequence = SequenceKind::ulysses, .context = 2, .data = 2}), "beside tensor ranks");
  refused(plan_of({.tensor = 2, .sequence = SequenceKind::megatron, .context = 2, .data = 2}), "beside tensor ranks");
  refused(plan_of({.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .data = 2}),
          "beside tensor ranks");
}

TEST_CASE("DeepSpeed: outputs of norms and activations are kept, but where a pipeline recomputes every layer") {
  Plan plan = plan_of({.data = 8, .zero = 1});
  plan.layers[2].recompute = RecomputeKind::cheap;
  const Exported out = deepspeed(plan);
  check_tells(out, "the outputs of norms and activations are recomputed in layer 2");
  CHECK(out.job.value().layers[2].recompute == RecomputeKind::none);
  CHECK(told(out.set_elsewhere, "recomputation") == 0);
}

TEST_CASE("DeepSpeed: recomputation is the model's, or all of a pipeline's") {
  Plan plan = plan_of({.data = 8, .zero = 1});
  plan.layers[0].recompute = plan.layers[1].recompute = RecomputeKind::full;
  const Exported model = deepspeed(plan);
  check_whole(model);
  CHECK(told(model.set_elsewhere, "full (layers 0-1), none (layers 2-7)") == 1);
  const StrategySpec full{.data = 4, .zero = 1, .recompute = RecomputeKind::full};
  Plan pipeline = plan_of(full, {4, 4});
  const Exported every = deepspeed(pipeline);
  check_whole(every);
  CHECK(json::parse(every.text)["pipeline"]["activation_checkpoint_interval"] == 1);
  check_same_job(every, pipeline);
  pipeline.layers[3].recompute = RecomputeKind::cheap;
  check_tells(deepspeed(pipeline), "every layer or none");
  Plan kept = plan_of({.data = 4, .zero = 1}, {4, 4});
  kept.layers[3].recompute = RecomputeKind::none;
  check_whole(deepspeed(kept));
  CHECK(!json::parse(deepspeed(kept).text)["pipeline"].contains("activation_checkpoint_interval"));
}

TEST_CASE("DeepSpeed: experts are the model's") {
  Plan plan = plan_of({.data = 8, .expert = 4});
  const Exported out = deepspeed(plan);
  check_whole(out);
  CHECK(told(out.set_elsewhere, "ep_size=4") == 1);
}
