// A plan for a "model" \ ???of two lines on 8xh100-80g: 8 ranks, batch of 32 x 4096 tokens, bf16.
// Made by `galvatron export --to header`: export again instead of editing.
// clang-format off
#pragma once

#include <galvatron/plan/frozen.hpp>

namespace frozen_everything {

/// Of layers 0-1.
using Strategy0 = galvatron::Strategy<galvatron::DataParallel<2>, galvatron::ZeRO<3>, galvatron::TensorParallel<2>, galvatron::SequenceParallel<galvatron::megatron>, galvatron::Recompute<galvatron::full>>;
/// Of layer 2.
using Strategy1 = galvatron::Strategy<galvatron::DataParallel<2>, galvatron::ZeRO<3>, galvatron::TensorParallel<2>, galvatron::SequenceParallel<galvatron::megatron>>;
/// Of layer 3.
using Strategy2 = galvatron::Strategy<galvatron::DataParallel<2>, galvatron::ZeRO<1>, galvatron::ContextParallel<2>, galvatron::SequenceParallel<galvatron::ring>>;
/// Of layer 4.
using Strategy3 = galvatron::Strategy<galvatron::DataParallel<1>, galvatron::ContextParallel<4>, galvatron::SequenceParallel<galvatron::ulysses>, galvatron::Recompute<galvatron::none>>;
/// Of layer 5.
using Strategy4 = galvatron::Strategy<galvatron::DataParallel<4>, galvatron::ZeRO<2>, galvatron::Shards<galvatron::by_ratio>, galvatron::Recompute<galvatron::selective>>;
/// Of layer 6.
using Strategy5 = galvatron::Strategy<galvatron::DataParallel<4>, galvatron::ZeRO<2>, galvatron::ExpertParallel<2>>;
/// Of layer 7.
using Strategy6 = galvatron::Strategy<galvatron::DataParallel<4>, galvatron::ZeRO<2>, galvatron::ExpertParallel<4>>;
/// Of the embedding.
using Strategy7 = galvatron::Strategy<galvatron::DataParallel<1>, galvatron::TensorParallel<4>>;
/// Of the head.
using Strategy8 = galvatron::Strategy<galvatron::DataParallel<4>, galvatron::ZeRO<2>>;
/// What a program instantiates that trains with this plan.
using Strategies = galvatron::TypeList<Strategy0, Strategy1, Strategy2, Strategy3, Strategy4, Strategy5, Strategy6, Strategy7, Strategy8>;
/// Of the ranks of stage 1.
inline constexpr std::array sample_ratios1{1, 1, 0, 2};
/// Of the ranks of stage 1.
inline constexpr std::array state_ratios1{1, 2, 3, 4};
/// Of the virtual stages of stage 0.
inline constexpr std::array chunk_layers0{2, 2};
/// Of the virtual stages of stage 1.
inline constexpr std::array chunk_layers1{4, 0};

inline constexpr galvatron::FrozenPlan<2, 7, 1> plan{
    .model = "a \"model\" \\ \303\251\012of two lines",
    .cluster = "8xh100-80g",
    .global_batch = 32,
    .sequence_length = 4096,
    .precision = galvatron::Precision::bf16,
    .microbatches = 8,
    .schedule = galvatron::ScheduleKind::interleaved,
    .virtual_stages = 2,
    .moments = galvatron::Precision::bf16,
    .stages = {{
        {.first_layer = 0, .last_layer = 3, .first_rank = 0, .rank_count = 4},
        {.first_layer = 4, .last_layer = 7, .first_rank = 4, .rank_count = 4},
    }},
    .sample_ratios = {{{}, sample_ratios1}},
    .state_ratios = {{{}, state_ratios1}},
    .chunk_layers = {{chunk_layers0, chunk_layers1}},
    .runs = {{
        {.layers = 2, .strategy = Strategy0::spec},
        {.layers = 1, .strategy = Strategy1::spec},
        {.layers = 1, .strategy = Strategy2::spec},
        {.layers = 1, .strategy = Strategy3::spec},
        {.layers = 1, .strategy = Strategy4::spec},
        {.layers = 1, .strategy = Strategy5::spec},
        {.layers = 1, .strategy = Strategy6::spec},
    }},
    .embedding = Strategy7::spec,
    .head = Strategy8::spec,
    .iteration = {1.0},
    .samples_per_second = 1e+22,
    .tokens_per_second = 0.1,
    .mfu = 0.3333333333333333,
    .budget = {85899345920},
    .predicted_stages = {{
        {.peak = {85899345919}, .forward = {5e-324}, .backward = {123456789012345680.0}},
    }},
};
static_assert(galvatron::plan_version == 1, "galvatron: this plan was exported for another version; export it again.");

}  // namespace frozen_everything
