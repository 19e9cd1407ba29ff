// CLIPs that Hugging Face transformers wrote (tests/train/pytorch/clip.py): their embeddings and losses, and the same
// files again.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/huggingface_components.hpp>
#include <galvatron/checkpoint/safetensors.hpp>
#include <galvatron/model/clip.hpp>
#include <galvatron/model/multi_task_json.hpp>
#include <galvatron/plan/wave_plan.hpp>
#include <galvatron/train/compiled.hpp>

#include "../folder.hpp"
#include "../says.hpp"

using namespace galvatron;
namespace fs = std::filesystem;

namespace {

constexpr int clip_count = 20;
constexpr std::int64_t clip_batch = 4;
const fs::path clip_folder = fs::path(test::tests_dir) / "train/pytorch/clip";
const std::vector<std::string> clip_names{"text", "vision", "contrast"};

fs::path clip_at(int i) {
  const std::string number = std::to_string(i);
  return clip_folder / (i < 10 ? "0" + number : number);
}

/// The texts of clip.py.
class ClipTexts final : public train::BatchSource {
 public:
  explicit ClipTexts(const ComponentShape& shape) : vocabulary_(shape.vocabulary), positions_(shape.tokens) {}
  void inputs(std::int64_t, std::int64_t first, std::int64_t samples, train::SequenceRange range,
              View<std::int32_t> out) override {
    for (std::int64_t s = 0; s < range.count; ++s)
      for (std::int64_t i = 0; i < samples; ++i) {
        const std::int64_t b = (first + i) % clip_batch;
        const std::int64_t at = range.first + s;
        out[s * samples + i] = static_cast<std::int32_t>(
            at == (3 * b + 4) % positions_ ? vocabulary_ - 1 : (7 * b + 5 * at + at * at) % (vocabulary_ - 2));
      }
  }
  void targets(std::int64_t, std::int64_t, std::int64_t, train::SequenceRange, View<std::int32_t>) override {}

 private:
  std::int64_t vocabulary_, positions_;
};

/// Its images, in patches (C, p, p).
class ClipImages final : public train::BatchSource {
 public:
  explicit ClipImages(const ClipShape& shape)
      : side_(shape.patch), channels_(shape.channels), across_(shape.image() / shape.patch) {}
  void inputs(std::int64_t, std::int64_t, std::int64_t, train::SequenceRange, View<std::int32_t>) override {}
  void targets(std::int64_t, std::int64_t, std::int64_t, train::SequenceRange, View<std::int32_t>) override {}
  void patches(std::int64_t, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<float> out) override {
    float* to = out.data;
    for (std::int64_t s = 0; s < range.count; ++s)
      for (std::int64_t i = 0; i < samples; ++i)
        for (std::int64_t c = 0; c < channels_; ++c)
          for (std::int64_t row = 0; row < side_; ++row)
            for (std::int64_t column = 0; column < side_; ++column) {
              const std::int64_t patch = range.first + s;
              const std::int64_t y = patch / across_ * side_ + row;
              const std::int64_t x = patch % across_ * side_ + column;
              const std::int64_t b = (first + i) % clip_batch;
              *to++ = static_cast<float>(static_cast<double>((37 * b + 11 * c + 5 * y + 3 * x + x * y) % 41) / 20 - 1);
            }
  }

