// Experts: routing of rows, their order by experts, and what is computed row by row around the experts' products.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include <galvatron/device/device.hpp>
#include <galvatron/device/host/loops.hpp>
#include <galvatron/device/kernels/activation.hpp>
#include <galvatron/device/kernels/jitter.hpp>
#include <galvatron/device/kernels/router.hpp>

namespace galvatron::device::host {

using kernels::OneThread;
using kernels::Router;

template <class B>
void route(const Team& team, const Router& router, std::int64_t rows, const float* logits, const B* bias,
           float* weights, std::int32_t* chosen) {
  for_runs(team, rows, 1, router.experts * (router.active + 2), [&](std::int64_t first, std::int64_t last, int) {
    std::vector<float> scores(static_cast<std::size_t>(router.experts));
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
      const OneThread thread;
      for (std::int64_t row = first; row < last; ++row) {
        const float* l = logits + row * router.experts;
        router.score(thread, l, bias, scores.data());
        router.choose(thread, scores.data(), chosen + row * router.active);
        router.weigh(thread, l, chosen + row * router.active, weights + row * router.active);
      }
    });
  });
}

/// Rows one after the other: counts are few.
inline void count_choices(const Team&, const Router& router, std::int64_t rows, std::int64_t samples,
                          const float* logits, const std::int32_t* chosen, float* counts) {
  std::fill_n(counts, samples * router.experts, 0.0F);
  const Router ungrouped = router.without_groups();
  const float* const no_bias = nullptr;
  std::vector<std::int32_t> own(static_cast<std::size_t>(router.active));
  std::vector<float> scores(static_cast<std::size_t>(router.experts));
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int32_t* of_row = chosen + row * router.active;
    if (router.kind == RouterKind::sigmoid) {
      ungrouped.score(OneThread{}, logits + row * router.experts, no_bias, scores.data());
      ungrouped.choose(OneThread{}, scores.data(), own.data());
      of_row = own.data();
    }
    for (std::int64_t j = 0; j < router.active; ++j) counts[row % samples * router.experts + of_row[j]] += 1.0F;
  }
}

/// Runs of 64 rows are added in double, and these in order, so that the number of threads does not matter.
inline void router_losses(const Team& team, const Router& router, std::int64_t rows, std::int64_t samples,
                          const float* logits, const float* counts, RouterLoss loss, double* balance, double* z) {
  constexpr std::int64_t run = 64;
  const std::int64_t runs = divide_up(rows, run);
  std::vector<Router::Losses> sums(static_cast<std::size_t>(runs));
  for_rows(team, runs, run * router.experts, [&](std::int64_t i) GALVATRON_INLINE_LAMBDA {
    Router::Losses& sum = sums[static_cast<std::size_t>(i)];
    for (std::int64_t row = i * run; row < std::min(rows, (i + 1) * run); ++row) {
      const float* of_sample = counts == nullptr ? nullptr : counts + row % samples * router.experts;
      const Router::Losses own = router.losses(OneThread{}, logits + row * router.experts, of_sample);
      sum.balance += own.balance;
      sum.z += own.z;
    }
  });
  for (const Router::Losses& sum : sums) {
    *balance += sum.balance * static_cast<double>(loss.balance);
    *z += sum.z * static_cast<double>(loss.z);
  }
}

template <class T>
void route_backward(const Team& team, const Router& router, std::int64_t rows, std::int64_t samples,
                    const float* logits, const std::int32_t* chosen, const float* d_weights, const float* counts,
                    RouterLoss loss, T* gradient) {
  for_rows(team, rows, 8 * router.experts, [&](std::int64_t row) GALVATRON_INLINE_LAMBDA {
    const float* of_sample = counts == nullptr ? nullptr : counts + row % samples * router.experts;
    router.backward(OneThread{}, logits + row * router.experts, chosen + row * router.active,
                    d_weights + row * router.active, of_sample, loss.balance, loss.z, gradient + row * router.experts);
  });
}

inline void add_loads(const Team&, std::int64_t choices, const std::int32_t* chosen, float* loads) {
  for (std::int64_t i = 0; i < choices; ++i) loads[chosen[i]] += 1.0F;
}

/// Choices that an expert drops get the place -1.
inline void drop_choices(const ChoiceOrder& how, std::int64_t rows, const std::int32_t* chosen, const float* weights,
                         std::int32_t* places) {
  const std::int64_t k = how.active;
  std::vector<std::vector<std::int32_t>> of_expert(static_cast<std::size_t>(how.experts));
  for (std::int64_t j = 0; j < k; ++j)  // in the order of drops by position
    for (std::int64_t row = 0; row < rows; ++row)
      of_expert[static_cast<std::size_t>(chosen[row * k + j])].push_back(static_cast<std::int32_t>(row * k + j));
  for (std::vector<std::int32_t>& choices : of_expert) {
    if (static_cast<std::int64_t>(choices.size()) <= how.capacity) continue;
    if (how.drops == DropOrder::weight)
      std::ranges::sort(choices, [weights](std::int32_t a, std::int32_t b) {
        return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
      });
    for (std::size_t i = static_cast<std::size_t>(how.capacity); i < choices.size(); ++i) places[choices[i]] = -1;
  }
}

