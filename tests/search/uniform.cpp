// The uniform plans of a case: what is not evaluated could not have been the best of any scheme.
#include <galvatron/search/uniform.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/model.hpp>
#include <galvatron/search/build_problem.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/strategy/schemes.hpp>

using namespace galvatron;
using namespace galvatron::search;

namespace {

// The best so far of the plans with a scheme: the fastest that fits, or the smallest while none does.
struct Best {
  bool fits = false;
  double seconds = std::numeric_limits<double>::infinity();
  std::int64_t peak = std::numeric_limits<std::int64_t>::max();

  [[nodiscard]] bool wants(double other_seconds, std::int64_t other_peak, std::int64_t budget) const {
    if (other_peak > budget) return !fits && other_peak < peak;
    return !fits || other_seconds < seconds;
  }
  void offer(double other_seconds, std::int64_t other_peak, std::int64_t budget) {
    if (wants(other_seconds, other_peak, budget)) *this = {other_peak <= budget, other_seconds, other_peak};
  }
  friend bool operator==(const Best&, const Best&) = default;
};

}  // namespace

TEST_CASE("no uniform plan takes less than its bounds say, and few need an evaluation") {
  std::size_t all_plans = 0;
  std::size_t looked_at = 0;
  Team team(1);
  for (const char* name : {"gpt2-350m", "llama2-7b", "t5-large-32", "moe-tiny"})
    for (const std::int64_t gib : {2, 12, 80}) {
      const ModelSpec model = value_or_throw(find_model(name));
      const Cluster cluster = value_or_throw(find_cluster("16xa100-80g"));
      SearchOptions options;
      options.global_batch = 32;
      options.memory = {gib << 30};
      const Cases made = make_cases(model, cluster, value_or_throw(completed(options, model, cluster)), team);
      for (const Case& c : made.cases) {
        INFO(name << " in " << gib << " GiB, " << c.stages() << " stages, " << c.microbatches() << " micro-batches");
        const std::int64_t budget = c.problem.budget;
        const UniformBounds bounds(c);
        std::array<Best, std::size(schemes) + 1> all;  // the last of every plan
        std::array<Best, std::size(schemes) + 1> some;
        for (std::size_t tag = 0; tag < c.specs.size(); ++tag) {
          std::vector<int> choices;
          const bool found = bounds.find_choices(static_cast<int>(tag), choices);
          std::size_t with_tag = 0;
          for (std::size_t i = 0; i < c.problem.types.size(); ++i) {
            const int own = c.same[i].empty() ? static_cast<int>(tag) : c.same[i][tag];
            with_tag += static_cast<std::size_t>(
                std::ranges::count_if(c.problem.types[i], [&](const Choice& one) { return one.tag == own; }));
          }
          CHECK(found == (with_tag == c.problem.types.size()));
          if (!found) continue;
          const Evaluation least = bounds.least(choices);
          const std::vector<Solution> plans = uniform_plans(c.problem, choices);
          all_plans += plans.size();
          bool wanted = false;
          for (std::size_t i = 0; i < all.size(); ++i) {
            const bool has = i + 1 == all.size() || schemes[i].has(c.stages(), c.specs[tag]);
            if (has) wanted |= some[i].wants(least.seconds, least.peak, budget);
          }
          looked_at += wanted ? plans.size() : 0;
          for (const Solution& plan : plans) {
            CHECK(least.seconds <= plan.cost.seconds);
            CHECK(least.peak <= plan.cost.peak);
            for (std::size_t i = 0; i < all.size(); ++i) {
              if (i + 1 < all.size() && !schemes[i].has(c.stages(), c.specs[tag])) continue;
              all[i].offer(plan.cost.seconds, plan.cost.peak, budget);
              if (wanted) some[i].offer(plan.cost.seconds, plan.cost.peak, budget);
            }
          }
        }
        CHECK(all == some);
      }
    }
  CHECK(looked_at < all_plans / 2);
}
