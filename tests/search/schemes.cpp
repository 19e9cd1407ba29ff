// The uniform plans of a case: those that were not evaluated could not have been the best of any scheme.
#include <galvatron/search/schemes.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/model.hpp>
#include <galvatron/search/cases.hpp>
#include <galvatron/search/completed.hpp>
#include <galvatron/search/parallel.hpp>

using namespace galvatron;
using namespace galvatron::search;

namespace {

// The fastest that fits, or the smallest while none does, of plans with a scheme; of all with -1.
struct Best {
  bool fits = false;
  double seconds = 0;
  std::int64_t peak = 0;
  int tag = -1;
  friend bool operator==(const Best&, const Best&) = default;
};

Best best_of(const Case& c, const std::vector<UniformPlan>& plans, int scheme) {
  Best best;
  for (const UniformPlan& plan : plans) {
    const StrategySpec& spec = c.specs[static_cast<std::size_t>(plan.tag)];
    if (scheme >= 0 && !search::detail::schemes[scheme].has(c.stages(), spec)) continue;
    const bool fits = plan.cost.peak <= c.problem.budget;
    const bool better = best.tag < 0        ? true
                        : fits != best.fits ? fits
                        : fits              ? plan.cost.seconds < best.seconds
                                            : plan.cost.peak < best.peak;
    if (better) best = {fits, plan.cost.seconds, plan.cost.peak, plan.tag};
  }
  return best;
}

std::vector<UniformPlan> every_plan(const Case& c) {
  std::vector<UniformPlan> out;
  for (int tag = 0; tag < static_cast<int>(c.specs.size()); ++tag) {
    std::vector<int> choices;
    for (const LayerType& type : c.problem.types)
      for (std::size_t i = 0; i < type.size(); ++i)
        if (type[i].tag == tag) choices.push_back(static_cast<int>(i));
    if (choices.size() < c.problem.types.size()) continue;
    for (UniformPlan& plan : uniform_plans(c.problem, tag, choices)) out.push_back(std::move(plan));
  }
  return out;
}

}  // namespace

TEST_CASE("the best uniform plan of every scheme is among those that are looked at, and few are") {
  std::size_t all_plans = 0;
  std::size_t looked_at = 0;
  Team team(1);
  for (const char* name : {"gpt2-350m", "llama2-7b", "t5-large-32"})
    for (const std::int64_t gib : {2, 12, 80}) {
      const ModelSpec model = value_or_throw(find_model(name));
      const Cluster cluster = value_or_throw(find_cluster("16xa100-80g"));
      SearchOptions options;
      options.global_batch = 32;
      options.memory = {gib << 30};
      for (const Case& c : make_cases(model, cluster, value_or_throw(completed(options, model, cluster)), team)) {
        const std::vector<UniformPlan> all = every_plan(c);
        const std::vector<UniformPlan> some = search::detail::UniformPlans(c).best();
        all_plans += all.size();
        looked_at += some.size();
        INFO(name << " in " << gib << " GiB, " << c.stages() << " stages, " << c.microbatches() << " micro-batches");
        for (int scheme = -1; scheme < static_cast<int>(std::size(search::detail::schemes)); ++scheme)
          CHECK(best_of(c, all, scheme) == best_of(c, some, scheme));
      }
    }
  CHECK(looked_at < all_plans / 2);
}
