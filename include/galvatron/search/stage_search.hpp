// One stage: the Pareto-best strategies for a run of layers, for every length of the run at once.
//
// A dynamic program over layers. Its state is the class of the last layer's choice (what the next layer can feel of it:
// layout, size of the activation, forward workspace); its value is a Pareto set of labels instead of memory cells.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/search/bounds.hpp>
#include <galvatron/search/cuts.hpp>
#include <galvatron/search/label.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/routes.hpp>
#include <galvatron/search/segments.hpp>
#include <galvatron/search/stage_role.hpp>
#include <galvatron/search/type_index.hpp>
#include <galvatron/search/weighings.hpp>

namespace galvatron::search {

/// All good stages that begin at one layer.
template <class Executor>
class StageTable {
 public:
  /// @param within    stages beyond it are of no use
  /// @param executor  shares the work on a layer; the table is the same without one
  /// @param routes    of these layers, that fit, by the last weighing: they prune more than segments
  StageTable(const Problem& problem, const Bounds& bounds, const Weighings& weighings, const StageRole& role,
             const Limits& limits, std::int64_t budget, const StageLimit& within, Executor* executor = nullptr,
             const Routes* routes = nullptr)
      : problem_(problem),
        bounds_(bounds),
        weighings_(weighings),
        role_(role),
        limits_(limits),
        budget_(budget),
        within_(within),
        executor_(executor),
        routes_(routes) {
    most_labels_ = limits.labels;
    once_weight_ = bounds.once_share();
    merge_ = problem.stages() == 1 && !limits.memory_only;  // the objective is one sum then, and time alone carries it
    build();
  }

  /// Whether labels were thinned: the options are then good, but not proven the best.
  [[nodiscard]] bool thinned() const { return thinned_; }
  /// Labels made.
  [[nodiscard]] std::int64_t work() const { return work_; }
  /// The options with `length` layers.
  [[nodiscard]] const std::vector<StageOption>& options(int length) const {
    static const std::vector<StageOption> none;
    return length < static_cast<int>(options_.size()) ? options_[static_cast<std::size_t>(length)] : none;
  }
  [[nodiscard]] int longest() const { return static_cast<int>(options_.size()) - 1; }
  /// The choices of the layers of an option of `length` layers, in order.
  [[nodiscard]] std::vector<int> choices(int length, const StageOption& option) const {
    std::vector<int> out(static_cast<std::size_t>(length));
    std::int32_t at = option.label;
    for (int k = length; k-- > 0;) {
      const typename Step::Link& link = steps_[static_cast<std::size_t>(k)].links[static_cast<std::size_t>(at)];
      out[static_cast<std::size_t>(k)] = link.choice;
      at = link.parent;
    }
    return out;
  }

 private:
  static constexpr double least_labels = 8;  // of a class, whatever the limit of work

  // How the labels of a layer came about. The labels themselves are kept until the next layer has its own.
  struct Step {
    struct Link {
      std::int32_t parent = -1;  // label of the layer before
      std::int32_t choice = 0;
    };
    std::vector<Link> links;  // of all classes, one after the other
  };
  // What a piece of work on one layer made; pieces run on any thread, so each counts for itself.
  struct Made {
    std::vector<Label> labels;
    Label least;  // no label is less in any figure
    std::int64_t work = 0;
    bool thinned = false;

    void find_least() {
      if (labels.empty()) return;
      least = labels.front();
      for (const Label& label : labels) {
        least.ramp = std::min(least.ramp, label.ramp);
        least.once = std::min(least.once, label.once);
        least.kept = std::min(least.kept, label.kept);
        least.top = std::min(least.top, label.top);
      }
    }
  };
  // What a stage still has after some of its layers, at least.
  struct Ahead {
    int begin = 0;           // first layer that is open
    std::int64_t bytes = 0;  // that the open layers keep
    double once = 0;
    std::array<Run, Weighings::most> seconds;  // weighed
  };
  // The labels after a layer.
  struct Layer {
    const TypeIndex* index = nullptr;
    std::vector<Made> made;           // of every class
    std::vector<std::size_t> begins;  // (classes + 1) of the labels of each class, counted through
    Ahead ahead;

    [[nodiscard]] const Run& last_run(const Weighings& weighings) const { return ahead.seconds[weighings.size() - 1]; }
  };

