// What ranks have of what tensor and context ranks share.
#include <doctest/doctest.h>

#include <algorithm>
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
                      .context = 1 + static_cast<int>(random() % 4),
                      .data = 1 + static_cast<int>(random() % 4),
                      .shard_kind = ShardKind::by_ratio};
    if (spec.context > 1) spec.sequence = random() % 2 == 0 ? SequenceKind::ulysses : SequenceKind::ring;
    if (spec.tensor > 1 && random() % 2 == 0) spec = spec.with_cut(true);
    spec.strided = spec.tensor > 1 && spec.shards() > 1 && random() % 2 == 0;
    std::array<std::vector<int>, 4> lists;
    for (std::vector<int>& list : lists) {
      if (random() % 4 == 0) continue;
      for (int i = 0; i < spec.ranks(); ++i) list.push_back(static_cast<int>(random() % 4));
      list[random() % list.size()] += 1;  // not all 0
    }
    const RankRatios ratios{.heads = lists[0], .widths = lists[1], .vocabulary = lists[2], .tokens = lists[3]};
    const std::int64_t groups = spec.tensor * (1 + static_cast<std::int64_t>(random() % 3));
    const std::int64_t vocabulary = 1 + static_cast<std::int64_t>(random() % 2000);
    const std::int64_t tokens = 2 * spec.tensor * spec.context * (1 + static_cast<std::int64_t>(random() % 9));
    std::int64_t heads = 0, units = 0, rows = 0;
    for (int i = 0; i < spec.tensor; ++i) {
      const int local = spec.rank_layout().offset(RankMode::tp, i);
      const RankShares own(spec, ratios, local);
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
      for (int d = 1; d < spec.data; ++d)
        CHECK(RankShares(spec, ratios, local + spec.rank_layout().offset(RankMode::dp, d)) == own);
      // Context ranks share what the tensor rank has.
      std::int64_t core_heads = 0;
      for (const RankShares& context : context_shares(spec, ratios, local)) {
        CHECK(context.heads() == own.heads());
        if (!context.has_even_core_heads()) follows(context.core_heads().of(own.heads().count(groups)), core_heads);
      }
      CHECK((core_heads == own.heads().count(groups) || own.has_even_core_heads()));
    }
    CHECK(heads == 8 * groups);
    CHECK(units == 24 * spec.tensor);
    CHECK(rows == vocabulary);

    // Activations lie where the shares say: the tensor ranks of a context rank have its tokens in their order.
    const ActivationLayout between = activation_layout(spec, 3, spec.data, tokens, ratios);
    const ActivationLayout inside = region_layout(spec, 3, spec.data, tokens, ratios);
    std::vector<int> seen(static_cast<std::size_t>(tokens));
    for (int c = 0; c < spec.context; ++c) {
      std::vector<std::int64_t> whole, joint;
      const auto add = [&](const ActivationLayout& layout, int local, std::vector<std::int64_t>& to) {
        for (int piece = 0; piece < layout.pieces(); ++piece) {
          const Region region = layout.region(3 + local, piece);
          for (std::int64_t token = region.sequence_begin; token < region.sequence_end; ++token) to.push_back(token);
        }
      };
      for (int t = 0; t < spec.tensor; ++t) {
        const int local = spec.rank_layout().offset(RankMode::cp, c) + spec.rank_layout().offset(RankMode::tp, t);
        const RankShares own(spec, ratios, local);
        if (t == 0) add(inside, local, whole);
        const auto before = std::ssize(joint);
        if (spec.cuts_over_tensor() || t == 0) add(between, local, joint);
        CHECK(own.region_tokens().count(tokens) == std::ssize(whole));
        if (spec.cuts_over_tensor() || t == 0) CHECK(own.tokens().count(tokens) == std::ssize(joint) - before);
      }
      CHECK(joint == whole);
      CHECK(std::ranges::is_sorted(whole));
      for (const std::int64_t token : whole) ++seen[static_cast<std::size_t>(token)];
    }
    CHECK(std::ranges::count(seen, 1) == tokens);
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
  spec = {.sequence = SequenceKind::ulysses, .context = 5, .shard_kind = ShardKind::by_ratio};
  CHECK(says(why(gpt, spec, {.tokens = list}), "Ulysses exchanges heads"));
  CHECK(says(why(gpt, spec, {.heads = list}), "the context degree does not divide the sequence"));
  CHECK(why(gpt, spec, {.heads = list, .tokens = list}).empty());
  LayerSpec vit = value_or_throw(find_model("vit-huge-32")).embedding;
  spec = {.tensor = 2, .sequence = SequenceKind::megatron, .shard_kind = ShardKind::by_ratio};
  CHECK(says(std::string(why_unfit(vit, spec, 1, vit.positions, {.tokens = list})), "tokens of images"));
  LayerSpec experts = value_or_throw(find_model("moe-tiny")).blocks.front();
  spec = {.sequence = SequenceKind::ulysses, .context = 2, .shard_kind = ShardKind::by_ratio};
  CHECK(why(experts, spec, {.tokens = list}).empty());
  spec.expert = 2;
  CHECK(says(why(experts, spec, {.tokens = list}), "equally many of those that are routed to experts"));
}
