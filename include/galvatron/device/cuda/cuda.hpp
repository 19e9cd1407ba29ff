// The Device that computes on NVIDIA GPUs.
#pragma once

#include <galvatron/device/cuda/devices.hpp>
#include <galvatron/device/cuda/gpu.hpp>
#include <galvatron/device/cuda/machine.hpp>
#include <galvatron/device/cuda/memory.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::device {

using Cuda = cuda::Gpu<cuda::Machine>;

static_assert(cuda::Machine::kernel_workspace_bytes >= Cuda::workspace_bytes);
static_assert(Device<Cuda>);

}  // namespace galvatron::device
