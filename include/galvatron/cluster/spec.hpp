// Cluster: devices, links and measured rates, as a value. Pricing work with it is cost/time.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/log_grid.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/op/kind.hpp>

namespace galvatron {

/// Every table tells how many ranks of a node were busy when it was measured: on a host, ranks share cores, caches and
/// memory bandwidth. 0: it holds whatever the others do (devices of their own).
/// GEMM seconds over (m, n, k). A table of one weight, whose axes but that of the tokens have one point, is exact for
/// the products of this weight.
struct GemmTable {
  op::Kind kind = op::Kind::gemm_nt;  ///< of op::gemms
  bool writes = false;                ///< gemm_tn only: the result is written, not added to
  Precision precision = Precision::fp32;
  int concurrency = 0;
  LogGrid<3> seconds;

  /// The axes that span the weight: n and k forward and for the input's gradient, m and n for the weight's.
  [[nodiscard]] constexpr int first_of_weight() const { return kind == op::Kind::gemm_tn ? 0 : 1; }
  [[nodiscard]] constexpr bool is_of_one_weight() const {
    const auto& axes = seconds.axes();
    const auto first = static_cast<std::size_t>(first_of_weight());
    return axes[first].size() == 1 && axes[first + 1].size() == 1;
  }
  /// Requires is_of_one_weight().
  [[nodiscard]] constexpr bool is_of(const std::array<std::int64_t, 3>& product) const {
    const auto first = static_cast<std::size_t>(first_of_weight());
    return seconds.axes()[first].front() == product[first] && seconds.axes()[first + 1].front() == product[first + 1];
  }
  friend bool operator==(const GemmTable&, const GemmTable&) = default;
};

/// Attention seconds over (tokens, head_dim, batch * heads), queries and keys alike.
struct AttentionTable {
  op::Kind kind = op::Kind::attention_forward;  ///< of op::attentions
  bool causal = true;
  Precision precision = Precision::fp32;
  int concurrency = 0;
  LogGrid<3> seconds;
  friend bool operator==(const AttentionTable&, const AttentionTable&) = default;
};

/// Seconds over (rows, columns); flat operations have their elements (fill and copy: bytes) as rows, and one column.
/// A table with the one column 1 prices m rows of n as m * n rows. Those of gelu_in_product and
/// gelu_gradient_in_product have what they add to the product, on devices that compute both at once.
struct MemoryTable {
  op::Kind kind = op::Kind::copy;  ///< of op::memory_bound
  Precision precision = Precision::fp32;
  int concurrency = 0;
  LogGrid<2> seconds;
  friend bool operator==(const MemoryTable&, const MemoryTable&) = default;
};

/// Seconds over bytes, counted as in op::Kind, of a group inside one node (send: a group of 2). On a host it
/// includes the wait until a waiting rank runs again.
struct MessageTable {
  op::Kind kind = op::Kind::all_reduce;  ///< of op::communications
  int group = 2;
  bool strided = false;
  int concurrency = 0;
  LogGrid<1> seconds;
  friend bool operator==(const MessageTable&, const MessageTable&) = default;
};

/// Arithmetic of a device in one precision.
struct PrecisionRate {
  Precision precision = Precision::fp32;
  std::string format = "fp32";  ///< what the 16-bit rate stands for: bf16, or fp16 on devices without bf16
  double peak_flops = 0;        ///< dense FLOP/s of the data sheet
  double gemm_share = 0.8;      ///< of the peak that the largest GEMMs reach, measured alone
  double sustained_share = 1;   ///< of the peak that no GEMM exceeds in a long run, for power
  friend bool operator==(const PrecisionRate&, const PrecisionRate&) = default;
};

/// The share of the 16-bit peak that causal attention reaches by length (FLOPs of a causal mask count half).
struct AttentionCurve {
  op::Kind kind = op::Kind::attention_forward;  ///< of op::attentions
  int head_dim = 128;
  std::vector<std::pair<std::int64_t, double>> shares;  ///< (tokens, share), tokens rising
  friend bool operator==(const AttentionCurve&, const AttentionCurve&) = default;
};

/// One device. The rates serve where no table was measured.
struct DeviceSpec {
  std::string name;
  Bytes memory;
  Bytes library_workspace;      ///< of the memory, what libraries take on every rank
  double memory_bandwidth = 0;  ///< bytes/s of the data sheet
  double memory_share = 0.85;   ///< of it, what streaming reaches
  Seconds launch;               ///< fixed time of one operation
  Seconds gemm_launch;          ///< what a GEMM takes beyond that, whatever its size
  double gemm_start = 150;      ///< what a tile pays beside its k loop, in units of k
  int multiprocessors = 0;      ///< units that tiles are dealt to; 0: tiles do not matter
  std::vector<PrecisionRate> rates;
  std::vector<AttentionCurve> attention;

  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
  [[nodiscard]] constexpr const PrecisionRate* rate(Precision precision) const {
    for (const PrecisionRate& rate : rates)
      if (rate.precision == precision) return &rate;
    return nullptr;
  }
};

/// One level of the network. Bandwidths are bytes/s per device; those of collectives are bus bandwidths, that is bytes
/// on the busiest link of a ring over time (NCCL's performance documentation defines the term).
struct Link {
  Seconds latency;                  ///< of one step of a ring
  double bandwidth = 0;             ///< all-gather, reduce-scatter, broadcast, all-to-all
  double all_reduce_bandwidth = 0;  ///< may be higher where switches add
  double send_bandwidth = 0;        ///< one pair of devices
  friend bool operator==(const Link&, const Link&) = default;
};

/// Equal devices in equal nodes. Ranks are numbered node by node.
struct Cluster {
  std::string name;
  int devices = 1;
  int devices_per_node = 1;
  int cores = 0;             ///< cores that all devices of a node share; 0: every device has its own
  int threads_per_rank = 1;  ///< host: the threads with which the tables were measured
  DeviceSpec device;
  Link inside_node;
  Link across_nodes;
  double overlap_slowdown = 1.0;  ///< computation and communication at once take this much longer
  std::vector<GemmTable> gemm;
  std::vector<AttentionTable> attention;
  std::vector<MemoryTable> memory_bound;
  std::vector<MessageTable> messages;

  friend bool operator==(const Cluster&, const Cluster&) = default;
  [[nodiscard]] constexpr int nodes() const { return (devices + devices_per_node - 1) / devices_per_node; }
  /// True when the device can compute in this precision.
  [[nodiscard]] bool supports(Precision precision) const { return device.rate(precision) != nullptr; }
  /// Why no plan of this precision can be; empty when one can.
  [[nodiscard]] std::string lack_of(Precision precision) const {
    if (precision != Precision::fp8 || supports(precision)) return {};
    return "the devices of " + name + " have no 8-bit products" +
           (cores > 0 ? " that were measured; plan with --precision bf16, or profile with fp8"
                      : "; plan with --precision bf16");
  }
  /// Peak FLOP/s of one device; 0 when it lacks the precision.
  [[nodiscard]] double peak_flops(Precision precision) const {
    const PrecisionRate* rate = device.rate(precision);
    return rate == nullptr ? 0 : rate->peak_flops;
  }
};

}  // namespace galvatron
