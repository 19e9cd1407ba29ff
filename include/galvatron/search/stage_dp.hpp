// StageDp: the exact part of the search. The Pareto-best strategies for a range of layers on one stage, for every
// length of the range at once.
//
// A dynamic program over layers. Its state is the class of the last layer's choice (its interface to the next layer:
// layout, size of the activation, forward workspace); its value is a Pareto set of labels instead of memory cells.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/search/choices.hpp>
#include <galvatron/search/label.hpp>
#include <galvatron/search/layout_relaxation.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/range_bound.hpp>
#include <galvatron/search/relaxation.hpp>
#include <galvatron/search/stop.hpp>
#include <galvatron/search/tuning.hpp>

namespace galvatron::search {

/// What limits the work of a search.
struct Limits {
  std::size_t labels = 192;  ///< of one class at one layer; beyond them the search is no longer exact
  /// Labels to make: fewer are kept to stay near it, and well beyond it the search gives up.
  std::int64_t work = unlimited;
  Stop stop{};  ///< the search ends as if the work had been done

  [[nodiscard]] constexpr bool interrupted() const { return stop.requested(); }
  [[nodiscard]] constexpr bool limits_work() const { return work < unlimited; }
  /// Labels that a stage may make when so many are left and so many stages still to be done, joins included: more than
  /// its part, as most need less.
  [[nodiscard]] constexpr std::int64_t share_of_work(int stages) const {
    return limits_work() ? work / (stages + 1) * 2 : work;
  }
  /// Labels to keep, or partial pipelines, where so many are good for the work.
  [[nodiscard]] constexpr std::size_t kept(double good) const {
    return std::min(labels, static_cast<std::size_t>(std::max(good, 1.0 * tuning::few)));
  }
  /// With fewer labels a search is to find a good plan: bounds of its own are not worth their time.
  [[nodiscard]] constexpr bool seeks_proof() const { return labels >= 64; }
};

/// A stage that ends after some layer.
struct StageOption : Terms {
  std::int64_t peak = 0;
  std::int32_t label = 0;

  friend constexpr auto operator<=>(const StageOption&, const StageOption&) = default;
};

/// All good stages that begin at one layer.
template <class Executor>
class StageDp {
 public:
  /// @param problem     of the stage's devices
  /// @param relaxation  of the whole problem
  /// @param within    stages beyond it are of no use
  /// @param layouts   of these layers, that fit, with the share of the last surrogate: prunes more than range bounds
  constexpr StageDp(const Problem& problem, const Relaxation& relaxation, const StageRole& role, const Limits& limits,
                    const StageLimit& within, Executor* executor = nullptr, const LayoutRelaxation* layouts = nullptr)
      : problem_(problem),
        relaxation_(relaxation),
        role_(role),
        limits_(limits),
        within_(within),
        most_labels_(limits.labels),
        executor_(executor),
        layouts_(layouts) {
    classes_.resize(2 * problem_.types.size() * static_cast<std::size_t>(problem_.chunks));
    options_.resize(1);
    for (int k = 0; k < role_.longest; ++k) {
      const std::int64_t before = work_;
      extend(role_.begin + k);
      const bool ends = limits_.interrupted() || work_ - limits_.work > limits_.work / 4;
      if (steps_.back().empty() || ends) {
        truncated_ |= ends;
        steps_.pop_back();
        break;
      }
      limit_labels(k + 1, work_ - before);
      options_.emplace_back();
      if (k + 1 >= role_.shortest) close(role_.begin + k, options_.back());
    }
    before_ = now_ = {};
    arrivals_ = {};
    layouts_ = nullptr;
  }

  /// Whether labels were beam-truncated: the options are then good, but not proven the best.
  [[nodiscard]] constexpr bool truncated() const { return truncated_; }
  /// Labels made.
  [[nodiscard]] constexpr std::int64_t work() const { return work_; }
  /// The options with `length` layers, at most longest().
  [[nodiscard]] constexpr const std::vector<StageOption>& options(int length) const { return nth(options_, length); }
  [[nodiscard]] constexpr int longest() const { return static_cast<int>(options_.size()) - 1; }
  /// The choices of the layers of an option of `length` layers, in order.
  [[nodiscard]] constexpr std::vector<int> choices(int length, const StageOption& option) const {
    std::vector<int> out(static_cast<std::size_t>(length));
    std::int32_t at = option.label;
    for (int k = length; k-- > 0;) {
      const Link& link = nth(nth(steps_, k), at);
      nth(out, k) = link.choice;
      at = link.parent;
    }
    return out;
  }

