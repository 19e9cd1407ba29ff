// A Transformer's layers in double precision and in the plainest loops: what the layers of runtime/ are compared with.
//
// Shapes: rows = S * b tokens, row s * b + i is token s of sample i; all weights whole, all samples on one rank.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <numbers>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/core/rng.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/runtime/lsh.hpp>
#include <galvatron/strategy/lsh_options.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::test {

using Tensor = std::vector<double>;
using Parameters = std::map<ParameterName, Tensor>;

/// S and b of a batch.
struct Tokens {
  std::int64_t sequence = 1;
  std::int64_t samples = 1;
  [[nodiscard]] std::int64_t rows() const { return sequence * samples; }
};

namespace reference {

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

inline const Tensor* find(const Parameters& p, ParameterName name) {
  const auto found = p.find(name);
  return found == p.end() ? nullptr : &found->second;
}

/// x (rows, inputs) times weight (outputs, inputs) transposed, plus the bias if there is one.
inline Tensor linear(const Tensor& x, const Tensor& weight, const Tensor* bias, std::int64_t inputs) {
  const auto rows = static_cast<std::int64_t>(x.size()) / inputs;
  const auto outputs = static_cast<std::int64_t>(weight.size()) / inputs;
  Tensor y(at(rows * outputs));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t o = 0; o < outputs; ++o) {
      double sum = bias == nullptr ? 0.0 : (*bias)[at(o)];
      for (std::int64_t i = 0; i < inputs; ++i) sum += x[at(r * inputs + i)] * weight[at(o * inputs + i)];
      y[at(r * outputs + o)] = sum;
    }
  return y;
}

/// LayerNorm (with the deviation of the population) or RMSNorm of rows of H.
inline Tensor norm(const LayerSpec& layer, const Tensor& x, const Tensor& gamma, const Tensor* beta) {
  const std::int64_t h = layer.hidden;
  Tensor y(x.size());
  for (std::int64_t first = 0; first < static_cast<std::int64_t>(x.size()); first += h) {
    double mean = 0;
    if (layer.norm == NormKind::layer_norm)
      for (std::int64_t i = 0; i < h; ++i) mean += x[at(first + i)] / static_cast<double>(h);
    double variance = 0;
    for (std::int64_t i = 0; i < h; ++i)
      variance += (x[at(first + i)] - mean) * (x[at(first + i)] - mean) / static_cast<double>(h);
    for (std::int64_t i = 0; i < h; ++i)
      y[at(first + i)] = (x[at(first + i)] - mean) / std::sqrt(variance + layer.norm_epsilon) *
                             (static_cast<double>(gamma_offset(layer.norm)) + gamma[at(i)]) +
                         (beta == nullptr ? 0.0 : (*beta)[at(i)]);
  }
  return y;
}

/// Radians by which pair j of `dim` elements turns from one position to the next.
inline double frequency(const LayerSpec& layer, std::int64_t j, std::int64_t dim) {
  const RotaryScaling& scaling = layer.rotary_scaling;
  const double n = static_cast<double>(dim);
  const double plain = std::pow(layer.rope_theta, -2.0 * static_cast<double>(j) / n);
  if (scaling.factor == 1) return plain;
  if (scaling.ramp == RotaryRamp::none) return plain / scaling.factor;
  if (scaling.ramp == RotaryRamp::turns) {
    const double turns = static_cast<double>(scaling.positions) * plain / (2 * std::numbers::pi);
    const double fast = std::clamp((turns - scaling.slow) / (scaling.fast - scaling.slow), 0.0, 1.0);
    return plain / scaling.factor * (1 - fast) + plain * fast;
  }
  // The pair, as a real number, that turns so often within the first positions.
  const auto pair = [&](double turns) {
    return n / 2 * std::log(static_cast<double>(scaling.positions) / (2 * std::numbers::pi * turns)) /
           std::log(layer.rope_theta);
  };
  const double low = std::max(std::floor(pair(scaling.fast)), 0.0);
  const double high = std::min(std::ceil(pair(scaling.slow)), n - 1);
  const double slow = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
  return plain / scaling.factor * slow + plain * (1 - slow);
}

