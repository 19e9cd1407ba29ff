// The presets against measurements of kernels and collectives, public ones and a profile of an H200, figure by figure.
// A tolerance is what the model is known to reach; where a figure needs more than 10 %, the line says why. No figure is
// of a training run.
#include <galvatron/cost/time.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/json.hpp>
#include <galvatron/cluster/presets.hpp>

#include "../folder.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::cost;

constexpr std::int64_t mb = std::int64_t{1} << 20;
constexpr std::int64_t gb = std::int64_t{1} << 30;

Cluster preset(const std::string& name) { return value_or_throw(find_cluster(name)); }

/// A cluster whose GEMMs run for a moment only, as in a benchmark: power does not bound them.
Cluster short_runs(Cluster cluster) {
  for (PrecisionRate& rate : cluster.device.rates) rate.sustained_share = 1;
  return cluster;
}

double tflops(const op::Work& work, const Cluster& cluster) {
  return flops_of(work).count / time_of(work, Precision::bf16, cluster).value / 1e12;
}
double gemm_tflops(const Cluster& cluster, op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k) {
  return tflops({.kind = kind, .m = m, .n = n, .k = k}, cluster);
}

/// GB/s of bus bandwidth; a group over all devices of the cluster unless `n` is given.
double bus(const Cluster& cluster, op::Kind kind, std::int64_t bytes, int n = 0) {
  const op::Work work{.kind = kind, .m = bytes, .n = n == 0 ? cluster.devices : n};
  return static_cast<double>(bytes_of(work, Precision::bf16).count) / time_of(work, Precision::bf16, cluster).value /
         1e9;
}

/// Attention of 16k tokens and hidden 2048, as FlashAttention's benchmark has it.
op::Work attention(op::Kind kind, std::int64_t tokens, int head_dim, bool causal) {
  return {
      .kind = kind, .m = 16384 / tokens * (2048 / head_dim), .n = tokens, .k = tokens, .l = head_dim, .causal = causal};
}
/// FLOPs of forward and backward, counted as 3.5 forwards, over the time of both.
double both_tflops(const Cluster& cluster, std::int64_t tokens, int head_dim, bool causal) {
  const op::Work forward = attention(op::Kind::attention_forward, tokens, head_dim, causal);
  const op::Work backward = attention(op::Kind::attention_backward, tokens, head_dim, causal);
  return 3.5 * flops_of(forward).count /
         (time_of(forward, Precision::bf16, cluster) + time_of(backward, Precision::bf16, cluster)).value / 1e12;
}

}  // namespace

TEST_CASE("square GEMMs follow cuBLAS sweeps") {
  const Cluster a100 = preset("8xa100-80g");  // FP16, sustained
  struct Row {
    std::int64_t n;
    double tflops, tolerance;
  };
  for (const Row& row : {Row{1024, 119, 0.13},
                         {2048, 222, 0.26},  // better than whole waves of tiles allow
                         {4096, 228, 0.10},
                         {8192, 254, 0.05},
                         {16384, 257, 0.05}}) {
    INFO("A100 " << row.n);
    CHECK(gemm_tflops(a100, op::Kind::gemm_nt, row.n, row.n, row.n) ==
          doctest::Approx(row.tflops).epsilon(row.tolerance));
  }
  const Cluster h100 = short_runs(preset("8xh100-80g"));  // FP16, short runs
  for (const Row& row :
       {Row{512, 31, 0.05}, {1024, 178, 0.05}, {2048, 548, 0.05}, {4096, 730, 0.05}, {8192, 756, 0.05}}) {
    INFO("H100 " << row.n);
    CHECK(gemm_tflops(h100, op::Kind::gemm_nt, row.n, row.n, row.n) ==
          doctest::Approx(row.tflops).epsilon(row.tolerance));
  }
  // FP8, short runs, the rounding of operands left out. The model counts a launch that the sweep does not show, which
  // tells on the small ones.
  for (const char* name : {"8xh100-80g", "8xh200-141g"})
    for (const Row& row :
         {Row{1024, 274, 0.20}, {2048, 1011, 0.18}, {4096, 1217, 0.05}, {8192, 1290, 0.05}, {16384, 1377, 0.05}}) {
      INFO(std::string(name) << " in FP8 " << row.n);
      const op::Work work{.kind = op::Kind::gemm_nt, .m = row.n, .n = row.n, .k = row.n, .eight_bit = true};
      const double seconds = cost::detail::gemm_model_seconds(work, Precision::fp8, short_runs(preset(name)).device);
      // The H200's start of a tile is that of its 16-bit products, without a launch.
      const double tolerance = std::string(name) == "8xh200-141g" ? 1.7 * row.tolerance : row.tolerance;
      CHECK(flops_of(work).count / seconds / 1e12 == doctest::Approx(row.tflops).epsilon(tolerance));
    }
  // The best shapes of bf16 sweeps.
  CHECK(gemm_tflops(a100, op::Kind::gemm_nt, 16384, 8192, 16384) == doctest::Approx(271).epsilon(0.07));
  CHECK(gemm_tflops(h100, op::Kind::gemm_nt, 16384, 8192, 16384) == doctest::Approx(794).epsilon(0.05));
  CHECK(gemm_tflops(short_runs(preset("8xb200-192g")), op::Kind::gemm_nt, 16384, 8192, 16384) ==
        doctest::Approx(1745).epsilon(0.05));
}

