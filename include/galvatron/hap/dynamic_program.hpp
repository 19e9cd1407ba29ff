// The best program by a dynamic program over the graph.
//
// Operations are taken in the order of the instance. A state is what the operations to come can see: of every tensor
// that is still read, the layouts in which it is there, at most the one it was computed in and the one it was
// communicated to, without those that no rule to come takes. Where one read is left, the state has the layout that it
// will take. A label is a price with N components that add up; of the labels of a state those stay that no other one is
// at most equal to in all components.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <galvatron/hap/instance.hpp>

namespace galvatron::hap {

/// What a search may do.
struct SearchLimits {
  std::size_t states = 50'000;     ///< of one operation; beyond it the best ones are kept and nothing is proven
  std::size_t labels = 2'000'000;  ///< of one operation, all its states together
};

/// @tparam N  components of a price
template <std::size_t N>
class DynamicProgram {
 public:
  using Price = std::array<double, N>;

  /// At least what completing a program costs, of one live tensor: its layouts a and b, behind an item.
  using Completing = std::function<double(int tensor, std::size_t item, Layout a, Layout b)>;
  /// Of a price after an item, and of what completes it.
  using Rank = std::function<double(const Price&, std::size_t item, double completing)>;

  /// @param project  Price project(const Terms&), linear
  /// @param rank     of a price after an item: by it states are kept where there are too many, the least first
  template <class Project>
  DynamicProgram(const Instance& instance, const Project& project, Rank rank, Completing completing = {})
      : instance_(instance), rank_(std::move(rank)), completing_(std::move(completing)) {
    for (std::size_t i = 0; i < instance.items().size(); ++i) transitions_.push_back(transition_of(i, project));
  }

  /// Labels whose `pruned(price, item, completing)` holds after an item are dropped.
  template <class Pruned>
  void run(SearchLimits limits, const Pruned& pruned) {
    run(limits, pruned, std::vector<std::optional<Decision>>(transitions_.size()));
  }
  /// The same among the programs with the decisions that are held.
  template <class Pruned>
  void run(SearchLimits limits, const Pruned& pruned, std::vector<std::optional<Decision>> held) {
    limits_ = limits;
    held_ = std::move(held);
    history_.assign(transitions_.size(), {});
    finals_.clear();
    dropped_ = std::numeric_limits<double>::infinity();
    Front front;
    front.push_back({{}, {Label{}}, 0});
    for (std::size_t i = 0; i < transitions_.size(); ++i) {
      front = advanced(front, i, pruned);
      if (front.empty()) return;
    }
    for (const State& state : front) finals_.insert(finals_.end(), state.labels.begin(), state.labels.end());
  }

  struct Label {
    Price price{};
    std::int32_t parent = -1;  // of the history of the item before
    std::int16_t rule = 0;
    Layout moved = replicate;
    std::int32_t own = -1;
  };
  /// The labels of complete programs.
  [[nodiscard]] const std::vector<Label>& finals() const { return finals_; }
  /// The decisions of a complete program.
  [[nodiscard]] std::vector<Decision> decisions(const Label& label) const {
    std::vector<Decision> out(transitions_.size());
    Label at = label;
    for (std::size_t i = transitions_.size(); i-- > 0;) {
      out[i] = {static_cast<std::size_t>(at.rule), at.moved};
      if (i > 0) at = history_[i - 1][static_cast<std::size_t>(at.parent)];
    }
    return out;
  }
  /// The least rank of all labels that were dropped to keep to the limits; infinite if none were.
  [[nodiscard]] double least_dropped() const { return dropped_; }
  [[nodiscard]] std::size_t labels() const {
    std::size_t out = 0;
    for (const auto& one : history_) out += one.size();
    return out;
  }

 private:
  struct State {
    std::string key;
    std::vector<Label> labels;
    double completing = 0;
  };
  using Front = std::vector<State>;

  // The layouts in which a live tensor is there, as two letters of a key; the second is 0 if there is one only.
  static char letter(Layout layout) { return static_cast<char>(layout.code + 3); }
  static Layout layout_of(char letter) { return {static_cast<std::int16_t>(letter - 3)}; }
  static std::string letters(Layout a, Layout b) {
    if (a == b) return {letter(a), 0};
    return {letter(std::min(a, b)), letter(std::max(a, b))};
  }

  // A live tensor after an item.
  struct Slot {
    int tensor = -1;
    int before = -1;   // its place among those before the item
    int operand = -1;  // a source that the item loads for later ones too
    bool one_use = false;
    LayoutSet useful;
  };
  struct Option {
    std::string letters;  // empty where nobody reads the result
    Layout moved;
    Price price{};
  };
  struct Way {
    std::int16_t rule = 0;
    std::vector<std::pair<int, char>> needs;  // place among the live tensors before, and the layout
    Price price{};
    std::vector<Option> options;
  };
  struct Transition {
    std::vector<Way> ways;
    std::vector<Slot> slots;                       // without the result, which comes last
    std::vector<int> live;                         // tensors, with it
    std::vector<std::vector<std::string>> loaded;  // by way: letters of sources that stay, in the order of the slots
  };

