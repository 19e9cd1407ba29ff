// A router's row: which experts a token goes to, with which weights, and the gradient of its logits.
//
//   softmax   p = softmax(l); the k largest l; w = scale p, or renormalised scale softmax(the chosen l)
//   sigmoid   s = sigmoid(l); the k largest s + bias; w = scale s, or renormalised scale s / (sum of chosen s + 1e-20)
//
// Where experts are in groups, the groups of the largest scores are chosen first: the largest l of a group, or the sum
// of its two largest s + bias (DeepSeek-V2, arXiv 2405.04434; DeepSeek-V3, arXiv 2412.19437). Equal scores go to the
// lower number; NaNs come last.
//
// A row is computed by one thread, or by several lanes that share its experts: lane i of n has experts i, i + n, ...
// All lanes call the functions together, with what they have in common:
//
//   lane(), lanes()        i and n
//   sum(x), maximum(x)     over the lanes, in a fixed order; the same in all of them
//   sync()                 all lanes come here before one goes on, and see what the others wrote
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <galvatron/device/kernels/math.hpp>
#include <galvatron/device/kernels/number.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::device::kernels {

/// A thread that has a row to itself.
struct OneThread {
  static constexpr std::int64_t lane() { return 0; }
  static constexpr std::int64_t lanes() { return 1; }
  static constexpr auto sum(auto x) { return x; }
  static constexpr auto maximum(auto x) { return x; }
  static constexpr void sync() {}
};

/// The larger, the earlier a score comes: the larger one, of equal ones that of the lower number, and NaNs last. Not 0.
GALVATRON_HD GALVATRON_INLINE std::uint64_t precedence(float score, std::int64_t number) {
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);  // -0 becomes 0
  const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return std::uint64_t{score != score ? 0 : ordered} << 32 | (0xffffffffU - static_cast<std::uint32_t>(number));
}

/// The numbers of a router.
struct Router {
  std::int64_t experts = 0;  ///< E
  std::int64_t active = 0;   ///< k
  RouterKind kind = RouterKind::softmax;
  bool renormalise = true;
  float scale = 1;
  std::int64_t groups = 1;  ///< divides E; at most 64
  std::int64_t top_groups = 1;

  [[nodiscard]] Router without_groups() const {
    Router out = *this;
    out.groups = out.top_groups = 1;
    return out;
  }

  /// Probabilities for a balance loss: softmax, or sigmoids that are divided by their sum.
  struct Probabilities {
    float maximum = 0;       ///< of the logits
    float sum = 0;           ///< of exp(l - maximum), or of the sigmoids
    float exponentials = 0;  ///< sum of exp(l - maximum)
    [[nodiscard]] GALVATRON_HD GALVATRON_INLINE float log_sum() const { return maximum + std::log(exponentials); }
  };
  GALVATRON_HD_OF_EITHER GALVATRON_INLINE Probabilities probabilities(const auto& lanes, const float* logits) const {
    float maximum = -std::numeric_limits<float>::infinity();
    for (std::int64_t e = lanes.lane(); e < experts; e += lanes.lanes())
      maximum = logits[e] > maximum ? logits[e] : maximum;
    Probabilities out;
    out.maximum = lanes.maximum(maximum);
    float exponentials = 0;
    for (std::int64_t e = lanes.lane(); e < experts; e += lanes.lanes())
      exponentials += exponential(logits[e] - out.maximum);
    out.sum = out.exponentials = lanes.sum(exponentials);
    if (kind != RouterKind::sigmoid) return out;
    float sigmoids = 0;
    for (std::int64_t e = lanes.lane(); e < experts; e += lanes.lanes()) sigmoids += sigmoid(logits[e]);
    out.sum = lanes.sum(sigmoids);
    return out;
  }
  GALVATRON_HD GALVATRON_INLINE static float sigmoid(float l) {
    float s = 0;
    logistic(l, s);
    return s;
  }
  /// Before it is divided by Probabilities::sum.
  [[nodiscard]] GALVATRON_HD GALVATRON_INLINE float part(const Probabilities& p, float logit) const {
    return kind == RouterKind::sigmoid ? sigmoid(logit) : exponential(logit - p.maximum);
  }

  /// scores (E): what experts are chosen by. bias (E) of sigmoid, or null.
  GALVATRON_HD_OF_EITHER GALVATRON_INLINE void score(const auto& lanes, const float* logits, const auto* bias,
                                                     float* scores) const {
    for (std::int64_t e = lanes.lane(); e < experts; e += lanes.lanes()) {
      float s = logits[e];
      if (kind == RouterKind::sigmoid) s = sigmoid(s) + (bias != nullptr ? get(bias[e]) : 0.0F);
      scores[e] = s;
    }
    lanes.sync();
  }
  /// chosen (k), the largest score first. `scores` lose those of groups that are not chosen.
  GALVATRON_HD_OF_EITHER GALVATRON_INLINE void choose(const auto& lanes, float* scores, std::int32_t* chosen) const {
    if (top_groups < groups) {
      const std::int64_t members = experts / groups;
      std::uint64_t open = 0;
      largest(
          lanes, top_groups, groups, [&](std::int64_t g) { return group_score(scores + g * members, members); },
          [&](std::int64_t, std::int64_t g) { open |= std::uint64_t{1} << g; });
      lanes.sync();
      for (std::int64_t g = 0; g < groups; ++g)
        if ((open >> g & 1U) == 0)
          for (std::int64_t e = lanes.lane(); e < members; e += lanes.lanes())
            scores[g * members + e] = std::numeric_limits<float>::quiet_NaN();
      lanes.sync();
    }
    largest(
        lanes, active, experts, [&](std::int64_t e) { return scores[e]; },
        [&](std::int64_t j, std::int64_t e) {
          if (lanes.lane() == 0) chosen[j] = static_cast<std::int32_t>(e);
        });
    lanes.sync();
  }
  /// weights (k) of the chosen ones.
  GALVATRON_HD_OF_EITHER GALVATRON_INLINE void weigh(const auto& lanes, const float* logits, const std::int32_t* chosen,
                                                     float* weights) const {
    const Probabilities p = probabilities(lanes, logits);
    const float over = scale / divisor(p, logits, chosen);
    for (std::int64_t j = lanes.lane(); j < active; j += lanes.lanes()) weights[j] = over * part(p, logits[chosen[j]]);
  }

