#include "train_tasks.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/json.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/data/batch_share.hpp>
#include <galvatron/data/data.hpp>
#include <galvatron/data/task_data.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/files.hpp>
#include <galvatron/model/task_mix.hpp>
#include <galvatron/runtime/implemented.hpp>
#include <galvatron/simulate/find_waves.hpp>
#include <galvatron/simulate/wave_peaks.hpp>
#include <galvatron/train/compiled.hpp>
#include <galvatron/train/held_out.hpp>
#include <galvatron/train/recorder.hpp>

#include "live_view.hpp"
#include "signals.hpp"
#include "texts.hpp"

namespace galvatron::tools {

namespace {

struct PreparedTasks {
  ReadMultiTaskPlan of;            // for the tasks of the run's first step
  std::optional<Cluster> cluster;  // that the plan was found for
};

std::vector<TaskMix> given_mixes(const TrainTasksArguments& a) {
  std::vector<TaskMix> out;
  for (const std::string& text : a.mixes) out.push_back(value_of("--mix-at", parse_task_mix(text)));
  std::ranges::stable_sort(out, {}, &TaskMix::step);
  return out;
}

// `text-vision 48, text-audio 16`.
std::string mix_text(const std::vector<TaskSpec>& tasks) {
  return joined(tasks, ", ", [](const TaskSpec& task) { return text_of(task.name, " ", task.batch); });
}

// Plans for the mixes of a run: those of --mix-at, or that of the plan.
class MixPlans {
 public:
  // @param first  the first step  @param steps  of the run
  MixPlans(const TrainTasksArguments& a, std::vector<TaskMix> mixes, PreparedTasks& prepared, std::int64_t first,
           std::int64_t steps, Launcher& launcher, const Common& common)
      : mixes_(std::move(mixes)), arguments_(a.wanted), common_(common), now_(prepared.of) {
    const ReadMultiTaskPlan& of = prepared.of;
    if (!of.plan.tasks.empty() && (mixes_.empty() || mixes_.front().step > 0))
      mixes_.insert(mixes_.begin(), {0, of.plan.tasks});
    value_of("--mix-at", check_mixes(of.whole, mixes_, steps).map([] { return 0; }));
    const TaskMix* in_force = mix_at(mixes_, first);
    const bool other = in_force == nullptr ? !of.plan.tasks.empty() : in_force->tasks != of.plan.tasks;
    const bool changes = std::ranges::any_of(mixes_, [&](const TaskMix& mix) { return mix.step > first; });
    if (!other && !changes) return;
    arguments_.model = of.plan.model;
    arguments_.global_batch = of.plan.tasks.empty() ? of.plan.global_batch : 0;
    arguments_.precision = of.plan.precision;
    if (launcher.shows()) {
      cluster_ = prepared.cluster ? *prepared.cluster : cluster_of(of.plan);
      if (other) now_ = planned(in_force == nullptr ? std::vector<TaskBatch>{} : in_force->tasks);
      for (const TaskMix& mix : mixes_)  // whether all fit, before anything is trained
        if (mix.step > first) later_.push_back(planned(mix.tasks));
    }
    if (!other) return;
    const std::string text =
        launcher.shared(launcher.shows() ? to_json(now_.plan, now_.model, now_.graphs).dump() : "");
    if (!launcher.shows())
      now_ = value_or_throw(multi_task_plan_from_json(nlohmann::json::parse(text), "", a.wanted.model));
    prepared.of = now_;
  }

  [[nodiscard]] const std::vector<TaskMix>& mixes() const { return mixes_; }
  // The plans of mixes that begin later, in the process that shows.
  [[nodiscard]] const std::vector<ReadMultiTaskPlan>& later() const { return later_; }
  // That of the mix that was planned last.
  [[nodiscard]] const ReadMultiTaskPlan& now() const { return now_; }
  // What the trainer asks for, in the process that shows.
  Result<train::PlannedMix> plan_for(const MultiTaskModel& mixed) {
    std::vector<TaskBatch> tasks;
    for (const TaskSpec& task : mixed.tasks) tasks.push_back({task.name, task.batch});
    now_ = planned(tasks);
    return train::PlannedMix{now_.plan.waves, now_.plan.order};
  }

