#include <galvatron/compat/export/megatron.hpp>
#include <galvatron/cost/trainer_json.hpp>

#include <doctest/doctest.h>

#include <string>

#include "export_plans.hpp"

using namespace galvatron;
using namespace galvatron::testing;

TEST_CASE("Megatron-LM: degrees, batch and precision are arguments of a shell array") {
  const Exported out =
      export_megatron(plan_of({.tensor = 4, .sequence = SequenceKind::megatron, .data = 2, .zero = 1}, {4, 4}));
  check_whole(out);
  CHECK(out.text.find("PLAN_ARGS=(\n  --num-layers 8\n  --seq-length 2048\n  --micro-batch-size 4\n"
                      "  --global-batch-size 64\n  --bf16\n  --tensor-model-parallel-size 4\n  --sequence-parallel\n"
                      "  --pipeline-model-parallel-size 2\n  --use-distributed-optimizer\n)\n") != std::string::npos);
  CHECK(told(out.set_elsewhere, "CUDA_DEVICE_MAX_CONNECTIONS=1") == 1);
  Plan plain = plan_of({.data = 8});
  plain.precision = Precision::fp32;
  const Exported alone = export_megatron(plain);
  check_whole(alone);
  CHECK(!has(alone.text, "--bf16"));
  CHECK(!has(alone.text, "--sequence-parallel"));
  CHECK(!has(alone.text, "--use-distributed-optimizer"));
  CHECK(!has(alone.text, "--recompute"));
  CHECK(alone.set_elsewhere.empty());
}

TEST_CASE("Megatron-LM: 8-bit products") {
  Plan plan = plan_of({.data = 8});
  plan.precision = Precision::fp8;
  const Exported out = export_megatron(plan);
  check_whole(out);
  CHECK(has(out.text, "  --bf16\n  --fp8-format hybrid\n  --fp8-recipe tensorwise\n"));
  const auto by = [&](Fp8Recipe recipe) {
    plan.trainer.traits.fp8_recipe = recipe;
    return export_megatron(plan);
  };
  for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::blockwise, Fp8Recipe::mxfp8}) {
    const Exported other = by(recipe);
    check_whole(other);
    CHECK(has_line(other.text, std::string("--fp8-recipe ") + name_of(recipe)));
    CHECK(has_line(other.text, recipe == Fp8Recipe::delayed ? "--fp8-format hybrid" : "--fp8-format e4m3"));
    CHECK(other.job.value().trainer.traits.fp8_recipe == recipe);
  }
  const Exported rows = by(Fp8Recipe::rowwise);
  check_tells(rows, "a scale for each row");
  CHECK(has_line(rows.text, "--fp8-recipe tensorwise"));
  CHECK(rows.job.value().trainer.traits.fp8_recipe == Fp8Recipe::tensorwise);
}

TEST_CASE("Megatron-LM: moments in bf16, which its distributed optimizer has") {
  Plan plan = plan_of({.data = 8, .zero = 1});
  plan.moments = Precision::bf16;
  const Exported out = export_megatron(plan);
  check_whole(out);
  CHECK(has(out.text, "  --use-precision-aware-optimizer\n  --exp-avg-dtype bf16\n  --exp-avg-sq-dtype bf16\n"));
  CHECK(told(out.not_expressed, "moments") == 0);
  plan = plan_of({.data = 8});
  plan.moments = Precision::bf16;
  CHECK(told(export_megatron(plan).not_expressed, "moments of the optimizer in bf16") == 1);
}

