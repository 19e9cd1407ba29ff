// galvatron hap: programs with uneven shards for devices of different speed, and HAP's cases.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/files.hpp>
#include <galvatron/hap/cluster_devices.hpp>
#include <galvatron/hap/factors.hpp>
#include <galvatron/hap/joint.hpp>
#include <galvatron/hap/json.hpp>
#include <galvatron/hap/memory.hpp>
#include <galvatron/hap/model_graph.hpp>
#include <galvatron/hap/ratios.hpp>
#include <galvatron/hap/sizes.hpp>
#include <galvatron/plan/hap_plan.hpp>

#include "cases.hpp"
#include "commands.hpp"
#include "options.hpp"
#include "output.hpp"
#include "plans.hpp"

namespace galvatron::tools {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// ---- cases

std::vector<double> hap_numbers(const Case& one, const std::string& key, double least, double most) {
  const json& value = one.value(key);
  if (!value.is_array() || value.empty()) one.refuse_key(key, "expected a list of numbers that is not empty");
  std::vector<double> out;
  for (const json& number : value) {
    if (!number.is_number() || !(number.get<double>() >= least && number.get<double>() <= most))
      one.refuse_key(key, text_of("expected numbers from ", ordered_json(least).dump(), " to ",
                                  ordered_json(most).dump(), ", found ", JsonObject::describe(number)));
    out.push_back(number.get<double>());
  }
  return out;
}

std::vector<double> hap_rates(const Case& one) { return hap_numbers(one, "flops", 1e-3, 1e30); }

hap::Ratios hap_ratios(const Case& one) {
  hap::Ratios out = hap_numbers(one, "ratios", 0, 1);
  double sum = 0;
  for (const double ratio : out) sum += ratio;
  // Ratios may have been written with six digits.
  if (std::abs(sum - 1) > 1e-5 + 1e-6 * static_cast<double>(out.size()))
    one.refuse_key("ratios", text_of("they add up to ", galvatron::detail::formatted("%.6g", sum), ", not to 1"));
  return out;
}

ordered_json answer_json(const hap::Graph& graph, const char* at, const hap::Answer& answer) {
  ordered_json out;
  out["at"] = at;
  out["ratios"] = answer.ratios;
  out["seconds"] = answer.seconds;
  out["program"] = hap::program_json(graph, answer.program);
  return out;
}

// The best program at proportional ratios, and the best of all programs and ratios.
ordered_json answer_graph(const Case& one) {
  hap::Dialect dialect = hap::Dialect::paper;
  if (one.has("dialect")) {
    const auto name = one.required<std::string>("dialect");
    if (name != "released") one.refuse_key("dialect", "known is \"released\"; leave it out for the paper's");
    dialect = hap::Dialect::released;
  }
  const hap::Graph graph = hap::graph_from_json(one.value("graph"), one.name("graph"));
  const hap::Devices devices = value_or_throw(hap::devices_from_json(one.value("cluster"), one.name("cluster")));
  const hap::Prices prices(graph, devices, dialect);
  const hap::Instance instance(prices);
  const auto given = hap::best_program(instance, hap::proportional_ratios(devices.flops));
  const auto free = hap::best_program_and_ratios(instance);
  if (!given || !free)
    one.refuse_key("graph", "no program leaves the loss as partial sums, which is what devices add up; end in a sum");
  return {answer_json(graph, "proportional", *given), answer_json(graph, "free", *free)};
}

ordered_json answer_ratios(const Case& one) {
  constexpr double most = 1e30;
  const std::vector<double> flops = hap_rates(one);
  const int segments = one.optional<int>("segments", 1, 1, 1 << 20);
  std::vector<hap::Stage> stages;
  const json& list = one.value("stages");
  if (!list.is_array()) one.refuse_key("stages", "expected a list of stages");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Case stage(list[i], text_of(one.name("stages"), "[", i, "]"));
    stages.push_back({stage.optional<int>("segment", 0, 0, segments - 1), stage.required<double>("comm_const", 0, most),
                      stage.required<double>("comm_per_ratio", 0, most),
                      stage.required<double>("flops_replicated", 0, most),
                      stage.required<double>("flops_sharded", 0, most)});
  }
  return {{"ratios", hap::optimal_ratios(flops, stages, segments)}};
}

