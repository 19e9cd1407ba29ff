// A plan for gpt2-tiny on cluster.json: 4 ranks, batch of 16 x 64 tokens, fp32.
// Made by `galvatron export --to header`: export again instead of editing.
// clang-format off
#pragma once

#include <galvatron/plan/frozen.hpp>

namespace frozen_plan {

/// Of layer 0.
using Strategy0 = galvatron::Strategy<galvatron::DataParallel<1>, galvatron::TensorParallel<2>, galvatron::SequenceParallel<galvatron::megatron>, galvatron::Recompute<galvatron::full>>;
/// Of layer 1.
using Strategy1 = galvatron::Strategy<galvatron::DataParallel<1>, galvatron::TensorParallel<2>, galvatron::SequenceParallel<galvatron::megatron>>;
/// Of layers 2-3.
using Strategy2 = galvatron::Strategy<galvatron::DataParallel<1>, galvatron::TensorParallel<2>>;
/// Of the embedding, the head.
using Strategy3 = galvatron::Strategy<galvatron::DataParallel<2>, galvatron::ZeRO<2>>;
/// What a program instantiates that trains with this plan.
using Strategies = galvatron::TypeList<Strategy0, Strategy1, Strategy2, Strategy3>;

inline constexpr galvatron::FrozenPlan<2, 3, 2> plan{
    .model = "gpt2-tiny",
    .cluster = "cluster.json",
    .global_batch = 16,
    .sequence_length = 64,
    .precision = galvatron::Precision::fp32,
    .microbatches = 8,
    .schedule = galvatron::ScheduleKind::one_f_one_b,
    .virtual_stages = 1,
    .overlap = false,
    .stages = {{
        {.first_layer = 0, .last_layer = 1, .first_rank = 0, .rank_count = 2},
        {.first_layer = 2, .last_layer = 3, .first_rank = 2, .rank_count = 2},
    }},
    .runs = {{
        {.layers = 1, .strategy = Strategy0::spec},
        {.layers = 1, .strategy = Strategy1::spec},
        {.layers = 2, .strategy = Strategy2::spec},
    }},
    .embedding = Strategy3::spec,
    .head = Strategy3::spec,
    .iteration = {0.04688626942549919},
    .samples_per_second = 341.2512916051787,
    .tokens_per_second = 21840.082662731438,
    .mfu = 0.25588497756392825,
    .budget = {9437184},
    .predicted_stages = {{
        {.peak = {9385472}, .forward = {0.0017252514060981366}, .backward = {0.004173748235312136}},
        {.peak = {8863488}, .forward = {0.0021955617450599863}, .backward = {0.003468831723457182}},
    }},
};
static_assert(galvatron::plan_version == 1, "galvatron: this plan was exported for another version; export it again.");

}  // namespace frozen_plan