 private:
  // How a label came about. The labels themselves are kept until the next layer has its own.
  struct Link {
    std::int32_t parent = -1;  // label of the layer before
    std::int32_t choice = 0;
  };
  // What a piece of work on one layer made; pieces run on any thread, so each counts for itself.
  struct Made {
    std::vector<Label> labels;
    Label least;  // no label is less in any number
    std::int64_t work = 0;
    bool truncated = false;

    constexpr void find_least() {
      if (labels.empty()) return;
      least = labels.front();
      for (const Label& label : labels) least.lower_to(label);
    }
  };
  // What a stage still has after some of its layers, at least.
  struct Ahead {
    double bytes = 0;                        // that the layers that are open keep
    Terms least;                             // of assignments, without what the layers before have
    std::array<PiecewiseLinear, 3> seconds;  // in each surrogate
  };
  // The labels after a layer.
  struct Layer {
    const std::vector<ChoiceClass>* classes = nullptr;
    std::vector<Made> made;           // of every class
    std::vector<std::size_t> begins;  // (classes + 1) of the labels of each class, counted through
    Ahead ahead;
  };

  // Fewer labels at the next layers where the last one took more than its share of the work that is left.
  constexpr void limit_labels(int layers, std::int64_t last) {
    if (!limits_.limits_work() || layers == role_.longest || last == 0) return;
    std::size_t most = 0;
    for (std::size_t c = 1; c < now_.begins.size(); ++c) most = std::max(most, now_.begins[c] - now_.begins[c - 1]);
    // Twice its part: labels become fewer again behind the layers that have the most.
    const double share = 2 * static_cast<double>(limits_.work - work_) / (role_.longest - layers + 1);
    most_labels_ = limits_.kept(static_cast<double>(most) * share / static_cast<double>(last));
  }

  [[nodiscard]] constexpr bool is_first() const { return role_.stage == 0; }
  [[nodiscard]] constexpr bool is_last() const { return role_.stage + 1 == problem_.stages(); }
  [[nodiscard]] constexpr Slots slots_of(int layer) const { return problem_.slots_at(role_.stage, layer); }

  constexpr const std::vector<ChoiceClass>& classes_of(int layer) {
    const bool tagged = role_.tag >= 0 && (layer == 0 || layer + 1 == problem_.count());
    const int kind = nth(problem_.layers, layer) * problem_.chunks + problem_.chunk_of(layer);
    std::vector<ChoiceClass>& out = nth(classes_, 2 * kind + (tagged ? 1 : 0));
    if (out.empty())
      out = choice_classes(problem_.type_of(layer), problem_.objective, slots_of(layer), tagged ? role_.tag : -1,
                           role_.most_workspace);
    return out;
  }

  [[nodiscard]] constexpr Ahead ahead_of(int begin) const {
    Ahead out;
    const int end = std::max(begin, role_.begin + role_.shortest);
    out.bytes = relaxation_.ranges(0, role_.stage).least_bytes(role_.stage, begin, end);
    // With layouts the last surrogate's bound comes from them.
    for (std::size_t k = 0; k < relaxation_.size() - (layouts_ != nullptr ? 1 : 0); ++k)
      out.seconds[k] = relaxation_.ranges(k, role_.stage).bound(role_.stage, begin, end);
    const std::vector<Terms>& before = relaxation_.sums().before;
    out.least = {within_.slowest.front(), within_.fills.front(),
                 nth(before, end).per_iteration - nth(before, begin).per_iteration,
                 relaxation_.link_beside(role_.begin, begin)};
    return out;
  }
  // Where questions to the bounds of an Ahead begin.
  using Places = std::array<std::size_t, 3>;

