// Hetu-Galvatron's files: what is read, what is refused and how.
#include <galvatron/compat/hetu/files.hpp>

#include <doctest/doctest.h>

#include <string>

using namespace galvatron;
using nlohmann::json;

namespace {

json hardware_json() {
  return json::parse(R"({
    "allreduce": {"allreduce_size_8_consec_1": 100, "allreduce_size_4_consec_0": 50, "comment": "ignored"},
    "p2p": {"pp_size_2": 10},
    "sp": {"allreduce_size_4_1MB_time": 0.5, "allreduce_size_4_2MB_time": 0.7, "all2all_size_4_1MB_time": 0.25},
    "overlap": {"overlap_coe": 1.25}})");
}

json memory_json() {
  const json end = {{"model_states", {{"1", 400}, {"2", 200}}}, {"activation", {{"1", 32}, {"2", 16}}}};
  const json layer = {{"parameter_size", 100},
                      {"tp_activation_per_bsz_dict", {{"1", 64}, {"2", 32}, {"checkpoint", 8}}}};
  json longer = layer;
  longer["parameter_size"] = 101;
  longer["tp_activation_per_bsz_dict"]["1"] = 140;
  return {{"1_1_8_sp", {{"raw", 1}}},
          {"layertype_0_sp", {{"1024", layer}, {"2048", longer}}},
          {"other_memory_pp_off_sp", {{"1024", end}, {"2048", end}}},
          {"other_memory_pp_on_first_sp", {{"1024", end}, {"2048", end}}},
          {"other_memory_pp_on_last_sp", {{"1024", end}, {"2048", end}}}};
}

json computation_json() {
  json out = {{"layernum[2]_bsz1_seq1024", 15.0}, {"layertype_0_bsz1_seq2048", 11}};
  for (int b = 1; b <= 8; ++b) {
    out["layertype_0_bsz" + std::to_string(b) + "_seq1024"] = 4 + 1.0 / b;
    out["layertype_other_bsz" + std::to_string(b) + "_seq1024"] = 2;
  }
  return out;
}

json plan_json() {
  return {{"pp_deg", 2},
          {"tp_sizes_enc", "4,4"},
          {"tp_consecutive_flags", "1,1"},
          {"dp_types_enc", "0,1"},
          {"use_sp", "0,1"},
          {"checkpoint", "1,0"},
          {"global_bsz", 64},
          {"chunks", 16},
          {"pp_division", "1,1"},
          {"pipeline_type", "pipedream_flush"},
          {"default_dp_type", "zero2"},
          {"vtp", 2},
          {"vsp", 1},
          {"embed_sdp", 1}};
}

auto read_hardware(const json& value) { return hetu_hardware_from_json(value, "file"); }
auto read_model(const json& computation, const json& memory, HetuProfileOptions options = {.sequence = 1024}) {
  return hetu_model_from_json(computation, "times", memory, "memory", options);
}
auto read_plan(const json& value) { return hetu_plan_from_json(value, "plan"); }

template <class T>
void check_refused(const Result<T>& result, const std::string& cause) {
  REQUIRE(!result.has_value());
  CAPTURE(result.error().message);
  CHECK(result.error().kind == ErrorKind::usage);
  CHECK(result.error().message.find(cause) != std::string::npos);
  CHECK(result.error().message.find('\n') == std::string::npos);
}

template <class F>
json changed(json value, F&& change) {
  change(value);
  return value;
}

}  // namespace

TEST_CASE("a hardware profile") {
  const auto hardware = read_hardware(hardware_json());
  REQUIRE(hardware.has_value());
  CHECK(hardware->bandwidth.at({8, true}) == 100);
  CHECK(hardware->bandwidth.at({4, false}) == 50);
  CHECK(hardware->bandwidth.size() == 2);
  CHECK(hardware->between_stages.at(2) == 10);
  CHECK(hardware->overlap == 1.25);
  CHECK(hardware->all_reduce.at(4).at(2) == 0.7);
  CHECK(hardware->all_reduce.at(4).at(3) == doctest::Approx(0.9));
  CHECK(hardware->all_to_all.at(4).at(8) == doctest::Approx(2));
}

