// The Device that computes on a GPU, whatever launches its kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <galvatron/device/cuda/attention.hpp>
#include <galvatron/device/cuda/attention_bias.hpp>
#include <galvatron/device/cuda/choices.hpp>
#include <galvatron/device/cuda/document_groups.hpp>
#include <galvatron/device/cuda/embedding.hpp>
#include <galvatron/device/cuda/experts.hpp>
#include <galvatron/device/cuda/graph_replay.hpp>
#include <galvatron/device/cuda/grouped_product.hpp>
#include <galvatron/device/cuda/lsh.hpp>
#include <galvatron/device/cuda/norm.hpp>
#include <galvatron/device/cuda/optimizer.hpp>
#include <galvatron/device/cuda/pointwise.hpp>
#include <galvatron/device/cuda/rounding.hpp>
#include <galvatron/device/cuda/router.hpp>
#include <galvatron/device/cuda/softmax.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/product.hpp>

namespace galvatron::device::cuda {

/// Executes the operations of the Device concept, in order, on machine M, which has:
/// - launch(geometry, kernel), zero(to, bytes), copy(from, to, bytes);
/// - multiply(product, a, b, bias, c): see Product; of fp8 multiply(product, a, b, bias, c, unscale), for gemm_nt of
///   codes that are multiplied with unscale, see Buffers8bit;
/// - try_multiply(product, epilogue, a, b, bias, u, c): see Epilogue; false when the machine has no such product, and
///   nothing was done;
/// - attention(shape, precision, q, k, v, o, lse), or with (d_o, dq, dk, dv) behind them backward: false when the
///   machine has none of its own for this shape, and nothing was done;
/// - the same of packed documents in bfloat16 with a causal mask: attention(shape, groups, tables, ...), see
///   DocumentGroups; `tables` are on the device;
/// - has_warp_groups(): there are products of warp groups, see Block;
/// - wait(): until all that was launched is done;
/// - fetch(from, to, bytes): to memory of the program, and waits for it;
/// - upload(to, bytes, writer): writer(std::byte*) fills memory of the program, which goes to the device;
/// - workspace(): memory of the device for Gpu itself, of workspace_bytes;
/// - begin_recording(), end_recording(), drop_recording(), run(recording): see GraphReplay.
///
/// Operations return before they are done; memory that they were given stays until then.
template <class M>
class Gpu {
 public:
  static constexpr bool counts_only = false;
  static constexpr bool groups_products = true;
  /// What sums over blocks take, their tickets, and the sums of a step.
  static constexpr std::int64_t workspace_bytes = std::int64_t{16} << 20;

  explicit Gpu(M& machine) : m_(machine) {
    const View<std::byte> all = m_.workspace();
    constexpr std::int64_t tickets_bytes = aligned_bytes(most_tickets * std::int64_t{sizeof(std::uint32_t)});
    constexpr std::int64_t loads_bytes = aligned_bytes(most_loads * std::int64_t{sizeof(float)});
    constexpr std::int64_t layers_bytes = aligned_bytes(most_layer_sums * std::int64_t{sizeof(double)});
    constexpr std::int64_t own = 3 * tensor_alignment + tickets_bytes + loads_bytes + layers_bytes;
    sums_ = {reinterpret_cast<double*>(all.data), step_sums};
    scale_ = {reinterpret_cast<float*>(all.data + tensor_alignment), 1};
    static_assert(sizeof(kernels::AdamWStep) <= tensor_alignment);
    update_ = reinterpret_cast<kernels::AdamWStep*>(all.data + 2 * tensor_alignment);
    tickets_ = reinterpret_cast<std::uint32_t*>(all.data + 3 * tensor_alignment);
    m_.zero(tickets_, tickets_bytes);
    loads_ = {reinterpret_cast<float*>(all.data + 3 * tensor_alignment + tickets_bytes), most_loads};
    layer_sums_ = {reinterpret_cast<double*>(all.data + own - layers_bytes), most_layer_sums};
    scratch_ = all.slice(own, all.count - own);
  }

  [[nodiscard]] int threads() const { return 1; }
  [[nodiscard]] M& machine() { return m_.machine(); }
  /// What repeat() made of its bodies.
  [[nodiscard]] const GraphReplay<M>& graph_replay() const { return m_; }

  template <class A, class C>
  void gemm(op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, View<A> a, In<A> b, View<C> c,
            bool accumulate = false, In<A> bias = {}) {
    check_gemm(kind);
    using T = std::remove_const_t<A>;
    if (m == 0 || n == 0) return;
    m_.multiply(product_of<T, C>(kind, m, n, k, accumulate, !bias.empty()), a.data, b.data, bias.data, c.data);
  }

