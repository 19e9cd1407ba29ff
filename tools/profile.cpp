// galvatron profile: this machine as a cluster file.
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/json.hpp>
#include <galvatron/cluster/json_writer.hpp>
#include <galvatron/core/quantity.hpp>

#include "commands.hpp"
#include "launcher.hpp"
#include "options.hpp"

namespace galvatron::tools {

Cluster measured(const Launcher& launcher, int ranks, double seconds, const std::vector<Precision>& precisions,
                 const Common& common) {
  ErrorProgress progress("profile", common);
  galvatron::train::ProfileOptions options;
  options.ranks = ranks;
  options.time_budget = {seconds};
  options.precisions = precisions;
  options.progress = [&progress](const galvatron::train::ProfileProgress& now) {
    progress.update(now.share, now.step);
  };
  return launcher.profile(options);
}

void run_profile(const Arguments& arguments, Common& common) {
  Options options("profile",
                  "Measures this machine as a cluster of ranks: matrix products and attention over sizes, memory "
                  "bandwidth, messages between ranks, all with every rank at work, and writes a cluster file for "
                  "`galvatron plan`.");
  int ranks = 0;
  double seconds = 35;
  std::string device = "host";
  std::string precision;
  std::string out = "cluster.json";
  options.integer("--ranks", ranks, 1, 1024, "ranks to measure with (default: one for each core, one on a GPU)");
  options.choice("--device", device, {"host", "cuda"}, "what to measure (default: host)");
  options.choice("--precision", precision, {"bf16", "fp32"}, "measure only this one (default: all there are)");
  options.number("--seconds", seconds, 0.01, 3600, "about how long to measure; less is coarser (default: 35)");
  options.section("Output");
  options.text("--out", out, "FILE", "the cluster file (default: cluster.json)");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.flag("--quiet", common.quiet, "show no progress");
  options.examples("Example:\n  galvatron profile --ranks 4 --out cluster.json");
  if (options.parse(arguments) == Options::Outcome::help_shown) return;
  require_output(common);
  std::unique_ptr<Launcher> launcher;
  if (device == "cuda")
    launcher = gpu_launcher();
  else
    launcher = std::make_unique<ThreadLauncher>();
  require_writable(out, "--out");
  std::vector<Precision> precisions;
  if (!precision.empty()) precisions.push_back(precision == "fp32" ? Precision::fp32 : Precision::bf16);

  const double start = Progress::steady_seconds();
  const Cluster cluster = measured(*launcher, ranks, seconds, precisions, common);
  const double took = Progress::steady_seconds() - start;
  if (auto written = write_cluster(out, cluster); !written) throw_error(written.error());

  if (common.json) {
    nlohmann::ordered_json rates = nlohmann::ordered_json::object();
    for (const PrecisionRate& rate : cluster.device.rates) rates[name_of(rate.precision)] = rate.peak_flops;
    print_json({{"cluster", out},
                {"ranks", cluster.devices},
                {"cores", cluster.cores},
                {"threads_per_rank", cluster.threads_per_rank},
                {"gemm_flops", rates},
                {"memory_bandwidth", cluster.device.memory_bandwidth},
                {"all_reduce_bandwidth", cluster.inside_node.all_reduce_bandwidth},
                {"overlap_slowdown", cluster.overlap_slowdown},
                {"profile_seconds", took}});
    return;
  }
  const auto counted = [](int n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); };
  const std::string where =
      device == "cuda" ? " on one " + cluster.device.name
                       : " of " + counted(cluster.threads_per_rank, "thread") + " on " + counted(cluster.cores, "core");
  std::string text = "Measured " + counted(cluster.devices, "rank") + where + " in " + format_seconds({took}) + "\n";
  for (const PrecisionRate& rate : cluster.device.rates)
    text += "  matrix products    " + format_count(rate.peak_flops) + "FLOP/s in " + name_of(rate.precision) +
            " (one rank alone)\n";
  text += "  memory             " + format_count(cluster.device.memory_bandwidth) + "B/s (one rank alone)\n";
  if (cluster.devices > 1)
    text += "  all-reduce         " + format_count(cluster.inside_node.all_reduce_bandwidth) + "B/s bus bandwidth of " +
            std::to_string(cluster.devices) + " ranks\n";
  text += "  written to         " + out + "\n";
  print(text);
}

}  // namespace galvatron::tools
