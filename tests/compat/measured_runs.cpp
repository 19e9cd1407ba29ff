// Files of measured runs: both forms give the same runs, and what is wrong is said in one line with its place.
#include <galvatron/compat/runs/measured_runs.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/uniform.hpp>

using namespace galvatron;

namespace {

RunDefaults run_defaults() {
  RunDefaults out;
  out.model = "gpt2-tiny";
  out.find_model = [](const std::string& name) { return find_model(name); };
  out.read_plan = [](const std::string& path) -> Result<Plan> { return usage_error("cannot read " + path); };
  return out;
}

std::vector<MeasuredRun> runs_in(const std::string& text) {
  return value_or_throw(measured_runs(text, "runs", run_defaults()));
}

std::string why_no_runs(const std::string& text) {
  const auto runs = measured_runs(text, "runs", run_defaults());
  REQUIRE_FALSE(runs);
  CHECK(runs.error().kind == ErrorKind::usage);
  CHECK(runs.error().message.find('\n') == std::string::npos);
  CHECK(runs.error().message.starts_with("runs: "));
  return runs.error().message;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a table and JSON say the same runs") {
  const auto table = runs_in(
      "# our cluster\n"
      "name, tp, pp, dp, zero, sequence, recompute, micro_batch, global_batch, seq, seconds, spread\r\n"
      "\"tp 2, \"\"sp\"\"\", 2,1,4,1, megatron, full, 1, 8, 128, 0.021, 0.01\n"
      "\n"
      "other,1,2,4,,,,2,16,,5e-2\n");
  const auto listed = runs_in(R"({"format": "galvatron-runs", "version": 1, "runs": [
    {"name": "tp 2, \"sp\"", "tp": 2, "dp": 4, "zero": 1, "sequence": "megatron", "recompute": "full",
     "global_batch": 8, "seq": 128, "seconds": 0.021, "spread": 0.01},
    {"name": "other", "pp": 2, "dp": 4, "micro_batch": 2, "microbatches": 2, "seconds": 0.05}]})");
  REQUIRE(table.size() == 2);
  REQUIRE(listed.size() == 2);
  for (std::size_t i = 0; i < table.size(); ++i) {
    CHECK(table[i].name == listed[i].name);
    CHECK(table[i].plan == listed[i].plan);
    CHECK(table[i].seconds == listed[i].seconds);
    CHECK(table[i].spread == listed[i].spread);
  }
  CHECK(table[0].name == "tp 2, \"sp\"");
  CHECK(table[0].plan.layers.front().sequence == SequenceKind::megatron);
  CHECK(table[0].plan.layers.front().recompute == RecomputeKind::full);
  CHECK(table[0].plan.layers.front().zero == 1);
  CHECK(table[0].plan.microbatches == 2);
  CHECK(table[0].plan.sequence_length == 128);
  CHECK(table[1].plan.stages.size() == 2);
  CHECK(table[1].plan.global_batch == 16);
  CHECK(table[1].model->name == "gpt2-tiny");
}

TEST_CASE("a run may have a whole plan, or the path of one") {
  const ModelSpec model = value_or_throw(find_model("llama-tiny"));
  const Plan plan = value_or_throw(uniform_plan(Strategy<DataParallel<4>>{}, model, {.global_batch = 8}));
  const auto runs = runs_in(R"([{"plan": )" + plan_text(plan) + R"(, "model": "llama-tiny", "seconds": 2}])");
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].plan.ranks() == 4);
  CHECK(runs[0].name == "runs[0]");
  CHECK(runs[0].model->name == "llama-tiny");
  CHECK(why_no_runs("plan,seconds\nplans/7.json,1\n") == "runs: line 2: cannot read plans/7.json");
  CHECK(contains(why_no_runs("plan,tp,seconds\nplans/7.json,2,1\n"), "cannot read plans/7.json"));
}

TEST_CASE("the trainer and the precision are those that the caller names") {
  RunDefaults defaults = run_defaults();
  defaults.trainer = value_or_throw(cost::load_trainer("megatron"));
  defaults.precision = Precision::fp32;
  const auto runs =
      value_or_throw(measured_runs("dp,microbatches,seconds,precision\n2,1,1,\n2,1,1,bf16\n", "runs", defaults));
  CHECK(runs[0].plan.trainer.name == "megatron");
  CHECK(runs[0].plan.precision == Precision::fp32);
  CHECK(runs[1].plan.precision == Precision::bf16);
}

TEST_CASE("bad runs are refused with their place") {
  CHECK(contains(why_no_runs(""), "is empty"));
  CHECK(contains(why_no_runs("dp,microbatches,seconds\n"), "it has 0 runs"));
  CHECK(contains(why_no_runs("dp,microbatches\n1,1\n"), "line 2: the key \"seconds\" is missing"));
  CHECK(contains(why_no_runs("dp,microbatches,seconds\n1,1,-3\n"), "seconds"));
  CHECK(contains(why_no_runs("dp,microbatches,seconds\n1,1,nan\n"), "seconds"));
  CHECK(contains(why_no_runs("dp,microbatches,seconds\n1,1,1,1\n"), "4 cells"));
  CHECK(contains(why_no_runs("dp,dp,seconds\n1,1,1\n"), "same name"));
  CHECK(contains(why_no_runs("dp,microbatches,seconds,tpp\n1,1,1,2\n"), "unknown key \"tpp\""));
  CHECK(contains(why_no_runs("dp,seconds\n1,1\n"), "\"global_batch\""));
  CHECK(contains(why_no_runs("dp,microbatches,global_batch,seconds\n1,2,3,1\n"), "global_batch / (micro_batch x dp)"));
  CHECK(contains(why_no_runs("dp,microbatches,sequence,seconds\n1,2,spiral,1\n"), "none, megatron, ulysses, ring"));
  CHECK(contains(why_no_runs("pp,microbatches,seconds\n500,2,1\n"), "line 2: 500 stages"));
  CHECK(contains(why_no_runs("tp,pp,cp,dp,microbatches,seconds\n1048576,1048576,1048576,1048576,2,1\n"), "line 2: "));
  CHECK(contains(why_no_runs("model,dp,microbatches,seconds\nno-such,1,2,1\n"), "no-such"));
  CHECK(contains(why_no_runs("name,seconds\n\"a,1\n"), "line 2: a quote is not closed"));
  CHECK(contains(why_no_runs("name,seconds\n\"a\"b,1\n"), "a comma is missing"));
  CHECK(contains(why_no_runs("{\"format\": \"galvatron-cluster\"}"), "galvatron-cluster"));
  CHECK(contains(why_no_runs("[1]"), "runs[0]: expected a JSON object"));
  CHECK(contains(why_no_runs("[{]"), "not valid JSON"));
}