  void build() {
    indices_.resize(problem_.types.size() * static_cast<std::size_t>(problem_.chunks));
    prepare_suffix();
    options_.resize(1);
    for (int k = 0; k < role_.longest; ++k) {
      const std::int64_t before = work_;
      extend(role_.begin + k);
      const bool ends = limits_.interrupted() || work_ - limits_.work > limits_.work / 4;
      if (steps_.back().links.empty() || ends) {
        thinned_ |= ends;
        steps_.pop_back();
        break;
      }
      limit_labels(k + 1, work_ - before);
      options_.emplace_back();
      if (k + 1 >= role_.shortest) close(role_.begin + k, options_.back());
    }
    before_ = now_ = {};
    arrivals_ = {};
    routes_ = nullptr;
  }

  // Fewer labels at the next layers where the last one took more than its share of the work that is left.
  void limit_labels(int layers, std::int64_t last) {
    if (limits_.work == std::numeric_limits<std::int64_t>::max() || layers == role_.longest || last == 0) return;
    std::size_t most = 0;
    for (std::size_t c = 1; c < now_.begins.size(); ++c) most = std::max(most, now_.begins[c] - now_.begins[c - 1]);
    const double share = static_cast<double>(limits_.work - work_) / (role_.longest - layers);
    const double good = static_cast<double>(most) * share / static_cast<double>(last);
    most_labels_ = std::min(limits_.labels, static_cast<std::size_t>(std::max(good, least_labels)));
  }

  [[nodiscard]] Slots slots_of(int layer) const { return problem_.slots_of(role_.stage, problem_.chunk_of(layer)); }

  // Bytes that the layers after each one keep at least, those layers that the stage has in any case.
  void prepare_suffix() {
    suffix_.assign(static_cast<std::size_t>(role_.longest) + 1, 0);
    std::vector<std::int64_t> least;
    for (const LayerType& type : problem_.types) {
      std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
      for (const Choice& c : type) bytes = std::min(bytes, problem_.least_slots(role_.stage).kept(c));
      least.push_back(bytes);
    }
    for (int k = role_.shortest; k-- > 0;)
      suffix_[static_cast<std::size_t>(k)] =
          suffix_[static_cast<std::size_t>(k) + 1] +
          least[static_cast<std::size_t>(problem_.layers[static_cast<std::size_t>(role_.begin + k)])];
  }

  const TypeIndex& index_of(int layer) {
    const auto type = static_cast<std::size_t>(problem_.layers[static_cast<std::size_t>(layer)]);
    const bool tagged = role_.tag >= 0 && (layer == 0 || layer + 1 == problem_.count());
    const auto make = [&](auto& in, int tag) -> const TypeIndex& {
      return in.emplace(problem_.types[type], problem_.objective, slots_of(layer), tag, role_.most_workspace,
                        limits_.memory_only);
    };
    if (tagged) return make(tagged_[layer == 0 ? 0 : 1], role_.tag);
    const auto chunk = static_cast<std::size_t>(problem_.chunk_of(layer));
    auto& index = indices_[type * static_cast<std::size_t>(problem_.chunks) + chunk];
    return index ? *index : make(index, -1);
  }

  [[nodiscard]] Ahead ahead_of(int begin) const {
    Ahead out;
    out.begin = begin;
    out.bytes = suffix_[static_cast<std::size_t>(begin - role_.begin)];
    if (limits_.memory_only) return out;
    const int end = std::max(begin, role_.begin + role_.shortest);
    for (std::size_t k = 0; k < weighings_.size(); ++k)
      out.seconds[k] = weighings_.segments(k).run(role_.stage, begin, end);
    const auto& onces = bounds_.onces();
    if (!merge_) out.once = onces[static_cast<std::size_t>(end)] - onces[static_cast<std::size_t>(begin)];
    return out;
  }
  // Where questions to the runs of an Ahead begin.
  using Places = std::array<std::size_t, Weighings::most>;

