// A router's row: which experts a token goes to, with which weights, and the gradient of its logits.
//
//   softmax   p = softmax(l); the k largest l; w = scale p, or renormalised scale softmax(the chosen l)
//   sigmoid   s = sigmoid(l); the k largest s + bias; w = scale s, or renormalised scale s / (sum of chosen s + 1e-20)
//
// Where experts are in groups, the groups of the largest scores are chosen first: the largest l of a group, or the sum
// of its two largest s + bias (DeepSeek-V2, arXiv 2405.04434; DeepSeek-V3, arXiv 2412.19437). Equal scores go to the
// lower number.
#pragma once

#include <cmath>
#include <cstdint>

#include <galvatron/device/kernels/number.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::device::kernels {

/// The numbers of a router.
struct Router {
  std::int64_t experts = 0;  ///< E
  std::int64_t active = 0;   ///< k
  RouterKind kind = RouterKind::softmax;
  bool renormalise = true;
  float scale = 1;
  std::int64_t groups = 1;  ///< divides E; at most 64
  std::int64_t top_groups = 1;

  /// Probabilities for a balance loss: softmax, or sigmoids that are divided by their sum.
  struct Probabilities {
    float maximum = 0;       ///< of the logits
    float sum = 0;           ///< of exp(l - maximum), or of the sigmoids
    float exponentials = 0;  ///< sum of exp(l - maximum)
    [[nodiscard]] GALVATRON_HD float log_sum() const { return maximum + std::log(exponentials); }
  };
  GALVATRON_HD static float sigmoid(float l) { return 1.0F / (1.0F + std::exp(-l)); }

  [[nodiscard]] GALVATRON_HD Probabilities probabilities(const float* logits) const {
    Probabilities out;
    out.maximum = logits[0];
    for (std::int64_t e = 1; e < experts; ++e) out.maximum = logits[e] > out.maximum ? logits[e] : out.maximum;
    for (std::int64_t e = 0; e < experts; ++e) out.exponentials += std::exp(logits[e] - out.maximum);
    out.sum = out.exponentials;
    if (kind == RouterKind::sigmoid) {
      out.sum = 0;
      for (std::int64_t e = 0; e < experts; ++e) out.sum += sigmoid(logits[e]);
    }
    return out;
  }
  /// Before it is divided by Probabilities::sum.
  [[nodiscard]] GALVATRON_HD float part(const Probabilities& p, float logit) const {
    return kind == RouterKind::sigmoid ? sigmoid(logit) : std::exp(logit - p.maximum);
  }

