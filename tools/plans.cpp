// galvatron plan, cost and explain: one unit, because pricing plans is what takes the compiler's time.
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <ranges>
#include <system_error>
#include <thread>
#include <utility>

#include <galvatron/cluster/host.hpp>
#include <galvatron/files.hpp>
#include <galvatron/flexsp/compiled.hpp>
#include <galvatron/plan/compiled.hpp>
#include <galvatron/plan/find_packed.hpp>
#include <galvatron/plan/interval.hpp>
#include <galvatron/search/trainer_space.hpp>

#include "lengths_file.hpp"
#include "packed_step.hpp"
#include "plans.hpp"
#include "signals.hpp"
#include "tasks.hpp"

namespace galvatron::tools {

Cluster cluster_named(const std::string& name_or_path, int ranks) {
  if (name_or_path == "host") return host_before_profile(ranks);
  Cluster cluster = value_or_throw(load_cluster(name_or_path));
  cluster.name = name_or_path;  // in messages a profile is not taken for the preset `host`
  return cluster;
}

MixedCluster mixed_cluster_named(const std::string& name_or_path, int ranks) {
  if (name_or_path == "host") return alone(host_before_profile(ranks));
  MixedCluster cluster = value_or_throw(load_mixed_cluster(name_or_path));
  cluster.name = name_or_path;
  if (cluster.groups.size() == 1) cluster.groups.front().name = name_or_path;
  return cluster;
}

Precision chosen_precision(std::optional<Precision> wanted, const ClusterView& cluster) {
  if (!wanted) return cluster.supports(Precision::bf16) ? Precision::bf16 : Precision::fp32;
  if (*wanted != Precision::fp8 && !cluster.supports(*wanted))  // that the planner answers: there is no such plan
    refuse("the cluster ", cluster.name(), " has no rates for ", name_of(*wanted), "; plan with --precision ",
           *wanted == Precision::fp32 ? "bf16" : "fp32", ", or on another --cluster");
  return *wanted;
}

void moments_option(Options& options, std::optional<Precision>& moments) {
  options.choice(
      "--moments", moments, {Precision::fp32, Precision::bf16},
      "in which AdamW keeps its two moments; bf16 takes 4 bytes a parameter less, rounded at random (default: fp32)");
}

void expert_imbalance_option(Options& options, double& imbalance, const std::string& otherwise) {
  options.number(
      "--expert-imbalance", imbalance, 1, 1e6,
      "of models with experts: tokens of the rank that has most, over the mean, for which memory and time are "
      "planned; more of them come in rounds (default: " +
          otherwise + ")");
}

void dispatch_options(Options& options, DispatchArguments& a) {
  options.choice("--expert-dispatch", a.kind, {DispatchKind::plain, DispatchKind::lsh},
                 "of tokens to experts on other ranks: as they are, or as means of those that hash alike (LSH-MoE), "
                 "which is faster on slow networks and not exact (default: plain)");
  options.integer("--lsh-hashes", a.hashes, 1, most_hashes, "hashes of a token (default: 6)");
  options.integer(
      "--lsh-width", a.width, 1, most_hash_width,
      "numbers that a hash chooses from, with signs; more of them make more and smaller groups (default: 4)");
  options.choice("--lsh-residual", a.residual, {ResidualKind::on, ResidualKind::off, ResidualKind::scaled},
                 "what of its distance from the mean is added to the output of a token: all, nothing, or a share that "
                 "every expert learns (default: on)");
  options.number("--lsh-rate", a.rate, 1e-3, 1, "rows sent over tokens for which time is predicted (default: 0.5)");
  options.number("--lsh-most-rate", a.most_rate, 1e-3, 1,
                 "the rate above which a micro-batch goes uncompressed (default: where compression takes longer by the "
                 "plan's prices; 1: never)");
}

void DispatchArguments::apply(search::SearchOptions& search, ModelSpec& model) const {
  const bool compresses = kind == DispatchKind::lsh;
  if (given() && !compresses && kind != DispatchKind::plain)
    refuse("the options --lsh-... are of compressed dispatch; add --expert-dispatch lsh, or leave them out");
  if (!compresses) {
    if (hashes != 0 || width != 0 || residual || rate != 0 || most_rate != 0)
      refuse("--expert-dispatch plain compresses nothing; leave the options --lsh-... out, or choose lsh");
    return;
  }
  search.space.dispatch = {DispatchKind::lsh};
  LshOptions& lsh = search.lsh;
  if (hashes != 0) lsh.hashes = hashes;
  if (width != 0) lsh.width = width;
  lsh.residual = residual.value_or(lsh.residual);
  if (rate != 0) lsh.rate = rate;
  if (most_rate != 0) lsh.most_rate = most_rate;
  search.lsh_falls_back = most_rate == 0;
  model = with_dispatch(std::move(model), lsh);
}

void lora_options(Options& options, LoraArguments& a, const std::string& with) {
  options.integer(
      "--lora", a.rank, 1, most_adapter_rank,
      with + "train low-rank adapters of this rank and leave the model's own parameters as they are (LoRA)");
  options.number("--lora-alpha", a.alpha, 1e-9, 1e9,
                 "with --lora: what adapters give is multiplied by alpha / rank (default: twice the rank)");
  options.text(
      "--lora-targets", a.targets, "a,b,...",
      "with --lora: the linear layers that have adapters: q, k, v or qkv (one for all three), o, gate, up, down "
      "(default: q,v; of GPT-2 qkv)");
}

ModelSpec LoraArguments::apply(ModelSpec model) const {
  if (rank == 0) {
    if (alpha != 0 || !targets.empty()) refuse("--lora-alpha and --lora-targets are of adapters; add --lora RANK");
    return model;
  }
  AdapterSpec adapters{.rank = rank, .alpha = alpha == 0 ? 2 * static_cast<double>(rank) : alpha};
  adapters = targets.empty() ? with_usual_targets(adapters, model)
                             : value_of("--lora-targets", with_adapter_targets(adapters, targets));
  return value_of("--lora", with_adapters(std::move(model), adapters));
}

void add_plan_options(Options& options, const std::string& name, PlanArguments& a) {
  options.require(options.text(name, a.path, "FILE", "the plan, as `galvatron plan --out` writes it"));
  options.text("--cluster", a.cluster, "CLUSTER", "a preset or a cluster file (default: the plan's own)");
  options.text("--model", a.model, "MODEL", "a preset or a config.json (default: the plan's own)");
}

std::string mfu_text(double mfu) {
  const std::string why = why_impossible_mfu(mfu);
  return (mfu > 0 ? ", " + percent(mfu) + " of peak" : "") + (why.empty() ? "" : " (" + why + ")");
}

void add_mfu(nlohmann::ordered_json& out, double mfu) {
  out["mfu"] = mfu;
  if (const std::string why = why_impossible_mfu(mfu); !why.empty()) out["mfu_remark"] = why;
}

void add_interval(nlohmann::ordered_json& out, const PredictionInterval& interval) {
  out["interval"] = {interval.low.value, interval.high.value};
  out["peak_bytes_interval"] = {interval.peak_low.count, interval.peak_high.count};
  add_spread(out, interval);
}

void add_spread(nlohmann::ordered_json& out, const PredictionInterval& interval) {
  std::vector<TermSpread> measurable;
  for (const TermSpread& term : interval.terms) {
    out["spread"].push_back({{"term", name_of(term.term)},
                             {"source", name_of(term.source)},
                             {"relative", term.relative},
                             {"when_measured", term.measured}});
    if (term.term != PriceTerm::trainer && term.gain() > 0) measurable.push_back(term);
  }
  std::ranges::stable_sort(measurable, std::greater<>{}, &TermSpread::gain);
  out["measure"] = nlohmann::ordered_json::array();
  for (const TermSpread& term : measurable) out["measure"].push_back(name_of(term.term));
  out["measure_next"] = what_to_measure(interval.narrows_most().term);
}

std::string interval_row(const PredictionInterval& interval) {
  const auto plus_minus = [](double ratio) { return percent(std::sqrt(ratio) - 1); };
  const TermSpread& next = interval.narrows_most();
  return row("interval", format_seconds(interval.low), " to ", format_seconds(interval.high),
             " with 90 %; it narrows most, from ", plus_minus(interval.high / interval.low), " to ",
             plus_minus(interval.ratio_after(next)), " on either side, with ", what_to_measure(next.term));
}

nlohmann::ordered_json stage_json(int first_layer, int last_layer, int devices, Bytes peak, Seconds forward,
                                  Seconds backward) {
  return {{"first_layer", first_layer}, {"last_layer", last_layer},         {"devices", devices},
          {"peak_bytes", peak.count},   {"forward_seconds", forward.value}, {"backward_seconds", backward.value}};
}

void add_group(nlohmann::ordered_json& out, const ClusterView& cluster, const PlanStage& stage) {
  out["group"] = stage.group;
  out["group_name"] = cluster.group(stage.group).name;
  if (!stage.rank_groups.empty()) out["rank_groups"] = stage.rank_groups;
  for (const RatioList& each : ratio_lists)
    if (!(stage.*each.list).empty()) out[each.key] = stage.*each.list;
}

namespace {

std::string reserve_row(const Plan& plan, const ClusterView& cluster) {
  const Bytes reserve = reserve_of(plan, cluster.group(plan.stages.front().group));
  return row("reserve", format_bytes(reserve), " of each device are left free",
             plan.reserve ? "" : ", which " + plan.trainer.name + " and its libraries take");
}

// The JSON of `plan` and `cost`.
nlohmann::ordered_json plan_report(const Plan& plan, const PlanCost& cost, const ClusterView& cluster, Bytes budget,
                                   Seconds search_seconds, const PredictionInterval& interval) {
  nlohmann::ordered_json out;
  out["feasible"] = true;
  out["iteration_seconds"] = cost.iteration.value;
  out["samples_per_second"] = cost.samples_per_second;
  out["tokens_per_second"] = cost.tokens_per_second;
  add_mfu(out, cost.mfu);
  out["search_seconds"] = search_seconds.value;
  out["microbatches"] = plan.microbatches;
  out["schedule"] = name_of(plan.schedule);
  out["virtual_stages"] = plan.virtual_stages;
  out["budget_bytes"] = budget.count;
  out["reserve_bytes"] = reserve_of(plan, cluster.group(plan.stages.front().group)).count;
  out["trainer"] = plan.trainer.name;
  add_interval(out, interval);
  for (const PlanStageCost& stage : cost.stages) {
    out["stages"].push_back(stage_json(stage.stage.first_layer, stage.stage.last_layer, stage.stage.rank_count,
                                       stage.peak(), stage.seconds.forward, stage.seconds.backward));
    if (cluster.is_mixed()) add_group(out["stages"].back(), cluster, stage.stage);
  }
  out["plan"] = to_json(plan);
  return out;
}

std::string plan_summary(const Plan& plan, const std::string& cluster_name, const PlanCost& cost,
                         const ClusterView& cluster, const PredictionInterval& interval) {
  std::string out = text_of(plan.model, " on ", cluster_name, ": ", counted(plan.ranks(), "rank"), ", ",
                            batch_text(plan), ", ", precision_text(plan), "\n") +
                    row("strategy", plan_words(plan)) +
                    row("iteration", format_seconds(cost.iteration), ", ", format_count(cost.samples_per_second),
                        " samples/s, ", format_count(cost.tokens_per_second), " tokens/s", mfu_text(cost.mfu)) +
                    interval_row(interval);
  for (std::size_t i = 0; i < cost.stages.size(); ++i) {
    const PlanStageCost& stage = cost.stages[i];
    const auto [first, last] = std::pair(stage.stage.first_layer, stage.stage.last_layer);
    out += row(text_of("stage ", i), first == last ? text_of("layer ", first) : text_of("layers ", first, "-", last),
               ", ", counted(stage.stage.rank_count, "rank"),
               cluster.is_mixed() ? " on " + devices_text(stage.stage, cluster) : "", ", peak ",
               format_bytes(stage.peak()), " each, forward ", format_seconds(stage.seconds.forward), ", backward ",
               format_seconds(stage.seconds.backward));
  }
  if (reserve_of(plan, cluster.group(plan.stages.front().group)).count > 0) out += reserve_row(plan, cluster);
  for (int group = 0; group < cluster.count(); ++group)
    if (plan.ranks_on(group) == 0) out += row("idle", cluster.group_name(group));
  return out;
}

std::string schedule_names() {
  return joined(schedule_kinds, ", ", [](ScheduleKind kind) { return name_of(kind); });
}

// `1f1b`, `gpipe,1f1b`, `all`.
std::vector<ScheduleKind> schedules_named(const std::string& text) {
  if (text == "all") return {schedule_kinds.begin(), schedule_kinds.end()};
  std::vector<ScheduleKind> out;
  for (const auto part : std::views::split(text, ',')) {
    const std::string name(part.begin(), part.end());
    const auto kind = schedule_named(name);
    if (!kind)
      refuse("--schedule: \"", detail::one_line(name, 40), "\" is not a schedule; choose from ", schedule_names(),
             ", with commas between several, or all");
    out.push_back(*kind);
  }
  return out;
}

// `64`, `8..512`, `auto`: the batches to try; auto begins with one sample a device.
std::vector<std::int64_t> batches_named(const std::string& text, int devices) {
  constexpr std::int64_t most = 1 << 30;
  if (text == "auto") return batches_between(devices, std::int64_t{devices} << 12);
  const auto number = [&](const std::string& part) {
    std::int64_t value = 0;
    const auto [end, failure] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (failure != std::errc{} || end != part.data() + part.size() || value < 1 || value > most)
      refuse("--global-batch: \"", detail::one_line(text, 40), "\" is not a number of samples from 1 to ", most,
             ", a range such as 8..512, or auto");
    return value;
  };
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) return {number(text)};
  const std::int64_t first = number(text.substr(0, dots));
  const std::int64_t last = number(text.substr(dots + 2));
  if (first > last) refuse("--global-batch: the range ", text, " ends before it begins; write ", last, "..", first);
  return batches_between(first, last);
}

void trainer_option(Options& options, std::string& trainer, const std::string& usual) {
  options.text("--trainer", trainer, "NAME|FILE",
               "whose code carries the plan out, a name or a file of facts: " + joined(cost::trainer_names()) +
                   " (default: " + usual + ")");
}

// Memory of each device that plans leave free; `given` is empty where the option was not.
void reserve_option(Options& options, std::string& given) {
  options.text(
      "--reserve", given, "SIZE",
      "memory of each device that is kept free, 0 for none (default: what the trainer and its libraries take)");
}
std::optional<Bytes> reserve_named(const std::string& given) {
  if (given.empty()) return std::nullopt;
  if (given == "0") return Bytes{};
  return value_or_throw(parse_bytes(given));
}

}  // namespace

