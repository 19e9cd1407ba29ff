// Where the trainer of processes is instantiated: train_fp32.cpp and train_bf16.cpp of this folder.
#pragma once

#include <galvatron/comm/mpi/mpi.hpp>
#include <galvatron/train/compiled.hpp>

namespace galvatron::train::detail {
extern template GALVATRON_TRAIN_RANK(HostPlatform, comm::mpi::World, float);
extern template GALVATRON_TRAIN_RANK(HostPlatform, comm::mpi::World, bfloat16);
}  // namespace galvatron::train::detail
