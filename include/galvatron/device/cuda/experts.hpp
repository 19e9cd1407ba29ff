// What is computed row by row around the products of experts: rows in the order of experts and back, gradients of
// activations and of weights; and gates of rows.
#pragma once

#include <cstdint>
#include <type_traits>

#include <galvatron/device/cuda/elements.hpp>
#include <galvatron/device/cuda/rows.hpp>
#include <galvatron/device/kernels/activation.hpp>
#include <galvatron/device/kernels/jitter.hpp>
#include <galvatron/device/kernels/number.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::device::cuda {

/// See Device::gather_rows.
template <class T>
struct GatherRows {
  Divisor active;  ///< k
  std::int64_t width;
  bool packed;
  const std::int32_t* order;
  const T* from;
  T* to;
  GALVATRON_KERNEL void operator()(std::int64_t row, std::int64_t i) const {
    const std::int32_t choice = order[row];
    if (choice < 0) return;
    const std::int64_t at = i * Pack<T>::size;
    store_pack(load_pack(from + active(choice).quotient * width, at, width, packed), to + row * width, at, width,
               packed);
  }
};

/// See Device::combine_rows.
template <class T>
struct CombineRows {
  static constexpr int size = Pack<T>::size;
  static constexpr int at_once = 4;  ///< rows that a thread loads before it adds them
  std::int64_t active, width;
  bool packed;
  const std::int32_t* places;
  const float* weights;  ///< null: 1
  const T* from;
  T* to;
  GALVATRON_KERNEL void operator()(std::int64_t row, std::int64_t i) const {
    const std::int64_t at = i * size;
    float sums[size] = {};
    for (std::int64_t first = 0; first < active; first += at_once) {
      Pack<T> packs[at_once];
      float factors[at_once];
      const auto row_of = [&](int j) {
        const std::int64_t choice = row * active + first + j;
        const std::int32_t place = first + j < active ? places[choice] : -1;
        factors[j] = place < 0 || weights == nullptr ? 1.0F : weights[choice];
        return RestOfRow<T>{from + (place < 0 ? 0 : place) * width + at, place < 0 ? 0 : width - at};
      };
      load_packs(packed, row_of, packs);
      for (int j = 0; j < at_once; ++j)
        for (int l = 0; l < size; ++l) sums[l] += factors[j] * packs[j].get(l);
    }
    store_pack(Pack<T>::of(sums), to + row * width, at, width, packed);
  }
};

/// See Device::expert_activation_backward; a team a row.
/// @tparam A  kernels::Gated, whose u has rows of gate | up, or an activation of one input
template <class T, class A>
struct ExpertActivationBackward {
  static constexpr int most_threads = 512;
  static constexpr int kept = 2;  ///< packs of a row for a thread
  static constexpr int size = Pack<T>::size;
  static constexpr bool gated = requires(float x) { A::forward(x, x, x); };
  Teams teams;
  std::int64_t n;
  bool packed;
  const std::int32_t* order;  ///< or null
  const float* weights;       ///< or null
  const T* u;
  T* d;
  T* du;
  float* d_weights;  ///< or null

  GALVATRON_KERNEL void operator()(auto& block) const {
    constexpr int inputs = gated ? 2 : 1;
    int turn = 0;
    for (std::int64_t row = teams.first_row(block); row < teams.rows; row += teams.row_step(block)) {
      const std::int64_t choice = order == nullptr ? row : order[row];
      if (choice < 0) continue;
      const float weight = weights == nullptr ? 1.0F : weights[choice];
      float sum[1] = {};
      for (std::int64_t at = teams.rank(block) * size; at < n; at += teams.threads * size) {
        Pack<T> packs[1 + inputs];  // d, and u or gate and up
        const auto places = [&](int i) {
          return RestOfRow<T>{i == 0 ? d + row * n + at : u + (row * inputs + i - 1) * n + at, n - at};
        };
        load_packs(packed, places, packs);
        float products[size], gates[size], ups[size];
        for (int j = 0; j < size; ++j) {
          const float gradient = packs[0].get(j);
          const float x = packs[1].get(j);
          float g = 0;
          if constexpr (gated) {
            A::forward(x, packs[2].get(j), g);
            A::backward(x, packs[2].get(j), weight * gradient, gates[j], ups[j]);
          } else {
            float slope = 0;
            A::of(x, g);
            A::derivative(x, slope);
            gates[j] = weight * gradient * slope;
          }
          sum[0] += gradient * g;
          products[j] = weight * g;
        }
        store_pack(Pack<T>::of(products), d + row * n, at, n, packed);
        store_pack(Pack<T>::of(gates), du + row * inputs * n, at, n, packed);
        if constexpr (gated) store_pack(Pack<T>::of(ups), du + (row * inputs + 1) * n, at, n, packed);
      }
      teams.sum(block, sum, turn);
      if (d_weights != nullptr && teams.rank(block) == 0) d_weights[choice] = sum[0];
    }
  }
};

/// y = x * sigmoid(l).
template <class T>
struct GateRows {
  std::int64_t n;
  bool packed;
  const T* x;
  const T* l;
  T* y;
  GALVATRON_KERNEL void operator()(std::int64_t row, std::int64_t i) const {
    const std::int64_t at = i * Pack<T>::size;
    float s = 0;
    kernels::logistic(kernels::get(l[row]), s);
    const Pack<T> pack = load_pack(x + row * n, at, n, packed);
    store_pack(Pack<T>::of([&](int j) { return s * pack.get(j); }), y + row * n, at, n, packed);
  }
};

