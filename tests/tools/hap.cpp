// hap: the cases in the folder that GALVATRON_HAP_DATA names, plans of models, and bad input.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "run.hpp"

namespace {

using nlohmann::json;

// The folder of the cases; empty, with a message, where there is none.
std::string hap_data() {
  const char* data = std::getenv("GALVATRON_HAP_DATA");
  if (data != nullptr && std::filesystem::exists(data)) return data;
  MESSAGE("skipped: GALVATRON_HAP_DATA names no folder with cases of HAP");
  return {};
}

json hap_file(const std::string& data, const std::string& name) {
  std::ifstream file(data + "/" + name + ".json");
  return json::parse(file);
}

// The answers to cases without what is expected.
json hap_answers(const Folder& folder, json cases) {
  for (json& one : cases) one.erase("expect");
  folder.write("cases.json", cases.dump());
  const Ran ran = folder.run("hap case cases.json --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  CHECK(ran.err.empty());
  return ran.json();
}

// What a program costs by the README of the cases, step by step; NaN, with a failed check, where it cannot be executed.
class HapReplay {
 public:
  explicit HapReplay(const json& one)
      : graph_(one.at("graph")),
        cluster_(one.at("cluster")),
        released_(one.contains("dialect")),
        flops_(cluster_.at("flops").get<std::vector<double>>()) {
    for (const json& op : graph_.at("ops")) makers_[op.at("out").get<std::string>()] = op;
  }

  double operator()(const json& program, const std::vector<double>& ratios) {
    for (std::size_t j = 0; j < flops_.size(); ++j) {
      work_ = std::max(work_, ratios[j] / flops_[j]);
      largest_ = std::max(largest_, ratios[j]);
    }
    slowest_ = *std::ranges::min_element(flops_);
    double sum = 0;
    for (const json& step : program) {
      const auto kind = step.at(0).get<std::string>();
      const auto tensor = step.at(1).get<std::string>();
      const auto what = step.at(2).get<std::string>();
      sum += kind == "load" ? load(tensor, what) : kind == "comm" ? move(tensor, what) : compute(tensor, what);
    }
    CHECK(has(graph_.at("loss").get<std::string>(), "R"));
    return sum;
  }

 private:
  [[nodiscard]] bool has(const std::string& tensor, const std::string& layout) const {
    const auto at = held_.find(tensor);
    return at != held_.end() && std::ranges::count(at->second, layout) > 0;
  }
  [[nodiscard]] std::vector<double> shape(const std::string& tensor) const {
    return graph_.at("tensors").at(tensor).get<std::vector<double>>();
  }
  [[nodiscard]] double elements(const std::string& tensor) const {
    double out = 1;
    for (const double extent : shape(tensor)) out *= extent;
    return out;
  }
  [[nodiscard]] double rate(const std::string& kind) const { return cluster_.at("bandwidth").at(kind).get<double>(); }
  [[nodiscard]] double wait(const std::string& kind) const {
    return released_ || !cluster_.contains("latency") ? 0 : cluster_.at("latency").value(kind, 0.0);
  }
  [[nodiscard]] double bytes(const std::string& tensor) const { return elements(tensor) * (released_ ? 1 : 4); }

  double load(const std::string& tensor, const std::string& layout) {
    const auto op = makers_.at(tensor).at("op").get<std::string>();
    CHECK((op == "placeholder" || op == "parameter"));
    CHECK(held_[tensor].empty());
    held_[tensor].push_back(layout);
    return op == "parameter" && layout == "I" ? bytes(tensor) / rate("all_reduce") + wait("all_reduce") : 0;
  }
  double move(const std::string& tensor, const std::string& what) {
    CAPTURE(tensor);
    CAPTURE(what);
    const auto op = makers_.at(tensor).at("op").get<std::string>();
    const std::set<std::string> stay{"sigmoid", "relu", "dropout", "transpose01", "sum"};
    CHECK((op != "placeholder" && op != "parameter" && !(released_ && stay.contains(op))));
    CHECK(held_[tensor].size() == 1);
    const std::string name = what.substr(0, what.find('('));
    const std::string inside =
        what.find('(') == std::string::npos ? "" : what.substr(what.find('(') + 1, what.size() - what.find('(') - 2);
    const double n = bytes(tensor);
    const double all = largest_ * n * static_cast<double>(flops_.size());
    const auto becomes = [&](const std::string& from, const std::string& to, double seconds) {
      CHECK(has(tensor, from));
      held_[tensor].push_back(to);
      return seconds;
    };
    const double pair =
        all / rate("all_gather") + all / rate("reduce_scatter") + wait("all_gather") + wait("reduce_scatter");
    if (name == "all_reduce") return becomes("R", "I", 2 * n / rate(name) + 2 * wait(name));
    if (name == "all_gather") return becomes("G" + inside, "I", pair);
    if (name == "reduce_scatter") return becomes("R", "G" + inside, pair);
    if (name == "slice") return becomes("I", "G" + inside, 0);
    REQUIRE(name == "all_to_all");
    const std::size_t comma = inside.find(',');
    return becomes("G" + inside.substr(0, comma), "G" + inside.substr(comma + 1),
                   2 * all / rate(name) + 2 * wait(name));
  }
  double compute(const std::string& tensor, const std::string& layout) {
    CAPTURE(tensor);
    CAPTURE(layout);
    CHECK(held_[tensor].empty());
    const json& op = makers_.at(tensor);
    const auto kind = op.at("op").get<std::string>();
    const auto in = op.at("in").get<std::vector<std::string>>();
    const double x = elements(in[0]);
    const std::vector<double> xs = shape(in[0]);
    const std::map<std::string, double> each{{"relu", 3},    {"gelu", 8},    {"scale", 1},
                                             {"add", 1},     {"sum", 1},     {"layer_norm", 10},
                                             {"sigmoid", 3}, {"dropout", 3}, {"transpose01", 1}};
    double flops = 0;
    if (kind == "linear")
      flops = 2 * x * shape(in[1])[0];
    else if (kind == "linear_bias")
      flops = 3 * x * shape(in[1])[0];
    else if (kind == "attention")
      flops = 4 * x * xs[1];
    else if (kind == "mha_fused")
      flops = 6 * x * xs[0] + 5 * xs[0] * xs[0] * xs[1];
    else
      flops = each.at(kind) * x;
    const bool sharded = rule(kind, in, layout);
    held_[tensor].push_back(layout);
    return 3 * flops * (sharded ? work_ : 1 / slowest_);
  }
  // Whether a sharded rule makes this layout; a failed check where none does.
  bool rule(const std::string& kind, const std::vector<std::string>& in, const std::string& layout) const {
    const std::size_t rank = shape(in[0]).size();
    const std::string last = "G" + std::to_string(rank - 1);
    const auto all = [&](const std::string& held) {
      return std::ranges::all_of(in, [&](const std::string& tensor) { return has(tensor, held); });
    };
    const auto rest = [&](const std::string& first, const std::string& others) {
      return has(in[0], first) &&
             std::all_of(in.begin() + 1, in.end(), [&](const std::string& tensor) { return has(tensor, others); });
    };
    const bool product = kind == "linear" || kind == "linear_bias";
    if (kind == "sum" && layout == "R") {
      for (std::size_t d = 0; d < rank; ++d)
        if (has(in[0], "G" + std::to_string(d))) return true;
      CHECK(has(in[0], "R"));
      return false;
    }
    if (kind == "linear" && !released_ && layout == "R") {
      CHECK(rest(last, "G1"));
      return true;
    }
    if (layout == "R") {
      CHECK((kind == "add" || kind == "scale" || kind == "transpose01"));
      CHECK(all("R"));
      return false;
    }
    if (layout == "I") {
      CHECK(all("I"));
      return false;
    }
    if (product) {
      CHECK((layout == last ? rest("I", "G0") : rest(layout, "I")));
    } else if (kind == "mha_fused") {
      CHECK(layout == "G1");
      CHECK(rest("G1", "I"));
    } else if (kind == "transpose01") {
      CHECK(all(layout == "G0" ? "G1" : layout == "G1" ? "G0" : layout));
    } else {
      if (kind == "layer_norm") CHECK(layout != last);
      if (kind == "attention") CHECK((layout == "G0" || layout == "G2"));
      CHECK(all(layout));
    }
    return true;
  }

  const json& graph_;
  const json& cluster_;
  bool released_;
  std::vector<double> flops_;
  std::map<std::string, json> makers_;
  std::map<std::string, std::vector<std::string>> held_;
  double work_ = 0;
  double largest_ = 0;
  double slowest_ = 0;
};

// The seconds of an answer, which its program costs at its ratios.
double check_hap_answer(const json& one, const json& answer, const std::string& at) {
  CHECK(answer.size() == 4);
  CHECK(answer.at("at") == at);
  const auto ratios = answer.at("ratios").get<std::vector<double>>();
  const auto flops = one.at("cluster").at("flops").get<std::vector<double>>();
  REQUIRE(ratios.size() == flops.size());
  double sum = 0;
  double rates = 0;
  for (std::size_t j = 0; j < ratios.size(); ++j) {
    CHECK(ratios[j] >= 0);
    sum += ratios[j];
    rates += flops[j];
  }
  CHECK(sum == doctest::Approx(1).epsilon(1e-12));
  if (at == "proportional")
    for (std::size_t j = 0; j < ratios.size(); ++j)
      CHECK(ratios[j] == doctest::Approx(flops[j] / rates).epsilon(1e-12));
  const double seconds = answer.at("seconds").get<double>();
  CHECK(HapReplay(one)(answer.at("program"), ratios) == doctest::Approx(seconds).epsilon(1e-12));
  return seconds;
}

json small_hap_case() {
  return {{"name", "a"},
          {"graph",
           {{"tensors", {{"x", {8, 16}}, {"w", {32, 16}}, {"y", {8, 32}}, {"loss", json::array()}}},
            {"ops",
             {{{"op", "placeholder"}, {"out", "x"}},
              {{"op", "parameter"}, {"out", "w"}},
              {{"op", "linear"}, {"out", "y"}, {"in", {"x", "w"}}},
              {{"op", "sum"}, {"out", "loss"}, {"in", {"y"}}}}},
            {"loss", "loss"}}},
          {"cluster",
           {{"flops", {2e12, 1e12}},
            {"bandwidth", {{"all_reduce", 1e9}, {"all_gather", 2e9}, {"reduce_scatter", 2e9}, {"all_to_all", 2e9}}}}}};
}

// Calls f(what a case of a file expects, the seconds of the answer at proportional ratios, those at its own) for all.
template <class F>
void for_hap_answers(const char* file, const F& f) {
  const std::string data = hap_data();
  if (data.empty()) return;
  const Folder folder;
  const json cases = hap_file(data, file);
  const json answers = hap_answers(folder, cases);
  CHECK(answers.size() == cases.size());
  for (const json& one : cases) {
    CAPTURE(one.at("name"));
    const json& answer = answers.at(one.at("name").get<std::string>());
    REQUIRE(answer.size() == 2);
    f(one.at("expect"), check_hap_answer(one, answer[0], "proportional"), check_hap_answer(one, answer[1], "free"));
  }
}

}  // namespace

TEST_CASE("hap case: the best programs at given ratios, and of all ratios") {
  for_hap_answers("graph_cases", [](const json& expected, double proportional, double free) {
    CHECK(proportional == doctest::Approx(expected.at("optimum_at_proportional_seconds").get<double>()).epsilon(1e-9));
    CHECK(free == doctest::Approx(expected.at("joint_seconds").get<double>()).epsilon(1e-9));
  });
}

TEST_CASE("hap case: the released program's runs, and never above its alternation") {
  for_hap_answers("released_runs", [](const json& expected, double proportional, double free) {
    CHECK(proportional == doctest::Approx(expected.at("first_cost_seconds").get<double>()).epsilon(1e-9));
    CHECK(free <= expected.at("best_cost_seconds").get<double>() * (1 + 1e-9));
  });
}

TEST_CASE("hap case: ratios, whole sizes and factors") {
  const std::string data = hap_data();
  if (data.empty()) return;
  const Folder folder;
  const json ratios = hap_file(data, "ratio_cases");
  json answers = hap_answers(folder, ratios);
  CHECK(answers.size() == ratios.size());
  for (const json& one : ratios) {
    CAPTURE(one.at("name"));
    const json& answer = answers.at(one.at("name").get<std::string>()).at("ratios");
    REQUIRE(answer.size() == one.at("segments").get<std::size_t>());
    for (const json& segment : answer) {
      double sum = 0;
      for (const json& ratio : segment) sum += ratio.get<double>();
      CHECK(sum == doctest::Approx(1).epsilon(1e-12));
    }
    const auto flops = one.at("flops").get<std::vector<double>>();
    double seconds = 0;
    for (const json& stage : one.at("stages")) {
      const auto own = answer.at(stage.at("segment").get<std::size_t>()).get<std::vector<double>>();
      double slowest = 0;
      for (std::size_t j = 0; j < own.size(); ++j)
        slowest = std::max(
            slowest,
            (stage.at("flops_replicated").get<double>() + stage.at("flops_sharded").get<double>() * own[j]) / flops[j]);
      seconds += stage.at("comm_const").get<double>() + slowest +
                 stage.at("comm_per_ratio").get<double>() * *std::ranges::max_element(own);
    }
    CHECK(seconds == doctest::Approx(one.at("expect").at("objective_seconds").get<double>()).epsilon(1e-8));
  }
  for (const char* file : {"rounding_cases", "sfb_cases"}) {
    const json cases = hap_file(data, file);
    answers = hap_answers(folder, cases);
    REQUIRE(answers.size() == cases.size());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      CAPTURE(i);
      json expected = cases[i].at("expect");
      expected.erase("threshold_batch");
      CHECK(answers[i].size() == expected.size());
      for (const auto& item : expected.items())
        if (item.value().is_number_float())
          CHECK(answers[i].at(item.key()).get<double>() == doctest::Approx(item.value().get<double>()).epsilon(1e-12));
        else
          CHECK(answers[i].at(item.key()) == item.value());
    }
  }
}

