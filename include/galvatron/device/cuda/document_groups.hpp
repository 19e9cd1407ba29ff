// Packed documents in groups of like lengths, and the table of each group that goes to the device.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::device::cuda {

/// Neighbouring documents whose lengths round up to the same power of two.
struct DocumentGroup {
  std::int64_t tokens = 0;           ///< that power of two
  std::int64_t slots = 0;            ///< documents, up to a power of four; slots without one have length 0
  std::vector<std::int32_t> ends{};  ///< the first document's first row, and the row behind each

  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(ends.size()) - 1; }
};

/// All documents of a call, causal: as many queries as keys each. So that few plans serve all calls, a group is a shape
/// of its own, whatever documents are in it; and what a plan needs of memory grows with the longest of them. Its
/// documents follow each other without a gap, since the library may write zeros behind a document up to the next.
///
/// A group's table has the length of each slot, and for every kind of rows the elements before each slot's first row,
/// and before the end of the last.
class DocumentGroups {
 public:
  /// Kinds of rows, by their stride.
  enum Rows : std::int8_t { of_q, of_kv, of_out, of_statistics, of_dq, of_dkv };
  static constexpr std::array all_kinds{of_q, of_kv, of_out, of_statistics, of_dq, of_dkv};
  /// Those that forward has, or backward.
  static constexpr std::span<const Rows> kinds_of(bool backward) {
    return std::span(all_kinds).first(backward ? all_kinds.size() : std::size_t{of_dq});
  }
  static constexpr std::size_t kinds = all_kinds.size();
  static constexpr std::int64_t least_tokens = 128;  ///< a tile of the library's engines
  static constexpr std::int64_t most_slots = 1024;

  DocumentGroups(const AttentionShape& s, const DocumentRows& documents)
      : strides_{s.q_stride, s.kv_stride, s.out_stride, s.heads, s.dq_row(), s.dkv_row()} {
    for (std::size_t i = 0; i + 1 < documents.queries.size(); ++i) {
      const std::int32_t end = documents.queries[i + 1];
      const std::int32_t length = end - documents.queries[i];
      if (length == 0) continue;
      const std::int64_t tokens = rounded(std::max<std::int64_t>(length, least_tokens));
      if (groups_.empty() || groups_.back().tokens != tokens || groups_.back().count() == most_slots)
        groups_.push_back({.tokens = tokens, .ends = {documents.queries[i]}});
      groups_.back().ends.push_back(end);
    }
    for (DocumentGroup& group : groups_) {
      for (group.slots = 1; group.slots < group.count();) group.slots *= 4;
      begins_.push_back(begins_.back() + offset_begin(group, kinds));
    }
  }

  [[nodiscard]] const std::vector<DocumentGroup>& all() const { return groups_; }
  /// Of the tables of all groups, one behind the other.
  [[nodiscard]] std::int64_t bytes() const { return begins_.back(); }
  /// Writes them.
  void write(std::byte* to) const {
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const DocumentGroup& group = groups_[i];
      auto* const lengths = reinterpret_cast<std::int32_t*>(to + begins_[i]);
      for (std::int64_t slot = 0; slot < group.slots; ++slot) lengths[slot] = row(group, slot + 1) - row(group, slot);
      for (std::size_t kind = 0; kind < kinds; ++kind) {
        auto* const offsets = reinterpret_cast<std::int64_t*>(to + begins_[i] + offset_begin(group, kind));
        for (std::int64_t slot = 0; slot <= group.slots; ++slot) offsets[slot] = row(group, slot) * strides_[kind];
      }
    }
  }

  /// A group's table in memory that write() filled.
  struct Table {
    const std::int32_t* lengths = nullptr;             ///< (slots)
    std::array<const std::int64_t*, kinds> offsets{};  ///< (slots + 1) each
  };
  [[nodiscard]] Table table(std::size_t group, const std::byte* memory) const {
    const std::byte* const own = memory + begins_[group];
    Table out{reinterpret_cast<const std::int32_t*>(own), {}};
    for (std::size_t kind = 0; kind < kinds; ++kind)
      out.offsets[kind] = reinterpret_cast<const std::int64_t*>(own + offset_begin(groups_[group], kind));
    return out;
  }

 private:
  static constexpr std::int64_t boundary = 16;  ///< of lengths and of offsets

  static std::int64_t rounded(std::int64_t n) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
  }
  static std::int64_t offset_begin(const DocumentGroup& group, std::size_t kind) {
    return round_up(group.slots * static_cast<std::int64_t>(sizeof(std::int32_t)), boundary) +
           static_cast<std::int64_t>(kind) *
               round_up((group.slots + 1) * static_cast<std::int64_t>(sizeof(std::int64_t)), boundary);
  }
  /// The first of a slot; behind the last document, its end.
  static std::int32_t row(const DocumentGroup& group, std::int64_t slot) {
    return group.ends[static_cast<std::size_t>(std::min(slot, group.count()))];
  }

  std::array<std::int64_t, kinds> strides_;  ///< elements
  std::vector<DocumentGroup> groups_;
  std::vector<std::int64_t> begins_{0};  ///< bytes, and their end
};

}  // namespace galvatron::device::cuda