Bytes memory_to_plan_with(Bytes wanted, const ClusterView& cluster, const Common& common) {
  const Bytes all = cluster.most_memory();
  if (wanted <= all) return wanted;
  note(common, "--memory ", format_bytes(wanted), " is more than a device of ", cluster.name(), " has: planning with ",
       format_bytes(all), " (", all.count, " bytes)");
  return all;
}

Sweep searched_plan(const ModelSpec& model, const ClusterView& cluster, const std::string& cluster_name,
                    const search::SearchOptions& options, const std::vector<std::int64_t>& batches, double least_gain,
                    const Common& common) {
  Sweep out = [&] {
    Progress progress = error_progress("plan", common);
    const std::jthread ticker([&](const std::stop_token& stop) {
      std::mutex mutex;
      std::condition_variable_any stopped;
      std::unique_lock lock(mutex);
      while (!stopped.wait_for(lock, stop, std::chrono::milliseconds(200), [&] { return stop.stop_requested(); }))
        progress.update(-1, batches.size() == 1 ? "searching" : "searching batches");
    });
    return value_or_throw(sweep_batches(model, cluster, options, batches, least_gain));
  }();
  FoundPlan& best = out.best;
  best.plan.cluster = cluster_name;
  if (best.feasible) return out;
  const bool all = cluster.name() == "host" && (options.memory.count == 0 || options.memory > cluster.most_memory());
  if (all && batches.size() == 1) best.reason += "; of this host: " + usable_memory(cluster.devices()).bound;
  if (!best.statistics.interrupted) throw Infeasible(best.reason, best.smallest_memory);
  // The search ends as the signal would have ended it, if one did.
  complain(best.reason);
  if (common.json) print_json({{"feasible", false}, {"reason", best.reason}, {"interrupted", true}});
  const int signal = options.stop.signal == nullptr ? 0 : options.stop.signal->load();
  throw Exited{signal != 0 ? 128 + signal : static_cast<int>(ErrorKind::infeasible)};
}

