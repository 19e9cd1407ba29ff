// plan, cost and explain.
#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>

#include <galvatron/strategy/schedule_kind.hpp>

#include "../sanitized.hpp"
#include "run.hpp"

namespace {

using nlohmann::json;

void check_report(const json& report) {
  CAPTURE(report.dump());
  CHECK(report.at("feasible") == true);
  for (const char* key : {"iteration_seconds", "samples_per_second", "tokens_per_second", "mfu", "search_seconds"})
    CHECK(report.at(key).is_number());
  CHECK(report.at("iteration_seconds").get<double>() > 0);
  CHECK(report.at("microbatches").is_number_integer());
  const auto schedule = report.at("schedule").get<std::string>();
  CHECK(schedule_named(schedule));
  REQUIRE(report.at("stages").size() >= 1);
  for (const auto& stage : report.at("stages")) {
    for (const char* key : {"first_layer", "last_layer", "devices", "peak_bytes"})
      CHECK(stage.at(key).is_number_integer());
    for (const char* key : {"forward_seconds", "backward_seconds"}) CHECK(stage.at(key).get<double>() > 0);
  }
  CHECK(report.at("plan").at("version") == 1);
}

std::int64_t most_bytes(const json& report) {
  std::int64_t most = 0;
  for (const auto& stage : report.at("stages")) most = std::max(most, stage.at("peak_bytes").get<std::int64_t>());
  return most;
}

}  // namespace

TEST_CASE("compressed dispatch to experts is planned where it is asked for") {
  const Folder folder;
  const std::string base = "plan --model moe-tiny --cluster 4xv100-32g --global-batch 8 --space dp,ep=4 --out p.json ";
  REQUIRE(folder.run(base).code == 0);
  const json plain = json::parse(folder.read("p.json"));
  CHECK_FALSE(plain.at("layers").at(0).contains("dispatch"));
  CHECK_FALSE(plain.contains("lsh"));
  const Ran plan = folder.run(base + "--expert-dispatch lsh --lsh-hashes 8 --lsh-width 2 --lsh-residual scaled --json");
  CAPTURE(plan.err);
  REQUIRE(plan.code == 0);
  const json file = json::parse(folder.read("p.json"));
  for (const json& layer : file.at("layers")) CHECK(layer.at("dispatch") == "lsh");
  CHECK(file.at("lsh").at("hashes") == 8);
  CHECK(file.at("lsh").at("width") == 2);
  CHECK(file.at("lsh").at("residual") == "scaled");
  const Ran cost = folder.run("cost --plan p.json --json");
  REQUIRE(cost.code == 0);
  CHECK(cost.json().at("iteration_seconds") == plan.json().at("iteration_seconds"));
  const std::string text = "plan --model moe-tiny --cluster 4xv100-32g --global-batch 8 ";
  check_failure(folder.run(text + "--lsh-hashes 8"), 2, "--expert-dispatch lsh");
  check_failure(folder.run(text + "--expert-dispatch plain --lsh-hashes 8"), 2, "choose lsh");
  check_failure(folder.run(text + "--expert-dispatch other"), 2, "plain|lsh");
}

TEST_CASE("plan, cost and explain agree") {
  const Folder folder;
  const Ran plan =
      folder.run("plan --model gpt2-350m --cluster 8xa100-40g --global-batch 64 --memory 8GiB --out p.json --json");
  REQUIRE(plan.code == 0);
  CHECK(plan.err.empty());
  const json report = plan.json();
  check_report(report);
  CHECK(most_bytes(report) <= (std::int64_t{8} << 30));
  const json file = json::parse(folder.read("p.json"));
  CHECK(file == report.at("plan"));
  for (const char* key : {"version", "model", "cluster", "global_batch", "sequence_length", "precision", "microbatches",
                          "schedule", "virtual_stages", "stages", "layers", "embedding", "head", "predicted"})
    CHECK(file.contains(key));
  CHECK(file.at("model") == "gpt2-350m");
  CHECK(file.at("cluster") == "8xa100-40g");
  CHECK(file.at("layers").size() == 24);
  CHECK(folder.names().size() == 1);

  const Ran cost = folder.run("cost --plan p.json --json");
  REQUIRE(cost.code == 0);
  check_report(cost.json());
  CHECK(cost.json().at("iteration_seconds") == report.at("iteration_seconds"));
  CHECK(cost.json().at("stages") == report.at("stages"));
  const Ran faster = folder.run("cost --plan p.json --cluster 8xh100-80g --json");
  REQUIRE(faster.code == 0);
  CHECK(faster.json().at("iteration_seconds").get<double>() < report.at("iteration_seconds").get<double>());

  const Ran explained = folder.run("explain p.json");
  CHECK(explained.code == 0);
  CHECK(explained.err.empty());
  CHECK(explained.out.find("Why this plan") != std::string::npos);
  const Ran text = folder.run("plan --model gpt2-350m --cluster 8xa100-40g --global-batch 64 --memory 8GiB");
  CHECK(text.code == 0);
  CHECK(text.out.find("tokens/s") != std::string::npos);
  CHECK(folder.run("cost --plan p.json").code == 0);
}

