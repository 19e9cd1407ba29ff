// The collectives of ranks that are processes: messages between pairs, added in rank order on arrival.
//
// Members first tell each other what they came for. Data of up to payload_bytes travel with that. Larger data follow: a
// reduction sends slice j of everybody's data to member j, which adds them in rank order in its staging memory, and an
// all-reduce sends the sums back. So sums have the same bits as those of rank threads.
//
//   member 0  [a0|b0]  b0 ->                 a = a0 + a1        a ->        [a|b]
//   member 1  [a1|b1]  a1 -> member 0        b = b0 + b1        b ->        [a|b]
//
// No communicator of MPI belongs to a group and no collective of MPI is called: making one is collective, and its
// reductions promise no order.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/elements.hpp>
#include <galvatron/comm/reduce.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron::comm {

/// Messages of collectives between this rank and others of the world, begun together and waited for together.
template <class M>
concept GroupMessages =
    requires(M& messages, const void* from, void* to, std::int64_t bytes, int peer, int tag, bool whole) {
      /// Contiguous memory, which stays as it is until finish(). Empty messages do not travel. Those with one tag from
      /// one rank arrive in order.
      messages.send(from, bytes, peer, tag);
      messages.receive(to, bytes, peer, tag);
      messages.receive(to, bytes, peer, tag, whole);  // false: a message of at most so many bytes
      /// Returns when all have come and gone; what() says what a rank that is late did not do. Throws PeerFailure, or
      /// Failure for a message of another size than expected.
      messages.finish([] { return std::string(); });
    };

/// Memory for what other ranks send to a reduction, allocated once for all groups of a world.
using Staging = std::vector<std::byte>;
inline constexpr std::int64_t staging_bytes = 4 << 20;

/// Bytes of a member's data that travel with its opening message: within what Open MPI sends at once in shared memory.
inline constexpr std::int64_t payload_bytes = 3072;

/// What a member came for, as it travels.
struct Opening {
  std::uint64_t group = 0;   ///< a number made of the members
  std::uint64_t number = 0;  ///< how many collectives of this group came before
  Collective call{};         ///< whose addresses mean nothing to others
  std::byte payload[payload_bytes];

  [[nodiscard]] bool agrees_with(const Opening& other) const {
    return group == other.group && number == other.number && call.agrees_with(other.call);
  }
};

/// One rank's handle on a group.
template <GroupMessages Messages>
class MessageGroup final : public Group {
 public:
  /// Both outlive the group. @param rank  this one, of the world
  template <class Endpoint>
  MessageGroup(Endpoint& endpoint, Staging& staging, std::span<const int> ranks, int rank)
      : Group(ranks, rank),
        staging_(staging),
        incoming_(ranks.size()),
        sources_(ranks.size()),
        now_(endpoint),
        shifts_(endpoint) {
    outgoing_.group = 14695981039346656037U;  // FNV-1a
    for (const int member : ranks)
      outgoing_.group = (outgoing_.group ^ static_cast<std::uint64_t>(member)) * 1099511628211U;
  }

 private:
  static constexpr int opening_tag = 0;
  static constexpr int data_tag = 1;
  static constexpr int shift_tag = 2;

  void do_finish_shifts() override {
    shifts_.finish([] { return std::string("did not shift its block"); });
  }
  void do_run(const Collective& called) override {
    const Elements& from = called.from;
    const Elements& to = called.to;
    const auto first = [](int) { return std::int64_t{0}; };
    const auto block = [&](int giver, int taker) { return called.block(giver, taker, size()); };
    switch (called.kind) {
      case CallKind::all_reduce:
        return reduce_all(called);
      case CallKind::all_gather:
        return exchange(called, first, [&](int) { return from; }, [&](int i) { return part(to, called.shard(i)); });
      case CallKind::reduce_scatter:
        if (meet(called)) return reduce_payloads(called.shard(rank()).begin, to, ReduceOp::sum);
        return reduce_slices([&](int member) { return part(from, called.shard(member)); }, to, called.largest_shard(),
                             ReduceOp::sum);
      case CallKind::all_to_all:
        return exchange(
            called, [&](int i) { return block(i, rank()).given; },
            [&](int i) { return from.slice(block(rank(), i).given, block(rank(), i).count); },
            [&](int i) { return to.slice(block(i, rank()).taken, block(i, rank()).count); });
      case CallKind::broadcast:
        return exchange(
            called, first, [&](int) { return rank() == called.root ? from : Elements{}; },
            [&](int i) { return i == called.root ? to : Elements{}; });
      case CallKind::shift:
        return begin_shift(from, to);
      case CallKind::barrier:
        if (size() > 1) meet(called);
        break;
    }
  }

  void reduce_all(const Collective& called) {
    if (size() == 1) return;
    const Elements& data = called.to;
    if (meet(called)) return reduce_payloads(0, data, called.op);
    const std::int64_t n = divide_up(data.count, size());
    const auto slice_of = [&](int member) {
      const std::int64_t first = std::min(data.count, n * member);
      return data.slice(first, std::min(n, data.count - first));
    };
    const Elements own = slice_of(rank());
    reduce_slices(slice_of, own, n, called.op);
    each_peer([&](int to, int from) {
      receive(slice_of(from), from);
      send(own, to);
    });
    deliver();
  }
  void begin_shift(const Elements& from, const Elements& to) {
    if (size() == 1) return copy(from.data, to);
    shifts_.receive(to.data, to.bytes(), world_rank((rank() + size() - 1) % size()), shift_tag);
    shifts_.send(from.data, from.bytes(), world_rank((rank() + 1) % size()), shift_tag);
  }

