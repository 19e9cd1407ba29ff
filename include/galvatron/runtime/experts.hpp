// Experts: MLPs of which a router chooses some for every token. The steps of a program that route tokens, compute their
// experts and go back.
//
//   logits = x Wr^T (fp32) -> k experts and weights for each row -> order of the choices by experts
//   rows in that order -> u = x W1^T, g = activation(u), y = g W2^T, expert by expert -> sum of k weighted rows a token
//
// Backward needs no y: the gradient of a weight is <dy, y> = <dy W2, g>. The gradients of the weights that tensor ranks
// have are of their part of g, and added up.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/op/kind.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/runtime/context.hpp>

namespace galvatron::runtime {

/// Choices that an expert takes of `tokens` tokens; 0: all.
constexpr std::int64_t expert_capacity(const LayerSpec& layer, std::int64_t tokens) {
  if (layer.router.capacity == 0) return 0;
  const double fair = static_cast<double>(layer.active_experts * tokens) / static_cast<double>(layer.experts);
  const double most = fair * layer.router.capacity;
  const auto whole = static_cast<std::int64_t>(most);
  return static_cast<double>(whole) < most ? whole + 1 : whole;
}

/// @tparam Values  values(std::type_identity<U>{}, id): a value of the program, as elements of type U
template <class D, class T, class Values>
class ExpertSteps {
  using Step = program::Step;

 public:
  /// @param token_weight  of a token in the mean of the global batch
  ExpertSteps(Context<D>& context, const LayerSpec& layer, const Step& step, float token_weight, const Values& values)
      : c_(context),
        layer_(layer),
        step_(step),
        values_(values),
        router_(device::kernels::router_of(layer)),
        token_weight_(token_weight) {}

  /// @param router, bias  (E, H) and (E)
  void route(std::int64_t rows, View<const T> router, View<const T> bias) {
    const std::int64_t e = router_.experts;
    const std::int64_t k = router_.active;
    const View<float> logits = out<float>(0);
    const View<float> weights = out<float>(1);
    const View<std::int32_t> chosen = out<std::int32_t>(2);
    const std::int64_t first = weights.count > rows * k ? c_.tensor_rank() * rows * k : 0;
    c_.device.gemm(op::Kind::gemm_nt, rows, e, layer_.hidden, View<const T>(in<T>(0)), router, logits, false);
    c_.device.route(router_, rows, View<const float>(logits), bias, weights.slice(first, rows * k),
                    chosen.slice(first, rows * k));
    if (layer_.router.has_losses()) add_losses(rows, logits, chosen.slice(first, rows * k));
    if (weights.count > rows * k) {
      c_.tensor.all_gather(View<const float>(weights.slice(first, rows * k)), weights);
      c_.tensor.all_gather(View<const std::int32_t>(chosen.slice(first, rows * k)), chosen);
    }
    c_.device.order_choices(device::ChoiceOrder{.experts = e,
                                                .active = k,
                                                .capacity = expert_capacity(layer_, weights.count / k),
                                                .drops = layer_.router.drops},
                            weights.count / k, View<const std::int32_t>(chosen), View<const float>(weights),
                            out<std::int32_t>(4), out<std::int32_t>(5), out<std::int32_t>(6));
  }

  /// @param w1, w2  (E, inputs, H) and (E, H, F)
  void forward(std::int64_t rows, View<const T> w1, View<const T> w2) {
    const std::int64_t routed = rows * router_.active;
    const std::int64_t h = layer_.hidden;
    const View<T> tokens = scratch(0);
    gather(rows, in<T>(0), tokens);
    product(op::Kind::gemm_nt, routed, inputs(), h, tokens, w1, out<T>(1));
    if (step_.out[0] < 0) return;
    const View<T> g = scratch(1);
    c_.device.activation_forward(step_.activation, routed, ffn(), View<const T>(out<T>(1)), g);
    product(op::Kind::gemm_nt, routed, h, ffn(), g, w2, tokens);
    combine(rows, in<float>(1), tokens, out<T>(0));
  }

  /// @param adds1, adds2  false: the gradient is written
  void backward(std::int64_t rows, View<const T> w1, View<const T> w2, View<float> d_w1, bool adds1, View<float> d_w2,
                bool adds2) {
    const std::int64_t routed = rows * router_.active;
    const std::int64_t h = layer_.hidden;
    const std::int64_t f = ffn();
    const View<T> tokens = scratch(0);                  // (routed, H)
    const View<T> g = scratch(1).slice(0, routed * f);  // (routed, F)
    const View<T> d_tokens = scratch(1).slice(0, routed * h);
    const View<T> u = in<T>(5);
    gather(rows, in<T>(6), tokens);
    product(op::Kind::gemm_nn, routed, f, h, tokens, w2, g);
    c_.device.expert_activation_backward(step_.activation, routed, f, order(), View<const float>(in<float>(1)),
                                         View<const T>(u), g, u, out<float>(1));
    product(op::Kind::gemm_tn, routed, h, f, tokens, View<const T>(g), d_w2, adds2);
    gather(rows, in<T>(0), tokens);
    product(op::Kind::gemm_tn, routed, inputs(), h, u, View<const T>(tokens), d_w1, adds1);
    product(op::Kind::gemm_nn, routed, h, inputs(), u, w1, d_tokens);
    combine(rows, {}, d_tokens, out<T>(0));
  }

