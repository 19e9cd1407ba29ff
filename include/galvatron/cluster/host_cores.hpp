// How many cores of this machine the process may use.
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace galvatron {

/// The processors in this process's affinity mask, not more than the quota of its control group (cgroup v2) allows.
inline int usable_cores() {
  int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#if defined(__linux__)
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) cores = std::max(1, CPU_COUNT(&allowed));
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0;
  double period = 0;
  if (file >> quota >> period && quota > 0 && period > 0)  // "max 100000" without a limit
    cores = std::min(cores, std::max(1, static_cast<int>(std::ceil(quota / period - 1e-9))));
#endif
  return cores;
}

}  // namespace galvatron