TEST_CASE("8-bit products are planned where the devices have them") {
  const Folder folder;
  const Ran ran = folder.run(
      "plan --model gpt-6.7b --cluster 8xh100-80g --global-batch 64 --precision fp8 --space runnable --out p.json "
      "--json");
  REQUIRE(ran.code == 0);
  CHECK(ran.json().at("plan").at("precision") == "fp8");
  CHECK(folder.run("cost --plan p.json --json").json().at("iteration_seconds") == ran.json().at("iteration_seconds"));
  check_failure(folder.run("cost --plan p.json --cluster 8xa100-80g"), 3, "have no 8-bit products");
  check_failure(folder.run("plan --model gpt-6.7b --cluster 8xa100-80g --global-batch 64 --precision fp8"), 3,
                "have no 8-bit products; plan with --precision bf16");
  check_failure(folder.run("plan --model gpt-6.7b --cluster 8xh100-80g --global-batch 64 --precision fp4"), 2, "fp8");
  CHECK(folder.run("export p.json --to megatron").out.find("--fp8-format hybrid") != std::string::npos);
}

TEST_CASE("models of several kinds of layers are planned, priced and explained") {
  const Folder folder;
  for (const auto& [model, layers, sequence] : {std::tuple("bert-huge-32", 32, 512),
                                                {"vit-huge-32", 32, 257},
                                                {"t5-large-32", 32, 512},
                                                {"swin-huge-32", 32, 3136}}) {
    const std::string name = model;
    CAPTURE(name);
    const auto report =
        folder.run("plan --model " + name + " --cluster 8xtitan-24g --global-batch 64 --out p.json --json").json();
    CHECK(report.at("feasible") == true);
    CHECK(report.at("plan").at("layers").size() == static_cast<std::size_t>(layers));
    CHECK(report.at("plan").at("sequence_length") == sequence);
    const auto cost = folder.run("cost --plan p.json --json").json();
    CHECK(cost.at("iteration_seconds") == report.at("iteration_seconds"));
    CHECK(folder.run("explain p.json").out.find(name) != std::string::npos);
  }
  check_failure(folder.run("plan --model vit-huge-32 --cluster 8xa100-80g --global-batch 8 --seq 128"), 2,
                "takes images, which are 257 tokens");
  folder.write("config.json", R"({"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12,
                                  "num_attention_heads": 12, "intermediate_size": 3072})");
  CHECK(folder.run("plan --model config.json --cluster 4xa100-80g --global-batch 8 --json").json().at("feasible") ==
        true);
}

