// Ranks as threads on one GPU.
#pragma once

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/local_gpu/cuda_stream.hpp>
#include <galvatron/comm/local_gpu/world.hpp>

static_assert(galvatron::comm::local_gpu::Stream<galvatron::comm::local_gpu::CudaStream>);
