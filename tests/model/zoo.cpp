#include <galvatron/model/zoo.hpp>

#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/model/check.hpp>
#include <galvatron/model/layers.hpp>

namespace galvatron {
namespace {

std::int64_t parameters_of(const std::string& name) { return parameters(find_model(name).value()); }

TEST_CASE("parameter counts are the published ones") {
  CHECK(parameters_of("gpt2-124m") == 124'439'808);
  CHECK(parameters_of("gpt2-350m") == 354'823'168);
  CHECK(parameters_of("gpt2-774m") == 774'030'080);
  CHECK(parameters_of("gpt2-1.5b") == 1'557'611'200);
  CHECK(parameters_of("llama2-7b") == 6'738'415'616);
  CHECK(parameters_of("llama2-13b") == 13'015'864'320);
  CHECK(parameters_of("llama2-70b") == 68'976'648'192);
  CHECK(parameters_of("llama3-8b") == 8'030'261'248);
  CHECK(parameters_of("llama3-70b") == 70'553'706'496);
  CHECK(parameters_of("llama3-405b") == 405'853'388'800);
}

TEST_CASE("parameter counts of other families are the published ones") {
  CHECK(parameters_of("bert-base") == 109'514'298);    // BertForMaskedLM
  CHECK(parameters_of("bert-large") == 335'174'458);   // BertForMaskedLM
  CHECK(parameters_of("vit-huge-32") == 632'045'800);  // torchvision's vit_h_14
  // The published ones, and tables of relative positions for the 46 blocks that have none of their own there.
  CHECK(parameters_of("t5-large-48") == 737'668'096 + 46 * 32 * 16);
  CHECK(parameters_of("t5-3b") == 2'851'598'336 + 46 * 32 * 32);
}

TEST_CASE("parameter counts of mixtures of experts are the published ones") {
  CHECK(parameters_of("mixtral-8x7b") == 46'702'792'704);
  CHECK(parameters_of("mixtral-8x22b") == 140'620'634'112);
  CHECK(parameters_of("qwen2-57b-a14b") == 57'408'658'944);
  CHECK(parameters_of("qwen3-30b-a3b") == 30'532'122'624);
  CHECK(parameters_of("qwen3-235b-a22b") == 235'093'634'560);
  CHECK(parameters_of("olmoe-1b-7b") == 6'919'161'856);
  CHECK(parameters_of("deepseek-v2-lite") == 15'706'484'224);
  CHECK(parameters_of("deepseek-v3") == 671'026'419'200);  // with the experts' biases
}

TEST_CASE("the models of LSH-MoE's paper have about its parameters") {
  struct Row {
    const char* name;
    double millions;
  };
  for (const Row& row :
       {Row{"roberta-moe", 394}, Row{"gpt-moe-15b", 14'600}, Row{"gpt-moe-52b", 51'700}, Row{"t5-moe", 9'300}}) {
    INFO(row.name);
    CHECK(static_cast<double>(parameters_of(row.name)) / 1e6 == doctest::Approx(row.millions).epsilon(0.01));
  }
  // 946M of an unknown head: 934M with 1,000 classes, and 955M with 21,841.
  const double swin = static_cast<double>(parameters_of("swin-moe-l"));
  CHECK(swin / 1e6 == doctest::Approx(946).epsilon(0.015));
  CHECK((swin + (21'841 - 1'000) * 1025) / 1e6 == doctest::Approx(946).epsilon(0.01));
  const ModelSpec model = find_model("swin-moe-l").value();
  std::vector<std::size_t> with_experts;
  for (std::size_t i = 0; i < model.blocks.size(); ++i)
    if (model.blocks[i].experts == 32) with_experts.push_back(i);
  CHECK(with_experts == std::vector<std::size_t>{5, 7, 9, 11, 13, 15, 17, 19, 21, 23});
}

TEST_CASE("the models of Galvatron's paper have the millions of parameters of its table") {
  struct Row {
    const char* name;
    double millions;
  };
  for (const Row& row :
       {Row{"bert-huge-32", 672}, Row{"bert-huge-48", 987}, Row{"vit-huge-32", 632}, Row{"vit-huge-48", 947},
        Row{"t5-large-32", 502}, Row{"t5-large-48", 737}, Row{"swin-huge-32", 701}, Row{"swin-huge-48", 1016}}) {
    INFO(row.name);
    CHECK(static_cast<double>(parameters_of(row.name)) / 1e6 == doctest::Approx(row.millions).epsilon(0.002));
  }
}

TEST_CASE("models named by billions have about as many parameters") {
  struct Row {
    const char* name;
    double billions;
  };
  for (const Row& row : {Row{"gpt-6.7b", 6.7}, Row{"gpt-15b", 15.4}, Row{"gpt-39b", 39.1}, Row{"gpt-65b", 64.9},
                         Row{"gpt3-175b", 174.6}, Row{"gpt-530b", 529.6}, Row{"gpt-1t", 1008.0}}) {
    INFO(row.name);
    CHECK(static_cast<double>(parameters_of(row.name)) / 1e9 == doctest::Approx(row.billions).epsilon(0.01));
  }
}

TEST_CASE("the count of Megatron's paper holds for its models") {
  // P = 12 L H^2 (1 + 13 / (12 H) + (V + S) / (12 L H)); the paper leaves out the final norm, 2 H.
  for (const char* name : {"gpt-39b", "gpt-530b", "gpt-1t"}) {
    const ModelSpec model = find_model(name).value();
    const double l = static_cast<double>(model.blocks.size());
    const double h = static_cast<double>(model.hidden());
    const double v_and_s = static_cast<double>(model.vocabulary() + model.positions());
    const double paper = 12 * l * h * h * (1 + 13 / (12 * h) + v_and_s / (12 * l * h));
    CHECK(static_cast<double>(parameters(model)) == doctest::Approx(paper + 2 * h).epsilon(1e-12));
  }
}

TEST_CASE("every name is found once, and is a consistent model of that name") {
  const std::vector<std::string> names = model_names();
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
  for (const std::string& name : names) {
    INFO(name);
    const auto model = find_model(name);
    REQUIRE(model.has_value());
    CHECK(model->name == name);
    CHECK(checked(*model).has_value());
    CHECK(model->head.layers == static_cast<int>(model->blocks.size()));
    // Heads are together as wide as layers, but for T5-3B's, Qwen3's and latent attention's.
    const LayerSpec& block = model->blocks.front();
    if (block.query_key_norm != QueryKeyNorm::heads && block.latent.rank == 0)
      CHECK(block.heads * block.head_dim == (name == "t5-3b" ? 4 : 1) * model->hidden());
  }
}

TEST_CASE("toy models train on bytes and split over four tensor ranks") {
  for (const char* name : {"gpt2-tiny", "llama-tiny", "moe-tiny"}) {
    const ModelSpec model = find_model(name).value();
    CHECK(model.vocabulary() == 256);
    CHECK(model.positions() == 256);
    CHECK(parameters(model) < 2'000'000);
    for (const LayerSpec& block : model.blocks) {
      CHECK(block.heads % 4 == 0);
      CHECK(block.kv_heads % 4 == 0);
      CHECK(block.ffn % 4 == 0);
    }
  }
  const LayerSpec llama_block = find_model("llama-tiny").value().blocks.front();
  CHECK(llama_block.kv_heads < llama_block.heads);
}

TEST_CASE("the families differ where they should") {
  const ModelSpec gpt2 = find_model("gpt2-124m").value();
  CHECK(gpt2.head.tied);
  CHECK(gpt2.blocks[0].bias);
  CHECK(gpt2.blocks[0].position == PositionKind::learned);
  CHECK(gpt2.blocks[0].qkv_width() == 3 * 768);
  const ModelSpec llama3 = find_model("llama3-8b").value();
  CHECK_FALSE(llama3.head.tied);
  CHECK_FALSE(llama3.blocks[0].bias);
  CHECK(llama3.blocks[0].rope_theta == 500000.0);
  CHECK(llama3.blocks[0].qkv_width() == (32 + 16) * 128);
  CHECK(llama3.blocks[0].ffn_inputs() == 2 * 14336);
}

TEST_CASE("an unknown name brings the nearest ones") {
  const auto model = find_model("GPT2-125M");
  REQUIRE_FALSE(model.has_value());
  CHECK(model.error().kind == ErrorKind::usage);
  CHECK(model.error().message.find("nearest names are gpt2-124m,") != std::string::npos);
  const auto says = [](std::string_view name, std::string_view part) {
    const std::string message = find_model(name).error().message;
    CAPTURE(message);
    CHECK(message.find(part) != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
  };
  says("gpt2", "the nearest names are gpt2-tiny, gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1.5b; ");
  says("gpt2-xl", "the nearest name is gpt2-1.5b; ");
  says("llama-7b", "the nearest name is llama2-7b; ");
  says("t5-large", "the nearest names are t5-large-32, t5-large-48; ");
  says("frobnicate", "unknown model \"frobnicate\"; `galvatron list models`");
  CHECK(find_model("").error().message.find("unknown model \"\"") != std::string::npos);
  CHECK(find_model(std::string(100'000, 'x')).error().message.size() < 400);
}

TEST_CASE("names are read in any case of letters") {
  CHECK(find_model("GPT2-Tiny").value() == find_model("gpt2-tiny").value());
  CHECK_FALSE(find_model("gpt2-tiny" + std::string(100, 'x')).has_value());
}

TEST_CASE("a model of the Hugging Face hub brings the preset and the way to its configuration") {
  CHECK(detail::hub_model("meta-llama/Llama-3.1-8B") == "meta-llama/Llama-3.1-8B");
  CHECK(detail::hub_model("https://huggingface.co/openai-community/gpt2-xl/tree/main") == "openai-community/gpt2-xl");
  for (const char* path : {"gpt2", "./gpt2/x", "../a/b", "/a/b", "a/b/c", "a/", "/b", "a/config.json", "a b/c",
                           "~/models", "https://example.org/a/b", "a/.b"})
    CHECK_MESSAGE(detail::hub_model(path).empty(), path);
  const std::string llama = find_model("meta-llama/Llama-3.1-8B").error().message;
  CHECK(llama.find("use the nearest preset, llama3-8b, or download "
                   "https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json") != std::string::npos);
  for (const auto& [hub, preset] : {std::pair{"Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"},
                                    {"Qwen/Qwen2-57B-A14B", "qwen2-57b-a14b"},
                                    {"allenai/OLMoE-1B-7B-0924", "olmoe-1b-7b"},
                                    {"deepseek-ai/DeepSeek-V2-Lite", "deepseek-v2-lite"},
                                    {"mistralai/Mixtral-8x22B-v0.1", "mixtral-8x22b"}})
    CHECK(find_model(hub).error().message.find(std::string("preset, ") + preset + ",") != std::string::npos);
  CHECK(find_model("openai-community/gpt2-medium").error().message.find("preset, gpt2-350m,") != std::string::npos);
  const std::string other = find_model("google/gemma-2-9b").error().message;
  CHECK(other.find("preset,") == std::string::npos);
  CHECK(other.find("google/gemma-2-9b/resolve/main/config.json") != std::string::npos);
}

TEST_CASE("inconsistent models are refused with the layer") {
  ModelSpec model = find_model("llama-tiny").value();
  model.blocks[2].kv_heads = 3;
  CHECK(checked(model).error().message.find("(layer 2): the number of key/value heads divides") != std::string::npos);
  model = find_model("llama-tiny").value();
  model.blocks[1].head_dim = 15;
  CHECK(checked(model).error().message.find("even") != std::string::npos);
  model = find_model("gpt2-tiny").value();
  model.blocks.clear();
  CHECK_FALSE(checked(model).has_value());
  model = find_model("gpt2-tiny").value();
  model.head.vocabulary = 300;
  CHECK_FALSE(checked(model).has_value());
}

static_assert(parameters(LayerSpec{
                  .kind = LayerKind::block, .hidden = 768, .heads = 12, .kv_heads = 12, .head_dim = 64, .ffn = 3072}) ==
              7'087'872);

}  // namespace
}  // namespace galvatron
