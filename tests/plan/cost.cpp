#include <galvatron/plan/cost.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/json.hpp>

using namespace galvatron;

namespace {

const ModelSpec& model() {
  static const ModelSpec spec = value_or_throw(find_model("llama2-7b"));
  return spec;
}
const Cluster& cluster() {
  static const Cluster spec = value_or_throw(find_cluster("8xa100-80g"));
  return spec;
}

Plan two_stages(const StrategySpec& spec) {
  Plan plan;
  plan.model = "llama2-7b";
  plan.cluster = "8xa100-80g";
  plan.global_batch = 32;
  plan.sequence_length = 1024;
  plan.precision = Precision::bf16;
  plan.microbatches = 4;
  plan.stages = {{0, 15, 0, 4}, {16, 31, 4, 4}};
  plan.layers.assign(32, spec);
  plan.embedding = plan.head = spec;
  return plan;
}

PlanCost price(const Plan& plan) { return value_or_throw(cost_of(plan, model(), cluster())); }

}  // namespace

TEST_CASE("stages add up their layers, and the iteration follows from the stages") {
  const Plan plan = two_stages({.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 1});
  const PlanCost cost = price(plan);
  REQUIRE(cost.stages.size() == 2);
  REQUIRE(cost.layers.size() == 34);
  Seconds forward;
  Bytes states;
  for (std::size_t i = 0; i < 17; ++i) {
    forward += cost.layers[i].seconds.forward;
    states += cost.layers[i].states;
  }
  CHECK(cost.stages[0].seconds.forward.value == doctest::Approx(forward.value));
  CHECK(cost.stages[0].memory.states == states);
  CHECK(cost.stages[0].slots == 2);
  CHECK(cost.stages[1].slots == 1);
  CHECK(cost.stages[0].memory.stash > cost.stages[1].memory.stash);
  const cost::StageSeconds seconds[] = {cost.stages[0].seconds, cost.stages[1].seconds};
  CHECK(cost.iteration.value ==
        doctest::Approx(cost::pipeline_seconds(plan.schedule, seconds, 4).value).epsilon(1e-12));
  CHECK(cost.samples_per_second == doctest::Approx(32 / cost.iteration.value));
  CHECK(cost.tokens_per_second == doctest::Approx(32 * 1024 / cost.iteration.value));
  const Seconds parts = cost.compute + cost.communication + cost.update + cost.idle;
  CHECK(parts.value == doctest::Approx(cost.iteration.value));
}

TEST_CASE("model FLOPs are about six a parameter and token, and attention") {
  const double tokens = 32.0 * 1024;
  const double matrices = static_cast<double>(parameters(model()) - model().vocabulary() * model().hidden());
  const double attention = 32 * 3 * 2.0 * tokens * 1024 * 4096;  // causal: half of 4 S H, three times
  CHECK(model_flops(model(), 32, 1024).count == doctest::Approx(6 * matrices * tokens + attention).epsilon(1e-3));
}

TEST_CASE("a re-layout inside a stage costs time and workspace on both sides of it") {
  const StrategySpec narrow{.tensor = 4};
  const StrategySpec wide{.tensor = 2, .data = 2};
  Plan plan = two_stages(narrow);
  for (std::size_t i = 8; i < 16; ++i) plan.layers[i] = wide;
  const PlanCost cost = price(plan);
  CHECK(cost.layers[9].relayout_forward.value == 0);  // wide wants half of what every narrow rank has
  CHECK(cost.layers[9].relayout_backward.value > 0);
  CHECK(cost.layers[8].relayout_forward.value == 0);
  CHECK(cost.layers[10].relayout_backward.value == 0);
  for (std::size_t i = 0; i < 16; ++i) plan.layers[i] = i % 2 == 0 ? narrow : wide;
  CHECK(price(plan).stages[0].seconds.backward > cost.stages[0].seconds.backward);
}

