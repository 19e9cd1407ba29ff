// Any bytes given to the readers of coefficients and of lengths end in a value or a one-line error; of what they accept
// a plan can be made that has every document once. The parts of an input are the keys "problem" and "lengths", a text.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <galvatron/core/json.hpp>
#include <galvatron/flexsp/baselines.hpp>
#include <galvatron/flexsp/coefficients.hpp>
#include <galvatron/flexsp/json.hpp>
#include <galvatron/flexsp/lengths.hpp>
#include <galvatron/flexsp/solve.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galvatron;
  const auto value = parse_json(std::string_view(reinterpret_cast<const char*>(data), size), "input");
  if (!value) {
    require_one_line(value.error());
    return 0;
  }
  if (!value->is_object()) return 0;
  const nlohmann::json problem_value = value->value("problem", nlohmann::json());
  const auto coefficients = flexsp::coefficients_from_json(problem_value, "problem");
  if (!coefficients) require_one_line(coefficients.error());
  const auto text = value->find("lengths");
  if (text == value->end() || !text->is_string()) return 0;
  const auto lengths = flexsp::lengths_from_text(text->get_ref<const std::string&>(), "lengths");
  if (!lengths) require_one_line(lengths.error());
  if (!coefficients || !lengths || coefficients->devices > 64 || lengths->size() > 32) return 0;
  for (const bool any : {false, true}) {
    const flexsp::Problem problem = flexsp::problem_of(*coefficients, 8, any);
    flexsp::Limits limits = flexsp::Limits::quick();
    limits.work = 20'000;
    limits.bound_work = 20'000;
    const auto plan = flexsp::solve(problem, *lengths, limits);
    const std::int64_t longest = *std::max_element(lengths->begin(), lengths->end());
    require(plan.has_value() == (longest <= problem.longest()));
    if (!plan) continue;
    std::size_t documents = 0;
    for (const auto& microbatch : plan->microbatches)
      for (const auto& group : microbatch.groups) documents += group.lengths.size();
    require(documents == lengths->size());
    require(plan->bound <= plan->seconds);
    const auto homogeneous = flexsp::adaptive_plan(problem, *lengths);
    require(homogeneous.has_value());
  }
  return 0;
}
