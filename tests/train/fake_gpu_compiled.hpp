// Ranks on a GPU that is not there, compiled once (run_fake_gpu.cpp) for the tests that train on one.
#pragma once

#include <mutex>

#include <galvatron/train/compiled.hpp>

#include "fake_gpu_rank.hpp"
#include "run_rank.hpp"

/// Layers and trainers of several tasks, to be instantiated in namespace galvatron.
/// @param declare  `extern template`, or `template` in the unit that has them
#define GALVATRON_ON_FAKE_GPU(declare, T)                 \
  declare GALVATRON_LAYERS(test::FakeGpuRank::Device, T); \
  declare GALVATRON_TRAIN_TASK_RANK(test::FakeGpuPlatform, T)

/// The same of run_rank(), in namespace toy.
#define GALVATRON_RUN_ON_FAKE_GPU(declare, T)                                                                     \
  declare void run_rank<T, test::FakeGpuPlatform>(comm::World&, const Plan&, const ModelSpec&, const RunOptions&, \
                                                  Outcome&, std::mutex&, const test::FakeGpuPlatform&)

namespace galvatron {
GALVATRON_ON_FAKE_GPU(extern template, float);
GALVATRON_ON_FAKE_GPU(extern template, bfloat16);
}  // namespace galvatron
namespace toy {
GALVATRON_RUN_ON_FAKE_GPU(extern template, float);
GALVATRON_RUN_ON_FAKE_GPU(extern template, bfloat16);
}  // namespace toy
