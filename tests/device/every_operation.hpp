// Every operation of the Device concept, on another device than the host and on the host.
//
// A Backend owns the other device: device(), and Tensor<T>, made from a std::vector, with view() and get(). Where it is
// `slow`, shapes are small.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/cost/product_8bit.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/router.hpp>

#include "buckets.hpp"
#include "host_fixture.hpp"

namespace galvatron::test::operations {

using device::AttentionBias;
using device::AttentionShape;
using device::ChoiceOrder;
using device::DocumentRows;
using device::RelativePositions;
using device::ResidualGain;
using device::RouterLoss;
using device::Runs;
using device::TokenBuckets;
using device::WindowShape;

/// A tensor in the memories of both devices.
template <class Backend, class T>
struct Both {
  std::vector<T> host;
  typename Backend::template Tensor<T> other;
  explicit Both(const std::vector<T>& values) : host(values), other(values) {}
};

struct OnHost {
  template <class Backend, class T>
  View<T> operator()(Both<Backend, T>& tensor) const {
    return view(tensor.host);
  }
};
struct OnOther {
  template <class Backend, class T>
  View<T> operator()(Both<Backend, T>& tensor) const {
    return tensor.other.view();
  }
};

/// Both devices, and what the other computed.
template <class Backend>
class Pair {
 public:
  /// op(device, of) with `of` giving the views of tensors in the device's memory.
  template <class F>
  void run(const F& op) {
    op(*host_, OnHost{});
    op(other_.device(), OnOther{});
  }
  template <class T>
  void check(const char* what, const Both<Backend, T>& tensor, double tolerance = between_devices<T>) {
    const std::vector<T> got = tensor.other.get();
    CAPTURE(what);
    CHECK(relative_difference(got, tensor.host) < tolerance);
    const auto* bytes = reinterpret_cast<const unsigned char*>(got.data());
    bits_.insert(bits_.end(), bytes, bytes + got.size() * sizeof(T));
  }
  template <class T>
  Both<Backend, T> random(std::int64_t count, float range = 1.0F) {
    return Both<Backend, T>(random_tensor<T>(numbers_, count, range));
  }
  Both<Backend, std::int32_t> tokens(std::int64_t count, std::int32_t vocabulary) {
    return Both<Backend, std::int32_t>(random_tokens(numbers_, count, vocabulary));
  }
  template <class T>
  Both<Backend, T> zeros(std::int64_t count) {
    return Both<Backend, T>(std::vector<T>(static_cast<std::size_t>(count)));
  }
  [[nodiscard]] const std::vector<unsigned char>& bits() const { return bits_; }

