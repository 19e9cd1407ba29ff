// The collectives of ranks that are processes: messages between pairs, added in rank order on arrival.
//
// Members first tell each other what they came for. Data of up to payload_bytes travel with that. Larger data follow: a
// reduction sends slice j of everybody's data to member j, which adds them in rank order in its staging memory, and an
// all-reduce sends the sums back. So sums have the same bits as those of rank threads.
//
//   member 0  [a0|b0]  b0 ->                 a = a0 + a1        a ->        [a|b]
//   member 1  [a1|b1]  a1 -> member 0        b = b0 + b1        b ->        [a|b]
//
// No MPI communicator belongs to a group and no collective of MPI is called: making one is collective, and its
// reductions promise no order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/deferred.hpp>
#include <galvatron/comm/mpi/endpoint.hpp>
#include <galvatron/comm/mpi/messages.hpp>
#include <galvatron/comm/thread/group.hpp>
#include <galvatron/comm/thread/meeting.hpp>
#include <galvatron/comm/thread/reduce.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::comm::mpi {

using thread::CallKind;

/// Bytes up to which a member's data travel with its opening message: within what Open MPI sends at once in shared
/// memory.
inline constexpr std::int64_t payload_bytes = 3072;

/// What a member came for, as it travels.
struct Opening {
  std::uint64_t group = 0;  ///< a number made of the members
  std::uint64_t call = 0;   ///< how many collectives of this group came before
  CallKind kind = CallKind::barrier;
  std::int32_t bytes = 1;   ///< of an element
  std::int32_t detail = 0;  ///< the reduction or the root
  std::int64_t count = 0;   ///< elements, as the caller gave them
  char type[16] = "byte";
  std::byte payload[payload_bytes];

  [[nodiscard]] bool agrees_with(const Opening& other) const {
    return group == other.group && call == other.call && kind == other.kind && count == other.count &&
           bytes == other.bytes && detail == other.detail;
  }
  /// "all_reduce of 12 float"
  [[nodiscard]] std::string text() const { return thread::Call{kind, type, count, bytes, detail, nullptr}.text(); }
};

/// One rank's handle on a group; see comm::Group. Every operation is collective: all members call it with the same
/// sizes, and a call that disagrees with the others ends with a Failure on all of them that says who called what. If
/// any rank of the job fails or the timeout passes, operations throw PeerFailure; the contents of the buffers are
/// unspecified then.
class Group : public Deferred<Group> {
 public:
  Group(Endpoint& endpoint, std::span<const int> ranks)
      : endpoint_(endpoint),
        ranks_(ranks.begin(), ranks.end()),
        rank_(static_cast<int>(std::ranges::find(ranks, endpoint.rank()) - ranks.begin())),
        incoming_(ranks.size()),
        sources_(ranks.size()) {
    number_ = 14695981039346656037U;  // FNV-1a
    for (const int rank : ranks_) number_ = (number_ ^ static_cast<std::uint64_t>(rank)) * 1099511628211U;
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  /// World ranks of the members, in group order.
  [[nodiscard]] std::span<const int> ranks() const { return ranks_; }

  /// data (n) = the members' data, summed (or their maximum) in rank order.
  template <Reducible T>
  void all_reduce(View<T> data, ReduceOp op = ReduceOp::sum) {
    if (size() == 1) return;
    describe(CallKind::all_reduce, data, static_cast<int>(op));
    if (meet(data.data, bytes_of(data))) {
      reduce_payloads<T>(0, data.data, data.count, op);
      return;
    }
    const std::int64_t slice = divide_up(data.count, size());
    const auto slice_of = [&](int member, std::int64_t done, std::int64_t most) {
      const std::int64_t first = std::min(data.count, slice * member + done);
      return data.slice(first, std::clamp<std::int64_t>(std::min(slice - done, data.count - first), 0, most));
    };
    const std::int64_t most = staged_elements<T>();
    for (std::int64_t done = 0; done < slice; done += most) {
      const View<T> own = slice_of(rank_, done, most);
      each_peer([&](int to, int from) {
        receive(staged<T>(from, most), own.count, from);
        const View<T> part = slice_of(to, done, most);
        send(part.data, part.count, to);
      });
      deliver();
      reduce_staged<T>(own.data, own.data, most, own.count, op);
      each_peer([&](int to, int from) {
        const View<T> part = slice_of(from, done, most);
        receive(part.data, part.count, from);
        send(own.data, own.count, to);
      });
      deliver();
    }
  }

  /// all (size * n) = the members' shards (n) in rank order; shard may be its own place in `all`.
  template <class T>
  void all_gather(std::type_identity_t<View<const T>> shard, View<T> all) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::int64_t n = shard.count;
    check_whole("all_gather", endpoint_.rank(), size(), n, all.count);
    T* const own = all.data + n * rank_;
    const bool alone = size() == 1;
    if (!alone) describe(CallKind::all_gather, shard);
    const bool small = !alone && meet(shard.data, bytes_of(shard));
    if (own != shard.data && n > 0) std::memcpy(own, shard.data, static_cast<std::size_t>(bytes_of(shard)));
    if (alone) return;
    each_peer([&](int to, int from) {
      T* const place = all.data + n * from;
      if (small && n > 0) std::memcpy(place, payload(from), static_cast<std::size_t>(bytes_of(shard)));
      if (small) return;
      receive(place, n, from);
      send(own, n, to);
    });
    deliver();
  }

