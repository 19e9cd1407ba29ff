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
#include <span>
#include <thread>
#include <vector>

#include <galvatron/comm/call.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/local_gpu/kernels.hpp>
#include <galvatron/comm/local_gpu/shared.hpp>
#include <galvatron/comm/stream_group.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::comm::local_gpu {

/// One rank's handle on a group, on memory of the GPU. The bits are those of rank threads. Calls wait for the other
/// members' calls, also start_*(), and throw as those of thread::Group do.
template <Stream S>
class Group final : public StreamGroup<typename S::Fence> {
  using Base = StreamGroup<typename S::Fence>;

 public:
  /// @param control  the same ranks'  @param world_rank  this rank
  /// @param compute  in which the rank computes  @param messages  for what is started
  Group(comm::Group& control, int world_rank, Shared<S>& shared, S& compute, S& messages)
      : Base(control, world_rank),
        members_(shared.members(control.ranks())),
        compute_(compute),
        messages_(messages),
        calls_(control.ranks().size()),
        buffers_(control.ranks().size()) {
    if (size() > most_ranks)
      throw Failure(ErrorKind::usage, text("a group of ", size(), " ranks on one GPU; there may be ", most_ranks));
  }

  /// For the way out of a failure: returns when no member reads or writes this rank's memory any more.
  void withdraw() noexcept {
    for (int i = 0; i < size(); ++i) {
      // Who came to the last collective goes on to its end without waiting for anybody.
      while (members_[i].launched.load(std::memory_order_acquire) < opened_) std::this_thread::yield();
      wait_or_failed([&] { members_[i].done.wait(); });
    }
  }

  using Base::control_;
  using Base::rank;
  using Base::ranks;
  using Base::size;

 private:
  using Member = typename Shared<S>::Member;

  void do_all_reduce(const Elements& data, ReduceOp op) override {
    if (size() == 1) return;
    together(describe(CallKind::all_reduce, data, static_cast<int>(op)), [&] {
      const std::int64_t line = tensor_alignment / data.size;
      const std::int64_t slice = round_up(divide_up(data.count, size()), line);
      const std::int64_t first = std::min(data.count, slice * rank());
      const auto buffers = buffers_from(first * data.size);
      reduce(*stream_, data.type, buffers, buffers, std::min(slice, data.count - first), op);
    });
  }
  void do_all_gather(const Elements& shard, const Elements& all) override {
    const std::int64_t n = shard.bytes();
    together(describe(CallKind::all_gather, shard), [&] {
      for (int step = 0; step < size(); ++step) {  // everybody begins with its own
        const int member = (rank() + step) % size();
        copy(call_of(member).data, all.data + n * member, n);
      }
    });
  }
  void do_reduce_scatter(const Elements& all, const Elements& shard) override {
    together(describe(CallKind::reduce_scatter, all), [&] {
      reduce(*stream_, all.type, buffers_from(shard.bytes() * rank()), {&shard.data, 1}, shard.count, ReduceOp::sum);
    });
  }
  void do_all_to_all(const Elements& from, const Elements& to) override {
    const std::int64_t n = from.bytes() / size();
    together(describe(CallKind::all_to_all, from), [&] {
      for (int step = 0; step < size(); ++step) {
        const int member = (rank() + step) % size();
        copy(call_of(member).data + n * rank(), to.data + n * member, n);
      }
    });
  }
  void do_broadcast(const Elements& data, int root) override {
    together(describe(CallKind::broadcast, data, root), [&] { copy(call_of(root).data, data.data, data.bytes()); });
  }
  void do_start_shift(const Elements& from, const Elements& to) override {
    this->keep_shift(begun([&] {
      together(describe(CallKind::shift, from),
               [&] { copy(call_of((rank() + size() - 1) % size()).data, to.data, to.bytes()); });
    }));
  }
  Pending do_start(const Pending& pending) override {
    return begun([&] { this->run(pending); });
  }
  void do_finish(const Pending& pending) override { compute_.wait_for(this->fence_of(pending)); }

  [[nodiscard]] const Call& call_of(int i) const { return calls_[static_cast<std::size_t>(i)]; }

  void copy(const std::byte* from, std::byte* to, std::int64_t bytes) {
    if (from != to && bytes > 0) stream_->copy(from, to, bytes);
  }

  // The members' memory from this byte on.
  std::span<std::byte* const> buffers_from(std::int64_t first) {
    for (std::size_t i = 0; i < buffers_.size(); ++i)
      buffers_[i] = calls_[i].data == nullptr ? nullptr : calls_[i].data + first;
    return buffers_;
  }

  // Gives the current stream this rank's part() of a collective, behind all that the members' callers did before; the
  // stream goes on when all members have done theirs.
  template <class Part>
  void together(const Call& call, Part&& part) {
    if (size() == 1) {
      calls_[0] = call;
      if (stream_ != &compute_) {
        compute_.record(members_[rank()].ready);
        stream_->wait_for(members_[rank()].ready);
      }
      return part();
    }
    Member& self = members_[rank()];
    compute_.record(self.ready);
    control_.template all_gather<Call>({&call, 1}, View<Call>(calls_.data(), size()));
    for (const Call& other : calls_)
      if (!other.agrees_with(calls_[0]))
        throw Failure(ErrorKind::internal, disagreement(ranks(), [&](int i) { return call_of(i).text(); }));
    ++opened_;
    {
      const Launched launched{self, opened_};
      for (int i = 0; i < size(); ++i) stream_->wait_for(members_[i].ready);
      part();
      stream_->record(self.done);
    }
    control_.barrier();
    for (int i = 0; i < size(); ++i)
      if (i != rank()) stream_->wait_for(members_[i].done);
  }
  // Says, whatever happens, that the device will be given no more of this call.
  struct Launched {
    Member& self;
    std::uint64_t call;
    ~Launched() { self.launched.store(call, std::memory_order_release); }
  };

  // What begin() gives to the stream of messages.
  template <class Begin>
  Pending begun(Begin&& begin) {
    struct Current {
      S*& stream;
      S* const before;
      ~Current() { stream = before; }
    } const current{stream_, std::exchange(stream_, &messages_)};
    begin();
    return this->under_way([&](typename S::Fence& fence) { messages_.record(fence); });
  }

  Member* members_;
  S& compute_;
  S& messages_;
  S* stream_ = &compute_;     // of the collective that is being called
  std::uint64_t opened_ = 0;  // collectives to which all members have come
  std::vector<Call> calls_;   // of the members, in the collective under way
  std::vector<std::byte*> buffers_;
};

}  // namespace galvatron::comm::local_gpu
