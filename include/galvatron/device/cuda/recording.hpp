// Work of a stream as a CUDA graph.
#pragma once

#include <cstdint>
#include <utility>

#include <cuda_runtime_api.h>

#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/check.hpp>
#include <galvatron/device/cuda/event.hpp>
#include <galvatron/device/cuda/stream.hpp>
#include <galvatron/device/owner.hpp>

namespace galvatron::device::cuda {

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

  /// Ends what begin() began.
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
    if (work_.get() == nullptr || !runs_) return;
    try {
      done_.wait();
    } catch (const DeviceFailure&) {  // the next call tells
    }
  }

  void run(const Stream& stream) {
    check(cudaGraphLaunch(work_.get(), stream.get()));
    done_.record(stream);
    runs_ = true;
  }
  /// Returns when the last run is done; at once if there was none.
  void wait() const { done_.wait(); }

 private:
  using Graph = Owner<cudaGraph_t, cudaGraphDestroy>;

  Owner<cudaGraphExec_t, cudaGraphExecDestroy> work_;
  Event done_;
  bool runs_ = false;
};

}  // namespace galvatron::device::cuda
