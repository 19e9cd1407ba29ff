#include <galvatron/compat/export/hetu.hpp>
#include <galvatron/compat/hetu/cost.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "export_plans.hpp"

using namespace galvatron;
using namespace galvatron::testing;
using nlohmann::json;

namespace {

std::vector<int> numbers(const json& list) {
  std::vector<int> out;
  std::istringstream text(list.get<std::string>());
  for (std::string item; std::getline(text, item, ',');) out.push_back(std::stoi(item));
  return out;
}

// What the trainer of Hetu-Galvatron makes of a plan file: data ranks are those that are left over, a layer is
// Megatron's tensor parallelism or Ulysses, and shards as its dp type or the default says.
struct HetuLayer {
  int tensor, ulysses, ring, data, zero;
  bool recompute;
};
struct HetuPlan {
  std::vector<HetuLayer> layers;
  HetuLayer ends;
  std::vector<int> division;
  bool whole = true;  // the trainer counts as many data ranks as the layer with most has
};

HetuPlan read(const std::string& text) {
  const json file = json::parse(text);
  const auto tp = numbers(file.at("tp_sizes_enc"));
  const auto sp = numbers(file.at("use_sp"));
  const auto dp = numbers(file.at("dp_types_enc"));
  const auto checkpoint = numbers(file.at("checkpoint"));
  const std::vector<int> cp =
      file.contains("cp_sizes_enc") ? numbers(file["cp_sizes_enc"]) : std::vector<int>(tp.size(), 1);
  const int ranks = file.at("world_size").get<int>() / file.at("pp_deg").get<int>();
  const int otherwise = file.at("default_dp_type") == "ddp" ? 0 : 2;
  const auto layer = [&](int width, bool ulysses, int ring, bool zero3, bool again) {
    const int data = ranks / width / ring;
    return HetuLayer{
        ulysses ? 1 : width, ulysses ? width : 1, ring, data, data == 1 ? 0 : zero3 ? 3 : otherwise, again};
  };
  HetuPlan out{{}, {}, numbers(file.at("pp_division"))};
  for (std::size_t i = 0; i < tp.size(); ++i)
    out.layers.push_back(layer(tp[i], sp[i] == 1, cp[i], dp[i] == 1, checkpoint[i] == 1));
  out.ends =
      layer(file.at("vtp").get<int>(), file.at("vsp") == 1, file.value("vcp", 1), file.at("vocab_sdp") == 1, false);
  CHECK(file.at("embed_sdp") == file.at("vocab_sdp"));
  CHECK(numbers(file.at("tp_consecutive_flags")) == std::vector<int>(tp.size(), 1));
  int width = file.at("vtp").get<int>();
  int ring = file.value("vcp", 1);
  int most = out.ends.data;
  for (std::size_t i = 0; i < tp.size(); ++i) {
    width = std::min(width, tp[i]);
    ring = std::min(ring, cp[i]);
    most = std::max(most, out.layers[i].data);
  }
  out.whole = ranks / width / ring == most;
  return out;
}

bool same(const StrategySpec& spec, const HetuLayer& layer) {
  return spec.tensor == layer.tensor && (spec.sequence == SequenceKind::ulysses ? spec.context : 1) == layer.ulysses &&
         (spec.uses_ring() ? spec.context : 1) == layer.ring && spec.data == layer.data && spec.zero == layer.zero;
}

}  // namespace

