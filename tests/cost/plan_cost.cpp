#include <galvatron/cost/plan_cost.hpp>

#include <algorithm>

#include <doctest/doctest.h>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/zoo.hpp>

using namespace galvatron;

namespace {

Cluster cluster_named(const char* name) { return value_or_throw(find_cluster(name)); }

}  // namespace

TEST_CASE("ranks that share cores do one thing after the other") {
  Cluster host = host_cluster(4, 2);
  host.overlap_slowdown = 1.2;
  const cost::Batch batch{.microbatch = 8, .sequence = 512};
  const int where = 4;
  for (const int zero : {0, 1, 2, 3}) {
    const StrategySpec spec{.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = zero};
    const ModelSpec model = value_or_throw(find_model("llama2-7b"));
    for (const LayerSpec& layer : {model.embedding, model.blocks[0], model.head}) {
      const cost::LayerCounts counts = cost::layer_counts(layer, spec, batch);
      const cost::LayerSeconds seconds = cost::layer_seconds(counts, spec, batch.precision, host, 4);
      const auto sum = [&](const op::WorkList& list) {
        return doctest::Approx(cost::time_of(list, batch.precision, host, where).value).epsilon(1e-12);
      };
      CHECK(seconds.forward.value == sum(counts.forward));
      CHECK(seconds.backward.value == sum(counts.backward));
      CHECK(seconds.synchronise.value == sum(counts.synchronise));
      CHECK(seconds.update.value == sum(counts.update));
    }
  }
}

TEST_CASE("on devices of their own only traffic of data-parallel ranks hides behind computation") {
  const ModelSpec model = value_or_throw(find_model("llama2-7b"));
  const Cluster cluster = cluster_named("8xa100-80g");
  const cost::Batch batch{.microbatch = 8, .sequence = 2048, .precision = Precision::bf16};
  const int where = 8;
  const auto sum = [&](const op::WorkList& list) { return cost::time_of(list, batch.precision, cluster, where).value; };
  const auto seconds_of = [&](const StrategySpec& spec) {
    return cost::layer_seconds(cost::layer_counts(model.blocks[0], spec, batch), spec, batch.precision, cluster, 8);
  };
  const StrategySpec tensor{.tensor = 8, .sequence = SequenceKind::megatron};
  const cost::LayerCounts waits = cost::layer_counts(model.blocks[0], tensor, batch);
  CHECK(seconds_of(tensor).forward.value == doctest::Approx(sum(waits.forward)));
  CHECK(seconds_of(tensor).backward.value == doctest::Approx(sum(waits.backward)));
  CHECK(seconds_of(tensor).forward_communication.value > 0.05 * seconds_of(tensor).forward.value);

  const StrategySpec sharded{.data = 8, .zero = 3};
  const cost::LayerCounts hides = cost::layer_counts(model.blocks[0], sharded, batch);
  double gathered = 0;
  for (const op::Work& work : hides.forward)
    if (op::is_communication(work.kind)) gathered += cost::time_of(work, batch.precision, cluster, where).value;
  REQUIRE(gathered > 0);
  const double computed = sum(hides.forward) - gathered;
  CHECK(seconds_of(sharded).forward.value ==
        doctest::Approx(std::max(computed, gathered) + (cluster.overlap_slowdown - 1) * std::min(computed, gathered)));
  CHECK(seconds_of(sharded).forward_communication.value ==
        doctest::Approx(seconds_of(sharded).forward.value - computed));
  CHECK(seconds_of(sharded).backward.value < sum(hides.backward));

  // In a mixed strategy the tensor-parallel part stays.
  const StrategySpec both{.tensor = 2, .sequence = SequenceKind::megatron, .data = 4, .zero = 3};
  const StrategySpec split{.tensor = 2, .sequence = SequenceKind::megatron, .data = 4};
  CHECK(seconds_of(both).forward > seconds_of(split).forward);
  CHECK(seconds_of(both).forward.value < sum(cost::layer_counts(model.blocks[0], both, batch).forward));
}

TEST_CASE("blocks that stream have room for a neighbour's parameters and gradients, and their ends wait") {
  const ModelSpec model = value_or_throw(find_model("llama2-7b"));
  const Cluster cluster = cluster_named("8xa100-80g");
  cost::Batch with{.microbatch = 8, .sequence = 2048, .precision = Precision::bf16};
  cost::Batch without = with;
  without.overlap = false;
  const std::int64_t elements = parameter_layout(model.blocks[0], ParameterPart::rest, 1, 8).elements;
  for (const int zero : {0, 1, 2, 3}) {
    const StrategySpec spec{.data = 8, .zero = zero};
    const cost::LayerCounts two = cost::layer_counts(model.blocks[0], spec, with);
    const cost::LayerCounts one = cost::layer_counts(model.blocks[0], spec, without);
    const std::int64_t parameters = zero == 3 ? 2 * elements : 0;
    const std::int64_t gradients = zero >= 2 ? 4 * elements : 0;
    CHECK(two.forward_workspace.count == one.forward_workspace.count + parameters);
    CHECK(two.backward_workspace.count == one.backward_workspace.count + parameters + gradients);
    CHECK(two.states == one.states);
    CHECK(two.stash == one.stash);
    const cost::LayerSeconds beside = cost::layer_seconds(two, spec, Precision::bf16, cluster, 8);
    const cost::LayerSeconds after = cost::layer_seconds(one, spec, Precision::bf16, cluster, 8);
    CHECK((beside.forward < after.forward) == (zero == 3));
    CHECK((beside.backward < after.backward) == (zero >= 2));
    CHECK(after.forward.value == doctest::Approx(cost::time_of(one.forward, Precision::bf16, cluster, 8).value));
  }
  const StrategySpec sharded{.data = 8, .zero = 3};
  const cost::LayerCounts head = cost::layer_counts(model.head, sharded, with);
  CHECK(head.forward_workspace == cost::layer_counts(model.head, sharded, without).forward_workspace);
  CHECK(cost::layer_seconds(head, sharded, Precision::bf16, cluster, 8).forward.value ==
        doctest::Approx(cost::time_of(head.forward, Precision::bf16, cluster, 8).value));
}

