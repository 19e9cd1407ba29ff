// galvatron simulate: a plan replayed, as figures, a trace and a report.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/files.hpp>
#include <galvatron/simulate/simulate.hpp>

#include "options.hpp"
#include "packed_step.hpp"
#include "plans.hpp"
#include "report/report.hpp"
#include "simulations.hpp"
#include "tasks.hpp"

namespace galvatron::tools {

namespace {

using nlohmann::ordered_json;
using simulate::Activity;
using simulate::CriticalPath;
using simulate::Simulated;
using simulate::Simulation;

Simulated simulated(const std::string& name, Plan plan, ModelSpec model, MixedCluster cluster) {
  Simulation simulation = value_or_throw(simulate::simulate_plan(plan, model, cluster));
  PredictionInterval interval = value_or_throw(interval_of(plan, model, cluster, simulation.cost));
  return {name, std::move(plan), std::move(model), std::move(cluster), std::move(simulation), std::move(interval), {},
          {}};
}

// The plan of a file, with the model and the cluster of `a`.
Simulated simulated_file(const std::string& path, const PlanArguments& a) {
  Plan plan = value_or_throw(read_plan(path));
  if (!a.cluster.empty()) plan.cluster = a.cluster;
  if (!a.model.empty()) plan.model = a.model;
  ModelSpec model = value_or_throw(as_planned(plan, value_or_throw(load_model(plan.model))));
  MixedCluster cluster = mixed_cluster_named(plan.cluster, plan.ranks());
  return simulated(path, std::move(plan), std::move(model), std::move(cluster));
}

std::string why_too_large(const Simulated& s) { return galvatron::why_too_large(s.plan, s.simulation.cost, s.cluster); }

ordered_json seconds_json(const simulate::StageSeconds& seconds) {
  ordered_json out;
  for (std::size_t a = 0; a < simulate::activities; ++a)
    out[std::string(name_of(static_cast<Activity>(a))) + "_seconds"] = seconds.by_activity[a].value;
  return out;
}

// The figures that compared plans have too.
ordered_json figures_json(const Simulated& s) {
  ordered_json out;
  out["feasible"] = true;
  if (!s.fits()) add_infeasible(out, why_too_large(s), s.peak());
  out["iteration_seconds"] = s.simulation.iteration.value;
  out["planned_iteration_seconds"] = s.simulation.cost.iteration.value;
  out["interval"] = {s.at(s.interval.low).value, s.at(s.interval.high).value};
  add_spread(out, s.interval);
  out["samples_per_second"] = s.samples_per_second();
  out["tokens_per_second"] = s.tokens_per_second();
  add_mfu(out, s.mfu());
  out["bubble_fraction"] = s.simulation.bubble_fraction();
  out["peak_bytes"] = s.peak().count;
  out["budget_bytes"] = s.budget().count;
  out["microbatches"] = s.plan.microbatches;
  out["followed_microbatches"] = s.simulation.followed;
  out["schedule"] = name_of(s.plan.schedule);
  out["virtual_stages"] = s.plan.virtual_stages;
  return out;
}

ordered_json simulated_stage_json(const Simulated& s, std::size_t i) {
  const simulate::StageSeconds& seconds = s.simulation.stages[i];
  const cost::StageMemory& memory = s.simulation.cost.stages[i].memory;
  const PlanStage& stage = s.plan.stages[i];
  ordered_json out = {{"first_layer", stage.first_layer},
                      {"last_layer", stage.last_layer},
                      {"devices", stage.rank_count},
                      {"busy_seconds", seconds.busy().value},
                      {"bubble_seconds", seconds[Activity::waiting].value},
                      {"communication_seconds", (seconds[Activity::communication] + seconds[Activity::transfer]).value},
                      {"time", seconds_json(seconds)},
                      {"peak_bytes", memory.total().count},
                      {"memory",
                       {{"states_bytes", memory.states.count},
                        {"stash_bytes", memory.stash.count},
                        {"boundary_bytes", memory.boundary.count},
                        {"workspace_bytes", memory.workspace.count},
                        {"library_bytes", memory.library.count}}}};
  if (ClusterView(s.cluster).is_mixed()) add_group(out, s.cluster, stage);
  return out;
}

ordered_json critical_json(const CriticalPath& path) {
  ordered_json out = {{"time", seconds_json(path.seconds)}};
  for (const Seconds seconds : path.stage_seconds) out["stage_seconds"].push_back(seconds.value);
  for (const simulate::CriticalSegment& segment : path.segments)
    out["segments"].push_back({{"stage", segment.stage},
                               {"begin_seconds", segment.begin.value},
                               {"end_seconds", segment.end.value},
                               {"instructions", segment.instructions}});
  return out;
}

ordered_json step_json(const train::PackedStep& step) {
  ordered_json out = {{"seconds", step.seconds().value}, {"documents", step.documents()},
                      {"tokens", step.tokens()},         {"padding", step.padding()},
                      {"idle_fraction", step.idle()},    {"microbatches", ordered_json::array()}};
  for (const train::PackedMicroBatch& one : step.microbatches) {
    ordered_json groups = ordered_json::array();
    for (const train::PackedGroup& group : one.groups)
      groups.push_back({{"first_rank", group.first_rank},
                        {"ranks", group.ranks},
                        {"documents", group.documents},
                        {"tokens", group.tokens},
                        {"padding", group.padding},
                        {"seconds", group.seconds.value}});
    out["microbatches"].push_back(
        {{"seconds", one.seconds.value}, {"idle_fraction", step.idle(one)}, {"groups", std::move(groups)}});
  }
  return out;
}

std::string summary(const Simulated& s, const std::vector<Simulated>& compared) {
  const Simulation& sim = s.simulation;
  std::string out =
      text_of(s.plan.model, " on ", s.plan.cluster, ": ", plan_words(s.plan), "\n") +
      row("iteration", format_seconds(sim.iteration), " simulated, ", format_seconds(sim.cost.iteration),
          " by the planner's formula; ", format_count(s.tokens_per_second()), " tokens/s", mfu_text(s.mfu()));
  out += row("interval", format_seconds(s.at(s.interval.low)), " to ", format_seconds(s.at(s.interval.high)),
             " with 90 %");
  if (sim.followed < s.plan.microbatches)
    out += row("followed", sim.followed, " of the ", s.plan.microbatches, " micro-batches; the others repeat them");
  if (s.plan.packed) out += row("documents", "one a sequence here, which takes longest; --lengths shows others");
  out += row("waiting", percent(sim.bubble_fraction()), " of the stages' time");
  for (std::size_t i = 0; i < sim.stages.size(); ++i) {
    const simulate::StageSeconds& seconds = sim.stages[i];
    const auto share = [&](Seconds part) { return percent(part / sim.iteration); };
    const auto on_group = [&](const PlanStage& stage) {
      const ClusterView cluster(s.cluster);
      return cluster.is_mixed() ? "on " + devices_text(stage, cluster) + ": " : std::string();
    };
    out += row(text_of("stage ", i), on_group(s.plan.stages[i]), "compute ",
               share(seconds[Activity::compute] + seconds[Activity::recompute]), ", communication ",
               share(seconds[Activity::communication] + seconds[Activity::transfer]), ", gradients and optimizer ",
               share(seconds[Activity::gradients] + seconds[Activity::update]), ", waiting ",
               share(seconds[Activity::waiting]), ", peak ", format_bytes(sim.cost.stages[i].memory.total()));
  }
  if (!s.fits()) out += "  It does not fit: " + why_too_large(s) + ".\n";
  for (const Simulated& other : compared) {
    const double more = other.simulation.iteration / sim.iteration - 1;
    out += text_of("  ", other.name, ": ", format_seconds(other.simulation.iteration), " (", more > 0 ? "+" : "",
                   percent(more), "), peak ", format_bytes(other.peak()), other.fits() ? "" : ", which does not fit",
                   "\n");
  }
  return out;
}

}  // namespace

void write_run(const Plan& plan, const ModelSpec& model, const Cluster* made_for, const simulate::Measured& measured,
               const std::string& trace, const std::string& report, const Common& common) {
  if (trace.empty() && report.empty()) return;
  const int ranks = plan.ranks();
  const auto on = [&](MixedCluster cluster) {
    return simulated("a run of galvatron train", plan, model, std::move(cluster));
  };
  Simulated s = [&] {
    std::string why;
    try {
      return on(made_for != nullptr ? alone(*made_for) : mixed_cluster_named(plan.cluster, ranks));
    } catch (const Failure& failure) {
      why = failure.what();
    }
    note(common, "What is predicted beside the run is that of this machine without a profile, because ", why);
    return on(mixed_cluster_named("host", ranks));
  }();
  if (!trace.empty()) {
    simulate::TraceWriter out;
    out.tell("model", plan.model);
    out.tell("cluster", plan.cluster);
    out.tell("step", std::to_string(measured.step.step + 1));
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      const PlanStage& stage = plan.stages[i];
      for (int rank = stage.first_rank; rank < stage.first_rank + stage.rank_count; ++rank)
        simulate::add_measured(out, rank, text_of("rank ", rank, " measured, of stage ", i),
                               measured.step.ranks[static_cast<std::size_t>(rank)], &s.simulation.cost.stages[i],
                               plan.virtual_stages > 1);
    }
    simulate::add_simulation(out, plan, s.simulation, ranks);
    value_or_throw(write_file_atomically(trace, out.text()));
  }
  if (report.empty()) return;
  if (!measured.rows.empty()) {
    s.step = value_or_throw(train::packed_step(plan, model, group_of(plan, s.cluster), measured.rows));
    s.step_words = text_of("those of step ", measured.step.step + 1);
  }
  value_or_throw(write_file_atomically(report, simulate::report_html(s, {}, &measured)));
}

