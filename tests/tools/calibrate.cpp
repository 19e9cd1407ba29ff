// calibrate: measured steps compared with predictions, the cluster file of what was learned, and profiles of some
// terms.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "run.hpp"

namespace {

/// Runs of a machine whose matrix products take `factor` times as long, as a table.
std::string slow_products(const Folder& folder, const std::string& cluster, double factor) {
  folder.write("truth.json", R"({"format":"galvatron-cluster","version":1,"name":"truth","devices":16,
    "devices_per_node":8,"device":"a100-80g","calibration":{"date":"2026-01-02","terms":{"products":{"factor":)" +
                                 std::to_string(factor) + "}}}}");
  std::string table = "plan,seconds\n";
  int number = 0;
  for (const std::string space : {"dp,zero1", "dp,tp,sp", "dp,pp", "dp,zero3,recompute"})
    for (const std::string model : {"gpt2-350m", "gpt2-774m"}) {
      const std::string plan = "plan" + std::to_string(number++) + ".json";
      const Ran made = folder.run("plan --model " + model + " --cluster " + cluster + " --global-batch 64 --space " +
                                  space + " --out " + plan + " --quiet");
      CAPTURE(made.err);
      REQUIRE(made.code == 0);
      const Ran priced = folder.run("cost --plan " + plan + " --cluster truth.json --json");
      REQUIRE(priced.code == 0);
      table += plan + "," + priced.json().at("iteration_seconds").dump() + "\n";
    }
  return table;
}

}  // namespace

TEST_CASE("what was put into a machine is learned, written, and used by other commands") {
  const Folder folder;
  const std::string cluster = "16xa100-80g";
  folder.write("runs.csv", slow_products(folder, cluster, 1.3));
  const Ran ran = folder.run("calibrate --runs runs.csv --cluster " + cluster + " --apply ours.json --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const auto report = ran.json();
  CHECK(report.at("applied") == "ours.json");
  CHECK(report.at("runs").size() == 8);
  CHECK(report.at("median_error").get<double>() > 0.1);
  CHECK(report.at("calibrated_median_error").get<double>() < 0.005);
  const auto& products = report.at("terms").at(0);
  CHECK(products.at("term") == "products");
  CHECK(products.at("factor").get<double>() == doctest::Approx(1.3).epsilon(0.05));
  CHECK(products.at("interval").at(0).get<double>() < 1.3);
  CHECK(products.at("interval").at(1).get<double>() > 1.3);
  CHECK_FALSE(products.at("runs").empty());
  for (const auto& term : report.at("terms"))
    if (term.at("term") == "all_to_all_across_nodes") CHECK(term.at("verdict") == "hidden");

  const auto learned = nlohmann::json::parse(folder.read("ours.json"));
  CHECK(learned.at("calibration").at("cluster") == cluster);
  CHECK(learned.at("calibration").at("runs") == "runs.csv");
  CHECK(learned.at("calibration").at("trainer") == "galvatron");
  CHECK(learned.at("calibration").at("date").get<std::string>().size() == 10);
  const Ran cost = folder.run("cost --plan plan0.json --cluster ours.json --json");
  REQUIRE(cost.code == 0);
  const auto priced = cost.json();
  CHECK(priced.at("iteration_seconds").get<double>() ==
        doctest::Approx(report.at("runs").at(0).at("measured_seconds").get<double>()).epsilon(0.01));
  bool calibrated = false;
  for (const auto& term : priced.at("spread")) calibrated = calibrated || term.at("source") == "calibrated";
  CHECK(calibrated);
  CHECK(folder.run("plan --model gpt2-350m --cluster ours.json --global-batch 64 --quiet").code == 0);

  const Ran text = folder.run("calibrate --runs runs.csv --cluster ours.json");
  REQUIRE(text.code == 0);
  CHECK(text.err.find("was calibrated on") != std::string::npos);
  CHECK(text.out.find("products") != std::string::npos);
  CHECK(text.out.find("no step waits for") != std::string::npos);
  CHECK(folder.names().size() == 11);  // nothing else was written
}

TEST_CASE("hostile tables end with exit code 2 and one line") {
  const Folder folder;
  const auto refused = [&](const std::string& arguments) {
    const Ran ran = folder.run("calibrate " + arguments);
    CAPTURE(ran.err);
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
    CHECK(std::ranges::count(ran.err, '\n') == 1);
    return ran.err;
  };
  const std::string on = " --cluster 8xa100-80g --model gpt2-350m";
  folder.write("good.csv", "dp,microbatches,seconds\n8,1,1\n");
  for (const std::string& bad : {std::string("\xff\xfe\0\0,,,\n", 9), std::string(1000, ','), std::string(1000, '['),
                                 std::string("a\n\n\"\n"), std::string("dp,microbatches,seconds\n8,1,1e400\n"),
                                 std::string("dp,microbatches,seconds\n99999999999999999999,1,1\n"), std::string()}) {
    folder.write("bad.csv", bad);
    refused("--runs bad.csv" + on);
  }
  refused("--runs missing.csv" + on);
  refused("--runs good.csv --cluster 8xa100-80g");                    // no model
  refused("--runs good.csv --cluster 4xa100-80g --model gpt2-350m");  // too few devices
  refused("--runs good.csv --cluster 8xa100-80g+8xh100-80g --model gpt2-350m");
  refused("--runs good.csv --apply good.csv" + on);
  refused("--runs good.csv --apply no/such/folder.json" + on);
  CHECK(folder.run("calibrate --runs good.csv" + on).code == 0);
}

TEST_CASE("a profile of some terms keeps the other figures of a cluster") {
  const Folder folder;
  REQUIRE(folder.run("profile --ranks 2 --seconds 0.3 --precision fp32 --on-busy accept --out all.json --quiet").code ==
          0);
  const Ran ran = folder.run(
      "profile --ranks 2 --seconds 0.3 --precision fp32 --on-busy accept --measure attention,inside_node "
      "--into all.json --out some.json --json --quiet");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const auto all = nlohmann::json::parse(folder.read("all.json"));
  const auto some = nlohmann::json::parse(folder.read("some.json"));
  CHECK(some.at("gemm") == all.at("gemm"));
  CHECK(some.at("memory_bound") == all.at("memory_bound"));
  CHECK(some.at("attention") != all.at("attention"));
  CHECK(some.at("attention").size() == all.at("attention").size());
  CHECK(some.at("messages") != all.at("messages"));
  CHECK(some.at("messages").size() == all.at("messages").size());
  const auto refused = [&](const std::string& arguments) {
    const Ran bad = folder.run("profile --ranks 2 --seconds 0.3 --quiet " + arguments);
    CHECK(bad.code == 2);
    CHECK(std::ranges::count(bad.err, '\n') == 1);
  };
  refused("--measure attention --out some.json");
  refused("--into all.json --out some.json");
  refused("--measure atention --into all.json --out some.json");
  refused("--measure trainer --into all.json --out some.json");
  refused("--measure attention --into all.json --out all.json");
}

TEST_CASE("cost and reports say how sure a prediction is, and what a measurement would leave of that") {
  const Folder folder;
  REQUIRE(folder.run("plan --model gpt2-350m --cluster 16xa100-80g --global-batch 64 --quiet --out plan.json").code ==
          0);
  const auto cost = folder.run("cost --plan plan.json --json").json();
  const auto terms = cost.at("measure").get<std::vector<std::string>>();
  REQUIRE_FALSE(terms.empty());
  CHECK(cost.at("measure_next").get<std::string>().find("--measure " + terms.front()) != std::string::npos);
  for (const auto& term : cost.at("spread")) CHECK(term.at("when_measured") <= term.at("relative"));
  const Ran simulated = folder.run("simulate --plan plan.json --report report.html --json");
  REQUIRE(simulated.code == 0);
  const auto interval = simulated.json().at("interval");
  CHECK(interval.at(0) < simulated.json().at("iteration_seconds"));
  CHECK(interval.at(1) > simulated.json().at("iteration_seconds"));
  const std::string report = folder.read("report.html");
  CHECK(report.find("How sure this is") != std::string::npos);
  CHECK(report.find("with 90 %") != std::string::npos);
}
