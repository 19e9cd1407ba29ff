// Checkpointer: a rank's side of writing checkpoints while training goes on.
//
//   training   | step 100 | forward, backward of step 101 | update | step 102 | step 103 | ...
//   writing               | copy | shard, checksum, fsync .................... | manifest, new name |
//
// Masters and moments change in the update only, so the copy is taken while the next step computes; its update waits
// until the copy is there. Whether all shards are there the ranks tell each other after a step, so that nothing but the
// training thread ever talks to other ranks.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <galvatron/checkpoint/folder.hpp>
#include <galvatron/checkpoint/manifest.hpp>
#include <galvatron/checkpoint/shard_file.hpp>
#include <galvatron/checkpoint/slice.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::train {

struct CheckpointOptions {
  std::filesystem::path folder;  ///< empty: no checkpoints
  std::int64_t every = 0;        ///< steps between two; 0: only after the last step
  int keep = 2;                  ///< the newest that stay
  /// Of the folder, if it is taken already, by rank 0's process; null: rank 0 takes it, and holds it while it trains.
  std::shared_ptr<FolderLock> lock{};
};

/// What writing cost a rank.
struct CheckpointReport {
  std::int64_t count = 0;
  std::int64_t bytes = 0;    ///< of this rank's file, and of the copy in memory
  double pause_seconds = 0;  ///< updates waited for the copy, all checkpoints together
  double wait_seconds = 0;   ///< training waited for the checkpoint before, or at the end for the last
  double write_seconds = 0;  ///< beside training, without the manifest

  /// A later part of the same run, under another plan.
  void add(const CheckpointReport& later) {
    count += later.count;
    bytes = later.bytes;
    pause_seconds += later.pause_seconds;
    wait_seconds += later.wait_seconds;
    write_seconds += later.write_seconds;
  }
};

/// A thread that works beside training, on one task after the other. After an error it does no more, and the error
/// stays.
class BackgroundThread {
 public:
  /// A task looks at the token now and then, and ends early when a stop is requested.
  using Task = std::function<Result<void>(const std::stop_token&)>;

  /// Throws DeviceFailure if the system refuses a thread.
  /// @param at_start  called once on the thread
  explicit BackgroundThread(std::function<void()> at_start = {}) {
    try {
      thread_ = std::jthread([this, start = std::move(at_start)](const std::stop_token& stop) {
        if (start) start();
        run(stop);
      });
    } catch (const std::system_error& e) {
      throw DeviceFailure("cannot start the thread that writes checkpoints: " + e.code().message() +
                          "; allow more processes (ulimit -u) and memory (ulimit -v), or train with fewer ranks");
    }
  }

  /// The task before is done.
  void post(Task task) {
    const std::scoped_lock lock(mutex_);
    task_ = std::move(task);
    changed_.notify_all();
  }
  /// Ends the thread: the task at hand is asked to stop, and runs no more once this returns.
  void end() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }
  /// Returns when the task is done or has failed, or after that time. True for the former.
  bool wait_for(std::chrono::milliseconds longest) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, longest, [&] { return error_ || !task_; });
  }
  /// The error of a task.
  [[nodiscard]] std::optional<Error> error() {
    const std::scoped_lock lock(mutex_);
    return error_;
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return task_ && !error_; })) {
      lock.unlock();
      Result<void> done;
      try {
        done = task_(stop);
      } catch (...) {
        done = tl::unexpected<Error>(error_of_exception());
      }
      lock.lock();
      task_ = nullptr;
      if (!done) error_ = std::move(done.error());
      changed_.notify_all();
      if (stop.stop_requested()) return;
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  Task task_;  ///< under way, or none
  std::optional<Error> error_;
  std::jthread thread_;  // last: it uses the others, and is asked to stop and joined first
};

/// @tparam D  the device  @tparam Stage  what has the rank's state
template <class D, class Stage>
class Checkpointer {
 public:
  /// Collective. Takes the memory of the copy. Throws Failure (usage) when the folder cannot be written, or another run
  /// writes there.
  /// @param training  what the manifest will say; its step is set for every checkpoint
  /// @param on_thread_start  called on the thread that writes
  Checkpointer(const CheckpointOptions& options, TrainingState training, D& device, comm::World& world, Stage& stage,
               std::function<void()> on_thread_start = {})
      : options_(options),
        training_(std::move(training)),
        device_(device),
        stage_(stage),
        rank_(world.rank()),
        ranks_(world.size()),
        everybody_(world.control().everybody()),
        snapshot_(stage),
        facts_(static_cast<std::size_t>(world.size())),
        thread_(std::move(on_thread_start)) {
    if (rank_ == 0) {
      if (options_.lock == nullptr) options_.lock = value_or_throw(FolderLock::take(options_.folder));
      if (auto done = prepare_checkpoint_folder(options_.folder); !done) throw_error(done.error());
    }
    everybody_.barrier();
    report_.bytes = static_cast<std::int64_t>(snapshot_.bytes().size());
  }
  /// Removes what this rank has written of a checkpoint that will not be completed.
  ~Checkpointer() {
    thread_.end();
    try {
      discard();
    } catch (const std::bad_alloc&) {  // the next run removes it
    }
  }

