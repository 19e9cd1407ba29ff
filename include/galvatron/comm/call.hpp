// A collective: as a member of a group calls it, and as members compare their calls before data travel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <galvatron/comm/elements.hpp>

namespace galvatron::comm {

enum class CallKind : std::uint8_t { barrier, all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, shift };

constexpr const char* name_of(CallKind kind) {
  constexpr std::array names{"barrier",    "all_reduce", "all_gather", "reduce_scatter",
                             "all_to_all", "broadcast",  "shift"};
  return names[static_cast<std::size_t>(kind)];
}

/// What Group's calls of the same names do; `from` and `to` are the same for all_reduce and broadcast.
struct Collective {
  CallKind kind = CallKind::barrier;
  Elements from{};
  Elements to{};
  ReduceOp op = ReduceOp::sum;
  int root = 0;  ///< of a broadcast
};

/// What a member calls, and where its memory lies.
struct Call {
  CallKind kind = CallKind::barrier;
  ElementType type = ElementType::other;
  std::int64_t count = 0;     ///< elements, as the caller gave them
  std::int32_t bytes = 1;     ///< of an element
  std::int32_t detail = 0;    ///< the reduction or the root
  std::byte* data = nullptr;  ///< what the others read or write

  Call() = default;
  explicit Call(const Collective& called)
      : kind(called.kind),
        type(called.from.type),
        count(called.from.count),
        bytes(called.from.size),
        detail(kind == CallKind::broadcast ? called.root : static_cast<int>(called.op)),
        data(called.from.data) {}

  [[nodiscard]] bool agrees_with(const Call& other) const {
    return kind == other.kind && count == other.count && bytes == other.bytes && detail == other.detail;
  }
  /// "all_reduce of 12 float"
  [[nodiscard]] std::string text() const {
    if (kind == CallKind::barrier) return name_of(kind);
    std::string text = std::string(name_of(kind)) + " of " + std::to_string(count) + " " + comm::name_of(type);
    if (kind == CallKind::broadcast) text += " from member " + std::to_string(detail);
    if (kind == CallKind::all_reduce && detail == static_cast<int>(ReduceOp::max)) text += " (max)";
    return text;
  }
};

/// "the members of a group disagree: rank 0 called barrier, rank 1 called all_reduce of 12 float"
/// @param ranks  of the members  @param text_of  text_of(i): what member i called
template <class Text>
std::string disagreement(std::span<const int> ranks, Text&& text_of) {
  std::string text = "the members of a group disagree:";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += (i > 0 ? ", rank " : " rank ") + std::to_string(ranks[i]) + " called " + text_of(static_cast<int>(i));
  return text;
}

}  // namespace galvatron::comm
