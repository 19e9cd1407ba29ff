// Ranks as processes of an MPI job, on one machine or several: Runtime, run(), its World, its Group.
#pragma once

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/mpi/world.hpp>
