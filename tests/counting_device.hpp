// device::Counting: computes nothing and writes down every operation that the layer code asks for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <galvatron/device/device.hpp>
#include <galvatron/device/product.hpp>
#include <galvatron/op/work.hpp>

namespace galvatron::device {

/// Models the Device concept for any element type; views may be null. The log is shared with comm::counting, so that
/// one list tells in order what a rank did.
class Counting {
 public:
  static constexpr bool counts_only = true;
  static constexpr bool groups_products = true;
  using Work = op::Work;
  using Kind = op::Kind;
  /// An operand that is read; its element type is deduced from the others.
  template <class T>
  using In = std::type_identity_t<View<const std::remove_const_t<T>>>;

  explicit Counting(std::vector<Work>& log) : log_(&log) {}
  [[nodiscard]] int threads() const { return 1; }

  template <class A, class C>
  void gemm(Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, View<A>, In<A>, View<C>, bool accumulate = false,
            In<A> = {}) {
    note(product(kind, m, n, k, accumulate));
  }
  template <class A, class C>
  void gemm_columns(Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, const RowStrides&, float, View<A>, In<A>,
                    View<C>, bool accumulate) {
    note(product(kind, m, n, k, accumulate));
  }
  template <class C>
  void gemm_8bit(Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, View<const bfloat16>, View<const bfloat16>,
                 View<C>, bool accumulate, View<const bfloat16>, View<std::byte>) {
    Work work = product(kind, m, n, k, accumulate);
    work.eight_bit = true;
    note(work);
  }
  template <class T>
  void attention_forward(const AttentionShape& s, In<T>, In<T>, In<T>, View<T>, View<float>, const AttentionBias& = {},
                         const DocumentRows& documents = {}) {
    note_attention(Kind::attention_forward, s, documents);
  }
  template <class T>
  void attention_backward(const AttentionShape& s, In<T>, In<T>, In<T>, In<T>, View<const float>, In<T>, View<T>,
                          View<T>, View<T>, View<float>, const AttentionBias& = {},
                          const DocumentRows& documents = {}) {
    note_attention(Kind::attention_backward, s, documents);
  }
  template <class T>
  void relative_bias_forward(const RelativePositions& relative, std::int64_t heads, View<T>, View<float>) {
    note({.kind = Kind::embedding_forward, .m = relative.distances(), .n = heads});
  }
  void relative_bias_backward(const RelativePositions& relative, std::int64_t heads, View<const float>, View<float>) {
    note({.kind = Kind::embedding_backward, .m = relative.distances(), .n = heads});
  }
  template <class T>
  void attention_merge(const AttentionShape& s, View<T>, View<const float>, View<float>, View<float>) {
    note({.kind = Kind::add, .m = s.batch * s.heads * s.queries * s.head_dim});
  }
  template <class T>
  void window_attention_forward(const WindowShape& s, In<T>, In<T>, In<T>, In<T>, View<T>, View<float>) {
    note(windows(Kind::attention_forward, s));
  }
  template <class T>
  void window_attention_backward(const WindowShape& s, In<T>, In<T>, In<T>, In<T>, View<const float>, In<T>, View<T>,
                                 View<T>, View<T>, View<float>) {
    note(windows(Kind::attention_backward, s));
  }
  template <class T>
  void norm_forward(NormKind, std::int64_t rows, std::int64_t h, double, In<T>, In<T>, In<T>, View<T>, View<float>) {
    note({.kind = Kind::norm_forward, .m = rows, .n = h});
  }
  template <class T>
  void add_norm_forward(NormKind, std::int64_t rows, std::int64_t h, double, In<T>, In<T>, In<T>, In<T>, View<T>,
                        View<T>, View<float>) {
    note({.kind = Kind::add_norm_forward, .m = rows, .n = h});
  }
  template <class T>
  void norm_recompute(NormKind, std::int64_t rows, std::int64_t h, In<T>, In<T>, In<T>, View<const float>, View<T>) {
    note({.kind = Kind::norm_forward, .m = rows, .n = h});
  }
  template <class T>
  void norm_backward(NormKind, std::int64_t rows, std::int64_t h, In<T>, In<T>, In<T>, View<const float>, In<T>,
                     View<T>, View<float>, View<float>) {
    note({.kind = Kind::norm_backward, .m = rows, .n = h});
  }
  template <class T>
  void add(std::int64_t n, In<T>, In<T>, View<T>) {
    note({.kind = Kind::add, .m = n});
  }
  template <class T>
  void multiply(std::int64_t n, In<T>, In<T>, View<T>) {
    note({.kind = Kind::add, .m = n});
  }
  template <class T>
  void activation_forward(ActivationKind, std::int64_t rows, std::int64_t n, In<T>, View<T>) {
    note({.kind = Kind::activation_forward, .m = rows, .n = n});
  }
  template <class T>
  void activation_backward(ActivationKind, std::int64_t rows, std::int64_t n, In<T>, In<T>, View<T>) {
    note({.kind = Kind::activation_backward, .m = rows, .n = n});
  }
  template <class T>
  void gemm_activation(ActivationKind kind, std::int64_t m, std::int64_t n, std::int64_t k, In<T>, In<T>, In<T>,
                       View<T>, View<T>) {
    note({.kind = Kind::gemm_nt, .m = m, .n = inputs_of(kind) * n, .k = k});
    note({.kind = kind == ActivationKind::gelu ? Kind::gelu_in_product : Kind::activation_forward, .m = m, .n = n});
  }
  template <class T>
  void gemm_activation_backward(ActivationKind kind, std::int64_t m, std::int64_t n, std::int64_t k, In<T>, In<T>,
                                In<T>, View<T>, View<T>) {
    note({.kind = Kind::gemm_nn, .m = m, .n = n, .k = k});
    note({.kind = kind == ActivationKind::gelu ? Kind::gelu_gradient_in_product : Kind::activation_backward,
          .m = m,
          .n = n});
  }
  template <class T>
  void bias_gradient(std::int64_t rows, std::int64_t n, View<T>, View<float>) {
    note({.kind = Kind::bias_gradient, .m = rows, .n = n});
  }
  template <class T>
  void rotary(std::int64_t rows, std::int64_t, const device::TokenPositions&, std::int64_t heads, std::int64_t head_dim,
              std::int64_t, const kernels::RotaryFrequencies&, bool, View<T>) {
    note({.kind = Kind::rotary, .m = rows, .n = heads * head_dim});
  }
  template <class T>
  void jitter(const kernels::Jitter& noise, std::int64_t rows, View<const std::int32_t>, In<T>, View<T>) {
    note({.kind = Kind::activation_forward, .m = rows, .n = noise.columns});
  }
  template <class T>
  void embedding_forward(std::int64_t rows, std::int64_t h, View<const std::int32_t>, std::int64_t, std::int64_t, float,
                         In<T>, View<T>) {
    note({.kind = Kind::embedding_forward, .m = rows, .n = h});
  }
  template <class T>
  void embedding_backward(std::int64_t rows, std::int64_t h, View<const std::int32_t>, std::int64_t, std::int64_t,
                          float, View<T>, View<float>) {
    note({.kind = Kind::embedding_backward, .m = rows, .n = h});
  }
  template <class T>
  void position_forward(std::int64_t rows, std::int64_t, std::int64_t h, std::int64_t, In<T>, View<T>) {
    note({.kind = Kind::add, .m = rows * h});
  }
  template <class T>
  void position_backward(std::int64_t rows, std::int64_t, std::int64_t h, std::int64_t, View<T>, View<float>) {
    note({.kind = Kind::bias_gradient, .m = rows, .n = h});
  }
  template <class T>
  void pool_forward(std::int64_t tokens, std::int64_t b, std::int64_t h, float, In<T>, View<T>) {
    note({.kind = Kind::bias_gradient, .m = tokens * b, .n = h});
  }
  template <class T>
  void pool_backward(std::int64_t tokens, std::int64_t b, std::int64_t h, float, In<T>, View<T>) {
    note({.kind = Kind::copy, .m = tokens * b * h * static_cast<std::int64_t>(sizeof(T))});
  }
  template <class T>
  void softmax_statistics(std::int64_t rows, std::int64_t columns, std::int64_t, std::int64_t, View<T>,
                          View<const std::int32_t>, View<float>, float = 0) {
    note({.kind = Kind::softmax_statistics, .m = rows, .n = columns});
  }
  void softmax_merge(std::int64_t rows, std::int64_t shards, View<const float>, View<float>, View<double>) {
    note({.kind = Kind::softmax_statistics, .m = rows, .n = 3 * shards});
  }
  template <class T>
  void softmax_backward(std::int64_t rows, std::int64_t columns, std::int64_t, std::int64_t, View<const float>,
                        View<const std::int32_t>, float, bool, View<T>, float = 0) {
    note({.kind = Kind::softmax_backward, .m = rows, .n = columns});
  }
  template <class B>
  void route(const kernels::Router& r, std::int64_t rows, View<const float>, View<B>, View<float>, View<std::int32_t>) {
    note({.kind = Kind::softmax_statistics, .m = rows, .n = r.experts});
  }
  void count_choices(const kernels::Router&, std::int64_t, std::int64_t, View<const float>, View<const std::int32_t>,
                     View<float>) {}
  void router_losses(const kernels::Router& r, std::int64_t rows, std::int64_t, View<const float>, View<const float>,
                     RouterLoss, View<double>, View<double>) {
    note({.kind = Kind::softmax_statistics, .m = rows, .n = r.experts});
  }
  template <class T>
  void route_backward(const kernels::Router& r, std::int64_t rows, std::int64_t, View<const float>,
                      View<const std::int32_t>, View<const float>, View<const float>, RouterLoss, View<T>) {
    note({.kind = Kind::softmax_backward, .m = rows, .n = r.experts});
  }
  void add_loads(std::int64_t, View<const std::int32_t>, View<float>) {}
  void order_choices(const ChoiceOrder& how, std::int64_t rows, View<const std::int32_t>, View<const float>,
                     View<std::int32_t>, View<std::int32_t>, View<std::int32_t>) {
    note({.kind = Kind::copy, .m = rows * how.active * 8});
  }
  void choose_nodes(std::int64_t, std::int64_t, std::int64_t, std::int64_t, View<const std::int32_t>,
                    View<const std::int32_t>, View<std::int32_t>, View<std::int32_t>) {}
  template <class T>
  void gather_rows(std::int64_t, std::int64_t width, std::int64_t rows, View<const std::int32_t>, In<T>, View<T>) {
    note({.kind = Kind::copy, .m = rows * width * static_cast<std::int64_t>(sizeof(T))});
  }
  template <class T>
  void combine_rows(std::int64_t, std::int64_t, std::int64_t, View<const std::int32_t>, View<const float>, In<T> from,
                    View<T>) {
    note({.kind = Kind::copy, .m = from.count * static_cast<std::int64_t>(sizeof(T))});
  }
  template <class A, class C>
  void gemm_grouped(Kind kind, std::int64_t experts, std::int64_t rows, std::int64_t n, std::int64_t k,
                    View<const std::int32_t>, View<A>, In<A>, View<C>, bool accumulate = false) {
    const std::int64_t own = divide_up(rows, experts);  // as if spread evenly
    Work work = kind == Kind::gemm_tn ? product(kind, n, k, own, accumulate) : product(kind, own, n, k, accumulate);
    work.times = static_cast<std::int32_t>(experts);
    work.grouped = true;
    note(work);
  }
  template <class T>
  void expert_activation_backward(ActivationKind, std::int64_t rows, std::int64_t n, View<const std::int32_t>,
                                  View<const float>, In<T>, View<T>, View<T>, View<float>) {
    note({.kind = Kind::activation_forward, .m = rows, .n = n});
    note({.kind = Kind::activation_backward, .m = rows, .n = n});
  }
  template <class T>
  void rotate_by_signs(const kernels::CrossPolytope& hashing, std::int64_t rows, std::int64_t width, View<T>,
                       View<const float>, View<float>) {
    note({.kind = Kind::add, .m = rows * hashing.hashes * width});
  }
  void hash_rows(const kernels::CrossPolytope& hashing, std::int64_t rows, View<const float>, View<std::int32_t>) {
    note({.kind = Kind::softmax_statistics, .m = rows, .n = hashing.columns()});
  }
  void number_buckets(const kernels::CrossPolytope& hashing, const TokenBuckets& b, View<const std::int32_t>,
                      View<std::int32_t>) {
    note({.kind = Kind::copy, .m = b.rows * hashing.hashes * 4});
  }
  void single_buckets(const TokenBuckets&) {}
  template <class T>
  void bucket_sums(const TokenBuckets& b, std::int64_t width, bool, View<const float>, In<T>, View<T>) {
    note({.kind = Kind::copy, .m = b.rows * width * static_cast<std::int64_t>(sizeof(T))});
  }
  template <class T>
  void bucket_distances(const TokenBuckets& b, std::int64_t width, View<T>, In<T>, View<double>) {
    note({.kind = Kind::add, .m = b.rows * width});
  }
  template <class T>
  void combine_buckets(const TokenBuckets& b, std::int64_t, std::int64_t width, const ResidualGain&,
                       View<const std::int32_t>, View<const float>, In<T>, In<T>, In<T>, View<T>) {
    note({.kind = Kind::copy, .m = b.rows * width * static_cast<std::int64_t>(sizeof(T))});
  }
  template <class T>
  void bucket_weights_backward(const TokenBuckets& b, std::int64_t, std::int64_t width, const ResidualGain&,
                               View<const std::int32_t>, View<T>, In<T>, In<T>, In<T>, View<float>) {
    note({.kind = Kind::add, .m = b.rows * width});
  }
  template <class T>
  void gain_backward(const TokenBuckets& b, std::int64_t width, View<const float>, View<T>, In<T>, In<T>, View<float>) {
    note({.kind = Kind::add, .m = b.rows * width});
  }
  template <class T>
  void combine_buckets_backward(const TokenBuckets& b, std::int64_t, std::int64_t width, const ResidualGain&,
                                View<const std::int32_t>, View<const float>, In<T>, In<T>, In<T>, View<T>) {
    note({.kind = Kind::copy, .m = b.rows * width * static_cast<std::int64_t>(sizeof(T))});
  }
  template <class T>
  void exponential_row(std::int64_t n, float, View<const T>, View<T>) {
    note({.kind = Kind::fill, .m = n * static_cast<std::int64_t>(sizeof(T))});
  }
  template <class T>
  void exponential_row_backward(std::int64_t n, View<const T>, View<const float>, View<float>) {
    note({.kind = Kind::norm_squared, .m = n});
  }
  template <class T>
  void gate_forward(std::int64_t rows, std::int64_t n, In<T>, In<T>, View<T>) {
    note({.kind = Kind::add, .m = rows * n});
  }
  template <class T>
  void gate_backward(std::int64_t rows, std::int64_t n, In<T>, In<T>, In<T>, View<T>, View<T>) {
    note({.kind = Kind::add, .m = rows * n});
  }
  template <class W>
  void balance_bias(std::int64_t n, float, float, View<const float>, View<float>, View<W>) {
    note({.kind = update_, .m = n});  // priced as the parameters around it
  }
  void begin_update(const AdamW&) {}
  template <class M, class T>
  void adamw(std::int64_t n, const AdamWPart&, View<const float>, View<float>, View<const float>, View<M>, View<M>,
             View<T>) {
    update_ = std::is_same_v<M, float> ? Kind::adamw : Kind::adamw_bf16;
    if (n > 0) note({.kind = update_, .m = n});
  }
  void norm_squared(std::int64_t n, View<const float>, View<double>) {
    if (n > 0) note({.kind = Kind::norm_squared, .m = n});
  }
  void clip_scale(View<const double>, double, View<float>) {}
  void wait() {}
  template <class F>
  void repeat(int, F&& body) {
    body();
  }
  View<double> sums() { return {nullptr, step_sums}; }
  View<float> gradient_scale() { return {nullptr, 1}; }
  void clear_sums() {}
  View<float> loads() { return {nullptr, device::most_loads}; }
  View<double> layer_sums() { return {nullptr, device::most_layer_sums}; }
  void add_time(double, View<double>) {}
  template <class T>
  void fetch(View<const T> from, T* to) {
    std::fill_n(to, from.count, T{});
  }
  template <class T, class Writer>
  void write(View<T>, Writer&&) {}
  void zero(View<std::byte> to) { note({.kind = Kind::fill, .m = to.count}); }
  void copy(View<const std::byte> from, View<std::byte>) { note({.kind = Kind::copy, .m = from.count}); }
  template <class T>
  void accumulate(std::int64_t n, View<T>, View<float>) {
    note({.kind = Kind::add, .m = n});
  }
  template <class A, class B>
  void copy_runs(const Runs& runs, View<A>, View<B>) {
    note({.kind = Kind::copy, .m = runs.elements() * static_cast<std::int64_t>(sizeof(B))});
  }
  template <class A, class B>
  void add_runs(const Runs& runs, View<A>, View<B>) {
    note({.kind = Kind::add, .m = runs.elements()});
  }

