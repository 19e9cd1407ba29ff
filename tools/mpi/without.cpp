// A build without MPI: ranks are threads.
#include <functional>

#include <galvatron/core/error.hpp>

#include "../launcher.hpp"

namespace galvatron::tools {

void require_mpi() {
  throw Failure(ErrorKind::usage,
                "this build of galvatron has no MPI launcher; use --launcher threads without mpirun, or install "
                "libopenmpi-dev and build again");
}

void run_as_rank(Common&, const std::function<int(Launcher&)>&) { require_mpi(); }

}  // namespace galvatron::tools