TEST_CASE("hap case: graphs of the released dialect with fused attention, and ratios of one device") {
  const Folder folder;
  json one = small_hap_case();
  one["dialect"] = "released";
  one["graph"] = {{"tensors",
                   {{"x", {4, 8, 16}},
                    {"t", {8, 4, 16}},
                    {"wi", {48, 16}},
                    {"bi", {48}},
                    {"wo", {16, 16}},
                    {"bo", {16}},
                    {"m", {8, 4, 16}},
                    {"r", {8, 4, 16}},
                    {"loss", json::array()}}},
                  {"ops",
                   {{{"op", "placeholder"}, {"out", "x"}},
                    {{"op", "parameter"}, {"out", "wi"}},
                    {{"op", "parameter"}, {"out", "bi"}},
                    {{"op", "parameter"}, {"out", "wo"}},
                    {{"op", "parameter"}, {"out", "bo"}},
                    {{"op", "transpose01"}, {"out", "t"}, {"in", {"x"}}},
                    {{"op", "mha_fused"}, {"out", "m"}, {"in", {"t", "wi", "bi", "wo", "bo"}}},
                    {{"op", "add"}, {"out", "r"}, {"in", {"m", "t"}}},
                    {{"op", "sum"}, {"out", "loss"}, {"in", {"r"}}}}},
                  {"loss", "loss"}};
  json alone = small_hap_case();
  alone["name"] = "b";
  alone["cluster"]["flops"] = {3e12};
  json apart = small_hap_case();
  apart["name"] = "c";
  apart["cluster"]["flops"] = {1e20, 1e3, 1e12};
  const json answers = hap_answers(folder, {one, alone, apart});
  const json cases{{"a", one}, {"b", alone}, {"c", apart}};
  for (const auto& item : cases.items()) {
    CAPTURE(item.key());
    const double given = check_hap_answer(item.value(), answers.at(item.key())[0], "proportional");
    CHECK(check_hap_answer(item.value(), answers.at(item.key())[1], "free") <= given * (1 + 1e-12));
  }
}