/// Turns `dim` elements of rows of `width`, from `column` on, by the position of the row.
/// @param part  as many of them are turned, half of them from the middle on; 0: all
inline void turn(const LayerSpec& layer, Tokens tokens, Tensor& x, std::int64_t width, std::int64_t column,
                 std::int64_t dim, std::int64_t part = 0) {
  if (part == 0) part = dim;
  for (std::int64_t row = 0; row < tokens.rows(); ++row)
    for (std::int64_t j = 0; j < part / 2; ++j) {
      const double angle = static_cast<double>(row / tokens.samples) * frequency(layer, j, part);
      double& a = x[at(row * width + column + j)];
      double& b = x[at(row * width + column + j + dim / 2)];
      const double first = a * std::cos(angle) - b * std::sin(angle);
      b = (b * std::cos(angle) + a * std::sin(angle)) * layer.rotary_scaling.amplitude;
      a = first * layer.rotary_scaling.amplitude;
    }
}

/// RMS norm of rows of gamma's width.
inline Tensor rms_norm(const LayerSpec& layer, const Tensor& x, const Tensor& gamma) {
  LayerSpec other = layer;
  if (layer.latent.rank > 0) other.norm_epsilon = layer.latent.norm_epsilon;
  other.hidden = static_cast<std::int64_t>(gamma.size());
  return norm(other, x, gamma, nullptr);
}

/// Queries, keys and values (rows, qkv) of n (rows, H).
inline Tensor projection(const LayerSpec& layer, Tokens tokens, const Parameters& p, const Tensor& n) {
  using Name = ParameterName;
  Tensor qkv = linear(n, p.at(Name::qkv_weight), find(p, Name::qkv_bias), layer.hidden);
  const std::int64_t width = layer.qkv_width();
  const std::int64_t q = layer.heads * layer.head_dim;
  const std::int64_t kv = layer.kv_heads * layer.head_dim;
  if (layer.query_key_norm != QueryKeyNorm::none)
    for (const auto& [name, column, count] :
         {std::tuple{Name::query_gamma, std::int64_t{0}, q}, std::tuple{Name::key_gamma, q, kv}}) {
      const bool heads = layer.query_key_norm == QueryKeyNorm::heads;
      if (p.at(name).size() != at(heads ? layer.head_dim : count)) throw std::invalid_argument("a gamma's width");
      for (std::int64_t row = 0; row < tokens.rows(); ++row) {
        const auto first = qkv.begin() + row * width + column;
        const Tensor normed = rms_norm(layer, Tensor(first, first + count), p.at(name));
        std::copy(normed.begin(), normed.end(), first);
      }
    }
  if (layer.position == PositionKind::rotary)
    for (std::int64_t head = 0; head < layer.heads + layer.kv_heads; ++head)
      turn(layer, tokens, qkv, width, head * layer.head_dim, layer.head_dim, layer.rotary_dim);
  return qkv;
}

/// The same of latent attention, head by head: what positions turn and what not; values are padded with zeros.
inline Tensor latent_projection(const LayerSpec& layer, Tokens tokens, const Parameters& p, const Tensor& n) {
  using Name = ParameterName;
  const auto [rank, query_rank, r, v, epsilon] = layer.latent;
  const std::int64_t d = layer.head_dim;
  const std::int64_t a = layer.heads;
  const std::int64_t h = layer.hidden;
  const Tensor c = query_rank == 0
                       ? n
                       : rms_norm(layer, linear(n, p.at(Name::query_down_weight), nullptr, h), p.at(Name::query_gamma));
  const Tensor q = linear(c, p.at(Name::query_up_weight), nullptr, query_rank == 0 ? h : query_rank);
  const Tensor latent = rms_norm(layer, linear(n, p.at(Name::latent_down_weight), nullptr, h), p.at(Name::key_gamma));
  const Tensor kv = linear(latent, p.at(Name::latent_up_weight), nullptr, rank);
  Tensor key = linear(n, p.at(Name::key_rotary_weight), nullptr, h);
  turn(layer, tokens, key, r, 0, r);
  Tensor out(at(tokens.rows() * 3 * a * d), 0.0);
  for (std::int64_t row = 0; row < tokens.rows(); ++row)
    for (std::int64_t head = 0; head < a; ++head)
      for (std::int64_t i = 0; i < d; ++i) {
        const std::int64_t to = row * 3 * a * d + head * d + i;
        const std::int64_t rest = i - r;  // of what positions do not turn
        out[at(to)] = q[at(row * a * d + (rest < 0 ? head * r + i : a * r + head * (d - r) + rest))];
        const std::int64_t row_of_kv = row * a * (d - r + v);
        out[at(to + a * d)] = rest < 0 ? key[at(row * r + i)] : kv[at(row_of_kv + head * (d - r) + rest)];
        if (i < v) out[at(to + 2 * a * d)] = kv[at(row_of_kv + a * (d - r) + head * v + i)];
      }
  for (std::int64_t head = 0; head < a; ++head) turn(layer, tokens, out, 3 * a * d, head * d, r);
  return out;
}

