// Exports of plans for models of experts: degrees of their own, and what the model adds.
#include <galvatron/compat/export/export.hpp>

#include <doctest/doctest.h>

#include <string>

#include <nlohmann/json.hpp>

#include <galvatron/model/huggingface.hpp>

#include "export_plans.hpp"

using namespace galvatron;
using namespace galvatron::testing;

namespace {

// A plan for a model of the zoo in two stages, the first a layer longer if need be; dense layers have no expert
// degrees.
Plan plan_for(const ModelSpec& model, const StrategySpec& spec, int stages = 1) {
  const int layers = static_cast<int>(model.blocks.size());
  std::vector<int> sizes{layers};
  if (stages == 2) sizes = {layers - layers / 2, layers / 2};
  Plan plan = plan_of(spec, sizes);
  plan.model = model.name;
  for (std::size_t i = 0; i < model.blocks.size(); ++i)
    if (model.blocks[i].experts == 0) plan.layers[i] = plan.layers[i].without_experts();
  plan.embedding = plan.embedding.without_experts();
  plan.head = plan.head.without_experts();
  return plan;
}

ModelSpec zoo(const char* name) { return value_or_throw(load_model(name)); }

constexpr StrategySpec folded{
    .tensor = 2, .sequence = SequenceKind::megatron, .data = 8, .zero = 2, .expert = 8, .expert_tensor = 1};

}  // namespace

TEST_CASE("Megatron-LM: experts of Mixtral, folded over tensor and data ranks") {
  const ModelSpec model = zoo("mixtral-8x7b");
  const Plan plan = plan_for(model, folded);
  const Exported out = export_megatron(plan, &model);
  check_whole(out);
  check_same_job(out, plan);
  for (const char* line :
       {"--num-experts 8", "--moe-ffn-hidden-size 14336", "--moe-router-topk 2", "--moe-router-score-function softmax",
        "--moe-router-load-balancing-type aux_loss", "--moe-grouped-gemm", "--moe-token-dispatcher-type alltoall",
        "--expert-model-parallel-size 8", "--expert-tensor-parallel-size 1", "--sequence-parallel"})
    CHECK_MESSAGE(has_line(out.text, line), std::string(line));
  for (const char* part : {"pre-softmax", "layer-freq", "shared-expert", "capacity", "z-loss", "latent", "num-groups"})
    CHECK_MESSAGE(!has(out.text, part), std::string(part));
}

TEST_CASE("Megatron-LM: experts of DeepSeek-V3") {
  const ModelSpec model = zoo("deepseek-v3");
  const Plan plan = plan_for(model, folded);
  const Exported out = export_megatron(plan, &model);
  check_whole(out);  // the dense layers have no experts to differ in
  check_same_job(out, plan);
  for (const char* line :
       {"--moe-layer-freq '[0]*3+[1]*58'", "--moe-router-topk 8", "--moe-router-score-function sigmoid",
        "--moe-router-num-groups 8", "--moe-router-group-topk 4", "--moe-router-topk-scaling-factor 2.5",
        "--moe-router-load-balancing-type seq_aux_loss", "--moe-aux-loss-coeff 1e-04",
        "--moe-router-enable-expert-bias", "--moe-router-bias-update-rate 0.001",
        "--moe-shared-expert-intermediate-size 2048", "--multi-latent-attention", "--q-lora-rank 1536",
        "--kv-lora-rank 512", "--qk-head-dim 128", "--qk-pos-emb-head-dim 64", "--v-head-dim 128"})
    CHECK_MESSAGE(has_line(out.text, line), std::string(line));
}

TEST_CASE("Megatron-LM: soft caps are what it lacks") {
  ModelSpec model = zoo("llama3-8b");
  const Plan plan = plan_for(model, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 8, .zero = 1});
  CHECK_FALSE(has(export_megatron(plan, &model).text, "soft caps"));
  model.blocks[3].score_cap = 50;
  CHECK(has(export_megatron(plan, &model).text, "soft caps"));
}