 private:
  std::int64_t side_, channels_, across_;
};

std::string clip_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
using ClipTensor = std::pair<std::vector<std::int64_t>, std::string>;
std::map<std::string, ClipTensor> clip_file(const fs::path& folder) {
  const std::string file = clip_bytes(folder / "model.safetensors");
  const auto parsed = value_or_throw(train::parse_safetensors(std::as_bytes(std::span(file)), folder.string()));
  std::map<std::string, ClipTensor> out;
  for (const train::SafetensorsEntry& e : parsed.entries)
    out[e.name] = {e.shape, file.substr(static_cast<std::size_t>(parsed.data_begin + e.begin),
                                        static_cast<std::size_t>(e.end - e.begin))};
  return out;
}

/// A model of one task on components that are described by a file.
MultiTaskModel clip_by_parts(const fs::path& config) {
  nlohmann::json components = nlohmann::json::array();
  for (const std::string& name : clip_names)
    components.push_back({{"name", "my-" + name}, {"model", config.string()}, {"part", name}});
  components[2]["inputs"] = {"my-text", "my-vision"};
  const nlohmann::json value{
      {"format", "galvatron-multi-task"},
      {"version", 1},
      {"name", "clip"},
      {"components", components},
      {"tasks",
       {{{"name", "pairs"}, {"inputs", {"my-text", "my-vision"}}, {"loss", "my-contrast"}, {"batch", clip_batch}}}}};
  return value_or_throw(multi_task_from_json(value, "test"));
}

/// The greatest distance of rows of unit length from those that transformers gives.
double row_error(std::span<const float> rows, const std::vector<double>& wanted, std::int64_t width) {
  if (rows.size() != wanted.size()) return INFINITY;
  double error = 0;
  for (std::size_t first = 0; first < rows.size(); first += static_cast<std::size_t>(width)) {
    double squares = 0;
    for (std::int64_t i = 0; i < width; ++i) squares += std::pow(static_cast<double>(rows[first + i]), 2);
    for (std::int64_t i = 0; i < width; ++i)
      error = std::max(error, std::abs(static_cast<double>(rows[first + i]) / std::sqrt(squares) - wanted[first + i]));
  }
  return error;
}

train::TaskTrainReport run_clip(const MultiTaskModel& model, const WavePlan& plan, const ClipShape& shape,
                                const train::ComponentWeights& weights, const fs::path& folder) {
  ClipTexts texts(shape.text);
  ClipImages images(shape);
  const std::vector<train::TaskSources> sources{{&texts, &images}};
  const train::HeldOut held_out{.sources = sources, .samples = {clip_batch}, .keeps_rows = true};
  train::TaskTrainOptions options{.steps = 1, .learning_rate = {.peak = 0, .floor = 0}, .clip = 0};
  options.threads_per_rank = 1;
  options.initial = weights.weights({});
  options.checkpoint.folder = folder;
  options.held_out = &held_out;
  return train::train_tasks<Tasks<in_waves>>(model, plan, sources, options);
}

}  // namespace

TEST_CASE("random CLIPs of transformers have its embeddings and losses, and are written as they came in") {
  const auto wanted = nlohmann::json::parse(clip_bytes(clip_folder / "embeddings.json")).at("models");
  for (int i = 0; i < clip_count; ++i) {
    CAPTURE(i);
    const ClipShape shape = value_or_throw(load_clip(clip_at(i)));
    MultiTaskModel model = value_or_throw(load_multi_task_model(clip_at(i).string()));
    model.tasks[0].batch = clip_batch;
    const auto weights = value_or_throw(train::ComponentWeights::open(clip_at(i), model, clip_names));
    const auto graphs = value_or_throw(task_graphs(model));
    const test::Folder folder;
    const WavePlan plan = i % 2 == 0 ? plan_by_levels(model, graphs, 1 + i % 5)
                                     : plan_in_sequence(model, graphs, {.data = 1 + i % 4 / 3});
    const auto report = run_clip(model, plan, shape, weights, folder.path / "saved");
    const std::span<const float> rows = report.steps[0].held_out[0].rows;
    const auto expected = [&](const char* key) { return wanted.at(i).at(key).get<std::vector<double>>(); };
    CHECK(row_error(rows.first(rows.size() / 2), expected("text"), shape.text.output) < 1e-5);
    CHECK(row_error(rows.last(rows.size() / 2), expected("vision"), shape.text.output) < 1e-5);
    CHECK(report.steps[0].losses[0] == doctest::Approx(wanted.at(i).at("loss").get<double>()).epsilon(2e-5));

    const auto written =
        train::write_components(folder.path / "out", folder.path / "saved", model, clip_names, shape, Precision::fp32);
    REQUIRE_MESSAGE(written.has_value(), (written ? "" : written.error().message));
    CHECK(clip_file(folder.path / "out") == clip_file(clip_at(i)));
    CHECK(value_or_throw(load_clip(folder.path / "out")) == shape);
  }
}

