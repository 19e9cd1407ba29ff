// Random problems, and the best plan of waves by trying all.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <galvatron/spindle/problem.hpp>

namespace galvatron::test {

using Random = std::mt19937_64;

inline int draw(Random& random, int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); }
/// Log-uniform.
inline double draw_between(Random& random, double least, double most) {
  return std::exp(std::uniform_real_distribution<double>(std::log(least), std::log(most))(random));
}

/// A curve on some of the numbers up to `devices`, 1 not always among them: linear, or falling at random.
inline spindle::Curve random_curve(Random& random, int devices) {
  if (draw(random, 0, 2) > 0) {
    constexpr int batches[] = {1, 4, 6, 7, 8, 12, 13, 16, 24, 36, 64, 96};
    return spindle::linear_curve(batches[draw(random, 0, 11)], draw_between(random, 1e-5, 1e-3),
                                 draw_between(random, 1e-5, 1e-3), devices);
  }
  spindle::Curve out;
  double seconds = draw_between(random, 1e-4, 1e-2);
  for (int n = draw(random, 1, std::min(2, devices)); n <= devices; n += draw(random, 1, 4)) {
    out.add(n, seconds);
    seconds *= std::uniform_real_distribution<double>(0.4, 1.02)(random);
  }
  return out;
}

/// @param depth  levels at most; MetaOps behind the first level wait for one or two others
inline spindle::Problem random_problem(Random& random, int devices, int metaops, int most_operators, int depth = 1) {
  spindle::Problem out;
  out.devices = devices;
  for (int m = 0; m < metaops; ++m) {
    spindle::MetaOp metaop{text_of("m", m), draw(random, 1, most_operators), random_curve(random, devices), {}, 0};
    if (!out.metaops.empty() && draw(random, 0, 3) == 0) metaop.curve = out.metaops.back().curve;
    for (int k = depth > 1 && m > 0 ? draw(random, 0, 2) : 0; k > 0; --k) {
      const int before = draw(random, 0, m - 1);
      const int level = out.metaops[static_cast<std::size_t>(before)].level;
      if (level + 1 >= depth || std::ranges::count(metaop.after, before) > 0) continue;
      metaop.after.push_back(before);
      metaop.level = std::max(metaop.level, level + 1);
    }
    out.metaops.push_back(std::move(metaop));
  }
  return out;
}

/// The seconds of the best plan of waves: every number of devices and operators of every MetaOp is tried in every wave.
class BruteForce {
 public:
  explicit BruteForce(const spindle::Problem& problem) : problem_(problem) {}

  double operator()() {
    std::vector<int> left;
    for (const spindle::MetaOp& metaop : problem_.metaops) left.push_back(metaop.operators);
    return best(left);
  }

 private:
  double best(const std::vector<int>& left) {
    if (std::ranges::all_of(left, [](int count) { return count == 0; })) return 0;
    if (const auto at = known_.find(left); at != known_.end()) return at->second;
    double least = std::numeric_limits<double>::infinity();
    std::vector<int> next = left;
    choose(left, 0, problem_.devices, 0, next, least);
    return known_[left] = least;
  }
  void choose(const std::vector<int>& left, std::size_t m, int free, double length, std::vector<int>& next,
              double& least) {
    if (m == left.size()) {
      if (next != left) least = std::min(least, length + best(std::vector<int>(next)));
      return;
    }
    choose(left, m + 1, free, length, next, least);
    const spindle::MetaOp& metaop = problem_.metaops[m];
    for (const int before : metaop.after)
      if (left[static_cast<std::size_t>(before)] > 0) return;
    for (std::size_t i = 0; i < metaop.curve.size() && metaop.curve.devices[i] <= free; ++i)
      for (int operators = 1; operators <= left[m]; ++operators) {
        next[m] = left[m] - operators;
        choose(left, m + 1, free - metaop.curve.devices[i], std::max(length, operators * metaop.curve.seconds[i]), next,
               least);
      }
    next[m] = left[m];
  }

  const spindle::Problem& problem_;
  std::map<std::vector<int>, double> known_;
};

}  // namespace galvatron::test