void packing_options(Options& options, std::int64_t& max_tokens, std::optional<SequenceGroupKind>& groups,
                     const std::string& with) {
  options.integer("--max-tokens", max_tokens, 2, 1 << 24,
                  "with " + with +
                      ": tokens of a packed sequence, at most (default: what holds the longest document and memory "
                      "allows)");
  options.choice_of("--sequence-groups", groups,
                    {{"fixed", SequenceGroupKind::fixed}, {"per-batch", SequenceGroupKind::per_batch}},
                    "with " + with +
                        ": which ranks share a sequence: those of the plan, or groups that each batch chooses anew "
                        "(default: fixed)");
}

PackedDocuments documents_of_lengths(const std::vector<std::int64_t>& lengths, std::int64_t batch,
                                     std::int64_t max_tokens) {
  PackedDocuments out{.batch = batch, .steps = {}, .longest = 1, .max_tokens = max_tokens};
  for (const std::int64_t length : lengths) out.longest = std::max(out.longest, length - 1);
  const std::size_t steps =
      std::clamp<std::size_t>(lengths.size() / static_cast<std::size_t>(batch), 1, PackedDocuments::most_steps);
  for (std::size_t i = 0; i < steps * static_cast<std::size_t>(batch); ++i) {
    if (i % static_cast<std::size_t>(batch) == 0) out.steps.emplace_back();
    out.steps.back().push_back(std::max<std::int64_t>(lengths[i % lengths.size()] - 1, 1));
  }
  return out;
}

