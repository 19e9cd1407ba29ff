#include <galvatron/simulate/trace.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plans.hpp"
#include "trace_check.hpp"

using namespace galvatron;
using namespace galvatron::simulate;
using nlohmann::json;

TEST_CASE("slices nest, follow each other and end with the iteration") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  for (int n = 0; n < 40; ++n) {
    CAPTURE(n);
    const auto c = simulated::random_case(random);
    const auto s = value_or_throw(simulate_plan(c.plan, c.model, c.cluster));
    const json trace = json::parse(trace_text(c.plan, s));
    const double last = check_trace(trace);
    CHECK(last == doctest::Approx(s.iteration.value * 1e6).epsilon(1e-6));

    std::map<int, std::map<std::string, int>> passes;
    std::map<int, double> busy;
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("ph") != "X") continue;
      const auto category = event.at("cat").get<std::string>();
      ++passes[event.at("pid").get<int>()][category];
      if (category == "waiting") busy[event.at("pid").get<int>()] -= event.at("dur").get<double>();
    }
    REQUIRE(passes.size() == c.plan.stages.size());
    for (std::size_t i = 0; i < c.plan.stages.size(); ++i) {
      auto& of = passes[static_cast<int>(i)];
      CHECK(of["forward"] == c.plan.microbatches * c.plan.virtual_stages);
      CHECK(of["step"] == 1);
      CHECK(of["layer"] > of["forward"]);
      const double waited = -busy[static_cast<int>(i)] * 1e-6;
      CHECK(waited == doctest::Approx(s.stages[i][Activity::waiting].value).epsilon(1e-3));
    }
  }
}

TEST_CASE("memory counters stay within the planned peak and are most of it") {
  std::mt19937 random(7);
  const auto c = simulated::random_case(random);
  const auto s = value_or_throw(simulate_plan(c.plan, c.model, c.cluster));
  std::map<int, std::int64_t> most;
  const json trace = json::parse(trace_text(c.plan, s));
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "C") continue;
    std::int64_t sum = 0;
    for (const auto& [name, bytes] : event.at("args").items()) sum += bytes.get<std::int64_t>();
    auto& top = most[event.at("pid").get<int>()];
    top = std::max(top, sum);
  }
  REQUIRE(most.size() == c.plan.stages.size());
  for (const auto& [stage, bytes] : most) {
    const std::int64_t peak = s.cost.stages[static_cast<std::size_t>(stage)].peak().count;
    CHECK(bytes <= peak);
    CHECK(bytes > peak / 2);
  }
}

TEST_CASE("names may hold anything") {
  std::mt19937 random(1);
  auto c = simulated::random_case(random);
  c.plan.model = "a \"model\"\n</script><script>\\ \xff\x01";
  const auto s = value_or_throw(simulate_plan(c.plan, c.model, c.cluster));
  const json trace = json::parse(trace_text(c.plan, s));
  CHECK(trace.at("otherData").at("model").get<std::string>().starts_with("a \"model\"\n</script>"));
}

TEST_CASE("a trace with too many layers shows instructions") {
  const auto model = value_or_throw(find_model("llama2-7b"));
  const auto plan = simulated::even_plan(model, "64xa100-80g", 8, {.tensor = 8}, 8192, 8192, ScheduleKind::one_f_one_b);
  const auto s = value_or_throw(simulate_plan(plan, model, value_or_throw(find_cluster("64xa100-80g"))));
  const std::string text = trace_text(plan, s);
  CHECK(text.find("\"layer 3\"") == std::string::npos);
  CHECK(text.find("left out") != std::string::npos);
}

TEST_CASE("a measured rank is a process of its own") {
  using schedule::Op;
  const std::vector<Span> spans{{{Op::forward, 0}, {0.5e-3}, {1e-3}},
                                {{Op::send_activation, 0}, {1e-3}, {1.1e-3}},
                                {{Op::receive_gradient, 0}, {1.1e-3}, {2e-3}},
                                {{Op::backward, 0}, {2e-3}, {3e-3}},
                                {{Op::step}, {3e-3}, {4e-3}}};
  TraceWriter out;
  add_measured(out, 3, "rank 3", spans, nullptr, false);
  const json trace = json::parse(out.text());
  CHECK(check_trace(trace) == doctest::Approx(4000));
  int slices = 0;
  for (const json& event : trace.at("traceEvents")) slices += event.at("ph") == "X" ? 1 : 0;
  CHECK(slices == 5);
}