  template <class Project>
  Transition transition_of(std::size_t i, const Project& project) {
    const Instance::Item& item = instance_.items()[i];
    Transition out;
    std::vector<int> before = live_;
    live_.clear();
    for (std::size_t k = 0; k < before.size(); ++k)
      if (instance_.uses_after(before[k], i) > 0) out.slots.push_back(slot(before[k], i, static_cast<int>(k), -1));
    for (std::size_t p = 0; p < item.node->inputs.size(); ++p) {
      const int tensor = item.node->inputs[p];
      const Instance::Use& first = instance_.uses(tensor).front();
      if (instance_.is_source(tensor) && first.item == i && first.operand == p && instance_.uses_after(tensor, i) > 0)
        out.slots.push_back(slot(tensor, i, -1, static_cast<int>(p)));
    }
    for (const Slot& s : out.slots) live_.push_back(s.tensor);
    if (!instance_.uses(item.node->output).empty()) live_.push_back(item.node->output);
    out.live = live_;
    for (std::size_t r = 0; r < item.rules.size(); ++r) {
      const Rule& rule = item.rules[r];
      const auto [fits, loads] = instance_.loads(i, rule);
      if (!fits) continue;
      Way way;
      way.rule = static_cast<std::int16_t>(r);
      for (std::size_t p = 0; p < item.node->inputs.size(); ++p) {
        const auto at = std::ranges::find(before, item.node->inputs[p]);
        if (at != before.end()) way.needs.emplace_back(static_cast<int>(at - before.begin()), letter(rule.operands[p]));
      }
      Terms terms = loads;
      terms += item.terms[r];
      way.price = project(terms);
      way.options = options_of(i, rule, project);
      std::vector<std::string> loaded;
      bool all_useful = true;
      for (const Slot& s : out.slots) {
        const Layout layout = s.operand < 0 ? replicate : rule.operands[static_cast<std::size_t>(s.operand)];
        loaded.push_back(letters(layout, layout));
        all_useful = all_useful && (s.operand < 0 || s.useful.has(layout));
      }
      if (way.options.empty() || !all_useful) continue;
      out.loaded.push_back(std::move(loaded));
      out.ways.push_back(std::move(way));
    }
    return out;
  }
  [[nodiscard]] Slot slot(int tensor, std::size_t i, int before, int operand) const {
    return {tensor, before, operand, instance_.uses_after(tensor, i) == 1, instance_.useful_after(tensor, i)};
  }
  // What may become of an item's result.
  template <class Project>
  [[nodiscard]] std::vector<Option> options_of(std::size_t i, const Rule& rule, const Project& project) const {
    const int tensor = instance_.items()[i].node->output;
    std::vector<Option> out;
    if (instance_.uses(tensor).empty()) {
      if (rule.result == partial_sums) out.push_back({{}, rule.result, project(Terms{})});
      return out;
    }
    const LayoutSet useful = instance_.useful_after(tensor, i);
    const bool one_use = instance_.uses_after(tensor, i) == 1;
    if (useful.has(rule.result)) out.push_back({letters(rule.result, rule.result), rule.result, project(Terms{})});
    if (!instance_.can_communicate(tensor)) return out;
    for (const Layout to : instance_.targets(tensor)) {
      if (!useful.has(to) || !collective_between(rule.result, to)) continue;
      const bool both = !one_use && useful.has(rule.result);
      out.push_back({letters(both ? rule.result : to, to), to,
                     project(instance_.prices().communicating(tensor, rule.result, to))});
    }
    return out;
  }

