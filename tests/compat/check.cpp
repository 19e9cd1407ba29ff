// Configurations of other trainers: words of scripts, and the jobs that settings are.
#include <galvatron/compat/check/check.hpp>

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/compat/check/accelerate.hpp>
#include <galvatron/compat/check/deepspeed.hpp>
#include <galvatron/compat/check/megatron.hpp>
#include <galvatron/compat/check/torchtitan.hpp>
#include <galvatron/compat/export/megatron.hpp>
#include <galvatron/model/zoo.hpp>

#include "../folder.hpp"
#include "export_plans.hpp"

using namespace galvatron;
using testing::told;

namespace {

std::string config(const std::string& name) {
  std::ifstream file(std::string(test::tests_dir) + "/compat/configs/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> words(const std::string& script) {
  std::vector<std::string> out;
  for (const ScriptOption& option : script_options(script)) {
    out.push_back(option.name);
    out.insert(out.end(), option.values.begin(), option.values.end());
  }
  return out;
}
using Words = std::vector<std::string>;

nlohmann::json json_of(const std::string& text) { return value_or_throw(parse_json(text, "test")); }

}  // namespace

TEST_CASE("options of scripts are found behind variables, arrays, quotes and continued lines") {
  CHECK(words("run --a 1 --b=2 # --c 3") == Words{"--a", "1", "--b", "2"});
  CHECK(words("N=4\nM=$((N * 2 + 1))\nrun --a $M --b ${N} --c ${K:-7}") == Words{"--a", "9", "--b", "4", "--c", "7"});
  CHECK(words("A=(--a 1\n  --b \"x y\" # no\n)\nA+=(--c)\nrun ${A[@]} --d") ==
        Words{"--a", "1", "--b", "x y", "--c", "--d"});
  CHECK(words("O=\" \\\n --a 1 \\\n --b \"\nrun $O \\\n --c '2 3'") == Words{"--a", "1", "--b", "--c", "2 3"});
  CHECK(words("C=\"run --a 1\"\nsrun bash -c \"$C --b 2\"") == Words{"--a", "1", "--b", "2"});
  CHECK(words("X=(--a 1 --b)") == Words{"--a", "1", "--b"});  // no command: the arguments themselves
  CHECK(words("run --a $UNKNOWN --b $(date +%s)") == Words{"--a", "$UNKNOWN", "--b", "$(date +%s)"});
  CHECK(words("D=()\nif [[ x == x ]]; then\n D+=(\"--a b c\")\nfi\nrun ${D[@]}") == Words{"--a", "b", "c"});
}

TEST_CASE("the script of BLOOM-176B is the job that its paper describes") {
  const TrainerJob job = value_or_throw(megatron_job(config("bloom_176b.slurm")));
  CHECK(job.trainer.name == "megatron-deepspeed");
  CHECK(job.tensor == 4);
  CHECK(job.pipeline == 12);
  CHECK(job.zero == 1);  // of DeepSpeed's BF16_Optimizer
  CHECK(job.recompute == RecomputeKind::full);
  CHECK(job.devices == 0);  // the scheduler knows
  CHECK(job.trainer.traits.gradient_bytes == 4);
  REQUIRE(job.model);
  CHECK(job.model->blocks.size() == 70);
  CHECK(job.model->head.vocabulary == 250880);
  CHECK(job.unknown ==
        std::vector<std::string>{"--abort-on-unmet-fused-kernel-constraints", "--deepspeed-activation-checkpointing"});
  const Plan plan = value_or_throw(plan_of_job(job, *job.model, 384));
  CHECK(plan.layers.front().data == 8);
  CHECK(plan.microbatches == 128);
}

TEST_CASE("first and last stages of Megatron-LM may have lengths of their own") {
  const std::string base =
      "run --num-layers 30 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --bf16 "
      "--pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 16 ";
  const std::string lengths = "--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 8 ";
  const TrainerJob job = value_or_throw(megatron_job(base + lengths));
  CHECK(job.unknown.empty());
  const Plan plan = value_or_throw(plan_of_job(job, *job.model, 4));
  std::vector<int> sizes;
  for (const PlanStage& stage : plan.stages) sizes.push_back(stage.last_layer - stage.first_layer + 1);
  CHECK(sizes == std::vector{6, 8, 8, 8});
  // What the plan is told as, is what was read.
  const auto settings = settings_of(plan, ConfigKind::megatron);
  CHECK(std::ranges::count(settings, Setting{"--decoder-first-pipeline-num-layers", "6"}) == 1);
  // The stages of 8 layers set the pace: equal ones of 7 or 8 do too, and 5 in the first make others longer.
  const Cluster cluster = value_or_throw(find_cluster("4xa100-80g"));
  const auto seconds = [&](const std::string& more) {
    const TrainerJob other = value_or_throw(megatron_job(base + more));
    const Plan its = value_or_throw(plan_of_job(other, *other.model, 4));
    return value_or_throw(cost_of(its, *other.model, cluster)).iteration.value;
  };
  CHECK(seconds("--decoder-first-pipeline-num-layers 3 ") > 1.05 * seconds(lengths));
  const auto refused =
      plan_of_job(value_or_throw(megatron_job(base + "--decoder-first-pipeline-num-layers 7 ")), *job.model, 4);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("leave 23 of 30 layers") != std::string::npos);
  // Virtual stages share what their stage has.
  const TrainerJob interleaved =
      value_or_throw(megatron_job(base + lengths + "--num-virtual-stages-per-pipeline-rank 2 "));
  CHECK(interleaved.assumed == job.assumed);
  const Plan chunks = value_or_throw(plan_of_job(interleaved, *interleaved.model, 4));
  std::vector<int> in_order;
  for (int i = 0; i < 8; ++i)
    in_order.push_back(virtual_stage_layers(chunks, i).last - virtual_stage_layers(chunks, i).first + 1);
  CHECK(in_order == std::vector{3, 4, 4, 4, 3, 4, 4, 4});
  CHECK(std::ranges::count(settings_of(chunks, ConfigKind::megatron),
                           Setting{"--pipeline-model-parallel-layout", "'Et*3|t*4|t*4|t*4|t*3|t*4|t*4|t*4L'"}) == 1);
}

