// The arithmetic of reductions: many sources, added in rank order, written to many places while they are in the cache.
//
//   source 0   [....block....]--\        a block of the accumulator stays in the first-level cache;
//   source 1   [....block....]---+--> accumulator [....block....] --> destination 0, 1, ...
//   source 2   [....block....]--/        up to four sources are added in one pass
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include <galvatron/comm/elements.hpp>
#include <galvatron/core/compiled.hpp>

namespace galvatron::comm {

namespace detail {

inline constexpr std::int64_t reduce_block = 1024;  // elements; a multiple of every vector length

/// sums[i] = (first ? the first source : sums[i]) op sources..., left to right. `fixed` > 0 is n, known when compiled.
template <std::int64_t fixed, class Op, bool first, class A, class T, class... Rest>
void reduce_pass(A* __restrict sums, std::int64_t n, const T* head, const Rest*... rest) {
  const std::int64_t count = fixed > 0 ? fixed : n;
  for (std::int64_t i = 0; i < count; ++i) {
    A value = static_cast<A>(head[i]);
    if constexpr (!first) value = Op::of(sums[i], value);
    ((value = Op::of(value, static_cast<A>(rest[i]))), ...);
    sums[i] = value;
  }
}

template <std::int64_t fixed, class Op, class T>
void reduce_one_block(std::span<std::byte* const> sources, std::span<std::byte* const> destinations, std::int64_t first,
                      std::int64_t n) {
  using A = Sum<T>;
  alignas(64) A sums[reduce_block];
  for (std::size_t k = 0; k < sources.size(); k += 4) {
    const auto pass = [&]<std::size_t... i>(std::index_sequence<i...>) {
      if (k == 0)
        reduce_pass<fixed, Op, true>(sums, n, (reinterpret_cast<const T*>(sources[i]) + first)...);
      else
        reduce_pass<fixed, Op, false>(sums, n, (reinterpret_cast<const T*>(sources[k + i]) + first)...);
    };
    const std::size_t left = sources.size() - k;
    if (left == 1) pass(std::make_index_sequence<1>());
    if (left == 2) pass(std::make_index_sequence<2>());
    if (left == 3) pass(std::make_index_sequence<3>());
    if (left >= 4) pass(std::make_index_sequence<4>());
  }
  const auto bytes = static_cast<std::size_t>(n) * sizeof(T);
  if constexpr (std::is_same_v<A, T>) {
    for (std::byte* destination : destinations) std::memcpy(reinterpret_cast<T*>(destination) + first, sums, bytes);
  } else {
    alignas(64) T rounded[reduce_block];
    const std::int64_t count = fixed > 0 ? fixed : n;
    for (std::int64_t i = 0; i < count; ++i) rounded[i] = static_cast<T>(sums[i]);
    for (std::byte* destination : destinations) std::memcpy(reinterpret_cast<T*>(destination) + first, rounded, bytes);
  }
}

template <class Op, class T>
void reduce_with(std::span<std::byte* const> sources, std::span<std::byte* const> destinations, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + reduce_block <= n; i += reduce_block)
    reduce_one_block<reduce_block, Op, T>(sources, destinations, i, reduce_block);
  if (i < n) reduce_one_block<0, Op, T>(sources, destinations, i, n - i);
}

}  // namespace detail

/// destination[i] = sources[0][i] op sources[1][i] op ... for i in [0, n) and every destination; bfloat16 is summed in
/// float and rounded once. A destination may be one of the sources; otherwise nothing overlaps.
template <class = void>
void reduce(ElementType type, std::span<std::byte* const> sources, std::span<std::byte* const> destinations,
            std::int64_t n, ReduceOp op) {
  with_reducible(type, [&]<class T>() {
    if (op == ReduceOp::sum)
      detail::reduce_with<Add, T>(sources, destinations, n);
    else
      detail::reduce_with<Max, T>(sources, destinations, n);
  });
}
GALVATRON_IN_TRAINER(void reduce<>(ElementType, std::span<std::byte* const>, std::span<std::byte* const>, std::int64_t,
                                   ReduceOp))

}  // namespace galvatron::comm
