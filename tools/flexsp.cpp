// galvatron flexsp: plans sequence-parallel groups for batches of documents, and answers FlexSP's cases.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/json.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/files.hpp>
#include <galvatron/flexsp/baselines.hpp>
#include <galvatron/flexsp/blaster.hpp>
#include <galvatron/flexsp/coefficients.hpp>
#include <galvatron/flexsp/compiled.hpp>
#include <galvatron/flexsp/json.hpp>
#include <galvatron/flexsp/lengths.hpp>
#include <galvatron/flexsp/placement.hpp>
#include <galvatron/flexsp/prices.hpp>

#include "cases.hpp"
#include "commands.hpp"
#include "lengths_file.hpp"
#include "options.hpp"
#include "output.hpp"
#include "plans.hpp"

namespace galvatron::tools {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Lengths = std::vector<std::int64_t>;

// ---- cases

constexpr std::int64_t most_limit = flexsp::longest_document;

ordered_json groups_json(const flexsp::Problem& problem, const flexsp::MicroBatch& microbatch) {
  ordered_json out = ordered_json::array();
  for (const flexsp::Group& group : microbatch.groups)
    out.push_back({problem.options[static_cast<std::size_t>(group.option)].degree, group.lengths});
  return out;
}

flexsp::Problem problem_of_case(const Case& one) {
  return flexsp::problem_of(value_or_throw(flexsp::coefficients_from_json(one.value("problem"), one.name("problem"))));
}

/// Documents of a case, from the file of all lengths.
class Batches {
 public:
  explicit Batches(std::optional<Lengths> lengths) : lengths_(std::move(lengths)) {}

  [[nodiscard]] Lengths batch(const Case& one, std::int64_t limit, std::int64_t size, std::int64_t iteration) {
    if (!lengths_) one.refuse_case("it is about a batch of documents; give their lengths with --lengths");
    auto at = padded_.find(limit);
    if (at == padded_.end()) at = padded_.emplace(limit, flexsp::released_lengths(*lengths_, limit)).first;
    const Lengths& all = at->second;
    const auto count = static_cast<std::int64_t>(all.size());
    if (iteration > count / size || (iteration + 1) * size > count)
      one.refuse_case(text_of("batch ", iteration, " of ", size, " documents is asked for, and --lengths has ", count,
                              " of at most ", limit - 128, " tokens; give more"));
    return {all.begin() + iteration * size, all.begin() + (iteration + 1) * size};
  }
  [[nodiscard]] Lengths batch_of(const Case& one) {
    return batch(one, one.required<std::int64_t>("length_limit", 129, most_limit),
                 one.required<std::int64_t>("batch_size", 1, 1 << 20),
                 one.required<std::int64_t>("iteration", 0, 1 << 30));
  }

