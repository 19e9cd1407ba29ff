// One stage: the Pareto-best strategies for a run of layers, for every length of the run at once.
//
// A dynamic program over layers. Its state is the class of the last layer's choice (what the next layer can feel of it:
// layout, size of the activation, forward workspace); its value is a Pareto set of labels instead of memory cells.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <galvatron/search/bounds.hpp>
#include <galvatron/search/cuts.hpp>
#include <galvatron/search/label.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/segments.hpp>

namespace galvatron::search {

/// What limits the work of a search.
struct Limits {
  std::size_t labels = 192;  ///< of one class at one layer; beyond them the search is no longer exact
  std::int64_t work = std::numeric_limits<std::int64_t>::max();  ///< labels to make; then the search gives up
  bool memory_only = false;                                      ///< ignore time: look for the least memory
};

/// A stage that ends after some layer.
struct StageOption {
  double time = 0;
  double ramp = 0;
  double once = 0;
  std::int64_t peak = 0;
  std::int32_t label = 0;
};

/// The choices of a layer type, sorted by what their neighbours feel of them.
struct TypeIndex {
  struct Class {
    int layout = 0;
    std::int64_t input = 0;
    std::int64_t carried = 0;
    std::int64_t activation = 0;
    std::int64_t forward_workspace = 0;
    std::vector<std::int32_t> choices;

    explicit Class(const Choice& c)
        : layout(c.layout),
          input(c.input),
          carried(c.carried),
          activation(c.activation),
          forward_workspace(c.forward_workspace) {}
    /// Labels arrive at both alike.
    [[nodiscard]] bool begins_like(const Class& other) const {
      return layout == other.layout && input == other.input && carried == other.carried;
    }
    [[nodiscard]] bool ends_like(const Class& other) const {
      return activation == other.activation && forward_workspace == other.forward_workspace;
    }
    friend bool operator<(const Class& a, const Class& b) {
      if (a.layout != b.layout) return a.layout < b.layout;
      if (a.input != b.input) return a.input < b.input;
      if (a.carried != b.carried) return a.carried < b.carried;
      return a.activation != b.activation ? a.activation < b.activation : a.forward_workspace < b.forward_workspace;
    }
  };
  std::vector<Class> classes;

  /// Only choices with tag `only_tag`, or all when it is negative. Choices that another one of their layout makes
  /// superfluous are left out.
  TypeIndex(const LayerType& type, const Objective& objective, const Slots& slots, int only_tag, bool memory_only) {
    for (const std::int32_t i : irreplaceable(type, only_tag, [&](const Choice& a, const Choice& b) {
           return replaces(a, b, objective, slots, memory_only);
         })) {
      const Class own(type[static_cast<std::size_t>(i)]);
      auto found = std::find_if(classes.begin(), classes.end(),
                                [&](const Class& k) { return k.begins_like(own) && k.ends_like(own); });
      if (found == classes.end()) found = classes.insert(classes.end(), own);
      found->choices.push_back(i);
    }
    std::sort(classes.begin(), classes.end());
  }
};

/// Which stage a table is for.
struct StageRole {
  int stage = 0;
  int begin = 0;     ///< first layer
  int shortest = 1;  ///< layers
  int longest = 1;   ///< layers
  bool first = true;
  bool last = true;
  int tag = -1;  ///< of the first layer of the first stage and of the last of the last; -1: any
};

/// All good stages that begin at one layer.
class StageTable {
 public:
  /// @param within  stages beyond it are of no use
  /// @param team    shares the work on a layer; the table is the same without one
  StageTable(const Problem& problem, const Bounds& bounds, const Segments& segments, const Segments& loads,
             const StageRole& role, const Limits& limits, std::int64_t budget, const StageLimit& within,
             Team* team = nullptr)
      : problem_(problem),
        bounds_(bounds),
        segments_(segments),
        loads_(loads),
        role_(role),
        limits_(limits),
        budget_(budget),
        within_(within),
        team_(team) {
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
      const Label& label = steps_[static_cast<std::size_t>(k)].labels[static_cast<std::size_t>(at)];
      out[static_cast<std::size_t>(k)] = label.choice;
      at = label.parent;
    }
    return out;
  }

 private:
  static constexpr std::size_t worth_sharing = 16;  // labels: with fewer a layer takes no longer than waking a thread

  struct Step {
    std::vector<Label> labels;        // of all classes, one after the other
    std::vector<std::size_t> begins;  // (classes + 1)
    const TypeIndex* index = nullptr;
  };

