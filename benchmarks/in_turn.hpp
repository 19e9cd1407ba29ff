// Runs that train in turn, a step of each after the other, so that what else the machine does meets all of them alike;
// and a profile of this machine with a slow link between its ranks.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <galvatron/cluster/cluster.hpp>
#include <galvatron/comm/thread/world.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/profile/host.hpp>
#include <galvatron/train/compiled.hpp>

#include "../tests/comm/slow.hpp"

namespace galvatron::in_turn {

/// Lets runs go on in turn, a step of each after the other, and measures the steps.
class Turns {
 public:
  /// @param ranks  of each run
  Turns(std::size_t runs, int ranks) : ranks_(ranks), arrived_(runs), seconds_(runs) {}

  /// A rank of a run is about to begin a step: the one before is over when all ranks are. Returns when it is its turn.
  void begin(std::size_t run, std::int64_t step) {
    std::unique_lock lock(mutex_);
    if (step > 0 && ++arrived_[run] == ranks_) over(run);
    const std::int64_t turn = step * std::ssize(seconds_) + static_cast<std::int64_t>(run);
    changed_.wait(lock, [&] { return turn_ >= turn || failed_; });
    if (failed_) throw Failure(ErrorKind::machine, "another run has failed");
  }
  /// The last step of a run is over.
  void end(std::size_t run) {
    const std::lock_guard lock(mutex_);
    over(run);
  }
  void fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
  }
  /// Of each step of a run.
  [[nodiscard]] const std::vector<double>& seconds(std::size_t run) const { return seconds_[run]; }

 private:
  void over(std::size_t run) {
    arrived_[run] = 0;
    seconds_[run].push_back(steady_seconds() - began_);
    began_ = steady_seconds();
    ++turn_;
    changed_.notify_all();
  }

  int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> arrived_;
  std::vector<std::vector<double>> seconds_;
  double began_ = steady_seconds();
  std::int64_t turn_ = 0;
  bool failed_ = false;
};

/// The samples of a run, which its ranks get when it is its turn.
class InTurn final : public train::BatchSource {
 public:
  InTurn(train::BatchSource& samples, Turns& turns, std::size_t run) : samples_(samples), turns_(turns), run_(run) {}
  std::shared_ptr<const train::Packing> packing(std::int64_t step) override {
    begin(step);
    return samples_.packing(step);
  }
  double waited(std::int64_t step) override { return samples_.waited(step); }
  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
              View<std::int32_t> out) override {
    begin(step);
    samples_.inputs(step, first, samples, range, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<std::int32_t> out) override {
    samples_.targets(step, first, samples, range, out);
  }

 private:
  // What a rank asks for first in a step.
  void begin(std::int64_t step) {
    {
      const std::lock_guard lock(mutex_);
      const auto [last, first] = steps_.emplace(std::this_thread::get_id(), -1);
      if (last->second == step) return;
      last->second = step;
    }
    turns_.begin(run_, step);
  }

  train::BatchSource& samples_;
  Turns& turns_;
  std::size_t run_;
  std::mutex mutex_;
  std::map<std::thread::id, std::int64_t> steps_;  ///< of each rank's thread: the last one
};

/// Trains a plan on rank threads of a core each, over the link, in turn with other runs.
inline void train_one(const Plan& plan, const ModelSpec& model, train::BatchSource& batches,
                      train::TrainOptions training, comm::slow::Link link, Turns& turns, std::size_t run) {
  training.world.timeout = std::chrono::hours(1);
  InTurn samples(batches, turns, run);
  const int ranks = plan.ranks();
  train::detail::train_ranks<InstantiatedStrategies>(plan, model, samples, training, [&](const auto& train_rank) {
    comm::thread::run(
        ranks,
        [&](comm::thread::World& inner) {
          comm::slow::World world(inner, link);
          train::PinnedRank pin(inner.rank(), ranks, 1);
          train_rank(static_cast<comm::World&>(world), train::HostPlatform{1, &pin});
        },
        training.world);
  });
  turns.end(run);
}

/// Calls one(run) for all runs at once, on threads of their own. Throws what failed first.
inline void train_all(std::size_t runs, Turns& turns, const std::function<void(std::size_t run)>& one) {
  std::mutex mutex;
  std::exception_ptr failed;
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < runs; ++i)
      threads.emplace_back([&, i] {
        try {
          one(i);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (failed == nullptr) failed = std::current_exception();
          turns.fail();
        }
      });
  }
  if (failed != nullptr) std::rethrow_exception(failed);
}

/// The profile with the link in all messages between the ranks.
inline Cluster with_link(Cluster out, const Link& link) {
  for (MessageTable& table : out.messages) {
    std::vector<double> seconds = table.seconds.seconds();
    for (std::size_t i = 0; i < seconds.size(); ++i)
      seconds[i] += cost::detail::ring_seconds(link, table.kind, table.group,
                                               static_cast<double>(table.seconds.axes()[0][i]), link.bandwidth);
    table.seconds = LogGrid<1>(table.seconds.axes(), seconds);
  }
  out.inside_node = out.across_nodes = link;
  return out;
}

inline double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

}  // namespace galvatron::in_turn
