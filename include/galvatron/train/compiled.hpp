// The trainer of rank threads with every strategy, compiled elsewhere: most of what a program that trains takes to
// compile, so units that include this share one instantiation. A program has it from two units of its own, one a type:
//
//     #include <galvatron/train/compiled.hpp>
//     namespace galvatron::train::detail {
//     template GALVATRON_TRAIN_RANK(HostPlatform, comm::thread::World, float);  // and, in another unit, of bfloat16
//     }
#pragma once

#include <mutex>

#include <galvatron/train/trainer.hpp>

/// A rank of `World` on a device of `Platform` that computes in T, to be instantiated.
#define GALVATRON_TRAIN_RANK(Platform, World, T)                                                                      \
  void train_rank<Platform, World, T, InstantiatedStrategies>(World&, const Platform&, const Plan&, const ModelSpec&, \
                                                              BatchSource&, const TrainOptions&, TrainReport&,        \
                                                              std::mutex&)

namespace galvatron::train::detail {
extern template GALVATRON_TRAIN_RANK(HostPlatform, comm::thread::World, float);
extern template GALVATRON_TRAIN_RANK(HostPlatform, comm::thread::World, bfloat16);
}  // namespace galvatron::train::detail
