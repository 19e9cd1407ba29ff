// The Device that computes on this machine's cores: oneDNN for matrix products, own loops for the rest.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/host/attention.hpp>
#include <galvatron/device/host/attention_backward.hpp>
#include <galvatron/device/host/embedding.hpp>
#include <galvatron/device/host/gemm.hpp>
#include <galvatron/device/host/gemm_8bit.hpp>
#include <galvatron/device/host/isa.hpp>
#include <galvatron/device/host/norm.hpp>
#include <galvatron/device/host/pointwise.hpp>
#include <galvatron/device/host/pool.hpp>
#include <galvatron/device/host/relative.hpp>
#include <galvatron/device/host/softmax.hpp>
#include <galvatron/device/host/team.hpp>
#include <galvatron/device/host/window_attention.hpp>

namespace galvatron::device {

/// Executes the operations of the Device concept on `threads` cores; shapes and meanings stand there. One object
/// belongs to one thread of the program at a time. Temporary memory comes from the workspace given, nothing is
/// allocated but oneDNN's code, once per shape of a matrix product. Throws DeviceFailure when an operation is beyond
/// this processor or the workspace.
class Host {
 public:
  static constexpr bool counts_only = false;
  /// The workspace per thread: what oneDNN's products and attention's tiles take.
  static constexpr std::int64_t workspace_bytes_per_thread = std::int64_t{4} << 20;

  /// The bytes that a device of that many threads wants as its workspace.
  static constexpr std::int64_t library_workspace_bytes(int threads) { return threads * workspace_bytes_per_thread; }
  /// True when this processor multiplies matrices of that format; of 8 bits, which none does, when it has those that
  /// stand for them.
  static bool supports(Precision precision) { return host::Products::supports(precision); }

  /// `threads` >= 1; `library_workspace` of at least library_workspace_bytes(threads), on a 64-byte boundary, is the
  /// device's own as long as it lives. `isa` is what the loops use (oneDNN chooses for itself).
  Host(int threads, View<std::byte> library_workspace, Isa isa = best_isa())
      : team_{threads, isa, library_workspace}, products_(library_workspace) {
    if (threads < 1) throw DeviceFailure("a host device needs at least 1 thread, not " + std::to_string(threads));
    if (library_workspace.count < library_workspace_bytes(threads))
      throw DeviceFailure("a host device of " + std::to_string(threads) + " threads needs a workspace of " +
                          std::to_string(library_workspace_bytes(threads)) + " bytes, not " +
                          std::to_string(library_workspace.count));
    if (reinterpret_cast<std::uintptr_t>(library_workspace.data) % tensor_alignment != 0)
      throw DeviceFailure("a host device's workspace must start on a 64-byte boundary");
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host() = default;

  [[nodiscard]] int threads() const { return team_.threads; }
  /// The instruction set of the loops.
  [[nodiscard]] Isa isa() const { return team_.isa; }

  /// c (m, n) = a * b [+ bias], or c += a * b; a and b of one type T (float or bfloat16), c of T or float.
  template <class A, class C>
  void gemm(op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, View<A> a, In<std::remove_const_t<A>> b,
            View<C> c, bool accumulate = false, In<std::remove_const_t<A>> bias = {}) {
    check_gemm(kind);
    using T = std::remove_const_t<A>;
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, bfloat16>, "galvatron: gemm takes float or bfloat16");
    static_assert(std::is_same_v<C, float> || std::is_same_v<C, T>,
                  "galvatron: gemm's result is float or of its operands' type");
    if (m == 0 || n == 0 || k == 0) {
      if (!accumulate && k == 0) empty_product(m, n, c.data, bias);
      return;
    }
    const OmpThreads setting(team_.threads);
    products_.multiply({.kind = kind,
                        .operands = precision_of<T>,
                        .result = precision_of<C>,
                        .accumulate = accumulate,
                        .bias = !bias.empty(),
                        .m = m,
                        .n = n,
                        .k = k},
                       a.data, b.data, bias.data, c.data);
  }

