// A rank among several on one GPU: a rank thread whose data lie there, and whose stream copies and adds them
// (rank/gpu_world.hpp starts such ranks).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/local_gpu/kernels.hpp>
#include <galvatron/comm/thread/world.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::local_gpu {

/// A queue of work of a device, and fences by which one queue waits for another. Work of one stream is done in order,
/// that of several in any. A stream is used by its rank's thread alone, a fence by any.
template <class S>
concept Stream = requires(S& s, typename S::Fence& fence, const std::byte* from, std::byte* to, std::int64_t bytes) {
  requires std::default_initializable<typename S::Fence>;
  /// Also s.launch(geometry, kernel), as in device/cuda.
  s.copy(from, to, bytes);
  /// The fence is passed when all that the stream was given so far is done; what it stood for before is forgotten.
  fence.record(s);
  /// What the stream is given from now on waits for what the fence stands for now; for nothing if it was not recorded.
  fence.hold(s);
  /// The program waits for all that the stream was given, or for the fence.
  s.wait();
  fence.wait();
};

/// A world for memory of the GPU; takes none of it for itself, and gives the bits of rank threads. Calls meet in the
/// program, give the stream their work and return; what the rank gives its stream `compute` afterwards finds it done,
/// and after wait_sent() may change the memory of the blocks. Failures are those of thread::World. Not for capture into
/// a CUDA graph: ranks meet in the program.
template <Stream S>
class World final : thread::Memory, public thread::World {
 public:
  /// All of these outlive the world.
  /// @param fences  of the ranks, by rank: what each has offered last  @param compute  in which this rank computes
  World(thread::World& control, std::span<typename S::Fence> fences, S& compute)
      : thread::World(control, static_cast<thread::Memory&>(*this)),
        control_(control),
        fences_(fences),
        compute_(compute) {}
  ~World() override { withdraw(); }

  thread::Group& group(std::span<const int> ranks) override {
    if (std::ssize(ranks) > most_ranks)
      throw Failure(ErrorKind::usage,
                    text_of("a group of ", ranks.size(), " ranks on one GPU; there may be ", most_ranks));
    return thread::World::group(ranks);
  }
  comm::World& control() override { return control_; }

 private:
  [[nodiscard]] bool on_device() const override { return true; }
  void offer() override { fence_of(rank()).record(compute_); }
  void expect(int other) override {
    if (other != rank()) fence_of(other).hold(compute_);
  }
  void wait(int other) noexcept override {
    try {
      other == rank() ? compute_.wait() : fence_of(other).wait();
    } catch (const std::exception&) {  // a device that has failed is at work no more
    }
  }
  void copy(const Piece& from, const Piece& to) override { copy_block(compute_, from, to); }
  void reduce(ElementType type, std::span<std::byte* const> sources, std::span<std::byte* const> destinations,
              std::int64_t n, ReduceOp op) override {
    local_gpu::reduce(compute_, type, sources, destinations, n, op);
  }
  [[nodiscard]] typename S::Fence& fence_of(int of) const { return fences_[static_cast<std::size_t>(of)]; }

  thread::World& control_;
  std::span<typename S::Fence> fences_;
  S& compute_;
};

}  // namespace galvatron::comm::local_gpu