TEST_CASE("the options narrow the search") {
  const Folder folder;
  const std::string base = "plan --model gpt2-350m --cluster 8xa100-40g --global-batch 64 --json ";
  const json narrowed =
      folder.run(base + "--seq 512 --precision fp32 --space pp=2,tp=4,sp=megatron --schedule gpipe --microbatches 8")
          .json();
  check_report(narrowed);
  const json& plan = narrowed.at("plan");
  CHECK(plan.at("sequence_length") == 512);
  CHECK(plan.at("precision") == "fp32");
  CHECK(plan.at("schedule") == "gpipe");
  CHECK(plan.at("microbatches") == 8);
  CHECK(plan.at("stages").size() == 2);
  for (const auto& layer : plan.at("layers")) {
    CHECK(layer.at("tensor") == 4);
    CHECK(layer.at("data") == 1);
  }
  CHECK(folder.run(base + "--threads 2").json().at("plan") == folder.run(base + "--threads 1").json().at("plan"));
  check_failure(folder.run("plan --model gpt2-350m --cluster 8xa100-40g --global-batch 64 --space dp,qp"), 2, "qp");
  check_failure(folder.run("plan --model gpt2-350m --cluster 8xa100-40g --global-batch 64 --schedule pipedream"), 2,
                "gpipe, 1f1b, interleaved, zb-h1, zb-2p, zb-v");
  check_failure(folder.run("plan --model gpt2-350m --cluster 8xa100-40g --global-batch 64 --schedule 1f1b,"), 2,
                "--schedule");
  check_failure(folder.run("plan --model gpt2-350m --cluster 8xa100-40g --global-batch 64 --microbatches 7"), 2,
                "7 micro-batches do not divide the global batch of 64");
  check_failure(folder.run("plan --model gpt2-350m --cluster 8xa100-40g --global-batch 64 --space all,ep=2"), 2,
                "--space ep=2: gpt2-350m has no experts");
  check_failure(folder.run("plan --model moe-tiny --cluster 8xa100-40g --global-batch 64 --space all,ep=3"), 2,
                "--space ep=3 does not divide the 8 experts of moe-tiny");
  check_failure(folder.run("plan --model gpt2-350m --cluster 8xa100-40g --global-batch 64 --seq 2048"), 2, "2048");
  check_failure(folder.run("plan --model gpt2-350m --cluster 8xa100-40g --global-batch 64 --precision fp4"), 2,
                "bf16|fp32|fp8");
  check_failure(folder.run("plan --model gpt2-350m --cluster 8xa100-40g --global-batch 64 --precision fp8"), 3,
                "no 8-bit products; plan with --precision bf16");
  CHECK(folder.run("plan --model gpt2-350m --cluster 8xh100-80g --global-batch 64 --precision fp8 --json")
            .json()
            .at("plan")
            .at("precision") == "fp8");
}

TEST_CASE("a batch may be left open, and then the most samples a second win") {
  const Folder folder;
  const std::string base = "plan --model gpt2-350m --cluster 8xa100-40g --json --global-batch ";
  const json swept = folder.run(base + "8..100").json();
  check_report(swept);
  REQUIRE(swept.at("batches").size() >= 2);
  CHECK(swept.at("batches").at(1).at("global_batch") == 16);
  for (const auto& one : swept.at("batches"))
    CHECK(one.at("samples_per_second").get<double>() <= swept.at("samples_per_second").get<double>());
  const std::int64_t batch = swept.at("plan").at("global_batch").get<std::int64_t>();
  CHECK(folder.run(base + std::to_string(batch)).json().at("plan") == swept.at("plan"));
  CHECK(folder.run(base + "auto").json().at("plan").at("global_batch").get<std::int64_t>() >= 8);
  for (const std::string bad : {"0", "8..", "..8", "-3", "8..4", "automatic", "1e3", "99999999999999999999"}) {
    CAPTURE(bad);
    check_failure(folder.run("plan --model gpt2-350m --cluster 8xa100-40g --global-batch " + bad), 2, "--global-batch");
  }
}

TEST_CASE("more effort gives no slower plan and a smaller gap") {
  const Folder folder;
  const std::string base = "plan --model llama3-70b --cluster 64xh100-80g --global-batch 1024 --json --effort ";
  const json usual = folder.run(base + "1").json();
  const json more = folder.run(base + "4").json();
  const auto gap = [](const json& report) {
    return 1 - report.at("bound_seconds").get<double>() / report.at("iteration_seconds").get<double>();
  };
  CHECK(more.at("iteration_seconds").get<double>() <= usual.at("iteration_seconds").get<double>());
  CHECK((!usual.at("proven").get<bool>() || more.at("proven").get<bool>()));
  CHECK(gap(more) < gap(usual));
  for (const std::string bad : {"0", "-1", "a lot"}) check_failure(folder.run(base + "'" + bad + "'"), 2, "--effort");
}

