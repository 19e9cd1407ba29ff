// moe case: the cases of mixtures of experts in the folder that GALVATRON_MOE_DATA names, and bad ones.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "run.hpp"

namespace {

using nlohmann::json;

void append_moe_numbers(const json& value, std::vector<double>& out) {
  if (value.is_array())
    for (const json& item : value) append_moe_numbers(item, out);
  else
    out.push_back(value.get<double>());
}

bool has_moe_integers_only(const json& value) {
  return value.is_array() ? std::ranges::all_of(value, has_moe_integers_only) : value.is_number_integer();
}

// Numbers agree to 1e-4 of the largest of their array, integers exactly; keys that inform only are not asked for.
void check_moe_answer(const json& answer, const json& expected, const std::string& where) {
  CAPTURE(where);
  if (expected.is_object()) {
    static const std::set<std::string> informs{"transformers_value", "smallest_hash_margin", "buckets_if_sign_dropped",
                                               "loss"};
    REQUIRE(answer.is_object());
    for (const auto& [key, value] : expected.items()) {
      if (informs.contains(key)) continue;
      CAPTURE(key);
      REQUIRE(answer.contains(key));
      check_moe_answer(answer.at(key), value, where + "." + key);
    }
    for (const auto& item : answer.items()) CHECK_MESSAGE(expected.contains(item.key()), item.key());
    return;
  }
  std::vector<double> given;
  std::vector<double> wanted;
  append_moe_numbers(answer, given);
  append_moe_numbers(expected, wanted);
  REQUIRE(given.size() == wanted.size());
  double largest = 0;
  double difference = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    largest = std::max(largest, std::abs(wanted[i]));
    difference = std::max(difference, std::abs(wanted[i] - given[i]));
  }
  CHECK(difference <= (has_moe_integers_only(expected) ? 0 : 1e-4 * largest));
}

// The folder of the cases; empty, with a message, where there is none.
std::string moe_data() {
  const char* data = std::getenv("GALVATRON_MOE_DATA");
  if (data != nullptr && std::filesystem::exists(data)) return data;
  MESSAGE("skipped: GALVATRON_MOE_DATA names no folder with cases of mixtures of experts");
  return {};
}

// A router of two experts, of which one is chosen for each of two tokens.
json small_moe_case() {
  return {{"routing", "softmax_topk"},
          {"config", {{"top_k", 1}, {"norm", true}, {"scale", 1.0}}},
          {"x", {{1.0, 0.0}, {0.0, 1.0}}},
          {"gate", {{1.0, -1.0}, {-1.0, 1.0}}},
          {"gate_up", {{{1.0, 0.0}, {2.0, 0.0}}, {{0.0, 1.0}, {0.0, -3.0}}}},
          {"down", {{{1.0}, {0.5}}, {{-1.0}, {2.0}}}},
          {"grad_y", {{1.0, 0.0}, {0.0, 1.0}}}};
}

}  // namespace

