// The plain schemes that a plan is held against, and the uniform plans of a case among which the best of each are.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/search/case.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/uniform.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::search::detail {

/// The plain schemes, by what they use.
struct Scheme {
  const char* name;
  bool (*has)(int stages, const StrategySpec& spec);
};
inline bool is_data(int p, const StrategySpec& s, int zero) {
  return p == 1 && s.tensor == 1 && s.context == 1 && s.zero == zero;
}
inline bool is_context(int p, const StrategySpec& s, SequenceKind kind) {
  return p == 1 && s.tensor == 1 && s.sequence == kind;
}
inline constexpr Scheme schemes[] = {
    {"data parallel", [](int p, const StrategySpec& s) { return is_data(p, s, 0); }},
    {"ZeRO-1", [](int p, const StrategySpec& s) { return is_data(p, s, 1); }},
    {"ZeRO-2", [](int p, const StrategySpec& s) { return is_data(p, s, 2); }},
    {"ZeRO-3", [](int p, const StrategySpec& s) { return is_data(p, s, 3); }},
    {"Ulysses", [](int p, const StrategySpec& s) { return is_context(p, s, SequenceKind::ulysses); }},
    {"ring attention", [](int p, const StrategySpec& s) { return is_context(p, s, SequenceKind::ring); }},
    {"tensor parallel", [](int p, const StrategySpec& s) { return p == 1 && s.shards() == 1; }},
    {"pipeline parallel", [](int p, const StrategySpec& s) { return p > 1 && s.ranks() == 1; }},
    {"tensor + data",
     [](int p, const StrategySpec& s) { return p == 1 && s.tensor > 1 && s.data > 1 && s.context == 1; }},
    {"pipeline + data",
     [](int p, const StrategySpec& s) { return p > 1 && s.tensor == 1 && s.data > 1 && s.context == 1; }},
    {"pipeline + tensor",
     [](int p, const StrategySpec& s) { return p > 1 && s.tensor > 1 && s.data == 1 && s.context == 1; }},
    {"pipeline + tensor + data",
     [](int p, const StrategySpec& s) { return p > 1 && s.tensor > 1 && s.data > 1 && s.context == 1; }},
};

/// The uniform plans of a case that may be the best of all its uniform plans or of those of a scheme: the fastest that
/// fits, or the smallest while none does. In the order of tags. What a plan cannot be below is cheap to know, so most
/// need no evaluation.
class UniformPlans {
 public:
  explicit UniformPlans(const Case& c) : case_(c), p_(c.problem) {
    for (const int type : p_.layers) ++count_of(layers_, type);
    for (const LayerType& type : p_.types) {
      std::vector<int>& index = index_.emplace_back(c.specs.size(), -1);
      for (std::size_t i = 0; i < type.size(); ++i) index[static_cast<std::size_t>(type[i].tag)] = static_cast<int>(i);
    }
    for (int layer = p_.leading; layer < p_.count() - p_.trailing; ++layer)
      ++count_of(movable_, p_.layers[static_cast<std::size_t>(layer)]);
    // On shared cores and with GPipe a plan may take longer than the objective says, so that order by it is not all.
    comparable_ = !p_.objective.shared && (c.schedule != ScheduleKind::gpipe || p_.stages() == 1);
  }

  [[nodiscard]] std::vector<UniformPlan> best() {
    std::vector<Least> open;
    for (std::size_t tag = 0; tag < case_.specs.size(); ++tag)
      if (auto least = least_of(static_cast<int>(tag))) open.push_back(std::move(*least));
    std::sort(open.begin(), open.end(), [this](const Least& a, const Least& b) {
      const bool fits = a.peak <= p_.budget;
      if (fits != (b.peak <= p_.budget)) return fits;
      if (fits && a.seconds != b.seconds) return a.seconds < b.seconds;
      return a.peak != b.peak ? a.peak < b.peak : a.tag < b.tag;
    });
    std::vector<UniformPlan> out;
    for (const Least& least : open) {
      const StrategySpec& spec = case_.specs[static_cast<std::size_t>(least.tag)];
      std::array<bool, std::size(schemes) + 1> in{};
      in.back() = true;  // all of them
      for (std::size_t i = 0; i < std::size(schemes); ++i) in[i] = schemes[i].has(p_.stages(), spec);
      bool wanted = !comparable_;
      for (std::size_t i = 0; i < in.size(); ++i) wanted = wanted || (in[i] && may_improve(known_[i], least));
      if (!wanted) continue;
      for (UniformPlan& plan : uniform_plans(p_, least.tag, least.choices)) {
        for (std::size_t i = 0; i < in.size(); ++i)
          if (in[i]) note(known_[i], plan.cost);
        out.push_back(std::move(plan));
      }
    }
    std::stable_sort(out.begin(), out.end(), [](const UniformPlan& a, const UniformPlan& b) { return a.tag < b.tag; });
    return out;
  }

