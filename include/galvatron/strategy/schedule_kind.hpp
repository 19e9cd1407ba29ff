// The pipeline schedules: their names and what they keep in memory; their programs are in schedule/.
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

/// True when backward comes in two parts: first the gradients of inputs, later those of weights.
constexpr bool splits_backward(ScheduleKind kind) { return kind == ScheduleKind::zb_h1; }

/// Micro-batches that stage `stage` keeps at one time between the two parts of their backward, of `microbatches`; 0
/// where it comes in one. zb-h1 is `stage` micro-batches late with the second part (Qi et al. 2024, section 3.1).
constexpr int microbatches_deferred(ScheduleKind kind, int stage, int microbatches) {
  if (!splits_backward(kind)) return 0;
  return stage + 1 < microbatches ? stage + 1 : microbatches;
}

/// The first layer of virtual stage `index` of `virtual_stages`, which share `layers` layers in their order and as
/// evenly as possible; those with one more are in the middle, away from the embedding and the head. Of index
/// `virtual_stages` it is `layers`.
constexpr int first_layer_of_virtual_stage(int layers, int virtual_stages, int index) {
  const int larger = layers % virtual_stages;
  const int before = index - (virtual_stages - larger) / 2;  // the larger ones before `index`, if it is one of them
  return layers / virtual_stages * index + (before < 0 ? 0 : before < larger ? before : larger);
}

/// Passes of chunks that stage `stage` of an interleaved pipeline runs ahead before its first backward. Source:
/// Narayanan et al. 2021 (arXiv 2104.04473), section 2.2, as in Megatron-LM.
constexpr int interleaved_warm_up(int stages, int stage, int microbatches, int virtual_stages) {
  const std::int64_t passes = std::int64_t{microbatches} * virtual_stages;
  const int ahead = 2 * (stages - 1 - stage) + (virtual_stages - 1) * stages;
  return ahead < passes ? ahead : static_cast<int>(passes);
}

namespace detail {

/// Passes of chunk `chunk` among the first `passes` passes of an interleaved stage: groups of P micro-batches go
/// through the chunks in turn.
constexpr int passes_of_chunk(int passes, int stages, int virtual_stages, int chunk) {
  const int group = stages * virtual_stages;
  const int rest = passes % group - chunk * stages;
  return passes / group * stages + (rest < 0 ? 0 : rest < stages ? rest : stages);
}

}  // namespace detail

/// Micro-batches whose stash stage `stage` of `stages` keeps at one time, of `microbatches`; with virtual stages, of
/// its chunk `chunk`, for a number of micro-batches that the stages divide. zb-h1 keeps P on every stage, what 1F1B
/// keeps on the first: later stages put off their weight gradients (Qi et al. 2024, section 3.1).
constexpr int microbatches_in_flight(ScheduleKind kind, int stages, int stage, int microbatches, int virtual_stages = 1,
                                     int chunk = 0) {
  if (kind == ScheduleKind::gpipe) return microbatches;
  if (kind == ScheduleKind::zb_h1) return stages < microbatches ? stages : microbatches;
  if (kind == ScheduleKind::one_f_one_b) return stages - stage < microbatches ? stages - stage : microbatches;
  // After f forwards of the steady phase there were f - ahead - 1 backwards, and these numbers grow in straight lines
  // between multiples of P: the most is at one of them, within a period of P v.
  const std::int64_t passes = std::int64_t{microbatches} * virtual_stages;
  const int ahead = interleaved_warm_up(stages, stage, microbatches, virtual_stages) + 1;
  int most = 0;
  const auto look = [&](int forwards) {
    const int backwards = forwards > ahead ? forwards - ahead : 0;
    const int held = detail::passes_of_chunk(forwards, stages, virtual_stages, chunk) -
                     detail::passes_of_chunk(backwards, stages, virtual_stages, virtual_stages - 1 - chunk);
    most = held > most ? held : most;
  };
  for (int k = 0; k <= 2 * virtual_stages + 2; ++k)
    for (const int forwards : {k * stages, ahead + k * stages})
      look(forwards < passes ? forwards : static_cast<int>(passes));
  return most;
}

}  // namespace galvatron
