// Documents of any length: planned, trained, resumed and refused by the command.
#include <cmath>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "../says.hpp"
#include "run.hpp"

namespace {

using galvatron::says;
using nlohmann::json;

/// Paragraphs of 6 to 210 bytes.
void write_documents(const Folder& folder) {
  std::string text;
  for (int i = 0; i < 400; ++i) {
    const int words = 1 + i * 37 % 11 * (i % 7 == 0 ? 3 : 1);
    for (int w = 0; w < words; ++w) text += "word" + std::to_string((i + w) % 13) + " ";
    text += "\n\n";
  }
  folder.write("documents.txt", text);
}

std::vector<json> metrics_of(const std::string& text) {
  std::vector<json> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) out.push_back(json::parse(line));
  return out;
}

const std::string documents_of_text =
    "--model llama-tiny --data documents.txt --document-separator '\n\n' --precision fp32 ";
const std::string packs =
    "train --auto --pack --global-batch 16 --profile-seconds 0.05 --on-busy accept " + documents_of_text;

}  // namespace

TEST_CASE("documents are packed, and trained as the same documents one by one") {
  const Folder folder;
  write_documents(folder);
  const Ran ran = folder.run(
      packs + "--ranks 2 --steps 6 --save-plan p.json --metrics m.jsonl --tensorboard t --report r.html --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const json report = ran.json();
  CHECK(report.at("last_loss").get<double>() < report.at("first_loss").get<double>());
  CHECK(report.at("predicted_peak_bytes") == report.at("measured_peak_bytes"));
  CHECK(report.at("predicted_iteration_seconds").get<double>() > 0);
  CHECK(says(folder.read("r.html"), "16 documents, those of step 6"));
  const json plan = json::parse(folder.read("p.json"));
  CHECK(plan.at("packed") == true);
  CHECK(plan.at("global_batch") == 16);
  const auto lines = metrics_of(folder.read("m.jsonl"));
  REQUIRE(lines.size() == 6);
  for (const json& line : lines) {
    CHECK(line.at("tokens").get<std::int64_t>() > 16);
    CHECK(line.at("padding").get<std::int64_t>() >= 0);
    CHECK(line.at("microbatches").get<std::int64_t>() >= 1);
    CHECK(line.at("groups").get<std::string>().starts_with("<"));
    CHECK(line.at("waited_seconds").get<double>() >= 0);
  }
  // Whatever the ranks and the limit are, steps have the same documents.
  const Ran one = folder.run(packs + "--ranks 1 --max-tokens 400 --steps 6 --metrics one.jsonl --json");
  REQUIRE(one.code == 0);
  const auto others = metrics_of(folder.read("one.jsonl"));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    CHECK(others[i].at("tokens") == lines[i].at("tokens"));
    CHECK(others[i].at("loss").get<double>() == doctest::Approx(lines[i].at("loss").get<double>()).epsilon(1e-4));
  }
  // A plan for documents says so by itself, and a run goes on after a checkpoint where it was in the data.
  const std::string given = "train --plan p.json " + std::string("--data documents.txt --document-separator '\n\n' ");
  REQUIRE(folder.run(given + "--steps 3 --checkpoint ck").code == 0);
  const Ran resumed = folder.run(given + "--steps 6 --resume ck --metrics r.jsonl --json");
  CAPTURE(resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK(metrics_of(folder.read("r.jsonl")).back().at("tokens") == lines.back().at("tokens"));
}

TEST_CASE("groups of every batch change, and a run repeats to the bit") {
  const Folder folder;
  write_documents(folder);
  const std::string run = packs + "--ranks 4 --steps 4 --sequence-groups per-batch --memory 24MiB ";
  const Ran first = folder.run(run + "--save-plan p.json --save-cluster c.json --metrics a.jsonl --json");
  CAPTURE(first.err);
  REQUIRE(first.code == 0);
  CHECK(first.json().at("predicted_peak_bytes") == first.json().at("measured_peak_bytes"));
  const json plan = json::parse(folder.read("p.json"));
  CHECK(plan.at("embedding").at("groups") == "per_batch");
  const std::string again = "train --plan p.json --data documents.txt --document-separator '\n\n' --steps 4 ";
  REQUIRE(folder.run(again + "--metrics b.jsonl").code == 0);
  REQUIRE(folder.run(again + "--late-plan static --metrics s.jsonl").code == 0);
  const auto a = metrics_of(folder.read("a.jsonl"));
  const auto b = metrics_of(folder.read("b.jsonl"));
  const auto s = metrics_of(folder.read("s.jsonl"));
  std::set<std::string> groups;
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].at("loss") == b[i].at("loss"));
    CHECK(a[i].at("gradient_norm") == b[i].at("gradient_norm"));
    CHECK(s[i].at("loss").get<double>() == doctest::Approx(a[i].at("loss").get<double>()).epsilon(1e-4));
    groups.insert(a[i].at("groups").get<std::string>());
  }
  CHECK(!groups.empty());
}