TEST_CASE("gradients that outlast the last backward pass are paid for, the others slow it") {
  const ModelSpec model = value_or_throw(find_model("llama2-7b"));
  Cluster cluster = cluster_named("16xa100-80g");
  const StrategySpec spec{.data = 16, .zero = 1};
  const cost::Batch batch{.microbatch = 16, .sequence = 4096, .precision = Precision::bf16};
  const cost::LayerCounts counts = cost::layer_counts(model.blocks[0], spec, batch);
  const auto whole = [&] { return cost::time_of(counts.synchronise, batch.precision, cluster, 8).value; };
  const cost::LayerSeconds quick = cost::layer_seconds(counts, spec, batch.precision, cluster, 16);
  REQUIRE(whole() < quick.backward.value);
  CHECK(quick.synchronise.value == doctest::Approx((cluster.overlap_slowdown - 1) * whole()));
  cluster.across_nodes.bandwidth /= 100;
  const cost::LayerSeconds slow = cost::layer_seconds(counts, spec, batch.precision, cluster, 16);
  REQUIRE(whole() > slow.backward.value);
  CHECK(slow.synchronise.value == doctest::Approx(whole() - (2 - cluster.overlap_slowdown) * slow.backward.value));
}

TEST_CASE("two things at once take the longer of them and a little more, and never more than both") {
  CHECK(cost::side_by_side({3}, {2}, 1.0).value == doctest::Approx(3));
  CHECK(cost::side_by_side({3}, {2}, 1.25).value == doctest::Approx(3.5));
  CHECK(cost::side_by_side({2}, {3}, 1.25).value == doctest::Approx(3.5));
  CHECK(cost::side_by_side({3}, {2}, 5.0).value == doctest::Approx(5));
  CHECK(cost::side_by_side({3}, {0}, 1.25).value == 3);
}

TEST_CASE("stages share cores only where there are fewer cores than ranks") {
  CHECK(!cost::stages_share_cores(cluster_named("8xa100-80g"), 4, 8));
  const Cluster narrow = host_cluster(4, 2);
  CHECK(cost::stages_share_cores(narrow, 4, 4));
  CHECK(cost::stages_share_cores(narrow, 2, 4));
  CHECK(!cost::stages_share_cores(narrow, 1, 4));
  CHECK(!cost::stages_share_cores(host_cluster(4, 8), 4, 4));
  const schedule::CoreSharing sharing = cost::core_sharing(narrow, {1, 1, 1, 1});
  CHECK(sharing.crowding(1) == doctest::Approx(1));
  CHECK(sharing.crowding(2) == doctest::Approx(1));
  CHECK(sharing.crowding(4) == doctest::Approx(2));
}

TEST_CASE("a stage that receives more tokens waits longer, and a move of nothing takes no time") {
  const Cluster cluster = cluster_named("8xh100-80g");
  const cost::Batch batch{.microbatch = 8, .sequence = 2048, .precision = Precision::bf16};
  const cost::MovePricer price(batch, batch.sequence * 4096, cluster, 8);
  CHECK(price.relayout({}).value == 0);
  CHECK(price.relayout({0.5, 2}) > price.relayout({0.25, 2}));
  CHECK(price.receive({.tensor = 2, .data = 2}) > price.receive({.tensor = 1, .data = 4}));
  CHECK(price.receive({.tensor = 2, .sequence = SequenceKind::megatron, .data = 2}) ==
        price.receive({.tensor = 1, .data = 4}));
  CHECK(price.receive({.sequence = SequenceKind::ring, .context = 2, .data = 2}) == price.receive({.data = 4}));
}

TEST_CASE("a move inside a node takes its links, a move across nodes the network") {
  const cost::Batch batch{.microbatch = 8, .sequence = 2048, .precision = Precision::bf16};
  const Cluster cluster = cluster_named("64xh100-80g");
  const cost::MovePricer price(batch, batch.sequence * 4096, cluster, 64);
  CHECK(price.relayout({0.25, 8}).value < 0.5 * price.relayout({0.25, 16}).value);
  CHECK(price.receive({.data = 4}) == price.relayout({0.25, 16}));  // some stages meet at a node's border
}
