// Ranks with a GPU each: NCCL, with the control plane over TCP or over MPI.
#pragma once

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/nccl/world.hpp>
#include <galvatron/comm/tcp/world.hpp>
