// Where the documents of a file begin and how long they are, in a few bytes each.
//
//   file     |document 0   |gap|document 1         |gap|document 2     |gap|
//   table    gap, length       gap, length             gap, length             in bytes of 7 bits (LEB128)
//            ^ every 64th begins a block, of which place and offset are kept
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/core/error.hpp>

namespace galvatron::train {

/// Grows at its end. A document takes 3 to 5 bytes for lengths below 2^21, whatever the size of the file.
class DocumentTable {
 public:
  struct Entry {
    std::int64_t begin = 0;   ///< in units of the file: bytes, or tokens
    std::int64_t length = 0;  ///< tokens, none of which takes less than a unit
  };

  /// Documents follow each other: entry.begin is at least the end, begin + length, of the one before.
  void add(const Entry& entry) {
    if (entry.begin < end_ || entry.length < 0)
      throw Failure(ErrorKind::internal, "documents: one of " + std::to_string(entry.length) + " at " +
                                             std::to_string(entry.begin) + " behind one that ends at " +
                                             std::to_string(end_));
    if (count_ % block == 0) blocks_.push_back({end_, bytes_.size()});
    write(entry.begin - end_);
    write(entry.length);
    end_ = entry.begin + entry.length;
    ++count_;
  }
  /// No document follows: gives back memory that the table grew into.
  void finish() {
    bytes_.shrink_to_fit();
    blocks_.shrink_to_fit();
  }

  [[nodiscard]] std::int64_t count() const { return count_; }
  /// Document i in [0, count()): the work of at most 64 entries.
  [[nodiscard]] Entry operator[](std::int64_t i) const {
    Entry entry;
    for_each(i / block * block, i + 1, [&](const Entry& each) { entry = each; });
    return entry;
  }
  /// Calls f(entry) for documents [first, last), of which the first is a multiple of 64.
  template <class F>
  void for_each(std::int64_t first, std::int64_t last, const F& f) const {
    if (first >= last) return;
    auto [end, at] = blocks_[static_cast<std::size_t>(first / block)];
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t begin = end + read(at);
      const std::int64_t length = read(at);
      f(Entry{begin, length});
      end = begin + length;
    }
  }

 private:
  static constexpr std::int64_t block = 64;
  struct Block {
    std::int64_t end = 0;  // of the document before
    std::size_t at = 0;    // in bytes_
  };

  void write(std::int64_t number) {
    auto rest = static_cast<std::uint64_t>(number);
    for (; rest >= 0x80U; rest >>= 7U) bytes_.push_back(static_cast<std::uint8_t>(rest | 0x80U));
    bytes_.push_back(static_cast<std::uint8_t>(rest));
  }
  std::int64_t read(std::size_t& at) const {
    std::uint64_t number = 0;
    for (unsigned shift = 0;; shift += 7) {
      const std::uint8_t byte = bytes_[at++];
      number |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80U) return static_cast<std::int64_t>(number);
    }
  }

  std::vector<std::uint8_t> bytes_;
  std::vector<Block> blocks_;
  std::int64_t count_ = 0;
  std::int64_t end_ = 0;
};

}  // namespace galvatron::train
