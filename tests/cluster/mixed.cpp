// Clusters of several kinds of devices: names that compose, files that a person writes, and what is refused.
#include <galvatron/cluster/cluster.hpp>

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../says.hpp"

namespace {

using namespace galvatron;

Result<MixedCluster> mixed_of(const std::string& text) {
  auto value = parse_json(text, "m.json");
  REQUIRE_MESSAGE(value.has_value(), (value ? std::string() : value.error().message));
  return mixed_cluster_from_json(*value, "m.json");
}

std::string with_groups(const std::string& groups, const std::string& more = {}) {
  return R"({"format":"galvatron-cluster","version":1,"name":"lab","groups":)" + groups + more + "}";
}

void refuses_mixed(const std::string& text, const std::string& message) {
  const auto cluster = mixed_of(text);
  CAPTURE(text);
  REQUIRE_FALSE(cluster.has_value());
  CHECK(cluster.error().kind == ErrorKind::usage);
  CHECK_MESSAGE(says(cluster.error().message, message), cluster.error().message);
  CHECK(cluster.error().message.find('\n') == std::string::npos);
}

}  // namespace

TEST_CASE("names of clusters compose") {
  const MixedCluster two = value_or_throw(load_mixed_cluster("16xV100-32g+48xp100-16g"));
  CHECK(two.name == "16xv100-32g+48xp100-16g");
  REQUIRE(two.groups.size() == 2);
  CHECK(two.groups[0] == value_or_throw(find_cluster("16xv100-32g")));
  CHECK(two.groups[1] == value_or_throw(find_cluster("48xp100-16g")));
  REQUIRE(two.links.size() == 1);
  CHECK(two.links[0] == two.groups[1].across_nodes);  // the slower network

  const MixedCluster three = value_or_throw(load_mixed_cluster("8xa100-80g+8xh100-80g+4xl40s-48g"));
  CHECK(ClusterView(three).devices() == 20);
  CHECK(ClusterView(three).first_device(2) == 16);
  CHECK(ClusterView(three).link(2, 0) == ClusterView(three).link(0, 2));
  CHECK(ClusterView(three).link(0, 1).bandwidth == doctest::Approx(24e9));
  CHECK(ClusterView(three).link(2, 1).bandwidth == doctest::Approx(4.8e9));

  const MixedCluster twice = value_or_throw(load_mixed_cluster("8xa100-80g+8xa100-80g"));
  CHECK(twice.groups[0] == twice.groups[1]);
  const MixedCluster one = value_or_throw(load_mixed_cluster("8xa100-80g"));
  CHECK(one.groups.size() == 1);
  CHECK_FALSE(ClusterView(one).is_mixed());
}

TEST_CASE("every pair of groups has a place of its own") {
  for (int groups = 1; groups <= 9; ++groups) {
    std::vector<int> seen(group_pairs(groups), 0);
    for (int b = 0; b < groups; ++b)
      for (int a = 0; a < b; ++a) {
        CHECK(pair_index(a, b) == pair_index(b, a));
        ++seen[pair_index(a, b)];
      }
    for (const int times : seen) CHECK(times == 1);
  }
}

TEST_CASE("bad names of mixed clusters say which group is bad") {
  for (const auto& [name, message] : std::vector<std::pair<std::string, std::string>>{
           {"16xv100-32g+48xq100-16g", "group 1: unknown device"},
           {"0xa100-80g+8xa100-80g", "group 0: bad cluster"},
           {"8xa100-80g+", "group 1: unknown cluster"},
           {"8xa100-80g++8xh100-80g", "group 1: unknown cluster"},
           {"16777216xa100-80g+1xa100-80g", "16777217 devices: at most"}}) {
    const auto cluster = load_mixed_cluster(name);
    CAPTURE(name);
    REQUIRE_FALSE(cluster.has_value());
    CHECK(cluster.error().kind == ErrorKind::usage);
    CHECK_MESSAGE(says(cluster.error().message, message), cluster.error().message);
    CHECK(cluster.error().message.find('\n') == std::string::npos);
  }
  const auto equal = load_cluster("16xv100-32g+48xp100-16g");
  REQUIRE_FALSE(equal.has_value());
  CHECK(says(equal.error().message, "mixed cluster"));
}

TEST_CASE("a file of groups takes what it does not say from presets and networks") {
  const MixedCluster lab = value_or_throw(mixed_of(with_groups(
      R"(["16xv100-32g",
          {"like":"48xp100-16g","name":"old","devices_per_node":4,"device":{"memory":"12GiB"},
           "across_nodes":{"latency":1e-5,"bandwidth":1.1e9}},
          {"devices":8,"device":"a100-80g"}])",
      R"(,"links":[{"between":[0,"old"],"latency":2e-5,"bandwidth":9e8,"send_bandwidth":8e8}])")));
  REQUIRE(lab.groups.size() == 3);
  CHECK(lab.groups[0] == value_or_throw(find_cluster("16xv100-32g")));
  CHECK(lab.groups[1].name == "old");
  CHECK(lab.groups[1].devices == 48);
  CHECK(lab.groups[1].devices_per_node == 4);
  CHECK(lab.groups[1].device.memory == Bytes{std::int64_t{12} << 30});
  CHECK(lab.groups[1].device.memory_bandwidth == doctest::Approx(732e9));
  CHECK(lab.groups[2].name == "8xa100-80g");
  CHECK(lab.groups[2].devices_per_node == 8);
  const ClusterView view(lab);
  CHECK(view.link(0, 1) == Link{{2e-5}, 9e8, 9e8, 8e8});
  CHECK(view.link(1, 2) == Link{{1e-5}, 1.1e9, 1.1e9, 1.1e9});
  CHECK(view.link(0, 2) == lab.groups[0].across_nodes);

  const MixedCluster one = value_or_throw(mixed_of(with_groups(R"(["8xa100-80g"])")));
  CHECK(one.groups.size() == 1);
}

