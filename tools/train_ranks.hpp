// Where the trainer is instantiated: train_fp32.cpp and train_bf16.cpp, nowhere else in the command.
#pragma once

#include <mutex>

#include <galvatron/train/trainer.hpp>

#define GALVATRON_TRAIN_RANK(T)                                                                                    \
  void train_rank<HostPlatform, comm::thread::World, T, InstantiatedStrategies>(                                   \
      comm::thread::World&, const HostPlatform&, const Plan&, const ModelSpec&, BatchSource&, const TrainOptions&, \
      TrainReport&, std::mutex&)

namespace galvatron::train::detail {
extern template GALVATRON_TRAIN_RANK(float);
extern template GALVATRON_TRAIN_RANK(bfloat16);
}  // namespace galvatron::train::detail
