// The fastest assignment of a problem with one stage, exactly, by code that also runs in the compiler.
//
// Seconds add up over layers, bytes too, but for the largest workspace. Labels (seconds, bytes kept, workspace) go from
// layer to layer; one that another of the same choice beats in all three is dropped. A multiplier on bytes bounds from
// below what the layers to come still take, and drops what cannot beat the best assignment known.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <galvatron/search/problem.hpp>

namespace galvatron::search {

namespace detail {

class SingleStage {
 public:
  explicit constexpr SingleStage(const Problem& problem) : p_(problem) {
    for (std::size_t type = 0; type < p_.types.size(); ++type) useful_.push_back(useful_choices(type));
    // No assignment needs less workspace than the layer whose least is largest.
    std::int64_t workspace = 0;
    for (int layer = 0; layer < p_.count(); ++layer) {
      std::int64_t least = std::numeric_limits<std::int64_t>::max();
      for (const Figures& f : useful(layer)) least = std::min(least, f.workspace);
      workspace = std::max(workspace, least);
    }
    room_ = p_.budget - p_.fixed - workspace;
  }

  [[nodiscard]] constexpr std::optional<Assignment> fastest() {
    multiplier_ = best_multiplier();
    offer_pairs();
    if (p_.tied)
      for (const Figures& first : useful(0)) label_layers(first.tag);
    else
      label_layers(-1);
    return best_;
  }

 private:
  // A choice of an iteration.
  struct Figures {
    double seconds;
    std::int64_t kept;
    std::int64_t workspace;
    std::int64_t forward_workspace;
    std::int64_t input;
    std::int64_t activation;
    std::int64_t pass_through;  // by all micro-batches in flight, where a layout begins
    int layout;
    int index;
    int tag;
  };
  struct Label {
    double seconds;
    std::int64_t kept;
    std::int64_t workspace;
    const Figures* choice;
    int before;  // its label of the layer before
  };

  [[nodiscard]] constexpr int type_of(int layer) const { return p_.layers[static_cast<std::size_t>(layer)]; }
  [[nodiscard]] constexpr const std::vector<Figures>& useful(int layer) const {
    return useful_[static_cast<std::size_t>(type_of(layer))];
  }

  // The choices that no other one beats whatever comes before and after. Tied layers keep all.
  [[nodiscard]] constexpr std::vector<Figures> useful_choices(std::size_t type) const {
    std::vector<Figures> all;
    for (const Choice& c : p_.types[type])
      all.push_back({p_.objective.microbatches * c.seconds() + c.once(), p_.slots_of(0, 0).kept(c), workspace_of(c),
                     c.forward_workspace, c.input, c.activation, p_.slots_of(0, 0).flight * c.pass_through, c.layout,
                     static_cast<int>(all.size()), c.tag});
    if (p_.tied && (type_of(0) == static_cast<int>(type) || type_of(p_.count() - 1) == static_cast<int>(type)))
      return all;
    const auto beats = [](const Figures& a, const Figures& b) {
      return a.layout == b.layout && a.seconds <= b.seconds && a.kept <= b.kept && a.workspace <= b.workspace &&
             a.forward_workspace <= b.forward_workspace && a.input <= b.input && a.activation <= b.activation &&
             a.pass_through <= b.pass_through;
    };
    std::vector<Figures> out;
    for (const Figures& f : all) {
      bool beaten = false;
      for (const Figures& other : all)
        beaten = beaten || (other.index != f.index && beats(other, f) && (other.index < f.index || !beats(f, other)));
      if (!beaten) out.push_back(f);
    }
    return out;
  }

  // The least seconds + multiplier x bytes of a layer.
  [[nodiscard]] constexpr const Figures& cheapest(int layer, double multiplier) const {
    const auto price = [&](const Figures& f) { return f.seconds + multiplier * static_cast<double>(f.kept); };
    const Figures* best = &useful(layer).front();
    for (const Figures& f : useful(layer))
      if (price(f) < price(*best)) best = &f;
    return *best;
  }
  [[nodiscard]] constexpr double price(int layer, double multiplier) const {
    const Figures& f = cheapest(layer, multiplier);
    return f.seconds + multiplier * static_cast<double>(f.kept);
  }

