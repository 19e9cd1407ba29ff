// Runs of elements copied and added: packing for all-to-all, columns of wider rows, changes of type.
#pragma once

#include <cstdint>
#include <type_traits>

#include <galvatron/device/cuda/elements.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::device::cuda {

/// A step is a pack of a run, or an element. Threads go over the steps of all runs that may be written in any order;
/// next to each other in memory are first the steps of a run, then its rows.
template <class A, class C, bool adds>
struct MoveRuns {
  static constexpr int width = Pack<std::conditional_t<(sizeof(A) > sizeof(C)), A, C>>::size;
  std::int64_t blocks;   ///< that a thread adds in turn
  std::int64_t repeats;  ///< the same
  Divisor steps;         ///< of a run
  Divisor rows;
  Divisor parallel_repeats;  ///< that are not in turn
  Runs::Distances from_distance, to_distance;
  const A* from;
  C* to;
  bool packed;

  GALVATRON_KERNEL void operator()(std::int64_t i) const {
    const Divisor::Parts step = steps(i);
    const Divisor::Parts row = rows(step.quotient);
    const Divisor::Parts repeat = parallel_repeats(row.quotient);
    const auto place = [&](const Runs::Distances& d) {
      return repeat.quotient * d.block + repeat.remainder * d.repeat + row.remainder * d.row +
             step.remainder * (packed ? width : 1);
    };
    if (packed)
      move<width>(from + place(from_distance), to + place(to_distance));
    else
      move<1>(from + place(from_distance), to + place(to_distance));
  }

 private:
  template <int size>
  GALVATRON_KERNEL void move(const A* read, C* written) const {
    if constexpr (adds) {
      float values[size], sums[size];
      get_elements(written, sums);
      for (std::int64_t b = 0; b < blocks; ++b)
        for (std::int64_t r = 0; r < repeats; ++r) {
          get_elements(read + b * from_distance.block + r * from_distance.repeat, values);
          for (int j = 0; j < size; ++j) {
            C sum;
            kernels::put(sum, sums[j] + values[j]);
            sums[j] = kernels::get(sum);
          }
        }
      put_elements(written, sums);
    } else if constexpr (std::is_same_v<A, C>) {
      Pack<A, size>::at(read).store(written);
    } else {
      float values[size];
      get_elements(read, values);
      put_elements(written, values);
    }
  }
};

/// copy_runs, or add_runs where it `adds`; each side is float or bfloat16.
template <bool adds, class A, class C>
void move_runs(auto& launcher, const Runs& runs, const A* from, C* to) {
  if (runs.elements() <= 0) return;
  using Move = MoveRuns<A, C, adds>;
  const auto whole = [](const Runs::Distances& d) {
    return d.block % Move::width == 0 && d.repeat % Move::width == 0 && d.row % Move::width == 0;
  };
  const bool packed =
      runs.width % Move::width == 0 && whole(runs.from) && whole(runs.to) && are_aligned<Move::width>(from, to);
  // What is written to the same places goes in turn.
  const std::int64_t blocks = runs.to.block == 0 ? runs.blocks : 1;
  const std::int64_t repeats = runs.to.repeat == 0 ? runs.repeats : 1;
  // Of copies to one place the last stays.
  if (!adds) from += (blocks - 1) * runs.from.block + (repeats - 1) * runs.from.repeat;
  const std::int64_t steps = packed ? runs.width / Move::width : runs.width;
  const std::int64_t count = steps * runs.rows * (runs.blocks / blocks) * (runs.repeats / repeats);
  const Move move{.blocks = blocks,
                  .repeats = repeats,
                  .steps = Divisor(steps),
                  .rows = Divisor(runs.rows),
                  .parallel_repeats = Divisor(runs.repeats / repeats),
                  .from_distance = runs.from,
                  .to_distance = runs.to,
                  .from = from,
                  .to = to,
                  .packed = packed};
  launcher.launch(over_steps(count), ForEach{count, move});
}

}  // namespace galvatron::device::cuda
