// What ranks have of what tensor ranks share.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <galvatron/model/zoo.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/ratios.hpp>

#include "../says.hpp"

using namespace galvatron;

TEST_CASE("shares of any ratios tile what is shared, and ranks with the same parameters have the same") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    CAPTURE(round);
    StrategySpec spec{.tensor = 1 + static_cast<int>(random() % 6),
                      .data = 1 + static_cast<int>(random() % 4),
                      .shard_kind = ShardKind::by_ratio};
    if (spec.tensor > 1 && random() % 2 == 0) spec.sequence = SequenceKind::megatron;
    spec.strided = spec.tensor > 1 && spec.data > 1 && random() % 2 == 0;
    std::array<std::vector<int>, 4> lists;
    for (std::vector<int>& list : lists) {
      if (random() % 4 == 0) continue;
      for (int i = 0; i < spec.ranks(); ++i) list.push_back(static_cast<int>(random() % 4));
      list[random() % list.size()] += 1;  // not all 0
    }
    const RankRatios ratios{.heads = lists[0], .widths = lists[1], .vocabulary = lists[2], .tokens = lists[3]};
    const std::int64_t groups = spec.tensor * (1 + static_cast<std::int64_t>(random() % 3));
    const std::int64_t vocabulary = 1 + static_cast<std::int64_t>(random() % 2000);
    const std::int64_t tokens = spec.tensor * (1 + static_cast<std::int64_t>(random() % 9));
    std::int64_t heads = 0, units = 0, rows = 0, sequence = 0;
    for (int i = 0; i < spec.tensor; ++i) {
      const int local = spec.rank_layout().offset(RankMode::tp, i);
      const TensorShares own(spec, ratios, local);
      CHECK(own.rank() == i);
      const auto follows = [](const Sharding::Range& range, std::int64_t& end) {
        CHECK(range.begin == end);
        end = range.end;
      };
      // Sections of heads of 8 elements.
      follows(own.of(8 * groups, groups, true), heads);
      follows(own.of(24 * spec.tensor, 24 * spec.tensor, false), units);
      follows(own.vocabulary(vocabulary), rows);
      CHECK(own.vocabulary_rows(vocabulary) >= own.vocabulary(vocabulary).count());
      CHECK(own.vocabulary_rows(vocabulary) % vocabulary_alignment == 0);
      if (spec.sequence == SequenceKind::megatron) follows(own.tokens().of(tokens), sequence);
      for (int d = 1; d < spec.data; ++d)
        CHECK(TensorShares(spec, ratios, local + spec.rank_layout().offset(RankMode::dp, d)) == own);
      // Activations between regions lie where the shares say.
      if (spec.sequence != SequenceKind::megatron) continue;
      const Region region = activation_layout(spec, 3, spec.data, tokens, ratios).region(3 + local);
      CHECK(region.sequence_begin == own.tokens().of(tokens).begin);
      CHECK(region.sequence_end == own.tokens().of(tokens).end);
    }
    CHECK(heads == 8 * groups);
    CHECK(units == 24 * spec.tensor);
    CHECK(rows == vocabulary);
    if (spec.sequence == SequenceKind::megatron) CHECK(sequence == tokens);
  }
}

TEST_CASE("degrees that divide nothing are legal by ratio, and what cannot be cut so is refused with the reason") {
  const std::vector<int> list{1, 2, 3, 4, 5};
  const LayerSpec gpt = value_or_throw(find_model("gpt2-tiny")).blocks.front();
  const StrategySpec five{.tensor = 5, .shard_kind = ShardKind::by_ratio};
  const auto why = [](const LayerSpec& layer, const StrategySpec& spec, const RankRatios& ratios) {
    return std::string(why_unfit(layer, spec, spec.data, 128, ratios));
  };
  CHECK(says(why(gpt, five, {}), "does not divide the attention heads"));
  CHECK(says(why(gpt, five, {.heads = list}), "does not divide the width of the MLP"));
  CHECK(why(gpt, five, {.heads = list, .widths = list}).empty());
  StrategySpec even = five;
  even.shard_kind = ShardKind::even;
  CHECK(says(why(gpt, even, {.heads = list, .widths = list}), "does not divide the attention heads"));
  StrategySpec spec = five;
  spec.sequence = SequenceKind::megatron;
  CHECK(says(why(gpt, spec, {.heads = list, .widths = list}), "Megatron sequence parallelism needs a sequence"));
  CHECK(why(gpt, spec, {.heads = list, .widths = list, .tokens = list}).empty());
  spec = {.sequence = SequenceKind::ulysses, .context = 4, .shard_kind = ShardKind::by_ratio};
  CHECK(says(why(gpt, spec, {.tokens = list}), "context ranks have equally many tokens"));
  spec = {.tensor = 2, .sequence = SequenceKind::ulysses, .context = 2, .shard_kind = ShardKind::by_ratio};
  CHECK(says(why(gpt, spec, {.heads = list}), "Ulysses exchanges heads"));
  // Ratios of heads do not make more context ranks than heads possible.
  spec = {.sequence = SequenceKind::ulysses, .context = 8, .shard_kind = ShardKind::by_ratio};
  CHECK(says(why(gpt, spec, {.heads = list}), "Ulysses exchanges heads"));
}
