// The collectives of ranks with a GPU each, by NCCL.
//
// Every group has a communicator and a stream. A collective waits there for what the rank's compute stream was given
// before; that stream waits for the collective when it is finished, or at once if it is a blocking one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/nccl/communicator.hpp>
#include <galvatron/comm/nccl/watch.hpp>
#include <galvatron/comm/reduction.hpp>
#include <galvatron/comm/thread/meeting.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/check.hpp>
#include <galvatron/device/cuda/event.hpp>
#include <galvatron/device/cuda/stream.hpp>

namespace galvatron::comm::nccl {

/// Models comm::Group on memory of GPUs, in calls that do not wait for them. The first collective makes the
/// communicator and waits for all members. NCCL adds in an order of its own: every member has the same bits, and so
/// have two runs on the same machines, but they may differ from those of the sum in rank order. A failure of any rank,
/// or a collective that takes too long, ends all calls with PeerFailure.
/// @tparam C  a group of the same ranks for memory of the program
template <class C>
class Group {
 public:
  /// A collective that was started; nothing by default.
  class Pending {
    friend class Group;
    device::cuda::Event* done_ = nullptr;
  };

  /// @param ranks  of the members, for messages
  Group(C& control, std::span<const int> ranks, Watch& watch, device::cuda::Stream& compute)
      : control_(control), ranks_(ranks.begin(), ranks.end()), watch_(watch), compute_(compute) {}
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] int rank() const { return control_.rank(); }
  [[nodiscard]] int size() const { return control_.size(); }
  /// World ranks of the members, in group order.
  [[nodiscard]] std::span<const int> ranks() const { return ranks_; }

