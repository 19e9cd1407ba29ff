// flexsp: the cases in the folder that GALVATRON_FLEXSP_DATA names, plans of batches, and bad input.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "run.hpp"

namespace {

using nlohmann::json;

// The folder of the cases; empty, with a message, where there is none.
std::string flexsp_data() {
  const char* data = std::getenv("GALVATRON_FLEXSP_DATA");
  if (data != nullptr && std::filesystem::exists(data)) return data;
  MESSAGE("skipped: GALVATRON_FLEXSP_DATA names no folder with cases of FlexSP");
  return {};
}

// What the published formula gives for a group, in ms.
double flexsp_group_ms(const json& problem, int degree, const std::vector<std::int64_t>& lengths) {
  double sum = problem.at("beta1").get<double>();
  for (const std::int64_t length : lengths) {
    const auto s = static_cast<double>(length);
    sum += (problem.at("alpha1").get<double>() * s * s + problem.at("alpha2").get<double>() * s) / degree;
    if (degree > 1)
      sum += 16 * problem.at("layers").get<double>() * problem.at("hidden").get<double>() * s /
             (1048576.0 * degree * problem.at("alltoall_gb_per_s").at(std::to_string(degree)).get<double>());
  }
  return sum;
}

// The ms of a micro-batch; its groups are powers of two, within devices and memory. Adds its documents.
double check_flexsp_groups(const json& problem, const json& groups, std::vector<std::int64_t>& documents) {
  int devices = 0;
  double slowest = 0;
  for (const json& group : groups) {
    const int degree = group.at(0).get<int>();
    const auto lengths = group.at(1).get<std::vector<std::int64_t>>();
    CHECK((degree & (degree - 1)) == 0);
    devices += degree;
    std::int64_t tokens = 0;
    for (const std::int64_t length : lengths) tokens += length;
    CHECK(tokens <= problem.at("device_token_capacity").get<std::int64_t>() * degree);
    documents.insert(documents.end(), lengths.begin(), lengths.end());
    slowest = std::max(slowest, flexsp_group_ms(problem, degree, lengths));
  }
  CHECK(devices <= problem.at("devices").get<int>());
  return slowest;
}

void write_flexsp_cases(const Folder& folder, json cases, bool keep_expect) {
  if (!keep_expect)
    for (json& one : cases) one.erase("expect");  // answers are not read
  folder.write("cases.json", cases.dump());
}

json flexsp_file(const std::string& data, const std::string& name) {
  std::ifstream file(data + "/" + name + ".json");
  return json::parse(file);
}

json flexsp_answers(const Folder& folder, const std::string& data) {
  const Ran ran = folder.run("flexsp case cases.json --json --lengths " + data + "/wikipedia_lengths_100k.txt.gz");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  return ran.json();
}

json small_flexsp_problem() {
  return {{"devices", 8},
          {"alpha1", 5e-6},
          {"alpha2", 0.18},
          {"beta1", 600.0},
          {"layers", 32},
          {"hidden", 4096},
          {"alltoall_gb_per_s", {{"2", 119.5}, {"4", 104.0}, {"8", 96.5}}},
          {"device_token_capacity", 4000}};
}

}  // namespace

TEST_CASE("flexsp case: micro-batches at their proven optimum") {
  const std::string data = flexsp_data();
  if (data.empty()) return;
  const Folder folder;
  const json cases = flexsp_file(data, "exact_cases");
  write_flexsp_cases(folder, cases, false);
  const json answers = flexsp_answers(folder, data);
  CHECK(answers.size() == cases.size());
  for (const json& one : cases) {
    CAPTURE(one.at("name"));
    const json& answer = answers.at(one.at("name").get<std::string>());
    const json& expected = one.at("expect").at("paper");
    if (expected.at("status") == "infeasible") {
      CHECK(answer == json{{"infeasible", true}});
      continue;
    }
    std::vector<std::int64_t> documents;
    const double found = check_flexsp_groups(one.at("problem"), answer.at("groups"), documents);
    auto wanted = one.at("lengths").get<std::vector<std::int64_t>>();
    std::ranges::sort(wanted);
    std::ranges::sort(documents);
    CHECK(documents == wanted);
    CHECK(found <= expected.at("objective_ms").get<double>() + 1e-5);
    CHECK(found >= expected.at("lower_bound_ms").get<double>() - 1e-5);
  }
}

