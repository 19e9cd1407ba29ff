// galvatron calibrate: where measured steps differ from the model of cost, term by term, and a cluster file of it.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/compat/runs/measured_runs.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/files.hpp>
#include <galvatron/plan/calibrate.hpp>
#include <galvatron/plan/compiled.hpp>

#include "plans.hpp"

namespace galvatron::tools {

namespace {

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[16];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &parts)};
}

/// Of the runs' plans.
std::string trainers_of(const std::vector<MeasuredRun>& runs) {
  std::set<std::string> names;
  for (const MeasuredRun& run : runs) names.insert(run.plan.trainer.name);
  return joined(names);
}

const char* verdict_on(const TermEstimate& term) {
  return !term.occurs() ? "hidden" : term.is_learned() ? "learned" : term.is_unknown() ? "unknown" : "partly";
}

/// What would tell the terms of a group apart: the measurement of the one that matters most.
std::string advice_on(const std::vector<std::size_t>& group, const CalibrationReport& report) {
  const auto doubt = [&](std::size_t j) {
    return report.terms[j].term ? report.terms[j].share * report.terms[j].value.spread : -1;
  };
  const std::size_t widest = *std::ranges::max_element(group, {}, doubt);
  return what_to_measure(price_term_of(*report.terms[widest].term));
}

nlohmann::ordered_json report_json(const CalibrationReport& report, const std::vector<MeasuredRun>& runs) {
  nlohmann::ordered_json out{{"median_error", report.median_error(&RunComparison::error)},
                             {"calibrated_median_error", report.median_error(&RunComparison::calibrated_error)},
                             {"held_out_median_error", report.median_error(&RunComparison::held_out_error)},
                             {"noise", report.noise},
                             {"spread_scale", report.scale}};
  for (const TermEstimate& term : report.terms) {
    nlohmann::ordered_json says = nlohmann::ordered_json::array();
    for (const RunWeight& each : term.runs) says.push_back({{"run", runs[each.run].name}, {"weight", each.weight}});
    out["terms"].push_back({{"term", term.name},
                            {"share", term.share},
                            {"factor", term.value.factor},
                            {"interval", {term.low(), term.high()}},
                            {"spread", term.value.spread},
                            {"resolution", term.value.resolution},
                            {"verdict", verdict_on(term)},
                            {"runs", std::move(says)}});
  }
  out["not_told_apart"] = nlohmann::ordered_json::array();
  for (const auto& group : report.alike) {
    nlohmann::ordered_json names = nlohmann::ordered_json::array();
    for (const std::size_t j : group) names.push_back(report.terms[j].name);
    out["not_told_apart"].push_back({{"terms", std::move(names)}, {"measure", advice_on(group, report)}});
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunComparison& run = report.runs[i];
    out["runs"].push_back({{"name", runs[i].name},
                           {"measured_seconds", runs[i].seconds.value},
                           {"predicted_seconds", run.predicted.value},
                           {"calibrated_seconds", run.calibrated.value},
                           {"error", run.error},
                           {"calibrated_error", run.calibrated_error},
                           {"held_out_error", run.held_out_error},
                           {"outlier", run.is_outlier}});
  }
  return out;
}

std::string signed_percent(double share) { return (share > 0 ? "+" : "") + percent(share); }

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