TEST_CASE("Megatron-LM: layers with a sliding window") {
  ModelSpec model = zoo("llama3-8b");
  const Plan plan = plan_for(model, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 8, .zero = 1});
  CHECK_FALSE(has(export_megatron(plan, &model).text, "window"));
  for (LayerSpec& block : model.blocks) block.sliding_window = 4096;
  CHECK(has_line(export_megatron(plan, &model).text, "--window-size 4095,0"));
  CHECK_FALSE(has(export_megatron(plan, &model).text, "skip-freq"));
  model.blocks[31].sliding_window = 0;
  const Exported out = export_megatron(plan, &model);
  check_whole(out);
  CHECK(has_line(out.text, "--window-attn-skip-freq '[1]*31+[0]'"));
  model.blocks[1].sliding_window = 512;
  CHECK(has(export_megatron(plan, &model).text, "sliding windows of several lengths"));
}

TEST_CASE("Megatron-LM: what its routers lack is told") {
  ModelSpec model = zoo("mixtral-8x7b");
  const Plan plan = plan_for(model, folded);
  const auto change = [&](const auto& f) {
    ModelSpec changed = model;
    for (LayerSpec& block : changed.blocks) f(block);
    return export_megatron(plan, &changed);
  };
  Exported out = change([](LayerSpec& b) { b.router.renormalise = false; });
  check_whole(out);
  CHECK(has_line(out.text, "--moe-router-pre-softmax"));
  check_tells(change([](LayerSpec& b) { b.active_experts = 1; }), "weight is always 1");
  check_tells(change([](LayerSpec& b) { b.router.balance_scope = BalanceScope::data_ranks; }), "all data ranks");
  out = change([](LayerSpec& b) {
    b.router.z_loss = 0.001;
    b.router.capacity = 1.25;
    b.router.drops = DropOrder::weight;
  });
  check_whole(out);
  CHECK(has_line(out.text, "--moe-z-loss-coeff 0.001"));
  CHECK(has_line(out.text, "--moe-expert-capacity-factor 1.25"));
  CHECK(has_line(out.text, "--moe-token-drop-policy probs"));
  check_tells(change([](LayerSpec& b) { b.router.capacity = 1; }), "in the order of tokens alone");
  out = change([](LayerSpec& b) { b.router.jitter = 0.125; });
  check_tells(out, "in the router's input alone");
  CHECK(has_line(out.text, "--moe-input-jitter-eps 0.125"));
  check_tells(change([](LayerSpec& b) { b.bias = true; }), "without biases");
  check_tells(change([](LayerSpec& b) {
                b.router.groups = 4;
                b.router.top_groups = 1;
              }),
              "chosen by their largest score");
  model.blocks[5].ffn /= 2;
  check_tells(export_megatron(plan, &model), "layer 5: their experts or routers are not those of layer 0");
}

TEST_CASE("Megatron-LM: layers with experts split sequences over tensor ranks") {
  const ModelSpec model = zoo("mixtral-8x7b");
  const Exported out = export_megatron(plan_for(model, {.tensor = 2, .data = 8}), &model);
  check_tells(out, "splits the sequence there in models of experts");
  CHECK(has_line(out.text, "--sequence-parallel"));
  CHECK(out.job->layers.front().sequence == SequenceKind::megatron);
  CHECK(why_not_run(out, model, ExportTarget::megatron) == "");
}

TEST_CASE("expert degrees that differ among layers with experts are told, others are not") {
  const ModelSpec model = zoo("deepseek-v2-lite");
  Plan plan = plan_for(model, {.data = 8, .zero = 2, .expert = 4});
  CHECK(told(export_megatron(plan, &model).not_expressed, "expert degrees differ") == 0);
  CHECK(told(export_megatron(plan).not_expressed, "expert degrees differ") == 1);  // layer 0 may have experts
  plan.layers[3].expert = 8;
  const Exported out = export_megatron(plan, &model);
  CHECK(told(out.not_expressed, "ep4 (layers 1-2 and 4-26), ep8 (layer 3): Megatron-LM has one set for all, and ep8") ==
        1);
  CHECK(has_line(out.text, "--expert-model-parallel-size 8"));
  CHECK(out.job->layers[0].expert == 1);
  CHECK(out.job->layers[1].expert == 8);
}

