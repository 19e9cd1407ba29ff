// The figures behind the cluster presets: data sheets, and public measurements of kernels and collectives. Nothing here
// comes from a training run. docs/clusters.md names the source of every column; tests/cost/curves.cpp compares the
// prices that come of them with the measurements.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace galvatron::detail {

/// Causal attention, head dim 128, in TFLOP/s at 512, 1k, 2k, 4k, 8k and 16k tokens.
using AttentionRates = std::array<double, 6>;

/// One device and the network that it is sold with.
struct DevicePreset {
  std::string_view name;
  std::int64_t memory_mib = 0;  // what a program can see
  double memory_bandwidth = 0;  // GB/s, data sheet
  double memory_share = 0;      // triad
  int multiprocessors = 0;
  std::string_view format = "bf16";  // of the 16-bit rate
  double half_tflops = 0;            // dense, data sheet
  double gemm_share = 0;             // the tile model of cost/rates.hpp on cuBLAS sweeps: its limit,
  double gemm_start = 0;             //   the start of a tile in units of k,
  double gemm_launch = 0;            //   and us beyond a launch
  double sustained_share = 1;        // of the peak in long runs
  double fp32_tflops = 0;            // without TF32
  double fp8_tflops = 0;             // dense, data sheet; 0: no 8-bit products
  double fp8_share = 0;              // limit of the tile model on cuBLAS sweeps
  double fp8_sustained_share = 1;    // in long runs; where power bounds them, as for 16 bits
  AttentionRates forward{};
  AttentionRates backward{};
  double narrow = 0;      // the same at head dim 64, relative
  double all_reduce = 0;  // GB/s, bus bandwidth of a node
  double gather = 0;      // GB/s, all-gather and reduce-scatter
  double send = 0;        // GB/s
  double step = 0;        // us, one ring step in a node
  double network = 0;     // GB/s per device across nodes, reached
  double network_step = 4.7;
  double overlap = 1;  // computation and communication at once
};

// Forward and backward on an A100 from the combined rate R of FlashAttention-2: 4 parts forward at 1.2 R and 10 parts
// backward at 0.94 R give R. H100 forward: cuDNN; its backward stands to forward as on the H200.
inline constexpr AttentionRates a100_forward{119, 160, 186, 208, 218, 227};
inline constexpr AttentionRates a100_backward{93, 125, 145, 162, 171, 177};
inline constexpr AttentionRates h100_forward{315, 410, 484, 518, 529, 539};
inline constexpr AttentionRates h100_backward{236, 307, 370, 415, 444, 464};

constexpr AttentionRates scaled(AttentionRates rates, double factor) {
  for (double& rate : rates) rate *= factor;
  return rates;
}

/// The A100 was sold with two memories.
constexpr DevicePreset a100(std::string_view name, std::int64_t memory_mib, double memory_bandwidth) {
  return {.name = name,
          .memory_mib = memory_mib,
          .memory_bandwidth = memory_bandwidth,
          .memory_share = 0.83,
          .multiprocessors = 108,
          .half_tflops = 312,
          .gemm_share = 0.82,
          .gemm_start = 110,
          .fp32_tflops = 19.5,
          .forward = a100_forward,
          .backward = a100_backward,
          .narrow = 0.89,
          .all_reduce = 232,
          .gather = 231,
          .send = 195,
          .step = 3.0,
          .network = 24,
          .overlap = 1.13};
}

