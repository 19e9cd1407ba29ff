#include <galvatron/search/label.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

using namespace galvatron;
using namespace galvatron::search;

namespace {

// What a stage needs when the layers of `tail` follow a label.
std::int64_t completed(Label label, std::int64_t kept, std::int64_t workspace) {
  label.add({}, kept, workspace);
  return label.top;
}

std::vector<Label> random_labels(std::mt19937& random, int count) {
  const auto upto = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  std::vector<Label> labels;
  for (int i = 0; i < count; ++i) {
    Label label;
    const Terms terms{1.0 * upto(9), 1.0 * upto(9), 1.0 * upto(5)};
    const std::int64_t kept = upto(20);
    label.add(terms, kept, upto(20));
    label.parent = i;
    labels.push_back(label);
  }
  return labels;
}

}  // namespace

TEST_CASE("a label's top is what is kept and the largest workspace of its layers") {
  Label label;
  label.add({1, 1, 0}, 100, 30);
  label.add({2, 1, 1}, 50, 10);
  CHECK(label.time == 3);
  CHECK(label.fill == 2);
  CHECK(label.per_iteration == 1);
  CHECK(label.kept == 150);
  CHECK(label.top == 180);
  label.add({}, 5, 90);
  CHECK(label.top == 155 + 90);
}

TEST_CASE("labels that are removed are dominated by one that is kept, whatever follows, and kept ones are not") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const std::vector<Label> all = random_labels(random, 40);
    std::vector<Label> best = all;
    std::int64_t work = 0;
    CHECK(!keep_best(best, std::numeric_limits<std::size_t>::max(), 1, work));
    const auto never_worse = [](const Label& a, const Label& b) {
      if (a.time > b.time || a.fill > b.fill || a.per_iteration > b.per_iteration) return false;
      for (const std::int64_t workspace : {0, 3, 7, 12, 15, 18, 20, 25, 40})
        if (completed(a, 5, workspace) > completed(b, 5, workspace)) return false;
      return true;
    };
    for (const Label& label : all) {
      const bool covered =
          std::any_of(best.begin(), best.end(), [&](const Label& other) { return never_worse(other, label); });
      CHECK(covered);
    }
    for (const Label& a : best)
      for (const Label& b : best) {
        const bool dominates = a.parent != b.parent && a.time <= b.time && a.fill <= b.fill &&
                               a.per_iteration <= b.per_iteration && a.kept <= b.kept && a.top <= b.top;
        CHECK(!dominates);
      }
  }
}

TEST_CASE("a Pareto front dominates exactly what one of its pairs dominates") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    std::uniform_int_distribution<int> figure(0, seed % 2 == 0 ? 9 : 200);
    ParetoFront<double> front;
    std::vector<std::pair<double, double>> pairs;
    for (int i = 0; i < 60; ++i) {
      const double x = figure(random);
      const double y = figure(random);
      const bool reached =
          std::any_of(pairs.begin(), pairs.end(), [&](const auto& p) { return p.first <= x && p.second <= y; });
      REQUIRE(front.dominates(x, y) == reached);
      if (reached) continue;
      front.add(x, y);
      pairs.emplace_back(x, y);
    }
  }
}

TEST_CASE("beam-truncated labels keep the fastest, stay in order and within the limit") {
  std::mt19937 random(5);
  std::vector<Label> labels;
  for (int i = 0; i < 500; ++i) {  // a front in time and memory
    Label label;
    label.add({1.0 * i, 1.0 * i, 0}, 100'000 - 199 * i, 0);
    label.parent = i;
    labels.push_back(label);
  }
  std::shuffle(labels.begin(), labels.end(), random);
  std::int64_t work = 0;
  CHECK(keep_best(labels, 20, 0, work));
  CHECK(labels.size() <= 20);
  CHECK(labels.size() > 10);
  CHECK(labels.front().time == 0);
  CHECK(std::is_sorted(labels.begin(), labels.end()));
}
