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
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/mpi/endpoint.hpp>
#include <galvatron/comm/mpi/messages.hpp>
#include <galvatron/comm/thread/meeting.hpp>
#include <galvatron/comm/thread/reduce.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>

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
  ElementType type = ElementType::other;
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
class Group final : public comm::Group {
 public:
  Group(Endpoint& endpoint, std::span<const int> ranks)
      : comm::Group(ranks, endpoint.rank()), endpoint_(endpoint), incoming_(ranks.size()), sources_(ranks.size()) {
    number_ = 14695981039346656037U;  // FNV-1a
    for (const int rank : ranks) number_ = (number_ ^ static_cast<std::uint64_t>(rank)) * 1099511628211U;
  }

  void finish_shifts() override {
    shifts_.finish([] { return std::string("did not shift its block"); });
  }
  void barrier() override {
    if (size() == 1) return;
    describe(CallKind::barrier, {});
    meet({});
  }

 private:
  static constexpr int opening_tag = 0;
  static constexpr int data_tag = 1;
  static constexpr int shift_tag = 2;

  void do_all_reduce(const Elements& data, ReduceOp op) override {
    if (size() == 1) return;
    describe(CallKind::all_reduce, data, static_cast<int>(op));
    if (meet(data)) {
      reduce_payloads(0, data, op);
      return;
    }
    const std::int64_t slice = divide_up(data.count, size());
    const auto slice_of = [&](int member, std::int64_t done, std::int64_t most) {
      const std::int64_t first = std::min(data.count, slice * member + done);
      return data.slice(first, std::clamp<std::int64_t>(std::min(slice - done, data.count - first), 0, most));
    };
    const std::int64_t most = staged_elements(data);
    for (std::int64_t done = 0; done < slice; done += most) {
      const Elements own = slice_of(rank(), done, most);
      each_peer([&](int to, int from) {
        receive(staged(from, own, most), from);
        send(slice_of(to, done, most), to);
      });
      deliver();
      reduce_staged(own, own, most, op);
      each_peer([&](int to, int from) {
        receive(slice_of(from, done, most), from);
        send(own, to);
      });
      deliver();
    }
  }

  void do_all_gather(const Elements& shard, const Elements& all) override {
    const std::int64_t n = shard.count;
    const Elements own = all.slice(n * rank(), n);
    const bool alone = size() == 1;
    if (!alone) describe(CallKind::all_gather, shard);
    const bool small = !alone && meet(shard);
    if (own.data != shard.data && n > 0) std::memcpy(own.data, shard.data, static_cast<std::size_t>(shard.bytes()));
    if (alone) return;
    each_peer([&](int to, int from) {
      const Elements place = all.slice(n * from, n);
      if (small && n > 0) std::memcpy(place.data, payload(from), static_cast<std::size_t>(shard.bytes()));
      if (small) return;
      receive(place, from);
      send(own, to);
    });
    deliver();
  }

  void do_reduce_scatter(const Elements& all, const Elements& shard) override {
    const std::int64_t n = shard.count;
    if (size() == 1) {
      if (shard.data != all.data && n > 0) std::memcpy(shard.data, all.data, static_cast<std::size_t>(all.bytes()));
      return;
    }
    describe(CallKind::reduce_scatter, all);
    if (meet(all)) {
      reduce_payloads(n * rank(), shard, ReduceOp::sum);
      return;
    }
    const std::int64_t most = staged_elements(all);
    for (std::int64_t done = 0; done < n; done += most) {
      const std::int64_t count = std::min(most, n - done);
      const Elements part = shard.slice(done, count);
      each_peer([&](int to, int from) {
        receive(staged(from, part, most), from);
        send(all.slice(n * to + done, count), to);
      });
      deliver();
      reduce_staged(all.slice(n * rank() + done, count), part, most, ReduceOp::sum);
    }
  }

  void do_broadcast(const Elements& data, int root) override {
    if (size() == 1) return;
    describe(CallKind::broadcast, data, root);
    if (meet(data, rank() == root)) {
      if (rank() != root && data.count > 0)
        std::memcpy(data.data, payload(root), static_cast<std::size_t>(data.bytes()));
      return;
    }
    if (rank() == root)
      each_peer([&](int to, int) { send(data, to); });
    else
      receive(data, root);
    deliver();
  }

