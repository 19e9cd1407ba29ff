// Collectives as values: what they are, the elements that they carry, of a type that is a value; and the arithmetic of
// one element of a reduction, for rank threads and for kernels.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/sharding.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace galvatron::comm {

/// What a type is summed in.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;

struct Add {
  GALVATRON_HD static constexpr float of(float a, float b) { return a + b; }
  GALVATRON_HD static constexpr double of(double a, double b) { return a + b; }
  /// Wraps around.
  GALVATRON_HD static constexpr std::int32_t of(std::int32_t a, std::int32_t b) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
};

struct Max {
  /// A NaN wins.
  template <class A>
  GALVATRON_HD static constexpr A of(A a, A b) {
    return (a < b || b != b) ? b : a;
  }
};

enum class ReduceOp : std::uint8_t { sum, max };

/// A type of elements. The first four can be reduced; what the others are matters to messages only.
enum class ElementType : std::uint8_t { float32, float64, bfloat16, int32, integer, other };

/// As in "all_reduce of 12 float".
constexpr const char* name_of(ElementType type) {
  constexpr std::array names{"float", "double", "bfloat16", "integer", "integer", "element"};
  return names[static_cast<std::size_t>(type)];
}

template <class T>
constexpr ElementType element_type() {
  if constexpr (std::is_same_v<T, float>)
    return ElementType::float32;
  else if constexpr (std::is_same_v<T, double>)
    return ElementType::float64;
  else if constexpr (std::is_same_v<T, bfloat16>)
    return ElementType::bfloat16;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return ElementType::int32;
  else
    return std::is_integral_v<T> ? ElementType::integer : ElementType::other;
}

/// The element types of a reduction.
template <class T>
concept Reducible = element_type<T>() <= ElementType::int32;

/// A View whose type is a value. `data` may be null where nothing is computed.
struct Elements {
  std::byte* data = nullptr;
  std::int64_t count = 0;
  ElementType type = ElementType::other;
  std::int32_t size = 1;  ///< bytes of an element

  [[nodiscard]] constexpr std::int64_t bytes() const { return count * size; }
  /// Elements [first, first + n).
  [[nodiscard]] constexpr Elements slice(std::int64_t first, std::int64_t n) const {
    return {data == nullptr ? nullptr : data + first * size, n, type, size};
  }
};

/// The elements of a view. Whoever is given those of a View<const T> does not write to them.
template <class T>
Elements elements_of(View<T> view) {
  using Type = std::remove_const_t<T>;
  static_assert(std::is_trivially_copyable_v<Type>);
  return {reinterpret_cast<std::byte*>(const_cast<Type*>(view.data)), view.count, element_type<Type>(),
          static_cast<std::int32_t>(sizeof(Type))};
}

/// Calls f with the type of a reduction as its template argument.
template <class F>
void with_reducible(ElementType type, F&& f) {
  switch (type) {
    case ElementType::float32:
      return f.template operator()<float>();
    case ElementType::float64:
      return f.template operator()<double>();
    case ElementType::bfloat16:
      return f.template operator()<bfloat16>();
    case ElementType::int32:
      return f.template operator()<std::int32_t>();
    case ElementType::integer:
    case ElementType::other:
      return;  // Reducible rules them out
  }
}

enum class CallKind : std::uint8_t { barrier, all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, shift };

constexpr const char* name_of(CallKind kind) {
  constexpr std::array names{"barrier",    "all_reduce", "all_gather", "reduce_scatter",
                             "all_to_all", "broadcast",  "shift"};
  return names[static_cast<std::size_t>(kind)];
}

/// A number for where shards end, by which members tell whether theirs end alike; 0 where they are equal.
inline std::uint64_t cut_of(std::span<const std::int64_t> ends, std::span<const std::int64_t> columns = {}) {
  if (ends.empty()) return 0;
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const auto list : {ends, columns})
    for (const std::int64_t end : list) hash = (hash ^ static_cast<std::uint64_t>(end)) * 1099511628211U;
  return hash | 1U;
}

