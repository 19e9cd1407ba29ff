// Routers of experts: a warp a row, whose lanes share the row's experts (kernels/router.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/choices.hpp>
#include <galvatron/device/cuda/rows.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/router.hpp>

namespace galvatron::device::cuda {

/// The lanes of a warp, as kernels::Router has them.
template <class B>
struct WarpLanes {
  B& block;
  [[nodiscard]] GALVATRON_KERNEL std::int64_t lane() const { return block.thread() % warp_threads; }
  [[nodiscard]] GALVATRON_KERNEL static constexpr std::int64_t lanes() { return warp_threads; }
  [[nodiscard]] GALVATRON_KERNEL auto sum(auto x) const { return warp_sum(block, x); }
  [[nodiscard]] GALVATRON_KERNEL auto maximum(auto x) const { return over_warp(block, x, Maximum{}); }
  GALVATRON_KERNEL void sync() const { block.sync_warp(); }
};

/// Calls work(lanes, row, scratch) for every row, by a warp; scratch: `kept` floats of the warp.
template <class F>
struct RouterRows {
  static constexpr int most_threads = 128;
  std::int64_t rows;
  std::int64_t kept;
  F work;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const Teams warps{rows, warp_threads};
    float* scratch = reinterpret_cast<float*>(block.shared()) + warps.team(block) * kept;
    const WarpLanes<std::remove_reference_t<decltype(block)>> lanes{block};
    for (std::int64_t row = warps.first_row(block); row < rows; row += warps.row_step(block)) work(lanes, row, scratch);
  }
};

inline Geometry router_geometry(std::int64_t rows, std::int64_t kept) {
  constexpr int warps = RouterRows<int>::most_threads / warp_threads;
  Geometry geometry = in_blocks(rows, warp_threads, warps, 2048).geometry;
  geometry.shared_bytes = warps * kept * static_cast<std::int64_t>(sizeof(float));
  return geometry;
}

/// @param work  a struct with `GALVATRON_KERNEL void operator()(const auto& lanes, std::int64_t row, float* scratch)
///              const`
void for_router_rows(auto& launcher, std::int64_t rows, std::int64_t kept, const auto& work) {
  if (rows > 0) launcher.launch(router_geometry(rows, kept), RouterRows{rows, kept, work});
}

/// Choices of rows, and their weights unless those are null.
template <class B>
struct Route {
  kernels::Router router;
  const float* logits;
  const B* bias;  ///< or null
  float* weights;
  std::int32_t* chosen;
  GALVATRON_KERNEL void operator()(const auto& lanes, std::int64_t row, float* scores) const {
    const float* l = logits + row * router.experts;
    std::int32_t* to = chosen + row * router.active;
    router.score(lanes, l, bias, scores);
    router.choose(lanes, scores, to);
    if (weights != nullptr) router.weigh(lanes, l, to, weights + row * router.active);
    lanes.sync();
  }
};

template <class T>
struct RouteBackward {
  kernels::Router router;
  std::int64_t samples;
  const float* logits;
  const std::int32_t* chosen;
  const float* d_weights;
  const float* counts;  ///< or null
  RouterLoss loss;
  T* gradient;
  GALVATRON_KERNEL void operator()(const auto& lanes, std::int64_t row, float*) const {
    const float* of_sample = counts == nullptr ? nullptr : counts + row % samples * router.experts;
    router.backward(lanes, logits + row * router.experts, chosen + row * router.active, d_weights + row * router.active,
                    of_sample, loss.balance, loss.z, gradient + row * router.experts);
  }
};

/// The losses of rows: a sum of each for every block, and then theirs.
struct SumRouterLosses {
  static constexpr int most_threads = 128;
  kernels::Router router;
  std::int64_t rows, samples;
  const float* logits;
  const float* counts;  ///< or null
  RouterLoss loss;
  double* sums;  ///< (2, blocks)
  double* balance;
  double* z;
  std::uint32_t* ticket;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const Teams warps{rows, warp_threads};
    const WarpLanes<std::remove_reference_t<decltype(block)>> lanes{block};
    kernels::Router::Losses own;
    for (std::int64_t row = warps.first_row(block); row < rows; row += warps.row_step(block)) {
      const float* of_sample = counts == nullptr ? nullptr : counts + row % samples * router.experts;
      const auto of_row = router.losses(lanes, logits + row * router.experts, of_sample);
      own.balance += of_row.balance;
      own.z += of_row.z;
    }
    const bool leads = lanes.lane() == 0;  // the other lanes have the same
    const double all_balance = block_sum(block, leads ? own.balance : 0.0);
    const double all_z = block_sum(block, leads ? own.z : 0.0);
    if (block.thread() == 0) {
      sums[block.index()] = all_balance * static_cast<double>(loss.balance);
      sums[block.blocks() + block.index()] = all_z * static_cast<double>(loss.z);
    }
    if (!is_last_block(block, ticket, block.blocks())) return;
    AddTotal{block.blocks(), sums, balance}(block);
    AddTotal{block.blocks(), sums + block.blocks(), z}(block);
  }
};

template <class B>
void route(auto& launcher, const kernels::Router& router, std::int64_t rows, const float* logits, const B* bias,
           float* weights, std::int32_t* chosen) {
  for_router_rows(launcher, rows, router.experts, Route<B>{router, logits, bias, weights, chosen});
}

/// Throws DeviceFailure when the scratch memory is too small for the choices.
inline void count_choices(auto& launcher, View<std::byte> scratch, std::uint32_t* tickets,
                          const kernels::Router& router, std::int64_t rows, std::int64_t samples, const float* logits,
                          const std::int32_t* chosen, float* counts) {
  if (router.kind == RouterKind::sigmoid) {
    const std::int64_t bytes = aligned_bytes(rows * router.active * static_cast<std::int64_t>(sizeof(std::int32_t)));
    partials_within(scratch, bytes, 1);
    auto* own = reinterpret_cast<std::int32_t*>(scratch.data);
    route<float>(launcher, router.without_groups(), rows, logits, nullptr, nullptr, own);
    scratch = scratch.slice(bytes, scratch.count - bytes);
    chosen = own;
  }
  sum_choices(launcher, scratch, tickets, {rows, samples, router.active, router.experts, chosen, nullptr},
              PutCounts{counts, false});
}

/// Throws DeviceFailure when the sums of blocks exceed the scratch memory.
inline void router_losses(auto& launcher, View<std::byte> scratch, std::uint32_t* tickets,
                          const kernels::Router& router, std::int64_t rows, std::int64_t samples, const float* logits,
                          const float* counts, RouterLoss loss, double* balance, double* z) {
  if (rows == 0) return;
  Geometry geometry = router_geometry(rows, 0);
  geometry.blocks = partials_within(scratch, 2 * sizeof(double), geometry.blocks);
  launcher.launch(geometry, SumRouterLosses{router, rows, samples, logits, counts, loss,
                                            reinterpret_cast<double*>(scratch.data), balance, z, tickets});
}

template <class T>
void route_backward(auto& launcher, const kernels::Router& router, std::int64_t rows, std::int64_t samples,
                    const float* logits, const std::int32_t* chosen, const float* d_weights, const float* counts,
                    RouterLoss loss, T* gradient) {
  for_router_rows(launcher, rows, 0,
                  RouteBackward<T>{router, samples, logits, chosen, d_weights, counts, loss, gradient});
}

}  // namespace galvatron::device::cuda