TEST_CASE("flexsp case: batches never above the released solver, nor above the greedy sweep") {
  const std::string data = flexsp_data();
  if (data.empty()) return;
  const Folder folder;
  const json cases = flexsp_file(data, "batches");
  write_flexsp_cases(folder, cases, false);
  const json answers = flexsp_answers(folder, data);
  CHECK(answers.size() == cases.size());
  for (const json& one : cases) {
    CAPTURE(one.at("name"));
    double total = 0;
    std::vector<std::int64_t> documents;
    for (const json& groups : answers.at(one.at("name").get<std::string>()).at("microbatches"))
      total += check_flexsp_groups(one.at("problem"), groups, documents);
    CHECK(static_cast<std::int64_t>(documents.size()) == one.at("batch_size").get<std::int64_t>());
    std::int64_t tokens = 0;
    for (const std::int64_t length : documents) tokens += length;
    CHECK(tokens == one.at("tokens").get<std::int64_t>());
    CHECK(total <= one.at("expect").at("greedy_sweep").at("total_ms").get<double>());
    CHECK(total <= one.at("expect").at("released").at("total_ms").get<double>());
  }
}

TEST_CASE("flexsp case: cuts, buckets and baselines are exact") {
  const std::string data = flexsp_data();
  if (data.empty()) return;
  const Folder folder;
  const json cuts = flexsp_file(data, "dp_cases");
  write_flexsp_cases(folder, cuts, true);
  json answers = flexsp_answers(folder, data);
  for (const json& one : cuts) {
    CAPTURE(one.at("name"));
    const json& answer = answers.at(one.at("name").get<std::string>());
    CHECK(answer.at("largest_part_tokens") == one.at("expect").at("largest_part_tokens"));
    json padding = json::array();
    for (const json& entry : one.at("expect").at("bucketing")) padding.push_back(entry.at("padding_tokens"));
    CHECK(answer.at("padding_tokens") == padding);
  }
  const json baselines = flexsp_file(data, "baselines");
  json asked = baselines;
  for (json& one : asked)
    for (json& row : one.at("rows")) row = json::array({row.at(0)});
  write_flexsp_cases(folder, asked, true);
  answers = flexsp_answers(folder, data);
  REQUIRE(answers.size() == baselines.size());
  for (std::size_t i = 0; i < baselines.size(); ++i) {
    const auto& rows = baselines[i].at("rows");
    for (std::size_t k = 0; k < rows.size(); ++k) {
      CAPTURE(i);
      CAPTURE(k);
      CHECK(std::abs(answers[i].at("static")[k].get<double>() / rows[k][1].get<double>() - 1) < 1e-9);
      CHECK(std::abs(answers[i].at("adaptive")[k].get<double>() / rows[k][3].get<double>() - 1) < 1e-9);
    }
  }
}

