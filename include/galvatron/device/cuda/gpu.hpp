// The Device that computes on a GPU, whatever launches its kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/attention.hpp>
#include <galvatron/device/cuda/embedding.hpp>
#include <galvatron/device/cuda/graph_replay.hpp>
#include <galvatron/device/cuda/norm.hpp>
#include <galvatron/device/cuda/optimizer.hpp>
#include <galvatron/device/cuda/pointwise.hpp>
#include <galvatron/device/cuda/relative.hpp>
#include <galvatron/device/cuda/rounding.hpp>
#include <galvatron/device/cuda/runs.hpp>
#include <galvatron/device/cuda/softmax.hpp>
#include <galvatron/device/cuda/window_attention.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/product.hpp>
#include <galvatron/device/product_8bit.hpp>

namespace galvatron::device::cuda {

/// Executes the operations of the Device concept, in order, on machine M, which has:
/// - launch(geometry, kernel), zero(to, bytes), copy(from, to, bytes);
/// - multiply(product, a, b, bias, c): see Product; of fp8 multiply(product, a, b, bias, c, unscale), for gemm_nt of
///   codes that are multiplied with unscale (2);
/// - try_multiply(product, epilogue, a, b, bias, u, c): see Epilogue; false when the machine has no such product, and
///   nothing was done;
/// - attention_forward(shape, precision, q, k, v, o, lse), attention_backward(shape, precision, q, k, v, o, lse, d_o,
/// dq,
///   dk, dv): false when the machine has none of its own for this shape, and nothing was done;
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
  /// What sums over blocks take, and the sums of a step.
  static constexpr std::int64_t workspace_bytes = std::int64_t{16} << 20;

  template <class T>
  using In = std::type_identity_t<View<const std::remove_const_t<T>>>;

  explicit Gpu(M& machine) : m_(machine) {
    const View<std::byte> all = m_.workspace();
    if (all.count < workspace_bytes)
      throw DeviceFailure("a GPU needs a workspace of " + std::to_string(workspace_bytes) + " bytes, not " +
                          std::to_string(all.count));
    constexpr std::int64_t own = 3 * tensor_alignment;
    sums_ = {reinterpret_cast<double*>(all.data), step_sums};
    scale_ = {reinterpret_cast<float*>(all.data + tensor_alignment), 1};
    static_assert(sizeof(kernels::AdamWStep) <= tensor_alignment);
    update_ = reinterpret_cast<kernels::AdamWStep*>(all.data + 2 * tensor_alignment);
    scratch_ = all.slice(own, all.count - own);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

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
    m_.multiply(Product{.kind = kind,
                        .operands = precision_of<T>,
                        .result = precision_of<C>,
                        .accumulate = accumulate,
                        .bias = !bias.empty(),
                        .m = m,
                        .n = n,
                        .k = k},
                a.data, b.data, bias.data, c.data);
  }

  /// Tensor cores take 8-bit operands whose rows go along the sum only: others are transposed as they are rounded.
  template <class C>
  void gemm_8bit(op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, View<const bfloat16> a,
                 View<const bfloat16> b, View<C> c, bool accumulate, View<const bfloat16> bias, View<std::byte> room) {
    check_gemm(kind);
    const Room8bit codes(room, m, n, k);
    const bool a_across = kind == op::Kind::gemm_tn;
    with_format_of_a(kind, [&]<class F>() {
      cuda::round_to_8bit<F>(m_, scratch_, a_across ? k : m, a_across ? m : k, a_across, a.data, codes.a.data,
                             codes.unscale.data);
    });
    const bool b_across = kind != op::Kind::gemm_nt;
    cuda::round_to_8bit<float8_e4m3>(m_, scratch_, b_across ? k : n, b_across ? n : k, b_across, b.data, codes.b.data,
                                     codes.unscale.data + 1);
    m_.multiply(Product{.operands = Precision::fp8,
                        .result = precision_of<C>,
                        .accumulate = accumulate,
                        .bias = !bias.empty(),
                        .gradient = has_gradient(kind),
                        .m = m,
                        .n = n,
                        .k = k},
                codes.a.data, codes.b.data, bias.data, c.data, codes.unscale.data);
  }

