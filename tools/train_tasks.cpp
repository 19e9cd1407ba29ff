#include "train_tasks.hpp"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/data/synthetic_samples.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/files.hpp>
#include <galvatron/simulate/find_waves.hpp>
#include <galvatron/train/compiled.hpp>
#include <galvatron/train/task_metrics.hpp>

namespace galvatron::tools {

namespace {

// Synthetic samples of all tasks.
struct SyntheticTasks {
  std::vector<std::vector<std::unique_ptr<train::SyntheticSamples>>> inputs;
  std::vector<train::TaskSources> sources;

  SyntheticTasks(const MultiTaskModel& model, std::uint64_t seed) {
    for (const TaskSpec& task : model.tasks) {
      const std::uint64_t of_task = 1000 * (seed + 1) + 2 * inputs.size();
      const LayerSpec& head = model.component(model.find(task.loss)).layers.back();
      auto& own = inputs.emplace_back();
      sources.emplace_back();
      for (const TaskInput& input : task.inputs) {
        const int component = model.find(input.component);
        own.push_back(std::make_unique<train::SyntheticSamples>(
            of_task, 1000 * (seed + 1) + 500 + static_cast<std::uint64_t>(component),
            model.component(component).layers.front(), task.batch,
            head.head == HeadKind::classifier ? head.vocabulary : 0));
        sources.back().push_back(own.back().get());
      }
    }
  }
};

ReadMultiTaskPlan prepared(TrainTasksArguments& a, Launcher& launcher, const Common& common) {
  if (!a.plan_path.empty()) {
    ReadMultiTaskPlan out = value_or_throw(read_json_file(a.plan_path).and_then([&](const auto& value) {
      return multi_task_plan_from_json(value, a.plan_path, a.wanted.model);
    }));
    if (a.ranks != 0 && a.ranks != out.plan.waves.ranks)
      refuse("--ranks says ", a.ranks, ", but the plan was made for this number of ranks: ", out.plan.waves.ranks,
             "; leave the option out, or make a new plan");
    if (a.wanted.global_batch != 0 && a.wanted.global_batch != out.plan.global_batch)
      refuse("--global-batch says ", a.wanted.global_batch, ", but the plan was made for a global batch of ",
             out.plan.global_batch, "; leave the option out, or make a new plan");
    return out;
  }
  const bool profiles = a.wanted.cluster.empty() || a.wanted.cluster == "host";
  Cluster cluster = profiles ? launcher.cluster(a.ranks) : cluster_named(a.wanted.cluster);
  if (a.ranks != 0 && cluster.devices != a.ranks)
    refuse("--ranks says ", a.ranks, ", but ", a.wanted.cluster, " was measured with ", cluster.devices,
           "; leave --ranks out, or run `galvatron profile --ranks ", a.ranks, "`");
  std::string name = a.wanted.cluster;
  if (profiles) {
    found_tasks(a.wanted, cluster, cluster.name, common);  // whether anything fits at all, before minutes of profiling
    a.profile.ranks = cluster.devices;
    a.profile.precisions = {chosen_precision(a.wanted.precision, cluster)};
    cluster = measured(launcher, a.profile, common).first;
    name = a.save_cluster.empty() ? cluster.name : a.save_cluster;
  }
  if (!a.save_cluster.empty()) value_or_throw(write_cluster(a.save_cluster, cluster));
  return found_tasks(a.wanted, cluster, name, common);
}

// Of all but the first step, if there are others; the median.
double median_seconds(const train::TaskTrainReport& report) {
  std::vector<double> seconds;
  for (std::size_t i = report.steps.size() > 1 ? 1 : 0; i < report.steps.size(); ++i)
    seconds.push_back(report.steps[i].seconds);
  std::ranges::nth_element(seconds, seconds.begin() + std::ssize(seconds) / 2);
  return seconds[seconds.size() / 2];
}

void print_run(const ReadMultiTaskPlan& of, const TrainTasksArguments& a, const train::TaskTrainReport& report,
               const Common& common) {
  const auto& [first, last] = std::pair(report.steps.front(), report.steps.back());
  const Seconds measured{median_seconds(report)};
  const Seconds predicted = of.plan.predicted.iteration;
  std::int64_t tokens = 0;
  for (std::size_t t = 0; t < of.graphs.size(); ++t)
    for (const TaskPass& pass : of.graphs[t].passes)
      if (pass.source >= 0) tokens += of.model.tasks[t].batch * pass.tokens;
  if (common.json) {
    nlohmann::ordered_json out{{"first_loss", first.loss}, {"last_loss", last.loss}, {"steps", report.steps.size()}};
    out["tokens_per_second"] = static_cast<double>(tokens) / measured.value;
    out["predicted_iteration_seconds"] = nullptr;
    if (predicted.value > 0) out["predicted_iteration_seconds"] = predicted.value;
    out["measured_iteration_seconds"] = measured.value;
    for (const cost::StageMemory& memory : report.planned_memory)
      out["predicted_peak_bytes"].push_back(memory.total().count);
    for (const cost::StageMemory& memory : report.measured_memory)
      out["measured_peak_bytes"].push_back(memory.total().count);
    for (std::size_t i = 0; i < of.model.tasks.size(); ++i)
      out["tasks"].push_back(
          {{"name", of.model.tasks[i].name}, {"first_loss", first.losses[i]}, {"last_loss", last.losses[i]}});
    add_texts(out, {{"checkpoint", newest_checkpoint(a.files)}, {"metrics", a.files.metrics}});
    out["plan"] = to_json(of.plan, of.model, of.graphs);
    return print_json(out);
  }
  using galvatron::detail::formatted;
  const std::string compared = against_prediction(predicted, measured);
  std::string out = text_of("Trained ", of.model.name, " for ", counted(std::ssize(report.steps), "step"), " on ",
                            counted(of.plan.waves.ranks, "rank"), " in ", name_of(of.plan.precision), ", tasks in ",
                            name_of(of.plan.order), "\n") +
                    row("loss", formatted("%.4f -> %.4f", first.loss, last.loss));
  for (std::size_t i = 0; i < of.model.tasks.size(); ++i)
    out += row("", of.model.tasks[i].name, formatted(" %.4f -> %.4f", first.losses[i], last.losses[i]));
  out += row("iteration", "predicted ", predicted.value > 0 ? format_seconds(predicted) : "nothing", ", measured ",
             format_seconds(measured), compared.empty() ? "" : ": ", compared);
  print(out + row("checkpoint", newest_checkpoint(a.files)) + row("metrics", a.files.metrics) +
        row("plan", a.plan_path) + row("plan", a.wanted.out));
}

// What the fullest rank takes on this machine.
void check_task_memory(const ReadMultiTaskPlan& of, Bytes limit) {
  const MultiTaskPlan& p = of.plan;
  const Cluster here = host_before_profile(p.waves.ranks);
  const train::TaskPlan plan = value_or_throw(train::task_plan(of.model, p.waves, p.order));
  const Bytes peak = std::ranges::max(simulate::peaks_of(plan, p.precision, here.device.library_workspace));
  if (limit.count > 0 && peak > limit)
    throw Infeasible(text_of("the plan takes ", peak.count, " bytes (", format_bytes(peak),
                             ") on its fullest rank, and --memory allows ", format_bytes(limit),
                             "; allow that much, or make a plan with this --memory"),
                     peak);
  if (peak > here.device.memory)
    throw Infeasible(text_of("the plan takes ", format_bytes(peak), " on its fullest rank, and this machine has ",
                             format_bytes(here.device.memory), " for each of ", counted(p.waves.ranks, "rank"),
                             "; train a smaller model or batch"),
                     std::nullopt);
}

}  // namespace

void train_tasks(TrainTasksArguments a, const train::TrainOptions& options, const RunStart& start, Launcher& launcher,
                 const Common& common) {
  if (launcher.ranks() != 0)
    refuse("models of several tasks train on threads of one process; leave ", launcher.starter(), " out");
  if (a.data.size() > 1 || (a.data.size() == 1 && a.data.front() != synthetic_data))
    refuse("--data: models of several tasks train on samples made of numbers so far; give --data ", synthetic_data);
  if (!a.files.initial.empty() || !a.files.tensorboard.empty())
    refuse(a.files.initial.empty() ? "--tensorboard" : "--init-from", " is for models of one task; leave it out");
  ReadMultiTaskPlan of = prepared(a, launcher, common);
  launcher.require(of.plan.precision);
  check_task_memory(of, a.wanted.memory);
  if (!a.wanted.out.empty() && a.plan_path.empty())
    value_or_throw(save_multi_task_plan(of.plan, of.model, of.graphs, a.wanted.out));

  std::optional<train::Checkpoint> resumed;
  if (!start.checkpoint.empty()) {
    resumed = value_of("--resume", train::Checkpoint::open(start.checkpoint, of.model, train::Checksums::known));
    if (resumed->training().step >= options.steps)
      refuse("--resume: ", start.checkpoint, " has ", resumed->training().step, " steps, and --steps asks for ",
             options.steps, "; ask for more");
  }
  const SyntheticTasks data(of.model, options.seed);
  train::TaskTrainOptions run{.steps = options.steps,
                              .learning_rate = options.learning_rate,
                              .adam = options.adam,
                              .clip = options.clip,
                              .seed = options.seed,
                              .on_nan = a.files.on_nan,
                              .precision = of.plan.precision,
                              .resume = resumed ? &*resumed : nullptr,
                              .checkpoint = {}};
  run.world.timeout =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(a.rank_timeout));
  if (!a.files.checkpoint.empty())
    run.checkpoint = {.folder = a.files.checkpoint,
                      .every = a.files.checkpoint_every > 0 ? a.files.checkpoint_every
                                                            : std::max<std::int64_t>(options.steps / 10, 1),
                      .keep = a.files.checkpoint_keep,
                      .lock = start.lock};
  Progress progress = error_progress("train", common);
  std::optional<AppendedFile> metrics;  // a run that goes on adds to what is there
  if (!a.files.metrics.empty())
    metrics = value_of("--metrics", AppendedFile::open(a.files.metrics, resumed ? 0 : O_TRUNC));
  run.on_step = [&](const train::TaskStepReport& step) {
    if (metrics) value_or_throw(metrics->append(train::metrics_line(step, of.model.tasks)));
    if (!step.skipped.empty()) progress.say("Left out: " + step.skipped);
    progress.update(static_cast<double>(step.step + 1) / static_cast<double>(options.steps),
                    text_of(step.step + 1, "/", options.steps), {galvatron::detail::formatted("loss %.3f", step.loss)});
  };
  const train::TaskTrainReport report =
      of.plan.order == in_waves ? train::train_tasks<Tasks<in_waves>>(of.model, of.plan.waves, data.sources, run)
                                : train::train_tasks<Tasks<in_sequence>>(of.model, of.plan.waves, data.sources, run);
  print_run(of, a, report, common);
}

}  // namespace galvatron::tools
