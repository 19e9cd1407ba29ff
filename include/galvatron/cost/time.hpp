// What work costs on a cluster: counts x rates.
//
// Every kind of work is priced by the tables of the cluster where it has some (see cluster/spec.hpp) and by the rates
// of its device and links otherwise, and by the factors that its calibration has for them. Prices are positive and
// never fall when work grows.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/product_8bit.hpp>
#include <galvatron/cost/rates.hpp>
#include <galvatron/op/work.hpp>

namespace galvatron::cost {

/// Of a weight gradient (m, n) in fp32, on average: written, or read and added to.
constexpr std::int64_t gradient_bytes(const op::Work& w) {
  std::int64_t read = w.always_writes() ? 0 : w.m * w.n;
  if (w.writes_one_in > 1) read = read / w.writes_one_in * (w.writes_one_in - 1);
  return 4 * (read + w.m * w.n);
}

/// Bytes that one execution (`times` = 1) moves between a device and its memory, each operand once, nothing kept in a
/// cache; for communication, the bytes on the busiest link of a ring. Statistics of rows are left out.
constexpr Bytes bytes_of(const op::Work& w, Precision precision) {
  const std::int64_t e = element_bytes(precision);
  const std::int64_t elements = (w.m + w.n) * w.k;  // of a product's operands
  const std::int64_t operands = w.eight_bit ? rounding_bytes(elements, w.recipe) + elements : e * elements;
  const std::int64_t cells = w.m * std::max<std::int64_t>(w.n, 1);
  switch (w.kind) {
    case op::Kind::gemm_nt:
    case op::Kind::gemm_nn:
      return {operands + e * w.m * w.n};
    case op::Kind::gemm_tn:
      return {operands + gradient_bytes(w)};
    case op::Kind::attention_forward:
      return {e * w.m * w.l * 2 * (w.n + w.k)};  // q, o and k, v
    case op::Kind::attention_backward:
      return {e * w.m * w.l * 4 * (w.n + w.k)};  // and do, dq, dk, dv
    case op::Kind::bias_gradient:
    case op::Kind::softmax_statistics:
      return {e * cells};
    case op::Kind::norm_forward:
    case op::Kind::activation_forward:
    case op::Kind::gelu_in_product:
    case op::Kind::rotary:
    case op::Kind::embedding_forward:
    case op::Kind::softmax_backward:
      return {2 * e * cells};
    case op::Kind::activation_backward:  // u, dg, du
    case op::Kind::gelu_gradient_in_product:
      return {3 * e * cells};
    case op::Kind::add_norm_forward:  // both terms, the sum, its norm
    case op::Kind::norm_backward:     // dy, x, residual gradient, dx
      return {4 * e * cells};
    case op::Kind::add:
      return {3 * e * w.m};
    case op::Kind::embedding_backward:
      return {(e + 8) * cells};
    case op::Kind::adamw:
      return {(precision == Precision::fp32 ? 28 : 28 + e) * w.m};  // master, m, v in and out; g
    case op::Kind::adamw_bf16:
      return {(precision == Precision::fp32 ? 20 : 20 + e) * w.m};
    case op::Kind::norm_squared:
      return {4 * w.m};
    case op::Kind::fill:
    case op::Kind::send:
      return {w.m};
    case op::Kind::copy:
      return {2 * w.m};
    case op::Kind::all_reduce:
      return {w.n > 1 ? 2 * w.m * (w.n - 1) / w.n : 0};
    case op::Kind::all_gather:
    case op::Kind::reduce_scatter:
    case op::Kind::broadcast:
    case op::Kind::all_to_all:
      return {w.n > 1 ? w.m * (w.n - 1) / w.n : 0};
  }
  return {};
}

/// Seconds of `work`, all its `times` together, on one rank of `cluster`. Work of nothing and collectives of one rank
/// cost nothing. A precision that the device lacks is priced by the one that it has. About 0.1 us a call.
/// @param concurrency  ranks of a node that are busy at the same time; 0: all
constexpr Seconds time_of(const op::Work& work, Precision precision, const Cluster& cluster, int concurrency = 0) {
  if (work.times <= 0 || work.m <= 0) return {0};
  const int busy = concurrency > 0 ? concurrency : cluster.devices_per_node;
  const Precision format = work.eight_bit ? Precision::fp8 : element_format(precision);
  if (is_communication(work.kind)) return {detail::message_seconds(work, cluster, busy) * work.times};
  double once = 0;
  if (is_gemm(work.kind))
    once = detail::gemm_seconds(work, format, cluster, busy);
  else if (is_attention(work.kind))
    once = detail::attention_seconds(work, format, cluster, busy);
  else
    once = detail::memory_seconds(work, bytes_of(work, format), format, cluster, busy);
  return {once * cluster.calibration.factor(term_of(work.kind)) * work.times};
}

/// The same where the first and the last stage of a pipeline are on groups of devices that `ends` links: what is
/// between them is priced by that link. Null: they are on one group.
constexpr Seconds time_of(const op::Work& work, Precision precision, const Cluster& cluster, int concurrency,
                          const Link* ends) {
  if (ends == nullptr || !work.between_ends || work.times <= 0 || work.m <= 0)
    return time_of(work, precision, cluster, concurrency);
  const int ranks = static_cast<int>(std::clamp<std::int64_t>(work.n, 1, 2));
  return {detail::ring_seconds(*ends, work.kind, ranks, detail::real(work.m), detail::bandwidth_of(*ends, work.kind)) *
          work.times};
}

/// Prices as time_of does, and remembers prices, since strategies differ in little of their work.
class WorkPrices {
 public:
  /// @param concurrency  as for time_of
  constexpr WorkPrices(Precision precision, const Cluster& cluster, int concurrency = 0)
      : precision_(precision), cluster_(cluster), concurrency_(concurrency) {}