FoundPlan searched_packed_plan(const ModelSpec& model, const Cluster& cluster, const std::string& cluster_name,
                               const search::SearchOptions& search, const PackedDocuments& documents,
                               std::optional<SequenceGroupKind> groups) {
  const DocumentsToPlan wanted{.batch = documents.batch,
                               .steps = documents.steps,
                               .longest = documents.longest,
                               .max_tokens = documents.max_tokens};
  FoundPlan found =
      value_or_throw(groups == SequenceGroupKind::per_batch ? find_group_plan(model, cluster, search, wanted)
                                                            : find_packed_plan(model, cluster, search, wanted));
  if (!found.feasible) throw Infeasible(found.reason, found.smallest_memory);
  found.plan.cluster = cluster_name;
  return found;
}

void run_plan(const Arguments& arguments, Common& common) {
  Options options("plan",
                  "Searches the fastest training plan for a model on a cluster within a memory budget: the strategy of "
                  "every layer, pipeline stages, micro-batches and recomputation. Ctrl-C ends the search with the best "
                  "plan so far, and exit code 130.");
  std::string model_name;
  std::string cluster_name;
  std::optional<Precision> precision;
  std::optional<Fp8Recipe> recipe;
  std::optional<Precision> moments;
  std::string trainer;
  std::string reserve;
  std::string space;
  std::string schedule;
  std::string batch;
  std::string out;
  std::string lengths;
  std::int64_t max_tokens = 0;
  std::optional<SequenceGroupKind> groups;
  search::SearchOptions search;
  options.section("What to plan");
  options.require(
      options.text("--model", model_name, "MODEL",
                   "a preset's name, or the path of a Hugging Face config.json or of a model of several tasks"));
  options.require(options.text("--cluster", cluster_name, "CLUSTER",
                               "a preset such as 8xa100-80g or host, or a cluster file of `galvatron profile`"));
  options.require_one(
      {options.text(
          "--global-batch", batch, "N|N..N|auto",
          "samples of an iteration; or a range or auto, for the batch with the most samples a second among doublings "
          "(default of models of several tasks: the batches of their tasks)")},
      [&model_name] { return !names_tasks(model_name); });
  options.integer("--seq", search.sequence, 1, 1 << 24, "tokens of a sample (default: all the model takes)");
  options.text("--lengths", lengths, "FILE",
               "samples are documents of these lengths, in tokens, one number a line (gzip is read too), packed into "
               "sequences: plans for what `galvatron train --pack` trains");
  packing_options(options, max_tokens, groups, "--lengths");
  trainer_option(options, trainer, "galvatron");
  options.choice("--precision", precision, {Precision::bf16, Precision::fp32, Precision::fp8},
                 "of arithmetic; fp8 is bf16 with 8-bit products in blocks (default: bf16 where the devices have it)");
  options.choice(
      "--fp8-recipe", recipe,
      {Fp8Recipe::tensorwise, Fp8Recipe::delayed, Fp8Recipe::rowwise, Fp8Recipe::blockwise, Fp8Recipe::mxfp8},
      "what has a scale of its own among 8-bit operands, with --precision fp8 and a --trainer that has it: "
      "docs/precision.md (default: the trainer's, tensorwise)");
  moments_option(options, moments);
  expert_imbalance_option(options, search.expert_imbalance);
  DispatchArguments dispatch;
  dispatch_options(options, dispatch);
  LoraArguments lora;
  lora_options(options, lora);
  simulate::TaskSchedule task_schedule = simulate::TaskSchedule::fastest;
  task_schedule_option(options, task_schedule);
  std::string tasks;
  options.text("--tasks", tasks, "TASK=BATCH,...",
               "of models of several tasks: plan for these alone, with so many samples each (default: all tasks)");
  options.section("Limits");
  options.size("--memory", search.memory,
               "memory of each device that the plan may take, at most all it has (default: all it has)");
  reserve_option(options, reserve);
  options.text(
      "--space", space, "a,b,...",
      "what to choose from: " + std::string(space_names) +
          "; runnable is what `galvatron train` carries out (default: all; on a host, runnable; with --trainer, what "
          "that can be told)");
  options.text("--schedule", schedule, "a,b,...",
               schedule_names() + " or all: the fastest of them (default: gpipe,1f1b)");
  options.integer("--microbatches", search.microbatches, 1, 1 << 30,
                  "micro-batches of an iteration (default: the fastest number)");
  options.choice_of(
      "--search", search.algorithm, {{"exact", search::Algorithm::exact}, {"bmw", search::Algorithm::bmw}},
      "exact: cuts and strategies together, with a bound; bmw: Galvatron-BMW's local search (default: exact)");
  options.integer(
      "--effort", search.effort, 1, 1'000'000,
      "how many times the work of a usual search, which is a second or less: nearer to a proof (default: 1)");
  options.number("--time", search.time, 1e-3, 1e9,
                 "seconds after which the search ends with the best plan so far and the gap (default: no limit)");
  options.integer("--threads", search.threads, 1, 1024, "threads to search with (default: 1)");
  options.section("Output");
  options.text("--out", out, "FILE", "write the plan here, for `cost`, `train` and `explain`");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.flag("--quiet", common.quiet, "show no progress");
  options.examples(
      "Examples:\n  galvatron plan --model llama3-8b --cluster 64xh100-80g --global-batch 512\n  galvatron plan "
      "--model gpt2-tiny --cluster cluster.json --global-batch 16 \\\n      --memory 16MiB --out plan.json");
  if (!options.parse(arguments, common)) return;
  require_files({{"--out", out}}, {{"--model", model_name}, {"--cluster", cluster_name}, {"--lengths", lengths}});
  if (names_tasks(model_name)) {
    for (const auto& [given, option] : {std::pair(search.sequence != 0, "--seq"),
                                        {!lengths.empty(), "--lengths"},
                                        {!trainer.empty(), "--trainer"},
                                        {!reserve.empty(), "--reserve"},
                                        {moments.has_value(), "--moments"},
                                        {dispatch.given(), "--expert-dispatch, like --lsh-...,"},
                                        {lora.rank != 0, "--lora"},
                                        {!space.empty(), "--space"},
                                        {!schedule.empty(), "--schedule"},
                                        {search.microbatches != 0, "--microbatches"}})
      if (given) refuse(option, " is for models of one task, and ", model_name, " has several; leave it out");
    if (!tasks.empty() && !batch.empty()) refuse("--tasks and --global-batch exclude each other; give one of them");
    std::int64_t samples = 0;
    if (!batch.empty()) {
      if (batch == "auto" || batch.find("..") != std::string::npos)
        refuse("--global-batch ", batch, ": a model of several tasks is planned for one number of samples; give it");
      samples = batches_named(batch, 1).front();
    }
    return plan_tasks(
        {.model = model_name,
         .cluster = cluster_name,
         .global_batch = samples,
         .precision = precision,
         .memory = search.memory,
         .schedule = task_schedule,
         .tasks = tasks.empty() ? std::vector<TaskBatch>{} : value_of("--tasks", parse_task_batches(tasks)),
         .out = out},
        common);
  }
  if (task_schedule != simulate::TaskSchedule::fastest)
    refuse("--task-schedule is for models of several tasks; leave it out");
  if (!tasks.empty()) refuse("--tasks is for models of several tasks; leave it out");
  if (lengths.empty() && (max_tokens != 0 || groups))
    refuse(groups ? "--sequence-groups" : "--max-tokens", " is for documents; give their lengths with --lengths");
  if (!lengths.empty() && search.sequence != 0)
    refuse("--seq is for samples of one length, and documents have their own; give --max-tokens for packed sequences");

  ModelSpec model = lora.apply(value_or_throw(load_model(model_name)));
  const MixedCluster mixed = mixed_cluster_named(cluster_name);
  const ClusterView cluster(mixed);
  if (cluster.is_mixed() && !lengths.empty())
    refuse("--lengths does not take mixed clusters yet: plan for one of the groups of ", cluster_name);
  if (cluster.is_mixed() && search.algorithm == search::Algorithm::bmw)
    refuse("--search bmw is for clusters of one kind of device: leave it out, or plan for one of the groups of ",
           cluster_name);
  search.memory = memory_to_plan_with(search.memory, cluster, common);
  search.precision = chosen_precision(precision, cluster);
  search.moments = moments.value_or(search.moments);
  if (!trainer.empty()) search.trainer = value_or_throw(cost::load_trainer(trainer));
  if (lora.rank != 0 && !search.trainer.is_own())
    refuse("--lora is priced as this library trains adapters; leave --trainer ", search.trainer.name, " out");
  if (recipe && search.precision != Precision::fp8) refuse("--fp8-recipe is of --precision fp8; add it");
  search.trainer.traits.fp8_recipe = recipe.value_or(search.trainer.traits.fp8_recipe);
  search.reserve = reserve_named(reserve);
  // A plan for a host is made to be trained here.
  const bool on_host = std::ranges::any_of(cluster.groups(), [](const Cluster& group) { return group.cores > 0; });
  const bool chosen = !space.empty() || !schedule.empty();
  if (space.empty()) space = on_host ? "runnable" : "all";
  search.space = value_or_throw(parse_space(space));
  dispatch.apply(search, model);
  if (!schedule.empty()) search.schedules = schedules_named(schedule);
  if (!search.trainer.is_own() && !chosen) search = search::within_trainer(std::move(search));
  if (chosen && search::leaves_trainer(search))
    note(common, "--space and --schedule allow what ", search.trainer.name,
         " cannot be told; without them the search stays inside");
  const std::vector<std::int64_t> batches = batches_named(batch, cluster.devices());
  search.stop.signal = &note_signals(common.quiet ? "" : "Interrupted: the search ends with its best plan so far.",
                                     "interrupted twice, and ended at once");
  if (!lengths.empty() && batches.size() != 1)
    refuse("--lengths plans for one number of documents a step; give one --global-batch");
  Plan asked;
  asked.trainer = search.trainer;
  asked.reserve = search.reserve;
  const Bytes kept_free = reserve_of(asked, cluster.group(0));
  // Several pipelines, on a mixed cluster.
  const auto pipelines_for = [&](FoundPlan& chain, std::int64_t of_batch) {
    if (!cluster.is_mixed() || dispatch.given() || search.interrupted()) return PipelinesBeside{};
    search::SearchOptions of_pipelines = search;
    of_pipelines.global_batch = of_batch;
    return pipelines_beside(chain, model, model_name, mixed, cluster_name, of_pipelines);
  };
  const auto searched = [&] {
    try {
      return searched_plan(model, cluster, cluster_name, search, batches, batch == "auto" ? 0.005 : 0.0, common);
    } catch (const Infeasible&) {
      if (batches.size() > 1) throw;
      FoundPlan none;
      auto several = pipelines_for(none, batches.front());
      if (!several.faster) throw;
      print_pipelines(*several.faster, mixed, out, several.search, kept_free, {}, common);
      throw Exited{0};
    }
  };
  auto [best_batch, found, tried] =
      lengths.empty() ? searched()
                      : Sweep{batches.front(),
                              searched_packed_plan(
                                  model, cluster.group(0), cluster_name, search,
                                  documents_of_lengths(read_lengths(lengths), batches.front(), max_tokens), groups),
                              {}};
  const bool swept = batches.size() > 1;
  const int interrupted_by = found.statistics.interrupted ? search.stop.signal->load() : 0;
  PipelinesBeside several;
  if (lengths.empty()) several = pipelines_for(found, best_batch);
  end_on_signals("interrupted");
  if (const std::string hint = hint_at_all(search.space); !hint.empty()) note(common, hint);
  found.statistics.seconds += several.search;
  const auto interval = value_or_throw(interval_of(found.plan, model, cluster, found.cost));
  if (several.faster) {  // whose prices are of the same figures as the chain's
    const WavePrediction& of = several.faster->plan.predicted;
    PredictionInterval own = interval;
    own.low = own.low * (of.iteration / found.cost.iteration);
    own.high = own.high * (of.iteration / found.cost.iteration);
    own.peak_low += of.peak - found.cost.peak();
    own.peak_high += of.peak - found.cost.peak();
    return print_pipelines(*several.faster, mixed, out, found.statistics.seconds, kept_free, own, common);
  }
  if (!out.empty()) value_or_throw(save_plan(found.plan, out));
  if (common.json) {
    auto report =
        plan_report(found.plan, found.cost, cluster, found.plan.predicted.budget, found.statistics.seconds, interval);
    report["interrupted"] = found.statistics.interrupted;
    report["alpha_t"] = found.cost.time_balance();
    report["alpha_m"] = found.cost.memory_balance();
    report["proven"] = found.statistics.proven;
    report["bound_seconds"] = found.statistics.bound.value;
    for (const TriedBatch& one : tried)
      if (swept)
        report["batches"].push_back({{"global_batch", one.global_batch},
                                     {"feasible", one.feasible},
                                     {"iteration_seconds", one.iteration.value},
                                     {"samples_per_second", one.samples_per_second}});
    print_json(report);
  } else {
    std::string text = plan_summary(found.plan, cluster_name, found.cost, cluster, interval);
    for (const TriedBatch& one : tried)
      if (swept)
        text += text_of("  batch ", one.global_batch, ": ",
                        one.feasible ? format_count(one.samples_per_second) + " samples/s" : "does not fit", "\n");
    const search::SearchStatistics& statistics = found.statistics;
    const double gap = 1 - statistics.bound.value / found.cost.iteration.value;
    const bool is_spread = !found.plan.stages.front().rank_groups.empty();  // for which there is no bound
    const bool effort_helps = !statistics.proven && !statistics.interrupted && !is_spread &&
                              !statistics.uniform_alone && search.algorithm != search::Algorithm::bmw;
    text += several.row;
    text += row("search", format_seconds(statistics.seconds), ", ", statistics.cases,
                " combinations of stages, micro-batches and schedule; ",
                statistics.narrowed ? "there are too many to try them all; " : "",
                interrupted_by != 0      ? "interrupted, this is the best plan so far; "
                : statistics.interrupted ? "out of time, this is the best plan so far; "
                                         : "",
                statistics.proven ? "no plan is faster"
                : is_spread       ? "a stage over several groups is faster than stages on one each"
                                  : "no plan is more than " + percent(gap) + " faster",
                effort_helps               ? " (a larger --effort may tell)"
                : statistics.uniform_alone ? " (of zb-v only plans of one strategy are tried)"
                                           : "");
    if (!out.empty()) text += row("written to", out, " (`galvatron explain ", out, "` tells why this plan won)");
    print(text);
  }
  // As a shell reports a process that a signal ended; the user has the best plan so far.
  if (interrupted_by != 0) throw Exited{128 + interrupted_by};
}