TEST_CASE("a search ends after --time with the best plan so far and the gap") {
  const Folder folder;
  const std::string base = "plan --model gpt-65b --cluster 4620xa100-40g --schedule all --global-batch ";
  for (const std::string batch : {"27720", "6930..27720"}) {
    CAPTURE(batch);
    const json report = folder.run(base + batch + " --effort 1000000 --json --time 0.5").json();
    check_report(report);
    CHECK(report.at("interrupted").get<bool>());
    CHECK_FALSE(report.at("proven").get<bool>());
    CHECK(report.at("bound_seconds").get<double>() <= report.at("iteration_seconds").get<double>());
    CHECK(report.at("search_seconds").get<double>() < 20);  // far above, for busy machines
  }
  CHECK(folder.run(base + "27720 --effort 1000000 --time 0.5").out.find("out of time") != std::string::npos);
  const json unhurried =
      folder.run("plan --model gpt2-tiny --cluster 4xa100-40g --global-batch 8 --json --time 600").json();
  CHECK(unhurried.at("proven").get<bool>());
  CHECK_FALSE(unhurried.at("interrupted").get<bool>());
  for (const std::string bad : {"0", "-1", "soon", "inf"})
    check_failure(folder.run(base + "27720 --time " + bad), 2, "--time");
}

TEST_CASE("the local search is an option, and never beats the exact one") {
  const Folder folder;
  const std::string base =
      "plan --model gpt2-774m --cluster 8xtitan-24g --global-batch 32 --memory 6GiB --json --search ";
  const json exact = folder.run(base + "exact").json();
  const json bmw = folder.run(base + "bmw").json();
  check_report(bmw);
  CHECK(bmw.at("iteration_seconds").get<double>() >= exact.at("iteration_seconds").get<double>() * (1 - 1e-9));
  for (const json& report : {exact, bmw})
    for (const char* alpha : {"alpha_t", "alpha_m"}) {
      CHECK(report.at(alpha).get<double>() >= 0);
      CHECK(report.at(alpha).get<double>() < 1);
    }
  CHECK(exact.at("bound_seconds").get<double>() <= exact.at("iteration_seconds").get<double>());
  check_failure(folder.run("plan --model gpt2-774m --cluster 8xtitan-24g --global-batch 32 --search greedy"), 2,
                "exact|bmw");
}

TEST_CASE("degrees that contradict each other or the devices are refused") {
  const Folder folder;
  const auto refused = [&](const std::string& space, const std::string& part,
                           const std::string& cluster = "8xa100-40g") {
    CAPTURE(space);
    check_failure(folder.run("plan --model gpt2-350m --cluster " + cluster + " --global-batch 24 --space " + space), 2,
                  part);
  };
  refused("tp=3", "tp=3");
  check_failure(folder.run("plan --model gpt2-350m --cluster 8xa100-40g --global-batch 24 --space pp=4"), 3,
                "all,pp=4 leaves the rest open");
  refused("all,tp=4,max-tp=2", "max-tp=2");
  refused("all,tp=4,tp=2", "contradicts 4");
  refused("all,pp=4,tp=4", "16 together");
  refused("all,pow2,dp=3", "no power of two", "12xa100-40g");
  refused("all,pp=5", "pp=5", "12xa100-40g");
  for (const std::string space : {"all,dp=3", "all,pp=6", "all,tp=2,dp=6", "all,pp=3,dp=4"}) {
    CAPTURE(space);
    const Ran ran =
        folder.run("plan --model gpt2-350m --cluster 12xa100-40g --global-batch 24 --json --space " + space);
    REQUIRE(ran.code == 0);
    check_report(ran.json());
  }
}

TEST_CASE("interleaved and zero-bubble plans are made and priced") {
  const Folder folder;
  for (const std::string schedule : {"interleaved", "zb-h1", "zb-2p", "zb-v"}) {
    CAPTURE(schedule);
    const json report = folder
                            .run(
                                "plan --model gpt2-350m --cluster 8xa100-40g --global-batch 64 --microbatches 16 "
                                "--space all,pp=4 --json --out p.json --schedule " +
                                schedule)
                            .json();
    CHECK(report.at("schedule") == schedule);
    CHECK(report.at("plan").at("schedule") == schedule);
    CHECK((report.at("plan").at("virtual_stages").get<int>() > 1) == (schedule == "interleaved" || schedule == "zb-v"));
    const json priced = folder.run("cost --plan p.json --json").json();
    CHECK(priced.at("iteration_seconds") == report.at("iteration_seconds"));
  }
  const json best =
      folder.run("plan --model gpt2-350m --cluster 8xa100-40g --global-batch 64 --json --schedule all").json();
  const json plain = folder.run("plan --model gpt2-350m --cluster 8xa100-40g --global-batch 64 --json").json();
  CHECK(best.at("iteration_seconds").get<double>() <= plain.at("iteration_seconds").get<double>());
}

