// Operations of one rank, timed on its device with operands as a training step has them.
//
// Weights, gradients and kept activations were last used about a pass ago, while what the operation before has written
// is near. So operands of the first kind walk through a pool that holds as many of them as a small model has, and those
// of the second kind through two places.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/rng.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/cost/product_8bit.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/rank/stopwatch.hpp>

namespace galvatron::train::detail {

/// Hands out places in a region one after another, and begins again at its end.
class Walk {
 public:
  explicit Walk(View<std::byte> region) : region_(region), limit_(region.count) {}
  template <class T>
  View<T> next(std::int64_t count) {
    const std::int64_t bytes = aligned_bytes(count * static_cast<std::int64_t>(sizeof(T)));
    if (at_ + bytes > limit_) at_ = 0;
    View<T> place(reinterpret_cast<T*>(region_.data + at_), count);
    at_ += bytes;
    return place;
  }
  /// From now on walks in the first `bytes` of the region only.
  Walk& within(std::int64_t bytes) {
    limit_ = std::clamp<std::int64_t>(bytes, 0, region_.count);
    return *this;
  }

 private:
  View<std::byte> region_;
  std::int64_t limit_;
  std::int64_t at_ = 0;
};

/// How much memory measurements walk through.
struct BenchSizes {
  std::int64_t pool_bytes = std::int64_t{64} << 20;  ///< of inputs, and of results: beyond what caches hold
  std::int64_t near_bytes = std::int64_t{1} << 19;   ///< of the same, within them
  int vocabulary_bits = 12;                          ///< of the tokens, whose tables are to be beyond caches too

  friend bool operator==(const BenchSizes&, const BenchSizes&) = default;
};

/// One rank's device and memory. Not for sharing between threads.
/// @tparam Platform  HostPlatform or its like
template <class Platform>
class Bench {
 public:
  using Device = typename Platform::Rank::Device;
  static constexpr std::int64_t token_count = 1 << 16;

  Bench(const Platform& platform, const BenchSizes& sizes)
      : sizes_(sizes),
        rank_(platform.make(memory(platform, sizes))),
        device_(rank_.device()),
        inputs_(taken(rank_.memory().states)),
        outputs_(taken(rank_.memory().stash)),
        near_inputs_(rank_.memory().boundary.template take<std::byte>(sizes.near_bytes)),
        near_outputs_(taken(rank_.memory().workspace)),
        far_(inputs_),
        kept_(outputs_),
        watch_(platform.stopwatch()),
        tokens_(rank_.memory().boundary.template take<std::int32_t>(token_count)),
        expert_offsets_(rank_.memory().boundary.template take<std::int32_t>(experts + 1)) {
    for (const View<std::byte>& part : {inputs_, outputs_, near_inputs_, near_outputs_}) fill(part);
    device_.write(tokens_, [bits = sizes.vocabulary_bits](View<std::int32_t> out) {
      std::uint32_t random = 12345;
      for (std::int32_t& token : out) {
        random = random * 1664525U + 1013904223U;
        token = static_cast<std::int32_t>(random >> (32 - bits));
      }
    });
  }

  /// From now on, and until the call with false, devices that can choose among algorithms look for the fastest.
  void search(bool searches) {
    if constexpr (requires { rank_.begin_search(); }) searches ? rank_.begin_search() : rank_.end_search();
  }

  [[nodiscard]] const Stopwatch& watch() const { return watch_; }
  /// The time when all that was asked of the device is done.
  double now() {
    device_.wait();
    return watch_.now();
  }
  /// Seconds of one op() of the device; see detail::measure.
  template <class Op>
  double time(double least, const Op& op) {
    return measure(
        [this](int calls, const Op& one) {
          if constexpr (requires { rank_.seconds(calls, one); }) {
            return rank_.seconds(calls, one);
          } else {
            const double begin = now();
            for (int i = 0; i < calls; ++i) one();
            return now() - begin;
          }
        },
        least, op);
  }
  [[nodiscard]] Device& device() { return device_; }
  /// Memory for messages.
  [[nodiscard]] View<std::byte> buffer() const { return outputs_; }

  /// Experts of the grouped products that are measured.
  static constexpr std::int64_t experts = 8;