inline constexpr std::array device_presets{
    DevicePreset{.name = "titan-24g",
                 .memory_mib = 24220,
                 .memory_bandwidth = 672,
                 .memory_share = 0.83,
                 .multiprocessors = 72,
                 .format = "fp16",
                 .half_tflops = 130.5,
                 .gemm_share = 0.65,
                 .gemm_start = 110,
                 .fp32_tflops = 16.3,
                 .forward = scaled(a100_forward, 0.5 * 130.5 / 312),
                 .backward = scaled(a100_backward, 0.5 * 130.5 / 312),
                 .narrow = 0.89,
                 .all_reduce = 6.6,
                 .gather = 6.6,
                 .send = 10,
                 .step = 6.0,
                 .network = 1.25,
                 .network_step = 10,
                 .overlap = 1.25},
    DevicePreset{.name = "v100-32g",
                 .memory_mib = 32510,
                 .memory_bandwidth = 900,
                 .memory_share = 0.83,
                 .multiprocessors = 80,
                 .format = "fp16",
                 .half_tflops = 125,
                 .gemm_share = 0.75,
                 .gemm_start = 110,
                 .fp32_tflops = 15.7,
                 .forward = scaled(a100_forward, 0.5 * 125 / 312),
                 .backward = scaled(a100_backward, 0.5 * 125 / 312),
                 .narrow = 0.89,
                 .all_reduce = 122,
                 .gather = 122,
                 .send = 100,
                 .step = 3.1,
                 .network = 6.0,
                 .network_step = 10,
                 .overlap = 1.15},
    a100("a100-40g", 40536, 1555),
    a100("a100-80g", 81251, 2039),
    DevicePreset{.name = "h100-80g",
                 .memory_mib = 81559,
                 .memory_bandwidth = 3350,
                 .memory_share = 0.89,
                 .multiprocessors = 132,
                 .half_tflops = 989,
                 .gemm_share = 0.82,
                 .gemm_start = 260,
                 .gemm_launch = 3.4,
                 .sustained_share = 0.66,
                 .fp32_tflops = 67,
                 .fp8_tflops = 1979,
                 .fp8_share = 0.72,
                 .fp8_sustained_share = 0.57,
                 .forward = h100_forward,
                 .backward = h100_backward,
                 .narrow = 0.87,
                 .all_reduce = 480,
                 .gather = 355,
                 .send = 330,
                 .step = 3.0,
                 .network = 48,
                 .overlap = 1.15},
    DevicePreset{.name = "h200-141g",
                 .memory_mib = 143771,
                 .memory_bandwidth = 4800,
                 .memory_share = 0.86,
                 .multiprocessors = 132,
                 .half_tflops = 989,
                 .gemm_share = 0.82,
                 .gemm_start = 260,
                 .gemm_launch = 3.4,
                 .sustained_share = 0.66,
                 .fp32_tflops = 67,
                 .fp8_tflops = 1979,
                 .fp8_share = 0.72,
                 .fp8_sustained_share = 0.57,
                 .forward = {315, 410, 484, 591, 644, 673},
                 .backward = {236, 307, 370, 474, 541, 579},
                 .narrow = 0.87,
                 .all_reduce = 480,
                 .gather = 355,
                 .send = 330,
                 .step = 2.2,
                 .network = 48,
                 .overlap = 1.15},
    DevicePreset{.name = "b200-192g",
                 .memory_mib = 183359,
                 .memory_bandwidth = 8000,
                 .memory_share = 0.88,
                 .multiprocessors = 148,
                 .half_tflops = 2250,
                 .gemm_share = 0.80,
                 .gemm_start = 310,
                 .sustained_share = 0.64,
                 .fp32_tflops = 80,
                 .fp8_tflops = 4500,
                 .fp8_share = 0.70,
                 .fp8_sustained_share = 0.56,
                 .forward = scaled(h100_forward, 2250.0 / 989),
                 .backward = scaled(h100_backward, 2250.0 / 989),
                 .narrow = 0.87,
                 .all_reduce = 668,
                 .gather = 606,
                 .send = 606,
                 .step = 2.5,
                 .network = 48,
                 .overlap = 1.15},
};

/// A point of a bus bandwidth curve.
struct BusPoint {
  std::int64_t bytes;
  double gigabytes;  // GB/s
};

/// All-reduce bus bandwidth of 8 devices by message size.
inline constexpr std::array a100_all_reduce{
    BusPoint{65536, 2.70},     BusPoint{262144, 10.1},   BusPoint{1048576, 36.2},  BusPoint{4194304, 71.4},
    BusPoint{16777216, 109},   BusPoint{67108864, 167},  BusPoint{134217728, 174}, BusPoint{268435456, 214},
    BusPoint{1073741824, 228}, BusPoint{8589934592, 232}};
inline constexpr std::array h100_all_reduce{
    BusPoint{65536, 2.72},     BusPoint{262144, 10.9},   BusPoint{1048576, 43.7},  BusPoint{4194304, 129},
    BusPoint{16777216, 234},   BusPoint{67108864, 362},  BusPoint{134217728, 401}, BusPoint{268435456, 423},
    BusPoint{1073741824, 466}, BusPoint{8589934592, 479}};
inline constexpr std::array h200_all_reduce{
    BusPoint{65536, 3.72},     BusPoint{262144, 14.8},   BusPoint{1048576, 53.0},  BusPoint{4194304, 138},
    BusPoint{16777216, 240},   BusPoint{67108864, 368},  BusPoint{134217728, 412}, BusPoint{268435456, 432},
    BusPoint{1073741824, 468}, BusPoint{8589934592, 480}};
/// Bus bandwidth of a ring inside an NVLink node relative to that of 8 GB messages; smaller ones are latency.
inline constexpr std::array ring_ramp{BusPoint{16777216, 0.45 / 0.80}, BusPoint{67108864, 0.65 / 0.80},
                                      BusPoint{268435456, 0.73 / 0.80}, BusPoint{1073741824, 0.77 / 0.80},
                                      BusPoint{8589934592, 1.0}};

/// Share of a PCIe link that collectives of 2, 4 and 8 devices reach where nothing else connects them.
struct PcieShares {
  double two, four, eight;
};
inline constexpr double pcie3_link = 15.75;  // GB/s, x16
inline constexpr PcieShares pcie_all_reduce{0.70, 0.69, 0.418};
inline constexpr PcieShares pcie_all_gather{0.70, 0.69, 0.450};
inline constexpr PcieShares pcie_reduce_scatter{0.70, 0.68, 0.369};

}  // namespace galvatron::detail