  /// shard (n) = the sum, in rank order, of the members' all[rank * n, rank * n + n); shard may be its own place in
  /// `all` (size * n), whose other elements are unspecified afterwards.
  template <Reducible T>
  void reduce_scatter(std::type_identity_t<View<T>> all, View<T> shard) {
    const std::int64_t n = shard.count;
    check_whole("reduce_scatter", endpoint_.rank(), size(), n, all.count);
    if (size() == 1) {
      if (shard.data != all.data && n > 0) std::memcpy(shard.data, all.data, static_cast<std::size_t>(bytes_of(all)));
      return;
    }
    describe(CallKind::reduce_scatter, all);
    if (meet(all.data, bytes_of(all))) {
      reduce_payloads<T>(n * rank_, shard.data, n, ReduceOp::sum);
      return;
    }
    const std::int64_t most = staged_elements<T>();
    for (std::int64_t done = 0; done < n; done += most) {
      const std::int64_t count = std::min(most, n - done);
      each_peer([&](int to, int from) {
        receive(staged<T>(from, most), count, from);
        send(all.data + n * to + done, count, to);
      });
      deliver();
      reduce_staged<T>(all.data + n * rank_ + done, shard.data + done, most, count, ReduceOp::sum);
    }
  }

  /// data (n) = the data of member `root`.
  template <class T>
  void broadcast(View<T> data, int root) {
    static_assert(std::is_trivially_copyable_v<T>);
    check_root(root, size());
    if (size() == 1) return;
    describe(CallKind::broadcast, data, root);
    if (meet(data.data, bytes_of(data), rank_ == root)) {
      if (rank_ != root && data.count > 0)
        std::memcpy(data.data, payload(root), static_cast<std::size_t>(bytes_of(data)));
      return;
    }
    if (rank_ == root)
      each_peer([&](int to, int) { send(data.data, data.count, to); });
    else
      receive(data.data, data.count, root);
    deliver();
  }

  /// Block i of `to` (size * n) = block rank() of member i's `from` (size * n); the two do not overlap.
  template <class T>
  void all_to_all(std::type_identity_t<View<const T>> from, View<T> to) {
    static_assert(std::is_trivially_copyable_v<T>);
    check_blocks(endpoint_.rank(), size(), from.count, to.count);
    const std::int64_t n = from.count / size();
    const bool alone = size() == 1;
    if (!alone) describe(CallKind::all_to_all, from);
    const bool small = !alone && meet(from.data, bytes_of(from));
    const auto bytes = static_cast<std::size_t>(n) * sizeof(T);
    if (n > 0) std::memcpy(to.data + n * rank_, from.data + n * rank_, bytes);
    if (alone) return;
    each_peer([&](int target, int source) {
      if (small && n > 0)
        std::memcpy(to.data + n * source, payload(source) + bytes * static_cast<std::size_t>(rank_), bytes);
      if (small) return;
      receive(to.data + n * source, n, source);
      send(from.data + n * target, n, target);
    });
    deliver();
  }

  /// One step around the ring of the members, while the caller computes: `from` (n) goes to the next member, and `to`
  /// (n) comes from the one before. Both are left alone until finish_shifts(), which ends all that were started. Shifts
  /// arrive in the order in which they were started.
  template <class T>
  void start_shift(std::type_identity_t<View<const T>> from, View<T> to) {
    static_assert(std::is_trivially_copyable_v<T>);
    check_shift(from.count, to.count);
    if (size() == 1) {
      std::memcpy(to.data, from.data, static_cast<std::size_t>(bytes_of(from)));
      return;
    }
    shifts_.receive(to.data, bytes_of(to), world_rank((rank_ + size() - 1) % size()), shift_tag);
    shifts_.send(from.data, bytes_of(from), world_rank((rank_ + 1) % size()), shift_tag);
  }
  void finish_shifts() {
    shifts_.finish([] { return std::string("did not shift its block"); });
  }

  /// Returns when all members have called it.
  void barrier() {
    if (size() == 1) return;
    describe(CallKind::barrier, View<const std::byte>{});
    meet(static_cast<const std::byte*>(nullptr), 0);
  }

 private:
  static constexpr int opening_tag = 0;
  static constexpr int data_tag = 1;

  static constexpr int shift_tag = 2;

  template <class T>
  static std::int64_t bytes_of(View<T> data) {
    return data.count * static_cast<std::int64_t>(sizeof(T));
  }