TEST_CASE("Megatron-LM: ZeRO stages") {
  const std::string two = export_megatron(plan_of({.data = 8, .zero = 2})).text;
  CHECK(has(two,
            "  --use-distributed-optimizer\n  --use-megatron-fsdp\n"
            "  --data-parallel-sharding-strategy optim_grads\n  --ckpt-format fsdp_dtensor\n"));
  CHECK(has_line(export_megatron(plan_of({.data = 8, .zero = 3})).text,
                 "--data-parallel-sharding-strategy optim_grads_params"));
  // States are sharded over data and context ranks, here as there.
  const Plan wider = plan_of({.sequence = SequenceKind::ring, .context = 2, .data = 4, .zero = 1});
  check_whole(export_megatron(wider));
  check_same_job(export_megatron(wider), wider);
  const Plan alone = plan_of({.sequence = SequenceKind::ulysses, .context = 8, .zero = 1});
  check_whole(export_megatron(alone));
  check_same_job(export_megatron(alone), alone);
  CHECK(has_line(export_megatron(alone).text, "--use-distributed-optimizer"));
}

TEST_CASE("Megatron-LM: its FSDP refuses one connection, tensor and context parallelism ask for it") {
  const auto elsewhere = [](const StrategySpec& spec) { return export_megatron(plan_of(spec)).set_elsewhere; };
  for (const int zero : {2, 3})
    for (const int tensor : {1, 2})
      CHECK(told(elsewhere({.tensor = tensor, .data = 8 / tensor, .zero = zero}),
                 "CUDA_DEVICE_MAX_CONNECTIONS unset or above 1") == 1);
  CHECK(told(elsewhere({.tensor = 2, .data = 4, .zero = 1}), "CUDA_DEVICE_MAX_CONNECTIONS=1") == 1);
  CHECK(elsewhere({.data = 8, .zero = 1}).empty());
}

TEST_CASE("Megatron-LM: outputs of norms and activations are kept, which is told") {
  const auto with = [](RecomputeKind kind) {
    Plan plan = plan_of({.data = 8, .zero = 1});
    for (StrategySpec& layer : plan.layers) layer.recompute = kind;
    return plan;
  };
  const auto kind_of = [](const Exported& exported) { return exported.job.value().layers.front().recompute; };
  const Exported none = export_megatron(with(RecomputeKind::cheap));
  check_tells(none, "the outputs of norms and activations are recomputed in layers 0-7");
  CHECK(has(none.text, "  --recompute-granularity selective\n  --recompute-modules layernorm\n"));
  CHECK(kind_of(none) == RecomputeKind::none);
  const Exported selective = export_megatron(with(RecomputeKind::selective));
  check_tells(selective, "the outputs of norms and activations are recomputed in layers 0-7");
  CHECK(has_line(selective.text, "--recompute-modules core_attn layernorm"));
  CHECK(kind_of(selective) == RecomputeKind::none);
  Plan eight = with(RecomputeKind::cheap);  // whose products refuse the module with older versions of their library
  eight.precision = Precision::fp8;
  CHECK(!has(export_megatron(eight).text, "--recompute"));
  check_tells(export_megatron(eight), "the outputs of norms and activations");
  for (const RecomputeKind kind : {RecomputeKind::none, RecomputeKind::full}) {
    check_whole(export_megatron(with(kind)));
    check_same_job(export_megatron(with(kind)), with(kind));
  }
  // Plans that were priced as Megatron-LM runs them keep the outputs anyway.
  for (const RecomputeKind kind : recompute_kinds) {
    Plan own = with(kind);
    own.trainer = *cost::find_trainer("megatron");
    const Exported out = export_megatron(own);
    check_whole(out);
    CHECK(!has(out.text, "layernorm"));
    CHECK(kind_of(out) == (kind == RecomputeKind::none ? RecomputeKind::cheap : kind));
  }
  Plan some = with(RecomputeKind::full);
  some.layers[7].recompute = RecomputeKind::cheap;
  const Exported block = export_megatron(some);
  CHECK(told(block.not_expressed, "are recomputed in layer 7") == 1);
  CHECK(block.job.value().layers[7].recompute == RecomputeKind::none);
  CHECK(block.job.value().layers[6].recompute == RecomputeKind::full);
}