 private:
  TestHost host_{2};
  Backend other_{};
  std::mt19937 numbers_{11};
  std::vector<unsigned char> bits_;
};

/// Runs the body on two fresh pairs; the other device gives the same bits both times.
template <class Backend, class F>
void twice(const F& body) {
  Pair<Backend> first;
  body(first);
  Pair<Backend> second;
  body(second);
  CHECK(!first.bits().empty());
  CHECK(first.bits() == second.bits());
}

template <class U>
View<U> behind_eight(View<U> all) {
  return all.slice(8, all.count - 8);
}

/// Matrix products.
template <class Backend, class T>
void matrix_products() {
  if (!device::Host::supports(precision_of<T>)) return;
  twice<Backend>([](Pair<Backend>& p) {
    for (const op::Kind kind : op::gemms)
      for (const std::int64_t k : {0, 40, 256}) {
        constexpr std::int64_t m = 72;
        constexpr std::int64_t n = 136;
        auto a = p.template random<T>(m * k);
        auto b = p.template random<T>(k * n);
        auto bias = p.template random<T>(n);
        auto c = p.template random<T>(m * n);
        auto sum = p.template random<float>(m * n);
        p.run([&](auto& d, auto of) {
          d.gemm(kind, m, n, k, of(a), of(b), of(c), false, of(bias));
          d.gemm(kind, m, n, k, of(a), of(b), of(sum), true);
        });
        p.check("product", c);
        p.check("sum of products", sum, between_devices<T>);
        p.run([&](auto& d, auto of) { d.gemm(kind, m, n, k, of(a), of(b), of(sum), false, of(bias)); });
        p.check("float product with a bias", sum, between_devices<T>);
        if (k == 0) continue;
        // Columns 8 to 47 of wider operands and results; all others stay as they are.
        constexpr std::int64_t part = 40;
        const bool sums = kind == op::Kind::gemm_tn;
        const device::RowStrides strides{.a = sums ? m : k, .b = kind == op::Kind::gemm_nt ? k : n, .c = n};
        p.run([&](auto& d, auto of) {
          d.gemm_columns(kind, m, part, k, strides, 0.75F, of(a), View<const T>(of(b)), behind_eight(of(c)), false);
          d.gemm_columns(kind, m, part, k, strides, -1.5F, of(a), View<const T>(of(b)), behind_eight(of(sum)), true);
        });
        p.check("columns of a product", c);
        p.check("columns of a sum", sum, between_devices<T>);
      }
  });
}

/// Products of operands rounded to 8 bits. Both devices multiply the same numbers, in another order; tensor cores add
/// those of one instruction with about 13 bits behind the largest (DeepSeek-V3, arXiv 2412.19437, part 3.3).
template <class Backend, class C>
void products_8bit() {
  twice<Backend>([](Pair<Backend>& p) {
    constexpr double tolerance = Backend::slow ? between_devices<C> : std::max(between_devices<C>, 1e-3);
    for (const op::Kind kind : op::gemms)
      for (const std::int64_t k : {16, 144}) {
        constexpr std::int64_t m = 80;
        constexpr std::int64_t n = 112;
        auto a = p.template random<bfloat16>(m * k);
        auto b = p.template random<bfloat16>(k * n);
        auto bias = p.template random<bfloat16>(n);
        auto c = p.template random<C>(m * n);
        auto buffer = p.template zeros<float>(cost::buffer_bytes_8bit(m, n, k) / 4);
        const auto bytes = [](View<float> x) {
          return View<std::byte>(reinterpret_cast<std::byte*>(x.data), 4 * x.count);
        };
        p.run([&](auto& d, auto of) {
          d.gemm_8bit(kind, m, n, k, of(a), of(b), of(c), false, of(bias), bytes(of(buffer)));
        });
        p.check("8-bit product", c, tolerance);
        p.run([&](auto& d, auto of) { d.gemm_8bit(kind, m, n, k, of(a), of(b), of(c), true, {}, bytes(of(buffer))); });
        p.check("sum of 8-bit products", c, tolerance);
      }
  });
}

template <class T, class Backend>
void attention_of(Pair<Backend>& p, const AttentionShape& s, bool biased, const DocumentRows& documents = {}) {
  auto q = p.template random<T>(s.queries * s.batch * s.q_stride);
  auto k = p.template random<T>(s.keys * s.batch * s.kv_stride);
  auto v = p.template random<T>(s.keys * s.batch * s.kv_stride);
  auto d_o = p.template random<T>(s.queries * s.batch * s.out_stride);
  auto o = p.template zeros<T>(s.queries * s.batch * s.out_stride);
  auto lse = p.template zeros<float>(s.batch * s.heads * s.lse_row());
  auto delta = p.template zeros<float>(s.batch * s.heads * s.lse_row());
  auto dq = p.template zeros<T>(s.queries * s.batch * s.dq_row());
  auto dk = p.template zeros<T>(s.keys * s.batch * s.dkv_row());
  auto dv = p.template zeros<T>(s.keys * s.batch * s.dkv_row());
  auto table = p.template random<float>(s.heads * (s.queries + s.keys - 1));
  auto dtable = p.template random<float>(s.heads * (s.queries + s.keys - 1));
  p.run([&](auto& d, auto of) {
    AttentionBias bias;
    if (biased)
      bias = {.values = of(table),
              .gradient = of(dtable),
              .first = s.queries - 1,
              .head = s.queries + s.keys - 1,
              .query = -1};
    d.attention_forward(s, of(q), of(k), of(v), of(o), of(lse), bias, documents);
    d.attention_backward(s, of(q), of(k), of(v), of(o), of(lse), of(d_o), of(dq), of(dk), of(dv), of(delta), bias,
                         documents);
  });
  p.check("output", o);
  p.check("log-sum-exp", lse, between_devices<T>);
  p.check("dq", dq);
  p.check("dk", dk);
  p.check("dv", dv);
  if (biased) p.check("gradient of the biases", dtable, between_devices<T>);
}

/// Attention.
template <class Backend, class T>
void attention() {
  twice<Backend>([](Pair<Backend>& p) {
    constexpr std::int64_t heads = Backend::slow ? 2 : 4;
    for (const bool causal : {false, true})
      for (const std::int64_t kv_heads : {heads, heads / 2})
        for (const auto& [head_dim, tokens] : {std::array<std::int64_t, 2>{64, 128}, {128, 70}, {20, 33}}) {
          if (Backend::slow && tokens != 33) continue;
          const AttentionShape s{.batch = Backend::slow ? 1 : 2,
                                 .queries = tokens,
                                 .keys = tokens,
                                 .heads = heads,
                                 .kv_heads = kv_heads,
                                 .head_dim = head_dim,
                                 .causal = causal,
                                 .q_stride = (heads + 2 * kv_heads) * head_dim,
                                 .kv_stride = (heads + 2 * kv_heads) * head_dim,
                                 .out_stride = heads * head_dim,
                                 .score_factor = causal ? 1.5F : 1.0F,
                                 .score_cap = tokens == 70 || (Backend::slow && causal) ? 2.0F : 0.0F};
          attention_of<T>(p, s, false);
          if (kv_heads == heads && s.score_cap == 0) attention_of<T>(p, s, true);
        }
    attention_of<T>(p,
                    {.batch = 1,
                     .queries = 40,
                     .keys = 96,
                     .heads = 2,
                     .kv_heads = 2,
                     .head_dim = 64,
                     .causal = false,
                     .q_stride = 128,
                     .kv_stride = 128,
                     .out_stride = 128,
                     .lse_stride = 44},
                    false);
  });
}

/// Attention of packed documents: of one row, shorter than a tile, longer, and some without rows of queries or of keys.
template <class Backend, class T>
void packed_attention() {
  const auto ends = [](std::initializer_list<std::int32_t> lengths) {
    std::vector<std::int32_t> out{0};
    for (const std::int32_t length : lengths) out.push_back(out.back() + length);
    return out;
  };
  twice<Backend>([&](Pair<Backend>& p) {
    constexpr std::int64_t heads = Backend::slow ? 2 : 4;
    for (const std::int64_t kv_heads : {heads, heads / 2})
      for (const std::int64_t head_dim : {64, 128, 20}) {
        if (Backend::slow && head_dim != 20) continue;
        const std::int64_t stride = (heads + 2 * kv_heads) * head_dim;
        AttentionShape s{.batch = 1,
                         .queries = 0,
                         .keys = 0,
                         .heads = heads,
                         .kv_heads = kv_heads,
                         .head_dim = head_dim,
                         .causal = true,
                         .q_stride = stride,
                         .kv_stride = stride,
                         .out_stride = heads * head_dim};
        const auto own = Backend::slow ? ends({1, 5, 70, 1, 3}) : ends({1, 5, 700, 1, 64, 128, 2, 313, 6});
        s.queries = s.keys = own.back();
        attention_of<T>(p, s, false, {own, own});
        // Every query has keys, as log-sum-exps of none differ by a NaN.
        const auto queries = ends({3, 0, 70, 5});
        const auto keys = ends({9, 4, 40, 66});
        s.causal = false;
        s.queries = queries.back();
        s.keys = keys.back();
        attention_of<T>(p, s, false, {queries, keys});
      }
  });
}

/// Parts of attention merged.
template <class Backend, class T>
void attention_merge() {
  twice<Backend>([](Pair<Backend>& p) {
    const AttentionShape s{.batch = 2,
                           .queries = 19,
                           .keys = 8,
                           .heads = 3,
                           .kv_heads = 3,
                           .head_dim = 24,
                           .causal = false,
                           .q_stride = 72,
                           .kv_stride = 72,
                           .out_stride = 72,
                           .lse_stride = 21};
    auto o_part = p.template random<T>(2 * 19 * 72);
    auto lse_part = p.template random<float>(2 * 3 * 21);
    auto o = p.template random<float>(2 * 19 * 72);
    auto lse = p.template random<float>(2 * 3 * 21);
    p.run([&](auto& d, auto of) { d.attention_merge(s, of(o_part), of(lse_part), of(o), of(lse)); });
    p.check("output", o);
    p.check("log-sum-exp", lse);
  });
}

/// Biases by distance.
template <class Backend, class T>
void relative_biases() {
  twice<Backend>([](Pair<Backend>& p) {
    for (const bool causal : {false, true}) {
      const RelativePositions r{.tokens = Backend::slow ? 70 : 150, .buckets = 32, .causal = causal};
      auto table = p.template random<T>(32 * 6);
      auto bias = p.template zeros<float>(6 * r.distances());
      auto dbias = p.template random<float>(6 * r.distances());
      auto dtable = p.template random<float>(32 * 6);
      p.run([&](auto& d, auto of) {
        d.relative_bias_forward(r, 6, of(table), of(bias));
        d.relative_bias_backward(r, 6, of(dbias), of(dtable));
      });
      p.check("bias", bias);
      p.check("gradient of the table", dtable);
    }
  });
}

/// Attention in windows.
template <class Backend, class T>
void window_attention() {
  twice<Backend>([](Pair<Backend>& p) {
    for (const std::int64_t shift : {3, 0}) {
      if (Backend::slow && shift == 0) continue;
      const WindowShape s{.batch = Backend::slow ? 1 : 2,
                          .side = 14,
                          .window = 7,
                          .shift = shift,
                          .heads = 3,
                          .head_dim = 32,
                          .stride = 3 * 96,
                          .out_stride = 96};
      const std::int64_t rows = s.batch * s.tokens();
      auto q = p.template random<T>(rows * s.stride);
      auto k = p.template random<T>(rows * s.stride);
      auto v = p.template random<T>(rows * s.stride);
      auto d_o = p.template random<T>(rows * s.out_stride);
      auto table = p.template random<T>(s.bias_rows() * s.heads);
      auto o = p.template zeros<T>(rows * s.out_stride);
      auto lse = p.template zeros<float>(rows * s.heads);
      auto dq = p.template zeros<T>(rows * s.stride);
      auto dk = p.template zeros<T>(rows * s.stride);
      auto dv = p.template zeros<T>(rows * s.stride);
      auto dtable = p.template random<float>(s.bias_rows() * s.heads);
      p.run([&](auto& d, auto of) {
        d.window_attention_forward(s, of(q), of(k), of(v), of(table), of(o), of(lse));
        d.window_attention_backward(s, of(q), of(k), of(v), of(table), of(lse), of(d_o), of(dq), of(dk), of(dv),
                                    of(dtable));
      });
      p.check("output", o);
      p.check("log-sum-exp", lse, between_devices<T>);
      p.check("dq", dq);
      p.check("dk", dk);
      p.check("dv", dv);
      p.check("gradient of the table", dtable, between_devices<T>);
    }
  });
}

/// Norms.
template <class Backend, class T>
void norms() {
  twice<Backend>([](Pair<Backend>& p) {
    for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm, NormKind::rms_norm_from_one})
      for (const auto& [rows, hidden] :
           {std::pair<std::int64_t, std::int64_t>{Backend::slow ? 9 : 65, 1024}, {40, 37}, {3, 4096}}) {
        auto x = p.template random<T>(rows * hidden);
        auto gamma = p.template random<T>(hidden);
        auto beta = p.template random<T>(hidden);
        auto y = p.template zeros<T>(rows * hidden);
        auto again = p.template zeros<T>(rows * hidden);
        auto stats = p.template zeros<float>(rows * 2);
        auto sum = p.template zeros<T>(rows * hidden);
        auto sum_y = p.template random<T>(rows * hidden);  // r before
        auto sum_stats = p.template zeros<float>(rows * 2);
        auto dy = p.template random<T>(rows * hidden);
        auto residual = p.template random<T>(rows * hidden);
        auto dx = p.template zeros<T>(rows * hidden);
        auto dgamma = p.template random<float>(hidden);
        auto dbeta = p.template random<float>(hidden);
        auto dx_alone = p.template zeros<T>(rows * hidden);
        p.run([&](auto& d, auto of) {
          const bool shifts = kind == NormKind::layer_norm;
          View<const T> shift = of(beta);
          if (!shifts) shift = {};
          d.norm_forward(kind, rows, hidden, 1e-5, of(x), of(gamma), shift, of(y), of(stats));
          d.norm_recompute(kind, rows, hidden, of(x), of(gamma), shift, of(stats), of(again));
          d.add_norm_forward(kind, rows, hidden, 1e-5, of(x), of(sum_y), of(gamma), shift, of(sum), of(sum_y),
                             of(sum_stats));
          d.norm_backward(kind, rows, hidden, of(dy), of(x), of(gamma), of(stats), of(residual), of(dx), of(dgamma),
                          shifts ? of(dbeta) : View<float>{});
          d.norm_backward(kind, rows, hidden, of(dy), of(x), of(gamma), of(stats), of(residual), of(dx_alone),
                          View<float>{}, View<float>{});
        });
        p.check("y", y);
        p.check("y again", again);
        p.check("statistics", stats, 1e-5);
        p.check("sum", sum);
        p.check("norm of the sum", sum_y);
        p.check("its statistics", sum_stats, 1e-5);
        p.check("dx", dx);
        p.check("dx of frozen parameters", dx_alone);
        p.check("dgamma", dgamma, 1e-5);
        p.check("dbeta", dbeta, 1e-5);
      }
  });
}

