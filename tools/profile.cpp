// galvatron profile: this machine as a cluster file.
#include <algorithm>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/json.hpp>
#include <galvatron/cluster/mixed_json.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/model/huggingface.hpp>
#include <galvatron/profile/check.hpp>
#include <galvatron/profile/merge.hpp>

#include "launcher.hpp"
#include "options.hpp"
#include "plans.hpp"

namespace galvatron::tools {

namespace {

// Not of GPUs.
bool is_host(const Cluster& cluster) { return cluster.device.name == "host"; }

struct ProfileArguments {
  train::ProfileOptions profile;
  std::string device = "host";
  std::optional<Precision> precision;
  std::vector<std::string> models;
  std::optional<bool> accepts_busy;
  std::string measure;  // terms with commas
  std::string into;
  std::string out = "cluster.json";
};

// `products,attention`.
std::vector<PriceTerm> terms_named(const std::string& text) {
  std::vector<PriceTerm> out;
  for (const auto part : std::views::split(text, ',')) {
    const std::string name(part.begin(), part.end());
    const auto known = std::ranges::find_if(price_terms, [&](PriceTerm term) { return name == name_of(term); });
    if (known == price_terms.end() || *known == PriceTerm::trainer)
      refuse("--measure: \"", galvatron::detail::one_line(name, 40),
             "\" is not measured; choose from products, attention, memory_bound, inside_node and across_nodes, with "
             "commas between several",
             known != price_terms.end() ? "; what is the trainer's, `galvatron calibrate` learns from its steps" : "");
    out.push_back(*known);
  }
  return out;
}

bool read(const Arguments& arguments, ProfileArguments& a, Common& common) {
  Options options(
      "profile",
      "Measures this machine as a cluster of ranks: matrix products and attention over sizes, memory bandwidth, "
      "messages between ranks, all with every rank at work, and writes a cluster file for `galvatron plan`.");
  options.integer("--ranks", a.profile.ranks, 1, 1024,
                  "ranks to measure with (default: one for each core, or for each GPU)");
  options.choice("--device", a.device, {"host", "cuda"},
                 "what to measure (default: host), also in processes that mpirun has started; cuda: a GPU for each "
                 "rank, over NCCL, also in processes of torchrun, mpirun or srun; more ranks than GPUs share the first "
                 "one");
  options.choice("--precision", a.precision, {Precision::bf16, Precision::fp32, Precision::fp8},
                 "measure only this one, with fp8 bf16 too (default: all that the hardware has)");
  options.number("--seconds", a.profile.time_budget.value, 0.01, 3600,
                 "about how long to measure; less is coarser (default: 35)");
  options.texts("--model", a.models, "M...",
                "measure also the products of these models, with all tensor degrees: presets or config.json files");
  deterministic_option(options, a.profile.deterministic);
  busy_option(options, a.accepts_busy);
  options.flag("--unequal", a.profile.tells_ranks_apart,
               "ranks that differ in speed are groups of a mixed cluster, each with tables of its own");
  options.text(
      "--measure", a.measure, "a,b,...",
      "measure only these, of products, attention, memory_bound, inside_node and across_nodes: what `plan` and "
      "`cost` say would narrow a prediction (JSON: measure)");
  options.text("--into", a.into, "CLUSTER",
               "with --measure: the cluster file or preset whose other figures stay (required then)");
  options.section("Output");
  options.text("--out", a.out, "FILE", "the cluster file (default: cluster.json)");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.flag("--quiet", common.quiet, "show no progress");
  options.examples("Example:\n  galvatron profile --ranks 4 --model gpt2-124m --out cluster.json");
  return options.parse(arguments, common);
}

// "on one NVIDIA H100", "on 8 NVIDIA H100, one each"
std::string place_of(const Cluster& cluster, const std::string& device) {
  if (device == "host")
    return text_of("of ", counted(cluster.threads_per_rank, "thread"), " on ", counted(cluster.cores, "core"));
  if (cluster.devices == 1 || cluster.cores == 1) return "on one " + cluster.device.name;
  return text_of("on ", cluster.devices, " ", cluster.device.name, ", one each");
}

nlohmann::ordered_json rates_of(const DeviceSpec& device) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const PrecisionRate& rate : device.rates) out[name_of(rate.precision)] = rate.peak_flops;
  return out;
}

