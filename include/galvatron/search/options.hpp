// What a search is asked, checked and completed, and what it answers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/trainer.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/search/stop.hpp>
#include <galvatron/strategy/lsh_options.hpp>
#include <galvatron/strategy/one_for_all.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/space.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::search {

enum class Algorithm : std::uint8_t {
  exact,  ///< cuts and strategies together, with a bound (solver.hpp)
  bmw,    ///< Galvatron-BMW's local search (bmw.hpp)
};

struct SearchOptions {
  std::int64_t global_batch = 8;  ///< samples of an iteration
  std::int64_t sequence = 0;      ///< tokens of a sample; 0: the model's positions
  Bytes memory{};                 ///< of each rank, at most what the device has; 0: that
  Precision precision = Precision::bf16;
  Precision moments = Precision::fp32;  ///< in which the optimizer keeps its moments: fp32 or bf16
  double expert_imbalance = program::default_expert_imbalance;  ///< that the memory of experts is for
  LshOptions lsh{};                                             ///< of layers with compressed dispatch
  bool lsh_falls_back = false;     ///< their most_rate is that at which compression no longer saves time
  cost::Trainer trainer{};         ///< whose code the plan is for
  std::optional<Bytes> reserve{};  ///< of each device, kept free; none: what the trainer takes
  Space space{};
  std::vector<ScheduleKind> schedules{ScheduleKind::one_f_one_b, ScheduleKind::gpipe};
  Algorithm algorithm = Algorithm::exact;
  int microbatches = 0;       ///< 0: every divisor of the batch
  bool even_stages = false;   ///< stages have equally many blocks as near as possible, the last ones the rest
  bool one_strategy = false;  ///< all layers, embedding and head too, have the same one
  int threads = 1;            ///< the answer does not depend on it
  int effort = 1;             ///< how many times the work of a usual search: takes longer and is nearer to a proof
  /// Into how many searches that work is divided: those of a sweep have a share each.
  int shares = 1;
  bool likely_alone = false;  ///< only the likeliest choices are looked at: hardly ever a proof
  double time = 0;            ///< seconds that the search may take, a sweep all its searches; 0: no limit
  Stop stop{};                ///< the search ends with the best plan so far; the deadline is set by `time`

  [[nodiscard]] bool interrupted() const { return stop.requested(); }
  /// The time begins now, unless it has begun.
  void start_clock() {
    if (time > 0) stop.deadline = std::min(stop.deadline, steady_seconds() + time);
  }
};

/// Checks options against model and cluster and fills in the defaults; the memory is at most that of the group which
/// has most. Errors (usage): figures below 1, a sequence that is too long, micro-batches that do not divide the batch,
/// no time, forced degrees that do not divide the devices or experts, no effort, no schedule or none that the space's
/// trainer has.
inline Result<SearchOptions> completed(SearchOptions options, const ModelSpec& model, const ClusterView& cluster) {
  const auto refused = [](const auto&... parts) { return usage_error(text_of(parts...)); };
  if (model.blocks.empty()) return refused("the model ", model.name, " has no layers");
  if (options.sequence == 0) options.sequence = model.positions();
  if (options.memory.count == 0) options.memory = cluster.most_memory();
  if (options.global_batch < 1 || options.global_batch > (1 << 30))
    return refused("the global batch is ", options.global_batch, ": give 1 to 2^30 samples");
  const std::string sequence = text_of("the sequence has ", options.sequence, " tokens: ");
  if (model.takes_images() && options.sequence != model.positions())
    return refused(sequence, model.name, " takes images, which are ", model.positions(),
                   " tokens; leave the sequence out");
  if (options.sequence < 1 || options.sequence > model.positions())
    return refused(sequence, model.name, " takes 1 to ", model.positions());
  const int experts = options.space.expert.forced;
  for (const LayerSpec& block : model.blocks) {
    options.space.experts = std::max(options.space.experts, block.experts);
    if (experts > 0 && block.experts % experts != 0)
      return refused("--space ep=", experts, " does not divide the ", block.experts, " experts of ", model.name);
  }
  if (experts > 1 && options.space.experts == 0)
    return refused("--space ep=", experts, ": ", model.name, " has no experts");
  for (const LayerSpec& block : model.blocks)
    for (const TokenRatio& ratio : {block.tokens, block.memory, block.target})
      if (!ratio.divides(options.sequence))
        return refused(sequence, "a layer of ", model.name, " works on ", ratio.part, "/", ratio.whole,
                       " of them; give a multiple of ", ratio.whole / std::gcd(ratio.part, ratio.whole));
  if (options.memory.count < 1)
    return refused("the memory budget is ", options.memory.count, " bytes: give a positive size");
  options.memory = min(options.memory, cluster.most_memory());
  const int devices = cluster.devices();
  if (devices < 1) return refused("the cluster ", cluster.name(), " has no devices");
  if (options.microbatches < 0 || (options.microbatches > 0 && options.global_batch % options.microbatches != 0))
    return refused(options.microbatches, " micro-batches do not divide the global batch of ", options.global_batch,
                   ": choose a divisor");
  if (const std::string why = cost::why_no_recipe(options.trainer, options.precision); !why.empty())
    return refused(why);
  if (!options.trainer.is_own())
    for (const LayerSpec& block : model.blocks)
      if (!block.is_plain_block())
        return refused("the model ", model.name, " has other blocks than GPT's and Llama's, so that only this ",
                       "library's own runtime can be planned for; leave --trainer out");
  std::int64_t forced = 1;
  for (const auto& [name, degree] : {std::pair("pp", options.space.pipeline.forced),
                                     {"tp", options.space.tensor.forced},
                                     {"cp", options.space.context.forced},
                                     {"dp", options.space.data.forced}}) {
    if (degree == 0 || cluster.is_mixed()) continue;  // stages of a mixed cluster divide their groups
    forced *= degree;
    if (forced <= devices && devices % forced == 0) continue;
    const std::string together = forced == degree ? "" : text_of(" and what else is forced, ", forced, " together,");
    return refused("--space ", name, "=", degree, together, " does not divide the ", devices, " devices of ",
                   cluster.name(), ": force degrees whose product is one of ", joined(divisors(devices)));
  }
  if (!(options.time >= 0))
    return refused("the time is ", std::to_string(options.time), " seconds: give a positive number, or 0 for all");
  options.start_clock();
  if (options.effort < 1 || options.effort > 1'000'000)
    return refused("the effort is ", options.effort, ": give 1 to 1000000");
  if (options.schedules.empty())
    return refused("no schedule is allowed: name gpipe, 1f1b, interleaved, zb-h1, zb-2p or zb-v");
  const OneForAll trainer = options.space.one_for_all;
  if (trainer != OneForAll::no) options.one_strategy = true;
  const auto has = [trainer](ScheduleKind kind) { return has_schedule(trainer, kind); };
  std::erase_if(options.schedules, std::not_fn(has));
  if (options.schedules.empty()) {
    std::vector<ScheduleKind> all(std::begin(schedule_kinds), std::end(schedule_kinds));
    std::erase_if(all, std::not_fn(has));
    return refused("none of the schedules is one of --space ", name_of(trainer),
                   ", which has: ", joined(all, ", ", [](ScheduleKind kind) { return name_of(kind); }));
  }
  return options;
}

