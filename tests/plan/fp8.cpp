// Plans of precision fp8: where they pay, and where there are none.
#include <string>

#include <doctest/doctest.h>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/compiled.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/find.hpp>

namespace {

using namespace galvatron;

Cluster preset(const std::string& name) { return value_or_throw(find_cluster(name)); }

}  // namespace

TEST_CASE("large models are faster in fp8 where the devices have it; elsewhere there is no such plan") {
  const ModelSpec model = value_or_throw(find_model("gpt-6.7b"));
  search::SearchOptions options;
  options.global_batch = 64;
  options.precision = Precision::bf16;
  const Cluster h100 = preset("8xh100-80g");
  const FoundPlan plain = value_or_throw(find_plan(model, h100, options));
  options.precision = Precision::fp8;
  const FoundPlan rounded = value_or_throw(find_plan(model, h100, options));
  REQUIRE(plain.feasible);
  REQUIRE(rounded.feasible);
  const double gain = plain.cost.iteration.value / rounded.cost.iteration.value;
  MESSAGE("gpt-6.7b on 8 H100: fp8 is " << gain << " times as fast as bf16");
  CHECK(gain > 1.1);
  CHECK(gain < 1.7);
  const FoundPlan none = value_or_throw(find_plan(model, preset("8xa100-80g"), options));
  CHECK_FALSE(none.feasible);
  CHECK(none.reason == "the devices of 8xa100-80g have no 8-bit products; plan with --precision bf16");
  const auto priced = cost_of(rounded.plan, model, preset("8xa100-80g"));
  REQUIRE_FALSE(priced.has_value());
  CHECK(priced.error().kind == ErrorKind::infeasible);
}
