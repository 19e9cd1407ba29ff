// Any bytes given to the readers of graphs and clusters end in a value or a one-line error; of what they accept
// programs are found that can be executed and cost what is said. The parts of an input are the keys "graph" and
// "cluster".
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <galvatron/core/json.hpp>
#include <galvatron/hap/joint.hpp>
#include <galvatron/hap/json.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galvatron;
  const auto value = parse_json(std::string_view(reinterpret_cast<const char*>(data), size), "input");
  if (!value) {
    require_one_line(value.error());
    return 0;
  }
  if (!value->is_object()) return 0;
  const auto devices = hap::devices_from_json(value->value("cluster", nlohmann::json()), "cluster");
  if (!devices) require_one_line(devices.error());
  std::optional<hap::Graph> graph;
  try {
    graph = hap::graph_from_json(value->value("graph", nlohmann::json()), "graph");
  } catch (const Failure& failure) {
    require_one_line({failure.kind(), failure.what()});
  }
  if (!devices || !graph || devices->count() > 16 || graph->nodes.size() > 16) return 0;
  for (const hap::Dialect dialect : {hap::Dialect::paper, hap::Dialect::released}) {
    const hap::Prices prices(*graph, *devices, dialect);
    const hap::Instance instance(prices);
    const auto found = hap::best_program_and_ratios(instance, {.states = 200});
    if (!found) continue;
    require(found->bound <= found->seconds);
    const auto seconds = hap::seconds_of(prices, found->program, found->ratios, hap::CostModel::operations);
    require(seconds.has_value());
    require(std::abs(*seconds - found->seconds) <= 1e-9 * found->seconds);
  }
  return 0;
}