  /// What experts are chosen by.
  [[nodiscard]] GALVATRON_HD float score(const float* logits, const float* bias, std::int64_t e) const {
    if (kind == RouterKind::softmax) return logits[e];
    return sigmoid(logits[e]) + (bias != nullptr ? bias[e] : 0.0F);
  }
  /// The `count` largest of score(i) for i in [0, n) where allowed(i), the largest first: place(j, i) for each. NaNs
  /// come last.
  template <class Score, class Allowed, class Place>
  GALVATRON_HD static void largest(std::int64_t count, std::int64_t n, const Score& score, const Allowed& allowed,
                                   const Place& place) {
    float last = 0;
    std::int64_t last_at = -1;
    for (std::int64_t j = 0; j < count; ++j) {
      float best = 0;
      std::int64_t best_at = -1;
      for (std::int64_t i = 0; i < n; ++i) {
        if (!allowed(i)) continue;
        const float s = score(i);
        // Behind the last one in the order of scores, then of numbers; a NaN is behind all that are none.
        const bool is_nan = s != s;
        const bool last_is_nan = last != last;
        const bool behind = last_at < 0 || (is_nan ? !last_is_nan || i > last_at
                                                   : !last_is_nan && (s < last || (s == last && i > last_at)));
        if (!behind) continue;
        const bool best_is_nan = best != best;
        if (best_at < 0 || (best_is_nan ? !is_nan : s > best)) {
          best = s;
          best_at = i;
        }
      }
      place(j, best_at);
      last = best;
      last_at = best_at;
    }
  }
  /// chosen (k), the largest score first.
  GALVATRON_HD void choose(const float* logits, const float* bias, std::int32_t* chosen) const {
    std::uint64_t open = ~std::uint64_t{0};
    const std::int64_t members = experts / groups;
    if (groups > 1 && top_groups < groups) {
      open = 0;
      const auto group_score = [&](std::int64_t g) {
        float first = score(logits, bias, g * members);
        float second = -INFINITY;
        for (std::int64_t e = g * members + 1; e < (g + 1) * members; ++e) {
          const float s = score(logits, bias, e);
          if (s > first) {
            second = first;
            first = s;
          } else if (s > second) {
            second = s;
          }
        }
        return kind == RouterKind::softmax || members == 1 ? first : first + second;
      };
      largest(
          top_groups, groups, group_score, [](std::int64_t) { return true; },
          [&](std::int64_t, std::int64_t g) { open |= std::uint64_t{1} << g; });
    }
    largest(
        active, experts, [&](std::int64_t e) { return score(logits, bias, e); },
        [&](std::int64_t e) { return (open >> (e / members) & 1U) != 0; },
        [&](std::int64_t j, std::int64_t e) { chosen[j] = static_cast<std::int32_t>(e); });
  }
  /// What weights are divided by after their multiplication with `scale`.
  [[nodiscard]] GALVATRON_HD float divisor(const Probabilities& p, const float* logits,
                                           const std::int32_t* chosen) const {
    if (!renormalise) return kind == RouterKind::sigmoid ? 1.0F : p.sum;
    float sum = kind == RouterKind::sigmoid ? 1e-20F : 0.0F;
    for (std::int64_t j = 0; j < active; ++j) sum += part(p, logits[chosen[j]]);
    return sum;
  }
  /// weights (k) of the chosen ones.
  GALVATRON_HD void weigh(const Probabilities& p, const float* logits, const std::int32_t* chosen,
                          float* weights) const {
    const float over = scale / divisor(p, logits, chosen);
    for (std::int64_t j = 0; j < active; ++j) weights[j] = over * part(p, logits[chosen[j]]);
  }
  /// gradient (E) of the logits, from that of the weights (k), that of the probabilities (E, or null) and `of_log_sum`,
  /// the derivative of the loss by log_sum(). Choices have none.
  template <class T>
  GALVATRON_HD void backward(const float* logits, const std::int32_t* chosen, const float* d_weights,
                             const float* d_probabilities, float z, T* gradient) const {
    const Probabilities p = probabilities(logits);
    // dw / dpart = scale / divisor, and through the divisor, which all parts or the chosen ones make. A single expert
    // that is renormalised gets zeros.
    const float divided = divisor(p, logits, chosen);
    const float over = scale / divided;
    float through = 0;
    for (std::int64_t j = 0; j < active; ++j) through += d_weights[j] * (part(p, logits[chosen[j]]) / divided);
    if (kind == RouterKind::sigmoid && !renormalise) through = 0;
    float balance = 0;
    if (d_probabilities != nullptr)
      for (std::int64_t e = 0; e < experts; ++e) balance += d_probabilities[e] * part(p, logits[e]) / p.sum;
    const float of_log_sum = z * 2.0F * p.log_sum();
    for (std::int64_t e = 0; e < experts; ++e) {
      const float own = part(p, logits[e]);
      float d = 0;  // of the part
      bool is_chosen = false;
      for (std::int64_t j = 0; j < active; ++j)
        if (chosen[j] == e) {
          d += d_weights[j];
          is_chosen = true;
        }
      if (is_chosen || !renormalise) d -= through;
      d *= over;
      if (d_probabilities != nullptr) d += (d_probabilities[e] - balance) / p.sum;
      const float slope = kind == RouterKind::sigmoid ? own * (1.0F - own) : own;
      put(gradient[e], d * slope + of_log_sum * std::exp(logits[e] - p.maximum) / p.exponentials);
    }
  }
};

inline Router router_of(const LayerSpec& layer) {
  const RouterSpec& r = layer.router;
  return {.experts = layer.experts,
          .active = layer.active_experts,
          .kind = r.kind,
          .renormalise = r.renormalise,
          .scale = static_cast<float>(r.scale),
          .groups = r.groups,
          .top_groups = r.top_groups};
}

}  // namespace galvatron::device::kernels
