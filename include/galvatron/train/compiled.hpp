// The layers and the trainer on this machine's cores with every strategy, compiled elsewhere: what includes this and
// links galvatron::trainer instantiates no layers, most of what it takes to compile. Ranks are threads or processes.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/runtime/make_layer.hpp>
#include <galvatron/train/task_trainer.hpp>
#include <galvatron/train/trainer.hpp>

/// The layers on a device, with activations of T, to be instantiated in namespace galvatron.
#define GALVATRON_LAYERS(Device, T)                                                                  \
  Result<std::unique_ptr<runtime::Layer<T>>> runtime::make_layer<InstantiatedStrategies, T, Device>( \
      const runtime::Context<Device>&, const LayerSpec&, const runtime::LayerArguments<T>&, device::Region& states)

/// A rank on a device of `Platform` that computes in T, to be instantiated in namespace galvatron.
#define GALVATRON_TRAIN_RANK(Platform, T)                                                                            \
  void train::detail::train_rank<Platform, T, InstantiatedStrategies>(                                               \
      comm::World&, const Platform&, const Plan&, const ModelSpec&, train::BatchSource&, const train::TrainOptions&, \
      train::TrainReport&, std::mutex&)

/// The same of a rank of a model of several tasks.
#define GALVATRON_TRAIN_TASK_RANK(Platform, T)                                                       \
  void train::detail::train_task_rank<T, Platform>(                                                  \
      comm::World&, const Platform&, const train::TaskPlan&, const std::vector<train::TaskSources>&, \
      const train::TaskTrainOptions&, train::TaskTrainReport&, std::mutex&)

namespace galvatron {
extern template GALVATRON_LAYERS(device::Host, float);
extern template GALVATRON_LAYERS(device::Host, bfloat16);
extern template GALVATRON_TRAIN_RANK(train::HostPlatform, float);
extern template GALVATRON_TRAIN_RANK(train::HostPlatform, bfloat16);
extern template GALVATRON_TRAIN_TASK_RANK(train::HostPlatform, float);
extern template GALVATRON_TRAIN_TASK_RANK(train::HostPlatform, bfloat16);
}  // namespace galvatron
