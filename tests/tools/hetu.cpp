// hetu plan and hetu cost.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "run.hpp"

namespace {

using nlohmann::json;

// Profiles of a made-up node of 8 devices and a model of 8 layers.
void write_profiles(const Folder& folder) {
  json allreduce;
  json p2p;
  json messages;
  for (const int g : {2, 4, 8}) {
    const std::string size = std::to_string(g);
    allreduce["allreduce_size_" + size + "_consec_1"] = 150;
    if (g < 8) allreduce["allreduce_size_" + size + "_consec_0"] = 140;
    p2p["pp_size_" + size] = 120;
    for (int mb = 1; mb <= 64; mb *= 2) {
      messages["allreduce_size_" + size + "_" + std::to_string(mb) + "MB_time"] = 0.07 + 0.008 * mb;
      messages["all2all_size_" + size + "_" + std::to_string(mb) + "MB_time"] = 0.07 + 0.004 * mb;
    }
  }
  std::filesystem::create_directory(folder.path() / "hw");
  folder.write("hw/allreduce_bandwidth_1nodes_8gpus_per_node.json", allreduce.dump());
  folder.write("hw/p2p_bandwidth_1nodes_8gpus_per_node.json", p2p.dump());
  folder.write("hw/sp_time_1nodes_8gpus_per_node.json", messages.dump());
  folder.write("hw/overlap_coefficient.json", R"({"overlap_coe": 1.2})");
  json times;
  for (int b = 1; b <= 8; ++b) {
    times["layertype_0_bsz" + std::to_string(b) + "_seq1024"] = 2 + 0.5 / b;
    times["layertype_other_bsz" + std::to_string(b) + "_seq1024"] = 1.5;
  }
  folder.write("times.json", times.dump());
  json activation{{"checkpoint", 16}};
  json end;
  for (const int q : {1, 2, 4, 8}) {
    activation[std::to_string(q)] = 260.0 / q;
    end["model_states"][std::to_string(q)] = 1600.0 / q;
    end["activation"][std::to_string(q)] = 200.0 / q;
  }
  json memory;
  memory["layertype_0_sp"]["1024"] = {{"parameter_size", 400}, {"tp_activation_per_bsz_dict", activation}};
  for (const char* where : {"off", "on_first", "on_last"})
    memory[std::string("other_memory_pp_") + where + "_sp"]["1024"] = end;
  folder.write("memory.json", memory.dump());
}

const std::string common =
    " --hardware hw --computation times.json --memory-profile memory.json --devices 8 --nodes 1 --global-batch 32 "
    "--hidden 2048 --seq 1024 --layers 8 --json ";

void check_hetu_report(const json& report) {
  CAPTURE(report.dump());
  CHECK(report.at("feasible") == true);
  for (const char* key : {"iteration_seconds", "samples_per_second", "tokens_per_second", "mfu", "search_seconds"})
    CHECK(report.at(key).is_number());
  const auto seconds = report.at("iteration_seconds").get<double>();
  CHECK(seconds > 0);
  CHECK(report.at("samples_per_second").get<double>() == doctest::Approx(32 / seconds));
  CHECK(report.at("tokens_per_second").get<double>() == doctest::Approx(32 * 1024 / seconds));
  CHECK(report.at("microbatches").is_number_integer());
  CHECK(report.at("schedule") == "1f1b");
  int next = 0;
  for (const auto& stage : report.at("stages")) {
    CHECK(stage.at("first_layer") == next);
    next = stage.at("last_layer").get<int>() + 1;
    CHECK(stage.at("devices").is_number_integer());
    CHECK(stage.at("peak_bytes").is_number_integer());
    for (const char* key : {"forward_seconds", "backward_seconds"}) CHECK(stage.at(key).get<double>() > 0);
  }
  CHECK(next == 8);
  CHECK(report.at("plan").at("global_bsz") == 32);
}

}  // namespace

TEST_CASE("hetu plan and hetu cost agree") {
  const Folder folder;
  write_profiles(folder);
  const Ran plan = folder.run("hetu plan" + common + "--memory-gb 4 --out p.json");
  REQUIRE(plan.code == 0);
  CHECK(plan.err.empty());
  const json report = plan.json();
  check_hetu_report(report);
  CHECK(report.at("proven") == true);
  for (const auto& stage : report.at("stages"))
    CHECK(stage.at("peak_bytes").get<std::int64_t>() <= std::int64_t{4} << 30);
  CHECK(json::parse(folder.read("p.json")) == report.at("plan"));

  const Ran cost = folder.run("hetu cost" + common + "--memory-gb 4 --plan p.json");
  REQUIRE(cost.code == 0);
  check_hetu_report(cost.json());
  CHECK(cost.json().at("iteration_seconds") == report.at("iteration_seconds"));
  CHECK(cost.json().at("stages") == report.at("stages"));
  CHECK(cost.json().at("plan") == report.at("plan"));

  const Ran small = folder.run("hetu cost" + common + "--memory-gb 2 --plan p.json");
  CHECK(small.code == 3);
  CHECK(small.json().at("feasible") == false);
  CHECK(small.json().at("smallest_feasible_memory_bytes").get<std::int64_t>() > std::int64_t{2} << 30);

  std::string text = "hetu plan" + common + "--memory-gb 4";
  text.replace(text.find("--json"), 6, "");
  const Ran people = folder.run(text);
  CHECK(people.code == 0);
  CHECK(people.out.find("samples/s") != std::string::npos);
}

