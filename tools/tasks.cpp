// galvatron plan, cost, simulate and explain of multi-task models.
#include "tasks.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/files.hpp>
#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/plan/task_program.hpp>
#include <galvatron/simulate/explain_waves.hpp>
#include <galvatron/simulate/find_waves.hpp>
#include <galvatron/simulate/wave_peaks.hpp>

namespace galvatron::tools {

namespace {

using nlohmann::ordered_json;

// A plan of waves on a cluster, simulated.
struct TasksOnCluster {
  ReadMultiTaskPlan of;
  MixedCluster cluster;
  train::TaskPlan plan;
  simulate::WaveSimulation simulation;
  std::vector<Bytes> peaks;  // of each rank

  TasksOnCluster(ReadMultiTaskPlan read, MixedCluster on) : of(std::move(read)), cluster(std::move(on)) {
    const MultiTaskPlan& p = of.plan;
    const ClusterView view(cluster);
    if (p.waves.ranks > view.devices())
      refuse("the plan has ", counted(p.waves.ranks, "rank"), ", and ", cluster.name, " has ",
             counted(view.devices(), "device"), "; choose a larger --cluster, or make a plan for this one");
    for (int rank = 0; rank < p.waves.ranks; ++rank)
      if (const Cluster& group = device_of(rank); !group.supports(p.precision))
        refuse("the plan is in ", name_of(p.precision), ", for which ", group.name, " has no rates");
    plan = value_or_throw(train::task_plan(of.model, p.waves, p.order));
    simulation = simulate::simulate_waves(plan, view, p.precision);
    peaks = simulate::peaks_of(plan, p.precision, view);
  }