void run_simulate(const Arguments& arguments, Common& common) {
  Options options("simulate",
                  "Replays a plan's schedule instruction by instruction with predicted costs: when every stage "
                  "computes, talks and waits, how full its memory is, and what makes the iteration as long as it is.");
  PlanArguments a;
  std::string trace;
  std::string report;
  std::vector<std::string> others;
  std::string lengths;
  add_plan_options(options, "--plan", a);
  step_lengths_option(options, lengths);
  options.texts("--compare", others, "FILE...", "other plans, to be shown beside it");
  options.section("Output");
  options.text("--trace", trace, "FILE", "write a trace for ui.perfetto.dev or chrome://tracing");
  options.text("--report", report, "FILE", "write a report: one HTML file, which needs nothing else");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.examples(
      "Example:\n  galvatron simulate --plan plan.json --trace trace.json --report report.html \\\n      --compare "
      "other.json");
  if (!options.parse(arguments, common)) return;
  std::vector<NamedFile> read{
      {"--plan", a.path}, {"--cluster", a.cluster}, {"--model", a.model}, {"--lengths", lengths}};
  for (const std::string& other : others) read.push_back({"--compare", other});
  require_files({{"--trace", trace}, {"--report", report}}, read);

  if (is_waves_file(a.path)) {
    if (!others.empty() || !lengths.empty())
      refuse(others.empty() ? "--lengths" : "--compare", " is for plans of models of one task; leave it out");
    return simulate_tasks(a, trace, report, common);
  }
  Simulated s = simulated_file(a.path, a);
  if (!lengths.empty()) {
    s.step = step_of_lengths(s.plan, s.model, s.cluster, lengths);
    s.step_words = step_text(s.plan, lengths);
  }
  std::vector<Simulated> compared;
  for (const std::string& other : others) compared.push_back(simulated_file(other, a));
  if (!trace.empty()) value_or_throw(write_file_atomically(trace, simulate::trace_text(s.plan, s.simulation)));
  if (!report.empty()) value_or_throw(write_file_atomically(report, simulate::report_html(s, compared)));
  if (common.json) {
    ordered_json out = figures_json(s);
    for (std::size_t i = 0; i < s.plan.stages.size(); ++i) out["stages"].push_back(simulated_stage_json(s, i));
    if (s.step) out["step"] = step_json(*s.step);
    out["critical_path"] = critical_json(simulate::critical_path(s.simulation));
    for (const Simulated& other : compared) {
      ordered_json figures = {{"plan", other.name}};
      figures.update(figures_json(other));
      out["compared"].push_back(figures);
    }
    add_texts(out, {{"trace", trace}, {"report", report}});
    print_json(out);
  } else {
    print(summary(s, compared) + row("trace", trace) + row("report", report) +
          (s.step ? "\n" + train::explain(*s.step, s.step_words) : ""));
  }
  if (!s.fits()) throw Exited{static_cast<int>(ErrorKind::infeasible)};
}

}  // namespace galvatron::tools
