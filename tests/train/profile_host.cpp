// The profiler of this machine, in its coarsest setting: what it measures is complete, plausible and readable.
// labels: kernels
#include <galvatron/cluster/json.hpp>
#include <galvatron/cluster/mixed_json.hpp>
#include <galvatron/model/model.hpp>
#include <galvatron/profile/host.hpp>

#include <galvatron/cost/time.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../comm/socket_threads.hpp"
#include "../folder.hpp"
#include "../sanitized.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::train;

ProfileOptions quick(int ranks) {
  ProfileOptions options;
  options.ranks = ranks;
  options.time_budget = {0.05};
  options.accepts_busy = true;  // tests run beside others
  return options;
}

// Ranks on which every operation takes the same time, however long it computes.
struct SetPace : HostPlatform {
  static constexpr double once = 1e-3;
  struct Rank : HostRank {
    Rank(const cost::StageMemory& planned, double its_slowness) : HostRank(planned, 1), slowness(its_slowness) {}
    template <class Op>
    double seconds(int calls, const Op& one) {
      one();
      return calls * once * slowness;
    }
    double slowness;
  };
  double slowness = 1;
  SetPace(HostPlatform host, double its_slowness) : HostPlatform(host), slowness(its_slowness) {}
  [[nodiscard]] train::detail::Stopwatch stopwatch() const { return {false}; }
  [[nodiscard]] Rank make(const cost::StageMemory& planned) const { return {planned, slowness}; }
};

}  // namespace

TEST_CASE("a profile of four ranks has every table that pricing asks for") {
  std::vector<ProfileProgress> told;
  ProfileOptions options = quick(4);
  options.precisions = {Precision::fp32};
  options.progress = [&](const ProfileProgress& progress) { told.push_back(progress); };
  const Cluster cluster = value_or_throw(profile_host(options));
  CHECK(cluster.devices == 4);
  CHECK(cluster.cores >= 1);
  CHECK(cluster.threads_per_rank == std::max(1, usable_cores() / 4));
  CHECK(cluster.gemm.size() == 10);      // three layouts, one in three ways, one and four busy ranks
  CHECK(cluster.attention.size() == 8);  // two passes, with a mask and without
  CHECK(cluster.memory_bound.size() == 2 * (op::memory_bound.size() - 2));  // but for GELU in products
  CHECK(cluster.messages.size() == 4 * 3 + 1);                              // pairs, strided pairs, all; and sends
  CHECK(cluster.overlap_slowdown >= 1);
  CHECK(cluster.supports(Precision::fp32));
  CHECK_FALSE(cluster.supports(Precision::bf16));

  REQUIRE(told.size() > 5);
  CHECK(told.back().share == 1.0);
  for (std::size_t i = 1; i < told.size(); ++i) CHECK(told[i].share >= told[i - 1].share);

  for (int kind = 0; kind < op::kinds; ++kind)
    for (const int busy : {1, 2, 4}) {
      const auto work_kind = static_cast<op::Kind>(kind);
      const op::Work work{.kind = work_kind,
                          .m = 256,
                          .n = op::is_communication(work_kind) ? 4 : 128,
                          .k = 128,
                          .l = 64,
                          .causal = true};
      const double seconds = cost::time_of(work, Precision::fp32, cluster, busy).value;
      INFO("kind " << kind << ", " << busy << " busy ranks: " << seconds << " s");
      CHECK(seconds > 0);
      CHECK(seconds < 30);  // unoptimised builds with sanitizers extrapolate from the smallest points
    }

  auto back = cluster_from_json(cluster_to_json(cluster), "profile");
  REQUIRE_MESSAGE(back.has_value(), (back ? std::string() : back.error().message));
  CHECK(*back == cluster);
}

