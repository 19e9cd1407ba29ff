// Calls of CUDA, checked; a CUDA stream, in which kernels and copies follow each other; events, which are places in it
// that others can wait for and between which the GPU can be timed; and its work as a CUDA graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>

#include <cuda_runtime_api.h>

#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/block.hpp>
#include <galvatron/device/owner.hpp>

namespace galvatron::device::cuda {

/// `what (file.hpp:12)`.
inline std::string with_place(const std::string& what, const std::source_location& where) {
  std::string file = where.file_name();
  if (const auto slash = file.find_last_of('/'); slash != std::string::npos) file.erase(0, slash + 1);
  return what + " (" + file + ":" + std::to_string(where.line()) + ")";
}

/// Throws DeviceFailure with CUDA's own words and the place of the call; a later launch does not report it again.
inline void check(cudaError_t status, std::source_location where = std::source_location::current()) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw DeviceFailure(
      with_place("CUDA: " + std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status), where), where);
}

class Event;

/// Owns a non-blocking stream of the device that was current when it was made. Throws DeviceFailure.
class Stream {
 public:
  using Fence = Event;

  Stream() { check(cudaStreamCreateWithFlags(stream_.out(), cudaStreamNonBlocking)); }

  [[nodiscard]] cudaStream_t get() const { return stream_.get(); }
  void wait() { check(cudaStreamSynchronize(stream_.get())); }

  /// Runs a kernel (block.hpp). Defined in launch.cuh; cuda/*.cu instantiate it for every kernel of the library.
  template <class Kernel>
  void launch(const Geometry& geometry, const Kernel& kernel);
  /// Copies within the device's memory, or between it and the program's.
  void copy(const void* from, void* to, std::int64_t bytes) {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_.get()));
  }

 private:
  Owner<cudaStream_t, cudaStreamDestroy> stream_;
};

/// Owns an event of the current device, without timing. Throws DeviceFailure.
class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(event_.out(), cudaEventDisableTiming)); }

  /// Stands behind all that was launched in the stream so far.
  void record(const Stream& stream) { check(cudaEventRecord(event_.get(), stream.get())); }
  /// Returns when the stream has come to the place last recorded; at once if none was.
  void wait() const { check(cudaEventSynchronize(event_.get())); }
  /// True when wait() would return at once; also after a failure of the device.
  [[nodiscard]] bool passed() const {
    if (cudaEventQuery(event_.get()) != cudaErrorNotReady) return true;
    cudaGetLastError();  // a later launch must not report it
    return false;
  }
  /// What is launched in that stream from now on waits.
  void hold(const Stream& stream) const { check(cudaStreamWaitEvent(stream.get(), event_.get())); }

 private:
  Owner<cudaEvent_t, cudaEventDestroy> event_;
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
  double seconds(const Stream& stream, const auto& before, const auto& work) {
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
  Owner<cudaEvent_t, cudaEventDestroy> begin_, end_;
};

/// What a stream was given between begin() and its end, to be done again. Throws DeviceFailure.
class Recording {
 public:
  /// From now on the stream keeps what it is given and does nothing. Other threads leave it alone meanwhile.
  static void begin(const Stream& stream) { check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeRelaxed)); }
  /// Ends what begin() began; nothing is left of it.
  static void drop(const Stream& stream) {
    Graph unused;
    cudaStreamEndCapture(stream.get(), unused.out());
    cudaGetLastError();  // a later call must not report it
  }

  explicit Recording(const Stream& stream) {
    Graph graph;
    check(cudaStreamEndCapture(stream.get(), graph.out()));
    check(cudaGraphInstantiate(work_.out(), graph.get(), 0));
    check(cudaGraphUpload(work_.get(), stream.get()));  // takes the memory that the first run would ask for
  }
  Recording(Recording&&) noexcept = default;
  Recording& operator=(Recording&&) noexcept = default;
  /// Waits for what runs.
  ~Recording() {
    if (work_.get() == nullptr) return;
    try {
      done_.wait();
    } catch (const DeviceFailure&) {  // the next call tells
    }
  }

  void run(const Stream& stream) {
    check(cudaGraphLaunch(work_.get(), stream.get()));
    done_.record(stream);
  }
  /// Returns when the last run is done; at once if there was none.
  void wait() const { done_.wait(); }

 private:
  using Graph = Owner<cudaGraph_t, cudaGraphDestroy>;

  Owner<cudaGraphExec_t, cudaGraphExecDestroy> work_;
  Event done_;
};

}  // namespace galvatron::device::cuda