TEST_CASE("the preset of an H200 follows a profile of one") {
  const Cluster measured =
      value_or_throw(load_cluster(std::string(galvatron::test::tests_dir) + "/../docs/clusters/1xh200-141g.json"));
  const Cluster h200 = preset("1xh200-141g");
  std::vector<double> errors;
  const auto compare = [&](const op::Work& work) {
    errors.push_back(
        std::abs(std::log(time_of(work, Precision::bf16, h200) / time_of(work, Precision::bf16, measured))));
  };
  for (const op::Kind kind : op::gemms)
    for (const std::int64_t tokens : {1024, 4096, 16384})
      for (const std::int64_t hidden : {768, 1280, 1600, 4096})
        for (const auto& [n, k] :
             {std::pair(3 * hidden, hidden), {hidden, hidden}, {4 * hidden, hidden}, {hidden, 4 * hidden}})
          compare(kind == op::Kind::gemm_tn ? op::Work{.kind = kind, .m = n, .n = k, .k = tokens}
                                            : op::Work{.kind = kind, .m = tokens, .n = n, .k = k});
  std::sort(errors.begin(), errors.end());
  CHECK(errors[errors.size() / 2] < 0.10);
  CHECK(errors[errors.size() * 9 / 10] < 0.25);
}

TEST_CASE("in a long run power holds GEMMs of an H100 at 600 to 700 TFLOP/s, and a B200 at half of its peak") {
  for (const char* name : {"8xh100-80g", "8xh200-141g"})
    for (const std::int64_t n : {4096, 8192, 16384}) {
      const double rate = gemm_tflops(preset(name), op::Kind::gemm_nt, n, n, n);
      CHECK(rate > 600);
      CHECK(rate < 700);
    }
  // What a public sweep has of large products, of 2250 TFLOP/s.
  for (const std::int64_t n : {8192, 16384}) {
    const double share = gemm_tflops(preset("8xb200-192g"), op::Kind::gemm_nt, n, n, n) / 2250;
    CHECK(share > 0.49);
    CHECK(share < 0.53);
  }
}

