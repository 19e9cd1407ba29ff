#include <galvatron/strategy/legality.hpp>

#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include <doctest/doctest.h>

#include <galvatron/model/build.hpp>

namespace galvatron {
namespace {

constexpr LayerSpec block{
    .kind = LayerKind::block, .hidden = 96, .heads = 12, .kv_heads = 4, .head_dim = 8, .ffn = 384, .positions = 64};

constexpr bool mentions(std::string_view sentence, std::string_view part) {
  return sentence.find(part) != std::string_view::npos;
}

TEST_CASE("a single rank is legal, and so are the usual combinations") {
  CHECK(is_legal({}));
  CHECK(is_legal({.tensor = 2, .sequence = SequenceKind::megatron, .data = 4, .zero = 3}));
  CHECK(is_legal({.sequence = SequenceKind::ring, .context = 2}));
  CHECK(is_legal({.tensor = 3, .data = 5, .zero = 1, .recompute = RecomputeKind::full}));
  CHECK(is_legal({.data = 4, .expert = 2}));
  CHECK(is_legal({.sequence = SequenceKind::ulysses, .context = 2, .zero = 3}));
}

TEST_CASE("each rule tells its reason") {
  CHECK(mentions(why_illegal({.tensor = 0}), "at least 1"));
  CHECK(mentions(why_illegal({.data = -4}), "at least 1"));
  CHECK(mentions(why_illegal({.expert = 0}), "at least 1"));
  CHECK(mentions(why_illegal({.data = 2, .zero = 4}), "0, 1, 2 or 3"));
  CHECK(mentions(why_illegal({.data = 2, .zero = -1}), "0, 1, 2 or 3"));
  CHECK(mentions(why_illegal({.zero = 1}), "data degree of at least 2"));
  CHECK(mentions(why_illegal({.sequence = SequenceKind::megatron, .data = 4}), "tensor degree of at least 2"));
  CHECK(mentions(why_illegal({.sequence = SequenceKind::ulysses}), "context degree of at least 2"));
  CHECK(mentions(why_illegal({.sequence = SequenceKind::ring}), "context degree of at least 2"));
  CHECK(mentions(why_illegal({.context = 2}), "choose Ulysses or ring"));
  CHECK(is_legal({.tensor = 2, .sequence = SequenceKind::megatron, .context = 2}));  // with ring attention
  CHECK(is_legal({.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2}));
  CHECK(mentions(why_illegal({.sequence = SequenceKind::megatron_ulysses, .context = 2}), "tensor degree of at least"));
  CHECK(mentions(why_illegal({.tensor = 2, .sequence = SequenceKind::megatron_ulysses}), "context degree of at least"));
  CHECK(mentions(why_illegal({.tensor = 2,
                              .sequence = SequenceKind::megatron_ulysses,
                              .context = 2,
                              .zero = 3,
                              .groups = SequenceGroupKind::per_batch}),
                 "choose Ulysses or ring"));
  CHECK(mentions(why_illegal({.data = 4, .expert = 3}), "divides their number"));
  CHECK(mentions(why_illegal({.tensor = 2, .data = 2, .expert = 4}), "divides their number"));
  CHECK(mentions(why_illegal({.data = 4, .dispatch = DispatchKind::lsh}), "experts on other ranks"));
  CHECK(is_legal({.data = 4, .expert = 2, .dispatch = DispatchKind::lsh}));
  CHECK(is_legal({.tensor = 2, .data = 2, .expert_tensor = 1, .dispatch = DispatchKind::lsh}));
  CHECK(is_legal({.tensor = 2, .data = 2, .expert = 4, .expert_tensor = 1}));  // over tensor and data ranks
  CHECK(mentions(why_illegal({.expert_tensor = -1}), "tensor degree of experts"));
  CHECK(is_legal({.tensor = 2, .data = 2, .expert = 4, .expert_tensor = 1, .expert_nodes = 2}));
  CHECK(mentions(why_illegal({.data = 4, .expert = 4, .expert_nodes = 3}), "divides the expert degree"));
  CHECK(mentions(why_illegal({.data = 4, .expert = 4, .expert_nodes = 0}), "divides the expert degree"));
  CHECK(mentions(why_illegal({.data = 4, .expert_nodes = 2}), "divides the expert degree"));
  CHECK(mentions(why_illegal({.data = 4, .expert = 4, .expert_nodes = 2, .dispatch = DispatchKind::lsh}),
                 "one node of experts"));
  CHECK(mentions(why_illegal({.tensor = 2, .data = 2, .expert = 2, .strided = true}), "not strided"));
  CHECK(mentions(why_illegal({.data = 4, .expert = std::numeric_limits<int>::max(), .expert_tensor = 3}),
                 "divides their number"));
  CHECK(mentions(why_illegal({.data = 4, .strided = true}), "tensor degree of at least 2"));
  CHECK(mentions(why_illegal({.tensor = 4, .strided = true}), "a data or context degree"));
  CHECK(is_legal({.tensor = 2, .sequence = SequenceKind::ring, .context = 2, .strided = true}));
  constexpr int large = std::numeric_limits<int>::max();
  CHECK(mentions(why_illegal({.tensor = large, .context = large, .data = large}), "at most 16777216"));
  CHECK(mentions(why_illegal({.data = large}), "at most 16777216"));
}

TEST_CASE("any values whatever get an answer") {
  const std::uint32_t seed = 42;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const auto number = [&] { return static_cast<int>(random() % 3 == 0 ? random() : random() % 7 - 1); };
  int legal = 0;
  for (int i = 0; i < 100'000; ++i) {
    const StrategySpec spec{.tensor = number(),
                            .sequence = static_cast<SequenceKind>(random() % 5),
                            .context = number(),
                            .data = number(),
                            .zero = number(),
                            .expert = number(),
                            .recompute = recompute_kinds[random() % recompute_kinds.size()]};
    if (!is_legal(spec)) continue;
    ++legal;
    CHECK(spec.ranks() >= 1);
    CHECK(spec.ranks() <= most_ranks);
  }
  CHECK(legal > 100);
}

TEST_CASE("ranks that cut an image merge the tokens that they have") {
  const LayerSpec merging =
      swin("swin", {.depths = {2, 2, 0, 0}, .hidden = 32, .heads = {2, 12, 0, 0}, .image = 48, .window = 6})
          .blocks[2];  // 6 x 6 tokens from 12 x 12
  const StrategySpec two{.tensor = 2, .sequence = SequenceKind::megatron};
  const StrategySpec four{.tensor = 4, .sequence = SequenceKind::megatron};
  CHECK(is_fit(merging, two, 1, 144));
  CHECK(mentions(why_unfit(merging, four, 1, 144), "rows of the merged image"));
  CHECK(is_fit(merging, {.tensor = 4}, 1, 144));
  LayerSpec next = merging;
  next.merges = false;
  CHECK(is_fit(next, four, 1, 144));
  CHECK(mentions(why_unfit(merging, {.sequence = SequenceKind::ring, .context = 2}, 1, 144), "windows"));
}

TEST_CASE("a block needs degrees that divide its heads, its MLP, the sequence and the samples") {
  CHECK(is_fit(block, {.tensor = 4, .data = 2}, 2, 64));
  CHECK(mentions(why_unfit(block, {.tensor = 5}, 1, 64), "attention heads"));
  CHECK(mentions(why_unfit(block, {.tensor = 3}, 1, 64), "key/value heads"));
  LayerSpec narrow = block;
  narrow.ffn = 6;
  CHECK(mentions(why_unfit(narrow, {.tensor = 4}, 1, 64), "MLP"));
  const StrategySpec megatron{.tensor = 4, .sequence = SequenceKind::megatron};
  CHECK(is_fit(block, megatron, 1, 60));
  CHECK(mentions(why_unfit(block, megatron, 1, 62), "Megatron"));
  CHECK(is_fit(block, {.tensor = 4}, 1, 62));
  CHECK(mentions(why_unfit(block, {.data = 3}, 4, 64), "samples"));
  CHECK(mentions(why_unfit(block, {}, 1, 65), "positions"));
  CHECK(mentions(why_unfit(block, {}, 0, 64), "at least one sample"));
  CHECK(mentions(why_unfit(block, {}, 1, 0), "at least one token"));
  CHECK(mentions(why_unfit(block, {.sequence = SequenceKind::ring, .context = 3}, 1, 64), "context degree"));
  CHECK(mentions(why_unfit(block, {.tensor = 2, .sequence = SequenceKind::ulysses, .context = 4}, 1, 64), "Ulysses"));
  CHECK(is_fit(block, {.sequence = SequenceKind::ring, .context = 2}, 1, 60));
  CHECK(mentions(why_unfit(block, {.sequence = SequenceKind::ring, .context = 4}, 1, 60), "twice the context degree"));
  CHECK(is_fit(block, {.sequence = SequenceKind::ulysses, .context = 4}, 1, 60));
  const StrategySpec both{.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2};
  CHECK(is_fit(block, both, 1, 60));
  CHECK(mentions(why_unfit(block, both, 1, 62), "product of both degrees"));
  CHECK(mentions(why_unfit(block, {.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 4}, 1, 64),
                 "Ulysses exchanges heads"));
}

TEST_CASE("ring attention takes no sliding window that is shorter than the sequence") {
  LayerSpec layer = block;
  layer.sliding_window = 32;
  CHECK(mentions(why_unfit(layer, {.sequence = SequenceKind::ring, .context = 2}, 1, 64), "sliding window"));
  CHECK(is_fit(layer, {.sequence = SequenceKind::ring, .context = 2}, 1, 32));
  CHECK(is_fit(layer, {.sequence = SequenceKind::ulysses, .context = 2}, 1, 64));
}

TEST_CASE("a norm of all queries of a token needs them on one rank") {
  LayerSpec layer = block;
  layer.norm = NormKind::rms_norm;
  layer.query_key_norm = QueryKeyNorm::all;
  CHECK(mentions(why_unfit(layer, {.tensor = 2}, 1, 64), "the tensor degree is 1"));
  CHECK(is_fit(layer, {.sequence = SequenceKind::ring, .context = 2}, 1, 64));
  layer.query_key_norm = QueryKeyNorm::heads;
  CHECK(is_fit(layer, {.tensor = 2}, 1, 64));
}

TEST_CASE("Ulysses may have more ranks than key/value heads, if each head goes to equally many") {
  const auto fits = [](std::int64_t heads, std::int64_t kv_heads, int tensor, int context) {
    LayerSpec layer = block;
    layer.heads = heads;
    layer.kv_heads = kv_heads;
    return is_fit(layer, {.tensor = tensor, .sequence = SequenceKind::ulysses, .context = context}, 1, 60);
  };
  CHECK(fits(12, 4, 1, 4));
  CHECK(fits(12, 4, 1, 12));  // each head to three ranks
  CHECK(fits(12, 4, 2, 6));   // each tensor rank has 6 heads and 2 key/value heads
  CHECK_FALSE(fits(12, 4, 1, 6));
  CHECK_FALSE(fits(12, 4, 1, 5));
  CHECK(fits(30, 5, 1, 5));
  CHECK(fits(30, 6, 1, 3));
  CHECK_FALSE(fits(30, 6, 1, 15));
}

TEST_CASE("backward comes in two parts where nothing is computed again but outputs of norms and activations") {
  CHECK(splits_backward(block, {}));
  CHECK(splits_backward(block, {.recompute = RecomputeKind::none}));
  CHECK_FALSE(splits_backward(block, {.recompute = RecomputeKind::selective}));
  CHECK_FALSE(splits_backward(block, {.recompute = RecomputeKind::full}));
}

TEST_CASE("embedding and head need no divisible vocabulary, but the rest") {
  LayerSpec head = block;
  head.kind = LayerKind::head;
  head.vocabulary = 257;
  CHECK(is_fit(head, {.tensor = 5}, 1, 64));
  CHECK_FALSE(is_fit(head, {.tensor = 5, .sequence = SequenceKind::megatron}, 1, 64));
  CHECK_FALSE(is_fit(head, {.data = 2}, 3, 64));
}

}  // namespace
}  // namespace galvatron
