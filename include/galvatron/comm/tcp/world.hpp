// Ranks that are processes connected by TCP: a world for what the program says of itself, not for tensors.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/deferred.hpp>
#include <galvatron/comm/reduction.hpp>
#include <galvatron/comm/status.hpp>
#include <galvatron/comm/tcp/endpoint.hpp>
#include <galvatron/comm/tcp/rendezvous.hpp>
#include <galvatron/comm/thread/channel.hpp>
#include <galvatron/comm/thread/reduce.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::tcp {

/// Models comm::Group: every member sends every other one what it has. Failures are PeerFailure, or a Failure
/// (internal) when the members' sizes disagree.
class Group : public Deferred<Group> {
 public:
  Group(Endpoint& endpoint, std::span<const int> ranks)
      : endpoint_(endpoint),
        ranks_(ranks.begin(), ranks.end()),
        rank_(static_cast<int>(std::ranges::find(ranks_, endpoint.rank()) - ranks_.begin())),
        lane_(lane_of(ranks)) {}
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] std::span<const int> ranks() const { return ranks_; }

  template <Reducible T>
  void all_reduce(View<T> data, ReduceOp op = ReduceOp::sum) {
    send_all([&](int) { return copy_of(data); });
    reduce_received(data, data, op);
  }
  template <class T>
  void all_gather(std::type_identity_t<View<const T>> shard, View<T> all) {
    check_whole("all_gather", endpoint_.rank(), size(), shard.count, all.count);
    send_all([&](int) { return copy_of(shard); });
    for (int i = 0; i < size(); ++i) take(i, shard, all.slice(i * shard.count, shard.count));
  }
  template <Reducible T>
  void reduce_scatter(std::type_identity_t<View<T>> all, View<T> shard) {
    check_whole("reduce_scatter", endpoint_.rank(), size(), shard.count, all.count);
    send_all([&](int i) { return copy_of(all.slice(i * shard.count, shard.count)); });
    reduce_received(all.slice(rank_ * shard.count, shard.count), shard, ReduceOp::sum);
  }
  template <class T>
  void all_to_all(std::type_identity_t<View<const T>> from, View<T> to) {
    check_blocks(endpoint_.rank(), size(), from.count, to.count);
    const std::int64_t n = from.count / size();
    send_all([&](int i) { return copy_of(from.slice(i * n, n)); });
    for (int i = 0; i < size(); ++i) take(i, from.slice(i * n, n), to.slice(i * n, n));
  }
  template <class T>
  void broadcast(View<T> data, int root) {
    check_root(root, size());
    if (rank_ == root) return send_all([&](int) { return copy_of(data); });
    take(root, data, data);
  }
  template <class T>
  void start_shift(std::type_identity_t<View<const T>> from, View<T> to) {
    check_shift(from.count, to.count);
    endpoint_.send(ranks_[static_cast<std::size_t>((rank_ + 1) % size())], lane_ - 1, copy_of(from));
    shifts_.push_back(std::as_writable_bytes(std::span(to.data, static_cast<std::size_t>(to.count))));
  }
  void finish_shifts() {
    for (const auto to : std::exchange(shifts_, {})) {
      const auto bytes = endpoint_.receive(ranks_[static_cast<std::size_t>((rank_ + size() - 1) % size())], lane_ - 1);
      check_size(bytes.size(), to.size());
      std::ranges::copy(bytes, to.begin());
    }
  }
  void barrier() {
    send_all([](int) { return Endpoint::Bytes{}; });
    for (int i = 0; i < size(); ++i) receive(i, 0);
  }

 private:
  // Lanes of groups are negative; of two groups they differ (a hash of 62 bits), and of one for shifts by one.
  static std::int64_t lane_of(std::span<const int> ranks) {
    std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a
    for (const int rank : ranks) hash = (hash ^ static_cast<std::uint64_t>(rank + 1)) * 1099511628211ULL;
    return -2 - static_cast<std::int64_t>(hash >> 2) * 2;
  }
  template <class T>
  static Endpoint::Bytes copy_of(View<T> data) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto bytes = std::as_bytes(std::span(data.data, static_cast<std::size_t>(data.count)));
    return {bytes.begin(), bytes.end()};
  }
  // Sends what_for(i) to every other member i.
  template <class What>
  void send_all(What&& what_for) {
    for (int i = 0; i < size(); ++i)
      if (i != rank_) endpoint_.send(ranks_[static_cast<std::size_t>(i)], lane_, what_for(i));
  }
  void check_size(std::size_t received, std::size_t expected) const {
    if (received != expected)
      throw Failure(ErrorKind::internal, "the members of a group disagree: rank " + std::to_string(endpoint_.rank()) +
                                             " takes " + std::to_string(expected) + " bytes, but was sent " +
                                             std::to_string(received));
  }
  Endpoint::Bytes receive(int i, std::size_t size) {
    if (i == rank_) return {};
    Endpoint::Bytes bytes = endpoint_.receive(ranks_[static_cast<std::size_t>(i)], lane_);
    check_size(bytes.size(), size);
    return bytes;
  }
  // Member i's elements: its block, or this member's own.
  template <class T>
  void take(int i, std::type_identity_t<View<const T>> own, View<T> to) {
    const std::size_t size = static_cast<std::size_t>(to.count) * sizeof(T);
    const Endpoint::Bytes bytes = receive(i, size);
    const void* const from = i == rank_ ? static_cast<const void*>(own.data) : bytes.data();
    if (from != to.data && size > 0) std::memmove(to.data, from, size);
  }
  template <class T>
  void reduce_received(View<T> own, View<T> to, ReduceOp op) {
    std::vector<Endpoint::Bytes> bytes;
    std::vector<std::byte*> sources;
    for (int i = 0; i < size(); ++i) {
      bytes.push_back(receive(i, static_cast<std::size_t>(own.count) * sizeof(T)));
      sources.push_back(i == rank_ ? reinterpret_cast<std::byte*>(own.data) : bytes.back().data());
    }
    std::byte* const out = reinterpret_cast<std::byte*>(to.data);
    thread::reduce<T>(sources, 0, {&out, 1}, 0, own.count, op);
  }

  Endpoint& endpoint_;
  std::vector<int> ranks_;
  int rank_;
  std::int64_t lane_;
  std::vector<std::span<std::byte>> shifts_;  // where those that were started go
};

