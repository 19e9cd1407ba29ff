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
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/local_gpu/kernels.hpp>
#include <galvatron/comm/local_gpu/shared.hpp>
#include <galvatron/comm/thread/meeting.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::comm::local_gpu {

using thread::Call;
using thread::CallKind;

/// One rank's handle on a group, on memory of the GPU. The bits are those of rank threads. Calls wait for the other
/// members' calls, also start_*(), and throw as those of thread::Group do.
template <Stream S>
class Group final : public comm::Group {
 public:
  /// @param control  the same ranks'  @param world_rank  this rank
  /// @param compute  in which the rank computes  @param messages  for what is started
  Group(comm::Group& control, int world_rank, Shared<S>& shared, S& compute, S& messages)
      : comm::Group(control.ranks(), world_rank),
        control_(control),
        members_(shared.members(control.ranks())),
        compute_(compute),
        messages_(messages),
        calls_(control.ranks().size()),
        buffers_(control.ranks().size()) {
    if (size() > most_ranks)
      throw Failure(ErrorKind::usage, "a group of " + std::to_string(size()) + " ranks on one GPU; there may be " +
                                          std::to_string(most_ranks));
  }

  void finish_shifts() override {
    for (Pending& shift : shifts_) finish(shift);
    shifts_.clear();
  }
  /// The members' streams may be at work.
  void barrier() override { control_.barrier(); }

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

  void do_all_reduce(const Elements& data, ReduceOp op) override { all_reduce_in(compute_, data, op); }
  void do_all_gather(const Elements& shard, const Elements& all) override { all_gather_in(compute_, shard, all); }
  void do_reduce_scatter(const Elements& all, const Elements& shard) override {
    reduce_scatter_in(compute_, all, shard);
  }
  void do_all_to_all(const Elements& from, const Elements& to) override {
    const std::int64_t n = from.bytes() / size();
    together(compute_, thread::describe(CallKind::all_to_all, from), [&] {
      for (int step = 0; step < size(); ++step) {
        const int member = (rank() + step) % size();
        copy(compute_, call_of(member).data + n * rank(), to.data + n * member, n);
      }
    });
  }
  void do_broadcast(const Elements& data, int root) override {
    together(compute_, thread::describe(CallKind::broadcast, data, root),
             [&] { copy(compute_, call_of(root).data, data.data, data.bytes()); });
  }
  void do_start_shift(const Elements& from, const Elements& to) override {
    together(messages_, thread::describe(CallKind::shift, from),
             [&] { copy(messages_, call_of((rank() + size() - 1) % size()).data, to.data, to.bytes()); });
    shifts_.push_back(under_way());
  }
  Pending do_start(const Pending& pending) override {
    switch (pending.call) {
      case Pending::Call::all_reduce:
        all_reduce_in(messages_, pending.to, pending.op);
        break;
      case Pending::Call::all_gather:
        all_gather_in(messages_, pending.from, pending.to);
        break;
      case Pending::Call::reduce_scatter:
        reduce_scatter_in(messages_, pending.from, pending.to);
        break;
      case Pending::Call::none:
      case Pending::Call::under_way:
        return pending;
    }
    return under_way();
  }
  void do_finish(const Pending& pending) override {
    auto* const done = static_cast<typename S::Fence*>(pending.handle);
    compute_.wait_for(*done);
    free_.push_back(done);
  }

  [[nodiscard]] const Call& call_of(int i) const { return calls_[static_cast<std::size_t>(i)]; }

  static void copy(S& stream, const std::byte* from, std::byte* to, std::int64_t bytes) {
    if (from != to && bytes > 0) stream.copy(from, to, bytes);
  }

  void all_reduce_in(S& stream, const Elements& data, ReduceOp op) {
    if (size() == 1) return;
    together(stream, thread::describe(CallKind::all_reduce, data, static_cast<int>(op)), [&] {
      const std::int64_t line = tensor_alignment / data.size;
      const std::int64_t slice = round_up(divide_up(data.count, size()), line);
      const std::int64_t first = std::min(data.count, slice * rank());
      const auto buffers = buffers_from(first * data.size);
      reduce(stream, data.type, buffers, buffers, std::min(slice, data.count - first), op);
    });
  }
  void all_gather_in(S& stream, const Elements& shard, const Elements& all) {
    const std::int64_t n = shard.bytes();
    together(stream, thread::describe(CallKind::all_gather, shard), [&] {
      for (int step = 0; step < size(); ++step) {  // everybody begins with its own
        const int member = (rank() + step) % size();
        copy(stream, call_of(member).data, all.data + n * member, n);
      }
    });
  }
  void reduce_scatter_in(S& stream, const Elements& all, const Elements& shard) {
    together(stream, thread::describe(CallKind::reduce_scatter, all), [&] {
      reduce(stream, all.type, buffers_from(shard.bytes() * rank()), {&shard.data, 1}, shard.count, ReduceOp::sum);
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
    control_.all_gather<Call>({&call, 1}, View<Call>(calls_.data(), size()));
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
  Pending under_way() {
    if (free_.empty()) free_.push_back(fences_.emplace_back(std::make_unique<typename S::Fence>()).get());
    typename S::Fence* const done = free_.back();
    free_.pop_back();
    messages_.record(*done);
    Pending out;
    out.call = Pending::Call::under_way;
    out.handle = done;
    return out;
  }

  comm::Group& control_;
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
