// Hugging Face checkpoints: tests/train/pytorch/huggingface.py wrote some, and the losses of their models in float64.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/huggingface.hpp>
#include <galvatron/checkpoint/huggingface_writer.hpp>
#include <galvatron/model/huggingface.hpp>
#include <galvatron/train/compiled.hpp>

#include "../folder.hpp"
#include "toy_mixed.hpp"

using namespace galvatron;
using namespace galvatron::train;
using galvatron::test::Folder;
namespace fs = std::filesystem;

namespace {

const fs::path golden = fs::path(galvatron::test::tests_dir) / "train/pytorch/huggingface";

/// The tokens of huggingface.py.
class PatternTokens final : public BatchSource {
 public:
  explicit PatternTokens(std::int64_t vocabulary) : vocabulary_(vocabulary) {}
  void inputs(std::int64_t, std::int64_t first, std::int64_t samples, SequenceRange range,
              View<std::int32_t> out) override {
    fill(first, samples, range, 0, out);
  }
  void targets(std::int64_t, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<std::int32_t> out) override {
    fill(first, samples, range, 1, out);
  }

 private:
  void fill(std::int64_t first, std::int64_t samples, SequenceRange range, std::int64_t ahead,
            View<std::int32_t> out) const {
    for (std::int64_t s = 0; s < range.count; ++s)
      for (std::int64_t i = 0; i < samples; ++i) {
        const std::int64_t at = range.first + s + ahead;
        out[s * samples + i] = static_cast<std::int32_t>((7 * (first + i) + 5 * at + at * at) % vocabulary_);
      }
  }
  std::int64_t vocabulary_;
};

std::string file_content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The tensors of a folder's files: shape and bytes by name.
std::map<std::string, std::pair<std::vector<std::int64_t>, std::string>> tensors(const fs::path& folder) {
  std::map<std::string, std::pair<std::vector<std::int64_t>, std::string>> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string file = file_content(entry.path());
    const auto parsed = parse_safetensors(std::as_bytes(std::span(file)), "f");
    REQUIRE(parsed.has_value());
    for (const SafetensorsEntry& e : parsed->entries)
      out[e.name] = {e.shape, file.substr(static_cast<std::size_t>(parsed->data_begin + e.begin),
                                          static_cast<std::size_t>(e.end - e.begin))};
  }
  return out;
}

/// Trains a step that changes nothing and leaves a checkpoint.
StepReport step_of(const Plan& plan, const ModelSpec& model, const HuggingFaceWeights& weights,
                   const fs::path& folder) {
  TrainOptions options;
  options.threads_per_rank = 1;
  options.learning_rate = {.peak = 0, .floor = 0};
  options.clip = 0;
  options.initial = weights.weights();
  options.checkpoint.folder = folder;
  PatternTokens tokens(model.vocabulary());
  toy::SidedTokens<PatternTokens> sides(model, plan.sequence_length, model.vocabulary());
  BatchSource& source = model.is_encoder_decoder() ? static_cast<BatchSource&>(sides) : tokens;
  return train::train(plan, model, source, options).steps.front();
}
double loss_of(const Plan& plan, const ModelSpec& model, const HuggingFaceWeights& weights, const fs::path& folder) {
  return step_of(plan, model, weights, folder).loss;
}

void check_refused(const Result<HuggingFaceWeights>& result, const std::string& cause) {
  REQUIRE_FALSE(result.has_value());
  CAPTURE(result.error().message);
  CHECK(result.error().kind == ErrorKind::usage);
  CHECK(result.error().message.find(cause) != std::string::npos);
  CHECK(result.error().message.find('\n') == std::string::npos);
}

}  // namespace

