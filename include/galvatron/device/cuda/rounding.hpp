// Tensors scaled and rounded to 8 bits, as they are or transposed.
//
// The greatest magnitude goes through memory: every block leaves that of its elements, and every block of the rounding
// takes the greatest of them. Magnitudes are compared as whole numbers: no order matters, and NaN is above all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/elements.hpp>
#include <galvatron/device/kernels/float8.hpp>

namespace galvatron::device::cuda {

/// The bits of the greatest magnitude.
struct Greatest {
  std::uint32_t bits = 0;
  GALVATRON_KERNEL void take(const bfloat16& x, int) { bits = Maximum{}(bits, kernels::magnitude_bits(x)); }
  GALVATRON_KERNEL std::uint32_t join(auto& block) const { return block_maximum(block, bits); }
};
using GreatestMagnitudes = ReduceElements<bfloat16, Greatest, std::uint32_t>;

/// What blocks have found, and where the scale goes for whoever uses the codes.
struct FoundMagnitudes {
  std::int64_t count;
  const std::uint32_t* maxima;
  float* unscale;

  /// The scale that all maxima give; all threads of the block call it.
  template <class F>
  GALVATRON_KERNEL float scale(auto& block) const {
    std::uint32_t own = 0;
    for (std::int64_t i = block.thread(); i < count; i += block.threads()) own = Maximum{}(own, maxima[i]);
    const kernels::Scaling scaling = kernels::scaling_of<F>(block_maximum(block, own));
    if (block.index() == 0 && block.thread() == 0) *unscale = scaling.unscale;
    return scaling.scale;
  }
};

template <class F>
struct Round {
  static constexpr int width = 16;
  const bfloat16* x;
  std::uint8_t* codes;
  float scale;

  template <int size>
  GALVATRON_KERNEL void at(std::int64_t i) const {
    if constexpr (size == 1) {
      codes[i] = kernels::code_of<F>(x[i], scale);
    } else {
      float values[size];
      get_elements(x + i, values);
      Pack<std::uint8_t, size> out;
      for (int j = 0; j < size; j += 4) {
        const float four[4] = {values[j] * scale, values[j + 1] * scale, values[j + 2] * scale, values[j + 3] * scale};
        out.words[j / 4] = kernels::four_codes<F>(four);
      }
      out.store(codes + i);
    }
  }
};

/// codes (n) = x (n).
template <class F>
struct RoundElements {
  static constexpr int most_threads = 256;
  ElementRange all;
  const bfloat16* x;
  std::uint8_t* codes;
  FoundMagnitudes found;

  GALVATRON_KERNEL void operator()(auto& block) const {
    work_on(block, all, Round<F>{x, codes, found.template scale<F>(block)});
  }
};

/// codes (columns, rows) = the transpose of x (rows, columns), rows a multiple of 4. A block takes a tile of 128 x 64
/// through shared memory: a thread rounds 4 rows of 8 columns, and of each column makes a word.
template <class F>
struct RoundTransposed {
  static constexpr int most_threads = 256;
  static constexpr int columns_of_tile = 64;
  static constexpr int words = 32;          ///< of a tile's column: four rows each
  static constexpr int stride = words + 1;  ///< so that the lanes of a warp meet in few banks
  std::int64_t rows, columns;
  bool packed;
  const bfloat16* x;
  std::uint8_t* codes;
  FoundMagnitudes found;

  GALVATRON_KERNEL void operator()(auto& block) const {
    constexpr int width = Pack<bfloat16>::size;
    constexpr int lanes = columns_of_tile / width;
    auto* tile = reinterpret_cast<std::uint32_t*>(block.shared());  // (columns of the tile, stride)
    const float scale = found.template scale<F>(block);
    const std::int64_t across = divide_up(columns, columns_of_tile);
    const std::int64_t tiles = divide_up(rows, 4 * words) * across;
    for (std::int64_t work = block.index(); work < tiles; work += block.blocks()) {
      const std::int64_t row = work / across * (4 * words);
      const std::int64_t column = work % across * columns_of_tile;
      const int lane = block.thread() % lanes;
      const int word = block.thread() / lanes;
      const std::int64_t own = column + lane * width;
      if (row + 4 * word < rows && own < columns) {
        Pack<bfloat16> packs[4];
        const bfloat16* at = x + (row + 4 * word) * columns + own;
        load_packs(packed, [&](int r) { return RestOfRow<bfloat16>{at + r * columns, columns - own}; }, packs);
        for (int j = 0; j < width; ++j) {
          float four[4];
          for (int r = 0; r < 4; ++r) four[r] = packs[r].get(j) * scale;
          tile[(lane * width + j) * stride + word] = kernels::four_codes<F>(four);
        }
      }
      block.sync();
      for (int i = block.thread(); i < columns_of_tile * words; i += block.threads())
        if (column + i / words < columns && row + 4 * (i % words) < rows)
          *reinterpret_cast<std::uint32_t*>(codes + (column + i / words) * rows + row + 4 * (i % words)) =
              tile[i / words * stride + i % words];
      block.sync();
    }
  }
};

/// codes = x (rows, columns), scaled and rounded to F, or its transpose; unscale (1) makes them x again. Both extents
/// are multiples of 16, codes start on a 16-byte boundary.
template <class F>
void round_to_8bit(auto& launcher, View<std::byte> scratch, std::int64_t rows, std::int64_t columns, bool transposed,
                   const bfloat16* x, std::uint8_t* codes, float* unscale) {
  constexpr std::int64_t most_blocks_of_maxima = 512;
  const std::int64_t n = rows * columns;
  auto* maxima = reinterpret_cast<std::uint32_t*>(scratch.data);
  const ElementRange packs = split_elements(n, GreatestMagnitudes::width, is_packed<bfloat16>(n, x));
  const std::int64_t steps = divide_up(steps_of(packs, GreatestMagnitudes::width), GreatestMagnitudes::at_once);
  const std::int64_t blocks =
      std::clamp<std::int64_t>(divide_up(steps, GreatestMagnitudes::most_threads), 1, most_blocks_of_maxima);
  launcher.launch(Geometry{.blocks = blocks, .threads = GreatestMagnitudes::most_threads},
                  GreatestMagnitudes{packs, x, maxima});
  const FoundMagnitudes found{blocks, maxima, unscale};
  if (!transposed) {
    const ElementRange all = split_elements(n, Round<F>::width, is_packed<bfloat16>(n, x));
    launcher.launch(over_items(steps_of(all, Round<F>::width)), RoundElements<F>{all, x, codes, found});
    return;
  }
  using Transposed = RoundTransposed<F>;
  const std::int64_t tiles = divide_up(rows, 4 * Transposed::words) * divide_up(columns, Transposed::columns_of_tile);
  launcher.launch(
      Geometry{.blocks = std::min(tiles, most_blocks),
               .threads = Transposed::most_threads,
               .shared_bytes = Transposed::columns_of_tile * Transposed::stride * static_cast<std::int64_t>(4)},
      Transposed{rows, columns, is_packed<bfloat16>(columns, x), x, codes, found});
}

}  // namespace galvatron::device::cuda