void run_cost(const Arguments& arguments, Common& common) {
  Options options("cost", "Prices a plan on a cluster: the time of an iteration, and of each stage the peak memory.");
  PlanArguments a;
  std::string trainer;
  std::string reserve;
  add_plan_options(options, "--plan", a);
  trainer_option(options, trainer, "the plan's own");
  reserve_option(options, reserve);
  double imbalance = 0;  // not given
  expert_imbalance_option(options, imbalance, "the plan's own");
  LoraArguments lora;
  lora_options(options, lora, "in place of what the plan says: ");
  options.section("Output");
  options.flag("--json", common.json, "print one JSON object instead of text");
  if (!options.parse(arguments, common)) return;

  if (is_waves_file(a.path)) {
    if (!trainer.empty() || !reserve.empty() || imbalance != 0 || lora.rank != 0)
      refuse(!trainer.empty()   ? "--trainer"
             : !reserve.empty() ? "--reserve"
             : lora.rank != 0   ? "--lora"
                                : "--expert-imbalance",
             " is for models of one task; leave it out");
    return cost_tasks(a, common);
  }
  Plan plan = value_or_throw(read_plan(a.path));
  if (!trainer.empty()) {
    const Fp8Recipe recipe = plan.trainer.traits.fp8_recipe;
    plan.trainer = value_or_throw(cost::load_trainer(trainer));
    plan.trainer.traits.fp8_recipe = recipe;
  }
  if (!reserve.empty()) plan.reserve = reserve_named(reserve);
  if (imbalance != 0) plan.expert_imbalance = imbalance;
  const ModelSpec loaded = value_or_throw(load_model(a.model.empty() ? plan.model : a.model));
  if (lora.rank != 0 || lora.alpha != 0 || !lora.targets.empty()) plan.adapters = adapters_of(lora.apply(loaded));
  const ModelSpec model = value_or_throw(as_planned(plan, loaded));
  const std::string& cluster_name = a.cluster.empty() ? plan.cluster : a.cluster;
  const MixedCluster cluster = mixed_cluster_named(cluster_name, plan.ranks());
  const PlanCost cost = value_or_throw(cost_of(plan, model, cluster));
  const PlanStageCost& fullest = cost.stages[fullest_stage(plan, cost, cluster)];
  const Bytes budget = budget_of(plan, cluster, fullest.group);
  const std::string reason = why_too_large(plan, cost, cluster);
  const auto interval = value_or_throw(interval_of(plan, model, cluster, cost));
  if (common.json) {
    auto report = plan_report(plan, cost, cluster, budget, Seconds{}, interval);
    if (!reason.empty()) add_infeasible(report, reason, fullest.peak());
    print_json(report);
  } else {
    print(plan_summary(plan, cluster_name, cost, cluster, interval) +
          (reason.empty() ? "" : "  It does not fit: " + reason + ".\n"));
  }
  if (!reason.empty()) throw Exited{static_cast<int>(ErrorKind::infeasible)};
}