// Ranks of unequal speed.
void show_groups(const ProfileArguments& a, const Common& common, const MixedCluster& cluster, double took,
                 double others) {
  const ClusterView view(cluster);
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  std::string text = text_of("Measured ", counted(view.devices(), "rank"), " in ", counted(view.count(), "group"),
                             " in ", format_seconds({took}), "\n");
  for (int i = 0; i < view.count(); ++i) {
    const Cluster& group = view.group(i);
    const int first = view.first_device(i);
    groups.push_back({{"ranks", {first, first + group.devices}},
                      {"gemm_flops", rates_of(group.device)},
                      {"memory_bandwidth", group.device.memory_bandwidth}});
    std::string label =
        group.devices == 1 ? text_of("rank ", first) : text_of("ranks ", first, "-", first + group.devices - 1);
    label.resize(17, ' ');
    text += "  " + label;
    for (const PrecisionRate& rate : group.device.rates)
      text += text_of(format_count(rate.peak_flops), "FLOP/s in ", name_of(rate.precision), ", ");
    text += text_of("memory ", format_count(group.device.memory_bandwidth), "B/s\n");
  }
  const UsableMemory free = usable_memory(view.devices());
  if (common.json)
    return print_json({{"cluster", a.out},
                       {"ranks", view.devices()},
                       {"groups", groups},
                       {"rank_memory_bytes", view.group(0).device.memory.count},
                       {"profile_seconds", took},
                       {"free_memory", free.bound},
                       {"others_share", others}});
  if (const std::string busy = train::others_text(others); !busy.empty())
    text += text_of("  disturbed        ", busy, " meanwhile\n");
  print(text + text_of("  written to       ", a.out, "\n"));
}