TEST_CASE("CLIPs whose towers are cut over tensor ranks have transformers' embeddings") {
  const auto wanted = nlohmann::json::parse(clip_bytes(clip_folder / "embeddings.json")).at("models");
  int tried = 0;
  for (int i = 0; i < clip_count; ++i) {
    const ClipShape shape = value_or_throw(load_clip(clip_at(i)));
    const MultiTaskModel model = clip_by_parts(clip_at(i) / "config.json");
    const auto graphs = value_or_throw(task_graphs(model));
    // Blocks with Megatron's split of the sequence where it divides, then the projection.
    WavePlan plan = plan_in_sequence(model, graphs, {.data = 2});
    const int last = plan.waves[0].parts[0].last;
    if (shape.text.tokens % 2 != 0 || shape.text.heads % 2 != 0 || shape.vision.heads % 2 != 0) continue;
    WavePart projection = plan.waves[0].parts[0];
    projection.first = last;
    projection.strategy = plan.waves[1].parts[0].strategy = {.tensor = 2};
    plan.waves[0].parts[0].last = last - 1;
    plan.waves[0].parts[0].strategy = {.tensor = 2, .sequence = SequenceKind::megatron};
    plan.waves.insert(plan.waves.begin() + 1, {{projection}});
    CAPTURE(i);
    ++tried;
    const auto weights =
        value_or_throw(train::ComponentWeights::open(clip_at(i), model, {"my-vision", "my-contrast", "my-text"}));
    const test::Folder folder;
    const auto report = run_clip(model, plan, shape, weights, folder.path / "saved");
    const std::span<const float> rows = report.steps[0].held_out[0].rows;
    const auto expected = [&](const char* key) { return wanted.at(i).at(key).get<std::vector<double>>(); };
    CHECK(row_error(rows.first(rows.size() / 2), expected("text"), shape.text.output) < 1e-5);
    CHECK(row_error(rows.last(rows.size() / 2), expected("vision"), shape.text.output) < 1e-5);
  }
  CHECK(tried > 0);
}

TEST_CASE("what is no part of a CLIP is refused in one line") {
  const MultiTaskModel model = value_or_throw(load_multi_task_model(clip_at(0).string()));
  const auto refused = [](const auto& result, const char* cause) {
    REQUIRE_FALSE(result.has_value());
    CAPTURE(result.error().message);
    CHECK(says(result.error().message, cause));
    CHECK(result.error().message.find('\n') == std::string::npos);
  };
  refused(train::ComponentWeights::open(clip_at(1), model, {"text"}), "no part of this CLIP");
  refused(train::ComponentWeights::open(clip_at(0), model, {"sound"}), "no component \"sound\"");
  const test::Folder folder;
  const ClipShape shape = value_or_throw(load_clip(clip_at(0)));
  refused(train::write_components(folder.path, folder.path, model, {"text", "vision"}, shape, Precision::fp32),
          "not the parts of this CLIP");
  refused(load_model(clip_at(0).string()), "docs/multitask.md");
  const auto with = [](const char* key, const nlohmann::json& value) {
    nlohmann::json config = nlohmann::json::parse(clip_bytes(clip_at(0) / "config.json"));
    config["text_config"][key] = value;
    return clip_from_json(config, "c");
  };
  refused(with("hidden_act", "mish"), "\"mish\" is not supported");
  refused(with("num_attention_heads", 7), "does not divide");
  refused(with("eos_token_id", nlohmann::json::array({1, 2})), "eos_token_id");
  CHECK(with("eos_token_id", 2)->text.end_token == largest_token);
  const auto usual = value_or_throw(clip_from_json({{"model_type", "clip"}}, "c"));  // openai/clip-vit-base-patch32
  CHECK(usual.text.hidden == 512);
  CHECK(usual.vision.tokens == 50);
  CHECK(parameters(clip_model("clip", usual, 1)) == 151277313);
}
