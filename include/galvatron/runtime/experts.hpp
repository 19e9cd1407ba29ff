// Experts: MLPs of which a router chooses some for every token. The steps of a program that route tokens, compute their
// experts and go back.
//
//   logits = x Wr^T (fp32) -> k experts and weights for each row -> order of the choices by experts
//   rows in that order [-> to the ranks of their experts]
//   -> expert by expert u = x W1^T, g = activation(u), y = g W2^T [-> back] -> sum of k weighted rows a token
//
// Backward needs no y: the gradient of a weight is <dy, y> = <dy W2, g>. The gradients of the weights that ranks with
// parts of an expert have are of their part of g, and added up.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/op/kind.hpp>
#include <galvatron/program/extent.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/runtime/context.hpp>
#include <galvatron/runtime/expert_exchange.hpp>
#include <galvatron/runtime/expert_messages.hpp>
#include <galvatron/runtime/expert_relay.hpp>

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
  ExpertSteps(Context<D>& context, const LayerSpec& layer, const Step& step, float token_weight,
              const program::Numbers& numbers, const Values& values)
      : c_(context),
        layer_(layer),
        step_(step),
        numbers_(numbers),
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
    const std::int64_t first = part_of(weights.count, rows * k);
    if (rows == 0) {
      c_.device.zero(raw_bytes(out<std::int32_t>(6)));
      if (layer_.router.has_losses()) add_losses(rows, logits, chosen);
      return;
    }
    c_.device.gemm(op::Kind::gemm_nt, rows, e, layer_.hidden, View<const T>(in<T>(0)), router, logits, false);
    c_.device.route(router_, rows, View<const float>(logits), bias, weights.slice(first, rows * k),
                    chosen.slice(first, rows * k));
    if (layer_.router.has_losses()) add_losses(rows, logits, chosen.slice(first, rows * k));
    if (weights.count > rows * k) {
      c_.tensor.all_gather(View<const float>(weights.slice(first, rows * k)), weights);
      c_.tensor.all_gather(View<const std::int32_t>(chosen.slice(first, rows * k)), chosen);
    }
    const std::int64_t own = out<std::int32_t>(4).count;  // choices that this rank sends to experts
    const std::int64_t begin = part_of(weights.count, own);
    const View<const std::int32_t> own_choices = chosen.slice(begin, own);
    c_.device.order_choices(
        device::ChoiceOrder{
            .experts = e, .active = k, .capacity = expert_capacity(layer_, own / k), .drops = layer_.router.drops},
        own / k, own_choices, View<const float>(weights.slice(begin, own)), out<std::int32_t>(4), out<std::int32_t>(5),
        out<std::int32_t>(6).slice(0, e + 1));
    if (c_.spec.relays_tokens()) find_nodes(own / k, own_choices);
  }
  /// To be finished before exchange_forward().
  comm::Pending exchange_counts() {
    return c_.experts.start_all_gather(View<const std::int32_t>(in<std::int32_t>(0)), out<std::int32_t>(0));
  }

  /// @param w1, w2  (E, inputs, H) and (E, H, F) of a rank
  void forward(std::int64_t rows, View<const T> w1, View<const T> w2) {
    const View<T> tokens = scratch(0);
    gather(in<T>(0), tokens);
    compute(rows * router_.active, in<std::int32_t>(4), tokens, w1, w2, step_.out[0] >= 0 ? tokens : View<T>{});
    if (step_.out[0] >= 0) combine(rows, in<float>(1), tokens, out<T>(0));
  }

  /// @param adds1, adds2  false: the gradient is written
  void backward(std::int64_t rows, View<const T> w1, View<const T> w2, View<float> d_w1, bool adds1, View<float> d_w2,
                bool adds2) {
    if (rows == 0) {
      if (!adds1) c_.device.zero(raw_bytes(d_w1));
      if (!adds2) c_.device.zero(raw_bytes(d_w2));
      return;
    }
    const std::int64_t routed = rows * router_.active;
    const View<T> tokens = scratch(0);                        // (routed, H)
    const View<T> g = scratch(1).slice(0, routed * width());  // (routed, F)
    const View<T> d_tokens = scratch(1).slice(0, routed * layer_.hidden);
    const View<const std::int32_t> offsets = in<std::int32_t>(4);
    gather(in<T>(6), tokens);
    backward_to_inputs(routed, offsets, View<const std::int32_t>(in<std::int32_t>(2)), in<float>(1), tokens, in<T>(5),
                       g, out<float>(1), w2, d_w2, adds2);
    gather(in<T>(0), tokens);
    backward_to_rows(routed, offsets, in<T>(5), tokens, d_tokens, w1, d_w1, adds1);
    combine(rows, {}, d_tokens, out<T>(0));
  }

  // Where tokens are exchanged. What the experts keep is that of the last round; the others are computed again.

  void exchange_forward(std::int64_t rows, View<const T> w1, View<const T> w2) {
    const std::int64_t routed = rows * router_.active;
    const bool whole = step_.out[0] >= 0;
    const Exchange exchange = exchange_of(5);
    std::optional<Relay> relay = relay_of(exchange, rows);
    const std::int64_t sent = relay ? relay->rows() : routed;  // places of what comes back
    const View<float> weights = own_choices(in<float>(1), routed);
    const View<T> packed = pack(relay, own_rows(in<T>(0), rows), weights);
    for (int round = whole ? 0 : exchange.rounds() - 1; round < exchange.rounds(); ++round) {
      send(exchange, round, packed, layer_.hidden, out<T>(2));
      compute(exchange.rows(round), own_offsets(exchange, round), out<T>(2), w1, w2, whole ? scratch(0) : View<T>{});
      if (whole) send_back(exchange, round, scratch(0), layer_.hidden, scratch(3), sent);
    }
    if (!whole) return;
    const View<T> returned = add_parts(scratch(3), sent * layer_.hidden);
    if (relay)
      relay->combine(returned, out<T>(0));
    else
      combine(rows, weights, returned, out<T>(0));
  }

  void exchange_backward(std::int64_t rows, View<const T> w1, View<const T> w2, View<float> d_w1, bool adds1,
                         View<float> d_w2, bool adds2) {
    const std::int64_t routed = rows * router_.active;
    const std::int64_t h = layer_.hidden;
    const Exchange exchange = exchange_of(5);
    std::optional<Relay> relay = relay_of(exchange, rows);
    const std::int64_t sent = relay ? relay->rows() : routed;
    const View<T> u = in<T>(6);
    const View<T> tokens = in<T>(7);
    const View<float> weights = own_choices(in<float>(1), routed);
    const View<float> row_weights = values_(std::type_identity<float>{}, step_.scratch[5]);
    const View<float> d_row_weights = values_(std::type_identity<float>{}, step_.scratch[6]);
    View<float> sent_weights;
    const View<float> d_sent_weights =
        relay ? relay->row_gradients() : values_(std::type_identity<float>{}, step_.scratch[8]);
    for (int round = exchange.rounds() - 1; round >= 0; --round) {
      const std::int64_t n = exchange.rows(round);
      const bool first = round == exchange.rounds() - 1;
      const View<const std::int32_t> offsets = own_offsets(exchange, round);
      if (!first) {
        send(exchange, round, pack(relay, own_rows(in<T>(0), rows), weights), h, tokens);
        product(op::Kind::gemm_nt, n, inputs(), h, offsets, View<const T>(tokens), w1, u);
      }
      const View<T> packed = pack(relay, own_rows(in<T>(8), rows), weights);
      if (first) sent_weights = pack_weights(relay, weights);
      send(exchange, round, packed, h, scratch(0));
      send(exchange, round, sent_weights, 1, row_weights);
      const View<T> g = scratch(1).slice(0, n * width());
      const View<T> d_tokens = scratch(1).slice(0, n * h);
      backward_to_inputs(n, offsets, {}, row_weights, scratch(0), u, g, d_row_weights.slice(0, n), w2, d_w2,
                         adds2 || !first);
      backward_to_rows(n, offsets, u, tokens, d_tokens, w1, d_w1, adds1 || !first);
      send_back(exchange, round, d_tokens, h, scratch(3), sent);
      send_back(exchange, round, d_row_weights, 1, d_sent_weights, sent);
    }
    const View<T> returned = add_parts(scratch(3), sent * h);
    const View<float> returned_weights = add_parts(d_sent_weights, sent);
    const View<float> d_weights = own_choices(out<float>(1), routed);
    if (relay) return relay->combine_gradients(returned, out<T>(0), returned_weights, d_weights);
    combine(rows, {}, returned, out<T>(0));
    c_.device.combine_rows(routed, 1, 1, View<const std::int32_t>(in<std::int32_t>(3)), View<const float>{},
                           View<const float>(returned_weights), d_weights);
  }

  /// @param loads  gradient of the bias: grows by the choices of each expert
  void route_backward(std::int64_t rows, View<const T> router, View<float> d_router, View<float> loads) {
    const std::int64_t e = router_.experts;
    const std::int64_t k = router_.active;
    const std::int64_t h = layer_.hidden;
    const View<float> d_weights = in<float>(3);
    if (c_.spec.tensor > 1) {
      // Where tokens are exchanged, a rank has the gradients of what it sent, else those of its part of the experts.
      const std::int64_t own = d_weights.count / c_.spec.tensor;
      if (!c_.spec.exchanges_tokens())
        c_.tensor.all_reduce(d_weights, comm::ReduceOp::sum);
      else if (!c_.spec.cuts_over_tensor())
        c_.tensor.all_gather(View<const float>(d_weights.slice(c_.tensor_rank() * own, own)), d_weights);
    }
    const std::int64_t first = part_of(d_weights.count, rows * k);
    const View<const std::int32_t> chosen = in<std::int32_t>(2).slice(first, rows * k);
    const View<T> d_logits = scratch(0);
    const View<const float> counts =
        layer_.router.balance_loss > 0 ? View<const float>(in<float>(4)) : View<const float>{};
    c_.device.route_backward(router_, rows, samples(), View<const float>(in<float>(1)), chosen,
                             View<const float>(d_weights.slice(first, rows * k)), counts, loss(), d_logits);
    c_.device.gemm(op::Kind::gemm_tn, e, h, rows, View<const T>(d_logits), View<const T>(in<T>(0)), d_router, true);
    c_.device.gemm(op::Kind::gemm_nn, rows, h, e, View<const T>(d_logits), router, out<T>(0), true);
    if (!loads.empty()) c_.device.add_loads(rows * k, chosen, loads);
    if (!c_.loads.empty() && counts_rows()) c_.device.add_loads(rows * k, chosen, c_.loads);
  }

 protected:
  [[nodiscard]] const program::Numbers& numbers() const { return numbers_; }
  template <class U>
  View<U> in(int i) const {
    return values_(std::type_identity<U>{}, step_.in[static_cast<std::size_t>(i)]);
  }
  template <class U>
  View<U> out(int i) const {
    return values_(std::type_identity<U>{}, step_.out[static_cast<std::size_t>(i)]);
  }
  View<T> scratch(int i) const { return values_(std::type_identity<T>{}, step_.scratch[static_cast<std::size_t>(i)]); }
  [[nodiscard]] std::int64_t width() const { return layer_.ffn / c_.spec.etp(); }
  [[nodiscard]] std::int64_t inputs() const { return layer_.ffn_inputs() / c_.spec.etp(); }
  [[nodiscard]] std::int64_t local_experts() const { return router_.experts / c_.spec.expert; }
  View<const std::int32_t> order() const { return in<std::int32_t>(2); }
  /// Where this rank's part of `part` elements begins in `all`: at 0 where that is all that it has.
  [[nodiscard]] std::int64_t part_of(std::int64_t all, std::int64_t part) const {
    return all > part ? c_.tensor_rank() * part : 0;
  }
  template <class U>
  View<U> own_choices(View<U> all, std::int64_t routed) const {
    return all.slice(part_of(all.count, routed), routed);
  }
  View<T> own_rows(View<T> all, std::int64_t rows) const {
    return all.slice(part_of(all.count, rows * layer_.hidden), rows * layer_.hidden);
  }

  void gather(View<T> from, View<T> to) {
    c_.device.gather_rows(router_.active, layer_.hidden, order().count, order(), View<const T>(from), to);
  }
  void combine(std::int64_t rows, View<float> weights, View<T> from, View<T> to) {
    c_.device.combine_rows(rows, router_.active, layer_.hidden, View<const std::int32_t>(in<std::int32_t>(3)),
                           View<const float>(weights), View<const T>(from), to);
  }
  template <class C>
  void product(op::Kind kind, std::int64_t rows, std::int64_t n, std::int64_t k, View<const std::int32_t> offsets,
               View<const T> a, View<const T> b, View<C> c, bool accumulate = false) {
    c_.device.gemm_grouped(kind, local_experts(), rows, n, k, offsets, a, b, c, accumulate);
  }
  /// y (rows, H) of the experts of tokens (rows, H), in whose place it may be. Without y only u is computed.
  void compute(std::int64_t rows, View<const std::int32_t> offsets, View<T> tokens, View<const T> w1, View<const T> w2,
               View<T> y) {
    const View<T> u = out<T>(1);
    product(op::Kind::gemm_nt, rows, inputs(), layer_.hidden, offsets, View<const T>(tokens), w1, u);
    if (y.empty()) return;
    const View<T> g = scratch(1).slice(0, rows * width());
    c_.device.activation_forward(step_.activation, rows, width(), View<const T>(u.slice(0, rows * inputs())), g);
    product(op::Kind::gemm_nt, rows, layer_.hidden, width(), offsets, View<const T>(g), w2, y);
  }
  /// d (rows, H), the gradient of what experts give, to that of u, in place, and of the weights; g is scratch.
  void backward_to_inputs(std::int64_t rows, View<const std::int32_t> offsets, View<const std::int32_t> order,
                          View<float> weights, View<T> d, View<T> u, View<T> g, View<float> d_weights, View<const T> w2,
                          View<float> d_w2, bool adds) {
    product(op::Kind::gemm_nn, rows, width(), layer_.hidden, offsets, View<const T>(d), w2, g);
    c_.device.expert_activation_backward(step_.activation, rows, width(), order, View<const float>(weights),
                                         View<const T>(u), g, u, d_weights);
    product(op::Kind::gemm_tn, rows, layer_.hidden, width(), offsets, View<const T>(d), View<const T>(g), d_w2, adds);
  }
  /// du to the gradient of the experts' rows.
  void backward_to_rows(std::int64_t rows, View<const std::int32_t> offsets, View<T> du, View<T> tokens, View<T> d,
                        View<const T> w1, View<float> d_w1, bool adds) {
    product(op::Kind::gemm_tn, rows, inputs(), layer_.hidden, offsets, View<const T>(du), View<const T>(tokens), d_w1,
            adds);
    product(op::Kind::gemm_nn, rows, layer_.hidden, inputs(), offsets, View<const T>(du), w1, d);
  }

  // ---- exchange

  using Relay = ExpertRelay<D, T>;

  /// On a device that only counts, the experts' memory is full.
  struct Exchange {
    std::optional<ExpertExchange> plan;
    std::int64_t capacity = 0;
    ExchangeNodes nodes{};
    [[nodiscard]] int rounds() const { return plan ? plan->rounds() : 1; }
    [[nodiscard]] std::int64_t rows(int round) const { return plan ? plan->rows(round) : capacity; }
    [[nodiscard]] bool by_nodes() const { return plan ? plan->by_nodes() : nodes.count > 1; }
  };
  /// @param counts  the operand that has the offsets of all ranks
  Exchange exchange_of(int counts) {
    const View<const std::int32_t> all = in<std::int32_t>(counts);
    const std::int64_t capacity =
        scratch(0).count > 0 ? scratch(0).count / layer_.hidden : out<T>(2).count / layer_.hidden;
    const ExchangeNodes& nodes = numbers_.nodes();
    if constexpr (D::counts_only) return {std::nullopt, capacity, nodes};
    std::vector<std::int32_t> offsets(static_cast<std::size_t>(all.count));
    c_.device.fetch(all, offsets.data());
    return {ExpertExchange(std::move(offsets), router_.experts, c_.spec.etp(), capacity, c_.experts.rank(), nodes),
            capacity, nodes};
  }
  /// In a step whose operand 4 has the numbers of nodes.
  std::optional<Relay> relay_of(const Exchange& exchange, std::int64_t rows) {
    if (!exchange.by_nodes()) return std::nullopt;
    return Relay(c_, layer_, exchange.nodes, exchange.plan, rows,
                 TokenNodes(in<std::int32_t>(4), rows, exchange.nodes.count, router_.active),
                 {scratch(2), scratch(3), values_(std::type_identity<std::int32_t>{}, step_.scratch[9]),
                  values_(std::type_identity<float>{}, step_.scratch[10])});
  }
  /// Of the step that routes: nodes of the tokens (T), as TokenNodes has them.
  void find_nodes(std::int64_t rows, View<const std::int32_t> chosen) {
    const std::int64_t nodes = c_.spec.expert_nodes;
    const TokenNodes found(out<std::int32_t>(7), rows, nodes, router_.active);
    const View<std::int32_t> choices = values_(std::type_identity<std::int32_t>{}, step_.scratch[0]);
    c_.device.choose_nodes(router_.experts / nodes, nodes, router_.active, rows, chosen,
                           View<const std::int32_t>(out<std::int32_t>(5)), choices, found.chosen);
    c_.device.order_choices(device::ChoiceOrder{.experts = nodes, .active = nodes}, rows,
                            View<const std::int32_t>(choices), View<const float>{}, found.order, found.places,
                            out<std::int32_t>(6).slice(router_.experts + 1, nodes + 1));
  }
  /// Rows of this rank's tokens, or of those that it relays, in the order of experts.
  View<T> pack(std::optional<Relay>& relay, View<T> from, View<float> weights) {
    if (relay) return relay->relay(from, weights);
    const View<T> packed = scratch(2).slice(0, order().count * layer_.hidden);
    gather(from, packed);
    return packed;
  }
  /// Their weights, behind them.
  View<float> pack_weights(std::optional<Relay>& relay, View<float> weights) {
    if (relay) return relay->relay_weights();
    const View<float> packed = values_(std::type_identity<float>{}, step_.scratch[7]);
    c_.device.gather_rows(1, 1, order().count, order(), View<const float>(weights), packed);
    return packed;
  }
  View<const std::int32_t> own_offsets(const Exchange& exchange, int round) {
    const View<std::int32_t> out =
        values_(std::type_identity<std::int32_t>{}, step_.scratch[4]).slice(0, local_experts() + 1);
    if (exchange.plan) {
      const std::vector<std::int32_t> offsets = exchange.plan->own_offsets(round);
      c_.device.write(out, [&](View<std::int32_t> to) { std::ranges::copy(offsets, to.begin()); });
    }
    return out;
  }
  /// packed, rows in the order of experts, to the ranks of the experts, of which this one gets `rows`.
  template <class U>
  void send(const Exchange& exchange, int round, View<U> packed, std::int64_t width, View<U> rows) {
    if (!exchange.plan) return count_rows<U>(exchange, width);
    ExpertMessages messages = expert_messages(c_);
    exchange.plan->for_each_sent(round, [&](std::int64_t peer, std::int64_t, std::int64_t first, std::int64_t count) {
      messages.send(peer, packed, width, first, count);
    });
    exchange.plan->for_each_received(round, [&](std::int64_t peer, std::int64_t place, std::int64_t count) {
      messages.receive(peer, rows, width, place, count);
    });
    messages.deliver();
  }
  /// The way back, to `packed` (parts, sent, width): a part from each rank that has one of the expert.
  template <class U>
  void send_back(const Exchange& exchange, int round, View<U> rows, std::int64_t width, View<U> packed,
                 std::int64_t sent) {
    if (!exchange.plan) return count_rows<U>(exchange, width);
    ExpertMessages messages = expert_messages(c_);
    exchange.plan->for_each_received(round, [&](std::int64_t peer, std::int64_t place, std::int64_t count) {
      messages.send(peer, rows, width, place, count);
    });
    exchange.plan->for_each_sent(round,
                                 [&](std::int64_t peer, std::int64_t part, std::int64_t first, std::int64_t count) {
                                   messages.receive(peer, packed, width, part * sent + first, count);
                                 });
    messages.deliver();
  }
  /// By nodes, rows stay in the node.
  template <class U>
  void count_rows(const Exchange& exchange, std::int64_t width) {
    const int members = c_.experts.size() / (exchange.by_nodes() ? c_.spec.expert_nodes : 1);
    const int first = c_.experts.rank() / members * members;
    count_exchange<U>(
        c_.world.group(c_.experts.ranks().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(members))),
        exchange.capacity * width);
  }
  /// The first of the parts (parts, n) becomes their sum.
  template <class U>
  View<U> add_parts(View<U> parts, std::int64_t n) {
    const View<U> sum = parts.slice(0, n);
    for (std::int64_t part = 1; part < c_.spec.etp(); ++part)
      c_.device.add(n, View<const U>(sum), View<const U>(parts.slice(part * n, n)), sum);
    return sum;
  }

  // ---- losses

  /// Where tensor ranks have the same rows, the first one adds.
  [[nodiscard]] bool counts_rows() const { return c_.spec.cuts_over_tensor() || c_.tensor_rank() == 0; }
  [[nodiscard]] bool by_sequence() const { return layer_.router.balance_scope == BalanceScope::sequence; }
  /// Samples whose choices are counted each for itself.
  [[nodiscard]] std::int64_t samples() const { return by_sequence() ? c_.batch.samples : 1; }
  /// Of a row: the balance loss is alpha E / (k T) * counts . probabilities, with T the tokens that are counted.
  [[nodiscard]] device::RouterLoss loss() const {
    const RouterSpec& router = layer_.router;
    const std::int64_t samples = by_sequence()                                      ? 1
                                 : router.balance_scope == BalanceScope::data_ranks ? c_.all_samples
                                                                                    : c_.batch.samples;
    const std::int64_t counted = std::max<std::int64_t>(c_.batch.sequence * samples, 1);
    const double fair = static_cast<double>(router_.active * counted) / static_cast<double>(router_.experts);
    return {static_cast<float>(router.balance_loss / fair * static_cast<double>(token_weight_)),
            static_cast<float>(router.z_loss) * token_weight_};
  }
  void add_losses(std::int64_t rows, View<float> logits, View<std::int32_t> chosen) {
    View<float> counts;
    if (layer_.router.balance_loss > 0) {
      counts = out<float>(3).slice(0, samples() * router_.experts);
      if (rows == 0)
        c_.device.zero(raw_bytes(counts));
      else
        c_.device.count_choices(router_, rows, samples(), View<const float>(logits), View<const std::int32_t>(chosen),
                                counts);
      const auto sum = [&counts](comm::Group& group) {
        if (group.size() > 1) group.all_reduce(counts, comm::ReduceOp::sum);
      };
      if (c_.spec.cuts_over_tensor()) sum(c_.tensor);
      sum(layer_.router.balance_scope == BalanceScope::data_ranks ? c_.data : *c_.context);
    }
    if (rows == 0) return;
    const View<double> sums = c_.device.sums();
    device::RouterLoss weights = loss();
    if (!counts_rows()) weights = {};
    c_.device.router_losses(router_, rows, samples(), View<const float>(logits), View<const float>(counts), weights,
                            sums.slice(device::balance_loss, 1), sums.slice(device::z_loss, 1));
  }

  Context<D>& c_;
  const LayerSpec& layer_;
  const Step& step_;
  const program::Numbers& numbers_;
  const Values& values_;
  device::kernels::Router router_;
  float token_weight_;
};

}  // namespace galvatron::runtime
