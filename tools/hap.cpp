// galvatron hap: programs with uneven shards for devices of different speed, and HAP's cases.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/files.hpp>
#include <galvatron/hap/factors.hpp>
#include <galvatron/hap/joint.hpp>
#include <galvatron/hap/json.hpp>
#include <galvatron/hap/ratios.hpp>
#include <galvatron/hap/sizes.hpp>

#include "cases.hpp"
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

}  // namespace

void run_hap(const Arguments& arguments, Common& common) {
  const std::string verb = arguments.empty() ? "" : arguments.front();
  const Arguments rest(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (verb == "case") return run_hap_case(rest, common);
  if (verb == "--help" || verb == "-h") {
    print(
        "Usage: galvatron hap case [options]\n\n"
        "Programs with uneven shards for devices of different speed (HAP).\n\n"
        "  case      answer the cases of a file\n\n"
        "`galvatron hap case --help` shows the options.\n");
    return;
  }
  refuse("hap: ", verb.empty() ? "nothing to do" : text_of("\"", detail::one_line(verb, 40), "\" is unknown"),
         "; say `galvatron hap case` (--help shows the options)");
}

}  // namespace galvatron::tools