ordered_json answer_rounding(const Case& one) {
  const auto length = one.required<std::int64_t>("length", 0, std::int64_t{1} << 40);
  const hap::Ratios ratios = hap_ratios(one);
  return {{"paper", hap::nearest_sizes(length, ratios)}, {"released", hap::released_sizes(length, ratios)}};
}

ordered_json answer_factors(const Case& one) {
  constexpr double most = 1e12;
  hap::Devices devices;
  devices.flops = hap_rates(one);
  const hap::Ratios ratios = hap_ratios(one);
  if (ratios.size() != devices.count())
    one.refuse_key("ratios", text_of("there are ", ratios.size(), ", and ", devices.count(), " devices"));
  const Case bandwidth = one.object("bandwidth");
  for (const hap::Collective kind : {hap::Collective::all_reduce, hap::Collective::all_gather})
    devices.bandwidth[static_cast<std::size_t>(kind)] = bandwidth.required<double>(hap::name_of(kind), 1e-3, 1e30);
  const hap::FactorChoice choice =
      hap::choose_factors({one.required<double>("batch", 0, most), one.required<double>("in_features", 1, most),
                           one.required<double>("out_features", 1, most)},
                          devices, ratios);
  return {{"choose", choice.chooses_factors() ? "factors" : "all_reduce"},
          {"all_reduce_seconds", choice.all_reduce_seconds},
          {"factor_seconds", choice.factor_seconds}};
}

void run_hap_case(const Arguments& arguments, Common& common) {
  Options options("hap case",
                  "Answers HAP's cases: the best program of a graph at given ratios and the best of all programs and "
                  "ratios (\"graph\"), ratios of stages (\"stages\"), whole sizes of shards (\"length\"), gradients by "
                  "their factors (\"in_features\"). A file is a JSON list of cases; the answer is an object by their "
                  "names, or a list of the last two.");
  std::string path;
  options.require(options.text("file", path, "FILE", "the cases"));
  options.flag("--json", common.json, "accepted as everywhere; the answer is JSON anyway");
  options.examples("Example:\n  galvatron hap case graph_cases.json --json");
  if (!options.parse(arguments, common)) return;
  std::vector<std::string> names;
  const ordered_json answers = answers_of(path, [&](const Case& one) -> ordered_json {
    if (one.has("length")) return answer_rounding(one);
    if (one.has("in_features")) return answer_factors(one);
    if (!one.has("graph") && !one.has("stages"))
      one.refuse_case("it is no case of HAP: none of \"graph\", \"stages\", \"length\" and \"in_features\" is there");
    names.push_back(one.required<std::string>("name"));
    if (std::ranges::count(names, names.back()) > 1) one.refuse_key("name", "another case has it too");
    return one.has("graph") ? answer_graph(one) : answer_ratios(one);
  });
  if (names.empty()) return print_json(answers);
  if (names.size() != answers.size()) refuse(path, ": cases with a name and those without one are files of their own");
  ordered_json out;
  for (std::size_t i = 0; i < names.size(); ++i) out[names[i]] = answers[i];
  print_json(out);
}

// ---- plan