  void build() {
    indices_.resize(problem_.types.size() * static_cast<std::size_t>(problem_.chunks));
    prepare_suffix();
    options_.resize(1);
    for (int k = 0; k < role_.longest; ++k) {
      const int layer = role_.begin + k;
      steps_.push_back(extend(layer, k == 0 ? nullptr : &steps_.back()));
      thinned_ |= work_ > limits_.work;
      if (steps_.back().labels.empty() || work_ > limits_.work) {
        steps_.pop_back();
        break;
      }
      options_.emplace_back();
      if (k + 1 >= role_.shortest) close(steps_.back(), layer, options_.back());
    }
  }

  [[nodiscard]] Slots slots_of(int layer) const {
    return problem_.slots_of(role_.stage, problem_.chunk_of(layer, role_.begin));
  }

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
    const auto make = [&](int tag) {
      return std::make_unique<TypeIndex>(problem_.types[type], problem_.objective, slots_of(layer), tag,
                                         limits_.memory_only);
    };
    if (tagged) {
      tagged_.push_back(make(role_.tag));
      return *tagged_.back();
    }
    const auto chunk = static_cast<std::size_t>(problem_.chunk_of(layer, role_.begin));
    auto& index = indices_[type * static_cast<std::size_t>(problem_.chunks) + chunk];
    if (!index) index = make(-1);
    return *index;
  }

  // No completion of this label is below the best plan known.
  [[nodiscard]] bool hopeless(const Label& label, int layer) const {
    const auto k = static_cast<std::size_t>(layer + 1 - role_.begin);
    if (label.top + suffix_[k] > budget_) return true;
    if (limits_.memory_only) return false;
    const int least_end = std::max(layer + 1, role_.begin + role_.shortest);
    const double rest = least_end > layer + 1 ? segments_.seconds(role_.stage, layer + 1, least_end,
                                                                  static_cast<double>(budget_ - label.top))
                                              : 0.0;
    if (merge_) return bounds_.single_stage(label.time + rest) >= within_.seconds;
    if (label.time + rest > within_.slowest) return true;
    if (within_.share > 0 && least_end > layer + 1 &&
        label.time + within_.share * label.once +
                loads_.seconds(role_.stage, layer + 1, least_end, static_cast<double>(budget_ - label.top)) >
            within_.loaded)
      return true;
    const auto& onces = bounds_.onces();
    const double once =
        label.once + onces[static_cast<std::size_t>(least_end)] - onces[static_cast<std::size_t>(layer) + 1];
    return problem_.objective(within_.sum, std::max(label.time + rest, within_.slowest_of_all), once) >=
               within_.seconds ||
           bounds_.with_stage(role_.stage, role_.begin, layer + 1, label) >= within_.seconds;
  }

  // What a piece of work on one layer made; pieces run on any thread, so each counts for itself.
  struct Made {
    std::vector<Label> labels;
    std::int64_t work = 0;
    bool thinned = false;
  };

  // Labels that reach `layer` in a layout, before its choice is made.
  void arrive(int layer, const TypeIndex::Class& to, const Step* before, Made& out) const {
    out.labels.clear();
    const std::int64_t carried = slots_of(layer).flight * to.carried;
    if (before == nullptr) {
      Label label;
      label.kept = label.top = problem_.fixed + carried + (role_.first ? 0 : to.input);
      if (!role_.first && !limits_.memory_only) label.time = label.ramp = problem_.receive_input(layer, to.layout);
      out.labels.push_back(label);
      return;
    }
    const bool new_chunk =
        problem_.chunk_of(layer, role_.begin) != problem_.chunk_of(layer - 1, role_.begin);  // other stages between
    int sources = 0;
    for (std::size_t c = 0; c < before->index->classes.size(); ++c) {
      const TypeIndex::Class& from = before->index->classes[c];
      const std::size_t begin = before->begins[c];
      const std::size_t end = before->begins[c + 1];
      if (begin == end) continue;
      ++sources;
      const bool same = from.layout == to.layout || new_chunk;
      double seconds = same ? 0 : problem_.relayout_seconds(layer, from.layout, to.layout);
      if (new_chunk)
        seconds = problem_.receive_gradient(layer - 1, from.layout) + problem_.receive_input(layer, to.layout);
      if (limits_.memory_only) seconds = 0;
      const std::int64_t kept = new_chunk ? from.activation + to.input + carried : same ? 0 : carried;
      const std::int64_t space = same ? 0 : from.activation + std::max(from.forward_workspace, to.input);
      for (std::size_t i = begin; i < end; ++i) {
        Label label = before->labels[i];
        label.parent = static_cast<std::int32_t>(i);
        label.add(seconds, seconds, 0, kept, space);
        out.labels.push_back(label);
      }
    }
    out.work += static_cast<std::int64_t>(out.labels.size());
    if (sources > 1) out.thinned |= keep_best(out.labels, limits_.labels, once_weight_);
  }

  // Labels after `layer`, with a choice of the class `to`, from those that arrive.
  void choose(int layer, const TypeIndex::Class& to, const std::vector<Label>& arrivals, Made& out) const {
    const LayerType& type = problem_.types[static_cast<std::size_t>(problem_.layers[static_cast<std::size_t>(layer)])];
    const Slots slots = slots_of(layer);
    out.labels.clear();
    for (const std::int32_t j : to.choices) {
      const Choice& c = type[static_cast<std::size_t>(j)];
      const double time = limits_.memory_only ? 0 : c.seconds() + (merge_ ? once_weight_ * c.once() : 0);
      const double ramp = limits_.memory_only ? 0 : merge_ ? time : problem_.objective.ramp_of(c);
      const double once = limits_.memory_only || merge_ ? 0 : c.once();
      const std::int64_t kept = slots.kept(c);
      const std::int64_t space = std::max(c.forward_workspace, c.activation + c.backward_workspace);
      out.work += static_cast<std::int64_t>(arrivals.size());
      for (Label label : arrivals) {
        label.add(time, ramp, once, kept, space);
        if (hopeless(label, layer)) continue;
        label.choice = j;
        out.labels.push_back(label);
      }
    }
    out.thinned |= keep_best(out.labels, limits_.labels, once_weight_);
  }

  Step extend(int layer, const Step* before) {
    Step step;
    step.index = &index_of(layer);
    const auto& classes = step.index->classes;
    std::vector<std::size_t> groups;  // where classes begin that get the same labels
    for (std::size_t c = 0; c < classes.size(); ++c)
      if (c == 0 || !classes[c].begins_like(classes[c - 1])) groups.push_back(c);
    const std::size_t count = groups.size();
    groups.push_back(classes.size());
    if (arrivals_.size() < count) arrivals_.resize(count);
    if (made_.size() < classes.size()) made_.resize(classes.size());
    const auto extend_group = [&](std::size_t g) {
      arrive(layer, classes[groups[g]], before, arrivals_[g]);
      for (std::size_t c = groups[g]; c < groups[g + 1]; ++c) choose(layer, classes[c], arrivals_[g].labels, made_[c]);
    };
    if (team_ != nullptr && before != nullptr && before->labels.size() >= worth_sharing && team_->has_time())
      team_->each(count, extend_group);
    else
      for (std::size_t g = 0; g < count; ++g) extend_group(g);
    step.begins.push_back(0);
    for (std::size_t c = 0; c < classes.size(); ++c) {
      step.labels.insert(step.labels.end(), made_[c].labels.begin(), made_[c].labels.end());
      step.begins.push_back(step.labels.size());
    }
    for (std::vector<Made>* all : {&arrivals_, &made_})
      for (Made& one : *all) {
        work_ += std::exchange(one.work, 0);
        thinned_ |= std::exchange(one.thinned, false);
      }
    return step;
  }

  // The options of a stage that ends with `layer`.
  void close(const Step& step, int layer, std::vector<StageOption>& out) {
    std::vector<Label> ends;
    for (std::size_t c = 0; c < step.index->classes.size(); ++c)
      for (std::size_t i = step.begins[c]; i < step.begins[c + 1]; ++i) {
        Label label = step.labels[i];
        label.parent = static_cast<std::int32_t>(i);
        if (!role_.last) {
          const TypeIndex::Class& k = step.index->classes[c];
          const double receive = limits_.memory_only ? 0 : problem_.receive_gradient(layer, k.layout);
          label.add(receive, receive, 0, k.activation, 0);
        }
        if (hopeless(label, layer)) continue;
        if (!limits_.memory_only) label.kept = label.top = 0;  // it fits: memory matters no more
        ends.push_back(label);
      }
    keep_best(ends, std::numeric_limits<std::size_t>::max(), once_weight_);
    for (const Label& label : ends) {
      out.push_back({label.time, label.ramp, label.once, label.top, label.parent});
      if (limits_.memory_only) break;  // ordered by top: this one needs least
    }
  }

  const Problem& problem_;
  const Bounds& bounds_;
  const Segments& segments_;
  const Segments& loads_;
  StageRole role_;
  Limits limits_;
  std::int64_t budget_;
  StageLimit within_;
  double once_weight_ = 0;
  bool merge_ = false;
  bool thinned_ = false;
  std::int64_t work_ = 0;
  std::vector<std::unique_ptr<TypeIndex>> indices_;
  std::vector<std::unique_ptr<TypeIndex>> tagged_;
  std::vector<std::int64_t> suffix_;
  std::vector<Step> steps_;
  std::vector<std::vector<StageOption>> options_;
  std::vector<Made> arrivals_;  // of every group of classes that begin alike
  std::vector<Made> made_;      // of every class
  Team* team_;
};

}  // namespace galvatron::search
