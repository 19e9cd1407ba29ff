// Iterations of very many micro-batches: a part of them is followed, and what happens once a turn in the middle of it
// is counted as often as it happens.
//
// Once a pipeline is full, every turn of a schedule's repeated block takes as long as the one before. So an iteration
// of m micro-batches is one of fewer, cut in the middle of each block that grows with m (1F1B has one, GPipe two), with
//
//     time that is left out = turns that are left out * mean seconds of a turn just before the cut
//
//   followed   fill | turn turn turn turn | turn turn | drain
//   shown      fill | turn turn turn turn |  ...left out...  | turn turn | drain
//                     <- begin .. end ->  ^ first
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/schedule/replay.hpp>
#include <galvatron/schedule/schedules.hpp>

namespace galvatron::simulate {

using schedule::Span;

/// Instructions of all stages that are followed one by one, about; pipelines of very many stages need more.
inline constexpr std::int64_t most_followed = 1 << 18;
/// Above this a simulation is refused.
inline constexpr std::int64_t most_simulated = 1 << 24;

/// Turns that are left out.
struct Repetition {
  int microbatches = 0;  ///< that are left out
  int held = 0;          ///< passes of which a stage keeps the stash after them and not before
  double times = 0;      ///< how often what was done from `begin` to `end` is done once more
  Seconds begin;         ///< of the followed time
  Seconds end;
  std::vector<std::size_t> first;  ///< of each stage, its first span behind them

  [[nodiscard]] Seconds lasted() const { return (end - begin) * times; }
};

/// Micro-batches to follow of `microbatches`: all of them, or some that fill the pipeline several times.
/// @param most  instructions that are followed
inline int followed_microbatches(ScheduleKind kind, int stages, int microbatches, int virtual_stages,
                                 std::int64_t most) {
  const std::int64_t each = std::int64_t{7} * stages * virtual_stages;  // instructions, at most
  const std::int64_t enough = std::max(most / each, std::int64_t{3} * stages + 64);
  if (microbatches <= enough) return microbatches;
  const std::int64_t unit = kind == ScheduleKind::interleaved ? stages : 1;
  return static_cast<int>(microbatches - (microbatches - enough) / unit * unit);
}

/// Calls visit(span, seconds) for each span of a stage, `seconds` being all that is spent in the iteration on it and on
/// those like it that are left out.
template <class Visit>
void for_each_share(std::span<const Span> followed, std::span<const Repetition> repetitions, Visit&& visit) {
  for (const Span& span : followed) {
    Seconds seconds = span.end - span.begin;
    for (const Repetition& repetition : repetitions) {
      const Seconds inside = min(span.end, repetition.end) - max(span.begin, repetition.begin);
      if (inside.value > 0) seconds += inside * repetition.times;
    }
    visit(span, seconds);
  }
}

/// What is left out of an iteration that was followed for fewer micro-batches.
/// @param whole, followed  the blocks of every stage for all micro-batches, and for those that were followed
/// @param spans            of the latter
inline std::vector<Repetition> repetitions_of(std::span<const schedule::StageProgram> whole,
                                              std::span<const schedule::StageProgram> followed,
                                              std::span<const std::vector<Span>> spans) {
  std::vector<Repetition> out;
  for (std::size_t b = 0; b < whole.front().size(); ++b) {
    const std::int64_t more = whole.front()[b].repeats - followed.front()[b].repeats;
    if (more == 0) continue;
    std::int64_t turns = followed.front()[b].repeats;
    for (const schedule::StageProgram& blocks : followed) turns = std::min(turns, blocks[b].repeats);
    const std::int64_t begin = turns / 2;
    const std::int64_t mean_of = turns < 48 ? std::max<std::int64_t>(1, turns / 4) : turns / 48 * 12;
    Repetition repetition;
    repetition.microbatches = static_cast<int>(more * whole.front()[b].step);
    for (const schedule::Instruction& instruction : whole.front()[b].once) {
      using schedule::Op;
      const bool frees = instruction.op == Op::backward || instruction.op == Op::backward_weight;
      repetition.held += instruction.op == Op::forward ? 1 : frees ? -1 : 0;
    }
    repetition.held *= static_cast<int>(more);
    repetition.times = static_cast<double>(more) / static_cast<double>(mean_of);
    for (std::size_t s = 0; s < followed.size(); ++s) {
      std::size_t before = 0;
      for (std::size_t i = 0; i < b; ++i) before += static_cast<std::size_t>(followed[s][i].size());
      const std::size_t turn = followed[s][b].once.size();
      repetition.first.push_back(before + static_cast<std::size_t>(begin + mean_of) * turn);
      if (s + 1 < followed.size()) continue;
      repetition.begin = spans[s][before + static_cast<std::size_t>(begin) * turn].begin;
      repetition.end = spans[s][repetition.first.back()].begin;
    }
    out.push_back(std::move(repetition));
  }
  return out;
}

/// The spans of a stage as they lie in the whole iteration.
inline std::vector<Span> shown_spans(const schedule::StageProgram& whole, const schedule::StageProgram& followed,
                                     std::vector<Span> spans, std::span<const Repetition> repetitions,
                                     std::size_t stage) {
  std::size_t at = 0;
  std::size_t passed = 0;  // repetitions
  Seconds later;
  for (std::size_t b = 0; b < followed.size(); ++b) {
    std::int64_t left_out = 0;  // turns of this block
    for (std::int64_t time = 0; time < followed[b].repeats; ++time) {
      if (passed < repetitions.size() && at == repetitions[passed].first[stage]) {
        left_out = whole[b].repeats - followed[b].repeats;
        later += repetitions[passed++].lasted();
      }
      for (std::size_t place = 0; place < followed[b].once.size(); ++place, ++at)
        spans[at] = {whole[b].at(time + left_out, place), spans[at].begin + later, spans[at].end + later};
    }
  }
  return spans;
}

}  // namespace galvatron::simulate
