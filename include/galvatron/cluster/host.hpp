// This machine: the cores and the memory that the process may use, and what other programs take of them.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron {

/// Memory that may still be taken.
struct UsableMemory {
  Bytes bytes;
  std::string bound;  ///< what leaves no more, as a clause: "the control group /job allows 8.00 GiB and uses 1.10 GiB"
};

namespace detail {

/// The number behind `key` on a line of its own ("MemFree:  123 kB", "active_file 123").
inline std::optional<std::int64_t> value_of(std::string_view text, std::string_view key) {
  for (const std::string_view line : parts_of(text, '\n'))
    if (line.starts_with(key) && line.size() > key.size() && (line[key.size()] == ' ' || line[key.size()] == ':'))
      return leading_number(line.substr(key.size() + 1));
  return std::nullopt;
}

inline std::string text_in(const std::filesystem::path& path) { return read_text_file(path).value_or(""); }

/// Of each core that it names, its number and the ticks that it was busy or taken by the hypervisor.
/// @param text  /proc/stat
inline std::vector<std::pair<std::size_t, double>> busy_ticks(std::string_view text) {
  std::vector<std::pair<std::size_t, double>> out;
  for (const std::string_view line : parts_of(text, '\n')) {
    if (!line.starts_with("cpu")) continue;
    const auto words = parts_of(line, ' ');  // cpu1 user nice system idle waiting interrupts soft stolen ...
    const auto core = leading_number(words.front().substr(3));
    double busy = 0;
    std::size_t field = 1;
    for (; core && field <= 8 && field < words.size(); ++field) {  // "cpu" is the sum of all
      const auto ticks = leading_number(words[field]);
      if (!ticks) break;
      if (field != 4 && field != 5) busy += static_cast<double>(*ticks);
    }
    if (field > 4) out.emplace_back(*core, busy);
  }
  return out;
}

/// A path of /proc/self/mountinfo, where blanks and backslashes are octal numbers.
inline std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    const char* const at = text.data() + i;
    const bool escaped =
        *at == '\\' && i + 3 < text.size() && std::from_chars(at + 1, at + 4, code, 8).ptr == at + 4 && code < 256;
    out += escaped ? static_cast<char>(code) : *at;
    if (escaped) i += 3;
  }
  return out;
}

/// A hierarchy of control groups that may limit memory.
struct ControlGroups {
  std::string mount;      ///< where its files are
  std::string below;      ///< this process's group there: "/slurm/job_7", or nothing
  std::string name;       ///< the same as /proc/self/cgroup has it
  bool is_first = false;  ///< cgroup v1
};

/// Those of this process. @param groups  /proc/self/cgroup  @param mounts  /proc/self/mountinfo
inline std::vector<ControlGroups> memory_control_groups(std::string_view groups, std::string_view mounts) {
  std::vector<ControlGroups> out;
  for (const std::string_view line : parts_of(groups, '\n')) {  // 4:memory:/path, or 0::/path
    const auto parts = parts_of(line, ':');
    if (parts.size() < 3) continue;
    const auto has_memory = [](std::string_view list) { return std::ranges::count(parts_of(list, ','), "memory") > 0; };
    const bool is_first = !parts[1].empty();
    if (is_first && !has_memory(parts[1])) continue;
    const std::string path(line.substr(parts[0].size() + parts[1].size() + 2));  // it may have colons
    for (const std::string_view mounted : parts_of(mounts, '\n')) {  // 35 31 0:32 ROOT MOUNT rw - TYPE SOURCE OPTIONS
      const std::size_t middle = mounted.find(" - ");
      if (middle == mounted.npos) continue;
      const auto before = parts_of(mounted.substr(0, middle), ' ');
      const auto behind = parts_of(mounted.substr(middle + 3), ' ');
      if (before.size() < 5 || behind.size() < 3) continue;
      if (is_first ? behind[0] != "cgroup" || !has_memory(behind[2]) : behind[0] != "cgroup2") continue;
      const std::string root = unescaped(before[3]);
      ControlGroups found{unescaped(before[4]), {}, path, is_first};
      // What is mounted may be a part of the hierarchy that this process is not in, or is the top of: a container's.
      if (root == "/")
        found.below = path;
      else if (path.starts_with(root + "/"))
        found.below = path.substr(root.size());
      if (std::ranges::count(parts_of(found.below, '/'), "..") > 0) found.below.clear();
      while (found.below.ends_with('/')) found.below.pop_back();
      out.push_back(std::move(found));
    }
  }
  return out;
}

