// A rank with a GPU of its own among others, by NCCL.
//
// Every group has a communicator and a stream. A collective waits there for what the rank's compute stream was given
// before; that stream waits for the collective when it is finished, or at once if it is a blocking one.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/nccl/blocks.hpp>
#include <galvatron/comm/nccl/communicator.hpp>
#include <galvatron/comm/nccl/watch.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/device/cuda/stream.hpp>

namespace galvatron::comm::nccl {

/// A group on memory of GPUs, in calls that do not wait for them. The first collective makes the communicator and waits
/// for all members. NCCL adds in an order of its own: every member has the same bits, and so have two runs on the same
/// machines, but they may differ from those of the sum in rank order. A failure of any rank, or a collective that takes
/// too long, ends all calls with PeerFailure.
class Group final : public comm::Group {
 public:
  /// @param control  a group of the same ranks for memory of the program  @param world_rank  this rank
  Group(comm::Group& control, int world_rank, Watch& watch, device::cuda::Stream& compute)
      : comm::Group(control.ranks(), world_rank), control_(control), watch_(watch), compute_(compute) {}

  /// Returns when the stream is at work no more.
  void wait() {
    if (stream_) stream_->wait();
  }

 private:
  void do_finish_shifts() override {
    for (Pending& shift : shifts_) finish(shift);
    shifts_.clear();
  }
  void do_run(const Collective& called) override {
    if (called.kind == CallKind::barrier) return control_.barrier();  // the members' streams may be at work
    Pending pending = do_start(called);
    if (called.kind == CallKind::shift)
      shifts_.push_back(pending);
    else
      finish(pending);
  }
  // Gives NCCL a collective, behind what is computed so far.
  Pending do_start(const Collective& called) override {
    if (called.kind == CallKind::all_reduce && size() == 1) return {};
    if (!communicator_) {
      stream_.emplace();
      communicator_.emplace(watch_, shared_id(control_), size(), rank());
    }
    ready_.record(compute_);
    ready_.hold(*stream_);
    communicator_->call([&](ncclComm_t comm) { return issue(called, comm, stream_->get()); });
    communicator_->settle();
    if (free_.empty()) free_.push_back(&fences_.emplace_back());
    const Pending out{called, free_.back()};
    free_.back()->record(*stream_);
    free_.pop_back();
    const std::scoped_lock lock(watch_.mutex());
    watch_.started(*stream_, called.text() + " of " + rank_list(ranks()));
    return out;
  }
  ncclResult_t issue(const Collective& called, ncclComm_t comm, cudaStream_t stream) const {
    const Elements& from = called.from;
    const Elements& to = called.to;
    const auto bytes = static_cast<std::size_t>(from.bytes());
    const auto count = static_cast<std::size_t>(to.count);
    // Blocks to one member and from one. Empty ones do not travel.
    const auto swap = [&](const Elements& given, const Elements& taken, int target, int source) {
      ncclResult_t status = ncclSuccess;
      if (given.count > 0)
        status = ncclSend(given.data, static_cast<std::size_t>(given.bytes()), ncclInt8, target, comm, stream);
      if (taken.count > 0 && is_fine(status))
        status = ncclRecv(taken.data, static_cast<std::size_t>(taken.bytes()), ncclInt8, source, comm, stream);
      return status;
    };
    // As NCCL has no collectives of unequal shards: one for each of them, in one group.
    const auto each_shard = [&](const auto& of_shard) {
      ncclResult_t status = ncclSuccess;
      for (int i = 0; i < size() && is_fine(status); ++i) {
        const Sharding::Range part = called.shard(i);
        if (part.count() > 0) status = of_shard(i, part.begin * from.size, static_cast<std::size_t>(part.count()));
      }
      return status;
    };
    if (called.kind == CallKind::all_gather && !called.ends.empty())
      return each_shard([&](int root, std::int64_t at, std::size_t n) {
        std::byte* const part = to.data + at;
        return ncclBroadcast(root == rank() ? from.data : part, part, n * static_cast<std::size_t>(to.size), ncclInt8,
                             root, comm, stream);
      });
    if (called.kind == CallKind::reduce_scatter && !called.ends.empty())
      return each_shard([&](int root, std::int64_t at, std::size_t n) {
        std::byte* const part = from.data + at;
        return ncclReduce(part, root == rank() ? to.data : part, n, type_of(to.type), ncclSum, root, comm, stream);
      });
    switch (called.kind) {
      case CallKind::all_reduce:
        return ncclAllReduce(to.data, to.data, count, type_of(to.type), operation_of(called.op), comm, stream);
      case CallKind::all_gather:
        return ncclAllGather(from.data, to.data, bytes, ncclInt8, comm, stream);
      case CallKind::reduce_scatter:
        return ncclReduceScatter(from.data, to.data, count, type_of(to.type), ncclSum, comm, stream);
      case CallKind::all_to_all: {
        ncclResult_t status = ncclSuccess;
        for (int i = 0; i < size() && is_fine(status); ++i) {
          const Collective::Block given = called.block(rank(), i, size());
          const Collective::Block taken = called.block(i, rank(), size());
          status = swap(from.slice(given.given, given.count), to.slice(taken.taken, taken.count), i, i);
        }
        return status;
      }
      case CallKind::broadcast:
        return ncclBroadcast(to.data, to.data, bytes, ncclInt8, called.root, comm, stream);
      case CallKind::shift:
        return swap(from, to, (rank() + 1) % size(), (rank() + size() - 1) % size());
      case CallKind::barrier:
        break;
    }
    return ncclSuccess;
  }
  void do_finish(const Pending& pending) override {
    free_.push_back(static_cast<device::cuda::Event*>(pending.handle));
    free_.back()->hold(compute_);
  }
  comm::Group& control_;
  Watch& watch_;
  device::cuda::Stream& compute_;
  std::deque<device::cuda::Event> fences_;  // behind collectives under way
  std::vector<device::cuda::Event*> free_;  // of these
  std::vector<Pending> shifts_;             // started and not finished
  std::optional<device::cuda::Stream> stream_;
  std::optional<Communicator> communicator_;
  device::cuda::Event ready_;
};

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