TEST_CASE("the embedding and the head of Megatron-LM may count as layers") {
  // As Llama 3 405B is cut (arXiv 2407.21783, section 3.3.2), with fewer layers.
  const std::string base =
      "run --num-layers 14 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --bf16 "
      "--pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 16 ";
  const std::string ends = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split ";
  for (const char* virtual_stages :
       {"--num-virtual-stages-per-pipeline-rank 4 ", "--num-layers-per-virtual-pipeline-stage 1 "}) {
    const TrainerJob job = value_or_throw(megatron_job(base + ends + virtual_stages));
    CHECK(job.unknown.empty());
    const Plan plan = value_or_throw(plan_of_job(job, *job.model, 4));
    CHECK(plan.virtual_stages == 4);
    CHECK(plan.stages[0].chunk_layers == std::vector{0, 1, 1, 1});
    CHECK(plan.stages[1].chunk_layers == std::vector{1, 1, 1, 1});
    CHECK(plan.stages[3].chunk_layers == std::vector{1, 1, 1, 0});
    const auto settings = settings_of(plan, ConfigKind::megatron);
    for (const char* name : {"--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"})
      CHECK(std::ranges::count(settings, Setting{name, ""}) == 1);
    CHECK(std::ranges::count(settings, Setting{"--num-virtual-stages-per-pipeline-rank", "4"}) == 1);
    CHECK(cost_of(plan, *job.model, value_or_throw(find_cluster("4xa100-80g"))));
  }
  const TrainerJob plain = value_or_throw(megatron_job(base + ends));
  CHECK(value_or_throw(plan_of_job(plain, *plain.model, 4)).stages[0].last_layer == 2);
  const TrainerJob one = value_or_throw(
      megatron_job(base + "--account-for-loss-in-pipeline-split --num-virtual-stages-per-pipeline-rank 4 "));
  CHECK(plan_of_job(one, *one.model, 4).error().message.find("there are 15") != std::string::npos);
  CHECK_FALSE(megatron_job(base + ends + "--decoder-first-pipeline-num-layers 2 "));
}