TEST_CASE("GPipe keeps every micro-batch, and no stage takes less memory than with 1F1B") {
  Plan plan = two_stages({.tensor = 4});
  const PlanCost one = price(plan);
  plan.schedule = ScheduleKind::gpipe;
  const PlanCost all = price(plan);
  CHECK(all.stages[1].slots == 4);
  CHECK(all.peak() > one.peak());
  CHECK(all.iteration >= one.iteration);
}

TEST_CASE("plans that cannot be priced say why") {
  const auto why = [](const Plan& plan, const ModelSpec& m, const Cluster& c) {
    const auto cost = cost_of(plan, m, c);
    REQUIRE(!cost);
    CHECK(cost.error().kind == ErrorKind::usage);
    CHECK(cost.error().message.find('\n') == std::string::npos);
    return cost.error().message;
  };
  const auto says = [](const std::string& message, const char* part) {
    return message.find(part) != std::string::npos;
  };
  const Plan plan = two_stages({.tensor = 4});
  CHECK(says(why(plan, value_or_throw(find_model("llama2-13b")), cluster()), "32 layers"));
  CHECK(says(why(plan, model(), value_or_throw(find_cluster("4xa100-80g"))), "needs 8 devices"));
  Plan long_one = plan;
  long_one.sequence_length = 1 << 20;
  CHECK(says(why(long_one, model(), cluster()), "positions"));
  Plan other = plan;
  other.schedule = ScheduleKind::interleaved;
  other.virtual_stages = 20;
  CHECK(says(why(other, model(), cluster()), "2 stages x 20 virtual stages are more than the plan's 32 layers"));
  other.virtual_stages = 3;
  CHECK(cost_of(other, model(), cluster()).has_value());
  other.stages = {{0, 14, 0, 4}, {15, 31, 4, 4}};
  CHECK(says(why(other, model(), cluster()), "stage 0 has its layers 0 to 15, not to 14"));
  other = plan;
  other.schedule = ScheduleKind::interleaved;
  other.virtual_stages = 2;
  other.microbatches = 1;
  CHECK(says(why(other, model(), cluster()), "multiple of them as micro-batches"));
  Plan broken = plan;
  broken.layers[3].tensor = 3;
  CHECK(says(why(broken, model(), cluster()), "layer 3"));
  Plan few = plan;
  few.global_batch = 6;
  CHECK(says(why(few, model(), cluster()), "do not divide"));
}

TEST_CASE("virtual stages share layers as evenly as possible, those at the ends having fewer") {
  for (const int layers : {7, 8, 30, 126})
    for (const int stages : {2, 3, 16})
      for (int chunks = 1; stages * chunks <= layers; ++chunks) {
        const int all = stages * chunks;
        CAPTURE(layers);
        CAPTURE(all);
        CHECK(first_layer_of_virtual_stage(layers, all, 0) == 0);
        CHECK(first_layer_of_virtual_stage(layers, all, all) == layers);
        std::vector<int> sizes;
        for (int i = 0; i < all; ++i)
          sizes.push_back(first_layer_of_virtual_stage(layers, all, i + 1) -
                          first_layer_of_virtual_stage(layers, all, i));
        CHECK(
            std::all_of(sizes.begin(), sizes.end(), [&](int n) { return n == layers / all || n == layers / all + 1; }));
        CHECK(sizes.back() == layers / all);
        const auto larger = std::find(sizes.begin(), sizes.end(), layers / all + 1);
        CHECK(std::is_sorted(larger, sizes.end(), std::greater<>{}));
        CHECK(std::abs(2 * (larger - sizes.begin()) + layers % all - all) <= (layers % all == 0 ? all : 1));
        int first = 0;
        for (const PlanStage& stage : even_stages(layers, stages, chunks, 4)) {
          CHECK(stage.first_layer == first);
          CHECK(std::abs(stage.last_layer + 1 - first - layers / stages) <= 1);
          first = stage.last_layer + 1;
        }
        CHECK(first == layers);
      }
}