  constexpr Seconds operator()(const op::Work& work) {
    Known& known = known_[place(work)];
    if (!costs_like(known.work, work)) {
      known.work = work;
      known.work.times = 1;
      known.seconds = time_of(known.work, precision_, cluster_, concurrency_);
    }
    return known.seconds * std::max(work.times, 0);
  }
  /// @param ends  as for time_of
  [[nodiscard]] constexpr Seconds over(const Link& ends, const op::Work& work) const {
    return time_of(work, precision_, cluster_, concurrency_, &ends);
  }

 private:
  struct Known {
    op::Work work{};  // a copy of nothing
    Seconds seconds;
  };
  static constexpr std::size_t places = 1024;

  static constexpr bool costs_like(const op::Work& a, const op::Work& b) {
    return a.m == b.m && a.n == b.n && a.k == b.k && a.l == b.l && a.kind == b.kind && a.stride == b.stride &&
           a.writes_one_in == b.writes_one_in && a.causal == b.causal && a.seen == b.seen &&
           a.eight_bit == b.eight_bit && a.recipe == b.recipe && a.between_ends == b.between_ends &&
           a.grouped == b.grouped && a.kernel == b.kernel && a.dropout == b.dropout;
  }
  // Extents are often powers of two, so that the low bits alone would tell little.
  static constexpr std::size_t place(const op::Work& w) {
    std::uint64_t mixed = static_cast<std::uint64_t>(w.kind);
    for (const std::int64_t extent : {w.m, w.n, w.k, std::int64_t{w.stride}, std::int64_t{w.writes_one_in}})
      mixed = (mixed ^ static_cast<std::uint64_t>(extent)) * 0x9E3779B97F4A7C15u;
    return (mixed >> 40) % places;
  }

  Precision precision_;
  const Cluster& cluster_;
  int concurrency_;
  std::array<Known, places> known_{};
};

/// Seconds of two things that happen at the same time and take `slowdown` times as long while they do; never more than
/// one after the other. Source: Galvatron (arXiv 2211.13878), its cost estimator.
constexpr Seconds side_by_side(Seconds a, Seconds b, double slowdown) {
  const Seconds longer = max(a, b);
  const Seconds shorter = min(a, b);
  return min(longer + shorter * (slowdown - 1), longer + shorter);
}

/// Adds up priced work. Work of one overlap number happens in turns: in each of them its computations run beside its
/// messages, as in ring attention, where the next block of keys is on its way while a rank attends to one. Work without
/// a number runs alone.
class Elapsed {
 public:
  /// `seconds` of all executions of `work` together.
  constexpr void add(const op::Work& work, Seconds seconds) {
    (is_communication(work.kind) ? communicates_ : computes_)[work.overlap] += seconds;
  }
  [[nodiscard]] constexpr Seconds total(double slowdown) const {
    Seconds sum = computes_[0] + communicates_[0];
    for (std::size_t i = 1; i < computes_.size(); ++i)
      sum += communicates(i) ? side_by_side(computes_[i], communicates_[i], slowdown) : computes_[i];
    return sum;
  }
  /// What messages add to the time of the computations.
  [[nodiscard]] constexpr Seconds communication(double slowdown) const {
    Seconds sum = communicates_[0];
    for (std::size_t i = 1; i < computes_.size(); ++i)
      if (communicates(i)) sum += side_by_side(computes_[i], communicates_[i], slowdown) - computes_[i];
    return sum;
  }

 private:
  // Most numbers have no messages. What they add is then known, to the last bit, without side_by_side.
  [[nodiscard]] constexpr bool communicates(std::size_t number) const { return communicates_[number].value != 0; }

  std::array<Seconds, op::overlaps + 1> computes_{};
  std::array<Seconds, op::overlaps + 1> communicates_{};
};

/// The sum over a list, with what overlaps in it side by side.
constexpr Seconds time_of(const op::WorkList& list, Precision precision, const Cluster& cluster, int concurrency = 0) {
  Elapsed elapsed;
  for (const op::Work& work : list) elapsed.add(work, time_of(work, precision, cluster, concurrency));
  return elapsed.total(cluster.overlap_slowdown);
}

}  // namespace galvatron::cost
