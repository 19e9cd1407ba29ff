// Groups of a model on a cluster: memory, and seconds against the price of a plan.
#include <galvatron/flexsp/prices.hpp>

#include <galvatron/files.hpp>
#include <galvatron/flexsp/compiled.hpp>

#include "random_problem.hpp"

namespace galvatron::flexsp {
namespace {

const GroupOption* option_of(const Problem& problem, int degree, SequenceKind sequence) {
  for (const GroupOption& option : problem.options)
    if (option.degree == degree && option.sequence == sequence) return &option;
  return nullptr;
}

TEST_CASE("groups of equal documents take what a plan of one degree does, without the optimizer's step") {
  const ModelSpec model = value_or_throw(load_model("llama3-8b"));
  const Cluster cluster = value_or_throw(load_cluster("16xh100-80g"));
  const Problem problem = value_or_throw(problem_of(model, cluster, Precision::bf16, cluster.device.memory, 8192));
  for (const auto& [degree, sequence] : {std::pair(1, SequenceKind::none),
                                         {2, SequenceKind::ulysses},
                                         {8, SequenceKind::ulysses},
                                         {16, SequenceKind::ulysses}}) {
    CAPTURE(degree);
    const GroupOption* option = option_of(problem, degree, sequence);
    REQUIRE(option != nullptr);
    const std::int64_t documents = option->capacity / 8192;
    REQUIRE(documents > 0);
    Plan plan;
    plan.model = "llama3-8b";
    plan.cluster = "16xh100-80g";
    plan.global_batch = documents * (16 / degree);
    plan.sequence_length = 8192;
    plan.precision = Precision::bf16;
    plan.microbatches = 1;
    plan.stages = {{0, static_cast<int>(model.blocks.size()) - 1, 0, 16}};
    StrategySpec spec;
    spec.context = degree;
    spec.data = 16 / degree;
    spec.sequence = sequence;
    spec.zero = 3;
    spec.recompute = RecomputeKind::none;
    plan.layers.assign(model.blocks.size(), spec);
    plan.embedding = plan.head = spec;
    const PlanCost cost = value_or_throw(cost_of(plan, model, cluster));
    CHECK(cost.peak() <= cluster.device.memory);
    const double passes = cost.stages.front().seconds.forward.value + cost.stages.front().seconds.backward.value;
    const double priced = option->fixed + static_cast<double>(documents) * option->seconds(8192);
    CHECK(priced == doctest::Approx(passes).epsilon(0.05));
  }
}

TEST_CASE("seconds of a document rise with its tokens, and messages between nodes cost") {
  const ModelSpec model = value_or_throw(load_model("gpt-6.7b"));
  const Cluster cluster = value_or_throw(load_cluster("32xa100-80g"));
  const Problem problem = value_or_throw(problem_of(model, cluster, Precision::bf16, cluster.device.memory, 100'000));
  REQUIRE(problem.options.size() > 5);
  CHECK(problem.node_devices == 8);
  CHECK(problem.floor > 0);
  for (const GroupOption& option : problem.options) {
    CAPTURE(option.degree);
    CHECK(option.capacity > 0);
    double before = 0;
    for (std::int64_t tokens = 1; tokens <= std::min<std::int64_t>(option.capacity, 100'000);
         tokens = tokens * 3 / 2 + 1) {
      const double seconds = option.seconds(tokens);
      CHECK(seconds > before);
      before = seconds;
    }
  }
  const GroupOption* inside = option_of(problem, 8, SequenceKind::ulysses);
  const GroupOption* across = option_of(problem, 16, SequenceKind::ulysses);
  REQUIRE(inside != nullptr);
  REQUIRE(across != nullptr);
  CHECK(16 * across->seconds(8192) > 1.1 * 8 * inside->seconds(8192));
  // More memory, more tokens; recomputation too.
  GroupSpace space;
  space.recompute = RecomputeKind::full;
  const Problem roomy =
      value_or_throw(problem_of(model, cluster, Precision::bf16, cluster.device.memory, 100'000, space));
  CHECK(roomy.options.front().capacity > 2 * problem.options.front().capacity);
}

TEST_CASE("what no group holds is told with its bytes, and models that cannot be cut") {
  const Cluster cluster = value_or_throw(load_cluster("8xa100-40g"));
  const ModelSpec model = value_or_throw(load_model("llama3-8b"));
  const auto small = problem_of(model, cluster, Precision::bf16, Bytes{std::int64_t{1} << 30}, 1000);
  REQUIRE_FALSE(small.has_value());
  CHECK(small.error().kind == ErrorKind::infeasible);
  CHECK(small.error().message.find("GiB") != std::string::npos);
  GroupSpace space;
  space.single_devices = false;
  const ModelSpec swin = value_or_throw(load_model("swin-huge-32"));
  CHECK_FALSE(problem_of(swin, cluster, Precision::bf16, cluster.device.memory, 1000, space).has_value());
}

}  // namespace
}  // namespace galvatron::flexsp
