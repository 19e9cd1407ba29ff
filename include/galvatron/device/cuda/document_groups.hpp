// Packed documents in groups of like lengths, and the table of each group that goes to the device.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::device::cuda {

/// Documents whose lengths round up to the same power of two.
struct DocumentGroup {
  std::int64_t tokens = 0;             ///< that power of two
  std::int64_t slots = 0;              ///< documents, up to a power of four; slots without one have length 0
  std::vector<std::int32_t> first{};   ///< rows
  std::vector<std::int32_t> length{};  ///< rows of each

  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(first.size()); }
};

/// All documents of a call, causal: as many queries as keys each. So that few plans serve all calls, a group is a shape
/// of its own, whatever documents are in it; and what a plan needs of memory grows with the longest of them.
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
    std::map<std::int64_t, DocumentGroup> by_length;
    for (std::size_t i = 0; i + 1 < documents.queries.size(); ++i) {
      const std::int32_t length = documents.queries[i + 1] - documents.queries[i];
      if (length == 0) continue;
      const std::int64_t tokens = rounded(std::max<std::int64_t>(length, least_tokens));
      DocumentGroup& group = by_length[tokens];
      group.tokens = tokens;
      group.first.push_back(documents.queries[i]);
      group.length.push_back(length);
      if (group.count() == most_slots) add(std::exchange(group, {}));
    }
    for (auto& [tokens, group] : by_length)
      if (group.count() > 0) add(std::move(group));
  }

  [[nodiscard]] const std::vector<DocumentGroup>& all() const { return groups_; }
  /// Of the tables of all groups, one behind the other.
  [[nodiscard]] std::int64_t bytes() const { return begins_.back(); }
  /// Writes them.
  void write(std::byte* to) const {
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const DocumentGroup& group = groups_[i];
      auto* const lengths = reinterpret_cast<std::int32_t*>(to + begins_[i]);
      std::fill_n(std::copy(group.length.begin(), group.length.end(), lengths), group.slots - group.count(), 0);
      for (std::size_t kind = 0; kind < kinds; ++kind) {
        auto* const offsets = reinterpret_cast<std::int64_t*>(to + begins_[i] + offset_begin(group, kind));
        for (std::int64_t slot = 0; slot <= group.slots; ++slot)
          offsets[slot] = first_row(group, slot) * strides_[kind];
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
  void add(DocumentGroup group) {
    for (group.slots = 1; group.slots < group.count();) group.slots *= 4;
    begins_.push_back(begins_.back() + offset_begin(group, kinds));
    groups_.push_back(std::move(group));
  }
  static std::int64_t offset_begin(const DocumentGroup& group, std::size_t kind) {
    return round_up(group.slots * static_cast<std::int64_t>(sizeof(std::int32_t)), boundary) +
           static_cast<std::int64_t>(kind) *
               round_up((group.slots + 1) * static_cast<std::int64_t>(sizeof(std::int64_t)), boundary);
  }
  /// Of a slot without a document, where the last document ends.
  static std::int64_t first_row(const DocumentGroup& group, std::int64_t slot) {
    if (slot < group.count()) return group.first[static_cast<std::size_t>(slot)];
    return std::int64_t{group.first.back()} + group.length.back();
  }

  std::array<std::int64_t, kinds> strides_;  ///< elements
  std::vector<DocumentGroup> groups_;
  std::vector<std::int64_t> begins_{0};  ///< bytes, and their end
};

}  // namespace galvatron::device::cuda
