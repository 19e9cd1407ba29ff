// What instructions cost on devices of different speed.
//
// B_j >= 0, sum B_j = 1, is the share of device j of every sharded dimension; F_j are its flops per second. Forward and
// backward are priced together: backward computes twice the flops of forward, its collectives are the transposed ones.
//
//     operation      3 flops max_j B_j / F_j where a rule shards it, else 3 flops / min_j F_j
//     all-gather and reduce-scatter, one in each direction
//                    max_j B_j m n (1 / bw_ag + 1 / bw_rs) + both latencies, n bytes on m devices
//     all-to-all     2 max_j B_j m n / bw_a2a + 2 latencies
//     all-reduce     2 n / bw_ar + 2 latencies; of the gradient of a whole parameter once
//     slice          free
//
// Every one of them is linear in two numbers of the ratios, u = max_j B_j / F_j and v = max_j B_j: a program is the sum
// of its Terms.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/hap/graph.hpp>
#include <galvatron/hap/rules.hpp>

namespace galvatron::hap {

/// Devices that train together. Filled from a cluster, or from a case file.
struct Devices {
  std::vector<double> flops;                           ///< F_j, per second
  std::vector<double> memory;                          ///< bytes of each; empty: no limit
  std::array<double, priced_collectives> bandwidth{};  ///< bytes per second, by Collective
  std::array<double, priced_collectives> latency{};    ///< seconds

  [[nodiscard]] std::size_t count() const { return flops.size(); }
  [[nodiscard]] double slowest() const { return *std::ranges::min_element(flops); }
  [[nodiscard]] double rate(Collective c) const { return bandwidth[static_cast<std::size_t>(c)]; }
  [[nodiscard]] double wait(Collective c) const { return latency[static_cast<std::size_t>(c)]; }
};

/// Shares of the devices, B_j.
using Ratios = std::vector<double>;

/// B_j proportional to F_j.
inline Ratios proportional_ratios(const std::vector<double>& flops) {
  // The largest rate first: sums of rates of any size do not overflow.
  const double most = *std::ranges::max_element(flops);
  double sum = 0;
  for (const double f : flops) sum += f / most;
  Ratios out;
  for (const double f : flops) out.push_back(f / most / sum);
  return out;
}
inline Ratios even_ratios(std::size_t devices) { return Ratios(devices, 1.0 / static_cast<double>(devices)); }

/// What the price of a program is linear in.
struct Terms {
  double sharded_flops = 0;     ///< W, times u
  double replicated_flops = 0;  ///< C, over min F
  double ratio_seconds = 0;     ///< M, times v
  double seconds = 0;           ///< K
  double whole_bytes = 0;       ///< that every device holds
  double sharded_bytes = 0;     ///< of which device j holds B_j

  Terms& operator+=(const Terms& other) {
    sharded_flops += other.sharded_flops;
    replicated_flops += other.replicated_flops;
    ratio_seconds += other.ratio_seconds;
    seconds += other.seconds;
    whole_bytes += other.whole_bytes;
    sharded_bytes += other.sharded_bytes;
    return *this;
  }
};

/// Ratios, as prices see them.
struct RatioPoint {
  double work = 0;        ///< u, seconds per flop of sharded operations
  double replicated = 0;  ///< 1 / min F
  double largest = 0;     ///< v
  double whole_byte = 0;  ///< a price of memory in seconds (memory.hpp)
  double sharded_byte = 0;

  [[nodiscard]] double seconds(const Terms& t) const {
    return t.sharded_flops * work + t.replicated_flops * replicated + t.ratio_seconds * largest + t.seconds +
           t.whole_bytes * whole_byte + t.sharded_bytes * sharded_byte;
  }
};

inline RatioPoint point_of(const Devices& devices, const Ratios& ratios) {
  RatioPoint out;
  out.replicated = 1 / devices.slowest();
  for (std::size_t j = 0; j < ratios.size(); ++j) {
    out.work = std::max(out.work, ratios[j] / devices.flops[j]);
    out.largest = std::max(out.largest, ratios[j]);
  }
  return out;
}

/// Prices of instructions on a graph.
class Prices {
 public:
  Prices(const Graph& graph, const Devices& devices, Dialect dialect)
      : graph_(graph), devices_(devices), dialect_(dialect) {}