void profile(ProfileArguments& a, Common& common, Launcher& launcher) {
  if (launcher.shows()) {
    std::vector<NamedFile> read;
    for (const std::string& model : a.models) read.push_back({"--model", model});
    read.push_back({"--into", a.into});
    require_files({{"--out", a.out}}, read);
  } else {
    common.quiet = true;
  }
  if (a.precision) a.profile.precisions = {*a.precision};
  for (const std::string& model : a.models) a.profile.models.push_back(value_or_throw(load_model(model)));
  a.profile.accepts_busy = a.accepts_busy.value_or(false);
  if (a.measure.empty() != a.into.empty())
    refuse(a.into.empty() ? "--measure needs --into, the cluster whose other figures stay"
                          : "--into is for --measure: a whole profile has all figures");
  std::optional<Cluster> base;
  if (!a.measure.empty()) {
    a.profile.terms = terms_named(a.measure);
    base = cluster_named(a.into);
  }
  if (a.profile.tells_ranks_apart && (base || a.device != "host"))
    refuse("--unequal measures all of the ranks of a host; ",
           base ? "leave --measure and --into out"
                : "write the profiles of unequal cards into one file, as groups of a mixed cluster");

  const double start = steady_seconds();
  auto [measured_cluster, others] = measured(launcher, a.profile, common);
  const double took = steady_seconds() - start;
  if (!launcher.shows()) return;
  if (ClusterView(measured_cluster).is_mixed()) {
    value_or_throw(write_mixed_cluster(a.out, measured_cluster));
    return show_groups(a, common, measured_cluster, took, others);
  }
  Cluster cluster = std::move(measured_cluster.groups.front());
  if (base) {
    cluster = value_or_throw(train::with_measured(std::move(*base), std::move(cluster), a.profile.terms));
    if (cluster.calibration.exists() && cluster.calibration.terms == Calibration{}.terms) cluster.calibration = {};
  }
  value_or_throw(write_cluster(a.out, cluster));

  const UsableMemory free = is_host(cluster) ? usable_memory(cluster.devices) : UsableMemory{};
  if (common.json) {
    nlohmann::ordered_json out{{"cluster", a.out},
                               {"ranks", cluster.devices},
                               {"cores", cluster.cores},
                               {"threads_per_rank", cluster.threads_per_rank},
                               {"gemm_flops", rates_of(cluster.device)},
                               {"memory_bandwidth", cluster.device.memory_bandwidth},
                               {"all_reduce_bandwidth", cluster.inside_node.all_reduce_bandwidth},
                               {"overlap_slowdown", cluster.overlap_slowdown},
                               {"rank_memory_bytes", cluster.device.memory.count},
                               {"profile_seconds", took}};
    if (is_host(cluster)) {
      out["free_memory"] = free.bound;
      out["others_share"] = others;
    }
    print_json(out);
    return;
  }
  std::string text = text_of("Measured ", counted(cluster.devices, "rank"), " ", place_of(cluster, a.device), " in ",
                             format_seconds({took}), "\n");
  const auto line = [&](std::string label, const auto&... what) {
    label.resize(19, ' ');
    text += text_of("  ", label, what..., "\n");
  };
  for (const PrecisionRate& rate : cluster.device.rates)
    line("matrix products", format_count(rate.peak_flops), "FLOP/s in ", name_of(rate.precision), " (one rank alone)");
  line("memory", format_count(cluster.device.memory_bandwidth), "B/s (one rank alone)");
  const auto all_reduce = [&](const Link& link, int count, const char* what) {
    line("all-reduce", format_count(link.all_reduce_bandwidth), "B/s bus bandwidth of ", count, what);
  };
  if (cluster.devices_per_node > 1) all_reduce(cluster.inside_node, cluster.devices_per_node, " ranks");
  if (cluster.nodes() > 1) all_reduce(cluster.across_nodes, cluster.nodes(), " machines");
  line("free memory", format_bytes(cluster.device.memory), " a rank", free.bound.empty() ? "" : ": ", free.bound);
  if (const std::string busy = train::others_text(others); !busy.empty()) line("disturbed", busy, " meanwhile");
  line("written to", a.out);
  print(text);
}

}  // namespace

void deterministic_option(Options& options, bool& deterministic) {
  options.choice_of("--deterministic", deterministic, {{"on", true}, {"off", false}},
                    "with --device cuda: the same bits every time; off, gradients of attention come faster and differ "
                    "by their rounding (default: on)");
}

void busy_option(Options& options, std::optional<bool>& accepts_busy, const std::string& when) {
  options.choice_of(
      "--on-busy", accepts_busy, {{"refuse", false}, {"accept", true}},
      when +
          "what to do with a profile during which other programs took more than half of the cores all the time, or "
          "that has figures of no machine: refuse it (exit code 4) or accept it (default: refuse)");
}

std::pair<MixedCluster, double> measured(const Launcher& launcher, train::ProfileOptions options,
                                         const Common& common) {
  Progress progress = error_progress("profile", common);
  double others = 0;
  options.progress = [&](const train::ProfileProgress& now) {
    others = now.others;
    progress.update(now.share, now.step);
  };
  MixedCluster cluster = launcher.profile(options);
  const Cluster& first = cluster.groups.front();
  if (is_host(first) && launcher.shows())
    if (const std::string why = train::why_doubtful(first, others); !why.empty())
      progress.say("The profile is doubtful: " + why + ".");
  return {std::move(cluster), others};
}

void run_profile(const Arguments& arguments, Common& common) {
  ProfileArguments a;
  bool wanted = false;
  run_alike([&] { wanted = read(arguments, a, common); });
  if (!wanted) return;
  if (a.device == "cuda") {
    run_on_gpus(common, [&](Launcher& gpus) { profile(a, common, gpus); });
  } else if (started_by_mpirun()) {
    run_as_rank(common, [&](Launcher& processes) {
      profile(a, common, processes);
      return 0;
    });
  } else {
    ThreadLauncher threads;
    profile(a, common, threads);
  }
}

}  // namespace galvatron::tools