  template <class C>
  void gemm_8bit(op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, View<const bfloat16> a,
                 View<const bfloat16> b, View<C> c, bool accumulate, View<const bfloat16> bias, View<std::byte> room) {
    check_gemm(kind);
    host::gemm_8bit(team_, kind, m, n, k, a.data, b.data, c.data, accumulate, bias.data, room);
  }

  template <class T>
  void attention_forward(const AttentionShape& shape, In<T> q, In<T> k, In<T> v, View<T> o, View<float> lse,
                         const AttentionBias& bias = {}) {
    if (shape.batch == 0 || shape.queries == 0) return;
    host::attention_forward(team_, shape, q.data, k.data, v.data, o.data, lse.data, bias);
  }
  template <class T>
  void attention_backward(const AttentionShape& shape, In<T> q, In<T> k, In<T> v, In<T> o, View<const float> lse,
                          In<T> d_o, View<T> dq, View<T> dk, View<T> dv, View<float> delta,
                          const AttentionBias& bias = {}) {
    if (shape.batch == 0 || shape.queries == 0) return;
    host::attention_backward(team_, shape, q.data, k.data, v.data, o.data, lse.data, d_o.data, dq.data, dk.data,
                             dv.data, delta.data, bias);
  }
  template <class T>
  void relative_bias_forward(const RelativePositions& relative, std::int64_t heads, View<T> table, View<float> bias) {
    host::relative_bias_forward(relative, heads, table.data, bias.data);
  }
  void relative_bias_backward(const RelativePositions& relative, std::int64_t heads, View<const float> dbias,
                              View<float> dtable) {
    host::relative_bias_backward(relative, heads, dbias.data, dtable.data);
  }

  template <class T>
  void attention_merge(const AttentionShape& shape, View<T> o_part, View<const float> lse_part, View<float> o,
                       View<float> lse) {
    host::attention_merge(team_, shape, o_part.data, lse_part.data, o.data, lse.data);
  }

  template <class T>
  void window_attention_forward(const WindowShape& shape, In<T> q, In<T> k, In<T> v, In<T> table, View<T> o,
                                View<float> lse) {
    host::window_attention_forward(team_, shape, q.data, k.data, v.data, table.data, o.data, lse.data);
  }
  template <class T>
  void window_attention_backward(const WindowShape& shape, In<T> q, In<T> k, In<T> v, In<T> table,
                                 View<const float> lse, In<T> d_o, View<T> dq, View<T> dk, View<T> dv,
                                 View<float> dtable) {
    host::window_attention_backward(team_, shape, q.data, k.data, v.data, table.data, lse.data, d_o.data, dq.data,
                                    dk.data, dv.data, dtable.data);
  }

  template <class T>
  void norm_forward(NormKind kind, std::int64_t rows, std::int64_t hidden, double epsilon, In<T> x, In<T> gamma,
                    In<T> beta, View<T> y, View<float> stats) {
    host::norm_forward(team_, kind, rows, hidden, epsilon, x.data, gamma.data, some(beta, kind), y.data, stats.data);
  }
  template <class T>
  void add_norm_forward(NormKind kind, std::int64_t rows, std::int64_t hidden, double epsilon, In<T> x, In<T> r,
                        In<T> gamma, In<T> beta, View<T> sum, View<T> y, View<float> stats) {
    host::add_norm_forward(team_, kind, rows, hidden, epsilon, x.data, r.data, gamma.data, some(beta, kind), sum.data,
                           y.data, stats.data);
  }
  template <class T>
  void norm_recompute(NormKind kind, std::int64_t rows, std::int64_t hidden, In<T> x, In<T> gamma, In<T> beta,
                      View<const float> stats, View<T> y) {
    host::norm_recompute(team_, rows, hidden, x.data, gamma.data, some(beta, kind), stats.data, y.data);
  }
  template <class T>
  void norm_backward(NormKind kind, std::int64_t rows, std::int64_t hidden, In<T> dy, In<T> x, In<T> gamma,
                     View<const float> stats, In<T> d_residual, View<T> dx, View<float> dgamma, View<float> dbeta) {
    host::norm_backward(team_, kind, rows, hidden, dy.data, x.data, gamma.data, stats.data,
                        d_residual.empty() ? nullptr : d_residual.data, dx.data, dgamma.data,
                        dbeta.empty() || kind == NormKind::rms_norm ? nullptr : dbeta.data);
  }