 private:
  void note(const Work& work) { log_->push_back(work); }
  static Work product(Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate) {
    check_gemm(kind);
    return {.kind = kind, .m = m, .n = n, .k = k, .writes_one_in = kind == Kind::gemm_tn && !accumulate ? 1 : 0};
  }
  static Work attention(Kind kind, const AttentionShape& s) {
    return {.kind = kind, .m = s.batch * s.heads, .n = s.queries, .k = s.keys, .l = s.head_dim, .causal = s.causal};
  }
  // Documents one by one.
  void note_attention(Kind kind, AttentionShape s, const DocumentRows& documents) {
    if (documents.empty()) return note(attention(kind, s));
    for (std::size_t i = 0; i + 1 < documents.queries.size(); ++i) {
      s.queries = documents.queries[i + 1] - documents.queries[i];
      s.keys = documents.keys[i + 1] - documents.keys[i];
      note(attention(kind, s));
    }
  }
  // Every window is a sequence of its own.
  static Work windows(Kind kind, const WindowShape& s) {
    return {.kind = kind, .m = s.batch * s.windows() * s.heads, .n = s.span(), .k = s.span(), .l = s.head_dim};
  }

  std::vector<Work>* log_;
  Kind update_ = Kind::adamw;
};

}  // namespace galvatron::device
