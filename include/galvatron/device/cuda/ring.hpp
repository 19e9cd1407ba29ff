// Places in a ring of bytes, each used again once whoever reads it is done.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

namespace galvatron::device::cuda {

/// @tparam Done  what tells that a piece of the ring is no longer read; pieces are done in the order of their keeping
template <class Done>
class Ring {
 public:
  explicit Ring(std::int64_t capacity) : capacity_(capacity) {}

  [[nodiscard]] std::int64_t capacity() const { return capacity_; }

  /// The place of the next `bytes` (at most the capacity). Before it returns, wait(Done) was called for all pieces kept
  /// that lie there, and those before them.
  std::int64_t place(std::int64_t bytes, auto&& wait) {
    if (next_ + bytes > capacity_) next_ = 0;
    const auto overlaps = [&](const Piece& p) { return p.first < next_ + bytes && next_ < p.last; };
    while (std::any_of(pieces_.begin(), pieces_.end(), overlaps)) release(wait);
    return next_;
  }
  /// The `bytes` at the place last given are read until `done`.
  void keep(std::int64_t bytes, Done done) {
    pieces_.push_back({next_, next_ + bytes, std::move(done)});
    next_ += bytes;
  }
  /// Waits for all pieces.
  void drain(auto&& wait) {
    while (!pieces_.empty()) release(wait);
  }

 private:
  struct Piece {
    std::int64_t first;
    std::int64_t last;
    Done done;
  };
  void release(auto& wait) {
    wait(std::move(pieces_.front().done));
    pieces_.pop_front();
  }

  std::int64_t capacity_;
  std::int64_t next_ = 0;
  std::deque<Piece> pieces_;  ///< the oldest first
};

}  // namespace galvatron::device::cuda