TEST_CASE("narrow GEMMs and weight gradients reach their shares") {
  struct Row {
    op::Kind kind;
    std::int64_t m, n, k;
    double share, tolerance;
  };
  const Cluster a100 = preset("8xa100-80g");  // bf16 on the PCIe card, against 312 TFLOP/s
  for (const Row& row : {Row{op::Kind::gemm_nt, 4096, 4096, 4096, .72, .10},
                         {op::Kind::gemm_nt, 4096, 6144, 4096, .72, .10},
                         {op::Kind::gemm_nt, 4096, 28672, 4096, .74, .10},
                         {op::Kind::gemm_nt, 4096, 4096, 14336, .74, .10},
                         {op::Kind::gemm_nt, 4096, 2048, 4096, .61, .12},
                         // slower than twice its width allows, whatever the tile; the model lies between the two
                         {op::Kind::gemm_nt, 4096, 1024, 4096, .46, .23},
                         {op::Kind::gemm_nt, 4096, 512, 4096, .54, .16},
                         {op::Kind::gemm_nt, 4096, 4096, 512, .61, .10},
                         {op::Kind::gemm_nt, 4096, 4096, 1024, .62, .12},
                         {op::Kind::gemm_tn, 4096, 4096, 4096, .70, .10},
                         {op::Kind::gemm_tn, 6144, 4096, 4096, .70, .10},
                         {op::Kind::gemm_tn, 28672, 4096, 4096, .71, .12},
                         {op::Kind::gemm_tn, 1024, 4096, 4096, .47, .20},
                         {op::Kind::gemm_tn, 1536, 4096, 4096, .66, .10},
                         {op::Kind::gemm_tn, 3584, 4096, 4096, .62, .10}}) {
    INFO("A100 kind " << static_cast<int>(row.kind) << " m " << row.m << " n " << row.n << " k " << row.k);
    CHECK(gemm_tflops(a100, row.kind, row.m, row.n, row.k) / 312 == doctest::Approx(row.share).epsilon(row.tolerance));
  }
  const Cluster b200 = short_runs(preset("8xb200-192g"));
  for (const Row& row : {Row{op::Kind::gemm_nt, 4096, 4096, 4096, .64, .05},
                         {op::Kind::gemm_nt, 4096, 6144, 4096, .65, .05},
                         {op::Kind::gemm_nt, 4096, 14336, 4096, .65, .07},
                         // wider and yet slower than the line above: a tile of its own
                         {op::Kind::gemm_nt, 4096, 28672, 4096, .52, .40},
                         {op::Kind::gemm_nt, 4096, 1280, 4096, .59, .25}}) {
    INFO("B200 n " << row.n);
    CHECK(gemm_tflops(b200, row.kind, row.m, row.n, row.k) / 2250 == doctest::Approx(row.share).epsilon(row.tolerance));
  }
}

TEST_CASE("attention follows FlashAttention-2 and cuDNN by length, head dim and mask") {
  const Cluster a100 = preset("8xa100-80g");
  const Cluster h100 = preset("8xh100-80g");
  const Cluster h200 = preset("8xh200-141g");
  struct Row {
    std::int64_t tokens;
    double a100_64, a100_128, a100_full, h100_forward, h200_forward, h200_backward;
  };
  for (const Row& row : {Row{512, 88, 99, 151, 315, 0, 0},
                         {1024, 119, 133, 173, 410, 0, 0},
                         {2048, 140, 155, 187, 484, 484, 370},
                         {4096, 156, 173, 196, 518, 591, 474},
                         {8192, 165, 182, 201, 529, 644, 541},
                         {16384, 171, 189, 203, 539, 673, 579}}) {
    INFO(row.tokens << " tokens");
    CHECK(both_tflops(a100, row.tokens, 64, true) == doctest::Approx(row.a100_64).epsilon(0.03));
    CHECK(both_tflops(a100, row.tokens, 128, true) == doctest::Approx(row.a100_128).epsilon(0.03));
    CHECK(both_tflops(a100, row.tokens, 128, false) == doctest::Approx(row.a100_full).epsilon(0.08));
    const op::Work forward = attention(op::Kind::attention_forward, row.tokens, 128, true);
    const op::Work backward = attention(op::Kind::attention_backward, row.tokens, 128, true);
    CHECK(tflops(forward, h100) == doctest::Approx(row.h100_forward).epsilon(0.03));
    if (row.h200_forward == 0) continue;
    CHECK(tflops(forward, h200) == doctest::Approx(row.h200_forward).epsilon(0.03));
    CHECK(tflops(backward, h200) == doctest::Approx(row.h200_backward).epsilon(0.03));
  }
}

TEST_CASE("few heads on a device cost their share") {
  for (const char* name : {"8xa100-80g", "8xh100-80g"}) {
    const Cluster cluster = preset(name);
    const auto rate = [&](int heads) {
      return tflops({.kind = op::Kind::attention_forward, .m = heads, .n = 4096, .k = 4096, .l = 128, .causal = true},
                    cluster);
    };
    CHECK(rate(16) / rate(32) == doctest::Approx(.88).epsilon(0.07));
    CHECK(rate(8) / rate(32) == doctest::Approx(.69).epsilon(0.12));
    CHECK(rate(4) / rate(32) == doctest::Approx(.45).epsilon(0.25));  // multiprocessors differ, the figure is one
  }
}

