// Any bytes given to the reader of Spindle's cases end in a problem or a one-line error; of what it accepts a plan is
// found that is one, not below its bound and not above the greedy waves.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <galvatron/core/json.hpp>
#include <galvatron/spindle/json.hpp>
#include <galvatron/spindle/place.hpp>
#include <galvatron/spindle/solve.hpp>
#include <galvatron/spindle/terms_json.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galvatron;
  const auto value = parse_json(std::string_view(reinterpret_cast<const char*>(data), size), "input");
  if (!value) {
    require_one_line(value.error());
    return 0;
  }
  const auto problem = spindle::problem_from_json(*value, "input");
  if (!problem) {
    require_one_line(problem.error());
    return 0;
  }
  if (value->contains("terms")) {
    const auto terms = spindle::terms_from_json(*value, "input", *problem);
    if (!terms) require_one_line(terms.error());
    if (terms && problem->devices <= 64 && problem->count() <= 16) {
      const auto placed = spindle::best_placed_plan(*problem, *terms, {.steps = 100'000});
      if (!placed) require_one_line(placed.error());
      if (placed) require(spindle::wrong_with(*problem, placed->plan.waves).empty());
      if (placed) require(placed->price.seconds >= placed->plan.bound * (1 - 1e-9));
    }
  }
  const spindle::Plan plan = spindle::best_plan(*problem, {.steps = 200'000});
  require(spindle::wrong_with(*problem, plan.waves).empty());
  require(plan.bound <= plan.seconds);
  require(spindle::continuous_seconds(*problem) > 0);
  const std::vector<spindle::Wave> greedy = spindle::greedy_waves(*problem, true);
  require(spindle::wrong_with(*problem, greedy).empty());
  require(plan.seconds <= spindle::waves_seconds(greedy) * (1 + 1e-9));
  return 0;
}