  [[nodiscard]] const Cluster& device_of(int rank) const {
    return cluster.groups[static_cast<std::size_t>(ClusterView(cluster).group_of(rank))];
  }
  [[nodiscard]] Bytes memory_of(int rank) const { return device_of(rank).device.memory; }
  [[nodiscard]] Bytes peak_of(int rank) const { return peaks[static_cast<std::size_t>(rank)]; }
  // The rank that takes most of its device.
  [[nodiscard]] int fullest() const {
    const auto share = [this](int rank) {
      return static_cast<double>(peak_of(rank).count) / static_cast<double>(memory_of(rank).count);
    };
    int out = 0;
    for (int rank = 1; rank < plan.ranks; ++rank)
      if (share(rank) > share(out)) out = rank;
    return out;
  }
  [[nodiscard]] Bytes peak() const { return peak_of(fullest()); }
  [[nodiscard]] Bytes memory() const { return memory_of(fullest()); }
  [[nodiscard]] bool fits() const { return peak() <= memory(); }
  [[nodiscard]] double samples_per_second() const {
    return static_cast<double>(of.plan.global_batch) / simulation.step.value;
  }
  [[nodiscard]] double tokens_per_second() const {
    std::int64_t tokens = 0;  // that tasks read
    for (std::size_t t = 0; t < of.graphs.size(); ++t)
      for (const TaskPass& pass : of.graphs[t].passes)
        if (pass.source >= 0) tokens += of.model.tasks[t].batch * pass.tokens;
    return static_cast<double>(tokens) / simulation.step.value;
  }
  // Model FLOPs, recomputation left out, over what the devices could do.
  [[nodiscard]] double mfu() const {
    double flops = 0;
    train::TaskPlan without = plan;
    for (train::PartPlan& part : without.parts) part.where.strategy.recompute = RecomputeKind::none;
    train::LayerCosts layers(of.plan.precision);
    const train::TaskCosts costs(without, layers);
    for (std::size_t p = 0; p < plan.parts.size(); ++p)
      for (const cost::LayerCounts* counts : costs.passes[p])
        flops += (counts->forward.flops().count + counts->backward.flops().count) *
                 static_cast<double>(plan.parts[p].where.ranks.size()) * plan.parts[p].microbatches;
    double peak = 0;
    for (int rank = 0; rank < plan.ranks; ++rank) peak += device_of(rank).peak_flops(of.plan.precision);
    return peak > 0 ? flops / (peak * simulation.step.value) : 0;
  }
};

std::string too_large(const TasksOnCluster& t) {
  return text_of("the fullest rank takes ", format_bytes(t.peak()), ", and a device has ", format_bytes(t.memory()));
}

TasksOnCluster read_tasks(const PlanArguments& a) {
  ReadMultiTaskPlan read = value_or_throw(read_json_file(a.path).and_then(
      [&](const auto& value) { return multi_task_plan_from_json(value, a.path, a.model); }));
  if (!a.cluster.empty()) read.plan.cluster = a.cluster;
  MixedCluster cluster = mixed_cluster_named(read.plan.cluster, read.plan.waves.ranks);
  return {std::move(read), std::move(cluster)};
}

const std::string& component_name(const TasksOnCluster& t, const train::PartPlan& part) {
  return t.of.model.component(simulate::component_of(t.plan, part)).name;
}

// Stages of a pipeline.
std::ptrdiff_t stages_of(const TasksOnCluster& t, int pipeline) {
  return std::ranges::count_if(t.plan.parts, [=](const train::PartPlan& part) { return part.where.task == pipeline; });
}

// The seconds of a micro-batch's forward or backward pass through a part, without waiting.
Seconds pass_seconds(const TasksOnCluster& t, std::size_t part, TaskInstruction::Op op) {
  for (const TaskSpan& event : t.simulation.events)
    if (event.instruction.part == static_cast<int>(part) && event.instruction.op == op) return event.end - event.moved;
  return {};
}

// The stages of all pipelines, as those of a chain: layers are blocks.
ordered_json stages_json(const TasksOnCluster& t) {
  ordered_json out;
  const ClusterView view(t.cluster);
  const int blocks = static_cast<int>(t.of.single->blocks.size());
  for (std::size_t i = 0; i < t.plan.parts.size(); ++i) {
    const WavePart& part = t.plan.parts[i].where;
    Bytes peak;
    for (const int rank : part.ranks) peak = max(peak, t.peak_of(rank));
    out.push_back(stage_json(
        std::max(part.first - 1, 0), std::min(part.last - 1, blocks - 1), static_cast<int>(part.ranks.size()), peak,
        pass_seconds(t, i, TaskInstruction::Op::forward), pass_seconds(t, i, TaskInstruction::Op::backward)));
    out.back()["pipeline"] = part.task;
    const int group = view.group_of(part.ranks.front());
    out.back()["group"] = group;
    out.back()["group_name"] = view.group(group).name;
  }
  return out;
}

// What `plan`, `cost` and `simulate` say.
ordered_json tasks_json(const TasksOnCluster& t) {
  const WavePrediction& p = t.of.plan.predicted;
  ordered_json out;
  out["feasible"] = true;
  out["iteration_seconds"] = t.simulation.step.value;
  out["samples_per_second"] = t.samples_per_second();
  out["tokens_per_second"] = t.tokens_per_second();
  add_mfu(out, t.mfu());
  out["global_batch"] = t.of.plan.global_batch;
  out["order"] = name_of(t.of.plan.order);
  out["passes_seconds"] = t.simulation.passes.value;
  out["reduction_seconds"] = t.simulation.reduction.value;
  out["update_seconds"] = t.simulation.update.value;
  out["utilisation"] = t.simulation.utilisation();
  for (std::size_t k = 0; k < t.of.plan.pipelines.size(); ++k)
    out["pipelines"].push_back({{"samples", t.of.plan.pipelines[k]},
                                {"stages", stages_of(t, static_cast<int>(k))},
                                {"microbatches", t.of.plan.waves.microbatches_of(static_cast<int>(k))}});
  if (t.of.single) {
    int most = 1;
    for (std::size_t k = 0; k < t.of.plan.pipelines.size(); ++k)
      most = std::max(most, t.of.plan.waves.microbatches_of(static_cast<int>(k)));
    out["microbatches"] = most;
    out["schedule"] = name_of(ScheduleKind::one_f_one_b);
    out["stages"] = stages_json(t);
    out["one_chain_seconds"] = p.one_chain.value > 0 ? ordered_json(p.one_chain.value) : ordered_json();
  } else if (p.iteration.value > 0) {
    out["bound_seconds"] = p.bound.value;
    out["in_sequence_seconds"] = p.in_sequence.value > 0 ? ordered_json(p.in_sequence.value) : ordered_json();
    out["by_task_seconds"] = p.by_task.value > 0 ? ordered_json(p.by_task.value) : ordered_json();
    out["pipelined_seconds"] = p.pipelined.value > 0 ? ordered_json(p.pipelined.value) : ordered_json();
  }
  out["budget_bytes"] = t.memory().count;
  for (const Bytes peak : t.peaks) out["peak_bytes"].push_back(peak.count);
  const std::vector<Seconds> waves = simulate::wave_seconds(t.plan, t.simulation);
  const std::vector<Seconds> parts = simulate::part_seconds(t.plan, t.simulation);
  for (const Seconds wave : waves) out["waves"].push_back({{"seconds", wave.value}, {"parts", ordered_json::array()}});
  for (std::size_t i = 0; i < t.plan.parts.size(); ++i) {
    const train::PartPlan& part = t.plan.parts[i];
    out["waves"][static_cast<std::size_t>(part.wave)]["parts"].push_back(
        {{"component", component_name(t, part)},
         {"task", t.of.model.task(part.where.task).name},
         {"ranks", part.where.ranks},
         {"operators", part.layers.size()},
         {"layers", {part.where.first, part.where.last}},
         {"strategy", strategy_text(part.where.strategy)},
         {"seconds", parts[i].value}});
  }
  out["plan"] = to_json(t.of.plan, t.of.model, t.of.graphs);
  return out;
}

// `ranks 0-3`, `ranks 0,2,5`.
std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<int> sorted = ranks;
  std::ranges::sort(sorted);
  if (sorted.size() == 1) return text_of("rank ", sorted.front());
  if (sorted.back() - sorted.front() + 1 == std::ssize(sorted))
    return text_of("ranks ", sorted.front(), "-", sorted.back());
  return "ranks " + joined(sorted, ",", [](int rank) { return std::to_string(rank); });
}

// The recomputation of all parts, if it is the same everywhere.
std::optional<RecomputeKind> common_recomputation(const TasksOnCluster& t) {
  const RecomputeKind first = t.plan.parts.front().where.strategy.recompute;
  for (const train::PartPlan& part : t.plan.parts)
    if (part.where.strategy.recompute != first) return std::nullopt;
  return first;
}

// Of a mixed cluster: ` on group 1 (4xv100-16g)`.
std::string on_groups(const TasksOnCluster& t, const std::vector<int>& ranks) {
  const ClusterView view(t.cluster);
  if (!view.is_mixed()) return {};
  std::set<int> groups;
  for (const int rank : ranks) groups.insert(view.group_of(rank));
  return " on " + joined(groups, " and ", [&](int group) { return view.group_name(group); });
}

// @param recompute  whether to say what is recomputed
std::string part_text(const TasksOnCluster& t, const train::PartPlan& part, bool recompute) {
  StrategySpec strategy = part.where.strategy;
  if (!recompute) strategy.recompute = RecomputeKind::cheap;  // which has no word
  const auto [first, last] = std::pair(part.where.first, part.where.last);
  return text_of(component_name(t, part), t.of.single ? "" : " of " + t.of.model.task(part.where.task).name,
                 first == last ? text_of(", layer ", first) : text_of(", layers ", first, "-", last), ", ",
                 ranks_text(part.where.ranks), on_groups(t, part.where.ranks),
                 strategy.ranks() > 1 ? ", " + strategy_text(strategy) : "");
}

// The stages of each pipeline. Its layers count the embedding, the first, and the head.
std::string stage_rows(const TasksOnCluster& t, bool recompute) {
  const std::vector<Seconds> seconds = simulate::part_seconds(t.plan, t.simulation);
  std::string out;
  for (std::size_t k = 0; k < t.of.model.tasks.size(); ++k) {
    bool first = true;
    for (std::size_t i = 0; i < t.plan.parts.size(); ++i)
      if (const train::PartPlan& part = t.plan.parts[i]; part.where.task == static_cast<int>(k))
        out += row(std::exchange(first, false) ? t.of.model.tasks[k].name : "", part_text(t, part, recompute),
                   "; it computes for ", format_seconds(seconds[i]));
  }
  return out;
}

std::string beside(const TasksOnCluster& t) {
  const WavePrediction& p = t.of.plan.predicted;
  if (p.iteration.value <= 0) return {};
  const auto other = [&](const char* name, Seconds seconds) {
    const std::string words =
        seconds.value > 0 ? text_of(format_seconds(seconds), ", ",
                                    galvatron::detail::formatted("%.2f", seconds / t.simulation.step), " times as long")
                          : "no such plan fits";
    return row(name, words);
  };
  if (t.of.single) return p.one_chain.value > 0 ? other("one chain", p.one_chain) : std::string();
  return other("in sequence", p.in_sequence) + other("by task", p.by_task) +
         (p.pipelined.value > 0 ? other("pipelined", p.pipelined) : "") +
         row("bound", format_seconds(p.bound), " for the passes alone, of all schedules");
}

// `2 pipelines: 12 samples through 1 stage, 4 through 4 stages in 4 micro-batches`.
std::string pipelines_text(const TasksOnCluster& t) {
  std::string out = counted(std::ssize(t.of.plan.pipelines), "pipeline");
  for (std::size_t k = 0; k < t.of.plan.pipelines.size(); ++k) {
    const auto number = static_cast<int>(k);
    out += text_of(k == 0 ? ": " : ", ", t.of.plan.pipelines[k], k == 0 ? " samples" : "", " through ",
                   counted(stages_of(t, number), "stage"), " in ", t.of.plan.waves.microbatches_of(number));
  }
  return out + " micro-batches";
}

// `9 waves`, `tasks in sequence, 2 to 4 micro-batches`.
std::string schedule_text(const TasksOnCluster& t) {
  const MultiTaskPlan& p = t.of.plan;
  if (t.of.single) return pipelines_text(t);
  std::string out = p.order == TaskOrder::in_sequence ? "tasks in sequence"
                    : p.waves.in_flight > 1           ? text_of("a pipeline of ", counted(p.waves.in_flight, "stage"))
                                                      : counted(std::ssize(p.waves.waves), "wave");
  if (p.waves.microbatches.empty()) return out;
  const auto [least, most] = std::ranges::minmax(p.waves.microbatches);
  return text_of(out, ", ", least == most ? std::string() : text_of(least, " to "), most,
                 most == 1 ? " micro-batch" : " micro-batches");
}

std::string tasks_summary(const TasksOnCluster& t) {
  const MultiTaskPlan& p = t.of.plan;
  const std::optional<RecomputeKind> recompute = common_recomputation(t);
  std::string out = text_of(t.of.model.name, " on ", p.cluster, ": ", counted(p.waves.ranks, "rank"), ", ",
                            t.of.single ? "" : counted(std::ssize(t.of.model.tasks), "task") + ", ", p.global_batch,
                            " samples a step, ", name_of(p.precision), "\n") +
                    row("strategy", schedule_text(t), p.waves.zero > 0 ? text_of(", ZeRO-", p.waves.zero) : "",
                        recompute ? text_of(", recomputation: ", name_of(*recompute)) : "") +
                    row("iteration", format_seconds(t.simulation.step), ", ", format_count(t.samples_per_second()),
                        " samples/s, ", format_count(t.tokens_per_second()), " tokens/s", mfu_text(t.mfu())) +
                    row("of it", "passes ", format_seconds(t.simulation.passes), ", gradients ",
                        format_seconds(t.simulation.reduction), ", update ", format_seconds(t.simulation.update)) +
                    beside(t);
  const std::vector<Seconds> waves = simulate::wave_seconds(t.plan, t.simulation);
  if (t.of.single) out += stage_rows(t, !recompute);
  for (std::size_t i = 0; i < t.plan.parts.size() && !t.of.single; ++i) {
    const train::PartPlan& part = t.plan.parts[i];
    const bool first = i == 0 || t.plan.parts[i - 1].wave != part.wave;
    const auto wave = static_cast<std::size_t>(part.wave);
    out += row(first ? text_of("wave ", wave) : "", part_text(t, part, !recompute),
               first ? text_of("; the wave takes ", format_seconds(waves[wave])) : "");
  }
  return out + row("memory", format_bytes(t.peak()), " of ", format_bytes(t.memory()), " on the fullest rank") +
         (t.fits() ? "" : "  It does not fit: " + too_large(t) + ".\n");
}

void print_tasks(const TasksOnCluster& t, ordered_json more, const std::string& text, const Common& common) {
  if (common.json) {
    ordered_json out = tasks_json(t);
    if (!more.is_null()) out.update(more);
    if (!t.fits()) add_infeasible(out, too_large(t), t.peak());
    print_json(out);
  } else {
    print(tasks_summary(t) + text);
  }
  if (!t.fits()) throw Exited{static_cast<int>(ErrorKind::infeasible)};
}

// What `plan` says. @param out  the plan's file, if it was written  @param more, rows  what else, as JSON and as text
void print_found(const TasksOnCluster& tasks, const std::string& out, Seconds search, const Common& common,
                 ordered_json more = {}, std::string rows = {}) {
  rows += row("search", format_seconds(search));
  if (!out.empty()) rows += row("written to", out, " (`galvatron explain ", out, "` draws it)");
  more["search_seconds"] = search.value;
  print_tasks(tasks, std::move(more), rows, common);
}

// When each pipeline has done its samples, and how busy its ranks are.
std::string pipelines_explained(const TasksOnCluster& t) {
  const std::size_t count = t.of.plan.pipelines.size();
  std::vector<Seconds> ends(count), busy(count);
  std::vector<double> ranks(count);
  for (const TaskSpan& event : t.simulation.events) {
    Seconds& end = ends[static_cast<std::size_t>(t.plan.part(event.instruction.part).where.task)];
    end = max(end, event.end);
  }
  for (const train::PartPlan& part : t.plan.parts)
    for (const int rank : part.where.ranks) {
      busy[static_cast<std::size_t>(part.where.task)] += t.simulation.busy[static_cast<std::size_t>(rank)];
      ++ranks[static_cast<std::size_t>(part.where.task)];
    }
  std::string out = "\nPipelines:\n";
  for (std::size_t k = 0; k < count; ++k)
    out +=
        row(t.of.model.tasks[k].name, t.of.plan.pipelines[k], " samples through ",
            counted(stages_of(t, static_cast<int>(k)), "stage"), " are done in ", format_seconds(ends[k]),
            "; its ranks are busy for ", percent(busy[k].value / (ranks[k] * t.simulation.step.value)), " of the step");
  const auto last = std::ranges::max_element(ends) - ends.begin();
  return out + text_of("\nThe step is limited by ", t.of.model.tasks[static_cast<std::size_t>(last)].name,
                       ", whose passes end last; gradients and the update take ",
                       format_seconds(t.simulation.reduction + t.simulation.update), " behind them.\n");
}

}  // namespace