/// Models comm::World. Used by one thread.
class World {
 public:
  using Group = tcp::Group;
  using Control = World;

  explicit World(Endpoint& endpoint) : endpoint_(endpoint) {
    for (int r = 0; r < size(); ++r) everybody_.push_back(r);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] int rank() const { return endpoint_.rank(); }
  [[nodiscard]] int size() const { return endpoint_.size(); }
  /// How long this rank waits for another one from now on.
  void set_timeout(std::chrono::nanoseconds timeout) { endpoint_.set_timeout(timeout); }
  Group& group(std::span<const int> ranks) {
    for (auto& group : groups_)
      if (std::ranges::equal(group->ranks(), ranks)) return *group;
    check_members(ranks, rank(), size());
    return *groups_.emplace_back(std::make_unique<Group>(endpoint_, ranks));
  }
  Group& everybody() { return group(everybody_); }
  Control& control() { return *this; }

  void post(std::span<const Piece> pieces) {
    check_pieces(pieces, size());
    for (const Piece& piece : pieces) {
      Endpoint::Bytes bytes(static_cast<std::size_t>(thread::bytes_of(piece)));
      thread::copy_piece(piece, flat(bytes));
      endpoint_.send(piece.peer, piece.lane, std::move(bytes));
    }
  }
  void receive(std::span<const Piece> pieces) {
    check_pieces(pieces, size());
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
  /// Posted blocks are copies.
  void wait_sent() { endpoint_.flush(); }
  void wait_sent(int) { endpoint_.flush(); }

  /// What failed on another rank, if that is known. Any thread may ask.
  std::optional<std::string> failure() { return endpoint_.failure(); }
  /// Tells the others that this rank is failing before its body has ended; `text` names it. Any thread may call it.
  void warn(const std::string& text) noexcept { endpoint_.warn(text); }

 private:
  static Piece flat(Endpoint::Bytes& bytes) {
    const auto n = static_cast<std::int64_t>(bytes.size());
    return {.data = bytes.data(), .rows = 1, .row_bytes = n, .stride_bytes = n};
  }

  Endpoint& endpoint_;
  std::vector<int> everybody_;
  std::vector<std::unique_ptr<Group>> groups_;
};

static_assert(comm::World<World>);
static_assert(comm::Group<Group>);

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
