// Prices of work: exact at measured points, monotone, positive, and near published figures.
#include <galvatron/cost/time.hpp>

#include <galvatron/cluster/cluster.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <utility>

namespace {

using namespace galvatron;
using namespace galvatron::cost;

Cluster preset(const char* name) { return value_or_throw(find_cluster(name)); }

op::Work gemm(std::int64_t m, std::int64_t n, std::int64_t k, op::Kind kind = op::Kind::gemm_nt) {
  return {.kind = kind, .m = m, .n = n, .k = k};
}
op::Work message(op::Kind kind, std::int64_t bytes, std::int64_t ranks, int stride = 1) {
  return {.kind = kind, .m = bytes, .n = ranks, .stride = stride};
}
double tflops_of(const op::Work& work, const Cluster& cluster, Precision precision = Precision::bf16) {
  return flops_of(work).count / time_of(work, precision, cluster).value / 1e12;
}

/// Four ranks on two cores, with tables for one and for four busy ranks.
Cluster measured_host() {
  Cluster host = host_cluster(4, 2);
  host.gemm = {{op::Kind::gemm_nt, false, Precision::fp32, 1,
                LogGrid<3>({{{16, 256}, {16, 256}, {16, 256}}}, {1e-6, 3e-6, 2e-6, 1e-5, 2e-6, 1e-5, 1e-5, 1e-4})},
               {op::Kind::gemm_nt, false, Precision::fp32, 4,
                LogGrid<3>({{{16, 256}, {16, 256}, {16, 256}}}, {2e-6, 6e-6, 4e-6, 2e-5, 4e-6, 2e-5, 2e-5, 3e-4})}};
  host.messages = {{op::Kind::all_reduce, 2, false, 4, LogGrid<1>({{{64, 1 << 20}}}, {1e-5, 3e-4})},
                   {op::Kind::all_reduce, 4, false, 4, LogGrid<1>({{{64, 1 << 20}}}, {2e-5, 9e-4})}};
  host.memory_bound = {{op::Kind::add, Precision::fp32, 4, LogGrid<2>({{{1024, 1 << 20}, {1}}}, {1e-6, 1e-3})}};
  return host;
}

}  // namespace

static_assert(bytes_of({.kind = op::Kind::add, .m = 10}, Precision::fp32) == Bytes{120});
static_assert(bytes_of({.kind = op::Kind::norm_forward, .m = 3, .n = 5}, Precision::bf16) == Bytes{60});
static_assert(bytes_of({.kind = op::Kind::adamw, .m = 2}, Precision::bf16) == Bytes{60});
static_assert(bytes_of({.kind = op::Kind::adamw_bf16, .m = 2}, Precision::bf16) == Bytes{44});
static_assert(bytes_of({.kind = op::Kind::all_reduce, .m = 80, .n = 4}, Precision::fp32) == Bytes{120});
static_assert(bytes_of({.kind = op::Kind::all_gather, .m = 80, .n = 1}, Precision::fp32) == Bytes{0});

TEST_CASE("a measured point is the price, times the number of executions") {
  const Cluster host = measured_host();
  CHECK(time_of(gemm(16, 256, 16), Precision::fp32, host, 4).value == doctest::Approx(4e-6));
  CHECK(time_of(gemm(256, 256, 256), Precision::fp32, host, 1).value == doctest::Approx(1e-4));
  CHECK(time_of(gemm(256, 256, 256), Precision::fp32, host).value == doctest::Approx(3e-4));
  op::Work twice = gemm(256, 256, 256);
  twice.times = 2;
  CHECK(time_of(twice, Precision::fp32, host).value == doctest::Approx(6e-4));
  CHECK(time_of(message(op::Kind::all_reduce, 1 << 20, 4), Precision::fp32, host).value == doctest::Approx(9e-4));
  CHECK(time_of(message(op::Kind::all_reduce, 1 << 20, 2), Precision::fp32, host).value == doctest::Approx(3e-4));
  CHECK(time_of({.kind = op::Kind::add, .m = 1024}, Precision::fp32, host).value == doctest::Approx(1e-6));
}

TEST_CASE("beyond the measured grid a GEMM costs by its flops") {
  const Cluster host = measured_host();
  CHECK(time_of(gemm(512, 1024, 256), Precision::fp32, host, 1).value == doctest::Approx(8e-4));
}

