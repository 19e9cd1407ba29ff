// Plans of waves for larger problems: a beam search over the operators that remain.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include <galvatron/spindle/levels.hpp>
#include <galvatron/spindle/problem.hpp>
#include <galvatron/spindle/relaxation.hpp>
#include <galvatron/spindle/wave_choice.hpp>
#include <galvatron/spindle/wave_length.hpp>
#include <galvatron/spindle/work.hpp>

namespace galvatron::spindle {

struct BeamLimits {
  int buckets = 48;   ///< parts of the step in which the best states are kept
  int width = 8;      ///< states of a bucket that are expanded
  int lengths = 24;   ///< waves that a state is followed by
  double spread = 0;  ///< prices of MetaOps are off by up to this share, at random
  std::uint64_t seed = 0;
};

namespace detail {

class Beam {
 public:
  Beam(const Problem& problem, const BeamLimits& limits, Work& work)
      : problem_(problem),
        limits_(limits),
        work_(work),
        relaxation_(problem),
        choice_(problem, work),
        moves_(has_transfers(problem)) {
    std::mt19937_64 random(limits.seed);
    for (std::size_t m = 0; m < problem.count(); ++m)
      factors_.push_back(1 + limits.spread * (static_cast<double>(random() % 2001) / 1000 - 1));
  }

  /// The best plan found that is below `limit` seconds; without waves when every plan takes longer.
  /// @param last  devices of each MetaOp's last part before the plan, 0 for none
  std::vector<Wave> run(double limit, std::vector<int> last = {}) {
    if (last.empty()) last.assign(problem_.count(), 0);
    const std::vector<int> operators = operators_of(problem_);
    best_ = limit;
    states_.clear();
    end_ = none;
    buckets_.assign(static_cast<std::size_t>(limits_.buckets) + 1, {});
    step_ = limit / limits_.buckets;
    add({0, relaxation_.bound(operators), operators, std::move(last), none, {}});
    for (std::vector<std::uint32_t>& bucket : buckets_)
      while (!bucket.empty()) {
        const std::vector<std::uint32_t> now = narrowed(std::exchange(bucket, {}));
        for (const std::uint32_t state : now) expand(state);
      }
    return waves();
  }

 private:
  static constexpr std::uint32_t none = 0xffffffff;
  static constexpr double wave_penalty = 0.1;  // of a bucket's seconds
  static constexpr std::size_t most_units = 256;
  static constexpr double dear = 1.4;  // counts on which an operator takes this much of its price are left out
  struct State {
    double seconds;
    double bound;  // of the whole plan
    std::vector<int> left;
    std::vector<int> last;  // devices of each MetaOp's last part; empty where transfers take no time
    std::uint32_t before;
    std::vector<Part> parts;  // of the wave that led here
  };

  [[nodiscard]] std::size_t bucket_of(double seconds) const {
    return std::min(static_cast<std::size_t>(seconds / step_), buckets_.size() - 1);
  }

  void add(State state) {
    if (std::ranges::all_of(state.left, [](int left) { return left == 0; })) {
      best_ = state.seconds;
      end_ = static_cast<std::uint32_t>(states_.size());
    } else {
      buckets_[bucket_of(state.seconds)].push_back(static_cast<std::uint32_t>(states_.size()));
    }
    states_.push_back(std::move(state));
  }

  // The best states of a bucket that differ.
  std::vector<std::uint32_t> narrowed(std::vector<std::uint32_t> bucket) {
    std::ranges::sort(bucket, {}, [&](std::uint32_t s) { return std::pair(states_[s].bound, s); });
    std::vector<std::uint32_t> out;
    for (const std::uint32_t s : bucket) {
      if (static_cast<int>(out.size()) == limits_.width || states_[s].bound >= best_ * (1 - 1e-9)) break;
      if (std::ranges::none_of(out, [&](std::uint32_t o) {
            return std::ranges::equal(states_[o].left, states_[s].left, std::less_equal<>());
          }))
        out.push_back(s);
    }
    return out;
  }

  void expand(std::uint32_t at) {
    if (states_[at].bound >= best_ * (1 - 1e-9) || work_.is_spent()) return;
    const std::vector<int> left = states_[at].left;
    const double begin = states_[at].seconds;
    Relaxation::Answer answer = relaxation_.answer(left);
    const std::vector<double> prices = answer.prices;
    double worth = 0;  // of all that remains, no more than its bound
    for (std::size_t m = 0; m < left.size(); ++m) worth += left[m] * prices[m];
    for (std::size_t m = 0; m < left.size(); ++m) answer.prices[m] *= factors_[m];
    ready_.clear();
    for (std::size_t m = 0; m < left.size(); ++m)
      if (left[m] > 0 && std::ranges::all_of(problem_.metaops[m].after,
                                             [&](int before) { return left[static_cast<std::size_t>(before)] == 0; }))
        ready_.push_back(static_cast<int>(m));
    find_lengths(left, answer, begin);
    for (const auto& [loss, length] : found_) {
      const std::vector<Part> parts = choice_.best(length, ready_, left, answer.prices);
      if (parts.empty()) continue;
      double seconds = begin + problem_.wave_overhead + wave_seconds(problem_, parts);
      std::vector<int> last;
      if (moves_) {
        last = states_[at].last;
        seconds += transfer_seconds(problem_, last, parts);
        for (const Part& part : parts) last[static_cast<std::size_t>(part.metaop)] = part.devices;
      }
      std::vector<int> next = left;
      double rest = worth;
      for (const Part& part : parts) {
        next[static_cast<std::size_t>(part.metaop)] -= part.operators;
        rest -= part.operators * prices[static_cast<std::size_t>(part.metaop)];
      }
      if (seconds + rest >= best_) continue;
      work_.spend(static_cast<std::int64_t>(40 * next.size()));
      const double bound = seconds + relaxation_.bound(next, rest);
      if (bound < best_ * (1 - 1e-9)) add({seconds, bound, std::move(next), std::move(last), at, parts});
    }
  }

