// Additions, products, activations, rotary embedding and runs, each in one pass over memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/elements.hpp>
#include <galvatron/device/cuda/number_pairs.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/activation.hpp>
#include <galvatron/device/kernels/embedding.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::device::cuda {

/// out = Function of a, and of b where it takes two.
template <class Function, class A, class B, class C>
struct Map {
  static constexpr int width = Pack<C>::size;
  const A* a;
  const B* b;
  C* out;
  template <int size>
  GALVATRON_KERNEL void at(std::int64_t i) const {
    float x[size], y[size];
    get_elements(a + i, x);
    if constexpr (requires { Function::of(x[0], x[0]); }) {
      for (int j = 0; j < size; ++j) Function::of(x[j], y[j]);
    } else {
      get_elements(b + i, y);
      for (int j = 0; j < size; ++j) Function::of(x[j], y[j], y[j]);
    }
    put_elements(out + i, y);
  }
};

/// g from u, or du from u and dg. Element i of g (rows, n) has its gate at row * 2n + column of u, and `up` n further.
template <class T, class A, bool backward>
struct Gate {
  static constexpr int width = Pack<T>::size;
  Divisor n;
  const T* u;
  const T* dg;  ///< backward only
  T* out;
  template <int size>
  GALVATRON_KERNEL void at(std::int64_t i) const {
    const std::int64_t at_gate = i + n(i).quotient * n.value();
    float gate[size], up[size];
    get_elements(u + at_gate, gate);
    get_elements(u + at_gate + n.value(), up);
    if constexpr (backward) {
      float gradients[size];
      get_elements(dg + i, gradients);
      for (int j = 0; j < size; ++j) A::backward(gate[j], up[j], gradients[j], gate[j], up[j]);
      put_elements(out + at_gate, gate);
      put_elements(out + at_gate + n.value(), up);
    } else {
      for (int j = 0; j < size; ++j) A::forward(gate[j], up[j], gate[j]);
      put_elements(out + i, gate);
    }
  }
};

/// A block takes some positions at a time: it works out their cosines and sines (positions, head_dim / 2) in shared
/// memory, each once, and then turns all heads of all rows of these positions.
template <class T>
struct Rotary {
  static constexpr int most_threads = 256;
  static constexpr int width = Pack<T>::size;
  std::int64_t rows, all_positions, first_position, row_stride;
  NumberPairs runs;  ///< the first token of each, and its position; none: one from first_position on
  kernels::RotaryFrequencies frequencies;
  double direction;  ///< 1, or -1 to turn back
  T* x;
  Divisor b;               ///< rows of a position
  Divisor heads;           ///< of a row
  Divisor steps;           ///< of a head: packs, or pairs of elements
  Divisor half;            ///< head_dim / 2
  std::int64_t positions;  ///< that a block takes at a time
  bool packed;

  /// Frequencies in turns, and the cosines and sines.
  [[nodiscard]] std::int64_t shared_bytes() const {
    return round_up(half.value(), 2) * 8 + 2 * positions * half.value() * 4;
  }

  GALVATRON_KERNEL void operator()(auto& block) const {
    auto* turns = reinterpret_cast<double*>(block.shared());                      // (half)
    auto* cosines = reinterpret_cast<float*>(turns + round_up(half.value(), 2));  // (positions, half)
    float* sines = cosines + positions * half.value();                            // (positions, half)
    constexpr double turns_of_a_radian = 0.159154943091895336;
    for (std::int64_t j = block.thread(); j < half.value(); j += block.threads())
      turns[j] = direction * turns_of_a_radian * kernels::rotary_frequency(frequencies, j, 2 * half.value());
    for (std::int64_t first = block.index() * positions; first < all_positions; first += block.blocks() * positions) {
      const std::int64_t some = all_positions - first < positions ? all_positions - first : positions;
      block.sync();
      for (std::int64_t i = block.thread(); i < some * half.value(); i += block.threads()) {
        const Divisor::Parts at = half(i);
        const auto position = static_cast<double>(position_of(first + at.quotient));
        const kernels::Turn turn = kernels::turn(turns[at.remainder] * position);
        cosines[i] = frequencies.amplitude * turn.cosine;
        sines[i] = frequencies.amplitude * turn.sine;
      }
      block.sync();
      const std::int64_t first_row = first * b.value();
      const std::int64_t last_row = rows < (first + some) * b.value() ? rows : (first + some) * b.value();
      if (packed)
        rotate_rows<width>(block, first_row, last_row, cosines, sines);
      else
        rotate_rows<1>(block, first_row, last_row, cosines, sines);
    }
  }

