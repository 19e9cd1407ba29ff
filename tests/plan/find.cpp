#include <galvatron/plan/find.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/plan/json.hpp>

#include "found.hpp"

using namespace galvatron;
using namespace galvatron::test;

namespace {

ModelSpec shortened(ModelSpec model, std::size_t blocks) {
  model.blocks.resize(blocks);
  return model;
}

// A device that pays for nothing but its work, with room for nothing but a plan.
Cluster bare(Cluster cluster, Bytes memory) {
  cluster.device.memory = memory;
  cluster.device.library_workspace = {};
  cluster.device.reserve = {};
  return cluster;
}

struct Truth {
  double seconds = std::numeric_limits<double>::infinity();
  Bytes peak{std::numeric_limits<std::int64_t>::max()};
};

// Every plan of the space, priced one by one.
Truth every_plan(const ModelSpec& model, const Cluster& cluster, const SearchOptions& options) {
  Truth truth;
  const int ranks = cluster.devices;
  const int blocks = static_cast<int>(model.blocks.size());
  for (const int stages : pipeline_degrees(options.space, ranks)) {
    if (stages > blocks) continue;
    const std::vector<StrategySpec> specs = strategies(options.space, ranks / stages, cluster.devices_per_node);
    for (const int m : divisors(static_cast<int>(options.global_batch))) {
      if (options.microbatches != 0 && m != options.microbatches) continue;
      Plan plan;
      plan.global_batch = options.global_batch;
      plan.sequence_length = options.sequence;
      plan.precision = options.precision;
      plan.microbatches = m;
      plan.layers.resize(static_cast<std::size_t>(blocks));
      std::vector<StrategySpec*> places{&plan.embedding};
      for (StrategySpec& spec : plan.layers) places.push_back(&spec);
      if (!model.head.tied) places.push_back(&plan.head);
      const std::function<void(std::size_t)> choose = [&](std::size_t place) {
        if (place < places.size()) {
          for (const StrategySpec& spec : specs) {
            if (plan.microbatch() % spec.data != 0) continue;
            *places[place] = spec;
            choose(place + 1);
          }
          return;
        }
        if (model.head.tied) plan.head = plan.embedding;
        for (int cut = 1; cut < std::max(2, blocks); ++cut) {  // one or two stages
          plan.stages.clear();
          if (stages == 1) plan.stages = {{0, blocks - 1, 0, ranks}};
          if (stages == 2) plan.stages = {{0, cut - 1, 0, ranks / 2}, {cut, blocks - 1, ranks / 2, ranks / 2}};
          for (const ScheduleKind kind : options.schedules)
            for (int chunks = usual_virtual_stages(kind);
                 chunks <= (kind == ScheduleKind::interleaved ? blocks : usual_virtual_stages(kind)); ++chunks) {
              plan.schedule = kind;
              plan.virtual_stages = chunks;
              const auto cost = cost_of(plan, model, cluster);
              if (!cost) continue;
              truth.peak = min(truth.peak, cost->peak());
              if (cost->peak() <= options.memory) truth.seconds = std::min(truth.seconds, cost->iteration.value);
            }
          if (stages == 1) break;
        }
      };
      choose(0);
    }
  }
  return truth;
}

}  // namespace

