// Work: what a rank asks of its device and of the network, in units that a profile can price.
//
// The layer code on device::dry, the closed formulas of cost/layer.hpp and the rate tables of a cluster all speak of
// work in these terms: an operation is a kind and up to four extents.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include <galvatron/core/units.hpp>

namespace galvatron::cost {

/// Extents are (m, n, k, l) of Work; all row-major; e is the bytes of an element.
enum class WorkKind : std::uint8_t {
  gemm_nt,              ///< (m, k) x (n, k)^T -> (m, n): a linear layer forward
  gemm_nn,              ///< (m, k) x (k, n) -> (m, n): its input gradient
  gemm_tn,              ///< (k, m)^T x (k, n) += (m, n) in fp32: its weight gradient; see writes_one_in
  attention_forward,    ///< m = batch * query heads, n = query tokens, k = key tokens, l = head dim; causal counts half
  attention_backward,   ///< the same extents
  norm_forward,         ///< m rows of n
  add_norm_forward,     ///< m rows of n: a residual is added, and the sum normalised
  norm_backward,        ///< m rows of n
  activation_forward,   ///< m rows of n outputs
  activation_backward,  ///< m rows of n outputs
  rotary,               ///< m rows of n rotated elements
  add,                  ///< m elements: two read, one written (residuals, gradient accumulation)
  bias_gradient,        ///< column sums of m rows of n
  embedding_forward,    ///< m rows of n
  embedding_backward,   ///< m rows of n
  softmax_statistics,   ///< m rows of n logits read
  softmax_backward,     ///< m rows of n logits read and written
  adamw,                ///< m parameters
  adamw_bf16,           ///< m parameters, with moments in bfloat16
  norm_squared,         ///< m elements read: a part of the gradient norm
  fill,                 ///< m bytes written
  copy,                 ///< m bytes read and written
  all_reduce,           ///< m bytes per rank, n ranks
  all_gather,           ///< m bytes gathered in all, n ranks
  reduce_scatter,       ///< m bytes per rank before, n ranks
  broadcast,            ///< m bytes, n ranks
  send,                 ///< m bytes to one peer; n pieces; k ranks of the group inside which peers are, 0: anywhere
  all_to_all,           ///< m bytes per rank before (= after), n ranks: each gets 1/n from each
};
inline constexpr int work_kinds = static_cast<int>(WorkKind::all_to_all) + 1;

constexpr const char* name_of(WorkKind kind) {
  constexpr std::array<const char*, work_kinds> names{"gemm_nt",
                                                      "gemm_nn",
                                                      "gemm_tn",
                                                      "attention_forward",
                                                      "attention_backward",
                                                      "norm_forward",
                                                      "add_norm_forward",
                                                      "norm_backward",
                                                      "activation_forward",
                                                      "activation_backward",
                                                      "rotary",
                                                      "add",
                                                      "bias_gradient",
                                                      "embedding_forward",
                                                      "embedding_backward",
                                                      "softmax_statistics",
                                                      "softmax_backward",
                                                      "adamw",
                                                      "adamw_bf16",
                                                      "norm_squared",
                                                      "fill",
                                                      "copy",
                                                      "all_reduce",
                                                      "all_gather",
                                                      "reduce_scatter",
                                                      "broadcast",
                                                      "send",
                                                      "all_to_all"};
  static_assert(names.back() != nullptr);
  return names[static_cast<std::size_t>(kind)];
}

/// The numbers that Work::overlap may have.
inline constexpr int overlaps = 5;

constexpr bool is_gemm(WorkKind kind) { return kind <= WorkKind::gemm_tn; }
constexpr bool is_attention(WorkKind kind) {
  return kind == WorkKind::attention_forward || kind == WorkKind::attention_backward;
}
constexpr bool is_communication(WorkKind kind) { return kind >= WorkKind::all_reduce; }

/// One operation, `times` times.
struct Work {
  WorkKind kind = WorkKind::copy;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t l = 0;
  std::int32_t times = 1;
  bool causal = false;       ///< attention only
  bool eight_bit = false;    ///< products only: of operands that are rounded to 8 bits first (cost/product_8bit.hpp)
  bool unfused = false;      ///< attention only: scores go through memory
  bool dropout = false;      ///< attention that is not fused only: of the scores
  bool in_product = false;   ///< GELU and its gradient only: part of the product before them, where a device can
  std::uint8_t overlap = 0;  ///< 0: alone; else a number of 1 to overlaps, see cost/overlap.hpp
  std::int32_t stride = 1;   ///< communication only: neighbours of the group are so many ranks apart
  /// Weight gradients only: of so many executions one writes its result, and the others add to it; 0: all add.
  std::int32_t writes_one_in = 0;

  friend constexpr bool operator==(const Work&, const Work&) = default;
};

/// Arithmetic of GEMMs and attention (multiply-add = 2); 0 for work that is bound by memory or the network.
constexpr Flops flops_of(const Work& w) {
  const auto d = [](std::int64_t x) { return static_cast<double>(x); };
  if (is_gemm(w.kind)) return {2.0 * d(w.m) * d(w.n) * d(w.k) * w.times};
  if (is_attention(w.kind)) {
    const double products = w.kind == WorkKind::attention_forward ? 2.0 : 5.0;  // of (n, k, l); backward repeats QK^T
    return {2.0 * products * d(w.m) * d(w.n) * d(w.k) * d(w.l) * (w.causal ? 0.5 : 1.0) * w.times};
  }
  return {0};
}

/// A list of work with room for one layer's pass; no allocation, so that it also lives at compile time. An empty list
/// costs nothing to make: the room is not cleared, which would take longer than a layer's counts.
class WorkList {
  union Slot {
    Work work;
    constexpr Slot() {}
    explicit constexpr Slot(const Work& w) : work(w) {}
  };

 public:
  static constexpr int capacity = 64;

  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Work;
    using difference_type = std::ptrdiff_t;
    using pointer = const Work*;
    using reference = const Work&;

    constexpr Iterator() = default;
    explicit constexpr Iterator(const Slot* at) : at_(at) {}
    constexpr reference operator*() const { return at_->work; }
    constexpr pointer operator->() const { return &at_->work; }
    constexpr Iterator& operator++() {
      ++at_;
      return *this;
    }
    constexpr Iterator operator++(int) { return Iterator(at_++); }
    friend constexpr bool operator==(Iterator, Iterator) = default;

   private:
    const Slot* at_ = nullptr;
  };

  constexpr void push(const Work& work) {
    std::uint8_t& last = last_[static_cast<std::size_t>(work.kind)];
    for (int i = last; i > 0; i = before_[i - 1])
      if (Work& made = slots_[i - 1].work; is_same(made, work)) {
        made.times += work.times;
        return;
      }
    before_[size_] = last;
    slots_[size_++] = Slot(work);  // beyond the capacity: a compile error in constant evaluation
    last = static_cast<std::uint8_t>(size_);
  }
  constexpr void append(const WorkList& other) {
    for (const Work& work : other) push(work);
  }
  [[nodiscard]] constexpr Iterator begin() const { return Iterator(slots_.data()); }
  [[nodiscard]] constexpr Iterator end() const { return Iterator(slots_.data() + size_); }
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
    Work same = a;
    same.times = b.times;
    return same == b;
  }

  std::array<Slot, capacity> slots_;
  int size_ = 0;
  // The items of a kind: the place of the last one, and of the one before each, from 1; 0: there is none.
  std::array<std::uint8_t, work_kinds> last_{};
  std::array<std::uint8_t, capacity> before_{};
};

}  // namespace galvatron::cost
