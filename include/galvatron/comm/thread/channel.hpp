// Blocks on their way from one rank to another: a queue of where they lie, not of what they hold.
//
// The receiver copies straight from the sender's memory, so a block is read once and written once.
//
//   sender    post: entry -> [ queue ] ............ wait_sent: until all its entries are taken
//   receiver                 [ queue ] -> receive: entry, copy, taken
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <galvatron/comm/piece.hpp>

namespace galvatron::comm::thread {

/// The queue of one lane from one rank to another. It grows to the most blocks that a program has under way.
class Channel {
 public:
  /// Sender: appends a block.
  void push(const Piece& piece) {
    const std::scoped_lock lock(mutex_);
    if (waiting() == std::ssize(ring_)) grow();
    ring_[posted_ % ring_.size()] = piece;
    ++posted_;
  }

  /// Blocks that nobody has taken.
  [[nodiscard]] std::int64_t waiting() const { return static_cast<std::int64_t>(posted_ - taken_); }
  /// Receiver: is there a block?
  [[nodiscard]] bool ready() const { return waiting() > 0; }
  /// Sender: has the receiver taken everything?
  [[nodiscard]] bool drained() const { return waiting() == 0; }

  /// Receiver: takes the first block by copy(from, to), which may throw and leave it. False if it was withdrawn.
  template <class Copy>
  bool take(const Piece& to, Copy&& copy) {
    Piece from;
    {
      const std::scoped_lock lock(mutex_);
      if (drained()) return false;
      from = ring_[taken_ % ring_.size()];
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
    ++taken_;
    return true;
  }

  /// Sender: takes back what nobody has begun to copy; after this the receiver touches none of the sender's memory.
  void withdraw() {
    for (;;) {
      {
        const std::scoped_lock lock(mutex_);
        if (!copying_) {
          posted_ = taken_.load();
          return;
        }
      }
      std::this_thread::yield();
    }
  }

 private:
  void grow() {
    std::vector<Piece> larger(std::max<std::size_t>(16, ring_.size() * 2));
    for (std::uint64_t i = taken_; i != posted_; ++i) larger[i % larger.size()] = ring_[i % ring_.size()];
    ring_ = std::move(larger);
  }

  std::mutex mutex_;  // of all; the counts may be read without
  std::vector<Piece> ring_;
  std::atomic<std::uint64_t> posted_{0};  // by the sender, so far
  std::atomic<std::uint64_t> taken_{0};   // by the receiver: the next is the first in the queue
  bool copying_ = false;                  // the receiver copies the first one
};

}  // namespace galvatron::comm::thread