// How a step moves tensors, and how parameters lie: counts of each.
std::string moves_text(const hap::Graph& graph, const hap::Program& program) {
  std::map<std::string, int> moves;
  std::map<std::string, int> parameters;
  for (const hap::Step& step : program) {
    if (step.kind == hap::Step::Kind::communicate)
      ++moves[std::string(hap::name_of(*hap::collective_between(step.from, step.layout)))];
    const bool is_parameter = std::ranges::any_of(graph.nodes, [&](const hap::Node& node) {
      return node.output == step.tensor && node.operation == hap::Operation::parameter;
    });
    if (step.kind == hap::Step::Kind::load && is_parameter)
      ++parameters[step.layout == hap::replicate ? "whole" : "sharded"];
  }
  const auto counts = [](const std::map<std::string, int>& of) {
    return of.empty() ? std::string("none")
                      : joined(of, ", ", [](const auto& one) { return text_of(one.second, " ", one.first); });
  };
  return row("parameters", counts(parameters)) + row("moves", counts(moves));
}

std::string ratios_text(const hap::Devices& devices, const hap::Ratios& ratios) {
  std::map<std::pair<double, double>, int> kinds;  // of a ratio and a speed
  for (std::size_t j = 0; j < ratios.size(); ++j) ++kinds[{ratios[j], devices.flops[j]}];
  return joined(kinds, ", ", [](const auto& kind) {
    return text_of(kind.second, " x ", percent(kind.first.first), " (",
                   galvatron::detail::three_digits(kind.first.second / 1e12), " TFLOP/s)");
  });
}

// What the plan runs, and how much slower it is than the best program of all.
std::string runnable_text(const HapPlan& found, double best_seconds, const std::string& path) {
  const double seconds = found.program.answer.seconds;
  const auto layers = [&](hap::Spread spread) { return std::ranges::count(found.program.spreads, spread); };
  const std::array<std::pair<hap::Spread, const char*>, 4> kinds{
      {{hap::Spread::data, "with samples sharded"},
       {hap::Spread::tensor, "tensor parallel"},
       {hap::Spread::megatron, "and sequence parallel"},
       {hap::Spread::experts, "with an expert on one device"}}};
  std::string spread;
  for (const auto& [kind, name] : kinds)
    if (layers(kind) > 0) spread += text_of(spread.empty() ? "" : ", ", layers(kind), " layers ", name);
  return row("plan", path, ": ", spread) +
         row("", seconds > best_seconds * (1 + 1e-9)
                     ? text_of("a step ", format_seconds(Seconds{seconds}), ", ", percent(seconds / best_seconds - 1),
                               " slower than that program, which no plan can run;")
                     : std::string("it takes as long as that program;")) +
         row("", "by this library's prices ", format_seconds(found.cost.iteration), " and ",
             format_bytes(found.cost.peak()));
}