TEST_CASE("ranks that share nothing, on two machines, give the tables of one machine and the links between both") {
  std::vector<Cluster> clusters(4, host_cluster(4, 4));
  std::vector<int> told(4);
  comm::tcp::run_threads(4, [&](comm::tcp::World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    Cluster& cluster = clusters[rank];
    cluster.devices_per_node = 2;
    cluster.cores = 0;  // devices of their own
    train::detail::ProfilePlan plan = train::detail::profile_plan(0.05);
    train::detail::Profile profile(plan, {Precision::fp32}, [&](const ProfileProgress&) { ++told[rank]; }, cluster);
    PinnedRank pinned(0, 1, 0);
    profile.measure(world, HostPlatform{2, &pinned});
    if (world.rank() == 0) cluster = profile.finish().groups.front();
  });
  const Cluster& cluster = clusters[0];
  CHECK(cluster.gemm.size() == 10);
  CHECK(cluster.messages.size() == 4 + 1);  // all ranks of a machine; and sends
  for (const MessageTable& table : cluster.messages) CHECK(table.group == 2);
  CHECK(cluster.overlap_slowdown >= 1);
  const Link before = host_cluster(4, 4).inside_node;
  for (const Link& link : {cluster.inside_node, cluster.across_nodes}) {
    CHECK(link.bandwidth > 0);
    CHECK(link.bandwidth != before.bandwidth);
    CHECK(link.all_reduce_bandwidth != before.all_reduce_bandwidth);
    CHECK(link.send_bandwidth != before.send_bandwidth);
  }
  CHECK(cluster.inside_node.all_reduce_bandwidth != cluster.across_nodes.all_reduce_bandwidth);
  CHECK(told[0] > 5);
  CHECK(told[1] + told[2] + told[3] == 0);
  CHECK(clusters[3].messages.empty());
}

TEST_CASE("a device that computes products of experts at once has one rate a precision, and its profile can be read") {
  Cluster cluster = host_cluster(1, 1);
  cluster.gemm.clear();
  for (const bool grouped : {false, true})
    cluster.gemm.push_back(
        {op::Kind::gemm_nt,
         false,
         Precision::fp32,
         1,
         {{std::vector<std::int64_t>{64, 128}, {64, 128}, {64, 128}}, std::vector<double>(8, grouped ? 2e-6 : 1e-6)},
         grouped});
  cluster =
      train::detail::Profile(train::detail::profile_plan(0.05), {Precision::fp32}, {}, cluster).finish().groups.front();
  REQUIRE(cluster.device.rates.size() == 1);
  CHECK(cluster.device.rates[0].peak_flops == doctest::Approx(2.0 * 128 * 128 * 128 / 1e-6));
  CHECK(*cluster_from_json(cluster_to_json(cluster), "profile") == cluster);
}

TEST_CASE("products of a model's weights are measured as they are, and priced by that") {
  ModelSpec model = value_or_throw(find_model("gpt2-tiny"));
  ProfileOptions options = quick(2);
  options.precisions = {Precision::fp32};
  const std::size_t general = value_or_throw(profile_host(options)).gemm.size();
  options.models = {model};
  const Cluster cluster = value_or_throw(profile_host(options));
  const auto weights = train::detail::weights_of(options.models, 2);
  const std::int64_t hidden = model.hidden();
  for (const train::detail::Weight& weight : {train::detail::Weight{3 * hidden, hidden},
                                              {hidden, hidden},
                                              {4 * hidden, hidden},
                                              {hidden, 4 * hidden},
                                              {3 * hidden / 2, hidden}})
    CHECK(std::ranges::count(weights, weight) == 1);
  CHECK(cluster.gemm.size() == general + 10 * weights.size());

  int priced = 0;
  for (const GemmTable& table : cluster.gemm) {
    if (!table.is_of_one_weight() || table.writes) continue;
    const auto& axes = table.seconds.axes();
    const op::Work work{.kind = table.kind, .m = axes[0].back(), .n = axes[1].back(), .k = axes[2].back()};
    CHECK(cost::time_of(work, Precision::fp32, cluster, table.concurrency).value ==
          doctest::Approx(table.seconds.seconds().back()).epsilon(1e-9));
    ++priced;
  }
  CHECK(priced == static_cast<int>(6 * weights.size()));
  CHECK(*cluster_from_json(cluster_to_json(cluster), "profile") == cluster);
}

