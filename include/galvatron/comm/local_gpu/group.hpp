// The collectives of ranks on one GPU: the control plane tells where whose memory lies, kernels do the rest.
//
//             program                                  streams
//   rank 0    ready 0, meet --+--> part 0, meet --+    .. ready 0 .. [wait ready 0 1 | part 0] done 0 [wait done 1] ..
//   rank 1    ready 1, meet --+--> part 1, meet --+    .. ready 1 .. [wait ready 0 1 | part 1] done 1 [wait done 0] ..
//
// The program does not wait for the GPU. A blocking collective goes into the stream in which the rank computes; one
// that is started goes into another, and the first waits for it when it is finished.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/local_gpu/kernels.hpp>
#include <galvatron/comm/local_gpu/shared.hpp>
#include <galvatron/comm/thread/group.hpp>
#include <galvatron/comm/thread/meeting.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::comm::local_gpu {

using thread::Call;
using thread::CallKind;

/// One rank's handle on a group; models comm::Group on memory of the GPU. The bits are those of rank threads. Calls
/// wait for the other members' calls, also start_*(), and throw as those of thread::Group do.
template <Stream S>
class Group {
 public:
  /// A collective that was started; nothing by default.
  class Pending {
    friend class Group;
    typename S::Fence* done_ = nullptr;
  };

  /// @param compute  in which the rank computes  @param messages  for what is started
  Group(thread::Group& control, Shared<S>& shared, S& compute, S& messages)
      : control_(control),
        members_(shared.members(control.ranks())),
        compute_(compute),
        messages_(messages),
        calls_(control.ranks().size()),
        buffers_(control.ranks().size()) {
    if (size() > most_ranks)
      throw Failure(ErrorKind::usage, "a group of " + std::to_string(size()) + " ranks on one GPU; there may be " +
                                          std::to_string(most_ranks));
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] int rank() const { return control_.rank(); }
  [[nodiscard]] int size() const { return control_.size(); }
  /// World ranks of the members, in group order.
  [[nodiscard]] std::span<const int> ranks() const { return control_.ranks(); }

  template <Reducible T>
  void all_reduce(View<T> data, ReduceOp op = ReduceOp::sum) {
    all_reduce_in(compute_, data, op);
  }
  template <class T>
  void all_gather(std::type_identity_t<View<const T>> shard, View<T> all) {
    all_gather_in(compute_, shard, all);
  }
  template <Reducible T>
  void reduce_scatter(std::type_identity_t<View<T>> all, View<T> shard) {
    reduce_scatter_in(compute_, all, shard);
  }

  template <class T>
  void all_to_all(std::type_identity_t<View<const T>> from, View<T> to) {
    static_assert(std::is_trivially_copyable_v<T>);
    check_blocks(world_rank(), size(), from.count, to.count);
    const std::int64_t n = from.count / size() * static_cast<std::int64_t>(sizeof(T));
    together(compute_, thread::describe(CallKind::all_to_all, mutable_view(from)), [&] {
      for (int step = 0; step < size(); ++step) {
        const int member = (rank() + step) % size();
        copy(compute_, call_of(member).data + n * rank(), bytes_at(to.data) + n * member, n);
      }
    });
  }

  template <class T>
  void broadcast(View<T> data, int root) {
    static_assert(std::is_trivially_copyable_v<T>);
    check_root(root, size());
    together(compute_, thread::describe(CallKind::broadcast, data, root), [&] {
      copy(compute_, call_of(root).data, bytes_at(data.data), data.count * static_cast<std::int64_t>(sizeof(T)));
    });
  }

  /// One step around the ring of the members; see comm::Group.
  template <class T>
  void start_shift(std::type_identity_t<View<const T>> from, View<T> to) {
    static_assert(std::is_trivially_copyable_v<T>);
    check_shift(from.count, to.count);
    together(messages_, thread::describe(CallKind::shift, mutable_view(from)), [&] {
      copy(messages_, call_of((rank() + size() - 1) % size()).data, bytes_at(to.data),
           to.count * static_cast<std::int64_t>(sizeof(T)));
    });
    shifts_.push_back(pending());
  }
  void finish_shifts() {
    for (Pending& shift : shifts_) finish(shift);
    shifts_.clear();
  }

  /// Returns when all members have called it; their streams may be at work.
  void barrier() { control_.barrier(); }

  template <class T>
  Pending start_all_reduce(View<T> data, ReduceOp op = ReduceOp::sum) {
    all_reduce_in(messages_, data, op);
    return pending();
  }
  template <class T>
  Pending start_all_gather(std::type_identity_t<View<const T>> shard, View<T> all) {
    all_gather_in(messages_, shard, all);
    return pending();
  }
  template <class T>
  Pending start_reduce_scatter(std::type_identity_t<View<T>> all, View<T> shard) {
    reduce_scatter_in(messages_, all, shard);
    return pending();
  }
  void finish(Pending& pending) {
    if (pending.done_ == nullptr) return;
    compute_.wait_for(*pending.done_);
    free_.push_back(std::exchange(pending.done_, nullptr));
  }