  /// A product of one execution; a weight gradient is written when its work says that every one is, near where it is
  /// for a reduction, else added. Of a grouped product, whose experts have as many rows each, the part of one.
  template <class T>
  double gemm(const op::Work& product, double least) {
    if (product.grouped) return grouped_product<T>(product, least);
    const std::int64_t m = product.m;
    const std::int64_t n = product.n;
    const std::int64_t k = product.k;
    const auto multiply = [&](View<T> a, View<T> b, auto c, bool accumulate, View<const T> bias) {
      if constexpr (std::is_same_v<T, bfloat16>) {
        if (product.eight_bit) {
          const std::int64_t bytes = cost::buffer_bytes_8bit(m, n, k);
          return device_.gemm_8bit(
              product.kind, m, n, k, View<const T>(a), View<const T>(b), c, accumulate, bias,
              outputs_.slice((outputs_.count - bytes) / tensor_alignment * tensor_alignment, bytes));
        }
      }
      device_.gemm(product.kind, m, n, k, a, b, c, accumulate, bias);
    };
    constexpr auto each = static_cast<std::int64_t>(sizeof(T));
    Walk& far = far_.within(pass_bytes(n * k * each));
    const bool adds = !product.always_writes();
    Walk& kept = kept_.within(pass_bytes(m * n * 4));
    Walk near = near_inputs(m * k * each);
    Walk near_result = near_outputs(m * n * each);
    Walk reduced = near_outputs(m * n * 4);
    Walk& gradients = product.writes_one_in == op::Work::for_reduction ? reduced : kept;
    return time(least, [&] {
      const View<T> a = near.next<T>(m * k);
      const View<T> b = far.next<T>(n * k);
      if (product.kind == op::Kind::gemm_tn)  // gradient of the output, kept input, gradient of the weight
        return multiply(a, b, gradients.next<float>(m * n), adds, {});
      if (product.kind == op::Kind::gemm_nn) return multiply(a, b, near_result.next<T>(m * n), false, {});
      multiply(a, b, kept.next<T>(m * n), false, far.next<T>(n));
    });
  }
  /// True when the operands fit the pools.
  [[nodiscard]] bool gemm_fits(std::int64_t m, std::int64_t n, std::int64_t k, bool grouped = false) const {
    return 4 * (grouped ? experts : 1) * std::max({m * n, n * k, m * k}) <= sizes_.pool_bytes / 2;
  }

  /// Attention of one execution, of as many keys as queries.
  template <class T>
  double attention(const op::Work& work, double least) {
    const std::int64_t tokens = work.n;
    const std::int64_t head_dim = work.l;
    const std::int64_t heads = work.m;
    const std::int64_t batch = heads >= 4 ? heads / 4 : 1;
    const std::int64_t local = heads / batch;
    const std::int64_t width = local * head_dim;
    const device::AttentionShape shape{.batch = batch,
                                       .queries = tokens,
                                       .keys = tokens,
                                       .heads = local,
                                       .kv_heads = local,
                                       .head_dim = head_dim,
                                       .causal = work.causal,
                                       .q_stride = 3 * width,
                                       .kv_stride = 3 * width,
                                       .out_stride = width};
    const std::int64_t rows = tokens * batch;
    const std::int64_t fused_count = rows * 3 * width;
    constexpr auto each = static_cast<std::int64_t>(sizeof(T));
    Walk& far = far_.within(pass_bytes(fused_count * each));
    Walk& kept = kept_.within(pass_bytes(rows * width * each));
    const auto part = [&](View<T> fused, int i) { return fused.slice(i * width, fused.count - i * width); };
    if (work.kind == op::Kind::attention_forward) {
      Walk near = near_inputs(fused_count * each);
      return time(least, [&] {
        const View<T> fused = near.next<T>(fused_count);
        device_.attention_forward(shape, part(fused, 0), part(fused, 1), part(fused, 2), kept.next<T>(rows * width),
                                  kept.next<float>(rows * local));
      });
    }
    const View<float> lse = kept.template next<float>(rows * local);
    const View<T> sample = far.next<T>(fused_count);
    device_.attention_forward(shape, part(sample, 0), part(sample, 1), part(sample, 2), kept.next<T>(rows * width),
                              lse);
    Walk near = near_inputs(rows * width * each);
    Walk near_result = near_outputs(fused_count * each);
    return time(least, [&] {
      const View<T> fused = far.next<T>(fused_count);
      const View<T> gradient = near_result.next<T>(fused_count);
      device_.attention_backward(shape, part(fused, 0), part(fused, 1), part(fused, 2), far.next<T>(rows * width), lse,
                                 near.next<T>(rows * width), part(gradient, 0), part(gradient, 1), part(gradient, 2),
                                 kept.next<float>(rows * local));
    });
  }
  [[nodiscard]] bool attention_fits(std::int64_t tokens, std::int64_t head_dim, std::int64_t heads) const {
    return tokens * head_dim * heads * 3 * 4 <= sizes_.pool_bytes / 2;
  }

