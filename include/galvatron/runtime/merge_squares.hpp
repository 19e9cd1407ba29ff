// Patch merging of Swin: the four tokens of a square of an image side by side.
#pragma once

#include <cstdint>

#include <galvatron/core/view.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/runtime/attention.hpp>
#include <galvatron/runtime/context.hpp>

namespace galvatron::runtime {

/// x (4 rows, width) -> four (rows, 4 width), or `back`:
///
///     image rows     2Y    a c         the four of (Y, X) side by side: a b c d
///                  2Y+1    b d
///
/// It needs no other rank: under Megatron sequence parallelism a rank holds whole pairs of rows of the image.
template <class D, class T>
void merge_squares(const Context<D>& context, std::int64_t rows, std::int64_t width, View<T> x, View<T> four,
                   bool back) {
  const std::int64_t side = side_of_square(context.batch.sequence);  // of the merged image
  const std::int64_t b = context.batch.samples;
  if (b == 0) return;
  for (std::int64_t corner = 0; corner < 4; ++corner) {
    // Blocks are columns of the merged image, repeats samples.
    const device::Runs::Distances narrow{.block = 2 * b * width, .repeat = width, .row = 4 * side * b * width};
    const device::Runs::Distances wide{.block = b * 4 * width, .repeat = 4 * width, .row = side * b * 4 * width};
    const std::int64_t first = (corner % 2 * 2 * side + corner / 2) * b * width;  // down, then to the right
    const View<T> apart = behind(x, first);
    const View<T> together = behind(four, corner * width);
    context.device.copy_runs(device::Runs{.blocks = side,
                                          .repeats = b,
                                          .rows = rows / (b * side),
                                          .width = width,
                                          .from = back ? wide : narrow,
                                          .to = back ? narrow : wide},
                             back ? together : apart, back ? apart : together);
  }
}

}  // namespace galvatron::runtime
