// The layers of this machine's cores with every strategy, compiled elsewhere: most of what a program that trains takes
// to compile. Units that include this share one instantiation a type, that of galvatron::trainer, whatever their ranks
// are.
#pragma once

#include <memory>

#include <galvatron/core/dtype.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/runtime/make_layer.hpp>

/// The layers on a device, with activations of T, to be instantiated in namespace galvatron.
#define GALVATRON_LAYERS(Device, T)                                                                  \
  Result<std::unique_ptr<runtime::Layer<T>>> runtime::make_layer<InstantiatedStrategies, T, Device>( \
      const runtime::Context<Device>&, const LayerSpec&, const runtime::LayerArguments<T>&, device::Region& states)

namespace galvatron {
extern template GALVATRON_LAYERS(device::Host, float);
extern template GALVATRON_LAYERS(device::Host, bfloat16);
}  // namespace galvatron