TEST_CASE("the search finds the fastest way to spread experts, under every budget") {
  SearchOptions options;
  options.global_batch = 4;
  options.sequence = 64;
  options.schedules = {ScheduleKind::one_f_one_b};
  ModelSpec model = shortened(model_named("moe-tiny"), 2);
  for (const char* const space :
       {"dp,tp,ep,etp", "dp,zero3,tp,pp,max-pp=2,ep=2,etp=1", "dp,tp,sp,recompute,ep=4,etp=1"}) {
    options.space = value_or_throw(parse_space(space));
    const Cluster cluster = bare(cluster_named("4xv100-32g"), 32_GiB);
    options.memory = cluster.device.memory;
    SearchOptions complete = value_or_throw(search::completed(options, model, cluster));
    const Truth roomy = every_plan(model, cluster, complete);
    INFO(space);
    for (const int tenths : {10, 0, 3, 7}) {
      const FoundPlan best = found(model, cluster, options);
      const std::int64_t span = cluster.device.memory.count - roomy.peak.count;
      options.memory = complete.memory = {roomy.peak.count +
                                          (tenths == 10 ? span : (best.cost.peak() - roomy.peak).count * tenths / 10)};
      const FoundPlan tight = found(model, cluster, options);
      REQUIRE(tight.feasible);
      CHECK(tight.statistics.proven);
      CHECK(tight.cost.iteration.value == doctest::Approx(every_plan(model, cluster, complete).seconds).epsilon(1e-9));
      options.memory = cluster.device.memory;
    }
  }
}

TEST_CASE("no plan with one strategy of tensor, expert, pipeline and data parallelism beats the search") {
  const ModelSpec model = model_named("mixtral-8x7b");
  const Cluster cluster = cluster_named("64xh100-80g");
  SearchOptions options;
  options.global_batch = 64;
  options.sequence = 4096;
  const SearchOptions complete = value_or_throw(search::completed(options, model, cluster));
  const FoundPlan best = found(model, cluster, options);
  REQUIRE(best.statistics.proven);
  Space space = value_or_throw(parse_space("dp,zero1,zero3,tp,sp=megatron,ep,etp,recompute"));
  space.experts = 8;
  int fit = 0;
  for (int stages = 1; stages <= 32; stages *= 2)
    for (const StrategySpec& spec : strategies(space, cluster.devices / stages, cluster.devices_per_node))
      for (int m = 1; m <= 64; m *= 2) {
        Plan plan;
        plan.global_batch = options.global_batch;
        plan.sequence_length = options.sequence;
        plan.precision = complete.precision;
        plan.microbatches = m;
        plan.layers.assign(model.blocks.size(), spec);
        plan.embedding = plan.head = spec.without_experts();
        for (int stage = 0; stage < stages; ++stage)
          plan.stages.push_back({32 / stages * stage, 32 / stages * (stage + 1) - 1, 64 / stages * stage, 64 / stages});
        const auto cost = cost_of(plan, model, cluster);
        if (!cost || cost->peak() > complete.memory) continue;
        ++fit;
        CHECK(cost->iteration.value >= best.cost.iteration.value * (1 - 1e-9));
      }
  CHECK(fit > 100);
}

TEST_CASE("compressed dispatch is searched, and goes uncompressed above the rate at which it takes as long") {
  SearchOptions options;
  options.global_batch = 8;
  options.space = value_or_throw(parse_space("dp,ep=4"));
  const ModelSpec model = model_named("moe-tiny");
  Cluster cluster = cluster_named("4xv100-32g");
  options.space.dispatch = {DispatchKind::lsh};
  options.lsh.rate = 0.2;
  CHECK(found(model, cluster, options).plan.lsh.most_rate == 1);
  options.lsh_falls_back = true;
  cluster.devices_per_node = 4;
  cluster.inside_node.latency = {1e-7};
  cluster.messages.clear();  // priced by latency and bandwidth
  std::vector<double> rates;
  for (const double bandwidth : {1e8, 1e9, 1e10, 1e11, 1e12, 1e13}) {
    cluster.inside_node.bandwidth = bandwidth;
    INFO(bandwidth);
    Plan plan = found(model, cluster, options).plan;
    for (const StrategySpec& spec : plan.layers) CHECK(spec.compresses_tokens());
    const auto seconds_at = [&](double rate) {
      plan.lsh.rate = rate;
      return value_or_throw(cost_of(plan, model, cluster)).iteration.value;
    };
    rates.push_back(plan.lsh.most_rate);
    const double least = seconds_at(0.02);
    const double compressed = seconds_at(rates.back());
    const double most = seconds_at(1);
    for (StrategySpec& spec : plan.layers) spec.dispatch = DispatchKind::plain;
    const double plain = value_or_throw(cost_of(plan, model, cluster)).iteration.value;
    CAPTURE(rates.back());
    if (rates.back() == 0)
      CHECK(plain <= least);
    else if (rates.back() == 1)
      CHECK(most <= plain);
    else
      CHECK(compressed == doctest::Approx(plain).epsilon(0.005));  // rows are whole numbers
  }
  CHECK(std::ranges::is_sorted(rates, std::ranges::greater()));
  CHECK(std::ranges::any_of(rates, [](double rate) { return rate > 0 && rate < 1; }));
}

