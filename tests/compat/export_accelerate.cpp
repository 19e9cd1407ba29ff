#include <galvatron/compat/export/accelerate.hpp>

#include <doctest/doctest.h>

#include <string>

#include <galvatron/core/error.hpp>

#include "export_plans.hpp"

using namespace galvatron;
using namespace galvatron::testing;

namespace {

Exported accelerate(const StrategySpec& spec) { return value_or_throw(export_accelerate(plan_of(spec))); }

}  // namespace

TEST_CASE("Accelerate: FSDP2 with tensor and context ranks") {
  const Exported out = accelerate({.tensor = 2, .sequence = SequenceKind::ring, .context = 2, .data = 2, .zero = 3});
  check_whole(out);
  const std::string fsdp =
      "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
      "  fsdp_reshard_after_forward: true\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
      "  fsdp_activation_checkpointing: false\n  fsdp_offload_params: false\n"
      "  fsdp_state_dict_type: SHARDED_STATE_DICT\nparallelism_config:\n  parallelism_config_dp_replicate_size: 1\n"
      "  parallelism_config_dp_shard_size: 2\n  parallelism_config_tp_size: 2\n  parallelism_config_cp_size: 2\n"
      "  parallelism_config_cp_comm_strategy: alltoall\n";
  CHECK(has(out.text, fsdp));
  CHECK(told(out.set_elsewhere, "tp_plan=\"auto\"") == 1);
  CHECK(told(out.set_elsewhere, "4 samples of 2048 tokens on a data rank and gradients of 8 micro-batches in a step") ==
        1);
  check_same_job(out, plan_of({.tensor = 2, .sequence = SequenceKind::ring, .context = 2, .data = 2, .zero = 3}));
}

TEST_CASE("Accelerate: kinds of data parallelism") {
  Exported out = accelerate({.data = 8});
  check_whole(out);
  CHECK(has_line(out.text, "distributed_type: MULTI_GPU"));
  CHECK(!has(out.text, "fsdp"));
  out = accelerate({.data = 8, .zero = 2});
  check_whole(out);
  CHECK(has_line(out.text, "fsdp_reshard_after_forward: false"));
  out = accelerate({.data = 8, .zero = 1});
  check_tells(out, "ZeRO 1");
  CHECK(out.job.value().layers[0].zero == 2);
  out = accelerate({.tensor = 2, .data = 4});
  check_tells(out, "without ZeRO beside tensor parallelism");
  CHECK(has_line(out.text, "parallelism_config_dp_shard_size: 4"));
  check_tells(accelerate({.tensor = 8}), "tensor parallelism without data ranks");
  check_tells(accelerate({.sequence = SequenceKind::ulysses, .context = 2, .data = 4, .zero = 3}), "Ulysses");
  check_tells(accelerate({.tensor = 2, .sequence = SequenceKind::megatron, .data = 4, .zero = 3}), "Megatron sequence");
  const Exported both =
      accelerate({.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .data = 2, .zero = 3});
  CHECK(told(both.not_expressed, "Megatron sequence parallelism") == 1);
  CHECK(told(both.not_expressed, "Ulysses") == 1);
}

TEST_CASE("Accelerate: recomputation of every block or none, and no pipeline") {
  Plan plan = plan_of({.data = 8, .zero = 3, .recompute = RecomputeKind::full});
  CHECK(has_line(value_or_throw(export_accelerate(plan)).text, "fsdp_activation_checkpointing: true"));
  check_whole(value_or_throw(export_accelerate(plan)));
  plan.layers[3].recompute = RecomputeKind::none;
  const Exported out = value_or_throw(export_accelerate(plan));
  check_tells(out, "Accelerate recomputes every block or none");
  CHECK(out.job.value().layers[3].recompute == RecomputeKind::full);
  plan.precision = Precision::fp32;
  CHECK(has_line(value_or_throw(export_accelerate(plan)).text, "mixed_precision: 'no'"));
  const auto pipeline = export_accelerate(plan_of({.data = 4, .zero = 1}, {4, 4}));
  REQUIRE(!pipeline);
  CHECK(has(pipeline.error().message, "a pipeline of 2 stages"));
}