/// cap tanh(x / cap), or x where `cap` is 0.
inline double soft_cap(double x, double cap) { return cap == 0 ? x : cap * std::tanh(x / cap); }

/// Softmax attention of the fused projection (rows, qkv) -> (rows, A * head_dim).
inline Tensor attention(const LayerSpec& layer, Tokens tokens, const Tensor& qkv) {
  const std::int64_t width = layer.qkv_width();
  const std::int64_t d = layer.head_dim;
  const std::int64_t group = layer.heads / layer.kv_heads;
  Tensor out(at(tokens.rows() * layer.heads * d), 0.0);
  const auto element = [&](std::int64_t s, std::int64_t i, std::int64_t column) {
    return qkv[at((s * tokens.samples + i) * width + column)];
  };
  Tensor weights(at(tokens.sequence));
  const std::int64_t divisor = layer.score_width == 0 ? d : layer.score_width;
  const double growth = 0.1 * layer.rotary_scaling.score_rate * std::log(layer.rotary_scaling.factor) + 1;
  for (std::int64_t i = 0; i < tokens.samples; ++i)
    for (std::int64_t head = 0; head < layer.heads; ++head) {
      const std::int64_t key = (layer.heads + head / group) * d;
      const std::int64_t value = (layer.heads + layer.kv_heads + head / group) * d;
      for (std::int64_t s = 0; s < tokens.sequence; ++s) {
        const std::int64_t seen = layer.causal ? s + 1 : tokens.sequence;
        const std::int64_t first =
            layer.sliding_window > 0 ? std::max<std::int64_t>(0, seen - layer.sliding_window) : 0;
        double sum = 0;
        for (std::int64_t k = first; k < seen; ++k) {
          double score = 0;
          for (std::int64_t c = 0; c < d; ++c) score += element(s, i, head * d + c) * element(k, i, key + c);
          score *= growth * growth / std::sqrt(static_cast<double>(divisor));
          weights[at(k)] = std::exp(soft_cap(score, layer.score_cap));
          sum += weights[at(k)];
        }
        for (std::int64_t k = first; k < seen; ++k)
          for (std::int64_t c = 0; c < d; ++c)
            out[at((s * tokens.samples + i) * layer.heads * d + head * d + c)] +=
                weights[at(k)] / sum * element(k, i, value + c);
      }
    }
  return out;
}

