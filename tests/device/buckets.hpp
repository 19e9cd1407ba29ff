// Tokens in buckets, for tests of devices: random choices of experts and codes, and what follows from them by
// definition, in double.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <galvatron/device/device.hpp>

#include "host_fixture.hpp"

namespace galvatron::test {

/// Choices of experts by tokens, in the order of the experts, and a few codes for many tokens.
struct RoutedTokens {
  device::kernels::CrossPolytope hashing;
  std::int64_t tokens = 0, experts = 0, active = 0;
  std::vector<std::int32_t> codes;            ///< (tokens, H)
  std::vector<float> weights;                 ///< (tokens, k)
  std::vector<std::int32_t> order, places;    ///< as Device::order_choices makes them
  std::vector<std::int32_t> offsets;          ///< (E + 1)
  std::vector<std::int32_t> bucket, members;  ///< (rows); what an operation writes
  std::vector<std::int32_t> begins, bounds;   ///< (rows + 1), (E + 1)

  /// @param dropped  the share of choices that no expert takes
  RoutedTokens(std::mt19937& random, std::int64_t token_count, std::int64_t expert_count, std::int64_t k,
               std::int64_t hashes, double dropped)
      : hashing{hashes, 2}, tokens(token_count), experts(expert_count), active(k) {
    std::uniform_int_distribution<int> vertex(0, 3);
    std::uniform_real_distribution<float> uniform(0, 1);
    for (std::int64_t i = 0; i < tokens * hashes; ++i) codes.push_back(vertex(random));
    std::vector<std::vector<std::int32_t>> of_expert(static_cast<std::size_t>(experts));
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::vector<std::int32_t> all;
      for (std::int64_t e = 0; e < experts; ++e) all.push_back(static_cast<std::int32_t>(e));
      std::shuffle(all.begin(), all.end(), random);
      for (std::int64_t j = 0; j < active; ++j) {
        weights.push_back(uniform(random));
        places.push_back(-1);
        if (uniform(random) >= dropped)
          of_expert[static_cast<std::size_t>(all[static_cast<std::size_t>(j)])].push_back(
              static_cast<std::int32_t>(t * active + j));
      }
    }
    for (const auto& choices : of_expert) {
      offsets.push_back(static_cast<std::int32_t>(order.size()));
      for (const std::int32_t choice : choices) {
        places[static_cast<std::size_t>(choice)] = static_cast<std::int32_t>(order.size());
        order.push_back(choice);
      }
    }
    offsets.push_back(static_cast<std::int32_t>(order.size()));
    order.resize(places.size(), -1);
    bucket.assign(places.size(), -7);
    members = bucket;
    begins.assign(places.size() + 1, -7);
    bounds.assign(offsets.size(), -7);
  }

  device::TokenBuckets buckets() {
    return {.experts = experts,
            .active = active,
            .rows = static_cast<std::int64_t>(order.size()),
            .order = view(std::as_const(order)),
            .offsets = view(std::as_const(offsets)),
            .bucket = view(bucket),
            .members = view(members),
            .begins = view(begins),
            .bounds = view(bounds)};
  }
  [[nodiscard]] std::int64_t rows() const { return offsets.back(); }
  [[nodiscard]] std::int64_t count() const { return bounds.back(); }
  [[nodiscard]] std::int64_t token_of(std::int64_t row) const { return order[static_cast<std::size_t>(row)] / active; }
  [[nodiscard]] std::int64_t table_places() const {
    return device::TokenBuckets::table_places(static_cast<std::int64_t>(order.size()));
  }

  /// Writes bucket, members, begins and bounds by definition.
  void number_by_definition() {
    std::int32_t next = 0;
    std::map<std::int32_t, std::vector<std::int32_t>> rows_of;
    for (std::size_t e = 0; e < static_cast<std::size_t>(experts); ++e) {
      bounds[e] = next;
      std::map<std::vector<std::int32_t>, std::int32_t> known;
      for (std::int32_t row = offsets[e]; row < offsets[e + 1]; ++row) {
        const auto from = codes.begin() + token_of(row) * hashing.hashes;
        const auto [at, is_new] = known.try_emplace({from, from + hashing.hashes}, next);
        if (is_new) ++next;
        bucket[static_cast<std::size_t>(row)] = at->second;
        rows_of[at->second].push_back(row);
      }
    }
    bounds.back() = next;
    std::size_t place = 0;
    for (const auto& [j, all] : rows_of) {
      begins[static_cast<std::size_t>(j)] = static_cast<std::int32_t>(place);
      for (const std::int32_t row : all) members[place++] = row;
    }
    begins[static_cast<std::size_t>(next)] = static_cast<std::int32_t>(place);
  }
};

