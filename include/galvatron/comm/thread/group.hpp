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

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/elements.hpp>
#include <galvatron/comm/piece.hpp>
#include <galvatron/comm/reduce.hpp>
#include <galvatron/comm/thread/job.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron::comm::thread {

/// Copies and adds in the memory of the program, which is as it was left; a device works later than it is told to, and
/// overrides all.
///
///   rank 0   offer, meet --> expect 1, work, offer, meet --> expect 1
///   rank 1   offer, meet --> expect 0, work, offer, meet --> expect 0
class Memory {
 public:
  virtual ~Memory() = default;

  [[nodiscard]] virtual bool on_device() const { return false; }
  /// What this rank was told to do so far is what others may expect().
  virtual void offer() {}
  /// What this rank is told to do from now on comes behind what `rank` has offered last.
  virtual void expect(int rank) { static_cast<void>(rank); }
  /// For the way out of a failure: returns when what `rank` has offered is done.
  virtual void wait(int rank) noexcept { static_cast<void>(rank); }

  /// See copy_piece().
  virtual void copy(const Piece& from, const Piece& to) { copy_piece(from, to); }
  /// See comm::reduce().
  virtual void reduce(ElementType type, std::span<std::byte* const> sources, std::span<std::byte* const> destinations,
                      std::int64_t n, ReduceOp op) {
    comm::reduce(type, sources, destinations, n, op);
  }
};

/// Lane of what groups shift; callers of World::post() have those below.
inline constexpr int shift_lane = 1 << 30;

/// One rank's handle on a group.
class Group final : public comm::Group {
 public:
  /// @param world  of this rank; all of these outlive the group
  Group(Job& job, Memory& memory, comm::World& world, std::span<const int> ranks)
      : comm::Group(ranks, world.rank()),
        job_(job),
        memory_(memory),
        meeting_(job.meeting(memory.on_device(), ranks)),
        world_(world),
        buffers_(ranks.size()) {}

 private:
  using Member = Meeting::Member;

  // On threads the receiver copies.
  void do_finish_shifts() override {
    if (arriving_.empty()) return;
    world_.receive(arriving_);
    arriving_.clear();
    world_.wait_sent(shift_lane);
  }
  void do_run(const Collective& called) override {
    if (called.kind == CallKind::shift) return begin_shift(called.from, called.to);
    if (size() == 1 && (called.kind == CallKind::all_reduce || called.kind == CallKind::barrier)) return;
    if (called.kind == CallKind::barrier) return meet(called);
    together(called, [&] {
      const Elements& from = called.from;
      const Elements& to = called.to;
      switch (called.kind) {
        case CallKind::all_reduce:
          return small_ ? memory_.reduce(to.type, buffers(0), {&to.data, 1}, to.count, called.op)
                        : reduce_slice(to, called.op);
        case CallKind::all_gather:
          return each_member([&](int i) {
            const Sharding::Range part = called.shard(i);
            take(i, from, 0, to.slice(part.begin, part.count()));
          });
        case CallKind::reduce_scatter:
          return memory_.reduce(to.type, buffers(called.shard(rank()).begin * to.size), {&to.data, 1}, to.count,
                                ReduceOp::sum);
        case CallKind::all_to_all:
          return each_member([&](int i) {
            const Collective::Block block = called.block(i, rank(), size());
            take(i, from, block.given, to.slice(block.taken, block.count));
          });
        case CallKind::broadcast:
          return take(called.root, from, 0, to);
        case CallKind::barrier:
        case CallKind::shift:
          break;
      }
    });
  }
  void reduce_slice(const Elements& data, ReduceOp op) {
    // Slices of whole cache lines, so that no two members write to one line.
    const std::int64_t slice = round_up(divide_up(data.count, size()), tensor_alignment / data.size);
    const std::int64_t first = std::min(data.count, slice * rank());
    const auto all = buffers(first * data.size);
    memory_.reduce(data.type, all, all, std::min(slice, data.count - first), op);
  }
  void begin_shift(const Elements& from, const Elements& to) {
    if (size() == 1) return copy(from.data, to);
    const Piece sent = Piece::flat(world_rank((rank() + 1) % size()), from.data, from.bytes(), shift_lane);
    world_.post({&sent, 1});
    arriving_.push_back(Piece::flat(world_rank((rank() + size() - 1) % size()), to.data, to.bytes(), shift_lane));
  }