  /// An operation of op::memory_bound. Flat ones have one column; rows of fill and copy are bytes.
  template <class T>
  double memory_bound(op::Kind kind, std::int64_t rows, std::int64_t columns, double least) {
    using K = op::Kind;
    const std::int64_t n = rows * columns;
    const NormKind norm = NormKind::layer_norm;
    const std::int64_t vocabulary = std::int64_t{1} << sizes_.vocabulary_bits;
    const std::int64_t head_dim = std::min<std::int64_t>(columns, 64);
    const View<const std::int32_t> tokens = tokens_;
    constexpr auto each = static_cast<std::int64_t>(sizeof(T));
    Walk& far = far_.within(pass_bytes(n * 4));
    Walk& kept = kept_.within(pass_bytes(n * 4));
    Walk near = near_inputs(n * each);
    Walk near_result = near_outputs(n * each);
    // Those that need more than one call.
    if (kind == K::adamw) return adamw<float, T>(n, far, kept, least);
    if (kind == K::adamw_bf16) return adamw<bfloat16, T>(n, far, kept, least);
    if (op::is_in_product(kind)) return gelu_in_product<T>(kind, rows, columns, least);
    return time(least, [&] {
      switch (kind) {
        case K::norm_forward:
          return device_.norm_forward(norm, rows, columns, 1e-5, near.next<T>(n), far.next<T>(columns),
                                      far.next<T>(columns), kept.next<T>(n), kept.next<float>(2 * rows));
        case K::add_norm_forward:
          return device_.add_norm_forward(norm, rows, columns, 1e-5, far.next<T>(n), near.next<T>(n),
                                          far.next<T>(columns), far.next<T>(columns), kept.next<T>(n),
                                          near_result.next<T>(n), kept.next<float>(2 * rows));
        case K::norm_backward:
          return device_.norm_backward(norm, rows, columns, near.next<T>(n), far.next<T>(n), far.next<T>(columns),
                                       far.next<float>(2 * rows), near.next<T>(n), near_result.next<T>(n),
                                       kept.next<float>(columns), kept.next<float>(columns));
        case K::activation_forward:
          return device_.activation_forward(ActivationKind::gelu, rows, columns, near.next<T>(n), kept.next<T>(n));
        case K::activation_backward:
          return device_.activation_backward(ActivationKind::gelu, rows, columns, far.next<T>(n), near.next<T>(n),
                                             near_result.next<T>(n));
        case K::rotary:
          return device_.rotary(rows, 1, 0, columns / head_dim, head_dim, columns, 10000.0, false,
                                near_result.next<T>(n));
        case K::add:
          return device_.add(n, near.next<T>(n), near.next<T>(n), near_result.next<T>(n));
        case K::bias_gradient:
          return device_.bias_gradient(rows, columns, near.next<T>(n), kept.next<float>(columns));
        case K::embedding_forward:
          return device_.embedding_forward(rows, columns, tokens, 0, vocabulary, 1.0F, table_in<T>(inputs_, columns),
                                           kept.next<T>(n));
        case K::embedding_backward:
          return device_.embedding_backward(rows, columns, tokens, 0, vocabulary, 1.0F, near.next<T>(n),
                                            table_in<float>(outputs_, columns));
        case K::softmax_statistics:
          return device_.softmax_statistics(rows, columns, columns, 0, near.next<T>(n), tokens,
                                            kept.next<float>(3 * rows));
        case K::softmax_backward:
          return device_.softmax_backward(rows, columns, columns, 0, far.next<float>(rows), tokens, 1.0F, false,
                                          near_result.next<T>(n));
        case K::norm_squared:
          return device_.norm_squared(n, far.next<float>(n), device_.sums().slice(device::gradient_squares, 1));
        case K::fill:
          return device_.zero(kept.next<std::byte>(n));
        case K::copy:
          return device_.copy(near.next<std::byte>(n), kept.next<std::byte>(n));
        default:
          return;
      }
    });
  }
  /// True when GELU of that format is a part of products here.
  template <class T>
  [[nodiscard]] bool has_gelu_in_product() const {
    if constexpr (requires { rank_.has_gelu_in_product(); })
      return std::is_same_v<T, bfloat16> && rank_.has_gelu_in_product();
    else
      return false;
  }
  [[nodiscard]] bool memory_bound_fits(std::int64_t rows, std::int64_t columns) const {
    return rows * columns <= sizes_.pool_bytes / 16 && columns << sizes_.vocabulary_bits <= sizes_.pool_bytes / 4 &&
           (columns == 1 || rows <= token_count);
  }