 private:
  static Cluster cluster_of(const MultiTaskPlan& plan) {
    const auto cluster = load_cluster(plan.cluster);
    if (!cluster || cluster->devices != plan.waves.ranks)
      refuse("--mix-at makes plans for the cluster of the plan, ", plan.cluster, ", and ",
             cluster
                 ? text_of("it has ", counted(cluster->devices, "device"), " for ", counted(plan.waves.ranks, "rank"))
                 : cluster.error().message,
             "; make a plan for a cluster with as many devices as there are ranks, or train with --auto");
    return *cluster;
  }
  [[nodiscard]] ReadMultiTaskPlan planned(std::vector<TaskBatch> tasks) const {
    TaskPlanArguments wanted = arguments_;
    wanted.tasks = std::move(tasks);
    if (!wanted.tasks.empty()) wanted.global_batch = 0;
    wanted.kinds = simulate::kinds_of(now_.model, now_.graphs, now_.plan.waves);
    return found_tasks(wanted, *cluster_, now_.plan.cluster, common_);
  }

  std::vector<TaskMix> mixes_;
  TaskPlanArguments arguments_;
  const Common& common_;
  std::optional<Cluster> cluster_;
  ReadMultiTaskPlan now_;
  std::vector<ReadMultiTaskPlan> later_;
};

ReadMultiTaskPlan given_tasks(const TrainTasksArguments& a) {
  ReadMultiTaskPlan out = value_or_throw(read_json_file(a.plan_path).and_then([&](const auto& value) {
    return multi_task_plan_from_json(value, a.plan_path, a.wanted.model);
  }));
  if (out.single) value_or_throw(runtime::check_implemented(*out.single));
  if (a.ranks != 0 && a.ranks != out.plan.waves.ranks)
    refuse("--ranks says ", a.ranks, ", but the plan was made for this number of ranks: ", out.plan.waves.ranks,
           "; leave the option out, or make a new plan");
  if (a.wanted.global_batch != 0 && a.wanted.global_batch != out.plan.global_batch)
    refuse("--global-batch says ", a.wanted.global_batch, ", but the plan was made for a global batch of ",
           out.plan.global_batch, "; leave the option out, or make a new plan");
  return out;
}

bool profiles_first(const TrainTasksArguments& a) { return a.wanted.cluster.empty() || a.wanted.cluster == "host"; }

// What is measured for a search on this machine.
train::ProfileOptions profile_for(const TrainTasksArguments& a, const Cluster& before) {
  train::ProfileOptions out = a.profile;
  out.ranks = before.devices;
  out.precisions = {chosen_precision(a.wanted.precision, before)};
  return out;
}

PreparedTasks found_tasks_here(TrainTasksArguments& a, const Launcher& launcher, const Common& common) {
  const bool profiles = profiles_first(a);
  Cluster cluster = profiles ? launcher.cluster(a.ranks) : cluster_named(a.wanted.cluster);
  if (a.ranks != 0 && cluster.devices != a.ranks)
    refuse("--ranks says ", a.ranks, ", but ", a.wanted.cluster, " was measured with ", cluster.devices,
           "; leave --ranks out, or run `galvatron profile --ranks ", a.ranks, "`");
  std::string name = a.wanted.cluster;
  if (profiles) {
    found_tasks(a.wanted, cluster, cluster.name, common);  // whether anything fits at all, before minutes of profiling
    cluster = measured(launcher, profile_for(a, cluster), common).first.groups.front();
    name = a.save_cluster.empty() ? cluster.name : a.save_cluster;
  }
  if (!a.save_cluster.empty()) value_or_throw(write_cluster(a.save_cluster, cluster));
  ReadMultiTaskPlan found = found_tasks(a.wanted, cluster, name, common);
  return {std::move(found), std::move(cluster)};
}

// One process plans for all.
PreparedTasks prepared_tasks(TrainTasksArguments& a, Launcher& launcher, const Common& common) {
  PreparedTasks out;
  if (!a.plan_path.empty()) {
    out.of = given_tasks(a);
  } else {
    if (launcher.ranks() != 0 && a.ranks != 0 && a.ranks != launcher.ranks())
      refuse("--ranks says ", a.ranks, ", and ", launcher.starter(), " has started ", launcher.ranks(), " processes");
    if (launcher.ranks() != 0) a.ranks = launcher.ranks();
    if (launcher.shows()) {
      out = found_tasks_here(a, launcher, common);
      static_cast<void>(launcher.shared(to_json(out.of.plan, out.of.model, out.of.graphs).dump()));
    } else {
      if (profiles_first(a)) measured(launcher, profile_for(a, launcher.cluster(a.ranks)), common);
      out.of =
          value_or_throw(multi_task_plan_from_json(nlohmann::json::parse(launcher.shared("")), "", a.wanted.model));
    }
  }
  if (launcher.ranks() != 0 && launcher.ranks() != out.of.plan.waves.ranks)
    refuse(launcher.starter(), " has started ", launcher.ranks(), launcher.ranks() == 1 ? " process" : " processes",
           ", but the plan has ", counted(out.of.plan.waves.ranks, "rank"), "; start as many, or make a plan for ",
           launcher.ranks());
  return out;
}

// The first and the last step of a task; null: no step trains it.
std::pair<const train::TaskStepReport*, const train::TaskStepReport*> steps_of(
    const std::vector<train::TaskStepReport>& steps, std::size_t task) {
  std::pair<const train::TaskStepReport*, const train::TaskStepReport*> out{};
  for (const train::TaskStepReport& step : steps) {
    if (step.batches[task] == 0) continue;
    if (out.first == nullptr) out.first = &step;
    out.second = &step;
  }
  return out;
}
// What was measured last of a task's held-out data; null: nothing.
const train::TaskScore* last_score(const std::vector<train::TaskStepReport>& steps, std::size_t task) {
  for (auto step = steps.rbegin(); step != steps.rend(); ++step)
    if (!step->held_out.empty() && step->batches[task] > 0) return &step->held_out[task];
  return nullptr;
}

std::string mix_costs_text(const train::MixCosts& costs) {
  return text_of("planned in ", format_seconds({costs.plan_seconds}), ", ", format_bytes({costs.moved_bytes}),
                 " of states moved between ranks, training stood still for ", format_seconds({costs.seconds}));
}

nlohmann::ordered_json mixes_json(const std::vector<train::MixChange>& mixes) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const train::MixChange& mix : mixes) {
    nlohmann::ordered_json& own = out.emplace_back();
    own["step"] = mix.step + 1;
    for (const TaskSpec& task : mix.model.tasks) own["tasks"][task.name] = task.batch;
    own["plan_seconds"] = mix.costs.plan_seconds;
    own["moved_bytes"] = mix.costs.moved_bytes;
    own["seconds"] = mix.costs.seconds;
  }
  return out;
}