TEST_CASE("flexsp plan gives groups with ranks, the seconds of the formula, a bound, and the same each time") {
  const Folder folder;
  const json problem = small_flexsp_problem();
  folder.write("problem.json", problem.dump());
  std::string lengths;
  for (int i = 0; i < 96; ++i) lengths += std::to_string(i % 12 == 0 ? 9000 + 100 * i : 200 + 13 * i) + "\n";
  folder.write("lengths.txt", lengths);
  const std::string arguments =
      "flexsp plan --lengths lengths.txt --batch 48 --batches 2 --cluster 8xa100-40g --coefficients problem.json "
      "--max-seq 30000";
  const Ran ran = folder.run(arguments + " --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  json report = ran.json();
  REQUIRE(report.at("batches").size() == 2);
  for (json& batch : report["batches"]) {
    double total = 0;
    std::vector<std::int64_t> documents;
    for (const json& microbatch : batch.at("microbatches")) {
      json groups = json::array();
      std::set<int> ranks;
      for (const json& group : microbatch.at("groups")) {
        const auto own = group.at("ranks").get<std::vector<int>>();
        CHECK(static_cast<int>(own.size()) == group.at("degree").get<int>());
        CHECK(own.front() % group.at("degree").get<int>() == 0);
        for (const int rank : own) CHECK(ranks.insert(rank).second);
        CHECK(own.back() < 8);
        groups.push_back({group.at("degree"), group.at("sequences")});
      }
      const double ms = check_flexsp_groups(problem, groups, documents);
      CHECK(microbatch.at("seconds").get<double>() == doctest::Approx(ms / 1e3).epsilon(1e-9));
      total += ms / 1e3;
    }
    CHECK(documents.size() == 48);
    CHECK(batch.at("seconds").get<double>() == doctest::Approx(total).epsilon(1e-9));
    CHECK(batch.at("bound_seconds").get<double>() <= total * (1 + 1e-12));
    CHECK(total <= batch.at("homogeneous_seconds").get<double>());
    CHECK(batch.at("search_seconds").get<double>() > 0);
    batch.erase("search_seconds");
  }
  json again = folder.run(arguments + " --json").json();
  for (json& batch : again["batches"]) batch.erase("search_seconds");
  CHECK(again == report);
  const Ran table = folder.run(arguments);
  CHECK(table.code == 0);
  CHECK(table.out.find("<") != std::string::npos);
  CHECK(table.out.find("idle") != std::string::npos);
}

TEST_CASE("flexsp plan prices a model's groups on a cluster") {
  const Folder folder;
  std::string lengths;
  for (int i = 0; i < 64; ++i) lengths += std::to_string(i % 16 == 0 ? 20'000 + 1000 * i : 300 + 17 * i) + "\n";
  folder.write("lengths.txt", lengths);
  const std::string arguments =
      "flexsp plan --lengths lengths.txt --batch 64 --cluster 16xh100-80g --model llama3-8b "
      "--max-seq 100000 --json";
  const Ran ran = folder.run(arguments);
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const json batch = ran.json().at("batches").at(0);
  CHECK(batch.at("seconds").get<double>() < batch.at("homogeneous_seconds").get<double>());
  CHECK(batch.at("bound_seconds").get<double>() > 0.8 * batch.at("seconds").get<double>());
  const json powers = folder.run(arguments + " --degrees powers").json().at("batches").at(0);
  CHECK(batch.at("seconds").get<double>() <= powers.at("seconds").get<double>() * (1 + 1e-12));
}

TEST_CASE("flexsp says in one line what is wrong") {
  const Folder folder;
  folder.write("problem.json", small_flexsp_problem().dump());
  json bare = small_flexsp_problem();
  bare["device_token_capacity"] = 0;
  folder.write("bare.json", bare.dump());
  folder.write("lengths.txt", "100\n200\n40000\n300\n");
  folder.write("zero.txt", "100\n0\n");
  folder.write("long.txt", "100\n2147483649\n");
  folder.write("empty.txt", "");
  folder.write("case.json", R"([{"name": "a", "length_limit": 1000, "batch_size": 4, "iteration": 0}])");
  folder.write("batch.json", json::array({{{"name", "a"},
                                           {"problem", small_flexsp_problem()},
                                           {"length_limit", 64000},
                                           {"batch_size", 4},
                                           {"iteration", 5}}})
                                 .dump());
  const auto bad = [&](const std::string& arguments, int code, const std::string& words) {
    CAPTURE(arguments);
    const Ran ran = folder.run("flexsp " + arguments);
    CAPTURE(ran.err);
    CHECK(ran.code == code);
    CHECK(ran.out.empty());
    CHECK(ran.err.find(words) != std::string::npos);
    CHECK(std::ranges::count(ran.err, '\n') == 1);
  };
  const std::string plan = "plan --cluster 8xa100-40g --coefficients problem.json ";
  bad(plan + "--lengths zero.txt --batch 1 --max-seq 1000", 2, "line 2");
  bad(plan + "--lengths long.txt --batch 1 --max-seq 1000", 2, "2147483648");
  bad(plan + "--lengths empty.txt --batch 1 --max-seq 1000", 2, "empty");
  bad(plan + "--lengths none.txt --batch 1 --max-seq 1000", 2, "none.txt");
  bad(plan + "--lengths lengths.txt --batch 4 --max-seq 64000", 3, "40000 tokens fits no group");
  bad(plan + "--lengths lengths.txt --batch 4 --max-seq 50", 3, "--max-seq 50");
  bad(plan + "--lengths lengths.txt --batch 5 --max-seq 64000", 2, "4 are there");
  bad("plan --cluster 8xa100-40g --coefficients bare.json --lengths lengths.txt --batch 2 --max-seq 64000", 3,
      "no token");
  bad("plan --cluster 16xa100-40g --coefficients problem.json --lengths lengths.txt --batch 2 --max-seq 64000", 2,
      "make them agree");
  bad("plan --cluster 8xa100-40g --model llama3-8b --memory 1GiB --lengths lengths.txt --batch 2 --max-seq 64000", 3,
      "more devices");
  bad("plan --lengths lengths.txt --batch 2 --max-seq 64000 --cluster 8xa100-40g", 2, "--model");
  bad("case case.json", 2, "no case of FlexSP");
  bad("case batch.json", 2, "--lengths");
  bad("case batch.json --lengths lengths.txt", 2, "batch 5");
  bad("case problem.json", 2, "list of cases");
  bad("nothing", 2, "flexsp plan");
}
