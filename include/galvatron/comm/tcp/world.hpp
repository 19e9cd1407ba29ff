// Ranks that are processes connected by TCP: a world for what the program says of itself, not for tensors.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/groups.hpp>
#include <galvatron/comm/status.hpp>
#include <galvatron/comm/tcp/endpoint.hpp>
#include <galvatron/comm/tcp/rendezvous.hpp>
#include <galvatron/comm/thread/channel.hpp>
#include <galvatron/comm/thread/reduce.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::tcp {

/// Every member sends every other one what it has. Failures are PeerFailure, or a Failure (internal) when the members'
/// sizes disagree.
class Group final : public comm::Group {
 public:
  Group(Endpoint& endpoint, std::span<const int> ranks)
      : comm::Group(ranks, endpoint.rank()), endpoint_(endpoint), lane_(lane_of(ranks)) {}

  void finish_shifts() override {
    for (const Elements& to : std::exchange(shifts_, {})) {
      const auto bytes = endpoint_.receive(world_rank((rank() + size() - 1) % size()), lane_ - 1);
      check_size(bytes.size(), static_cast<std::size_t>(to.bytes()));
      std::ranges::copy(bytes, to.data);
    }
  }
  void barrier() override {
    send_all([](int) { return Endpoint::Bytes{}; });
    for (int i = 0; i < size(); ++i) receive(i, 0);
  }

 private:
  void do_all_reduce(const Elements& data, ReduceOp op) override {
    send_all([&](int) { return copy_of(data); });
    reduce_received(data, data, op);
  }
  void do_all_gather(const Elements& shard, const Elements& all) override {
    send_all([&](int) { return copy_of(shard); });
    for (int i = 0; i < size(); ++i) take(i, shard, all.slice(i * shard.count, shard.count));
  }
  void do_reduce_scatter(const Elements& all, const Elements& shard) override {
    send_all([&](int i) { return copy_of(all.slice(i * shard.count, shard.count)); });
    reduce_received(all.slice(rank() * shard.count, shard.count), shard, ReduceOp::sum);
  }
  void do_all_to_all(const Elements& from, const Elements& to) override {
    const std::int64_t n = from.count / size();
    send_all([&](int i) { return copy_of(from.slice(i * n, n)); });
    for (int i = 0; i < size(); ++i) take(i, from.slice(i * n, n), to.slice(i * n, n));
  }
  void do_broadcast(const Elements& data, int root) override {
    if (rank() == root) return send_all([&](int) { return copy_of(data); });
    take(root, data, data);
  }
  void do_start_shift(const Elements& from, const Elements& to) override {
    endpoint_.send(world_rank((rank() + 1) % size()), lane_ - 1, copy_of(from));
    shifts_.push_back(to);
  }

  // Lanes of groups are negative; of two groups they differ (a hash of 62 bits), and of one for shifts by one.
  static std::int64_t lane_of(std::span<const int> ranks) {
    std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a
    for (const int rank : ranks) hash = (hash ^ static_cast<std::uint64_t>(rank + 1)) * 1099511628211ULL;
    return -2 - static_cast<std::int64_t>(hash >> 2) * 2;
  }
  static Endpoint::Bytes copy_of(const Elements& data) { return {data.data, data.data + data.bytes()}; }
  // Sends what_for(i) to every other member i.
  template <class What>
  void send_all(What&& what_for) {
    for (int i = 0; i < size(); ++i)
      if (i != rank()) endpoint_.send(world_rank(i), lane_, what_for(i));
  }
  void check_size(std::size_t received, std::size_t expected) const {
    if (received != expected)
      throw Failure(ErrorKind::internal, "the members of a group disagree: rank " + std::to_string(endpoint_.rank()) +
                                             " takes " + std::to_string(expected) + " bytes, but was sent " +
                                             std::to_string(received));
  }
  Endpoint::Bytes receive(int i, std::size_t expected) {
    if (i == rank()) return {};
    Endpoint::Bytes bytes = endpoint_.receive(world_rank(i), lane_);
    check_size(bytes.size(), expected);
    return bytes;
  }
  // Member i's elements: its block, or this member's own.
  void take(int i, const Elements& own, const Elements& to) {
    const auto size = static_cast<std::size_t>(to.bytes());
    const Endpoint::Bytes bytes = receive(i, size);
    const std::byte* const from = i == rank() ? own.data : bytes.data();
    if (from != to.data && size > 0) std::memmove(to.data, from, size);
  }
  void reduce_received(const Elements& own, const Elements& to, ReduceOp op) {
    std::vector<Endpoint::Bytes> bytes;
    std::vector<std::byte*> sources;
    for (int i = 0; i < size(); ++i) {
      bytes.push_back(receive(i, static_cast<std::size_t>(own.bytes())));
      sources.push_back(i == rank() ? own.data : bytes.back().data());
    }
    thread::reduce(own.type, sources, 0, {&to.data, 1}, 0, own.count, op);
  }

