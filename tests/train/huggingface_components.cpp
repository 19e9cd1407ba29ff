// Components of multi-task models with published weights: the loss of PyTorch, and the same files again. The golden
// checkpoints are those of tests/train/huggingface.cpp.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/huggingface_components.hpp>
#include <galvatron/checkpoint/safetensors.hpp>
#include <galvatron/model/multi_task_json.hpp>
#include <galvatron/plan/wave_plan.hpp>
#include <galvatron/train/compiled.hpp>

#include "../folder.hpp"
#include "../says.hpp"

using namespace galvatron;
namespace fs = std::filesystem;

namespace {

const fs::path published = fs::path(test::tests_dir) / "train/pytorch/huggingface";

/// The tokens of pytorch/huggingface.py.
class PublishedTokens final : public train::BatchSource {
 public:
  void inputs(std::int64_t, std::int64_t first, std::int64_t samples, train::SequenceRange range,
              View<std::int32_t> out) override {
    fill(first, samples, range, 0, out);
  }
  void targets(std::int64_t, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<std::int32_t> out) override {
    fill(first, samples, range, 1, out);
  }

 private:
  static void fill(std::int64_t first, std::int64_t samples, train::SequenceRange range, std::int64_t ahead,
                   View<std::int32_t> out) {
    for (std::int64_t s = 0; s < range.count; ++s)
      for (std::int64_t i = 0; i < samples; ++i) {
        const std::int64_t at = range.first + s + ahead;
        out[s * samples + i] = static_cast<std::int32_t>((7 * (first + i) + 5 * at + at * at) % 61);
      }
  }
};

/// A language task on two components that are a published model.
MultiTaskModel published_model(const std::string& name, const char* first, const char* second) {
  const std::string config = (published / name / "config.json").string();
  const nlohmann::json value{
      {"format", "galvatron-multi-task"},
      {"version", 1},
      {"name", "of-" + name},
      {"components",
       {{{"name", "text"}, {"model", config}, {"part", first}},
        {{"name", "llm"}, {"model", config}, {"part", second}, {"inputs", {"text"}}}}},
      {"tasks",
       {{{"name", "lm"}, {"inputs", {{{"component", "text"}, {"tokens", 16}}}}, {"loss", "llm"}, {"batch", 4}}}}};
  return value_or_throw(multi_task_from_json(value, "test"));
}

std::string published_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("components that begin with published weights have PyTorch's loss, and are written as they came in") {
  const auto losses = nlohmann::json::parse(published_bytes(published / "losses.json")).at("losses");
  struct Row {
    const char *name, *first, *second;
  };
  for (const auto& [name, first, second] : {Row{"llama", "embedding", "backbone"}, Row{"gpt2", "tower", "head"}}) {
    CAPTURE(name);
    const MultiTaskModel model = published_model(name, first, second);
    const std::vector<std::string> names{"text", "llm"};
    const auto weights = train::ComponentWeights::open(published / name, model, names);
    REQUIRE_MESSAGE(weights.has_value(), (weights ? "" : weights.error().message));
    for (const int ranks : {1, 2}) {
      const test::Folder folder;
      PublishedTokens tokens;
      train::TaskTrainOptions options{.steps = 1, .learning_rate = {.peak = 0, .floor = 0}, .clip = 0};
      options.threads_per_rank = 1;
      options.initial = weights->weights({});
      options.checkpoint.folder = folder.path / "saved";
      const WavePlan plan = plan_in_sequence(model, value_or_throw(task_graphs(model)), {.data = ranks});
      const auto report = train::train_tasks<Tasks<in_sequence>>(model, plan, {{&tokens}}, options);
      CHECK(report.steps[0].loss == doctest::Approx(losses.at(name).get<double>()).epsilon(1e-6));

      const ModelSpec of = value_or_throw(load_model((published / name).string()));
      const auto written =
          train::write_components(folder.path / "out", folder.path / "saved", model, names, of, Precision::fp32);
      REQUIRE_MESSAGE(written.has_value(), (written ? "" : written.error().message));
      const ModelSpec again = value_or_throw(load_model((folder.path / "out").string()));
      CHECK_FALSE(again.head.tied);
      const auto came = train::HuggingFaceWeights::open(folder.path / "out", again);
      REQUIRE_MESSAGE(came.has_value(), (came ? "" : came.error().message));
      const auto before = value_or_throw(train::HuggingFaceWeights::open(published / name, of));
      train::for_each_parameter(of, [&](int layer, const ParameterTensor& tensor) {
        std::vector<float> a(static_cast<std::size_t>(tensor.columns)), b(a.size());
        for (std::int64_t row = 0; row < std::min(tensor.rows, train::whole_shape(tensor).rows); ++row) {
          before.weights()(layer, tensor, row * tensor.columns, {a.data(), tensor.columns});
          came->weights()(layer, tensor, row * tensor.columns, {b.data(), tensor.columns});
          CHECK(a == b);
        }
      });
      if (of.head.tied) {
        const std::string bytes = published_bytes(folder.path / "out/model.safetensors");
        const auto file = train::parse_safetensors(std::as_bytes(std::span(bytes)), "f");
        CHECK(std::ranges::any_of(file->entries, [](const auto& e) { return e.name == "lm_head.weight"; }));
      }
    }
  }
}

TEST_CASE("components that are no part of the published model are refused with the layer") {
  const MultiTaskModel model = published_model("llama", "embedding", "backbone");
  const auto refused = [&](const fs::path& folder, const std::vector<std::string>& names, const char* cause) {
    const auto weights = train::ComponentWeights::open(folder, model, names);
    REQUIRE_FALSE(weights.has_value());
    CAPTURE(weights.error().message);
    CHECK(says(weights.error().message, cause));
    CHECK(weights.error().message.find('\n') == std::string::npos);
  };
  refused(published / "llama", {"text", "vision"}, "no component \"vision\"");
  refused(published / "llama", {"llm", "text"}, "of the component \"text\"");
  refused(published / "gpt2", {"text", "llm"}, "layer 0 of the component \"text\"");
  refused(published / "none", {"text"}, "none");
  CHECK(train::ComponentWeights::open(published / "llama", model, {"llm"}).has_value());
  const ModelSpec of = value_or_throw(load_model((published / "llama").string()));
  const test::Folder folder;
  const auto written = train::write_components(folder.path, folder.path, model, {"text"}, of, Precision::fp32);
  REQUIRE_FALSE(written.has_value());
  CHECK(says(written.error().message, "not all layers"));
}
