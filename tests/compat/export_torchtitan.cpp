#include <galvatron/compat/export/torchtitan.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <map>
#include <sstream>
#include <string>

#include "export_plans.hpp"

using namespace galvatron;
using namespace galvatron::testing;

namespace {

// `table.key` -> value, for TOML with one key a line and arrays over several; what is neither is a failure.
std::map<std::string, std::string> parse_toml(const std::string& text) {
  std::map<std::string, std::string> out;
  std::istringstream lines(text);
  std::string table;
  std::string open;  // the key whose array goes on
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    if (line.empty() || line.front() == '#') continue;
    if (!open.empty()) {
      out[open] += line;
      if (line == "]") open.clear();
      continue;
    }
    if (line.front() == '[') {
      REQUIRE(line.back() == ']');
      table = line.substr(1, line.size() - 2);
      continue;
    }
    const auto equals = line.find(" = ");
    REQUIRE(equals != std::string::npos);
    const std::string key = table + "." + line.substr(0, equals);
    REQUIRE(!out.contains(key));
    std::string value = line.substr(equals + 3);
    if (const auto comment = value.find("  #"); comment != std::string::npos) value.resize(comment);
    const bool quoted = value.size() >= 2 && value.front() == '"' && value.back() == '"';
    const bool number = value.find_first_not_of("0123456789") == std::string::npos;
    const bool array = value == "[";
    CHECK((quoted || number || array));
    out[key] = value;
    if (array) open = key;
  }
  CHECK(open.empty());
  return out;
}

using Values = std::map<std::string, std::string>;

Exported toml(const Plan& plan) { return export_torchtitan(plan, nullptr, TorchtitanRelease::v0_2); }

// `table.key` -> value of the statements of a Python module's planned(config).
Values parse_python(const std::string& text) {
  Values out;
  std::istringstream lines(text);
  std::string open;  // the key whose list goes on
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    if (!open.empty()) {
      out[open] += line.substr(4);
      if (line == "    ]") open.clear();
      continue;
    }
    const std::string prefix = "    config.";
    if (!line.starts_with(prefix)) continue;
    const auto equals = line.find(" = ");
    REQUIRE(equals != std::string::npos);
    const std::string key = line.substr(prefix.size(), equals - prefix.size());
    REQUIRE(!out.contains(key));
    out[key] = line.substr(equals + 3);
    if (out[key] == "[") open = key;
  }
  CHECK(open.empty());
  return out;
}

}  // namespace

TEST_CASE("torchtitan 0.2: 8-bit products") {
  Plan plan = plan_of({.data = 8, .zero = 3});
  plan.precision = Precision::fp8;
  const Exported out = toml(plan);
  check_whole(out);
  CHECK(out.text.find("mixed_precision_param = \"bfloat16\"") != std::string::npos);
  CHECK(out.text.find("[quantize.linear.float8]\nfilter_fqns = [\n  \"output\",\n]\n") != std::string::npos);
  CHECK(told(out.set_elsewhere, "converters = [\"quantize.linear.float8\"]") == 1);
  plan.trainer.traits.fp8_recipe = Fp8Recipe::rowwise;
  check_whole(toml(plan));
  CHECK(toml(plan).text.find("[quantize.linear.float8]\nrecipe_name = \"rowwise\"\n") != std::string::npos);
  CHECK(told(export_torchtitan(plan).set_elsewhere, "Float8LinearConverter.Config(recipe_name=\"rowwise\")") == 1);
  plan.trainer.traits.fp8_recipe = Fp8Recipe::mxfp8;
  check_whole(toml(plan));
  CHECK(toml(plan).text.find("[quantize.linear.mx]\nrecipe_name = \"mxfp8_cublas\"\n") != std::string::npos);
  CHECK(told(toml(plan).set_elsewhere, "converters = [\"quantize.linear.mx\"]") == 1);
  CHECK(told(export_torchtitan(plan).set_elsewhere, "MXLinearConverter.Config(recipe_name=\"mxfp8_cublas\")") == 1);
  plan.trainer.traits.fp8_recipe = Fp8Recipe::delayed;
  check_tells(toml(plan), "the FP8 recipe delayed");
  CHECK(toml(plan).job.value().trainer.traits.fp8_recipe == Fp8Recipe::tensorwise);
}