/// y = x * noise.
template <class T>
struct JitterRows {
  kernels::Jitter noise;
  bool packed;
  const std::int32_t* words;
  const T* x;
  T* y;
  GALVATRON_KERNEL void operator()(std::int64_t row, std::int64_t i) const {
    const std::int64_t at = i * Pack<T>::size;
    const SampleStream stream = SampleStream::read(words);
    const std::uint64_t block = noise.block(stream, row) + static_cast<std::uint64_t>(at / 4);
    float factors[Pack<T>::size];
    for (int four = 0; four < Pack<T>::size / 4; ++four) {
      const auto numbers = random_block(stream.seed, stream.stream, block + static_cast<std::uint64_t>(four));
      for (int lane = 0; lane < 4; ++lane)
        factors[4 * four + lane] = noise.factor(numbers[static_cast<std::size_t>(lane)]);
    }
    const std::int64_t n = noise.columns;
    const Pack<T> pack = load_pack(x + row * n, at, n, packed);
    store_pack(Pack<T>::of([&](int j) { return factors[j] * pack.get(j); }), y + row * n, at, n, packed);
  }
};

/// The gradients of a gate; a team a row.
template <class T>
struct GateRowsBackward {
  static constexpr int most_threads = 512;
  static constexpr int kept = 4;  ///< packs of a row for a thread
  static constexpr int size = Pack<T>::size;
  Teams teams;
  std::int64_t n;
  bool packed;
  const T* x;
  const T* l;
  const T* dy;
  T* dx;
  T* dl;

  GALVATRON_KERNEL void operator()(auto& block) const {
    int turn = 0;
    for (std::int64_t row = teams.first_row(block); row < teams.rows; row += teams.row_step(block)) {
      float s = 0;
      kernels::logistic(kernels::get(l[row]), s);
      float sum[1] = {};
      for (std::int64_t at = teams.rank(block) * size; at < n; at += teams.threads * size) {
        Pack<T> packs[2];
        load_packs(packed, [&](int i) { return RestOfRow<T>{(i == 0 ? x : dy) + row * n + at, n - at}; }, packs);
        for (int j = 0; j < size; ++j) sum[0] += packs[0].get(j) * packs[1].get(j);
        store_pack(Pack<T>::of([&](int j) { return s * packs[1].get(j); }), dx + row * n, at, n, packed);
      }
      teams.sum(block, sum, turn);
      if (teams.rank(block) == 0) kernels::put(dl[row], sum[0] * s * (1.0F - s));
    }
  }
};

/// See Device::balance_bias.
template <class T>
struct BalanceBias {
  float mean, rate;
  const float* loads;
  float* master;
  T* working;
  GALVATRON_KERNEL void operator()(std::int64_t i) const {
    const float away = mean - loads[i];
    const float moved = master[i] + (away > 0 ? rate : away < 0 ? -rate : 0.0F);
    master[i] = moved;
    kernels::put(working[i], moved);
  }
};

template <class T>
void gather_rows(auto& launcher, std::int64_t active, std::int64_t width, std::int64_t rows, const std::int32_t* order,
                 const T* from, T* to) {
  for_rows(launcher, rows, divide_up(width, Pack<T>::size),
           GatherRows<T>{Divisor(active), width, is_packed<T>(width, from, to), order, from, to});
}

template <class T>
void combine_rows(auto& launcher, std::int64_t rows, std::int64_t active, std::int64_t width,
                  const std::int32_t* places, const float* weights, const T* from, T* to) {
  for_rows(launcher, rows, divide_up(width, Pack<T>::size),
           CombineRows<T>{active, width, is_packed<T>(width, from, to), places, weights, from, to});
}

/// d_weights (rows) are 0 before, or null.
template <class T>
void expert_activation_backward(auto& launcher, ActivationKind kind, std::int64_t rows, std::int64_t n,
                                const std::int32_t* order, const float* weights, const T* u, T* d, T* du,
                                float* d_weights) {
  if (rows == 0 || n == 0) return;
  const auto launch = [&]<class A>() {
    using Kernel = ExpertActivationBackward<T, A>;
    const bool packed = is_packed<T>(n, u, d, du);
    const auto share = share_rows(rows, divide_up(n, Pack<T>::size), packed, Kernel::kept, Kernel::most_threads);
    launcher.launch(share.geometry, Kernel{share.teams, n, packed, order, weights, u, d, du, d_weights});
  };
  if (inputs_of(kind) == 2) return kernels::with_gated(kind, launch);
  kernels::with_activation(kind, launch);
}

template <class T>
void jitter(auto& launcher, const kernels::Jitter& noise, std::int64_t rows, const std::int32_t* words, const T* x,
            T* y) {
  for_rows(launcher, rows, divide_up(noise.columns, Pack<T>::size),
           JitterRows<T>{noise, is_packed<T>(noise.columns, x, y), words, x, y});
}

template <class T>
void gate_forward(auto& launcher, std::int64_t rows, std::int64_t n, const T* x, const T* l, T* y) {
  for_rows(launcher, rows, divide_up(n, Pack<T>::size), GateRows<T>{n, is_packed<T>(n, x, y), x, l, y});
}

template <class T>
void gate_backward(auto& launcher, std::int64_t rows, std::int64_t n, const T* x, const T* l, const T* dy, T* dx,
                   T* dl) {
  if (rows == 0) return;
  using Kernel = GateRowsBackward<T>;
  const bool packed = is_packed<T>(n, x, dy, dx);
  const auto share = share_rows(rows, divide_up(n, Pack<T>::size), packed, Kernel::kept, Kernel::most_threads);
  launcher.launch(share.geometry, Kernel{share.teams, n, packed, x, l, dy, dx, dl});
}

template <class T>
void balance_bias(auto& launcher, std::int64_t n, float mean, float rate, const float* loads, float* master,
                  T* working) {
  for_each(launcher, n, BalanceBias<T>{mean, rate, loads, master, working});
}

}  // namespace galvatron::device::cuda