TEST_CASE("Hetu-Galvatron: every layer has its own strategy") {
  Plan plan = plan_of({.data = 4, .zero = 2}, {3, 5});
  plan.layers[0] = {
      .tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 3, .recompute = RecomputeKind::none};
  plan.layers[1] = {.sequence = SequenceKind::ulysses, .context = 4, .recompute = RecomputeKind::none};
  plan.layers[2] = {.tensor = 4, .sequence = SequenceKind::megatron, .recompute = RecomputeKind::full};
  plan.embedding = plan.head = {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 3};
  const Exported out = export_hetu(plan);
  check_whole(out);
  const json file = json::parse(out.text);
  CHECK(file["pp_deg"] == 2);
  CHECK(file["tp_sizes_enc"] == "2,4,4,1,1,1,1,1");
  CHECK(file["use_sp"] == "0,1,0,0,0,0,0,0");
  CHECK(file["dp_types_enc"] == "1,0,0,0,0,0,0,0");
  CHECK(file["checkpoint"] == "0,0,1,0,0,0,0,0");
  CHECK(file["world_size"] == 8);
  CHECK(file["global_bsz"] == 64);
  CHECK(file["chunks"] == 8);
  CHECK(file["pp_division"] == "3,5");
  CHECK(file["pipeline_type"] == "pipedream_flush");
  CHECK(file["default_dp_type"] == "zero2");
  CHECK(file["vtp"] == 2);
  CHECK(file["vsp"] == 0);
  CHECK(file["embed_sdp"] == 1);
  CHECK(!file.contains("cp_sizes_enc"));
  CHECK(!file.contains("ep_sizes_enc"));
  CHECK(told(out.set_elsewhere, "sequence_parallel is true") == 1);
  CHECK(told(out.set_elsewhere, "seq_length is 2048 and its mixed_precision bf16") == 1);
}

TEST_CASE("Hetu-Galvatron: 8-bit products are told, and bf16 written") {
  Plan plan = plan_of({.data = 8});
  plan.precision = Precision::fp8;
  plan.moments = Precision::bf16;
  const Exported out = export_hetu(plan);
  CHECK(told(out.not_expressed, "moments of the optimizer in bf16") == 1);
  CHECK(told(out.not_expressed, "8-bit products") == 1);
  CHECK(told(out.set_elsewhere, "mixed_precision bf16") == 1);
}

TEST_CASE("Hetu-Galvatron: the kind of data parallelism that is not ZeRO 3") {
  const auto kind = [](const Plan& plan) { return json::parse(export_hetu(plan).text)["default_dp_type"]; };
  CHECK(kind(plan_of({.data = 8})) == "ddp");
  CHECK(kind(plan_of({.data = 8, .zero = 2})) == "zero2");
  CHECK(kind(plan_of({.data = 8, .zero = 3})) == "zero2");
  check_whole(export_hetu(plan_of({.data = 8})));
  check_tells(export_hetu(plan_of({.data = 8, .zero = 1})), "layers 0-7 and the embedding: ZeRO 1");
  Plan mixed = plan_of({.data = 8, .zero = 2});
  mixed.layers[4].zero = 0;
  check_tells(export_hetu(mixed), "layer 4: no ZeRO");
}

TEST_CASE("Hetu-Galvatron: what it lacks is told") {
  Plan plan = plan_of({.data = 4, .zero = 2}, {4, 4});
  plan.schedule = ScheduleKind::gpipe;
  check_whole(export_hetu(plan));
  CHECK(json::parse(export_hetu(plan).text)["pipeline_type"] == "gpipe");
  plan.schedule = ScheduleKind::zb_h1;
  check_tells(export_hetu(plan), "the schedule zb-h1");
  check_tells(export_hetu(plan_of({.tensor = 2, .sequence = SequenceKind::ulysses, .context = 2, .data = 2})),
              "tensor parallelism and Ulysses together");
  const Exported both =
      export_hetu(plan_of({.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .data = 2}));
  check_tells(both, "tensor parallelism and Ulysses together");
  CHECK(told(both.set_elsewhere, "sequence_parallel is true") == 1);
  CHECK(both.job.value().layers[0].tensor == 4);
  CHECK(both.job.value().layers[0].sequence == SequenceKind::megatron);
  const Exported never = export_hetu(plan_of({.data = 8, .zero = 2, .recompute = RecomputeKind::none}));
  check_whole(never);
  Plan none = plan_of({.data = 8, .zero = 2});
  check_same_job(never, none);
  for (StrategySpec& layer : none.layers) layer.recompute = RecomputeKind::cheap;
  check_tells(export_hetu(none), "the outputs of norms and activations are recomputed in layers 0-7");
  CHECK(never.text == export_hetu(none).text);
  CHECK(export_hetu(none).job.value().layers == never.job.value().layers);
  check_tells(export_hetu(plan_of({.data = 8, .zero = 2, .recompute = RecomputeKind::selective})),
              "recomputation of the attention core");
  // States are sharded over data and Ulysses ranks, here as there.
  const Plan sharded = plan_of({.sequence = SequenceKind::ulysses, .context = 2, .data = 4, .zero = 3});
  check_whole(export_hetu(sharded));
  check_same_job(export_hetu(sharded), sharded);
  Plan ends = plan_of({.data = 8, .zero = 2});
  ends.head = {.tensor = 8};
  check_tells(export_hetu(ends), "the head has another strategy (tp8)");
  Plan halves = plan_of({.tensor = 2, .data = 4, .zero = 2});
  halves.layers[0].sequence = SequenceKind::megatron;
  check_tells(export_hetu(halves), "one switch there");
}

