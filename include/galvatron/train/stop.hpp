// StopVote: how the ranks of a run agree on the step after which it ends early.
//
// A rank that is asked to stop cannot end alone, so all ranks agree in an exchange of three numbers. Where steps are
// short it does not take place after each of them: rank 0 chooses how many steps the next one is away, so that the
// exchanges are about 50 ms apart.
//
//   rank 0   | step 40 | vote | step 41 | step 42 | step 43 | vote: end | checkpoint of step 43
//   rank 1   | step 40 | vote | step 41 | s(SIGTERM) 42 | step 43 | vote: end | checkpoint of step 43
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::train {

class StopVote {
 public:
  /// Collective: the first vote, before any step.
  /// @param everybody  all ranks, for memory of the program
  /// @param asked  not 0 when this rank is asked to stop; null: nobody asks it
  StopVote(comm::Group& everybody, const std::atomic<int>* asked) : everybody_(everybody), asked_(asked) {
    vote(false);
  }
  StopVote(const StopVote&) = delete;
  StopVote& operator=(const StopVote&) = delete;

  /// Collective, after every step: votes when it is time.
  /// @param cannot_go_on  this rank has a reason of its own to end the run
  void after_step(bool cannot_go_on) {
    if (++steps_ >= interval_) vote(cannot_go_on);
  }

  /// The same on all ranks: the run ends after this step.
  [[nodiscard]] bool ends() const { return asked_for_ != 0 || cannot_go_on_; }
  /// What the ranks were asked to stop with, the largest value of all; 0: nothing.
  [[nodiscard]] int asked_for() const { return asked_for_; }

 private:
  static constexpr double pause = 0.05;  // seconds between two votes
  static constexpr double most_steps = 32;

  void vote(bool cannot_go_on) {
    double values[3] = {asked_ == nullptr ? 0.0 : static_cast<double>(asked_->load(std::memory_order_relaxed)),
                        cannot_go_on ? 1.0 : 0.0, 0.0};
    if (everybody_.rank() == 0 && steps_ > 0) {
      const double step = (steady_seconds() - last_) / static_cast<double>(steps_);
      values[2] = std::floor(std::min(pause / std::max(step, 1e-6), most_steps));
    }
    everybody_.all_reduce(View<double>{values, 3}, comm::ReduceOp::max);
    asked_for_ = static_cast<int>(values[0]);
    cannot_go_on_ = values[1] > 0;
    interval_ = std::max<std::int64_t>(static_cast<std::int64_t>(values[2]), 1);
    steps_ = 0;
    last_ = steady_seconds();
  }

  comm::Group& everybody_;
  const std::atomic<int>* asked_;
  std::int64_t steps_ = 0;     // since the last vote
  std::int64_t interval_ = 1;  // steps between two votes
  double last_ = 0;
  int asked_for_ = 0;
  bool cannot_go_on_ = false;
};

}  // namespace galvatron::train