  template <class T>
  void add(std::int64_t n, In<T> a, In<T> b, View<T> out) {
    host::combine<kernels::Sum>(team_, n, a.data, b.data, out.data);
  }
  template <class T>
  void multiply(std::int64_t n, In<T> a, In<T> b, View<T> out) {
    host::combine<kernels::Product>(team_, n, a.data, b.data, out.data);
  }
  template <class T>
  void activation_forward(ActivationKind kind, std::int64_t rows, std::int64_t n, In<T> u, View<T> g) {
    host::activation_forward(team_, kind, rows, n, u.data, g.data);
  }
  template <class T>
  void activation_backward(ActivationKind kind, std::int64_t rows, std::int64_t n, In<T> u, In<T> dg, View<T> du) {
    host::activation_backward(team_, kind, rows, n, u.data, dg.data, du.data);
  }
  template <class T>
  void gemm_activation(ActivationKind kind, std::int64_t m, std::int64_t n, std::int64_t k, In<T> a, In<T> b,
                       In<T> bias, View<T> u, View<T> g) {
    gemm(op::Kind::gemm_nt, m, inputs_of(kind) * n, k, a, b, u, false, bias);
    activation_forward(kind, m, n, u, g);
  }
  template <class T>
  void gemm_activation_backward(ActivationKind kind, std::int64_t m, std::int64_t n, std::int64_t k, In<T> a, In<T> b,
                                In<T> u, View<T> dg, View<T> du) {
    gemm(op::Kind::gemm_nn, m, n, k, a, b, dg);
    activation_backward(kind, m, n, u, dg, du);
  }
  template <class T>
  void bias_gradient(std::int64_t rows, std::int64_t n, View<T> dy, View<float> db) {
    host::bias_gradient(team_, rows, n, dy.data, db.data);
  }

  template <class T>
  void rotary(std::int64_t rows, std::int64_t b, std::int64_t first_position, std::int64_t heads, std::int64_t head_dim,
              std::int64_t row_stride, double theta, bool inverse, View<T> x) {
    host::rotary(team_, rows, b, first_position, heads, head_dim, row_stride, theta, inverse, x.data);
  }

  template <class T>
  void embedding_forward(std::int64_t rows, std::int64_t hidden, View<const std::int32_t> tokens, std::int64_t first,
                         std::int64_t count, In<T> table, View<T> out) {
    host::embedding_forward(team_, rows, hidden, tokens.data, first, count, table.data, out.data);
  }
  template <class T>
  void embedding_backward(std::int64_t rows, std::int64_t hidden, View<const std::int32_t> tokens, std::int64_t first,
                          std::int64_t count, View<T> dout, View<float> dtable) {
    host::embedding_backward(team_, rows, hidden, tokens.data, first, count, dout.data, dtable.data);
  }
  template <class T>
  void position_forward(std::int64_t rows, std::int64_t b, std::int64_t hidden, std::int64_t first_position,
                        In<T> table, View<T> out) {
    host::position_forward(team_, rows, b, hidden, first_position, table.data, out.data);
  }
  template <class T>
  void position_backward(std::int64_t rows, std::int64_t b, std::int64_t hidden, std::int64_t first_position,
                         View<T> dout, View<float> dtable) {
    host::position_backward(team_, rows, b, hidden, first_position, dout.data, dtable.data);
  }

  template <class T>
  void pool_forward(std::int64_t tokens, std::int64_t b, std::int64_t hidden, float scale, In<T> x, View<T> out) {
    host::pool_forward(team_, tokens, b, hidden, scale, x.data, out.data);
  }
  template <class T>
  void pool_backward(std::int64_t tokens, std::int64_t b, std::int64_t hidden, float scale, In<T> dout, View<T> dx) {
    host::pool_backward(team_, tokens, b, hidden, scale, dout.data, dx.data);
  }