bool names_tasks(const std::string& name) {
  if (std::ranges::find(multi_task_model_names, name) != multi_task_model_names.end()) return true;
  std::error_code ignored;
  if (describes_clip(std::filesystem::path(name))) return true;
  if (!std::filesystem::is_regular_file(name, ignored)) return false;
  const auto value = read_json_file(name);
  return value && value->is_object() && value->contains("format") && value->at("format") == multi_task_format;
}

bool is_waves_file(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  const auto value = read_json_file(path);
  return value && is_waves_json(*value);
}

bool is_pipelines_file(const std::string& path) {
  if (!is_waves_file(path)) return false;
  const auto value = read_json_file(path);
  return value && value->contains("pipelines");
}

ComponentsOf components_of(const std::string& option, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
    refuse_value(option, text, "COMPONENT[,COMPONENT]=PATH");
  ComponentsOf out{{}, text.substr(equals + 1)};
  std::istringstream list(text.substr(0, equals));
  for (std::string name; std::getline(list, name, ',');) out.names.push_back(name);
  return out;
}

ReadMultiTaskPlan found_tasks(const TaskPlanArguments& a, const Cluster& cluster, const std::string& name,
                              const Common& common, Seconds* search) {
  ReadMultiTaskPlan out;
  out.whole = value_or_throw(load_multi_task_model(a.model).and_then(
      [&](MultiTaskModel model) { return with_global_batch(std::move(model), a.global_batch); }));
  out.model = a.tasks.empty() ? out.whole : value_or_throw(with_mix(out.whole, a.tasks));
  out.graphs = value_or_throw(task_graphs(out.model));
  const Precision precision = chosen_precision(a.precision, cluster);
  if (precision == Precision::fp8) refuse("--precision fp8: parts of waves train in bf16 or fp32; choose one of them");
  auto found = simulate::find_waves(out.model, cluster,
                                    {.precision = precision,
                                     .memory = memory_to_plan_with(a.memory, cluster, common),
                                     .schedule = a.schedule,
                                     .kinds = a.kinds});
  if (!found && found.error().kind == ErrorKind::infeasible) throw Infeasible(found.error().message, std::nullopt);
  const simulate::FoundWaves best = value_or_throw(std::move(found));
  if (search != nullptr) *search = best.search;
  out.plan = {
      .model = a.model,
      .cluster = name,
      .global_batch = global_batch_of(out.model),
      .tasks = a.tasks,
      .precision = precision,
      .order = best.order,
      .waves = best.plan,
      .predicted = {best.simulation.step, best.bound, best.in_sequence, best.by_task, best.peak, best.pipelined, {}}};
  return out;
}