TEST_CASE("the search finds the fastest of all plans, each priced alone, under every budget") {
  SearchOptions options;
  options.global_batch = 4;
  options.sequence = 64;
  options.schedules = {ScheduleKind::one_f_one_b};
  for (const auto& [name, again] : {std::pair{"gpt2-tiny", "recompute"}, {"llama-tiny", "keep"}}) {
    options.space = value_or_throw(parse_space("dp,zero3,tp,pp,max-pp=2,sp=megatron," + std::string(again)));
    const ModelSpec model = shortened(model_named(name), 2);
    const Cluster cluster = bare(cluster_named("4xv100-32g"), 32_GiB);
    options.memory = cluster.device.memory;
    const Truth roomy = every_plan(model, cluster, options);
    const FoundPlan best = found(model, cluster, options);
    REQUIRE(best.feasible);
    CHECK(best.statistics.proven);
    CHECK(best.cost.iteration.value == doctest::Approx(roomy.seconds).epsilon(1e-9));

    // Between the smallest plan and the fastest one memory decides.
    const std::int64_t span = best.cost.peak().count - roomy.peak.count;
    REQUIRE(span > 0);
    for (const int tenths : {0, 2, 5, 8}) {
      options.memory = {roomy.peak.count + span * tenths / 10};
      INFO(name << " within " << options.memory.count << " bytes");
      const FoundPlan tight = found(model, cluster, options);
      REQUIRE(tight.feasible);
      CHECK(tight.cost.peak() <= options.memory);
      CHECK(tight.statistics.proven);
      CHECK(tight.cost.iteration.value == doctest::Approx(every_plan(model, cluster, options).seconds).epsilon(1e-9));
    }
    options.memory = {roomy.peak.count - 1};
    const FoundPlan none = found(model, cluster, options);
    REQUIRE(!none.feasible);
    REQUIRE(none.smallest_memory);
    CHECK(*none.smallest_memory == roomy.peak);
  }
}

TEST_CASE("the search finds the fastest of all plans with each schedule, virtual stages among them") {
  SearchOptions options;
  options.global_batch = 4;
  options.sequence = 64;
  options.microbatches = 4;
  options.space = value_or_throw(parse_space("zero3,tp,pp=2,recompute"));
  ModelSpec model = shortened(model_named("llama-tiny"), 4);
  model.blocks[1].ffn *= 2;  // layers that differ show whether chunks are where they should be
  model.blocks[2].ffn *= 3;
  const Cluster cluster = bare(cluster_named("4xv100-32g"), 32_GiB);
  for (const std::vector<ScheduleKind>& schedules :
       {std::vector{ScheduleKind::interleaved}, std::vector{ScheduleKind::zb_h1}, std::vector{ScheduleKind::zb_2p},
        std::vector{ScheduleKind::one_f_one_b}, std::vector(schedule_kinds.begin(), schedule_kinds.end() - 1)}) {
    REQUIRE(std::ranges::find(schedules, ScheduleKind::zb_v) == schedules.end());  // see the next test
    INFO(name_of(schedules.front()));
    options.schedules = schedules;
    options.memory = cluster.device.memory;
    const FoundPlan best = found(model, cluster, options);
    REQUIRE(best.feasible);
    CHECK(best.statistics.proven);
    const Truth roomy = every_plan(model, cluster, options);
    CHECK(best.cost.iteration.value == doctest::Approx(roomy.seconds).epsilon(1e-9));
    options.memory = {(best.cost.peak().count + roomy.peak.count) / 2};
    const FoundPlan tight = found(model, cluster, options);
    REQUIRE(tight.feasible);
    CHECK(tight.cost.iteration.value == doctest::Approx(every_plan(model, cluster, options).seconds).epsilon(1e-9));
  }
}

