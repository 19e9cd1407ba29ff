// The collectives of ranks with a GPU each, by NCCL.
//
// Every group has a communicator and a stream. A collective waits there for what the rank's compute stream was given
// before; that stream waits for the collective when it is finished, or at once if it is a blocking one.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <galvatron/comm/call.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/nccl/communicator.hpp>
#include <galvatron/comm/nccl/watch.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/device/cuda/event.hpp>
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

  void finish_shifts() override {
    for (Pending& shift : shifts_) finish(shift);
    shifts_.clear();
  }
  /// The members' streams may be at work.
  void barrier() override { control_.barrier(); }

  /// Returns when the stream is at work no more.
  void wait() {
    if (stream_) stream_->wait();
  }

 private:
  void do_all_reduce(const Elements& data, ReduceOp op) override {
    now(do_start({Pending::Call::all_reduce, op, {}, data}));
  }
  void do_all_gather(const Elements& shard, const Elements& all) override {
    now(do_start({Pending::Call::all_gather, ReduceOp::sum, shard, all}));
  }
  void do_reduce_scatter(const Elements& all, const Elements& shard) override {
    now(do_start({Pending::Call::reduce_scatter, ReduceOp::sum, all, shard}));
  }
  void do_all_to_all(const Elements& from, const Elements& to) override {
    const std::size_t n = bytes_of(from) / static_cast<std::size_t>(size());
    now(given(CallKind::all_to_all, from, 0, [&](ncclComm_t comm, cudaStream_t stream) {
      for (int i = 0; i < size() && n > 0; ++i) {
        const std::size_t at = static_cast<std::size_t>(i) * n;
        if (const ncclResult_t status = ncclSend(from.data + at, n, ncclInt8, i, comm, stream); !is_fine(status))
          return status;
        if (const ncclResult_t status = ncclRecv(to.data + at, n, ncclInt8, i, comm, stream); !is_fine(status))
          return status;
      }
      return ncclSuccess;
    }));
  }
  void do_broadcast(const Elements& data, int root) override {
    now(given(CallKind::broadcast, data, root, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclBroadcast(data.data, data.data, bytes_of(data), ncclInt8, root, comm, stream);
    }));
  }
  void do_start_shift(const Elements& from, const Elements& to) override {
    shifts_.push_back(given(CallKind::shift, from, 0, [&](ncclComm_t comm, cudaStream_t stream) {
      const ncclResult_t sent = ncclSend(from.data, bytes_of(from), ncclInt8, (rank() + 1) % size(), comm, stream);
      if (!is_fine(sent)) return sent;
      return ncclRecv(to.data, bytes_of(from), ncclInt8, (rank() + size() - 1) % size(), comm, stream);
    }));
  }
  Pending do_start(const Pending& what) override {
    const Elements& from = what.from;
    const Elements& to = what.to;
    switch (what.call) {
      case Pending::Call::all_reduce:
        if (size() == 1) return {};
        return given(CallKind::all_reduce, to, static_cast<int>(what.op), [&](ncclComm_t comm, cudaStream_t stream) {
          return ncclAllReduce(to.data, to.data, static_cast<std::size_t>(to.count), type_of(to.type),
                               operation_of(what.op), comm, stream);
        });
      case Pending::Call::all_gather:
        return given(CallKind::all_gather, from, 0, [&](ncclComm_t comm, cudaStream_t stream) {
          return ncclAllGather(from.data, to.data, bytes_of(from), ncclInt8, comm, stream);
        });
      case Pending::Call::reduce_scatter:
        return given(CallKind::reduce_scatter, from, 0, [&](ncclComm_t comm, cudaStream_t stream) {
          return ncclReduceScatter(from.data, to.data, static_cast<std::size_t>(to.count), type_of(to.type), ncclSum,
                                   comm, stream);
        });
      case Pending::Call::none:
      case Pending::Call::under_way:
        break;
    }
    return what;
  }
  void do_finish(const Pending& pending) override {
    free_.push_back(static_cast<device::cuda::Event*>(pending.handle));
    free_.back()->hold(compute_);
  }
  void now(Pending pending) { finish(pending); }

  static std::size_t bytes_of(const Elements& data) { return static_cast<std::size_t>(data.bytes()); }

  // Gives NCCL a collective, issue(communicator, stream), behind what is computed so far.
  template <class F>
  Pending given(CallKind kind, const Elements& data, int detail, F&& issue) {
    if (!communicator_) {
      stream_.emplace();
      communicator_.emplace(watch_, shared_id(control_), size(), rank());
    }
    ready_.record(compute_);
    ready_.hold(*stream_);
    const auto call = describe(kind, data, detail);
    communicator_->call([&](ncclComm_t comm) { return issue(comm, stream_->get()); });
    communicator_->settle();
    if (free_.empty()) free_.push_back(&fences_.emplace_back());
    Pending out;
    out.call = Pending::Call::under_way;
    out.handle = free_.back();
    free_.back()->record(*stream_);
    free_.pop_back();
    const std::scoped_lock lock(watch_.mutex());
    watch_.started(*stream_, call.text() + " of " + rank_list(ranks()));
    return out;
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

}  // namespace galvatron::comm::nccl