 private:
  // What a uniform plan takes at least.
  struct Least {
    int tag = 0;
    double seconds = 0;
    std::int64_t peak = 0;
    std::vector<int> choices;  // of every type
  };
  // The best known of some plans: seconds when one fits, else the least peak.
  struct Known {
    bool fits = false;
    double seconds = std::numeric_limits<double>::infinity();
    std::int64_t peak = std::numeric_limits<std::int64_t>::max();
  };

  int& count_of(std::vector<int>& counts, int type) const {
    counts.resize(p_.types.size());
    return counts[static_cast<std::size_t>(type)];
  }

  [[nodiscard]] bool may_improve(const Known& known, const Least& least) const {
    if (known.fits) return least.peak <= p_.budget && least.seconds <= known.seconds * (1 + 1e-9);
    return least.peak <= known.peak;
  }
  void note(Known& known, const Evaluation& cost) const {
    if (cost.peak <= p_.budget) {
      known.fits = true;
      known.seconds = std::min(known.seconds, cost.seconds);
    }
    known.peak = std::min(known.peak, cost.peak);
  }

  // Nothing where a layer cannot have the strategy.
  [[nodiscard]] std::optional<Least> least_of(int tag) const {
    Least out{tag, 0, 0, {}};
    for (const std::vector<int>& index : index_) {
      out.choices.push_back(index[static_cast<std::size_t>(tag)]);
      if (out.choices.back() < 0) return std::nullopt;
    }
    Slots slots = p_.least_slots(0);
    for (int stage = 1; stage < p_.stages(); ++stage) {
      const Slots own = p_.least_slots(stage);
      slots = {std::min(slots.flight, own.flight), std::min(slots.deferred, own.deferred)};
    }
    Terms all;
    double block_time = std::numeric_limits<double>::infinity();
    double kept = 0;
    std::int64_t block_bytes = std::numeric_limits<std::int64_t>::max();
    std::int64_t workspace = block_bytes;
    for (std::size_t type = 0; type < p_.types.size(); ++type) {
      const Choice& c = p_.types[type][static_cast<std::size_t>(out.choices[type])];
      const Terms terms = p_.objective.terms_of(c);
      all.time += layers_[type] * terms.time;
      all.fill += layers_[type] * terms.fill;
      all.per_iteration += layers_[type] * terms.per_iteration;
      kept += layers_[type] * static_cast<double>(slots.kept(c));
      if (movable_[type] == 0) continue;
      block_time = std::min(block_time, terms.time);
      block_bytes = std::min(block_bytes, slots.kept(c));
      workspace = std::min(workspace, workspace_of(c));
    }
    // Some stage has at least the mean of all, and some at least so many blocks.
    const int blocks = (p_.movable() + p_.stages() - 1) / p_.stages();
    out.seconds =
        p_.objective(all.fill, std::max(all.time / p_.stages(), blocks * block_time), all.per_iteration / p_.stages()) *
        (1 - 1e-12);
    out.peak = p_.fixed + workspace +
               std::max(static_cast<std::int64_t>(kept / p_.stages() * (1 - 1e-12)), blocks * block_bytes);
    return out;
  }

  const Case& case_;
  const Problem& p_;
  std::vector<std::vector<int>> index_;  // (types, tags) the choice with a tag, or -1
  std::vector<int> layers_;              // of every type
  std::vector<int> movable_;             // of them
  bool comparable_ = true;
  std::array<Known, std::size(schemes) + 1> known_{};
};

}  // namespace galvatron::search::detail
