// The collectives of rank threads.
//
// Data of up to small_bytes a member is copied into the meeting and read by all: one round. Larger data stays where it
// is: members meet, touch each other's memory, and meet again. An all-reduce in place needs no memory of its own,
// because member r is the only one that reads or writes slice r of anybody's buffer:
//
//              slice 0   slice 1   slice 2
//   buffer 0  [a0      |b0       |c0      ]      member 0: a = a0 + a1 + a2 -> slice 0 of all three buffers
//   buffer 1  [a1      |b1       |c1      ]      member 1: b = b0 + b1 + b2 -> slice 1 of all three buffers
//   buffer 2  [a2      |b2       |c2      ]      member 2: c = c0 + c1 + c2 -> slice 2 of all three buffers
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/thread/job.hpp>
#include <galvatron/comm/thread/messages.hpp>
#include <galvatron/comm/thread/reduce.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron::comm::thread {

/// One rank's handle on a group. Every operation is collective: all members call it with the same sizes, and a call
/// that disagrees with the others ends with a Failure on all of them that says who called what. If any rank of the job
/// fails or the timeout passes, operations throw PeerFailure; the contents of the buffers are unspecified then, and
/// nobody touches them any more.
class Group final : public comm::Group {
 public:
  Group(Job& job, std::span<const int> ranks, int world_rank)
      : comm::Group(ranks, world_rank), job_(job), meeting_(job.meeting(ranks)), buffers_(ranks.size()) {}

  /// On threads the receiver copies.
  void finish_shifts() override {
    if (shifts_.empty()) return;
    for (const Piece& piece : shifts_) receive_block(job_, world_rank(), piece, copy_piece);
    shifts_.clear();
    wait_taken(job_, world_rank(), world_rank((rank() + 1) % size()), 0);
  }
  /// Takes back what a shift has offered; see World::withdraw().
  void withdraw() noexcept {
    if (next_ != nullptr) next_->withdraw();
  }
  void barrier() override {
    if (size() > 1) meet(Call{});
  }

 private:
  using comm::Group::world_rank;
  using Member = Meeting::Member;

  void do_all_reduce(const Elements& data, ReduceOp op) override {
    if (size() == 1) return;
    const Call call = describe(CallKind::all_reduce, data, static_cast<int>(op));
    if (is_small(data)) {
      meet_small(call, data);
      reduce(data.type, small_buffers(), 0, {&data.data, 1}, 0, data.count, op);
      return;
    }
    open(call);
    // Slices of whole cache lines, so that no two members write to one line.
    const std::int64_t line = 64 / data.size;
    const std::int64_t slice = round_up(divide_up(data.count, size()), line);
    const std::int64_t first = std::min(data.count, slice * rank());
    const std::int64_t n = std::min(slice, data.count - first);
    const auto buffers = shared_buffers();
    reduce(data.type, buffers, first, buffers, first, n, op);
    close();
  }

  void do_all_gather(const Elements& shard, const Elements& all) override {
    const std::int64_t bytes = shard.bytes();
    std::byte* const own = all.data + bytes * rank();
    const auto keep_own = [&] {
      if (own != shard.data && bytes > 0) std::memcpy(own, shard.data, static_cast<std::size_t>(bytes));
    };
    if (size() == 1) return keep_own();
    const Call call = describe(CallKind::all_gather, shard);
    const bool small = is_small(shard);
    if (small)
      meet_small(call, shard);
    else
      open(call);
    keep_own();
    for (int step = 1; step < size() && bytes > 0; ++step) {  // everybody begins with another neighbour
      const int member = (rank() + step) % size();
      std::memcpy(all.data + bytes * member, small ? small_data(member) : call_of(member).data,
                  static_cast<std::size_t>(bytes));
    }
    if (!small) close();
  }

  void do_reduce_scatter(const Elements& all, const Elements& shard) override {
    const std::int64_t n = shard.count;
    if (size() == 1) {
      if (shard.data != all.data && n > 0) std::memcpy(shard.data, all.data, static_cast<std::size_t>(shard.bytes()));
      return;
    }
    const Call call = describe(CallKind::reduce_scatter, all);
    if (is_small(all)) {
      meet_small(call, all);
      reduce(all.type, small_buffers(), n * rank(), {&shard.data, 1}, 0, n, ReduceOp::sum);
      return;
    }
    open(call);
    reduce(all.type, shared_buffers(), n * rank(), {&shard.data, 1}, 0, n, ReduceOp::sum);
    close();
  }

  void do_all_to_all(const Elements& from, const Elements& to) override {
    const Call call = describe(CallKind::all_to_all, from);
    const bool small = is_small(from);
    if (size() > 1 && small)
      meet_small(call, from);
    else if (size() > 1)
      open(call);
    const std::int64_t bytes = from.bytes() / size();
    for (int step = 0; step < size() && bytes > 0; ++step) {  // everybody begins with another neighbour
      const int member = (rank() + step) % size();
      const std::byte* whole = member == rank() ? from.data : small ? small_data(member) : call_of(member).data;
      std::memcpy(to.data + bytes * member, whole + bytes * rank(), static_cast<std::size_t>(bytes));
    }
    if (size() > 1 && !small) close();
  }