  template <class A, class C>
  void gemm_columns(op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, const RowStrides& strides,
                    float scale, View<A> a, In<A> b, View<C> c, bool accumulate) {
    check_gemm(kind);
    Product product = product_of<std::remove_const_t<A>, C>(kind, m, n, k, accumulate);
    product.scale = scale;
    product.strides = strides;
    if (m > 0 && n > 0 && k > 0) m_.multiply(product, a.data, b.data, nullptr, c.data);
  }

  /// Tensor cores take 8-bit operands whose rows go along the sum only: others are transposed as they are rounded.
  template <class C>
  void gemm_8bit(op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, View<const bfloat16> a,
                 View<const bfloat16> b, View<C> c, bool accumulate, View<const bfloat16> bias,
                 View<std::byte> buffer) {
    check_gemm(kind);
    const Buffers8bit codes(buffer, m, n, k);
    const bool a_across = kind == op::Kind::gemm_tn;
    with_format_of_a(kind, [&]<class F>() {
      cuda::round_to_8bit<F>(m_, scratch_, a_across ? k : m, a_across ? m : k, a_across, a.data, codes.a.data,
                             codes.unscale.data);
    });
    const bool b_across = kind != op::Kind::gemm_nt;
    cuda::round_to_8bit<float8_e4m3>(m_, scratch_, b_across ? k : n, b_across ? n : k, b_across, b.data, codes.b.data,
                                     codes.unscale.data + Buffers8bit::of_b);
    Product product = product_of<bfloat16, C>(op::Kind::gemm_nt, m, n, k, accumulate, !bias.empty());
    product.operands = Precision::fp8;
    product.gradient = has_gradient(kind);
    m_.multiply(product, codes.a.data, codes.b.data, bias.data, c.data, codes.unscale.data);
  }

  template <class A, class C>
  void gemm_grouped(op::Kind kind, std::int64_t experts, std::int64_t rows, std::int64_t n, std::int64_t k,
                    View<const std::int32_t> offsets, View<A> a, In<A> b, View<C> c, bool accumulate = false) {
    check_gemm(kind);
    cuda::gemm_grouped<std::remove_const_t<A>>(m_, machine().has_warp_groups(), kind, experts, rows, n, k, offsets.data,
                                               a.data, b.data, c.data, accumulate);
  }