/// Sums, activations and gradients of biases.
template <class Backend, class T>
void activations() {
  twice<Backend>([](Pair<Backend>& p) {
    for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{130, 512}, {33, 35}}) {
      auto a = p.template random<T>(rows * n);
      auto b = p.template random<T>(rows * n);
      auto out = p.template zeros<T>(rows * n);
      auto db = p.template random<float>(n);
      p.run([&](auto& d, auto of) {
        d.add(rows * n, of(a), of(b), of(out));
        d.bias_gradient(rows, n, of(a), of(db));
      });
      p.check("sum", out);
      p.run([&](auto& d, auto of) { d.multiply(rows * n, of(a), of(b), of(out)); });
      p.check("product of elements", out);
      p.check("gradient of the bias", db, 1e-5);
      for (const ActivationKind kind : activation_kinds) {
        auto u = p.template random<T>(rows * n * 2, 3.0F);
        auto du = p.template zeros<T>(rows * n * 2);
        auto g = p.template zeros<T>(rows * n);
        auto dg = p.template random<T>(rows * n);
        p.run([&](auto& d, auto of) {
          d.activation_forward(kind, rows, n, of(u), of(g));
          d.activation_backward(kind, rows, n, of(u), of(dg), of(du));
        });
        p.check("activation", g);
        p.check("its gradient", du);
      }
    }
  });
}

