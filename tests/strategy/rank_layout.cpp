// Layouts of ranks and their groups, and that strategies number their ranks by them as the formulas below say.
#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/rank_layout.hpp>
#include <galvatron/strategy/spec.hpp>

namespace {

using namespace galvatron;
using enum RankMode;

constexpr unsigned layout_seed = 20260611;

// (dp 2, cp 2, tp 3) from rank 5 on, tp outermost.
constexpr RankLayout nested() { return RankLayout(5).append(dp, 2, 1).append(cp, 2, 2).append(tp, 3, 4); }

static_assert(nested().size(dp | cp | tp) == 12 && nested().size(ep | pp) == 1);
static_assert(nested().stride(tp) == 4 && nested().stride(dp | cp) == 1);
static_assert(nested().coordinate(tp, 5 + 9) == 2 && nested().coordinate(dp | cp, 5 + 7) == 3);
static_assert(nested().coordinate(ep, 14) == 0);

constexpr RankModes all_modes = RankModes(tp) | cp | dp | ep | pp;

// Up to `most` modes of any names in a random nest.
RankLayout random_layout(std::mt19937& random, int most) {
  const auto number = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  const int count = number(1, most);
  std::vector<int> sizes, order(static_cast<std::size_t>(count)), strides(order.size());
  for (int i = 0; i < count; ++i) sizes.push_back(number(1, 3));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  int stride = 1;
  for (const int i : order) {
    strides[static_cast<std::size_t>(i)] = stride;
    stride *= sizes[static_cast<std::size_t>(i)];
  }
  RankLayout out(number(0, 40));
  for (std::size_t i = 0; i < sizes.size(); ++i) out.append(static_cast<RankMode>(number(0, 4)), sizes[i], strides[i]);
  return out;
}

// Strategies of up to 8 x 8 x 8 ranks.
template <class Check>
void for_each_strategy(const Check& check) {
  for (const SequenceKind sequence : sequence_kinds)
    for (int tensor = 1; tensor <= 8; ++tensor)
      for (int context = 1; context <= 8; context *= 2)
        for (const int data : {1, 2, 3, 8})
          for (const bool strided : {false, true})
            check(StrategySpec{
                .tensor = tensor, .sequence = sequence, .context = context, .data = data, .strided = strided});
}

}  // namespace

TEST_CASE("ranks and coordinates of a layout are one to one, however its modes are nested") {
  CAPTURE(layout_seed);
  std::mt19937 random(layout_seed);
  constexpr std::array names{tp, cp, dp, ep, pp};
  for (int round = 0; round < 500; ++round) {
    const RankLayout layout = random_layout(random, RankLayout::capacity);
    CAPTURE(round);
    const int ranks = layout.size(all_modes);
    for (int rank = layout.first_rank(); rank < layout.first_rank() + ranks; ++rank) {
      int back = layout.first_rank();
      for (const RankMode name : names) back += layout.offset(name, layout.coordinate(name, rank));
      REQUIRE(back == rank);
    }
  }
}

TEST_CASE("the groups of a layout tile its ranks, and all members agree on their order") {
  CAPTURE(layout_seed);
  std::mt19937 random(layout_seed);
  for (int round = 0; round < 200; ++round) {
    const RankLayout layout = random_layout(random, 5);
    const RankModes chosen = RankModes(static_cast<RankMode>(random() % 5)) | static_cast<RankMode>(random() % 5);
    CAPTURE(round);
    const int all = layout.size(all_modes);
    std::set<std::vector<int>> groups;
    for (int rank = layout.first_rank(); rank < layout.first_rank() + all; ++rank) {
      const std::vector<int> ranks = layout.group(chosen, rank);
      REQUIRE(static_cast<int>(ranks.size()) == layout.size(chosen));
      REQUIRE(ranks[static_cast<std::size_t>(layout.coordinate(chosen, rank))] == rank);
      for (const int other : ranks) REQUIRE(layout.group(chosen, other) == ranks);
      groups.insert(ranks);
    }
    CHECK(static_cast<int>(groups.size()) * layout.size(chosen) == all);
  }
  CHECK(nested().group(tp, 10) == std::vector{6, 10, 14});
}

TEST_CASE("the ranks of a strategy are those of the formulas") {
  for_each_strategy([](const StrategySpec& s) {
    const int shards = s.context * s.data;
    const int tensor_stride = s.strided ? shards : 1;
    const int shard_stride = s.strided ? 1 : s.tensor;
    REQUIRE(s.tensor_stride() == tensor_stride);
    REQUIRE(s.shard_stride() == shard_stride);
    const int first = 7;
    const RankLayout layout = s.rank_layout(first);
    for (int local = 0; local < s.ranks(); ++local) {
      const int tensor = local / tensor_stride % s.tensor;
      const int shard = local / shard_stride % shards;
      REQUIRE(s.tensor_rank(local) == tensor);
      REQUIRE(s.shard(local) == shard);
      const auto expected = [&](int place, int stride, int count) {
        std::vector<int> ranks;
        for (int i = 0; i < count; ++i) ranks.push_back(first + local + (i - place) * stride);
        return ranks;
      };
      REQUIRE(layout.group(tp, first + local) == expected(tensor, tensor_stride, s.tensor));
      REQUIRE(layout.group(cp, first + local) == expected(shard % s.context, shard_stride, s.context));
      REQUIRE(layout.group(shard_modes, first + local) == expected(shard, shard_stride, shards));
    }
  });
}

TEST_CASE("the places of activations are those of the formulas") {
  using Place = ActivationLayout::Place;
  for_each_strategy([](const StrategySpec& s) {
    const ActivationLayout a = activation_layout(s, 3, 2 * s.data, 64);
    const int context = a.replicas > 1 ? a.parts : a.parts / a.outer;
    for (int rank = 3; rank < 3 + a.ranks(); ++rank) {
      const int local = rank - 3;
      Place place;
      int back = 0;
      if (a.outer == 1) {
        place = {local / a.replicas % a.parts, local / a.replicas / a.parts, local % a.replicas};
        back = 3 + (place.data * a.parts + place.part) * a.replicas + place.replica;
      } else {
        const int inside = local % (a.ranks() / a.outer);
        const int tensor = local / (a.ranks() / a.outer);
        place = a.replicas > 1 ? Place{inside % context, inside / context, tensor}
                               : Place{inside % context * a.outer + tensor, inside / context, 0};
        back = 3 + (tensor * a.data + place.data) * context + (a.replicas > 1 ? place.part : place.part / a.outer);
      }
      REQUIRE(a.place(rank) == place);
      REQUIRE(HeldRegions(a).place(rank) == place);
      REQUIRE(a.rank_at(place) == back);
      REQUIRE(back == rank);
    }
  });
}
