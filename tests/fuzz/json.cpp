// Any bytes given to the JSON readers end in a value or a one-line error; what a reader accepts, it reads again from
// what its writer made of it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <galvatron/cluster/json.hpp>
#include <galvatron/cluster/mixed_json.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/plan/json.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto value = galvatron::parse_json(text, "input");
  if (!value) {
    require_one_line(value.error());
    return 0;
  }
  const auto cluster = galvatron::cluster_from_json(*value, "input");
  if (cluster) {
    const auto again = galvatron::cluster_from_json(galvatron::cluster_to_json(*cluster), "written");
    require(again.has_value() && *again == *cluster);
  } else {
    require_one_line(cluster.error());
  }
  const auto mixed = galvatron::mixed_cluster_from_json(*value, "input");
  if (mixed) {
    const auto again = galvatron::mixed_cluster_from_json(galvatron::mixed_cluster_to_json(*mixed), "written");
    require(again.has_value() && *again == *mixed);
  } else {
    require_one_line(mixed.error());
  }
  const auto plan = galvatron::plan_from_json(*value, "input");
  if (plan) {
    const auto again = galvatron::plan_from_json(galvatron::to_json(*plan), "written");
    require(again.has_value() && *again == *plan);
  } else {
    require_one_line(plan.error());
  }
  return 0;
}
