// One process's end of its connections: blocks in lanes, and the news of how the others fare.
#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/comm/piece.hpp>
#include <galvatron/comm/status.hpp>
#include <galvatron/comm/tcp/socket.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::tcp {

/// For small messages: what is sent is copied, what arrives is kept until taken. For one thread; any asks failure().
class Endpoint {
 public:
  using Bytes = std::vector<std::byte>;

  /// @param sockets  by rank, from rendezvous()  @param timeout  how long a rank waits for another
  Endpoint(int rank, std::vector<Socket> sockets, std::chrono::nanoseconds timeout)
      : rank_(rank), timeout_(timeout), peers_(sockets.size()), news_(size()) {
    for (std::size_t i = 0; i < peers_.size(); ++i) peers_[i].socket = std::move(sockets[i]);
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(peers_.size()); }
  void set_timeout(std::chrono::nanoseconds timeout) { timeout_ = timeout; }

  /// Sends a block; to oneself too.
  void send(int to, std::int64_t lane, Bytes bytes) {
    const std::scoped_lock lock(mutex_);
    news_.check();
    if (to == rank_)
      peer(to).blocks[lane].push_back(std::move(bytes));
    else
      queue(peer(to), {Kind::block, lane, static_cast<std::int64_t>(bytes.size())}, bytes.data());
    progress(Clock::now());
  }
  /// The next block of a rank in a lane. Throws PeerFailure when it cannot come.
  Bytes receive(int from, std::int64_t lane) {
    std::optional<Bytes> out;
    const auto missing = [&]() -> std::vector<int> {
      auto& blocks = peer(from).blocks[lane];
      if (blocks.empty()) return {from};
      out = std::move(blocks.front());
      blocks.pop_front();
      return {};
    };
    wait(missing, "send a block");
    return std::move(*out);
  }
  /// Returns when all that was sent has left this process.
  void flush() {
    wait([&] { return unsent(); }, "take what was sent");
  }

  /// What failed on another rank, if that is known: "rank 2 failed: ...". Does not wait.
  std::optional<std::string> failure() {
    const std::scoped_lock lock(mutex_);
    if (news_.failure().empty()) progress(Clock::now());
    if (news_.failure().empty()) return std::nullopt;
    return news_.failure();
  }

  /// Tells the others that this rank is failing, `text`, where its last word may be late: their calls throw PeerFailure
  /// with these words. Any thread may call it.
  void warn(const std::string& text) noexcept {
    try {
      Status warning;
      warning.say(text);
      tell_all(warning);
      drain(std::chrono::seconds(1), [&] { return unsent().empty(); });
    } catch (const std::exception&) {  // they will see the connection break
    }
  }
  /// Tells the others that this rank is done, and waits until they are. Throws PeerFailure if one fails meanwhile.
  void end() {
    tell_all({.kind = Status::Kind::ended});
    const auto is_at_work = [&](int r) { return r != rank_ && (!has_ended(r) || !peer(r).out.empty()); };
    wait([&] { return ranks_that(is_at_work); }, "end");
  }
  /// Tells the others what this rank's body threw, hears what became of theirs, and how the run ended.
  Verdict fail(const std::exception_ptr& own) noexcept {
    Status mine;
    try {
      {
        const std::scoped_lock lock(mutex_);
        mine = news_.status_of(own);
        news_.take(rank_, mine);
      }
      tell_all(mine);
      // What is sent arrives only if what has come was read.
      drain(patience, [&] {
        if (!unsent().empty()) return false;
        for (const Peer& peer : peers_)
          if (peer.socket.open()) ::shutdown(peer.socket.number(), SHUT_WR);
        return std::ranges::none_of(peers_, [](const Peer& peer) { return peer.speaks(); });
      });
      return news_.verdict(rank_, own);
    } catch (const std::exception&) {  // the others see the connection break
      return {own, mine.error, true};
    }
  }

 private:
  enum class Kind : std::int64_t { block, status };
  struct Head {
    Kind kind = Kind::block;
    std::int64_t lane = 0;
    std::int64_t bytes = 0;
  };
  struct Peer {
    Socket socket;
    Bytes out;                                         // frames that have not left
    std::size_t sent = 0;                              // bytes of these that have
    Bytes in;                                          // the beginning of a frame
    bool silent = false;                               // it has ended and sends no more, but may still be told
    std::map<std::int64_t, std::deque<Bytes>> blocks;  // by lane

