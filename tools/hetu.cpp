// galvatron hetu: plans on the profiles of Hetu-Galvatron, priced and searched under its cost model.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/compat/hetu/cost.hpp>
#include <galvatron/compat/hetu/search.hpp>
#include <galvatron/files.hpp>

#include "commands.hpp"
#include "options.hpp"
#include "output.hpp"
#include "plans.hpp"

namespace galvatron::tools {

namespace {

using cost::hetu::DataKind;
using cost::hetu::Job;
using cost::hetu::PlanPrice;

// What both `hetu cost` and `hetu plan` are given.
struct HetuInput {
  std::string hardware;
  std::string computation;
  std::string memory;
  int nodes = 1;
  Job job;
  std::int64_t microbatches = 0;
  HetuProfileOptions profile;
  std::optional<DataKind> data;
  std::optional<bool> gpipe;
  bool no_async = false;
  bool no_sequence_parallel = false;
};

void add_input(Options& options, HetuInput& in) {
  options.section("Profiles");
  options.require(options.text("--hardware", in.hardware, "DIR",
                               "the folder of allreduce_bandwidth_*, p2p_bandwidth_*, sp_time_* and "
                               "overlap_coefficient.json, or of hardware_configs.json"));
  options.require(options.text("--computation", in.computation, "FILE", "computation_profiling_*.json"));
  options.require(options.text("--memory-profile", in.memory, "FILE", "memory_profiling_*.json"));
  using cost::hetu::TimeMode;
  options.choice_of("--time-mode", in.profile.time,
                    {{"batch", TimeMode::batch}, {"sequence", TimeMode::sequence}, {"static", TimeMode::fixed}},
                    "times are a line over the batch (default), a curve over the sequence, or the profile's own");
  options.choice_of("--memory-mode", in.profile.memory_over_sequence, {{"static", false}, {"sequence", true}},
                    "memory is the profile's own (default), or scaled from its longest sequence");
  options.section("Job");
  options.require(options.integer("--devices", in.job.devices, 1, 1 << 20, "of all nodes together"));
  options.require(options.integer("--nodes", in.nodes, 1, 1 << 20, "they are spread over evenly"));
  options.require(options.number("--memory-gb", in.job.memory_gigabytes, 1e-6, 1e9,
                                 "of a device, in 2^30 bytes; of more than 20, Hetu keeps a fifth back"));
  options.require(options.integer("--global-batch", in.job.global_batch, 1, 1 << 30, "samples of an iteration"));
  options.require(options.integer("--hidden", in.job.hidden, 1, 1 << 30, "width of the model"));
  options.require(options.integer("--seq", in.job.sequence, 1, 1 << 30, "tokens of a sample"));
  options.require(options.integer("--layers", in.job.layers, 1, 10'000, "of the model"));
  options.integer("--microbatches", in.microbatches, 1, 1 << 30, "micro-batches of an iteration");
  options.choice("--precision", in.job.precision, {Precision::bf16, Precision::fp32}, "of training (default: bf16)");
  options.choice("--data", in.data, {DataKind::ddp, DataKind::zero2, DataKind::zero3},
                 "how data-parallel ranks share states, besides ZeRO-3 layer by layer (default: zero2)");
  options.choice_of("--schedule", in.gpipe, {{"1f1b", false}, {"gpipe", true}}, "of the pipeline (default: 1f1b)");
  options.flag("--no-async-grad-reduce", in.no_async, "gradients are reduced after the last micro-batch only");
  options.flag("--no-sequence-parallel", in.no_sequence_parallel,
               "tensor parallelism without Megatron's sequence split");
}

// @param data, gpipe  what holds where the command line says nothing
cost::hetu::Model model_of(HetuInput& in, DataKind data = DataKind::zero2, bool gpipe = false) {
  in.job.data = in.data.value_or(data);
  in.job.gpipe = in.gpipe.value_or(gpipe);
  in.job.overlapped_reduce = !in.no_async;
  in.job.sequence_parallel = in.profile.sequence_parallel = !in.no_sequence_parallel;
  in.profile.sequence = in.job.sequence;
  return {in.job, value_or_throw(load_hetu_hardware(in.hardware, in.job.devices, in.nodes)),
          value_or_throw(load_hetu_model(in.computation, in.memory, in.profile))};
}

Bytes bytes_of(double megabytes) {
  return {static_cast<std::int64_t>(std::min(std::ceil(megabytes * (1 << 20)), 9e18))};
}

double tokens_per_second(const Job& job, const PlanPrice& price) {
  return price.samples_per_second * static_cast<double>(job.sequence);
}

// The JSON of `hetu plan` and `hetu cost`. "mfu" is 0: profiles do not know the devices' peak.
nlohmann::ordered_json hetu_report(const Job& job, const cost::hetu::Plan& plan, const PlanPrice& price,
                                   Seconds search_seconds) {
  nlohmann::ordered_json out{
      {"feasible", true},
      {"iteration_seconds", price.iteration.value},
      {"samples_per_second", price.samples_per_second},
      {"tokens_per_second", tokens_per_second(job, price)},
      {"mfu", 0.0},
      {"search_seconds", search_seconds.value},
      {"microbatches", plan.microbatches},
      {"microbatches_run",
       hetu_batches(job.global_batch, job.devices / plan.pipeline / plan.ends.degree, plan.microbatches).microbatches},
      {"schedule", job.gpipe ? "gpipe" : "1f1b"}};
  for (const cost::hetu::StagePrice& stage : price.stages)
    out["stages"].push_back(stage_json(stage.first_layer, stage.last_layer, stage.devices, bytes_of(stage.megabytes),
                                       stage.forward, stage.backward));
  out["plan"] = hetu_plan_json(plan, job);
  return out;
}

// `24 x tp4 dp2 zero3 recomputed`.
std::string layer_words(const Job& job, const cost::hetu::Plan& plan, const cost::hetu::LayerStrategy& s) {
  const int data = job.devices / plan.pipeline / s.degree();
  std::vector<std::string> words;
  if (s.tensor > 1) words.push_back(text_of("tp", s.tensor));
  if (s.ulysses > 1) words.push_back(text_of("ulysses", s.ulysses));
  if (data > 1 || words.empty()) words.push_back(text_of("dp", data));
  if (data * s.ulysses > 1) words.emplace_back(s.zero3 ? "zero3" : cost::hetu::name_of(job.data));
  if (s.recompute) words.emplace_back("recomputed");
  return joined(words, " ");
}

std::string hetu_summary(const Job& job, const cost::hetu::Plan& plan, const PlanPrice& price) {
  std::string out = text_of(job.devices, " devices, batch of ", job.global_batch, " x ", job.sequence, " tokens in ",
                            plan.microbatches, " micro-batches, ", plan.pipeline, " stages\n") +
                    row("iteration", format_seconds(price.iteration), ", ", format_count(price.samples_per_second),
                        " samples/s, ", format_count(tokens_per_second(job, price)), " tokens/s");
  for (std::size_t i = 0; i < price.stages.size(); ++i) {
    const cost::hetu::StagePrice& stage = price.stages[i];
    out += row(text_of("stage ", i), "layers ", stage.first_layer, "-", stage.last_layer, ", peak ",
               format_bytes(bytes_of(stage.megabytes)), ", forward ", format_seconds(stage.forward), ", backward ",
               format_seconds(stage.backward));
    for (int layer = stage.first_layer; layer <= stage.last_layer;) {
      const cost::hetu::LayerStrategy& s = plan.layers[static_cast<std::size_t>(layer)];
      int next = layer;
      while (next <= stage.last_layer && plan.layers[static_cast<std::size_t>(next)] == s) ++next;
      out += row("", next - layer, " x ", layer_words(job, plan, s));
      layer = next;
    }
  }
  const cost::hetu::EndStrategy& ends = plan.ends;
  return out +
         row("vocabulary", layer_words(job, plan, {ends.tensor(), ends.ulysses ? ends.degree : 1, ends.zero3, false}));
}

void run_hetu_plan(const Arguments& arguments, Common& common) {
  Options options("hetu plan",
                  "Searches the fastest plan of Hetu-Galvatron's space under its cost model, on its profiles: pipeline "
                  "and micro-batches, and for every layer tensor or Ulysses parallelism, ZeRO-3 and recomputation. The "
                  "answer is exact, unless the JSON says \"proven\": false.");
  HetuInput in;
  search::hetu::Options search;
  std::string out;
  add_input(options, in);
  options.section("Search");
  options.flag("--coarse", search.coarse, "one strategy for all layers");
  options.integer("--max-tp", search.most_tensor, 1, 1 << 20, "largest tensor or Ulysses degree (default: 8)");
  options.integer("--max-pp", search.most_pipeline, 1, 1 << 20, "largest number of stages (default: 8)");
  options.flag("--whole-samples", search.whole_samples,
               "only micro-batches that divide evenly among ranks; Hetu drops the remainder");
  options.section("Output");
  options.text("--out", out, "FILE", "write the plan here, as Hetu reads it");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.flag("--quiet", common.quiet, "show no progress");
  if (!options.parse(arguments, common)) return;
  require_files({{"--out", out}}, {});

  const cost::hetu::Model model = model_of(in);
  search.microbatches = in.microbatches;
  const double begin = steady_seconds();
  const search::hetu::Found found = value_or_throw(search::hetu::search(model, search));
  const Seconds seconds{steady_seconds() - begin};
  if (!found.feasible) throw Infeasible(found.reason, found.smallest_memory);
  if (!out.empty()) value_or_throw(save_hetu_plan(found.plan, model.job(), out));
  if (const std::string why = why_not_run_as_priced(found.plan, model.job()); !why.empty())
    note(common, why, "; --whole-samples leaves such plans out");
  if (common.json) {
    auto report = hetu_report(model.job(), found.plan, found.price, seconds);
    report["proven"] = found.statistics.proven;
    report["bound_seconds"] = found.statistics.bound.value;
    report["cases"] = found.statistics.cases;
    report["cases_searched"] = found.statistics.solved;
    print_json(report);
    return;
  }
  std::string text = hetu_summary(model.job(), found.plan, found.price);
  text +=
      row("search", format_seconds(seconds), ", ", found.statistics.cases, " cases, ",
          found.statistics.proven ? "proven: no plan of the space is faster"
                                  : "not proven: no plan takes less than " + format_seconds(found.statistics.bound));
  print(text + row("written to", out));
}

void run_hetu_cost(const Arguments& arguments, Common& common) {
  Options options("hetu cost", "Prices a plan of Hetu-Galvatron under its cost model, on its profiles.");
  HetuInput in;
  std::string path;
  add_input(options, in);
  options.section("Plan");
  options.require(options.text("--plan", path, "FILE", "the plan, as Hetu or `galvatron hetu plan --out` writes it"));
  bool ignored = false;
  options.flag("--coarse", ignored, "accepted as in `hetu plan`; a given plan is what it is");
  options.section("Output");
  options.flag("--json", common.json, "print one JSON object instead of text");
  if (!options.parse(arguments, common)) return;

  HetuPlanFile file = value_or_throw(read_hetu_plan(path));
  const auto must_agree = [&](const char* key, std::int64_t in_file, const char* option, std::int64_t given) {
    if (in_file != given)
      refuse(path, ": \"", key, "\" is ", in_file, ", and ", option, " ", given, "; make them agree");
  };
  if (file.devices) must_agree("world_size", *file.devices, "--devices", in.job.devices);
  if (file.global_batch) must_agree("global_bsz", *file.global_batch, "--global-batch", in.job.global_batch);
  if (in.microbatches != 0) {
    if (file.has_microbatches) must_agree("chunks", file.plan.microbatches, "--microbatches", in.microbatches);
    file.plan.microbatches = in.microbatches;
  } else if (!file.has_microbatches) {
    refuse(path, ": the key \"chunks\" is missing; give --microbatches");
  }
  const cost::hetu::Model model = model_of(in, file.data.value_or(DataKind::zero2), file.gpipe.value_or(false));
  const PlanPrice price = value_or_throw(cost::hetu::price(model, file.plan));
  if (const std::string why = why_not_run_as_priced(file.plan, in.job); !why.empty()) note(common, why);
  const double usable = cost::hetu::Model::usable_megabytes(in.job.memory_gigabytes);
  const bool fits = price.peak_megabytes() <= usable;
  const double smallest = std::min(cost::hetu::Model::budget_bytes(price.peak_megabytes()), 9e18);
  const std::string reason = "the plan takes " + format_bytes(bytes_of(price.peak_megabytes())) +
                             " on its fullest device, and " + format_bytes(bytes_of(usable)) + " can be used of each";
  if (common.json) {
    auto report = hetu_report(in.job, file.plan, price, Seconds{});
    if (!fits) add_infeasible(report, reason, Bytes{static_cast<std::int64_t>(smallest)});
    print_json(report);
  } else {
    print(hetu_summary(in.job, file.plan, price) + (fits ? "" : "  It does not fit: " + reason + ".\n"));
  }
  if (!fits) throw Exited{static_cast<int>(ErrorKind::infeasible)};
}

}  // namespace

void run_hetu(const Arguments& arguments, Common& common) {
  run_verb("hetu", "Plans on the profiles of Hetu-Galvatron, under its cost model.",
           {{"plan", "search the fastest plan", run_hetu_plan},
            {"cost", "price a plan: time and memory, stage by stage", run_hetu_cost}},
           arguments, common);
}

}  // namespace galvatron::tools