TEST_CASE("Megatron-LM: the job is what the arguments say") {
  Plan plan = plan_of({.sequence = SequenceKind::ring, .context = 2, .data = 4, .zero = 1});
  for (std::size_t i = 5; i < 8; ++i)
    plan.layers[i] = {.tensor = 2, .data = 4, .zero = 3, .recompute = RecomputeKind::none};
  plan.schedule = ScheduleKind::gpipe;
  const Exported out = export_megatron(plan);
  CHECK(told(out.not_expressed, "cp2 ring dp4 (layers 0-4), tp2 dp4 (layers 5-7)") == 1);
  CHECK(told(out.not_expressed, "is written, cp2 ring dp4") == 1);
  CHECK(told(out.not_expressed, "ulysses") == 0);
  const Plan& job = out.job.value();
  for (const StrategySpec& layer : job.layers) CHECK(layer == job.layers.front());
  CHECK(job.layers.front() ==
        StrategySpec{
            .sequence = SequenceKind::ring, .context = 2, .data = 4, .zero = 3, .recompute = RecomputeKind::none});
  CHECK(job.head == job.embedding);
  CHECK(job.head.zero == 3);
  Plan stages = plan_of({.data = 4}, {4, 4});
  stages.schedule = ScheduleKind::zb_h1;
  CHECK(export_megatron(stages).job.value().schedule == ScheduleKind::one_f_one_b);
}

TEST_CASE("Megatron-LM: context parallelism, a kind for each layer") {
  const StrategySpec ring{.sequence = SequenceKind::ring, .context = 2, .data = 4};
  const StrategySpec ulysses{.sequence = SequenceKind::ulysses, .context = 2, .data = 4};
  const Exported all = export_megatron(plan_of(ulysses));
  check_whole(all);
  CHECK(has(all.text, "  --context-parallel-size 2\n  --cp-comm-type a2a\n"));
  CHECK(has_line(export_megatron(plan_of(ring)).text, "--cp-comm-type p2p"));
  Plan mixed = plan_of(ring, {4});
  mixed.layers[1].sequence = ulysses.sequence;
  const Exported some = export_megatron(mixed);
  check_whole(some);
  check_same_job(some, mixed);
  CHECK(has_line(some.text, "--cp-comm-type p2p a2a p2p p2p"));
  mixed.layers[3] = {.data = 8, .recompute = RecomputeKind::none};
  CHECK(told(export_megatron(mixed).not_expressed, "cp2 ring dp4 or cp2 ulysses dp4 (layers 0-2), dp8 (layer 3)") == 1);
  const Exported cut =
      export_megatron(plan_of({.tensor = 2, .sequence = SequenceKind::megatron, .context = 2, .data = 2}));
  check_whole(cut);
  CHECK(has_line(cut.text, "--cp-comm-type p2p"));
  CHECK(has_line(cut.text, "--sequence-parallel"));
  Plan both = plan_of({.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .data = 2}, {4});
  const Exported exchanged = export_megatron(both);
  check_whole(exchanged);
  check_same_job(exchanged, both);
  CHECK(has_line(exchanged.text, "--cp-comm-type a2a"));
  CHECK(has_line(exchanged.text, "--sequence-parallel"));
  both.layers[2].sequence = SequenceKind::megatron;  // with a ring
  const Exported each = export_megatron(both);
  check_whole(each);
  check_same_job(each, both);
  CHECK(has_line(each.text, "--cp-comm-type a2a a2a p2p a2a"));
  both.layers[2].sequence = SequenceKind::ulysses;  // with whole sequences between the tensor-parallel regions
  CHECK(told(export_megatron(both).not_expressed,
             "tp2 megatron cp2 ulysses dp2 (layers 0-1 and 3), tp2 cp2 ulysses dp2 (layer 2)") == 1);
}