 private:
  [[nodiscard]] GALVATRON_KERNEL std::int64_t position_of(std::int64_t token) const {
    if (runs.count == 0) return first_position + token;
    const std::int64_t run = first_where(1, runs.count, [&](std::int64_t i) { return runs.first[i] > token; }) - 1;
    return runs.second[run] + token - runs.first[run];
  }
  template <int size>
  GALVATRON_KERNEL void rotate_rows(auto& block, std::int64_t first_row, std::int64_t last_row, const float* cosines,
                                    const float* sines) const {
    const std::int64_t count = (last_row - first_row) * heads.value() * steps.value();
    for (std::int64_t i = block.thread(); i < count; i += block.threads()) {
      const Divisor::Parts step = steps(i);
      const Divisor::Parts head = heads(step.quotient);
      const std::int64_t pair = step.remainder * size;
      const std::int64_t angle = b(head.quotient).quotient * half.value() + pair;
      T* at = x + (first_row + head.quotient) * row_stride + head.remainder * 2 * half.value() + pair;
      float left[size], right[size], cosine[size], sine[size];
      get_elements(at, left);
      get_elements(at + half.value(), right);
      get_elements(cosines + angle, cosine);
      get_elements(sines + angle, sine);
      for (int j = 0; j < size; ++j) kernels::rotate(left[j], right[j], cosine[j], sine[j]);
      put_elements(at, left);
      put_elements(at + half.value(), right);
    }
  }
};

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

/// out (n) = Function of a (n), and of b (n) where it takes two; out may be one of them.
template <class Function, class A, class B, class C>
void map(auto& launcher, std::int64_t n, const A* a, const B* b, C* out) {
  using Map = Map<Function, A, B, C>;
  for_elements(launcher, n, are_aligned<Map::width>(a, b, out), Map{a, b, out});
}

template <class T>
void activation_forward(auto& launcher, ActivationKind kind, std::int64_t rows, std::int64_t n, const T* u, T* g) {
  if (inputs_of(kind) == 1)
    return kernels::with_activation(kind, [&]<class A>() { map<A>(launcher, rows * n, u, u, g); });
  if (n == 0) return;
  kernels::with_gated(kind, [&]<class A>() {
    for_elements(launcher, rows * n, is_packed<T>(n, u, g), Gate<T, A, false>{Divisor(n), u, nullptr, g});
  });
}

template <class T>
void activation_backward(auto& launcher, ActivationKind kind, std::int64_t rows, std::int64_t n, const T* u,
                         const T* dg, T* du) {
  if (inputs_of(kind) == 1)
    return kernels::with_activation(kind, [&]<class A>() { map<kernels::Backward<A>>(launcher, rows * n, u, dg, du); });
  if (n == 0) return;
  kernels::with_gated(kind, [&]<class A>() {
    for_elements(launcher, rows * n, is_packed<T>(n, u, dg, du), Gate<T, A, true>{Divisor(n), u, dg, du});
  });
}

/// See TokenPositions for the runs. Throws DeviceFailure for heads too wide for shared memory.
template <class T>
void rotary(auto& launcher, std::int64_t rows, std::int64_t b, std::int64_t first_position, const NumberPairs& runs,
            std::int64_t heads, std::int64_t head_dim, std::int64_t row_stride,
            const kernels::RotaryFrequencies& frequencies, bool inverse, T* x) {
  constexpr std::int64_t widest_head = 4096;
  if (head_dim > widest_head)
    throw DeviceFailure("rotary embedding takes heads of up to " + std::to_string(widest_head) + " elements, not " +
                        std::to_string(head_dim));
  const std::int64_t half = head_dim / 2;
  if (rows == 0 || heads == 0 || half == 0) return;
  constexpr int width = Pack<T>::size;
  const bool packed = half % width == 0 && row_stride % width == 0 && are_aligned<width>(x);
  const std::int64_t steps = packed ? half / width : half;
  // Enough work for a block, within the shared memory that needs no asking.
  const std::int64_t positions = std::clamp<std::int64_t>(std::min(512 / (b * heads * steps), 2048 / half), 1, 64);
  const Rotary<T> kernel{.rows = rows,
                         .all_positions = divide_up(rows, b),
                         .first_position = first_position,
                         .row_stride = row_stride,
                         .runs = runs,
                         .frequencies = frequencies,
                         .direction = inverse ? -1.0 : 1.0,
                         .x = x,
                         .b = Divisor(b),
                         .heads = Divisor(heads),
                         .steps = Divisor(steps),
                         .half = Divisor(half),
                         .positions = positions,
                         .packed = packed};
  Geometry geometry = over_rows(divide_up(kernel.all_positions, positions), positions * b * heads * steps);
  geometry.blocks = std::min(geometry.blocks, most_blocks / 2);  // what its registers let run at once
  geometry.shared_bytes = kernel.shared_bytes();
  launcher.launch(geometry, kernel);
}

/// copy_runs, or add_runs where it `adds`; each side is float or bfloat16.
template <bool adds, class A, class C>
void move_runs(auto& launcher, const Runs& runs, const A* from, C* to) {
  if (runs.elements() <= 0) return;
  using Move = MoveRuns<A, C, adds>;
  const auto bits = [](const Runs::Distances& d) { return d.block | d.repeat | d.row; };
  const bool packed =  // all are multiples of a power of two when their bits together are
      (runs.width | bits(runs.from) | bits(runs.to)) % Move::width == 0 && are_aligned<Move::width>(from, to);
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