inline void bound_by(UsableMemory& least, std::int64_t limit, std::int64_t used, std::string bound) {
  const Bytes left{std::max<std::int64_t>(limit - used, 0)};
  if (left < least.bytes) least = {left, std::move(bound)};
}

/// What the limit of one control group leaves; page cache that can be given back does not count as used.
inline void bound_by_group(UsableMemory& least, const std::filesystem::path& folder, bool is_first,
                           const std::string& name) {
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  using Names = std::vector<const char*>;
  for (const char* file : is_first ? Names{"memory.limit_in_bytes"} : Names{"memory.max", "memory.high"})
    limit = std::min(limit, leading_number(text_in(folder / file)).value_or(limit));  // "max" without a limit
  if (limit >= std::int64_t{1} << 60) return;                                         // what v1 has without a limit
  const std::int64_t charged =
      std::min(leading_number(text_in(folder / (is_first ? "memory.usage_in_bytes" : "memory.current"))).value_or(0),
               std::int64_t{1} << 60);
  const std::string statistics = text_in(folder / "memory.stat");
  std::int64_t cache = 0;
  for (const char* key : is_first ? Names{"total_active_file", "total_inactive_file"}
                                  : Names{"active_file", "inactive_file", "slab_reclaimable"})
    cache += std::min(value_of(statistics, key).value_or(0), charged);
  const std::int64_t used = std::max<std::int64_t>(charged - cache, 0);
  bound_by(least, limit, used,
           "the control group " + one_line(name.empty() ? "/" : name) + " allows " + format_bytes({limit}) +
               " and uses " + format_bytes({used}));
}

/// What this process's own limits leave when it starts so many threads, beside their stacks and malloc's heaps.
inline void bound_by_process(UsableMemory& least, int threads, const std::filesystem::path& root) {
  const std::string memory = text_in(root / "proc/self/statm");
  const auto pages = parts_of(memory, ' ');
  const auto in_use = [&](std::size_t field) {
    const auto page = static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
    return field < pages.size() ? leading_number(pages[field]).value_or(0) * page : 0;
  };
  std::size_t stack = std::size_t{8} << 20;
  pthread_attr_t usual{};
  if (::pthread_getattr_default_np(&usual) == 0) {
    ::pthread_attr_getstacksize(&usual, &stack);
    ::pthread_attr_destroy(&usual);
  }
  const std::int64_t stacks = threads * static_cast<std::int64_t>(stack);
  const std::int64_t heaps =
      (std::int64_t{64} << 20) *
      (1 + std::min<std::int64_t>(threads, 8 * std::max<std::int64_t>(std::thread::hardware_concurrency(), 1)));
  const auto bound = [&](auto resource, const char* command, std::int64_t used) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    const auto allowed = static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, rlim_t{1} << 62));
    bound_by(least, allowed, used,
             std::string("ulimit ") + command + " allows " + format_bytes({allowed}) +
                 ", of which the program and its " + std::to_string(threads) + " threads take " + format_bytes({used}));
  };
  bound(RLIMIT_AS, "-v", in_use(0) + stacks + heaps);
  bound(RLIMIT_DATA, "-d", in_use(5) + stacks);
}

}  // namespace detail

/// The processors in this process's affinity mask, not more than the quota of its control group (cgroup v2) allows.
template <class = void>
int usable_cores() {
  std::int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) cores = std::max(1, CPU_COUNT(&allowed));
  const std::string limit = detail::text_in("/sys/fs/cgroup/cpu.max");
  const auto words = detail::parts_of(limit, ' ');  // "max 100000" without a limit
  const auto quota = detail::leading_number(words.front()).value_or(0);
  const auto period = detail::leading_number(words.back()).value_or(0);
  if (words.size() == 2 && quota > 0 && period > 0) cores = std::min(cores, divide_up(quota, period));
  return static_cast<int>(cores);
}
GALVATRON_IN_PLANNER(int usable_cores<>())