TEST_CASE("of zb-v the search finds a uniform plan near the fastest, and bounds what it has not tried") {
  SearchOptions options;
  options.global_batch = 8;
  options.sequence = 64;
  options.microbatches = 8;
  options.schedules = {ScheduleKind::zb_v};
  for (const char* name : {"llama-tiny", "gpt2-tiny"}) {
    const ModelSpec model = shortened(model_named(name), 4);
    const Cluster cluster = bare(cluster_named("4xv100-32g"), 32_GiB);
    options.space = value_or_throw(parse_space("zero3,tp,pp=2,recompute"));
    options.memory = cluster.device.memory;
    INFO(name);
    const Truth truth = every_plan(model, cluster, options);
    const FoundPlan best = found(model, cluster, options);
    REQUIRE(best.feasible);
    CHECK(best.plan.schedule == ScheduleKind::zb_v);
    CHECK(best.cost.iteration.value >= truth.seconds * (1 - 1e-9));
    CHECK(best.cost.iteration.value <= truth.seconds * 1.1);
    CHECK(best.statistics.bound.value <= truth.seconds * (1 + 1e-9));
    // Beside others it is taken where it is the fastest.
    options.schedules = {ScheduleKind::one_f_one_b};
    const Seconds plain = found(model, cluster, options).cost.iteration;
    options.schedules = {ScheduleKind::one_f_one_b, ScheduleKind::zb_v};
    CHECK(found(model, cluster, options).cost.iteration == min(plain, best.cost.iteration));
    options.schedules = {ScheduleKind::zb_v};
  }
}

TEST_CASE("what the search predicts is what the plan costs, on devices and on shared cores") {
  struct Question {
    const char* model;
    Cluster cluster;
    std::int64_t batch;
    Bytes memory;
  };
  for (const Question& q :
       {Question{"llama2-7b", cluster_named("64xa100-40g"), 256, {}},
        Question{"llama2-7b", cluster_named("8xa100-80g"), 64, 40_GiB},
        Question{"gpt2-350m", cluster_named("8xtitan-24g"), 32, 4_GiB},
        Question{"gpt2-tiny", host_cluster(4, 2), 8, 64_MiB}, Question{"llama-tiny", host_cluster(4, 1), 16, {}}}) {
    const ModelSpec model = model_named(q.model);
    SearchOptions options;
    options.global_batch = q.batch;
    options.memory = q.memory;
    options.precision = q.cluster.cores > 0 ? Precision::fp32 : Precision::bf16;
    options.schedules.assign(schedule_kinds.begin(), schedule_kinds.end());
    INFO(q.model << " on " << q.cluster.name);
    const auto result = search::search(model, q.cluster, options);
    REQUIRE(result);
    REQUIRE(result->feasible);
    const SearchOptions full = value_or_throw(search::completed(options, model, q.cluster));
    std::vector<search::Candidate> candidates{result->best};
    for (const auto& alternative : result->alternatives)
      if (alternative.exists) candidates.push_back(alternative.candidate);
    for (const search::Candidate& candidate : candidates) {
      const auto cost = cost_of(plan_of(candidate, model, q.cluster, full), model, q.cluster);
      REQUIRE(cost);
      CHECK(cost->iteration.value == doctest::Approx(candidate.iteration.value).epsilon(1e-9));
      CHECK(cost->peak() == candidate.peak);
      CHECK((cost->peak() > full.memory || candidate.iteration >= result->best.iteration));
    }
  }
}

