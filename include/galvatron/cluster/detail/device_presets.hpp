// The figures behind the cluster presets: data sheets, public measurements of kernels and collectives, and a profile of
// an H200. Nothing here comes from a training run. docs/clusters.md names the source of every column;
// tests/cost/curves.cpp compares the prices that come of them with the measurements.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include <galvatron/core/units.hpp>
#include <galvatron/op/kind.hpp>
#include <galvatron/op/work.hpp>

namespace galvatron::detail {

/// Causal attention, head dim 128, in TFLOP/s at 512, 1k, 2k, 4k, 8k and 16k tokens.
using AttentionRates = std::array<double, 6>;

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

/// One device and the network that it is sold with.
struct DevicePreset {
  std::string_view name;
  struct {
    std::int64_t mib = 0;  // what a program can see
    double bandwidth = 0;  // GB/s, data sheet
    double share = 0;      // triad
  } memory;
  int multiprocessors = 0;
  struct {
    std::string_view format;  // bf16, or fp16
    double tflops = 0;        // dense, data sheet
    double share = 0;         // the tile model of cost/rates.hpp on cuBLAS sweeps: its limit,
    double start = 0;         //   the start of a tile in units of k,
    double launch = 0;        //   and us beyond a launch
    double sustained = 1;     // of the peak in long runs
  } half;
  double fp32_tflops = 0;  // without TF32
  struct {
    double tflops = 0;     // dense, data sheet; 0: no 8-bit products
    double share = 0;      // limit of the tile model on cuBLAS sweeps
    double sustained = 1;  // in long runs; where power bounds them, as for 16 bits
  } fp8{};
  // The first ones of fp8_recipes: per tensor from Ada and Hopper on, rows and blocks of 128 from Hopper on, MXFP8 from
  // Blackwell on (Transformer Engine, support_matrix; for rows the CUTLASS kernel of torchao, Float8LinearRecipeName).
  int recipes = 2;
  struct Attention {
    AttentionRates forward{};
    AttentionRates backward{};
    double narrow = 0;  // the same at head dim 64, relative
  } attention;
  op::AttentionKernel attention_kernel = op::AttentionKernel::fa2;  // of these rates
  struct {
    double all_reduce = 0;  // GB/s, bus bandwidth of a node
    double gather = 0;      // GB/s, all-gather and reduce-scatter
    double send = 0;        // GB/s
    double step = 0;        // us, one ring step in a node
    double pcie = 0;        // GB/s of a PCIe link per direction where nothing else connects the devices; else 0
  } node;
  struct {
    double bandwidth = 0;  // GB/s per device across nodes, reached
    double step = 4.7;
  } network;
  double overlap = 1;  // computation and communication at once
  std::span<const BusPoint> all_reduce_curve{};
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
          .memory = {memory_mib, memory_bandwidth, 0.83},
          .multiprocessors = 108,
          .half = {"bf16", 312, 0.82, 110},
          .fp32_tflops = 19.5,
          .attention = {a100_forward, a100_backward, 0.89},
          .node = {232, 231, 195, 3.0},
          .network = {24},
          .overlap = 1.13,
          .all_reduce_curve = a100_all_reduce};
}

/// Attention of devices before the A100, by their 16-bit peak.
constexpr DevicePreset::Attention older_attention(double tflops) {
  return {scaled(a100_forward, 0.5 * tflops / 312), scaled(a100_backward, 0.5 * tflops / 312), 0.89};
}

/// Attention of devices of the A100's generation and later that have no figures of their own, by their 16-bit peak.
constexpr DevicePreset::Attention attention_by_peak(double tflops) {
  return {scaled(a100_forward, tflops / 312), scaled(a100_backward, tflops / 312), 0.89};
}

inline constexpr double pcie3_link = 15.75;  // GB/s, x16
inline constexpr double pcie4_link = 30;     // GB/s, x16, measured

// Collectives of 8 devices over PCIe, all-reduce and all-gather, what a pair reaches, and a step in us: shares of a
// link (pcie_shares) for collectives, 0.64 for a pair.
inline constexpr decltype(DevicePreset::node) pcie3_node{6.6, 6.6, 10, 6.0, pcie3_link};
inline constexpr decltype(DevicePreset::node) pcie4_node{12.5, 12.5, 19, 6.0, pcie4_link};

/// What the runtime on GPUs takes of a device beside its arena, of which presets count 1 GiB as the workspace of
/// libraries: kernels and context 512 MiB (rank/cuda_rank.hpp), NCCL 1344 MiB (rank/gpu_world.hpp) and what a rank's
/// libraries take, 640 MiB (device/cuda/machine.hpp).
inline constexpr Bytes preset_reserve{std::int64_t{512 + 1344 + 640 - 1024} << 20};