    [[nodiscard]] bool speaks() const { return socket.open() && !silent; }
  };
  static constexpr std::int64_t largest = std::int64_t{1} << 34;

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] bool has_ended(int rank) const { return news_.of(rank) != Status::Kind::running; }
  template <class Is>
  [[nodiscard]] std::vector<int> ranks_that(Is&& is) const {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r)
      if (is(r)) ranks.push_back(r);
    return ranks;
  }
  [[nodiscard]] std::vector<int> unsent() {
    return ranks_that([&](int r) { return !peer(r).out.empty(); });
  }

  // A frame: a head, and behind it its bytes.
  static void queue(Peer& peer, const Head& head, const void* bytes) {
    const std::size_t end = peer.out.size();
    peer.out.resize(end + sizeof head + static_cast<std::size_t>(head.bytes));
    std::memcpy(&peer.out[end], &head, sizeof head);
    if (head.bytes > 0) std::memcpy(&peer.out[end + sizeof head], bytes, static_cast<std::size_t>(head.bytes));
  }

  // Waits until no rank is `missing()`, which is asked under the lock; throws when another rank fails, when one that is
  // waited for has ended, or after the timeout.
  template <class Missing>
  void wait(Missing&& missing, const char* what) {
    const auto deadline = Clock::now() + timeout_;
    for (;;) {
      const std::scoped_lock lock(mutex_);
      if (missing().empty()) return;
      news_.check();
      progress(std::min(deadline, Clock::now() + std::chrono::milliseconds(20)));
      const std::vector<int> late = missing();
      if (late.empty()) return;
      news_.check();
      for (const int r : late) {
        if (r == rank_) throw_not_posted(rank_);
        if (has_ended(r) && peer(r).out.empty())
          throw PeerFailure(waits_in_vain(rank_, rank_list({&r, 1}) + " did not " + what));
      }
      if (Clock::now() >= deadline) throw PeerFailure(gave_up(rank_, timeout_, rank_list(late) + " did not " + what));
    }
  }
  // Waits until `done()`, which is asked under the lock, or for that time.
  template <class Done>
  void drain(std::chrono::milliseconds longest, Done&& done) {
    for (const auto limit = Clock::now() + longest; Clock::now() < limit;) {
      const std::scoped_lock lock(mutex_);
      if (done()) return;
      progress(std::min(limit, Clock::now() + std::chrono::milliseconds(20)));
    }
  }

  // Sends and receives what can be, waiting until the deadline for something to do.
  void progress(Clock::time_point deadline) {
    std::vector<pollfd> polled;
    for (const Peer& one : peers_) {
      const int events = (one.speaks() ? POLLIN : 0) | (one.out.empty() ? 0 : POLLOUT);
      polled.push_back({events == 0 ? -1 : one.socket.number(), static_cast<short>(events), 0});  // -1 is passed over
    }
    if (::poll(polled.data(), polled.size(), left_until(deadline)) <= 0) return;
    for (int r = 0; r < size(); ++r) {
      const short seen = polled[static_cast<std::size_t>(r)].revents;
      if ((seen & POLLOUT) != 0 || (seen != 0 && peer(r).silent)) send_some(peer(r));
      if ((seen & (POLLIN | POLLHUP | POLLERR)) != 0 && peer(r).speaks()) receive_some(r);
    }
  }
  static void send_some(Peer& peer) {
    const std::int64_t n = peer.socket.send(std::span(peer.out).subspan(peer.sent));
    if (n < 0 && !peer.silent) return;  // a broken connection shows when it is read
    if (n < 0) peer.socket.close();
    if (n > 0) peer.sent += static_cast<std::size_t>(n);
    if (n >= 0 && peer.sent < peer.out.size()) return;
    peer.out.clear();
    peer.sent = 0;
  }
  void receive_some(int rank) {
    Peer& from = peer(rank);
    std::array<std::byte, 1 << 16> part;
    const std::int64_t n = from.socket.receive(part);
    if (n < 0 && has_ended(rank)) {
      from.silent = true;
      return;
    }
    if (n < 0) {
      from.socket.close();
      from.out.clear();
      return news_.fail("rank " + std::to_string(rank) + " failed: its process has ended, or the network to it");
    }
    from.in.insert(from.in.end(), part.begin(), part.begin() + n);
    std::span<const std::byte> left = from.in;
    for (Head head; left.size() >= sizeof head;) {
      std::memcpy(&head, left.data(), sizeof head);
      if (head.bytes < 0 || head.bytes > largest)
        return news_.fail("rank " + std::to_string(rank) + " failed: it sends what nobody understands");
      const std::size_t whole = sizeof head + static_cast<std::size_t>(head.bytes);
      if (left.size() < whole) break;
      take(rank, head, left.subspan(sizeof head, whole - sizeof head));
      left = left.subspan(whole);
    }
    from.in.erase(from.in.begin(), from.in.end() - std::ssize(left));
  }
  void take(int rank, const Head& head, std::span<const std::byte> bytes) {
    if (head.kind == Kind::block) {
      peer(rank).blocks[head.lane].emplace_back(bytes.begin(), bytes.end());
      return;
    }
    Status said;
    std::memcpy(&said, bytes.data(), std::min(sizeof said, bytes.size()));
    said.message[sizeof said.message - 1] = '\0';
    news_.take(rank, said);
  }

  // A word to all.
  void tell_all(const Status& status) {
    const std::scoped_lock lock(mutex_);
    for (Peer& peer : peers_)
      if (peer.socket.open()) queue(peer, {Kind::status, 0, sizeof status}, &status);
  }

  int rank_;
  std::chrono::nanoseconds timeout_;
  std::mutex mutex_;
  std::vector<Peer> peers_;
  News news_;
};

}  // namespace galvatron::comm::tcp
