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
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/deferred.hpp>
#include <galvatron/comm/thread/job.hpp>
#include <galvatron/comm/thread/messages.hpp>
#include <galvatron/comm/thread/reduce.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::comm::thread {

/// One rank's handle on a group. Every operation is collective: all members call it with the same sizes, and a call
/// that disagrees with the others ends with a Failure on all of them that says who called what. If any rank of the job
/// fails or the timeout passes, operations throw PeerFailure; the contents of the buffers are unspecified then, and
/// nobody touches them any more.
class Group : public Deferred<Group> {
 public:
  Group(Job& job, std::span<const int> ranks, int world_rank)
      : job_(job),
        meeting_(job.meeting(ranks)),
        rank_(static_cast<int>(std::find(ranks.begin(), ranks.end(), world_rank) - ranks.begin())),
        world_rank_(world_rank),
        buffers_(ranks.size()) {}

  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return meeting_.size(); }
  /// World ranks of the members, in group order.
  [[nodiscard]] std::span<const int> ranks() const { return meeting_.ranks; }

  /// data (n) = the members' data, summed (or their maximum) in rank order.
  template <Reducible T>
  void all_reduce(View<T> data, ReduceOp op = ReduceOp::sum) {
    if (size() == 1) return;
    const Call call = describe(CallKind::all_reduce, data, static_cast<int>(op));
    if (is_small(data.count, call)) {
      meet_small(call, data.data, data.count);
      std::byte* const own = bytes_at(data.data);
      reduce<T>(small_buffers(), 0, {&own, 1}, 0, data.count, op);
      return;
    }
    open(call);
    // Slices of whole cache lines, so that no two members write to one line.
    constexpr auto line = static_cast<std::int64_t>(64 / sizeof(T));
    const std::int64_t slice = round_up(divide_up(data.count, size()), line);
    const std::int64_t first = std::min(data.count, slice * rank_);
    const std::int64_t n = std::min(slice, data.count - first);
    const auto buffers = shared_buffers();
    reduce<T>(buffers, first, buffers, first, n, op);
    close();
  }

  /// all (size * n) = the members' shards (n) in rank order; shard may be its own place in `all`.
  template <class T>
  void all_gather(std::type_identity_t<View<const T>> shard, View<T> all) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::int64_t n = shard.count;
    check_whole("all_gather", world_rank_, size(), n, all.count);
    T* const own = all.data + n * rank_;
    const auto bytes = static_cast<std::size_t>(n) * sizeof(T);
    const auto keep_own = [&] {
      if (own != shard.data && n > 0) std::memcpy(own, shard.data, bytes);
    };
    if (size() == 1) return keep_own();
    const Call call = describe(CallKind::all_gather, View<T>(const_cast<T*>(shard.data), n));
    const bool small = is_small(n, call);
    if (small)
      meet_small(call, shard.data, n);
    else
      open(call);
    keep_own();
    for (int step = 1; step < size() && n > 0; ++step) {  // everybody begins with another neighbour
      const int member = (rank_ + step) % size();
      std::memcpy(all.data + n * member, small ? small_data(member) : call_of(member).data, bytes);
    }
    if (!small) close();
  }

  /// shard (n) = the sum, in rank order, of the members' all[rank * n, rank * n + n); shard may be its own place in
  /// `all` (size * n), whose other elements are unspecified afterwards.
  template <Reducible T>
  void reduce_scatter(std::type_identity_t<View<T>> all, View<T> shard) {
    const std::int64_t n = shard.count;
    check_whole("reduce_scatter", world_rank_, size(), n, all.count);
    if (size() == 1) {
      if (shard.data != all.data && n > 0) std::memcpy(shard.data, all.data, static_cast<std::size_t>(n) * sizeof(T));
      return;
    }
    std::byte* const own = bytes_at(shard.data);
    const Call call = describe(CallKind::reduce_scatter, all);
    if (is_small(all.count, call)) {
      meet_small(call, all.data, all.count);
      reduce<T>(small_buffers(), n * rank_, {&own, 1}, 0, n, ReduceOp::sum);
      return;
    }
    open(call);
    reduce<T>(shared_buffers(), n * rank_, {&own, 1}, 0, n, ReduceOp::sum);
    close();
  }

  /// Block i of `to` (size * n) = block rank() of member i's `from` (size * n); the two do not overlap.
  template <class T>
  void all_to_all(std::type_identity_t<View<const T>> from, View<T> to) {
    static_assert(std::is_trivially_copyable_v<T>);
    check_blocks(world_rank_, size(), from.count, to.count);
    const std::int64_t n = from.count / size();
    const Call call = describe(CallKind::all_to_all, View<T>(const_cast<T*>(from.data), from.count));
    const bool small = is_small(from.count, call);
    if (size() > 1 && small)
      meet_small(call, from.data, from.count);
    else if (size() > 1)
      open(call);
    const auto bytes = static_cast<std::size_t>(n) * sizeof(T);
    for (int step = 0; step < size() && n > 0; ++step) {  // everybody begins with another neighbour
      const int member = (rank_ + step) % size();
      const std::byte* whole = member == rank_ ? bytes_at(from.data)
                               : small         ? small_data(member)
                                               : call_of(member).data;
      std::memcpy(to.data + n * member, whole + static_cast<std::size_t>(rank_) * bytes, bytes);
    }
    if (size() > 1 && !small) close();
  }

  /// One step around the ring of the members; see comm::Group. On threads the receiver copies in finish_shifts().
  template <class T>
  void start_shift(std::type_identity_t<View<const T>> from, View<T> to) {
    static_assert(std::is_trivially_copyable_v<T>);
    check_shift(from.count, to.count);
    if (size() == 1) {
      std::memcpy(to.data, from.data, static_cast<std::size_t>(to.count) * sizeof(T));
      return;
    }
    const std::int64_t bytes = to.count * static_cast<std::int64_t>(sizeof(T));
    const auto block = [&](int step, std::byte* data) {
      const auto peer = static_cast<std::size_t>((rank_ + step) % size());
      return Piece{.peer = meeting_.ranks[peer], .data = data, .rows = 1, .row_bytes = bytes, .stride_bytes = bytes};
    };
    if (job_.failure().failed()) job_.throw_failure(world_rank_);
    const Piece sent = block(1, bytes_at(const_cast<T*>(from.data)));
    next_ = &job_.lanes(world_rank_, sent.peer)[sent.lane];
    next_->push(sent);
    job_.endpoint(sent.peer).inbox.ring();
    shifts_.push_back(block(size() - 1, bytes_at(to.data)));
  }
  void finish_shifts() {
    if (shifts_.empty()) return;
    for (const Piece& piece : shifts_) receive_block(job_, world_rank_, piece, copy_piece);
    shifts_.clear();
    wait_taken(job_, world_rank_, meeting_.ranks[static_cast<std::size_t>((rank_ + 1) % size())], 0);
  }
  /// Takes back what a shift has offered; see World::withdraw().
  void withdraw() noexcept {
    if (next_ != nullptr) next_->withdraw();
  }

  /// data (n) = the data of member `root`.
  template <class T>
  void broadcast(View<T> data, int root) {
    static_assert(std::is_trivially_copyable_v<T>);
    check_root(root, size());
    if (size() == 1) return;
    const Call call = describe(CallKind::broadcast, data, root);
    const bool small = is_small(data.count, call);
    if (small)
      meet_small(call, data.data, rank_ == root ? data.count : 0);
    else
      open(call);
    if (rank_ != root && data.count > 0)
      std::memcpy(data.data, small ? small_data(root) : call_of(root).data,
                  static_cast<std::size_t>(data.count) * sizeof(T));
    if (!small) close();
  }

  /// Returns when all members have called it.
  void barrier() {
    if (size() > 1) meet(Call{});
  }

 private:
  using Member = Meeting::Member;

  template <class T>
  static std::byte* bytes_at(T* data) {
    return reinterpret_cast<std::byte*>(data);
  }
  template <class T>
  static const std::byte* bytes_at(const T* data) {
    return reinterpret_cast<const std::byte*>(data);
  }
  static bool is_small(std::int64_t count, const Call& call) { return count * call.bytes <= small_bytes; }

  [[nodiscard]] Member& member(int i) const { return meeting_.members[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const Call& call_of(int i) const { return member(i).calls[calls_ & 1U]; }
  [[nodiscard]] const std::byte* small_data(int i) const { return member(i).small[calls_ & 1U]; }

  // Enters the next round; false if the job failed before it was complete.
  bool next_round(const Call& call) {
    const std::uint64_t target = ++rounds_ * static_cast<std::uint64_t>(size());
    member(rank_).rounds.store(rounds_, std::memory_order_relaxed);
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
        world_rank_, meeting_.bell, [&] { return meeting_.complete(target); }, [&] { return meeting_.poisoned(); },
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
    member(rank_).calls[calls_ & 1U] = call;
    if (!next_round(call)) job_.throw_failure(world_rank_);
    for (int i = 0; i < size(); ++i)
      if (!call_of(i).agrees_with(call_of(0))) throw_disagreement();
  }
  [[noreturn]] void throw_disagreement() {
    std::vector<Call> calls;
    for (int i = 0; i < size(); ++i) calls.push_back(call_of(i));
    member(rank_).finished.store(calls_, std::memory_order_release);
    throw Failure(ErrorKind::internal, disagreement(meeting_.ranks, calls));
  }

  template <class T>
  void meet_small(const Call& call, const T* data, std::int64_t count) {
    if (count > 0)
      std::memcpy(member(rank_).small[(calls_ + 1) & 1U], data, static_cast<std::size_t>(count) * sizeof(T));
    meet(call);
  }

  // After open() all members' memory may be touched, until this member calls close().
  void open(const Call& call) { meet(call); }
  void close() {
    member(rank_).finished.store(calls_, std::memory_order_release);
    if (next_round(call_of(rank_))) return;
    for (int i = 0; i < size(); ++i)
      while (member(i).finished.load(std::memory_order_acquire) < calls_) std::this_thread::yield();
    job_.throw_failure(world_rank_);
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
  int rank_;
  int world_rank_;
  std::uint64_t rounds_ = 0;  // barriers entered
  std::uint64_t calls_ = 0;   // collectives called; of two in a row one is even and one odd
  std::vector<std::byte*> buffers_;
  std::vector<Piece> shifts_;  // what was started and not received
  Channel* next_ = nullptr;    // to the next member, once something was shifted
};

}  // namespace galvatron::comm::thread
