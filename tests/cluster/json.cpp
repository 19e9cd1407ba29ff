// Cluster files: what is written is read back, and bad files are refused in one line.
#include <galvatron/cluster/cluster.hpp>
#include <galvatron/cluster/json.hpp>

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace {

using namespace galvatron;

/// A cluster with every optional part, and numbers that have no short decimal form.
Cluster full_cluster() {
  Cluster cluster = value_or_throw(load_cluster("16xa100-80g"));
  cluster.cores = 48;
  cluster.threads_per_rank = 3;
  cluster.overlap_slowdown = 1.0 / 0.87;
  cluster.device.memory = {80'000'000'001};
  cluster.device.gemm_launch = {1e-6 / 7};
  cluster.device.gemm_start = 1.0 / 3;
  cluster.device.rates[0].sustained_share = 2.0 / 3;
  cluster.gemm.push_back(
      {op::Kind::gemm_nn, false, Precision::fp8, 0, LogGrid<3>({{{64, 512}, {64}, {64}}}, {1e-5, 1e-4})});
  cluster.gemm.push_back({op::Kind::gemm_tn, true, Precision::bf16, 4,
                          LogGrid<3>({{{16, 64}, {32}, {8, 16, 4096}}}, {1e-6 / 3, 2e-6, 3e-6, 4e-6, 5e-6, 1})});
  cluster.gemm.push_back({op::Kind::gemm_tn, true, Precision::bf16, 4,
                          LogGrid<3>({{{16, 64}, {32, 64}, {8}}}, {1e-6 / 3, 2e-6, 3e-6, 4e-6}), /*grouped=*/true});
  cluster.attention.push_back(
      {op::Kind::attention_backward, false, Precision::fp32, 2, LogGrid<3>({{{64, 512}, {64}, {1}}}, {1e-5, 1e-4})});
  cluster.memory_bound.push_back(
      {op::Kind::adamw, Precision::fp32, 1, LogGrid<2>({{{1000, 100000}, {1}}}, {1e-6, 1e-4})});
  cluster.messages.push_back({op::Kind::send, 2, true, 4, LogGrid<1>({{{64, 1 << 20}}}, {3e-6, 1e-4})});
  cluster.devices_per_pod = 8 * 4;
  cluster.across_pods = {{1e-5 / 3}, 1e9, 2e9, 3e9};
  cluster.calibration = {.date = "2026-01-02",
                         .cluster = "16xa100-80g",
                         .trainer = "megatron",
                         .runs = "runs.csv",
                         .steps = 7,
                         .noise = 0.1 / 7};
  cluster.calibration.term(CostTerm::products) = {1.0 / 0.93, 0.01 / 3, 0.99};
  cluster.calibration.term(CostTerm::send_across_nodes) = {0.7, 0.3, 0.1};
  return cluster;
}

std::string error_of(std::string_view text) {
  auto value = parse_json(text, "c.json");
  REQUIRE(value.has_value());
  auto cluster = cluster_from_json(*value, "c.json");
  REQUIRE_FALSE(cluster.has_value());
  CHECK(cluster.error().kind == ErrorKind::usage);
  CHECK(cluster.error().message.find('\n') == std::string::npos);
  return cluster.error().message;
}

const std::string small = R"({"format":"galvatron-cluster","version":1,"name":"lab","devices":2,
  "device":{"name":"x","memory":"16GiB","memory_bandwidth":1e11,"rates":[{"precision":"fp32","peak_flops":1e12}]},
  "inside_node":{"latency":1e-6,"bandwidth":1e9})";

}  // namespace

TEST_CASE("pods are whole nodes with a link between them") {
  const auto with = [](const std::string& pods) { return small + "," + pods + "}"; };
  CHECK(error_of(with(R"("devices_per_pod":3,"across_pods":{"latency":0,"bandwidth":1})")).find("no multiple") !=
        std::string::npos);
  CHECK(error_of(with(R"("devices_per_pod":2)")).find("across_pods") != std::string::npos);
  CHECK(error_of(with(R"("devices_per_pod":1,"across_pods":{"latency":0,"bandwidth":1})")).find("devices_per_pod") !=
        std::string::npos);
}

