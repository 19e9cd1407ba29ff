// Spindle's waves: tuples of the bi-point allocation, taken greedily, as its released planner has them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/spindle/levels.hpp>
#include <galvatron/spindle/problem.hpp>
#include <galvatron/spindle/relaxation.hpp>
#include <galvatron/spindle/wave_length.hpp>

namespace galvatron::spindle {

namespace detail {

/// Neighbouring waves of the same MetaOps and devices become one: its longest part takes no longer than both of theirs.
inline void merge_equal_waves(const Problem& problem, std::vector<Wave>& waves) {
  const auto key = [](const Wave& wave) {
    std::vector<std::pair<int, int>> out;
    for (const Part& part : wave.parts) out.emplace_back(part.metaop, part.devices);
    std::ranges::sort(out);
    return out;
  };
  std::vector<Wave> out;
  for (Wave& wave : waves) {
    if (out.empty() || key(out.back()) != key(wave)) {
      out.push_back(std::move(wave));
      continue;
    }
    Wave& last = out.back();
    for (Part& part : last.parts)
      part.operators += std::ranges::find(wave.parts, part.metaop, &Part::metaop)->operators;
    last.seconds = wave_seconds(problem, last.parts);
  }
  waves = std::move(out);
}

/// The waves of one level.
class GreedyWaves {
 public:
  GreedyWaves(const Problem& level, double optimum, bool extend) : problem_(level), extend_(extend) {
    for (std::size_t m = 0; m < level.count(); ++m) {
      const MetaOp& metaop = level.metaops[m];
      const Allocation allocation = allocation_of(metaop, optimum);
      const int lower = allocation.lower_rounded(metaop.operators);
      if (lower > 0) tuples_.push_back({static_cast<int>(m), allocation.lower, lower});
      if (metaop.operators > lower)
        tuples_.push_back({static_cast<int>(m), allocation.upper, metaop.operators - lower});
      left_.push_back(metaop.operators);
    }
  }

  std::vector<Wave> run() {
    std::vector<Wave> out;
    while (!tuples_.empty()) out.push_back(next());
    merge_equal_waves(problem_, out);
    return out;
  }

 private:
  struct Taken {
    std::size_t tuple;
    int devices;
    int operators;
  };

  [[nodiscard]] const Curve& curve(int metaop) const {
    return problem_.metaops[static_cast<std::size_t>(metaop)].curve;
  }
  [[nodiscard]] double seconds(const Part& tuple) const { return part_seconds(problem_, tuple); }
  [[nodiscard]] double operator_seconds(int metaop, int devices) const {
    return curve(metaop).seconds[curve(metaop).find(devices)];
  }

  Wave next() {
    std::ranges::stable_sort(tuples_, [&](const Part& a, const Part& b) {
      return a.devices != b.devices ? a.devices > b.devices : seconds(a) > seconds(b);
    });
    int free = problem_.devices;
    std::vector<Taken> taken;
    std::vector<char> busy(problem_.count(), 0);
    for (std::size_t t = 0; t < tuples_.size(); ++t) {
      const auto m = static_cast<std::size_t>(tuples_[t].metaop);
      if (busy[m] != 0 || tuples_[t].devices > free) continue;
      busy[m] = 1;
      free -= tuples_[t].devices;
      taken.push_back({t, tuples_[t].devices, 0});
    }
    const double length = length_of(taken);
    for (Taken& one : taken)
      one.operators = operators_within(length, operator_seconds(tuples_[one.tuple].metaop, one.devices),
                                       tuples_[one.tuple].operators);
    if (extend_)
      while (free > 0 && extend_one(taken, length, free)) {
      }
    return commit(taken);
  }

  [[nodiscard]] double length_of(const std::vector<Taken>& taken) const {
    double shortest = seconds(tuples_[taken.front().tuple]);
    for (const Taken& one : taken) shortest = std::min(shortest, seconds(tuples_[one.tuple]));
    double length = 0;
    for (const Taken& one : taken) {
      const double each = operator_seconds(tuples_[one.tuple].metaop, one.devices);
      length = std::max(length, std::max(std::floor(shortest / each + 0.5), 1.0) * each);
    }
    return length;
  }

  // Raises the tuple with the most remaining time, or, where all end in this wave, the longest one. Whether one was.
  bool extend_one(std::vector<Taken>& taken, double length, int& free) {
    Taken* best = nullptr;
    std::tuple<bool, double> rank{};
    for (Taken& one : taken) {
      const Part& tuple = tuples_[one.tuple];
      const Curve& own = curve(tuple.metaop);
      const std::size_t place = own.find(one.devices);
      if (place + 1 >= own.size() || own.devices[place + 1] - one.devices > free) continue;
      const auto m = static_cast<std::size_t>(tuple.metaop);
      const double share = static_cast<double>(left_[m] - one.operators) / problem_.metaops[m].operators;
      const bool goes_on = one.operators < tuple.operators;
      const std::tuple<bool, double> own_rank{goes_on, goes_on ? share : one.operators * own.seconds[place]};
      if (best != nullptr && own_rank <= rank) continue;
      best = &one;
      rank = own_rank;
    }
    if (best == nullptr) return false;
    const Part& tuple = tuples_[best->tuple];
    const Curve& own = curve(tuple.metaop);
    const std::size_t place = own.find(best->devices) + 1;
    free -= own.devices[place] - best->devices;
    best->devices = own.devices[place];
    if (std::get<bool>(rank)) best->operators = operators_within(length, own.seconds[place], tuple.operators);
    return true;
  }

  Wave commit(const std::vector<Taken>& taken) {
    Wave out;
    for (const Taken& one : taken) {
      if (one.operators == 0) continue;
      Part& tuple = tuples_[one.tuple];
      out.parts.push_back({tuple.metaop, one.devices, one.operators});
      tuple.operators -= one.operators;
      left_[static_cast<std::size_t>(tuple.metaop)] -= one.operators;
    }
    std::erase_if(tuples_, [](const Part& tuple) { return tuple.operators == 0; });
    out.seconds = wave_seconds(problem_, out.parts);
    return out;
  }

  const Problem& problem_;
  bool extend_;
  std::vector<Part> tuples_;
  std::vector<int> left_;
};

}  // namespace detail

/// Spindle's plan: level after level, each in greedy waves.
/// @param extend  devices that a wave leaves free go to tuples that do not end in it
inline std::vector<Wave> greedy_waves(const Problem& problem, bool extend) {
  std::vector<Wave> out;
  for (const Level& level : levels_of(problem)) {
    const double optimum = Relaxation(level.problem).bound(operators_of(level.problem));
    for (Wave& wave : detail::GreedyWaves(level.problem, optimum, extend).run()) {
      for (Part& part : wave.parts) part.metaop = level.metaops[static_cast<std::size_t>(part.metaop)];
      out.push_back(std::move(wave));
    }
  }
  return out;
}

}  // namespace galvatron::spindle
