// CUDA events: places in a stream that others can wait for, and between which the GPU can be timed.
#pragma once

#include <utility>

#include <cuda_runtime_api.h>

#include <galvatron/device/cuda/check.hpp>
#include <galvatron/device/cuda/stream.hpp>
#include <galvatron/device/owner.hpp>

namespace galvatron::device::cuda {

/// Owns an event of the current device, without timing. Throws DeviceFailure.
class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }

  /// Stands behind all that was launched in the stream so far.
  void record(const Stream& stream) { check(cudaEventRecord(event_, stream.get())); }
  /// Returns when the stream has come to the place last recorded; at once if none was.
  void wait() const { check(cudaEventSynchronize(event_)); }
  /// True when wait() would return at once; also after a failure of the device.
  [[nodiscard]] bool passed() const {
    if (cudaEventQuery(event_) != cudaErrorNotReady) return true;
    cudaGetLastError();  // a later launch must not report it
    return false;
  }
  /// What is launched in that stream from now on waits.
  void hold(const Stream& stream) const { check(cudaStreamWaitEvent(stream.get(), event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Times what a stream of the current device does. Throws DeviceFailure.
class StreamTimer {
 public:
  StreamTimer() {
    check(cudaEventCreate(begin_.out()));
    check(cudaEventCreate(end_.out()));
  }

  /// Seconds that the GPU needs for what `work()` launches; returns when that is done. While `before()` runs on the
  /// GPU, which does not count, the program is on its way with the rest.
  template <class Before, class Work>
  double seconds(const Stream& stream, const Before& before, const Work& work) {
    before();
    check(cudaEventRecord(begin_.get(), stream.get()));
    work();
    check(cudaEventRecord(end_.get(), stream.get()));
    check(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  Owner<cudaEvent_t, cudaEventDestroy> begin_;
  Owner<cudaEvent_t, cudaEventDestroy> end_;
};

}  // namespace galvatron::device::cuda
