// Ranks as threads on one GPU.
#pragma once

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/local_gpu/cuda_stream.hpp>
#include <galvatron/comm/local_gpu/world.hpp>

static_assert(galvatron::comm::World<galvatron::comm::local_gpu::World<galvatron::comm::local_gpu::CudaStream>>);
static_assert(galvatron::comm::Group<galvatron::comm::local_gpu::Group<galvatron::comm::local_gpu::CudaStream>>);