void plan_tasks(const TaskPlanArguments& a, const Common& common) {
  const Cluster cluster = cluster_named(a.cluster);
  Seconds search;
  ReadMultiTaskPlan found = found_tasks(a, cluster, a.cluster, common, &search);
  if (!a.out.empty()) value_or_throw(save_multi_task_plan(found.plan, found.model, found.graphs, a.out));
  print_found(TasksOnCluster(std::move(found), alone(cluster)), a.out, search, common);
}

void print_pipelines(const ReadMultiTaskPlan& of, const MixedCluster& cluster, const std::string& out, Seconds search,
                     Bytes reserve, const std::optional<PredictionInterval>& interval, const Common& common) {
  if (!out.empty()) value_or_throw(save_multi_task_plan(of.plan, of.model, of.graphs, out));
  ordered_json more{{"proven", false}, {"reserve_bytes", reserve.count}};
  if (interval) add_interval(more, *interval);
  print_found(TasksOnCluster(of, cluster), out, search, common, std::move(more),
              (interval ? interval_row(*interval) : "") +
                  row("reserve", format_bytes(reserve), " of each device are left free"));
}

void cost_tasks(const PlanArguments& a, const Common& common) { print_tasks(read_tasks(a), {}, "", common); }

void explain_tasks(const PlanArguments& a) {
  const TasksOnCluster t = read_tasks(a);
  std::string out =
      tasks_summary(t) + "\nDevices over the time of a step:\n" + simulate::wave_chart(t.plan, t.simulation);
  if (t.of.single) return print(out + pipelines_explained(t));
  out += "\nComponents:\n";
  const std::vector<simulate::ComponentShare> shares = simulate::component_shares(t.plan, t.simulation);
  std::size_t limits = 0;
  for (std::size_t c = 0; c < shares.size(); ++c) {
    if (shares[c].longest > shares[limits].longest) limits = c;
    out += row(t.of.model.components[c].name, percent(shares[c].devices), " of the devices' time, the longest part in ",
               percent(shares[c].longest), " of the waves' time");
  }
  print(out + text_of("\nThe step is limited by ", t.of.model.components[limits].name,
                      ": its parts are the longest in ", percent(shares[limits].longest),
                      " of the waves' time. Devices are busy for ", percent(t.simulation.utilisation()),
                      " of the step.\n"));
}