TEST_CASE("a budget that is too small tells the smallest that works, and that one works") {
  const Folder folder;
  for (const std::string model : {"gpt2-tiny", "gpt2-350m", "llama2-7b"}) {
    CAPTURE(model);
    const std::string base =
        "plan --model " + model + " --cluster 8xa100-40g --global-batch 16 --out p.json --json --memory ";
    const Ran none = folder.run(base + "1MiB");
    CHECK(none.code == 3);
    const json report = none.json();
    CHECK(report.at("feasible") == false);
    CHECK(report.at("reason").get<std::string>().find("smallest") != std::string::npos);
    const auto smallest = report.at("smallest_feasible_memory_bytes").get<std::int64_t>();
    CHECK(none.err.starts_with("galvatron: "));
    CHECK(none.err.find(std::to_string(smallest)) != std::string::npos);
    CHECK(!folder.has("p.json"));
    const Ran works = folder.run(base + std::to_string(smallest));
    REQUIRE(works.code == 0);
    CHECK(most_bytes(works.json()) <= smallest);
    std::filesystem::remove(folder.path() / "p.json");
    CHECK(folder.run(base + std::to_string(smallest - 1)).code == 3);
  }
}

TEST_CASE("a number of devices that nothing fits is infeasible, with the reason") {
  const Folder folder;
  const Ran ran = folder.run("plan --model gpt2-tiny --cluster 7xa100-40g --global-batch 3 --json");
  CHECK(ran.code == 3);
  CHECK(ran.json().at("feasible") == false);
  CHECK(ran.json().at("smallest_feasible_memory_bytes").is_null());
  check_failure(folder.run("plan --model gpt2-tiny --cluster 7xa100-40g --global-batch 3"), 3, "7 devices");
  // The nearest numbers of devices that something fits are named, and it does.
  check_failure(folder.run("plan --model gpt2-tiny --cluster 7xa100-40g --global-batch 3"), 3,
                "some degrees fit 6 and 8 devices");
  CHECK(folder.run("plan --model gpt2-tiny --cluster 6xa100-40g --global-batch 3").code == 0);
  CHECK(folder.run("plan --model gpt2-tiny --cluster 8xa100-40g --global-batch 3").code == 0);
}

TEST_CASE("no plan takes more than a device has, whatever --memory says") {
  const Folder folder;
  const std::string base = "plan --model llama2-7b --cluster 8xa100-80g --global-batch 64 --json --memory ";
  const Ran all = folder.run("plan --model llama2-7b --cluster 8xa100-80g --global-batch 64 --json");
  const auto budget = all.json().at("budget_bytes").get<std::int64_t>();
  for (const std::string memory : {"80GiB", "500GiB"}) {
    const Ran ran = folder.run(base + memory);
    REQUIRE(ran.code == 0);
    CHECK(most_bytes(ran.json()) <= budget);
    CHECK(ran.json().at("budget_bytes") == budget);
    CHECK(ran.json().at("plan").at("layers") == all.json().at("plan").at("layers"));
    CHECK(ran.err.find("more than a device of") != std::string::npos);
  }
  const Ran less = folder.run(base + "60GiB");
  CHECK(less.json().at("budget_bytes") == std::int64_t{60} << 30);
  CHECK(less.err.find("more than a device of") == std::string::npos);
}

