// Is the search ever worse than systems that may choose from less? Plans the models of Galvatron's papers with each of
// them and with the whole space, under one cost model.
//
//   benchmark_limited_systems [--filter TEXT] [--out docs/limited_systems.md]
//
// --filter keeps the rows whose "model cluster" contains TEXT. The page goes to --out, otherwise to standard output;
// rows as they are done go to standard error. A system is a Space, its schedules, and what else it fixes. Exit code 1
// and the case, when the whole space or that of the runtime has a slower plan than a system that is part of it.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/model.hpp>
#include <galvatron/plan/compiled.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/strategy/space.hpp>

#include "guarded.hpp"

namespace {

using namespace galvatron;
using search::Algorithm;

constexpr std::int64_t most_samples = 512;  // of a batch
constexpr std::int64_t least_samples = 8;
constexpr double noise = 1e-9;     // of equal plans whose seconds were added in another order
constexpr double notable = 0.001;  // a share of throughput that the page speaks of

struct System {
  std::string name;
  std::string words;                  // what it may choose
  std::vector<SearchOptions> spaces;  // the best of them counts
};

SearchOptions limited(const std::string& space, std::vector<ScheduleKind> schedules) {
  SearchOptions options;
  options.space = value_or_throw(parse_space(space));
  options.schedules = std::move(schedules);
  options.reserve = Bytes{};  // the other systems are told what a device has
  return options;
}

const std::vector<ScheduleKind> gpipe{ScheduleKind::gpipe};
const std::vector<ScheduleKind> one_f_one_b{ScheduleKind::one_f_one_b};
const std::vector<ScheduleKind> plain{ScheduleKind::one_f_one_b, ScheduleKind::gpipe};
const std::vector<ScheduleKind> every_schedule{schedule_kinds.begin(), schedule_kinds.end()};

// GPipe over pipelines with even stages, or no pipeline, which has one micro-batch in flight.
std::vector<SearchOptions> gpipe_or_one_stage(const std::string& space) {
  SearchOptions stages = limited(space + ",pp", gpipe);
  stages.even_stages = true;
  return {std::move(stages), limited(space, one_f_one_b)};
}

// All degrees of three axes, each at least 2.
std::vector<SearchOptions> three_axes(int devices) {
  std::vector<SearchOptions> out;
  for (int tensor = 2; tensor <= devices / 4; tensor *= 2)
    for (int stages = 2; tensor * stages <= devices / 2; stages *= 2) {
      SearchOptions options =
          limited("dp,zero1,recompute,tp=" + std::to_string(tensor) + ",pp=" + std::to_string(stages), one_f_one_b);
      options.one_strategy = options.even_stages = true;
      out.push_back(std::move(options));
    }
  return out;
}

// The systems, then the runtime's space, then the whole.
std::vector<System> systems(int devices) {
  SearchOptions pp = limited("pp", gpipe);
  SearchOptions bmw = limited("dp,sdp,tp,strided,pp,recompute,pow2", one_f_one_b);
  pp.even_stages = true;
  bmw.algorithm = Algorithm::bmw;
  return {
      {"DP", "data parallelism over all devices (PyTorch DDP)", {limited("dp", one_f_one_b)}},
      {"TP", "tensor parallelism over all devices (Megatron-LM)", {limited("tp", one_f_one_b)}},
      {"PP", "one stage a device, even stages, GPipe (PyTorch GPipe)", {pp}},
      {"SDP", "ZeRO-3 over all devices (PyTorch FSDP)", {limited("sdp", one_f_one_b)}},
      {"DP+TP",
       "for every layer its data and tensor degree; no pipeline (what OptCNN and FlexFlow search)",
       {limited("dp,tp,strided,pow2", one_f_one_b)}},
      {"DP+PP", "data and pipeline degree, even stages, GPipe (what PipeDream and DAPPLE search)",
       gpipe_or_one_stage("dp,pow2")},
      {"3D",
       "one strategy for all layers: data, tensor and pipeline degree all at least 2, ZeRO-0 or 1, every layer "
       "recomputed or none; even stages, 1F1B. The fastest of all such degrees, among them DeepSpeed's suggestion of "
       "2 x 2 x 2 for 8 devices",
       three_axes(devices)},
      {"Galvatron", "for every layer data or ZeRO-3 and tensor degrees; pipeline with even stages, GPipe (PVLDB 2022)",
       gpipe_or_one_stage("dp,sdp,tp,strided,pow2")},
      {"Base", "Galvatron-Base: likewise, and every layer recomputed or not",
       gpipe_or_one_stage("dp,sdp,tp,strided,recompute,pow2")},
      {"BMW",
       "Galvatron-BMW: likewise, with 1F1B and stages that its local search balances, `--search bmw` (arXiv "
       "2307.02031)",
       {bmw}},
      {"runtime",
       "ours, of what `galvatron train` carries out, by default: `--space runnable --schedule gpipe,1f1b`",
       {limited("runnable", plain)}},
      {"ours",
       "ours, of all that can be priced: `--space all --schedule all`, of zb-v plans of one strategy",
       {limited("all", every_schedule)}},
  };
}
constexpr std::size_t supersets = 2;  // the last of them

// The whole space with one freedom less.
struct Freedom {
  const char* name;
  void (*remove)(SearchOptions&);
};
const Freedom freedoms[] = {
    {"interleaved and zero-bubble schedules", [](SearchOptions& o) { o.schedules = plain; }},
    {"schedules beyond GPipe", [](SearchOptions& o) { o.schedules = gpipe; }},
    {"ZeRO-1 and 2", [](SearchOptions& o) { o.space.zero[1] = o.space.zero[2] = false; }},
    {"ZeRO-3", [](SearchOptions& o) { o.space.zero[3] = false; }},
    {"tensor parallelism", [](SearchOptions& o) { o.space.tensor = {.open = false}; }},
    {"strided tensor ranks", [](SearchOptions& o) { o.space.strided = false; }},
    {"pipeline parallelism", [](SearchOptions& o) { o.space.pipeline = {.open = false}; }},
    {"Megatron's sequence parallelism", [](SearchOptions& o) { std::erase(o.space.sequence, SequenceKind::megatron); }},
    {"context parallelism",
     [](SearchOptions& o) {
       o.space.context = {.open = false};
       for (const SequenceKind kind : {SequenceKind::ulysses, SequenceKind::ring}) std::erase(o.space.sequence, kind);
     }},
    {"selective recomputation", [](SearchOptions& o) { std::erase(o.space.recompute, RecomputeKind::selective); }},
    {"full recomputation", [](SearchOptions& o) { std::erase(o.space.recompute, RecomputeKind::full); }},
    {"kept outputs of norms and activations",
     [](SearchOptions& o) { std::erase(o.space.recompute, RecomputeKind::none); }},
    {"uneven stages", [](SearchOptions& o) { o.even_stages = true; }},
    {"a strategy for every layer", [](SearchOptions& o) { o.one_strategy = true; }},
};

bool has(const SearchOptions& options, const Freedom& freedom) {
  SearchOptions without = options;
  freedom.remove(without);
  return !(without.space == options.space && without.schedules == options.schedules &&
           without.even_stages == options.even_stages && without.one_strategy == options.one_strategy);
}

struct Setting {
  ModelSpec model;
  Cluster cluster;
  int gib = 0;  // of memory a device; 0: all
  [[nodiscard]] std::string name() const {
    return model.name + " on " + cluster.name + (gib == 0 ? "" : " with " + std::to_string(gib) + " GiB");
  }
};

struct Answer {
  std::int64_t batch = 0;  // 0: there is no plan
  double samples_per_second = 0;
  bool proven = true;
  bool divides = false;  // some plan exists, whatever its memory
  std::string words;
};

// Times all searches of a system.
struct Times {
  int searches = 0;
  double seconds = 0;
  double longest = 0;
  void add(Seconds took) {
    ++searches;
    seconds += took.value;
    longest = std::max(longest, took.value);
  }
};

Answer plan(const Setting& setting, SearchOptions options, std::int64_t batch, Times& times) {
  options.global_batch = batch;
  options.memory = {std::int64_t{setting.gib} << 30};
  const search::SearchOptions full = value_or_throw(search::completed(options, setting.model, setting.cluster));
  const search::SearchResult found = value_or_throw(search::search(setting.model, setting.cluster, full));
  times.add(found.statistics.seconds);
  if (!found.feasible) return {0, 0, true, found.smallest.has_value(), ""};
  return {batch, static_cast<double>(batch) / found.best.iteration.value,
          found.statistics.proven || found.statistics.uniform_alone, true,
          plan_words(plan_of(found.best, setting.model, setting.cluster, full))};
}

// Keeps the faster of two; of none, whether memory was all that lacked.
void improve(Answer& best, Answer other) {
  if (other.samples_per_second > best.samples_per_second * (1 + noise))
    best = std::move(other);
  else
    best.divides |= other.divides;
}

// The batch with the most samples a second, from the largest down until a smaller one is slower.
Answer sweep(const Setting& setting, const SearchOptions& options, Times& times) {
  Answer best;
  for (std::int64_t batch = most_samples; batch >= least_samples; batch /= 2) {
    const bool found = best.batch != 0;
    improve(best, plan(setting, options, batch, times));
    if (found && best.batch != batch) break;
  }
  return best;
}

struct Row {
  Setting setting;
  std::vector<Answer> answers;  // of every system
  std::size_t rival = 0;        // the fastest of the limited systems; of equal ones that with the largest space
  std::string why;              // the freedoms that made the difference
  [[nodiscard]] const Answer& ours() const { return answers.back(); }
  [[nodiscard]] double gain() const { return ours().samples_per_second / answers[rival].samples_per_second - 1; }
};

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

// The freedoms that the rival lacks and without which ours loses most.
std::string explained(const Row& row, const SearchOptions& whole, SearchOptions rival, Times& times) {
  const Answer& ours = row.ours();
  std::vector<std::pair<double, std::string>> losses;
  for (const Freedom& freedom : freedoms) {
    if (row.answers[row.rival].batch != 0 && has(rival, freedom)) continue;
    SearchOptions options = whole;
    freedom.remove(options);
    const Answer without = plan(row.setting, options, ours.batch, times);
    losses.emplace_back(1 - without.samples_per_second / ours.samples_per_second, freedom.name);
  }
  std::stable_sort(losses.begin(), losses.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string out;
  for (std::size_t i = 0; i < std::min<std::size_t>(2, losses.size()) && losses[i].first >= notable; ++i)
    out += (out.empty() ? "" : ", ") + losses[i].second +
           (losses[i].first == 1 ? " (no plan without)" : " (" + percent(losses[i].first) + ")");
  if (!out.empty()) return out;
  if (rival.algorithm == Algorithm::bmw) {
    rival.algorithm = Algorithm::exact;
    const Answer exact = plan(row.setting, rival, ours.batch, times);
    if (exact.samples_per_second >= ours.samples_per_second * (1 - notable)) return "the exact search";
  }
  return "several that replace each other";
}

struct Group {
  std::string title;
  std::string cluster;
  std::vector<int> budgets;  // GiB, 0: all that a device has; descending
};

const std::vector<Group>& groups() {
  static const std::vector<Group> all{{"8 devices of 24 GB", "8xtitan-24g", {0, 20, 16, 12, 8}},
                                      {"16 A100", "16xa100-80g", {0}},
                                      {"32 A100", "32xa100-80g", {0}},
                                      {"64 A100", "64xa100-80g", {0}}};
  return all;
}

constexpr const char* models[] = {"bert-huge-32", "bert-huge-48", "vit-huge-32",  "vit-huge-48",
                                  "t5-large-32",  "t5-large-48",  "swin-huge-32", "swin-huge-48",
                                  "gpt2-1.5b",    "gpt-6.7b",     "gpt-15b",      "gpt-39b",
                                  "gpt-65b",      "llama2-7b",    "llama2-13b",   "llama2-70b"};

std::string cell(const Answer& answer) {
  if (answer.batch == 0) return answer.divides ? "OOM" : "-";
  char text[32];
  std::snprintf(text, sizeof text, answer.samples_per_second < 10 ? "%.3f" : "%.1f", answer.samples_per_second);
  return text;
}

// One row, checked. Errors (Failure, internal): ours is slower than a system.
Row compared(Setting setting, const std::vector<System>& all, std::vector<Times>& times) {
  Row row{std::move(setting), {}, 0, {}};
  const std::size_t limits = all.size() - supersets;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Answer best;
    for (const SearchOptions& options : all[i].spaces) improve(best, sweep(row.setting, options, times[i]));
    row.answers.push_back(std::move(best));
    if (i < limits && row.answers[i].samples_per_second >= row.answers[row.rival].samples_per_second * (1 - noise))
      row.rival = i;
  }
  const Answer& rival = row.answers[row.rival];
  for (std::size_t i = limits; i < all.size(); ++i) {
    Answer& own = row.answers[i];
    if (own.samples_per_second < rival.samples_per_second * (1 - noise))  // at another batch, perhaps
      improve(own, plan(row.setting, all[i].spaces.front(), rival.batch, times[i]));
    if (own.samples_per_second < rival.samples_per_second * (1 - 2 * noise))
      throw Failure(ErrorKind::internal, row.setting.name() + ": " + all[row.rival].name + " has " + cell(rival) +
                                             " samples/s at batch " + std::to_string(rival.batch) + " (" + rival.words +
                                             "), " + all[i].name + " only " + cell(own) + " at " +
                                             std::to_string(own.batch) + " (" + own.words + ")");
  }
  if (row.ours().batch != 0 && row.gain() >= notable)
    row.why = explained(row, all.back().spaces.front(), all[row.rival].spaces.front(), times.back());
  return row;
}

std::string line(const Row& row, const std::vector<System>& all) {
  const Setting& s = row.setting;
  std::string out = "| " + s.model.name + " | " + (s.gib == 0 ? "all" : std::to_string(s.gib)) + " |";
  for (const Answer& answer : row.answers) out += " " + cell(answer) + " |";
  if (row.ours().batch == 0 || row.gain() < notable)
    out += " equal to " + all[row.rival].name + " |";
  else if (row.answers[row.rival].batch == 0)
    out += " the only plan: " + row.why + " |";
  else
    out += " " + percent(row.gain()) + " over " + all[row.rival].name + ": " + row.why + " |";
  return out + " " + row.ours().words + (row.ours().proven ? "" : " (not proven)") + " |\n";
}

std::string introduction() {
  std::string out =
      "# Against systems that may choose from less\n\n"
      "A search over a larger space is never worse than one over a part of it, if it finds the best plan. This page "
      "holds the\nplanner against the systems of Galvatron's papers and against both Galvatrons, all of them as "
      "searches over a part of\nthe space under the planner's own cost model, so that nothing differs but what may "
      "be chosen. Figures are predictions,\nin samples a second. They say what a freedom is worth on these clusters; "
      "they do not say how fast those systems run.\n\n"
      "```sh\n"
      "cmake --build --preset release --target benchmark_limited_systems\n"
      "build/release/bin/benchmark_limited_systems --out docs/limited_systems.md\n"
      "build/release/bin/benchmark_limited_systems --filter \"bert-huge-32 8x\"     # some rows, to standard output\n"
      "```\n\n"
      "The program ends with an error that names the case, when `ours` or `runtime` is slower than any system.\n\n"
      "## What each system may choose\n| system | choices |\n|---|---|\n";
  for (const System& system : systems(8)) out += "| " + system.name + " | " + system.words + " |\n";
  out +=
      "\n"
      "- **The same for all**: bf16 with fp32 optimizer states, the model's full sequence, any number of micro-batches "
      "(also\n  where the original does not accumulate gradients), re-layouts between layers at their price.\n"
      "- **Batch**: the number of samples an iteration with the most samples a second, of 512, 256, .. 8. It is looked "
      "for\n  from 512 down, until a smaller batch is slower; `ours` and `runtime` also try the batch of a system that "
      "is ahead.\n"
      "- **Kinder than the originals**: where layers have strategies of their own, so have embedding and head; BMW "
      "and Base\n  know the costs of this planner; 3D may try all degrees.\n"
      "- **Less kind**: data parallelism nested inside tensor parallelism only across nodes, with all data ranks in "
      "one,\n  for everybody.\n"
      "- **Even stages**: blocks divided evenly, the rest to the last stages.\n"
      "- **GPipe** keeps the activations of all micro-batches; systems with it may do without a pipeline and keep "
      "those "
      "of one.\n"
      "- **Memory**: GiB a device, of which 1 GiB is the libraries'; `all` is what the device has. `OOM`: nothing "
      "fits; `-`:\n  heads, layers or samples cannot be divided like that.\n"
      "- **Freedoms**: where ours is at least 0.1 % faster than the best system, it is searched again at the same "
      "batch without\n  one freedom that this system lacks; named are the two that cost most, with what "
      "is lost. They may replace each other,\n  so losses need not add up to the gain. Degrees that are no powers of "
      "two have no chance here: no such number divides\n  these clusters.\n"
      "- **Not proven**: the search ended at its limit of work; a faster plan of the space may exist.\n"
      "- BMW's is a local search: it may be behind Base. Both are parts of the space of `ours`.\n";
  return out;
}

std::string benchmark(const std::string& filter) {
  std::string page = introduction();
  std::vector<Times> times(systems(8).size());
  int rows = 0;
  int faster = 0;
  for (const Group& group : groups()) {
    const Cluster cluster = value_or_throw(find_cluster(group.cluster));
    const std::vector<System> all = systems(cluster.devices);
    std::string table;
    std::string none;
    for (const char* name : models) {
      if ((name + (" " + group.cluster)).find(filter) == std::string::npos) continue;
      for (const int gib : group.budgets) {
        const Row row = compared({value_or_throw(find_model(name)), cluster, gib}, all, times);
        if (row.ours().batch == 0) {  // less memory has no plan either
          none += (none.empty() ? "" : ", ") + (gib == 0 ? name : row.setting.name() + " and less");
          break;
        }
        ++rows;
        faster += row.gain() >= notable ? 1 : 0;
        table += line(row, all);
        std::fprintf(stderr, "%s", line(row, all).c_str());
      }
    }
    if (table.empty() && none.empty()) continue;
    page += "\n## " + group.title + " (`" + group.cluster + "`)\n";
    if (!table.empty()) {
      page += "| model | GiB |";
      std::string rule = "|---|---|";
      for (const System& system : all) {
        page += " " + system.name + " |";
        rule += "---|";
      }
      page += " what the freedom is worth | plan of ours |\n" + rule + "---|---|\n" + table;
    }
    if (!none.empty()) page += "\nNo system, ours included, has a plan for " + none + ".\n";
  }
  page += "\n## Summary and search times\nOf " + std::to_string(rows) + " rows ours is faster than every system in " +
          std::to_string(faster) +
          " and equal to the best in the others.\nSeconds on one thread, all rows together; those of ours contain the "
          "searches without one freedom.\n\n| system | searches | seconds | longest |\n|---|---|---|---|\n";
  const std::vector<System> all = systems(8);
  for (std::size_t i = 0; i < all.size(); ++i) {
    char text[96];
    std::snprintf(text, sizeof text, " | %d | %.2f | %.2f |\n", times[i].searches, times[i].seconds, times[i].longest);
    page += "| " + all[i].name + text;
  }
  return page;
}

struct Arguments {
  std::string filter;
  std::string out;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("--filter", a.filter, "only the rows whose name has this in it");
  app.add_option("--out", a.out, "write the page there instead of printing it");
}

int write_page(const Arguments& a) {
  const std::string page = benchmark(a.filter);
  if (a.out.empty())
    std::printf("%s", page.c_str());
  else if (!(std::ofstream(a.out) << page))
    throw Failure(ErrorKind::usage, "cannot write " + a.out);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_limited_systems", "Holds the search against those of earlier systems, and writes the page.",
                 argc, argv, options, write_page);
}
