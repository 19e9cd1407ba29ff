// Graphs of models: shapes and parameters, and programs that are the same by two searches.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/hap/a_star.hpp>
#include <galvatron/hap/cluster_devices.hpp>
#include <galvatron/hap/joint.hpp>
#include <galvatron/hap/memory.hpp>
#include <galvatron/hap/model_graph.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/zoo.hpp>

namespace {

using namespace galvatron;

// 64 devices of two kinds: V100 and P100 at the rates that HAP's authors fitted.
hap::Devices two_kinds() {
  hap::Devices out;
  for (int j = 0; j < 64; ++j) out.flops.push_back(j < 16 ? 3.859e12 : 2.149e12);
  out.bandwidth = {5.906e9, 9.463e9, 9.740e9, 24.588e9};
  out.latency = {1e-4, 1e-4, 1e-4, 1e-4};
  return out;
}

double parameter_elements(const hap::Graph& graph) {
  double out = 0;
  for (const hap::Node& node : graph.nodes)
    if (node.operation == hap::Operation::parameter) out += graph.tensor(node.output).elements();
  return out;
}

}  // namespace

TEST_CASE("the graph of a model has its parameters, and is a graph") {
  for (const char* name : {"gpt2-tiny", "gpt2-124m", "llama-tiny", "llama3-8b", "bert-tiny", "bert-large",
                           "vit-huge-32", "moe-tiny", "mixtral-8x7b", "roberta-moe"}) {
    CAPTURE(name);
    const ModelSpec model = value_or_throw(find_model(name));
    const hap::Graph graph = hap::graph_of(model, 8, model.positions());
    CHECK(hap::problem_of(graph).empty());
    CHECK(parameter_elements(graph) == static_cast<double>(parameters(model)));
    CHECK(graph.tensor(graph.loss).rank() == 0);
  }
}

TEST_CASE("layers that HAP has no operation for are refused by name") {
  for (const char* name : {"t5-large-32", "swin-huge-32", "deepseek-v3"}) {
    CAPTURE(name);
    const ModelSpec model = value_or_throw(find_model(name));
    CHECK_THROWS_WITH_AS(hap::graph_of(model, 8, model.positions()), doctest::Contains("no operation"), Failure);
  }
}

TEST_CASE("of a model both searches find programs of the same seconds, never above the alternation") {
  for (const char* name : {"gpt2-tiny", "llama-tiny", "bert-tiny", "vit-huge-32", "moe-tiny"})
    for (const std::int64_t batch : {1, 64}) {
      CAPTURE(name);
      CAPTURE(batch);
      const ModelSpec model = value_or_throw(find_model(name));
      const hap::Graph graph = hap::graph_of(model, batch, model.positions());
      const hap::Devices devices = two_kinds();
      const hap::Prices prices(graph, devices, hap::Dialect::paper);
      const hap::Instance instance(prices);
      const hap::Ratios ratios = hap::proportional_ratios(devices.flops);
      const auto dynamic = hap::best_program(instance, ratios);
      const auto found = hap::a_star(instance, ratios, hap::CostModel::operations);
      REQUIRE(dynamic);
      REQUIRE(found);
      CHECK(dynamic->seconds == doctest::Approx(found->seconds).epsilon(1e-11));
      const auto joint = hap::best_program_and_ratios(instance);
      CHECK(joint->bound >= joint->seconds * (1 - 1e-12));
      CHECK(joint->seconds <= hap::alternate(instance)->seconds * (1 + 1e-12));
    }
}

TEST_CASE("with fewer samples than devices, shards are of dimensions that have a piece for each device") {
  const ModelSpec model = value_or_throw(find_model("gpt2-124m"));
  const hap::Graph graph = hap::graph_of(model, 4, 256);
  hap::Devices devices = two_kinds();
  devices.flops.resize(12);
  const hap::Prices prices(graph, devices, hap::Dialect::paper);
  const auto sharded = [&](const hap::Answer& answer, std::int64_t least) {
    int few = 0;
    int heads = 0;
    for (const hap::Step& step : answer.program) {
      if (!step.layout.is_shard()) continue;
      const hap::Tensor& tensor = graph.tensor(step.tensor);
      few += tensor.pieces(step.layout.code) < least ? 1 : 0;
      heads += tensor.heads > 0 && step.layout.code == 2 ? 1 : 0;
    }
    return std::pair(few, heads);
  };
  const auto any = hap::best_program_and_ratios(hap::Instance(prices));
  CHECK(sharded(*any, 12).first > 0);
  const auto whole_rows = hap::best_program_and_ratios(hap::Instance(prices, 12));
  REQUIRE(whole_rows);
  CHECK(sharded(*whole_rows, 12).first == 0);
  CHECK(sharded(*whole_rows, 12).second > 0);  // there are 12 heads
  CHECK(whole_rows->seconds >= any->seconds);
  const auto star = hap::a_star(hap::Instance(prices, 12), whole_rows->ratios, hap::CostModel::operations);
  REQUIRE(star);
  CHECK(star->seconds == doctest::Approx(whole_rows->seconds).epsilon(1e-11));
}

TEST_CASE("less memory shards what was whole, until nothing fits") {
  const ModelSpec model = value_or_throw(find_model("bert-tiny"));
  const hap::Graph graph = hap::graph_of(model, 64, 128);
  hap::Devices devices = two_kinds();
  const hap::Prices prices(graph, devices, hap::Dialect::paper);
  const hap::Instance instance(prices);
  const auto free = hap::best_program_and_ratios(instance);
  const hap::Terms most = value_or_throw(hap::terms_of(prices, free->program));
  const double largest = *std::ranges::max_element(free->ratios);
  double before = 0;
  int fitting = 0;
  for (double share = 1; share > 0; share -= 0.05, ++fitting) {
    CAPTURE(share);
    devices.memory.assign(devices.count(), share * (most.whole_bytes + largest * most.sharded_bytes));
    const auto found = hap::best_in_memory(instance);
    if (!found) break;
    const hap::Terms terms = value_or_throw(hap::terms_of(prices, found->program));
    MESSAGE(share << " of the memory: " << found->seconds << " s, no program takes less than " << found->bound << " s");
    CHECK(hap::fits(devices, terms, found->ratios));
    CHECK(found->seconds >= before * (1 - 1e-12));
    CHECK(found->bound <= found->seconds * (1 + 1e-12));
    before = found->seconds;
  }
  CHECK(before > free->seconds);
  CHECK(fitting > 2);
  CHECK(fitting < 20);
}

TEST_CASE("devices of a cluster have rates, memory and collectives") {
  const Cluster cluster = value_or_throw(find_cluster("16xv100-32g"));
  const hap::Devices devices = hap::devices_of(cluster);
  CHECK(devices.count() == 16);
  CHECK(hap::problem_of(devices).empty());
  for (const double bytes : devices.memory) CHECK(bytes > 30e9);
  CHECK(devices.rate(hap::Collective::all_gather) > devices.rate(hap::Collective::all_reduce));
  CHECK(hap::problem_of(hap::devices_of(value_or_throw(find_cluster("1xv100-32g")))).empty());
}
