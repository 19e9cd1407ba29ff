// Any bytes given to the reader of measured runs end in runs or a one-line error; what a few of them say is finite.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/compat/runs/measured_runs.hpp>
#include <galvatron/model/zoo.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galvatron;
  static const Cluster cluster = value_or_throw(find_cluster("16xa100-80g"));
  RunDefaults defaults;
  defaults.model = "gpt2-tiny";
  defaults.find_model = [](const std::string& name) { return find_model(name); };
  defaults.read_plan = [](const std::string&) -> Result<Plan> { return usage_error("there is no such plan"); };
  const auto runs = measured_runs(std::string_view(reinterpret_cast<const char*>(data), size), "input", defaults);
  if (!runs) {
    require_one_line(runs.error());
    return 0;
  }
  require(!runs->empty() && runs->size() <= most_measured_runs);
  for (const MeasuredRun& run : *runs) {
    require(run.model && run.seconds.value > 0 && run.spread >= 0);
    require(run.plan.ranks() >= 1 && run.plan.microbatches >= 1);
  }
  const auto is_large = [](const MeasuredRun& run) {
    return run.model->blocks.size() > 16 || run.plan.microbatches > 64;
  };
  if (runs->size() > 3 || std::ranges::any_of(*runs, is_large)) return 0;
  const auto report = calibrate(*runs, cluster);
  if (!report) {
    require_one_line(report.error());
    return 0;
  }
  for (const TermEstimate& term : report->terms) {
    require(std::isfinite(term.value.factor) && term.value.factor > 0);
    require(std::isfinite(term.value.spread) && term.value.resolution >= 0 && term.value.resolution <= 1);
  }
  for (const RunComparison& run : report->runs)
    require(std::isfinite(run.calibrated.value) && run.calibrated.value > 0);
  return 0;
}