  // No completion of this label is below the best plan known.
  // @param open  the open layers by the last weighing: from the layout at hand where there are routes
  [[nodiscard]] bool hopeless(const Label& label, const Ahead& ahead, const Run& open, Places& places) const {
    if (label.top + ahead.bytes > budget_) return true;
    if (limits_.memory_only) return false;
    const auto room = static_cast<double>(budget_ - label.top);
    const auto weighed = [&](std::size_t k) {
      const Run& run = k + 1 == weighings_.size() ? open : ahead.seconds[k];
      return label.time + weighings_.share(k) * label.once + run.seconds(room, places[k]);
    };
    if (merge_) return bounds_.single_stage(label.time + open.seconds(room, places.front())) >= within_.seconds;
    const double once = label.once + ahead.once;
    for (std::size_t k = weighings_.size(); k-- > 0;) {  // the last one sees most
      const double own = weighed(k);
      if (own > within_.most[k] ||
          weighings_.seconds_with(k, once, within_.ramps.front(), within_.ramps[k], problem_.stages(),
                                  within_.slowest.front(), std::max(own, within_.slowest[k])) >= within_.seconds)
        return true;
    }
    return bounds_.with_stage(role_.stage, role_.begin, ahead.begin, label) >= within_.seconds;
  }

  // Labels that reach `layer` in a layout, before its choice is made.
  void arrive(int layer, const TypeIndex::Class& to, Made& out) const {
    const Run* open = &before_.last_run(weighings_);
    std::optional<Run> route;
    if (routes_ != nullptr) open = &route.emplace(routes_->within(layer, to.layout));
    out.labels.clear();
    const std::int64_t pass_through = slots_of(layer).flight * to.pass_through;
    if (limits_.interrupted()) return;
    if (layer == role_.begin) {
      Label label;
      label.kept = problem_.fixed + pass_through + (role_.first ? 0 : to.input);
      label.top = label.kept + role_.least_workspace;
      if (!role_.first && !limits_.memory_only) label.time = label.ramp = problem_.receive_input(layer, to.layout);
      out.labels.push_back(label);
      out.least = label;
      return;
    }
    const bool new_chunk = problem_.chunk_of(layer) != problem_.chunk_of(layer - 1);  // other stages between
    int sources = 0;
    Places places{};
    for (std::size_t c = 0; c < before_.index->classes.size(); ++c) {
      const Made& made = before_.made[c];
      if (made.labels.empty()) continue;
      const TypeIndex::Class& from = before_.index->classes[c];
      const bool same = from.layout == to.layout || new_chunk;
      double seconds = same ? 0 : problem_.relayout_seconds(layer, from.layout, to.layout);
      if (new_chunk)
        seconds = problem_.receive_gradient(layer - 1, from.layout) + problem_.receive_input(layer, to.layout);
      if (limits_.memory_only) seconds = 0;
      const std::int64_t kept = new_chunk ? from.activation + to.input + pass_through : same ? 0 : pass_through;
      const std::int64_t space = same ? 0 : from.activation + std::max(from.forward_workspace, to.input);
      const bool later = !same || new_chunk || routes_ != nullptr;  // what was good before may be hopeless
      Label least = made.least;
      least.add(seconds, seconds, 0, kept, 0);
      if (later && hopeless(least, before_.ahead, *open, places)) continue;
      ++sources;
      auto parent = static_cast<std::int32_t>(before_.begins[c]);
      for (Label label : made.labels) {
        label.parent = parent++;
        label.add(seconds, seconds, 0, kept, space);
        if (!later || !hopeless(label, before_.ahead, *open, places)) out.labels.push_back(label);
      }
      out.work += static_cast<std::int64_t>(made.labels.size());
    }
    if (sources > 1) out.thinned |= keep_best(out.labels, most_labels_, once_weight_, &out.work);
    out.find_least();
  }

  // Labels after `layer`, with a choice of the class `to`, from those that arrive.
  void choose(int layer, const TypeIndex::Class& to, const Made& arrivals, Made& out) const {
    const LayerType& type = problem_.types[static_cast<std::size_t>(problem_.layers[static_cast<std::size_t>(layer)])];
    const Slots slots = slots_of(layer);
    out.labels.clear();
    if (arrivals.labels.empty() || limits_.interrupted()) return;
    const Run* open = &now_.last_run(weighings_);
    std::optional<Run> route;
    if (routes_ != nullptr) open = &route.emplace(routes_->after(layer + 1, to.layout));
    Places places{};
    for (const std::int32_t j : to.choices) {
      const Choice& c = type[static_cast<std::size_t>(j)];
      const double time = limits_.memory_only ? 0 : c.seconds() + (merge_ ? once_weight_ * c.once() : 0);
      const double ramp = limits_.memory_only ? 0 : merge_ ? time : problem_.objective.ramp_of(c);
      const double once = limits_.memory_only || merge_ ? 0 : c.once();
      const std::int64_t kept = slots.kept(c);
      const std::int64_t space = workspace_of(c);
      Label least = arrivals.least;
      least.add(time, ramp, once, kept, space);
      if (hopeless(least, now_.ahead, *open, places)) continue;
      out.work += static_cast<std::int64_t>(arrivals.labels.size());
      for (Label label : arrivals.labels) {
        label.add(time, ramp, once, kept, space);
        if (hopeless(label, now_.ahead, *open, places)) continue;
        label.choice = j;
        out.labels.push_back(label);
      }
    }
    out.thinned |= keep_best(out.labels, most_labels_, once_weight_, &out.work);
    out.find_least();
  }