  template <Reducible T>
  void all_reduce(View<T> data, ReduceOp op = ReduceOp::sum) {
    finish_now(start_all_reduce(data, op));
  }
  template <class T>
  void all_gather(std::type_identity_t<View<const T>> shard, View<T> all) {
    finish_now(start_all_gather(shard, all));
  }
  template <Reducible T>
  void reduce_scatter(std::type_identity_t<View<T>> all, View<T> shard) {
    finish_now(start_reduce_scatter(all, shard));
  }
  template <class T>
  void all_to_all(std::type_identity_t<View<const T>> from, View<T> to) {
    check_blocks(world_rank(), size(), from.count, to.count);
    const std::size_t n = bytes_of(from) / static_cast<std::size_t>(size());
    const auto* const source = reinterpret_cast<const std::byte*>(from.data);
    auto* const target = reinterpret_cast<std::byte*>(to.data);
    finish_now(given(thread::CallKind::all_to_all, from, 0, [&](ncclComm_t comm, cudaStream_t stream) {
      for (int i = 0; i < size() && n > 0; ++i) {
        const std::size_t at = static_cast<std::size_t>(i) * n;
        if (const ncclResult_t status = ncclSend(source + at, n, ncclInt8, i, comm, stream); !is_fine(status))
          return status;
        if (const ncclResult_t status = ncclRecv(target + at, n, ncclInt8, i, comm, stream); !is_fine(status))
          return status;
      }
      return ncclSuccess;
    }));
  }
  template <class T>
  void broadcast(View<T> data, int root) {
    check_root(root, size());
    finish_now(given(thread::CallKind::broadcast, View<const T>(data), root, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclBroadcast(data.data, data.data, bytes_of(View<const T>(data)), ncclInt8, root, comm, stream);
    }));
  }

  /// One step around the ring of the members; see comm::Group.
  template <class T>
  void start_shift(std::type_identity_t<View<const T>> from, View<T> to) {
    check_shift(from.count, to.count);
    shifts_.push_back(given(thread::CallKind::shift, from, 0, [&](ncclComm_t comm, cudaStream_t stream) {
      const ncclResult_t sent = ncclSend(from.data, bytes_of(from), ncclInt8, (rank() + 1) % size(), comm, stream);
      if (!is_fine(sent)) return sent;
      return ncclRecv(to.data, bytes_of(from), ncclInt8, (rank() + size() - 1) % size(), comm, stream);
    }));
  }
  void finish_shifts() {
    for (Pending& shift : shifts_) finish(shift);
    shifts_.clear();
  }

  /// Returns when all members have called it; their streams may be at work.
  void barrier() { control_.barrier(); }

  template <class T>
  Pending start_all_reduce(View<T> data, ReduceOp op = ReduceOp::sum) {
    if (size() == 1) return {};
    return given(thread::CallKind::all_reduce, View<const T>(data), static_cast<int>(op),
                 [&](ncclComm_t comm, cudaStream_t stream) {
                   return ncclAllReduce(data.data, data.data, static_cast<std::size_t>(data.count), type_of<T>(),
                                        operation_of(op), comm, stream);
                 });
  }
  template <class T>
  Pending start_all_gather(std::type_identity_t<View<const T>> shard, View<T> all) {
    check_whole("all_gather", world_rank(), size(), shard.count, all.count);
    return given(thread::CallKind::all_gather, shard, 0, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllGather(shard.data, all.data, bytes_of(shard), ncclInt8, comm, stream);
    });
  }
  template <class T>
  Pending start_reduce_scatter(std::type_identity_t<View<T>> all, View<T> shard) {
    check_whole("reduce_scatter", world_rank(), size(), shard.count, all.count);
    return given(thread::CallKind::reduce_scatter, View<const T>(all), 0, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclReduceScatter(all.data, shard.data, static_cast<std::size_t>(shard.count), type_of<T>(), ncclSum, comm,
                               stream);
    });
  }
  void finish(Pending& pending) {
    if (pending.done_ == nullptr) return;
    pending.done_->hold(compute_);
    free_.push_back(std::exchange(pending.done_, nullptr));
  }

  /// Returns when the stream is at work no more.
  void wait() {
    if (stream_) stream_->wait();
  }

 private:
  template <class T>
  static std::size_t bytes_of(View<const T> v) {
    static_assert(std::is_trivially_copyable_v<T>);
    return static_cast<std::size_t>(v.count) * sizeof(T);
  }
  [[nodiscard]] int world_rank() const { return ranks_[static_cast<std::size_t>(rank())]; }

  // Gives NCCL a collective, issue(communicator, stream), behind what is computed so far.
  template <class T, class F>
  Pending given(thread::CallKind kind, View<const T> data, int detail, F&& issue) {
    if (!communicator_) {
      stream_.emplace();
      communicator_.emplace(watch_, shared_id(control_), size(), rank());
    }
    ready_.record(compute_);
    ready_.hold(*stream_);
    const auto call = thread::describe(kind, View<T>(const_cast<T*>(data.data), data.count), detail);
    communicator_->call([&](ncclComm_t comm) { return issue(comm, stream_->get()); });
    communicator_->settle();
    if (free_.empty()) free_.push_back(fences_.emplace_back(std::make_unique<device::cuda::Event>()).get());
    Pending out;
    out.done_ = free_.back();
    free_.pop_back();
    out.done_->record(*stream_);
    const std::scoped_lock lock(watch_.mutex());
    watch_.started(*stream_, call.text() + " of " + rank_list(ranks_));
    return out;
  }
  void finish_now(Pending pending) { finish(pending); }

  C& control_;
  std::vector<int> ranks_;
  Watch& watch_;
  device::cuda::Stream& compute_;
  std::optional<device::cuda::Stream> stream_;
  std::optional<Communicator> communicator_;
  device::cuda::Event ready_;
  std::vector<std::unique_ptr<device::cuda::Event>> fences_;
  std::vector<device::cuda::Event*> free_;  // of these
  std::vector<Pending> shifts_;             // started and not finished
};

}  // namespace galvatron::comm::nccl