  // No completion of this label is below the best plan known.
  // @param open  the open layers in the last surrogate: from the layout at hand where layouts are known
  [[nodiscard]] constexpr bool is_pruned(const Label& label, const Ahead& ahead, const PiecewiseLinear& open,
                                         Places& places) const {
    const auto room = static_cast<double>(problem_.budget - label.top);
    if (ahead.bytes > room) return true;
    Terms least = ahead.least;
    least.per_iteration += label.per_iteration;
    least.link += label.link;
    least.kinds |= label.kinds;
    for (std::size_t k = relaxation_.size(); k-- > 0;) {  // the last one sees most
      const PiecewiseLinear& rest = k + 1 == relaxation_.size() ? open : ahead.seconds[k];
      const double own = label.time_with(relaxation_.share(k)) + rest.seconds(room, places[k]);
      if (own > within_.most[k] || relaxation_.seconds(k, least, problem_.stages(), within_.fills[k],
                                                       std::max(own, within_.slowest[k])) >= within_.seconds)
        return true;
    }
    return false;
  }

  // Labels that reach `layer` in a layout, before its choice is made.
  constexpr void arrive(int layer, const ChoiceClass& to, Made& out) const {
    out.labels.clear();
    if (limits_.interrupted()) return;
    const std::int64_t pass_through = slots_of(layer).flight * to.pass_through;
    if (layer == role_.begin) {
      Label label;
      const double seconds = is_first() ? 0 : problem_.receive_input(role_.stage, layer, to.layout);
      label.add({seconds, seconds, 0}, problem_.fixed + pass_through + (is_first() ? 0 : problem_.buffers * to.input),
                role_.least_workspace);
      out.labels.push_back(label);
      out.least = label;
      return;
    }
    PiecewiseLinear open = before_.ahead.seconds[relaxation_.size() - 1];
    if (layouts_ != nullptr) open = layouts_->within(layer, to.layout);
    const bool new_chunk = problem_.chunk_of(layer) != problem_.chunk_of(layer - 1);  // other stages between
    int sources = 0;
    Places places{};
    for (std::size_t c = 0; c < before_.classes->size(); ++c) {
      const Made& made = before_.made[c];
      if (made.labels.empty()) continue;
      const ChoiceClass& from = (*before_.classes)[c];
      const bool same = from.layout == to.layout || new_chunk;
      double seconds = same ? 0 : problem_.relayout_seconds(layer, from.layout, to.layout);
      if (new_chunk)
        seconds = problem_.receive_gradient(role_.stage, layer - 1, from.layout) +
                  problem_.receive_input(role_.stage, layer, to.layout);
      const std::int64_t kept = new_chunk ? problem_.buffers * (from.activation + to.input) + pass_through
                                : same    ? 0
                                          : pass_through;
      const std::int64_t space = same ? 0 : from.activation + std::max(from.forward_workspace, to.input);
      const bool later = !same || new_chunk || layouts_ != nullptr;  // what was good before may be pruned
      const Terms cost{seconds, seconds, 0};
      const Label least = made.least.after(cost, kept, 0);
      if (later && is_pruned(least, before_.ahead, open, places)) continue;
      ++sources;
      auto parent = static_cast<std::int32_t>(before_.begins[c]);
      for (const Label& before : made.labels) {
        Label label = before.after(cost, kept, space);
        label.parent = parent++;
        if (!later || !is_pruned(label, before_.ahead, open, places)) out.labels.push_back(label);
      }
      out.work += static_cast<std::int64_t>(made.labels.size());
    }
    if (sources > 1)
      out.truncated |= keep_best(out.labels, most_labels_, problem_.objective.share_of_iteration(), out.work);
    out.find_least();
  }

  // Labels after `layer`, with a choice of the class `to`, from those that arrive.
  constexpr void choose(int layer, const ChoiceClass& to, const Made& arrivals, Made& out) const {
    out.labels.clear();
    if (arrivals.labels.empty() || limits_.interrupted()) return;
    PiecewiseLinear open = now_.ahead.seconds[relaxation_.size() - 1];
    if (layouts_ != nullptr) open = layouts_->after(layer + 1, to.layout);
    Places places{};
    for (const std::int32_t j : to.choices) {
      const Choice& c = problem_.choice(layer, j);
      const Terms terms = problem_.objective.terms_of(c);
      const std::int64_t kept = slots_of(layer).kept(c);
      const std::int64_t space = workspace_of(c);
      if (is_pruned(arrivals.least.after(terms, kept, space), now_.ahead, open, places)) continue;
      out.work += static_cast<std::int64_t>(arrivals.labels.size());
      for (const Label& before : arrivals.labels) {
        Label label = before.after(terms, kept, space);
        label.choice = j;
        if (!is_pruned(label, now_.ahead, open, places)) out.labels.push_back(label);
      }
    }
    out.truncated |= keep_best(out.labels, most_labels_, problem_.objective.share_of_iteration(), out.work);
    out.find_least();
  }

