// Any bytes given to the readers of Hetu-Galvatron's files end in a value or a one-line error; what they accept can be
// priced and searched without a fault, and a plan reads again from what its writer made of it. The parts of an input
// are the keys "hardware", "computation", "memory" and "plan".
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <galvatron/compat/hetu/files.hpp>
#include <galvatron/compat/hetu/search.hpp>
#include <galvatron/core/json.hpp>

#include "require.hpp"

namespace {
template <class T>
bool read(const galvatron::Result<T>& result) {
  if (!result) require_one_line(result.error());
  return result.has_value();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galvatron;
  const auto value = parse_json(std::string_view(reinterpret_cast<const char*>(data), size), "input");
  if (!read(value)) return 0;
  const auto part = [&](const char* key) {
    return value->is_object() && value->contains(key) ? value->at(key) : nlohmann::json();
  };
  const nlohmann::json plan_value = part("plan");
  const auto hardware = hetu_hardware_from_json(part("hardware"), "hardware");
  const auto plan = hetu_plan_from_json(plan_value, "plan");
  const bool has_hardware = read(hardware);
  cost::hetu::Job job;
  job.devices = 8;
  job.global_batch = 16;
  job.hidden = 4096;
  job.sequence = 2048;
  job.layers = 4;
  job.memory_gigabytes = 16;
  if (read(plan)) {
    const auto again = hetu_plan_from_json(hetu_plan_json(plan->plan, job), "written");
    require(again.has_value() && again->plan == plan->plan);
  }
  for (const auto mode : {cost::hetu::TimeMode::batch, cost::hetu::TimeMode::sequence, cost::hetu::TimeMode::fixed}) {
    HetuProfileOptions options;
    options.sequence = job.sequence;
    options.time = mode;
    options.memory_over_sequence = mode == cost::hetu::TimeMode::sequence;
    const auto profile = hetu_model_from_json(part("computation"), "times", part("memory"), "memory", options);
    if (!read(profile) || !has_hardware) continue;
    const cost::hetu::Model model(job, *hardware, *profile);
    if (plan) read(cost::hetu::price(model, plan->plan));
    const auto found = search::hetu::search(model, {});
    if (read(found) && found->feasible) require(found->price.iteration.value > 0);
  }
  return 0;
}