  // Seconds per byte: of the exchanges between two choices of a layer, the one with the highest lower bound.
  [[nodiscard]] constexpr double best_multiplier() const {
    double best = 0;
    double highest = -std::numeric_limits<double>::max();
    const auto consider = [&](double multiplier) {
      double bound = -multiplier * static_cast<double>(room_);
      double last = 0;
      for (int layer = 0; layer < p_.count(); ++layer) {
        if (layer == 0 || type_of(layer) != type_of(layer - 1)) last = price(layer, multiplier);
        bound += last;
      }
      if (bound > highest) best = multiplier, highest = bound;
    };
    consider(0);
    for (const Figures& a : useful(p_.count() / 2))
      for (const Figures& b : useful(p_.count() / 2))
        if (a.kept > b.kept && a.seconds < b.seconds)
          consider((b.seconds - a.seconds) / static_cast<double>(a.kept - b.kept));
    return best;
  }

  constexpr void offer(const Assignment& plan) {
    const int last = p_.count() - 1;
    if (p_.tied && p_.choice(0, plan.choice.front()).tag != p_.choice(last, plan.choice.back()).tag) return;
    const Evaluation cost = evaluate(p_, plan);
    if (cost.peak > p_.budget || (best_ && cost.seconds >= limit_)) return;
    best_ = plan;
    limit_ = cost.seconds;
  }

  // Assignments that are good most of the time: two choices for the layers between the ends, in all places.
  constexpr void offer_pairs() {
    const int n = p_.count();
    const int begin = p_.leading;
    Assignment plan{{0, n}, std::vector<int>(static_cast<std::size_t>(n), 0)};
    for (int layer = 0; layer < n; ++layer)
      plan.choice[static_cast<std::size_t>(layer)] = cheapest(layer, multiplier_).index;
    if (p_.tied)
      for (const Figures& f : useful(n - 1))
        if (f.tag == p_.choice(0, plan.choice.front()).tag) plan.choice.back() = f.index;
    offer(plan);
    const int middle = cheapest(begin, multiplier_).index;
    for (const Figures& other : useful(begin))
      for (int place = begin; place <= n - p_.trailing; ++place) {
        for (int layer = begin; layer < n - p_.trailing; ++layer)
          if (type_of(layer) == type_of(begin))
            plan.choice[static_cast<std::size_t>(layer)] = layer < place ? middle : other.index;
        offer(plan);
      }
  }

  // Equal neighbours of one layout may trade places: of two orders the one is enough that has the smaller forward
  // workspace last, where it meets what a change of layout takes. A tied layer has its place.
  [[nodiscard]] constexpr bool is_reordered(int layer, const Figures& before, const Figures& now) const {
    if (before.layout != now.layout || type_of(layer) != type_of(layer - 1)) return false;
    if (p_.tied && (layer == 1 || layer == p_.count() - 1)) return false;
    return now.forward_workspace > before.forward_workspace ||
           (now.forward_workspace == before.forward_workspace && now.index < before.index);
  }