void task_schedule_option(Options& options, simulate::TaskSchedule& schedule, const std::string& when) {
  using enum simulate::TaskSchedule;
  options.choice("--task-schedule", schedule, {fastest, waves, sequence, groups, pipeline},
                 when +
                     "of models of several tasks: in waves, one task after the other, each on a group of devices of "
                     "its own, in micro-batches through stages, or what takes least (default: fastest)");
}

void write_task_run(const ReadMultiTaskPlan& of, const Cluster* made_for,
                    const simulate::report::MeasuredTasks& measured, const std::string& trace,
                    const std::string& report, const Common& common) {
  if (trace.empty() && report.empty()) return;
  const int ranks = of.plan.waves.ranks;
  const TasksOnCluster t = [&]() -> TasksOnCluster {
    if (made_for != nullptr) return {of, alone(*made_for)};
    try {
      return {of, mixed_cluster_named(of.plan.cluster, ranks)};
    } catch (const Failure& failure) {
      note(common, "What is predicted beside the run is that of this machine without a profile, because ",
           failure.what());
    }
    return {of, mixed_cluster_named("host", ranks)};
  }();
  if (!trace.empty()) {
    simulate::TraceWriter out;
    out.tell("model", of.plan.model);
    out.tell("cluster", of.plan.cluster);
    out.tell("step", std::to_string(measured.step.step + 1));
    for (std::size_t rank = 0; rank < measured.step.ranks.size(); ++rank)
      simulate::add_rank(out, static_cast<int>(rank), text_of("rank ", rank, " measured"), t.plan,
                         measured.step.ranks[rank]);
    simulate::add_waves(out, t.plan, t.simulation, ranks);
    value_or_throw(write_file_atomically(trace, out.text()));
  }
  if (!report.empty())
    value_or_throw(write_file_atomically(
        report, simulate::report::waves_html(t.plan, t.simulation, of.model.name + " on " + of.plan.cluster,
                                             tasks_summary(t), &measured)));
}