  void extend(int layer) {
    std::swap(before_, now_);
    now_.index = &index_of(layer);
    now_.ahead = ahead_of(layer + 1);
    const auto& classes = now_.index->classes;
    std::vector<std::size_t> group;   // of every class: classes of one get the same labels
    std::vector<std::size_t> groups;  // where they begin
    for (std::size_t c = 0; c < classes.size(); ++c) {
      if (c == 0 || !classes[c].begins_like(classes[c - 1])) groups.push_back(c);
      group.push_back(groups.size() - 1);
    }
    if (arrivals_.size() < groups.size()) arrivals_.resize(groups.size());
    if (now_.made.size() < classes.size()) now_.made.resize(classes.size());
    const std::size_t labels = layer == role_.begin ? 1 : before_.begins.back();
    share(executor_, labels * groups.size(), groups.size(),
          [&](std::size_t g) { arrive(layer, classes[groups[g]], arrivals_[g]); });
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

    Step step;
    now_.begins.assign(1, 0);
    for (std::size_t c = 0; c < classes.size(); ++c)
      now_.begins.push_back(now_.begins.back() + now_.made[c].labels.size());
    step.links.reserve(now_.begins.back());
    for (std::size_t c = 0; c < classes.size(); ++c)
      for (const Label& label : now_.made[c].labels) step.links.push_back({label.parent, label.choice});
    steps_.push_back(std::move(step));
    for (std::vector<Made>* all : {&arrivals_, &now_.made})
      for (Made& one : *all) {
        work_ += std::exchange(one.work, 0);
        thinned_ |= std::exchange(one.thinned, false);
      }
  }

  // The options of a stage that ends with `layer`.
  void close(int layer, std::vector<StageOption>& out) {
    std::vector<Label> ends;
    Places places{};
    for (std::size_t c = 0; c < now_.index->classes.size(); ++c) {
      const TypeIndex::Class& k = now_.index->classes[c];
      const double receive = limits_.memory_only || role_.last ? 0 : problem_.receive_gradient(layer, k.layout);
      auto parent = static_cast<std::int32_t>(now_.begins[c]);
      for (Label label : now_.made[c].labels) {
        label.parent = parent++;
        if (!role_.last) label.add(receive, receive, 0, k.activation, 0);
        if (hopeless(label, now_.ahead, now_.last_run(weighings_), places)) continue;
        if (!limits_.memory_only) label.kept = label.top = 0;  // it fits: memory matters no more
        ends.push_back(label);
      }
    }
    keep_best(ends, std::numeric_limits<std::size_t>::max(), once_weight_, &work_);
    for (const Label& label : ends) {
      out.push_back({label.time, label.ramp, label.once, label.top, label.parent});
      if (limits_.memory_only) break;  // ordered by top: this one needs least
    }
  }

  const Problem& problem_;
  const Bounds& bounds_;
  const Weighings& weighings_;
  StageRole role_;
  Limits limits_;
  std::int64_t budget_;
  StageLimit within_;
  std::size_t most_labels_ = 0;  // of a class, at the present layer
  double once_weight_ = 0;
  bool merge_ = false;
  bool thinned_ = false;
  std::int64_t work_ = 0;
  std::vector<std::optional<TypeIndex>> indices_;  // of every type in every chunk
  std::optional<TypeIndex> tagged_[2];             // of the first and the last layer
  std::vector<std::int64_t> suffix_;
  std::vector<Step> steps_;
  std::vector<std::vector<StageOption>> options_;
  Layer before_;
  Layer now_;
  std::vector<Made> arrivals_;  // of every group of classes that begin alike
  Executor* executor_;
  const Routes* routes_;  // while the table is built
};

}  // namespace galvatron::search