void run_hap_plan(const Arguments& arguments, Common& common) {
  Options options(
      "hap plan",
      "Synthesises the program that trains a model fastest with uneven shards: how every tensor lies on the "
      "devices, what is communicated, and the share of each device. Program and shares are the best of all "
      "together, within the devices' memory, in fp32.");
  std::string model_name;
  std::string cluster_name;
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  Bytes memory;
  options.require(options.text("--model", model_name, "MODEL", "a preset or a config.json"));
  options.require(options.text("--cluster", cluster_name, "CLUSTER", "a preset, several with +, or a cluster file"));
  options.require(options.integer("--global-batch", batch, 1, std::int64_t{1} << 40, "samples of a step"));
  options.integer("--seq", sequence, 1, std::int64_t{1} << 31, "tokens of a sample (default: the model's longest)");
  options.size("--memory", memory, "budget of each device (default: all that it has)");
  options.section("Output");
  std::string out_path;
  options.text("--out", out_path, "FILE",
               "write the fastest of the programs that a plan can run as a plan, for `train`, `cost`, `simulate` and "
               "`explain`");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.flag("--quiet", common.quiet, "print no remarks");
  if (!options.parse(arguments, common)) return;
  require_files({{"--out", out_path}}, {{"--model", model_name}, {"--cluster", cluster_name}});
  const ModelSpec model = value_or_throw(load_model(model_name));
  const MixedCluster cluster = mixed_cluster_named(cluster_name);
  if (sequence == 0) sequence = model.positions();
  if (sequence > model.positions())
    refuse("--seq ", sequence, ": ", model.name, " has positions for ", model.positions(), " tokens");
  hap::Devices devices = hap::devices_of(cluster);
  if (memory.count > 0) {
    const auto budget = static_cast<double>(memory_to_plan_with(memory, cluster, common).count);
    for (double& own : devices.memory) own = std::min(own, budget);
  }

  const hap::Graph graph = hap::graph_of(model, batch, sequence);
  const auto begin = std::chrono::steady_clock::now();
  const hap::Prices prices(graph, devices, hap::Dialect::paper);
  const hap::Instance instance(prices, static_cast<std::int64_t>(devices.count()));
  const auto found = hap::best_in_memory(instance);
  const std::chrono::duration<double> searched = std::chrono::steady_clock::now() - begin;
  if (!found)
    throw Failure(ErrorKind::infeasible,
                  text_of("no program of ", model.name, " was found that fits into ",
                          format_bytes(Bytes{static_cast<std::int64_t>(std::ranges::min(devices.memory))}),
                          " on the smallest of ", devices.count(),
                          " devices; take a smaller batch, more devices or more memory"));
  const auto alternated = hap::alternate(instance);
  std::optional<HapPlan> runnable;
  if (!out_path.empty()) {
    runnable = value_or_throw(hap_plan(prices, model, cluster, batch, sequence));
    runnable->plan.model = model_name;
    runnable->plan.cluster = cluster_name;
    value_or_throw(save_plan(runnable->plan, out_path));
  }
  if (common.json) {
    ordered_json out;
    out["seconds"] = found->seconds;
    out["ratios"] = {found->ratios};
    out["program"] = hap::program_json(graph, found->program);
    out["alternation_seconds"] = alternated->seconds;
    out["bound_seconds"] = found->bound;
    out["search_seconds"] = searched.count();
    if (runnable) {
      ordered_json& plan = out["plan"];
      plan["file"] = out_path;
      plan["seconds"] = runnable->program.answer.seconds;
      plan["ratios"] = {runnable->program.answer.ratios};
      plan["program"] = hap::program_json(graph, runnable->program.answer.program);
      plan["slower_by"] = runnable->program.answer.seconds / found->seconds - 1;
      plan["iteration_seconds"] = runnable->cost.iteration.value;
      plan["peak_bytes"] = runnable->cost.peak().count;
    }
    return print_json(out);
  }
  const bool proven = found->bound >= found->seconds * (1 - 1e-9);
  const hap::Terms terms = value_or_throw(hap::terms_of(prices, found->program));
  const double largest = *std::ranges::max_element(found->ratios);
  print(text_of(
      model.name, ", ", batch, " samples of ", sequence, " tokens on ", devices.count(), " devices\n",
      row("a step", format_seconds(Seconds{found->seconds}),
          proven ? std::string(", proven to be the best")
                 : text_of(", no program is more than ", percent(1 - found->bound / found->seconds), " faster"),
          ", found in ", format_seconds(Seconds{searched.count()})),
      row("alternation", format_seconds(Seconds{alternated->seconds}), ", as HAP has it, in any memory"),
      row("shares", ratios_text(devices, found->ratios)),
      row("memory", format_bytes(Bytes{static_cast<std::int64_t>(terms.whole_bytes + largest * terms.sharded_bytes)}),
          " of the device with the largest share"),
      moves_text(graph, found->program), runnable ? runnable_text(*runnable, found->seconds, out_path) : ""));
}

}  // namespace

void run_hap(const Arguments& arguments, Common& common) {
  run_verb("hap", "Programs with uneven shards for devices of different speed (HAP).",
           {{"plan", "synthesise the program of a model", run_hap_plan},
            {"case", "answer the cases of a file", run_hap_case}},
           arguments, common);
}

}  // namespace galvatron::tools