TEST_CASE("hap plan gives a program with its ratios, a bound, and never more seconds than the alternation") {
  const Folder folder;
  for (const std::string model : {"gpt2-tiny", "llama-tiny", "bert-tiny", "vit-huge-32"}) {
    CAPTURE(model);
    const std::string arguments = "hap plan --model " + model + " --cluster 16xv100-32g --global-batch 32";
    const Ran ran = folder.run(arguments + " --json");
    CAPTURE(ran.err);
    REQUIRE(ran.code == 0);
    const json report = ran.json();
    CHECK(report.size() == 6);
    const double seconds = report.at("seconds").get<double>();
    CHECK(seconds > 0);
    CHECK(seconds <= report.at("alternation_seconds").get<double>() * (1 + 1e-12));
    CHECK(report.at("bound_seconds").get<double>() == doctest::Approx(seconds).epsilon(1e-9));
    CHECK(report.at("search_seconds").get<double>() > 0);
    REQUIRE(report.at("ratios").size() == 1);
    double sum = 0;
    for (const json& ratio : report.at("ratios")[0]) sum += ratio.get<double>();
    CHECK(report.at("ratios")[0].size() == 16);
    CHECK(sum == doctest::Approx(1).epsilon(1e-12));
    std::set<std::string> made;
    for (const json& step : report.at("program"))
      CHECK(made.insert(step.at(1).get<std::string>()).second == (step.at(0) != "comm"));
    CHECK(report.at("program").back() == json({"op", "loss", "R"}));
    const Ran table = folder.run(arguments);
    CHECK(table.code == 0);
    CHECK(table.out.find("alternation") != std::string::npos);
    CHECK(table.out.find("16 x 6.2 %") != std::string::npos);
  }
  // Less memory takes longer, until nothing fits.
  const std::string arguments = "hap plan --model bert-tiny --cluster 64xv100-32g --global-batch 64 --quiet";
  const double free = folder.run(arguments + " --json").json().at("seconds").get<double>();
  const Ran tight = folder.run(arguments + " --json --memory 32MB");
  REQUIRE(tight.code == 0);
  CHECK(tight.json().at("seconds").get<double>() > free);
  check_failure(folder.run(arguments + " --memory 1MiB"), 3, "fits into 1.00 MiB");
}