TEST_CASE("bad hardware profiles") {
  check_refused(read_hardware(json::array()), "expected a JSON object");
  for (const char* key : {"allreduce", "p2p", "sp", "overlap"}) {
    check_refused(read_hardware(changed(hardware_json(), [&](json& j) { j.erase(key); })), key);
    check_refused(read_hardware(changed(hardware_json(), [&](json& j) { j[key] = 3; })), "expected a JSON object");
  }
  for (const json& bad : {json(0), json(-1), json(nullptr), json("100"), json(1e300), json::array()}) {
    check_refused(read_hardware(changed(hardware_json(), [&](json& j) { j["p2p"]["pp_size_2"] = bad; })), "pp_size_2");
    check_refused(read_hardware(changed(hardware_json(), [&](json& j) { j["sp"]["all2all_size_4_1MB_time"] = bad; })),
                  "all2all_size_4_1MB_time");
    check_refused(read_hardware(changed(hardware_json(), [&](json& j) { j["overlap"]["overlap_coe"] = bad; })),
                  "overlap_coe");
  }
  check_refused(
      read_hardware(changed(hardware_json(), [](json& j) { j["allreduce"]["allreduce_size_0_consec_1"] = 1; })),
      "no number of ranks");
  check_refused(
      read_hardware(changed(hardware_json(), [](json& j) { j["allreduce"]["allreduce_size_2_consec_7"] = 1; })),
      "consec is 0 or 1");
  check_refused(read_hardware(changed(hardware_json(), [](json& j) { j["sp"]["all2all_size_2_0MB_time"] = 1; })),
                "not a size");
  check_refused(load_hetu_hardware("/nowhere", 8, 1), "allreduce_bandwidth_1nodes_8gpus_per_node.json");
  check_refused(load_hetu_hardware("/nowhere", 8, 3), "not spread evenly");
}

TEST_CASE("a model profile") {
  const auto model = read_model(computation_json(), memory_json());
  REQUIRE(model.has_value());
  CHECK(model->layer.slope == doctest::Approx(4));
  CHECK(model->layer.intercept == doctest::Approx(1));
  CHECK(model->ends.slope == doctest::Approx(2));
  CHECK(model->parameters == 100);
  CHECK(model->activation.at(2) == 32);
  CHECK(model->checkpoint == 8);
  CHECK(model->last.states.at(2) == 200);
  // Over the sequence: parameters of the shortest, activations of the longest scaled, states as they are.
  const auto scaled = read_model(
      changed(computation_json(),
              [](json& j) {
                j["layertype_0_bsz1_seq4096"] = 23;
                j["layertype_other_bsz1_seq4096"] = 8;
              }),
      memory_json(), {.sequence = 4096, .time = cost::hetu::TimeMode::sequence, .memory_over_sequence = true});
  REQUIRE(scaled.has_value());
  CHECK(scaled->parameters == 100);
  CHECK(scaled->activation.at(1) == 280);
  CHECK(scaled->checkpoint == 16);
  CHECK(scaled->whole.activation.at(1) == 64);
  CHECK(scaled->whole.states.at(1) == 400);
  CHECK(scaled->layer.at(1) == doctest::Approx(23));
}