/// GELU, one of its approximations or ReLU of (rows, f), or a gated kind of (rows, gate | up), of an MLP of width f.
inline Tensor activation(const LayerSpec& layer, const Tensor& u) {
  const std::int64_t f = layer.ffn;
  const std::int64_t rows = static_cast<std::int64_t>(u.size()) / layer.ffn_inputs();
  Tensor g(at(rows * f));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < f; ++i) {
      const double a = u[at(r * layer.ffn_inputs() + i)];
      if (layer.activation == ActivationKind::swiglu)
        g[at(r * f + i)] = a / (1.0 + std::exp(-a)) * u[at(r * layer.ffn_inputs() + f + i)];
      else if (layer.activation == ActivationKind::relu)
        g[at(r * f + i)] = std::max(a, 0.0);
      else if (layer.activation == ActivationKind::squared_relu)
        g[at(r * f + i)] = std::max(a, 0.0) * std::max(a, 0.0);
      else if (layer.activation == ActivationKind::quick_gelu)
        g[at(r * f + i)] = a / (1.0 + std::exp(-1.702 * a));
      else if (layer.activation == ActivationKind::exact_gelu)
        g[at(r * f + i)] = 0.5 * a * std::erfc(-a / std::numbers::sqrt2);
      else
        g[at(r * f + i)] = 0.5 * a * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (a + 0.044715 * a * a * a)));
      if (layer.activation == ActivationKind::geglu) g[at(r * f + i)] *= u[at(r * layer.ffn_inputs() + f + i)];
    }
  return g;
}

/// Rows that a rank sends to an expert as means of those that hash alike; see runtime/lsh.hpp.
struct RowBuckets {
  LshOptions options;
  int layer = 0;                                                            ///< the layer's number
  std::vector<int> source;                                                  ///< the rank that sends a row
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> found{};  ///< rows, with the weight's number: fixed
                                                                            ///< by the first call
  std::vector<std::int64_t> expert{};                                       ///< of a bucket
  std::vector<std::int64_t> chosen{};                                       ///< of the rows: fixed, too
  std::vector<float> drawn{};                                               ///< rotations

  [[nodiscard]] std::vector<std::int64_t> codes_of(const double* x, std::int64_t h) {
    if (drawn.empty()) {
      drawn.resize(at(options.rotation_elements(h)));
      runtime::draw_rotations(runtime::Rotation::drawn, options.seed, layer,
                              {drawn.data(), static_cast<std::int64_t>(drawn.size())});
    }
    std::vector<std::int64_t> out;
    for (std::int64_t hash = 0; hash < options.hashes; ++hash) {
      std::int64_t nearest = 0;
      double most = -1;
      for (std::int64_t i = 0; i < options.width; ++i) {
        double v = 0;
        for (std::int64_t c = 0; c < h; ++c)
          v += x[c] * static_cast<double>(drawn[at((hash * options.width + i) * h + c)]);
        if (std::abs(v) > most) nearest = v < 0 ? options.width + i : i;
        most = std::max(most, std::abs(v));
      }
      out.push_back(nearest);
    }
    return out;
  }
};