TEST_CASE("plans for documents of given lengths") {
  const Folder folder;
  std::string lengths;
  for (int i = 0; i < 600; ++i) lengths += std::to_string(i % 50 == 0 ? 30000 : 100 + i * 7 % 900) + "\n";
  folder.write("lengths.txt", lengths);
  const std::string base =
      "plan --model llama2-7b --cluster 16xa100-80g --global-batch 128 --lengths lengths.txt --out p.json ";
  const Ran fixed = folder.run(base + "--json");
  CAPTURE(fixed.err);
  REQUIRE(fixed.code == 0);
  CHECK(json::parse(folder.read("p.json")).at("packed") == true);
  const Ran groups = folder.run(base + "--sequence-groups per-batch --json");
  CAPTURE(groups.err);
  REQUIRE(groups.code == 0);
  CHECK(json::parse(folder.read("p.json")).at("layers").at(0).at("groups") == "per_batch");
  CHECK(groups.json().at("iteration_seconds").get<double>() < fixed.json().at("iteration_seconds").get<double>());
  // What a step looks like: in words, as JSON, and as a page.
  const Ran plain = folder.run("explain p.json");
  REQUIRE(plain.code == 0);
  CHECK(says(plain.out, "--lengths"));
  const Ran told = folder.run("explain p.json --lengths lengths.txt");
  CAPTURE(told.err);
  REQUIRE(told.code == 0);
  CHECK(says(told.out, "A step with 128 documents, the first 128 of lengths.txt"));
  CHECK(says(told.out, "micro-batch 0: "));
  std::istringstream lines(told.out);
  for (std::string line; std::getline(lines, line);) CHECK_MESSAGE(line.size() <= 80, line);
  const Ran shown = folder.run("simulate --plan p.json --lengths lengths.txt --report r.html --json");
  CAPTURE(shown.err);
  REQUIRE(shown.code == 0);
  const json step = shown.json().at("step");
  CHECK(step.at("documents") == 128);
  CHECK(step.at("seconds").get<double>() < shown.json().at("iteration_seconds").get<double>());
  CHECK(step.at("idle_fraction").get<double>() >= 0);
  std::size_t groups_shown = 0;
  std::int64_t documents_shown = 0;
  for (const json& one : step.at("microbatches"))
    for (const json& group : one.at("groups")) {
      ++groups_shown;
      documents_shown += group.at("documents").get<std::int64_t>();
      CHECK(group.at("first_rank").get<int>() + group.at("ranks").get<int>() <= 16);
    }
  CHECK(documents_shown == 128);
  const std::string page = folder.read("r.html");
  CHECK(says(page, "<h2>A step of documents</h2>"));
  std::size_t boxes = 0;
  for (std::size_t at = page.find("<title>micro-batch"); at != std::string::npos;
       at = page.find("<title>micro-batch", at + 1))
    ++boxes;
  CHECK(boxes == groups_shown);
  folder.write("samples.json", small_plan().dump());
  check_failure(folder.run("explain samples.json --lengths lengths.txt"), 2, "galvatron plan --lengths");

  check_failure(folder.run(base + "--seq 2048"), 2, "--max-tokens");
  check_failure(folder.run("plan --model llama2-7b --cluster 8xa100-80g --global-batch 8 --max-tokens 100"), 2,
                "--lengths");
  check_failure(folder.run(base + "--sequence-groups changing"), 2, "fixed|per-batch");
  folder.write("lengths.txt", "10\n0\n");
  check_failure(folder.run(base), 2, "lengths.txt");
  folder.write("lengths.txt", "4294967296\n");
  check_failure(folder.run(base), 2, "lengths.txt");
}

TEST_CASE("documents that cannot be packed are refused, each with what would help") {
  const Folder folder;
  write_documents(folder);
  const std::string run = packs + "--ranks 1 --steps 1 ";
  check_failure(folder.run(run + "--seq 64"), 2, "--max-tokens");
  check_failure(folder.run(run + "--max-tokens 20"), 2, "documents.txt");
  check_failure(folder.run("train --auto --model llama-tiny --global-batch 4 --steps 1 --data documents.txt "
                           "--document-separator x"),
                2, "--pack");
  check_failure(folder.run("train --auto --pack --model bert-tiny --global-batch 4 --steps 1 --data documents.txt"), 2,
                "next token");
  folder.write("documents.txt", "one two\n\n\n\nthree");
  check_failure(folder.run(run), 2, "--empty-documents skip");
  CHECK(folder.run(run + "--empty-documents skip").code == 0);
  folder.write("documents.txt", std::string(5000, 'x'));
  check_failure(folder.run(run), 2, "positions");
  folder.write("p.json", small_plan().dump());
  check_failure(folder.run("train --plan p.json --pack --data documents.txt --steps 1"), 2, "--auto --pack");
  folder.write("bad.jsonl", "{\"text\": \"good\"}\n{\"text\": 3}\n");
  check_failure(folder.run("train --auto --pack --model llama-tiny --global-batch 4 --steps 1 --data bad.jsonl"), 2,
                "bad.jsonl, line 2");
}
