// The tables that a solver joins: made when a stage first needs them, and kept as long as they serve.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <optional>
#include <vector>

#include <galvatron/search/bounds.hpp>
#include <galvatron/search/cuts.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/routes.hpp>
#include <galvatron/search/stage_role.hpp>
#include <galvatron/search/stage_search.hpp>
#include <galvatron/search/weighings.hpp>

namespace galvatron::search {

/// The tables of a solver's stages. Those of the first and the last depend on the choice of tied ends and serve one
/// join; middle stages with the same micro-batches in flight and the same layers ahead of them share one for all joins.
template <class Executor>
class StageTables {
 public:
  using Table = StageTable<Executor>;

  /// @param cuts      whatever the ends are
  /// @param executor  shares the work; the tables are the same without one
  StageTables(const Problem& problem, const Bounds& bounds, const Weighings& weighings, const Cuts& cuts,
              Executor* executor)
      : problem_(problem), bounds_(bounds), weighings_(weighings), cuts_(cuts), executor_(executor) {
    const int end = problem_.count() - problem_.trailing;
    run_.assign(static_cast<std::size_t>(problem_.count()), 1);
    for (int a = end - 1; a-- > 0;) {
      const auto at = static_cast<std::size_t>(a);
      if (problem_.layers[at] == problem_.layers[at + 1]) run_[at] = run_[at + 1] + 1;
    }
  }

  /// A stage that begins with layer `begin` and ends as these cuts allow.
  [[nodiscard]] StageRole role_of(int stage, int begin, int tag, const Cuts& cuts) const {
    StageRole role;
    role.stage = stage;
    role.begin = begin;
    role.first = stage == 0;
    role.last = stage + 1 == problem_.stages();
    role.tag = tag;
    role.shortest = std::max(cuts.earliest(stage + 1) - begin, 1 + (role.first ? problem_.leading : 0));
    role.longest = cuts.latest(stage + 1) - begin;
    return role;
  }

  /// The tables of a stage that begins with one of these layers, in their order; good until the next join begins.
  /// @param with_ends  the cuts with the choice `tag` of tied ends
  /// @param limits     their work is what is left for this stage and those behind it
  [[nodiscard]] std::vector<const Table*> of_stage(int stage, const std::vector<int>& begins, int tag,
                                                   const Cuts& with_ends, Limits limits, std::int64_t budget) {
    const bool is_end = stage == 0 || stage + 1 == problem_.stages();
    std::vector<Entry*> wanted;
    std::vector<Entry*> open;
    for (const int begin : begins)
      wanted.push_back(is_end ? &add(ends_, {}, begin, role_of(stage, begin, tag, with_ends), open)
                              : &middle(role_of(stage, begin, -1, cuts_), open));
    std::int64_t& largest = largest_[is_end ? 1 : 0];
    const auto share_of = [&] { return Limits::share_of_work(limits.work, problem_.stages() - stage); };
    const auto are_small = [&] { return largest <= share_of() / (2 * at_once); };
    // Large tables share the work on their labels. Small ones are made several at the same time, those of the stages to
    // come too where it is known which they are.
    for (int next = stage + 1; !is_end && !open.empty() && are_small() && next < stage + at_once; ++next)
      if (next + 1 < problem_.stages() && is_homogeneous(next))
        middle(role_of(next, cuts_.earliest(next), -1, cuts_), open);
    const StageLimit within = limits.memory_only ? StageLimit{}
                              : is_end           ? with_ends.stage_limit()
                                                 : cuts_.stage_limit();
    for (std::size_t first = 0, count = 0; first < open.size(); first += count) {
      count = are_small() ? std::min<std::size_t>(at_once, open.size() - first) : 1;
      Limits each = limits;
      each.work = share_of();
      share(executor_, count, [&](std::size_t i) { make(*open[first + i], each, budget, within); });
      largest = 0;
      for (std::size_t i = first; i < first + count; ++i) {
        const std::int64_t work = open[i]->table->work();
        largest = std::max(largest, work);
        work_ += work;
        if (limits.work < std::numeric_limits<std::int64_t>::max()) limits.work -= std::min(limits.work, work);
      }
    }
    std::vector<const Table*> out;
    for (const Entry* entry : wanted) out.push_back(&*entry->table);
    return out;
  }