TEST_CASE("hetu plan is told to choose less") {
  const Folder folder;
  write_profiles(folder);
  const auto seconds = [&](const std::string& more) {
    const Ran ran = folder.run("hetu plan" + common + "--memory-gb 8 " + more);
    CAPTURE(more);
    REQUIRE(ran.code == 0);
    check_hetu_report(ran.json());
    return ran.json().at("iteration_seconds").get<double>();
  };
  const double best = seconds("");
  for (const char* less : {"--coarse", "--microbatches 4", "--max-tp 1", "--max-pp 1", "--whole-samples",
                           "--precision fp32", "--data ddp"})
    CHECK(seconds(less) >= best);
  seconds("--no-async-grad-reduce");
  const Ran chosen = folder.run("hetu plan" + common + "--memory-gb 4 --microbatches 4 --coarse");
  CHECK(chosen.json().at("microbatches") == 4);
  CHECK(chosen.json().at("plan").at("chunks") == 4);
}

TEST_CASE("hetu plan says what would fit") {
  const Folder folder;
  write_profiles(folder);
  const Ran none = folder.run("hetu plan" + common + "--memory-gb 0.5 --out p.json");
  CHECK(none.code == 3);
  CHECK(none.err.starts_with("galvatron: "));
  const json report = none.json();
  CHECK(report.at("feasible") == false);
  CHECK(report.at("reason").is_string());
  CHECK(!folder.has("p.json"));
  const auto smallest = report.at("smallest_feasible_memory_bytes").get<std::int64_t>();
  const auto with = [&](std::int64_t bytes) {
    const auto digits = json(static_cast<double>(bytes) / (1 << 30)).dump();
    return folder.run("hetu plan" + common + "--memory-gb " + digits).code;
  };
  CHECK(with(smallest) == 0);
  CHECK(with(smallest - 2) == 3);
}

TEST_CASE("hetu refuses bad usage and bad profiles") {
  const Folder folder;
  write_profiles(folder);
  const auto refused = [&](const std::string& arguments, const std::string& cause) {
    CAPTURE(arguments);
    check_failure(folder.run(arguments), 2, cause);
  };
  refused("hetu", "nothing to do");
  refused("hetu search", "\"search\" is unknown");
  refused(
      "hetu plan",
      "--hardware, --computation, --memory-profile, --devices, --nodes, --memory-gb, --global-batch, --hidden, --seq "
      "and --layers are missing");
  CHECK(folder.run("hetu --help").code == 0);
  CHECK(folder.run("hetu plan --help").code == 0);
  CHECK(folder.run("hetu cost --help").code == 0);

  // Without --json nothing goes to standard output.
  std::string quiet = common;
  quiet.replace(quiet.find("--json"), 6, "");
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string out = "hetu plan" + quiet + "--memory-gb 4";
    out.replace(out.find(from), from.size(), to);
    return out;
  };
  for (const char* option : {"--devices 8", "--nodes 1", "--global-batch 32", "--hidden 2048", "--seq 1024",
                             "--layers 8", "--memory-gb 4"}) {
    const std::string name = std::string(option).substr(0, std::string(option).find(' '));
    for (const char* bad : {" 0", " -1", " nan", " 1e99", " x", " ''"}) refused(changed(option, name + bad), name);
    refused(changed(option, ""), name + " is missing");
  }
  refused(changed("--nodes 1", "--nodes 3"), "not spread evenly");
  refused(changed("--nodes 1", "--nodes 2"), "2nodes_4gpus_per_node.json");
  refused(changed("--hardware hw", "--hardware nowhere"), "nowhere");
  refused(changed("times.json", "none.json"), "none.json");
  refused(changed("times.json", "memory.json"), "at least 8");
  refused(changed("--seq 1024", "--seq 2048"), "sequence length 2048");
  refused(changed("--memory-gb 4", "--memory-gb 4 --microbatches 5"), "do not divide");
  refused(changed("--memory-gb 4", "--memory-gb 4 --time-mode linear"), "batch|sequence|static");
  refused(changed("--memory-gb 4", "--memory-gb 4 --no-sequence-parallel"), "drop --no-sequence-parallel");
  refused(changed("--memory-gb 4", "--memory-gb 4 --out /nowhere/p.json"), "--out");

  folder.write("bad.json", "{\"a\": ");
  refused(changed("times.json", "bad.json"), "not valid JSON");
  folder.write("hw/p2p_bandwidth_1nodes_8gpus_per_node.json", R"({"pp_size_2": 100, "pp_size_4": 100})");
  refused(changed("--memory-gb 4", "--memory-gb 4"), "pp_size_8");
  CHECK(folder.run(changed("--memory-gb 4", "--memory-gb 4 --max-pp 4")).code == 0);
  folder.write("hw/p2p_bandwidth_1nodes_8gpus_per_node.json", R"({"pp_size_2": 0})");
  refused(changed("--memory-gb 4", "--memory-gb 4"), "above 0");
}