  template <class Pruned>
  Front advanced(const Front& front, std::size_t i, const Pruned& pruned) {
    const Transition& transition = transitions_[i];
    std::unordered_map<std::string, std::size_t> index;
    Front out;
    std::vector<std::string> keys;
    for (const auto& [key, labels, before] : front)
      for (std::size_t w = 0; w < transition.ways.size(); ++w) {
        const Way& way = transition.ways[w];
        const auto& held = held_[i];
        if (held && held->rule != static_cast<std::size_t>(way.rule)) continue;
        if (!std::ranges::all_of(way.needs, [&, &key = key](const auto& need) {
              const auto place = static_cast<std::size_t>(2 * need.first);
              return key[place] == need.second || key[place + 1] == need.second;
            }))
          continue;
        if (std::ranges::all_of(labels,
                                [&](const Label& label) { return pruned(sum(label.price, way.price), i, 0.0); }))
          continue;
        keys_after(key, transition, w, keys);
        for (const std::string& kept : keys)
          for (const Option& option : way.options) {
            if (held && held->moved != option.moved) continue;
            const std::string next = kept + option.letters;
            const auto [at, is_new] = index.emplace(next, out.size());
            if (is_new) out.push_back({next, {}, completing(next, i)});
            State& state = out[at->second];
            for (const Label& label : labels) {
              Label made{.parent = label.own, .rule = way.rule, .moved = option.moved};
              made.price = sum(sum(label.price, way.price), option.price);
              if (!pruned(made.price, i, state.completing)) insert(state.labels, made);
            }
          }
      }
    std::erase_if(out, [](const auto& state) { return state.labels.empty(); });
    cut(out, i);
    for (State& state : out)
      for (Label& label : state.labels) {
        label.own = static_cast<std::int32_t>(history_[i].size());
        history_[i].push_back(label);
      }
    return out;
  }
  // The keys of the tensors that stay, after a way: several where one of two layouts must be chosen.
  static void keys_after(const std::string& key, const Transition& transition, std::size_t way,
                         std::vector<std::string>& out) {
    out.assign(1, std::string());
    for (std::size_t s = 0; s < transition.slots.size(); ++s) {
      const Slot& slot = transition.slots[s];
      if (slot.before < 0) {
        for (std::string& one : out) one += transition.loaded[way][s];
        continue;
      }
      const auto place = static_cast<std::size_t>(2 * slot.before);
      const Layout a = layout_of(key[place]);
      const Layout b = key[place + 1] == 0 ? a : layout_of(key[place + 1]);
      const bool has_a = slot.useful.has(a);
      const bool has_b = b != a && slot.useful.has(b);
      if (!has_a && !has_b) return out.clear();
      if (has_a && has_b && slot.one_use) {
        const std::size_t count = out.size();
        for (std::size_t k = 0; k < count; ++k) out.push_back(out[k] + letters(b, b));
        for (std::size_t k = 0; k < count; ++k) out[k] += letters(a, a);
      } else {
        for (std::string& one : out) one += letters(has_a ? a : b, has_b ? b : a);
      }
    }
  }
  [[nodiscard]] double completing(const std::string& key, std::size_t i) const {
    if (!completing_) return 0;
    double out = 0;
    const std::vector<int>& live = transitions_[i].live;
    for (std::size_t k = 0; k < live.size(); ++k) {
      const Layout a = layout_of(key[2 * k]);
      out += completing_(live[k], i, a, key[2 * k + 1] == 0 ? a : layout_of(key[2 * k + 1]));
    }
    return out;
  }
  static Price sum(Price a, const Price& b) {
    for (std::size_t n = 0; n < N; ++n) a[n] += b[n];
    return a;
  }
  static bool covers(const Price& a, const Price& b) {
    for (std::size_t n = 0; n < N; ++n)
      if (a[n] > b[n]) return false;
    return true;
  }
  static void insert(std::vector<Label>& labels, const Label& label) {
    for (const Label& other : labels)
      if (covers(other.price, label.price)) return;
    std::erase_if(labels, [&](const Label& other) { return covers(label.price, other.price); });
    labels.push_back(label);
  }
  // Keeps to the limits.
  void cut(Front& front, std::size_t i) {
    std::size_t labels = 0;
    for (const State& state : front) labels += state.labels.size();
    if (front.size() <= limits_.states && labels <= limits_.labels) return;
    const auto least = [&](const State& state) {
      double out = std::numeric_limits<double>::infinity();
      for (const Label& label : state.labels) out = std::min(out, rank_(label.price, i, state.completing));
      return out;
    };
    std::ranges::stable_sort(front, [&](const State& a, const State& b) { return least(a) < least(b); });
    std::size_t states = 0;
    for (std::size_t kept = 0; states < front.size() && states < limits_.states; ++states) {
      kept += front[states].labels.size();
      if (kept > limits_.labels && states > 0) break;
    }
    // Everything whole leads to a program whatever the graph, so this state stays.
    const auto is_whole = [](const State& state) {
      for (std::size_t k = 0; k < state.key.size(); k += 2)
        if (state.key[k] != letter(replicate) || state.key[k + 1] != 0) return false;
      return true;
    };
    const auto whole = std::ranges::find_if(front, is_whole);
    if (whole != front.end() && whole >= front.begin() + static_cast<std::ptrdiff_t>(states))
      std::iter_swap(whole, front.begin() + static_cast<std::ptrdiff_t>(states - 1));
    for (std::size_t s = states; s < front.size(); ++s) dropped_ = std::min(dropped_, least(front[s]));
    front.resize(states);
  }

  const Instance& instance_;
  SearchLimits limits_;
  std::vector<std::optional<Decision>> held_;  // by item
  Rank rank_;
  Completing completing_;
  std::vector<int> live_;
  std::vector<Transition> transitions_;
  std::vector<std::vector<Label>> history_;  // by item
  std::vector<Label> finals_;
  double dropped_ = std::numeric_limits<double>::infinity();
};

}  // namespace galvatron::hap
