// galvatron train: a plan carried out on this machine, and how the prediction compares.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/cluster/host.hpp>
#include <galvatron/data/data.hpp>
#include <galvatron/files.hpp>
#include <galvatron/flexsp/compiled.hpp>
#include <galvatron/model/difference.hpp>
#include <galvatron/plan/find_packed.hpp>
#include <galvatron/profile/check.hpp>
#include <galvatron/runtime/implemented.hpp>
#include <galvatron/schedule/schedules.hpp>
#include <galvatron/strategy/registry.hpp>
#include <galvatron/train/pack_plan.hpp>

#include "adaptation.hpp"
#include "launcher.hpp"
#include "options.hpp"
#include "plans.hpp"
#include "run_files.hpp"
#include "signals.hpp"
#include "simulations.hpp"
#include "train_tasks.hpp"

namespace galvatron::tools {

namespace {

constexpr const char* interrupted_early = "interrupted before training began";

struct TrainArguments {
  // Whether the model, or that of the plan, has several tasks.
  [[nodiscard]] bool has_tasks() const { return names_tasks(model) || is_waves_file(plan_path); }

  std::string plan_path;
  bool automatic = false;
  std::string model;
  std::vector<std::string> data;
  train::TrainOptions options;
  std::int64_t global_batch = 0;  // 0: not given
  std::int64_t sequence = 0;      // 0: not given
  int ranks = 0;                  // 0: not given
  Bytes memory;                   // 0: not given
  std::string device = "host";
  std::string launcher;  // empty: what started this process
  std::string mpirun = "mpirun";
  double rank_timeout = 600;
  std::optional<Precision> precision;
  std::optional<Precision> moments;
  double expert_imbalance = 0;  // 0: not given
  DispatchArguments dispatch;
  std::string space;
  std::string cluster;
  double profile_seconds = 8;
  std::optional<bool> accepts_busy;
  AdaptArguments adapt;
  std::string save_plan;
  std::string save_cluster;
  TrainingConstants constants;
  RunFileArguments files;
  std::string trace;
  std::string report;
  std::int64_t mask_token = -1;  // negative: the last of the vocabulary
  bool pack = false;
  std::int64_t max_tokens = 0;  // 0: not given
  std::optional<SequenceGroupKind> groups;
  train::DocumentOptions documents;
};

bool read(const Arguments& arguments, TrainArguments& a, Common& common) {
  Options options("train",
                  "Trains a model on this machine as a plan says, every rank a group of threads, and shows what was "
                  "predicted beside what was measured.");
  options.section("Plan (one of the first two)");
  CLI::Option* plan = options.text("--plan", a.plan_path, "FILE", "a plan of `galvatron plan --out`");
  options.require_one(
      {plan, options.flag("--auto", a.automatic, "profile this machine, search a plan and train with it")});
  const auto automatic = [&a] { return a.automatic; };
  options.require_one(
      {options.text("--model", a.model, "MODEL",
                    "a preset's name, or the path of a Hugging Face config.json or of a model of several tasks "
                    "(default: the plan's)")},
      automatic);
  options.require_one({options.integer("--global-batch", a.global_batch, 1, 1 << 30,
                                       "samples of a step (default: the plan's, or those of all tasks)")},
                      [&a] { return a.automatic && !a.has_tasks(); });
  options.integer("--seq", a.sequence, 1, 1 << 24,
                  "tokens of a sample (default: the plan's, else all the model takes)");
  options.integer("--ranks", a.ranks, 1, 1024,
                  "ranks (default: the plan's or the cluster's, else one a core, or one a GPU)");
  options.size("--memory", a.memory, "memory of each rank that training may take");
  options.choice("--precision", a.precision, {Precision::bf16, Precision::fp32, Precision::fp8},
                 "with --auto (default: bf16 where the processor has it)");
  moments_option(options, a.moments);
  expert_imbalance_option(options, a.expert_imbalance);
  dispatch_options(options, a.dispatch);
  options.text("--space", a.space, "a,b,...",
               "with --auto: what to choose from: " + std::string(space_names) + " (default: runnable)");
  options.text("--cluster", a.cluster, "FILE", "with --auto: a cluster file, instead of profiling first");
  options.number("--profile-seconds", a.profile_seconds, 0.01, 3600, "with --auto: how long to profile (default: 8)");
  busy_option(options, a.accepts_busy, "with --auto: ");
  options.text("--save-plan", a.save_plan, "FILE", "with --auto: write the plan here");
  options.text("--save-cluster", a.save_cluster, "FILE", "with --auto: write the profile here, as a cluster file");
  options.section("Training");
  options.require_one(
      {options.texts("--data", a.data, "FILE...",
                     "texts (bytes are tokens), .bin token files, or .images files for models of images; synthetic for "
                     "models of several tasks")},
      [&a] { return !a.has_tasks(); });
  options.require(options.integer("--steps", a.options.steps, 1, 10'000'000, "steps to train"));
  TrainingConstants& c = a.constants;
  options.number("--lr", c.learning_rate, 0, 1e3, "learning rate after warm-up (default: 0.001)");
  options.number("--min-lr", c.least_rate, 0, 1e3, "learning rate at the end of the cosine (default: a tenth of --lr)");
  options.integer("--warmup", c.warmup, 0, 10'000'000,
                  "steps of linear warm-up (default: a tenth of --steps, at most 100)");
  options.number("--weight-decay", c.weight_decay, 0, 1e3,
                 "of AdamW, times the learning rate; biases and norms do not decay (default: 0.1)");
  options.choice("--rounding", c.rounding, {device::Rounding::nearest, device::Rounding::stochastic},
                 "of bf16 parameters from their masters (default: nearest)");
  options.number("--clip", c.clip, 0, 1e9, "largest gradient norm, 0 for no clipping (default: 1)");
  options.integer("--seed", c.seed, 0, std::int64_t{1} << 62, "of initial values and of the data's order (default: 1)");
  options.integer("--mask-token", a.mask_token, 0, (std::int64_t{1} << 31) - 1,
                  "what hides a token from a masked language model (default: the last of the vocabulary)");
  add_start_options(options, a.files);
  options.section("Documents (docs/flexsp.md)");
  options.flag("--pack", a.pack,
               "with --auto: samples are documents of any length, a file each or as below, packed into sequences");
  packing_options(options, a.max_tokens, a.groups, "--pack");
  options.choice_of("--late-plan", a.options.late_groups_fixed, {{"wait", false}, {"static", true}},
                    "a step whose groups are not chosen yet waits, or takes those of the plan, so that such a run does "
                    "not repeat to the bit (default: wait)");
  options.text("--document-separator", a.documents.separator, "TEXT", "what lies between the documents of a text");
  options.integer("--end-token", a.documents.end_token, 0, (std::int64_t{1} << 31) - 1,
                  "the token that ends a document: in .bin files without an index it is there, to texts it is added");
  options.choice_of("--empty-documents", a.documents.skip_empty, {{"refuse", false}, {"skip", true}},
                    "documents of less than two tokens end the run, or are left out (default: refuse)");
  options.section("Machine");
  options.choice(
      "--device", a.device, {"host", "cuda"},
      "what to compute on (default: host); cuda: rank r on GPU r, over NCCL; more ranks than GPUs share the first one. "
      "With processes that torchrun, mpirun or srun has started, each is a rank with a GPU of its own");
  options.choice_of("--cuda-graph", a.options.repeats, {{"on", true}, {"off", false}},
                    "with --device cuda and one rank: record the second step and launch it whole (default: on)");
  options.choice_of(
      "--tune", a.options.searches, {{"on", true}, {"off", false}},
      "with --device cuda and one rank: search the fastest algorithm of each matrix product first and keep "
      "it on disk (default: on)");
  deterministic_option(options, a.options.deterministic);
  options.choice(
      "--launcher", a.launcher, {"threads", "mpi"},
      "what a rank is: a thread, or a process (default: threads; processes when a launcher has started several)");
  options.text("--mpirun", a.mpirun, "COMMAND",
               "with --launcher mpi: what starts processes, with its options (default: mpirun)");
  options.number("--rank-timeout", a.rank_timeout, 0.1, 1e7,
                 "seconds that a rank waits for another one before the run ends with exit code 4 (default: 600)");
  adapt_options(options, a.adapt);
  options.section("Output");
  add_output_options(options, a.files);
  options.text("--trace", a.trace, "FILE",
               "write a trace of the last step and its prediction, for ui.perfetto.dev or chrome://tracing");
  options.text("--report", a.report, "FILE", "write an HTML report of the last step beside its prediction");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.flag("--quiet", common.quiet, "show no progress");
  const device::AdamW adam;
  const std::string optimizer =
      "The optimizer is AdamW with " +
      galvatron::detail::formatted("beta1 %g, beta2 %g, epsilon %g", adam.beta1, adam.beta2, adam.epsilon) +
      " and bias correction; the rate rises linearly, then falls along half a cosine; the gradient is clipped by its "
      "norm over the whole model (docs/optimizer.md).";
  options.examples(
      wrapped(optimizer, static_cast<std::size_t>(help_width()), 0) +
      "\n\nExamples:\n  galvatron train --plan plan.json --data text.txt --steps 100\n  galvatron train --auto --model "
      "gpt2-tiny --ranks 4 --memory 16MiB \\\n      --data text.txt --steps 100 --global-batch 16");
  return options.parse(arguments, common);
}

void check(const TrainArguments& a, const train::LearningRate& rate, const Launcher& launcher) {
  if (a.automatic && !a.plan_path.empty()) refuse("--plan and --auto exclude each other; give one of them");
  if (a.launcher == "mpi") require_mpi();
  if (a.launcher == "threads" && launcher.ranks() > 0)
    refuse(launcher.starter(), " has started ", launcher.ranks(),
           " processes, and --launcher threads trains in one; leave ", launcher.starter(), " out, or the option");
  if (!a.automatic)
    for (const auto& [given, option] : {std::pair(!a.cluster.empty(), "--cluster"),
                                        {a.precision.has_value(), "--precision"},
                                        {a.moments.has_value(), "--moments"},
                                        {a.expert_imbalance != 0, "--expert-imbalance"},
                                        {a.dispatch.given(), "--expert-dispatch, like --lsh-...,"},
                                        {!a.space.empty(), "--space"},
                                        {a.max_tokens != 0, "--max-tokens"},
                                        {a.groups.has_value(), "--sequence-groups"},
                                        {a.accepts_busy.has_value(), "--on-busy"},
                                        {!a.save_plan.empty(), "--save-plan"},
                                        {!a.save_cluster.empty(), "--save-cluster"}})
      if (given) refuse(option, " belongs to --auto; leave it out, the plan says it");
  if (a.automatic && !a.pack)
    for (const auto& [given, option] : {std::pair(a.max_tokens != 0, "--max-tokens"),
                                        {a.groups.has_value(), "--sequence-groups"},
                                        {a.options.late_groups_fixed, "--late-plan"},
                                        {!a.documents.separator.empty(), "--document-separator"},
                                        {a.documents.end_token >= 0, "--end-token"},
                                        {a.documents.skip_empty, "--empty-documents"}})
      if (given) refuse(option, " is for documents; add --pack");
  if (!a.adapt.on)
    for (const auto& [given, option] : {std::pair(a.adapt.margin != AdaptArguments{}.margin, "--adapt-margin"),
                                        {a.adapt.spare_ranks > 0, "--spare-ranks"}})
      if (given) refuse(option, " is for runs that adapt; add --adapt");
  if (a.adapt.on && a.device != "host")
    refuse("--adapt measures ranks that compute on this machine's cores; leave it out with --device ", a.device);
  if (a.adapt.on && a.pack) refuse("--adapt: documents are packed for equal ranks; leave --adapt or --pack out");
  if (a.adapt.on && a.adapt.spare_ranks > 0 && a.launcher != "mpi" && launcher.ranks() > 0 &&
      std::getenv(JobFolder::variable) == nullptr)
    refuse("--spare-ranks: ", launcher.starter(),
           " itself ends a job that has lost ranks; start them with --launcher mpi");
  if (a.pack && a.sequence != 0)
    refuse("--seq is for samples of one length, and documents have their own; give --max-tokens for packed sequences");
  if (rate.warmup_steps > a.options.steps)
    refuse("--warmup ", rate.warmup_steps, " is longer than --steps ", a.options.steps, "; shorten it");
  if (rate.floor > rate.peak)
    refuse(galvatron::detail::formatted("--min-lr %g is larger than --lr %g", rate.floor, rate.peak),
           "; choose a smaller one");
  std::vector<NamedFile> read{{"--plan", a.plan_path}, {"--cluster", a.cluster}, {"--model", a.model}};
  for (const std::string& path : a.data)
    if (!a.has_tasks()) read.push_back({"--data", path});
  require_files({{"--metrics", a.files.metrics},
                 {"--trace", a.trace},
                 {"--report", a.report},
                 {"--save-plan", a.save_plan},
                 {"--save-cluster", a.save_cluster}},
                read);
}

// A run of a model of several tasks.
void train_with_tasks(const TrainArguments& a, const RunStart& start, Launcher& launcher, const Common& common) {
  for (const auto& [given, option] : {std::pair(a.device != "host", "--device cuda"),
                                      {a.launcher == "mpi", "--launcher mpi"},
                                      {a.sequence != 0, "--seq"},
                                      {a.moments.has_value(), "--moments"},
                                      {a.expert_imbalance != 0, "--expert-imbalance"},
                                      {a.dispatch.given(), "--expert-dispatch, like --lsh-...,"},
                                      {!a.space.empty(), "--space"},
                                      {a.pack, "--pack"},
                                      {a.adapt.on, "--adapt"},
                                      {!a.trace.empty(), "--trace"},
                                      {!a.report.empty(), "--report"},
                                      {a.mask_token >= 0, "--mask-token"}})
    if (given) refuse(option, " is for models of one task; leave it out");
  train_tasks({.plan_path = a.plan_path,
               .wanted = {a.model, a.cluster, a.global_batch, a.precision, a.memory, a.save_plan},
               .ranks = a.ranks,
               .data = a.data,
               .save_cluster = a.save_cluster,
               .profile = {.time_budget = {a.profile_seconds},
                           .deterministic = a.options.deterministic,
                           .accepts_busy = a.accepts_busy.value_or(false)},
               .rank_timeout = a.rank_timeout,
               .files = a.files},
              a.options, start, launcher, common);
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
    const auto difference = planned ? first_difference(with_dispatch(*planned, plan.lsh), model) : std::nullopt;
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
  if (plan.trainer != cost::Trainer::galvatron)
    refuse("the plan is for ", name_of(plan.trainer), "; make a plan without --trainer");
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

Prepared given_plan(const TrainArguments& a, const Launcher& launcher) {
  Plan plan = value_or_throw(read_plan(a.plan_path));
  ModelSpec model = with_dispatch(trainable_model(a.model.empty() ? plan.model : a.model), plan.lsh);
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
  out.model = trainable_model(a.model);
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
    cluster = measured(launcher, profile_for(a, cluster, search.precision, out.model), common).first;
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
  const bool together = profiles_first(a) && launcher.profiles_together();
  if (a.cluster.empty() && launcher.ranks() != 0 && !together &&
      static_cast<int>(launcher.ranks_here(Plan{}).size()) != launcher.ranks())
    refuse("--auto profiles one machine, but the ranks are on several; give --cluster FILE, or a plan with --plan");
  Prepared out;
  if (launcher.shows()) {
    out = searched_here(a, common, check_data, launcher);
    static_cast<void>(launcher.shared(
        nlohmann::ordered_json{{"plan", to_json(out.plan)}, {"cluster", cluster_to_json(*out.cluster)}}.dump()));
    return out;
  }
  out.model = value_or_throw(load_model(a.model));
  if (together) {
    const Cluster before = launcher.cluster(a.ranks);
    measured(launcher, profile_for(a, before, chosen_precision(a.precision, before), out.model), common);
  }
  const auto searched = nlohmann::json::parse(launcher.shared(""));
  out.plan = value_or_throw(plan_from_json(searched.at("plan"), "the plan of rank 0"));
  out.cluster = value_or_throw(cluster_from_json(searched.at("cluster"), "the cluster of rank 0"));
  out.model = with_dispatch(std::move(out.model), out.plan.lsh);
  check_data(out.model, out.plan.sequence_length, a.pack);
  return out;
}

// The plan of a job that goes on where another one has lost ranks.
Prepared restarted_plan(const Restart& restart, const TrainArguments& a) {
  const std::string name = a.model.empty() ? restart.plan.model : a.model;
  return {with_dispatch(trainable_model(name), restart.plan.lsh), restart.plan, std::nullopt};
}

// What this process has to know if its job goes on where another one has lost ranks.
std::optional<Restart> restart_of(const std::optional<JobFolder>& job, const TrainArguments& a, Launcher& launcher) {
  if (!a.adapt.on || launcher.ranks() == 0) return std::nullopt;
  std::string text;
  if (launcher.shows() && job) {
    const bool all_here = static_cast<int>(launcher.ranks_here(Plan{}).size()) == launcher.ranks();
    text = job->restart_text(all_here, [&](const Plan& plan) {
      return with_dispatch(trainable_model(a.model.empty() ? plan.model : a.model), plan.lsh);
    });
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
            const ModelSpec model = with_dispatch(trainable_model(a.model.empty() ? plan->model : a.model), plan->lsh);
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

// Puts the steps of the jobs before in front, as far as this one has not done them again.
void add_steps_before(std::vector<train::StepReport>& steps, std::vector<train::StepReport> before) {
  if (!steps.empty())
    std::erase_if(before, [&](const train::StepReport& step) { return step.step >= steps.front().step; });
  steps.insert(steps.begin(), before.begin(), before.end());
}

struct Outcome {
  Plan plan;
  train::TrainReport report;
  std::vector<Bytes> predicted;
  std::vector<Bytes> measured;
  std::optional<double> others;  // share of the cores that other programs took

  [[nodiscard]] double tokens_per_second() const {
    if (!plan.packed) return static_cast<double>(plan.global_batch * plan.sequence_length) / report.iteration_seconds;
    double tokens = 0, seconds = 0;  // steps differ
    for (std::size_t i = report.steps.size() > 1 ? 1 : 0; i < report.steps.size(); ++i) {
      tokens += static_cast<double>(report.steps[i].tokens);
      seconds += report.steps[i].seconds;
    }
    return tokens / seconds;
  }
};

// Model FLOPs over what the plan's devices could do in the measured time; 0: the plan does not say.
double mfu_of(const Outcome& o) {
  const Prediction& p = o.plan.predicted;
  return o.report.iteration_seconds > 0 ? p.mfu * p.iteration.value / o.report.iteration_seconds : 0;
}

// What dispatch to experts did in a step, as means over the steps.
struct MeanDispatch {
  double bytes = 0;
  double rate = 0;  // of compressed dispatch; 0: the plan has none
  double error = 0;
  double hashing_seconds = 0;

  explicit MeanDispatch(const train::TrainReport& report) {
    const auto steps = static_cast<double>(report.steps.size());
    for (const train::StepReport& step : report.steps) {
      bytes += step.dispatch.bytes / steps;
      rate += step.dispatch.rate() / steps;
      error += step.dispatch.error() / steps;
      hashing_seconds += step.dispatch.hashing_seconds / steps;
    }
  }
};

void print_outcome_json(const Outcome& o, const TrainArguments& a) {
  nlohmann::ordered_json out;
  out["first_loss"] = o.report.steps.front().loss;
  out["last_loss"] = o.report.steps.back().loss;
  out["steps"] = o.report.steps.size();
  out["tokens_per_second"] = o.tokens_per_second();
  out["predicted_iteration_seconds"] = nullptr;
  if (const double predicted = o.plan.predicted.iteration.value; predicted > 0)
    out["predicted_iteration_seconds"] = predicted;
  out["measured_iteration_seconds"] = o.report.iteration_seconds;
  out["others_share"] = nullptr;
  if (o.others) out["others_share"] = *o.others;
  const MeanDispatch dispatch(o.report);
  if (!o.report.steps.back().layer_dispatch.empty()) out["dispatch_bytes"] = dispatch.bytes;
  if (dispatch.rate > 0) {
    out["lsh_rate"] = dispatch.rate;
    out["lsh_error"] = dispatch.error;
    out["hashing_seconds"] = dispatch.hashing_seconds;
  }
  if (const double mfu = mfu_of(o); mfu > 0) add_mfu(out, mfu);
  for (const Bytes bytes : o.predicted) out["predicted_peak_bytes"].push_back(bytes.count);
  for (const Bytes bytes : o.measured) out["measured_peak_bytes"].push_back(bytes.count);
  add_files_json(out, a.files, o.report);
  add_texts(out, {{"trace", a.trace}, {"report", a.report}});
  if (o.report.stopped != 0) out["interrupted"] = true;
  if (a.adapt.on) out["adaptations"] = adaptations_json(o.report.adaptations);
  out["plan"] = to_json(o.plan);
  print_json(out);
}

void print_outcome(const Outcome& o, const TrainArguments& a) {
  const auto& steps = o.report.steps;
  const Seconds predicted = o.plan.predicted.iteration;
  const Seconds measured{o.report.iteration_seconds};
  const std::string compared = against_prediction(predicted, measured);
  const std::string busy = train::others_text(o.others.value_or(0));
  std::string out =
      text_of("Trained ", o.plan.model, " for ", counted(std::ssize(steps), "step"), " on ",
              counted(o.plan.ranks(), "rank"), " in ", name_of(o.plan.precision), ": ", plan_words(o.plan), "\n") +
      row("loss", galvatron::detail::formatted("%.4f -> %.4f", steps.front().loss, steps.back().loss)) +
      row("speed", format_count(o.tokens_per_second()), " tokens/s", mfu_text(mfu_of(o))) +
      row("iteration", "predicted ", predicted.value > 0 ? format_seconds(predicted) : "nothing", ", measured ",
          format_seconds(measured), compared.empty() ? "" : ": ", compared) +
      row("", busy, busy.empty() ? "" : " meanwhile");
  for (const train::Adaptation& adaptation : o.report.adaptations) out += row("adapted", adaptation_text(adaptation));
  const MeanDispatch dispatch(o.report);
  if (dispatch.bytes > 0)
    out += row("dispatch", format_bytes(Bytes{static_cast<std::int64_t>(dispatch.bytes)}),
               " to experts and back in a step");
  if (dispatch.rate > 0)
    out += row("compression", percent(dispatch.rate), " of the rows were sent",
               dispatch.rate >= 1 ? text_of(": it never paid by the plan's prices")
                                  : text_of(", error ", percent(dispatch.error), ", hashing ",
                                            format_seconds(Seconds{dispatch.hashing_seconds})));
  for (std::size_t first = 0; first < o.predicted.size();) {
    std::size_t last = first;  // ranks with equal figures share a line
    while (last + 1 < o.predicted.size() && o.predicted[last + 1] == o.predicted[first] &&
           o.measured[last + 1] == o.measured[first])
      ++last;
    const std::int64_t difference = o.measured[first].count - o.predicted[first].count;
    out += row(
        first == 0 ? "peak memory" : "", first == last ? text_of("rank ", first) : text_of("ranks ", first, "-", last),
        ": predicted ", format_bytes(o.predicted[first]), ", measured ", format_bytes(o.measured[first]),
        difference == 0 ? " (equal to the byte)" : text_of(" (", difference > 0 ? "+" : "", difference, " bytes)"));
    first = last + 1;
  }
  print(out + files_text(a.files, o.report) + row("trace", a.trace) + row("report", a.report) +
        row("plan", a.plan_path) + row("plan", a.save_plan) + row("cluster", a.save_cluster));
}

// A run that is resumed with all its steps behind it, as by what starts a job again until it ends well.
void print_nothing_to_do(const Plan& plan, const TrainArguments& a, const Common& common) {
  if (!common.json) return print(text_of("Nothing to do: ", a.files.resume, " has all ", a.options.steps, " steps\n"));
  print_json({{"first_loss", nullptr},
              {"last_loss", nullptr},
              {"steps", 0},
              {"tokens_per_second", nullptr},
              {"predicted_iteration_seconds", nullptr},
              {"measured_iteration_seconds", nullptr},
              {"predicted_peak_bytes", nullptr},
              {"measured_peak_bytes", nullptr},
              {"resume", a.files.resume},
              {"plan", to_json(plan)}});
}

// Trains. A failure says which checkpoint is the newest.
train::TrainReport trained(Launcher& launcher, const Plan& plan, const ModelSpec& model, train::BatchSource& batches,
                           const train::TrainOptions& options, const RunFileArguments& files) {
  const auto with_newest = [&](const std::string& message) {
    const std::string newest = newest_checkpoint(files);
    return message + (newest.empty() ? "" : "; " + newest + " is the newest checkpoint, and " + way_to_go_on(files));
  };
  try {
    return launcher.train(plan, model, batches, options);
  } catch (const Failure& e) {
    const bool is_plain = typeid(e) == typeid(Failure) || typeid(e) == typeid(DeviceFailure) ||
                          typeid(e) == typeid(PeerFailure);  // others mean something to who catches them
    if (files.checkpoint.empty() || !is_plain) throw;
    throw Failure(e.kind(), with_newest(e.what()), e.where());
  } catch (const std::bad_alloc&) {
    throw Failure(ErrorKind::machine, with_newest(std::string(memory_is_exhausted)));
  }
}

// Where a run that signals have ended is, in a line.
std::string interruption(const train::TrainReport& report, const TrainArguments& a) {
  const auto goes_on = [&](const std::string& checkpoint) { return checkpoint + ", and " + way_to_go_on(a.files); };
  const std::string newest = newest_checkpoint(a.files);
  if (report.steps.empty())
    return "interrupted before the first step" +
           (newest.empty() ? "" : "; the newest checkpoint is " + goes_on(newest));
  const std::int64_t done = report.steps.back().step + 1;
  const std::filesystem::path folder = a.files.checkpoint;
  return text_of("interrupted after step ", done, " of ", a.options.steps, "; ",
                 folder.empty() ? "without --checkpoint nothing of it is kept"
                                : "its checkpoint is " + goes_on((folder / train::checkpoint_name(done)).string()));
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
  check(a, options.learning_rate, launcher);
  if (a.has_tasks()) {
    train_with_tasks(a, start, launcher, common);
    return 0;
  }
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
  const auto open_data = [&](const ModelSpec& model, std::int64_t sequence, bool packed) -> const train::Data& {
    const std::vector<std::filesystem::path> paths(a.data.begin(), a.data.end());
    train::DataOptions reading{.sequence = sequence, .seed = options.seed, .mask_token = a.mask_token};
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
  if (resumed && !continues(*resumed, plan, *data, a.options.steps)) {
    if (shows) print_nothing_to_do(plan, a, common);
    return 0;
  }

  Outcome outcome;
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
      if (!step.skipped.empty()) progress.say("Left out: " + step.skipped);
      progress.update(
          static_cast<double>(step.step + 1) / static_cast<double>(a.options.steps),
          text_of(step.step + 1, "/", a.options.steps),
          {galvatron::detail::formatted("loss %.3f", step.loss), format_count(step.tokens_per_second) + " tokens/s"});
    };
    const auto batches = batches_of(*data, prepared);
    const CoreWatch watch;
    const double before = core_seconds_of_process();
    std::vector<train::StepReport> steps_before;
    if (restart && job && shows) steps_before = job->steps();
    outcome.report = trained(launcher, plan, prepared.model, *batches, options, a.files);
    const double own = core_seconds_of_process() - before;
    if (const auto all = launcher.core_seconds_here(own); all && watch.seconds() > 0.2)
      outcome.others = watch.others(*all);
    outcome.report.adaptations = adaptations;
    add_steps_before(outcome.report.steps, std::move(steps_before));
  }
  const int signal = outcome.report.stopped;
  if (!shows) return signal;
  for (const std::string& remark : outcome.report.remarks) note(common, remark);
  for (const cost::StageMemory& memory : outcome.report.measured_memory) outcome.measured.push_back(memory.total());
  const std::string interrupted = signal == 0 ? "" : interruption(outcome.report, a);
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
  const auto parse = [&] { wanted = read(arguments, a, common); };
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