TEST_CASE("Hetu-Galvatron: tensor ranks in some layers and context ranks in others") {
  Plan plan = plan_of(
      {.tensor = 2, .sequence = SequenceKind::megatron, .data = 4, .zero = 2, .recompute = RecomputeKind::none});
  plan.microbatches = 16;
  REQUIRE(plan.global_batch == 64);
  check_whole(export_hetu(plan));
  plan.layers[3] = {
      .sequence = SequenceKind::ring, .context = 2, .data = 4, .zero = 2, .recompute = RecomputeKind::none};
  REQUIRE(why_inconsistent(plan) == "");
  // With tp 1 and cp 1 the trainer counts 8 data ranks of 8 samples.
  check_tells(export_hetu(plan),
              "1 and 1, as 8 where the plan has 4, and a loader that deals the batch to so many runs "
              "8 micro-batches, not 16");
  CHECK(told(export_hetu(plan).set_elsewhere, "Hetu-Galvatron 3.0 or later") == 1);
  plan.global_batch = 60;
  plan.microbatches = 15;
  check_tells(export_hetu(plan), "refuses a batch of 60, which is no multiple of it");
  for (StrategySpec& layer : plan.layers) layer = plan.layers[3];
  plan.embedding = plan.head = plan.layers[3];
  check_whole(export_hetu(plan));
}

TEST_CASE("Hetu-Galvatron: its trainer cuts a rank's samples as torch.chunk does") {
  CHECK(hetu_batches(64, 4, 8) == HetuBatches{8, 2});
  CHECK(hetu_batches(24, 2, 8) == HetuBatches{6, 2});
  CHECK(hetu_batches(72, 8, 8) == HetuBatches{5, 2});
  CHECK(hetu_batches(64, 8, 16) == HetuBatches{8, 1});
  CHECK(hetu_batches(4, 8, 1) == HetuBatches{0, 0});
  cost::hetu::Job job;
  job.devices = 8;
  job.global_batch = 24;
  cost::hetu::Plan plan;
  plan.microbatches = 4;
  plan.division = {2};
  plan.layers = {{4, 1, false, false}, {8, 1, false, false}};
  plan.ends.degree = 4;
  CHECK(why_not_run_as_priced(plan, job) == "");
  plan.microbatches = 8;
  CHECK(why_not_run_as_priced(plan, job) ==
        "a micro-batch of 3 samples is not divided evenly among 2 data ranks: Hetu-Galvatron's trainer runs 6 "
        "micro-batches of up to 2 samples a rank, and the price is that of 8 of 1");
  plan.ends.degree = 8;
  CHECK(why_not_run_as_priced(plan, job).find("2 data ranks of layer 0: Hetu-Galvatron's trainer stops") !=
        std::string::npos);
}

