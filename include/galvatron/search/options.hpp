// What a search is asked, and what it answers.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/trainer.hpp>
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
  Precision moments = Precision::fp32;               ///< in which the optimizer keeps its moments: fp32 or bf16
  cost::Trainer trainer = cost::Trainer::galvatron;  ///< whose code the plan is for
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
  const std::atomic<int>* stop = nullptr;  ///< once not 0, the search ends with the best plan so far

  [[nodiscard]] bool interrupted() const { return stop != nullptr && stop->load(std::memory_order_relaxed) != 0; }
};

/// A whole strategy, with layers numbered as blocks of the model (embedding and head apart).
struct Candidate {
  int stages = 1;
  int microbatches = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int virtual_stages = 1;
  std::vector<int> first_block;      ///< (P) of every stage
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
  Seconds bound;             ///< no plan is faster than this
  std::int64_t labels = 0;   ///< made and looked at by the dynamic programs
  Seconds seconds;           ///< that the search took
};

struct SearchResult {
  bool feasible = false;
  Candidate best;                         ///< when feasible
  std::vector<Alternative> alternatives;  ///< best of other pipeline degrees, and the plain schemes
  std::string reason;                     ///< when infeasible: one line
  std::optional<Bytes> smallest_memory;   ///< when infeasible: the least budget with a plan, if any budget has one
  std::optional<Candidate> smallest;      ///< its plan
  SearchStatistics statistics;
};

}  // namespace galvatron::search