TEST_CASE("Megatron-LM: uneven stages") {
  const auto stages = [](const std::vector<int>& sizes, int virtual_stages = 1) {
    Plan plan = plan_of({.data = 2}, sizes);
    plan.virtual_stages = virtual_stages;
    if (virtual_stages > 1) plan.schedule = ScheduleKind::interleaved;
    const Exported out = export_megatron(plan);
    check_whole(out);
    return out.text;
  };
  CHECK(!has(stages({3, 3, 3}), "pipeline-num-layers"));
  CHECK(has_line(stages({2, 3, 3}), "--decoder-first-pipeline-num-layers 2"));
  CHECK(!has(stages({2, 3, 3}), "--decoder-last"));
  CHECK(has_line(stages({3, 3, 2}), "--decoder-last-pipeline-num-layers 2"));
  CHECK(!has(stages({3, 3, 2}), "--decoder-first"));
  CHECK(has_line(stages({3, 5}), "--decoder-first-pipeline-num-layers 3"));
  CHECK(has(stages({2, 4, 4, 3}), "  --decoder-first-pipeline-num-layers 2\n  --decoder-last-pipeline-num-layers 3\n"));
  CHECK(has_line(stages({2, 4, 1, 3}), "--pipeline-model-parallel-layout 'Et*2|t*4|t|t*3L'"));
  CHECK(has_line(stages({4, 4}, 2), "--num-layers-per-virtual-pipeline-stage 2"));
  // Chunks 0 of both stages, then chunks 1.
  CHECK(has_line(stages({4, 5}, 2), "--pipeline-model-parallel-layout 'Et*2|t*3|t*2|t*2L'"));
}

TEST_CASE("Megatron-LM: schedules that it lacks are told") {
  Plan plan = plan_of({.data = 4}, {4, 4});
  check_whole(export_megatron(plan));
  plan.schedule = ScheduleKind::gpipe;
  check_tells(export_megatron(plan), "the schedule gpipe");
  plan.schedule = ScheduleKind::zb_h1;
  check_tells(export_megatron(plan), "the schedule zb-h1");
  Plan alone = plan_of({.data = 4});
  alone.schedule = ScheduleKind::gpipe;  // without a pipeline every schedule is the same
  check_whole(export_megatron(alone));
}

TEST_CASE("Megatron-LM: recomputation") {
  const StrategySpec keep{.data = 4};
  const auto with = [&](RecomputeKind kind, const std::vector<int>& layers) {
    Plan plan = plan_of(keep, {4, 4});
    plan.trainer = *cost::find_trainer("megatron");  // outputs of norms and activations are another test's
    for (const int layer : layers) plan.layers[static_cast<std::size_t>(layer)].recompute = kind;
    return plan;
  };
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7};
  const Exported every = export_megatron(with(RecomputeKind::full, all));
  check_whole(every);
  CHECK(has(every.text, "  --recompute-granularity full\n  --recompute-method uniform\n  --recompute-num-layers 1\n"));
  check_whole(export_megatron(with(RecomputeKind::none, all)));
  CHECK(!has(export_megatron(with(RecomputeKind::none, all)).text, "--recompute"));
  // Of virtual stages the first layers of each are recomputed: here of chunks of two.
  Plan chunks = with(RecomputeKind::full, {0, 2, 4, 6});
  chunks.schedule = ScheduleKind::interleaved;
  chunks.virtual_stages = 2;
  const Exported firsts = export_megatron(chunks);
  check_whole(firsts);
  CHECK(has(firsts.text, "  --recompute-method block\n  --recompute-num-layers 1\n"));
  const Exported core = export_megatron(with(RecomputeKind::selective, all));
  check_whole(core);
  CHECK(has_line(core.text, "--recompute-granularity selective"));
  CHECK(!has(core.text, "--recompute-method"));

  const auto block = [&](const std::vector<int>& layers, int number, bool exact) {
    const Exported out = export_megatron(with(RecomputeKind::full, layers));
    CHECK(has(out.text, "  --recompute-granularity full\n  --recompute-method block\n  --recompute-num-layers " +
                            std::to_string(number) + "\n"));
    if (exact)
      check_whole(out);
    else
      check_tells(out, "recomputation differs from layer to layer");
  };
  block({0, 1, 4, 5}, 2, true);
  block({0, 1, 4}, 2, false);     // the second stage fewer
  block({2, 3, 6, 7}, 2, false);  // the last ones instead of the first
  block({0}, 1, false);
  Plan short_stage = plan_of(keep, {1, 4});
  for (const int layer : {0, 1, 2}) short_stage.layers[static_cast<std::size_t>(layer)].recompute = RecomputeKind::full;
  const Exported whole_stage = export_megatron(short_stage);  // the first stage has no second layer
  check_whole(whole_stage);
  CHECK(has_line(whole_stage.text, "--recompute-num-layers 2"));

  const Exported some = export_megatron(with(RecomputeKind::selective, {3}));
  check_tells(some, "none (layers 0-2 and 4-7), selective (layer 3)");
  CHECK(has_line(some.text, "--recompute-granularity selective"));
  Plan both = with(RecomputeKind::full, {0, 4});
  both.layers[5].recompute = RecomputeKind::selective;
  const Exported mixed = export_megatron(both);
  check_tells(mixed, "full (layers 0 and 4)");
  CHECK(has_line(mixed.text, "--recompute-num-layers 2"));
}