TEST_CASE("a weight gradient that is written costs less than one that is added to") {
  Cluster host = measured_host();
  const auto at = [&](int writes_one_in) {
    op::Work work = gemm(256, 256, 256, op::Kind::gemm_tn);
    work.writes_one_in = writes_one_in;
    return time_of(work, Precision::fp32, host).value;
  };
  const LogGrid<3>::Axes one{{{256}, {256}, {256}}};
  host.gemm.push_back({op::Kind::gemm_tn, false, Precision::fp32, 4, LogGrid<3>(one, {4e-4})});
  CHECK(at(1) == doctest::Approx(4e-4));  // not measured
  CHECK(at(op::Work::for_reduction) == doctest::Approx(4e-4));
  host.gemm.push_back({op::Kind::gemm_tn, true, Precision::fp32, 4, LogGrid<3>(one, {3e-4})});
  CHECK(at(op::Work::for_reduction) == doctest::Approx(3e-4));
  host.gemm.push_back({op::Kind::gemm_tn, true, Precision::fp32, 4, LogGrid<3>(one, {2e-4}), false, true});
  CHECK(at(op::Work::for_reduction) == doctest::Approx(2e-4));
  CHECK(at(0) == doctest::Approx(4e-4));
  CHECK(at(1) == doctest::Approx(3e-4));
  CHECK(at(4) == doctest::Approx((3e-4 + 3 * 4e-4) / 4));
  const op::Work added = gemm(64, 64, 1 << 16, op::Kind::gemm_tn);
  op::Work written = added;
  written.writes_one_in = 1;
  CHECK(bytes_of(added, Precision::bf16) - bytes_of(written, Precision::bf16) == Bytes{4 * 64 * 64});
  // By rates, too, where memory bounds it.
  const Cluster a100 = preset("8xa100-80g");
  op::Work thin = gemm(1 << 14, 1 << 14, 16, op::Kind::gemm_tn);
  const double adds = time_of(thin, Precision::bf16, a100).value;
  thin.writes_one_in = 1;
  CHECK(time_of(thin, Precision::bf16, a100).value < 0.6 * adds);
}

TEST_CASE("a part of a grouped product costs what was measured of one, or else as much as by itself") {
  Cluster host = measured_host();
  op::Work part = gemm(256, 256, 256);
  part.times = 8;
  const double alone = time_of(part, Precision::fp32, host).value;
  part.grouped = true;
  CHECK(time_of(part, Precision::fp32, host).value == alone);
  const LogGrid<3>::Axes two{{{256}, {256}, {128, 256}}};
  host.gemm.push_back({op::Kind::gemm_nt, false, Precision::fp32, 0, LogGrid<3>(two, {1e-5, 2e-5}), /*grouped=*/true});
  CHECK(time_of(part, Precision::fp32, host).value == doctest::Approx(8 * 2e-5));
  CHECK(op::flops_of(part).count == 8 * 2.0 * 256 * 256 * 256);
  part.grouped = false;
  CHECK(time_of(part, Precision::fp32, host).value == alone);

  // On a GPU without tables products of few rows share launch and waves; those of many gain nothing.
  const Cluster a100 = preset("8xa100-80g");
  const auto gain = [&](std::int64_t rows) {
    op::Work product = gemm(rows, 4096, 4096);
    const double by_itself = time_of(product, Precision::bf16, a100).value;
    product.grouped = true;
    return by_itself / time_of(product, Precision::bf16, a100).value;
  };
  CHECK(gain(128) > 1.3);
  CHECK(gain(1 << 15) > 0.85);
  CHECK(gain(1 << 15) < 1.1);
}

TEST_CASE("between one and all busy ranks the cores are shared") {
  const Cluster host = measured_host();
  const auto at = [&](int busy) { return time_of(gemm(256, 256, 256), Precision::fp32, host, busy).value; };
  CHECK(at(2) == doctest::Approx(1.5e-4));   // each rank has a core; its neighbour slows it
  CHECK(at(3) == doctest::Approx(2.25e-4));  // three ranks on two cores
  CHECK(at(8) == doctest::Approx(6e-4));
}

TEST_CASE("nothing costs nothing") {
  const Cluster cluster = preset("8xa100-80g");
  CHECK(time_of({.kind = op::Kind::add, .m = 0}, Precision::bf16, cluster).value == 0);
  CHECK(time_of(message(op::Kind::all_reduce, 1 << 20, 1), Precision::bf16, cluster).value == 0);
  op::Work never = gemm(64, 64, 64);
  never.times = 0;
  CHECK(time_of(never, Precision::bf16, cluster).value == 0);
}