TEST_CASE("all-reduce in a node follows nccl-tests by size") {
  const std::vector<std::int64_t> sizes{65536, 262144, mb, 4 * mb, 16 * mb, 64 * mb, 128 * mb, 256 * mb, gb, 8 * gb};
  struct Curve {
    const char* name;
    std::vector<double> bandwidth;
  };
  for (const Curve& curve : {Curve{"8xa100-80g", {2.70, 10.1, 36.2, 71.4, 109, 167, 174, 214, 228, 232}},
                             {"8xh100-80g", {2.72, 10.9, 43.7, 129, 234, 362, 401, 423, 466, 479}},
                             {"8xh200-141g", {3.72, 14.8, 53.0, 138, 240, 368, 412, 432, 468, 480}}})
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      INFO(curve.name << " " << sizes[i] << " bytes");
      CHECK(bus(preset(curve.name), op::Kind::all_reduce, sizes[i]) ==
            doctest::Approx(curve.bandwidth[i]).epsilon(0.01));
    }
  CHECK(bus(preset("8xv100-32g"), op::Kind::all_reduce, 8 * gb) == doctest::Approx(122).epsilon(0.02));
  CHECK(bus(preset("8xb200-192g"), op::Kind::all_reduce, 8 * gb) == doctest::Approx(668).epsilon(0.02));
}

TEST_CASE("gathering and scattering in a node") {
  for (const op::Kind kind : {op::Kind::all_gather, op::Kind::reduce_scatter}) {
    const double h100 = bus(preset("8xh100-80g"), kind, 8 * gb);
    CHECK(h100 > 340);  // switches that add do not help here
    CHECK(h100 < 370);
    CHECK(bus(preset("8xb200-192g"), kind, 8 * gb) == doctest::Approx(606).epsilon(0.02));
    // against a line of 450 GB/s
    struct Row {
      std::int64_t bytes;
      double share;
    };
    for (const Row& row : {Row{16 * mb, .45}, {64 * mb, .65}, {256 * mb, .73}, {gb, .77}, {8 * gb, .80}})
      CHECK(bus(preset("8xh100-80g"), kind, row.bytes) / 450 == doctest::Approx(row.share).epsilon(0.03));
  }
}

TEST_CASE("PCIe connects a node of TITANs at a share of one link") {
  const Cluster titan = preset("8xtitan-24g");
  const double link = 15.75;
  CHECK(bus(titan, op::Kind::all_reduce, gb) / link == doctest::Approx(.418).epsilon(0.02));
  CHECK(bus(titan, op::Kind::all_gather, gb) / link == doctest::Approx(.450).epsilon(0.02));
  CHECK(bus(titan, op::Kind::reduce_scatter, gb) / link == doctest::Approx(.369).epsilon(0.02));
  CHECK(bus(titan, op::Kind::all_reduce, gb, 4) / link == doctest::Approx(.69).epsilon(0.02));
  CHECK(bus(titan, op::Kind::reduce_scatter, gb, 4) / link == doctest::Approx(.68).epsilon(0.02));
  CHECK(bus(titan, op::Kind::all_gather, gb, 2) / link == doctest::Approx(.70).epsilon(0.02));
  const double whole = bus(titan, op::Kind::all_reduce, gb);
  CHECK(whole > 6);  // 6 to 10 GB/s were seen
  CHECK(whole < 10);
}

TEST_CASE("a switch that adds helps eight devices more than two") {
  const Cluster h100 = preset("8xh100-80g");
  CHECK(bus(h100, op::Kind::all_reduce, 8 * gb, 8) == doctest::Approx(480).epsilon(0.01));
  CHECK(bus(h100, op::Kind::all_reduce, 8 * gb, 4) < 420);
  CHECK(bus(h100, op::Kind::all_reduce, 8 * gb, 2) == doctest::Approx(355).epsilon(0.05));  // a ring: 370
}

