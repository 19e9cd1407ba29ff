// The best plan of waves, by a dynamic program over the operators that remain.
//
// A state is the number of remaining operators of every MetaOp. A wave is an allocation of devices and a length. Three
// facts keep the program small: a part runs as many whole operators as fit, since fewer never help; an allocation has
// no room to raise one of its counts, since more devices never hurt; and a length is a number of operators of one part.
// Waves of independent MetaOps may stand in any order, so the next one has the first MetaOp that remains.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <galvatron/spindle/levels.hpp>
#include <galvatron/spindle/problem.hpp>
#include <galvatron/spindle/relaxation.hpp>
#include <galvatron/spindle/wave_length.hpp>
#include <galvatron/spindle/work.hpp>

namespace galvatron::spindle {

namespace detail {

class ExactWaves {
 public:
  ExactWaves(const Problem& problem, Work& work) : problem_(problem), work_(work), relaxation_(problem), radix_{1} {
    for (const MetaOp& metaop : problem.metaops) {
      states_ *= metaop.operators + 1.0;
      operators_ += metaop.operators;
      radix_.push_back(radix_.back() * static_cast<std::size_t>(metaop.operators + 1));
      if (!metaop.after.empty()) independent_ = false;
      if (states_ > most_states) break;
    }
  }

  /// Steps of the program if nothing is pruned; infinity where there are too many states.
  [[nodiscard]] double steps() {
    double choices = 1;
    for (const MetaOp& metaop : problem_.metaops) choices *= static_cast<double>(metaop.curve.size() + 1);
    if (states_ > most_states || choices > most_choices || has_transfers(problem_))
      return std::numeric_limits<double>::infinity();
    const std::uint32_t all = (1U << problem_.count()) - 1;
    return states_ * static_cast<double>(allocations(all).size()) * operators_ * static_cast<double>(problem_.count());
  }

  /// Finds the best plan that is below `limit` seconds. Whether there was enough work to know it.
  bool run(double limit) {
    limit_ = limit;
    reached_.assign(static_cast<std::size_t>(states_), {});
    const std::vector<int> begin = operators_of(problem_);
    std::vector<int> left(problem_.count());
    reached_[index_of(begin)].seconds = 0;
    // Waves lead to smaller indices.
    for (std::size_t i = reached_.size(); i-- > 1;) {
      if (!(reached_[i].seconds < limit_)) continue;
      if (work_.is_spent()) return false;
      for (std::size_t m = 0; m < left.size(); ++m)
        left[m] = static_cast<int>(i / radix_[m] % (radix_[m + 1] / radix_[m]));
      if (reached_[i].seconds + relaxation_.bound(left) < limit_ * (1 - 1e-12)) expand(i, left);
    }
    if (reached_[0].seconds < limit) waves_ = waves();
    return true;
  }
  /// The plan that was found; none where no plan is below the limit.
  [[nodiscard]] std::vector<Wave>& found() { return waves_; }

 private:
  static constexpr double most_states = 1 << 20;
  static constexpr double most_choices = 1e5;
  // Places of counts in the curves, -1 for none, of every MetaOp.
  using Places = std::vector<int>;
  struct State {
    double seconds = std::numeric_limits<double>::infinity();
    std::uint32_t before = 0;  // state
    std::uint32_t mask = 0;    // of the wave from there to here, whose allocation this is
    std::uint32_t allocation = 0;
  };

  [[nodiscard]] std::size_t index_of(const std::vector<int>& left) const {
    std::size_t out = 0;
    for (std::size_t m = 0; m < left.size(); ++m) out += radix_[m] * static_cast<std::size_t>(left[m]);
    return out;
  }

  // MetaOps that have operators and whose predecessors have none.
  [[nodiscard]] std::uint32_t ready(const std::vector<int>& left) const {
    std::uint32_t out = 0;
    for (std::size_t m = 0; m < left.size(); ++m)
      if (left[m] > 0 && std::ranges::all_of(problem_.metaops[m].after,
                                             [&](int before) { return left[static_cast<std::size_t>(before)] == 0; }))
        out |= 1U << m;
    return out;
  }