  template <class T>
  void attention_forward(const AttentionShape& shape, In<T> q, In<T> k, In<T> v, View<T> o, View<float> lse,
                         const AttentionBias& bias = {}) {
    if (shape.batch == 0 || shape.queries == 0) return;
    if (bias.values.empty() && m_.attention_forward(shape, precision_of<T>, q.data, k.data, v.data, o.data, lse.data))
      return;
    cuda::attention_forward(m_, shape, q.data, k.data, v.data, o.data, lse.data, bias);
  }
  template <class T>
  void attention_backward(const AttentionShape& shape, In<T> q, In<T> k, In<T> v, In<T> o, View<const float> lse,
                          In<T> d_o, View<T> dq, View<T> dk, View<T> dv, View<float> delta,
                          const AttentionBias& bias = {}) {
    if (shape.batch == 0 || shape.queries == 0) return;
    if (bias.values.empty() && m_.attention_backward(shape, precision_of<T>, q.data, k.data, v.data, o.data, lse.data,
                                                     d_o.data, dq.data, dk.data, dv.data))
      return;
    cuda::attention_backward(m_, scratch_, shape, q.data, k.data, v.data, o.data, lse.data, d_o.data, dq.data, dk.data,
                             dv.data, delta.data, bias);
  }
  template <class T>
  void relative_bias_forward(const RelativePositions& relative, std::int64_t heads, View<T> table, View<float> bias) {
    cuda::relative_bias_forward(m_, relative, heads, table.data, bias.data);
  }
  void relative_bias_backward(const RelativePositions& relative, std::int64_t heads, View<const float> dbias,
                              View<float> dtable) {
    cuda::relative_bias_backward(m_, relative, heads, dbias.data, dtable.data);
  }
  template <class T>
  void attention_merge(const AttentionShape& shape, View<T> o_part, View<const float> lse_part, View<float> o,
                       View<float> lse) {
    cuda::attention_merge(m_, shape, o_part.data, lse_part.data, o.data, lse.data);
  }
  template <class T>
  void window_attention_forward(const WindowShape& shape, In<T> q, In<T> k, In<T> v, In<T> table, View<T> o,
                                View<float> lse) {
    cuda::window_attention_forward(m_, shape, q.data, k.data, v.data, table.data, o.data, lse.data);
  }
  template <class T>
  void window_attention_backward(const WindowShape& shape, In<T> q, In<T> k, In<T> v, In<T> table,
                                 View<const float> lse, In<T> d_o, View<T> dq, View<T> dk, View<T> dv,
                                 View<float> dtable) {
    cuda::window_attention_backward(m_, scratch_, shape, q.data, k.data, v.data, table.data, lse.data, d_o.data,
                                    dq.data, dk.data, dv.data, dtable.data);
  }

  template <class T>
  void norm_forward(NormKind kind, std::int64_t rows, std::int64_t hidden, double epsilon, In<T> x, In<T> gamma,
                    In<T> beta, View<T> y, View<float> stats) {
    cuda::norm_forward(m_, kind, rows, hidden, epsilon, x.data, gamma.data, some(beta, kind), y.data, stats.data);
  }
  template <class T>
  void add_norm_forward(NormKind kind, std::int64_t rows, std::int64_t hidden, double epsilon, In<T> x, In<T> r,
                        In<T> gamma, In<T> beta, View<T> sum, View<T> y, View<float> stats) {
    cuda::add_norm_forward(m_, kind, rows, hidden, epsilon, x.data, r.data, gamma.data, some(beta, kind), sum.data,
                           y.data, stats.data);
  }
  template <class T>
  void norm_recompute(NormKind kind, std::int64_t rows, std::int64_t hidden, In<T> x, In<T> gamma, In<T> beta,
                      View<const float> stats, View<T> y) {
    cuda::norm_recompute(m_, rows, hidden, x.data, gamma.data, some(beta, kind), stats.data, y.data);
  }
  template <class T>
  void norm_backward(NormKind kind, std::int64_t rows, std::int64_t hidden, In<T> dy, In<T> x, In<T> gamma,
                     View<const float> stats, In<T> d_residual, View<T> dx, View<float> dgamma, View<float> dbeta) {
    cuda::norm_backward(m_, scratch_, kind, rows, hidden, dy.data, x.data, gamma.data, stats.data,
                        d_residual.empty() ? nullptr : d_residual.data, dx.data, dgamma.data,
                        dbeta.empty() || kind == NormKind::rms_norm ? nullptr : dbeta.data);
  }

