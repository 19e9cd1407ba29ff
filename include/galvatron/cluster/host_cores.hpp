// How many cores of this machine the process may use.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
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
  if (std::FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "re")) {
    double quota = 0;
    double period = 0;
    const bool limited = std::fscanf(file, "%lf %lf", &quota, &period) == 2;  // "max 100000" without a limit
    std::fclose(file);
    if (limited && quota > 0 && period > 0)
      cores = std::min(cores, std::max(1, static_cast<int>(std::ceil(quota / period - 1e-9))));
  }
#endif
  return cores;
}

}  // namespace galvatron