TEST_CASE("an infeasible budget names the smallest that works, exactly") {
  for (const char* name : {"gpt2-124m", "llama2-7b"}) {
    const ModelSpec model = model_named(name);
    const Cluster cluster = cluster_named("8xa100-40g");
    SearchOptions options;
    options.global_batch = 16;
    options.memory = 512_MiB;
    const FoundPlan none = found(model, cluster, options);
    REQUIRE(!none.feasible);
    REQUIRE(none.smallest_memory);
    CHECK(none.reason.find('\n') == std::string::npos);
    CHECK(none.reason.find(std::to_string(none.smallest_memory->count)) != std::string::npos);
    options.memory = *none.smallest_memory;
    const FoundPlan just = found(model, cluster, options);
    REQUIRE(just.feasible);
    CHECK(just.cost.peak() == options.memory);
    options.memory -= Bytes{1};
    CHECK(!found(model, cluster, options).feasible);
  }
}

TEST_CASE("a large model that does not fit gets its smallest budget with little work") {
  for (const auto& [name, devices] : {std::pair{"gpt3-175b", "64xa100-40g"}, {"gpt-1t", "96xh100-80g"}}) {
    const ModelSpec model = model_named(name);
    Cluster cluster = cluster_named(devices);
    cluster.device.reserve = {};
    SearchOptions options;
    options.global_batch = 512;
    const FoundPlan none = found(model, cluster, options);
    INFO(name << ": " << none.statistics.labels << " labels");
    REQUIRE(!none.feasible);
    CHECK(none.statistics.labels > 0);
    CHECK(none.statistics.labels < 1'000'000);
    REQUIRE(none.smallest_memory);
    options.memory = *none.smallest_memory;
    CHECK(!found(model, cluster, options).feasible);  // the devices have less
    cluster.device.memory = *none.smallest_memory;
    CHECK(found(model, cluster, options).feasible);
  }
}

TEST_CASE("more memory is never slower, and plain schemes never beat the plan") {
  const ModelSpec model = model_named("gpt2-774m");
  const Cluster cluster = cluster_named("8xtitan-24g");
  double last = std::numeric_limits<double>::infinity();
  for (const int gib : {4, 5, 6, 8, 12, 23}) {
    SearchOptions options;
    options.global_batch = 32;
    options.memory = {std::int64_t{gib} << 30};
    const FoundPlan plan = found(model, cluster, options);
    INFO(gib << " GiB");
    if (!plan.feasible) continue;
    CHECK(plan.cost.iteration.value <= last * (1 + 1e-9));
    last = plan.cost.iteration.value;
    CHECK(plan.plan.predicted.alternatives.size() > 5);
    for (const PredictedAlternative& a : plan.plan.predicted.alternatives)
      if (a.exists && a.fits) CHECK(a.iteration.value >= last * (1 - 1e-9));
  }
  CHECK(last < 1e9);
}

TEST_CASE("what norms and activations give is kept where memory allows, layer by layer") {
  const ModelSpec model = model_named("gpt2-774m");
  const Cluster cluster = cluster_named("8xh100-80g");
  SearchOptions options;
  options.global_batch = 64;
  options.microbatches = 1;
  options.space = value_or_throw(parse_space("dp"));
  const FoundPlan without = found(model, cluster, options);
  REQUIRE(without.feasible);
  options.space = value_or_throw(parse_space("dp,keep"));
  const auto kept = [&](const FoundPlan& plan) {
    REQUIRE(plan.feasible);
    return std::count_if(plan.plan.layers.begin(), plan.plan.layers.end(),
                         [](const StrategySpec& spec) { return spec.recompute == RecomputeKind::none; });
  };
  const FoundPlan roomy = found(model, cluster, options);
  CHECK(kept(roomy) == static_cast<std::ptrdiff_t>(model.blocks.size()));
  CHECK(roomy.cost.iteration < without.cost.iteration);
  CHECK(roomy.cost.peak() > without.cost.peak());
  options.memory = without.cost.peak();
  const FoundPlan tight = found(model, cluster, options);
  CHECK(kept(tight) == 0);
  CHECK(tight.cost.iteration == without.cost.iteration);
  options.memory = {(without.cost.peak().count + roomy.cost.peak().count) / 2};
  const FoundPlan between = found(model, cluster, options);
  CHECK(kept(between) > 0);
  CHECK(kept(between) < kept(roomy));
  CHECK(between.cost.iteration < tight.cost.iteration);
  CHECK(between.cost.iteration > roomy.cost.iteration);
}