  /// What the memory of a rank with these sizes takes.
  static cost::StageMemory memory(const Platform& platform, const BenchSizes& sizes) {
    const std::int64_t number_bytes = aligned_bytes(token_count * static_cast<std::int64_t>(sizeof(std::int32_t))) +
                                      aligned_bytes((experts + 1) * static_cast<std::int64_t>(sizeof(std::int32_t)));
    return {.states = {sizes.pool_bytes},
            .stash = {sizes.pool_bytes},
            .boundary = {sizes.near_bytes + number_bytes},
            .workspace = {sizes.near_bytes},
            .library = platform.library_workspace()};
  }

 private:
  // The table of the vocabulary.
  template <class T>
  [[nodiscard]] View<T> table_in(View<std::byte> pool, std::int64_t columns) const {
    return {reinterpret_cast<T*>(pool.data), columns << sizes_.vocabulary_bits};
  }
  // What GELU, or its gradient, adds to the product of an MLP that is four times as wide as its input.
  template <class T>
  double gelu_in_product(op::Kind kind, std::int64_t m, std::int64_t n, double least) {
    const std::int64_t k = n / 4;
    constexpr auto each = static_cast<std::int64_t>(sizeof(T));
    Walk& far = far_.within(pass_bytes(m * n * each));
    Walk& kept = kept_.within(pass_bytes(m * n * each));
    Walk near = near_inputs(m * k * each);
    Walk near_result = near_outputs(m * n * each);
    const bool forward = kind == op::Kind::gelu_in_product;
    const double both = time(least, [&] {
      if (forward)
        return device_.gemm_activation(ActivationKind::gelu, m, n, k, near.next<T>(m * k), far.next<T>(n * k),
                                       far.next<T>(n), kept.next<T>(m * n), near_result.next<T>(m * n));
      const View<T> gradient = near_result.next<T>(m * n);
      device_.gemm_activation_backward(ActivationKind::gelu, m, n, k, near.next<T>(m * k), far.next<T>(k * n),
                                       far.next<T>(m * n), gradient, gradient);
    });
    const op::Kind product = forward ? op::Kind::gemm_nt : op::Kind::gemm_nn;
    return std::max(both - gemm<T>({.kind = product, .m = m, .n = n, .k = k}, least), 1e-9);
  }
  template <class T>
  double grouped_product(const op::Work& product, double least) {
    const bool sums_rows = product.kind == op::Kind::gemm_tn;
    // Rows of an expert, and the extents of gemm_grouped().
    const std::int64_t rows = sums_rows ? product.k : product.m;
    const std::int64_t n = sums_rows ? product.m : product.n;
    const std::int64_t k = sums_rows ? product.n : product.k;
    const View<std::int32_t> offsets = expert_offsets_;
    device_.write(offsets, [rows](View<std::int32_t> to) {
      for (std::int64_t e = 0; e <= experts; ++e) to[e] = static_cast<std::int32_t>(e * rows);
    });
    constexpr auto each = experts * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t of_a = experts * rows * (sums_rows ? n : k);
    Walk& far = far_.within(pass_bytes(n * k * each));
    Walk& kept = kept_.within(pass_bytes(std::max(n * k, rows * n) * experts * 4));
    const bool adds = !product.always_writes();
    Walk near = near_inputs(rows * (sums_rows ? n : k) * each);
    Walk near_result = near_outputs(rows * n * each);
    Walk reduced = near_outputs(n * k * experts * 4);
    Walk& gradients = product.writes_one_in == op::Work::for_reduction ? reduced : kept;
    const auto multiply = [&](View<T> a, View<T> b, auto c, bool accumulate) {
      device_.gemm_grouped(product.kind, experts, experts * rows, n, k, View<const std::int32_t>(offsets), a, b, c,
                           accumulate);
    };
    return time(least,
                [&] {
                  const View<T> a = near.next<T>(of_a);
                  if (sums_rows)
                    return multiply(a, far.next<T>(experts * rows * k), gradients.next<float>(experts * n * k), adds);
                  const View<T> b = far.next<T>(experts * n * k);
                  if (product.kind == op::Kind::gemm_nn)
                    return multiply(a, b, near_result.next<T>(experts * rows * n), false);
                  multiply(a, b, kept.next<T>(experts * rows * n), false);
                }) /
           static_cast<double>(experts);
  }
  // M: of the moments.
  template <class M, class T>
  double adamw(std::int64_t n, Walk& far, Walk& kept, double least) {
    device_.begin_update({});
    return time(least, [&] {
      const View<float> master = kept.next<float>(n);
      const View<M> first = kept.next<M>(n);
      const View<M> second = kept.next<M>(n);
      View<T> working;
      if constexpr (std::is_same_v<T, float>)
        working = master;
      else
        working = kept.next<T>(n);
      device_.adamw(n, {}, View<const float>(device_.gradient_scale()), master, far.next<float>(n), first, second,
                    working);
    });
  }

