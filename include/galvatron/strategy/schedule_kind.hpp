// The pipeline schedules: their names and the layers of virtual stages; their programs are in schedule/.
#pragma once

#include <array>
#include <cstddef>
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
  return std::array{"gpipe", "1f1b", "interleaved", "zb-h1"}[static_cast<std::size_t>(kind)];
}

constexpr std::optional<ScheduleKind> schedule_named(std::string_view name) {
  for (const ScheduleKind kind : schedule_kinds)
    if (name == name_of(kind)) return kind;
  return std::nullopt;
}

/// True when backward comes in two parts: first the gradients of inputs, later those of weights.
constexpr bool splits_backward(ScheduleKind kind) { return kind == ScheduleKind::zb_h1; }

/// The first layer of virtual stage `index` of `virtual_stages`, which share `layers` layers in their order and as
/// evenly as possible; those with one more are in the middle, away from the embedding and the head. Of index
/// `virtual_stages` it is `layers`.
constexpr int first_layer_of_virtual_stage(int layers, int virtual_stages, int index) {
  const int larger = layers % virtual_stages;
  const int before = index - (virtual_stages - larger) / 2;  // the larger ones before `index`, if it is one of them
  return layers / virtual_stages * index + (before < 0 ? 0 : before < larger ? before : larger);
}

}  // namespace galvatron
