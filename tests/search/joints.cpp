#include <galvatron/search/joints.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

using namespace galvatron::search;

namespace {

using TestJoint = Joint<int>;
constexpr StageOption option;

// Few values, so that many figures are equal.
std::vector<TestJoint> random_joints(std::mt19937& random) {
  const auto upto = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  std::vector<TestJoint> out(static_cast<std::size_t>(upto(200)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].figures = {1.0 * upto(20), 1.0 * upto(10), 1.0 * upto(10)};
    out[i].parent = static_cast<std::int32_t>(i);
    out[i].option = &option;
  }
  return out;
}

bool beats(const JointFigures& a, const JointFigures& b) {
  return a.sum <= b.sum && a.slowest <= b.slowest && a.once <= b.once;
}

// Those that none of the others beats, the first of equals.
std::vector<TestJoint> unbeaten(const std::vector<TestJoint>& joints) {
  std::vector<TestJoint> out;
  for (const TestJoint& one : joints)
    if (std::none_of(joints.begin(), joints.end(), [&](const TestJoint& other) {
          return beats(other.figures, one.figures) && (!beats(one.figures, other.figures) || other.parent < one.parent);
        }))
      out.push_back(one);
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::int32_t> parents(const std::vector<TestJoint>& joints) {
  std::vector<std::int32_t> out;
  for (const TestJoint& joint : joints) out.push_back(joint.parent);
  return out;
}

}  // namespace

TEST_CASE("the joints that none beats are kept, and what was beaten on the way is none of them") {
  int early = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const std::vector<TestJoint> all = random_joints(random);
    std::vector<TestJoint> passed;
    RecentBeaters beaters;
    for (const TestJoint& joint : all) {
      if (beaters.beat(joint.figures)) continue;
      beaters.add(joint.figures);
      passed.push_back(joint);
    }
    early += passed.size() < all.size() / 2 ? 1 : 0;
    keep_unbeaten(passed);
    CHECK(parents(passed) == parents(unbeaten(all)));
  }
  CHECK(early > 250);
}

TEST_CASE("thinned joints are those of the least score, in order") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    std::vector<TestJoint> all = random_joints(random);
    std::sort(all.begin(), all.end());
    const auto score = [](const TestJoint& j) { return j.figures.sum + j.figures.slowest + 1e-3 * j.parent; };
    const auto most = std::uniform_int_distribution<std::size_t>(1, 100)(random);
    std::vector<TestJoint> kept = all;
    CHECK(thin(kept, most, score) == (all.size() > most));
    REQUIRE(kept.size() == std::min(most, all.size()));
    CHECK(std::is_sorted(kept.begin(), kept.end()));
    std::vector<TestJoint> wanted = all;
    std::sort(wanted.begin(), wanted.end(), [&](const auto& a, const auto& b) { return score(a) < score(b); });
    wanted.resize(kept.size());
    std::sort(wanted.begin(), wanted.end());
    CHECK(parents(kept) == parents(wanted));
  }
}