TEST_CASE("what others disturbed is measured again, and its quietest sweep counts") {
  const test::Folder machine;
  std::filesystem::create_directories(machine.path / "proc");
  long ticks = 0;
  const auto others_take = [&](double share) {  // of 0.45 s
    std::this_thread::sleep_for(std::chrono::milliseconds(450));
    ticks += std::lround(share * 0.45 * static_cast<double>(::sysconf(_SC_CLK_TCK)));
    std::ofstream file(machine.path / "proc/stat");
    for (int core = 0; core < 1024; ++core) file << "cpu" << core << " " << ticks << " 0 0 9 9 0 0 0\n";
  };
  others_take(0);
  train::detail::OthersShares shares{CoreWatch(machine.path)};
  shares.begin();
  shares.add(0);  // too short to tell: it shares the window of the next
  others_take(0.6);
  shares.add(1);
  others_take(0);
  shares.add(2);
  CHECK(shares.disturbed(0));
  CHECK(shares.disturbed(1));
  CHECK(!shares.disturbed(2));
  CHECK(shares.mean() > 0.1);
  CHECK(shares.mean() < 0.6);
  others_take(0);  // the sweep in which they are measured again
  shares.add(0);
  CHECK(!shares.disturbed(0));
  CHECK(shares.disturbed(1));
  others_take(0.01);
  shares.add(1);
  shares.add(0);
  shares.end();
  CHECK(!shares.disturbed(1));
  CHECK(shares.mean() < 0.1);
}

TEST_CASE("a profile beside busy programs goes on until they have ended, or its time is over") {
  const auto steps = [](bool watches, double until, const std::function<void(int)>& on_step) {
    train::detail::ProfilePlan plan = train::detail::profile_plan(0.05);
    train::detail::size_pools(plan, 2);
    plan.watches_cores = watches;
    plan.again_until = until;
    int told = 0;
    const auto tell = [&](const ProfileProgress&) { on_step(++told); };
    train::detail::Profile profile(plan, {Precision::fp32}, tell, host_cluster(2));
    comm::thread::run(2, [&](comm::thread::World& world) {
      PinnedRank pinned(world.rank(), 2, 1);
      profile.measure(world, HostPlatform{1, &pinned});
    });
    CHECK(profile.finish().groups.front().gemm.size() == 10);
    return told;
  };
  const int once = steps(false, 15, [](int) {});
  std::vector<pid_t> busy;
  for (int i = 0; i < 4 * usable_cores(); ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);  // should this test die
      for (const volatile bool forever = true; forever;) {
      }
    }
    busy.push_back(child);
  }
  const auto end_busy = [&] {
    for (const pid_t child : busy) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
    busy.clear();
  };
  CHECK(steps(true, 0, [](int) {}) == once);  // no time to repeat anything
  CHECK(steps(true, 15, [&](int step) {
          if (step > once) end_busy();
        }) > once);
  end_busy();
}

TEST_CASE("ranks are one group as long as they are alike, in the order of their numbers") {
  const auto groups = train::detail::groups_of_speeds({1.0, 1.1, 2.0, 4.0, 3.8, 1.0}, {4, 3.6, 2, 1, 1.05, 4}, 6);
  CHECK(groups.sizes == std::vector<std::size_t>{2, 1, 2, 1});
  CHECK(groups.crowds[1] == 2);
  CHECK(groups.crowds[3] == 4);
  // From 1 to 1.3 in small steps: the first and the last are not alike.
  const auto sizes = [](const std::vector<double>& speeds, std::size_t node) {
    return train::detail::groups_of_speeds(speeds, std::vector<double>(speeds.size(), 1.0), node).sizes;
  };
  CHECK(sizes({1.0, 1.1, 1.2, 1.3}, 4) == std::vector<std::size_t>{2, 2});
  CHECK(sizes({5, 5, 5}, 3) == std::vector<std::size_t>{3});
  // Two ranks a machine: a group is in one machine, or of whole machines.
  CHECK(sizes({5, 5, 5, 5, 1, 1}, 2) == std::vector<std::size_t>{4, 2});
  CHECK(sizes({5, 5, 5, 1, 1, 1}, 2) == std::vector<std::size_t>{2, 1, 1, 2});
  CHECK(sizes({1, 5, 5, 5, 5, 1}, 2) == std::vector<std::size_t>{1, 1, 2, 1, 1});
}