TEST_CASE("a calibration has a date and factors in range, and a factor multiplies one term") {
  const auto with = [](const std::string& calibration) { return small + ",\"calibration\":" + calibration + "}"; };
  CHECK(error_of(with(R"({"terms":{}})")).find("\"date\" is missing") != std::string::npos);
  CHECK(error_of(with(R"({"date":"","terms":{}})")).find("YYYY-MM-DD") != std::string::npos);
  CHECK(error_of(with(R"({"date":"2026-01-02","terms":{"prodcts":{"factor":1}}})")).find("products") !=
        std::string::npos);
  CHECK(error_of(with(R"({"date":"2026-01-02","terms":{"products":{"factor":0}}})")).find("factor") !=
        std::string::npos);
  CHECK(error_of(with(R"({"date":"2026-01-02","terms":{"products":{"spread":0.1}}})")).find("factor") !=
        std::string::npos);
  const auto value = parse_json(with(R"({"date":"2026-01-02","terms":{"optimizer":{"factor":1.5}}})"), "c.json");
  const Cluster read = value_or_throw(cluster_from_json(*value, "c.json"));
  for (const CostTerm term : cost_terms)
    CHECK(read.calibration.factor(term) == (term == CostTerm::optimizer ? 1.5 : 1));
}

TEST_CASE("a cluster survives the way to JSON text and back, bit for bit") {
  const Cluster cluster = full_cluster();
  const std::string text = cluster_to_json(cluster).dump();
  auto value = parse_json(text, "round trip");
  REQUIRE(value.has_value());
  auto back = cluster_from_json(*value, "round trip");
  REQUIRE_MESSAGE(back.has_value(), (back ? std::string() : back.error().message));
  CHECK(*back == cluster);
  Cluster other = cluster;
  other.messages.back().strided = false;
  CHECK_FALSE(*back == other);
}

TEST_CASE("a cluster file is written and loaded by its path") {
  const auto folder = std::filesystem::temp_directory_path() / "galvatron_cluster_json_test";
  std::filesystem::create_directories(folder);
  const auto path = folder / "c.json";
  REQUIRE(write_cluster(path, full_cluster()).has_value());
  auto back = load_cluster(path.string());
  REQUIRE(back.has_value());
  CHECK(*back == full_cluster());
  CHECK_FALSE(write_cluster(folder / "missing" / "c.json", full_cluster()).has_value());
  std::filesystem::remove_all(folder);
}

TEST_CASE("a file with the few required keys is enough") {
  auto value = parse_json(small + "}", "c.json");
  REQUIRE(value.has_value());
  auto cluster = cluster_from_json(*value, "c.json");
  REQUIRE_MESSAGE(cluster.has_value(), (cluster ? std::string() : cluster.error().message));
  CHECK(cluster->devices_per_node == 2);
  CHECK(cluster->device.memory == Bytes{std::int64_t{16} << 30});
  CHECK(cluster->inside_node.send_bandwidth == 1e9);
  CHECK(cluster->supports(Precision::fp32));
  CHECK_FALSE(cluster->supports(Precision::bf16));
  CHECK(cluster->peak_flops(Precision::bf16) == 0);
}

TEST_CASE("a file may name a preset's device and say only what differs") {
  const auto read = [](const std::string& rest) {
    const std::string text =
        R"({"format":"galvatron-cluster","version":1,"name":"lab","devices":16,"devices_per_node":8)" + rest + "}";
    return value_or_throw(cluster_from_json(value_or_throw(parse_json(text, "c.json")), "c.json"));
  };
  const Cluster preset = value_or_throw(find_cluster("16xa100-80g"));
  Cluster same = read(R"(,"device":"a100-80g")");
  CHECK(same.name == "lab");
  same.name = preset.name;
  CHECK(same == preset);
  const Cluster slow = read(R"(,"device":"a100-80g","across_nodes":{"latency":1e-5,"bandwidth":1.2e9})");
  CHECK(slow.across_nodes.bandwidth == 1.2e9);
  CHECK(slow.inside_node == preset.inside_node);
  CHECK(slow.messages == preset.messages);
  const Cluster bridged = read(R"(,"device":"a100-80g","inside_node":{"latency":1e-5,"bandwidth":20e9})");
  CHECK(bridged.inside_node.all_reduce_bandwidth == 20e9);
  CHECK(bridged.messages.empty());  // they were measured on another link
  const Cluster measured =
      read(R"(,"device":"a100-80g","messages":[{"kind":"all_reduce","group":8,"points":[[1024,1e-5]]}])");
  CHECK(measured.messages.size() == 1);
  CHECK(read(R"(,"device":"a100-80g","overlap_slowdown":1.4)").overlap_slowdown == 1.4);
  Cluster changed = read(R"(,"device":{"like":"a100-80g","name":"a100-pcie","memory":"40GiB",
    "attention":[{"pass":"forward","head_dim":128,"shares":[[512,0.07],[8192,0.11]]}]})");
  CHECK(changed.device.name == "a100-pcie");
  CHECK(changed.device.memory == Bytes{std::int64_t{40} << 30});
  CHECK(changed.device.attention.size() == 1);
  changed.device.name = preset.device.name;
  changed.device.memory = preset.device.memory;
  changed.device.attention = preset.device.attention;
  CHECK(changed.device == preset.device);
  CHECK(changed.messages == preset.messages);
}

