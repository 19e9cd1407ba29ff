// How the tests start processes.
#pragma once

#include <unistd.h>

#include <string>

#include "../tools/run.hpp"

/// The beginning of a line of shell that starts so many processes on this machine, with the options that it needs for
/// more of them than cores, and for root.
inline std::string mpirun(int ranks, const std::string& more = "") {
  return std::string(MPIRUN) + (::geteuid() == 0 ? " --allow-run-as-root" : "") + " --oversubscribe --bind-to none " +
         more + " -np " + std::to_string(ranks) + " ";
}