  // Exchanges openings with all members, and the data with them if they are small, which is the answer.
  bool meet(const Collective& called) {
    const Elements& data = called.from;
    const bool gives = called.kind != CallKind::broadcast || called.root == rank();
    outgoing_.call = called;
    outgoing_.number = calls_++;
    const bool small = called.most_given() <= payload_bytes;
    const std::int64_t along = small && gives ? data.bytes() : 0;
    if (along > 0) std::memcpy(outgoing_.payload, data.data, static_cast<std::size_t>(along));
    constexpr auto head = static_cast<std::int64_t>(offsetof(Opening, payload));
    each_peer([&](int to, int from) {
      now_.receive(&incoming_[static_cast<std::size_t>(from)], sizeof(Opening), world_rank(from), opening_tag, false);
      now_.send(&outgoing_, head + along, world_rank(to), opening_tag);
    });
    deliver();
    for (int i = 0; i < size(); ++i)
      if (!opening(i).agrees_with(outgoing_))
        throw Failure(ErrorKind::internal, disagreement(ranks(), [&](int of) {
                        const Opening& other = opening(of);
                        return other.call.text() + (other.group != outgoing_.group ? " of another group" : "");
                      }));
    return small;
  }

  [[nodiscard]] const Opening& opening(int member) const {
    return member == rank() ? outgoing_ : incoming_[static_cast<std::size_t>(member)];
  }

  // Gives every member i gives(i), and takes place(i) from it: what it opens with, from element first(i) on.
  template <class First, class Gives, class Place>
  void exchange(const Collective& called, First&& first, Gives&& gives, Place&& place) {
    const bool small = meet(called);
    copy(gives(rank()).data, place(rank()));
    each_peer([&](int to, int from) {
      if (small) return copy(opening(from).payload + first(from) * called.from.size, place(from));
      receive(place(from), from);
      send(gives(to), to);
    });
    deliver();
  }
  static Elements part(const Elements& all, Sharding::Range range) { return all.slice(range.begin, range.count()); }
  static void copy(const std::byte* from, const Elements& to) {
    if (from != to.data && to.count > 0) std::memcpy(to.data, from, static_cast<std::size_t>(to.bytes()));
  }

  // Calls visit(to, from) for all other members; everybody begins with another neighbour.
  template <class Visit>
  void each_peer(Visit&& visit) {
    for (int step = 1; step < size(); ++step) visit((rank() + step) % size(), (rank() - step + size()) % size());
  }

  void send(const Elements& data, int to) { now_.send(data.data, data.bytes(), world_rank(to), data_tag); }
  void receive(const Elements& data, int from) { now_.receive(data.data, data.bytes(), world_rank(from), data_tag); }
  // Returns when all messages of the call have come and gone.
  void deliver() {
    now_.finish([&] { return "did not come to the " + outgoing_.call.text() + " of " + rank_list(ranks()); });
  }

  // to = the sum of all members' slice_of(rank()), each of at most n elements, in rank order; a part of each that finds
  // room in the staging memory at a time.
  template <class Slice>
  void reduce_slices(Slice&& slice_of, const Elements& to, std::int64_t n, ReduceOp op) {
    staging_.resize(staging_bytes);
    const std::int64_t most = std::max<std::int64_t>(1, staging_bytes / to.size / std::max(1, size() - 1));
    for (std::int64_t done = 0; done < n; done += most) {
      const auto part = [&](const Elements& slice) {
        return slice.slice(done, std::clamp<std::int64_t>(slice.count - done, 0, most));
      };
      const Elements sum = part(to);
      sources_[static_cast<std::size_t>(rank())] = part(slice_of(rank())).data;
      each_peer([&](int peer, int from) {
        std::byte* const staged = staging_.data() + most * (from < rank() ? from : from - 1) * to.size;
        sources_[static_cast<std::size_t>(from)] = staged;
        receive({staged, sum.count, sum.type, sum.size}, from);
        send(part(slice_of(peer)), peer);
      });
      deliver();
      reduce(sum.type, sources_, {&sum.data, 1}, sum.count, op);
    }
  }
  // to = the payloads from element `first` on, in rank order.
  void reduce_payloads(std::int64_t first, const Elements& to, ReduceOp op) {
    for (int i = 0; i < size(); ++i)
      sources_[static_cast<std::size_t>(i)] = const_cast<std::byte*>(opening(i).payload) + first * to.size;
    reduce(to.type, sources_, {&to.data, 1}, to.count, op);
  }

  Staging& staging_;
  std::uint64_t calls_ = 0;
  Opening outgoing_;
  std::vector<Opening> incoming_;
  std::vector<std::byte*> sources_;
  Messages now_;     // of the call that is being made
  Messages shifts_;  // of shifts that were started and not finished
};

/// What worlds of processes have in common.
/// @tparam Endpoint  a process's end of all its connections
template <class Endpoint, GroupMessages Messages>
class MessageWorld : public World {
 public:
  explicit MessageWorld(Endpoint& endpoint) : World(endpoint.rank(), endpoint.size()), endpoint_(endpoint) {}

  /// How long this rank waits for another one from now on.
  void set_timeout(std::chrono::nanoseconds timeout) { endpoint_.set_timeout(timeout); }

  Group& group(std::span<const int> ranks) override {
    return groups_.find(*this, ranks, endpoint_, staging_, ranks, rank());
  }

 protected:
  Endpoint& endpoint_;

 private:
  Staging staging_;
  Groups<MessageGroup<Messages>> groups_;
};

}  // namespace galvatron::comm