TEST_CASE("prices are positive and never fall when work grows") {
  const unsigned seed = 42;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(0, 14);
  const auto extent = [&] { return static_cast<std::int64_t>(std::exp2(exponent(random))); };
  for (const Cluster& cluster :
       {preset("8xtitan-24g"), preset("64xh100-80g"), preset("16xa100-40g"), measured_host(), host_cluster(2, 2)})
    for (int kind = 0; kind < op::kinds; ++kind)
      for (int round = 0; round < 60; ++round) {
        op::Work work{
            .kind = static_cast<op::Kind>(kind), .m = extent(), .n = extent(), .k = extent(), .l = extent() / 128 + 1};
        work.causal = (round & 1) != 0;
        work.stride = (round & 2) != 0 ? 2 : 1;
        if (is_communication(work.kind)) {
          work.n = 2;
          work.k = round % 3;  // ranks among which a send is
        }
        const Precision precision = (round & 4) != 0 ? Precision::bf16 : Precision::fp32;
        const double before = time_of(work, precision, cluster).value;
        CHECK(before > 0);
        CHECK(std::isfinite(before));
        for (int d = 0; d < 4; ++d) {
          if (is_communication(work.kind) && d > 0) continue;
          op::Work larger = work;
          std::int64_t& x = d == 0 ? larger.m : d == 1 ? larger.n : d == 2 ? larger.k : larger.l;
          x += extent();
          INFO("kind " << kind << " m " << work.m << " n " << work.n << " k " << work.k << " l " << work.l << " axis "
                       << d << " on " << cluster.name);
          CHECK(time_of(larger, precision, cluster).value >= before * (1 - 1e-9));
        }
      }
}

TEST_CASE("GEMM prices are near published cuBLAS rates") {
  const Cluster a100 = preset("8xa100-80g");
  const Cluster h100 = preset("8xh100-80g");
  CHECK(tflops_of(gemm(1024, 1024, 1024), a100) == doctest::Approx(119).epsilon(0.25));
  CHECK(tflops_of(gemm(4096, 4096, 4096), a100) == doctest::Approx(228).epsilon(0.12));
  CHECK(tflops_of(gemm(8192, 8192, 8192), a100) == doctest::Approx(254).epsilon(0.05));
  CHECK(tflops_of(gemm(2048, 2048, 2048), h100) == doctest::Approx(548).epsilon(0.25));
  CHECK(tflops_of(gemm(4096, 4096, 4096), h100) == doctest::Approx(680).epsilon(0.15));
  CHECK(tflops_of(gemm(8192, 8192, 8192), h100) == doctest::Approx(700).epsilon(0.12));
  for (const auto& [n, k, share] :
       {std::tuple{4096, 4096, .72}, std::tuple{6144, 4096, .72}, std::tuple{28672, 4096, .74},
        std::tuple{2048, 4096, .61}, std::tuple{1024, 4096, .46}, std::tuple{512, 4096, .54},
        std::tuple{4096, 512, .61}, std::tuple{4096, 1024, .62}, std::tuple{4096, 14336, .74}}) {
    INFO("n " << n << " k " << k);
    CHECK(tflops_of(gemm(4096, n, k), a100) / 312 == doctest::Approx(share).epsilon(0.25));
  }
}

TEST_CASE("collective prices are near published nccl-tests figures") {
  const Cluster a100 = preset("16xa100-80g");
  const auto bus = [&](std::int64_t bytes, int n, int stride) {
    const op::Work work = message(op::Kind::all_reduce, bytes, n, stride);
    return static_cast<double>(bytes_of(work, Precision::bf16).count) / time_of(work, Precision::bf16, a100).value /
           1e9;
  };
  CHECK(bus(1 << 20, 8, 1) == doctest::Approx(36.2).epsilon(0.01));
  CHECK(bus(1 << 30, 8, 1) == doctest::Approx(228).epsilon(0.01));
  CHECK(bus(std::int64_t{8} << 30, 16, 1) == doctest::Approx(192).epsilon(0.02));
  CHECK(bus(1 << 28, 2, 8) < 25);  // a pair across nodes has one network card each
}

