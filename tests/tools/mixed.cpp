// Mixed clusters on the command line: planned, priced, simulated, told; and refused where they are not taken yet.
#include <string>

#include "run.hpp"

namespace {

using nlohmann::json;

const std::string two_kinds = R"({"format":"galvatron-cluster","version":1,"name":"lab",
  "groups":["2xa100-80g",{"like":"2xh100-80g","name":"new"}],
  "links":[{"between":[0,"new"],"latency":1e-6,"bandwidth":20e9}]})";

}  // namespace

TEST_CASE("a mixed cluster is planned for by name and by file, and the plan is priced, simulated and told") {
  const Folder folder;
  folder.write("lab.json", two_kinds);
  for (const std::string cluster : {"2xa100-80g+2xh100-80g", "lab.json"}) {
    CAPTURE(cluster);
    const Ran plan = folder.run("plan --model llama2-7b --cluster " + cluster +
                                " --global-batch 64 --seq 1024 --space pow2,dp,zero1,zero3,tp,pp --out p.json --json");
    CAPTURE(plan.err);
    REQUIRE(plan.code == 0);
    const json report = plan.json();
    CHECK(report.at("proven") == true);
    REQUIRE(report.at("stages").size() >= 2);
    int of_new = 0;
    for (const json& stage : report.at("stages")) {
      CHECK(stage.at("group_name") == (stage.at("group") == 0  ? "2xa100-80g"
                                       : cluster == "lab.json" ? "new"
                                                               : "2xh100-80g"));
      of_new += stage.at("group").get<int>();
    }
    CHECK(of_new >= 1);
    CHECK(report.at("plan").at("cluster") == cluster);
    const json cost = folder.run("cost --plan p.json --json").json();
    CHECK(cost.at("iteration_seconds") == report.at("iteration_seconds"));
    CHECK(cost.at("stages") == report.at("stages"));
    const json simulated = folder.run("simulate --plan p.json --trace t.json --report r.html --json").json();
    CHECK(simulated.at("planned_iteration_seconds") == report.at("iteration_seconds"));
    CHECK(simulated.at("stages").back().contains("group_name"));
    const Ran told = folder.run("explain p.json");
    CHECK(told.code == 0);
    CHECK(told.out.find(cluster == "lab.json" ? "on group 1 (new)" : "on group 1 (2xh100-80g)") != std::string::npos);
    CHECK(folder.run("plan --model llama2-7b --cluster " + cluster + " --global-batch 64 --seq 1024")
              .out.find(" on group 1 (") != std::string::npos);
  }
}

TEST_CASE("what does not take mixed clusters yet says so in one line") {
  const Folder folder;
  folder.write("lab.json", two_kinds);
  folder.write("lengths.txt", "100\n200\n300\n400\n");
  folder.write_text();
  for (const std::string cluster : {"2xa100-80g+2xh100-80g", "lab.json"}) {
    const std::string base = "--model llama-tiny --cluster " + cluster + " --global-batch 4 ";
    check_failure(folder.run("plan " + base + "--lengths lengths.txt"), 2, "does not take mixed clusters yet");
    check_failure(folder.run("plan " + base + "--search bmw"), 2, "--search bmw");
    check_failure(
        folder.run("flexsp plan --lengths lengths.txt --batch 2 --max-seq 512 --model llama-tiny --cluster " + cluster),
        2, "is a mixed cluster");
    check_failure(
        folder.run("train --auto --model llama-tiny --data text.txt --steps 1 --global-batch 4 --cluster " + cluster),
        2, "is a mixed cluster");
  }
  REQUIRE(folder
              .run("plan --model llama2-7b --cluster lab.json --global-batch 64 --seq 1024 --space pow2,dp,tp,pp=2 "
                   "--out p.json")
              .code == 0);
  check_failure(folder.run("export p.json --to megatron"), 2, "mixed clusters are not exported");
}

TEST_CASE("bad mixed clusters end with one line and exit code 2") {
  const Folder folder;
  const auto plan = [&](const std::string& cluster) {
    return folder.run("plan --model llama-tiny --global-batch 4 --cluster '" + cluster + "'");
  };
  check_failure(plan("2xa100-80g+2xq100-80g"), 2, "group 1: unknown device");
  check_failure(plan("2xa100-80g+"), 2, "group 1: unknown cluster");
  folder.write("none.json", R"({"format":"galvatron-cluster","version":1,"name":"x","groups":[]})");
  check_failure(plan("none.json"), 2, "expected 1 to 64 groups");
  folder.write("dead.json",
               R"({"format":"galvatron-cluster","version":1,"name":"x","groups":["2xa100-80g","2xh100-80g"],
                               "links":[{"between":[0,1],"latency":1e-6,"bandwidth":0}]})");
  check_failure(plan("dead.json"), 2, "\"bandwidth\"");
}