// @param of  the plan of the last step
void print_run(const ReadMultiTaskPlan& of, const TrainTasksArguments& a, const train::TaskTrainReport& report,
               const Common& common) {
  const auto& [first, last] = std::pair(report.steps.front(), report.steps.back());
  const std::vector<TaskSpec> tasks = of.single ? std::vector<TaskSpec>{} : of.whole.tasks;
  const Seconds measured{report.iteration_seconds};
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
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      nlohmann::ordered_json& task = out["tasks"].emplace_back();
      const auto [begin, end] = steps_of(report.steps, i);
      task = {{"name", tasks[i].name}, {"first_loss", nullptr}, {"last_loss", nullptr}};
      if (begin == nullptr) continue;
      task["first_loss"] = begin->losses[i];
      task["last_loss"] = end->losses[i];
      const train::TaskScore* const score = last_score(report.steps, i);
      if (score == nullptr) continue;
      task["held_out_loss"] = score->loss;
      if (score->retrieves) task["retrieval"] = score->retrieval;
    }
    if (!a.mixes.empty()) out["mixes"] = mixes_json(report.mixes);
    add_files_json(out, a.files, RunSummary(report));
    add_texts(out, {{"trace", a.trace}, {"report", a.report}});
    if (report.stopped != 0) out["interrupted"] = true;
    out["plan"] = to_json(of.plan, of.model, of.graphs);
    return print_json(out);
  }
  using galvatron::detail::formatted;
  const std::string compared = against_prediction(predicted, measured);
  std::string out = text_of("Trained ", of.model.name, " for ", counted(std::ssize(report.steps), "step"), " on ",
                            counted(of.plan.waves.ranks, "rank"), " in ", name_of(of.plan.precision),
                            of.single ? text_of(", ", counted(std::ssize(of.plan.pipelines), "pipeline"))
                                      : text_of(", tasks in ", name_of(of.plan.order)),
                            "\n") +
                    row("loss", formatted("%.4f -> %.4f", first.loss, last.loss));
  for (std::size_t i = 0; i < tasks.size(); ++i)
    if (const auto [begin, end] = steps_of(report.steps, i); begin != nullptr)
      out += row("", tasks[i].name, formatted(" %.4f -> %.4f", begin->losses[i], end->losses[i]));
  bool headed = false;
  for (std::size_t i = 0; i < tasks.size(); ++i)
    if (const train::TaskScore* const score = last_score(report.steps, i))
      out +=
          row(std::exchange(headed, true) ? "" : "held out", tasks[i].name, formatted(" %.4f", score->loss),
              score->retrieves ? text_of(", ", percent(score->retrieval), " of ", a.held_out, " pairs find each other")
                               : "");
  for (const train::MixChange& mix : report.mixes)
    out += row(text_of("step ", mix.step + 1), mix_text(mix.model.tasks), "; ", mix_costs_text(mix.costs));
  out += row("iteration", "predicted ", predicted.value > 0 ? format_seconds(predicted) : "nothing", ", measured ",
             format_seconds(measured), compared.empty() ? "" : ": ", compared);
  print(out + files_text(a.files, RunSummary(report)) + row("trace", a.trace) + row("report", a.report) +
        row("plan", a.plan_path) + row("plan", a.wanted.out));
}