void simulate_tasks(const PlanArguments& a, const std::string& trace, const std::string& report, const Common& common) {
  const TasksOnCluster t = read_tasks(a);
  ordered_json more;
  for (const TaskSpan& event : t.simulation.events) {
    const train::PartPlan& part = t.plan.part(event.instruction.part);
    more["events"].push_back({{"phase", event.instruction.op == TaskInstruction::Op::forward ? "forward" : "backward"},
                              {"wave", part.wave},
                              {"component", component_name(t, part)},
                              {"task", t.of.model.task(part.where.task).name},
                              {"ranks", part.where.ranks},
                              {"begin_seconds", event.begin.value},
                              {"moved_seconds", event.moved.value},
                              {"end_seconds", event.end.value}});
  }
  if (!report.empty())
    value_or_throw(write_file_atomically(
        report, simulate::report::waves_html(t.plan, t.simulation, t.of.model.name + " on " + t.of.plan.cluster,
                                             tasks_summary(t))));
  if (!trace.empty()) {
    simulate::TraceWriter out;
    out.tell("model", t.of.plan.model);
    out.tell("cluster", t.of.plan.cluster);
    simulate::add_waves(out, t.plan, t.simulation);
    value_or_throw(write_file_atomically(trace, out.text()));
  }
  add_texts(more, {{"trace", trace}, {"report", report}});
  for (const Seconds busy : t.simulation.busy) more["busy_seconds"].push_back(busy.value);
  print_tasks(t, std::move(more),
              "\n" + simulate::wave_chart(t.plan, t.simulation) + row("trace", trace) + row("report", report), common);
}

}  // namespace galvatron::tools