/// What the experts of a block give for n (rows, H), and the losses of their router as sums over rows: each row
/// weighs 1.
struct Experts {
  Tensor y;
  double losses = 0;  ///< with their coefficients
  Tensor loads;       ///< choices of each expert
};
inline Experts experts(const LayerSpec& layer, Tokens tokens, const Parameters& p, const Tensor& n,
                       RowBuckets* buckets = nullptr) {
  using Name = ParameterName;
  const RouterSpec& router = layer.router;
  const std::int64_t count = layer.experts;
  const std::int64_t k = layer.active_experts;
  const std::int64_t h = layer.hidden;
  const bool sigmoid = router.kind == RouterKind::sigmoid;
  const Tensor* bias = find(p, Name::router_bias);
  const Tensor logits = linear(n, p.at(Name::router), nullptr, h);
  Experts out{.y = Tensor(n.size(), 0.0), .losses = 0, .loads = Tensor(at(count), 0.0)};
  // The k largest of `scores` in the `open` groups.
  const auto largest = [](const Tensor& scores, std::int64_t most, const std::vector<bool>& open) {
    std::vector<std::int64_t> order;
    for (std::size_t e = 0; e < scores.size(); ++e)
      if (open[e * open.size() / scores.size()]) order.push_back(static_cast<std::int64_t>(e));
    std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) { return scores[at(a)] > scores[at(b)]; });
    order.resize(at(most));
    return order;
  };
  const std::int64_t groups = router.balance_scope == BalanceScope::sequence ? tokens.samples : 1;  // counted apart
  std::vector<Tensor> counts(at(groups), Tensor(at(count), 0.0));
  std::vector<Tensor> probabilities(at(groups), Tensor(at(count), 0.0));
  const auto of_expert = [&](std::int64_t e, const Tensor& x) {
    const auto weight = [&](Name name) {
      const Tensor& all = p.at(name);
      const auto size = static_cast<std::int64_t>(all.size()) / count;
      return Tensor(all.begin() + e * size, all.begin() + (e + 1) * size);
    };
    return linear(activation(layer, linear(x, weight(Name::mlp_in_weight), nullptr, h)), weight(Name::mlp_out_weight),
                  nullptr, layer.ffn);
  };
  Tensor weights;  // of the choices, (rows, k)
  std::vector<std::int64_t> choices;
  for (std::int64_t row = 0; row < tokens.rows(); ++row) {
    Tensor parts(at(count));  // in proportion to the probabilities
    Tensor scores(at(count));
    double sum = 0;
    double exponentials = 0;
    for (std::int64_t e = 0; e < count; ++e) {
      const double l = logits[at(row * count + e)];
      parts[at(e)] = sigmoid ? 1.0 / (1.0 + std::exp(-l)) : std::exp(l);
      scores[at(e)] = parts[at(e)] + (sigmoid && bias != nullptr ? (*bias)[at(e)] : 0.0);
      sum += parts[at(e)];
      exponentials += std::exp(l);
    }
    std::vector<bool> open(at(router.groups), true);
    if (router.groups > 1) {
      const std::int64_t members = count / router.groups;
      Tensor of_groups;
      for (std::int64_t g = 0; g < router.groups; ++g) {
        Tensor own(scores.begin() + g * members, scores.begin() + (g + 1) * members);
        std::ranges::sort(own, std::greater<>());
        of_groups.push_back(sigmoid ? own[0] + own[1] : own[0]);
      }
      open.assign(at(router.groups), false);
      for (const std::int64_t g : largest(of_groups, router.top_groups, {true})) open[at(g)] = true;
    }
    std::vector<std::int64_t> chosen = largest(scores, k, open);
    if (buckets != nullptr && !buckets->found.empty())
      chosen.assign(buckets->chosen.begin() + row * k, buckets->chosen.begin() + (row + 1) * k);
    double of_chosen = 0;
    for (const std::int64_t e : chosen) of_chosen += parts[at(e)];
    for (const std::int64_t e : chosen) {
      const double divisor = router.renormalise ? of_chosen : sigmoid ? 1.0 : sum;
      const double weight = router.scale * parts[at(e)] / divisor;
      out.loads[at(e)] += 1;
      weights.push_back(weight);
      choices.push_back(e);
      if (buckets != nullptr) continue;
      const Tensor y = of_expert(e, Tensor(n.begin() + row * h, n.begin() + (row + 1) * h));
      for (std::int64_t i = 0; i < h; ++i) out.y[at(row * h + i)] += weight * y[at(i)];
    }
    const auto group = at(row % groups);
    for (const std::int64_t e : sigmoid ? largest(parts, k, {true}) : chosen) counts[group][at(e)] += 1;
    for (std::int64_t e = 0; e < count; ++e) probabilities[group][at(e)] += parts[at(e)] / sum;
    out.losses += router.z_loss * std::log(exponentials) * std::log(exponentials);
  }
  if (buckets != nullptr) {
    if (buckets->found.empty()) {
      buckets->chosen = choices;
      std::map<std::vector<std::int64_t>, std::size_t> known;
      for (std::size_t i = 0; i < choices.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i) / k;
        std::vector<std::int64_t> key = buckets->codes_of(n.data() + row * h, h);
        key.push_back(choices[i]);
        key.push_back(buckets->source[at(row)]);
        const auto [bucket, is_new] = known.emplace(key, buckets->found.size());
        if (is_new) buckets->found.emplace_back();
        if (is_new) buckets->expert.push_back(choices[i]);
        buckets->found[bucket->second].emplace_back(row, static_cast<std::int64_t>(i));
      }
    }
    for (std::size_t j = 0; j < buckets->found.size(); ++j) {
      Tensor mean(at(h), 0.0);
      const auto& members = buckets->found[j];
      for (const auto& [row, choice] : members)
        for (std::int64_t i = 0; i < h; ++i) mean[at(i)] += n[at(row * h + i)] / static_cast<double>(members.size());
      const Tensor y = of_expert(buckets->expert[j], mean);
      const Tensor* gains = find(p, Name::residual_gain);
      const double gain = gains != nullptr                                 ? (*gains)[at(buckets->expert[j])]
                          : buckets->options.residual == ResidualKind::off ? 0.0
                                                                           : 1.0;
      for (const auto& [row, choice] : members)
        for (std::int64_t i = 0; i < h; ++i)
          out.y[at(row * h + i)] += weights[at(choice)] * (y[at(i)] + gain * (n[at(row * h + i)] - mean[at(i)]));
    }
  }
  const auto counted = static_cast<double>(tokens.rows() / groups);
  for (std::size_t g = 0; g < counts.size(); ++g)
    for (std::size_t e = 0; e < at(count); ++e)
      out.losses += router.balance_loss * static_cast<double>(count) * counts[g][e] /
                    (static_cast<double>(k) * counted) * probabilities[g][e];
  if (layer.shared_ffn == 0) return out;
  LayerSpec shared = layer;
  shared.ffn = layer.shared_ffn;
  const Tensor y = linear(activation(shared, linear(n, p.at(Name::shared_in_weight), nullptr, h)),
                          p.at(Name::shared_out_weight), nullptr, shared.ffn);
  const Tensor gates =
      layer.shared_gate ? linear(n, p.at(Name::shared_gate_weight), nullptr, h) : Tensor(at(tokens.rows()), 1e9);
  for (std::size_t i = 0; i < y.size(); ++i) out.y[i] += y[i] / (1.0 + std::exp(-gates[i / at(h)]));
  return out;
}