TEST_CASE("nodes of eight network cards, and four") {
  CHECK(bus(preset("16xa100-80g"), op::Kind::all_reduce, 8 * gb) == doctest::Approx(192).epsilon(0.02));
  CHECK(bus(preset("16xh100-80g"), op::Kind::all_reduce, 8 * gb) == doctest::Approx(380).epsilon(0.02));
  Cluster four_cards = preset("16xa100-80g");
  four_cards.across_nodes.bandwidth = four_cards.across_nodes.all_reduce_bandwidth = 12e9;
  const double reached = bus(four_cards, op::Kind::all_reduce, gb);
  CHECK(reached > 86 * 0.9);
  CHECK(reached < 96 * 1.1);
}

TEST_CASE("messages between nodes grow into the line as they get larger") {
  // All ranks of 2, 8, 32, 128 nodes against a line of 8 x 50 GB/s.
  const std::vector<std::int64_t> sizes{16 * mb, 64 * mb, 256 * mb, gb, 8 * gb};
  struct Row {
    int nodes;
    std::vector<double> share;
  };
  for (const Row& row : {Row{2, {.32, .50, .85, .92, .95}}, Row{8, {.13, .39, .69, .90, .96}},
                         Row{32, {.044, .106, .387, .74, .953}}, Row{128, {.009, .044, .103, .315, .765}}}) {
    const Cluster cluster = preset(std::to_string(8 * row.nodes) + "xh100-80g");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      INFO(row.nodes << " nodes, " << sizes[i] << " bytes");
      const bool dip = row.nodes == 2 && i == 1;  // .50 between .32 and .85 is no line of latency and bandwidth
      const bool small = row.nodes >= 32 && i < 2;
      CHECK(bus(cluster, op::Kind::all_reduce, sizes[i]) / 400 == doctest::Approx(row.share[i])
                                                                      .epsilon(dip     ? 0.35
                                                                               : small ? 0.25
                                                                                       : 0.20));
    }
  }
}

TEST_CASE("small all-reduces take a flat time") {
  const auto microseconds = [](const char* name, int ranks) {
    return time_of({.kind = op::Kind::all_reduce, .m = 8192, .n = ranks}, Precision::bf16, preset(name)).value * 1e6;
  };
  for (const char* name : {"8xv100-32g", "8xa100-80g", "8xh100-80g", "8xh200-141g", "8xb200-192g"}) {
    INFO(name);
    CHECK(microseconds(name, 8) >= 26);
    CHECK(microseconds(name, 8) <= 47);
  }
  CHECK(microseconds("16xa100-80g", 16) == doctest::Approx(47).epsilon(0.20));
  CHECK(microseconds("32xv100-32g", 32) == doctest::Approx(90).epsilon(0.10));
}

TEST_CASE("operations that memory bounds reach the triad's share of the data sheet") {
  struct Row {
    const char* name;
    double gigabytes, share;
  };
  for (const Row& row : {Row{"8xa100-80g", 2039, .83}, {"8xh100-80g", 3350, .89}, {"8xh200-141g", 4800, .86}}) {
    const Cluster cluster = preset(row.name);
    const op::Work large{.kind = op::Kind::add, .m = gb};
    const op::Work small{.kind = op::Kind::add, .m = 1};
    const double rate =
        static_cast<double>(bytes_of(large, Precision::bf16).count) / time_of(large, Precision::bf16, cluster).value;
    CHECK(rate / 1e9 == doctest::Approx(row.gigabytes * row.share).epsilon(0.01));
    CHECK(time_of(small, Precision::bf16, cluster).value == doctest::Approx(3e-6).epsilon(0.05));  // a launch
    // AdamW reads and writes 30 bytes a parameter: master, two moments, the gradient, the bf16 copy.
    const op::Work step{.kind = op::Kind::adamw, .m = gb};
    CHECK(time_of(step, Precision::bf16, cluster).value ==
          doctest::Approx(30.0 * static_cast<double>(gb) / (row.gigabytes * row.share * 1e9)).epsilon(0.01));
    // With moments in bfloat16, 22.
    const op::Work half{.kind = op::Kind::adamw_bf16, .m = gb};
    CHECK(time_of(half, Precision::bf16, cluster).value ==
          doctest::Approx(22.0 * static_cast<double>(gb) / (row.gigabytes * row.share * 1e9)).epsilon(0.01));
  }
}
