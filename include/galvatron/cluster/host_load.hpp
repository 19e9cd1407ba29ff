// How much of this machine's cores other programs take.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include <galvatron/core/file.hpp>

namespace galvatron {

/// Others' share of the cores above which a figure that was measured meanwhile is doubtful.
inline constexpr double disturbing_share = 0.05;

/// Processor seconds of this process so far, all its threads together.
inline double core_seconds_of_process() {
  rusage own{};
  ::getrusage(RUSAGE_SELF, &own);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(own.ru_utime) + seconds(own.ru_stime);
}

namespace detail {

/// Of each core that it names, its number and the ticks that it was busy or taken by the hypervisor.
/// @param text  /proc/stat
inline std::vector<std::pair<std::size_t, double>> busy_ticks(std::string_view text) {
  std::vector<std::pair<std::size_t, double>> out;
  for (std::size_t at = 0; at < text.size();) {  // cpu1 user nice system idle waiting interrupts soft stolen ...
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with("cpu")) continue;
    line.remove_prefix(3);
    std::size_t core = 0;
    const auto [rest, failure] = std::from_chars(line.data(), line.data() + line.size(), core);
    if (failure != std::errc{}) continue;  // the sum of all
    line.remove_prefix(static_cast<std::size_t>(rest - line.data()));
    double busy = 0;
    int field = 0;
    for (; field < 8 && !line.empty(); ++field) {
      while (line.starts_with(' ')) line.remove_prefix(1);
      unsigned long long ticks = 0;
      const auto [after, bad] = std::from_chars(line.data(), line.data() + line.size(), ticks);
      if (bad != std::errc{}) break;
      line.remove_prefix(static_cast<std::size_t>(after - line.data()));
      if (field != 3 && field != 4) busy += static_cast<double>(ticks);
    }
    if (field >= 4) out.emplace_back(core, busy);
  }
  return out;
}

}  // namespace detail

/// Watches the cores that the thread which makes it may use.
class CoreWatch {
 public:
  explicit CoreWatch(std::filesystem::path root = "/") : root_(std::move(root)) {
#if defined(__linux__)
    CPU_ZERO(&allowed_);
    if (::sched_getaffinity(0, sizeof allowed_, &allowed_) != 0) CPU_ZERO(&allowed_);
#endif
    restart();
  }

  void restart() {
    own_ = core_seconds_of_process();
    begin_ = now();
    all_ = busy();
  }

  /// Since then.
  [[nodiscard]] double seconds() const { return now() - begin_; }

  /// The share of those cores, 0 to 1, that others have taken since then, the hypervisor included; nothing where the
  /// system does not say. The system counts in ticks of 10 ms: less than a few tenths of a second tell little.
  /// @param own  processor seconds of those who are not others; negative: of this process
  [[nodiscard]] std::optional<double> others(double own = -1) const {
    const auto all = busy();
    const double cores = static_cast<double>(all.second) * seconds();
    if (all.second == 0 || all.second != all_.second || !(cores > 0)) return std::nullopt;
    if (own < 0) own = core_seconds_of_process() - own_;
    return std::clamp((all.first - all_.first - own) / cores, 0.0, 1.0);
  }

 private:
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  // Seconds that the cores were busy, and how many cores these are.
  [[nodiscard]] std::pair<double, std::size_t> busy() const {
    std::pair<double, std::size_t> out{0, 0};
    const auto text = read_text_file(root_ / "proc/stat");
    if (!text) return out;
    for (const auto& [core, ticks] : detail::busy_ticks(*text)) {
#if defined(__linux__)
      if (core >= CPU_SETSIZE || !CPU_ISSET(core, &allowed_)) continue;
#endif
      out.first += ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
      ++out.second;
    }
    return out;
  }

  std::filesystem::path root_;
#if defined(__linux__)
  cpu_set_t allowed_{};
#endif
  double own_ = 0;
  double begin_ = 0;
  std::pair<double, std::size_t> all_;
};

}  // namespace galvatron