  // The allocations to these MetaOps of which no count can be raised.
  const std::vector<Places>& allocations(std::uint32_t mask) {
    const auto [at, is_new] = allocations_.try_emplace(mask);
    if (is_new) {
      Places places(problem_.count(), -1);
      add_allocations(mask, 0, problem_.devices, places, at->second);
    }
    return at->second;
  }
  void add_allocations(std::uint32_t mask, std::size_t m, int free, Places& places, std::vector<Places>& out) const {
    if (m == problem_.count()) {
      if (!can_raise(mask, free, places)) out.push_back(places);
      return;
    }
    add_allocations(mask, m + 1, free, places, out);
    if ((mask >> m & 1U) == 0) return;
    const std::vector<int>& counts = problem_.metaops[m].curve.devices;
    for (std::size_t i = 0; i < counts.size() && counts[i] <= free; ++i) {
      places[m] = static_cast<int>(i);
      add_allocations(mask, m + 1, free - counts[i], places, out);
    }
    places[m] = -1;
  }
  [[nodiscard]] bool can_raise(std::uint32_t mask, int free, const Places& places) const {
    for (std::size_t m = 0; m < places.size(); ++m) {
      if ((mask >> m & 1U) == 0) continue;
      const std::vector<int>& counts = problem_.metaops[m].curve.devices;
      const auto next = static_cast<std::size_t>(places[m] + 1);
      if (next < counts.size() && counts[next] - (next == 0 ? 0 : counts[next - 1]) <= free) return true;
    }
    return false;
  }

  void expand(std::size_t index, const std::vector<int>& left) {
    const std::uint32_t mask = ready(left);
    const std::vector<Places>& choices = allocations(mask);
    const std::size_t first = static_cast<std::size_t>(std::countr_zero(mask));
    for (std::size_t a = 0; a < choices.size(); ++a) {
      if (independent_ && choices[a][first] < 0) continue;
      for (std::size_t m = 0; m < left.size(); ++m) {
        if (choices[a][m] < 0) continue;
        const double each = seconds(m, choices[a]);
        for (int operators = 1; operators <= left[m]; ++operators)
          reach(index, left, mask, choices[a], a, operators * each);
        work_.spend(left[m] * static_cast<std::int64_t>(4 * left.size()));
      }
    }
  }
  [[nodiscard]] double seconds(std::size_t m, const Places& places) const {
    return problem_.metaops[m].curve.seconds[static_cast<std::size_t>(places[m])];
  }

  void reach(std::size_t index, const std::vector<int>& left, std::uint32_t mask, const Places& places, std::size_t a,
             double length) {
    const double total = reached_[index].seconds + length + problem_.wave_overhead;
    if (!(total < limit_)) return;
    std::size_t next = index;
    for (std::size_t m = 0; m < left.size(); ++m) {
      if (places[m] < 0) continue;
      next -= radix_[m] * static_cast<std::size_t>(operators_within(length, seconds(m, places), left[m]));
    }
    State& state = reached_[next];
    if (!(total < state.seconds)) return;
    state = {total, static_cast<std::uint32_t>(index), mask, static_cast<std::uint32_t>(a)};
    if (next == 0) limit_ = total;
  }

  [[nodiscard]] std::vector<Wave> waves() const {
    std::vector<Wave> out;
    for (std::size_t at = 0; at != reached_.size() - 1;) {
      const State& state = reached_[at];
      const Places& places = allocations_.find(state.mask)->second[state.allocation];
      Wave wave;
      for (std::size_t m = 0; m < places.size(); ++m) {
        if (places[m] < 0) continue;
        const std::size_t extent = radix_[m + 1] / radix_[m];
        const std::size_t operators = state.before / radix_[m] % extent - at / radix_[m] % extent;
        if (operators == 0) continue;  // the wave is shorter than one
        const int devices = problem_.metaops[m].curve.devices[static_cast<std::size_t>(places[m])];
        wave.parts.push_back({static_cast<int>(m), devices, static_cast<int>(operators)});
      }
      wave.seconds = wave_seconds(problem_, wave.parts);
      out.insert(out.begin(), std::move(wave));
      at = state.before;
    }
    return out;
  }

  const Problem& problem_;
  Work& work_;
  Relaxation relaxation_;
  double states_ = 1;     // all there could be
  double operators_ = 0;  // of all MetaOps
  bool independent_ = true;
  double limit_ = 0;
  std::vector<std::size_t> radix_;
  std::map<std::uint32_t, std::vector<Places>> allocations_;
  std::vector<State> reached_;
  std::vector<Wave> waves_;
};

}  // namespace detail

}  // namespace galvatron::spindle
