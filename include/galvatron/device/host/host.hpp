// The Device that computes on this machine's cores: oneDNN for matrix products, own loops for the rest.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/host/attention.hpp>
#include <galvatron/device/host/attention_backward.hpp>
#include <galvatron/device/host/embedding.hpp>
#include <galvatron/device/host/gemm.hpp>
#include <galvatron/device/host/lsh.hpp>
#include <galvatron/device/host/norm.hpp>
#include <galvatron/device/host/pointwise.hpp>
#include <galvatron/device/host/router.hpp>
#include <galvatron/device/host/softmax.hpp>
#include <galvatron/device/host/window_attention.hpp>

namespace galvatron::device {

/// Executes the operations of the Device concept on `threads` cores. Belongs to one thread of the program at a time.
/// Temporary memory comes from the workspace given, nothing is allocated but oneDNN's code, once per shape of a matrix
/// product. Throws DeviceFailure when an operation is beyond this processor or the workspace.
class Host {
 public:
  static constexpr bool counts_only = false;
  static constexpr bool groups_products = false;
  /// The workspace per thread: what oneDNN's products and attention's tiles take.
  static constexpr std::int64_t workspace_bytes_per_thread = std::int64_t{4} << 20;

  /// The bytes that a device of that many threads wants as its workspace.
  static constexpr std::int64_t library_workspace_bytes(int threads) { return threads * workspace_bytes_per_thread; }
  /// True when this processor multiplies matrices of that format; 8 bits stand for bfloat16.
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

  [[nodiscard]] int threads() const { return team_.threads; }
  [[nodiscard]] Isa isa() const { return team_.isa; }

  /// c (m, n) = a * b [+ bias], or c += a * b; a and b of one type T (float or bfloat16), c of T or float.
  template <class A, class C>
  void gemm(op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, View<A> a, In<A> b, View<C> c,
            bool accumulate = false, In<A> bias = {}) {
    check_gemm(kind);
    using T = std::remove_const_t<A>;
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, bfloat16>, "galvatron: gemm takes float or bfloat16");
    static_assert(std::is_same_v<C, float> || std::is_same_v<C, T>,
                  "galvatron: gemm's result is float or of its operands' type");
    if (m == 0 || n == 0 || k == 0) {
      if (!accumulate && k == 0) empty_product(m, n, c.data, bias);
      return;
    }
    execute(product_of<T, C>(kind, m, n, k, accumulate, !bias.empty()), a.data, b.data, bias.data, c.data);
  }
  /// See Device.
  template <class A, class C>
  void gemm_columns(op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, const RowStrides& strides,
                    float scale, View<A> a, In<A> b, View<C> c, bool accumulate) {
    check_gemm(kind);
    Product product = product_of<std::remove_const_t<A>, C>(kind, m, n, k, accumulate);
    product.scale = scale;
    product.strides = strides;
    if (m > 0 && n > 0 && k > 0) execute(product, a.data, b.data, nullptr, c.data);
  }

  template <class C>
  void gemm_8bit(op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, View<const bfloat16> a,
                 View<const bfloat16> b, View<C> c, bool accumulate, View<const bfloat16> bias,
                 View<std::byte> buffer) {
    check_gemm(kind);
    host::gemm_8bit(team_, kind, m, n, k, a.data, b.data, c.data, accumulate, bias.data, buffer);
  }