/// The operations on buckets, by definition, in double.
class BucketReference {
 public:
  using Numbers = std::vector<double>;
  /// @param gains  of the experts
  BucketReference(const RoutedTokens& routed, std::int64_t width, Numbers gains)
      : routed_(routed), width_(width), gains_(std::move(gains)) {}

  [[nodiscard]] Numbers sums(const Numbers& x, bool weighted, bool mean) const {
    Numbers out(at(routed_.count() * width_));
    for (std::int64_t row = 0; row < routed_.rows(); ++row) {
      const std::int64_t j = routed_.bucket[at(row)];
      const auto n = static_cast<double>(routed_.begins[at(j + 1)] - routed_.begins[at(j)]);
      const double weight = weighted ? static_cast<double>(routed_.weights[at(routed_.order[at(row)])]) : 1.0;
      for (std::int64_t i = 0; i < width_; ++i)
        out[at(j * width_ + i)] += weight * x[at(routed_.token_of(row) * width_ + i)] / (mean ? n : 1);
    }
    return out;
  }
  [[nodiscard]] Numbers combine(const Numbers& e, const Numbers& x, const Numbers& c) const {
    Numbers y(at(routed_.tokens * width_));
    for_choices([&](std::int64_t choice, std::int64_t t, std::int64_t j, std::size_t expert) {
      const double gain = gains_[expert];
      for (std::int64_t i = 0; i < width_; ++i)
        y[at(t * width_ + i)] += static_cast<double>(routed_.weights[at(choice)]) * made(e, x, c, t, j, gain, i);
    });
    return y;
  }
  [[nodiscard]] Numbers weights_backward(const Numbers& e, const Numbers& x, const Numbers& c,
                                         const Numbers& dy) const {
    Numbers out(routed_.places.size());
    for_choices([&](std::int64_t choice, std::int64_t t, std::int64_t j, std::size_t expert) {
      const double gain = gains_[expert];
      for (std::int64_t i = 0; i < width_; ++i)
        out[at(choice)] += dy[at(t * width_ + i)] * made(e, x, c, t, j, gain, i);
    });
    return out;
  }
  [[nodiscard]] Numbers combine_backward(const Numbers& dy, const Numbers& dc, const Numbers& s) const {
    Numbers dx(at(routed_.tokens * width_));
    for_choices([&](std::int64_t choice, std::int64_t t, std::int64_t j, std::size_t expert) {
      const double gain = gains_[expert];
      const auto n = static_cast<double>(routed_.begins[at(j + 1)] - routed_.begins[at(j)]);
      for (std::int64_t i = 0; i < width_; ++i)
        dx[at(t * width_ + i)] += gain * static_cast<double>(routed_.weights[at(choice)]) * dy[at(t * width_ + i)] +
                                  (dc[at(j * width_ + i)] - gain * s[at(j * width_ + i)]) / n;
    });
    return dx;
  }
  [[nodiscard]] Numbers gain_backward(const Numbers& x, const Numbers& c, const Numbers& dy) const {
    Numbers out(at(routed_.experts));
    for_choices([&](std::int64_t choice, std::int64_t t, std::int64_t j, std::size_t expert) {
      for (std::int64_t i = 0; i < width_; ++i)
        out[expert] += static_cast<double>(routed_.weights[at(choice)]) * dy[at(t * width_ + i)] *
                       (x[at(t * width_ + i)] - c[at(j * width_ + i)]);
    });
    return out;
  }
  [[nodiscard]] Numbers distances(const Numbers& x, const Numbers& c) const {
    Numbers out(2);
    for (std::int64_t row = 0; row < routed_.rows(); ++row)
      for (std::int64_t i = 0; i < width_; ++i) {
        const double own = x[at(routed_.token_of(row) * width_ + i)];
        const double away = own - c[at(routed_.bucket[at(row)] * width_ + i)];
        out[0] += away * away;
        out[1] += own * own;
      }
    return out;
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  template <class F>
  void for_choices(const F& f) const {
    for (std::size_t choice = 0; choice < routed_.places.size(); ++choice) {
      if (routed_.places[choice] < 0) continue;
      const std::int64_t j = routed_.bucket[at(routed_.places[choice])];
      std::size_t expert = 0;
      while (routed_.bounds[expert + 1] <= j) ++expert;
      f(static_cast<std::int64_t>(choice), static_cast<std::int64_t>(choice) / routed_.active, j, expert);
    }
  }
  [[nodiscard]] double made(const Numbers& e, const Numbers& x, const Numbers& c, std::int64_t t, std::int64_t j,
                            double gain, std::int64_t i) const {
    return e[at(j * width_ + i)] + gain * (x[at(t * width_ + i)] - c[at(j * width_ + i)]);
  }

  const RoutedTokens& routed_;
  std::int64_t width_;
  Numbers gains_;
};

}  // namespace galvatron::test