// What the fullest rank takes where the launcher's ranks are.
void check_task_memory(const ReadMultiTaskPlan& of, const Launcher& launcher, Bytes limit) {
  const MultiTaskPlan& p = of.plan;
  const Cluster here = launcher.cluster(p.waves.ranks);
  const train::TaskPlan plan = value_or_throw(train::task_plan(of.model, p.waves, p.order));
  const Bytes peak = std::ranges::max(simulate::peaks_of(plan, p.precision, here));
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

train::TaskData opened_data(const TrainTasksArguments& a, const MultiTaskModel& model, std::uint64_t seed) {
  if (a.data.size() > 1) refuse("--data: the data of several tasks are in one folder; give it alone");
  if (a.data.empty() || a.data.front() == synthetic_data) {
    if (a.held_out > 0) refuse("--held-out is for data in files; leave it out, or give --data DIR");
    return train::TaskData::synthetic(model, seed);
  }
  return value_of("--data", train::TaskData::open(a.data.front(), model, a.held_out, seed));
}

// The data of pipelines: one batch of all samples, of which each has its own.
class PipelineData {
 public:
  PipelineData(const TrainTasksArguments& a, const ReadMultiTaskPlan& of, std::uint64_t seed) {
    const ModelSpec& model = *of.single;
    const auto tokenizer = tokenizer_for(a.tokenizer, of.plan.model, model);
    const std::vector<std::filesystem::path> paths(a.data.begin(), a.data.end());
    data_ = value_or_throw(train::Data::open(
        paths, model, {.sequence = of.plan.sequence_length, .seed = seed, .tokenizer = tokenizer.get()}));
    batches_ = data_->batches(of.plan.global_batch);
    std::int64_t offset = 0;
    for (const std::int64_t samples : of.plan.pipelines) {
      shares_.push_back(std::make_unique<train::BatchShare>(*batches_, offset));
      offset += samples;
    }
  }
  [[nodiscard]] const train::Data& data() const { return *data_; }
  [[nodiscard]] std::vector<train::TaskSources> sources() const {
    std::vector<train::TaskSources> out;
    for (const auto& share : shares_) out.push_back({share.get()});
    return out;
  }

 private:
  std::optional<train::Data> data_;
  std::unique_ptr<train::BatchSource> batches_;
  std::vector<std::unique_ptr<train::BatchShare>> shares_;
};

void print_nothing_to_do(const TrainTasksArguments& a, std::int64_t steps, const Common& common) {
  if (!common.json) return print(text_of("Nothing to do: ", a.files.resume, " has all ", steps, " steps\n"));
  print_json({{"first_loss", nullptr}, {"last_loss", nullptr}, {"steps", 0}, {"resume", a.files.resume}});
}

}  // namespace