  // Labels of all layers; with `tag` the first layer, and by the tie the last one, has the choice of that tag.
  constexpr void label_layers(int tag) {
    const int n = p_.count();
    std::vector<double> ahead(static_cast<std::size_t>(n) + 1, 0.0);       // prices of the layers to come
    std::vector<std::int64_t> needed(static_cast<std::size_t>(n) + 1, 0);  // bytes that they keep at least
    for (int layer = n - 1; layer >= 0; --layer) {
      const auto at = static_cast<std::size_t>(layer);
      std::int64_t least = std::numeric_limits<std::int64_t>::max();
      for (const Figures& f : useful(layer)) least = std::min(least, f.kept);
      needed[at] = needed[at + 1] + least;
      ahead[at] = ahead[at + 1] + price(layer, multiplier_);
    }
    std::vector<std::vector<Label>> labels(static_cast<std::size_t>(n));
    for (int layer = 0; layer < n; ++layer) {
      const auto at = static_cast<std::size_t>(layer);
      std::vector<Label>& out = labels[at];
      for (const Figures& f : useful(layer)) {
        if (tag >= 0 && (layer == 0 || layer == n - 1) && f.tag != tag) continue;
        // What a label may have before this layer to stay within the budget, and to beat what is known.
        const std::int64_t most = p_.budget - needed[at + 1] - f.kept;
        const double slowest =
            limit_ - ahead[at + 1] - f.seconds - multiplier_ * static_cast<double>(f.kept - p_.fixed - room_);
        const std::size_t mine = out.size();
        if (layer == 0) {
          const std::int64_t kept = p_.fixed + f.pass_through;
          if (kept + f.workspace <= most && !(multiplier_ * static_cast<double>(kept) >= slowest))
            out.push_back({f.seconds, kept + f.kept, f.workspace, &f, -1});
          continue;
        }
        const std::vector<Label>& previous = labels[at - 1];
        for (std::size_t i = 0; i < previous.size(); ++i) {
          const Label& before = previous[i];
          if (before.kept + f.workspace > most ||
              before.seconds + multiplier_ * static_cast<double>(before.kept) >= slowest ||
              is_reordered(layer, *before.choice, f))
            continue;
          Label label{before.seconds + f.seconds, before.kept + f.kept, std::max(before.workspace, f.workspace), &f,
                      static_cast<int>(i)};
          const Figures& last = *before.choice;
          if (last.layout != f.layout) {
            label.seconds += p_.objective.microbatches * p_.relayout_seconds(layer, last.layout, f.layout);
            label.kept += f.pass_through;
            label.workspace =
                std::max({label.workspace, last.forward_workspace + last.activation, last.activation + f.input});
          }
          if (label.kept - f.kept + label.workspace <= most) keep(label, mine, out);
        }
      }
    }
    for (const Label& last : labels.back()) {
      if (last.seconds >= limit_) continue;
      Assignment plan{{0, n}, std::vector<int>(static_cast<std::size_t>(n), 0)};
      const Label* label = &last;
      for (int layer = n - 1; layer >= 0; --layer) {
        plan.choice[static_cast<std::size_t>(layer)] = label->choice->index;
        if (layer > 0) label = &labels[static_cast<std::size_t>(layer) - 1][static_cast<std::size_t>(label->before)];
      }
      offer(plan);
    }
  }

  // Keeps a label among those of its choice, which begin at `mine`, unless one of them is no worse.
  static constexpr void keep(const Label& label, std::size_t mine, std::vector<Label>& out) {
    const auto no_worse = [](const Label& a, const Label& b) {
      return a.seconds <= b.seconds && a.kept <= b.kept && a.workspace <= b.workspace;
    };
    for (std::size_t i = mine; i < out.size(); ++i)
      if (no_worse(out[i], label)) return;
    std::size_t to = mine;
    for (std::size_t i = mine; i < out.size(); ++i)
      if (!no_worse(label, out[i])) out[to++] = out[i];
    out.resize(to, label);
    out.push_back(label);
  }

  const Problem& p_;
  std::vector<std::vector<Figures>> useful_;  // of every type
  std::int64_t room_ = 0;                     // bytes that layers may keep
  double multiplier_ = 0;                     // seconds per byte
  double limit_ = std::numeric_limits<double>::max();
  std::optional<Assignment> best_;
};

}  // namespace detail

/// The fastest assignment of a problem with one stage within its budget; none when nothing fits. The same figures as
/// Solver finds, in a constant expression too; the solver is faster where there are many layers.
constexpr std::optional<Assignment> fastest_single_stage(const Problem& problem) {
  return detail::SingleStage(problem).fastest();
}

}  // namespace galvatron::search
