// A process of a run with --adapt that gets a SIGKILL: the others go on, and the losses are those of an undisturbed
// run.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "training.hpp"

namespace {

std::vector<double> losses_of(const std::string& metrics) {
  std::vector<double> out;
  std::size_t first = 0;
  for (std::size_t end = 0; (end = metrics.find('\n', first)) != std::string::npos; first = end + 1) {
    const auto step = nlohmann::json::parse(metrics.substr(first, end - first));
    CHECK(step.at("step").get<std::size_t>() == out.size() + 1);  // none left out, none twice
    out.push_back(step.at("loss").get<double>());
  }
  return out;
}

/// A run of 200 steps in which `rank` is killed after some, at a small learning rate, for rounding grows with every
/// step. The script ends with the run's exit code.
std::string killed_run(int rank, const std::string& options) {
  return process_functions +
         "{ " GALVATRON_COMMAND
         " train --plan p.json --data text.txt --steps 200 --lr 0.0003 --warmup 4 --quiet --metrics m.jsonl --json "
         "--launcher mpi --adapt " +
         options + " > out.json; echo $? > code; } &\n" + "victim=$(pid_of " + std::to_string(rank) +
         "); wait_for m.jsonl\n" + "[ \"$(cat /proc/$victim/comm)\" = galvatron ] || victim=$(pid_of " +
         std::to_string(rank) + ")\n" + "kill -KILL $victim; wait; left > left; exit $(cat code)";
}

}  // namespace

TEST_CASE("a killed process is replaced by a plan for the others") {
  const Folder undisturbed;
  undisturbed.write_text();
  undisturbed.write("p.json", plan_of({.data = 2}).dump());
  REQUIRE(undisturbed
              .run("train --plan p.json --data text.txt --steps 200 --lr 0.0003 --warmup 4 --quiet --metrics m.jsonl")
              .code == 0);
  const std::vector<double> expected = losses_of(undisturbed.read("m.jsonl"));
  struct Case {
    Shape shape;
    int rank;
    const char* options;
    int ranks_after;
  };
  for (const Case& one : {Case{{.data = 2}, 1, "", 1}, Case{{.data = 2}, 0, "--spare-ranks 1", 2},
                          Case{{.data = 2, .zero = 3}, 1, "--checkpoint saved --checkpoint-every 10", 1}}) {
    CAPTURE(one.rank);
    CAPTURE(one.options);
    const Folder folder;
    folder.write_text();
    folder.write("p.json", plan_of(one.shape).dump());
    const Ran ran = folder.shell(killed_run(one.rank, one.options));
    CAPTURE(ran.err);
    REQUIRE(ran.code == 0);
    const std::vector<double> losses = losses_of(folder.read("m.jsonl"));
    REQUIRE(losses.size() == expected.size());
    for (std::size_t i = 0; i < losses.size(); ++i) CHECK(std::abs(losses[i] - expected[i]) < 1e-5 * expected[0]);
    const auto out = nlohmann::json::parse(folder.read("out.json"));
    CHECK(out.at("steps") == 200);
    CHECK(out.at("first_loss").get<double>() == doctest::Approx(expected.front()));
    REQUIRE(out.at("adaptations").size() >= 1);
    const auto& adaptation = out.at("adaptations").front();
    CHECK(adaptation.at("rank") == one.rank);
    CHECK(adaptation.at("reason").get<std::string>().starts_with("was lost: "));
    CHECK(adaptation.at("seconds").get<double>() < 10);
    CHECK(out.at("predicted_peak_bytes").size() == static_cast<std::size_t>(one.ranks_after));
    CHECK(folder.read("left") == "0\n");
  }
}
