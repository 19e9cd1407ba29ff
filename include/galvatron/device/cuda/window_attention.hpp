// Attention within the windows of images: flash attention whose units are windows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/attention.hpp>
#include <galvatron/device/cuda/flash_backward.hpp>
#include <galvatron/device/cuda/flash_bias.hpp>
#include <galvatron/device/cuda/flash_forward.hpp>
#include <galvatron/device/cuda/flash_problem.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::device::cuda {

namespace detail {
/// `addresses` are those of all tensors of T with rows of heads.
template <class T, class... P>
FlashProblem<T> window_problem(const WindowShape& s, const T* table, const P*... addresses) {
  return {.units = static_cast<int>(s.batch * s.windows()),
          .batch = static_cast<int>(s.batch),
          .queries = static_cast<int>(s.span()),
          .keys = static_cast<int>(s.span()),
          .heads = static_cast<int>(s.heads),
          .kv_heads = static_cast<int>(s.heads),
          .head_dim = static_cast<int>(s.head_dim),
          .packed = is_packed<T>(s.head_dim, addresses...) && s.stride % Pack<T>::size == 0 &&
                    s.out_stride % Pack<T>::size == 0,
          .q_stride = s.stride,
          .kv_stride = s.stride,
          .out_stride = s.out_stride,
          .dq_stride = s.stride,
          .dkv_stride = s.stride,
          .lse_stride = s.tokens(),
          .delta_stride = s.span(),
          .window = static_cast<int>(s.window),
          .side = static_cast<int>(s.side),
          .shift = static_cast<int>(s.shift),
          .table = table};
}
}  // namespace detail

/// o and lse from q, k, v and the table; see Device::window_attention_forward. Throws DeviceFailure for heads of more
/// than 256 elements.
template <class L, class T>
void window_attention_forward(L& launcher, const WindowShape& shape, const T* q, const T* k, const T* v, const T* table,
                              T* o, float* lse) {
  const auto problem = detail::window_problem<T>(shape, table, q, k, v, o);
  if (problem.units > 0) detail::flash_forward(launcher, problem, q, k, v, o, lse);
}

/// dq, dk, dv, and the table's gradient, which grows. Throws DeviceFailure for heads of more than 256 elements, and for
/// windows that `scratch` is too small for.
template <class L, class T>
void window_attention_backward(L& launcher, View<std::byte> scratch, const WindowShape& shape, const T* q, const T* k,
                               const T* v, const T* table, const float* lse, const T* d_o, T* dq, T* dk, T* dv,
                               float* d_table) {
  using namespace detail;
  FlashProblem<T> problem = window_problem<T>(shape, table, q, k, v, d_o, dq, dk, dv);
  // Half of the scratch memory is for delta, of as many windows as fit, and the rest for sums of the table's gradient.
  const View<float> floats = floats_of(scratch);
  const std::int64_t half = floats.count / 2;
  const std::int64_t fit = half / (shape.heads * shape.span());
  if (fit == 0)
    throw DeviceFailure("the GPU's attention has no room for windows of " + std::to_string(shape.window) + " x " +
                        std::to_string(shape.window) + " tokens with " + std::to_string(shape.heads) +
                        " heads; choose smaller windows");
  const int all = problem.units;
  for (; problem.first_unit < all; problem.first_unit += problem.units) {
    problem.units = static_cast<int>(std::min<std::int64_t>(fit, all - problem.first_unit));
    flash_backward<L, T>(launcher, problem, q, k, v, nullptr, lse, d_o, dq, dk, dv, floats.data);
    flash_bias(launcher, floats.slice(half, floats.count - half), problem, q, k, v, lse, d_o,
               static_cast<const float*>(floats.data), [&](const BiasPart& part) {
                 const AddWindowPairs add{part, problem.window, problem.heads, d_table};
                 for_each(launcher, add.count(), add);
               });
  }
}

}  // namespace galvatron::device::cuda