TEST_CASE("published weights give the loss of PyTorch, and come out as they came in") {
  const auto losses = nlohmann::json::parse(file_content(golden / "losses.json"));
  for (const std::string name : {"gpt2",
                                 "gpt2-gelu",
                                 "gpt2-quick_gelu",
                                 "gpt2-relu",
                                 "llama",
                                 "llama-f16",
                                 "llama3",
                                 "llama-linear",
                                 "llama-dynamic",
                                 "mistral",
                                 "qwen2",
                                 "qwen3",
                                 "gemma",
                                 "gemma2",
                                 "gemma3",
                                 "phi",
                                 "phi3",
                                 "mixtral",
                                 "mixtral-together",
                                 "qwen2_moe",
                                 "qwen3_moe",
                                 "qwen3_moe-together",
                                 "olmoe",
                                 "deepseek_v2",
                                 "deepseek_v3",
                                 "t5",
                                 "umt5"}) {
    CAPTURE(name);
    const Folder folder;
    const bool together = name.ends_with("-together");
    const std::string plain = together ? name.substr(0, name.rfind('-')) : name;
    const auto model = load_model((golden / name).string());
    REQUIRE(model.has_value());
    const auto weights = HuggingFaceWeights::open(golden / name, *model);
    CAPTURE((weights ? "" : weights.error().message));
    REQUIRE(weights.has_value());
    Plan one = toy::single_rank(*model);
    const bool llama = !name.starts_with("gpt2");
    const bool tensor = llama && name != "olmoe";
    Plan four = toy::uniform(*model, llama ? 1 : 2,
                             {.tensor = tensor ? 2 : 1,
                              .sequence = tensor ? SequenceKind::megatron : SequenceKind::none,
                              .data = 2,
                              .zero = 3},
                             1, ScheduleKind::one_f_one_b);
    if (!llama) four.embedding = four.head = four.layers[0] = four.layers[1] = {};
    if (!llama)
      for (PlanStage& stage : four.stages) stage.rank_count = 1, stage.first_rank = stage.first_layer == 0 ? 0 : 1;
    for (Plan* plan : {&one, &four}) {
      plan->global_batch = losses.at("batch");
      plan->sequence_length = losses.at("sequence");
      INFO(toy::text(*plan));
      const double loss = loss_of(*plan, *model, *weights, folder.path / "saved");
      const char* kind = model->is_encoder_decoder() ? "encoder_decoder_losses" : "losses";
      CHECK(loss == doctest::Approx(losses.at(kind).at(plain).get<double>()).epsilon(1e-6));
      const auto checkpoint = Checkpoint::open(folder.path / "saved", *model);
      REQUIRE(checkpoint.has_value());
      for (const std::int64_t largest : {std::int64_t{20'000}, std::int64_t{1} << 40}) {
        const fs::path out = folder.path / ("out" + std::to_string(largest));
        fs::remove_all(out);
        const auto written = write_huggingface(out, checkpoint->weights(), *model, Precision::fp32, {largest});
        REQUIRE(written.has_value());
        CHECK((written->back() == "model.safetensors.index.json") == (largest == 20'000));
        if (name != "llama-f16") CHECK(tensors(out) == tensors(golden / plain));
        const auto again = load_model(out.string());
        REQUIRE(again.has_value());
        CHECK(model_architecture(*again) == model_architecture(*model));
        CHECK_FALSE(first_difference(*again, *model).has_value());
        CHECK(HuggingFaceWeights::open(out, *again).has_value());
      }
      if (!together) continue;
      const fs::path out = folder.path / "together";
      fs::remove_all(out);
      REQUIRE(
          write_huggingface(out, checkpoint->weights(), *model, Precision::fp32, {1 << 30}, ExpertTensors::together));
      CHECK(tensors(out) == tensors(golden / name));
    }
  }
}

TEST_CASE("gradients are those of PyTorch") {
  for (const std::string name :
       {"gpt2",          "gpt2-gelu", "gpt2-quick_gelu", "gpt2-relu", "llama",     "llama3", "llama-linear",
        "llama-dynamic", "mistral",   "qwen2",           "qwen3",     "gemma",     "gemma2", "gemma3",
        "phi",           "phi3",      "mixtral",         "qwen2_moe", "qwen3_moe", "olmoe",  "deepseek_v2",
        "deepseek_v3",   "umt5"}) {
    CAPTURE(name);
    const Folder folder;
    ModelSpec model = value_or_throw(load_model((golden / name).string()));
    for (LayerSpec& block : model.blocks) block.router.balance_loss = block.router.z_loss = 0;
    const HuggingFaceWeights weights = value_or_throw(HuggingFaceWeights::open(golden / name, model));
    const HuggingFaceWeights wanted =
        value_or_throw(HuggingFaceWeights::open(golden / "gradients" / name / "model.safetensors", model));
    Plan plan = toy::single_rank(model);
    plan.global_batch = 4;
    plan.sequence_length = 16;
    step_of(plan, model, weights, folder.path / "saved");
    const Checkpoint checkpoint = value_or_throw(Checkpoint::open(folder.path / "saved", model));
    const auto beta = static_cast<double>(TrainOptions{}.adam.beta1);
    const auto source = wanted.weights();
    for_each_parameter(model, [&](int layer, const ParameterTensor& tensor) {
      if (tensor.name == ParameterName::router_bias) return;  // balances experts, without a gradient
      const TensorShape shape = checkpoint.shape(layer, tensor.name);
      const std::int64_t count = shape.rows * shape.columns;
      std::vector<float> found(static_cast<std::size_t>(count));
      std::vector<float> expected(found.size());
      checkpoint.read(layer, tensor.name, StateKind::first_moment, {0, shape.rows, 0, shape.columns}, found.data());
      source(layer, tensor, 0, {expected.data(), count});
      double largest = 0;
      double difference = 0;
      for (std::size_t i = 0; i < found.size(); ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
        difference = std::max(difference, std::abs(found[i] / (1 - beta) - expected[i]));
      }
      CAPTURE(layer);
      CAPTURE(name_of(tensor.name));
      CHECK(largest > 0);
      CHECK(difference <= 1e-5 * largest);
    });
  }
}

TEST_CASE("weights are written in bf16 too") {
  const Folder folder;
  const auto model = load_model((golden / "gpt2").string());
  const auto weights = HuggingFaceWeights::open(golden / "gpt2" / "model.safetensors", *model);
  REQUIRE(weights.has_value());
  Plan plan = toy::single_rank(*model);
  loss_of(plan, *model, *weights, folder.path / "saved");
  const auto checkpoint = Checkpoint::open(folder.path / "saved", *model);
  REQUIRE(checkpoint.has_value());
  REQUIRE(write_huggingface(folder.path / "out", checkpoint->weights(), *model, Precision::bf16).has_value());
  const auto rounded = HuggingFaceWeights::open(folder.path / "out", *model);
  REQUIRE(rounded.has_value());
  for_each_parameter(*model, [&](int layer, const ParameterTensor& tensor) {
    if (tensor.rows > whole_shape(tensor).rows) return;
    std::vector<float> a(static_cast<std::size_t>(tensor.columns));
    std::vector<float> b(a.size());
    for (std::int64_t row = 0; row < tensor.rows; ++row) {
      weights->weights()(layer, tensor, row * tensor.columns, {a.data(), tensor.columns});
      rounded->weights()(layer, tensor, row * tensor.columns, {b.data(), tensor.columns});
      for (std::size_t i = 0; i < a.size(); ++i) CHECK(b[i] == static_cast<float>(bfloat16(a[i])));
    }
  });
}

TEST_CASE("weights whose config.json is of another model are refused with the field and both values") {
  const auto model = load_model((golden / "llama").string());
  REQUIRE(model.has_value());
  const std::string config = (golden / "llama/config.json").string();
  const auto refused = [&](auto change, const std::string& field, const std::string& theirs, const std::string& ours) {
    ModelSpec other = *model;
    other.name = "other";
    for (LayerSpec& block : other.blocks) change(block);
    change(other.embedding);
    change(other.head);
    CAPTURE(field);
    const std::string cause =
        "are of another model: " + field + " " + theirs + " in " + config + ", " + ours + " in the model other; ";
    check_refused(HuggingFaceWeights::open(golden / "llama", other), cause);
    check_refused(HuggingFaceWeights::open(golden / "llama/model.safetensors.index.json", other), cause);
  };
  // None of these shows in the shapes of the tensors.
  refused([](LayerSpec& l) { l.heads = 2, l.kv_heads = 2, l.head_dim = 12; }, "attention heads", "6", "2");
  refused([](LayerSpec& l) { l.rope_theta = 10000; }, "base of the rotary positions", "500", "10000");
  refused([](LayerSpec& l) { l.norm_epsilon = 1e-6; }, "epsilon of the norms", "1e-05", "1e-06");
  refused([](LayerSpec& l) { l.positions = 40; }, "positions", "20", "40");
  // These do, and the config tells them by name.
  refused([](LayerSpec& l) { l.tied = true; }, "tied embeddings", "false", "true");
  refused([](LayerSpec& l) { l.bias = true; }, "biases", "false", "true");
  refused([](LayerSpec& l) { l.vocabulary = 64; }, "vocabulary", "61", "64");
  refused([](LayerSpec& l) { l.ffn = 48; }, "width of the MLP", "40", "48");
}

TEST_CASE("weights whose config.json has what no layer computes are refused with the reason") {
  const Folder folder;
  fs::copy(golden / "llama-f16", folder.path / "weights");
  const auto model = load_model((golden / "llama-f16").string());
  auto config = nlohmann::json::parse(file_content(golden / "llama-f16/config.json"));
  CHECK(HuggingFaceWeights::open(folder.path / "weights", *model).has_value());
  const auto refused = [&](const char* key, const nlohmann::json& value, const std::string& cause) {
    nlohmann::json changed = config;
    changed[key] = value;
    folder.write("weights/config.json", changed.dump());
    const auto opened = HuggingFaceWeights::open(folder.path / "weights", *model);
    check_refused(opened, cause);
    CHECK(opened.error().message.find("remove") == std::string::npos);
  };
  refused("rope_scaling", {{"rope_type", "su"}, {"factor", 8.0}}, "scaled rotary positions (\"su\")");
  refused("rope_parameters", {{"rope_type", "longrope"}, {"rope_theta", 500.0}},
          "scaled rotary positions (\"longrope\")");
  refused("hidden_act", "gelu", "supported: silu");
  refused("model_type", "bloom", "\"bloom\" is not supported");
  fs::remove(folder.path / "weights/config.json");  // nothing to compare with
  CHECK(HuggingFaceWeights::open(folder.path / "weights", *model).has_value());
}

TEST_CASE("weights that are no numbers are refused with file and tensor") {
  const Folder folder;
  struct Row {
    const char* name;
    const char* file;
    const char* tensor;
  };
  for (const auto& [name, file, tensor] : {Row{"gpt2", "model.safetensors", "transformer.h.1.mlp.c_fc.weight"},
                                           Row{"llama-f16", "model.safetensors", "model.layers.0.mlp.up_proj.weight"},
                                           Row{"llama", "model-00002-of-00003.safetensors", ""}}) {
    fs::copy(golden / name, folder.path / name);
    const auto model = load_model((golden / name).string());
    std::string bytes = file_content(golden / name / file);
    const auto parsed = parse_safetensors(std::as_bytes(std::span(bytes)), "f");
    REQUIRE(parsed.has_value());
    const auto entry =
        *tensor == 0 ? parsed->entries.begin() : std::ranges::find(parsed->entries, tensor, &SafetensorsEntry::name);
    REQUIRE(entry != parsed->entries.end());
    const bool half = entry->type == "F16";
    const std::uint32_t bad = half ? 0xFC00 : 0x7FC00000;  // minus infinity in F16, NaN in F32
    constexpr std::int64_t element = 5;
    const std::size_t width = half ? 2 : 4;
    std::memcpy(bytes.data() + parsed->data_begin + entry->begin + element * static_cast<std::int64_t>(width), &bad,
                width);
    folder.write(std::string(name) + "/" + file, bytes);
    const auto weights = HuggingFaceWeights::open(folder.path / name, *model);
    REQUIRE(weights.has_value());
    for (Plan plan :
         {toy::single_rank(*model), toy::uniform(*model, 1, {.data = 2, .zero = 3}, 1, ScheduleKind::gpipe)}) {
      plan.sequence_length = 16;
      std::string message;
      try {
        loss_of(plan, *model, *weights, folder.path / "saved");
      } catch (const Failure& failure) {
        CHECK(failure.kind() == ErrorKind::usage);
        message = failure.what();
      }
      CAPTURE(message);
      CHECK(message.find((folder.path / name / file).string() + ": element 5 of the tensor \"" + entry->name +
                         "\" is " + (half ? "infinite" : "not a number")) != std::string::npos);
    }
  }
}

TEST_CASE("config.json says that there is no dropout, and which tokens begin and end a text") {
  const auto config = [](const std::string& name) {
    const ModelSpec model = value_or_throw(load_model(name));
    return huggingface_config(model, value_or_throw(huggingface_family(model)), Precision::fp32);
  };
  const auto gpt2 = config("gpt2-124m");
  for (const char* key : {"embd_pdrop", "attn_pdrop", "resid_pdrop", "summary_first_dropout"})
    CHECK(gpt2.at(key) == 0.0);
  CHECK(gpt2.at("bos_token_id") == 50256);
  CHECK(gpt2.at("eos_token_id") == 50256);
  CHECK(config("gpt2-tiny").at("eos_token_id").is_null());  // bytes: no id of another vocabulary
  CHECK(config("llama2-7b").at("attention_dropout") == 0.0);
  CHECK(config("llama2-7b").at("bos_token_id") == 1);
  CHECK(config("llama2-7b").at("eos_token_id") == 2);
  CHECK(config("llama3-8b").at("bos_token_id") == 128000);
  CHECK(config("llama3-8b").at("eos_token_id") == 128001);
  CHECK(config("llama-tiny").at("bos_token_id").is_null());
}

TEST_CASE("config.json has the noise in what Mixtral's experts get") {
  ModelSpec model = value_or_throw(load_model("moe-tiny"));
  for (const double jitter : {0.0, 0.125}) {
    for (LayerSpec& block : model.blocks) block.router.jitter = jitter;
    const auto config = huggingface_config(model, value_or_throw(huggingface_family(model)), Precision::fp32);
    CHECK(config.at("router_jitter_noise") == jitter);
    const ModelSpec read = value_or_throw(parse_huggingface_config(config.dump(), "config.json"));
    for (const LayerSpec& block : read.blocks) CHECK(block.router.jitter == jitter);
  }
}

TEST_CASE("the balance loss is that of transformers where one layer has experts") {
  const auto losses = nlohmann::json::parse(file_content(golden / "losses.json"));
  const Folder folder;
  const ModelSpec model = value_or_throw(load_model((golden / "qwen2_moe").string()));
  const auto weights = HuggingFaceWeights::open(golden / "qwen2_moe", model);
  REQUIRE(weights.has_value());
  Plan plan = toy::single_rank(model);
  plan.global_batch = losses.at("batch");
  plan.sequence_length = losses.at("sequence");
  CHECK(step_of(plan, model, *weights, folder.path / "saved").balance_loss ==
        doctest::Approx(losses.at("balance_loss_of_qwen2_moe").get<double>()).epsilon(1e-5));
}

TEST_CASE("of T5s are those whose head has a table of its own, and of Gemmas and Phis those with all their parts") {
  const auto tied = huggingface_family(value_or_throw(load_model("t5-3b")));
  REQUIRE_FALSE(tied.has_value());
  CHECK(tied.error().message.find("\"tie_word_embeddings\"") != std::string::npos);
  const auto refused = [](const char* name, auto change, const char* field) {
    ModelSpec model = value_or_throw(load_model((golden / name).string()));
    REQUIRE(huggingface_family(model).has_value());
    change(model);
    const auto family = huggingface_family(model);
    REQUIRE_FALSE(family.has_value());
    CAPTURE(family.error().message);
    CHECK(family.error().message.find(field) != std::string::npos);
  };
  refused("gemma", [](ModelSpec& m) { m.embedding.embedding_scale = 1; }, "scale of the embedding");
  refused("gemma", [](ModelSpec& m) { m.head.logits_cap = 30; }, "soft cap of logits");
  refused("gemma2", [](ModelSpec& m) { m.blocks[1].score_cap = 7; }, "soft cap of scores of layer 1");
  refused("phi", [](ModelSpec& m) { m.head.logits_bias = false; }, "biases of logits");
  refused("phi", [](ModelSpec& m) { m.blocks[1].parallel = false; }, "side by side of layer 1");
  refused("gemma3", [](ModelSpec& m) { m.blocks[1].norm_order = NormOrder::before; }, "place of the norms of layer 1");
  refused("umt5", [](ModelSpec& m) { m.blocks[2].score_width = 6; }, "width whose root divides scores of layer 2");
}

TEST_CASE("of mixtures of experts are the families that transformers has") {
  const std::pair<const char*, HuggingFaceFamily> rows[] = {
      {"mixtral-8x7b", HuggingFaceFamily::mixtral},     {"moe-tiny", HuggingFaceFamily::mixtral},
      {"qwen2-57b-a14b", HuggingFaceFamily::qwen2_moe}, {"qwen3-235b-a22b", HuggingFaceFamily::qwen3_moe},
      {"olmoe-1b-7b", HuggingFaceFamily::olmoe},        {"deepseek-v2-lite", HuggingFaceFamily::deepseek_v2},
      {"deepseek-v3", HuggingFaceFamily::deepseek_v3}};
  for (const auto& [name, family] : rows) {
    CAPTURE(name);
    const ModelSpec model = value_or_throw(load_model(name));
    const auto found = huggingface_family(model);
    CAPTURE((found ? "" : found.error().message));
    REQUIRE(found.has_value());
    CHECK(*found == family);
    // Every element of the model is in one tensor.
    std::int64_t sum = 0;
    for (const HuggingFaceTensor& tensor : huggingface_tensors(model, family)) sum += tensor.shape.count();
    CHECK(sum == parameters(model));
  }
  const auto refused = [](auto change, const std::string& field) {
    ModelSpec model = value_or_throw(load_model("qwen3-30b-a3b"));
    change(model.blocks[3]);
    const auto found = huggingface_family(model);
    REQUIRE_FALSE(found.has_value());
    CAPTURE(found.error().message);
    CHECK(found.error().message.find("is not one of transformers") != std::string::npos);
    CHECK(found.error().message.find(field) != std::string::npos);
  };
  refused([](LayerSpec& l) { l.router.scale = 2; }, "scale of the weights of experts of layer 3 2, there 1");
  refused([](LayerSpec& l) { l.shared_ffn = 64; }, "width of the shared experts of layer 3");
  refused([](LayerSpec& l) { l.qkv_bias = true; }, "biases of queries, keys and values of layer 3");
  refused([](LayerSpec& l) { l.experts = 64; }, "experts of layer 3 64, there 128");
}

TEST_CASE("what only training reads is no other model, and a layer that predicts a second token is left out") {
  const Folder folder;
  fs::copy(golden / "deepseek_v3", folder.path / "weights");
  ModelSpec model = value_or_throw(load_model((golden / "deepseek_v3").string()));
  for (LayerSpec& block : model.blocks)
    if (block.experts > 0) block.router.balance_loss = block.router.bias_rate = 1e-3;
  const auto opened = HuggingFaceWeights::open(folder.path / "weights", model);
  CAPTURE((opened ? "" : opened.error().message));
  CHECK(opened.has_value());
  for (LayerSpec& block : model.blocks) block.router.scale = 1;
  check_refused(HuggingFaceWeights::open(folder.path / "weights", model), "another model: scale of the weights");
  CHECK(is_huggingface_buffer("model.layers.2.eh_proj.weight", model, HuggingFaceFamily::deepseek_v3));
  CHECK_FALSE(is_huggingface_buffer("model.layers.1.mlp.gate.weight", model, HuggingFaceFamily::deepseek_v3));
  CHECK_FALSE(is_huggingface_buffer("model.layers.2.mlp.gate.weight", model, HuggingFaceFamily::deepseek_v2));
}

TEST_CASE("weights that are not the model's are refused with the reason") {
  const Folder folder;
  const auto gpt2 = load_model((golden / "gpt2").string());
  const auto llama = load_model((golden / "llama").string());
  check_refused(HuggingFaceWeights::open(golden / "llama", *gpt2), "another model: attention heads 6 in");
  check_refused(HuggingFaceWeights::open(folder.path, *gpt2), "neither model.safetensors nor");
  check_refused(HuggingFaceWeights::open(folder.path / "missing.safetensors", *gpt2), "No such file");
  check_refused(HuggingFaceWeights::open(golden / "llama/model-00001-of-00003.safetensors", *llama), "has no tensor");
  // Of weights without a config.json the tensors tell.
  const fs::path alone = folder.path / "alone.safetensors";
  fs::copy(golden / "gpt2/model.safetensors", alone);
  CHECK(HuggingFaceWeights::open(alone, *gpt2).has_value());
  ModelSpec deeper = *gpt2;
  deeper.blocks.push_back(deeper.blocks.back());
  check_refused(HuggingFaceWeights::open(golden / "gpt2", deeper), "another model: number of layers 2 in");
  check_refused(HuggingFaceWeights::open(alone, deeper), "has no tensor \"transformer.h.2.");
  ModelSpec shallower = *gpt2;
  shallower.blocks.pop_back();
  check_refused(HuggingFaceWeights::open(alone, shallower), "has no place");
  ModelSpec wider = *gpt2;
  wider.embedding.vocabulary = wider.head.vocabulary = 64;
  check_refused(HuggingFaceWeights::open(alone, wider), "is (61, 24), and the model");
  check_refused(HuggingFaceWeights::open(alone, *llama), "has no tensor \"model.embed_tokens.weight\"");
  ModelSpec bert = *gpt2;
  bert.blocks[0].causal = false;
  check_refused(HuggingFaceWeights::open(golden / "gpt2", bert), "neither a GPT-2 nor a Llama");
  std::ofstream(folder.path / "model.safetensors.index.json") << R"({"weight_map": {"a": "../x"}})";
  check_refused(HuggingFaceWeights::open(folder.path, *gpt2), "in no file beside it");
}
