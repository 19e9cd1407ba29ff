// Every strategy's rank in fp32 as a process: a unit of its own, because it takes long to compile.
#include "train_processes.hpp"

namespace galvatron::train::detail {
template GALVATRON_TRAIN_RANK(HostPlatform, comm::mpi::World, float);
}
