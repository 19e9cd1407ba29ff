// Blocks on their way from one rank to another: a queue of where they lie, not of what they hold.
//
// The receiver copies straight from the sender's memory, so a block is read once and written once.
//
//   sender    post: entry -> [ queue ] ............ wait_sent: until all its entries are taken
//   receiver                 [ queue ] -> receive: entry, copy, taken
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <galvatron/comm/piece.hpp>

namespace galvatron::comm::thread {

/// The queue of one lane of one ordered pair of ranks. It grows while a program finds out how many blocks it has under
/// way, and never again.
class Channel {
 public:
  /// Sender: appends a block.
  void push(const Piece& piece) {
    const std::scoped_lock lock(mutex_);
    if (last_ - first_ == ring_.size()) grow();
    ring_[last_++ % ring_.size()] = piece;
    posted_.store(last_, std::memory_order_release);
  }

  /// Receiver: is there a block?
  [[nodiscard]] bool ready() const {
    return posted_.load(std::memory_order_acquire) > taken_.load(std::memory_order_relaxed);
  }

  /// Sender: has the receiver taken everything?
  [[nodiscard]] bool drained() const {
    return taken_.load(std::memory_order_acquire) == posted_.load(std::memory_order_relaxed);
  }

  /// Receiver: the first block, still in the queue.
  [[nodiscard]] std::optional<Piece> front() const {
    const std::scoped_lock lock(mutex_);
    if (first_ == last_) return std::nullopt;
    return ring_[first_ % ring_.size()];
  }

  /// Receiver: copies the first block to `to`, of as many bytes, by copy(from, to). False if the sender has withdrawn
  /// it meanwhile.
  template <class Copy>
  bool take(const Piece& to, Copy&& copy) {
    Piece from;
    {
      const std::scoped_lock lock(mutex_);
      if (first_ == last_) return false;
      from = ring_[first_ % ring_.size()];
      copying_ = true;
    }
    try {
      copy(from, to);
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      copying_ = false;
      throw;
    }
    const std::scoped_lock lock(mutex_);
    copying_ = false;
    taken_.store(++first_, std::memory_order_release);
    return true;
  }

  /// Sender: takes back what nobody has begun to copy; after this the receiver touches none of the sender's memory.
  void withdraw() {
    for (;;) {
      {
        const std::scoped_lock lock(mutex_);
        if (!copying_) {
          last_ = first_;
          posted_.store(last_, std::memory_order_release);
          return;
        }
      }
      std::this_thread::yield();
    }
  }

  /// Blocks that nobody has taken.
  [[nodiscard]] std::int64_t waiting() const {
    const std::scoped_lock lock(mutex_);
    return static_cast<std::int64_t>(last_ - first_);
  }

 private:
  void grow() {
    std::vector<Piece> larger(std::max<std::size_t>(16, ring_.size() * 2));
    for (std::uint64_t i = first_; i != last_; ++i) larger[i % larger.size()] = ring_[i % ring_.size()];
    ring_ = std::move(larger);
  }

  mutable std::mutex mutex_;
  std::vector<Piece> ring_;
  std::uint64_t first_ = 0;  // the next to be taken
  std::uint64_t last_ = 0;   // one past the newest
  bool copying_ = false;     // the receiver copies the first one
  std::atomic<std::uint64_t> posted_{0};
  std::atomic<std::uint64_t> taken_{0};
};

}  // namespace galvatron::comm::thread
