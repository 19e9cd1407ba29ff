// The trainer of rank threads with every strategy, compiled elsewhere: most of what a program that trains takes to
// compile, so units that include this share one instantiation. A program has it from two units of its own, one a type:
//
//     #include <galvatron/train/compiled.hpp>
//     namespace galvatron::train::detail {
//     template GALVATRON_TRAIN_RANK(float);  // and, in another unit, of bfloat16
//     }
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