TEST_CASE("searches of hundreds of thousands of devices and of long ranges end within 4 GB, and say what they know" *
          doctest::skip(galvatron::test::sanitized)) {
  const Folder folder;
  const std::string limits = "ulimit -v 4000000 && ulimit -t 90 && $G plan --json --model ";
  for (const std::string search : {"llama2-70b --cluster 60xh100-80g --global-batch 28 --schedule zb-h1",
                                   "gpt3-175b --cluster 110880xh100-80g --global-batch 110880",
                                   "llama2-7b --cluster 8xh100-80g --global-batch 1..1000000000 --schedule all"}) {
    CAPTURE(search);
    const Ran ran = folder.shell(limits + search);
    CAPTURE(ran.err);
    REQUIRE(ran.code == 0);
    const json report = ran.json();
    CHECK(report.at("bound_seconds").get<double>() <= report.at("iteration_seconds").get<double>() * (1 + 1e-9));
    if (report.at("proven") == true)
      CHECK(report.at("bound_seconds").get<double>() == doctest::Approx(report.at("iteration_seconds").get<double>()));
  }
}

TEST_CASE("a search that is interrupted gives its best plan so far, and the exit code of the signal") {
  const Folder folder;
  const std::string search =
      "$G plan --model llama2-70b --cluster 60xh100-80g --global-batch 28 --schedule zb-h1 --effort 10000 --out p.json "
      "--json";
  for (const auto& [signal, code] : {std::pair{"INT", 130}, std::pair{"TERM", 143}}) {
    CAPTURE(signal);
    // A background job of a shell without job control ignores SIGINT, so the command runs in front and the signal comes
    // from behind.
    const Ran ran = folder.shell("(sleep 5; kill -" + std::string(signal) +
                                 " $(cat pid)) & exec sh -c 'echo $$ > pid; exec " + search + "'");
    CAPTURE(ran.err);
    CAPTURE(ran.out);
    REQUIRE(ran.code == code);
    const json report = ran.json();
    CHECK(report.at("interrupted") == true);
    CHECK(report.at("proven") == false);
    CHECK(report.at("bound_seconds").get<double>() < report.at("iteration_seconds").get<double>());
    CHECK(report.at("plan") == json::parse(folder.read("p.json")));
    CHECK(folder.run("cost --plan p.json").code == 0);
    std::filesystem::remove(folder.path() / "p.json");
  }
}

TEST_CASE("unknown names and bad files are bad input") {
  const Folder folder;
  const std::string rest = " --global-batch 8";
  check_failure(folder.run("plan --model gpt2-tinny --cluster host" + rest), 2, "gpt2-tiny");
  check_failure(folder.run("plan --model missing/config.json --cluster host" + rest), 2, "missing/config.json");
  check_failure(folder.run("plan --model gpt2-tiny --cluster 8xz100" + rest), 2, "8xz100");
  check_failure(folder.run("plan --model gpt2-tiny --cluster 0xa100-80g" + rest), 2, "0xa100-80g");
  check_failure(folder.run("plan --model gpt2-tiny --cluster missing.json" + rest), 2, "missing.json");
  check_failure(folder.run("plan --model gpt2-tiny --cluster ." + rest), 2, "directory");
  folder.write("config.json", R"({"model_type": "gpt2", "n_embd": 64, "n_lay)");
  check_failure(folder.run("plan --model config.json --cluster host" + rest), 2,
                "config.json: not valid JSON at line 1");
  folder.write("config.json", R"({"model_type": "gpt2", "n_embd": 64})");
  check_failure(folder.run("plan --model config.json --cluster host" + rest), 2, "n_layer");
  folder.write("cluster.json", "{}");
  check_failure(folder.run("plan --model gpt2-tiny --cluster cluster.json" + rest), 2, "cluster.json");
  const std::string lab = R"({"format":"galvatron-cluster","version":1,"name":"lab","devices":8,"device":)";
  folder.write("lab.json", lab + R"("a100-80g"})");
  CHECK(folder.run("plan --model gpt2-tiny --cluster lab.json" + rest).code == 0);
  for (const auto& [device, why] :
       {std::pair{R"("q100")", "known are"}, std::pair{R"({"name":"x"})", "memory"},
        std::pair{R"("a100-80g","overlap_slowdown":0)", "overlap_slowdown"},
        std::pair{R"("a100-80g","across_nodes":{"latency":NaN,"bandwidth":1})", "not valid JSON"},
        std::pair{R"("a100-80g","across_nodes":{"latency":0,"bandwidth":0})", "bandwidth"}}) {
    folder.write("lab.json", lab + device + "}");
    check_failure(folder.run("plan --model gpt2-tiny --cluster lab.json" + rest), 2, why);
  }
  for (const std::string command : {"cost --plan ", "explain ", "train --data d --steps 1 --plan "}) {
    CAPTURE(command);
    check_failure(folder.run(command + "missing.json"), 2, "No such file");
    check_failure(folder.run(command + "."), 2, "directory");
    folder.write("p.json", "");
    check_failure(folder.run(command + "p.json"), 2, "not valid JSON");
    const std::string whole = small_plan().dump(1);
    for (const std::size_t length : {std::size_t{1}, whole.size() / 3, whole.size() - 2}) {
      folder.write("p.json", whole.substr(0, length));
      check_failure(folder.run(command + "p.json"), 2, "p.json: not valid JSON at line");
    }
  }
}

