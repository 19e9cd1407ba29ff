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
#include <galvatron/simulate/measured.hpp>

namespace galvatron::train {

/// What a stage tells about its instructions while it carries them out: called on the thread of the rank, around every
/// one.
class InstructionObserver {
 public:
  virtual ~InstructionObserver() = default;
  virtual void step_begins(std::int64_t step) = 0;
  virtual void begins() = 0;
  virtual void ended(const schedule::Instruction& instruction) = 0;
};

/// What one rank did in its last step; times are readings of its host's steady_seconds().
struct RecordedStep {
  std::int64_t step = 0;  ///< counts from 0
  double began = 0;
  std::vector<schedule::Span> spans;
};

class Recorder {
 public:
  explicit Recorder(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

  /// For the stage of a rank; ranks record at the same time, each for itself.
  [[nodiscard]] InstructionObserver& rank(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  /// The record of a rank; to be touched when the rank is not at work.
  [[nodiscard]] RecordedStep& record(int rank) { return ranks_[static_cast<std::size_t>(rank)].record; }

  /// The last step; to be asked when no rank is at work. All records are on one clock, as those of rank threads are.
  [[nodiscard]] simulate::MeasuredStep last_step() const {
    simulate::MeasuredStep out;
    double origin = std::numeric_limits<double>::infinity();
    for (const Rank& rank : ranks_)
      if (!rank.record.spans.empty()) origin = std::min(origin, rank.record.began);
    for (const Rank& rank : ranks_) {
      out.step = std::max(out.step, rank.record.step);
      out.ranks.emplace_back();
      for (schedule::Span span : rank.record.spans) {
        span.begin = span.begin - Seconds{origin};
        span.end = span.end - Seconds{origin};
        out.seconds = max(out.seconds, span.end);
        out.ranks.back().push_back(span);
      }
    }
    return out;
  }

 private:
  // Padded, as ranks write theirs at the same time.
  struct alignas(128) Rank : InstructionObserver {
    void step_begins(std::int64_t number) override {
      record.step = number;
      record.spans.clear();
      record.began = steady_seconds();
    }
    void begins() override { began = steady_seconds(); }
    void ended(const schedule::Instruction& instruction) override {
      record.spans.push_back({instruction, {began}, {steady_seconds()}});
    }

    RecordedStep record;
    double began = 0;
  };

  std::vector<Rank> ranks_;
};

}  // namespace galvatron::train