  template <class T>
  void add(std::int64_t n, In<T> a, In<T> b, View<T> out) {
    cuda::add(m_, n, a.data, b.data, out.data);
  }
  template <class T>
  void multiply(std::int64_t n, In<T> a, In<T> b, View<T> out) {
    cuda::multiply(m_, n, a.data, b.data, out.data);
  }
  template <class T>
  void activation_forward(ActivationKind kind, std::int64_t rows, std::int64_t n, In<T> u, View<T> g) {
    cuda::activation_forward(m_, kind, rows, n, u.data, g.data);
  }
  template <class T>
  void activation_backward(ActivationKind kind, std::int64_t rows, std::int64_t n, In<T> u, In<T> dg, View<T> du) {
    cuda::activation_backward(m_, kind, rows, n, u.data, dg.data, du.data);
  }
  template <class T>
  void gemm_activation(ActivationKind kind, std::int64_t m, std::int64_t n, std::int64_t k, In<T> a, In<T> b,
                       In<T> bias, View<T> u, View<T> g) {
    if (kind == ActivationKind::gelu && m_.try_multiply(activated<T>(op::Kind::gemm_nt, !bias.empty(), m, n, k),
                                                        Epilogue::gelu, a.data, b.data, bias.data, u.data, g.data))
      return;
    gemm(op::Kind::gemm_nt, m, inputs_of(kind) * n, k, a, b, u, false, bias);
    activation_forward(kind, m, n, u, g);
  }
  template <class T>
  void gemm_activation_backward(ActivationKind kind, std::int64_t m, std::int64_t n, std::int64_t k, In<T> a, In<T> b,
                                In<T> u, View<T> dg, View<T> du) {
    if (kind == ActivationKind::gelu && du.data != u.data &&
        m_.try_multiply(activated<T>(op::Kind::gemm_nn, false, m, n, k), Epilogue::gelu_gradient, a.data, b.data,
                        nullptr, const_cast<T*>(u.data), du.data))
      return;
    gemm(op::Kind::gemm_nn, m, n, k, a, b, dg);
    activation_backward(kind, m, n, u, dg, du);
  }
  template <class T>
  void bias_gradient(std::int64_t rows, std::int64_t n, View<T> dy, View<float> db) {
    cuda::bias_gradient(m_, scratch_, rows, n, dy.data, db.data);
  }
  template <class T>
  void rotary(std::int64_t rows, std::int64_t b, std::int64_t first_position, std::int64_t heads, std::int64_t head_dim,
              std::int64_t row_stride, double theta, bool inverse, View<T> x) {
    cuda::rotary(m_, rows, b, first_position, heads, head_dim, row_stride, theta, inverse, x.data);
  }

  template <class T>
  void embedding_forward(std::int64_t rows, std::int64_t hidden, View<const std::int32_t> tokens, std::int64_t first,
                         std::int64_t count, In<T> table, View<T> out) {
    cuda::embedding_forward(m_, rows, hidden, tokens.data, first, count, table.data, out.data);
  }
  template <class T>
  void embedding_backward(std::int64_t rows, std::int64_t hidden, View<const std::int32_t> tokens, std::int64_t first,
                          std::int64_t count, View<T> dout, View<float> dtable) {
    cuda::embedding_backward(m_, scratch_, rows, hidden, tokens.data, first, count, dout.data, dtable.data);
  }
  template <class T>
  void position_forward(std::int64_t rows, std::int64_t b, std::int64_t hidden, std::int64_t first_position,
                        In<T> table, View<T> out) {
    cuda::position_forward(m_, rows, b, hidden, first_position, table.data, out.data);
  }
  template <class T>
  void position_backward(std::int64_t rows, std::int64_t b, std::int64_t hidden, std::int64_t first_position,
                         View<T> dout, View<float> dtable) {
    cuda::position_backward(m_, rows, b, hidden, first_position, dout.data, dtable.data);
  }
  template <class T>
  void pool_forward(std::int64_t tokens, std::int64_t b, std::int64_t hidden, float scale, In<T> x, View<T> out) {
    cuda::pool_forward(m_, tokens, b, hidden, scale, x.data, out.data);
  }
  template <class T>
  void pool_backward(std::int64_t tokens, std::int64_t b, std::int64_t hidden, float scale, In<T> dout, View<T> dx) {
    cuda::pool_backward(m_, tokens, b, hidden, scale, dout.data, dx.data);
  }