  /// Collective, after every step: begins a checkpoint when one is due, and completes the one before when it is
  /// written. After the last step it returns when the last checkpoint is complete.
  /// @param steps  done so far, those before a resumption included
  void after_step(std::int64_t steps, bool last) {
    if (rank_ == 0) options_.lock->touch();
    if (pending_) settle(std::chrono::milliseconds(0));
    if (last || (options_.every > 0 && steps % options_.every == 0)) save(steps);
    if (last) finish();
  }

  /// Before every update: returns when the copy of the state before it is there.
  void before_update() {
    if (!copying_) return;
    const double begin = steady_seconds();
    copying_.wait(true);
    report_.pause_seconds += steady_seconds() - begin;
  }

  /// Collective, instead of any further step: returns when the checkpoint under way, if there is one, is complete.
  void finish() {
    wait();
    everybody_.barrier();
  }

  [[nodiscard]] const CheckpointReport& report() const { return report_; }

 private:
  // Until the checkpoint under way is complete. No rank waits for another one's disk for long without a sign of life.
  void wait() {
    const double begin = steady_seconds();
    constexpr std::chrono::milliseconds patience(1000);
    while (pending_) settle(patience);
    while (!thread_.wait_for(patience)) {
    }
    report_.wait_seconds += steady_seconds() - begin;
    if (const auto error = thread_.error()) throw_error(*error);
  }

  void discard() {
    std::error_code ignored;
    if (pending_) {
      std::filesystem::remove(unfinished_ / shard_name(rank_), ignored);
      std::filesystem::remove(unfinished_, ignored);  // the last rank's file was the last
    } else if (thread_.error()) {                     // all shards are there, but rank 0 could not complete it
      std::filesystem::remove_all(unfinished_, ignored);
    }
  }

  void save(std::int64_t steps) {
    wait();
    ++report_.count;
    training_.step = steps;
    pending_ = true;
    copying_ = true;
    unfinished_ = unfinished(options_.folder / checkpoint_name(steps));
    thread_.post([this, path = unfinished_ / shard_name(rank_)](const std::stop_token& stop) -> Result<void> {
      const double start = steady_seconds();
      {
        // The state is being read until this ends, whatever comes of it.
        const std::unique_ptr<std::atomic<bool>, void (*)(std::atomic<bool>*)> copying(&copying_, [](auto* flag) {
          *flag = false;
          flag->notify_all();
        });
        snapshot_.take(device_, stage_);
      }
      auto file = write_shard(path, snapshot_.bytes(), stop);
      if (!file) return tl::unexpected<Error>(std::move(file.error()));
      file_ = std::move(*file);
      write_seconds_ = steady_seconds() - start;
      return {};
    });
  }

  // Every rank tells whether its file is on the disk, its size and its checksum. When all are, rank 0 completes.
  void settle(std::chrono::milliseconds patience) {
    const bool written = thread_.wait_for(patience);
    if (const auto error = thread_.error()) throw_error(*error);
    const Fact own = written ? Fact{true, file_.crc32c, file_.bytes} : Fact{};
    everybody_.all_gather(View<const Fact>(&own, 1), View<Fact>(facts_.data(), ranks_));
    if (!std::ranges::all_of(facts_, &Fact::written)) return;
    pending_ = false;
    report_.write_seconds += write_seconds_;
    if (rank_ != 0) return;
    CheckpointManifest manifest{training_, ranks_, {}};
    for (const Fact& fact : facts_)
      manifest.files.push_back({shard_name(static_cast<int>(&fact - facts_.data())), fact.bytes, fact.crc32c});
    thread_.post([folder = options_.folder, keep = options_.keep, manifest](const std::stop_token&) {
      return complete_checkpoint(folder, manifest, keep);
    });
  }

  /// What a rank tells of its file.
  struct Fact {
    bool written = false;  ///< and on the disk
    std::uint32_t crc32c = 0;
    std::int64_t bytes = 0;
  };

  CheckpointOptions options_;
  TrainingState training_;
  D& device_;
  Stage& stage_;
  int rank_;
  int ranks_;
  comm::Group& everybody_;  ///< speak of memory of the program
  Snapshot snapshot_;
  std::filesystem::path unfinished_;   ///< the newest checkpoint's, until it is complete
  bool pending_ = false;               ///< a checkpoint is being written
  std::atomic<bool> copying_ = false;  ///< the state is being read
  CheckpointReport report_;
  std::vector<Fact> facts_;  ///< of all ranks
  CheckpointFile file_;      ///< read when the thread is idle
  double write_seconds_ = 0;
  BackgroundThread thread_;  // last: its tasks use the others
};

}  // namespace galvatron::train