TEST_CASE("moe case answers the cases as the reference does") {
  const std::string data = moe_data();
  if (data.empty()) return;
  const Folder folder;
  for (const char* name : {"moe_layer_cases", "moe_balance_cases", "layer_cases", "expert_parallel_cases"}) {
    CAPTURE(name);
    std::ifstream file(data + "/" + name + ".json");
    json cases = json::parse(file);
    const json expected = cases;
    for (json& one : cases) one.erase("expect");  // answers are not read
    folder.write("cases.json", cases.dump());
    const Ran ran = folder.run("moe case cases.json --json");
    CAPTURE(ran.err);
    REQUIRE(ran.code == 0);
    const json answers = ran.json();
    REQUIRE(answers.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      check_moe_answer(answers[i], expected[i].at("expect"), std::string(name) + "[" + std::to_string(i) + "]");
  }
}

TEST_CASE("moe case gives the compression rates and errors of the reference") {
  const std::string data = moe_data();
  if (data.empty()) return;
  const Folder folder;
  std::ifstream file(data + "/statistics.json");
  json cases = json::parse(file);
  const json expected = cases;
  const auto keys = {"rate", "residual", "error_with_residual", "error_without_residual"};
  for (json& one : cases)
    for (const char* key : keys) one.erase(key);
  folder.write("cases.json", cases.dump());
  const Ran ran = folder.run("moe case cases.json --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const json answers = ran.json();
  REQUIRE(answers.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    for (const char* key : keys) {
      CAPTURE(i);
      CAPTURE(key);
      const json& of_eight = expected[i].at(key);  // mean and deviation of 8 draws
      const double off = answers[i].at(key).get<double>() - of_eight.at(0).get<double>();
      CHECK(std::abs(off) <= 4 * of_eight.at(1).get<double>() / std::sqrt(8.0) + 0.01);
    }
}

TEST_CASE("moe case answers what can be computed by hand") {
  const Folder folder;
  folder.write("case.json", json::array({small_moe_case()}).dump());
  const Ran ran = folder.run("moe case case.json --json");
  REQUIRE(ran.code == 0);
  const json answer = ran.json().at(0);
  CHECK(answer.at("indices") == json{{0}, {1}});
  CHECK(answer.at("weights") == json{{1.0}, {1.0}});
  CHECK(answer.at("tokens_per_expert") == json{1, 1});
  CHECK(answer.at("permutation") == json{0, 1});
  const double silu = 1 / (1 + std::exp(-1.0));  // of 1, times up = 2 and -3
  check_moe_answer(answer.at("y"), json{{2 * silu, silu}, {3 * silu, -6 * silu}}, "y");
  check_moe_answer(answer.at("grad_down"), json{{{2 * silu}, {0.0}}, {{0.0}, {-3 * silu}}}, "grad_down");
}

TEST_CASE("moe refuses bad usage and bad cases") {
  const Folder folder;
  check_failure(folder.run("moe"), 2, "nothing to do");
  check_failure(folder.run("moe train"), 2, "\"train\" is unknown");
  check_failure(folder.run("moe case"), 2, "file");
  check_failure(folder.run("moe case none.json"), 2, "none.json");
  CHECK(folder.run("moe --help").code == 0);
  CHECK(folder.run("moe case --help").code == 0);

  const auto refused = [&](const std::string& text, const std::string& cause) {
    folder.write("case.json", text);
    CAPTURE(text);
    check_failure(folder.run("moe case case.json"), 2, cause);
  };
  refused("{", "not valid JSON");
  refused("{}", "expected a list of cases");
  refused("[3]", "case 0: expected a JSON object");
  refused("[{}]", "no case of mixtures of experts");
  const auto changed = [&](const std::string& key, const json& value, const std::string& cause) {
    json one = small_moe_case();
    if (value.is_null())
      one.erase(key);
    else
      one[key] = value;
    refused(json::array({one}).dump(), cause);
  };
  for (const char* key : {"config", "x", "gate", "gate_up", "down", "grad_y"})
    changed(key, nullptr, std::string("\"") + key + "\" is missing");
  changed("routing", "hash", "softmax_topk, softmax_group and sigmoid_bias");
  changed("routing", "sigmoid_bias", "\"bias\" is missing");
  changed("config", {{"top_k", 3}, {"norm", true}, {"scale", 1.0}}, "3 experts cannot be chosen of 2");
  changed("config", {{"top_k", 0}, {"norm", true}, {"scale", 1.0}}, "top_k");
  changed("config", {{"top_k", 1}, {"norm", 1}, {"scale", 1.0}}, "\"norm\": expected true or false");
  changed("x", {{1.0, 0.0}, {0.0}}, "\"x\"[1]: expected an array of 2, found an array of 1");
  changed("x", {{1.0, 0.0}, {0.0, "1"}}, "\"x\"[1][1]: expected a number");
  changed("x", {{1.0, 0.0}, {0.0, 1e39}}, "single precision");
  changed("x", json::array(), "not empty");
  changed("x", 1.0, "expected an array");
  changed("x", {{3e38, 3e38}, {0.0, 1.0}}, "too large for fp32");
  changed("gate", {{1.0}, {1.0}}, "\"gate\"[0]: expected an array of 2");
  changed("shared_down", {{1.0}, {1.0}}, "\"shared_gate_up\" is missing");
  json grouped = small_moe_case();
  grouped["routing"] = "softmax_group";
  for (const auto& [groups, top, cause] : {std::tuple(3, 1, "2 experts cannot be put into 3 equal groups"),
                                           {2, 3, "topk_group"},
                                           {2, 1, "of 1; choose"}}) {
    grouped["config"] = {{"top_k", 2}, {"norm", true}, {"scale", 1.0}, {"n_group", groups}, {"topk_group", top}};
    refused(json::array({grouped}).dump(), cause);
  }

  const json balance{{"experts", 2},          {"top_k", 1},      {"logits", {{{1.0, 0.0}, {0.0, 1.0}}}},
                     {"bias", {0.0, 0.0}},    {"mask", nullptr}, {"bias_update_speed", 0.001},
                     {"capacity_factor", 1.0}};
  const auto unbalanced = [&](const std::string& key, const json& value, const std::string& cause) {
    json one = balance;
    one[key] = value;
    refused(json::array({one}).dump(), cause);
  };
  folder.write("case.json", json::array({balance}).dump());
  CHECK(folder.run("moe case case.json").code == 0);
  unbalanced("top_k", 3, "3 experts cannot be chosen of 2");
  unbalanced("mask", {0, 0}, "leaves no token");
  unbalanced("mask", {0, 2}, "0 or 1");
  unbalanced("mask", {1}, "expected an array of 2");
  unbalanced("capacity_factor", 0, "capacity_factor");
  unbalanced("logits", {{{1.0, 0.0, 2.0}}}, "expected an array of 2");
  unbalanced("bias", {0.0}, "expected an array of 2");

  // Two tokens in one bucket, through an expert that is 0: what is left are the distances from their mean.
  const json layer{{"x", {{1.0, 0.0}, {3.0, 0.0}}},
                   {"rotations", {{{1.0}, {0.0}}}},
                   {"w1", {{1.0, 0.0}}},
                   {"w2", {{0.0}, {1.0}}},
                   {"grad_y", {{1.0, 0.0}, {0.0, 0.0}}}};
  folder.write("case.json", json::array({layer}).dump());
  const Ran ran = folder.run("moe case case.json");
  REQUIRE(ran.code == 0);
  CHECK(ran.json().at(0).at("bucket") == json{0, 0});
  CHECK(ran.json().at(0).at("centroids") == json::array({{2.0, 0.0}}));
  const double silu = 2 / (1 + std::exp(-2.0));
  check_moe_answer(ran.json().at(0).at("y"), json{{-1.0, silu}, {1.0, silu}}, "y");
  check_moe_answer(ran.json().at(0).at("grad_x"), json{{0.5, 0.0}, {-0.5, 0.0}}, "grad_x");
  const auto other_layer = [&](const std::string& key, const json& value, const std::string& cause) {
    json one = layer;
    one[key] = value;
    refused(json::array({one}).dump(), cause);
  };
  other_layer("rotations", {{{1.0}}}, "\"rotations\"[0]: expected an array of 2");
  other_layer("w1", {{1.0}}, "expected an array of 2");
  other_layer("w2", {{0.0, 1.0}, {1.0, 0.0}}, "expected an array of 1");
  other_layer("grad_y", nullptr, "grad_y");
  other_layer("gate", {{1.0, 0.0}}, "\"ranks\" is missing");

  const json statistics{{"tokens", 8},  {"dim", 4},           {"kind", "clustered"}, {"clusters", 2},
                        {"sigma", 0.1}, {"vertices_half", 2}, {"hashes", 2}};
  const auto other_statistics = [&](const std::string& key, const json& value, const std::string& cause) {
    json one = statistics;
    one[key] = value;
    refused(json::array({one}).dump(), cause);
  };
  other_statistics("kind", "normal", "random, clustered and zipf");
  other_statistics("clusters", 0, "clusters");
  other_statistics("sigma", -1, "sigma");
  other_statistics("hashes", 0, "hashes");
  other_statistics("tokens", 0, "tokens");
  other_statistics("dim", 1.5, "dim");
  json huge = statistics;
  huge["tokens"] = 1 << 20;
  huge["dim"] = 1 << 14;
  refused(json::array({huge}).dump(), "make the case smaller");
}
