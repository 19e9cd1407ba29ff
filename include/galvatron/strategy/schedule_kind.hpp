// The names of pipeline schedules; their programs are in schedule/.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace galvatron {

enum class ScheduleKind : std::uint8_t {
  gpipe,        ///< all forwards, then all backwards (Huang et al. 2019)
  one_f_one_b,  ///< `1f1b`: one forward, one backward, at most P micro-batches in flight (Narayanan et al. 2019)
  interleaved,  ///< 1F1B over virtual stages (Narayanan et al. 2021)
  zb_h1,        ///< `zb-h1`: zero bubble, handcrafted schedule 1 (Qi et al. 2024)
};
inline constexpr std::array schedule_kinds{ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                                           ScheduleKind::zb_h1};

constexpr const char* name_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::gpipe:
      return "gpipe";
    case ScheduleKind::one_f_one_b:
      return "1f1b";
    case ScheduleKind::interleaved:
      return "interleaved";
    case ScheduleKind::zb_h1:
      return "zb-h1";
  }
  return "?";
}

constexpr std::optional<ScheduleKind> schedule_named(std::string_view name) {
  for (const ScheduleKind kind : schedule_kinds)
    if (name == name_of(kind)) return kind;
  return std::nullopt;
}

/// The schedules that a search may choose and the runtime carries out.
constexpr bool is_planned(ScheduleKind kind) {
  return kind == ScheduleKind::gpipe || kind == ScheduleKind::one_f_one_b;
}

/// Micro-batches whose stash stage `stage` of `stages` keeps at one time, of `microbatches`.
constexpr int microbatches_in_flight(ScheduleKind kind, int stages, int stage, int microbatches) {
  if (kind == ScheduleKind::gpipe) return microbatches;
  return stages - stage < microbatches ? stages - stage : microbatches;
}

}  // namespace galvatron
