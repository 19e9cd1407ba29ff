// simulate, and what train writes of a run.
#include <cstdint>
#include <string>

#include <galvatron/strategy/schedule_kind.hpp>

#include "../sanitized.hpp"
#include "../simulate/trace_check.hpp"
#include "run.hpp"

namespace {

using nlohmann::json;

/// Two stages of two ranks for gpt2-tiny on a preset.
json two_stages(const std::string& cluster = "8xa100-80g") {
  json plan = small_plan(2);
  plan["cluster"] = cluster;
  plan["microbatches"] = 2;
  plan["stages"] = {{{"first_layer", 0}, {"last_layer", 1}, {"ranks", {0, 2}}},
                    {{"first_layer", 2}, {"last_layer", 3}, {"ranks", {2, 2}}}};
  return plan;
}

}  // namespace

TEST_CASE("a simulated plan takes the memory of its cost and about its time") {
  const Folder folder;
  folder.write("p.json", two_stages().dump());
  const Ran ran = folder.run("simulate --plan p.json --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const json report = ran.json();
  const json cost = folder.run("cost --plan p.json --json").json();
  CHECK(report.at("feasible") == true);
  CHECK(report.at("planned_iteration_seconds") == cost.at("iteration_seconds"));
  const double iteration = report.at("iteration_seconds");
  CHECK(iteration == doctest::Approx(cost.at("iteration_seconds").get<double>()).epsilon(0.2));
  REQUIRE(report.at("stages").size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    const json& stage = report.at("stages")[i];
    CHECK(stage.at("peak_bytes") == cost.at("stages")[i].at("peak_bytes"));
    CHECK(stage.at("busy_seconds").get<double>() + stage.at("bubble_seconds").get<double>() ==
          doctest::Approx(iteration));
    double time = 0;
    for (const auto& [name, seconds] : stage.at("time").items()) time += seconds.get<double>();
    CHECK(time == doctest::Approx(iteration));
    std::int64_t memory = 0;
    for (const auto& [name, bytes] : stage.at("memory").items()) memory += bytes.get<std::int64_t>();
    CHECK(memory == stage.at("peak_bytes").get<std::int64_t>());
  }
  const json& path = report.at("critical_path");
  CHECK(path.at("segments").back().at("end_seconds").get<double>() == doctest::Approx(iteration));

  const Ran text = folder.run("simulate --plan p.json");
  CHECK(text.code == 0);
  for (const char* words : {"iteration", "simulated", "waiting", "stage 1", "peak"})
    CHECK(text.out.find(words) != std::string::npos);
}

TEST_CASE("a trace and a report are written whole") {
  const Folder folder;
  folder.write("p.json", two_stages().dump());
  folder.write("<img src=x>.json", two_stages("8xh100-80g").dump());
  const Ran ran =
      folder.run("simulate --plan p.json --trace t.json --report r.html --compare p.json '<img src=x>.json' --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const json report = ran.json();
  CHECK(report.at("trace") == "t.json");
  CHECK(report.at("report") == "r.html");
  REQUIRE(report.at("compared").size() == 2);
  CHECK(report.at("compared")[0].at("iteration_seconds") == report.at("iteration_seconds"));
  CHECK(report.at("compared")[1].at("iteration_seconds").get<double>() < report.at("iteration_seconds").get<double>());
  CHECK(check_trace(json::parse(folder.read("t.json"))) ==
        doctest::Approx(report.at("iteration_seconds").get<double>() * 1e6).epsilon(1e-3));
  const std::string html = folder.read("r.html");
  CHECK(html.ends_with("</html>\n"));
  CHECK(html.find("<img") == std::string::npos);
  CHECK(html.find("&lt;img src=x&gt;.json") != std::string::npos);
}

TEST_CASE("another cluster or model may be named") {
  const Folder folder;
  folder.write("p.json", two_stages("nowhere.json").dump());
  check_failure(folder.run("simulate --plan p.json"), 2, "nowhere.json");
  CHECK(folder.run("simulate --plan p.json --cluster 8xa100-80g").code == 0);
  check_failure(folder.run("simulate --plan p.json --cluster 8xa100-80g --model llama2-7b"), 2, "layers");
  check_failure(folder.run("simulate --plan p.json --cluster 2xa100-80g"), 2, "devices");
}

TEST_CASE("a plan beyond its budget is simulated and called infeasible") {
  const Folder folder;
  json plan = two_stages();
  plan["predicted"] = {{"budget_bytes", 1 << 20}};
  folder.write("p.json", plan.dump());
  const Ran ran = folder.run("simulate --plan p.json --report r.html --json");
  REQUIRE(ran.code == 3);
  CHECK(ran.json().at("feasible") == false);
  CHECK(ran.json().at("smallest_feasible_memory_bytes") == ran.json().at("peak_bytes"));
  CHECK(folder.read("r.html").find("This plan does not fit") != std::string::npos);
  const Ran words = folder.run("simulate --plan p.json");
  CHECK(words.code == 3);
  CHECK(words.out.find("does not fit") != std::string::npos);
  // As in every other command that prices it.
  const Ran cost = folder.run("cost --plan p.json --json");
  CHECK(cost.code == 3);
  CHECK(cost.json().at("budget_bytes") == 1 << 20);
  CHECK(cost.json().at("feasible") == false);
  CHECK(cost.json().at("reason") == ran.json().at("reason"));
  CHECK(cost.json().at("smallest_feasible_memory_bytes") == ran.json().at("peak_bytes"));
  const Ran cost_words = folder.run("cost --plan p.json");
  CHECK(cost_words.code == 3);
  CHECK(cost_words.out.find("It does not fit") != std::string::npos);
  CHECK(folder.run("explain p.json").out.find("of 1.00 MiB. It does not fit") != std::string::npos);
}

TEST_CASE("millions of micro-batches are simulated, traced and priced within 4 GB of address space" *
          doctest::skip(galvatron::test::sanitized)) {
  const Folder folder;
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "zb-2p", "zb-v"})
    for (const std::int64_t m : {1'000'000, 10'000'019, 1'000'000'007}) {
      CAPTURE(schedule);
      CAPTURE(m);
      json plan = small_plan(1);
      plan["cluster"] = "8xa100-80g";
      plan["stages"] = {{{"first_layer", 0}, {"last_layer", 1}, {"ranks", {0, 1}}},
                        {{"first_layer", 2}, {"last_layer", 3}, {"ranks", {1, 1}}}};
      plan["microbatches"] = plan["global_batch"] = m;
      plan["schedule"] = schedule;
      plan["virtual_stages"] = usual_virtual_stages(*schedule_named(schedule));
      folder.write("p.json", plan.dump());
      const Ran ran = folder.shell(
          "ulimit -v 4000000 && ulimit -t 60 && $G simulate --plan p.json --trace t.json --report r.html --json");
      CAPTURE(ran.err);
      REQUIRE((ran.code == 0 || ran.code == 3));  // GPipe keeps them all
      const json report = ran.json();
      CHECK(report.at("followed_microbatches") < 100'000);
      CHECK(report.at("iteration_seconds").get<double>() ==
            doctest::Approx(report.at("planned_iteration_seconds").get<double>()).epsilon(0.2));
      CHECK(folder.read("t.json").find("micro-batches like those before, left out") != std::string::npos);
      CHECK(std::filesystem::file_size(folder.path() / "t.json") < 200'000'000);
      CHECK(folder.shell("ulimit -v 4000000 && ulimit -t 20 && $G cost --plan p.json").code == ran.code);
      CHECK(folder.shell("ulimit -v 4000000 && ulimit -t 20 && $G simulate --plan p.json")
                .out.find("micro-batches; the others repeat them") != std::string::npos);
    }
}

TEST_CASE("bad plans and outputs that cannot be written are bad input, and leave nothing behind") {
  const Folder folder;
  folder.write("p.json", two_stages().dump());
  folder.write("broken.json", "{\"version\": 1");
  json gap = two_stages();
  gap["stages"][1]["first_layer"] = 3;
  folder.write("gap.json", gap.dump());
  check_failure(folder.run("simulate"), 2, "--plan is missing");
  check_failure(folder.run("simulate --plan none.json"), 2, "none.json");
  check_failure(folder.run("simulate --plan broken.json"), 2, "broken.json");
  check_failure(folder.run("simulate --plan gap.json --report r.html"), 2, "gap");
  check_failure(folder.run("simulate --plan p.json --compare gap.json --trace t.json"), 2, "gap");
  check_failure(folder.run("simulate --plan p.json --trace none/t.json --report r.html"), 2, "--trace");
  check_failure(folder.run("simulate --plan p.json --trace t.json --report ."), 2, "--report");
  check_failure(folder.shell("ulimit -f 1; trap '' XFSZ; $G simulate --plan p.json --report r.html"), 2, "r.html");
  CHECK(folder.names().size() == 3);
}

TEST_CASE("a run is traced and reported beside its prediction") {
  const Folder folder;
  folder.write_text();
  json plan = two_stages("host");
  plan["stages"][0]["ranks"] = {0, 1};
  plan["stages"][1]["ranks"] = {1, 1};
  for (auto& layer : plan["layers"]) layer["data"] = 1;
  plan["embedding"]["data"] = plan["head"]["data"] = 1;
  folder.write("p.json", plan.dump());
  const std::string base = "train --plan p.json --data text.txt --steps 3 --quiet ";
  const Ran ran = folder.run(base + "--trace t.json --report r.html --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  CHECK(ran.json().at("trace") == "t.json");
  const json trace = json::parse(folder.read("t.json"));
  CHECK(check_trace(trace) > 0);
  int measured = 0;
  int simulated = 0;
  int forwards[2] = {0, 0};
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("name") == "process_name") {
      const auto name = event.at("args").at("name").get<std::string>();
      measured += name.find("measured") != std::string::npos ? 1 : 0;
      simulated += name.find("simulated") != std::string::npos ? 1 : 0;
    }
    const int process = event.at("pid");
    if (event.at("ph") == "X" && event.at("cat") == "forward" && process < 2) ++forwards[process];
  }
  CHECK(measured == 2);
  CHECK(simulated == 2);
  CHECK(forwards[0] == 2);
  CHECK(forwards[1] == 2);
  const std::string html = folder.read("r.html");
  CHECK(html.find("Predicted and measured") != std::string::npos);
  CHECK(html.find("rank 1, measured") != std::string::npos);

  // Being watched changes nothing.
  const json plain = folder.run(base + "--json").json();
  CHECK(plain.at("last_loss") == ran.json().at("last_loss"));
  CHECK(plain.at("measured_peak_bytes") == ran.json().at("measured_peak_bytes"));
  check_failure(folder.run(base + "--trace none/t.json"), 2, "--trace");
}