TEST_CASE("Hetu-Galvatron: strided tensor ranks have a flag, of the embedding not") {
  Plan plan = plan_of({.tensor = 2, .data = 4});
  plan.layers[3].strided = plan.layers[4].strided = true;
  const Exported exported = export_hetu(plan);
  check_whole(exported);
  CHECK(numbers(json::parse(exported.text).at("tp_consecutive_flags")) == std::vector{1, 1, 1, 0, 0, 1, 1, 1});
  plan.embedding.strided = plan.head.strided = true;
  check_tells(export_hetu(plan), "the embedding: tensor-parallel ranks lie around");
}

TEST_CASE("Hetu-Galvatron: experts") {
  Plan plan = plan_of({.tensor = 2, .sequence = SequenceKind::megatron, .data = 4, .zero = 2, .expert = 2});
  plan.embedding.expert = plan.head.expert = 1;
  const Exported out = export_hetu(plan);
  check_whole(out);
  CHECK(json::parse(out.text)["ep_sizes_enc"] == "2,2,2,2,2,2,2,2");
  CHECK(json::parse(out.text)["tp_of_ep_sizes_enc"] == "2,2,2,2,2,2,2,2");
}

TEST_CASE("Hetu-Galvatron: a file from which nothing is left out reads back as the plan") {
  std::mt19937 random(20240607);  // the seed
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n + 1)); };
  int whole = 0;
  for (int i = 0; i < 400; ++i) {
    CAPTURE(i);
    const int first = 1 + upto(6);
    Plan plan = plan_of({.data = 8, .zero = 2}, upto(1) == 0 ? std::vector<int>{first, 7 - first + 1} : std::vector{8});
    const bool ddp = upto(3) == 0;
    const auto strategy = [&] {
      const int split = 1 << upto(3);
      StrategySpec spec{.data = 8 / split};
      switch (upto(3)) {
        case 0:
          spec.tensor = split;
          if (split > 1) spec.sequence = SequenceKind::megatron;
          break;
        case 1:
          spec.context = split;
          if (split > 1) spec.sequence = SequenceKind::ulysses;
          break;
        case 2:
          spec.context = split;
          if (split > 1) spec.sequence = SequenceKind::ring;
          break;
        default:  // both
          spec.tensor = split > 1 ? 2 : 1;
          spec.context = split / spec.tensor;
          if (split > 1) spec.sequence = SequenceKind::megatron;
      }
      const bool plain = spec.sequence != SequenceKind::ulysses;
      if (spec.data > 1 && plain) spec.zero = upto(1) == 0 ? 3 : ddp ? 0 : 2;
      spec.recompute = upto(1) == 0 ? RecomputeKind::full : RecomputeKind::none;
      return spec;
    };
    for (StrategySpec& layer : plan.layers) layer = strategy();
    plan.embedding = strategy();
    plan.head = plan.embedding;
    REQUIRE(why_inconsistent(plan) == "");
    const Exported out = export_hetu(plan);
    const HetuPlan again = read(out.text);
    REQUIRE(again.layers.size() == plan.layers.size());
    CHECK(again.division.size() == plan.stages.size());
    for (std::size_t stage = 0; stage < plan.stages.size(); ++stage)
      CHECK(again.division[stage] == plan.stages[stage].last_layer - plan.stages[stage].first_layer + 1);
    bool all = same(plan.embedding, again.ends) && again.whole;
    for (std::size_t layer = 0; layer < plan.layers.size(); ++layer) {
      CHECK(again.layers[layer].recompute == (plan.layers[layer].recompute == RecomputeKind::full));
      all = all && same(plan.layers[layer], again.layers[layer]);
    }
    // Layers without ZeRO beside others that shard, and tensor beside context ranks, are all that the file cannot say.
    if (out.not_expressed.empty()) {
      ++whole;
      CHECK(all);
      check_same_job(out, plan);
    } else {
      CHECK(!all);
    }
  }
  CHECK(whole > 50);
  CHECK(whole < 400);
}