TEST_CASE("bad cluster files are refused with the place and the reason") {
  CHECK(error_of("[]").find("expected a JSON object") != std::string::npos);
  CHECK(error_of("{}").find("\"format\" is missing") != std::string::npos);
  CHECK(error_of(R"({"format":"galvatron-plan","version":1})").find("galvatron-plan") != std::string::npos);
  CHECK(error_of(R"({"format":"galvatron-cluster","version":7})").find("version 7") != std::string::npos);
  CHECK(error_of(small + R"(,"colour":1})").find("unknown key \"colour\"") != std::string::npos);
  CHECK(error_of(small + R"(,"devices_per_node":4})").find("more than the 2 devices") != std::string::npos);
  CHECK(error_of(small + R"(,"devices_per_node":1})").find("\"across_nodes\" is missing") != std::string::npos);
  CHECK(error_of(small + R"(,"overlap_slowdown":0.5})").find("overlap_slowdown") != std::string::npos);
  CHECK(error_of(small + R"(,"messages":[{"kind":"whisper","group":2,"points":[[1,1]]}]})")
            .find("known are all_reduce") != std::string::npos);
  CHECK(
      error_of(small + R"(,"messages":[{"kind":"send","group":2,"points":[[64,1e-6],[8,1e-6]]}]})").find("must rise") !=
      std::string::npos);
  CHECK(error_of(small + R"(,"messages":[{"kind":"send","group":2,"points":[[64,-1]]}]})").find("times lie") !=
        std::string::npos);
  CHECK(error_of(small + R"(,"messages":[{"kind":"send","group":2,"points":[[64,1,2]]}]})").find("pairs") !=
        std::string::npos);
  CHECK(error_of(small + R"(,"gemm":[{"layout":"nt","precision":"fp32","m":[16],"n":[16],"k":[16],"seconds":[1,2]}]})")
            .find("1 points and there are 2 values") != std::string::npos);
  CHECK(error_of(
            small +
            R"(,"gemm":[{"layout":"nt","precision":"fp32","m":[18446744073709551615],"n":[1],"k":[1],"seconds":[1]}]})")
            .find("of at most 9223372036854775807") != std::string::npos);
  CHECK(error_of(
            small +
            R"(,"gemm":[{"layout":"nn","writes":true,"precision":"fp32","m":[16],"n":[16],"k":[16],"seconds":[1]}]})")
            .find("only weight gradients") != std::string::npos);
  CHECK(error_of(small + R"(,"gemm":{}})").find("expected an array") != std::string::npos);
  std::string memory = small + "}";
  memory.replace(memory.find("16GiB"), 5, "16 apples");
  CHECK(error_of(memory).find("apples") != std::string::npos);
  std::string rates = small + "}";
  rates.replace(rates.find("1e12"), 4, "-3");
  CHECK(error_of(rates).find("peak_flops") != std::string::npos);
}

TEST_CASE("one table for all products of a kind, and one for each weight") {
  const auto table = [](const std::string& axes, int points) {
    std::string seconds = "1e-3";
    for (int i = 1; i < points; ++i) seconds += ",1e-3";
    return R"({"layout":"nt","precision":"fp32",)" + axes + R"(,"seconds":[)" + seconds + "]}";
  };
  const std::string grid = table(R"("m":[16],"n":[16,32],"k":[16])", 2);
  const std::string one = table(R"("m":[16,32],"n":[16],"k":[16])", 2);
  const std::string other = table(R"("m":[16,32],"n":[16],"k":[32])", 2);
  const auto text = parse_json(small + R"(,"gemm":[)" + grid + "," + one + "," + other + "]}", "c.json");
  REQUIRE(text.has_value());
  CHECK(value_or_throw(cluster_from_json(*text, "c.json")).gemm.size() == 3);
  CHECK(error_of(small + R"(,"gemm":[)" + grid + "," + grid + "]}").find("for the same thing") != std::string::npos);
  CHECK(error_of(small + R"(,"gemm":[)" + one + "," + other + "," + one + "]}").find("for the same thing") !=
        std::string::npos);
}