TEST_CASE("the answer does not depend on threads, and options bind") {
  const ModelSpec model = model_named("gpt2-350m");
  const Cluster cluster = cluster_named("16xa100-40g");
  SearchOptions options;
  options.global_batch = 48;
  options.memory = 6_GiB;
  const FoundPlan one = found(model, cluster, options);
  options.threads = 3;
  const FoundPlan three = found(model, cluster, options);
  REQUIRE(one.feasible);
  CHECK(one.plan == three.plan);
  CHECK(one.statistics.labels == three.statistics.labels);

  options.microbatches = 6;
  options.schedules = {ScheduleKind::gpipe};
  const FoundPlan forced = found(model, cluster, options);
  REQUIRE(forced.feasible);
  CHECK(forced.plan.microbatches == 6);
  CHECK(forced.plan.schedule == ScheduleKind::gpipe);

  SearchOptions data_only;
  data_only.global_batch = 48;
  data_only.space = value_or_throw(parse_space("dp"));
  const FoundPlan plain = found(model, cluster, data_only);
  REQUIRE(plain.feasible);
  CHECK(plain.plan.stages.size() == 1);
  for (const StrategySpec& spec : plain.plan.layers) CHECK(spec == StrategySpec{.data = 16});
}

TEST_CASE("even stages and one strategy bind, and cost what they forbid") {
  const ModelSpec model = shortened(model_named("gpt2-350m"), 14);  // 4 stages of 3, 3, 4 and 4
  const Cluster cluster = cluster_named("8xtitan-24g");
  SearchOptions options;
  options.global_batch = 64;
  options.memory = 3_GiB;
  options.space = value_or_throw(parse_space("dp,zero1,zero3,tp,pp=4,recompute"));
  const FoundPlan free = found(model, cluster, options);
  REQUIRE(free.feasible);
  REQUIRE(free.statistics.proven);

  SearchOptions even = options;
  even.even_stages = true;
  const FoundPlan evenly = found(model, cluster, even);
  REQUIRE(evenly.feasible);
  std::vector<int> blocks;
  for (const PlanStage& stage : evenly.plan.stages) blocks.push_back(stage.last_layer - stage.first_layer + 1);
  CHECK(blocks == std::vector<int>{3, 3, 4, 4});
  CHECK(free.cost.iteration.value <= evenly.cost.iteration.value * (1 + 1e-9));

  SearchOptions one = options;
  one.one_strategy = true;
  const FoundPlan alike = found(model, cluster, one);
  REQUIRE(alike.feasible);
  REQUIRE(alike.statistics.proven);
  CHECK(free.cost.iteration.value <= alike.cost.iteration.value * (1 + 1e-9));
  CHECK(alike.plan.embedding == alike.plan.head);
  for (const StrategySpec& spec : alike.plan.layers) CHECK(spec == alike.plan.embedding);

  // Of the plans with one strategy and even stages, each priced by itself, none is faster.
  SearchOptions both = even;
  both.one_strategy = true;
  const FoundPlan plain = found(model, cluster, both);
  REQUIRE(plain.feasible);
  double fastest = std::numeric_limits<double>::infinity();
  for (const StrategySpec& spec : strategies(options.space, 2))
    for (const int m : divisors(64)) {
      Plan plan = plain.plan;
      plan.microbatches = m;
      plan.embedding = plan.head = spec;
      plan.layers.assign(model.blocks.size(), spec);
      const auto cost = cost_of(plan, model, cluster);
      if (cost && cost->peak() <= options.memory) fastest = std::min(fastest, cost->iteration.value);
    }
  CHECK(plain.cost.iteration.value == doctest::Approx(fastest).epsilon(1e-9));
  CHECK(evenly.cost.iteration.value <= plain.cost.iteration.value * (1 + 1e-9));
  CHECK(alike.cost.iteration.value <= plain.cost.iteration.value * (1 + 1e-9));
}

