// A rank among several on one GPU: a rank thread whose data lie there, and whose stream copies and adds them.
//
//   std::vector<S::Fence> fences(ranks);
//   thread::run(ranks, [&](thread::World& control) {
//     S compute;
//     local_gpu::World<S> world(control, fences, compute);
//     ...
//   });
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/local_gpu/kernels.hpp>
#include <galvatron/comm/thread/blocks.hpp>
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

/// A rank's memory of the GPU.
template <Stream S>
class Memory : public thread::Memory {
 public:
  /// @param fences  of the ranks, by rank: what each has offered last  @param compute  in which this rank computes
  Memory(std::span<typename S::Fence> fences, int rank, S& compute) : fences_(fences), rank_(rank), compute_(compute) {}

  [[nodiscard]] bool on_device() const override { return true; }
  void offer() override { fence_of(rank_).record(compute_); }
  void expect(int rank) override {
    if (rank != rank_) fence_of(rank).hold(compute_);
  }
  void wait(int rank) noexcept override {
    try {
      rank == rank_ ? compute_.wait() : fence_of(rank).wait();
    } catch (const std::exception&) {  // a device that has failed is at work no more
    }
  }
  void copy(const Piece& from, const Piece& to) override { copy_block(compute_, from, to); }
  void reduce(ElementType type, std::span<std::byte* const> sources, std::span<std::byte* const> destinations,
              std::int64_t n, ReduceOp op) override {
    local_gpu::reduce(compute_, type, sources, destinations, n, op);
  }

 private:
  [[nodiscard]] typename S::Fence& fence_of(int rank) const { return fences_[static_cast<std::size_t>(rank)]; }

  std::span<typename S::Fence> fences_;
  int rank_;
  S& compute_;
};

/// A world for memory of the GPU; takes none of it for itself, and gives the bits of rank threads. Calls meet in the
/// program, give the stream their work and return; what the rank gives its stream `compute` afterwards finds it done,
/// and after wait_sent() may change the memory of the blocks. Failures are those of thread::World. Not for capture into
/// a CUDA graph: ranks meet in the program.
template <Stream S>
class World final : Memory<S>, public thread::World {
 public:
  using thread::World::rank;
  using thread::World::size;

  /// All of these outlive the world. @param fences  one for each rank  @param compute  in which the rank computes
  World(thread::World& control, std::span<typename S::Fence> fences, S& compute)
      : Memory<S>(fences, control.rank(), compute),
        thread::World(control, static_cast<Memory<S>&>(*this)),
        control_(control) {}

  thread::Group& group(std::span<const int> ranks) override {
    if (std::ssize(ranks) > most_ranks)
      throw Failure(ErrorKind::usage,
                    text("a group of ", ranks.size(), " ranks on one GPU; there may be ", most_ranks));
    return thread::World::group(ranks);
  }
  comm::World& control() override { return control_; }

 private:
  thread::World& control_;
};

}  // namespace galvatron::comm::local_gpu