TEST_CASE("torchtitan 0.2: moments in bf16 are told") {
  Plan plan = plan_of({.data = 8, .zero = 3});
  plan.moments = Precision::bf16;
  CHECK(told(toml(plan).not_expressed, "moments of the optimizer in bf16") == 1);
}

TEST_CASE("torchtitan 0.2 and 0.3: sharded data and tensor parallelism") {
  const Plan plan = plan_of({.tensor = 4, .sequence = SequenceKind::megatron, .data = 2, .zero = 3});
  check_whole(toml(plan));
  check_whole(export_torchtitan(plan));
  Values values{{"training.local_batch_size", "4"},
                {"training.global_batch_size", "64"},
                {"training.seq_len", "2048"},
                {"training.dtype", "\"float32\""},
                {"training.mixed_precision_param", "\"bfloat16\""},
                {"parallelism.data_parallel_replicate_degree", "1"},
                {"parallelism.data_parallel_shard_degree", "2"},
                {"parallelism.fsdp_reshard_after_forward", "\"always\""},
                {"parallelism.tensor_parallel_degree", "4"},
                {"parallelism.context_parallel_degree", "1"},
                {"parallelism.pipeline_parallel_degree", "1"}};
  Values of_toml = values;
  of_toml["activation_checkpoint.mode"] = "\"none\"";
  CHECK(parse_toml(toml(plan).text) == of_toml);
  values["parallelism.enable_sequence_parallel"] = "True";
  values["activation_checkpoint"] = "None";
  CHECK(parse_python(export_torchtitan(plan).text) == values);
}

TEST_CASE("torchtitan 0.2: kinds of data parallelism") {
  const auto values = [](const StrategySpec& spec, const std::string& tells) {
    const Exported out = toml(plan_of(spec));
    if (tells.empty())
      check_whole(out);
    else
      check_tells(out, tells);
    return parse_toml(out.text);
  };
  Values v = values({.data = 8}, "");
  CHECK(v["parallelism.data_parallel_replicate_degree"] == "8");
  CHECK(v["parallelism.data_parallel_shard_degree"] == "1");
  v = values({.data = 8, .zero = 1}, "ZeRO 1");
  CHECK(v["parallelism.data_parallel_shard_degree"] == "8");
  CHECK(v["parallelism.fsdp_reshard_after_forward"] == "\"never\"");
  v = values({.data = 8, .zero = 2}, "");
  CHECK(v["parallelism.fsdp_reshard_after_forward"] == "\"never\"");
  v = values({.tensor = 2, .sequence = SequenceKind::megatron, .data = 4}, "without ZeRO beside tensor");
  CHECK(v["parallelism.data_parallel_replicate_degree"] == "1");
  CHECK(v["parallelism.data_parallel_shard_degree"] == "4");
  values({.tensor = 2, .sequence = SequenceKind::megatron}, "this plan has no data parallelism");
  values({.tensor = 2, .data = 4, .zero = 3}, "whole sequences between its regions");
  v = values({.sequence = SequenceKind::ring, .context = 2, .data = 4, .zero = 3}, "");
  CHECK(v["parallelism.context_parallel_degree"] == "2");
  CHECK(v["parallelism.context_parallel_rotate_method"] == "\"alltoall\"");
  CHECK(v["parallelism.data_parallel_shard_degree"] == "4");
  // FSDP shards over context ranks in any case.
  v = values({.sequence = SequenceKind::ring, .context = 2, .data = 4}, "context parallelism without ZeRO");
  CHECK(v["parallelism.data_parallel_replicate_degree"] == "1");
  values({.sequence = SequenceKind::ulysses, .context = 2, .data = 4, .zero = 2}, "Ulysses");
  values({.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .data = 2, .zero = 2}, "Ulysses");
}