TEST_CASE("mixed clusters survive the way to JSON text and back, bit for bit") {
  const std::uint64_t seed = std::random_device()();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (int i = 0; i < 40; ++i) {
    std::string name;
    for (std::size_t k = 0, groups = 1 + below(5); k < groups; ++k) {
      std::string preset = cluster_names()[below(cluster_names().size() - 1)];  // not the host, whose memory changes
      if (preset.front() == 'N') preset.replace(0, 1, std::to_string(1 + below(40)));
      name += (k > 0 ? "+" : "") + preset;
    }
    CAPTURE(name);
    MixedCluster cluster = value_or_throw(load_mixed_cluster(name));
    for (Link& link : cluster.links) link.send_bandwidth *= 1.0 / static_cast<double>(1 + below(7));
    const std::string text = mixed_cluster_to_json(cluster).dump();
    CHECK(value_or_throw(mixed_of(text)) == cluster);
  }
}

TEST_CASE("bad files of groups are refused in one line") {
  const std::string pair = R"(["8xa100-80g","8xh100-80g"])";
  const auto links = [&](const std::string& all) { return with_groups(pair, ",\"links\":" + all); };
  refuses_mixed(with_groups("[]"), "expected 1 to 64 groups of devices, found 0");
  refuses_mixed(with_groups("3"), "\"groups\": expected an array");
  refuses_mixed(with_groups("[3]"), "groups[0]: expected a JSON object");
  refuses_mixed(with_groups(R"(["8xq100"])"), "groups[0]: unknown device");
  refuses_mixed(with_groups(R"([{"like":"0xa100-80g"}])"), "groups[0]: \"like\": bad cluster");
  refuses_mixed(with_groups(R"([{"devices":0,"device":"a100-80g"}])"), "groups[0]: \"devices\"");
  refuses_mixed(with_groups(R"([{"device":"a100-80g"}])"), "groups[0]: the key \"devices\" is missing");
  refuses_mixed(with_groups(R"([{"like":"8xa100-80g","colour":1}])"), "groups[0]: unknown key \"colour\"");
  refuses_mixed(with_groups(R"([{"like":"8xa100-80g","devices_per_node":9}])"), "groups[0]: \"devices_per_node\"");
  refuses_mixed(with_groups(pair, R"(,"devices":16)"), "unknown key \"devices\"");
  refuses_mixed(links("3"), "\"links\": expected an array");
  refuses_mixed(links(R"([{"between":[0,1],"bandwidth":1e9}])"), "links[0]: the key \"latency\" is missing");
  for (const char* bandwidth : {"0", "-1", "null", "1e300"})
    refuses_mixed(links(std::string(R"([{"between":[0,1],"latency":1e-6,"bandwidth":)") + bandwidth + "}]"),
                  "links[0]: \"bandwidth\"");
  refuses_mixed(links(R"([{"between":[0,2],"latency":1e-6,"bandwidth":1e9}])"), "there is no group 2");
  refuses_mixed(links(R"([{"between":[0,-1],"latency":1e-6,"bandwidth":1e9}])"), "there is no group -1");
  refuses_mixed(links(R"([{"between":[1,1],"latency":1e-6,"bandwidth":1e9}])"), "a link is between two groups");
  refuses_mixed(links(R"([{"between":[0],"latency":1e-6,"bandwidth":1e9}])"), "expected two groups");
  refuses_mixed(links(R"([{"between":[0,"old"],"latency":1e-6,"bandwidth":1e9}])"), "no group has the name");
  refuses_mixed(links(R"([{"between":[0,1],"latency":1e-6,"bandwidth":1e9},
                          {"between":["8xh100-80g","8xa100-80g"],"latency":1e-6,"bandwidth":1e9}])"),
                "links[1]: the link between groups 0 and 1 is given twice");
  refuses_mixed(with_groups(R"(["8xa100-80g","8xa100-80g"])",
                            R"(,"links":[{"between":[0,"8xa100-80g"],"latency":1e-6,"bandwidth":1e9}])"),
                "several groups have the name");
  const std::string bare = R"({"devices":1,"device":{"name":"x","memory":"16GiB","memory_bandwidth":1e11,
                               "rates":[{"precision":"fp32","peak_flops":1e12}]}})";
  refuses_mixed(with_groups("[" + bare + "," + bare + "]"), "nothing says how groups 0 (1xx) and 1 (1xx) are linked");
  CHECK(mixed_of(with_groups("[" + bare + ",\"8xa100-80g\"]")).has_value());  // the network that is known
  const auto equal = cluster_from_json(*parse_json(with_groups(pair), "m.json"), "m.json");
  REQUIRE_FALSE(equal.has_value());
  CHECK(says(equal.error().message, "m.json is a mixed cluster"));
}