/// The devices of a stage in a mixed cluster.
struct StageDevices {
  int group = 0;
  int ranks = 1;
  friend constexpr bool operator==(const StageDevices&, const StageDevices&) = default;
};

/// A whole strategy, with layers numbered as blocks of the model (embedding and head apart).
struct Candidate {
  int stages = 1;
  int microbatches = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int virtual_stages = 1;
  std::vector<int> first_block;      ///< (P) of every stage
  std::vector<StageDevices> on;      ///< (P) in a mixed cluster; empty: all devices, equally many on each stage
  std::vector<StrategySpec> blocks;  ///< (L)
  StrategySpec embedding;
  StrategySpec head;
  Seconds iteration;
  Bytes peak;  ///< of the fullest rank
};

/// A plan that did not win, or one of the plain schemes.
struct Alternative {
  std::string name;     ///< "data parallel", "pipeline 4", ...
  Candidate candidate;  ///< the fastest of its kind that fits, or else the one that needs the least memory
  bool exists = true;   ///< false: batch, heads or layers forbid it
  bool fits = true;
};

struct SearchStatistics {
  int cases = 0;             ///< (pipeline degree, micro-batches, schedule) with a legal strategy
  int solved = 0;            ///< of them searched; bounds excluded the rest
  bool proven = true;        ///< within the space and the time model, no plan is faster
  bool narrowed = false;     ///< cases were left out because there are very many; nothing is proven then
  bool interrupted = false;  ///< by SearchOptions::stop
  /// Not proven because of zb-v alone, of which only plans of one strategy are tried: more effort does not help.
  bool uniform_alone = false;
  /// No plan is faster than this; 0 where nothing is known, infinite where there is no plan.
  Seconds bound{std::numeric_limits<double>::infinity()};
  std::int64_t labels = 0;  ///< made and looked at by the dynamic programs
  Seconds seconds;          ///< that the search took

  /// What is known with another search, for the best of the plans of both.
  void add(const SearchStatistics& other) {
    cases += other.cases;
    solved += other.solved;
    labels += other.labels;
    proven = proven && other.proven;
    narrowed = narrowed || other.narrowed;
    bound = min(bound, other.bound);
  }
  /// Time ran out before all cases were made: those that are missing may have any plan.
  void lacks_cases() {
    proven = false;
    bound = {};
  }
};

struct SearchResult {
  bool feasible = false;
  Candidate best;                         ///< when feasible
  std::vector<Alternative> alternatives;  ///< best of other pipeline degrees, and the plain schemes
  std::string reason;                     ///< when infeasible: one line
  std::optional<Candidate> smallest;      ///< when infeasible: the plan of the least budget, if any budget has one
  SearchStatistics statistics;
};

}  // namespace galvatron::search