/// Products with activations: those of a library for multiples of 8 and GELU, else two operations.
template <class Backend, class T>
void activated_products() {
  if (!device::Host::supports(precision_of<T>)) return;
  twice<Backend>([](Pair<Backend>& p) {
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{72, 136, 48}, {33, 35, 20}, {5, 8, 0}})
      for (const ActivationKind kind : activation_kinds)
        for (const bool biased : {true, false}) {
          const std::int64_t inputs = inputs_of(kind);
          auto a = p.template random<T>(m * k);
          auto b = p.template random<T>(inputs * n * k);
          auto bias = p.template random<T>(inputs * n);
          auto product = p.template zeros<T>(m * inputs * n);
          auto g = p.template zeros<T>(m * n);
          p.run([&](auto& d, auto of) {
            d.gemm_activation(kind, m, n, k, of(a), of(b), biased ? View<const T>(of(bias)) : View<const T>{},
                              of(product), of(g));
          });
          p.check("product", product);
          p.check("activation", g);
          // The gradient of u in the place of that of g, in a place of its own, and in that of u. Where u is near zero
          // its sign, and with it the slope of ReLU, may hang on rounding: both get the same u.
          for (const int place : {0, 1, 2}) {
            if (place == 0 && inputs > 1) continue;
            auto u = p.template random<T>(m * inputs * n);
            auto dy = p.template random<T>(m * k);
            auto weight = p.template random<T>(k * n);
            auto dg = p.template zeros<T>(m * n);
            auto du = p.template zeros<T>(m * inputs * n);
            p.run([&](auto& d, auto of) {
              d.gemm_activation_backward(kind, m, n, k, of(dy), of(weight), of(u), of(dg),
                                         place == 0   ? of(dg)
                                         : place == 1 ? of(du)
                                                      : of(u));
            });
            p.check("gradient", place == 0 ? dg : place == 1 ? du : u);
          }
        }
  });
}

/// Rotation, embeddings, positions and pooling.
template <class Backend, class T>
void embeddings() {
  twice<Backend>([](Pair<Backend>& p) {
    for (const bool inverse : {false, true}) {
      auto x = p.template random<T>(34 * 6 * 20);
      p.run([&](auto& d, auto of) { d.rotary(34, 2, 5, 4, 20, 6 * 20, 10000.0, inverse, of(x)); });
      device::kernels::RotaryFrequencies scaled(10000.0);
      scaled.factor = 8;
      scaled.low = 2;
      scaled.high = 7;
      scaled.amplitude = 1.25F;
      p.run([&](auto& d, auto of) { d.rotary(34, 2, 5, 4, 20, 6 * 20, scaled, inverse, of(x)); });
      const std::vector<std::int32_t> tokens{0, 1, 13}, positions{9, 0, 0};
      p.run([&](auto& d, auto of) {
        d.rotary(34, 2, device::TokenPositions(tokens, positions), 4, 20, 6 * 20, scaled, inverse, of(x));
      });
      p.check("rotated", x);
    }
    for (const std::int64_t hidden : {128, 37}) {
      constexpr std::int64_t rows = 500;
      auto tokens = p.tokens(rows, 90);
      auto table = p.template random<T>(60 * hidden);
      auto out = p.template random<T>(rows * hidden);
      auto dout = p.template random<T>(rows * hidden);
      auto dtable = p.template random<float>(60 * hidden);
      auto positions = p.template random<T>(rows * hidden);
      auto dpositions = p.template random<float>(rows * hidden);
      p.run([&](auto& d, auto of) {
        d.embedding_forward(rows, hidden, of(tokens), 20, 60, 1.5F, of(table), of(out));
        d.embedding_backward(rows, hidden, of(tokens), 20, 60, 1.5F, of(dout), of(dtable));
        d.position_forward(rows, 4, hidden, 3, of(positions), of(out));
        d.position_backward(rows, 4, hidden, 3, of(dout), of(dpositions));
      });
      p.check("embedded", out);
      p.check("gradient of the table", dtable, 1e-5);
      p.check("gradient of the positions", dpositions, 1e-5);
      auto pooled = p.template zeros<T>(4 * hidden);
      auto spread = p.template zeros<T>(rows * hidden);
      auto dpooled = p.template random<T>(4 * hidden);
      p.run([&](auto& d, auto of) {
        d.pool_forward(rows / 4, 4, hidden, 1.0F / 125, of(out), of(pooled));
        d.pool_backward(rows / 4, 4, hidden, 1.0F / 125, of(dpooled), of(spread));
      });
      p.check("pooled", pooled);
      p.check("gradient of the pooled", spread);
    }
  });
}

