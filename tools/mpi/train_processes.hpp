// Where the trainer of processes is instantiated: train_fp32.cpp and train_bf16.cpp of this folder.
#pragma once

#include <mutex>

#include <galvatron/comm/mpi/mpi.hpp>
#include <galvatron/train/trainer.hpp>

#define GALVATRON_TRAIN_PROCESS(T)                                                                              \
  void train_rank<HostPlatform, comm::mpi::World, T, InstantiatedStrategies>(                                   \
      comm::mpi::World&, const HostPlatform&, const Plan&, const ModelSpec&, BatchSource&, const TrainOptions&, \
      TrainReport&, std::mutex&)

namespace galvatron::train::detail {
extern template GALVATRON_TRAIN_PROCESS(float);
extern template GALVATRON_TRAIN_PROCESS(bfloat16);
}  // namespace galvatron::train::detail