inline constexpr std::array device_presets{
    DevicePreset{.name = "titan-24g",
                 .memory = {24220, 672, 0.83},
                 .multiprocessors = 72,
                 .half = {"fp16", 130.5, 0.65, 110},
                 .fp32_tflops = 16.3,
                 .attention = older_attention(130.5),
                 .node = pcie3_node,
                 .network = {1.25, 10},
                 .overlap = 1.25},
    DevicePreset{.name = "p100-16g",  // PCIe; products of 16 bits without tensor cores
                 .memory = {16276, 732, 0.83},
                 .multiprocessors = 56,
                 .half = {"fp16", 18.7, 0.85, 110},
                 .fp32_tflops = 9.3,
                 .attention = older_attention(18.7),
                 .node = pcie3_node,
                 .network = {1.25, 10},
                 .overlap = 1.25},
    DevicePreset{.name = "v100-32g",
                 .memory = {32510, 900, 0.83},
                 .multiprocessors = 80,
                 .half = {"fp16", 125, 0.75, 110},
                 .fp32_tflops = 15.7,
                 .attention = older_attention(125),
                 .node = {122, 122, 100, 3.1},
                 .network = {6.0, 10},
                 .overlap = 1.15},
    DevicePreset{.name = "t4-16g",
                 .memory = {15360, 320, 0.83},
                 .multiprocessors = 40,
                 .half = {"fp16", 65, 0.64, 110},
                 .fp32_tflops = 8.1,
                 .attention = older_attention(65),
                 .node = pcie3_node,
                 .network = {1.25, 10},
                 .overlap = 1.25},
    DevicePreset{.name = "a10-24g",
                 .memory = {23028, 600, 0.83},
                 .multiprocessors = 72,
                 .half = {"bf16", 125, 0.75, 110, 0, 0.64},
                 .fp32_tflops = 31.2,
                 .attention = attention_by_peak(125),
                 .node = pcie4_node,
                 .network = {1.25, 10},
                 .overlap = 1.25},
    DevicePreset{.name = "l4-24g",
                 .memory = {23034, 300, 0.83},
                 .multiprocessors = 58,
                 .half = {"bf16", 121, 0.75, 110, 0, 0.64},
                 .fp32_tflops = 30.3,
                 .fp8 = {242, 0.72, 0.57},
                 .attention = attention_by_peak(121),
                 .node = pcie4_node,
                 .network = {1.25, 10},
                 .overlap = 1.25},
    DevicePreset{.name = "l40s-48g",
                 .memory = {46068, 864, 0.83},
                 .multiprocessors = 142,
                 .half = {"bf16", 362, 0.75, 110, 0, 0.66},
                 .fp32_tflops = 91.6,
                 .fp8 = {733, 0.72, 0.57},
                 .attention = attention_by_peak(362),
                 .node = pcie4_node,
                 .network = {4.8, 10},
                 .overlap = 1.25},
    DevicePreset{.name = "rtx4090-24g",  // 16-bit products with sums in 32 bits
                 .memory = {24564, 1008, 0.83},
                 .multiprocessors = 128,
                 .half = {"bf16", 165.2, 0.85, 110},
                 .fp32_tflops = 82.6,
                 .fp8 = {330.3, 0.72, 0.57},
                 .attention = attention_by_peak(165.2),
                 .node = pcie4_node,
                 .network = {1.25, 10},
                 .overlap = 1.25},
    a100("a100-40g", 40536, 1555),
    a100("a100-80g", 81251, 2039),
    DevicePreset{.name = "h100-80g",
                 .memory = {81559, 3350, 0.89},
                 .multiprocessors = 132,
                 .half = {"bf16", 989, 0.82, 260, 3.4, 0.66},
                 .fp32_tflops = 67,
                 .fp8 = {1979, 0.72, 0.57},
                 .recipes = 4,
                 .attention = {h100_forward, h100_backward, 0.87},
                 .attention_kernel = op::AttentionKernel::cudnn,
                 .node = {480, 355, 330, 3.0},
                 .network = {48},
                 .overlap = 1.15,
                 .all_reduce_curve = h100_all_reduce},
    DevicePreset{.name = "h200-141g",
                 .memory = {143771, 4800, 0.86},
                 .multiprocessors = 132,
                 .half = {"bf16", 989, 0.95, 160, 0, 0.70},
                 .fp32_tflops = 67,
                 .fp8 = {1979, 0.72, 0.57},
                 .recipes = 4,
                 .attention = {{315, 410, 484, 591, 644, 673}, {236, 307, 370, 474, 541, 579}, 0.87},
                 .attention_kernel = op::AttentionKernel::cudnn,
                 .node = {480, 355, 330, 2.2},
                 .network = {48},
                 .overlap = 1.15,
                 .all_reduce_curve = h200_all_reduce},
    DevicePreset{.name = "b200-192g",
                 .memory = {183359, 8000, 0.88},
                 .multiprocessors = 148,
                 .half = {"bf16", 2250, 0.80, 310, 0, 0.52},  // large products of a public sweep: 0.49 to 0.53
                 .fp32_tflops = 80,
                 .fp8 = {4500, 0.70, 0.455},
                 .recipes = 5,
                 .attention = {scaled(h100_forward, 2250.0 / 989), scaled(h100_backward, 2250.0 / 989), 0.87},
                 .attention_kernel = op::AttentionKernel::cudnn,
                 .node = {668, 606, 606, 3.2},
                 .network = {48},
                 .overlap = 1.15},
};

/// Share of a PCIe link that a collective of 2, 4 and 8 devices reaches where nothing else connects them.
struct PcieShares {
  op::Kind kind;
  double two, four, eight;
};
inline constexpr PcieShares pcie_shares[] = {{op::Kind::all_reduce, 0.70, 0.69, 0.418},
                                             {op::Kind::all_gather, 0.70, 0.69, 0.450},
                                             {op::Kind::reduce_scatter, 0.70, 0.68, 0.369}};

}  // namespace galvatron::detail