TEST_CASE("what is exported to Megatron-LM is read back, with its context ranks and tensor ranks that cut sequences") {
  const ModelSpec model = value_or_throw(find_model("llama2-7b"));
  const auto read = [&](const std::string& arguments) {
    return value_or_throw(
        megatron_job(arguments + "\nrun ${PLAN_ARGS[@]} --hidden-size 4096 --num-attention-heads 32"));
  };
  for (const StrategySpec& spec :
       {StrategySpec{.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .data = 2, .zero = 1},
        StrategySpec{.tensor = 2, .sequence = SequenceKind::megatron, .context = 2, .data = 2, .zero = 1},
        StrategySpec{.tensor = 2, .sequence = SequenceKind::ulysses, .context = 2, .data = 2, .zero = 1},
        StrategySpec{.tensor = 2, .sequence = SequenceKind::ring, .context = 2, .data = 2, .zero = 1},
        StrategySpec{.sequence = SequenceKind::ulysses, .context = 2, .data = 4, .zero = 1},
        StrategySpec{.tensor = 2, .sequence = SequenceKind::megatron, .data = 4, .zero = 1}}) {
    Plan plan = testing::plan_of(spec, std::vector<int>(1, 32));
    const TrainerJob job = read(export_megatron(plan).text);
    const Plan back = value_or_throw(plan_of_job(job, model, 8));
    CHECK(back.layers == plan.layers);
    CHECK(job.unknown.empty());
    CHECK(told(job.assumed, "cp-comm-type") == 0);
    CHECK(changes_between(plan, back, ConfigKind::megatron).empty());
    CHECK(cost_of(back, model, value_or_throw(find_cluster("8xh100-80g"))));
    if (spec.context == 1) continue;
    StrategySpec other = spec;
    other.sequence = spec.exchanges_heads() ? SequenceKind::ring : SequenceKind::ulysses;
    const Plan changed = testing::plan_of(other.with_cut(spec.cuts_over_tensor()), std::vector<int>(1, 32));
    CHECK(changes_between(plan, changed, ConfigKind::megatron).size() == 1);
  }
  const std::string base = "PLAN_ARGS=(--num-layers 32 --seq-length 2048 --bf16 --context-parallel-size 2 ";
  CHECK(told(read(base + "--cp-comm-type allgather)").assumed, "allgather is priced as p2p") == 1);
  CHECK(told(read(base + "--cp-comm-type a2a+p2p)").assumed, "a2a+p2p is priced as a2a") == 1);
  CHECK(told(read(base + "--cp-comm-type p2p a2a)").assumed, "differs from layer to layer") == 1);
}