  /// Before the tables of another join are asked for.
  void begin_join() {
    ends_.clear();
    retired_.clear();
  }
  /// Before joins with other limits.
  void forget() {
    begin_join();
    middle_.clear();
  }
  /// Labels made so far.
  [[nodiscard]] std::int64_t work() const { return work_; }

 private:
  static constexpr int at_once = 4;
  static constexpr std::int64_t unknown = std::numeric_limits<std::int64_t>::max();

  struct Entry {
    Slots slots;    // with chunks: minus the stage
    int start = 0;  // first layer, or -1 - type for any start in a run of equal layers
    StageRole role;
    std::optional<Table> table;
  };

  static Entry& add(std::list<Entry>& to, const Slots& slots, int start, const StageRole& role,
                    std::vector<Entry*>& open) {
    Entry& entry = to.emplace_back();
    entry.slots = slots;
    entry.start = start;
    entry.role = role;
    open.push_back(&entry);
    return entry;
  }

  // Layers that a stage may have at most, wherever it begins.
  [[nodiscard]] int longest(int stage) const { return cuts_.latest(stage + 1) - cuts_.earliest(stage); }
  // Middle stages inside one run of equal layers may use one table, whatever layer they begin with.
  [[nodiscard]] bool is_homogeneous(int stage) const {
    return problem_.chunks == 1 && run_[static_cast<std::size_t>(cuts_.earliest(stage))] >= longest(stage);
  }

  Entry& middle(StageRole role, std::vector<Entry*>& open) {
    int start = role.begin;
    if (is_homogeneous(role.stage)) {
      start = -1 - problem_.layers[static_cast<std::size_t>(role.begin)];
      role.begin = cuts_.earliest(role.stage);
      role.shortest = std::max(1, cuts_.earliest(role.stage + 1) - cuts_.latest(role.stage));
      role.longest = longest(role.stage);
    }
    const Slots slots = problem_.chunks == 1 ? problem_.slots_of(role.stage, 0) : Slots{-role.stage};
    const auto found = std::find_if(middle_.begin(), middle_.end(),
                                    [&](const Entry& made) { return made.slots == slots && made.start == start; });
    if (found != middle_.end()) {
      const StageRole& made = found->role;
      if (made.shortest <= role.shortest && made.longest >= role.longest) return *found;
      role.shortest = std::min(role.shortest, made.shortest);
      role.longest = std::max(role.longest, made.longest);
      role.longest = std::min(role.longest, problem_.count() - problem_.trailing - role.begin);
      retired_.splice(retired_.end(), middle_, found);  // joints point to it
    }
    return add(middle_, slots, start, role, open);
  }

  void make(Entry& entry, const Limits& limits, std::int64_t budget, const StageLimit& within) const {
    std::optional<Routes> routes;
    if (limits.seeks_proof() && problem_.chunks == 1) {
      routes.emplace(problem_, entry.role, weighings_.share(weighings_.size() - 1));
      routes->bound_layers();
      if (routes->seconds() == Routes::infinite) routes.reset();
    }
    entry.table.emplace(problem_, bounds_, weighings_, entry.role, limits, budget, within, executor_,
                        routes ? &*routes : nullptr);
  }

  const Problem& problem_;
  const Bounds& bounds_;
  const Weighings& weighings_;
  const Cuts& cuts_;
  Executor* executor_;
  std::vector<int> run_;  // equal layers from each one on, the trailing ones left out
  std::int64_t work_ = 0;
  std::array<std::int64_t, 2> largest_{unknown, unknown};  // work on one of the tables made last, middle and end
  std::list<Entry> ends_;                                  // of this join
  std::list<Entry> middle_;                                // of all joins
  std::list<Entry> retired_;                               // in this join: others have taken their place
};

}  // namespace galvatron::search