  // Loops: each is the function of its name in device/host, with the addresses of the views.
  void attention_forward(const auto&... a) { host::attention_forward(team_, plain(a)...); }
  void attention_backward(const auto&... a) { host::attention_backward(team_, plain(a)...); }
  void attention_merge(const auto&... a) { host::attention_merge(team_, plain(a)...); }
  void relative_bias_forward(const auto&... a) { host::relative_bias_forward(team_, plain(a)...); }
  void relative_bias_backward(const auto&... a) { host::relative_bias_backward(team_, plain(a)...); }
  void window_attention_forward(const auto&... a) { host::window_attention_forward(team_, plain(a)...); }
  void window_attention_backward(const auto&... a) { host::window_attention_backward(team_, plain(a)...); }
  void norm_forward(const auto&... a) { host::norm_forward(team_, plain(a)...); }
  void add_norm_forward(const auto&... a) { host::add_norm_forward(team_, plain(a)...); }
  void norm_recompute(const auto&... a) { host::norm_recompute(team_, plain(a)...); }
  void norm_backward(const auto&... a) { host::norm_backward(team_, plain(a)...); }
  void add(const auto&... a) { host::map<kernels::Sum>(team_, plain(a)...); }
  void multiply(const auto&... a) { host::map<kernels::Product>(team_, plain(a)...); }
  void activation_forward(const auto&... a) { host::activation_forward(team_, plain(a)...); }
  void activation_backward(const auto&... a) { host::activation_backward(team_, plain(a)...); }
  void bias_gradient(const auto&... a) { host::bias_gradient(team_, plain(a)...); }
  void rotary(const auto&... a) { host::rotary(team_, plain(a)...); }
  void jitter(const auto&... a) { host::jitter(team_, plain(a)...); }
  void embedding_forward(const auto&... a) { host::embedding_forward(team_, plain(a)...); }
  void embedding_backward(const auto&... a) { host::embedding_backward(team_, plain(a)...); }
  void position_forward(const auto&... a) { host::position_forward(team_, plain(a)...); }
  void position_backward(const auto&... a) { host::position_backward(team_, plain(a)...); }
  void pool_forward(const auto&... a) { host::pool_forward(team_, plain(a)...); }
  void pool_backward(const auto&... a) { host::pool_backward(team_, plain(a)...); }
  void softmax_statistics(const auto&... a) { host::softmax_statistics(team_, plain(a)...); }
  void softmax_merge(const auto&... a) { host::softmax_merge(team_, plain(a)...); }
  void softmax_backward(const auto&... a) { host::softmax_backward(team_, plain(a)...); }
  void route(const auto&... a) { host::route(team_, plain(a)...); }
  void count_choices(const auto&... a) { host::count_choices(team_, plain(a)...); }
  void router_losses(const auto&... a) { host::router_losses(team_, plain(a)...); }
  void route_backward(const auto&... a) { host::route_backward(team_, plain(a)...); }
  void add_loads(const auto&... a) { host::add_loads(team_, plain(a)...); }
  void order_choices(const auto&... a) { host::order_choices(team_, plain(a)...); }
  void choose_nodes(const auto&... a) { host::choose_nodes(team_, plain(a)...); }
  void gather_rows(const auto&... a) { host::gather_rows(team_, plain(a)...); }
  void combine_rows(const auto&... a) { host::combine_rows(team_, plain(a)...); }
  void expert_activation_backward(const auto&... a) { host::expert_activation_backward(team_, plain(a)...); }
  void exponential_row(const auto&... a) { host::exponential_row(team_, plain(a)...); }
  void exponential_row_backward(const auto&... a) { host::exponential_row_backward(team_, plain(a)...); }
  void gate_forward(const auto&... a) { host::gate_forward(team_, plain(a)...); }
  void gate_backward(const auto&... a) { host::gate_backward(team_, plain(a)...); }
  void balance_bias(const auto&... a) { host::balance_bias(team_, plain(a)...); }
  void rotate_by_signs(const auto&... a) { host::rotate_by_signs(team_, plain(a)...); }
  void hash_rows(const auto&... a) { host::hash_rows(team_, plain(a)...); }
  void number_buckets(const auto&... a) { host::number_buckets(team_, plain(a)...); }
  void single_buckets(const auto&... a) { host::single_buckets(team_, plain(a)...); }
  void bucket_sums(const auto&... a) { host::bucket_sums(team_, plain(a)...); }
  void bucket_distances(const auto&... a) { host::bucket_distances(team_, plain(a)...); }
  void combine_buckets(const auto&... a) { host::combine_buckets(team_, plain(a)...); }
  void bucket_weights_backward(const auto&... a) { host::bucket_weights_backward(team_, plain(a)...); }
  void gain_backward(const auto&... a) { host::gain_backward(team_, plain(a)...); }
  void combine_buckets_backward(const auto&... a) { host::combine_buckets_backward(team_, plain(a)...); }
  void copy_runs(const auto&... a) { host::copy_runs(team_, plain(a)...); }
  void add_runs(const auto&... a) { host::add_runs(team_, plain(a)...); }
  void accumulate(std::int64_t n, const auto& from, const auto& to) {
    host::map<kernels::Sum>(team_, n, plain(from), plain(to), plain(to));
  }