/// Of a row's choices that have places, the nodes of their experts.
inline void choose_nodes(const Team& team, std::int64_t experts, std::int64_t nodes, std::int64_t active,
                         std::int64_t rows, const std::int32_t* chosen, const std::int32_t* places,
                         std::int32_t* chosen_nodes, std::int32_t* kept) {
  for_rows(team, rows, active, [&](std::int64_t row) GALVATRON_INLINE_LAMBDA {
    std::fill_n(chosen_nodes + row * nodes, nodes, -1);
    for (std::int64_t i = row * active; i < (row + 1) * active; ++i) {
      kept[i] = places[i] < 0 ? -1 : chosen[i];
      if (kept[i] < 0) continue;
      const std::int64_t node = chosen[i] / experts;
      chosen_nodes[row * nodes + node] = static_cast<std::int32_t>(node);
    }
  });
}

/// A counting sort; of few numbers, on one thread.
inline void order_choices(const Team&, const ChoiceOrder& how, std::int64_t rows, const std::int32_t* chosen,
                          const float* weights, std::int32_t* order, std::int32_t* places, std::int32_t* offsets) {
  const std::int64_t count = rows * how.active;
  const auto expert = [&](std::int64_t i) { return chosen[i] - how.first; };
  for (std::int64_t i = 0; i < count; ++i) places[i] = expert(i) >= 0 && expert(i) < how.experts ? 0 : -1;
  if (how.capacity > 0) drop_choices(how, rows, chosen, weights, places);
  std::fill_n(offsets, how.experts + 1, 0);
  for (std::int64_t i = 0; i < count; ++i)
    if (places[i] >= 0) ++offsets[expert(i) + 1];
  std::partial_sum(offsets, offsets + how.experts + 1, offsets);
  std::vector<std::int32_t> next(offsets, offsets + how.experts);
  std::fill(order + offsets[how.experts], order + count, -1);
  for (std::int64_t i = 0; i < count; ++i) {
    if (places[i] < 0) continue;
    const std::int32_t place = next[static_cast<std::size_t>(expert(i))]++;
    places[i] = place;
    order[place] = static_cast<std::int32_t>(i);
  }
}

template <class T>
void gather_rows(const Team& team, std::int64_t active, std::int64_t width, std::int64_t rows,
                 const std::int32_t* order, const T* from, T* to) {
  const auto bytes = static_cast<std::size_t>(width) * sizeof(T);
  for_rows(team, rows, width, [&](std::int64_t i) GALVATRON_INLINE_LAMBDA {
    if (order[i] >= 0) std::memcpy(static_cast<void*>(to + i * width), from + order[i] / active * width, bytes);
  });
}

/// The k rows of a token are added in their order, in fp32.
template <class T>
void combine_rows(const Team& team, std::int64_t rows, std::int64_t active, std::int64_t width,
                  const std::int32_t* places, const float* weights, const T* from, T* to) {
  for_rows(team, rows, active * width, [&](std::int64_t row) GALVATRON_INLINE_LAMBDA {
    constexpr std::int64_t run = 64;
    for (std::int64_t first = 0; first < width; first += run) {
      const std::int64_t n = std::min(run, width - first);
      float sums[run] = {};
      for (std::int64_t j = 0; j < active; ++j) {
        const std::int64_t choice = row * active + j;
        if (places[choice] < 0) continue;
        const float weight = weights != nullptr ? weights[choice] : 1.0F;
        const T* x = from + places[choice] * width + first;
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) sums[i] += weight * kernels::get(x[i]);
      }
      T* y = to + row * width + first;
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) kernels::put(y[i], sums[i]);
    }
  });
}

/// One activation of the lanes from element i on: g, and of the gradient d of w g the gradients of its inputs.
template <class S, class T>
GALVATRON_INLINE void expert_activation_lanes(ActivationKind kind, std::int64_t n, std::int64_t i, const T* u, float w,
                                              T* d, T* du, typename S::Float& product) {
  typename S::Float gradient, g;
  get_lanes<S>(d + i, gradient);
  const typename S::Float scaled = w * gradient;
  if (inputs_of(kind) == 2) {
    typename S::Float gate, up;
    get_lanes<S>(u + i, gate);
    get_lanes<S>(u + n + i, up);
    kernels::with_gated(kind, [&]<class A>() GALVATRON_INLINE_LAMBDA {
      A::forward(gate, up, g);
      A::backward(gate, up, scaled, gate, up);
    });
    put_lanes<S>(du + i, gate);
    put_lanes<S>(du + n + i, up);
  } else {
    typename S::Float x, slope;
    get_lanes<S>(u + i, x);
    kernels::with_activation(kind, [&]<class A>() GALVATRON_INLINE_LAMBDA {
      A::of(x, g);
      A::derivative(x, slope);
    });
    put_lanes<S>(du + i, typename S::Float(scaled * slope));
  }
  product = gradient * g;
  put_lanes<S>(d + i, typename S::Float(w * g));
}