  void do_all_to_all(const Elements& from, const Elements& to) override {
    const std::int64_t n = from.count / size();
    const bool alone = size() == 1;
    if (!alone) describe(CallKind::all_to_all, from);
    const bool small = !alone && meet(from);
    const auto bytes = static_cast<std::size_t>(n * from.size);
    if (n > 0) std::memcpy(to.slice(n * rank(), n).data, from.slice(n * rank(), n).data, bytes);
    if (alone) return;
    each_peer([&](int target, int source) {
      const Elements place = to.slice(n * source, n);
      if (small && n > 0) std::memcpy(place.data, payload(source) + bytes * static_cast<std::size_t>(rank()), bytes);
      if (small) return;
      receive(place, source);
      send(from.slice(n * target, n), target);
    });
    deliver();
  }

  void do_start_shift(const Elements& from, const Elements& to) override {
    if (size() == 1) {
      std::memcpy(to.data, from.data, static_cast<std::size_t>(from.bytes()));
      return;
    }
    shifts_.receive(to.data, to.bytes(), world_rank((rank() + size() - 1) % size()), shift_tag);
    shifts_.send(from.data, from.bytes(), world_rank((rank() + 1) % size()), shift_tag);
  }

  void describe(CallKind kind, const Elements& data, int detail = 0) {
    outgoing_.group = number_;
    outgoing_.call = calls_++;
    outgoing_.kind = kind;
    outgoing_.bytes = data.size;
    outgoing_.detail = detail;
    outgoing_.count = data.count;
    outgoing_.type = data.type;
  }

  // Exchanges openings with all members, and the data with them if they are small, which is the answer.
  bool meet(const Elements& data, bool gives = true) {
    const bool small = data.bytes() <= payload_bytes;
    const std::int64_t along = small && gives ? data.bytes() : 0;
    if (along > 0) std::memcpy(outgoing_.payload, data.data, static_cast<std::size_t>(along));
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
      text += (i > 0 ? ", rank " : " rank ") + std::to_string(world_rank(i)) + " called " + opening(i).text();
      if (opening(i).group != number_) text += " of another group";
    }
    throw Failure(ErrorKind::internal, text);
  }

  [[nodiscard]] const Opening& opening(int member) const {
    return member == rank() ? outgoing_ : incoming_[static_cast<std::size_t>(member)];
  }
  [[nodiscard]] const std::byte* payload(int member) const { return opening(member).payload; }

  // Calls visit(to, from) for all other members; everybody begins with another neighbour.
  template <class Visit>
  void each_peer(Visit&& visit) {
    for (int step = 1; step < size(); ++step) visit((rank() + step) % size(), (rank() - step + size()) % size());
  }

  void send(const Elements& data, int to) { now_.send(data.data, data.bytes(), world_rank(to), data_tag); }
  void receive(const Elements& data, int from) { now_.receive(data.data, data.bytes(), world_rank(from), data_tag); }
  // Returns when all messages of the call have come and gone.
  void deliver() {
    now_.finish([&] { return "did not come to the " + outgoing_.text() + " of " + rank_list(ranks()); });
  }

  // The staging memory holds a part of every other member's data, in group order: up to `most` elements of each.
  [[nodiscard]] std::int64_t staged_elements(const Elements& data) const {
    return std::max<std::int64_t>(1, Endpoint::staging_bytes / data.size / (size() - 1));
  }
  // As many of a member's elements as `part` has.
  Elements staged(int member, const Elements& part, std::int64_t most) {
    const std::int64_t first = most * (member < rank() ? member : member - 1);
    return {endpoint_.staging().data() + first * part.size, part.count, part.type, part.size};
  }
  // to = own and what is staged, in rank order.
  void reduce_staged(const Elements& own, const Elements& to, std::int64_t most, ReduceOp op) {
    for (int i = 0; i < size(); ++i)
      sources_[static_cast<std::size_t>(i)] = i == rank() ? own.data : staged(i, own, most).data;
    thread::reduce(to.type, sources_, 0, {&to.data, 1}, 0, to.count, op);
  }
  // to = the payloads from element `first` on, in rank order.
  void reduce_payloads(std::int64_t first, const Elements& to, ReduceOp op) {
    for (int i = 0; i < size(); ++i) sources_[static_cast<std::size_t>(i)] = const_cast<std::byte*>(payload(i));
    thread::reduce(to.type, sources_, first, {&to.data, 1}, 0, to.count, op);
  }

  Endpoint& endpoint_;
  std::uint64_t number_ = 0;
  std::uint64_t calls_ = 0;
  Opening outgoing_;
  std::vector<Opening> incoming_;
  std::vector<std::byte*> sources_;
  Messages now_{endpoint_};     // of the call that is being made
  Messages shifts_{endpoint_};  // of shifts that were started and not finished
};

}  // namespace galvatron::comm::mpi