/// Cross-entropy.
template <class Backend, class T>
void cross_entropy() {
  twice<Backend>([](Pair<Backend>& p) {
    for (const auto& [rows, columns, valid] : {std::array<std::int64_t, 3>{96, 1024, 1000}, {17, 35, 35}}) {
      auto logits = p.template random<T>(rows * columns, 5.0F);
      auto targets = p.tokens(rows, static_cast<std::int32_t>(valid));
      auto stats = p.template zeros<float>(rows * 3);
      auto lse = p.template zeros<float>(rows);
      auto loss = p.template zeros<double>(1);
      p.run([&](auto& d, auto of) {
        d.softmax_statistics(rows, columns, valid, 0, of(logits), of(targets), of(stats));
        d.softmax_merge(rows, 1, of(stats), of(lse), of(loss));
        d.softmax_backward(rows, columns, valid, 0, of(lse), of(targets), 0.25F, valid == columns, of(logits));
      });
      p.check("statistics", stats, 1e-5);
      p.check("log-sum-exp", lse);
      p.check("loss", loss, 1e-5);
      p.check("gradients of the logits", logits);
    }
    for (const std::int64_t n : {1000, 3}) {
      auto log = p.template random<T>(1);
      auto row = p.template zeros<T>(n);
      auto plain = p.template zeros<T>(n);
      auto d_row = p.template random<float>(n);
      auto d_log = p.template random<float>(1);
      p.run([&](auto& d, auto of) {
        d.exponential_row(n, 0.5F, of(log), of(row));
        d.exponential_row(n, 0.5F, View<T>{}, of(plain));
        d.exponential_row_backward(n, of(row), of(d_row), of(d_log));
      });
      p.check("factor of logits", row);
      p.check("factor without a logarithm", plain, 1e-12);
      p.check("gradient of its logarithm", d_log, 1e-5);
    }
  });
}

/// Routers: their choices, losses and gradients.
template <class Backend, class T>
void routers() {
  twice<Backend>([](Pair<Backend>& p) {
    using device::kernels::Router;
    for (const Router& router :
         {Router{.experts = 8, .active = 2},
          Router{.experts = 64, .active = 6, .renormalise = false, .scale = 16, .groups = 8, .top_groups = 3},
          Router{.experts = 256, .active = 8, .kind = RouterKind::sigmoid, .scale = 2.5F, .groups = 8, .top_groups = 4},
          Router{.experts = 37, .active = 3, .kind = RouterKind::sigmoid, .renormalise = false}})
      for (const std::int64_t samples : {1, 3}) {
        // Few: of very many, two scores would differ by less than the rounding of an exponential.
        const std::int64_t rows = Backend::slow ? 33 : 99;
        const RouterLoss loss{.balance = 0.01F, .z = 0.002F};
        auto logits = p.template random<float>(rows * router.experts, 4.0F);
        auto bias = p.template random<T>(router.experts, 0.25F);
        auto weights = p.template zeros<float>(rows * router.active);
        auto chosen = p.tokens(rows * router.active, 1);
        auto counts = p.template random<float>(samples * router.experts);
        auto sums = p.template random<double>(2);
        auto d_weights = p.template random<float>(rows * router.active);
        auto d_logits = p.template random<T>(rows * router.experts);
        auto d_weights_alone = p.template random<T>(rows * router.experts);
        auto loads = p.template zeros<float>(router.experts);
        auto master = p.template random<float>(router.experts);
        auto working = p.template random<T>(router.experts);
        p.run([&](auto& d, auto of) {
          const View<double> losses = of(sums);
          d.route(router, rows, of(logits),
                  router.kind == RouterKind::sigmoid ? View<const T>(of(bias)) : View<const T>{}, of(weights),
                  of(chosen));
          d.count_choices(router, rows, samples, of(logits), of(chosen), of(counts));
          d.router_losses(router, rows, samples, of(logits), of(counts), loss, losses.slice(0, 1), losses.slice(1, 1));
          d.router_losses(router, rows, samples, of(logits), View<const float>{}, loss, losses.slice(0, 1),
                          losses.slice(1, 1));
          d.route_backward(router, rows, samples, of(logits), of(chosen), of(d_weights), of(counts), loss,
                           of(d_logits));
          d.route_backward(router, rows, samples, of(logits), of(chosen), of(d_weights), View<const float>{},
                           RouterLoss{}, of(d_weights_alone));
          d.add_loads(rows * router.active, of(chosen), of(loads));
          d.add_loads(rows, of(chosen), of(loads));
          d.balance_bias(router.experts, static_cast<float>(rows * router.active) / static_cast<float>(router.experts),
                         0.125F, of(loads), of(master), of(working));
        });
        p.check("choices", chosen, 1e-12);
        p.check("weights", weights, 1e-5);
        p.check("counts", counts, 1e-12);
        p.check("losses", sums, 1e-6);
        p.check("gradient of the logits", d_logits, between_devices<T>);
        p.check("gradient of the logits by the weights", d_weights_alone, between_devices<T>);
        p.check("loads", loads, 1e-12);
        p.check("bias", master, 1e-12);
        p.check("working bias", working, 1e-12);
      }
  });
}

