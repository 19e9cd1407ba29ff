// Recorder: when the ranks of a run did what, in the last step that they did.
//
// A record of an instruction is a few readings of the clock and numbers; a step overwrites the one before, so that the
// memory is that of one step of every rank's program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/plan/task_program.hpp>
#include <galvatron/plan/wave_plan.hpp>
#include <galvatron/schedule/program.hpp>
#include <galvatron/schedule/replay.hpp>

namespace galvatron::train {

/// What one rank did in its last step; times are readings of its host's steady_seconds(). The stage of the rank tells
/// it about every instruction. Padded, as ranks write theirs at the same time.
template <class Span>
struct alignas(128) RecordedSpans {
  std::int64_t step = 0;  ///< counts from 0
  double began = 0;
  std::vector<Span> spans;

  void step_begins(std::int64_t number) {
    step = number;
    spans.clear();
    began = steady_seconds();
  }
  void ended(const schedule::Instruction& instruction, double instruction_began) {
    spans.push_back({instruction, {instruction_began}, {steady_seconds()}});
  }
};
using RecordedStep = RecordedSpans<schedule::Span>;

/// @tparam Span  schedule::Span, or TaskSpan of a model of several tasks
template <class Span>
class SpanRecorder {
 public:
  explicit SpanRecorder(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

  /// For the stage of a rank, and for others when the rank is not at work; ranks record at the same time, each for
  /// itself.
  [[nodiscard]] RecordedSpans<Span>& rank(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  /// The last step; to be asked when no rank is at work. All records are on one clock, as those of rank threads are.
  [[nodiscard]] schedule::MeasuredSpans<Span> last_step() const {
    schedule::MeasuredSpans<Span> out;
    double origin = std::numeric_limits<double>::infinity();
    for (const RecordedSpans<Span>& rank : ranks_)
      if (!rank.spans.empty()) origin = std::min(origin, rank.began);
    for (const RecordedSpans<Span>& rank : ranks_) {
      out.step = std::max(out.step, rank.step);
      out.ranks.emplace_back();
      for (Span span : rank.spans) {
        span.shift(Seconds{-origin});
        out.seconds = max(out.seconds, span.end);
        out.ranks.back().push_back(span);
      }
    }
    return out;
  }

 private:
  std::vector<RecordedSpans<Span>> ranks_;
};
using Recorder = SpanRecorder<schedule::Span>;
using TaskRecorder = SpanRecorder<TaskSpan>;

}  // namespace galvatron::train