TEST_CASE("hap plan --out writes a plan that cost, simulate, explain and train take") {
  const Folder folder;
  folder.write("text.txt", std::string(20000, 'a') + std::string(20000, 'b'));
  // Few samples for the devices: tensor parallelism; many: data parallelism.
  for (const int batch : {1, 64}) {
    CAPTURE(batch);
    const std::string arguments =
        "hap plan --model gpt2-tiny --cluster 1xv100-32g+1xp100-16g --seq 64 --out p.json "
        "--global-batch " +
        std::to_string(batch);
    const Ran ran = folder.run(arguments + " --json");
    CAPTURE(ran.err);
    REQUIRE(ran.code == 0);
    const json report = ran.json();
    const json& plan = report.at("plan");
    CHECK(plan.at("seconds").get<double>() >= report.at("seconds").get<double>() * (1 - 1e-12));
    CHECK(plan.at("slower_by").get<double>() ==
          doctest::Approx(plan.at("seconds").get<double>() / report.at("seconds").get<double>() - 1));
    CHECK(plan.at("program").back() == json({"op", "loss", "R"}));
    CHECK(folder.run(arguments).out.find("p.json") != std::string::npos);
    const json cost = folder.run("cost --plan p.json --json").json();
    CHECK(cost.at("iteration_seconds").get<double>() ==
          doctest::Approx(plan.at("iteration_seconds").get<double>()).epsilon(1e-9));
    CHECK(folder.run("simulate --plan p.json --json").code == 0);
    const Ran told = folder.run("explain p.json");
    CHECK(told.code == 0);
    CHECK(told.out.find(batch == 1 ? "key/value heads" : "of 64 samples of a micro-batch") != std::string::npos);
    const Ran trained = folder.run("train --plan p.json --data text.txt --steps 2 --json --quiet");
    CAPTURE(trained.err);
    REQUIRE(trained.code == 0);
    CHECK(trained.json().at("predicted_peak_bytes") == trained.json().at("measured_peak_bytes"));
  }
}