TEST_CASE("a plan names its files from its own folder, wherever it is read") {
  const Folder folder;
  const std::string config = R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32,
                                 "vocab_size": 256})";
  folder.write("cfg/config.json", config);
  folder.write("c/cluster.json", R"({"format": "galvatron-cluster", "version": 1, "name": "lab", "device": "a100-80g",
                                   "devices": 2, "devices_per_node": 2})");
  folder.write_text("elsewhere/text.txt");
  std::filesystem::create_directory(folder.path() / "sub");
  const Ran planned = folder.run(
      "plan --model cfg/config.json --cluster c/cluster.json --global-batch 4 --seq 16 --precision fp32 --space "
      "dp,runnable --out sub/p.json --json");
  CAPTURE(planned.err);
  REQUIRE(planned.code == 0);
  CHECK(planned.json().at("plan").at("model") == "cfg/config.json");  // which is true of standard output
  const json plan = json::parse(folder.read("sub/p.json"));
  CHECK(plan.at("model") == "../cfg/config.json");
  CHECK(plan.at("cluster") == "../c/cluster.json");
  const std::string seconds = planned.json().at("iteration_seconds").dump();
  for (const std::string from : {".", "sub", "elsewhere"}) {
    CAPTURE(from);
    const std::string to = (from == "." ? "" : "../") + std::string("sub/p.json");
    const auto run = [&](const std::string& line) {
      const Ran ran = folder.shell("cd " + from + " && $G " + line);
      CAPTURE(line);
      CAPTURE(ran.err);
      CHECK(ran.code == 0);
      return ran;
    };
    CHECK(run("cost --json --plan " + to).json().at("iteration_seconds").dump() == seconds);
    run("explain " + to);
    run("simulate --plan " + to);
    run("export --to torchtitan " + to);
  }
  // Training, its checkpoint and what goes on after it, each from another folder.
  const auto train = [&](const std::string& from, const std::string& to, const std::string& options) {
    const Ran ran = folder.shell("cd " + from + " && $G train --plan " + to + "sub/p.json --data " + to +
                                 "elsewhere/text.txt --quiet " + options);
    CAPTURE(ran.err);
    CHECK(ran.code == 0);
  };
  train("elsewhere", "../", "--steps 2 --checkpoint ../saved");
  CHECK(json::parse(folder.read("saved/step-00000002/manifest.json")).at("model") == "../../cfg/config.json");
  train("sub", "../", "--steps 3 --resume ../saved");
  train(".", "", "--steps 1 --init-from saved");
  CHECK(folder.shell("cd c && $G export ../saved --to huggingface --out ../out").code == 0);
  CHECK(folder.run("list models out").code == 0);

  // Moved together, and a plan of before, whose paths are from the current folder.
  const Ran moved = folder.shell("mkdir new && mv cfg c sub new && cd elsewhere && $G cost --plan ../new/sub/p.json");
  CAPTURE(moved.err);
  CHECK(moved.code == 0);
  json before = plan;
  before["model"] = "cfg/config.json";
  before["cluster"] = "c/cluster.json";
  folder.write("new/sub/before.json", before.dump());
  CHECK(folder.shell("cd new && $G cost --plan sub/before.json").code == 0);
  const Ran lost = folder.shell("cd elsewhere && $G cost --plan ../new/sub/before.json");
  check_failure(lost, 2, "cannot read cfg/config.json: No such file");
}

