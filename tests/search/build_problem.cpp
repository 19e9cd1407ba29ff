// The choices of a case against the counts and prices of each layer and strategy alone: what strategies share is the
// same for all that share it.
#include <galvatron/search/build_problem.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/cost/trainer_json.hpp>
#include <galvatron/model/model.hpp>
#include <galvatron/strategy/spec.hpp>

using namespace galvatron;
using namespace galvatron::search;

namespace {

// The layer of a model that a case's layer of this type is.
const LayerSpec& layer_of(const ModelSpec& model, const Problem& p, std::size_t type) {
  const auto at = std::find(p.layers.begin(), p.layers.end(), static_cast<int>(type)) - p.layers.begin();
  if (at == 0) return model.embedding;
  return at > std::ssize(model.blocks) ? model.head : model.blocks[static_cast<std::size_t>(at - 1)];
}

void check_choice(const Choice& choice, const cost::LayerCounts& counts, const cost::LayerSeconds& seconds) {
  const auto same = [](double shared, Seconds alone) { CHECK(std::abs(shared - alone.value) <= 1e-12 * alone.value); };
  same(choice.forward, seconds.forward);
  same(choice.backward, seconds.backward);
  same(choice.weights, seconds.weights);
  same(choice.synchronise, seconds.synchronise);
  same(choice.update, seconds.update);
  CHECK(choice.states == counts.states.count);
  CHECK(choice.stash == counts.stash.count);
  CHECK(choice.deferred == counts.deferred.count);
  CHECK(choice.input == counts.input.count);
  CHECK(choice.activation == counts.activation.count);
  CHECK(choice.pass_through == counts.pass_through.count);
  CHECK(choice.forward_workspace == counts.forward_workspace.count);
  CHECK(choice.backward_workspace ==
        std::max(counts.backward_workspace.count, counts.weights_workspace.count - counts.activation.count));
}

// Makes cases of one and two stages of sixteen ranks together, whose ranks have equally many samples and so share
// prices, and checks all their choices. Returns how many.
int check_cases(const ModelSpec& model, const cost::Trainer& trainer, bool splits_backward, bool reversed) {
  Cluster cluster = value_or_throw(find_cluster("16xa100-80g"));
  cluster.devices_per_node = 4;  // beyond which tensor ranks may be strided
  Space space;
  for (const LayerSpec& block : model.blocks) space.experts = std::max(space.experts, block.experts);
  SearchOptions options;
  options.global_batch = 64;
  options.sequence = model.positions();
  options.memory = 80_GiB;
  options.trainer = trainer;
  std::vector<search::detail::StageSetting> settings;
  for (const int stages : {1, 2}) {
    std::vector<StrategySpec> specs = strategies(space, 16 / stages, cluster.devices_per_node);
    if (reversed) std::reverse(specs.begin(), specs.end());
    settings.emplace_back(stages, 16 / stages, std::move(specs));
  }
  search::detail::LayerKinds kinds(model);
  kinds.lower(options, settings, splits_backward);
  search::detail::CommonPrices prices(kinds, {4, 8}, options.precision, cluster, 16);
  int checked = 0;
  for (const search::detail::StageSetting& setting : settings) {
    const int microbatches = 4 * setting.stages;
    const cost::Batch batch{.microbatch = options.global_batch / microbatches,
                            .sequence = options.sequence,
                            .precision = options.precision,
                            .microbatches = microbatches,
                            .stages = setting.stages,
                            .splits_backward = splits_backward,
                            .trainer = &trainer.traits};
    const Case made = search::detail::make_case(model, kinds, cluster, options, setting, microbatches, splits_backward,
                                                false, prices);
    for (std::size_t type = 0; type < made.problem.types.size(); ++type)
      for (const Choice& choice : made.problem.types[type]) {
        const StrategySpec& spec = made.specs[static_cast<std::size_t>(choice.tag)];
        const cost::LayerCounts counts = cost::layer_counts(layer_of(model, made.problem, type), spec, batch);
        INFO(setting.stages << " stages, " << strategy_text(spec) << ", layer type " << type);
        check_choice(choice, counts, cost::layer_seconds(counts, spec, batch.precision, cluster, 16));
        ++checked;
      }
  }
  return checked;
}

// Loops on this thread, of which one iteration interrupts the search.
struct InterruptedTeam {
  std::atomic<int> signal{0};
  std::size_t left = 0;

  template <class F>
  void each(std::size_t count, const F& body) {
    for (std::size_t i = 0; i < count; ++i) {
      if (left-- == 0) signal = 1;
      body(i);
    }
  }
};

}  // namespace

TEST_CASE("a search that is interrupted at any time has cases, and each of them is whole") {
  const ModelSpec model = value_or_throw(find_model("gpt2-124m"));
  const Cluster cluster = value_or_throw(find_cluster("24xa100-80g"));
  std::vector<std::size_t> counts;
  bool interrupted = true;
  for (std::size_t after = 0; interrupted; ++after) {
    INFO("interrupted after " << after << " iterations");
    InterruptedTeam team;
    team.left = after;
    SearchOptions options{.global_batch = 96, .memory = 80_GiB, .stop = {.signal = &team.signal}};
    options.schedules.assign(std::begin(schedule_kinds), std::end(schedule_kinds));
    const Cases made = make_cases(model, cluster, value_or_throw(completed(options, model, cluster)), team);
    REQUIRE(!made.cases.empty());
    for (const Case& c : made.cases) {
      CHECK(c.problem.types.size() >= 3);
      CHECK(c.problem.slots.size() >= static_cast<std::size_t>(c.stages()));
    }
    counts.push_back(made.cases.size());
    interrupted = team.signal != 0;
  }
  CHECK(counts.size() > 10);
  CHECK(counts.front() < counts.back());
}

TEST_CASE("every choice costs what its strategy costs for its layer alone, in any order of the strategies") {
  int checked = 0;
  for (const char* const name :
       {"gpt2-124m", "llama2-7b", "t5-large-32", "swin-huge-32", "mixtral-8x7b", "deepseek-v2-lite"}) {
    ModelSpec model = value_or_throw(find_model(name));
    if (model.name == "mixtral-8x7b")  // what it sends depends on how many data ranks there are
      for (LayerSpec& block : model.blocks) block.router.balance_scope = BalanceScope::data_ranks;
    for (const char* const trainer : {"galvatron", "megatron", "megatron-2022", "pytorch-fsdp"})
      for (const bool splits_backward : {false, true})
        for (const bool reversed : {false, true}) {
          INFO(model.name << ", trainer " << std::string(trainer) << (splits_backward ? ", split backward" : ""));
          checked += check_cases(model, *cost::find_trainer(trainer), splits_backward, reversed);
        }
  }
  CHECK(checked > 10000);
}