/// Choices in the order of experts, with and without a capacity; rows in that order and back, and what is computed of
/// them.
template <class Backend, class T>
void expert_rows() {
  twice<Backend>([](Pair<Backend>& p) {
    for (const ChoiceOrder& how : {ChoiceOrder{.experts = 5, .active = 2}, ChoiceOrder{.experts = 300, .active = 5},
                                   ChoiceOrder{.experts = 7, .active = 3, .capacity = 40},
                                   ChoiceOrder{.experts = 7, .active = 3, .capacity = 40, .drops = DropOrder::weight}})
      for (const std::int64_t width : {64, 35}) {
        const std::int64_t rows = Backend::slow ? 111 : 2000;
        const std::int64_t routed = rows * how.active;
        auto chosen = p.tokens(routed, static_cast<std::int32_t>(how.experts));
        auto weights = p.template random<float>(routed);
        auto order = p.tokens(routed, 1);
        auto places = p.tokens(routed, 1);
        auto offsets = p.tokens(how.experts + 1, 1);
        auto x = p.template random<T>(rows * width);
        auto gathered = p.template random<T>(routed * width);
        auto combined = p.template zeros<T>(rows * width);
        auto summed = p.template zeros<T>(rows * width);
        p.run([&](auto& d, auto of) {
          d.order_choices(how, rows, of(chosen), of(weights), of(order), of(places), of(offsets));
          d.gather_rows(how.active, width, routed, of(order), of(x), of(gathered));
          d.combine_rows(rows, how.active, width, of(places), of(weights), of(gathered), of(combined));
          d.combine_rows(rows, how.active, width, of(places), View<const float>{}, of(gathered), of(summed));
        });
        p.check("order", order, 1e-12);
        p.check("places", places, 1e-12);
        p.check("offsets", offsets, 1e-12);
        p.check("gathered", gathered, 1e-12);
        if (how.experts % 5 == 0) {  // on five nodes
          auto nodes = p.tokens(rows * 5, 1);
          auto kept = p.tokens(routed, 1);
          auto gathered_numbers = p.tokens(rows * 5 * how.active, 1);
          p.run([&](auto& d, auto of) {
            const std::int64_t experts = how.experts / 5;
            d.choose_nodes(experts, 5, how.active, rows, of(chosen), of(places), of(nodes), of(kept));
            d.order_choices(ChoiceOrder{.experts = experts, .active = how.active, .first = experts}, rows, of(kept),
                            of(weights), of(order), of(places), of(offsets));
            d.gather_rows(how.active, how.active, routed, of(order), of(kept), of(gathered_numbers));
          });
          p.check("nodes", nodes, 1e-12);
          p.check("kept choices", kept, 1e-12);
          p.check("order of a node's choices", order, 1e-12);
          p.check("their places", places, 1e-12);
          p.check("their offsets", offsets, 1e-12);
          p.check("gathered numbers", gathered_numbers, 1e-12);
        }
        p.check("combined", combined);
        p.check("summed", summed);
        for (const ActivationKind kind : activation_kinds) {
          auto u = p.template random<T>(routed * inputs_of(kind) * width, 3.0F);
          auto d = p.template random<T>(routed * width);
          auto d_weights = p.template random<float>(routed);
          p.run([&](auto& device, auto of) {
            device.expert_activation_backward(kind, routed, width, of(order), of(weights), of(u), of(d), of(u),
                                              of(d_weights));
          });
          p.check("weighted activation", d);
          p.check("its gradient", u);
          p.check("gradient of the weights", d_weights, 1e-5);
          p.run([&](auto& device, auto of) {
            device.expert_activation_backward(kind, routed, width, View<const std::int32_t>{}, of(weights), of(u),
                                              of(d), of(u), of(d_weights));
          });
          p.check("weighted activation without an order", d);
          p.check("gradient of weights without an order", d_weights, 1e-4);
        }
      }
    for (const std::int64_t width : {1024, 37}) {
      constexpr std::int64_t rows = 40;
      auto x = p.template random<T>(rows * width);
      auto l = p.template random<T>(rows, 3.0F);
      auto y = p.template zeros<T>(rows * width);
      auto dy = p.template random<T>(rows * width);
      auto dx = p.template zeros<T>(rows * width);
      auto dl = p.template zeros<T>(rows);
      auto noisy = p.template zeros<T>(rows * width);
      std::vector<std::int32_t> words(SampleStream::words);
      SampleStream{.seed = 919, .stream = std::uint64_t{1} << 63 | 5, .first_sample = 3}.write(words.data());
      auto stream = Both<Backend, std::int32_t>(words);
      p.run([&](auto& d, auto of) {
        d.jitter(
            device::kernels::Jitter{.samples = 4, .tokens = 64, .first_token = 7, .columns = width, .amount = 0.25F},
            rows, of(stream), of(x), of(noisy));
      });
      p.check("rows with noise", noisy);
      p.run([&](auto& d, auto of) {
        d.gate_forward(rows, width, of(x), of(l), of(y));
        d.gate_backward(rows, width, of(x), of(l), of(dy), of(dx), of(dl));
      });
      p.check("gated", y);
      p.check("gradient of what is gated", dx);
      p.check("gradient of the gate", dl, between_devices<T>);
    }
  });
}

