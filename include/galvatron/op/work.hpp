// Work: an operation of a rank's device or of the network, as a kind and up to four extents.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/op/kind.hpp>

namespace galvatron::op {

/// The numbers that Work::overlap may have.
inline constexpr int overlaps = 6;

/// The kernels of attention. `device` is the best one that a device has, of which its rates and tables are.
enum class AttentionKernel : std::uint8_t {
  device,
  unfused,     ///< scores go through memory
  fa1,         ///< FlashAttention 1
  fa1_triton,  ///< FlashAttention as written in Triton
  fa2,         ///< FlashAttention 2
  fa3,         ///< FlashAttention 3; on devices before Hopper, FlashAttention 2
  cudnn,       ///< cuDNN's fused attention
};
inline constexpr std::array attention_kernels{
    AttentionKernel::device, AttentionKernel::unfused, AttentionKernel::fa1,  AttentionKernel::fa1_triton,
    AttentionKernel::fa2,    AttentionKernel::fa3,     AttentionKernel::cudnn};
constexpr const char* word_of(AttentionKernel kernel) {
  return std::array{"device", "unfused", "fa1", "triton-fa1", "fa2", "fa3", "cudnn"}[static_cast<std::size_t>(kernel)];
}

/// One operation, `times` times.
struct Work {
  Kind kind = Kind::copy;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t l = 0;
  std::int32_t times = 1;
  bool causal = false;     ///< attention only
  double seen = 1;         ///< attention only: the share of its pairs that a sliding window leaves
  bool eight_bit = false;  ///< products only: of operands that are rounded to 8 bits first (cost/product_8bit.hpp)
  Fp8Recipe recipe = Fp8Recipe::tensorwise;  ///< of 8-bit operands
  bool grouped = false;  ///< products only: each is one expert's of a call that computes all (Device::gemm_grouped)
  AttentionKernel kernel = AttentionKernel::device;  ///< attention only
  bool dropout = false;                              ///< attention that is not fused only: of the scores
  std::uint8_t overlap = 0;   ///< 0: alone; else a number of 1 to overlaps, see cost::Elapsed: turns of ring attention,
                              ///< and the last one what is beside the exchange of counts of experts
  bool parameters = false;    ///< communication only: of parameters or gradients, among ranks that have the same
  bool between_ends = false;  ///< communication only: of a rank of the first stage with one of the last
  std::int32_t stride = 1;    ///< communication only: neighbours of the group are so many ranks apart
  /// Weight gradients only: of so many executions one writes its result, and the others add to it; 0: all add.
  std::int32_t writes_one_in = 0;
  /// A writes_one_in: all write, each to a place where caches hold what its reduction then reads, as under ZeRO-2/3.
  static constexpr std::int32_t for_reduction = -1;

  /// No execution adds.
  [[nodiscard]] constexpr bool always_writes() const { return writes_one_in == 1 || writes_one_in == for_reduction; }

  friend constexpr bool operator==(const Work&, const Work&) = default;
};

/// Arithmetic of GEMMs and attention (multiply-add = 2); 0 for work that is bound by memory or the network.
constexpr Flops flops_of(const Work& w) {
  const auto d = [](std::int64_t x) { return static_cast<double>(x); };
  if (is_gemm(w.kind)) return {2.0 * d(w.m) * d(w.n) * d(w.k) * w.times};
  if (is_attention(w.kind)) {
    const double products = w.kind == Kind::attention_forward ? 2.0 : 5.0;  // of (n, k, l); backward repeats QK^T
    return {2.0 * products * d(w.m) * d(w.n) * d(w.k) * d(w.l) * (w.causal ? 0.5 : 1.0) * w.seen * w.times};
  }
  return {0};
}

/// A list of work with the capacity for one layer's pass, beyond which it throws std::length_error; no allocation, so
/// that it also lives at compile time. An empty list costs nothing to make: the slots are not cleared, which would take
/// longer than a layer's counts.
class WorkList {
  union Slot {
    Work work;
    constexpr Slot() {}
    explicit constexpr Slot(const Work& w) : work(w) {}
    constexpr operator const Work&() const { return work; }
    friend constexpr bool operator==(const Slot& a, const Slot& b) { return a.work == b.work; }
  };

 public:
  static constexpr int capacity = 96;

  /// Throws std::length_error beyond the capacity.
  constexpr void push(const Work& work) {
    std::uint8_t& last = last_[static_cast<std::size_t>(work.kind)];
    for (int i = last; i > 0; i = before_[i - 1])
      if (Work& made = slots_[i - 1].work; is_same(made, work)) {
        made.times += work.times;
        return;
      }
    if (size_ == capacity) throw std::length_error("a layer's pass has too many operations to be priced");
    before_[size_] = last;
    slots_[size_++] = Slot(work);
    last = static_cast<std::uint8_t>(size_);
  }
  constexpr void append(const WorkList& other) {
    for (const Work& work : other) push(work);
  }
  /// The same where one in `executions` writes the gradients of weights that some executions write.
  constexpr void write_one_in(std::int32_t executions) {
    for (int i = 0; i < size_; ++i)
      if (Work& work = slots_[static_cast<std::size_t>(i)].work; work.writes_one_in != 0)
        work.writes_one_in = executions;
  }
  [[nodiscard]] constexpr const Slot* begin() const { return slots_.data(); }
  [[nodiscard]] constexpr const Slot* end() const { return slots_.data() + size_; }
  [[nodiscard]] constexpr int size() const { return size_; }
  [[nodiscard]] constexpr Flops flops() const {
    Flops sum;
    for (const Work& work : *this) sum += flops_of(work);
    return sum;
  }

 private:
  // Two of a kind, but for how often.
  static constexpr bool is_same(const Work& a, const Work& b) {
    if (a.m != b.m) return false;  // mostly decides
    if (a.n != b.n || a.k != b.k || a.overlap != b.overlap) return false;
    Work same = a;
    same.times = b.times;
    return same == b;
  }

  std::array<Slot, capacity> slots_;
  int size_ = 0;
  // The items of a kind: the place of the last one, and of the one before each, from 1; 0: there is none.
  std::array<std::uint8_t, kinds> last_{};
  std::array<std::uint8_t, capacity> before_{};
};

}  // namespace galvatron::op
