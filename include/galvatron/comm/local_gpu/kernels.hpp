// What ranks on one GPU do with each other's memory: reductions of many buffers into many, and blocks of rows.
//
// A member of an all-reduce in place is the only one that reads or writes its slice of anybody's buffer, as with rank
// threads (thread/group.hpp), so no memory is needed beside the buffers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <galvatron/comm/elements.hpp>
#include <galvatron/comm/piece.hpp>
#include <galvatron/device/cuda/block.hpp>
#include <galvatron/device/cuda/elements.hpp>
#include <galvatron/device/cuda/pack.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace galvatron::comm::local_gpu {

/// Ranks whose buffers one kernel takes.
inline constexpr int most_ranks = 16;

namespace detail {

using device::cuda::Pack;

using device::kernels::get;
using device::kernels::put;
// Of types that are summed as they are.
template <class T>
GALVATRON_KERNEL T get(const T& x) {
  return x;
}
template <class T>
GALVATRON_KERNEL void put(T& x, T value) {
  x = value;
}

/// Elements of every source taken together in order and written to every destination, `n` adjacent ones at a time.
template <class T, int n>
struct Reduce {
  using Run = Pack<T, n>;
  const T* sources[most_ranks]{};
  T* destinations[most_ranks]{};
  int source_count;
  int destination_count;
  ReduceOp op;

  GALVATRON_KERNEL void operator()(std::int64_t i) const {
    Sum<T> sums[n];
    Run run = Run::at(sources[0] + i * n);
    for (int j = 0; j < n; ++j) sums[j] = get(run[j]);
    for (int k = 1; k < source_count; ++k) {
      run = Run::at(sources[k] + i * n);
      for (int j = 0; j < n; ++j) {
        const Sum<T> next = get(run[j]);
        sums[j] = op == ReduceOp::sum ? Add::of(sums[j], next) : Max::of(sums[j], next);
      }
    }
    for (int j = 0; j < n; ++j) {
      T element;
      put(element, sums[j]);
      run.set(j, element);
    }
    for (int k = 0; k < destination_count; ++k) run.store(destinations[k] + i * n);
  }
};

/// Copies units of `bytes` bytes of a block whose rows are cut differently on both sides.
template <int bytes>
struct CopyUnits {
  const std::byte* from;
  std::byte* to;
  std::int64_t from_row;  ///< units of a row
  std::int64_t to_row;
  std::int64_t from_stride;  ///< bytes
  std::int64_t to_stride;

  GALVATRON_KERNEL void operator()(std::int64_t i) const {
    const std::byte* source = from + i / from_row * from_stride + i % from_row * bytes;
    std::byte* target = to + i / to_row * to_stride + i % to_row * bytes;
    Pack<std::byte, bytes>::at(source).store(target);
  }
};

}  // namespace detail

/// See comm::reduce().
template <class L>
void reduce(L& launcher, ElementType type, std::span<std::byte* const> sources,
            std::span<std::byte* const> destinations, std::int64_t count, ReduceOp op) {
  with_reducible(type, [&]<class T>() {
    const auto by = [&]<int n>() {
      detail::Reduce<T, n> kernel{.source_count = static_cast<int>(sources.size()),
                                  .destination_count = static_cast<int>(destinations.size()),
                                  .op = op};
      for (std::size_t k = 0; k < sources.size(); ++k) kernel.sources[k] = reinterpret_cast<const T*>(sources[k]);
      for (std::size_t k = 0; k < destinations.size(); ++k)
        kernel.destinations[k] = reinterpret_cast<T*>(destinations[k]);
      device::cuda::for_each(launcher, count / n, kernel);
    };
    const auto is_packed = [&](std::byte* address) { return device::cuda::is_packed<T>(count, address); };
    if (std::ranges::all_of(sources, is_packed) && std::ranges::all_of(destinations, is_packed))
      by.template operator()<detail::Pack<T>::size>();
    else
      by.template operator()<1>();
  });
}

/// See comm::copy_piece(); the two are the same memory, or do not overlap.
template <class L>
void copy_block(L& launcher, const Piece& from, const Piece& to) {
  const std::int64_t total = from.bytes();
  const std::int64_t from_row = from.is_flat() ? total : from.row_bytes;
  const std::int64_t to_row = to.is_flat() ? total : to.row_bytes;
  if (total == 0 || from.data == to.data) return;
  if (from_row == total && to_row == total) return launcher.copy(from.data, to.data, total);
  const auto by = [&]<int unit>() {
    device::cuda::for_each(launcher, total / unit,
                           detail::CopyUnits<unit>{from.data, to.data, from_row / unit, to_row / unit,
                                                   from.stride_bytes, to.stride_bytes});
  };
  const auto bits = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(from.data) |
                                              reinterpret_cast<std::uintptr_t>(to.data)) |
                    from_row | to_row | (from_row == total ? 0 : from.stride_bytes) |
                    (to_row == total ? 0 : to.stride_bytes);
  if (bits % 16 == 0)
    by.template operator()<16>();
  else if (bits % 4 == 0)
    by.template operator()<4>();
  else if (bits % 2 == 0)
    by.template operator()<2>();
  else
    by.template operator()<1>();
}

}  // namespace galvatron::comm::local_gpu
