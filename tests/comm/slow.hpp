// A world behind a slower link: what a plan would do over a network of this latency and bandwidth, for benchmarks.
//
// Transfers take wall time and no computing: a collective is complete on no member before it has gone over the link of
// each, a block is there no earlier than its bytes. A rank's transfers go over its link one after the other, from the
// moment in which they are started or posted; so do the blocks that come to a rank, beside those that it sends.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
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
  /// When bytes that have come over the sender's link at `arrival` have come over this one, too.
  double receive(double arrival, double bytes) {
    received_until_ = std::max(arrival, received_until_ + bytes / link_.bytes_per_second);
    return received_until_;
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
  double received_until_ = 0;
};

/// A group over the wire. Collectives take what a ring of the members takes.
class Group final : public comm::Group {
 public:
  Group(comm::Group& inner, Wire& wire, int world_rank)
      : comm::Group(inner.ranks(), world_rank), inner_(inner), wire_(wire) {}

 private:
  void do_finish_shifts() override {
    inner_.finish_shifts();
    for (const Stamp& stamp : stamps_) Wire::wait_until(stamp.received);
    stamps_.clear();
  }
  void do_run(const Collective& called) override {
    if (called.kind == CallKind::barrier) return inner_.barrier();
    if (called.kind == CallKind::shift) return start_delayed_shift(called);
    do_finish(do_start(called));
  }
  /// A block goes with the time at which it arrives.
  void start_delayed_shift(const Collective& called) {
    if (size() > 1) {
      Stamp& stamp = stamps_.emplace_back();
      stamp.sent = wire_.send(1, static_cast<double>(called.to.bytes()));
      inner_.start_shift<double>({&stamp.sent, 1}, {&stamp.received, 1});
    }
    inner_.run(called);
  }

  Pending do_start(const Collective& called) override {
    Started& started = started_.emplace_back();
    const bool blocking = called.kind == CallKind::broadcast || called.kind == CallKind::all_to_all;
    if (!blocking) started.inner = inner_.start(called);
    started.arrival =
        send(called.kind == CallKind::all_reduce ? 2 : 1, std::max(called.from.bytes(), called.to.bytes()));
    if (blocking) inner_.run(called);
    return {called, &started};
  }
  void do_finish(const Pending& pending) override {
    const auto started = std::ranges::find_if(started_, [&](const Started& other) { return &other == pending.handle; });
    inner_.finish(started->inner);
    arrive(started->arrival);
    started_.erase(started);
  }

  // Begins to send all that a collective sends; gives the time at which it has arrived.
  double send(int rounds, std::int64_t bytes) {
    const int steps = rounds * (size() - 1);
    return size() == 1 ? 0 : wire_.send(steps, static_cast<double>(bytes) * steps / size());
  }
  // Returns when it has arrived on all members.
  void arrive(double arrival) {
    if (size() == 1) return;
    inner_.all_reduce(View<double>{&arrival, 1}, ReduceOp::max);
    Wire::wait_until(arrival);
  }

  struct Stamp {
    double sent = 0;
    double received = 0;
  };
  struct Started {
    Pending inner;
    double arrival = 0;
  };

  comm::Group& inner_;
  Wire& wire_;
  std::list<Stamp> stamps_;     // of the shifts that were started
  std::list<Started> started_;  // collectives that are not finished
};

/// A world over the wire.
class World final : public comm::World {
 public:
  World(comm::World& inner, const Link& link) : comm::World(inner.rank(), inner.size()), inner_(inner), wire_(link) {}

  Group& group(std::span<const int> ranks) override {
    return groups_.find(*this, ranks, inner_.group(ranks), wire_, rank());
  }
  comm::World& control() override { return inner_.control(); }

  void check() override { inner_.check(); }
  void withdraw() noexcept override { inner_.withdraw(); }
  std::optional<std::string> failure() override { return inner_.failure(); }
  void warn(const std::string& text) noexcept override { inner_.warn(text); }

 private:
  /// Every block goes with the time at which it arrives.
  void do_post(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) {
      const auto bytes = static_cast<double>(piece.rows * piece.row_bytes);
      std::list<double>& arrivals = arrivals_[piece.lane];
      arrivals.push_back(piece.peer == rank() ? 0 : wire_.send(1, bytes));
      const Piece both[] = {stamp_of(piece, arrivals.back()), piece};
      inner_.post(both);
    }
  }
  void do_receive(std::span<const Piece> pieces) override {
    std::vector<std::pair<double, double>> arrivals;  // and bytes, of those from others
    for (const Piece& piece : pieces) {
      double arrival = 0;
      const Piece both[] = {stamp_of(piece, arrival), piece};
      inner_.receive(both);
      if (piece.peer != rank()) arrivals.emplace_back(arrival, static_cast<double>(piece.rows * piece.row_bytes));
    }
    std::ranges::sort(arrivals);
    for (const auto& [arrival, bytes] : arrivals) Wire::wait_until(wire_.receive(arrival, bytes));
  }
  void do_wait_sent(int lane) override {
    inner_.wait_sent(lane);
    if (lane == every_lane)
      arrivals_.clear();
    else
      arrivals_[lane].clear();
  }

  static Piece stamp_of(const Piece& piece, double& arrival) {
    constexpr auto bytes = static_cast<std::int64_t>(sizeof(double));
    return {piece.peer, reinterpret_cast<std::byte*>(&arrival), 1, bytes, bytes, piece.lane};
  }

  comm::World& inner_;
  Wire wire_;
  std::map<int, std::list<double>> arrivals_;  // by lane: of what is posted
  Groups<Group> groups_;
};

}  // namespace galvatron::comm::slow