TEST_CASE("a plan written by hand, without what was predicted, does everywhere") {
  const Folder folder;
  folder.write_text();
  json plan = small_plan();
  plan.erase("predicted");
  folder.write("p.json", plan.dump());
  for (const char* line : {"cost --plan p.json", "explain p.json", "simulate --plan p.json", "export p.json --to hetu",
                           "export p.json --to header", "train --plan p.json --data text.txt --steps 1"}) {
    CAPTURE(line);
    CHECK(folder.run(line).code == 0);
  }
}

TEST_CASE("a plan that contradicts itself is refused") {
  const Folder folder;
  const auto refused = [&](auto change, const std::string& cause) {
    json plan = small_plan();
    change(plan);
    folder.write("p.json", plan.dump());
    check_failure(folder.run("cost --plan p.json"), 2, cause);
    check_failure(folder.run("explain p.json"), 2, cause);
  };
  refused([](json& p) { p["version"] = 3; }, "version 3");
  refused([](json& p) { p.erase("head"); }, "head");
  refused([](json& p) { p["layers"][1]["data"] = 4; }, "layer 1");
  refused([](json& p) { p["layers"][1]["zero"] = 4; }, "zero");
  refused([](json& p) { p["stages"][0]["last_layer"] = 2; }, "layer");
  refused([](json& p) { p["stages"][0]["first_layer"] = 1; }, "gap");
  refused([](json& p) { p["layers"].push_back(p["layers"][0]); }, "layer");
  refused([](json& p) { p["microbatches"] = 3; }, "3 micro-batches do not divide");
  refused([](json& p) { p["model"] = "gpt2-124m"; }, "12");
}

TEST_CASE("no output overwrites what a command reads, or another output") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  REQUIRE(folder.run("profile --ranks 2 --seconds 0.05 --on-busy accept --precision fp32 --out c.json").code == 0);
  folder.write("link", "");
  std::filesystem::remove(folder.path() / "link");
  std::filesystem::create_symlink("p.json", folder.path() / "link");
  const std::string train = "train --plan p.json --data text.txt --steps 1 ";
  const std::string searched = "--model gpt2-tiny --cluster c.json --global-batch 4 ";
  const std::vector<std::string> before{folder.read("p.json"), folder.read("text.txt"), folder.read("c.json")};
  for (const std::string& line :
       {train + "--metrics text.txt", train + "--trace ./p.json", train + "--report link",
        train + "--metrics a --trace a", "train --auto --data text.txt --steps 1 --save-plan c.json " + searched,
        "plan --out c.json " + searched, std::string("simulate --plan p.json --trace p.json"),
        std::string("simulate --plan p.json --trace t --report t"),
        std::string("simulate --plan p.json --compare link --trace ") + (folder.path() / "p.json").string(),
        std::string("export p.json --to hetu --out p.json")}) {
    CAPTURE(line);
    check_failure(folder.run(line), 2, "name ");
    CHECK(std::vector<std::string>{folder.read("p.json"), folder.read("text.txt"), folder.read("c.json")} == before);
  }
  CHECK(folder.run(train + "--metrics /dev/null --trace /dev/null --quiet").code == 0);
}

TEST_CASE("an unwritable output is told before the work and leaves nothing behind") {
  const Folder folder;
  const std::string plan = "plan --model gpt2-tiny --cluster 8xa100-40g --global-batch 8 --out ";
  check_failure(folder.run(plan + "missing/p.json"), 2, "missing/p.json");
  check_failure(folder.run(plan + "."), 2, "directory");
  check_failure(folder.run("profile --seconds 3000 --out missing/c.json"), 2, "missing/c.json");
  check_failure(folder.run("profile --seconds 3000 --out /proc/nothing"), 2, "/proc/nothing");
  CHECK(folder.names().empty());
  folder.write("p.json", "old");
  CHECK(folder.run("plan --model gpt2-tiny --cluster 8xa100-40g --global-batch 8 --memory 1KiB --out p.json").code ==
        3);
  CHECK(folder.read("p.json") == "old");
  CHECK(folder.names().size() == 1);
  CHECK(folder.run(plan + "/dev/null").code == 0);
}