TEST_CASE("torchtitan: experts are whole, in 0.2 or cut by all tensor ranks") {
  const ModelSpec model = zoo("qwen3-30b-a3b");
  Plan plan = plan_for(model, folded);
  const auto toml = [](const Plan& p) { return export_torchtitan(p, nullptr, TorchtitanRelease::v0_2); };
  Exported out = export_torchtitan(plan, &model);
  CHECK(has_line(out.text, "  config.parallelism.expert_parallel_degree = 8"));
  CHECK(has_line(out.text, "  config.training.disable_cuda_graphs = True"));
  CHECK(has_line(toml(plan).text, "expert_tensor_parallel_degree = 1"));
  check_tells(out, "losses of the routers");
  for (StrategySpec& layer : plan.layers) layer.expert_tensor = 0;
  CHECK(has_line(toml(plan).text, "expert_tensor_parallel_degree = 2"));
  check_whole(toml(plan));
  check_tells(export_torchtitan(plan), "torchtitan has whole experts");  // from 0.3 on
  for (StrategySpec& layer : plan.layers) {
    layer.expert = 1;
    layer.expert_tensor = 1;
  }
  out = export_torchtitan(plan);
  check_tells(out, "experts whose degrees are ep1 etp1");
  CHECK(!has(out.text, "expert_parallel_degree"));
  CHECK(!out.job->layers.front().exchanges_tokens());
  out = export_torchtitan(plan_for(model, {.data = 8, .expert = 8}));
  check_tells(out, "beside expert parallelism");
  CHECK(has_line(out.text, "  config.parallelism.data_parallel_shard_degree = 8"));
}

TEST_CASE("DeepSpeed: AutoEP, layers of the program, or none") {
  const auto deepspeed = [](const StrategySpec& spec) { return value_or_throw(export_deepspeed(plan_of(spec))); };
  const auto key = [](const Exported& out) {
    const auto config = nlohmann::json::parse(out.text);
    return config.value("expert_parallel", nlohmann::json::object()).value("autoep_size", 0);
  };
  Exported out = deepspeed({.tensor = 2, .data = 4, .zero = 1, .expert = 8, .expert_tensor = 1});
  check_whole(out);
  CHECK(key(out) == 8);
  out = deepspeed({.tensor = 2, .data = 4, .zero = 1, .expert = 4});
  check_whole(out);
  CHECK(key(out) == 0);
  CHECK(told(out.set_elsewhere, "ep_size=4, enable_expert_tensor_parallelism=True") == 1);
  CHECK(out.job->layers.front().expert == 4);
  out = deepspeed({.tensor = 2, .data = 4, .zero = 3, .expert = 8, .expert_tensor = 1});
  check_tells(out, "experts whose degrees are ep8 etp1 beside tp2 with ZeRO 3");
  CHECK(out.job->layers.front().expert == 1);
  out = deepspeed({.data = 8, .zero = 3, .expert = 8});
  check_whole(out);
  CHECK(key(out) == 8);
}

TEST_CASE("Hetu-Galvatron: ranks that share an expert") {
  const ModelSpec model = zoo("mixtral-8x7b");
  const Exported out = export_hetu(plan_for(model, folded), &model);
  const auto file = nlohmann::json::parse(out.text);
  CHECK(file.at("ep_sizes_enc").get<std::string>().starts_with("8,8,"));
  CHECK(file.at("tp_of_ep_sizes_enc").get<std::string>().starts_with("1,1,"));
  CHECK(told(out.set_elsewhere, "is_moe_model") == 1);
}

TEST_CASE("what a space for one trainer has of experts, that trainer can be told") {
  const ModelSpec model = zoo("mixtral-8x7b");
  int exported = 0;
  for (const ExportTarget target : export_targets)
    for (const int tensor : {1, 2, 4})
      for (const int zero : {0, 1, 2, 3})
        for (const int expert : {1, 2, 4, 8})
          for (const int expert_tensor : {0, 1, 2})
            for (const SequenceKind sequence : {SequenceKind::none, SequenceKind::megatron, SequenceKind::ulysses})
              for (const int context : {1, 2}) {
                const StrategySpec spec{.tensor = tensor,
                                        .sequence = sequence,
                                        .context = context,
                                        .data = 8 / tensor,
                                        .zero = zero,
                                        .expert = expert,
                                        .expert_tensor = expert_tensor == tensor ? 0 : expert_tensor};
                if (!is_legal(spec)) continue;
                if (!can_give(target, spec, 1, Precision::bf16) || !can_split_layer(target, model.blocks[0], spec))
                  continue;
                CAPTURE(name_of(target));
                CAPTURE(strategy_text(spec));
                const auto out = export_plan(plan_of(spec), target);
                REQUIRE(out);
                check_whole(*out);
                ++exported;
              }
  CHECK(exported > 100);
}
