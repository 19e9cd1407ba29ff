// What the kernels of attention do differently: their speeds beside each other, and how they fill up head dimensions.
#pragma once

#include <cstdint>

#include <galvatron/op/work.hpp>

namespace galvatron::cost::detail {

/// Speed of a fused kernel in that of FlashAttention-2 on devices whose best kernel is `best`: fa2 before Hopper, cudnn
/// from Hopper on, where the others use its instructions.
///
///     fa1         1/2     "around 2x" slower than FlashAttention-2 (Dao, arXiv 2307.08691, abstract)
///     triton-fa1  1/1.8   1.3 to 2.5 times slower (the same, section 4.1), the geometric mean
///     fa3, cudnn  1/0.67  on an H100: 254 / 331 / 397 / 440 / 465 / 483 TFLOP/s of both passes at 512 to 16k tokens,
///                         head dim 128, causal, beside 163 / 221 / 265 / 294 / 308 / 328 of FlashAttention-2; before
///                         Hopper both are as fast (Shah et al., arXiv 2407.08608, section 4)
constexpr double speed_in_fa2(op::AttentionKernel kernel, op::AttentionKernel best) {
  switch (kernel) {
    case op::AttentionKernel::fa1:
      return 1 / 2.0;
    case op::AttentionKernel::fa1_triton:
      return 1 / 1.8;
    case op::AttentionKernel::fa3:
    case op::AttentionKernel::cudnn:
      return best == op::AttentionKernel::cudnn ? 1 / 0.67 : 1;
    default:
      return 1;
  }
}

/// How many times the seconds of a device's best kernel another fused one takes.
constexpr double times_of_best(op::AttentionKernel kernel, op::AttentionKernel best) {
  if (kernel == op::AttentionKernel::device) return 1;
  return speed_in_fa2(best, best) / speed_in_fa2(kernel, best);
}

/// The head dim that a kernel computes with. FlashAttention 1 is compiled for 16, 32, 64 and 128, its later versions
/// for multiples of 32; inputs are filled up with zeros (Dao-AILab/flash-attention, csrc). cuDNN takes multiples of 8
/// (cuDNN's documentation of scaled dot product attention).
constexpr std::int64_t computed_head_dim(op::AttentionKernel kernel, std::int64_t head_dim) {
  const auto multiple = [head_dim](std::int64_t of) { return (head_dim + of - 1) / of * of; };
  switch (kernel) {
    case op::AttentionKernel::fa1:
    case op::AttentionKernel::fa1_triton: {
      std::int64_t size = 16;
      while (size < head_dim) size *= 2;
      return size;
    }
    case op::AttentionKernel::fa2:
    case op::AttentionKernel::fa3:
      return multiple(32);
    case op::AttentionKernel::cudnn:
      return multiple(8);
    default:
      return head_dim;
  }
}

/// Products with a head dim inside that is no multiple of 8 halves of a word: rows do not begin on 16 bytes, as tensor
/// cores load them, and go through loads of half the width ("Matrix Multiplication Background", NVIDIA, section 2.2).
constexpr double misaligned_times(std::int64_t head_dim) { return head_dim % 8 == 0 ? 1 : 2; }

}  // namespace galvatron::cost::detail