TEST_CASE("hap says in one line what is wrong") {
  const Folder folder;
  const auto bad = [&](const json& cases, const std::string& words) {
    CAPTURE(cases.dump());
    folder.write("cases.json", cases.dump());
    check_failure(folder.run("hap case cases.json"), 2, words);
  };
  const auto changed = [&](const std::string& pointer, const json& value) {
    json one = small_hap_case();
    one[json::json_pointer(pointer)] = value;
    return json::array({one});
  };
  bad(changed("/graph/ops/2/in", {"x", "v"}), "\"v\" is none of the tensors");
  bad(changed("/graph/ops/2/in", {"x"}), "operands");
  bad(changed("/graph/ops/2/in", {"y", "w"}), "reads \"y\"");
  bad(changed("/graph/ops/2/op", "liner"), "no operation; known are");
  bad(changed("/graph/ops/0/out", "w"), "another operation makes this tensor");
  bad(changed("/graph/tensors/y", {8, 31}), "its operands make [8, 32]");
  bad(changed("/graph/tensors/w", {32, 17}), "[o, i]");
  bad(changed("/graph/tensors/x", {8, 0}), "at least 1");
  bad(changed("/graph/tensors/x", {8, 1.5}), "at least 1");
  bad(changed("/graph/tensors/x", "8"), "expected a shape");
  bad(changed("/graph/loss", "nothing"), "none of the tensors");
  bad(changed("/graph/loss", "x"), "computes the loss");
  bad(changed("/graph/ops/3/op", "gelu"), "its operands make");
  json whole = small_hap_case();
  whole["graph"]["ops"].push_back({{"op", "gelu"}, {"out", "g"}, {"in", {"loss"}}});
  whole["graph"]["tensors"]["g"] = json::array();
  whole["graph"]["loss"] = "g";
  bad(json::array({whole}), "partial sums");
  bad(changed("/graph/ops", json::array()), "not empty");
  bad(changed("/graph", 3), "expected an object");
  bad(changed("/cluster/flops", json::array()), "at least one device");
  bad(changed("/cluster/flops", {1e12, 0}), "flops");
  bad(changed("/cluster/flops", {1e12, "fast"}), "flops");
  bad(changed("/cluster/bandwidth/all_gather", -1), "all_gather");
  bad(changed("/cluster/bandwidth", json::object()), "is missing");
  bad(changed("/cluster/latency", {{"all_reduce", -1}}), "all_reduce");
  bad(changed("/dialect", "other"), "released");
  bad({small_hap_case(), small_hap_case()}, "another case has it too");
  bad({{{"length", 4}, {"ratios", {0.5, 0.4}}}}, "add up to 0.9, not to 1");
  bad({{{"length", 4}, {"ratios", {1.5, -0.5}}}}, "ratios");
  bad({{{"length", 4}, {"ratios", json::array()}}}, "ratios");
  bad({{{"length", 4}}}, "\"ratios\" is missing");
  bad({{{"name", "r"}, {"flops", {1e12}}, {"segments", 1}, {"stages", {{{"segment", 1}}}}}}, "segment");
  bad({{{"name", "r"}}}, "no case of HAP");
  bad({small_hap_case(), {{"length", 4}, {"ratios", {1}}}}, "files of their own");
  json factors{{"batch", 8},        {"in_features", 8},
               {"out_features", 8}, {"flops", {1e12, 1e12}},
               {"ratios", {1}},     {"bandwidth", {{"all_reduce", 1e9}, {"all_gather", 1e9}}}};
  bad(json::array({factors}), "2 devices");
  factors["ratios"] = {0.7, 0.7};
  bad(json::array({factors}), "add up to 1.4");
  folder.write("cases.json", R"([{"length": 4, "ratios": [1e999]}])");
  check_failure(folder.run("hap case cases.json"), 2, "cases.json");
  folder.write("cases.json", R"([{"length": 4, "ratios": [NaN]}])");
  check_failure(folder.run("hap case cases.json"), 2, "cases.json");
  check_failure(folder.run("hap case none.json"), 2, "none.json");
  const std::string plan = "hap plan --cluster 8xv100-32g --global-batch 8 --model ";
  check_failure(folder.run(plan + "t5-large-32"), 2, "no operation");
  check_failure(folder.run(plan + "deepseek-v3"), 2, "no operation");
  check_failure(folder.run(plan + "nothing"), 2, "unknown model");
  check_failure(folder.run(plan + "gpt2-tiny --seq 1000000"), 2, "positions for");
  check_failure(folder.run("hap plan --model gpt2-tiny --cluster 8xv100-32g"), 2, "--global-batch");
  check_failure(folder.run("hap"), 2, "galvatron hap");
  check_failure(folder.run("hap nothing"), 2, "galvatron hap");
}