TEST_CASE("a space of one strategy for all layers is searched exactly") {
  const ModelSpec model = shortened(model_named("llama2-7b"), 6);
  const Cluster cluster = cluster_named("8xa100-40g");
  for (const std::string space : {"uniform", "megatron", "torchtitan", "deepspeed"})
    for (const Bytes memory : {Bytes{}, Bytes(12_GiB)}) {
      CAPTURE(space);
      SearchOptions options;
      options.global_batch = 8;
      options.memory = memory;
      options.space = value_or_throw(parse_space(space));
      const FoundPlan plan = found(model, cluster, options);
      REQUIRE(plan.feasible);
      CHECK(plan.statistics.proven);
      CHECK(plan.plan.embedding == plan.plan.head);
      for (const StrategySpec& spec : plan.plan.layers) CHECK(spec == plan.plan.embedding);
      // All plans of the space with equal stages, each priced by itself.
      double fastest = std::numeric_limits<double>::infinity();
      for (const int stages : {1, 2})
        for (const StrategySpec& spec : strategies(options.space, 8 / stages)) {
          if (!can_give(options.space.one_for_all, spec, stages, Precision::bf16)) continue;
          for (const int m : {1, 2, 4, 8}) {
            Plan other = plan.plan;
            other.microbatches = m;
            other.stages = even_stages(6, stages, 1, 8 / stages);
            other.embedding = other.head = spec;
            other.layers.assign(6, spec);
            const auto cost = cost_of(other, model, cluster);
            if (cost && cost->peak() <= (memory.count > 0 ? memory : cluster.device.memory))
              fastest = std::min(fastest, cost->iteration.value);
          }
        }
      CHECK(plan.cost.iteration.value <= fastest * (1 + 1e-9));
      if (plan.plan.stages.size() <= 2 && space == "deepspeed")
        CHECK(plan.cost.iteration.value == doctest::Approx(fastest).epsilon(1e-9));
    }
}

TEST_CASE("tensor ranks are strided where gathers of parameters are better kept inside nodes") {
  const ModelSpec model = shortened(model_named("gpt2-tiny"), 2);
  SearchOptions options;
  options.global_batch = 4;
  options.microbatches = 1;
  options.schedules = {ScheduleKind::one_f_one_b};
  options.space = value_or_throw(parse_space("zero3,tp=2,strided,pp,max-pp=2"));
  int with = 0;
  int without = 0;
  // The longer the sequences, the more messages tensor ranks have for the same parameters.
  for (const std::int64_t sequence : {8, 32, 128})
    for (const double bandwidth : {1e9, 50e9, 1000e9}) {
      Cluster cluster = bare(cluster_named("4xv100-32g"), 32_GiB);
      cluster.devices_per_node = 2;
      cluster.across_nodes = {{1e-6}, bandwidth, bandwidth, bandwidth};
      options.sequence = sequence;
      options.memory = cluster.device.memory;
      const FoundPlan best = found(model, cluster, options);
      REQUIRE(best.feasible);
      INFO(sequence << " tokens, " << bandwidth << " bytes/s across: " << plan_words(best.plan));
      CHECK(best.statistics.proven);
      CHECK(best.cost.iteration.value == doctest::Approx(every_plan(model, cluster, options).seconds).epsilon(1e-9));
      const bool strided = std::any_of(best.plan.layers.begin(), best.plan.layers.end(),
                                       [](const StrategySpec& spec) { return spec.strided; });
      ++(strided ? with : without);
      SearchOptions neighbours = options;
      neighbours.space.strided = false;
      const FoundPlan other = found(model, cluster, neighbours);
      REQUIRE(other.feasible);
      if (strided) CHECK(best.cost.iteration.value < other.cost.iteration.value);
      if (!strided) CHECK(best.cost.iteration.value == doctest::Approx(other.cost.iteration.value).epsilon(1e-9));
    }
  CHECK(with > 0);
  CHECK(without > 0);
}