int task_ranks(const TrainTasksArguments& a, const Launcher& launcher) {
  if (!a.plan_path.empty()) return given_tasks(a).plan.waves.ranks;
  if (a.ranks != 0) return a.ranks;
  const std::string& cluster = a.wanted.cluster;
  return cluster.empty() || cluster == "host" ? launcher.cluster(0).devices : cluster_named(cluster).devices;
}

int train_tasks(TrainTasksArguments a, const train::TrainOptions& options, const RunStart& start, Launcher& launcher,
                const Common& common) {
  const bool shows = launcher.shows();
  std::vector<TaskMix> mixes = given_mixes(a);
  const std::int64_t first = start.manifest ? start.manifest->training.step : 0;
  if (const TaskMix* in_force = mix_at(mixes, first); in_force != nullptr) a.wanted.tasks = in_force->tasks;
  PreparedTasks prepared = prepared_tasks(a, launcher, common);
  const ReadMultiTaskPlan& of = prepared.of;
  launcher.require(of.plan.precision);
  std::optional<PipelineData> pipelines;
  std::optional<train::TaskData> data;
  if (of.single)
    pipelines.emplace(a, of, options.seed);
  else
    data = opened_data(a, of.whole, options.seed);
  if (const auto& resumed = start.manifest) {
    const std::int64_t done = resumed->training.step;
    if (done > options.steps)
      refuse("--resume: ", start.checkpoint, " has ", done, " steps, and --steps asks for ", options.steps,
             "; ask for more");
    if (pipelines)
      static_cast<void>(
          continues(*resumed, of.plan.global_batch, of.plan.sequence_length, pipelines->data(), options.steps));
    else
      value_of("--resume", data->go_on(resumed->training.streams, done));
    if (done == options.steps) {
      if (shows) print_nothing_to_do(a, options.steps, common);
      return 0;
    }
  }
  MixPlans plans(a, std::move(mixes), prepared, first, options.steps, launcher, common);
  check_task_memory(of, launcher, a.wanted.memory);
  for (const ReadMultiTaskPlan& later : plans.later()) check_task_memory(later, launcher, a.wanted.memory);
  if (data) data->follow(plans.mixes());
  if (!a.wanted.out.empty() && a.plan_path.empty())
    value_or_throw(save_multi_task_plan(of.plan, of.model, of.graphs, a.wanted.out));

  train::TaskTrainOptions run{.steps = options.steps,
                              .learning_rate = options.learning_rate,
                              .adam = options.adam,
                              .clip = options.clip,
                              .seed = options.seed,
                              .precision = of.plan.precision,
                              .deterministic = options.deterministic};
  if (pipelines) {
    run.single = &*of.single;
    run.data_tokens = pipelines->data().size();
    run.data_crc32c = pipelines->data().checksum();
  } else {
    run.streams = data->streams();
  }
  run.mixes = plans.mixes();
  run.plan_for = [&](const MultiTaskModel& mixed, int) { return plans.plan_for(mixed); };
  run.world.timeout =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(a.rank_timeout));
  std::optional<RunFiles> files;
  if (of.single)
    files.emplace(a.files, start, *of.single, shows, run);
  else
    files.emplace(a.files, start, of.whole, shows, run);
  const std::vector<TaskSpec> told = of.single ? std::vector<TaskSpec>{} : of.whole.tasks;  // each with its loss
  const std::string with_checkpoint = a.files.checkpoint.empty() ? "" : ", with a checkpoint";
  run.stop = &note_signals(shows && !common.quiet ? "Interrupted: training ends after this step" + with_checkpoint +
                                                        "; once more ends it at once."
                                                  : "",
                           shows ? "interrupted twice, and ended at once" : "");
  train::HeldOut held_out;
  if (a.held_out > 0) {
    held_out = {.sources = data->held_out_sources(),
                .samples = data->held_out(),
                .every = a.evaluate_every > 0 ? a.evaluate_every : std::max<std::int64_t>(options.steps / 10, 1)};
    run.held_out = &held_out;
  }
  std::optional<train::TaskRecorder> recorder;
  if (!a.trace.empty() || !a.report.empty()) run.recorder = &recorder.emplace(of.plan.waves.ranks);
  train::TaskTrainReport report;
  {
    Progress progress = error_progress("train", common);
    LiveView view;
    if (a.live) progress.lines_above([&view](int width, bool color) { return view.lines(width, color); });
    run.on_mix = [&](const train::MixChange& mix) {
      progress.say(text_of("Step ", mix.step + 1, " goes on with ", mix_text(mix.model.tasks), "; ",
                           mix_costs_text(mix.costs), ", expected to take ",
                           format_seconds(plans.now().plan.predicted.iteration), " a step."));
    };
    run.on_step = [&](const train::TaskStepReport& step) {
      files->add(step, told);
      if (a.live) view.add({.step = step.step, .loss = step.loss, .gradient_norm = step.gradient_norm});
      if (!step.skipped.empty()) progress.say("Left out: " + step.skipped);
      progress.update(static_cast<double>(step.step + 1) / static_cast<double>(options.steps),
                      text_of(step.step + 1, "/", options.steps),
                      {galvatron::detail::formatted("loss %.3f", step.loss)});
    };
    const std::vector<train::TaskSources> sources = pipelines ? pipelines->sources() : data->sources();
    report = trained(a.files, [&] { return launcher.train_tasks(of.whole, of.plan, sources, run); });
  }
  const int signal = report.stopped;
  if (!shows) return signal;
  const std::string interrupted = signal == 0 ? "" : interruption(RunSummary(report), a.files, options.steps);
  if (report.steps.empty()) {
    complain(interrupted);
    if (common.json) print_json({{"error", interrupted}, {"exit_code", 128 + signal}});
    return signal;
  }
  if (recorder)
    write_task_run(plans.now(), prepared.cluster ? &*prepared.cluster : nullptr,
                   {recorder->last_step(), report.steps, told, report.mixes}, a.trace, a.report, common);
  try {
    print_run(plans.now(), a, report, common);
  } catch (...) {
    if (signal == 0) throw;  // else the terminal may have gone with the signal
  }
  if (signal != 0) complain(interrupted);
  return signal;
}

}  // namespace galvatron::tools