  template <class T>
  void attention_forward(const AttentionShape& shape, In<T> q, In<T> k, In<T> v, View<T> o, View<float> lse,
                         const AttentionBias& bias = {}, const DocumentRows& documents = {}) {
    if (shape.batch == 0 || shape.queries == 0) return;
    // A query behind a text: the machine would prepare for every number of keys.
    if (shape.queries > 1 && bias.values.empty() &&
        attend<T>(shape, documents, q.data, k.data, v.data, o.data, lse.data))
      return;
    cuda::attention_forward(m_, shape, q.data, k.data, v.data, o.data, lse.data, bias,
                            write_documents(m_, scratch_, documents));
  }
  template <class T>
  void attention_backward(const AttentionShape& shape, In<T> q, In<T> k, In<T> v, In<T> o, View<const float> lse,
                          In<T> d_o, View<T> dq, View<T> dk, View<T> dv, View<float> delta,
                          const AttentionBias& bias = {}, const DocumentRows& documents = {}) {
    if (shape.batch == 0 || shape.queries == 0) return;
    if (bias.values.empty() &&
        attend<T>(shape, documents, q.data, k.data, v.data, o.data, lse.data, d_o.data, dq.data, dk.data, dv.data))
      return;
    cuda::attention_backward(m_, scratch_, shape, q.data, k.data, v.data, o.data, lse.data, d_o.data, dq.data, dk.data,
                             dv.data, delta.data, bias, write_documents(m_, scratch_, documents));
  }
  // Kernels: each is launched by the function of its name in device/cuda, with the addresses of the views.
  void attention_merge(const auto&... a) { cuda::attention_merge(m_, plain(a)...); }
  void relative_bias_forward(const auto&... a) { cuda::relative_bias_forward(m_, plain(a)...); }
  void relative_bias_backward(const auto&... a) { cuda::relative_bias_backward(m_, plain(a)...); }
  void window_attention_forward(const auto&... a) { cuda::window_attention_forward(m_, plain(a)...); }
  void window_attention_backward(const auto&... a) { cuda::window_attention_backward(m_, scratch_, plain(a)...); }
  void norm_forward(const auto&... a) { cuda::norm_forward(m_, plain(a)...); }
  void add_norm_forward(const auto&... a) { cuda::add_norm_forward(m_, plain(a)...); }
  void norm_recompute(const auto&... a) { cuda::norm_recompute(m_, plain(a)...); }
  void norm_backward(const auto&... a) { cuda::norm_backward(m_, scratch_, plain(a)...); }
  void add(const auto&... a) { cuda::map<kernels::Sum>(m_, plain(a)...); }
  void multiply(const auto&... a) { cuda::map<kernels::Product>(m_, plain(a)...); }
  void activation_forward(const auto&... a) { cuda::activation_forward(m_, plain(a)...); }
  void activation_backward(const auto&... a) { cuda::activation_backward(m_, plain(a)...); }
  void bias_gradient(const auto&... a) { cuda::bias_gradient(m_, scratch_, tickets_, plain(a)...); }
  void rotary(std::int64_t rows, std::int64_t b, const TokenPositions& positions, const auto&... a) {
    cuda::rotary(m_, rows, b, positions.first,
                 write_pairs(m_, scratch_, positions.tokens, positions.positions, "runs of positions"), plain(a)...);
  }
  void jitter(const auto&... a) { cuda::jitter(m_, plain(a)...); }
  void embedding_forward(const auto&... a) { cuda::embedding_forward(m_, plain(a)...); }
  void embedding_backward(const auto&... a) { cuda::embedding_backward(m_, scratch_, plain(a)...); }
  void position_forward(const auto&... a) { cuda::position_forward(m_, plain(a)...); }
  void position_backward(const auto&... a) { cuda::position_backward(m_, plain(a)...); }
  void pool_forward(const auto&... a) { cuda::pool_forward(m_, plain(a)...); }
  void pool_backward(const auto&... a) { cuda::pool_backward(m_, plain(a)...); }
  void softmax_statistics(const auto&... a) { cuda::softmax_statistics(m_, plain(a)...); }
  void softmax_merge(const auto&... a) { cuda::softmax_merge(m_, scratch_, tickets_, plain(a)...); }
  void softmax_backward(const auto&... a) { cuda::softmax_backward(m_, plain(a)...); }
  void exponential_row(const auto&... a) { cuda::exponential_row(m_, plain(a)...); }
  void exponential_row_backward(const auto&... a) { cuda::exponential_row_backward(m_, plain(a)...); }
  void route(const auto&... a) { cuda::route(m_, plain(a)...); }
  void count_choices(const auto&... a) { cuda::count_choices(m_, scratch_, tickets_, plain(a)...); }
  void router_losses(const auto&... a) { cuda::router_losses(m_, scratch_, tickets_, plain(a)...); }
  void route_backward(const auto&... a) { cuda::route_backward(m_, plain(a)...); }
  void add_loads(std::int64_t choices, View<const std::int32_t> chosen, View<float> loads) {
    cuda::add_loads(m_, scratch_, tickets_, choices, loads.count, chosen.data, loads.data);
  }
  void order_choices(const auto&... a) { cuda::order_choices(m_, scratch_, tickets_, plain(a)...); }
  void choose_nodes(const auto&... a) { cuda::choose_nodes(m_, plain(a)...); }
  void gather_rows(const auto&... a) { cuda::gather_rows(m_, plain(a)...); }
  void combine_rows(const auto&... a) { cuda::combine_rows(m_, plain(a)...); }
  template <class T>
  void expert_activation_backward(ActivationKind kind, std::int64_t rows, std::int64_t n,
                                  View<const std::int32_t> order, View<const float> weights, In<T> u, View<T> d,
                                  View<T> du, View<float> d_weights) {
    if (!d_weights.empty()) zero(raw_bytes(d_weights.slice(0, rows)));
    cuda::expert_activation_backward(m_, kind, rows, n, order.data, weights.data, u.data, d.data, du.data,
                                     d_weights.data);
  }
  void gate_forward(const auto&... a) { cuda::gate_forward(m_, plain(a)...); }
  void gate_backward(const auto&... a) { cuda::gate_backward(m_, plain(a)...); }
  void balance_bias(const auto&... a) { cuda::balance_bias(m_, plain(a)...); }
  void rotate_by_signs(const auto&... a) { cuda::rotate_by_signs(m_, plain(a)...); }
  void hash_rows(const auto&... a) { cuda::hash_rows(m_, plain(a)...); }
  void number_buckets(const auto&... a) { cuda::number_buckets(m_, scratch_, tickets_, plain(a)...); }
  void single_buckets(const auto&... a) { cuda::single_buckets(m_, plain(a)...); }
  void bucket_sums(const auto&... a) { cuda::bucket_sums(m_, plain(a)...); }
  void bucket_distances(const auto&... a) { cuda::bucket_distances(m_, scratch_, tickets_, plain(a)...); }
  void combine_buckets(const auto&... a) { cuda::combine_buckets(m_, plain(a)...); }
  void bucket_weights_backward(const auto&... a) { cuda::bucket_weights_backward(m_, plain(a)...); }
  void gain_backward(const auto&... a) { cuda::gain_backward(m_, plain(a)...); }
  void combine_buckets_backward(const auto&... a) { cuda::combine_buckets_backward(m_, plain(a)...); }
  void norm_squared(const auto&... a) { cuda::norm_squared(m_, scratch_, tickets_, plain(a)...); }
  void clip_scale(const auto&... a) { cuda::clip_scale(m_, plain(a)...); }
  void copy_runs(const auto&... a) { cuda::move_runs<false>(m_, plain(a)...); }
  void add_runs(const auto&... a) { cuda::move_runs<true>(m_, plain(a)...); }
  void accumulate(std::int64_t n, const auto& from, const auto& to) {
    cuda::map<kernels::Sum>(m_, n, plain(from), plain(to), plain(to));
  }