TEST_CASE("bad model profiles") {
  check_refused(read_model(json::array(), memory_json()), "expected a JSON object");
  check_refused(read_model(computation_json(), json(3)), "expected a JSON object");
  check_refused(read_model(json::object(), memory_json()), "at least 8");
  check_refused(read_model(computation_json(), memory_json(), {.sequence = 512}), "sequence length 512");
  check_refused(read_model(computation_json(), memory_json(), {.sequence = 1024, .sequence_parallel = false}),
                "drop --no-sequence-parallel");
  check_refused(
      read_model(changed(computation_json(), [](json& j) { j["layertype_1_bsz1_seq1024"] = 1; }), memory_json()),
      "several kinds");
  for (const json& bad : {json(0), json(-2.5), json(nullptr), json("x"), json(1e200)})
    check_refused(
        read_model(changed(computation_json(), [&](json& j) { j["layertype_0_bsz3_seq1024"] = bad; }), memory_json()),
        "layertype_0_bsz3_seq1024");
  for (const char* key :
       {"layertype_0_sp", "other_memory_pp_off_sp", "other_memory_pp_on_first_sp", "other_memory_pp_on_last_sp"}) {
    check_refused(read_model(computation_json(), changed(memory_json(), [&](json& j) { j.erase(key); })), key);
    check_refused(read_model(computation_json(), changed(memory_json(), [&](json& j) { j[key] = 1; })), key);
    check_refused(read_model(computation_json(), changed(memory_json(), [&](json& j) { j[key] = json::object(); })),
                  "no sequence length");
    check_refused(read_model(computation_json(), changed(memory_json(), [&](json& j) { j[key].erase("1024"); })),
                  "2048");
    check_refused(read_model(computation_json(), changed(memory_json(), [&](json& j) { j[key]["1024"] = nullptr; })),
                  "1024");
  }
  const auto layer = [](json& j) -> json& { return j["layertype_0_sp"]["1024"]; };
  check_refused(
      read_model(computation_json(), changed(memory_json(), [&](json& j) { layer(j).erase("parameter_size"); })),
      "parameter_size");
  check_refused(
      read_model(computation_json(),
                 changed(memory_json(), [&](json& j) { layer(j)["tp_activation_per_bsz_dict"].erase("checkpoint"); })),
      "checkpoint");
  check_refused(read_model(computation_json(),
                           changed(memory_json(), [&](json& j) { layer(j)["tp_activation_per_bsz_dict"]["2"] = -1; })),
                "\"2\"");
}

TEST_CASE("a plan file is read, and written as it was") {
  const auto file = read_plan(plan_json());
  REQUIRE(file.has_value());
  CHECK(file->plan.pipeline == 2);
  CHECK(file->plan.microbatches == 16);
  CHECK(file->plan.layers[0] == cost::hetu::LayerStrategy{4, 1, false, true});
  CHECK(file->plan.layers[1] == cost::hetu::LayerStrategy{1, 4, true, false});
  CHECK(file->plan.ends == cost::hetu::EndStrategy{2, true, true});
  CHECK(!file->devices);
  CHECK(file->global_batch == 64);
  cost::hetu::Job job;
  job.global_batch = 64;
  json expected = plan_json();
  expected["world_size"] = 8;
  CHECK(json(hetu_plan_json(file->plan, job)) == expected);
}

TEST_CASE("a plan file may leave out what has a default") {
  const auto file = read_plan({{"pp_deg", 2}, {"tp_sizes_enc", "1,1,1"}});
  REQUIRE(file.has_value());
  CHECK(file->plan.division == std::vector<int>{1, 2});
  CHECK(!file->has_microbatches);
  CHECK(!file->data);
  CHECK(file->plan.layers == std::vector<cost::hetu::LayerStrategy>(3));
}

TEST_CASE("bad plan files") {
  check_refused(read_plan(json::array()), "expected a JSON object");
  for (const char* key : {"pp_deg", "tp_sizes_enc"})
    check_refused(read_plan(changed(plan_json(), [&](json& j) { j.erase(key); })), key);
  const auto with = [](const char* key, const json& value) {
    return read_plan(changed(plan_json(), [&](json& j) { j[key] = value; }));
  };
  for (const json& bad : {json(0), json(-1), json(2.0), json("2"), json(nullptr), json(1e30)}) {
    check_refused(with("pp_deg", bad), "pp_deg");
    check_refused(with("chunks", bad), "chunks");
    check_refused(with("global_bsz", bad), "global_bsz");
  }
  for (const json& bad : {json(""), json("1"), json("1,"), json(",1"), json("1,2,3"), json("1, 1"), json("-1,1"),
                          json("99999999999,1"), json(11), json::array({1, 1})}) {
    CAPTURE(bad.dump());
    check_refused(with("checkpoint", bad), "checkpoint");
    check_refused(with("dp_types_enc", bad), "dp_types_enc");
  }
  check_refused(with("checkpoint", "2,0"), "from 0 to 1");
  check_refused(with("tp_sizes_enc", "0,1"), "tp_sizes_enc");
  check_refused(with("tp_consecutive_flags", "0,1"), "not consecutive");
  check_refused(with("pipeline_type", "zb"), "known are gpipe");
  check_refused(with("default_dp_type", "fsdp"), "known are ddp");
  check_refused(with("vsp", 2), "vsp");
  check_refused(read_plan({{"pp_deg", 4}, {"tp_sizes_enc", "1,1"}}), "4 stages for 2 layers");
}
