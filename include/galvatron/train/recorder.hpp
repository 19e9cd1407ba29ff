// Recorder: when the ranks of a run did what, in the last step that they did.
//
// A record of an instruction is two readings of the clock and three numbers; a step overwrites the one before, so that
// the memory is that of one step of every rank's program.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/simulate/measured.hpp>
#include <galvatron/train/observer.hpp>

namespace galvatron::train {

class Recorder {
 public:
  explicit Recorder(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

  /// For the stage of a rank; ranks record at the same time, each for itself.
  [[nodiscard]] InstructionObserver& rank(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  /// The last step; to be asked when no rank is at work.
  [[nodiscard]] simulate::MeasuredStep last_step() const {
    simulate::MeasuredStep out;
    double origin = std::numeric_limits<double>::infinity();
    for (const Rank& rank : ranks_)
      if (!rank.spans.empty()) origin = std::min(origin, rank.step_began);
    for (const Rank& rank : ranks_) {
      out.step = std::max(out.step, rank.step);
      out.ranks.emplace_back();
      for (simulate::Span span : rank.spans) {
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
      step = number;
      spans.clear();
      step_began = now();
    }
    void begins() override { began = now(); }
    void ended(const schedule::Instruction& instruction) override { spans.push_back({instruction, {began}, {now()}}); }
    static double now() {
      return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }

    std::int64_t step = 0;
    double step_began = 0;
    double began = 0;
    std::vector<simulate::Span> spans;
  };

  std::vector<Rank> ranks_;
};

}  // namespace galvatron::train