void run_explain(const Arguments& arguments, Common& common) {
  Options options(
      "explain",
      "Tells in words and a table what a plan does, where time and memory go, why it won and by what the others lost.");
  PlanArguments a;
  std::string lengths;
  add_plan_options(options, "plan", a);
  step_lengths_option(options, lengths);
  if (!options.parse(arguments, common)) return;
  if (is_waves_file(a.path)) {
    if (!lengths.empty()) refuse("--lengths is for plans of documents; leave it out");
    return explain_tasks(a);
  }

  Plan plan = value_or_throw(read_plan(a.path));
  const ModelSpec model =
      value_or_throw(as_planned(plan, value_or_throw(load_model(a.model.empty() ? plan.model : a.model))));
  if (!a.cluster.empty() && a.cluster != plan.cluster) {
    plan.cluster = a.cluster;
    plan.predicted.alternatives.clear();  // what lost on another cluster
  }
  const MixedCluster cluster = mixed_cluster_named(plan.cluster, plan.ranks());
  std::string text = value_or_throw(galvatron::explain(plan, model, cluster));
  if (!lengths.empty())
    text += "\n" + train::explain(step_of_lengths(plan, model, cluster, lengths), step_text(plan, lengths));
  print(text);
}

}  // namespace galvatron::tools
