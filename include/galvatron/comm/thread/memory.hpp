// Where the data of rank threads lie, and what copies and adds them there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <galvatron/comm/elements.hpp>
#include <galvatron/comm/piece.hpp>
#include <galvatron/comm/reduce.hpp>

namespace galvatron::comm::thread {

/// The memory of the program, which is as it was left; a device works later than it is told to, and overrides all.
///
///   rank 0   offer, meet --> expect 1, work, offer, meet --> expect 1
///   rank 1   offer, meet --> expect 0, work, offer, meet --> expect 0
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  [[nodiscard]] virtual bool on_device() const { return false; }
  /// What this rank was told to do so far is what others may expect().
  virtual void offer() {}
  /// What this rank is told to do from now on comes behind what `rank` has offered last.
  virtual void expect(int rank) { static_cast<void>(rank); }
  /// For the way out of a failure: returns when what `rank` has offered is done.
  virtual void wait(int rank) noexcept { static_cast<void>(rank); }

  /// See copy_piece().
  virtual void copy(const Piece& from, const Piece& to) { copy_piece(from, to); }
  /// See comm::reduce().
  virtual void reduce(ElementType type, std::span<std::byte* const> sources, std::span<std::byte* const> destinations,
                      std::int64_t n, ReduceOp op) {
    comm::reduce(type, sources, destinations, n, op);
  }
};

}  // namespace galvatron::comm::thread