TEST_CASE("hetu cost refuses plans for another job") {
  const Folder folder;
  write_profiles(folder);
  std::string base = "hetu cost" + common + "--memory-gb 40 --plan p.json";
  base.replace(base.find("--json"), 6, "");
  json plan{{"pp_deg", 1}, {"tp_sizes_enc", "1,1,1,1,1,1,1,1"}, {"chunks", 2}};
  folder.write("p.json", plan.dump());
  CHECK(folder.run(base).code == 0);
  check_failure(folder.run(base + " --microbatches 4"), 2, "\"chunks\" is 2");
  const auto refused = [&](const char* key, const json& value, const std::string& cause) {
    json bad = plan;
    bad[key] = value;
    folder.write("p.json", bad.dump());
    CAPTURE(key);
    check_failure(folder.run(base), 2, cause);
  };
  refused("world_size", 16, "world_size");
  refused("global_bsz", 64, "global_bsz");
  refused("tp_sizes_enc", "1,1", "2 layers");
  refused("tp_sizes_enc", "16,1,1,1,1,1,1,1", "degree 16");
  refused("pp_deg", 3, "3 stages");
  refused("pp_division", "9", "9 layers");
  refused("chunks", 3, "do not divide");
  refused("chunks", 32, "less than one");
  refused("vtp", 16, "degree 16");
  // 8 micro-batches of 3 samples over 2 data ranks: a rank's 12 samples are cut by twos.
  json uneven{{"pp_deg", 1}, {"tp_sizes_enc", "4,4,4,4,4,4,4,4"}, {"chunks", 8}, {"vtp", 4}};
  folder.write("p.json", uneven.dump());
  std::string odd = "hetu cost" + common + "--memory-gb 8 --plan p.json";
  CHECK(folder.run(odd).err.empty());
  odd.replace(odd.find("--global-batch 32"), 17, "--global-batch 24");
  const Ran ran = folder.run(odd);
  CHECK(ran.code == 0);
  CHECK(ran.json().at("microbatches") == 8);
  CHECK(ran.json().at("microbatches_run") == 6);
  CHECK(ran.err.find("runs 6 micro-batches of up to 2 samples") != std::string::npos);
  plan.erase("chunks");
  folder.write("p.json", plan.dump());
  check_failure(folder.run(base), 2, "give --microbatches");
  CHECK(folder.run(base + " --microbatches 4").code == 0);
}

TEST_CASE("hetu cost prices Hetu's own plan as Hetu does") {
  const char* data = std::getenv("GALVATRON_HETU_DATA");
  if (data == nullptr || !std::filesystem::exists(data)) {
    MESSAGE("skipped: GALVATRON_HETU_DATA names no folder with Hetu-Galvatron's profiles");
    return;
  }
  const Folder folder;
  const std::string d = data;
  const Ran cost = folder.run(
      "hetu cost --hardware '" + d + "/hardware' --computation '" + d +
      "/models/computation_profiling_bf16_llama2-7b_all.json' --memory-profile '" + d +
      "/models/memory_profiling_bf16_llama2-7b_all.json' --devices 8 --nodes 1 --memory-gb 36 --global-batch 16 "
      "--hidden 4096 --seq 2048 --layers 32 --plan '" +
      d + "/plans/llama2-7b_8gpu_36GB_bsz16.json' --json");
  REQUIRE(cost.code == 0);
  CHECK(cost.json().at("samples_per_second").get<double>() == doctest::Approx(14.73233930110096).epsilon(1e-8));
  CHECK(cost.json().at("iteration_seconds").get<double>() == doctest::Approx(1.0860461243113173).epsilon(1e-8));
}