TEST_CASE("a found plan survives its file") {
  SearchOptions options;
  options.global_batch = 64;
  const FoundPlan plan = found(model_named("gpt2-1.5b"), cluster_named("16xa100-40g"), options);
  REQUIRE(plan.feasible);
  CHECK(why_inconsistent(plan.plan) == "");
  const auto again = plan_from_json(to_json(plan.plan), "plan.json");
  REQUIRE(again);
  CHECK(*again == plan.plan);
}

TEST_CASE("questions without an answer say why in one line") {
  const ModelSpec model = model_named("gpt2-tiny");
  const auto refused = [&](SearchOptions options, const Cluster& cluster, const char* part) {
    const auto plan = find_plan(model, cluster, options);
    REQUIRE(!plan);
    CHECK(plan.error().kind == ErrorKind::usage);
    CHECK(plan.error().message.find('\n') == std::string::npos);
    CHECK_MESSAGE(plan.error().message.find(part) != std::string::npos, plan.error().message);
  };
  const Cluster eight = cluster_named("8xa100-40g");
  refused({.global_batch = 0}, eight, "global batch is 0");
  refused({.global_batch = 8, .sequence = 1 << 20}, eight, "takes 1 to");
  refused({.global_batch = 8, .sequence = -1}, eight, "takes 1 to");
  refused({.global_batch = 8, .memory = {-5}}, eight, "positive size");
  refused({.global_batch = 8, .microbatches = 3}, eight, "do not divide");
  refused({.global_batch = 8, .schedules = {}}, eight, "name gpipe, 1f1b");

  const FoundPlan nothing = found(model, cluster_named("7xa100-40g"), {.global_batch = 8});
  CHECK(!nothing.feasible);
  CHECK(!nothing.smallest_memory);
  CHECK(nothing.reason.find("multiply to 7") != std::string::npos);
}

TEST_CASE("a cluster whose figures give no prices is refused, and the search ends") {
  const ModelSpec model = model_named("gpt2-350m");
  for (const double figure : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), 1e-320}) {
    INFO(figure);
    Cluster slow_memory = cluster_named("8xa100-40g");
    slow_memory.device.memory_bandwidth = figure;
    const auto plan = find_plan(model, slow_memory, {.global_batch = 8});
    REQUIRE(!plan);
    CHECK(plan.error().kind == ErrorKind::usage);
    CHECK(plan.error().message.find("no number of seconds") != std::string::npos);
  }
}

TEST_CASE("a 70B model on 1,024 devices is planned with little work and memory") {
  const ModelSpec model = model_named("llama2-70b");
  const Cluster cluster = cluster_named("1024xh100-80g");
  for (const Bytes memory : {80_GiB, 24_GiB, 12_GiB}) {
    SearchOptions options;
    options.global_batch = 1024;
    options.memory = memory;
    const FoundPlan plan = found(model, cluster, options);
    REQUIRE(plan.feasible);
    CHECK(plan.cost.peak() <= memory);
    CHECK(plan.statistics.labels < 5'000'000);  // a tenth of a microsecond each
    CHECK(plan.statistics.bound <= plan.cost.iteration);
    CHECK(plan.statistics.bound.value > 0.7 * plan.cost.iteration.value);
    CHECK(plan.cost.mfu > 0.3);
    CHECK(plan.cost.mfu < 0.7);
  }
}