TEST_CASE("virtual stages hold every other chunk, send more, keep more and idle less") {
  Plan plan = two_stages({.tensor = 4});
  plan.schedule = ScheduleKind::interleaved;
  plan.virtual_stages = 4;
  CHECK(virtual_stage_layers(plan, 0).first == 0);
  CHECK(virtual_stage_layers(plan, 3).first == 12);  // the second chunk of stage 1
  CHECK(virtual_stage_layers(plan, 7).last == 31);
  const PlanCost chunks = value_or_throw(cost_of(plan, model(), cluster()));
  plan.virtual_stages = 1;
  plan.schedule = ScheduleKind::one_f_one_b;
  const PlanCost whole = value_or_throw(cost_of(plan, model(), cluster()));
  REQUIRE(chunks.layers.size() == whole.layers.size());
  for (std::size_t i = 0; i < chunks.layers.size(); ++i) CHECK(chunks.layers[i].states == whole.layers[i].states);
  for (std::size_t s = 0; s < 2; ++s) {
    CHECK(chunks.stages[s].memory.states == whole.stages[s].memory.states);
    CHECK(chunks.stages[s].seconds.forward > whole.stages[s].seconds.forward);
  }
  CHECK(chunks.stages[0].memory.boundary == 7 * whole.stages[0].memory.boundary);  // v sends, v - 1 receives
  CHECK(chunks.stages[0].memory.stash > whole.stages[0].memory.stash);
  CHECK(chunks.idle < whole.idle);
  plan.schedule = ScheduleKind::zb_h1;
  const PlanCost zero = value_or_throw(cost_of(plan, model(), cluster()));
  CHECK(zero.idle < whole.idle);
  for (const std::size_t s : {std::size_t{0}, std::size_t{1}}) {
    const cost::StageMemory& memory = zero.stages[s].memory;
    CHECK(memory.stash > whole.stages[s].memory.stash);
    CHECK(memory.states == whole.stages[s].memory.states);
    CHECK(memory.boundary == whole.stages[s].memory.boundary);
    CHECK(zero.stages[s].seconds.forward == whole.stages[s].seconds.forward);
    CHECK(zero.stages[s].seconds.backward > whole.stages[s].seconds.backward);
    CHECK(zero.stages[s].seconds.backward.value < 1.1 * whole.stages[s].seconds.backward.value);
  }
  CHECK(zero.stages[0].seconds.weights.value > 0.2 * zero.stages[0].seconds.backward.value);

  plan.schedule = ScheduleKind::zb_2p;
  const PlanCost twice = value_or_throw(cost_of(plan, model(), cluster()));
  CHECK(twice.idle.value <= zero.idle.value * (1 + 1e-9));
  plan.schedule = ScheduleKind::zb_v;
  plan.virtual_stages = 2;
  CHECK(virtual_stage_layers(plan, 0).first == 0);
  CHECK(virtual_stage_layers(plan, 3).last == 31);
  CHECK(head_stage(plan) == plan.stages.front());
  CHECK(stages_of_layers(plan)[31] == &plan.stages.front());
  CHECK(stages_of_layers(plan)[16] == &plan.stages.back());
  const PlanCost vee = value_or_throw(cost_of(plan, model(), cluster()));
  CHECK(vee.idle < zero.idle);
  CHECK(vee.stages[1].chunks[1].receive_activation.value == 0);  // the turn
  CHECK(vee.stages[0].chunks[1].receive_activation.value > 0);
  for (const std::size_t s : {std::size_t{0}, std::size_t{1}}) {
    const std::int64_t boundary = whole.stages[s].memory.boundary.count;
    CHECK(zero.stages[s].memory.stash < twice.stages[s].memory.stash);
    CHECK(twice.stages[s].memory.boundary.count == 2 * boundary);  // two buffers
    CHECK(vee.stages[s].memory.boundary.count == (s == 0 ? 4 : 8) * boundary);
  }
}