template <class T>
void expert_activation_backward(const Team& team, ActivationKind kind, std::int64_t rows, std::int64_t n,
                                const std::int32_t* order, const float* weights, const T* u, T* d, T* du,
                                float* d_weights) {
  if (d_weights != nullptr) std::fill_n(d_weights, rows, 0.0F);
  const std::int64_t inputs = inputs_of(kind) * n;
  for_rows(team, rows, 3 * n, [&]<class S>(std::int64_t row) GALVATRON_INLINE_LAMBDA {
    const std::int64_t choice = order == nullptr ? row : order[row];
    if (choice < 0) return;
    const float weight = weights == nullptr ? 1.0F : weights[choice];
    const float gradient = sum_over<S>(n, [&]<class L>(typename L::Float& sum, std::int64_t i) GALVATRON_INLINE_LAMBDA {
      typename L::Float product;
      expert_activation_lanes<L>(kind, n, i, u + row * inputs, weight, d + row * n, du + row * inputs, product);
      sum += product;
    });
    if (d_weights != nullptr) d_weights[choice] = gradient;
  });
}

/// y = x * noise.
template <class T>
void jitter(const Team& team, const kernels::Jitter& noise, std::int64_t rows, const std::int32_t* words, const T* x,
            T* y) {
  const SampleStream stream = SampleStream::read(words);
  for_rows(team, rows, noise.columns, [&](std::int64_t row) GALVATRON_INLINE_LAMBDA {
    // Each loop does one thing, so that compilers make vectors of them.
    constexpr std::int64_t most = 256;
    std::uint32_t numbers[most];
    const std::uint64_t block = noise.block(stream, row);
    for (std::int64_t first = 0; first < noise.columns; first += most) {
      const std::int64_t count = std::min(most, noise.columns - first);
      for (std::int64_t k = 0; k < (count + 3) / 4; ++k) {
        const auto four = random_block(stream.seed, stream.stream, block + static_cast<std::uint64_t>(first / 4 + k));
        for (std::size_t lane = 0; lane < 4; ++lane) numbers[4 * k + static_cast<std::int64_t>(lane)] = four[lane];
      }
      const T* from = x + row * noise.columns + first;
      T* to = y + row * noise.columns + first;
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) kernels::put(to[i], noise.factor(numbers[i]) * kernels::get(from[i]));
    }
  });
}

/// y = x * sigmoid(l), row by row.
template <class T>
void gate_forward(const Team& team, std::int64_t rows, std::int64_t n, const T* x, const T* l, T* y) {
  for_rows(team, rows, n, [&](std::int64_t row) GALVATRON_INLINE_LAMBDA {
    const float s = Router::sigmoid(kernels::get(l[row]));
#pragma omp simd
    for (std::int64_t i = row * n; i < (row + 1) * n; ++i) kernels::put(y[i], s * kernels::get(x[i]));
  });
}

template <class T>
void gate_backward(const Team& team, std::int64_t rows, std::int64_t n, const T* x, const T* l, const T* dy, T* dx,
                   T* dl) {
  for_rows(team, rows, n, [&]<class S>(std::int64_t row) GALVATRON_INLINE_LAMBDA {
    const float s = Router::sigmoid(kernels::get(l[row]));
    const float sum = sum_over<S>(n, [&]<class L>(typename L::Float& out, std::int64_t i) GALVATRON_INLINE_LAMBDA {
      typename L::Float value, gradient;
      get_lanes<L>(x + row * n + i, value);
      get_lanes<L>(dy + row * n + i, gradient);
      out += value * gradient;
      put_lanes<L>(dx + row * n + i, typename L::Float(s * gradient));
    });
    kernels::put(dl[row], sum * s * (1.0F - s));
  });
}

/// Biases move by `rate` towards the load `mean`.
template <class W>
void balance_bias(const Team&, std::int64_t n, float mean, float rate, const float* loads, float* master, W* working) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float away = mean - loads[i];
    master[i] += away > 0 ? rate : away < 0 ? -rate : 0.0F;
    kernels::put(working[i], master[i]);
  }
}

}  // namespace galvatron::device::host
