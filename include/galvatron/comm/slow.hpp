// A world behind a slower link: what a plan would do over a network of this latency and bandwidth, for benchmarks.
//
// Transfers take wall time and no computing: a collective is complete on no member before it has gone over the link of
// each, a block is there no earlier than its bytes. A rank's transfers go over its link one after the other, from the
// moment in which they are started or posted.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::comm::slow {

struct Link {
  double latency = 0;  ///< seconds of a message
  double bytes_per_second = 1e9;
};

/// A rank's end of its link.
class Wire {
 public:
  explicit Wire(const Link& link) : link_(link) {}

  /// When `bytes` that go out now in `messages` one after the other have arrived, in seconds of the steady clock.
  double send(int messages, double bytes) {
    busy_until_ = std::max(busy_until_, now()) + messages * link_.latency + bytes / link_.bytes_per_second;
    return busy_until_;
  }
  static void wait_until(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds - now()));
  }

 private:
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  Link link_;
  double busy_until_ = 0;
};

/// A group over the wire; models comm::Group. Collectives take what a ring of the members takes.
template <class G>
class Group {
 public:
  struct Pending {
    typename G::Pending inner{};
    double arrival = 0;
    bool started = false;
  };

  Group(G& inner, Wire& wire) : inner_(inner), wire_(wire) {}

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }

  template <class T>
  void all_reduce(View<T> data, ReduceOp op = ReduceOp::sum) {
    Pending pending = start_all_reduce(data, op);
    finish(pending);
  }
  template <class T>
  void all_gather(std::type_identity_t<View<const T>> shard, View<T> all) {
    Pending pending = start_all_gather<T>(shard, all);
    finish(pending);
  }
  template <class T>
  void reduce_scatter(std::type_identity_t<View<T>> all, View<T> shard) {
    Pending pending = start_reduce_scatter<T>(all, shard);
    finish(pending);
  }
  template <class T>
  void broadcast(View<T> data, int root) {
    Pending pending = started({}, 1, bytes_of(data));
    inner_.broadcast(data, root);
    finish(pending);
  }
  void barrier() { inner_.barrier(); }
  template <class T>
  void all_to_all(std::type_identity_t<View<const T>> from, View<T> to) {
    Pending pending = started({}, 1, bytes_of(to));
    inner_.template all_to_all<T>(from, to);
    finish(pending);
  }
  /// A block goes with the time at which it arrives.
  template <class T>
  void start_shift(std::type_identity_t<View<const T>> from, View<T> to) {
    if (size() > 1) {
      Stamp& stamp = stamps_.emplace_back();
      stamp.sent = wire_.send(1, bytes_of(to));
      inner_.template start_shift<double>({&stamp.sent, 1}, {&stamp.received, 1});
    }
    inner_.template start_shift<T>(from, to);
  }
  void finish_shifts() {
    inner_.finish_shifts();
    for (const Stamp& stamp : stamps_) Wire::wait_until(stamp.received);
    stamps_.clear();
  }

  template <class T>
  Pending start_all_reduce(View<T> data, ReduceOp op = ReduceOp::sum) {
    return started(inner_.start_all_reduce(data, op), 2, bytes_of(data));
  }
  template <class T>
  Pending start_all_gather(std::type_identity_t<View<const T>> shard, View<T> all) {
    return started(inner_.template start_all_gather<T>(shard, all), 1, bytes_of(all));
  }
  template <class T>
  Pending start_reduce_scatter(std::type_identity_t<View<T>> all, View<T> shard) {
    return started(inner_.template start_reduce_scatter<T>(all, shard), 1, bytes_of(all));
  }
  void finish(Pending& pending) {
    if (!pending.started) return;
    inner_.finish(pending.inner);
    if (size() > 1) {
      inner_.all_reduce(View<double>{&pending.arrival, 1}, ReduceOp::max);
      Wire::wait_until(pending.arrival);
    }
    pending = {};
  }

 private:
  template <class T>
  static double bytes_of(View<T> v) {
    return static_cast<double>(v.count) * sizeof(T);
  }
  Pending started(typename G::Pending inner, int rounds, double bytes) {
    const int steps = rounds * (size() - 1);
    return {std::move(inner), size() == 1 ? 0 : wire_.send(steps, bytes * steps / size()), true};
  }

  struct Stamp {
    double sent = 0;
    double received = 0;
  };

  G& inner_;
  Wire& wire_;
  std::list<Stamp> stamps_;  // of the shifts that were started
};

/// A world over the wire; models comm::World.
template <class W>
class World {
 public:
  using Group = slow::Group<typename W::Group>;

  World(W& inner, const Link& link) : inner_(inner), wire_(link) {}

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  Group& group(std::span<const int> ranks) { return wrapped(inner_.group(ranks)); }
  Group& everybody() { return wrapped(inner_.everybody()); }
  using Control = typename W::Control;
  Control& control() { return inner_.control(); }

  /// Every block goes with the time at which it arrives.
  void post(std::span<const Piece> pieces) {
    for (const Piece& piece : pieces) {
      const auto bytes = static_cast<double>(piece.rows * piece.row_bytes);
      std::list<double>& arrivals = arrivals_[piece.lane];
      arrivals.push_back(piece.peer == rank() ? 0 : wire_.send(1, bytes));
      const Piece both[] = {stamp_of(piece, arrivals.back()), piece};
      inner_.post(both);
    }
  }
  void receive(std::span<const Piece> pieces) {
    for (const Piece& piece : pieces) {
      double arrival = 0;
      const Piece both[] = {stamp_of(piece, arrival), piece};
      inner_.receive(both);
      Wire::wait_until(arrival);
    }
  }
  void wait_sent() {
    inner_.wait_sent();
    arrivals_.clear();
  }
  void wait_sent(int lane) {
    inner_.wait_sent(lane);
    arrivals_[lane].clear();
  }
  void withdraw() { inner_.withdraw(); }

 private:
  static Piece stamp_of(const Piece& piece, double& arrival) {
    constexpr auto bytes = static_cast<std::int64_t>(sizeof(double));
    return {piece.peer, reinterpret_cast<std::byte*>(&arrival), 1, bytes, bytes, piece.lane};
  }
  Group& wrapped(typename W::Group& inner) {
    auto& found = groups_[&inner];
    if (found == nullptr) found = std::make_unique<Group>(inner, wire_);
    return *found;
  }

  W& inner_;
  Wire wire_;
  std::map<int, std::list<double>> arrivals_;  // by lane: of what is posted
  std::map<typename W::Group*, std::unique_ptr<Group>> groups_;
};

}  // namespace galvatron::comm::slow
