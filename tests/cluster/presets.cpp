// Clusters by name.
#include <galvatron/cluster/cluster.hpp>
#include <galvatron/cluster/json.hpp>

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

using namespace galvatron;

TEST_CASE("a name may say how many devices a node has") {
  const Cluster four = value_or_throw(find_cluster("64xA100-80g:4"));
  CHECK(four.name == "64xa100-80g:4");
  CHECK(four.devices_per_node == 4);
  CHECK(four.nodes() == 16);
  Cluster eight = value_or_throw(find_cluster("64xa100-80g"));
  CHECK(eight.devices_per_node == 8);
  eight.devices_per_node = 4;
  eight.name = four.name;
  CHECK(four == eight);
  for (const char* const bad : {"8xa100-80g:9", "8xa100-80g:0", "8xa100-80g:", "8xa100-80g:x", "8xa100-80g:4:4"}) {
    CAPTURE(bad);
    const auto refused = find_cluster(bad);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().message.find("devices of a node") != std::string::npos);
  }
}

TEST_CASE("every listed preset loads, and round trips through JSON") {
  for (std::string name : cluster_names()) {
    if (name.front() == 'N') name.replace(0, 1, "64");
    auto cluster = load_cluster(name);
    REQUIRE_MESSAGE(cluster.has_value(), name);
    CHECK(cluster->name == name);
    CHECK(cluster->device.memory > cluster->device.library_workspace);
    CHECK(cluster->supports(Precision::fp32));
    CHECK(cluster->supports(Precision::bf16));
    auto back = cluster_from_json(cluster_to_json(*cluster), name);
    REQUIRE_MESSAGE(back.has_value(), (back ? std::string() : back.error().message));
    CHECK(*back == *cluster);
  }
}

TEST_CASE("COUNTxDEVICE counts devices, eight a node") {
  const Cluster small = value_or_throw(load_cluster("4xh100-80g"));
  CHECK(small.devices == 4);
  CHECK(small.devices_per_node == 4);
  CHECK(small.nodes() == 1);
  const Cluster large = value_or_throw(load_cluster("1024xh100-80g"));
  CHECK(large.devices_per_node == 8);
  CHECK(large.nodes() == 128);
  CHECK(large.peak_flops(Precision::bf16) == doctest::Approx(989e12));
}

TEST_CASE("the host has its devices share the cores of this machine") {
  const Cluster host = host_cluster(4, 2);
  CHECK(host.devices == 4);
  CHECK(host.cores == 2);
  CHECK(host.threads_per_rank == 1);
  CHECK(host_cluster(2, 8).threads_per_rank == 4);
  CHECK(value_or_throw(load_cluster("host")).devices >= 1);
}

TEST_CASE("unknown clusters are refused with the list of known ones") {
  for (const char* name :
       {"8xq100-80g", "Nxa100-80g", "0xa100-80g", "99999999999xa100-80g", "nothing", "xa100-80g", ""}) {
    auto cluster = load_cluster(name);
    REQUIRE_MESSAGE(!cluster.has_value(), name);
    CHECK(cluster.error().kind == ErrorKind::usage);
    CHECK_MESSAGE(cluster.error().message.find("a100-80g") != std::string::npos, cluster.error().message);
    CHECK(cluster.error().message.find('\n') == std::string::npos);
  }
}

TEST_CASE("names of clusters are read in any case of letters") {
  CHECK(value_or_throw(load_cluster("8xA100-80G")).name == "8xa100-80g");
  CHECK(value_or_throw(find_cluster("64XH100-80g")).devices == 64);
}

TEST_CASE("what is nearly a cluster brings the names that are meant") {
  for (const auto& [name, meant] :
       std::vector<std::pair<std::string, std::string>>{{"A100x8", "did you mean 8xa100-40g or 8xa100-80g?"},
                                                        {"8xa100", "did you mean 8xa100-40g or 8xa100-80g?"},
                                                        {"16 x A100 80GB", "did you mean 16xa100-80g?"},
                                                        {"a100-80g", "did you mean 8xa100-80g?"},
                                                        {"a100-80gx4", "did you mean 4xa100-80g?"},
                                                        {"H100", "did you mean 8xh100-80g?"},
                                                        {"32*h100", "did you mean 32xh100-80g?"},
                                                        {"8xh100-80gb", "did you mean 8xh100-80g?"},
                                                        {"8xh100-94g", "did you mean 8xh100-80g?"},
                                                        {"2xv100", "did you mean 2xv100-32g?"}}) {
    CAPTURE(name);
    const std::string message = load_cluster(name).error().message;
    CAPTURE(message);
    CHECK(message.find("; " + meant) != std::string::npos);
    CHECK(message.find("presets are") == std::string::npos);
  }
  for (const char* name : {"8xh1000", "8xq100", "nothing", "x8", "8x"})
    CHECK_MESSAGE(load_cluster(name).error().message.find("did you mean") == std::string::npos, name);
}