  template <class A, class C>
  void gemm_grouped(op::Kind kind, std::int64_t experts, std::int64_t, std::int64_t n, std::int64_t k,
                    View<const std::int32_t> offsets, View<A> a, In<A> b, View<C> c, bool accumulate = false) {
    using T = std::remove_const_t<A>;
    const bool sums = kind == op::Kind::gemm_tn;  // (rows, n)^T x (rows, k)
    const auto multiply = [&](host::Products& products, std::int64_t e) {
      const std::int64_t first = offsets[e];
      const std::int64_t rows = offsets[e + 1] - first;
      C* const to = c.data + (sums ? e * n * k : first * n);
      if (rows == 0) {
        if (sums && !accumulate) std::fill_n(to, n * k, C{});
        return;
      }
      products.multiply_rows(product_of<T, C>(kind, sums ? n : rows, sums ? k : n, sums ? rows : k, accumulate, false),
                             a.data + first * (sums ? n : k), b.data + (sums ? first * k : e * n * k), to);
    };
    if (team_.threads > 1 && experts >= team_.threads) return by_threads(experts, multiply);
    const int before = omp_get_max_threads();
    omp_set_num_threads(team_.threads);
    for (std::int64_t e = 0; e < experts; ++e) multiply(products_, e);
    omp_set_num_threads(before);
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

  void begin_update(const AdamW& adam) { update_ = kernels::AdamWStep(adam); }
  void adamw(std::int64_t n, const AdamWPart& part, View<const float> scale, const auto&... a) {
    host::adamw(team_, n, update_, part, scale[0], plain(a)...);
  }
  void norm_squared(std::int64_t n, View<const float> x, View<double> sum) {
    sum[0] += host::norm_squared(team_, n, x.data);
  }
  void clip_scale(View<const double> sums, double clip, View<float> scale) {
    scale[0] = kernels::clip_scale(sums[loss_sum], sums[gradient_squares], clip);
  }
  void wait() {}
  void repeat(int, auto&& body) { body(); }
  View<double> sums() { return {sums_.data(), step_sums}; }
  View<float> gradient_scale() { return {&gradient_scale_, 1}; }
  void clear_sums() { sums_ = {}; }
  View<float> loads() {
    loads_.resize(most_loads);
    return {loads_.data(), most_loads};
  }
  View<double> layer_sums() {
    layer_sums_.resize(most_layer_sums);
    return {layer_sums_.data(), most_layer_sums};
  }
  void add_time(double sign, View<double> sum) { sum[0] += sign * steady_seconds(); }
  template <class T>
  void fetch(View<const T> from, T* to) {
    copy(raw_bytes(from), {reinterpret_cast<std::byte*>(to), raw_bytes(from).count});
  }
  void write(const auto& to, auto&& writer) { writer(to); }
  void zero(View<std::byte> bytes) {
    for_runs(team_, bytes.count, 4096, 1, [&](std::int64_t first, std::int64_t last, int) {
      std::memset(bytes.data + first, 0, static_cast<std::size_t>(last - first));
    });
  }
  /// Copies from.count bytes; the two do not overlap.
  void copy(View<const std::byte> from, View<std::byte> to) {
    for_runs(team_, from.count, 4096, 1, [&](std::int64_t first, std::int64_t last, int) {
      std::memcpy(to.data + first, from.data + first, static_cast<std::size_t>(last - first));
    });
  }

 private:
  void execute(const Product& product, const void* a, const void* b, const void* bias, void* c) {
    // oneDNN reads the calling thread's setting.
    const int before = omp_get_max_threads();
    omp_set_num_threads(team_.threads);
    products_.multiply(product, a, b, bias, c);
    omp_set_num_threads(before);
  }
  /// c = 0 or bias in every row: a product over no elements.
  template <class T>
  static void empty_product(std::int64_t m, std::int64_t n, auto* c, View<const T> bias) {
    for (std::int64_t i = 0; i < m * n; ++i) kernels::put(c[i], bias.empty() ? 0.0F : kernels::get(bias[i % n]));
  }

  /// Calls f(products, i) for i from 0 on, each on the next thread that is free, with products of one thread in its
  /// part of the scratch memory: threads wait for each other once, not in every product.
  template <class F>
  void by_threads(std::int64_t count, const F& f) {
    for (int i = static_cast<int>(products_of_threads_.size()); i < team_.threads; ++i)
      products_of_threads_.push_back(std::make_unique<host::Products>(team_.scratch_of(i)));
    std::atomic<std::int64_t> next{0};
    std::mutex mutex;
    std::exception_ptr failure;
    on_threads(team_.threads, [&](int thread) {
      omp_set_num_threads(1);  // inside this region alone
      try {
        for (std::int64_t i = next++; i < count; i = next++)
          f(*products_of_threads_[static_cast<std::size_t>(thread)], i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
      }
    });
    if (failure != nullptr) std::rethrow_exception(failure);
  }

  Team team_;
  host::Products products_;
  std::vector<std::unique_ptr<host::Products>> products_of_threads_;  ///< in whose scratch memory they are
  std::array<double, step_sums> sums_{};
  std::vector<float> loads_;
  std::vector<double> layer_sums_;
  float gradient_scale_ = 1.0F;
  kernels::AdamWStep update_{AdamW{}};
};

static_assert(Device<Host>);

}  // namespace galvatron::device