TEST_CASE("torchtitan 0.2: the job is what the file says") {
  for (const StrategySpec& spec :
       {StrategySpec{.data = 8}, StrategySpec{.data = 8, .zero = 3},
        StrategySpec{.tensor = 2, .sequence = SequenceKind::megatron, .context = 2, .data = 2, .zero = 2},
        StrategySpec{.sequence = SequenceKind::ring, .context = 8, .zero = 3, .recompute = RecomputeKind::full}}) {
    const Plan plan = plan_of(spec);
    check_whole(toml(plan));
    check_same_job(toml(plan), plan);
  }
  const auto first = [](const StrategySpec& spec) { return toml(plan_of(spec)).job.value().layers[0]; };
  CHECK(first({.data = 8, .zero = 1}).zero == 2);
  CHECK(first({.tensor = 2, .sequence = SequenceKind::megatron, .data = 4}).zero == 2);
  CHECK(first({.tensor = 2, .data = 4, .zero = 3}).sequence == SequenceKind::megatron);
  CHECK(first({.sequence = SequenceKind::ulysses, .context = 2, .data = 4}).sequence == SequenceKind::ring);
  CHECK(first({.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .data = 2, .zero = 2}) ==
        StrategySpec{.tensor = 2,
                     .sequence = SequenceKind::megatron,
                     .context = 2,
                     .data = 2,
                     .zero = 2,
                     .recompute = RecomputeKind::none});
  CHECK(first({.data = 8, .recompute = RecomputeKind::selective}).recompute == RecomputeKind::full);
  Plan kept = plan_of({.data = 8});
  kept.layers[1].recompute = RecomputeKind::cheap;
  check_tells(toml(kept), "the outputs of norms and activations are recomputed in layer 1");
  CHECK(toml(kept).job.value().layers[1].recompute == RecomputeKind::none);
}

TEST_CASE("torchtitan 0.2: a pipeline names the modules of every stage") {
  Plan plan = plan_of({.data = 4, .zero = 3}, {3, 5});
  const Exported out = toml(plan);
  check_whole(out);
  Values v = parse_toml(out.text);
  CHECK(v["training.local_batch_size"] == "16");
  CHECK(v["parallelism.pipeline_parallel_microbatch_size"] == "2");
  CHECK(v["parallelism.pipeline_parallel_degree"] == "2");
  CHECK(v["parallelism.pipeline_parallel_schedule"] == "\"1F1B\"");
  CHECK(v["parallelism.module_fqns_per_model_part"] ==
        R"([  ["tok_embeddings", "layers.0", "layers.1", "layers.2"],)"
        R"(  ["layers.3", "layers.4", "layers.5", "layers.6", "layers.7", "norm", "output"],])");
  plan.schedule = ScheduleKind::gpipe;
  check_whole(toml(plan));
  CHECK(parse_toml(toml(plan).text)["parallelism.pipeline_parallel_schedule"] == "\"GPipe\"");
  plan.schedule = ScheduleKind::zb_h1;
  check_tells(toml(plan), "zb-h1");

  Plan chunks = plan_of({.data = 4, .zero = 3}, {4, 4});
  chunks.schedule = ScheduleKind::interleaved;
  chunks.virtual_stages = 2;
  const Exported looped = toml(chunks);
  check_whole(looped);
  v = parse_toml(looped.text);
  CHECK(v["parallelism.pipeline_parallel_schedule"] == "\"Interleaved1F1B\"");
  CHECK(v["parallelism.module_fqns_per_model_part"] ==
        R"([  ["tok_embeddings", "layers.0", "layers.1"],  ["layers.2", "layers.3"],)"
        R"(  ["layers.4", "layers.5"],  ["layers.6", "layers.7", "norm", "output"],])");
}