  [[nodiscard]] Member& member(int i) const { return meeting_.members[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const Collective& call_of(int i) const { return member(i).calls[calls_ & 1U]; }

  // Enters the next round; false if the job failed before it was complete.
  bool next_round(const Collective& call) {
    const std::uint64_t target = ++rounds_ * static_cast<std::uint64_t>(size());
    member(rank()).rounds.store(rounds_, std::memory_order_relaxed);
    meeting_.arrive(target);
    const auto late = [&](bool only_ended) {
      std::vector<int> absent;
      for (int i = 0; i < size(); ++i)
        if ((!only_ended || job_.ended(world_rank(i))) && member(i).rounds.load(std::memory_order_relaxed) < rounds_)
          absent.push_back(world_rank(i));
      return absent;
    };
    job_.wait(
        world_rank(), meeting_.bell, [&] { return meeting_.complete(target); }, [&] { return meeting_.poisoned(); },
        late, [&] { return "come to the " + call.text() + " of " + rank_list(ranks()); });
    return meeting_.complete(target);
  }

  // Publishes a call, meets the others and checks that they came for the same.
  void meet(const Collective& call) {
    ++calls_;
    member(rank()).calls[calls_ & 1U] = call;
    if (!next_round(call)) job_.throw_failure(world_rank());
    for (int i = 0; i < size(); ++i)
      if (!call_of(i).agrees_with(call_of(0))) {
        const std::string text = disagreement(ranks(), [&](int of) { return call_of(of).text(); });
        member(rank()).finished.store(calls_, std::memory_order_release);
        throw Failure(ErrorKind::internal, text);
      }
  }

  // Meets the others for a call; while read() runs, what they gave may be read, and large data written too.
  template <class Read>
  void together(const Collective& called, Read&& read) {
    const Elements& data = called.from;
    const bool gives = called.kind != CallKind::broadcast || called.root == rank();
    small_ = !memory_.on_device() && called.most_given() <= small_bytes;
    if (small_ && gives && data.count > 0)
      std::memcpy(member(rank()).small[(calls_ + 1) & 1U], data.data, static_cast<std::size_t>(data.bytes()));
    if (size() > 1) memory_.offer();
    meet(called);
    if (small_) return read();
    try {
      each_other([&](int rank) { memory_.expect(rank); });
      read();
      if (size() > 1) memory_.offer();
    } catch (...) {
      memory_.wait(world_rank());
      leave();
      throw;
    }
    member(rank()).finished.store(calls_, std::memory_order_release);
    if (!next_round(called)) {
      leave();
      job_.throw_failure(world_rank());
    }
    each_other([&](int rank) { memory_.expect(rank); });
  }
  // For the way out of a failure: returns when no member that was let in touches another's memory any more.
  void leave() {
    member(rank()).finished.store(calls_, std::memory_order_release);
    for (int i = 0; i < size(); ++i) {
      while (member(i).finished.load(std::memory_order_acquire) < calls_) std::this_thread::yield();
      memory_.wait(world_rank(i));
    }
  }
  template <class Visit>
  void each_other(Visit&& visit) {
    for (int i = 0; i < size(); ++i)
      if (i != rank()) visit(world_rank(i));
  }

  // Within together(): what a member gave.
  [[nodiscard]] std::byte* data_of(int i) const { return small_ ? member(i).small[calls_ & 1U] : call_of(i).from.data; }
  // From this byte on.
  std::span<std::byte* const> buffers(std::int64_t first) {
    for (int i = 0; i < size(); ++i) buffers_[static_cast<std::size_t>(i)] = data_of(i) + first;
    return buffers_;
  }
  // to = the elements from `first` on that member i gave; this one gave `own`.
  void take(int i, const Elements& own, std::int64_t first, const Elements& to) {
    copy((i == rank() ? own.data : data_of(i)) + first * own.size, to);
  }
  void copy(std::byte* from, const Elements& to) {
    memory_.copy(Piece::flat(world_rank(), from, to.bytes()), Piece::flat(world_rank(), to.data, to.bytes()));
  }
  // Everybody begins with itself.
  template <class Visit>
  void each_member(Visit&& visit) {
    for (int step = 0; step < size(); ++step) visit((rank() + step) % size());
  }

  Job& job_;
  Memory& memory_;
  Meeting& meeting_;
  comm::World& world_;
  std::vector<Piece> arriving_;  // shifts that were started and not received
  std::uint64_t rounds_ = 0;     // barriers entered
  std::uint64_t calls_ = 0;      // collectives called; of two in a row one is even and one odd
  bool small_ = false;           // the data of the last one travelled with the meeting
  std::vector<std::byte*> buffers_;
};

}  // namespace galvatron::comm::thread