std::string report_text(const CalibrationReport& report, const std::vector<MeasuredRun>& runs,
                        const std::string& cluster) {
  const auto slow = std::ranges::count_if(report.runs, [](const RunComparison& run) { return run.error > 0; });
  std::string out = text_of(
      counted(static_cast<int>(runs.size()), "run"), " on ", cluster, " with ", trainers_of(runs), ": predictions are ",
      percent(report.median_error(&RunComparison::error)), " off in the median (", slow, " too long, ",
      static_cast<std::ptrdiff_t>(runs.size()) - slow, " too short), with these factors ",
      percent(report.median_error(&RunComparison::calibrated_error)), ", and ",
      percent(report.median_error(&RunComparison::held_out_error)), " where a run is predicted from the others\n");
  std::vector<std::size_t> order;
  std::vector<std::string> hidden;
  for (std::size_t j = 0; j < report.terms.size(); ++j) {
    if (report.terms[j].occurs())
      order.push_back(j);
    else
      hidden.push_back(report.terms[j].name);
  }
  std::ranges::stable_sort(order, std::greater<>{}, [&](std::size_t j) { return report.terms[j].share; });
  out += "  term                       of a step   factor   90 %              evidence\n";
  for (const std::size_t j : order) {
    const TermEstimate& term = report.terms[j];
    std::string name = term.name;
    name.resize(25, ' ');
    std::string range = detail::formatted("%.3f", term.low()) + " to " + detail::formatted("%.3f", term.high());
    range.resize(17, ' ');
    out += "  " + name + padded(percent(term.share), 11) + padded(detail::formatted("%.3f", term.value.factor), 9) +
           "   " + range + " " +
           (term.is_unknown() ? "none: assumed"
                              : (term.is_learned() ? "learned, mostly from " : "partly, mostly from ") +
                                    joined(term.runs, ", ", [&](const RunWeight& r) { return runs[r.run].name; })) +
           "\n";
  }
  for (const auto& group : report.alike)
    out += row("not apart",
               joined(
                   group, ", ", [&](std::size_t j) { return report.terms[j].name; }, " and "),
               ": the runs tell a weighted sum of these; what would separate them: ", advice_on(group, report));
  if (!hidden.empty()) out += row("no part", "no step waits for ", joined(hidden));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunComparison& run = report.runs[i];
    out += row(runs[i].name, format_seconds(runs[i].seconds), " measured, ", format_seconds(run.predicted),
               " predicted (", signed_percent(run.error), "), ", format_seconds(run.calibrated), " with the factors (",
               signed_percent(run.calibrated_error), ")",
               run.is_outlier ? ": no factors explain it beside the others, look at this run" : "");
  }
  return out;
}

}  // namespace

void run_calibrate(const Arguments& arguments, Common& common) {
  Options options("calibrate",
                  "Compares steps that you have measured with their predictions, and tells term by term where the "
                  "machine differs from the model of cost, how surely, and which terms the runs cannot tell apart.");
  std::string path;
  std::string cluster_name;
  std::string model_name;
  std::string trainer;
  std::string apply;
  std::optional<Precision> precision;
  RunDefaults defaults;
  options.section("What was measured");
  options.require(options.text("--runs", path, "FILE",
                               "a table, CSV or JSON, of runs: a plan file or the strategy, and the seconds of a step "
                               "(docs/calibrate.md)"));
  options.require(options.text("--cluster", cluster_name, "CLUSTER", "a preset or a cluster file"));
  options.text("--model", model_name, "MODEL",
               "of runs that do not name one: a preset or a config.json (default: that of a run's plan)");
  options.text("--trainer", trainer, "NAME|FILE",
               "whose code ran: " + joined(cost::trainer_names()) + " (default: that of a plan, or galvatron)");
  options.choice("--precision", precision, {Precision::bf16, Precision::fp32, Precision::fp8},
                 "of runs that do not say it (default: bf16 where the devices have it)");
  options.integer("--seq", defaults.sequence, 1, 1 << 24,
                  "tokens of a sample of runs that do not say it (default: all the model takes)");
  options.section("Output");
  options.text("--apply", apply, "FILE", "write a cluster file with what was learned, for --cluster of other commands");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.examples(
      "Example:\n  galvatron calibrate --runs runs.csv --model llama2-7b --cluster 32xa100-80g \\\n      --trainer "
      "megatron --apply ours.json");
  if (!options.parse(arguments, common)) return;
  require_files({{"--apply", apply}}, {{"--runs", path}, {"--cluster", cluster_name}, {"--model", model_name}});

  const Cluster cluster = cluster_named(cluster_name);
  if (cluster.calibration.exists())
    note(common, cluster_name, " was calibrated on ", cluster.calibration.date,
         ": factors are of its figures, and take the place of those");
  defaults.model = model_name;
  if (!trainer.empty()) defaults.trainer = value_or_throw(cost::load_trainer(trainer));
  defaults.precision = chosen_precision(precision, cluster);
  defaults.find_model = [](const std::string& name) { return load_model(name); };
  defaults.read_plan = [&](const std::string& name) { return read_plan(path_from_file(name, path)); };
  const std::vector<MeasuredRun> runs =
      value_or_throw(measured_runs(value_or_throw(read_text_file(path, std::int64_t{16} << 20)), path, defaults));
  const CalibrationReport report = value_or_throw(calibrate(runs, cluster));
  if (!apply.empty())
    value_or_throw(write_cluster(apply, calibrated_cluster(cluster, report, today(), trainers_of(runs), path)));
  if (common.json) {
    nlohmann::ordered_json out = report_json(report, runs);
    out["applied"] = apply.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(apply);
    print_json(out);
  } else {
    print(report_text(report, runs, cluster_name) + (apply.empty() ? "" : row("written to", apply)));
  }
}

}  // namespace galvatron::tools
