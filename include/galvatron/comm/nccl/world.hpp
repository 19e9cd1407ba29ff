// A rank with a GPU of its own among others.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/nccl/blocks.hpp>
#include <galvatron/comm/nccl/group.hpp>
#include <galvatron/comm/nccl/watch.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/device/cuda/stream.hpp>

namespace galvatron::comm::nccl {

/// A world for memory of GPUs. Calls give NCCL their work and return; what the rank gives its stream `compute`
/// afterwards finds it done. When a rank fails or dies, or takes too long, kernels that wait for it are aborted and
/// every rank's calls throw PeerFailure. NCCL's buffers, and memory for blocks of several rows, are taken from the GPU
/// on demand, outside the arenas (rank/gpu_world.hpp reserves memory for them).
class World final : public comm::World {
 public:
  /// The GPU of `compute` is the calling thread's current one; both outlive the world. Throws DeviceFailure
  /// or PeerFailure.
  /// @param control  the same ranks, for memory of the program  @param timeout  how long one collective may take
  World(comm::World& control, device::cuda::Stream& compute,
        std::chrono::nanoseconds timeout = std::chrono::minutes(10))
      : comm::World(control.rank(), control.size()),
        control_(control),
        watch_(control, timeout),
        blocks_(control, watch_, compute),
        compute_(compute) {}
  ~World() override {
    withdraw();
    watch_.close();
  }

  Group& group(std::span<const int> ranks) override {
    return groups_.find(*this, ranks, control_.group(ranks), rank(), watch_, compute_);
  }
  comm::World& control() override { return control_; }

  void check() override {
    const std::scoped_lock lock(watch_.mutex());
    watch_.check();
  }

  /// On the way out of a failure aborts what waits for peers.
  void withdraw() noexcept override {
    try {
      if (std::uncaught_exceptions() > 0) {
        const std::scoped_lock lock(watch_.mutex());
        watch_.fail_and_warn("rank " + std::to_string(rank()) + " has failed");
      }
      for (const auto& group : groups_) group->wait();
      blocks_.wait();
      compute_.wait();
    } catch (const std::exception&) {  // a device that has failed is at work no more
    }
  }

 private:
  void do_post(std::span<const Piece> pieces) override { blocks_.post(pieces); }
  void do_receive(std::span<const Piece> pieces) override { blocks_.receive(pieces); }
  /// What is computed from now on may change the memory of these blocks.
  void do_wait_sent(int lane) override { blocks_.wait_sent(lane); }

  comm::World& control_;
  Watch watch_;
  Blocks blocks_;
  device::cuda::Stream& compute_;
  Groups<Group> groups_;
};

}  // namespace galvatron::comm::nccl