  constexpr void extend(int layer) {
    std::swap(before_, now_);
    now_.classes = &classes_of(layer);
    now_.ahead = ahead_of(layer + 1);
    const std::vector<ChoiceClass>& classes = *now_.classes;
    std::vector<std::size_t> group;  // of every class: the first of those that begin alike and get the same labels
    for (std::size_t c = 0; c < classes.size(); ++c)
      group.push_back(c > 0 && classes[c].begins_like(classes[c - 1]) ? group.back() : c);
    if (arrivals_.size() < classes.size()) arrivals_.resize(classes.size());
    if (now_.made.size() < classes.size()) now_.made.resize(classes.size());
    const std::size_t labels = layer == role_.begin ? 1 : before_.begins.back();
    share(executor_, labels * classes.size(), classes.size(), [&](std::size_t c) {
      if (group[c] == c) arrive(layer, classes[c], arrivals_[c]);
    });
    std::vector<std::pair<std::size_t, std::size_t>> pieces;  // labels to look at, class
    std::size_t chosen = 0;
    for (std::size_t c = 0; c < classes.size(); ++c) {
      pieces.emplace_back(arrivals_[group[c]].labels.size() * classes[c].choices.size(), c);
      chosen += pieces.back().first;
    }
    std::sort(pieces.rbegin(), pieces.rend());  // a large one at the end would be waited for
    share(executor_, chosen, pieces.size(), [&](std::size_t i) {
      const std::size_t c = pieces[i].second;
      choose(layer, classes[c], arrivals_[group[c]], now_.made[c]);
    });

    now_.begins.assign(1, 0);
    for (std::size_t c = 0; c < classes.size(); ++c)
      now_.begins.push_back(now_.begins.back() + now_.made[c].labels.size());
    std::vector<Link>& links = steps_.emplace_back();
    links.reserve(now_.begins.back());
    for (std::size_t c = 0; c < classes.size(); ++c)
      for (const Label& label : now_.made[c].labels) links.push_back({label.parent, label.choice});
    for (std::vector<Made>* all : {&arrivals_, &now_.made})
      for (Made& one : *all) {
        work_ += std::exchange(one.work, 0);
        truncated_ |= std::exchange(one.truncated, false);
      }
  }

  // The options of a stage that ends with `layer`.
  constexpr void close(int layer, std::vector<StageOption>& out) {
    Places places{};
    PiecewiseLinear nothing(0);
    nothing.add(0, 0);
    for (std::size_t c = 0; c < now_.classes->size(); ++c) {
      const ChoiceClass& k = (*now_.classes)[c];
      const double receive = is_last() ? 0 : problem_.receive_gradient(role_.stage, layer, k.layout);
      auto number = static_cast<std::int32_t>(now_.begins[c]);
      for (Label label : now_.made[c].labels) {
        if (!is_last()) label.add({receive, receive, 0}, problem_.buffers * k.activation, 0);
        if (!is_pruned(label, now_.ahead, nothing, places)) out.push_back({label, label.top, number});
        ++number;
      }
    }
    keep_fastest(out);
  }

  const Problem& problem_;
  const Relaxation& relaxation_;
  StageRole role_;
  Limits limits_;
  StageLimit within_;
  std::size_t most_labels_;  // of a class, at the present layer
  bool truncated_ = false;
  std::int64_t work_ = 0;
  std::vector<std::vector<ChoiceClass>> classes_;  // (types, chunks, without and with the tag); none: not made yet
  std::vector<std::vector<Link>> steps_;           // of every layer, of all classes, one after the other
  std::vector<std::vector<StageOption>> options_;
  Layer before_;
  Layer now_;
  std::vector<Made> arrivals_;  // of every first class of those that begin alike
  Executor* executor_;
  const LayoutRelaxation* layouts_;  // while the table is built
};

}  // namespace galvatron::search
