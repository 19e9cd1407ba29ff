// Ranks that are processes connected by TCP: a world for what the program says of itself, not for tensors.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/message_group.hpp>
#include <galvatron/comm/piece.hpp>
#include <galvatron/comm/status.hpp>
#include <galvatron/comm/tcp/endpoint.hpp>
#include <galvatron/comm/tcp/rendezvous.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::tcp {

/// Messages for MessageGroup, which says what the calls do. What is sent leaves at once, as a copy.
class Messages {
 public:
  explicit Messages(Endpoint& endpoint) : endpoint_(endpoint) {}

  void send(const void* data, std::int64_t bytes, int peer, int tag) {
    const auto* const first = static_cast<const std::byte*>(data);
    if (bytes > 0) endpoint_.send(peer, lane_of(tag), {first, first + bytes});
  }
  void receive(void* data, std::int64_t bytes, int peer, int tag, bool whole = true) {
    if (bytes > 0) expected_.push_back({static_cast<std::byte*>(data), bytes, peer, tag, whole});
  }
  template <class What>
  void finish(What&&) {
    for (const Expected& expected : std::exchange(expected_, {})) {
      const Endpoint::Bytes bytes = endpoint_.receive(expected.peer, lane_of(expected.tag));
      const auto size = static_cast<std::int64_t>(bytes.size());
      if (expected.whole || size > expected.bytes) check_sent(endpoint_.rank(), expected.peer, expected.bytes, size);
      std::ranges::copy(bytes, expected.data);
    }
  }

 private:
  struct Expected {
    std::byte* data;
    std::int64_t bytes;
    int peer;
    int tag;
    bool whole;  // exactly so many bytes
  };

  // Those of blocks are not negative.
  static std::int64_t lane_of(int tag) { return -1 - tag; }

  Endpoint& endpoint_;
  std::vector<Expected> expected_;
};

/// Posted blocks are copies.
class World final : public MessageWorld<Endpoint, Messages> {
 public:
  using MessageWorld::MessageWorld;

  std::optional<std::string> failure() override { return endpoint_.failure(); }
  void warn(const std::string& text) noexcept override { endpoint_.warn(text); }

 private:
  void do_post(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) {
      Endpoint::Bytes bytes(static_cast<std::size_t>(piece.bytes()));
      copy_piece(piece, Piece::flat(rank(), bytes.data(), piece.bytes()));
      endpoint_.send(piece.peer, piece.lane, std::move(bytes));
    }
  }
  void do_receive(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) {
      Endpoint::Bytes bytes = endpoint_.receive(piece.peer, piece.lane);
      const auto sent = static_cast<std::int64_t>(bytes.size());
      check_sent(rank(), piece, sent);
      copy_piece(Piece::flat(piece.peer, bytes.data(), sent), piece);
    }
  }
  void do_wait_sent(int) override { endpoint_.flush(); }
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
  outcome_of(env, std::forward<F>(body), limits).rethrow();
}

}  // namespace galvatron::comm::tcp