TEST_CASE("ranks of unequal speed are groups of a mixed cluster, each with the seconds of its own ranks") {
  const std::vector<double> slowness{4, 4, 2, 1};
  train::detail::ProfilePlan plan = train::detail::profile_plan(0.05);
  train::detail::size_pools(plan, 4);
  plan.tells_ranks_apart = true;
  plan.seconds_to_tell_apart = 0.05;
  train::detail::Profile profile(plan, {Precision::fp32}, {}, host_cluster(4));
  comm::thread::run(4, [&](comm::thread::World& world) {
    PinnedRank pinned(0, 1, 0);
    profile.measure(world, SetPace{{1, &pinned}, slowness[static_cast<std::size_t>(world.rank())]});
  });
  const MixedCluster cluster = profile.finish();
  const ClusterView view(cluster);
  REQUIRE(view.count() == 3);
  CHECK(view.devices() == 4);
  CHECK(view.group(0).name == "host ranks 0-1");
  CHECK(view.group(0).devices == 2);
  CHECK(view.group(2).name == "host rank 3");
  CHECK(view.group(0).messages.size() == 2 * 4 + 1);  // of pairs and strided pairs; and sends
  CHECK(view.group(2).messages.empty());
  for (int i = 0; i < view.count(); ++i) {
    const Cluster& group = view.group(i);
    CHECK(group.gemm.size() == 5);  // with all ranks at work
    CHECK(group.cores == group.devices);
    for (const op::Work& work :
         {op::Work{.kind = op::Kind::gemm_nt, .m = 16, .n = 32, .k = 32},
          op::Work{.kind = op::Kind::attention_forward, .m = 1, .n = 32, .k = 32, .l = 32, .causal = true},
          op::Work{.kind = op::Kind::add, .m = 64, .n = 64}})
      CHECK(cost::time_of(work, Precision::fp32, group).value ==
            doctest::Approx(SetPace::once * slowness[static_cast<std::size_t>(view.first_device(i))]));
    for (int other = 0; other < i; ++other) CHECK(view.link(other, i).bandwidth > 0);
  }
  CHECK(value_or_throw(mixed_cluster_from_json(mixed_cluster_to_json(cluster), "profile")) == cluster);
}

TEST_CASE("a part of a grouped product is measured where the products of all experts fit") {
  train::detail::Bench<HostPlatform> bench(HostPlatform{}, {});
  for (const op::Kind kind : op::gemms)
    for (const int writes : {0, 1, op::Work::for_reduction}) {
      op::Work product{.kind = kind, .m = 160, .n = 96, .k = 224, .grouped = true, .writes_one_in = writes};
      const double part = bench.gemm<float>(product, 1e-3);
      product.grouped = false;
      const double alone = bench.gemm<float>(product, 1e-3);
      CHECK(part > alone / 20);
      CHECK(part < alone * 20);
    }
  const std::int64_t most = (std::int64_t{64} << 20) / 8;  // elements of an operand
  CHECK(bench.gemm_fits(most / 64, 64, 64));
  CHECK(bench.gemm_fits(most / 64 / bench.experts, 64, 64, true));
  CHECK_FALSE(bench.gemm_fits(most / 64 / bench.experts + 1, 64, 64, true));
}

TEST_CASE("many ranks have small pools, which together are beyond caches") {
  constexpr std::int64_t mebibyte = 1 << 20;
  const auto sized = [](int ranks, double budget) {
    train::detail::ProfilePlan plan = train::detail::profile_plan(budget);
    train::detail::size_pools(plan, ranks);
    return plan;
  };
  for (const int ranks : {1, 2, 4}) {
    const auto plan = sized(ranks, 35);
    CHECK(plan.sizes.pool_bytes == 64 * mebibyte);
    CHECK(plan.sizes == plan.alone);
    CHECK(plan.sizes.vocabulary_bits == 12);
    CHECK(plan.bytes[0].back() == 64 * mebibyte);
  }
  for (const int ranks : {16, 64, 1024}) {
    const auto plan = sized(ranks, 35);
    CHECK(plan.sizes.pool_bytes == std::max(256 / ranks, 4) * mebibyte);
    CHECK(plan.alone.pool_bytes == 64 * mebibyte);
    CHECK(plan.bytes[0].back() <= plan.sizes.pool_bytes);
    const auto [each, all] = profile_memory(plan, ranks, 1);
    CHECK(each.count <= (2 * std::max(256 / ranks, 4) + 6) * mebibyte);
    CHECK(all.count <= ranks * each.count + 134 * mebibyte);
  }
}

