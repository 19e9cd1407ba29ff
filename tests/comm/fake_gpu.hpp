// A GPU whose streams run late and in a random order, wherever no fence forbids it, so that a fence that is missing
// shows as a wrong result.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <vector>

#include <galvatron/comm/local_gpu/world.hpp>

#include "../device/emulator.hpp"

namespace galvatron::test {

class FakeGpu {
 public:
  /// @param eagerness  of 100: how often some work is done when there is more
  explicit FakeGpu(std::uint64_t seed, unsigned eagerness = 30)
      : random_(seed), eagerness_(eagerness), emulator_(seed) {}
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  class Fence;
  class Stream;

  /// The launch after so many more fails as one does on a device that is out of order; negative: none.
  void fail_after(int launches) {
    const std::scoped_lock lock(mutex_);
    launches_left_ = launches;
  }

 private:
  struct Queue {
    struct Work {
      std::function<void()> run;            // or, if empty:
      std::shared_ptr<const Queue> behind;  // wait until this queue
      std::uint64_t position = 0;           // has done so much
    };
    std::deque<Work> work;
    std::uint64_t given = 0;
    std::uint64_t done = 0;
  };

  // All of these hold the mutex.
  void give(Queue& queue, Queue::Work work) {
    queue.work.push_back(std::move(work));
    ++queue.given;
    while (random_() % 100 < eagerness_ && step()) {
    }
  }
  void run_until(const Queue& queue, std::uint64_t position) {
    while (queue.done < position)
      if (!step()) throw std::logic_error("the streams wait for each other for ever");
  }
  // Does one piece of work of some stream; false if there is none.
  bool step() {
    std::vector<Queue*> ready;
    for (const auto& queue : queues_) {
      if (queue->work.empty()) continue;
      const Queue::Work& first = queue->work.front();
      if (first.run || first.behind->done >= first.position) ready.push_back(queue.get());
    }
    if (ready.empty()) return false;
    Queue& queue = *ready[random_() % ready.size()];
    if (queue.work.front().run) queue.work.front().run();
    queue.work.pop_front();
    ++queue.done;
    return true;
  }

  template <class Kernel>
  void run(const device::cuda::Geometry& geometry, const Kernel& kernel) {
#if defined(__SANITIZE_THREAD__)  // which does not follow the emulator's fibers
    struct Block {
      const device::cuda::Geometry& geometry;
      std::int64_t block;
      int number;
      [[nodiscard]] std::int64_t index() const { return block; }
      [[nodiscard]] std::int64_t blocks() const { return geometry.blocks; }
      [[nodiscard]] int thread() const { return number; }
      [[nodiscard]] int threads() const { return geometry.threads; }
    };
    for (std::int64_t block = 0; block < geometry.blocks; ++block)
      for (int thread = 0; thread < geometry.threads; ++thread) {
        Block here{geometry, block, thread};
        kernel(here);
      }
#else
    emulator_.launch(geometry, kernel);
#endif
  }

  std::mutex mutex_;
  std::mt19937_64 random_;
  unsigned eagerness_;
  Emulator emulator_;
  std::vector<std::shared_ptr<Queue>> queues_;
  int launches_left_ = -1;
};

class FakeGpu::Fence {
 public:
  void record(Stream& stream);
  void hold(Stream& stream) const;
  void wait() {
    FakeGpu* const gpu = gpu_.load();
    if (gpu == nullptr) return;
    const std::scoped_lock lock(gpu->mutex_);
    gpu->run_until(*queue_, position_);
  }

 private:
  std::atomic<FakeGpu*> gpu_{nullptr};
  std::shared_ptr<Queue> queue_;
  std::uint64_t position_ = 0;
};

/// Models comm::local_gpu::Stream.
class FakeGpu::Stream {
 public:
  using Fence = FakeGpu::Fence;

  explicit Stream(FakeGpu& gpu) : gpu_(gpu), queue_(std::make_shared<Queue>()) {
    const std::scoped_lock lock(gpu_.mutex_);
    gpu_.queues_.push_back(queue_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    const std::scoped_lock lock(gpu_.mutex_);
    std::erase(gpu_.queues_, queue_);
  }

  /// Any work, in order with the rest.
  void run(std::function<void()> work) {
    const std::scoped_lock lock(gpu_.mutex_);
    gpu_.give(*queue_, {std::move(work), nullptr});
  }
  template <class Kernel>
  void launch(const device::cuda::Geometry& geometry, const Kernel& kernel) {
    {
      const std::scoped_lock lock(gpu_.mutex_);
      if (gpu_.launches_left_ >= 0 && gpu_.launches_left_-- == 0) throw std::runtime_error("the GPU has burnt");
    }
    run([this, geometry, kernel] { gpu_.run(geometry, kernel); });
  }
  void copy(const std::byte* from, std::byte* to, std::int64_t bytes) {
    run([=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
  }
  void wait() {
    const std::scoped_lock lock(gpu_.mutex_);
    gpu_.run_until(*queue_, queue_->given);
  }

 private:
  friend class FakeGpu::Fence;
  FakeGpu& gpu_;
  std::shared_ptr<Queue> queue_;
};

inline void FakeGpu::Fence::record(Stream& stream) {
  const std::scoped_lock lock(stream.gpu_.mutex_);
  queue_ = stream.queue_;
  position_ = queue_->given;
  gpu_ = &stream.gpu_;
}
inline void FakeGpu::Fence::hold(Stream& stream) const {
  const std::scoped_lock lock(stream.gpu_.mutex_);
  if (gpu_ != nullptr) stream.gpu_.give(*stream.queue_, {nullptr, queue_, position_});
}

static_assert(comm::local_gpu::Stream<FakeGpu::Stream>);

}  // namespace galvatron::test
