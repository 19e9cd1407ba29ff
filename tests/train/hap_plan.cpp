// Programs with uneven shards train as one rank does.
// labels: tsan
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include <galvatron/plan/hap_plan.hpp>

#include "check_plan.hpp"
#include "random_plan.hpp"
#include "toy_mixed.hpp"

namespace {

using namespace toy;

}  // namespace

TEST_CASE("programs of HAP for unequal devices train as one rank does, and use the memory that was predicted") {
  constexpr int steps = 3;
  const RandomPlanBudget budget(3);
  std::mt19937 random(budget.seed);
  const std::vector<ModelSpec> models{model(false, 3), model(true, 3), bert(2), experts(2)};
  std::vector<std::optional<Outcome>> references(models.size());
  int done = 0;
  std::array<int, 4> spreads{};
  const auto begin = std::chrono::steady_clock::now();
  while (budget.goes_on(done, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count())) {
    const std::size_t chosen = random() % models.size();
    const ModelSpec& model = models[chosen];
    const MixedCluster cluster = value_or_throw(mixed_preset(
        one_of(random, std::array{"1xv100-32g+1xp100-16g", "1xv100-32g+2xp100-16g", "2xa100-40g+2xt4-16g"})));
    hap::Devices devices = hap::devices_of(cluster);
    for (double& speed : devices.flops) speed *= 1 + static_cast<double>(random() % 4);
    // Any of the strategies is the fastest for some links.
    for (double& rate : devices.bandwidth)
      rate = 1e6 * std::exp2(std::uniform_real_distribution<double>(0, 20)(random));
    for (double& seconds : devices.latency) seconds = 0;
    const hap::Graph graph = hap::graph_of(model, global_batch, sequence);
    const hap::Prices prices(graph, devices, hap::Dialect::paper);
    const auto found = hap_plan(prices, model, cluster, global_batch, sequence);
    REQUIRE(found.has_value());
    INFO("GALVATRON_RANDOM_SEED=" << budget.seed << ", plan " << done << " of " << model.name << ": "
                                  << text(found->plan));
    for (const hap::Spread spread : found->program.spreads) ++spreads[static_cast<std::size_t>(spread)];
    if (!references[chosen]) references[chosen] = run(single_rank(model), model, steps);
    const Outcome outcome = run(found->plan, model, steps);
    CHECK(difference(outcome.losses, references[chosen]->losses) < 1e-5);
    CHECK(difference(outcome.gradients, references[chosen]->gradients) < 1e-5);
    CHECK(outcome.copies_agree);
    CHECK(outcome.memory_as_planned);
    ++done;
  }
  MESSAGE("seed " << budget.seed << ", " << done << " programs; layers with samples sharded " << spreads[0]
                  << ", tensor parallel " << spreads[1] << ", and sequence parallel " << spreads[2]
                  << ", with experts on devices of their own " << spreads[3]);
}