TEST_CASE("arguments of Megatron-LM change what its runtime overlaps and keeps") {
  const std::string base = "run --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 ";
  const auto job = [&](const std::string& more) { return value_or_throw(megatron_job(base + more)); };
  CHECK(job("--bf16 --use-megatron-fsdp").zero == 3);  // since core 0.18
  CHECK(job("--bf16 --use-megatron-fsdp").assumed.size() == job("--bf16").assumed.size() + 1);
  CHECK(job("--bf16 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads").zero == 2);
  CHECK(job("--bf16 --use-custom-fsdp").zero == 0);
  CHECK(job("--bf16").trainer.traits.tensor_pieces == 0);
  CHECK(job("--bf16 --tp-comm-overlap").trainer.traits.tensor_pieces == 4);
  CHECK_FALSE(job("--bf16").trainer.traits.overlaps_gradients);
  CHECK(job("--bf16 --overlap-grad-reduce").trainer.traits.overlaps_gradients);
  CHECK(job("--bf16 --grad-reduce-in-bf16").trainer.traits.message_bytes == 2);
  CHECK(job("--fp16").trainer.traits.gradient_bytes == 2);
  CHECK(job("").precision == Precision::fp32);
  CHECK(job("--bf16 --fp8-format hybrid").precision == Precision::fp8);
  // megatron/training/arguments.py: --fp8-recipe is tensorwise, delayed, mxfp8 or blockwise; delayed where not given.
  CHECK(job("--bf16 --fp8-format hybrid").trainer.traits.fp8_recipe == Fp8Recipe::delayed);
  for (const Fp8Recipe recipe : {Fp8Recipe::tensorwise, Fp8Recipe::delayed, Fp8Recipe::blockwise, Fp8Recipe::mxfp8}) {
    const TrainerJob by = job(std::string("--bf16 --fp8-format hybrid --fp8-recipe ") + name_of(recipe));
    CHECK(by.trainer.traits.fp8_recipe == recipe);
    CHECK(told(by.assumed, "recipe") == 0);
    CHECK(by.unknown.empty());
  }
  CHECK(told(job("--bf16 --fp8-format hybrid --fp8-recipe custom").assumed, "recipe custom is priced as") == 1);
  CHECK(job("--bf16 --fp8-recipe mxfp8").trainer.traits.fp8_recipe == Fp8Recipe::tensorwise);  // of no 8-bit products
  CHECK(job("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1").virtual_stages == 2);
  const TrainerJob block = job("--recompute-granularity full --recompute-method block --recompute-num-layers 1");
  const Plan plan = value_or_throw(plan_of_job(block, *block.model, 1));
  CHECK(plan.layers[0].recompute == RecomputeKind::full);
  CHECK(plan.layers[1].recompute == RecomputeKind::none);
  // An MLP of two matrices, as Nemotron-4's.
  const TrainerJob squared =
      job("--squared-relu --position-embedding-type rope --num-query-groups 2 "
          "--group-query-attention --ffn-hidden-size 256 --untie-embeddings-and-output-weights");
  REQUIRE(squared.model);
  CHECK(squared.model->blocks[0].activation == ActivationKind::squared_relu);
  CHECK(squared.model->blocks[0].ffn == 256);
  CHECK(squared.model->blocks[0].ffn_inputs() == 256);
  CHECK(squared.assumed == job("--swiglu").assumed);
  CHECK(job("").model->blocks[0].activation == ActivationKind::gelu);
  const auto windows = [&](const std::string& arguments) {
    std::vector<std::int64_t> out;
    const TrainerJob read = job(arguments);
    for (const LayerSpec& b : read.model->blocks) out.push_back(b.sliding_window);
    return out;
  };
  CHECK(windows("--window-size 127,0") == std::vector<std::int64_t>(windows("").size(), 128));
  CHECK(windows("--window-size (127,0) --window-attn-skip-freq 2")[0] == 128);
  CHECK(windows("--window-size (127,0) --window-attn-skip-freq 2")[1] == 0);
  CHECK(windows("--window-size -1,0") == windows(""));
  CHECK(job("--window-size 127,0 --window-attn-skip-freq [1,0]*2").assumed.size() == job("").assumed.size() + 1);
  CHECK(job("--what-is-this 3").unknown == std::vector<std::string>{"--what-is-this"});
  CHECK_FALSE(megatron_job("ls -l"));
  CHECK_FALSE(megatron_job(base + "--micro-batch-size $SIZE"));
}