  /// For the way out of a failure: returns when no member reads or writes this rank's memory any more.
  void withdraw() noexcept {
    for (int i = 0; i < size(); ++i) {
      // Who came to the last collective goes on to its end without waiting for anybody.
      while (members_[i].launched.load(std::memory_order_acquire) < opened_) std::this_thread::yield();
      try {
        members_[i].done.wait();
      } catch (const std::exception&) {  // a device that has failed is at work no more
      }
    }
  }

 private:
  using Member = typename Shared<S>::Member;

  template <class T>
  static View<T> mutable_view(View<const T> v) {
    return {const_cast<T*>(v.data), v.count};
  }
  template <class T>
  static std::byte* bytes_at(T* data) {
    return reinterpret_cast<std::byte*>(data);
  }
  [[nodiscard]] int world_rank() const { return ranks()[static_cast<std::size_t>(rank())]; }
  [[nodiscard]] const Call& call_of(int i) const { return calls_[static_cast<std::size_t>(i)]; }

  static void copy(S& stream, const std::byte* from, std::byte* to, std::int64_t bytes) {
    if (from != to && bytes > 0) stream.copy(from, to, bytes);
  }

  template <class T>
  void all_reduce_in(S& stream, View<T> data, ReduceOp op) {
    if (size() == 1) return;
    together(stream, thread::describe(CallKind::all_reduce, data, static_cast<int>(op)), [&] {
      constexpr auto line = static_cast<std::int64_t>(tensor_alignment / sizeof(T));
      const std::int64_t slice = round_up(divide_up(data.count, size()), line);
      const std::int64_t first = std::min(data.count, slice * rank());
      const auto buffers = buffers_from(first * static_cast<std::int64_t>(sizeof(T)));
      reduce<T>(stream, buffers, buffers, std::min(slice, data.count - first), op);
    });
  }
  template <class T>
  void all_gather_in(S& stream, View<const T> shard, View<T> all) {
    static_assert(std::is_trivially_copyable_v<T>);
    check_whole("all_gather", world_rank(), size(), shard.count, all.count);
    const std::int64_t n = shard.count * static_cast<std::int64_t>(sizeof(T));
    together(stream, thread::describe(CallKind::all_gather, mutable_view(shard)), [&] {
      for (int step = 0; step < size(); ++step) {  // everybody begins with its own
        const int member = (rank() + step) % size();
        copy(stream, call_of(member).data, bytes_at(all.data) + n * member, n);
      }
    });
  }
  template <class T>
  void reduce_scatter_in(S& stream, View<T> all, View<T> shard) {
    check_whole("reduce_scatter", world_rank(), size(), shard.count, all.count);
    together(stream, thread::describe(CallKind::reduce_scatter, all), [&] {
      std::byte* const own = bytes_at(shard.data);
      const std::int64_t first = shard.count * rank() * static_cast<std::int64_t>(sizeof(T));
      reduce<T>(stream, buffers_from(first), {&own, 1}, shard.count, ReduceOp::sum);
    });
  }

  // The members' memory from this byte on.
  std::span<std::byte* const> buffers_from(std::int64_t first) {
    for (std::size_t i = 0; i < buffers_.size(); ++i)
      buffers_[i] = calls_[i].data == nullptr ? nullptr : calls_[i].data + first;
    return buffers_;
  }

  // Gives the stream this rank's part() of a collective, behind all that the members' callers did before; the stream
  // goes on when all members have done theirs.
  template <class Part>
  void together(S& stream, const Call& call, Part&& part) {
    if (size() == 1) {
      calls_[0] = call;
      if (&stream != &compute_) behind_compute(stream);
      return part();
    }
    Member& self = members_[rank()];
    compute_.record(self.ready);
    control_.template all_gather<Call>({&call, 1}, View<Call>(calls_.data(), size()));
    for (const Call& other : calls_)
      if (!other.agrees_with(calls_[0])) throw Failure(ErrorKind::internal, thread::disagreement(ranks(), calls_));
    ++opened_;
    {
      const Launched launched{self, opened_};
      for (int i = 0; i < size(); ++i) stream.wait_for(members_[i].ready);
      part();
      stream.record(self.done);
    }
    control_.barrier();
    for (int i = 0; i < size(); ++i)
      if (i != rank()) stream.wait_for(members_[i].done);
  }
  // Says, whatever happens, that the device will be given no more of this call.
  struct Launched {
    Member& self;
    std::uint64_t call;
    ~Launched() { self.launched.store(call, std::memory_order_release); }
  };

  void behind_compute(S& stream) {
    compute_.record(members_[rank()].ready);
    stream.wait_for(members_[rank()].ready);
  }

  // What the other stream was given last.
  Pending pending() {
    if (free_.empty()) free_.push_back(fences_.emplace_back(std::make_unique<typename S::Fence>()).get());
    Pending out;
    out.done_ = free_.back();
    free_.pop_back();
    messages_.record(*out.done_);
    return out;
  }

  thread::Group& control_;
  Member* members_;
  S& compute_;
  S& messages_;
  std::uint64_t opened_ = 0;  // collectives to which all members have come
  std::vector<Call> calls_;   // of the members, in the collective under way
  std::vector<std::byte*> buffers_;
  std::vector<std::unique_ptr<typename S::Fence>> fences_;
  std::vector<typename S::Fence*> free_;  // of these
  std::vector<Pending> shifts_;           // started and not finished
};

}  // namespace galvatron::comm::local_gpu