  void do_broadcast(const Elements& data, int root) override {
    if (size() == 1) return;
    const Call call = describe(CallKind::broadcast, data, root);
    const bool small = is_small(data);
    if (small)
      meet_small(call, rank() == root ? data : Elements{});
    else
      open(call);
    if (rank() != root && data.count > 0)
      std::memcpy(data.data, small ? small_data(root) : call_of(root).data, static_cast<std::size_t>(data.bytes()));
    if (!small) close();
  }

  void do_start_shift(const Elements& from, const Elements& to) override {
    if (size() == 1) {
      std::memcpy(to.data, from.data, static_cast<std::size_t>(to.bytes()));
      return;
    }
    const auto block = [&](int step, std::byte* data) {
      return Piece{.peer = world_rank((rank() + step) % size()),
                   .data = data,
                   .rows = 1,
                   .row_bytes = to.bytes(),
                   .stride_bytes = to.bytes()};
    };
    if (job_.failure().failed()) job_.throw_failure(world_rank());
    const Piece sent = block(1, from.data);
    next_ = &job_.lanes(world_rank(), sent.peer)[sent.lane];
    next_->push(sent);
    job_.endpoint(sent.peer).inbox.ring();
    shifts_.push_back(block(size() - 1, to.data));
  }

  static bool is_small(const Elements& data) { return data.bytes() <= small_bytes; }

  [[nodiscard]] Member& member(int i) const { return meeting_.members[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const Call& call_of(int i) const { return member(i).calls[calls_ & 1U]; }
  [[nodiscard]] const std::byte* small_data(int i) const { return member(i).small[calls_ & 1U]; }

  // Enters the next round; false if the job failed before it was complete.
  bool next_round(const Call& call) {
    const std::uint64_t target = ++rounds_ * static_cast<std::uint64_t>(size());
    member(rank()).rounds.store(rounds_, std::memory_order_relaxed);
    meeting_.arrive(target);
    const auto missing = [&](bool only_ended) {
      std::vector<int> absent;
      for (int i = 0; i < size(); ++i) {
        const int rank = meeting_.ranks[static_cast<std::size_t>(i)];
        if (only_ended && !job_.ended(rank)) continue;  // looked at first: who has ended counts no more rounds
        if (member(i).rounds.load(std::memory_order_relaxed) < rounds_) absent.push_back(rank);
      }
      return absent;
    };
    job_.wait(
        world_rank(), meeting_.bell, [&] { return meeting_.complete(target); }, [&] { return meeting_.poisoned(); },
        [&] { return !missing(true).empty(); },
        [&](bool only_ended) {
          return rank_list(missing(only_ended)) + " did not come to the " + call.text() + " of " +
                 rank_list(meeting_.ranks);
        });
    return meeting_.complete(target);
  }

  // Publishes a call, meets the others and checks that they came for the same.
  void meet(const Call& call) {
    ++calls_;
    member(rank()).calls[calls_ & 1U] = call;
    if (!next_round(call)) job_.throw_failure(world_rank());
    for (int i = 0; i < size(); ++i)
      if (!call_of(i).agrees_with(call_of(0))) throw_disagreement();
  }
  [[noreturn]] void throw_disagreement() {
    std::vector<Call> calls;
    for (int i = 0; i < size(); ++i) calls.push_back(call_of(i));
    member(rank()).finished.store(calls_, std::memory_order_release);
    throw Failure(ErrorKind::internal, disagreement(meeting_.ranks, calls));
  }

  void meet_small(const Call& call, const Elements& data) {
    if (data.count > 0)
      std::memcpy(member(rank()).small[(calls_ + 1) & 1U], data.data, static_cast<std::size_t>(data.bytes()));
    meet(call);
  }

  // After open() all members' memory may be touched, until this member calls close().
  void open(const Call& call) { meet(call); }
  void close() {
    member(rank()).finished.store(calls_, std::memory_order_release);
    if (next_round(call_of(rank()))) return;
    for (int i = 0; i < size(); ++i)
      while (member(i).finished.load(std::memory_order_acquire) < calls_) std::this_thread::yield();
    job_.throw_failure(world_rank());
  }

  std::span<std::byte* const> shared_buffers() {
    for (int i = 0; i < size(); ++i) buffers_[static_cast<std::size_t>(i)] = call_of(i).data;
    return buffers_;
  }
  std::span<std::byte* const> small_buffers() {
    for (int i = 0; i < size(); ++i) buffers_[static_cast<std::size_t>(i)] = member(i).small[calls_ & 1U];
    return buffers_;
  }

  Job& job_;
  Meeting& meeting_;
  std::uint64_t rounds_ = 0;  // barriers entered
  std::uint64_t calls_ = 0;   // collectives called; of two in a row one is even and one odd
  std::vector<std::byte*> buffers_;
  std::vector<Piece> shifts_;  // what was started and not received
  Channel* next_ = nullptr;    // to the next member, once something was shifted
};

}  // namespace galvatron::comm::thread
