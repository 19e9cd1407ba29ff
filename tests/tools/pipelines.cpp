// labels: ranks
// Several pipelines over one model through the command: priced, simulated, told, trained, found, and bad input.
#include <algorithm>
#include <string>

#include "../folder.hpp"
#include "pipelines_plan.hpp"
#include "run.hpp"

namespace {

using nlohmann::json;

const std::string constants = " --data text.txt --lr 0.01 --min-lr 0.01 --warmup 0 --quiet --json ";

}  // namespace

TEST_CASE("a plan of several pipelines is priced, simulated and told on a mixed cluster") {
  const Folder folder;
  folder.write("p.json", pipelines_plan().dump());
  const Ran cost = folder.run("cost --plan p.json --json");
  CAPTURE(cost.err);
  REQUIRE(cost.code == 0);
  const json priced = cost.json();
  CHECK(priced.at("global_batch") == 16);
  REQUIRE(priced.at("pipelines").size() == 2);
  CHECK(priced.at("pipelines")[0] == json{{"samples", 12}, {"stages", 1}, {"microbatches", 3}});
  CHECK(priced.at("pipelines")[1] == json{{"samples", 4}, {"stages", 3}, {"microbatches", 4}});
  CHECK(priced.at("peak_bytes").size() == 4);
  CHECK(priced.at("plan").at("pipelines") == json{12, 4});
  const Ran ran = folder.run("simulate --plan p.json --json --trace t.json --report r.html");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  CHECK(ran.json().at("iteration_seconds") == priced.at("iteration_seconds"));
  CHECK(ran.json().at("events").size() == 2 * (3 + 3 * 4));
  CHECK(folder.read("r.html").find("pipeline-1") != std::string::npos);
  const Ran words = folder.run("explain p.json");
  REQUIRE(words.code == 0);
  for (const char* word : {"2 pipelines: 12 samples through 1 stage", "on group 1 (3xp100-16g)",
                           "A pipeline-0, B pipeline-1", "The step is limited by pipeline-0"})
    CHECK(words.out.find(word) != std::string::npos);
  // The slower devices take longer than the faster ones would.
  const json fast = folder.run("cost --plan p.json --json --cluster 4xv100-32g").json();
  CHECK(fast.at("iteration_seconds").get<double>() < priced.at("iteration_seconds").get<double>());
  check_failure(folder.run("cost --plan p.json --cluster 1xv100-32g+2xp100-16g"), 2, "has 3 devices");
}

TEST_CASE(
    "several pipelines train with one model's loss, and go on from checkpoints of one chain as it does from theirs") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", pipelines_plan().dump());
  REQUIRE(folder
              .run("plan --model llama-tiny --cluster 1xv100-32g --global-batch 16 --seq 32 --precision fp32 --out "
                   "one.json")
              .code == 0);
  const auto train = [&](const std::string& plan, const std::string& more) {
    const Ran ran = folder.run("train --plan " + plan + constants + more);
    CAPTURE(ran.err);
    REQUIRE(ran.code == 0);
    return ran.json();
  };
  const json several = train("p.json",
                             "--steps 6 --checkpoint several --checkpoint-every 3 --checkpoint-keep 9 "
                             "--metrics m.jsonl --trace t.json --report r.html");
  const json one = train("one.json", "--steps 6 --checkpoint one --checkpoint-every 3 --checkpoint-keep 9");
  CHECK(several.at("first_loss").get<double>() == doctest::Approx(one.at("first_loss").get<double>()).epsilon(1e-5));
  CHECK(several.at("last_loss").get<double>() == doctest::Approx(one.at("last_loss").get<double>()).epsilon(1e-4));
  CHECK(several.at("predicted_peak_bytes") == several.at("measured_peak_bytes"));
  CHECK_FALSE(several.contains("tasks"));
  CHECK(folder.read("m.jsonl").find("pipeline") == std::string::npos);
  for (const std::string from : {"several", "one"}) {
    CAPTURE(from);
    for (const std::string plan : {"p.json", "one.json"}) {
      const json rest = train(plan, "--steps 6 --resume " + from + "/step-00000003");
      CHECK(rest.at("steps") == 3);
      CHECK(rest.at("last_loss").get<double>() == doctest::Approx(one.at("last_loss").get<double>()).epsilon(1e-4));
    }
  }
}

TEST_CASE("what pipelines do not take is refused in one line") {
  const Folder folder;
  folder.write_text();
  const auto changed = [&](const char* key, const json& value) {
    json plan = pipelines_plan();
    plan[key] = value;
    folder.write("bad.json", plan.dump());
    return folder.run("cost --plan bad.json");
  };
  check_failure(changed("pipelines", {12, 5}), 2, "17 samples");
  check_failure(changed("pipelines", {8, 8}), 2, "3 micro-batches");
  check_failure(changed("model", "gpt2-tiny"), 2, "tied tables");
  check_failure(changed("sequence_length", 100000), 2, "100000 tokens");
  check_failure(changed("samples", {12, 4}), 2, "samples");
  folder.write("p.json", pipelines_plan().dump());
  const std::string base = "train --plan p.json --data text.txt --steps 1 --quiet ";
  check_failure(folder.run(base + "--held-out 4"), 2, "--held-out");
  check_failure(folder.run(base + "--validate text.txt"), 2, "several pipelines");
  check_failure(folder.run(base + "--ranks 3"), 2, "number of ranks: 4");
  check_failure(folder.run("train --plan p.json --steps 1 --quiet"), 2, "--data");
  check_failure(folder.run(base + "--resume nowhere"), 2, "nowhere");
  check_failure(folder.run("export p.json --to megatron"), 2, "not exported");
}

TEST_CASE("plan takes several pipelines where they are faster, and tells of them where they are not") {
  const Folder folder;
  // The big device alone cannot hold the model, and the small ones need several stages.
  const Ran ran =
      folder.run("plan --model llama2-7b --cluster 1xh100-80g+8xp100-16g --global-batch 512 --out p.json --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const json plan = ran.json();
  REQUIRE(plan.contains("pipelines"));
  REQUIRE(plan.at("pipelines").size() == 2);
  CHECK(plan.at("pipelines")[0].at("stages") == 1);
  CHECK(plan.at("pipelines")[1].at("stages").get<int>() > 1);
  CHECK(plan.at("iteration_seconds").get<double>() < plan.at("one_chain_seconds").get<double>());
  const json chain = folder
                         .run(
                             "plan --model llama2-7b --cluster 1xh100-80g+8xp100-16g --global-batch 512 --json "
                             "--space dp,zero1,zero2,zero3,tp,sp,cp,pp,recompute,selective,keep")
                         .json();
  CHECK(plan.at("one_chain_seconds").get<double>() <= chain.at("iteration_seconds").get<double>() * (1 + 1e-9));
  const json cost = folder.run("cost --plan p.json --json").json();
  CHECK(cost.at("iteration_seconds") == plan.at("iteration_seconds"));
  CHECK(cost.at("mfu").get<double>() > 0.1);
  CHECK(folder.run("explain p.json").out.find("one chain") != std::string::npos);
  const std::string other = "plan --model llama2-7b --cluster 8xa100-80g+8xh100-80g --global-batch 256 --out q.json";
  CHECK(folder.run(other).out.find("  pipelines    2 pipelines, one on each group, take ") != std::string::npos);
  CHECK(folder.run("explain q.json").out.find("several pipelines") != std::string::npos);
}