/// Hashing of rows, buckets of tokens that hash alike, their means and what goes back to the tokens.
template <class Backend, class T>
void buckets() {
  twice<Backend>([](Pair<Backend>& p) {
    using device::kernels::CrossPolytope;
    for (const std::int64_t width : {64, 37, 1}) {
      const CrossPolytope hashing{3, width == 1 ? 1 : 16};
      const std::int64_t rows = Backend::slow ? 9 : 700;
      const std::int64_t padded = CrossPolytope::padded(width);
      auto x = p.template random<T>(rows * width);
      std::vector<float> coins;
      for (std::int64_t i = 0; i < hashing.hashes * CrossPolytope::rounds * padded; ++i)
        coins.push_back(i * i % 7 < 3 ? 1.0F : -1.0F);
      auto signs = Both<Backend, float>(coins);
      auto v = p.template zeros<float>(rows * hashing.columns());
      auto codes = p.tokens(rows * hashing.hashes, 1);
      p.run([&](auto& d, auto of) {
        d.rotate_by_signs(hashing, rows, width, View<const T>(of(x)), of(signs), of(v));
        d.hash_rows(hashing, rows, of(v), of(codes));
      });
      p.check("rotated rows", v, 1e-6);
      p.check("codes", codes, 1e-12);
    }

    std::mt19937 random(919);
    constexpr int thousands = Backend::slow ? 1 : 60;
    for (RoutedTokens& routed : std::array{
             RoutedTokens(random, 150 * thousands, 3, 2, 2, 0.1), RoutedTokens(random, 40 * thousands, 37, 3, 4, 0),
             RoutedTokens(random, 300 * thousands, 1, 1, 1, 0), RoutedTokens(random, 3, 2, 1, 1, 1)}) {
      const std::int64_t width = routed.experts == 37 ? 35 : 64;
      auto order = Both<Backend, std::int32_t>(routed.order);
      auto places = Both<Backend, std::int32_t>(routed.places);
      auto offsets = Both<Backend, std::int32_t>(routed.offsets);
      auto codes = Both<Backend, std::int32_t>(routed.codes);
      auto weights = Both<Backend, float>(routed.weights);
      auto table = p.tokens(routed.table_places(), 1);
      auto bucket = Both<Backend, std::int32_t>(routed.bucket);
      auto members = Both<Backend, std::int32_t>(routed.members);
      auto begins = Both<Backend, std::int32_t>(routed.begins);
      auto bounds = Both<Backend, std::int32_t>(routed.bounds);
      const auto buckets_of = [&](auto of) {
        return TokenBuckets{.experts = routed.experts,
                            .active = routed.active,
                            .rows = static_cast<std::int64_t>(routed.order.size()),
                            .order = of(order),
                            .offsets = of(offsets),
                            .bucket = of(bucket),
                            .members = of(members),
                            .begins = of(begins),
                            .bounds = of(bounds)};
      };
      p.run([&](auto& d, auto of) { d.single_buckets(buckets_of(of)); });
      p.check("single buckets", bucket, 1e-12);
      p.check("their members", members, 1e-12);
      p.check("their begins", begins, 1e-12);
      p.check("their bounds", bounds, 1e-12);
      p.run([&](auto& d, auto of) { d.number_buckets(routed.hashing, buckets_of(of), of(codes), of(table)); });
      p.check("buckets", bucket, 1e-12);
      p.check("members", members, 1e-12);
      p.check("begins", begins, 1e-12);
      p.check("bounds", bounds, 1e-12);

      const std::int64_t count = bounds.host.back();
      auto x = p.template random<T>(routed.tokens * width);
      auto dy = p.template random<T>(routed.tokens * width);
      auto e = p.template random<T>(count * width);
      auto dc = p.template random<T>(count * width);
      auto c = p.template zeros<T>(count * width);
      auto s = p.template zeros<T>(count * width);
      auto squares = p.template random<double>(4);  // and rows and buckets
      auto d_gains = p.template random<float>(routed.experts);
      p.run([&](auto& d, auto of) {
        d.bucket_sums(buckets_of(of), width, true, View<const float>{}, View<const T>(of(x)), of(c));
        d.bucket_sums(buckets_of(of), width, false, of(weights), View<const T>(of(dy)), of(s));
        d.bucket_distances(buckets_of(of), width, View<const T>(of(x)), View<const T>(of(c)), of(squares));
        d.gain_backward(buckets_of(of), width, of(weights), View<const T>(of(x)), View<const T>(of(c)),
                        View<const T>(of(dy)), of(d_gains));
      });
      p.check("means", c);
      p.check("weighted sums", s);
      p.check("distances", squares, between_devices<T>);
      p.check("gradient of the gains", d_gains, between_devices<T>);
      auto seconds = p.template zeros<double>(1);
      p.run([&](auto& d, auto of) {
        d.add_time(-1, of(seconds));
        d.bucket_sums(buckets_of(of), width, true, View<const float>{}, View<const T>(of(x)), of(c));
        d.add_time(1, of(seconds));
        double between = -1;
        d.fetch(View<const double>(of(seconds)), &between);
        CHECK(between >= 0);
        CHECK(between < 60);
      });

      auto gains = p.template random<float>(routed.experts);
      auto y = p.template zeros<T>(routed.tokens * width);
      auto dx = p.template zeros<T>(routed.tokens * width);
      auto d_weights = p.template random<float>(static_cast<std::int64_t>(routed.places.size()));
      for (const float of_all : {1.0F, 0.0F, -7.0F}) {  // -7: one for each expert
        p.run([&](auto& d, auto of) {
          const ResidualGain gain{of_all, of_all < 0 ? View<const float>(of(gains)) : View<const float>{}};
          const View<const T> own = of_all == 0 ? View<const T>{} : View<const T>(of(x));
          const View<const T> means = of_all == 0 ? View<const T>{} : View<const T>(of(c));
          d.combine_buckets(buckets_of(of), routed.tokens, width, gain, of(places), of(weights), View<const T>(of(e)),
                            own, means, of(y));
          d.bucket_weights_backward(buckets_of(of), routed.tokens, width, gain, of(places), View<const T>(of(e)), own,
                                    means, View<const T>(of(dy)), of(d_weights));
          d.combine_buckets_backward(buckets_of(of), routed.tokens, width, gain, of(places), View<const float>{},
                                     View<const T>(of(dy)), View<const T>(of(dc)), View<const T>(of(s)), of(dx));
        });
        p.check("combined", y);
        p.check("gradient of the tokens", dx);
        p.check("gradient of the weights", d_weights, between_devices<T>);
      }
    }
  });
}