  /// What a row adds to the losses, before their weights.
  struct Losses {
    double balance = 0;  ///< counts . probabilities; 0 without counts
    double z = 0;        ///< the square of the logarithm of the sum of exponentials
  };
  GALVATRON_HD_OF_EITHER GALVATRON_INLINE Losses losses(const auto& lanes, const float* logits,
                                                        const float* counts) const {
    const Probabilities p = probabilities(lanes, logits);
    Losses out;
    if (counts != nullptr) {
      float sum = 0;
      for (std::int64_t e = lanes.lane(); e < experts; e += lanes.lanes()) sum += counts[e] * part(p, logits[e]);
      out.balance = static_cast<double>(lanes.sum(sum)) / static_cast<double>(p.sum);
    }
    const auto log_sum = static_cast<double>(p.log_sum());
    out.z = log_sum * log_sum;
    return out;
  }

  /// gradient (E) of the logits, from that of the weights (k) and those of the losses, which are balance * counts .
  /// probabilities (counts (E), or null) and z * log_sum()^2. Choices have none.
  GALVATRON_HD_OF_EITHER GALVATRON_INLINE void backward(const auto& lanes, const float* logits,
                                                        const std::int32_t* chosen, const float* d_weights,
                                                        const float* counts, float balance, float z,
                                                        auto* gradient) const {
    const Probabilities p = probabilities(lanes, logits);
    // dw / dpart = scale / divisor, and through the divisor, which all parts or the chosen ones make. A single expert
    // that is renormalised gets zeros.
    const float divided = divisor(p, logits, chosen);
    const float over = scale / divided;
    float through = 0;
    for (std::int64_t j = 0; j < active; ++j) through += d_weights[j] * (part(p, logits[chosen[j]]) / divided);
    if (kind == RouterKind::sigmoid && !renormalise) through = 0;
    float mean = 0;  // gradient of the probabilities, weighted by them
    if (counts != nullptr) {
      for (std::int64_t e = lanes.lane(); e < experts; e += lanes.lanes())
        mean += balance * counts[e] * part(p, logits[e]);
      mean = lanes.sum(mean) / p.sum;
    }
    const float of_log_sum = z * 2.0F * p.log_sum();
    for (std::int64_t e = lanes.lane(); e < experts; e += lanes.lanes()) {
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
      if (counts != nullptr) d += (balance * counts[e] - mean) / p.sum;
      const float slope = kind == RouterKind::sigmoid ? own * (1.0F - own) : own;
      put(gradient[e], d * slope + of_log_sum * exponential(logits[e] - p.maximum) / p.exponentials);
    }
  }

 private:
  /// The `count` first of score(i), i in [0, n), by precedence: place(j, i) for each, in all lanes.
  GALVATRON_HD_OF_EITHER GALVATRON_INLINE static void largest(const auto& lanes, std::int64_t count, std::int64_t n,
                                                              const auto& score, const auto& place) {
    std::uint64_t last = ~std::uint64_t{0};
    for (std::int64_t j = 0; j < count; ++j) {
      std::uint64_t best = 0;
      for (std::int64_t i = lanes.lane(); i < n; i += lanes.lanes()) {
        const std::uint64_t own = precedence(score(i), i);
        best = own < last && own > best ? own : best;
      }
      last = lanes.maximum(best);
      place(j, static_cast<std::int64_t>(0xffffffffU - static_cast<std::uint32_t>(last)));
    }
  }
  [[nodiscard]] GALVATRON_HD GALVATRON_INLINE float group_score(const float* scores, std::int64_t members) const {
    float first = scores[0];
    float second = -std::numeric_limits<float>::infinity();
    for (std::int64_t e = 1; e < members; ++e) {
      const float s = scores[e];
      const float smaller = s > first ? first : s;
      first = s > first ? s : first;
      second = smaller > second ? smaller : second;
    }
    return kind == RouterKind::softmax || members == 1 ? first : first + second;
  }
  /// What weights are divided by after their multiplication with `scale`.
  [[nodiscard]] GALVATRON_HD GALVATRON_INLINE float divisor(const Probabilities& p, const float* logits,
                                                            const std::int32_t* chosen) const {
    if (!renormalise) return kind == RouterKind::sigmoid ? 1.0F : p.sum;
    float sum = kind == RouterKind::sigmoid ? 1e-20F : 0.0F;
    for (std::int64_t j = 0; j < active; ++j) sum += part(p, logits[chosen[j]]);
    return sum;
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