  // What a MetaOp can do on one of its counts in a wave.
  struct Option {
    double per_second;  // operators
    double rent;        // price of its devices for a second
  };
  struct Ready {
    double price;  // of an operator
    int left;
    int options;
  };

  // Lengths of waves, for each bucket that of the least loss for its length, the best of them first. The loss is that
  // of the relaxed knapsack, in which devices have a price.
  void find_lengths(const std::vector<int>& left, const Relaxation::Answer& answer, double begin) {
    double worth = problem_.devices;
    for (const double delay : answer.delays) worth += delay;
    list_options(left, answer, 1 / worth);
    found_.assign(buckets_.size(), {std::numeric_limits<double>::infinity(), 0});
    // Among waves that lose little, long ones are better: there are fewer to come.
    const double overhead = problem_.wave_overhead + wave_penalty * step_;
    // Waves that are short beside a bucket, and beside what remains, would fill it with many like them.
    double longest = 0;
    for (const auto& [seconds, most] : units_) longest = std::max(longest, seconds * most);
    const double shortest = std::min(step_, longest) / 8;
    const std::size_t stride = 1 + units_.size() * options_.size() / 20'000;  // of very many, some
    for (std::size_t u = 0; u < units_.size(); u += stride) {
      const auto [seconds, most] = units_[u];
      for (int next = 1; next <= most; next += 1 + next / 64) {  // all of few, 1.6 % apart of many, and the last
        const int operators = next + 1 + next / 64 > most ? most : next;
        const double length = operators * seconds;
        if (length < shortest) continue;
        if (begin + length >= best_) break;
        work_.spend(static_cast<std::int64_t>(2 * options_.size()));
        // Devices and delays are worth a second each second.
        const double loss = 1 - gain_of(length) / (length + overhead);
        auto& best = found_[bucket_of(begin + length)];
        if (loss < best.first) best = {loss, length};
      }
    }
    std::erase_if(found_, [](const auto& one) { return one.second == 0; });
    std::ranges::sort(found_);
    if (found_.size() > static_cast<std::size_t>(limits_.lengths))
      found_.resize(static_cast<std::size_t>(limits_.lengths));
  }

  [[nodiscard]] double gain_of(double length) const {
    double out = 0;
    const Option* option = options_.data();
    for (const Ready& ready : choices_) {
      double gain = 0;
      for (int i = 0; i < ready.options; ++i, ++option) {
        const int operators = std::min(ready.left, static_cast<int>(length * option->per_second));
        gain = std::max(gain, ready.price * operators - option->rent * length);
      }
      out += gain;
    }
    return out;
  }

  void list_options(const std::vector<int>& left, const Relaxation::Answer& answer, double device) {
    options_.clear();
    choices_.clear();
    units_.clear();
    for (const int metaop : ready_) {
      const auto m = static_cast<std::size_t>(metaop);
      const Curve& curve = problem_.metaops[m].curve;
      const double delay = answer.delays[static_cast<std::size_t>(relaxation_.path_of()[m])];
      Ready& ready = choices_.emplace_back(Ready{answer.prices[m], left[m], 0});
      for (std::size_t i = 0; i < curve.size(); ++i) {
        const double rent = (curve.devices[i] + delay) * device;
        if (rent * curve.seconds[i] > answer.prices[m] * dear) continue;
        options_.push_back({(1 + 1e-12) / curve.seconds[i], rent});
        ++ready.options;
        const auto same = std::ranges::find_if(
            units_, [&](const auto& unit) { return std::abs(unit.first - curve.seconds[i]) <= 1e-9 * unit.first; });
        if (same == units_.end() && units_.size() < most_units)
          units_.emplace_back(curve.seconds[i], left[m]);
        else if (same != units_.end())
          same->second = std::max(same->second, left[m]);
      }
    }
  }

  std::vector<Wave> waves() {
    std::vector<Wave> out;
    for (std::uint32_t at = end_; at != none && states_[at].before != none; at = states_[at].before)
      out.insert(out.begin(), {states_[at].parts, wave_seconds(problem_, states_[at].parts)});
    return out;
  }

  const Problem& problem_;
  BeamLimits limits_;
  Work& work_;
  Relaxation relaxation_;
  WaveChoice choice_;
  bool moves_;
  std::vector<double> factors_;  // of prices
  double best_ = 0;
  double step_ = 0;
  std::uint32_t end_ = none;
  std::vector<State> states_;
  std::vector<std::vector<std::uint32_t>> buckets_;
  std::vector<int> ready_;
  std::vector<Option> options_;
  std::vector<Ready> choices_;
  std::vector<std::pair<double, int>> units_;     // seconds of an operator, and how many there are
  std::vector<std::pair<double, double>> found_;  // loss and length
};

}  // namespace detail

}  // namespace galvatron::spindle
