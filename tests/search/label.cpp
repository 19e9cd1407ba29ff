#include <galvatron/search/label.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <utility>
#include <vector>

using namespace galvatron;
using namespace galvatron::search;

namespace {

// What a stage needs when the layers of `tail` follow a label.
std::int64_t completed(Label label, std::int64_t kept, std::int64_t workspace) {
  label.add(0, 0, 0, kept, workspace);
  return label.top;
}

std::vector<Label> random_labels(std::mt19937& random, int count) {
  const auto upto = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  std::vector<Label> labels;
  for (int i = 0; i < count; ++i) {
    Label label;
    label.add(upto(9), upto(9), upto(5), upto(20), upto(20));
    label.parent = i;
    labels.push_back(label);
  }
  return labels;
}

}  // namespace

TEST_CASE("a label's top is what is kept and the largest workspace of its layers") {
  Label label;
  label.add(1, 1, 0, 100, 30);
  label.add(2, 1, 1, 50, 10);
  CHECK(label.time == 3);
  CHECK(label.ramp == 2);
  CHECK(label.once == 1);
  CHECK(label.kept == 150);
  CHECK(label.top == 180);
  label.add(0, 0, 0, 5, 90);
  CHECK(label.top == 155 + 90);
}

TEST_CASE("labels that are removed are beaten by one that is kept, whatever follows, and kept ones are not") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const std::vector<Label> all = random_labels(random, 40);
    std::vector<Label> best = all;
    CHECK(!keep_best(best, std::numeric_limits<std::size_t>::max(), 1));
    const auto never_worse = [](const Label& a, const Label& b) {
      if (a.time > b.time || a.ramp > b.ramp || a.once > b.once) return false;
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
        const bool beats = a.parent != b.parent && a.time <= b.time && a.ramp <= b.ramp && a.once <= b.once &&
                           a.kept <= b.kept && a.top <= b.top;
        CHECK(!beats);
      }
  }
}

TEST_CASE("a staircase reaches exactly what one of its pairs reaches") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    std::uniform_int_distribution<int> figure(0, seed % 2 == 0 ? 9 : 200);
    galvatron::search::detail::Staircase<double> stairs;
    std::vector<std::pair<double, double>> pairs;
    for (int i = 0; i < 60; ++i) {
      const double x = figure(random);
      const double y = figure(random);
      const bool reached =
          std::any_of(pairs.begin(), pairs.end(), [&](const auto& p) { return p.first <= x && p.second <= y; });
      REQUIRE(stairs.reaches(x, y) == reached);
      if (reached) continue;
      stairs.add(x, y);
      pairs.emplace_back(x, y);
    }
  }
}

TEST_CASE("thinned labels keep the fastest, stay in order and within the limit") {
  std::mt19937 random(5);
  std::vector<Label> labels;
  for (int i = 0; i < 500; ++i) {  // a front in time and memory
    Label label;
    label.add(i, i, 0, 100'000 - 199 * i, 0);
    label.parent = i;
    labels.push_back(label);
  }
  std::shuffle(labels.begin(), labels.end(), random);
  CHECK(keep_best(labels, 20, 0));
  CHECK(labels.size() <= 20);
  CHECK(labels.size() > 10);
  CHECK(labels.front().time == 0);
  CHECK(std::is_sorted(labels.begin(), labels.end()));
}