  template <class T>
  void softmax_statistics(std::int64_t rows, std::int64_t columns, std::int64_t valid, std::int64_t first,
                          View<T> logits, View<const std::int32_t> targets, View<float> stats) {
    cuda::softmax_statistics(m_, rows, columns, valid, first, logits.data, targets.data, stats.data);
  }
  void softmax_merge(std::int64_t rows, std::int64_t shards, View<const float> stats, View<float> lse,
                     View<double> loss) {
    cuda::softmax_merge(m_, scratch_, rows, shards, stats.data, lse.data, loss.empty() ? nullptr : loss.data);
  }
  template <class T>
  void softmax_backward(std::int64_t rows, std::int64_t columns, std::int64_t valid, std::int64_t first,
                        View<const float> lse, View<const std::int32_t> targets, float scale, View<T> logits) {
    cuda::softmax_backward(m_, rows, columns, valid, first, lse.data, targets.data, scale, logits.data);
  }

  void norm_squared(std::int64_t n, View<const float> x, View<double> sum) {
    cuda::norm_squared(m_, scratch_, n, x.data, sum.data);
  }
  void clip_scale(View<const double> sums, double clip, View<float> scale) {
    cuda::clip_scale(m_, sums.data, clip, scale.data);
  }
  void begin_update(const AdamW& adam) {
    const kernels::AdamWStep step(adam);
    m_.upload(update_, sizeof step, [&](std::byte* to) { std::memcpy(to, &step, sizeof step); });
  }
  template <class Moment, class T>
  void adamw(std::int64_t n, const AdamWPart& part, View<const float> scale, View<float> master, View<const float> g,
             View<Moment> m, View<Moment> v, View<T> working) {
    cuda::adamw(m_, n, update_, part, scale.data, master.data, g.data, m.data, v.data, working.data);
  }
  void wait() { m_.wait(); }
  template <class F>
  void repeat(int number, F&& body) {
    m_.repeat(number, body);
  }
  View<double> sums() { return sums_; }
  View<float> gradient_scale() { return scale_; }
  void clear_sums() { m_.zero(sums_.data, sums_.count * static_cast<std::int64_t>(sizeof(double))); }
  template <class T>
  void fetch(View<const T> from, T* to) {
    if (!from.empty()) m_.fetch(from.data, to, from.count * static_cast<std::int64_t>(sizeof(T)));
  }
  template <class T, class Writer>
  void write(View<T> to, Writer&& writer) {
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
  template <class T>
  void accumulate(std::int64_t n, View<T> from, View<float> to) {
    cuda::accumulate(m_, n, from.data, to.data);
  }
  template <class A, class B>
  void copy_runs(const Runs& runs, View<A> from, View<B> to) {
    cuda::copy_runs(m_, runs, from.data, to.data);
  }
  template <class A, class B>
  void add_runs(const Runs& runs, View<A> from, View<B> to) {
    cuda::add_runs(m_, runs, from.data, to.data);
  }

 private:
  template <class T>
  static constexpr Product activated(op::Kind kind, bool bias, std::int64_t m, std::int64_t n, std::int64_t k) {
    return {.kind = kind, .operands = precision_of<T>, .result = precision_of<T>, .bias = bias, .m = m, .n = n, .k = k};
  }
  template <class T>
  static const T* some(View<const T> beta, NormKind kind) {
    return beta.empty() || kind == NormKind::rms_norm ? nullptr : beta.data;
  }

  GraphReplay<M> m_;
  View<double> sums_;
  View<float> scale_;
  kernels::AdamWStep* update_ = nullptr;
  View<std::byte> scratch_;
};

}  // namespace galvatron::device::cuda
