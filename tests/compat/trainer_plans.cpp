// Plans that a search proposes for another trainer are plans that its exporter can write, whole.
#include <galvatron/compat/export/export.hpp>

#include <doctest/doctest.h>

#include <string>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/cost/trainer_json.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/compiled.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/search/trainer_space.hpp>

using namespace galvatron;

TEST_CASE("no plan is proposed that its trainer cannot be told") {
  struct Asked {
    const char* model;
    const char* cluster;
    std::int64_t batch;
  };
  int plans = 0;
  for (const Asked& asked :
       {Asked{"gpt2-1.5b", "8xa100-40g", 64}, {"llama2-13b", "32xa100-80g", 128}, {"gpt3-175b", "256xh100-80g", 512}}) {
    const ModelSpec model = value_or_throw(find_model(asked.model));
    const Cluster cluster = value_or_throw(find_cluster(asked.cluster));
    for (const std::string& name : cost::trainer_names()) {
      SearchOptions options{.global_batch = asked.batch};
      options.trainer = *cost::find_trainer(name);
      options.schedules = {ScheduleKind::one_f_one_b, ScheduleKind::interleaved};
      options.time = 5;
      const OneForAll target = options.trainer.expressible.target;
      if (target == OneForAll::no) continue;
      options = search::within_trainer(std::move(options));
      CHECK_FALSE(search::leaves_trainer(options));
      const FoundPlan found = value_or_throw(find_plan(model, cluster, options));
      if (!found.feasible) continue;
      INFO(name << " on " << asked.cluster << ": " << plan_words(found.plan));
      ++plans;
      const Exported exported = value_or_throw(export_plan(found.plan, target, &model));
      CHECK(exported.not_expressed == std::vector<std::string>{});
      CHECK(why_not_run(exported, model, target).empty());
      CHECK(found.cost.peak() + reserve_of(found.plan, cluster) <= cluster.device.memory);
      const cost::Expressible& told = options.trainer.expressible;
      for (const StrategySpec& spec : found.plan.layers) {
        CHECK(spec == found.plan.layers.front());
        CHECK((spec.shards() == 1 || told.zero[static_cast<std::size_t>(spec.zero)]));
        CHECK((told.context || spec.context == 1));
        CHECK((told.tensor || spec.tensor == 1));
      }
      CHECK((told.pipeline || found.plan.stages.size() == 1));
    }
  }
  CHECK(plans > 20);
}
