// Blocks of memory that travel between two ranks: how they lie, how they are copied, and those of a rank to itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <span>

#include <galvatron/comm/words.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm {

/// A strided block of memory to or from one peer: `rows` runs of `row_bytes`, `stride_bytes` apart.
/// `peer` is a rank of the world. A block to oneself is a copy. Blocks travel in lanes: a receiver takes them from the
/// lane that it names, whatever lies in the others.
struct Piece {
  int peer = 0;
  std::byte* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t stride_bytes = 0;
  int lane = 0;

  /// A block without gaps.
  static constexpr Piece flat(int peer, std::byte* data, std::int64_t bytes, int lane = 0) {
    return {peer, data, 1, bytes, bytes, lane};
  }
  [[nodiscard]] constexpr std::int64_t bytes() const { return rows * row_bytes; }
  [[nodiscard]] constexpr bool is_flat() const { return rows <= 1 || stride_bytes == row_bytes; }
};

/// Stands for all lanes.
inline constexpr int every_lane = -1;

/// Copies the bytes of `from` in order into those of `to`; the same number of bytes, in rows of any lengths.
inline void copy_piece(const Piece& from, const Piece& to) {
  const std::int64_t total = from.bytes();
  if (total == 0) return;
  const std::int64_t from_run = from.is_flat() ? total : from.row_bytes;
  const std::int64_t to_run = to.is_flat() ? total : to.row_bytes;
  std::int64_t from_at = 0, to_at = 0;  // bytes done of the current runs
  const std::byte* source = from.data;
  std::byte* target = to.data;
  for (std::int64_t done = 0; done < total;) {
    const std::int64_t n = std::min(from_run - from_at, to_run - to_at);
    if (source + from_at != target + to_at) std::memcpy(target + to_at, source + from_at, static_cast<std::size_t>(n));
    done += n;
    if (done == total) return;
    if ((from_at += n) == from_run) source += from.stride_bytes, from_at = 0;
    if ((to_at += n) == to_run) target += to.stride_bytes, to_at = 0;
  }
}

/// Blocks have sizes, and peers in the world.
inline void check_pieces(std::span<const Piece> pieces, int world) {
  for (const Piece& piece : pieces)
    if (piece.peer < 0 || piece.peer >= world || piece.lane < 0 || piece.rows < 0 || piece.row_bytes < 0)
      throw Failure(ErrorKind::internal, text_of("a block of ", piece.rows, " rows of ", piece.row_bytes,
                                                 " bytes for rank ", piece.peer, " in a world of ", world, " ranks"));
}

/// The bytes that the peer has sent are those that `rank` receives.
inline void check_sent(int rank, int peer, std::int64_t bytes, std::int64_t sent) {
  if (sent != bytes)
    throw Failure(ErrorKind::internal, text_of("rank ", rank, " receives a block of ", bytes, " bytes, but rank ", peer,
                                               " sent one of ", sent, " bytes"));
}
inline void check_sent(int rank, const Piece& piece, std::int64_t sent) {
  check_sent(rank, piece.peer, piece.bytes(), sent);
}

/// Nobody else posts or receives the blocks of `rank` to itself.
[[noreturn]] inline void throw_not_posted(int rank) {
  throw Failure(ErrorKind::internal,
                text_of("rank ", rank, " receives a block from itself that it has not posted before"));
}

[[noreturn]] inline void throw_not_received(int rank) {
  throw Failure(ErrorKind::internal, text_of("rank ", rank, " waits for a block to itself that it has not received"));
}

/// The blocks that a rank has posted to itself and not received.
class OwnBlocks {
 public:
  explicit OwnBlocks(int rank) : rank_(rank) {}

  void post(const Piece& piece) { lanes_[piece.lane].push_back(piece); }
  /// Takes the next block of the piece's lane by copy(from, to).
  template <class Copy>
  void receive(const Piece& to, Copy&& copy) {
    auto& blocks = lanes_[to.lane];
    if (blocks.empty()) throw_not_posted(rank_);
    check_sent(rank_, to, blocks.front().bytes());
    copy(blocks.front(), to);
    blocks.pop_front();
  }
  /// None of the lane is left.
  void check_received(int lane) const {
    for (const auto& [number, blocks] : lanes_)
      if ((lane == every_lane || lane == number) && !blocks.empty()) throw_not_received(rank_);
  }

 private:
  int rank_;
  std::map<int, std::deque<Piece>> lanes_;
};

}  // namespace galvatron::comm
