// How many threads a kernel is launched with, and what it sees of the block of them that runs it.
//
// A kernel is a struct with its arguments and `void operator()(auto& block) const`, which every thread of every block
// runs. On a GPU a Block is CudaBlock (launch.cuh); tests run the same kernels on the CPU with a Block of their own.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>

/// GALVATRON_KERNEL marks code of kernels. The others stand before a loop; unrolled, its arrays stay in registers.
#if defined(__CUDACC__)
#define GALVATRON_KERNEL __device__ __forceinline__
#define GALVATRON_UNROLL _Pragma("unroll")
#define GALVATRON_NO_UNROLL _Pragma("unroll 1")
#else
#define GALVATRON_KERNEL inline
#define GALVATRON_UNROLL
#define GALVATRON_NO_UNROLL
#endif

namespace galvatron::device::cuda {

inline constexpr int warp_threads = 32;
inline constexpr int group_threads = 128;  ///< four warps, the first of which has a number that four divides

/// A grid of one dimension.
struct Geometry {
  std::int64_t blocks = 0;
  int threads = 0;                ///< of a block; a multiple of warp_threads
  std::int64_t shared_bytes = 0;  ///< of a block, beside what reductions have of their own
  friend constexpr bool operator==(const Geometry&, const Geometry&) = default;
};

/// Of the largest GPU, with 2,048 threads each.
inline constexpr std::int64_t multiprocessors = 132;

/// Blocks that keep it busy, for kernels that go over their data in steps of the grid.
inline constexpr std::int64_t most_blocks = multiprocessors * 8;

/// For `items` pieces of work, one a thread at a time.
constexpr Geometry over_items(std::int64_t items, int threads = 256) {
  return {.blocks = std::clamp<std::int64_t>(divide_up(items, threads), 1, most_blocks), .threads = threads};
}

/// For rows of `packs` pieces of work each, a block a row at a time: as many threads as have something to do.
constexpr Geometry over_rows(std::int64_t rows, std::int64_t packs, int most_threads = 256) {
  return {
      .blocks = std::clamp<std::int64_t>(rows, 1, std::int64_t{1} << 30),
      .threads = static_cast<int>(std::clamp<std::int64_t>(round_up(packs, warp_threads), warp_threads, most_threads))};
}

template <class B>
concept Block = requires(B& block, float x, double y, int i, float (&c)[4], const std::uint32_t (&a)[4],
                         const std::uint32_t (&b)[2], std::uint32_t (&four)[4], const bfloat16* row, void* raw,
                         std::uint32_t* ticket, std::int32_t* number, float (&group_c)[32][4]) {
  { block.index() } -> std::same_as<std::int64_t>;   ///< of the block in the grid
  { block.blocks() } -> std::same_as<std::int64_t>;  ///< of the grid
  { block.thread() } -> std::same_as<int>;           ///< of this block
  { block.threads() } -> std::same_as<int>;
  /// The shared memory that the geometry asks for; 16-byte aligned, not initialised.
  { block.shared() } -> std::same_as<std::byte*>;
  /// One value a warp for reductions, of up to 8 bytes.
  { block.template slots<float>() } -> std::same_as<float*>;
  /// All threads of the block, or of the warp, come here before one goes on, and see what the others wrote.
  block.sync();
  block.sync_warp();
  /// The value of the lane whose number differs by the bits of `i`, or is `i`. All lanes of the warp call it.
  { block.shuffle_xor(x, i) } -> std::same_as<float>;
  { block.shuffle_xor(y, i) } -> std::same_as<double>;
  { block.shuffle(x, i) } -> std::same_as<float>;
  /// c (16, 8) += a (16, 16) * b (16, 8), bfloat16 with float sums, by all lanes of the warp, whose registers hold
  /// the elements that PTX's mma.m16n8k16 gives them.
  block.multiply(c, a, b);
  /// Four matrices (8, 8) in shared memory, by all lanes of the warp: lane l names row l % 8 of matrix l / 8, on a
  /// 16-byte boundary. Lane 4 g + t gets two elements of each matrix: (g, 2 t) and (g, 2 t + 1); transposed, (2 t,
  /// g) and (2 t + 1, g).
  block.load_matrices(four, row);
  block.load_transposed(four, row);
  /// 16 bytes of shared memory become `i` bytes of the device's, 0 or 16, and zeros behind them; some time before
  /// await_copies<n>() returns, which leaves the last n groups of this thread under way. commit_copies() ends a
  /// group.
  block.copy_async(raw, static_cast<const void*>(row), i);
  block.commit_copies();
  block.template await_copies<1>();
  /// Products of warp groups, on Hopper. c (64, 256) += a (64, 16) * b (16, 256), bfloat16 with float sums, by all
  /// threads of a warp group: a and b are operands in swizzled rows (warp_group_units.hpp), along or across the sum, of
  /// which elements i to i + 15 of the sum are multiplied. Of c thread 32 w + 4 g + t has rows 16 w + g, in [j][0] and
  /// [j][1], and 16 w + g + 8, in [j][2] and [j][3]: columns 8 j + 2 t and 8 j + 2 t + 1. Between begin_products() and
  /// commit_products(); done some time before await_products<n>() returns, which leaves the last n groups under way.
  /// Until then the operands stay, and nobody else touches c.
  block.begin_products();
  block.template multiply_group<true, false>(group_c, row, row, i);
  block.commit_products();
  block.template await_products<1>();
  /// Products behind the next barrier see the copies of this thread that have been awaited.
  block.fence_copies();
  /// By one thread of a block, once or more often in a launch: true for the last of `i` that come, which then sees
  /// what the blocks of the others wrote before; the ticket is 0 before and afterwards.
  { block.is_last(ticket, i) } -> std::same_as<bool>;
  /// In one go, whatever other threads of the grid do: *number becomes `i` where it is 0, or where `i` is above it;
  /// what it was before.
  { block.claim(number, i) } -> std::same_as<std::int32_t>;
  { block.raise(number, i) } -> std::same_as<std::int32_t>;
  /// Of a clock of the device.
  { block.nanoseconds() } -> std::same_as<std::uint64_t>;
};

struct Sum {
  GALVATRON_KERNEL auto operator()(auto a, auto b) const { return a + b; }
};
struct Maximum {
  GALVATRON_KERNEL auto operator()(auto a, auto b) const { return a > b ? a : b; }
};

/// The first of [low, high) from which on `holds` does; high when it never does.
GALVATRON_KERNEL std::int64_t first_where(std::int64_t low, std::int64_t high, const auto& holds) {
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (holds(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

/// The values of all lanes of the warp, taken together in a fixed order; the same in every lane.
GALVATRON_KERNEL auto over_warp(auto& block, auto value, auto join) {
  for (int mask = warp_threads / 2; mask > 0; mask /= 2) value = join(value, block.shuffle_xor(value, mask));
  return value;
}
GALVATRON_KERNEL auto warp_sum(auto& block, auto value) { return over_warp(block, value, Sum{}); }

/// The sum of this lane's value and those of the lanes before it.
template <class V>
GALVATRON_KERNEL V sum_of_lanes_up_to(auto& block, V value) {
  const int lane = block.thread() % warp_threads;
  for (int distance = 1; distance < warp_threads; distance *= 2) {
    const V before = block.shuffle(value, lane >= distance ? lane - distance : lane);
    if (lane >= distance) value += before;
  }
  return value;
}

/// The sum of the values of the threads before this one, and of all; all threads of the block call it.
template <class V>
struct SumsOfThreads {
  V before, all;
};
template <class V>
GALVATRON_KERNEL SumsOfThreads<V> sums_of_threads(auto& block, V value) {
  const int warp = block.thread() / warp_threads;
  const V up_to = sum_of_lanes_up_to(block, value);
  V* slots = block.template slots<V>();
  if (block.thread() % warp_threads == warp_threads - 1) slots[warp] = up_to;
  block.sync();
  SumsOfThreads<V> out{up_to - value, V{}};
  for (int w = 0; w < block.threads() / warp_threads; ++w) {
    if (w < warp) out.before += slots[w];
    out.all += slots[w];
  }
  block.sync();
  return out;
}

/// over_warp() for all threads of the block, which all call it.
template <class V>
GALVATRON_KERNEL V over_block(auto& block, V value, auto join) {
  value = over_warp(block, value, join);
  const int warps = block.threads() / warp_threads;
  if (warps == 1) return value;
  V* slots = block.template slots<V>();
  if (block.thread() % warp_threads == 0) slots[block.thread() / warp_threads] = value;
  block.sync();
  value = slots[0];
  for (int warp = 1; warp < warps; ++warp) value = join(value, slots[warp]);
  block.sync();
  return value;
}
GALVATRON_KERNEL auto block_sum(auto& block, auto value) { return over_block(block, value, Sum{}); }
GALVATRON_KERNEL auto block_maximum(auto& block, auto value) { return over_block(block, value, Maximum{}); }

/// Tickets are memory of the device for the kernels of one stream, 0 before and behind every kernel.
inline constexpr std::int64_t most_tickets = 512;

/// True in all threads of the last of `blocks` blocks that come here, which sees what all threads of the others wrote
/// before. All threads of a block call it.
GALVATRON_KERNEL bool is_last_block(auto& block, std::uint32_t* ticket, std::int64_t blocks) {
  bool* last = block.template slots<bool>();
  block.sync();
  if (block.thread() == 0) *last = block.is_last(ticket, static_cast<int>(blocks));
  block.sync();
  const bool out = *last;
  block.sync();
  return out;
}

}  // namespace galvatron::device::cuda
