#include <galvatron/search/solver.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

using namespace galvatron::search;

namespace {

constexpr StageOption option;

// Few values, so that many figures are equal.
// @param further  terms too
std::vector<PartialPipeline> random_pipelines(std::mt19937& random, bool further = false) {
  const auto upto = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  std::vector<PartialPipeline> out(static_cast<std::size_t>(upto(200)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    static_cast<Terms&>(out[i]) = {1.0 * upto(10), 1.0 * upto(20), 1.0 * upto(10)};
    if (further) out[i].link = upto(5), out[i].kinds = static_cast<std::uint64_t>(upto(7));
    out[i].parent = static_cast<std::int32_t>(i);
    out[i].option = &option;
  }
  return out;
}

// Those that none of the others dominates, the first of equals.
std::vector<PartialPipeline> non_dominated(const std::vector<PartialPipeline>& pipelines) {
  std::vector<PartialPipeline> out;
  for (const PartialPipeline& one : pipelines)
    if (std::none_of(pipelines.begin(), pipelines.end(), [&](const PartialPipeline& other) {
          return dominates(other, one) && (!dominates(one, other) || other.parent < one.parent);
        }))
      out.push_back(one);
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::int32_t> parents(const std::vector<PartialPipeline>& pipelines) {
  std::vector<std::int32_t> out;
  for (const PartialPipeline& pipeline : pipelines) out.push_back(pipeline.parent);
  return out;
}

}  // namespace

TEST_CASE("the partial pipelines that none dominates are kept") {
  for (unsigned seed = 0; seed < 500; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const std::vector<PartialPipeline> all = random_pipelines(random, seed % 3 == 0);
    std::vector<PartialPipeline> kept = all;
    CHECK(!keep_best(kept, all.size(), [](const PartialPipeline&) { return 0.0; }));
    CHECK(parents(kept) == parents(non_dominated(all)));
  }
}

TEST_CASE("of too many partial pipelines those of the least score are kept, in order") {
  int truncated = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    std::vector<PartialPipeline> all = random_pipelines(random);
    const auto score = [](const PartialPipeline& p) { return p.fill + p.time + 1e-3 * p.parent; };
    const auto most = std::uniform_int_distribution<std::size_t>(1, 20)(random);
    std::vector<PartialPipeline> kept = all;
    const bool more = keep_best(kept, most, score);
    truncated += more ? 1 : 0;
    std::vector<PartialPipeline> wanted = non_dominated(all);
    CHECK(more == (wanted.size() > most));
    CHECK(std::is_sorted(kept.begin(), kept.end()));
    std::sort(wanted.begin(), wanted.end(), [&](const auto& a, const auto& b) { return score(a) < score(b); });
    if (more) wanted.resize(most);
    std::sort(wanted.begin(), wanted.end());
    CHECK(parents(kept) == parents(wanted));
  }
  CHECK(truncated > 50);
}