/// What this process may still take of the machine's memory: what is available there (free, or cache that can be given
/// back), and no more than is left under the limits of its control group (cgroup v1 and v2) and of all groups above.
/// @param threads  that will be started; the process's own limits (ulimit -v, -d) count too then; 0: they do not
/// @param root  where /proc and /sys are
template <class = void>
UsableMemory usable_memory(int threads = 0, const std::filesystem::path& root = "/") {
  namespace fs = std::filesystem;
  const auto pages = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES));
  const auto page = static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
  const std::int64_t installed = pages > 0 && page > 0 ? pages * page : std::int64_t{8} << 30;
  UsableMemory out{{installed}, "this machine has " + format_bytes({installed})};

  const std::string machine = detail::text_in(root / "proc/meminfo");
  const auto kilobytes = [&](const char* key) -> std::optional<std::int64_t> {
    const auto value = detail::value_of(machine, key);
    if (!value || *value > std::numeric_limits<std::int64_t>::max() >> 10) return std::nullopt;
    return *value << 10;
  };
  const auto total = kilobytes("MemTotal");
  const auto available = kilobytes("MemAvailable");  // not before Linux 3.14
  if (total && available) {
    const Bytes free{std::min(*total, *available)};
    out = {free, format_bytes(free) + " of this machine's " + format_bytes({*total}) + " are available"};
  }
  if (detail::leading_number(detail::text_in(root / "proc/sys/vm/overcommit_memory")) == 2) {
    const auto limit = kilobytes("CommitLimit");
    const auto committed = kilobytes("Committed_AS");
    if (limit && committed)
      detail::bound_by(out, *limit, *committed,
                       "this machine commits no more than " + format_bytes({*limit}) +
                           " (vm.overcommit_memory is 2), and has committed " + format_bytes({*committed}));
  }

  for (const detail::ControlGroups& groups : detail::memory_control_groups(
           detail::text_in(root / "proc/self/cgroup"), detail::text_in(root / "proc/self/mountinfo"))) {
    const fs::path top = root / fs::path(groups.mount).relative_path();
    fs::path name = groups.name;
    for (fs::path below = groups.below;; below = below.parent_path(), name = name.parent_path()) {
      detail::bound_by_group(out, top / below.relative_path(), groups.is_first, name.string());
      if (below.relative_path().empty()) break;  // a group obeys the limits of all above it
    }
  }
  if (threads > 0) detail::bound_by_process(out, threads, root);
  return out;
}
GALVATRON_IN_PLANNER(UsableMemory usable_memory<>(int, const std::filesystem::path&))

/// Others' share of the cores above which a figure that was measured meanwhile is doubtful.
inline constexpr double disturbing_share = 0.05;

/// How long what takes `seconds` on all cores takes on those that others leave, of whose cores they take `share`, 0 to
/// 1: as much longer as these are fewer, since ranks wait for each other.
constexpr double beside_others(double seconds, double share) { return seconds / (1 - std::min(share, 0.99)); }

/// Processor seconds of this process so far, all its threads together.
inline double core_seconds_of_process() { return clock_seconds(CLOCK_PROCESS_CPUTIME_ID); }

/// Watches the cores that the thread which makes it may use.
class CoreWatch {
 public:
  explicit CoreWatch(std::filesystem::path root = "/") : root_(std::move(root)) {
    CPU_ZERO(&allowed_);
    if (::sched_getaffinity(0, sizeof allowed_, &allowed_) != 0) CPU_ZERO(&allowed_);
    restart();
  }

  void restart() {
    own_ = core_seconds_of_process();
    begin_ = steady_seconds();
    all_ = busy();
  }

  /// Since then.
  [[nodiscard]] double seconds() const { return steady_seconds() - begin_; }

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
  // Seconds that the cores were busy, and how many cores these are.
  [[nodiscard]] std::pair<double, std::size_t> busy() const {
    std::pair<double, std::size_t> out{0, 0};
    const auto text = read_text_file(root_ / "proc/stat");
    if (!text) return out;
    for (const auto& [core, ticks] : detail::busy_ticks(*text)) {
      if (core >= CPU_SETSIZE || !CPU_ISSET(core, &allowed_)) continue;
      out.first += ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
      ++out.second;
    }
    return out;
  }

  std::filesystem::path root_;
  cpu_set_t allowed_{};
  double own_ = 0;
  double begin_ = 0;
  std::pair<double, std::size_t> all_;
};

}  // namespace galvatron
