// Recorder: when the ranks of a run did what, in the last step that they did.
//
// A record of an instruction is two readings of the clock and three numbers; a step overwrites the one before, so that
// the memory is that of one step of every rank's program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/schedule/program.hpp>
#include <galvatron/schedule/replay.hpp>

namespace galvatron::train {

/// What one rank did in its last step; times are readings of its host's steady_seconds(). The stage of the rank tells
/// it about every instruction. Padded, as ranks write theirs at the same time.
struct alignas(128) RecordedStep {
  std::int64_t step = 0;  ///< counts from 0
  double began = 0;
  std::vector<schedule::Span> spans;

  void step_begins(std::int64_t number) {
    step = number;
    spans.clear();
    began = steady_seconds();
  }
  void ended(const schedule::Instruction& instruction, double instruction_began) {
    spans.push_back({instruction, {instruction_began}, {steady_seconds()}});
  }
};

class Recorder {
 public:
  explicit Recorder(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

  /// For the stage of a rank, and for others when the rank is not at work; ranks record at the same time, each for
  /// itself.
  [[nodiscard]] RecordedStep& rank(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  /// The last step; to be asked when no rank is at work. All records are on one clock, as those of rank threads are.
  [[nodiscard]] schedule::MeasuredStep last_step() const {
    schedule::MeasuredStep out;
    double origin = std::numeric_limits<double>::infinity();
    for (const RecordedStep& rank : ranks_)
      if (!rank.spans.empty()) origin = std::min(origin, rank.began);
    for (const RecordedStep& rank : ranks_) {
      out.step = std::max(out.step, rank.step);
      out.ranks.emplace_back();
      for (schedule::Span span : rank.spans) {
        span.begin = span.begin - Seconds{origin};
        span.end = span.end - Seconds{origin};
        out.seconds = max(out.seconds, span.end);
        out.ranks.back().push_back(span);
      }
    }
    return out;
  }

 private:
  std::vector<RecordedStep> ranks_;
};

}  // namespace galvatron::train
