// Layers, trainers and profiler on this machine's cores, compiled elsewhere: what includes this and links
// galvatron::trainer instantiates no layers, most of what it takes to compile, whatever strategies it names. Ranks are
// threads or processes.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/profile/profile.hpp>
#include <galvatron/rank/host_rank.hpp>
#include <galvatron/runtime/make_layer.hpp>
#include <galvatron/train/task_trainer.hpp>
#include <galvatron/train/trainer.hpp>

/// The layers on a device, with activations of T, to be instantiated in namespace galvatron.
#define GALVATRON_LAYERS(Device, T)                                          \
  std::unique_ptr<runtime::Layer<T>> runtime::make_program_layer<T, Device>( \
      const runtime::Context<Device>&, const LayerSpec&, const runtime::LayerArguments<T>&, device::Region& states)

/// A rank on a device of `Platform` that computes in T, to be instantiated in namespace galvatron.
#define GALVATRON_TRAIN_RANK(Platform, T)                                                                           \
  void train::detail::train_rank<T, Platform>(comm::World&, const Platform&, const Plan&, const ModelSpec&,         \
                                              const train::LayerMaker<typename Platform::Rank::Device, T>&,         \
                                              train::BatchSource&, const train::TrainOptions&, train::TrainReport&, \
                                              std::mutex&)

/// A rank of a multi-task model on a device of `Platform` that computes in T, to be instantiated in namespace
/// galvatron.
#define GALVATRON_TRAIN_TASK_RANK(Platform, T)                                      \
  void train::detail::train_task_rank<T, Platform>(                                 \
      comm::World&, const Platform&, const MultiTaskModel&, const train::TaskPlan&, \
      const std::vector<train::TaskSources>&, const train::TaskTrainOptions&, train::TaskTrainReport&, std::mutex&)

/// All of these in fp32 and bf16. @param declare  `extern template`, or `template` in the unit that has them
#define GALVATRON_TRAINER(declare, Device, Platform)  \
  declare GALVATRON_LAYERS(Device, float);            \
  declare GALVATRON_LAYERS(Device, bfloat16);         \
  declare GALVATRON_TRAIN_RANK(Platform, float);      \
  declare GALVATRON_TRAIN_RANK(Platform, bfloat16);   \
  declare GALVATRON_TRAIN_TASK_RANK(Platform, float); \
  declare GALVATRON_TRAIN_TASK_RANK(Platform, bfloat16)

/// Measuring on a device of `Platform`, to be instantiated in namespace galvatron.
#define GALVATRON_MEASURE(Platform) void train::detail::Profile::measure<Platform>(comm::World&, const Platform&)

namespace galvatron {
GALVATRON_TRAINER(extern template, device::Host, train::HostPlatform);
extern template GALVATRON_MEASURE(train::HostPlatform);
}  // namespace galvatron