  /// @param loads  gradient of the bias: grows by the choices of each expert
  void route_backward(std::int64_t rows, View<const T> router, View<float> d_router, View<float> loads) {
    const std::int64_t e = router_.experts;
    const std::int64_t k = router_.active;
    const std::int64_t h = layer_.hidden;
    const View<float> d_weights = in<float>(3);
    if (c_.spec.tensor > 1) c_.tensor.all_reduce(d_weights, comm::ReduceOp::sum);
    const std::int64_t first = d_weights.count > rows * k ? c_.tensor_rank() * rows * k : 0;
    const View<const std::int32_t> chosen = in<std::int32_t>(2).slice(first, rows * k);
    const View<T> d_logits = scratch(0);
    const View<const float> counts =
        layer_.router.balance_loss > 0 ? View<const float>(in<float>(4)) : View<const float>{};
    c_.device.route_backward(router_, rows, samples(), View<const float>(in<float>(1)), chosen,
                             View<const float>(d_weights.slice(first, rows * k)), counts, loss(), d_logits);
    c_.device.gemm(op::Kind::gemm_tn, e, h, rows, View<const T>(d_logits), View<const T>(in<T>(0)), d_router, true);
    c_.device.gemm(op::Kind::gemm_nn, rows, h, e, View<const T>(d_logits), router, out<T>(0), true);
    if (!loads.empty()) c_.device.add_loads(rows * k, chosen, loads);
  }

 private:
  template <class U>
  View<U> in(int i) const {
    return values_(std::type_identity<U>{}, step_.in[static_cast<std::size_t>(i)]);
  }
  template <class U>
  View<U> out(int i) const {
    return values_(std::type_identity<U>{}, step_.out[static_cast<std::size_t>(i)]);
  }
  View<T> scratch(int i) const { return values_(std::type_identity<T>{}, step_.scratch[static_cast<std::size_t>(i)]); }
  [[nodiscard]] std::int64_t ffn() const { return layer_.ffn / c_.spec.tensor; }
  [[nodiscard]] std::int64_t inputs() const { return layer_.ffn_inputs() / c_.spec.tensor; }
  View<const std::int32_t> order() const { return in<std::int32_t>(2); }

  void gather(std::int64_t rows, View<T> from, View<T> to) {
    c_.device.gather_rows(router_.active, layer_.hidden, rows * router_.active, order(), View<const T>(from), to);
  }
  void combine(std::int64_t rows, View<float> weights, View<T> from, View<T> to) {
    c_.device.combine_rows(rows, router_.active, layer_.hidden, View<const std::int32_t>(in<std::int32_t>(3)),
                           View<const float>(weights), View<const T>(from), to);
  }
  template <class C>
  void product(op::Kind kind, std::int64_t routed, std::int64_t n, std::int64_t k, View<const T> a, View<const T> b,
               View<C> c, bool accumulate = false) {
    c_.device.gemm_grouped(kind, router_.experts, routed, n, k, View<const std::int32_t>(in<std::int32_t>(4)), a, b, c,
                           accumulate);
  }

  // ---- losses

  [[nodiscard]] bool by_sequence() const { return layer_.router.balance_scope == BalanceScope::sequence; }
  /// Samples whose choices are counted each for itself.
  [[nodiscard]] std::int64_t samples() const { return by_sequence() ? c_.batch.samples : 1; }
  /// Of a row: the balance loss is alpha E / (k T) * counts . probabilities, with T the tokens that are counted.
  [[nodiscard]] device::RouterLoss loss() const {
    const RouterSpec& router = layer_.router;
    const std::int64_t counted = c_.batch.sequence * (by_sequence() ? 1 : c_.batch.samples) *
                                 (router.balance_scope == BalanceScope::data_ranks ? c_.spec.data : 1);
    const double fair = static_cast<double>(router_.active * counted) / static_cast<double>(router_.experts);
    return {static_cast<float>(router.balance_loss / fair * static_cast<double>(token_weight_)),
            static_cast<float>(router.z_loss) * token_weight_};
  }
  void add_losses(std::int64_t rows, View<float> logits, View<std::int32_t> chosen) {
    View<float> counts;
    if (layer_.router.balance_loss > 0) {
      counts = out<float>(3).slice(0, samples() * router_.experts);
      c_.device.count_choices(router_, rows, samples(), View<const float>(logits), View<const std::int32_t>(chosen),
                              counts);
      const auto sum = [&counts](comm::Group& group) {
        if (group.size() > 1) group.all_reduce(counts, comm::ReduceOp::sum);
      };
      if (c_.spec.sequence == SequenceKind::megatron) sum(c_.tensor);
      sum(layer_.router.balance_scope == BalanceScope::data_ranks ? c_.data : c_.context);
    }
    // Where tensor ranks have the same rows, the first one adds.
    const bool adds = c_.spec.sequence == SequenceKind::megatron || c_.tensor_rank() == 0;
    const View<double> sums = c_.device.sums();
    device::RouterLoss weights = loss();
    if (!adds) weights = {};
    c_.device.router_losses(router_, rows, samples(), View<const float>(logits), View<const float>(counts), weights,
                            sums.slice(device::balance_loss, 1), sums.slice(device::z_loss, 1));
  }

  Context<D>& c_;
  const LayerSpec& layer_;
  const Step& step_;
  const Values& values_;
  device::kernels::Router router_;
  float token_weight_;
};

}  // namespace galvatron::runtime
