// How much other programs slow this machine while something is measured.
//
// They show in two ways: in the processor time that they and the hypervisor take, and, where a shared machine's caches
// and memory are busy, in nothing but that copying is slower, up to several times and for seconds. So a fixed piece of
// copying, on all cores at once, is timed before and after each measurement.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include <galvatron/cluster/host_cores.hpp>
#include <galvatron/train/detail/stopwatch.hpp>

/// A measurement and what disturbed it.
struct Measured {
  double seconds = 0;
  double disturbance = 0;  ///< seconds of copying before and after, and more where others took processor time

  bool operator<(const Measured& other) const { return disturbance < other.disturbance; }
};

/// The median of that half of the measurements which others disturbed least.
inline double quiet_median(std::vector<Measured> all) {
  std::sort(all.begin(), all.end());
  all.resize((all.size() + 1) / 2);
  std::vector<double> seconds;
  for (const Measured& one : all) seconds.push_back(one.seconds);
  return galvatron::train::detail::median_of(std::move(seconds));
}

class DisturbanceWatch {
 public:
  DisturbanceWatch() : copies_(static_cast<std::size_t>(galvatron::usable_cores())) {}

  /// @param measure  returns seconds
  template <class Measure>
  Measured operator()(const Measure& measure) {
    const double before = copying_seconds();
    const double foreign = foreign_seconds();
    const double begin = galvatron::train::detail::wall_seconds();
    const double seconds = measure();
    const double all = (galvatron::train::detail::wall_seconds() - begin) * galvatron::usable_cores();
    const double share = std::clamp((foreign_seconds() - foreign) / all, 0.0, 0.9);
    return {seconds, (before + copying_seconds()) / (1 - share)};
  }

 private:
  static constexpr std::size_t copied_bytes = std::size_t{8} << 20;

  struct Copy {
    std::vector<char> from = std::vector<char>(copied_bytes, 1);
    std::vector<char> to = std::vector<char>(copied_bytes, 2);
    double seconds = 0;
  };

  // Of the slowest core.
  double copying_seconds() {
    std::vector<std::thread> threads;
    for (Copy& copy : copies_)
      threads.emplace_back([&copy] {
        const double begin = galvatron::train::detail::wall_seconds();
        for (int i = 0; i < 4; ++i) std::memcpy(copy.to.data(), copy.from.data(), copied_bytes);
        copy.seconds = galvatron::train::detail::wall_seconds() - begin;
      });
    for (std::thread& thread : threads) thread.join();
    double slowest = 0;
    for (const Copy& copy : copies_) slowest = std::max(slowest, copy.seconds);
    return slowest;
  }

  // Processor seconds that everybody but this process has used, the hypervisor included; 0 where the system does not
  // say.
  static double foreign_seconds() {
    std::ifstream stat("/proc/stat");
    std::string word;
    double user = 0;
    double nice = 0;
    double system = 0;
    double idle = 0;
    double waiting = 0;
    double interrupts = 0;
    double soft = 0;
    double stolen = 0;
    if (!(stat >> word >> user >> nice >> system >> idle >> waiting >> interrupts >> soft >> stolen)) return 0;
    rusage own{};
    ::getrusage(RUSAGE_SELF, &own);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    const double all =
        (user + nice + system + interrupts + soft + stolen) / static_cast<double>(::sysconf(_SC_CLK_TCK));
    return all - seconds(own.ru_utime) - seconds(own.ru_stime);
  }

  std::vector<Copy> copies_;  // of every core
};
