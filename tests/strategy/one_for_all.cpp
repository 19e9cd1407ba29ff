#include <galvatron/strategy/one_for_all.hpp>

#include <doctest/doctest.h>

#include <galvatron/strategy/space.hpp>

namespace galvatron {
namespace {

// What trainers can be told, in the words of their own limits.
static_assert(can_give(OneForAll::no, {.tensor = 2, .strided = true}, 1, Precision::bf16));
static_assert(!can_give(OneForAll::uniform, {.tensor = 2, .strided = true}, 1, Precision::bf16));
static_assert(can_give(OneForAll::megatron, {.tensor = 2, .data = 2, .zero = 1}, 4, Precision::bf16));

// torchtitan: the sequence is split beside tensor ranks; FSDP or replicas that stand alone.
constexpr StrategySpec split_sequence{.tensor = 2, .sequence = SequenceKind::megatron, .data = 4, .zero = 3};
static_assert(can_give(OneForAll::torchtitan, split_sequence, 2, Precision::bf16));
static_assert(!can_give(OneForAll::torchtitan, {.tensor = 2, .data = 4, .zero = 3}, 2, Precision::bf16));
static_assert(can_give(OneForAll::torchtitan, {.data = 8}, 1, Precision::bf16));
static_assert(!can_give(OneForAll::torchtitan, {.data = 8}, 2, Precision::bf16));
static_assert(!can_give(OneForAll::torchtitan, {.data = 8, .zero = 1}, 1, Precision::bf16));
static_assert(!can_give(OneForAll::torchtitan, {}, 2, Precision::bf16));  // who would cast?
static_assert(can_give(OneForAll::torchtitan, {}, 2, Precision::fp32));
static_assert(!can_give(OneForAll::torchtitan, {.sequence = SequenceKind::ulysses, .context = 8, .zero = 2}, 1,
                        Precision::bf16));

// DeepSpeed: Ulysses beside data ranks alone; pipelines without ZeRO 2 and 3.
constexpr StrategySpec ulysses_beside_data{.sequence = SequenceKind::ulysses, .context = 2, .data = 4, .zero = 3};
static_assert(can_give(OneForAll::deepspeed, ulysses_beside_data, 1, Precision::bf16));
static_assert(!can_give(OneForAll::deepspeed, {.sequence = SequenceKind::ulysses, .context = 2}, 2, Precision::bf16));
static_assert(!can_give(OneForAll::deepspeed, {.sequence = SequenceKind::ring, .context = 2}, 1, Precision::bf16));
static_assert(!can_give(OneForAll::deepspeed, split_sequence, 1, Precision::bf16));
static_assert(can_give(OneForAll::deepspeed, {.data = 4, .zero = 1}, 2, Precision::bf16));
static_assert(!can_give(OneForAll::deepspeed, {.data = 4, .zero = 2}, 2, Precision::bf16));

// Accelerate: FSDP over data and context ranks, beside which tensor ranks keep whole sequences; no pipelines.
static_assert(can_give(OneForAll::accelerate, {.tensor = 2, .data = 4, .zero = 3}, 1, Precision::bf16));
static_assert(can_give(OneForAll::accelerate, {.sequence = SequenceKind::ring, .context = 2, .data = 4, .zero = 2}, 1,
                       Precision::bf16));
static_assert(can_give(OneForAll::accelerate, {.data = 8}, 1, Precision::bf16));
static_assert(!can_give(OneForAll::accelerate, {.data = 8, .zero = 3}, 2, Precision::bf16));
static_assert(!can_give(OneForAll::accelerate, {.tensor = 2, .data = 4}, 1, Precision::bf16));
static_assert(!can_give(OneForAll::accelerate, {.tensor = 8}, 1, Precision::bf16));
static_assert(!can_give(OneForAll::accelerate, split_sequence, 1, Precision::bf16));
static_assert(!can_give(OneForAll::accelerate, ulysses_beside_data, 1, Precision::bf16));

// Hetu-Galvatron: tensor ranks or Ulysses, no ZeRO 1.
static_assert(can_give(OneForAll::hetu, split_sequence, 2, Precision::bf16));
static_assert(can_give(OneForAll::hetu, ulysses_beside_data, 2, Precision::bf16));
static_assert(!can_give(OneForAll::hetu, {.data = 8, .zero = 1}, 1, Precision::bf16));
constexpr StrategySpec both_splits{.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .zero = 2};
static_assert(can_give(OneForAll::megatron, both_splits, 1, Precision::bf16));
static_assert(!can_give(OneForAll::torchtitan, both_splits, 1, Precision::bf16));
static_assert(!can_give(OneForAll::deepspeed, both_splits, 1, Precision::bf16));
static_assert(!can_give(OneForAll::accelerate, both_splits, 1, Precision::bf16));
static_assert(!can_give(OneForAll::hetu, both_splits, 1, Precision::bf16));
static_assert(!can_give(OneForAll::hetu, {.tensor = 2, .sequence = SequenceKind::ulysses, .context = 4}, 1,
                        Precision::bf16));

TEST_CASE("schedules of trainers, of which all have 1F1B") {
  for (const OneForAll trainer : one_for_all_names) {
    CAPTURE(name_of(trainer));
    CHECK(has_schedule(trainer, ScheduleKind::one_f_one_b));
    for (const ScheduleKind kind : {ScheduleKind::zb_h1, ScheduleKind::zb_2p}) CHECK(!has_schedule(trainer, kind));
    CHECK(has_schedule(trainer, ScheduleKind::zb_v) == (trainer == OneForAll::torchtitan));
  }
  CHECK(has_schedule(OneForAll::torchtitan, ScheduleKind::gpipe));
  CHECK(!has_schedule(OneForAll::megatron, ScheduleKind::gpipe));
  CHECK(has_schedule(OneForAll::megatron, ScheduleKind::interleaved));
  CHECK(!has_schedule(OneForAll::deepspeed, ScheduleKind::interleaved));
  CHECK(!has_schedule(OneForAll::accelerate, ScheduleKind::interleaved));
  CHECK(has_schedule(OneForAll::hetu, ScheduleKind::gpipe));
}

TEST_CASE("Megatron-LM's Ulysses needs a key/value head for each context rank") {
  LayerSpec layer;
  layer.heads = 64;
  layer.kv_heads = 8;
  const StrategySpec eight{.sequence = SequenceKind::ulysses, .context = 8};
  const StrategySpec copies{.tensor = 2, .sequence = SequenceKind::ulysses, .context = 8};
  CHECK(can_split_layer(OneForAll::megatron, layer, eight));
  CHECK(!can_split_layer(OneForAll::megatron, layer, copies));
  CHECK(!can_split_layer(OneForAll::megatron, layer, copies.with_cut(true)));
  CHECK(!can_split_layer(OneForAll::uniform, layer, copies));
  CHECK(can_split_layer(OneForAll::deepspeed, layer, copies));
  CHECK(can_split_layer(OneForAll::megatron, layer, {.sequence = SequenceKind::ring, .context = 16}));
}

}  // namespace
}  // namespace galvatron