/// What the noise of the layers in tests is drawn from.
inline constexpr SampleStream noise_stream{.seed = 42, .stream = 7};

/// n (rows, H) times the noise of every sample, token and column, of which a token has a multiple of four numbers.
inline Tensor jittered(const LayerSpec& layer, Tokens tokens, Tensor n) {
  const std::int64_t numbers = (layer.hidden + 3) / 4 * 4;
  for (std::int64_t row = 0; row < tokens.rows(); ++row)
    for (std::int64_t i = 0; i < layer.hidden; ++i) {
      const std::int64_t token = row % tokens.samples * tokens.sequence + row / tokens.samples;
      const float u =
          uniform_of(bits_at(noise_stream.seed, noise_stream.stream, static_cast<std::uint64_t>(token * numbers + i)));
      n[at(row * layer.hidden + i)] *= 1 + layer.router.jitter * (2.0 * static_cast<double>(u) - 1);
    }
  return n;
}

/// The MLP of a block, or its experts: n (rows, H) -> (rows, H).
/// @param router_losses  null, or grows by those of its experts
/// @param buckets        of compressed dispatch; null: none
inline Tensor mlp(const LayerSpec& layer, Tokens tokens, const Parameters& p, const Tensor& n,
                  double* router_losses = nullptr, RowBuckets* buckets = nullptr) {
  using Name = ParameterName;
  if (layer.experts == 0) {
    const Tensor u = linear(n, p.at(Name::mlp_in_weight), find(p, Name::mlp_in_bias), layer.hidden);
    return linear(activation(layer, u), p.at(Name::mlp_out_weight), find(p, Name::mlp_out_bias), layer.ffn);
  }
  const Experts made = experts(layer, tokens, p, layer.has_jitter() ? jittered(layer, tokens, n) : n, buckets);
  if (router_losses != nullptr) *router_losses += made.losses;
  return made.y;
}

