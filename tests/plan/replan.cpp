// Re-planning by measured speeds: the shares are the best of all, the layers of stages too.
#include <galvatron/plan/replan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/plan_for_devices.hpp>
#include <galvatron/plan/uniform.hpp>
#include <galvatron/strategy/compose.hpp>

#include "found.hpp"

using namespace galvatron;

namespace {

ModelSpec replanned_model() { return find_model("gpt2-tiny").value(); }

Plan planned(const ModelSpec& model, int stages, const StrategySpec& spec, std::int64_t batch, int microbatches) {
  Plan plan;
  plan.model = model.name;
  plan.cluster = "host";
  plan.global_batch = batch;
  plan.sequence_length = 64;
  plan.microbatches = microbatches;
  plan.stages = even_stages(static_cast<int>(model.blocks.size()), stages, 1, spec.ranks());
  plan.layers.assign(model.blocks.size(), spec);
  plan.embedding = plan.head = spec;
  REQUIRE(why_inconsistent(plan) == "");
  REQUIRE(why_unfit(plan, model) == "");
  return plan;
}

/// The least time of the slowest of all ways to share samples out.
double least_slowest(const std::vector<double>& seconds, std::int64_t samples, std::size_t from = 0, double most = 0) {
  if (from + 1 == seconds.size()) return std::max(most, static_cast<double>(samples) * seconds[from]);
  double best = 1e300;
  for (std::int64_t own = 0; own <= samples; ++own)
    best = std::min(best, least_slowest(seconds, samples - own, from + 1,
                                        std::max(most, static_cast<double>(own) * seconds[from])));
  return best;
}

}  // namespace

TEST_CASE("samples are shared out as well as can be") {
  const ModelSpec model = replanned_model();
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    const int ranks = 2 + static_cast<int>(random() % 3);
    const std::int64_t batch = ranks * (1 + static_cast<int>(random() % 6));
    const Plan plan = planned(model, 1, {.data = ranks}, batch, 1);
    std::vector<RankSeconds> measured;
    std::vector<double> of_sample;
    for (int r = 0; r < ranks; ++r) {
      of_sample.push_back(0.01 * (1 + static_cast<double>(random() % 50)));
      measured.push_back({of_sample.back() * static_cast<double>(batch / ranks), 0.003});
    }
    const double step = 0.1 + std::ranges::max(measured, {}, &RankSeconds::passes).passes;
    const auto better = replan(plan, plan, model, measured, step);
    const double best = least_slowest(of_sample, batch);
    const double before = std::ranges::max(of_sample) * static_cast<double>(batch / ranks);
    if (!better) {
      CHECK(best == doctest::Approx(before));
      continue;
    }
    REQUIRE(why_inconsistent(better->plan) == "");
    CHECK(better->iteration == doctest::Approx(step - before + best));
    // Measured again under the new plan, nothing is left to be gained.
    std::vector<RankSeconds> again;
    const auto& ratios = better->plan.stages.front().sample_ratios;
    for (int r = 0; r < ranks; ++r) {
      const double share = ratios.empty() ? static_cast<double>(batch / ranks) : ratios[static_cast<std::size_t>(r)];
      again.push_back({of_sample[static_cast<std::size_t>(r)] * share, 0.003});
    }
    if (std::ranges::all_of(again, [](const RankSeconds& r) { return r.passes > 0; }))
      CHECK(!replan(plan, better->plan, model, again, better->iteration));
  }
}

TEST_CASE("tensor ranks share samples, and the slowest of them counts") {
  const ModelSpec model = replanned_model();
  const Plan plan = planned(model, 1, {.tensor = 2, .data = 2}, 16, 2);
  const std::vector<RankSeconds> measured{{0.1, 0}, {0.1, 0}, {0.1, 0}, {0.3, 0}};
  const auto better = replan(plan, plan, model, measured, 0.3);
  REQUIRE(better);
  CHECK(better->plan.stages.front().sample_ratios == std::vector<int>{6, 6, 2, 2});
  CHECK(better->plan.layers.front().shard_kind == ShardKind::by_ratio);
  CHECK(better->rank == 2);
  // Equally fast again: what was planned.
  const std::vector<RankSeconds> equal{{0.15, 0}, {0.15, 0}, {0.05, 0}, {0.05, 0}};
  const auto back = replan(plan, better->plan, model, equal, 0.15);
  REQUIRE(back);
  CHECK(back->plan.stages.front().sample_ratios.empty());
  CHECK(back->plan == plan);
}

TEST_CASE("a slow pipeline stage gives layers away") {
  const ModelSpec model = replanned_model();  // 4 layers
  const Plan plan = planned(model, 2, {}, 8, 8);
  const std::vector<RankSeconds> measured{{0.4, 0.001}, {0.1, 0.001}};
  const auto better = replan(plan, plan, model, measured, 0.5);
  REQUIRE(better);
  CHECK(better->plan.stages.front().last_layer == 0);
  CHECK(better->iteration < 0.4);
  CHECK(better->rank == 0);
}

TEST_CASE("memory bounds what a rank is given") {
  const ModelSpec model = replanned_model();
  const Plan plan = planned(model, 1, {.data = 2}, 16, 1);
  const std::vector<RankSeconds> measured{{0.1, 0}, {0.7, 0}};
  const auto samples = [](const Plan& p, std::size_t rank) {
    return p.stages.front().sample_ratios.empty() ? 8 : p.stages.front().sample_ratios[rank];
  };
  const auto bounded = replan(plan, plan, model, measured, 0.7, [&](const Plan& p) { return samples(p, 0) <= 11; });
  REQUIRE(bounded);
  CHECK(samples(bounded->plan, 0) <= 11);
  CHECK(samples(bounded->plan, 0) >= 9);
  CHECK(!replan(plan, plan, model, measured, 0.7, [](const Plan&) { return false; }));
}

TEST_CASE("documents stay where they are") {
  const ModelSpec model = replanned_model();
  Plan plan = planned(model, 1, {.data = 2}, 16, 1);
  plan.packed = true;
  const std::vector<RankSeconds> measured{{0.1, 0}, {0.7, 0}};
  CHECK(!replan(plan, plan, model, measured, 0.7));
  CHECK(!why_not_replanned(plan).empty());
}

TEST_CASE("every number of devices has a plan") {
  const ModelSpec model = replanned_model();
  Plan plan = planned(model, 1, {.data = 4}, 16, 1);
  for (int devices = 1; devices <= 7; ++devices) {
    CAPTURE(devices);
    Cluster cluster = find_cluster("8xa100-80g").value();
    cluster.devices = cluster.devices_per_node = devices;
    const auto found = plan_for_devices(plan, model, cluster);
    REQUIRE(found);
    CHECK(found->ranks() == devices);
    CHECK(found->global_batch == plan.global_batch);
    CHECK(found->precision == plan.precision);
    CHECK(why_inconsistent(*found) == "");
    CHECK(!found->mixes_groups());
  }
}
