// galvatron train: a plan carried out on this machine, and how the prediction compares.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/host.hpp>
#include <galvatron/data/data.hpp>
#include <galvatron/data/validation_batches.hpp>
#include <galvatron/files.hpp>
#include <galvatron/flexsp/compiled.hpp>
#include <galvatron/model/difference.hpp>
#include <galvatron/plan/compiled.hpp>
#include <galvatron/plan/find_packed.hpp>
#include <galvatron/profile/check.hpp>
#include <galvatron/runtime/implemented.hpp>
#include <galvatron/schedule/schedules.hpp>
#include <galvatron/strategy/registry.hpp>
#include <galvatron/train/pack_plan.hpp>

#include "adaptation.hpp"
#include "launcher.hpp"
#include "live_view.hpp"
#include "options.hpp"
#include "plans.hpp"
#include "run_files.hpp"
#include "signals.hpp"
#include "simulations.hpp"
#include "texts.hpp"
#include "train_arguments.hpp"
#include "train_outcome.hpp"
#include "train_tasks.hpp"

namespace galvatron::tools {

namespace {

constexpr const char* interrupted_early = "interrupted before training began";

// A run of a model of several tasks; the number of the signal that ended it early, or 0.
// @param starts_ranks  this process only starts those that train
int train_with_tasks(const TrainArguments& a, const RunStart& start, bool starts_ranks, const Arguments& arguments,
                     Launcher& launcher, const Common& common) {
  const bool pipelines = is_pipelines_file(a.plan_path);
  for (const auto& [given, option] : {std::pair(a.sequence != 0, "--seq"),
                                      {a.moments.has_value(), "--moments"},
                                      {a.expert_imbalance != 0, "--expert-imbalance"},
                                      {a.dispatch.given(), "--expert-dispatch, like --lsh-...,"},
                                      {a.lora.rank != 0, "--lora"},
                                      {!a.space.empty(), "--space"},
                                      {a.pack, "--pack"},
                                      {!a.validation.empty(), "--validate"},
                                      {!a.tokenizer.empty() && !pipelines, "--tokenizer"},
                                      {a.adapt.on, "--adapt"},
                                      {a.mask_token >= 0, "--mask-token"}})
    if (given)
      refuse(option,
             pipelines ? " is for plans of one chain of stages, and " + a.plan_path + " has several pipelines"
                       : " is for models of one task",
             "; leave it out");
  for (const auto& [given, option] : {std::pair(a.held_out != 0, "--held-out"), {!a.mixes.empty(), "--mix-at"}})
    if (given && pipelines) refuse(option, " is for models of several tasks; leave it out");
  if (pipelines && a.data.empty()) refuse("--data: training reads files; give some");
  const TrainTasksArguments tasks{.plan_path = a.plan_path,
                                  .wanted = {.model = a.model,
                                             .cluster = a.cluster,
                                             .global_batch = a.global_batch,
                                             .precision = a.precision,
                                             .memory = a.memory,
                                             .schedule = a.schedule,
                                             .out = a.save_plan},
                                  .ranks = a.ranks,
                                  .data = a.data,
                                  .tokenizer = a.tokenizer,
                                  .held_out = a.held_out,
                                  .evaluate_every = a.evaluate_every,
                                  .mixes = a.mixes,
                                  .save_cluster = a.save_cluster,
                                  .profile = {.time_budget = {a.profile_seconds},
                                              .deterministic = a.options.deterministic,
                                              .accepts_busy = a.accepts_busy.value_or(false)},
                                  .rank_timeout = a.rank_timeout,
                                  .files = a.files,
                                  .trace = a.trace,
                                  .report = a.report,
                                  .live = a.live};
  if (!starts_ranks) return train_tasks(tasks, a.options, start, launcher, common);
  start_ranks(a.mpirun, task_ranks(tasks, launcher), arguments);
  return 0;
}

void check_processes(int ranks, const Launcher& launcher) {
  if (launcher.ranks() == 0 || launcher.ranks() == ranks) return;
  const std::string starter = launcher.starter();
  refuse(starter, " has started ", launcher.ranks(), launcher.ranks() == 1 ? " process" : " processes",
         ", but the plan has ", counted(ranks, "rank"), "; ", starter == "mpirun" ? "use mpirun -np " : "start ", ranks,
         ", or make a plan for ", launcher.ranks());
}

void check_against(const Plan& plan, const ModelSpec& model, const TrainArguments& a, const Launcher& launcher) {
  const auto differs = [](const char* option, std::int64_t given, const char* what, std::int64_t has) {
    if (given != 0 && given != has)
      refuse(option, " says ", given, ", but the plan was made for ", what, " ", has,
             "; leave the option out, or make a new plan");
  };
  differs("--ranks", a.ranks, "this number of ranks:", plan.ranks());
  check_processes(plan.ranks(), launcher);
  differs("--global-batch", a.global_batch, "a global batch of", plan.global_batch);
  differs("--seq", a.sequence, "a sequence length of", plan.sequence_length);
  if (a.pack && !plan.packed)
    refuse("--pack: the plan is for samples of one length; make one for documents with --auto --pack");
  if (const std::string why = why_unfit(plan, model); !why.empty())
    refuse("the plan does not suit the model ", model.name, ": ", why, "; make a plan for this model");
  if (model.name != plan.model) {
    const auto planned = load_model(plan.model);
    const auto difference =
        planned ? first_difference(value_or_throw(as_planned(plan, *planned)), model) : std::nullopt;
    if (difference)
      refuse("the plan was made for the model ", plan.model, ", not for ", model.name, ": ", difference->field, " ",
             difference->first, " there, ", difference->second, " here; make a plan for this model");
  }
}

// What the runtime of this build carries out.
void check_runnable(const Plan& plan, const Launcher& launcher) {
  const auto check_spec = [](const std::string& layer, const StrategySpec& spec) {
    if (!is_instantiated(InstantiatedStrategies{}, spec))
      refuse(layer, " of the plan has the strategy \"", strategy_text(spec),
             "\", which this version plans and does not train; make a plan with --space runnable");
  };
  if (!plan.trainer.is_own()) refuse("the plan is for ", plan.trainer.name, "; make a plan without --trainer");
  check_spec("the embedding", plan.embedding);
  for (std::size_t i = 0; i < plan.layers.size(); ++i) check_spec(text_of("layer ", i), plan.layers[i]);
  check_spec("the head", plan.head);
  if (plan.ranks() > 1024)
    refuse("the plan has ", plan.ranks(), " ranks, and rank threads are at most 1024; plan for this machine");
  launcher.require(plan.precision);
}

// Records are kept of every instruction of a step.
void check_recorded(const Plan& plan) {
  constexpr std::int64_t most = 4'000'000;
  std::int64_t instructions = 0;
  for (std::size_t i = 0; i < plan.stages.size(); ++i)
    instructions += schedule::size_of(value_or_throw(
                        schedule::stage_program(plan.schedule, static_cast<int>(plan.stages.size()),
                                                static_cast<int>(i), plan.microbatches, plan.virtual_stages))) *
                    plan.stages[i].rank_count;
  if (instructions > most)
    refuse("--trace and --report record each instruction of a step on every rank, ", instructions,
           " of this plan, and at most ", most,
           " can be recorded; leave them out, or train a plan of fewer micro-batches");
}

// The arena of every rank.
std::vector<Bytes> arenas(const Plan& plan, const ModelSpec& model, Bytes library) {
  std::vector<Bytes> out;
  for (const PlanStage& stage : plan.stages)
    for (int i = 0; i < stage.rank_count; ++i)
      out.push_back(i > 0 && !stage.has_ratios()
                        ? out.back()
                        : train::memory_of(train::stage_plan(plan, model, stage.first_rank + i), library).total());
  return out;
}
// The largest of each stage.
std::vector<Bytes> peaks(const Plan& plan, const std::vector<Bytes>& arenas) {
  std::vector<Bytes> out;
  for (const PlanStage& stage : plan.stages)
    out.push_back(*std::ranges::max_element(std::span(arenas).subspan(static_cast<std::size_t>(stage.first_rank),
                                                                      static_cast<std::size_t>(stage.rank_count))));
  return out;
}

// @param ranks  the arena of every rank  @param copies  beside the arenas, of every rank or of none
void check_memory(const std::vector<Bytes>& ranks, std::vector<Bytes> copies, const Plan& plan,
                  const Launcher& launcher, const TrainArguments& a) {
  const Bytes most = std::ranges::max(ranks);
  double sum = 0;
  if (!launcher.copies_in_arena_memory()) copies.clear();
  const std::vector<int> here = launcher.ranks_here(plan);
  const bool together = launcher.shares_memory(plan);
  for (const int rank : here) {
    const auto arena = static_cast<double>(ranks[static_cast<std::size_t>(rank)].count);
    sum = together ? sum + arena : std::max(sum, arena);
    if (!copies.empty()) sum += static_cast<double>(copies[static_cast<std::size_t>(rank)].count);
  }
  if (a.memory.count > 0 && most > a.memory)
    throw Infeasible(text_of("the plan takes ", most.count, " bytes (", format_bytes(most),
                             ") on its fullest rank, and --memory allows ", format_bytes(a.memory),
                             "; allow that much, or make a plan with this --memory"),
                     most);
  const auto [memory, owner] = launcher.arena_memory(plan);
  const std::string bound = launcher.memory_bound(plan.ranks());
  if (sum > static_cast<double>(memory.count))
    throw Infeasible(
        text_of("the plan takes ", format_bytes(most), " on its fullest rank",
                together && here.size() > 1 ? text_of(" and ", format_count(sum), "B on all ", here.size()) : "",
                copies.empty() ? "" : " with their copies for checkpoints", ", but ", owner, " has ",
                format_bytes(memory), bound.empty() ? "" : " free (" + bound + ")",
                "; train a smaller model or batch, or plan with a smaller --memory"),
        std::nullopt);
}

struct Prepared {
  ModelSpec model;
  Plan plan;
  std::optional<Cluster> cluster;  // that the plan was searched for
};

ModelSpec trainable_model(const std::string& name) {
  ModelSpec model = value_or_throw(load_model(name));
  value_or_throw(runtime::check_implemented(model));
  return model;
}

// @param name  empty: the plan's
ModelSpec trainable_model(const std::string& name, const Plan& plan) {
  return value_or_throw(as_planned(plan, trainable_model(name.empty() ? plan.model : name)));
}

Prepared given_plan(const TrainArguments& a, const Launcher& launcher) {
  Plan plan = value_or_throw(read_plan(a.plan_path));
  ModelSpec model = trainable_model(a.model, plan);
  check_against(plan, model, a, launcher);
  return {std::move(model), std::move(plan), std::nullopt};
}

bool profiles_first(const TrainArguments& a) { return a.cluster.empty() || a.cluster == "host"; }

// What is profiled for a search on this machine.
train::ProfileOptions profile_for(const TrainArguments& a, const Cluster& before, Precision precision,
                                  const ModelSpec& model) {
  return {.ranks = before.devices,
          .precisions = {precision},
          .time_budget = {a.profile_seconds},
          .models = {model},
          .deterministic = a.options.deterministic,
          .accepts_busy = a.accepts_busy.value_or(false)};
}

// Reads the data, so that nothing bad in them comes up after minutes of profiling.
// @param packed  samples are documents
using CheckData = std::function<const train::Data&(const ModelSpec& model, std::int64_t sequence, bool packed)>;

PackedDocuments documents_to_plan(const train::DocumentSource& documents, const TrainArguments& a) {
  return {.batch = a.global_batch,
          .steps = train::rows_of_steps(documents, a.global_batch, PackedDocuments::most_steps),
          .longest = documents.length(documents.longest_document()) - 1,
          .max_tokens = a.max_tokens};
}

Prepared searched_here(const TrainArguments& a, const Common& common, const CheckData& check_data,
                       const Launcher& launcher) {
  Prepared out;
  out.model = a.lora.apply(trainable_model(a.model));
  search::SearchOptions search;
  search.global_batch = a.global_batch;
  search.sequence = a.sequence == 0 ? out.model.positions() : a.sequence;
  if (search.sequence > out.model.positions())
    refuse("--seq ", search.sequence, " is longer than the ", out.model.positions(), " positions of ", out.model.name,
           "; shorten it, or choose another model");
  const train::Data& data = check_data(out.model, search.sequence, a.pack);
  if (a.pack) {
    if (const auto why = why_unpacked(out.model); !why.empty()) refuse("--pack: ", why);
    value_or_throw(train::check_documents(*data.documents(), out.model, a.max_tokens));
  }

  // Of this machine before anything is measured: enough to know the precision and whether anything fits at all.
  const bool profiles = profiles_first(a);
  Cluster cluster = profiles ? launcher.cluster(a.ranks) : cluster_named(a.cluster);
  if (a.ranks != 0 && cluster.devices != a.ranks)
    refuse("--ranks says ", a.ranks, ", but ", a.cluster, " was measured with ", cluster.devices,
           "; leave --ranks out, or run `galvatron profile --ranks ", a.ranks, "`");
  search.memory = memory_to_plan_with(a.memory, cluster, common);
  search.precision = chosen_precision(a.precision, cluster);
  search.moments = a.moments.value_or(search.moments);
  if (a.expert_imbalance != 0) search.expert_imbalance = a.expert_imbalance;
  if (!a.space.empty()) search.space = value_or_throw(parse_space(a.space));
  a.dispatch.apply(search, out.model);
  std::string name = a.cluster;
  const auto searched = [&](const std::string& cluster_name) {
    if (a.pack)
      return searched_packed_plan(out.model, cluster, cluster_name, search, documents_to_plan(*data.documents(), a),
                                  a.groups)
          .plan;
    return searched_plan(out.model, cluster, cluster_name, search, {search.global_batch}, 0, common).best.plan;
  };
  if (profiles) {
    searched(cluster.name);
    cluster = measured(launcher, profile_for(a, cluster, search.precision, out.model), common).first.groups.front();
    if (const std::string bound = launcher.memory_bound(cluster.devices); !bound.empty())
      note(common, "Planned for ", format_bytes(cluster.device.memory), " a rank: ", bound, ".");
    name = a.save_cluster.empty() ? cluster.name : a.save_cluster;
  }
  if (!a.save_cluster.empty()) value_or_throw(write_cluster(a.save_cluster, cluster));
  out.plan = searched(name);
  out.cluster = std::move(cluster);
  return out;
}

// One process searches for all.
Prepared searched_for(const TrainArguments& a, const Common& common, const CheckData& check_data, Launcher& launcher) {
  Prepared out;
  if (launcher.shows()) {
    out = searched_here(a, common, check_data, launcher);
    static_cast<void>(launcher.shared(
        nlohmann::ordered_json{{"plan", to_json(out.plan)}, {"cluster", cluster_to_json(*out.cluster)}}.dump()));
    return out;
  }
  out.model = value_or_throw(load_model(a.model));
  if (profiles_first(a)) {
    const Cluster before = launcher.cluster(a.ranks);
    measured(launcher, profile_for(a, before, chosen_precision(a.precision, before), out.model), common);
  }
  const auto searched = nlohmann::json::parse(launcher.shared(""));
  out.plan = value_or_throw(plan_from_json(searched.at("plan"), "the plan of rank 0"));
  out.cluster = value_or_throw(cluster_from_json(searched.at("cluster"), "the cluster of rank 0"));
  out.model = value_or_throw(as_planned(out.plan, std::move(out.model)));
  check_data(out.model, out.plan.sequence_length, a.pack);
  return out;
}

// The plan of a job that goes on where another one has lost ranks.
Prepared restarted_plan(const Restart& restart, const TrainArguments& a) {
  return {trainable_model(a.model, restart.plan), restart.plan, std::nullopt};
}

// What this process has to know if its job goes on where another one has lost ranks.
std::optional<Restart> restart_of(const std::optional<JobFolder>& job, const TrainArguments& a, Launcher& launcher) {
  if (!a.adapt.on || launcher.ranks() == 0) return std::nullopt;
  std::string text;
  if (launcher.shows() && job) {
    const bool all_here = static_cast<int>(launcher.ranks_here(Plan{}).size()) == launcher.ranks();
    text = job->restart_text(all_here, [&](const Plan& plan) { return trainable_model(a.model, plan); });
  }
  text = launcher.shared(text);
  return text.empty() ? std::nullopt : std::optional<Restart>(text);
}

// Starts the processes of a run, and others in their place when some are lost.
void start_replaced_ranks(const TrainArguments& a, int ranks, const Arguments& arguments) {
  const JobFolder job = JobFolder::make();
  int now = ranks;
  train::AdaptOptions adapt;
  adapt.spare_ranks = a.adapt.spare_ranks;
  const Replacement replacement{
      .is_ready = [&](int lost) { return job.survivors() >= now - lost; },
      .next =
          [&](const std::map<int, std::string>& lost, double since) {
            const std::optional<Plan> plan = job.plan();
            const std::string first = text_of("rank ", lost.begin()->first, " ", lost.begin()->second);
            if (!plan) throw Failure(ErrorKind::machine, first + " before training began");
            const ModelSpec model = trainable_model(a.model, *plan);
            adapt.plan_for = [&](const Plan& before, int left) { return plan_for_left(before, model, left, a.memory); };
            std::vector<int> left;
            for (int rank = 0; rank < plan->ranks(); ++rank)
              if (!lost.contains(rank)) left.push_back(rank);
            if (left.empty()) throw Failure(ErrorKind::machine, first + ", and no rank is left");
            const train::Adaptation next = train::after_loss(*plan, left, adapt, "it " + lost.begin()->second);
            job.write_next(next, since);
            return now = next.plan.ranks();
          }};
  try {
    start_ranks(a.mpirun, ranks, arguments, &replacement);
  } catch (...) {
    job.remove();
    throw;
  }
  job.remove();
}

// Ranks of the plan that is given, or that will be searched.
int ranks_to_start(const TrainArguments& a, const Launcher& launcher) {
  if (!a.automatic) return given_plan(a, launcher).plan.ranks();
  if (a.device == "cuda" && a.ranks == 0 && profiles_first(a))
    refuse(
        "--launcher mpi --auto starts as many processes as there are ranks on GPUs; give their number with --ranks N");
  return a.ranks != 0 ? a.ranks : cluster_named(a.cluster.empty() ? "host" : a.cluster).devices;
}

// The batches of the run, which read from the data.
std::unique_ptr<train::BatchSource> batches_of(const train::Data& data, const Prepared& prepared) {
  const Plan& plan = prepared.plan;
  if (!plan.packed) return data.batches(plan.global_batch);
  std::optional<Cluster> cluster = prepared.cluster;
  if (!cluster && plan.embedding.groups == SequenceGroupKind::per_batch) cluster = cluster_named(plan.cluster);
  return value_or_throw(train::packed_batches(*data.documents(), plan, prepared.model, cluster ? &*cluster : nullptr));
}

// Of the documents of a step; none where samples have one length.
std::vector<std::int64_t> rows_of_step(const train::Data& data, const Plan& plan, std::int64_t step) {
  std::vector<std::int64_t> out;
  if (!plan.packed) return out;
  const train::DocumentSource& documents = *data.documents();
  for (std::int64_t i = step * plan.global_batch; i < (step + 1) * plan.global_batch; ++i)
    out.push_back(documents.length(documents.document(i)) - 1);
  return out;
}

// What a run is validated on, open.
class ValidationRun {
 public:
  // Throws Failure (usage).
  ValidationRun(const TrainArguments& a, const Prepared& prepared, const train::Tokenizer* tokenizer) {
    const Plan& plan = prepared.plan;
    train::DataOptions reading{
        .sequence = plan.sequence_length, .seed = 0, .mask_token = a.mask_token, .tokenizer = tokenizer};
    if (plan.packed) reading.documents = a.documents;
    data_ = value_of("--validate",
                     train::Data::open(std::vector<std::filesystem::path>(a.validation.begin(), a.validation.end()),
                                       prepared.model, reading));
    const std::int64_t batch = plan.global_batch;
    const std::int64_t wanted =
        a.validate_samples > 0 ? a.validate_samples : std::max<std::int64_t>(65'536 / plan.sequence_length, 1);
    samples_ = std::min(wanted, data_->samples());
    options_.every = a.validate_every > 0 ? a.validate_every : std::max<std::int64_t>(a.options.steps / 10, 1);
    if (plan.packed) {
      if (data_->samples() < batch)
        refuse("--validate: the files have ", data_->samples(), " documents, and a step takes ", batch,
               "; give that many, or a smaller --global-batch");
      options_.batches = std::max<std::int64_t>(samples_ / batch, 1);
      samples_ = options_.batches * batch;
      batches_ = batches_of(*data_, prepared);
    } else {
      options_.batches = (samples_ + batch - 1) / batch;
      options_.predictions = samples_ * predictions(prepared.model, plan.sequence_length);
      batches_ = std::make_unique<train::ValidationBatches>(data_->batches(batch), batch, samples_);
    }
    options_.source = batches_.get();
  }

  [[nodiscard]] const train::Validation& options() const { return options_; }
  [[nodiscard]] std::int64_t samples() const { return samples_; }
  [[nodiscard]] const train::Data& data() const { return *data_; }

 private:
  std::optional<train::Data> data_;
  std::unique_ptr<train::BatchSource> batches_;  // read from the data
  train::Validation options_;
  std::int64_t samples_ = 0;
};

// Sets what a run with --adapt does.
void adapt(train::TrainOptions& options, const TrainArguments& a, const Prepared& prepared, const Launcher& launcher,
           const std::optional<Restart>& restart, const std::optional<JobFolder>& job) {
  train::AdaptOptions& to = options.adapt;
  to.on = true;
  to.margin = a.adapt.margin;
  const ModelSpec& model = prepared.model;
  const Bytes library = launcher.library_workspace(prepared.plan);
  // What is free now, and what the plan takes: all ranks decide by the same figure.
  double memory = static_cast<double>(launcher.arena_memory(prepared.plan).first.count);
  if (launcher.ranks() > 0) memory = std::stod(launcher.shared(std::to_string(memory)));
  to.fits = [=, &model, limit = a.memory](const Plan& plan) {
    double sum = 0;
    for (const Bytes bytes : arenas(plan, model, library)) {
      if (limit.count > 0 && bytes > limit) return false;
      sum += static_cast<double>(bytes.count);
    }
    return sum <= memory;
  };
  if (restart) to.loss = restart->loss;
  if (restart) to.loss->adaptation.step = train::first_step(options);
  if (job) {
    to.survivor = [&job](train::Survivor&& survivor) { job->leave(survivor); };
  } else if (launcher.ranks() == 0) {
    to.spare_ranks = a.adapt.spare_ranks;
    to.plan_for = [&model, memory = a.memory](const Plan& before, int ranks) {
      return plan_for_left(before, model, ranks, memory);
    };
  }
}

// Sets which rank was the slowest, if one was. Where the plan's cluster is not known, this machine without a profile
// says how much the plan gives each rank to do, and no seconds are told.
void find_slowest(TrainOutcome& outcome, const Prepared& prepared) {
  const std::vector<RankSeconds> measured = train::measured_work(outcome.report);
  if (measured.empty()) return;
  const Plan& plan = outcome.report.adaptations.empty() ? outcome.plan : outcome.report.adaptations.back().plan;
  Result<MixedCluster> cluster = usage_error("not known");
  if (prepared.cluster)
    cluster = alone(*prepared.cluster);
  else if (plan.cluster != "host")
    cluster = load_mixed_cluster(plan.cluster);
  std::vector<RankSeconds> predicted;
  if (!plan.packed)
    if (const auto cost = cost_of(plan, prepared.model, cluster ? *cluster : mixed_cluster_named("host", plan.ranks())))
      predicted = train::predicted_work(plan, *cost);
  outcome.slowest = train::slowest_rank(measured, predicted);
  if (!outcome.slowest) return;
  if (!cluster) outcome.slowest->predicted = outcome.slowest->predicted_others = 0;
  outcome.slowest_stage = *std::ranges::find_if(
      plan.stages, [&](const PlanStage& stage) { return outcome.slowest->rank < stage.first_rank + stage.rank_count; });
}

// Puts the steps of the jobs before in front, as far as this one has not done them again.
void add_steps_before(std::vector<train::StepReport>& steps, std::vector<train::StepReport> before) {
  if (!steps.empty())
    std::erase_if(before, [&](const train::StepReport& step) { return step.step >= steps.front().step; });
  steps.insert(steps.begin(), before.begin(), before.end());
}

// The number of the signal that ended it early, or 0.
int train(TrainArguments& a, const Arguments& arguments, Common& common, Launcher& launcher) {
  prepare_mapped_files(common);
  const bool shows = launcher.shows();
  end_on_signals(shows ? interrupted_early : "");
  const bool starts_ranks = a.launcher == "mpi" && launcher.ranks() == 0 && !started_by_mpirun();
  std::optional<JobFolder> job;
  if (a.adapt.on && launcher.ranks() > 0) job = JobFolder::of_this_process();
  const std::optional<Restart> restart = restart_of(job, a, launcher);
  if (restart && !a.files.checkpoint.empty() && !train::list_checkpoints(a.files.checkpoint).empty())
    a.files.resume = a.files.checkpoint;  // its own
  const RunStart start = starts_ranks ? likely_run_start(a.files) : run_start(a.files, launcher);
  const auto& resumed = start.manifest;
  train::TrainOptions& options = a.options;
  settle(a.constants, resumed, options);
  if (!shows) {  // another process writes files and shows progress
    for (std::string* const path : {&a.files.metrics, &a.files.tensorboard, &a.save_plan, &a.save_cluster})
      path->clear();
    common.quiet = true;
  }
  check_train_arguments(a, options.learning_rate, launcher);
  if (a.has_tasks()) return train_with_tasks(a, start, starts_ranks, arguments, launcher, common);
  if (starts_ranks) {
    const int ranks = ranks_to_start(a, launcher);
    if (a.adapt.on)
      start_replaced_ranks(a, ranks, arguments);
    else
      start_ranks(a.mpirun, ranks, arguments);
    return 0;
  }
  if (a.automatic && launcher.ranks() != 0 && !restart) {
    if (a.ranks != 0) check_processes(a.ranks, launcher);
    a.ranks = launcher.ranks();
  }

  std::optional<train::Data> data;
  std::shared_ptr<const train::Tokenizer> tokenizer;
  const auto open_data = [&](const ModelSpec& model, std::int64_t sequence, bool packed) -> const train::Data& {
    const std::vector<std::filesystem::path> paths(a.data.begin(), a.data.end());
    tokenizer = tokenizer_for(a.tokenizer, a.model.empty() ? model.name : a.model, model);
    train::DataOptions reading{
        .sequence = sequence, .seed = options.seed, .mask_token = a.mask_token, .tokenizer = tokenizer.get()};
    if (packed) reading.documents = a.documents;
    data = value_or_throw(train::Data::open(paths, model, reading));
    if (packed && shows)
      if (const std::string left_out = data->documents()->notice(); !left_out.empty()) note(common, left_out);
    return *data;
  };
  Prepared prepared;
  if (restart) {
    prepared = restarted_plan(*restart, a);
    open_data(prepared.model, prepared.plan.sequence_length, prepared.plan.packed);
  } else if (a.automatic) {
    prepared = searched_for(a, common, open_data, launcher);
  } else {
    prepared = given_plan(a, launcher);
    open_data(prepared.model, prepared.plan.sequence_length, prepared.plan.packed);
  }
  const Plan& plan = prepared.plan;
  check_runnable(plan, launcher);
  if (const std::string remark = launcher.remark(plan); !remark.empty()) note(common, remark);
  if (resumed &&
      !continues(*resumed, plan.global_batch, plan.packed ? 0 : plan.sequence_length, *data, a.options.steps)) {
    if (shows) print_nothing_to_do(plan, a, common);
    return 0;
  }

  TrainOutcome outcome;
  outcome.plan = plan;
  const Bytes library = launcher.library_workspace(plan);
  outcome.predicted = arenas(plan, prepared.model, library);
  if (plan.predicted.stages.size() == plan.stages.size()) {
    const std::vector<Bytes> here = peaks(plan, outcome.predicted);
    for (std::size_t i = 0; i < here.size(); ++i)
      if (const Bytes said = plan.predicted.stages[i].peak; said != here[i]) {
        note(common, "The plan was made for ", plan.cluster, " and says ", said.count, " bytes on a rank of stage ", i,
             "; on this machine it is ", here[i].count, ", which is what is compared.");
        break;
      }
  }
  check_memory(outcome.predicted, checkpoint_copies(a.files, plan, prepared.model), plan, launcher, a);
  if (!a.save_plan.empty()) value_or_throw(save_plan(plan, a.save_plan));
  std::optional<ValidationRun> validation;
  if (!a.validation.empty()) {
    validation.emplace(a, prepared, tokenizer.get());
    options.validation = validation->options();
    outcome.validation_samples = validation->samples();
    outcome.validation_tokens_per_byte = validation->data().tokens_per_byte(tokenizer.get());
  }
  outcome.tokens_per_byte = options.tokens_per_byte = data->tokens_per_byte(tokenizer.get());
  options.validation.tokens_per_byte = outcome.validation_tokens_per_byte;

  if (a.adapt.on)
    if (const std::string why = why_not_replanned(plan); !why.empty())
      refuse("--adapt: the plan cannot be changed while it runs: ", why, "; leave --adapt out");
  options.counts_loads = !a.files.metrics.empty() || !a.files.tensorboard.empty() || !a.report.empty();
  options.data_tokens = data->size();
  options.data_crc32c = data->checksum();
  options.world.timeout =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(a.rank_timeout));
  std::optional<RestartStates> states;
  if (restart && !restart->states.empty()) options.goes_on = &states.emplace(*restart, prepared.model).continuation();
  RunFiles files(a.files, start, prepared.model, shows, options);
  std::vector<train::Adaptation> adaptations;
  const std::string with_checkpoint = a.files.checkpoint.empty() ? "" : ", with a checkpoint";
  options.stop = &note_signals(shows && !common.quiet ? "Interrupted: training ends after this step" + with_checkpoint +
                                                            "; once more ends it at once."
                                                      : "",
                               shows ? "interrupted twice, and ended at once" : "");
  std::optional<train::Recorder> recorder;
  if (!a.trace.empty() || !a.report.empty()) {
    check_recorded(plan);
    options.recorder = &recorder.emplace(plan.ranks());
  }
  {
    Progress progress = error_progress("train", common);
    LiveView view;
    if (a.live) progress.lines_above([&view](int width, bool color) { return view.lines(width, color); });
    std::string validated;
    if (a.adapt.on) adapt(options, a, prepared, launcher, restart, job);
    if (job && shows) {
      job->write_plan(plan);
      adaptations = job->adaptations();
    }
    options.adapt.on_adaptation = [&](const train::Adaptation& adaptation) {
      adaptations.push_back(adaptation);
      progress.say(adaptation_text(adaptation));
      files.go_back_to(adaptation.step);
      if (job) job->write(adaptations);
    };
    options.on_step = [&](const train::StepReport& step) {
      files.add(step);
      if (job) job->add(step);
      if (step.validation_loss) validated = galvatron::detail::formatted("validation %.3f", *step.validation_loss);
      if (!step.skipped.empty()) progress.say("Left out: " + step.skipped);
      if (a.live) view.add(step);
      progress.update(static_cast<double>(step.step + 1) / static_cast<double>(a.options.steps),
                      text_of(step.step + 1, "/", a.options.steps), progress_facts(step, validated));
    };
    const auto batches = batches_of(*data, prepared);
    const CoreWatch watch;
    const double before = core_seconds_of_process();
    std::vector<train::StepReport> steps_before;
    if (restart && job && shows) steps_before = job->steps();
    outcome.report = trained(a.files, [&] { return launcher.train(plan, prepared.model, *batches, options); });
    const double own = core_seconds_of_process() - before;
    if (const auto all = launcher.core_seconds_here(own); all && watch.seconds() > 0.2)
      outcome.others = watch.others(*all);
    outcome.report.adaptations = adaptations;
    add_steps_before(outcome.report.steps, std::move(steps_before));
    find_slowest(outcome, prepared);
  }
  const int signal = outcome.report.stopped;
  if (!shows) return signal;
  for (const std::string& remark : outcome.report.remarks) note(common, remark);
  for (const cost::StageMemory& memory : outcome.report.measured_memory) outcome.measured.push_back(memory.total());
  const std::string interrupted = signal == 0 ? "" : interruption(RunSummary(outcome.report), a.files, a.options.steps);
  if (outcome.report.steps.empty()) {
    complain(interrupted);
    if (common.json) print_json({{"error", interrupted}, {"exit_code", 128 + signal}});
    return signal;
  }
  if (recorder)
    write_run(plan, prepared.model, prepared.cluster ? &*prepared.cluster : nullptr,
              {recorder->last_step(), Seconds{outcome.report.iteration_seconds}, outcome.measured,
               outcome.others.value_or(0), outcome.report.steps.back().loads,
               outcome.report.steps.back().layer_dispatch, rows_of_step(*data, plan, recorder->last_step().step)},
              a.trace, a.report, common);
  try {
    if (common.json)
      print_outcome_json(outcome, a);
    else
      print_outcome(outcome, a);
  } catch (...) {
    if (signal == 0) throw;  // else the terminal may have gone with the signal
  }
  if (signal != 0) complain(interrupted);
  return signal;
}

int train(const Arguments& arguments, Common& common, Launcher& launcher) {
  TrainArguments a;
  bool wanted = false;
  const auto parse = [&] { wanted = read_train_arguments(arguments, a, common); };
  if (launcher.ranks() > 0)
    parse();  // all of these processes have met
  else
    run_alike(parse);
  if (!wanted) return 0;
  // Who starts processes needs no GPU.
  if (a.device == "host" || (a.launcher == "mpi" && !started_by_mpirun())) return train(a, arguments, common, launcher);
  int signal = 0;
  run_on_gpus(common, [&](Launcher& gpus) { signal = train(a, arguments, common, gpus); });
  return signal;
}

}  // namespace

void run_train(const Arguments& arguments, Common& common) {
  end_on_signals(tells_of_interruptions() ? interrupted_early : "");
  if (started_by_mpirun() && !name_gpus(arguments)) {
    common.json =
        std::ranges::find(arguments, "--json") != arguments.end();  // in case a rank dies before it reads them
    run_as_rank(common, [&](Launcher& launcher) {
      const int signal = train(arguments, common, launcher);
      return signal == 0 ? 0 : 128 + signal;
    });
  } else {
    ThreadLauncher threads;
    if (const int signal = train(arguments, common, threads); signal != 0) end_by_signal(signal);
  }
}

}  // namespace galvatron::tools