/// A block: x (rows, H) -> (rows, H).
/// @param router_losses  null, or grows by those of its experts
inline Tensor block(const LayerSpec& layer, Tokens tokens, const Parameters& p, const Tensor& x,
                    double* router_losses = nullptr, RowBuckets* buckets = nullptr) {
  using Name = ParameterName;
  const bool after = layer.norm_order == NormOrder::after;
  const auto norm1 = [&](const Tensor& in) {
    return norm(layer, in, p.at(Name::norm1_gamma), find(p, Name::norm1_beta));
  };
  const auto norm2 = [&](const Tensor& in) {
    return norm(layer, in, p.at(Name::norm2_gamma), find(p, Name::norm2_beta));
  };
  const bool latent = layer.latent.rank > 0;
  const Tensor n = after ? x : norm1(x);
  Tensor o =
      attention(layer, tokens, latent ? latent_projection(layer, tokens, p, n) : projection(layer, tokens, p, n));
  if (latent) {  // the padding of values
    Tensor values;
    for (std::size_t i = 0; i < o.size(); ++i)
      if (i % at(layer.head_dim) < at(layer.latent.value_dim)) values.push_back(o[i]);
    o = values;
  }
  const std::int64_t width = layer.heads * (latent ? layer.latent.value_dim : layer.head_dim);
  Tensor x2 = linear(o, p.at(Name::attention_out_weight), find(p, Name::attention_out_bias), width);
  const bool around = layer.norm_order == NormOrder::around;
  if (around) x2 = norm(layer, x2, p.at(Name::attention_norm_gamma), find(p, Name::attention_norm_beta));
  for (std::size_t i = 0; i < x.size(); ++i) x2[i] += x[i];
  if (after) x2 = norm1(x2);
  Tensor y = mlp(layer, tokens, p, layer.parallel ? n : after ? x2 : norm2(x2), router_losses, buckets);
  if (around) y = norm(layer, y, p.at(Name::mlp_norm_gamma), find(p, Name::mlp_norm_beta));
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += x2[i];
  return after ? norm2(y) : y;
}

/// An embedding: tokens (rows) -> (rows, H).
inline Tensor embedding(const LayerSpec& layer, Tokens tokens, const Parameters& p,
                        const std::vector<std::int32_t>& input) {
  const std::int64_t h = layer.hidden;
  Tensor y(at(tokens.rows() * h));
  for (std::int64_t row = 0; row < tokens.rows(); ++row)
    for (std::int64_t i = 0; i < h; ++i) {
      y[at(row * h + i)] = layer.embedding_scale * p.at(ParameterName::table)[at(input[at(row)] * h + i)];
      if (layer.position == PositionKind::learned)
        y[at(row * h + i)] += p.at(ParameterName::positions)[at(row / tokens.samples * h + i)];
      if (layer.token_types > 0) y[at(row * h + i)] += p.at(ParameterName::token_types)[at(i)];
    }
  if (!layer.closing_norm) return y;
  return norm(layer, y, p.at(ParameterName::closing_gamma), find(p, ParameterName::closing_beta));
}

/// An embedding of images: patches ((S - 1) * b, P) -> (rows, H), the class tokens first.
inline Tensor image_embedding(const LayerSpec& layer, Tokens tokens, const Parameters& p, const Tensor& patches) {
  using Name = ParameterName;
  const std::int64_t h = layer.hidden;
  const Tensor embedded = linear(patches, p.at(Name::patch_weight), find(p, Name::patch_bias), layer.patch_width);
  Tensor y(at(tokens.rows() * h));
  for (std::int64_t row = 0; row < tokens.rows(); ++row)
    for (std::int64_t i = 0; i < h; ++i)
      y[at(row * h + i)] =
          (row < tokens.samples ? p.at(Name::class_token)[at(i)] : embedded[at((row - tokens.samples) * h + i)]) +
          p.at(Name::positions)[at(row / tokens.samples * h + i)];
  return layer.closing_norm ? norm(layer, y, p.at(Name::closing_gamma), find(p, Name::closing_beta)) : y;
}