  template <class T>
  void softmax_statistics(std::int64_t rows, std::int64_t columns, std::int64_t valid, std::int64_t first,
                          View<T> logits, View<const std::int32_t> targets, View<float> stats) {
    host::softmax_statistics(team_, rows, columns, valid, first, logits.data, targets.data, stats.data);
  }
  void softmax_merge(std::int64_t rows, std::int64_t shards, View<const float> stats, View<float> lse,
                     View<double> loss) {
    double unused = 0;
    host::softmax_merge(team_, rows, shards, stats.data, lse.data, loss.empty() ? unused : loss[0]);
  }
  template <class T>
  void softmax_backward(std::int64_t rows, std::int64_t columns, std::int64_t valid, std::int64_t first,
                        View<const float> lse, View<const std::int32_t> targets, float scale, View<T> logits) {
    host::softmax_backward(team_, rows, columns, valid, first, lse.data, targets.data, scale, logits.data);
  }

  void begin_update(const AdamW& adam) { update_ = kernels::AdamWStep(adam); }
  template <class M, class T>
  void adamw(std::int64_t n, const AdamWPart& part, View<const float> scale, View<float> master, View<const float> g,
             View<M> m, View<M> v, View<T> working) {
    host::adamw(team_, n, update_, part, scale[0], master.data, g.data, m.data, v.data, working.data);
  }
  void norm_squared(std::int64_t n, View<const float> x, View<double> sum) {
    sum[0] += host::norm_squared(team_, n, x.data);
  }
  void clip_scale(View<const double> sums, double clip, View<float> scale) {
    scale[0] = kernels::clip_scale(sums[loss_sum], sums[gradient_squares], clip);
  }
  void wait() {}
  template <class F>
  void repeat(int, F&& body) {
    body();
  }
  View<double> sums() { return {sums_.data(), step_sums}; }
  View<float> gradient_scale() { return {&gradient_scale_, 1}; }
  void clear_sums() { sums_ = {}; }
  template <class T>
  void fetch(View<const T> from, T* to) {
    host::copy(team_, from.count * static_cast<std::int64_t>(sizeof(T)), reinterpret_cast<const std::byte*>(from.data),
               reinterpret_cast<std::byte*>(to));
  }
  template <class T, class Writer>
  void write(View<T> to, Writer&& writer) {
    writer(to);
  }
  void zero(View<std::byte> bytes) { host::zero(team_, bytes); }
  /// Copies from.count bytes.
  void copy(View<const std::byte> from, View<std::byte> to) { host::copy(team_, from.count, from.data, to.data); }
  template <class T>
  void accumulate(std::int64_t n, View<T> from, View<float> to) {
    host::accumulate(team_, n, from.data, to.data);
  }
  template <class A, class B>
  void copy_runs(const Runs& runs, View<A> from, View<B> to) {
    host::copy_runs(team_, runs, from.data, to.data);
  }
  template <class A, class B>
  void add_runs(const Runs& runs, View<A> from, View<B> to) {
    host::add_runs(team_, runs, from.data, to.data);
  }

 private:
  /// Sets the calling thread's OpenMP team size, which oneDNN reads, for a while.
  class OmpThreads {
   public:
#if defined(_OPENMP)
    explicit OmpThreads(int threads) : before_(omp_get_max_threads()), change_(before_ != threads) {
      if (change_) omp_set_num_threads(threads);
    }
    ~OmpThreads() {
      if (change_) omp_set_num_threads(before_);
    }
    OmpThreads(const OmpThreads&) = delete;
    OmpThreads& operator=(const OmpThreads&) = delete;

   private:
    int before_;
    bool change_;
#else
    explicit OmpThreads(int) {}
#endif
  };

  template <class T>
  static const T* some(View<const T> beta, NormKind kind) {
    return beta.empty() || kind == NormKind::rms_norm ? nullptr : beta.data;
  }
  /// c = 0 or bias in every row: a product over no elements.
  template <class T, class C>
  static void empty_product(std::int64_t m, std::int64_t n, C* c, View<const T> bias) {
    for (std::int64_t i = 0; i < m * n; ++i) kernels::put(c[i], bias.empty() ? 0.0F : kernels::get(bias[i % n]));
  }

  Team team_;
  host::Products products_;
  std::array<double, step_sums> sums_{};
  float gradient_scale_ = 1.0F;
  kernels::AdamWStep update_{AdamW{}};
};

static_assert(Device<Host>);

}  // namespace galvatron::device
