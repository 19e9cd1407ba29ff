// Steps of programs of images: the four tokens of a square side by side (Swin).
//
//   image rows     2Y    a c         the four of (Y, X) side by side: a b c d
//                2Y+1    b d
//
// It needs no other rank: under Megatron sequence parallelism a rank holds whole pairs of rows of the image.
#pragma once

#include <cstdint>

#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/runtime/context.hpp>

namespace galvatron::runtime {

/// x (4 rows, width) -> four (rows, 4 width), or back.
/// @param rows  of this rank, of the merged image
template <class D, class T>
void merge_squares(Context<D>& context, std::int64_t rows, std::int64_t width, View<T> x, View<T> four, bool back) {
  const std::int64_t side = side_of_square(context.sequence);  // of the merged image
  const std::int64_t b = context.samples;
  const auto behind = [](View<T> all, std::int64_t first) { return all.slice(first, all.count - first); };
  for (std::int64_t corner = 0; corner < 4; ++corner) {
    const std::int64_t first = (corner % 2 * 2 * side + corner / 2) * b * width;  // down, then to the right
    // Blocks are columns of the merged image, repeats samples.
    const device::Runs::Distances narrow{.block = 2 * b * width, .repeat = width, .row = 4 * side * b * width};
    const device::Runs::Distances wide{.block = b * 4 * width, .repeat = 4 * width, .row = side * b * 4 * width};
    device::Runs runs{.blocks = side,
                      .repeats = b,
                      .rows = rows / (b * side),
                      .width = width,
                      .from = back ? wide : narrow,
                      .to = back ? narrow : wide};
    if (back)
      context.device.copy_runs(runs, behind(four, corner * width), behind(x, first));
    else
      context.device.copy_runs(runs, behind(x, first), behind(four, corner * width));
  }
}

}  // namespace galvatron::runtime
