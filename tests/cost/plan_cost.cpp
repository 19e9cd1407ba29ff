#include <galvatron/cost/plan_cost.hpp>

#include <doctest/doctest.h>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/zoo.hpp>

using namespace galvatron;

namespace {

Cluster cluster_named(const char* name) { return value_or_throw(find_cluster(name)); }

}  // namespace

TEST_CASE("a layer's seconds are the sums of its work, communication a part of them") {
  const ModelSpec model = value_or_throw(find_model("llama2-7b"));
  const Cluster cluster = cluster_named("8xa100-80g");
  const cost::Batch batch{.microbatch = 8, .sequence = 2048, .precision = Precision::bf16};
  const StrategySpec spec{.tensor = 2, .sequence = SequenceKind::megatron, .data = 4, .zero = 3};
  const cost::LayerCounts counts = cost::layer_counts(model.blocks[0], spec, batch);
  const cost::LayerSeconds seconds = cost::layer_seconds(counts, batch.precision, cluster, 8);
  const int where = 8;
  CHECK(seconds.forward == cost::time_of(counts.forward, batch.precision, cluster, where));
  CHECK(seconds.backward == cost::time_of(counts.backward, batch.precision, cluster, where));
  CHECK(seconds.update == cost::time_of(counts.update, batch.precision, cluster, where));
  CHECK(seconds.forward_communication.value > 0);
  CHECK(seconds.forward_communication < seconds.forward);
  CHECK(seconds.backward_communication > seconds.forward_communication);
}

TEST_CASE("stages share cores only where there are fewer cores than ranks") {
  CHECK(!cost::stages_share_cores(cluster_named("8xa100-80g"), 4, 2));
  const Cluster narrow = host_cluster(4, 2);
  CHECK(cost::stages_share_cores(narrow, 4, 1));
  CHECK(cost::stages_share_cores(narrow, 2, 2));
  CHECK(!cost::stages_share_cores(narrow, 1, 4));
  CHECK(!cost::stages_share_cores(host_cluster(4, 8), 4, 1));
  const auto crowding = cost::stage_crowding(narrow, 4, 1);
  REQUIRE(crowding.size() == 5);
  CHECK(crowding[1] == doctest::Approx(1));
  CHECK(crowding[2] == doctest::Approx(1));
  CHECK(crowding[4] == doctest::Approx(2));
}

TEST_CASE("a stage that receives more tokens waits longer, and a move of nothing takes no time") {
  const Cluster cluster = cluster_named("8xh100-80g");
  const cost::Batch batch{.microbatch = 8, .sequence = 2048, .precision = Precision::bf16};
  const cost::MovePricer price(batch, 4096, cluster, 8);
  CHECK(price.relayout({}).value == 0);
  CHECK(price.relayout({0.5, 2}) > price.relayout({0.25, 2}));
  CHECK(price.receive({.tensor = 2, .data = 2}) > price.receive({.tensor = 1, .data = 4}));
  CHECK(price.receive({.tensor = 2, .sequence = SequenceKind::megatron, .data = 2}) ==
        price.receive({.tensor = 1, .data = 4}));
  CHECK(price.receive({.sequence = SequenceKind::ring, .context = 2, .data = 2}) == price.receive({.data = 4}));
}

TEST_CASE("a move inside a node takes its links, a move across nodes the network") {
  const cost::Batch batch{.microbatch = 8, .sequence = 2048, .precision = Precision::bf16};
  const cost::MovePricer price(batch, 4096, cluster_named("64xh100-80g"), 64);
  CHECK(price.relayout({0.25, 8}).value < 0.5 * price.relayout({0.25, 16}).value);
  CHECK(price.receive({.data = 4}) == price.relayout({0.25, 16}));  // some stages meet at a node's border
}