TEST_CASE("settings of torchtitan, DeepSpeed and Accelerate are read by their names") {
  const TrainerJob titan = value_or_throw(torchtitan_job(json_of(R"({"model": {"name": "llama3", "flavor": "8B"},
                  "training": {"local_batch_size": 2, "seq_len": 8192, "steps": 5},
                  "parallelism": {"data_parallel_shard_degree": -1, "tensor_parallel_degree": 2, "typo_degree": 3},
                  "activation_checkpoint": {"mode": "full"}, "compile": {"enable": true}})"),
                                                         16));
  CHECK(titan.tensor == 2);
  CHECK(titan.zero == 3);
  CHECK(titan.sequence_parallel);
  CHECK(titan.devices == 16);
  CHECK(titan.unknown == std::vector<std::string>{"parallelism.typo_degree"});
  REQUIRE(titan.model);
  const auto with = [](const char* converters, const char* quantize) {
    return value_or_throw(
        torchtitan_job(json_of(std::string(R"({"model": {"name": "llama3", "flavor": "8B", )") + R"("converters": [")" +
                               converters + R"("]}, "quantize": {"linear": )" + quantize + "}}"),
                       8));
  };
  const TrainerJob rows = with("quantize.linear.float8", R"({"float8": {"recipe_name": "rowwise"}})");
  CHECK(rows.precision == Precision::fp8);
  CHECK(rows.trainer.traits.fp8_recipe == Fp8Recipe::rowwise);
  CHECK(told(rows.assumed, "recipe") == 0);
  const TrainerJob precise = with("quantize.linear.float8", R"({"float8": {"recipe_name": "rowwise_with_gw_hp"}})");
  CHECK(told(precise.assumed, "rowwise_with_gw_hp") == 1);
  const TrainerJob mx = with("quantize.linear.mx", R"({"mx": {"recipe_name": "mxfp8_cublas"}})");
  CHECK(mx.precision == Precision::fp8);
  CHECK(mx.trainer.traits.fp8_recipe == Fp8Recipe::mxfp8);
  CHECK(mx.unknown.empty());
  CHECK(with("quantize.linear.float8", "{}").trainer.traits.fp8_recipe == Fp8Recipe::tensorwise);

  const TrainerJob deepspeed = value_or_throw(deepspeed_job(json_of(config("deepspeed_zero2_offload.json"))));
  CHECK(deepspeed.zero == 2);
  CHECK(deepspeed.precision == Precision::bf16);
  REQUIRE(deepspeed.unknown.size() == 1);
  CHECK(deepspeed.unknown.front().starts_with("zero_optimization.offload_optimizer"));

  const TrainerJob fsdp = value_or_throw(
      accelerate_job(json_of(R"({"num_processes": 8, "mixed_precision": "bf16", "per_device_train_batch_size": 2,
                  "gradient_accumulation_steps": 4, "gradient_checkpointing": true, "lora_r": 16,
                  "fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}})")));
  CHECK(fsdp.zero == 2);
  CHECK(fsdp.samples == 2);
  CHECK(fsdp.accumulation == 4);
  CHECK(fsdp.recompute == RecomputeKind::full);
  CHECK(fsdp.unknown == std::vector<std::string>{"lora_r"});
  CHECK_FALSE(accelerate_job(json_of(R"({"gradient_accumulation_steps": "many"})")));
}

TEST_CASE("a job is priced, and the best plan of its trainer is a change of a few settings") {
  const ModelSpec model = value_or_throw(find_model("llama2-7b"));
  TrainerJob job = value_or_throw(megatron_job(
      "run --num-layers 32 --micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --bf16 "
      "--tensor-model-parallel-size 8 --sequence-parallel --recompute-granularity full --recompute-method uniform"));
  const Cluster cluster = value_or_throw(find_cluster("8xh100-80g"));
  const CheckReport report = value_or_throw(check_job(job, model, cluster));
  CHECK(report.fits());
  CHECK(report.reserve.count > 0);
  CHECK(report.job.interval.low < report.job.cost.iteration);
  CHECK(report.job.interval.high > report.job.cost.iteration);
  REQUIRE(report.best);
  CHECK(report.best->cost.iteration < report.job.cost.iteration);
  CHECK(report.best->cost.peak() + report.reserve <= cluster.device.memory);
  CHECK_FALSE(report.changes.empty());
  for (const StrategySpec& spec : report.best->plan.layers) CHECK(spec == report.best->plan.layers.front());
  // The best plan, checked as a job, is what it was.
  CHECK(changes_between(report.best->plan, report.best->plan, job.kind).empty());
  job.samples = 64;
  job.recompute = RecomputeKind::none;
  const CheckReport large = value_or_throw(check_job(job, model, cluster));
  CHECK_FALSE(large.fits());
  REQUIRE(large.best);
  CHECK(large.best->cost.peak() <= large.budget);
}
