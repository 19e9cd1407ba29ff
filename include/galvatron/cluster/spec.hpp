// Cluster: devices, links and measured rates, as a value. Pricing work with it is cost/time.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/cluster/calibration.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/op/kind.hpp>
#include <galvatron/op/work.hpp>

namespace galvatron {

inline constexpr int most_devices = 1 << 24;  ///< of a cluster

/// Seconds over D extents (a GEMM's m, n, k; a message's bytes). Between grid points log(seconds) is multilinear in the
/// logarithms of the extents, so that a power law is met exactly; at a grid point it is the value given. Below the
/// first point of an axis the value stays; beyond the last it grows with a power that the caller names. The result is
/// positive and never falls when an extent grows: where the measured values do, the largest of the smaller extents
/// counts.
template <int D>
class LogGrid {
 public:
  using Axis = std::vector<std::int64_t>;
  using Axes = std::array<Axis, D>;

  LogGrid() = default;
  /// `seconds` in row-major order of the axes, the last axis fastest. Requires problem(axes, seconds).empty().
  LogGrid(Axes axes, std::vector<double> seconds) : axes_(std::move(axes)), seconds_(std::move(seconds)) {
    for (int d = 0; d < D; ++d) {
      logs_[d].resize(axes_[d].size());
      for (std::size_t i = 0; i < axes_[d].size(); ++i) logs_[d][i] = std::log(static_cast<double>(axes_[d][i]));
    }
    std::size_t stride = 1;
    for (int d = D - 1; d >= 0; stride *= axes_[d].size(), --d) strides_[d] = stride;
    values_ = seconds_;
    for (int d = 0; d < D; ++d)
      for (std::size_t i = 0; i < values_.size(); ++i)
        if (i / strides_[d] % axes_[d].size() != 0) values_[i] = std::max(values_[i], values_[i - strides_[d]]);
    for (double& value : values_) value = std::log(value);
  }

  /// What is wrong with a grid, in words; empty when nothing is.
  static std::string problem(const Axes& axes, const std::vector<double>& seconds) {
    std::size_t points = 1;
    for (const Axis& axis : axes) {
      if (axis.empty() || axis.size() > 256)
        return "an axis has " + std::to_string(axis.size()) + " points; it needs 1 to 256";
      for (std::size_t i = 0; i < axis.size(); ++i) {
        if (axis[i] < 1) return "an axis holds " + std::to_string(axis[i]) + "; extents are at least 1";
        if (i > 0 && axis[i] <= axis[i - 1])
          return "an axis holds " + std::to_string(axis[i]) + " after " + std::to_string(axis[i - 1]) +
                 "; extents must rise";
      }
      points *= axis.size();
    }
    if (points != seconds.size())
      return "the axes span " + std::to_string(points) + " points and there are " + std::to_string(seconds.size()) +
             " values; give one value a point";
    for (const double value : seconds)
      if (!(value >= 1e-12 && value <= 1e6))
        return "a time of " + std::to_string(value) + " s; times lie between 1e-12 and 1e6 s";
    return {};
  }

  [[nodiscard]] constexpr const Axes& axes() const { return axes_; }
  [[nodiscard]] const std::vector<double>& seconds() const { return seconds_; }
  [[nodiscard]] bool empty() const { return seconds_.empty(); }
  friend bool operator==(const LogGrid& a, const LogGrid& b) { return a.axes_ == b.axes_ && a.seconds_ == b.seconds_; }

  /// Seconds at these extents; beyond the last point of axis d they grow as extent^growth[d].
  [[nodiscard]] constexpr double operator()(const std::array<double, D>& extents,
                                            const std::array<double, D>& growth) const {
    std::array<std::size_t, D> cell{};
    std::array<double, D> weight{};
    double beyond = 0;
    for (int d = 0; d < D; ++d) {
      const std::vector<double>& axis = logs_[d];
      const double x = std::log(std::max(extents[d], 1.0));
      if (x >= axis.back()) {
        cell[d] = axis.size() - 1;
        beyond += growth[d] * (x - axis.back());
      } else if (x > axis.front()) {
        cell[d] = static_cast<std::size_t>(std::upper_bound(axis.begin(), axis.end(), x) - axis.begin()) - 1;
        weight[d] = (x - axis[cell[d]]) / (axis[cell[d] + 1] - axis[cell[d]]);
      }
    }
    double sum = beyond;
    for (unsigned corner = 0; corner < (1U << D); ++corner) {
      double share = 1;
      std::size_t at = 0;
      for (int d = 0; d < D; ++d) {
        const bool upper = (corner >> d & 1U) != 0;
        share *= upper ? weight[d] : 1 - weight[d];
        at += (cell[d] + (upper ? 1 : 0)) * strides_[d];
      }
      if (share > 0) sum += share * values_[at];
    }
    return std::exp(sum);
  }