  Endpoint& endpoint_;
  std::int64_t lane_;
  std::vector<Elements> shifts_;  // where those that were started go
};

/// Posted blocks are copies.
class World final : public comm::World {
 public:
  explicit World(Endpoint& endpoint) : comm::World(endpoint.rank(), endpoint.size()), endpoint_(endpoint) {}

  Group& group(std::span<const int> ranks) override {
    return groups_.find(ranks, [&] {
      check_members(ranks, rank(), size());
      return std::make_unique<Group>(endpoint_, ranks);
    });
  }

  /// How long this rank waits for another one from now on.
  void set_timeout(std::chrono::nanoseconds timeout) { endpoint_.set_timeout(timeout); }

  std::optional<std::string> failure() override { return endpoint_.failure(); }
  void warn(const std::string& text) noexcept override { endpoint_.warn(text); }

 private:
  void do_post(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) {
      Endpoint::Bytes bytes(static_cast<std::size_t>(thread::bytes_of(piece)));
      thread::copy_piece(piece, flat(bytes));
      endpoint_.send(piece.peer, piece.lane, std::move(bytes));
    }
  }
  void do_receive(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) {
      Endpoint::Bytes bytes = endpoint_.receive(piece.peer, piece.lane);
      if (static_cast<std::int64_t>(bytes.size()) != thread::bytes_of(piece))
        throw Failure(ErrorKind::internal, "rank " + std::to_string(rank()) + " receives a block of " +
                                               std::to_string(thread::bytes_of(piece)) + " bytes, but rank " +
                                               std::to_string(piece.peer) + " sent one of " +
                                               std::to_string(bytes.size()) + " bytes");
      thread::copy_piece(flat(bytes), piece);
    }
  }
  void do_wait_sent(int) override { endpoint_.flush(); }

  static Piece flat(Endpoint::Bytes& bytes) {
    const auto n = static_cast<std::int64_t>(bytes.size());
    return {.data = bytes.data(), .rows = 1, .row_bytes = n, .stride_bytes = n};
  }

  Endpoint& endpoint_;
  Groups<Group> groups_;
};

/// How long ranks wait for each other.
struct Limits {
  std::chrono::nanoseconds rendezvous = std::chrono::minutes(5);
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
};

/// Runs body(World&) as the rank whose connections these are. If another rank fails, this one's pending and later calls
/// throw PeerFailure naming that rank and its message; what the body throws is told to the others. Throws nothing: how
/// the run ended is the same for all ranks that take part to the end.
template <class F>
Verdict outcome_of(int rank, std::vector<Socket> sockets, F&& body, std::chrono::nanoseconds timeout) {
  Endpoint endpoint(rank, std::move(sockets), timeout);
  try {
    {
      World world(endpoint);
      body(world);
    }
    endpoint.end();
    return {};
  } catch (...) {
    return endpoint.fail(std::current_exception());
  }
}

/// The same as the rank that `env` names, when all have found each other.
template <class F>
Verdict outcome_of(const LaunchEnvironment& env, F&& body, const Limits& limits = {}) {
  std::vector<Socket> sockets;
  try {
    sockets = rendezvous(env, limits.rendezvous);
  } catch (const Failure& e) {
    return {std::current_exception(), e.kind(), true};
  }
  return outcome_of(env.rank, std::move(sockets), std::forward<F>(body), limits.timeout);
}

/// The same; throws, on every rank, what its Verdict says.
template <class F>
void run(const LaunchEnvironment& env, F&& body, const Limits& limits = {}) {
  if (const Verdict verdict = outcome_of(env, std::forward<F>(body), limits); verdict.failure != nullptr)
    std::rethrow_exception(verdict.failure);
}

}  // namespace galvatron::comm::tcp