  template <class T>
  void describe(CallKind kind, View<T> data, int detail = 0) {
    outgoing_.group = number_;
    outgoing_.call = calls_++;
    outgoing_.kind = kind;
    outgoing_.bytes = sizeof(T);
    outgoing_.detail = detail;
    outgoing_.count = data.count;
    const std::string_view name = thread::detail::type_name<std::remove_const_t<T>>();
    std::memcpy(outgoing_.type, name.data(), std::min(name.size() + 1, sizeof outgoing_.type));
  }

  // Exchanges openings with all members, and the data with them if they are small, which is the answer.
  template <class T>
  bool meet(const T* data, std::int64_t bytes, bool gives = true) {
    const bool small = bytes <= payload_bytes;
    const std::int64_t along = small && gives ? bytes : 0;
    if (along > 0) std::memcpy(outgoing_.payload, data, static_cast<std::size_t>(along));
    constexpr auto head = static_cast<std::int64_t>(offsetof(Opening, payload));
    each_peer([&](int to, int from) {
      now_.receive_some(&incoming_[static_cast<std::size_t>(from)], sizeof(Opening), world_rank(from), opening_tag);
      now_.send(&outgoing_, head + along, world_rank(to), opening_tag);
    });
    deliver();
    for (int i = 0; i < size(); ++i)
      if (!opening(i).agrees_with(outgoing_)) throw_disagreement();
    return small;
  }
  [[noreturn]] void throw_disagreement() {
    std::string text = "the members of a group disagree:";
    for (int i = 0; i < size(); ++i) {
      text += (i > 0 ? ", rank " : " rank ") + std::to_string(ranks_[static_cast<std::size_t>(i)]) + " called " +
              opening(i).text();
      if (opening(i).group != number_) text += " of another group";
    }
    throw Failure(ErrorKind::internal, text);
  }

  [[nodiscard]] int world_rank(int member) const { return ranks_[static_cast<std::size_t>(member)]; }
  [[nodiscard]] const Opening& opening(int member) const {
    return member == rank_ ? outgoing_ : incoming_[static_cast<std::size_t>(member)];
  }
  [[nodiscard]] const std::byte* payload(int member) const { return opening(member).payload; }

  // Calls visit(to, from) for all other members; everybody begins with another neighbour.
  template <class Visit>
  void each_peer(Visit&& visit) {
    for (int step = 1; step < size(); ++step) visit((rank_ + step) % size(), (rank_ - step + size()) % size());
  }

  template <class T>
  void send(const T* data, std::int64_t count, int to) {
    now_.send(data, count * static_cast<std::int64_t>(sizeof(T)), world_rank(to), data_tag);
  }
  template <class T>
  void receive(T* data, std::int64_t count, int from) {
    now_.receive(data, count * static_cast<std::int64_t>(sizeof(T)), world_rank(from), data_tag);
  }
  // Returns when all messages of the call have come and gone.
  void deliver() {
    now_.finish([&] { return "did not come to the " + outgoing_.text() + " of " + rank_list(ranks_); });
  }

  // The staging memory holds a part of every other member's data, in group order.
  template <class T>
  std::int64_t staged_elements() const {
    return std::max<std::int64_t>(1, Endpoint::staging_bytes / static_cast<std::int64_t>(sizeof(T)) / (size() - 1));
  }
  template <class T>
  T* staged(int member, std::int64_t most) {
    return reinterpret_cast<T*>(endpoint_.staging().data()) + most * (member < rank_ ? member : member - 1);
  }
  // to[0, n) = own and what is staged, in rank order.
  template <class T>
  void reduce_staged(T* own, T* to, std::int64_t most, std::int64_t n, ReduceOp op) {
    for (int i = 0; i < size(); ++i)
      sources_[static_cast<std::size_t>(i)] = reinterpret_cast<std::byte*>(i == rank_ ? own : staged<T>(i, most));
    auto* const target = reinterpret_cast<std::byte*>(to);
    thread::reduce<T>(sources_, 0, {&target, 1}, 0, n, op);
  }
  // to[0, n) = the payloads from element `first` on, in rank order.
  template <class T>
  void reduce_payloads(std::int64_t first, T* to, std::int64_t n, ReduceOp op) {
    for (int i = 0; i < size(); ++i) sources_[static_cast<std::size_t>(i)] = const_cast<std::byte*>(payload(i));
    auto* const target = reinterpret_cast<std::byte*>(to);
    thread::reduce<T>(sources_, first, {&target, 1}, 0, n, op);
  }

  Endpoint& endpoint_;
  std::vector<int> ranks_;
  int rank_;
  std::uint64_t number_ = 0;
  std::uint64_t calls_ = 0;
  Opening outgoing_;
  std::vector<Opening> incoming_;
  std::vector<std::byte*> sources_;
  Messages now_{endpoint_};     // of the call that is being made
  Messages shifts_{endpoint_};  // of shifts that were started and not finished
};

}  // namespace galvatron::comm::mpi