TEST_CASE("figures that no cluster has are refused") {
  const auto with = [](std::string_view before, std::string_view after) {
    std::string text = small + "}";
    const std::size_t at = text.find(before);
    REQUIRE(at != std::string::npos);
    text.replace(at, before.size(), after);
    return text;
  };
  const auto says = [](const std::string& text, const char* part) {
    const std::string message = error_of(text);
    INFO(message);
    CHECK(message.find(part) != std::string::npos);
  };
  for (const char* devices : {"0", "-8", "1.5", "1e300", "null", "\"two\"", "99999999999999999999"})
    says(with("\"devices\":2", std::string("\"devices\":") + devices), "devices");
  for (const char* rate : {"0", "-1", "1e300", "\"fast\"", "null"}) {
    says(with("1e12", rate), "peak_flops");
    says(with("\"memory_bandwidth\":1e11", std::string("\"memory_bandwidth\":") + rate), "memory_bandwidth");
    says(with("\"bandwidth\":1e9", std::string("\"bandwidth\":") + rate), "bandwidth");
  }
  says(with("\"latency\":1e-6", "\"latency\":-1e-6"), "latency");
  says(with("16GiB", "0GiB"), "memory");
  says(with("\"memory\":\"16GiB\"", "\"memory\":\"16GiB\",\"library_workspace\":\"17GiB\""), "library_workspace");
  says(with("\"name\":\"x\"", "\"name\":\"x\",\"gemm_start\":-1"), "gemm_start");
  says(with("\"name\":\"x\"", "\"name\":\"x\",\"gemm_launch\":-1"), "gemm_launch");
  says(with("1e12", "1e12,\"sustained_share\":0"), "sustained_share");
  says(with("1e12", "1e12,\"gemm_share\":1.5"), "gemm_share");
  says(with("[{\"precision\"", "[{\"precision\":\"fp32\",\"peak_flops\":2e12},{\"precision\""), "the same thing");
  says(with("[{\"precision\":\"fp32\",\"peak_flops\":1e12}]", "[]"), "at least one precision");
  const std::string table = R"({"kind":"send","group":2,"points":[[64,1e-6]]})";
  says(small + ",\"messages\":[" + table + "," + table + "]}", "entries 0 and 1");
  says(small + R"(,"messages":[{"kind":"all_reduce","group":1,"points":[[64,1e-6]]}]})", "group");
  says(small + R"(,"messages":[{"kind":"all_reduce","group":2,"points":[]}]})", "0 points");
  says(small + R"(,"messages":[{"kind":"all_reduce","group":2,"points":[[0,1e-6]]}]})", "positive integer");
  says(small + R"(,"cores":-1})", "cores");
  std::string by_name = small + "}";
  const std::size_t at = by_name.find("{\"name\":\"x\"");
  by_name.replace(at, by_name.find("}]}", at) + 3 - at, "\"q100\"");
  says(by_name, "known are titan-24g");
  for (const char* like : {"\"q100\"", "3", "null", "{}"})
    says(with("\"name\":\"x\"", std::string("\"like\":") + like), "known are titan-24g");
  says(with("{\"name\":\"x\"", "{\"like\":\"a100-80g\",\"colour\":1"), "colour");
  says(with("{\"name\":\"x\",\"memory\":\"16GiB\",\"memory_bandwidth\":1e11,\"rates\":[{\"precision\":\"fp32\",\"peak_"
            "flops\":1e12}]",
            "{\"like\":\"a100-80g\",\"rates\":[]"),
       "at least one precision");
  for (const char* text : {R"({"version":NaN})", R"({"version":Infinity})", R"({"version":1e999})", "{\"version\":1"}) {
    const auto value = parse_json(text, "c.json");
    REQUIRE_FALSE(value.has_value());
    CHECK(value.error().kind == ErrorKind::usage);
  }
}