/// Products of the rows of each expert, of which some have none, with space behind the last.
template <class Backend, class T>
void grouped_products() {
  if (!device::Host::supports(precision_of<T>)) return;
  twice<Backend>([](Pair<Backend>& p) {
    for (const auto& [n, k] : {std::array<std::int64_t, 2>{72, 40}, {35, 33}, {200, 136}}) {
      if (Backend::slow && n == 200) continue;
      auto offsets = Both<Backend, std::int32_t>({0, 0, 1, 130, 130, 197, 197});
      constexpr std::int64_t experts = 6;
      constexpr std::int64_t rows = 220;
      auto x = p.template random<T>(rows * k);
      auto weights = p.template random<T>(experts * n * k);
      auto y = p.template random<T>(rows * n);
      auto sum = p.template random<float>(rows * n);
      auto dx = p.template random<T>(rows * k);
      auto gradient = p.template random<float>(experts * n * k);
      auto grown = p.template random<float>(experts * n * k);
      p.run([&](auto& d, auto of) {
        d.gemm_grouped(op::Kind::gemm_nt, experts, rows, n, k, of(offsets), of(x), of(weights), of(y));
        d.gemm_grouped(op::Kind::gemm_nt, experts, rows, n, k, of(offsets), of(x), of(weights), of(sum), true);
        d.gemm_grouped(op::Kind::gemm_nn, experts, rows, k, n, of(offsets), of(y), of(weights), of(dx));
        d.gemm_grouped(op::Kind::gemm_tn, experts, rows, n, k, of(offsets), of(y), of(x), of(gradient), false);
        d.gemm_grouped(op::Kind::gemm_tn, experts, rows, n, k, of(offsets), of(y), of(x), of(grown), true);
      });
      p.check("products", y);
      p.check("sums of products", sum, between_devices<T>);
      p.check("gradients of the rows", dx);
      p.check("gradients of the weights", gradient, between_devices<T>);
      p.check("grown gradients of the weights", grown, between_devices<T>);
    }
  });
}

/// Optimizer steps.
template <class Backend, class T>
void optimizer_steps() {
  twice<Backend>([](Pair<Backend>& p) {
    for (const std::int64_t n : {100000, 77}) {
      auto master = p.template random<float>(n);
      auto m = p.template random<float>(n);
      auto v = Both<Backend, float>(std::vector<float>(static_cast<std::size_t>(n), 0.25F));
      auto g = p.template random<float>(n);
      auto working = p.template zeros<T>(n);
      auto scale = p.template zeros<float>(1);
      auto sums = p.template zeros<double>(device::step_sums);
      p.run([&](auto& d, auto of) {
        d.clear_sums();
        d.norm_squared(n, of(g), d.sums().slice(device::gradient_squares, 1));
        d.clip_scale(d.sums(), 1.0, d.gradient_scale());
        d.begin_update({.step = 3});
        d.adamw(n, {}, d.gradient_scale(), of(master), of(g), of(m), of(v), of(working));
        std::array<double, device::step_sums> fetched{};
        d.fetch(View<const double>(d.sums()), fetched.data());
        d.write(of(sums), [&](View<double> to) { std::copy(fetched.begin(), fetched.end(), to.data); });
        d.copy({reinterpret_cast<const std::byte*>(d.gradient_scale().data), sizeof(float)},
               {reinterpret_cast<std::byte*>(of(scale).data), sizeof(float)});
      });
      p.check("sums of the step", sums, 1e-12);
      p.check("scale", scale);
      p.check("masters", master);
      p.check("first moments", m);
      p.check("second moments", v);
      p.check("working parameters", working);
      auto half_m = p.template random<bfloat16>(n);
      auto half_v = Both<Backend, bfloat16>(std::vector<bfloat16>(static_cast<std::size_t>(n), bfloat16(0.25F)));
      p.run([&](auto& d, auto of) {
        d.begin_update({.step = 4, .rounding = device::Rounding::stochastic, .seed = 3});
        d.adamw(n, {.stream = 5, .first = 2}, d.gradient_scale(), of(master), of(g), of(half_m), of(half_v),
                of(working));
      });
      p.check("masters with moments of bfloat16", master);
      p.check("first moments of bfloat16", half_m);
      p.check("second moments of bfloat16", half_v);
      p.check("working parameters of moments of bfloat16", working);
    }
  });
}

/// Copies, zeros and sums of runs.
template <class Backend, class T>
void copies() {
  twice<Backend>([](Pair<Backend>& p) {
    auto from = p.template random<T>(5000);
    auto to = p.template random<float>(5000);
    auto same = p.template random<T>(5000);
    p.run([&](auto& d, auto of) {
      d.accumulate(4999, of(from), of(to));
      d.copy({reinterpret_cast<const std::byte*>(of(from).data), 1000},
             {reinterpret_cast<std::byte*>(of(same).data) + 16, 1000});
      d.zero({reinterpret_cast<std::byte*>(of(same).data), 16});
    });
    p.check("accumulated", to, 1e-5);
    p.check("copied", same, 1e-12);
    for (const std::int64_t width : {64, 7}) {
      const Runs gather{.blocks = 3,
                        .repeats = 2,
                        .rows = 5,
                        .width = width,
                        .from = {.block = 10 * 70, .repeat = 70, .row = 140},
                        .to = {.block = 10 * width, .repeat = 5 * width, .row = width}};
      Runs sum = gather;
      sum.to = {.block = 0, .repeat = 0, .row = width};
      auto wide = p.template random<T>(3 * 10 * 70);
      auto packed = p.template zeros<T>(gather.elements());
      auto total = p.template random<float>(5 * width);
      p.run([&](auto& d, auto of) {
        d.copy_runs(gather, of(wide), of(packed));
        d.add_runs(sum, of(wide), of(total));
      });
      p.check("gathered", packed, 1e-12);
      p.check("summed", total, 1e-5);
    }
  });
}

}  // namespace galvatron::test::operations
