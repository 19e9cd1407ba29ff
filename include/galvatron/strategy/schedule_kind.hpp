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
  zb_2p,        ///< `zb-2p`: zero bubble in the memory of 2 P micro-batches: the paper's handcrafted schedule 2, ZB-H2
  zb_v,         ///< `zb-v`: zero bubble in 1F1B's memory: two virtual stages a stage, in a V (section 6 of the paper)
};
inline constexpr std::array schedule_kinds{ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                                           ScheduleKind::zb_h1, ScheduleKind::zb_2p,       ScheduleKind::zb_v};

constexpr const char* name_of(ScheduleKind kind) {
  return std::array{"gpipe", "1f1b", "interleaved", "zb-h1", "zb-2p", "zb-v"}[static_cast<std::size_t>(kind)];
}

constexpr std::optional<ScheduleKind> schedule_named(std::string_view name) {
  for (const ScheduleKind kind : schedule_kinds)
    if (name == name_of(kind)) return kind;
  return std::nullopt;
}

/// True when backward comes in two parts: first the gradients of inputs, later those of weights.
constexpr bool splits_backward(ScheduleKind kind) {
  return kind == ScheduleKind::zb_h1 || kind == ScheduleKind::zb_2p || kind == ScheduleKind::zb_v;
}

/// Virtual stages of each stage by default: zb-v has two always, interleaved any number.
constexpr int usual_virtual_stages(ScheduleKind kind) {
  return kind == ScheduleKind::interleaved || kind == ScheduleKind::zb_v ? 2 : 1;
}

/// Micro-batches that a virtual stage may have sent to a neighbour that has not taken them yet, each way; it has a
/// buffer for each. With one, stages of zb-2p and zb-v wait for neighbours that run fewer passes ahead.
constexpr int message_buffers(ScheduleKind kind) {
  return kind == ScheduleKind::zb_2p || kind == ScheduleKind::zb_v ? 2 : 1;
}

/// The place of chunk `chunk` of stage `stage` in the order of the layers: c P + s. In zb-v the second chunks follow
/// from the last stage to the first, so that the turn of the V, and both ends of the model, are on one stage each:
///
///     interleaved   stage 0  0 4       zb-v   stage 0  0 7
///                   stage 1  1 5              stage 1  1 6
///                   stage 2  2 6              stage 2  2 5
///                   stage 3  3 7              stage 3  3 4
constexpr int virtual_stage_of(ScheduleKind kind, int stages, int stage, int chunk) {
  return kind == ScheduleKind::zb_v && chunk == 1 ? 2 * stages - 1 - stage : chunk * stages + stage;
}
/// The stage of virtual stage `index`, of which it is chunk index / P.
constexpr int stage_of_virtual_stage(ScheduleKind kind, int stages, int index) {
  return kind == ScheduleKind::zb_v && index >= stages ? 2 * stages - 1 - index : index % stages;
}
/// True when the first and the last layer are on one stage.
constexpr bool ends_share_stage(ScheduleKind kind, int stages) { return stages == 1 || kind == ScheduleKind::zb_v; }

/// The first layer of virtual stage `index` of `virtual_stages`, which share `layers` layers in their order and as
/// evenly as possible; those with one more are in the middle, away from the embedding and the head. Of index
/// `virtual_stages` it is `layers`.
constexpr int first_layer_of_virtual_stage(int layers, int virtual_stages, int index) {
  const int larger = layers % virtual_stages;
  const int before = index - (virtual_stages - larger) / 2;  // the larger ones before `index`, if it is one of them
  return layers / virtual_stages * index + (before < 0 ? 0 : before < larger ? before : larger);
}

}  // namespace galvatron