 private:
  Axes axes_;
  std::vector<double> seconds_;
  std::array<std::vector<double>, D> logs_;
  std::array<std::size_t, D> strides_{};
  std::vector<double> values_;  // log of seconds_ made monotone
};

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
  bool grouped = false;        ///< of one expert's product, as a part of a call that computes those of all
  bool for_reduction = false;  ///< gemm_tn that writes only: see op::Work::for_reduction

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
  /// Two tables of a cluster differ in it.
  [[nodiscard]] auto key() const {
    const bool one = is_of_one_weight();
    const auto* const axis = &seconds.axes()[static_cast<std::size_t>(first_of_weight())];
    return std::tuple(kind, writes, for_reduction, grouped, precision, concurrency, one ? axis[0].front() : 0,
                      one ? axis[1].front() : 0);
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
  [[nodiscard]] auto key() const { return std::tuple(kind, causal, precision, concurrency); }
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
  [[nodiscard]] auto key() const { return std::tuple(kind, precision, concurrency); }
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
  [[nodiscard]] auto key() const { return std::tuple(kind, group, strided, concurrency); }
  friend bool operator==(const MessageTable&, const MessageTable&) = default;
};

/// Arithmetic of a device in one precision.
struct PrecisionRate {
  Precision precision = Precision::fp32;
  std::string format = "fp32";  ///< what the 16-bit rate stands for: bf16, or fp16 on devices without bf16
  double peak_flops = 0;        ///< dense FLOP/s of the data sheet
  double gemm_share = 0.8;      ///< of the peak that the largest GEMMs reach, measured alone
  double sustained_share = 1;   ///< of the peak that no GEMM exceeds in a long run, for power
  [[nodiscard]] auto key() const { return precision; }
  friend bool operator==(const PrecisionRate&, const PrecisionRate&) = default;
};

/// The share of the 16-bit peak that causal attention reaches by length (FLOPs of a causal mask count half).
struct AttentionCurve {
  op::Kind kind = op::Kind::attention_forward;  ///< of op::attentions
  int head_dim = 128;
  std::vector<std::pair<std::int64_t, double>> shares;  ///< (tokens, share), tokens rising
  [[nodiscard]] auto key() const { return std::tuple(kind, head_dim); }
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
  op::AttentionKernel attention_kernel = op::AttentionKernel::fa2;  ///< the best one: fa2, or cudnn from Hopper on
  std::vector<AttentionCurve> attention;
  /// Of 8-bit products, where there are some.
  std::vector<Fp8Recipe> fp8_recipes{Fp8Recipe::tensorwise, Fp8Recipe::delayed};
  double power = 1;  ///< a cap, as a share of what the data sheet allows
  Bytes reserve;     ///< of the memory, what this library's runtime takes beside a rank's arena

  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
  /// Of its clock under the cap on its power. Voltage falls with the clock, so that dynamic power grows with its third
  /// power (Weste and Harris, "CMOS VLSI Design", section 5.2).
  [[nodiscard]] constexpr double clock_share() const { return power < 1 ? std::cbrt(power) : 1; }
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
  [[nodiscard]] constexpr Link slower(double times) const {
    return {latency * times, bandwidth / times, all_reduce_bandwidth / times, send_bandwidth / times};
  }
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
  int devices_per_pod = 0;  ///< whose nodes across_nodes links; 0: all
  Link across_pods;
  double overlap_slowdown = 1.0;  ///< computation and communication at once take this much longer
  std::vector<GemmTable> gemm;
  std::vector<AttentionTable> attention;
  std::vector<MemoryTable> memory_bound;
  std::vector<MessageTable> messages;
  Calibration calibration;  ///< factors of the seconds that all these figures give

  friend bool operator==(const Cluster&, const Cluster&) = default;
  /// The network that ranks meet over which are on several nodes: so many ranks, from the first to the last.
  [[nodiscard]] constexpr const Link& network(std::int64_t span) const {
    return devices_per_pod > 0 && span > devices_per_pod ? across_pods : across_nodes;
  }
  [[nodiscard]] constexpr int nodes() const { return (devices + devices_per_node - 1) / devices_per_node; }
  /// True when the device can compute in this precision.
  [[nodiscard]] bool supports(Precision precision) const { return device.rate(precision) != nullptr; }
  /// Why no plan of this precision can be; empty when one can.
  [[nodiscard]] std::string lack_of(Precision precision, Fp8Recipe recipe) const {
    if (precision != Precision::fp8) return {};
    if (supports(precision)) {
      const std::vector<Fp8Recipe>& known = device.fp8_recipes;
      if (std::ranges::find(known, recipe) != known.end()) return {};
      return "the devices of " + name + " have no 8-bit products of the recipe " + name_of(recipe) + ", but of " +
             joined(known, ", ", [](Fp8Recipe each) { return std::string(name_of(each)); }, " and ");
    }
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
