// A rank with a GPU of its own among others.
#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/nccl/blocks.hpp>
#include <galvatron/comm/nccl/group.hpp>
#include <galvatron/comm/nccl/watch.hpp>
#include <galvatron/comm/tcp/world.hpp>
#include <galvatron/device/cuda/stream.hpp>

namespace galvatron::comm::nccl {

/// Models comm::World on memory of GPUs. Calls give NCCL their work and return; what the rank gives its stream
/// `compute` afterwards finds it done. When a rank fails or dies, or takes too long, kernels that wait for it are
/// aborted and every rank's calls throw PeerFailure. NCCL's buffers, and memory for blocks of several rows, are taken
/// from the GPU as they are needed, beside the arenas (train/gpu_world.hpp leaves room for them).
/// @tparam C  a world of the same ranks for memory of the program, whose failure() and warn() any thread may call:
/// tcp::World
template <class C>
class World {
 public:
  using Group = nccl::Group<typename C::Group>;
  using Control = C;

  /// The GPU of `compute` is the calling thread's current one; both outlive the world. Throws DeviceFailure
  /// or PeerFailure.
  /// @param timeout  how long one collective may take
  World(C& control, device::cuda::Stream& compute, std::chrono::nanoseconds timeout = std::chrono::minutes(10))
      : control_(control),
        watch_(control.rank(), timeout, news_of(control), warning_of(control)),
        blocks_(control, watch_, compute),
        compute_(compute) {
    for (int r = 0; r < size(); ++r) everybody_.push_back(r);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    withdraw();
    watch_.close();
  }

  [[nodiscard]] int rank() const { return control_.rank(); }
  [[nodiscard]] int size() const { return control_.size(); }

  /// The group of these world ranks, in this order; see thread::World.
  Group& group(std::span<const int> ranks) {
    for (auto& group : groups_)
      if (std::ranges::equal(group->ranks(), ranks)) return *group;
    check_members(ranks, rank(), size());
    return *groups_.emplace_back(std::make_unique<Group>(control_.group(ranks), ranks, watch_, compute_));
  }
  /// The group of all ranks.
  Group& everybody() { return group(everybody_); }
  Control& control() { return control_; }

  /// Offers blocks to their peers and returns; see comm::World.
  void post(std::span<const Piece> pieces) {
    check_pieces(pieces, size());
    blocks_.post(pieces);
  }
  /// Takes blocks from their peers, in order, when those have posted them.
  void receive(std::span<const Piece> pieces) {
    check_pieces(pieces, size());
    blocks_.receive(pieces);
  }
  /// What is computed from now on may change the memory of posted blocks: of all, or of those of one lane.
  void wait_sent() { blocks_.wait_sent(-1); }
  void wait_sent(int lane) { blocks_.wait_sent(lane); }

  /// Throws PeerFailure if a rank has failed; see check_peers().
  void check() {
    const std::scoped_lock lock(watch_.mutex());
    watch_.check();
  }

  /// Returns when this rank's streams are at work no more; on the way out of a failure aborts what waits for peers.
  void withdraw() noexcept {
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
  static Watch::News news_of(C& control) {
    if constexpr (requires { control.failure(); })
      return [&control] { return control.failure(); };
    else
      return {};
  }
  static Watch::Warning warning_of(C& control) {
    if constexpr (requires { control.warn(std::string()); })
      return [&control](const std::string& text) { control.warn(text); };
    else
      return {};
  }

  C& control_;
  Watch watch_;
  std::vector<int> everybody_;
  Blocks<C> blocks_;
  device::cuda::Stream& compute_;
  std::vector<std::unique_ptr<Group>> groups_;
};

}  // namespace galvatron::comm::nccl