  [[nodiscard]] Terms computing(const Node& node, const Rule& rule) const {
    const double flops = 3 * forward_flops(graph_, node, dialect_);
    Terms out = kept(node.output, rule.result);
    (rule.sharded ? out.sharded_flops : out.replicated_flops) = flops;
    return out;
  }
  [[nodiscard]] Terms loading(const Node& source, Layout layout) const {
    Terms out = kept(source.output, layout);
    if (source.operation != Operation::parameter) return out;
    out.whole_bytes *= bytes_of_states;
    out.sharded_bytes *= bytes_of_states;
    if (layout == replicate) out.seconds = transfer(source.output) / devices_.rate(all_reduce) + wait(all_reduce);
    return out;
  }
  [[nodiscard]] Terms communicating(int tensor, Layout from, Layout to) const {
    const Collective kind = *collective_between(from, to);
    if (kind == Collective::slice) return {};
    Terms out = kept(tensor, to);
    const double bytes = transfer(tensor);
    const double of_largest = bytes * static_cast<double>(devices_.count());
    if (kind == Collective::all_reduce) {
      out.seconds = 2 * bytes / devices_.rate(all_reduce) + 2 * wait(all_reduce);
    } else if (kind == Collective::all_to_all) {
      out.ratio_seconds = 2 * of_largest / devices_.rate(Collective::all_to_all);
      out.seconds = 2 * wait(Collective::all_to_all);
    } else {
      out.ratio_seconds =
          of_largest * (1 / devices_.rate(Collective::all_gather) + 1 / devices_.rate(Collective::reduce_scatter));
      out.seconds = wait(Collective::all_gather) + wait(Collective::reduce_scatter);
    }
    return out;
  }
  [[nodiscard]] const Graph& graph() const { return graph_; }
  [[nodiscard]] const Devices& devices() const { return devices_; }
  [[nodiscard]] Dialect dialect() const { return dialect_; }

 private:
  static constexpr Collective all_reduce = Collective::all_reduce;
  static constexpr double bytes_of_element = 4;  // fp32
  static constexpr double bytes_of_states = 4;   // parameter, gradient and two moments of Adam for one element

  [[nodiscard]] double transfer(int tensor) const {
    return graph_.tensor(tensor).elements() * (dialect_ == Dialect::released ? 1 : bytes_of_element);
  }
  [[nodiscard]] double wait(Collective c) const { return dialect_ == Dialect::released ? 0 : devices_.wait(c); }
  // What a tensor takes in memory until its backward pass.
  [[nodiscard]] Terms kept(int tensor, Layout layout) const {
    Terms out;
    (layout.is_shard() ? out.sharded_bytes : out.whole_bytes) = graph_.tensor(tensor).elements() * bytes_of_element;
    return out;
  }

  const Graph& graph_;
  const Devices& devices_;
  Dialect dialect_;
};

/// What is wrong with devices, in words; empty when nothing is.
inline std::string problem_of(const Devices& devices) {
  const auto rate_is_bad = [](double x) { return !(x >= 1e-3 && x <= 1e30); };
  if (devices.flops.empty()) return "there are no devices; give at least one";
  for (const double f : devices.flops)
    if (rate_is_bad(f))
      return text_of("a device computes ", galvatron::detail::formatted("%g", f),
                     " flops per second; rates lie between 1e-3 and 1e30");
  for (std::size_t i = 0; i < priced_collectives; ++i) {
    if (rate_is_bad(devices.bandwidth[i]))
      return text_of("the bandwidth of ", collective_names[i], " is ",
                     galvatron::detail::formatted("%g", devices.bandwidth[i]),
                     " bytes per second; rates lie between 1e-3 and 1e30");
    if (!(devices.latency[i] >= 0 && devices.latency[i] <= 1e6))
      return text_of("the latency of ", collective_names[i], " is ",
                     galvatron::detail::formatted("%g", devices.latency[i]),
                     " seconds; latencies lie between 0 and 1e6");
  }
  return {};
}

}  // namespace galvatron::hap