/// A head: x (rows, H) and targets (rows, below 0: none) -> the sum of the tokens' cross-entropies in
/// nats. A classifier has a target for each sample.
inline double head(const LayerSpec& layer, const Parameters& p, const Tensor& x,
                   const std::vector<std::int32_t>& targets) {
  using Name = ParameterName;
  Tensor in = x;
  if (layer.head == HeadKind::classifier) in.resize(targets.size() * at(layer.hidden));  // the class tokens
  if (layer.head == HeadKind::masked_language) {
    LayerSpec width = layer;  // the activation is as wide as the layer
    width.ffn = layer.hidden;
    in = activation(width, linear(x, p.at(Name::transform_weight), find(p, Name::transform_bias), layer.hidden));
  }
  Tensor logits = linear(norm(layer, in, p.at(Name::norm1_gamma), find(p, Name::norm1_beta)), p.at(Name::table),
                         find(p, Name::logits_bias), layer.hidden);
  for (double& logit : logits) logit = soft_cap(logit, layer.logits_cap);
  double loss = 0;
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] < 0) continue;
    double sum = 0;
    for (std::int64_t v = 0; v < layer.vocabulary; ++v) sum += std::exp(logits[row * at(layer.vocabulary) + at(v)]);
    loss += std::log(sum) - logits[row * at(layer.vocabulary) + at(targets[row])];
  }
  return loss;
}

/// A contrastive head: x (2 b, E), of each sample a row of either tower -> the sum of the cross-entropies of all rows
/// over those of the other tower.
inline double contrast(const LayerSpec& layer, const Parameters& p, Tensor x) {
  const std::int64_t e = layer.hidden;
  const auto b = static_cast<std::int64_t>(x.size()) / (2 * e);
  for (std::int64_t row = 0; row < 2 * b; ++row) {
    double squares = 0;
    for (std::int64_t i = 0; i < e; ++i) squares += x[at(row * e + i)] * x[at(row * e + i)];
    for (std::int64_t i = 0; i < e; ++i) x[at(row * e + i)] /= std::sqrt(squares);
  }
  const double scale = std::exp(p.at(ParameterName::logit_scale)[0]);
  double loss = 0;
  for (std::int64_t row = 0; row < 2 * b; ++row) {
    double sum = 0;
    for (std::int64_t other = 0; other < b; ++other) {
      double product = 0;
      for (std::int64_t i = 0; i < e; ++i) product += x[at(row * e + i)] * x[at(((row < b ? b : 0) + other) * e + i)];
      sum += std::exp(scale * product);
      if (other == row % b) loss -= scale * product;
    }
    loss += std::log(sum);
  }
  return loss;
}

/// A norm and a linear layer: between components, or of pooled samples.
inline Tensor norm_linear(const LayerSpec& layer, const Parameters& p, const Tensor& x) {
  using Name = ParameterName;
  return linear(norm(layer, x, p.at(Name::norm1_gamma), find(p, Name::norm1_beta)), p.at(Name::transform_weight),
                find(p, Name::transform_bias), layer.hidden);
}
/// The class tokens of samples, the tokens that end their texts, or the means of their tokens: (S b, H) -> (b, H).
/// @param ids  of the tokens, of texts
inline Tensor pooled(const LayerSpec& layer, Tokens tokens, const Tensor& x, const std::vector<std::int32_t>& ids) {
  const std::int64_t width = layer.hidden * tokens.samples;
  if (layer.end_token != no_token) {
    Tensor ends;
    for (std::int64_t i = 0; i < tokens.samples; ++i) {
      std::int64_t best = 0;
      for (std::int64_t s = tokens.sequence - 1; s >= 0; --s) {
        const auto id = [&](std::int64_t token) { return ids[at(token * tokens.samples + i)]; };
        if (layer.end_token == largest_token ? id(s) >= id(best) : id(s) == layer.end_token) best = s;
      }
      const auto row = x.begin() + (best * tokens.samples + i) * layer.hidden;
      ends.insert(ends.end(), row, row + layer.hidden);
    }
    return ends;
  }
  Tensor out(x.begin(), x.begin() + width);
  if (layer.class_token) return out;
  for (std::int64_t i = width; i < static_cast<std::int64_t>(x.size()); ++i) out[at(i % width)] += x[at(i)];
  for (double& value : out) value /= static_cast<double>(tokens.sequence);
  return out;
}

}  // namespace reference
}  // namespace galvatron::test