/// What Group's calls of the same names do; `from` and `to` are the same for all_reduce and broadcast.
struct Collective {
  CallKind kind = CallKind::barrier;
  Elements from{};
  Elements to{};
  ReduceOp op = ReduceOp::sum;
  int root = 0;                               ///< of a broadcast
  std::span<const std::int64_t> ends{};       ///< of the members' shards, or rows; empty: they are equal
  std::span<const std::int64_t> columns{};    ///< of an all_to_all in unequal blocks: where the members' columns end
  std::uint64_t cut = cut_of(ends, columns);  ///< tells whether members have the same; those of others mean nothing

  /// The elements that all shards of an all_gather or a reduce_scatter are of.
  [[nodiscard]] std::int64_t whole() const { return kind == CallKind::all_gather ? to.count : from.count; }
  /// A member's shard of them, or its rows.
  [[nodiscard]] Sharding::Range shard(int member) const {
    if (ends.empty()) {
      const std::int64_t n = kind == CallKind::all_gather ? from.count : to.count;
      return {n * member, n * (member + 1)};
    }
    return part(ends, member);
  }
  [[nodiscard]] std::int64_t largest_shard() const { return ends.empty() ? shard(0).count() : largest(ends); }
  /// A member's columns of an all_to_all in unequal blocks.
  [[nodiscard]] Sharding::Range own_columns(int member) const { return part(columns, member); }
  /// A block of an all_to_all: where it begins in what its giver has, and in what its taker gets.
  struct Block {
    std::int64_t given = 0;
    std::int64_t taken = 0;
    std::int64_t count = 0;
  };
  /// @param size  of the group
  [[nodiscard]] Block block(int giver, int taker, int size) const {
    const std::int64_t n = from.count / size;
    if (ends.empty()) return {n * taker, n * giver, n};
    const Sharding::Range rows = part(ends, giver);
    const Sharding::Range own = own_columns(taker);
    return {rows.count() * own.begin, rows.begin * own.count(), rows.count() * own.count()};
  }
  /// The most bytes that a member gives.
  [[nodiscard]] std::int64_t most_given() const {
    if (kind == CallKind::all_to_all && !ends.empty()) return largest(ends) * columns.back() * from.size;
    return kind == CallKind::all_gather ? largest_shard() * from.size : from.bytes();
  }
  /// The most bytes that a member gives or takes in an all_to_all.
  [[nodiscard]] std::int64_t most_exchanged() const {
    return ends.empty() ? from.bytes() : std::max(most_given(), ends.back() * largest(columns) * from.size);
  }
  /// True if two members may call these together.
  [[nodiscard]] bool agrees_with(const Collective& other) const {
    const bool unequal = kind == CallKind::all_to_all && cut != 0;  // members have other counts of one matrix
    return kind == other.kind && (unequal || whole() == other.whole()) && from.size == other.from.size &&
           op == other.op && root == other.root && cut == other.cut;
  }
  /// "all_reduce of 12 float"
  [[nodiscard]] std::string text() const {
    if (kind == CallKind::barrier) return name_of(kind);
    std::string text = std::string(name_of(kind)) + " of " + std::to_string(from.count) + " " + name_of(from.type);
    if (kind == CallKind::broadcast) text += " from member " + std::to_string(root);
    if (op == ReduceOp::max) text += " (max)";
    if (cut != 0) text += kind == CallKind::all_to_all ? " in unequal blocks" : " in unequal shards";
    return text;
  }

 private:
  [[nodiscard]] static Sharding::Range part(std::span<const std::int64_t> ends, int member) {
    const auto i = static_cast<std::size_t>(member);
    return {i == 0 ? 0 : ends[i - 1], ends[i]};
  }
  [[nodiscard]] static std::int64_t largest(std::span<const std::int64_t> ends) {
    std::int64_t most = 0;
    for (int i = 0; i < std::ssize(ends); ++i) most = std::max(most, part(ends, i).count());
    return most;
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