  // Random numbers between -1/64 and 1/64, read as bfloat16 or as binary32 alike. A GPU that multiplies equal numbers
  // needs less power, and so is faster, than on those of a model.
  void fill(View<std::byte> all) {
    const View<std::byte> first = all.slice(0, std::min(all.count, std::int64_t{16} << 20));
    device_.write(first, [](View<std::byte> to) {
      const auto number = [](std::uint32_t bits) {  // of 16, and never 0
        return bfloat16((static_cast<float>(bits & 0xffffU) + 0.5F) / 65536 / 32 - 1.0F / 64);
      };
      for (std::int64_t at = 0; at < to.count; at += 16) {
        bfloat16 numbers[8];
        const auto words = random_block(1, 0, static_cast<std::uint64_t>(at / 16));
        for (std::size_t i = 0; i < 8; ++i) numbers[i] = number(words[i / 2] >> 16 * (i % 2));
        std::memcpy(to.data + at, numbers, static_cast<std::size_t>(std::min<std::int64_t>(16, to.count - at)));
      }
    });
    for (std::int64_t at = first.count; at < all.count; at += first.count) {
      const View<std::byte> part = all.slice(at, std::min(first.count, all.count - at));
      device_.copy(View<const std::byte>(first.data, part.count), part);
    }
  }
  static View<std::byte> taken(device::Region& region) { return region.take<std::byte>(region.capacity()); }

  /// The part of a pool through which operands of this size walk: a pass over a small model has about sixteen of them
  /// between two uses of one.
  [[nodiscard]] std::int64_t pass_bytes(std::int64_t operand_bytes) const {
    return std::clamp(16 * operand_bytes, 8 * sizes_.near_bytes, sizes_.pool_bytes);
  }
  /// The near pool, or as much of the far one as two such operands take.
  [[nodiscard]] View<std::byte> near_part(View<std::byte> near, View<std::byte> far, std::int64_t bytes) const {
    return 2 * bytes <= sizes_.near_bytes ? near : far.slice(0, std::min(sizes_.pool_bytes, 2 * aligned_bytes(bytes)));
  }
  [[nodiscard]] Walk near_inputs(std::int64_t bytes) const { return Walk(near_part(near_inputs_, inputs_, bytes)); }
  [[nodiscard]] Walk near_outputs(std::int64_t bytes) const { return Walk(near_part(near_outputs_, outputs_, bytes)); }

  BenchSizes sizes_;
  typename Platform::Rank rank_;
  Device& device_;
  View<std::byte> inputs_;   // read only, so that values stay what they are
  View<std::byte> outputs_;  // results and states
  View<std::byte> near_inputs_;
  View<std::byte> near_outputs_;
  Walk far_;  // goes on from one measurement to the next, so that nothing of the last one is met again soon
  Walk kept_;
  Stopwatch watch_;
  View<std::int32_t> tokens_;
  View<std::int32_t> expert_offsets_;  // (experts + 1)
};

}  // namespace galvatron::train::detail