TEST_CASE("Megatron-LM: what differs from layer to layer is told and stands in the file") {
  Plan plan = plan_of({.data = 8, .zero = 1}, {8});
  for (std::size_t i = 2; i < 5; ++i)
    plan.layers[i] = {.tensor = 2, .data = 4, .zero = 3, .recompute = RecomputeKind::none};
  plan.layers[7].zero = 2;
  plan.head = {.tensor = 8};
  const Exported out = export_megatron(plan);
  CHECK(told(out.not_expressed, "dp8 (layers 0-1 and 5-7), tp2 dp4 (layers 2-4)") == 1);
  CHECK(told(out.not_expressed, "ZeRO 1 (layers 0-1 and 5-6), ZeRO 3 (layers 2-4), ZeRO 2 (layer 7)") == 1);
  CHECK(told(out.not_expressed, "the embedding has a strategy of its own, dp8 zero1") == 1);
  CHECK(told(out.not_expressed, "the head has a strategy of its own, tp8") == 1);
  CHECK(out.not_expressed.size() == 4);
  CHECK(has_line(out.text, "--tensor-model-parallel-size 1"));
  CHECK(has_line(out.text, "--data-parallel-sharding-strategy optim_grads_params"));
  for (const std::string& sentence : out.not_expressed) CHECK(has_line(out.text, "#   - " + sentence + "."));
}

TEST_CASE("Megatron-LM: strided tensor ranks are told") {
  Plan plan = plan_of({.tensor = 2, .data = 4});
  plan.layers[3].strided = plan.layers[4].strided = true;
  const Exported exported = export_megatron(plan);
  check_tells(exported, "layers 3-4: tensor-parallel ranks lie around data-parallel ones");
  CHECK(has_line(exported.text, "--tensor-model-parallel-size 2"));
  plan = plan_of({.tensor = 2, .data = 4});
  plan.head.strided = true;
  check_tells(export_megatron(plan), "the head has a strategy of its own, tp2 strided dp4");
}

TEST_CASE("Megatron-LM: experts, and names that are not harmless") {
  Plan plan = plan_of({.data = 8, .expert = 4});
  plan.embedding.expert = plan.head.expert = 1;
  plan.model = "x\n)\nrm -rf /";
  const Exported out = export_megatron(plan);
  check_whole(out);
  CHECK(has_line(out.text, "--expert-model-parallel-size 4"));
  CHECK(!has(out.text, "\nrm"));
}