TEST_CASE("a profile that takes more memory than there is, is refused before it takes any" *
          doctest::skip(galvatron::test::sanitized)) {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  rlimit little = before;
  little.rlim_cur = std::min<rlim_t>(before.rlim_max, rlim_t{3} << 30);
  REQUIRE(::setrlimit(RLIMIT_AS, &little) == 0);
  ProfileOptions options = quick(1000);
  const auto refused = profile_host(options);
  REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().kind == ErrorKind::infeasible);
  CHECK(refused.error().message.find("a profile of 1000 ranks takes 13") == 0);
}

TEST_CASE("one rank is profiled without any message") {
  ProfileOptions options = quick(1);
  options.precisions = {Precision::fp32};
  const Cluster cluster = value_or_throw(profile_host(options));
  CHECK(cluster.devices == 1);
  CHECK(cluster.messages.empty());
  CHECK(cluster.gemm.size() == 5);
}

TEST_CASE("impossible profiles are refused in one line") {
  ProfileOptions no_time = quick(1);
  no_time.time_budget = {0};
  ProfileOptions no_threads = quick(1);
  no_threads.threads_per_rank = -2;
  for (const ProfileOptions& options : {quick(-1), quick(5000), no_time, no_threads}) {
    auto cluster = profile_host(options);
    REQUIRE_FALSE(cluster.has_value());
    CHECK(cluster.error().kind == ErrorKind::usage);
    CHECK(cluster.error().message.find('\n') == std::string::npos);
  }
}

TEST_CASE("measured values are evened out no more than needed to rise") {
  std::vector<double> values{1, 3, 2, 4, 10, 9, 8, 20};
  train::detail::make_rise(values.data(), values.size(), 1);
  const std::vector<double> expected{1, 2.5, 2.5, 4, 9, 9, 9, 20};
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == doctest::Approx(expected[i]));
}

TEST_CASE("points that were not measured follow their lower neighbours") {
  train::detail::MeasuredGrid<2> grid({{{1, 2, 4}, {1, 10}}});
  grid.seconds = {1e-6, 1e-5, 2e-6, std::nan(""), std::nan(""), std::nan("")};
  const auto finished = grid.finish({1, 1});
  CHECK(finished({2, 10}, {1, 1}) == doctest::Approx(2e-5));
  CHECK(finished({4, 1}, {1, 1}) == doctest::Approx(4e-6));
  CHECK(finished({4, 10}, {1, 1}) == doctest::Approx(4e-5));
}

TEST_CASE("a pinned rank gives its cores back") {
  const int before = usable_cores();
  {
    PinnedRank pinned(0, before, 1);
    if (pinned.pinned()) CHECK(usable_cores() == 1);
  }
  CHECK(usable_cores() == before);
}

TEST_CASE("a rank is tied to its cores while others leave them alone") {
  const test::Folder machine;
  const auto write_counters = [&](int ticks) {  // of each core
    std::string text;
    for (int core = 0; core < 1024; ++core)
      text += "cpu" + std::to_string(core) + " " + std::to_string(ticks) + " 0 0 9\n";
    machine.write("proc/stat", text);
  };
  write_counters(100);
  SharedCores cores{CoreWatch(machine.path)};
  const int before = usable_cores();
  PinnedRank rank(0, before, 1, &cores);
  if (!rank.pinned()) {
    MESSAGE("skipped: ranks are tied where a process may use all of two cores or more");
    return;
  }
  const auto look_later = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(350));
    rank.look();
  };
  look_later();
  CHECK(rank.pinned());
  write_counters(200);  // a second within 0.35 s
  look_later();
  CHECK_FALSE(rank.pinned());
  CHECK(usable_cores() == before);
  rank.look();  // too early to say anything else
  CHECK_FALSE(rank.pinned());
  look_later();
  CHECK(rank.pinned());
  CHECK(usable_cores() == 1);
}