TEST_CASE("members of a group share nodes as their distance and the borders say") {
  const auto members = [](int devices, int per_node, int group, int stride) {
    Cluster cluster;
    cluster.devices = devices;
    cluster.devices_per_node = per_node;
    return cost::detail::members_per_node(cluster, group, stride);
  };
  // The truth by looking: groups of `group` ranks, `stride` apart, tile the cluster; the worst node counts.
  const auto looked_at = [](int devices, int per_node, int group, int stride) {
    int worst = group;
    for (int block = 0; block < devices; block += group * stride)
      for (int first = block; first < block + stride; ++first)
        for (int i = 0; i < group; ++i) {
          int here = 0;
          for (int j = 0; j < group; ++j) here += (first + j * stride) / per_node == (first + i * stride) / per_node;
          worst = std::min(worst, here);
        }
    return worst;
  };
  for (const int devices : {8, 16, 24, 48, 64, 96})
    for (const int per_node : {4, 8, 16, 128})
      for (const int group : {1, 2, 3, 4, 6, 8, 12, 16, 24})
        for (const int stride : {1, 2, 4, 8, 16}) {
          if (devices % (group * stride) != 0 || (devices > per_node && devices % per_node != 0)) continue;
          INFO(group << " ranks " << stride << " apart on " << devices << ", " << per_node << " a node");
          CHECK(members(devices, per_node, group, stride) == looked_at(devices, per_node, group, stride));
        }
  CHECK(members(48, 8, 4, 3) == 1);  // ranks 0 3 6 9: somewhere a member is alone
}

TEST_CASE("tensor, context, data and joint groups of a stage are priced where they lie") {
  const Cluster cluster = preset("64xa100-80g");
  const auto gather = [&](int n, int stride) {
    return time_of(message(op::Kind::all_gather, 1 << 26, n, stride), Precision::bf16, cluster).value;
  };
  CHECK(gather(4, 1) == gather(4, 2));       // tensor 4, or context 4 over tensor 2: inside a node
  CHECK(gather(4, 1) < 0.2 * gather(4, 8));  // data 4 over tensor 8: one rank in each node
  CHECK(gather(4, 4) < gather(4, 8));        // two ranks in each of two nodes bring two cards
  CHECK(gather(8, 4) < gather(8, 8));
  CHECK(gather(8, 16) == gather(8, 8));  // nodes in between do not matter
  CHECK(gather(6, 1) > gather(8, 1));    // six ranks lie across borders
}

TEST_CASE("a send is as far as its group, and an all-to-all sends through every card what leaves the node") {
  const Cluster cluster = preset("64xh100-80g");
  const auto price = [&](op::Work work) { return time_of(work, Precision::bf16, cluster).value; };
  const op::Work anywhere{.kind = op::Kind::send, .m = 1 << 26, .n = 1};
  op::Work near = anywhere;
  near.k = 4;
  near.stride = 2;
  op::Work far = anywhere;
  far.k = 4;
  far.stride = 8;
  CHECK(price(near) < 0.5 * price(far));
  CHECK(price(far) == price(anywhere));
  CHECK(price(anywhere) == doctest::Approx(4.7e-6 + (1 << 26) / 48e9));

  // By rates: 32 ranks in 4 nodes, of 32 parts 24 leave.
  const double bytes = 1 << 30;
  CHECK(price(message(op::Kind::all_to_all, 1 << 30, 32)) == doctest::Approx(31 * 4.7e-6 + bytes * 24 / 32 / 48e9));
  CHECK(price(message(op::Kind::all_to_all, 1 << 30, 4, 8)) == doctest::Approx(3 * 4.7e-6 + bytes * 3 / 4 / 48e9));
  // Inside a node like an all-gather of the same bytes on the links, unless there is a table of its own.
  CHECK(price(message(op::Kind::all_to_all, 1 << 30, 8)) == price(message(op::Kind::all_gather, 1 << 30, 8)));
  Cluster measured = cluster;
  measured.messages.push_back({op::Kind::all_to_all, 8, false, 0, LogGrid<1>({{{64, 1 << 30}}}, {1e-5, 0.25})});
  CHECK(time_of(message(op::Kind::all_to_all, 1 << 30, 8), Precision::bf16, measured).value == doctest::Approx(0.25));
  Cluster bare = cluster;
  bare.messages.clear();
  CHECK(time_of(message(op::Kind::all_to_all, 1 << 30, 8), Precision::bf16, bare).value ==
        doctest::Approx(7 * 3e-6 + bytes * 7 / 8 / 355e9));
}