TEST_CASE("torchtitan 0.2: recomputation of all layers or of every n-th") {
  const auto values = [](const std::vector<int>& layers, RecomputeKind kind, bool whole) {
    Plan plan = plan_of({.data = 4, .zero = 3}, {4, 4});
    for (const int layer : layers) plan.layers[static_cast<std::size_t>(layer)].recompute = kind;
    const Exported out = toml(plan);
    if (whole)
      check_whole(out);
    else
      check_tells(out, "recomputation");
    Values v = parse_toml(out.text);
    return v["activation_checkpoint.mode"] + v["activation_checkpoint.selective_ac_option"];
  };
  CHECK(values({}, RecomputeKind::full, true) == "\"none\"");
  CHECK(values({0, 1, 2, 3, 4, 5, 6, 7}, RecomputeKind::none, true) == "\"none\"");
  CHECK(values({1, 2}, RecomputeKind::none, true) == "\"none\"");
  CHECK(values({0, 1, 2, 3, 4, 5, 6, 7}, RecomputeKind::full, true) == "\"full\"");
  CHECK(values({1, 3, 5, 7}, RecomputeKind::full, true) == "\"selective\"\"2\"");
  CHECK(values({3, 7}, RecomputeKind::full, true) == "\"selective\"\"4\"");
  CHECK(values({0, 2, 4, 6}, RecomputeKind::full, false) == "\"full\"");
  CHECK(values({1, 3}, RecomputeKind::full, false) == "\"full\"");
  CHECK(values({0, 1, 2, 3, 4, 5, 6, 7}, RecomputeKind::selective, false) == "\"full\"");
}

TEST_CASE("torchtitan 0.3: a Python module that changes a configuration") {
  const Exported out =
      export_torchtitan(plan_of({.tensor = 4, .sequence = SequenceKind::megatron, .data = 2, .zero = 3}));
  CHECK(has(out.text, "\ndef planned(config: Trainer.Config) -> Trainer.Config:\n"));
  CHECK(!has(out.text, "FullAC"));
  CHECK(!has(out.text, "def run()"));
  CHECK(told(out.set_elsewhere, "a function without arguments") == 1);
  Plan known = plan_of({.data = 8, .zero = 3, .recompute = RecomputeKind::full});
  known.model = "llama3-8b";
  const std::string text = export_torchtitan(known).text;
  CHECK(has(text, "from torchtitan.models.llama3.config_registry import llama3_8b\n"));
  CHECK(has(text, "def run() -> Trainer.Config:\n    return planned(llama3_8b())\n"));
  CHECK(has(text, "from torchtitan.distributed.activation_checkpoint import FullAC\n"));
  CHECK(parse_python(text)["activation_checkpoint"] == "FullAC.Config()");
}

TEST_CASE("torchtitan 0.3: what differs from 0.2") {
  // Tensor ranks may keep whole sequences.
  Exported out = export_torchtitan(plan_of({.tensor = 2, .data = 4, .zero = 3}));
  check_whole(out);
  CHECK(parse_python(out.text)["parallelism.enable_sequence_parallel"] == "False");
  CHECK(out.job.value().layers[0].sequence == SequenceKind::none);
  // Keys and values go around with one kind of attention.
  out = export_torchtitan(plan_of({.sequence = SequenceKind::ring, .context = 2, .data = 4, .zero = 3}));
  check_whole(out);
  CHECK(told(out.set_elsewhere, "attn_backend=\"sdpa\"") == 1);
  CHECK(!has(out.text, "rotate_method"));
  // A pipeline has no CUDA graphs, and the head has another name.
  out = export_torchtitan(plan_of({.data = 4, .zero = 3}, {3, 5}));
  check_whole(out);
  Values v = parse_python(out.text);
  CHECK(v["training.disable_cuda_graphs"] == "True");
  CHECK(v["parallelism.pipeline_parallel_microbatch_size"] == "2");
  CHECK(v["parallelism.module_fqns_per_model_part"] ==
        R"([  ["tok_embeddings", "layers.0", "layers.1", "layers.2"],)"
        R"(  ["layers.3", "layers.4", "layers.5", "layers.6", "layers.7", "norm", "lm_head"],])");
  // All layers are recomputed, or none.
  Plan plan = plan_of({.data = 8, .zero = 3});
  for (const std::size_t layer : {1, 3, 5, 7}) plan.layers[layer].recompute = RecomputeKind::full;
  check_tells(export_torchtitan(plan), "torchtitan recomputes all layers, as a whole");
  CHECK(export_torchtitan(plan).job.value().layers[0].recompute == RecomputeKind::full);
  plan.precision = Precision::fp8;
  CHECK(told(export_torchtitan(plan).set_elsewhere, "Float8LinearConverter") == 1);
}