 private:
  std::optional<Lengths> lengths_;
  std::map<std::int64_t, Lengths> padded_;  // by limit
};

// The published problem of one micro-batch.
ordered_json answer_micro_batch(const Case& one) {
  const flexsp::Problem problem = problem_of_case(one);
  const Lengths lengths = one.integers("lengths", 1, flexsp::longest_document);
  // Of few documents the best of some seeds: where all sizes are proven, each takes milliseconds.
  std::optional<flexsp::BatchPlan> plan;
  for (const std::uint64_t seed : {1, 2, 3}) {
    flexsp::Limits limits = flexsp::Limits::thorough(seed);
    limits.work *= 3;
    if (seed > 1) limits.nodes = 0;  // branch and bound would be the same
    auto found = flexsp::solve(problem, lengths, limits, 1);
    if (found && (!plan || found->seconds < plan->seconds)) plan = std::move(found);
  }
  if (!plan) return {{"infeasible", true}};
  return {{"groups", groups_json(problem, plan->microbatches.front())}};
}

ordered_json answer_batch(const Case& one, Batches& batches) {
  const flexsp::Problem problem = problem_of_case(one);
  const auto plan = flexsp::solve(problem, batches.batch_of(one), flexsp::Limits::thorough());
  if (!plan) return {{"infeasible", true}};
  ordered_json out;
  out["microbatches"] = ordered_json::array();
  for (const flexsp::MicroBatch& microbatch : plan->microbatches)
    out["microbatches"].push_back(groups_json(problem, microbatch));
  return out;
}

// The numbers of parts and buckets that are asked for stand where the answers would.
ordered_json answer_cuts(const Case& one, Batches& batches) {
  Lengths lengths = batches.batch_of(one);
  const Case asked = one.object("expect");
  Lengths descending = lengths;
  std::ranges::sort(descending, std::ranges::greater());
  const auto parts_within = [&](std::int64_t parts) {
    if (parts < 1 || parts > static_cast<std::int64_t>(descending.size()))
      asked.refuse_case(text_of(descending.size(), " documents cannot be cut into ", parts, " parts"));
    return static_cast<int>(parts);
  };
  ordered_json out;
  out["largest_part_tokens"] = ordered_json::array();
  for (const json& pair : asked.value("largest_part_tokens")) {
    if (!pair.is_array() || pair.empty() || !pair[0].is_number_integer())
      asked.refuse_key("largest_part_tokens", "expected pairs, each beginning with a number of parts");
    const int parts = parts_within(pair[0].get<std::int64_t>());
    out["largest_part_tokens"].push_back({parts, flexsp::blast(descending, parts).largest_tokens});
  }
  const auto on = asked.required<std::string>("bucketing_on");
  if (on != "batch") {
    constexpr std::string_view words = "last part of ";
    int parts = 0;
    const char* const end = on.data() + on.size();
    if (!on.starts_with(words) || std::from_chars(on.data() + words.size(), end, parts).ptr != end)
      asked.refuse_key("bucketing_on", "expected \"batch\" or \"last part of 3\"");
    const flexsp::Blast blast = flexsp::blast(descending, parts_within(parts));
    const std::size_t begin = parts == 1 ? 0 : blast.ends[static_cast<std::size_t>(parts) - 2];
    lengths.assign(descending.begin() + static_cast<std::ptrdiff_t>(begin), descending.end());
  }
  out["padding_tokens"] = ordered_json::array();
  for (const json& entry : asked.value("bucketing")) {
    if (!entry.is_object() || !entry.contains("buckets") || !entry["buckets"].is_number_integer() ||
        entry["buckets"].get<std::int64_t>() < 1 || entry["buckets"].get<std::int64_t>() > 1 << 20)
      asked.refuse_key("bucketing", "expected objects with \"buckets\", a number of at least 1");
    out["padding_tokens"].push_back(
        flexsp::padding_of(lengths, flexsp::buckets_of(lengths, entry["buckets"].get<int>())));
  }
  return out;
}

// Published baselines: milliseconds of each iteration that a row asks for.
ordered_json answer_baselines(const Case& one, Batches& batches) {
  const auto limit = one.required<std::int64_t>("length_limit", 129, most_limit);
  const auto size = one.required<std::int64_t>("batch_size", 1, 1 << 20);
  const auto name = one.required<std::string>("model");
  const auto coefficients = flexsp::released_coefficients(name, one.required<int>("devices", 1, most_devices), limit);
  if (!coefficients)
    one.refuse_key(
        "model",
        text_of("\"", galvatron::detail::one_line(name, 40), "\" has no published coefficients; ", "known are ",
                joined(flexsp::released_models, ", ", [](const auto& model) { return std::string(model.name); })));
  const flexsp::Problem problem = flexsp::problem_of(*coefficients);
  if (problem.options.empty()) one.refuse_case("no device holds a token beside its share of the model");
  // The release tries groups of 32 devices only where documents are longer than 192,000 tokens.
  const auto allowed = [&](const flexsp::GroupOption& option) { return option.degree != 32 || limit > 192'000; };
  ordered_json out;
  out["static"] = out["adaptive"] = ordered_json::array();
  for (const json& row : one.value("rows")) {
    if (!row.is_array() || row.empty() || !row[0].is_number_integer() || row[0].get<std::int64_t>() < 0 ||
        row[0].get<std::int64_t>() > 1 << 30)
      one.refuse_key("rows", "expected rows that begin with an iteration");
    const Lengths lengths = batches.batch(one, limit, size, row[0].get<std::int64_t>());
    const auto fixed = flexsp::homogeneous_plan(problem, lengths, static_cast<int>(problem.options.size()) - 1);
    const auto adaptive = flexsp::adaptive_plan(problem, lengths, allowed);
    const auto milliseconds = [](const auto& plan) {
      return plan ? ordered_json(plan->seconds * 1e3) : ordered_json();
    };
    out["static"].push_back(milliseconds(fixed));
    out["adaptive"].push_back(milliseconds(adaptive));
  }
  return out;
}

void run_flexsp_case(const Arguments& arguments, Common& common) {
  Options options(
      "flexsp case",
      "Answers FlexSP's cases: the fastest groups of a micro-batch (\"lengths\"), plans of whole batches "
      "(\"problem\"), cuts into micro-batches and buckets (\"expect\" says how many), homogeneous baselines "
      "(\"rows\"). A file is a JSON list of cases; the answer is an object by their names, or a list of the "
      "baselines.");
  std::string path;
  std::string lengths_path;
  options.require(options.text("file", path, "FILE", "the cases"));
  options.text("--lengths", lengths_path, "FILE",
               "tokens of documents, one number a line, gzip or not; cases of batches need it");
  options.flag("--json", common.json, "accepted as everywhere; the answer is JSON anyway");
  options.examples("Example:\n  galvatron flexsp case batches.json --lengths lengths.txt.gz --json");
  if (!options.parse(arguments, common)) return;
  std::optional<Lengths> lengths;
  if (!lengths_path.empty()) lengths = read_lengths(lengths_path);
  Batches batches(std::move(lengths));
  std::vector<std::string> names;
  const ordered_json answers = answers_of(path, [&](const Case& one) -> ordered_json {
    if (one.has("rows")) return answer_baselines(one, batches);
    names.push_back(one.required<std::string>("name"));
    if (std::ranges::count(names, names.back()) > 1) one.refuse_key("name", "another case has it too");
    if (one.has("problem") && one.has("lengths")) return answer_micro_batch(one);
    if (one.has("problem")) return answer_batch(one, batches);
    if (one.has("expect")) return answer_cuts(one, batches);
    one.refuse_case("it is no case of FlexSP: none of \"problem\", \"expect\" and \"rows\" is there");
  });
  if (names.empty()) return print_json(answers);
  if (names.size() != answers.size())
    refuse(path, ": cases with a name and baselines, which have none, are files of their own");
  ordered_json out;
  for (std::size_t i = 0; i < names.size(); ++i) out[names[i]] = answers[i];
  print_json(out);
}

// ---- plan

struct PlanInput {
  std::string lengths;
  std::string cluster;
  std::string model;
  std::string coefficients;
  std::int64_t batch = 0;
  std::int64_t max_sequence = 0;
  int batches = 1;
  std::int64_t pad = 1;
  std::uint64_t seed = 1;
  bool thorough = false;
  Bytes memory;
  std::optional<Precision> precision;
  RecomputeKind recompute = RecomputeKind::none;
  std::optional<bool> any_degrees;
  std::optional<SequenceKind> sequence;
};

/// The groups that documents of these lengths may have.
flexsp::Problem problem_of(const PlanInput& in, const Cluster& cluster, std::int64_t longest, const Common& common) {
  if (in.coefficients.empty()) {
    const ModelSpec model = value_or_throw(load_model(in.model));
    flexsp::GroupSpace space;
    space.any_degrees = in.any_degrees.value_or(true);
    space.ulysses = in.sequence != SequenceKind::ring;
    space.ring = in.sequence != SequenceKind::ulysses;
    space.recompute = in.recompute;
    const Bytes memory = in.memory.count > 0 ? memory_to_plan_with(in.memory, cluster, common) : cluster.device.memory;
    return value_or_throw(
        flexsp::problem_of(model, cluster, chosen_precision(in.precision, cluster), memory, longest, space));
  }
  const json file = value_or_throw(read_json_file(in.coefficients));
  const flexsp::Coefficients coefficients = value_or_throw(flexsp::coefficients_from_json(file, in.coefficients));
  if (coefficients.devices != cluster.devices)
    refuse(in.coefficients, ": the coefficients are of ", coefficients.devices, " devices, and --cluster ",
           cluster.name, " has ", cluster.devices, "; make them agree");
  flexsp::Problem problem = flexsp::problem_of(coefficients, cluster.devices_per_node, in.any_degrees.value_or(false));
  if (problem.options.empty())
    throw Failure(ErrorKind::infeasible,
                  text_of(in.coefficients, ": a device holds no token beside its share of the states (capacity ",
                          coefficients.device_capacity, " tokens); more memory or more devices would"));
  return problem;
}

// A longest document that no group holds.
[[noreturn]] void refuse_longest(const flexsp::Problem& problem, std::int64_t longest, bool keeps_all) {
  const flexsp::GroupOption& widest =
      *std::ranges::max_element(problem.options, std::ranges::less(), &flexsp::GroupOption::capacity);
  const std::int64_t of_device = std::max<std::int64_t>(1, widest.capacity / widest.degree);
  throw Failure(
      ErrorKind::infeasible,
      text_of("a document of ", longest, " tokens fits no group: one of ", widest.degree, " devices holds ",
              widest.capacity, " tokens; ", (longest + of_device - 1) / of_device,
              " devices of this memory would hold it", keeps_all ? ", --recompute full takes less memory, " : "",
              " or leave it out with --max-seq ", widest.capacity));
}

std::string groups_text(const flexsp::Problem& problem, const flexsp::MicroBatch& microbatch) {
  std::map<std::pair<int, std::string>, int, std::greater<>> counts;
  for (const flexsp::Group& group : microbatch.groups) {
    const flexsp::GroupOption& option = problem.options[static_cast<std::size_t>(group.option)];
    ++counts[{option.degree, option.sequence == SequenceKind::ring ? " ring" : ""}];
  }
  std::string out;
  for (const auto& [kind, count] : counts)
    out += text_of(out.empty() ? "<" : ",", kind.first, kind.second, count > 1 ? text_of("x", count) : "");
  return out + ">";
}

// Device-seconds in which no group works, of all: devices without a group, and groups that wait for the slowest.
double idle_share(const flexsp::Problem& problem, const flexsp::BatchPlan& plan) {
  double busy = 0;
  for (const flexsp::MicroBatch& microbatch : plan.microbatches)
    for (const flexsp::Group& group : microbatch.groups)
      busy += problem.options[static_cast<std::size_t>(group.option)].degree * group.seconds;
  return 1 - busy / (problem.devices * plan.seconds);
}

std::vector<int> places(const flexsp::Problem& problem, const flexsp::MicroBatch& microbatch) {
  std::vector<int> degrees;
  for (const flexsp::Group& group : microbatch.groups)
    degrees.push_back(problem.options[static_cast<std::size_t>(group.option)].degree);
  auto out = flexsp::place(problem, degrees);
  if (!out) throw Failure(ErrorKind::internal, "the groups of a micro-batch have no ranks");
  return *out;
}

// @param says_kind  how each group shares its documents, where there is a choice
ordered_json microbatch_json(const flexsp::Problem& problem, const flexsp::MicroBatch& microbatch, bool says_kind) {
  const std::vector<int> first = places(problem, microbatch);
  ordered_json out;
  out["groups"] = ordered_json::array();
  for (std::size_t g = 0; g < microbatch.groups.size(); ++g) {
    const flexsp::Group& group = microbatch.groups[g];
    const flexsp::GroupOption& option = problem.options[static_cast<std::size_t>(group.option)];
    ordered_json one;
    one["degree"] = option.degree;
    for (int rank = 0; rank < option.degree; ++rank) one["ranks"].push_back(first[g] + rank);
    one["sequences"] = group.lengths;
    if (says_kind) one["sequence"] = name_of(option.sequence);
    out["groups"].push_back(std::move(one));
  }
  out["seconds"] = microbatch.seconds;
  return out;
}

void run_flexsp_plan(const Arguments& arguments, Common& common) {
  Options options("flexsp plan",
                  "Plans batches of documents as they are: for every micro-batch groups of devices that share "
                  "sequences, and the documents of each group, so that the slowest group is done soonest (FlexSP). "
                  "Every plan comes with a proven bound.");
  PlanInput in;
  const auto lengths = options.text("--lengths", in.lengths, "FILE",
                                    "tokens of documents, one number a line, gzip or not; batches are runs of them");
  const auto batch = options.integer("--batch", in.batch, 1, 1 << 24, "documents of a batch");
  const auto cluster_option = options.text("--cluster", in.cluster, "CLUSTER", "a preset or a cluster file");
  const auto longest_option = options.integer("--max-seq", in.max_sequence, 1, flexsp::longest_document,
                                              "tokens of the longest document; longer ones are left out, and counted");
  for (CLI::Option* option : {lengths, batch, cluster_option, longest_option}) options.require(option);
  const auto model = options.text("--model", in.model, "MODEL", "a preset or a config.json: this library's own prices");
  const auto coefficients = options.text("--coefficients", in.coefficients, "FILE",
                                         "instead: fitted coefficients, a \"problem\" of FlexSP's case files");
  options.require_one({model, coefficients});
  options.integer("--batches", in.batches, 1, 1 << 20, "batches to plan (default: 1)");
  options.integer("--pad", in.pad, 1, 1 << 20,
                  "count every document as a multiple of so many tokens (default: 1; FlexSP: 128)");
  options.section("Search");
  options.integer("--seed", in.seed, 0, std::numeric_limits<std::int64_t>::max(),
                  "of the local search: the same seed gives the same plans (default: 1)");
  options.choice_of("--effort", in.thorough, {{"quick", false}, {"thorough", true}},
                    "quick: about 10 ms for 512 documents on 64 devices; thorough: about a second (default: quick)");
  options.choice_of("--degrees", in.any_degrees, {{"any", true}, {"powers", false}},
                    "of groups: any, or powers of two (default: any with --model, powers with --coefficients)");
  options.choice("--sequence", in.sequence, {SequenceKind::ulysses, SequenceKind::ring},
                 "how groups share documents (default: both, chosen for each group)");
  options.section("With --model");
  options.size("--memory", in.memory, "budget of each device (default: all that it has)");
  options.choice("--precision", in.precision, {Precision::bf16, Precision::fp32}, "default: bf16 where there is");
  options.choice("--recompute", in.recompute,
                 {RecomputeKind::none, RecomputeKind::cheap, RecomputeKind::selective, RecomputeKind::full},
                 "what backward recomputes (default: none)");
  options.section("Output");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.flag("--quiet", common.quiet, "print no remarks");
  if (!options.parse(arguments, common)) return;
  if (!in.model.empty() && !in.coefficients.empty())
    refuse("--model and --coefficients both say what documents take; give one of them");

  const Cluster cluster = cluster_named(in.cluster);
  const Lengths all = read_lengths(in.lengths);
  const Lengths kept = flexsp::padded(all, in.pad, in.max_sequence);
  if (kept.empty())
    throw Failure(ErrorKind::infeasible,
                  text_of("no document of ", in.lengths, " has at most --max-seq ", in.max_sequence,
                          " tokens; the shortest has ", *std::ranges::min_element(all)));
  if (kept.size() < all.size())
    note(common, all.size() - kept.size(), " of ", all.size(), " documents are longer than --max-seq ", in.max_sequence,
         " tokens and are left out");
  const auto count = static_cast<std::int64_t>(kept.size());
  if (in.batch > count / in.batches)
    refuse(in.lengths, ": ", in.batches, in.batches == 1 ? " batch" : " batches", " of ", in.batch, " need ",
           in.batches * in.batch, " documents, and ", count, " are there; ask for fewer with --batches or --batch");
  const std::span<const std::int64_t> used(kept.data(), static_cast<std::size_t>(in.batch * in.batches));
  const std::int64_t longest = *std::ranges::max_element(used);
  const flexsp::Problem problem = problem_of(in, cluster, longest, common);
  if (longest > problem.longest())
    refuse_longest(problem, longest, in.coefficients.empty() && in.recompute != RecomputeKind::full);

  ordered_json report;
  report["batches"] = ordered_json::array();
  std::string text;
  const flexsp::Limits limits = in.thorough ? flexsp::Limits::thorough(in.seed) : flexsp::Limits::quick(in.seed);
  for (int k = 0; k < in.batches; ++k) {
    const auto documents = used.subspan(static_cast<std::size_t>(k * in.batch), static_cast<std::size_t>(in.batch));
    const auto begin = std::chrono::steady_clock::now();
    const auto plan = flexsp::solve(problem, documents, limits);
    const std::chrono::duration<double> searched = std::chrono::steady_clock::now() - begin;
    if (!plan) throw Failure(ErrorKind::infeasible, text_of("batch ", k, ": its documents fit no groups"));
    const auto homogeneous = flexsp::adaptive_plan(problem, documents);
    ordered_json one;
    one["microbatches"] = ordered_json::array();
    for (const flexsp::MicroBatch& microbatch : plan->microbatches)
      one["microbatches"].push_back(microbatch_json(problem, microbatch, in.coefficients.empty()));
    one["seconds"] = plan->seconds;
    one["homogeneous_seconds"] = homogeneous ? ordered_json(homogeneous->seconds) : ordered_json();
    one["bound_seconds"] = plan->bound;
    one["search_seconds"] = searched.count();
    report["batches"].push_back(std::move(one));
    if (common.json) continue;
    const std::string label = text_of("batch ", k);
    text += row(label, format_seconds(Seconds{plan->seconds}),
                homogeneous ? ", one degree for all " + format_seconds(Seconds{homogeneous->seconds}) + " (" +
                                  galvatron::detail::three_digits(homogeneous->seconds / plan->seconds) + " times)"
                            : std::string(),
                ", no plan is more than ", percent(1 - plan->bound / plan->seconds), " faster, idle ",
                percent(idle_share(problem, *plan)), ", found in ", format_seconds(Seconds{searched.count()}));
    for (const flexsp::MicroBatch& microbatch : plan->microbatches)
      text += row("", format_seconds(Seconds{microbatch.seconds}), "  ", groups_text(problem, microbatch));
  }
  if (common.json)
    print_json(report);
  else
    print(text_of("Groups of ", problem.devices, " devices, micro-batch by micro-batch\n", text));
}

}  // namespace

void run_flexsp(const Arguments& arguments, Common& common) {
  run_verb("flexsp", "Sequence-parallel groups that adapt to every batch of documents (FlexSP).",
           {{"plan", "plan batches: micro-batches, groups, and the documents of each", run_flexsp_plan},
            {"case", "answer the cases of a file", run_flexsp_case}},
           arguments, common);
}

}  // namespace galvatron::tools