TEST_CASE("a factor of a calibration multiplies the work of its term, and no other") {
  const Cluster cluster = value_or_throw(find_cluster("32xa100-80g"));
  using op::Kind;
  const auto message = [](Kind kind, int ranks) {
    return op::Work{.kind = kind, .m = 1 << 24, .n = ranks, .k = kind == Kind::send ? ranks : 0};
  };
  using enum CostTerm;
  const std::pair<CostTerm, op::Work> works[] = {
      {products, {.kind = Kind::gemm_tn, .m = 4096, .n = 4096, .k = 4096}},
      {attention, {.kind = Kind::attention_forward, .m = 32, .n = 2048, .k = 2048, .l = 128}},
      {memory_bound, {.kind = Kind::norm_forward, .m = 4096, .n = 4096}},
      {memory_bound, {.kind = Kind::fill, .m = 1 << 24}},
      {optimizer, {.kind = Kind::adamw, .m = 1 << 24}},
      {optimizer, {.kind = Kind::adamw_bf16, .m = 1 << 24}},
      {optimizer, {.kind = Kind::norm_squared, .m = 1 << 24}},
      {all_reduce_in_node, message(Kind::all_reduce, 8)},
      {gather_in_node, message(Kind::all_gather, 4)},
      {gather_in_node, message(Kind::reduce_scatter, 8)},
      {gather_in_node, message(Kind::broadcast, 2)},
      {all_to_all_in_node, message(Kind::all_to_all, 8)},
      {send_in_node, message(Kind::send, 8)},
      {all_reduce_across_nodes, message(Kind::all_reduce, 32)},
      {gather_across_nodes, message(Kind::all_gather, 16)},
      {all_to_all_across_nodes, message(Kind::all_to_all, 32)},
      {send_across_nodes, message(Kind::send, 32)}};
  for (const auto& [own, work] : works) {
    CAPTURE(name_of(own));
    const double before = cost::time_of(work, Precision::bf16, cluster).value;
    REQUIRE(before > 0);
    for (const CostTerm term : cost_terms) {
      Cluster other = cluster;
      other.calibration.term(term).factor = 1.5;
      const double after = cost::time_of(work, Precision::bf16, other).value;
      CHECK(after == doctest::Approx(term == own ? 1.5 * before : before).epsilon(1e-12));
    }
  }
}

TEST_CASE("groups that leave a pod are priced by the network between pods, and others as if there were none") {
  const Cluster flat = value_or_throw(find_cluster("64xa100-80g"));
  Cluster slow = flat;
  slow.across_nodes = flat.across_nodes.slower(3);
  Cluster pods = flat;
  pods.devices_per_pod = 32;
  pods.across_pods = slow.across_nodes;
  for (const op::Kind kind : op::communications) {
    CAPTURE(op::name_of(kind));
    const auto seconds = [&](const Cluster& cluster, int ranks, int stride) {
      const bool send = kind == op::Kind::send;
      return time_of({.kind = kind, .m = 1 << 24, .n = ranks, .k = send ? ranks : 0, .stride = send ? 1 : stride},
                     Precision::bf16, cluster);
    };
    for (const auto& [ranks, stride] : {std::pair(8, 1), {16, 1}, {32, 1}, {4, 8}})
      CHECK(seconds(pods, ranks, stride) == seconds(flat, ranks, stride));
    for (const auto& [ranks, stride] : {std::pair(64, 1), {8, 8}})
      if (kind != op::Kind::send || stride == 1) {
        CHECK(seconds(pods, ranks, stride) == seconds(slow, ranks, stride));
        CHECK(seconds(pods, ranks, stride) > seconds(flat, ranks, stride));
      }
  }
}

TEST_CASE("attention prices follow the length and the mask") {
  const Cluster h100 = preset("8xh100-80g");
  op::Work work{.kind = op::Kind::attention_forward, .m = 64, .n = 4096, .k = 4096, .l = 128, .causal = true};
  CHECK(tflops_of(work, h100) == doctest::Approx(518).epsilon(0.05));
  work.n = work.k = 512;
  work.m = 512;
  CHECK(tflops_of(work, h100) == doctest::Approx(315).epsilon(0.1));
  const Seconds causal = time_of(work, Precision::bf16, h100);
  work.causal = false;
  CHECK(time_of(work, Precision::bf16, h100) > causal);
  CHECK(time_of(work, Precision::bf16, h100).value < 2.01 * causal.value);
}

TEST_CASE("a hundred thousand prices take a fraction of a second") {
  const Cluster clusters[] = {preset("1024xh100-80g"), measured_host()};
  for (const Cluster& cluster : clusters) {
    const auto begin = std::chrono::steady_clock::now();
    double sum = 0;
    for (int i = 0; i < 100000; ++i) {
      const auto kind = static_cast<op::Kind>(i % op::kinds);
      sum += time_of({.kind = kind, .m = 64 + i, .n = is_communication(kind) ? 8 : 512, .k = 512, .l = 64},
                     Precision::bf16, cluster)
                 .value;
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    MESSAGE(cluster.name << ": " << seconds * 1e4 << " ns a price");
    CHECK(sum > 0);
    CHECK(seconds < 2.0);
  }
}
