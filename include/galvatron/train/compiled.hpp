// The trainer on this machine's cores with every strategy, compiled elsewhere: what includes this and links
// galvatron::trainer instantiates no layers. Ranks may be threads or processes.
#pragma once

#include <mutex>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/runtime/compiled.hpp>
#include <galvatron/train/trainer.hpp>

/// A rank on a device of `Platform` that computes in T, to be instantiated in namespace galvatron.
#define GALVATRON_TRAIN_RANK(Platform, T)                                                                            \
  void train::detail::train_rank<Platform, T, InstantiatedStrategies>(                                               \
      comm::World&, const Platform&, const Plan&, const ModelSpec&, train::BatchSource&, const train::TrainOptions&, \
      train::TrainReport&, std::mutex&)

namespace galvatron {
extern template GALVATRON_TRAIN_RANK(train::HostPlatform, float);
extern template GALVATRON_TRAIN_RANK(train::HostPlatform, bfloat16);
}  // namespace galvatron