TEST_CASE("virtual stages may have lengths of their own") {
  Plan plan = two_stages({.tensor = 4});
  plan.schedule = ScheduleKind::interleaved;
  plan.virtual_stages = 17;
  const std::vector<int> chunks = chunks_with_ends(32, 34, true, true);
  CHECK(chunks.front() == 0);
  CHECK(chunks.back() == 0);
  CHECK(std::count(chunks.begin(), chunks.end(), 1) == 32);
  plan.stages = stages_of_chunks(chunks, 2, 17, 4);
  REQUIRE(why_inconsistent(plan).empty());
  CHECK(virtual_stage_layers(plan, 1).first == 0);
  CHECK(virtual_stage_layers(plan, 32).last == 31);
  const PlanCost cost = value_or_throw(cost_of(plan, model(), cluster()));
  CHECK(cost.layers.size() == 34);
  CHECK(cost.stages[0].chunks[0].size() == 1);   // the embedding
  CHECK(cost.stages[1].chunks[16].size() == 1);  // the head
  CHECK(value_or_throw(plan_from_json(to_json(plan), "p")) == plan);

  const auto wrong = [&](auto change, const char* part) {
    Plan other = plan;
    change(other);
    CHECK(why_inconsistent(other).find(part) != std::string::npos);
  };
  wrong([](Plan& p) { p.stages[1].chunk_layers.clear(); }, "of all stages or of none");
  wrong([](Plan& p) { p.stages[1].chunk_layers.pop_back(); }, "of 16 virtual stages, not of 17");
  wrong([](Plan& p) { std::swap(p.stages[0].chunk_layers[0], p.stages[0].chunk_layers[1]); }, "without layers");
  wrong([](Plan& p) { p.stages[0].chunk_layers[0] = 1; }, "17 layers together, and layers 0 to 15");
  wrong(
      [](Plan& p) {
        p.virtual_stages = 1;
        p.schedule = ScheduleKind::one_f_one_b;
      },
      "chunk_layers are those of virtual stages");
}

TEST_CASE("a plan of context parallel layers is priced, and layers that lay out tokens alike need no move") {
  const StrategySpec ring{.sequence = SequenceKind::ring, .context = 2, .data = 2, .zero = 1};
  const StrategySpec ulysses{.sequence = SequenceKind::ulysses, .context = 2, .data = 2, .zero = 1};
  const StrategySpec megatron{.tensor = 2, .sequence = SequenceKind::megatron, .data = 2};
  Plan plan = two_stages(ulysses);
  plan.layers[3] = megatron;
  plan.layers[9] = ring;
  const PlanCost cost = price(plan);
  CHECK(cost.layers[4].relayout_forward.value == 0);
  CHECK(cost.layers[5].relayout_forward.value == 0);
  CHECK(cost.layers[10].relayout_forward.value > 0);
  CHECK(cost.layers[11].relayout_backward.value > 0);
  // A half of the tokens on each rank: the same activations as two more data ranks, at the same price of a send.
  CHECK(cost.layers[0].stash == price(two_stages({.data = 4, .zero = 1})).layers[0].stash);
  CHECK(cost.iteration > price(two_stages({.data = 4, .zero = 1})).iteration);
}

TEST_CASE("selective recomputation lies between none and all in time and memory") {
  const auto of = [](RecomputeKind kind) { return price(two_stages({.tensor = 2, .data = 2, .recompute = kind})); };
  const PlanCost none = of(RecomputeKind::cheap);
  const PlanCost selective = of(RecomputeKind::selective);
  const PlanCost full = of(RecomputeKind::full);
  CHECK(none.iteration < selective.iteration);
  CHECK(selective.iteration < full.iteration);
  CHECK(none.stages[0].memory.stash > selective.stages[0].memory.stash);
  CHECK(selective.stages[0].memory.stash > full.stages[0].memory.stash);
}