  template <class T>
  void gemm_activation(ActivationKind kind, std::int64_t m, std::int64_t n, std::int64_t k, In<T> a, In<T> b,
                       In<T> bias, View<T> u, View<T> g) {
    if (kind == ActivationKind::gelu &&
        m_.try_multiply(product_of<T, T>(op::Kind::gemm_nt, m, n, k, false, !bias.empty()), Epilogue::gelu, a.data,
                        b.data, bias.data, u.data, g.data))
      return;
    gemm(op::Kind::gemm_nt, m, inputs_of(kind) * n, k, a, b, u, false, bias);
    activation_forward(kind, m, n, u, g);
  }
  template <class T>
  void gemm_activation_backward(ActivationKind kind, std::int64_t m, std::int64_t n, std::int64_t k, In<T> a, In<T> b,
                                In<T> u, View<T> dg, View<T> du) {
    if (kind == ActivationKind::gelu && du.data != u.data &&
        m_.try_multiply(product_of<T, T>(op::Kind::gemm_nn, m, n, k), Epilogue::gelu_gradient, a.data, b.data, nullptr,
                        const_cast<T*>(u.data), du.data))
      return;
    gemm(op::Kind::gemm_nn, m, n, k, a, b, dg);
    activation_backward(kind, m, n, u, dg, du);
  }

  void begin_update(const AdamW& adam) {
    const kernels::AdamWStep step(adam);
    m_.upload(update_, sizeof step, [&](std::byte* to) { std::memcpy(to, &step, sizeof step); });
  }
  void adamw(std::int64_t n, const AdamWPart& part, const auto&... a) {
    cuda::adamw(m_, n, update_, part, plain(a)...);
  }
  void wait() { m_.wait(); }
  void repeat(int number, auto&& body) { m_.repeat(number, body); }
  View<double> sums() { return sums_; }
  View<float> gradient_scale() { return scale_; }
  View<float> loads() { return loads_; }
  View<double> layer_sums() { return layer_sums_; }
  void add_time(double sign, View<double> sum) { cuda::add_time(m_, sign, sum.data); }
  void clear_sums() { m_.zero(sums_.data, sums_.count * static_cast<std::int64_t>(sizeof(double))); }
  template <class T>
  void fetch(View<const T> from, T* to) {
    if (!from.empty()) m_.fetch(from.data, to, from.count * static_cast<std::int64_t>(sizeof(T)));
  }
  template <class T>
  void write(View<T> to, auto&& writer) {
    if (to.empty()) return;
    m_.upload(to.data, to.count * static_cast<std::int64_t>(sizeof(T)),
              [&](std::byte* host) { writer(View<T>(reinterpret_cast<T*>(host), to.count)); });
  }

  void zero(View<std::byte> bytes) {
    if (!bytes.empty()) m_.zero(bytes.data, bytes.count);
  }
  /// Copies from.count bytes.
  void copy(View<const std::byte> from, View<std::byte> to) {
    if (!from.empty()) m_.copy(from.data, to.data, from.count);
  }

 private:
  // By the machine's own attention; false when it has none, and nothing was done.
  template <class T>
  bool attend(const AttentionShape& shape, const DocumentRows& documents, auto*... tensors) {
    if (documents.empty()) return m_.attention(shape, precision_of<T>, tensors...);
    if constexpr (precision_of<T> == Precision::bf16) {
      if (!shape.causal) return false;
      const DocumentGroups groups(shape, documents);
      if (groups.bytes() > scratch_.count) return false;
      m_.upload(scratch_.data, groups.bytes(), [&](std::byte* to) { groups.write(to); });
      return m_.attention(shape, groups, scratch_.data, tensors...);
    } else {
      return false;
    }
  }

  GraphReplay<M> m_;
  View<double> sums_;
  View<float> loads_;
  View<double> layer_sums_;
  View<float> scale_;
  kernels::AdamWStep* update_ = nullptr;
  View<std::byte> scratch_;
  std::uint32_t* tickets_ = nullptr;  ///< (most_tickets), see is_last_block()
};

}  // namespace galvatron::device::cuda
