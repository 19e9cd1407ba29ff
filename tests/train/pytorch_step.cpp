// labels: tsan
// Steps of a toy GPT-2, Llama, BERT, ViT, Swin and T5 against PyTorch's numbers, which tests/train/pytorch/step.py,
// swin.py and t5.py made in float64.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/manifest.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/predictions.hpp>
#include <galvatron/plan/plan.hpp>

#include "../folder.hpp"
#include "run_plan.hpp"

using namespace galvatron;
using nlohmann::json;

namespace {

// The order and the constants are those of step.py.
constexpr std::array<std::pair<ParameterName, const char*>, 31> names{{
    {ParameterName::table, "table"},
    {ParameterName::positions, "positions"},
    {ParameterName::qkv_weight, "qkv_weight"},
    {ParameterName::qkv_bias, "qkv_bias"},
    {ParameterName::attention_out_weight, "attention_out_weight"},
    {ParameterName::attention_out_bias, "attention_out_bias"},
    {ParameterName::mlp_in_weight, "mlp_in_weight"},
    {ParameterName::mlp_in_bias, "mlp_in_bias"},
    {ParameterName::mlp_out_weight, "mlp_out_weight"},
    {ParameterName::mlp_out_bias, "mlp_out_bias"},
    {ParameterName::norm1_gamma, "norm1_gamma"},
    {ParameterName::norm1_beta, "norm1_beta"},
    {ParameterName::norm2_gamma, "norm2_gamma"},
    {ParameterName::norm2_beta, "norm2_beta"},
    {ParameterName::token_types, "token_types"},
    {ParameterName::class_token, "class_token"},
    {ParameterName::patch_weight, "patch_weight"},
    {ParameterName::patch_bias, "patch_bias"},
    {ParameterName::closing_gamma, "closing_gamma"},
    {ParameterName::closing_beta, "closing_beta"},
    {ParameterName::transform_weight, "transform_weight"},
    {ParameterName::transform_bias, "transform_bias"},
    {ParameterName::logits_bias, "logits_bias"},
    {ParameterName::cross_query_weight, "cross_query_weight"},
    {ParameterName::cross_memory_weight, "cross_memory_weight"},
    {ParameterName::cross_out_weight, "cross_out_weight"},
    {ParameterName::norm3_gamma, "norm3_gamma"},
    {ParameterName::relative_positions, "relative_positions"},
    {ParameterName::merge_weight, "merge_weight"},
    {ParameterName::merge_gamma, "merge_gamma"},
    {ParameterName::merge_beta, "merge_beta"},
}};
constexpr std::uint32_t checksum_stream = 5000;
constexpr std::uint32_t token_stream = 9000;
constexpr std::uint32_t label_stream = 9100;

std::uint32_t place_of(ParameterName name) {
  std::uint32_t place = 0;
  while (names[place].first != name) ++place;
  return place;
}
std::uint32_t stream_of(int layer, ParameterName name) {
  return static_cast<std::uint32_t>(layer) * 64 + place_of(name);
}

double noise(std::uint32_t stream, std::int64_t index) {
  std::uint32_t x = static_cast<std::uint32_t>(index) * 0x85EBCA77U + stream * 0x9E3779B1U + 0x27D4EB2FU;
  x ^= x >> 15;
  x *= 0x2C1B3C6DU;
  x ^= x >> 12;
  x *= 0x297A2D39U;
  x ^= x >> 15;
  return static_cast<double>(x >> 22) / 512.0 - 1.0;
}

double initial_value(int layer, const ParameterTensor& tensor, std::int64_t index) {
  return noise(stream_of(layer, tensor.name), index) / (tensor.decays ? 8.0 : 16.0) +
         (tensor.init == ParameterInit::one ? 1.0 : 0.0);
}

// A number of [0, count).
std::int32_t choice(std::uint32_t stream, std::int64_t index, std::int64_t count) {
  return static_cast<std::int32_t>(static_cast<std::int64_t>((noise(stream, index) + 1.0) * 512.0) % count);
}

class NoiseTokens final : public train::BatchSource {
 public:
  NoiseTokens(std::int64_t sequence, std::int64_t vocabulary) : sequence_(sequence), vocabulary_(vocabulary) {}
  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
              View<std::int32_t> out) override {
    fill(step, first, samples, range, 0, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<std::int32_t> out) override {
    fill(step, first, samples, range, 1, out);
  }

 private:
  void fill(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range, std::int64_t shift,
            View<std::int32_t> out) {
    for (std::int64_t s = range.first; s < range.first + range.count; ++s)
      for (std::int64_t i = 0; i < samples; ++i) {
        const std::int64_t index = (first + i) * (sequence_ + 1) + s + shift;
        out[(s - range.first) * samples + i] =
            choice(token_stream + static_cast<std::uint32_t>(step % 2), index, vocabulary_);
      }
  }
  std::int64_t sequence_;
  std::int64_t vocabulary_;
};

// The same tokens, some of which the last of the vocabulary hides.
class NoiseMasked final : public train::BatchSource {
 public:
  NoiseMasked(std::int64_t sequence, std::int64_t vocabulary)
      : tokens_(sequence, vocabulary), sequence_(sequence), vocabulary_(vocabulary) {}
  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
              View<std::int32_t> out) override {
    tokens_.inputs(step, first, samples, range, out);
    for (std::int64_t row = 0; row < out.count; ++row)
      if (is_hidden(step, first + row % samples, range.first + row / samples))
        out[row] = static_cast<std::int32_t>(vocabulary_ - 1);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<std::int32_t> out) override {
    tokens_.inputs(step, first, samples, range, out);
    for (std::int64_t row = 0; row < out.count; ++row)
      if (!is_hidden(step, first + row % samples, range.first + row / samples)) out[row] = -1;
  }

 private:
  [[nodiscard]] bool is_hidden(std::int64_t step, std::int64_t sample, std::int64_t token) const {
    for (std::int64_t j = 0; j < masked_tokens(sequence_); ++j)
      if ((5 * j + 3 * sample + step) % sequence_ == token) return true;
    return false;
  }
  NoiseTokens tokens_;
  std::int64_t sequence_;
  std::int64_t vocabulary_;
};

// The same for an encoder; a decoder has tokens of its own, of which the first are to be told.
class NoiseSides final : public train::BatchSource {
 public:
  NoiseSides(const ModelSpec& model, std::int64_t sequence)
      : encoder_(sequence, model.vocabulary()),
        vocabulary_(model.vocabulary()),
        target_(model.head.tokens.of(sequence)),
        predictions_(predictions(model, sequence)) {}
  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
              View<std::int32_t> out) override {
    encoder_.inputs(step, first, samples, range, out);
  }
  void decoder_inputs(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
                      View<std::int32_t> out) override {
    for (std::int64_t row = 0; row < out.count; ++row)
      out[row] = token(step, first + row % samples, range.first + row / samples);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<std::int32_t> out) override {
    for (std::int64_t row = 0; row < out.count; ++row) {
      const std::int64_t s = range.first + row / samples;
      out[row] = s < predictions_ ? token(step, first + row % samples, s + 1) : -1;
    }
  }

 private:
  [[nodiscard]] std::int32_t token(std::int64_t step, std::int64_t sample, std::int64_t s) const {
    return choice(label_stream + static_cast<std::uint32_t>(step % 2), sample * (target_ + 1) + s, vocabulary_);
  }
  NoiseTokens encoder_;
  std::int64_t vocabulary_;
  std::int64_t target_;
  std::int64_t predictions_;
};

class NoiseImages final : public train::BatchSource {
 public:
  explicit NoiseImages(const ModelSpec& model) : model_(model) {}
  void patches(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<float> out) override {
    const std::int64_t width = model_.embedding.patch_width;
    for (std::int64_t s = 0; s < range.count; ++s)
      for (std::int64_t i = 0; i < samples; ++i)
        for (std::int64_t k = 0; k < width; ++k) {
          const std::int64_t patches = model_.positions() - (model_.embedding.class_token ? 1 : 0);
          const std::int64_t patch = (first + i) * patches + range.first + s;
          const double number = noise(token_stream + static_cast<std::uint32_t>(step % 2), patch * width + k);
          out[(s * samples + i) * width + k] = static_cast<float>(number);
        }
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange,
               View<std::int32_t> out) override {
    for (std::int64_t i = 0; i < samples; ++i)
      out[i] = choice(label_stream + static_cast<std::uint32_t>(step % 2), first + i, model_.head.vocabulary);
  }

 private:
  const ModelSpec& model_;
};

std::unique_ptr<train::BatchSource> source_of(const ModelSpec& model, std::int64_t sequence) {
  if (model.takes_images()) return std::make_unique<NoiseImages>(model);
  if (model.is_encoder_decoder()) return std::make_unique<NoiseSides>(model, sequence);
  if (model.head.head == HeadKind::masked_language) return std::make_unique<NoiseMasked>(sequence, model.vocabulary());
  return std::make_unique<NoiseTokens>(sequence, model.vocabulary());
}

using Tensors = toy::Gradients;

struct Run {
  toy::Outcome outcome;
  Tensors changes;  ///< of the parameters, from the start to the end
};

json golden(const char* name) {
  std::ifstream file(std::string(galvatron::test::tests_dir) + "/train/pytorch/" + name);
  return json::parse(file);
}

ModelSpec model_of(const json& file) {
  const json& m = file.at("model");
  if (file.at("family") == "bert")
    return bert("toy", {.layers = m.at("layers"),
                        .hidden = m.at("hidden"),
                        .heads = m.at("heads"),
                        .vocabulary = m.at("vocabulary"),
                        .positions = m.at("positions"),
                        .ffn = m.at("ffn"),
                        .token_types = m.at("token_types"),
                        .norm_epsilon = m.at("epsilon")});
  if (file.at("family") == "vit")
    return vit("toy", {.layers = m.at("layers"),
                       .hidden = m.at("hidden"),
                       .heads = m.at("heads"),
                       .ffn = m.at("ffn"),
                       .image = m.at("image"),
                       .patch = m.at("patch"),
                       .channels = m.at("channels"),
                       .classes = m.at("vocabulary"),
                       .norm_epsilon = m.at("epsilon")});
  if (file.at("family") == "swin")
    return swin("toy", {.depths = m.at("depths"),
                        .hidden = m.at("hidden"),
                        .heads = m.at("heads"),
                        .ffn_ratio = m.at("ffn_ratio"),
                        .image = m.at("image"),
                        .patch = m.at("patch"),
                        .window = m.at("window"),
                        .channels = m.at("channels"),
                        .classes = m.at("vocabulary"),
                        .norm_epsilon = m.at("epsilon")});
  if (file.at("family") == "t5")
    return t5("toy", {.encoder_layers = m.at("encoder_layers"),
                      .decoder_layers = m.at("decoder_layers"),
                      .hidden = m.at("hidden"),
                      .heads = m.at("heads"),
                      .head_dim = m.at("head_dim"),
                      .ffn = m.at("ffn"),
                      .vocabulary = m.at("vocabulary"),
                      .source = m.at("source"),
                      .target = m.at("target"),
                      .buckets = m.at("buckets"),
                      .norm_epsilon = m.at("epsilon")});
  if (file.at("family") == "gpt2")
    return gpt("toy", {.layers = m.at("layers"),
                       .hidden = m.at("hidden"),
                       .heads = m.at("heads"),
                       .vocabulary = m.at("vocabulary"),
                       .positions = m.at("positions"),
                       .ffn = m.at("ffn"),
                       .norm_epsilon = m.at("epsilon")});
  return llama("toy", {.layers = m.at("layers"),
                       .hidden = m.at("hidden"),
                       .heads = m.at("heads"),
                       .kv_heads = m.at("kv_heads"),
                       .ffn = m.at("ffn"),
                       .vocabulary = m.at("vocabulary"),
                       .positions = m.at("positions"),
                       .head_dim = m.at("head_dim"),
                       .rope_theta = m.at("theta"),
                       .norm_epsilon = m.at("epsilon")});
}

// Equal stages, every layer under `spec`.
Plan plan_of(const json& file, const ModelSpec& model, const StrategySpec& spec, int stages, int microbatches) {
  Plan plan;
  plan.global_batch = file.at("batch");
  plan.sequence_length = file.at("sequence");
  plan.microbatches = microbatches;
  plan.stages = even_stages(static_cast<int>(model.blocks.size()), stages, 1, spec.ranks());
  plan.layers.assign(model.blocks.size(), spec);
  plan.embedding = spec;
  plan.head = spec;
  return plan;
}

Run run(const json& file, const ModelSpec& model, const Plan& plan) {
  const json& rate = file.at("learning_rate");
  const json& adam = file.at("adamw");
  const auto steps = static_cast<std::int64_t>(file.at("steps").size());
  const train::LearningRate schedule{
      .peak = rate.at("peak"), .floor = rate.at("floor"), .warmup_steps = rate.at("warmup_steps"), .steps = steps};
  const auto source = source_of(model, plan.sequence_length);
  toy::RunOptions options{.steps = static_cast<int>(steps), .source = source.get(), .clip = file.at("clip")};
  options.initial = [](int layer, const ParameterTensor& tensor, std::int64_t index, View<float> values) {
    for (std::int64_t i = 0; i < values.count; ++i)
      values[i] = static_cast<float>(initial_value(layer, tensor, index + i));
  };
  options.optimizer = [&](int step) {
    return device::AdamW{.learning_rate = static_cast<float>(schedule.at(step)),
                         .beta1 = adam.at("beta1"),
                         .beta2 = adam.at("beta2"),
                         .epsilon = adam.at("epsilon"),
                         .weight_decay = adam.at("weight_decay")};
  };
  Run out;
  out.outcome = toy::run(plan, model, options);
  for (const auto& [key, values] : out.outcome.parameters) out.changes[key].assign(values.begin(), values.end());
  const auto subtract_start = [&](int layer, const LayerSpec& spec, ParameterPart part) {
    for (const ParameterTensor& tensor : parameter_layout(spec, part, 1, 1)) {
      const auto found = out.changes.find({layer, tensor.name});
      if (found == out.changes.end()) continue;  // a tied head's table
      for (std::size_t i = 0; i < found->second.size(); ++i)
        found->second[i] -= initial_value(layer, tensor, static_cast<std::int64_t>(i));
    }
  };
  const int head = static_cast<int>(model.blocks.size()) + 1;
  for (const ParameterPart part : {ParameterPart::table, ParameterPart::rest}) {
    subtract_start(0, model.embedding, part);
    subtract_start(head, model.head, part);
  }
  for (int i = 1; i < head; ++i) subtract_start(i, model.blocks[static_cast<std::size_t>(i - 1)], ParameterPart::rest);
  return out;
}

// The greatest deviation of a tensor's norm, product and entries, relative to the norm.
double deviation(const std::vector<double>& got, const json& wanted, std::uint32_t stream, std::size_t count) {
  double squares = 0;
  double product = 0;
  for (std::size_t i = 0; i < count; ++i) {
    squares += got[i] * got[i];
    product += got[i] * noise(checksum_stream + stream, static_cast<std::int64_t>(i));
  }
  const double norm = wanted.at("norm");
  double worst = std::max(std::abs(std::sqrt(squares) - norm), std::abs(product - wanted.at("product").get<double>()));
  const json& entries = wanted.at("entries");
  const std::size_t places[] = {0, count / 2, count - 1};
  for (std::size_t i = 0; i < 3; ++i) worst = std::max(worst, std::abs(got[places[i]] - entries.at(i).get<double>()));
  return std::isnan(worst) ? INFINITY : worst / norm;
}

void compare(const char* what, const ModelSpec& model, const Tensors& got, const json& wanted, double tolerance) {
  INFO(what);
  CHECK(got.size() == wanted.size());
  for (const auto& [key, values] : got) {
    const auto& [layer, name] = key;
    const std::string label = std::to_string(layer) + "/" + names[place_of(name)].second;
    INFO(label);
    REQUIRE(wanted.contains(label));
    // A cut vocabulary ends with padding.
    const auto vocabulary = static_cast<std::size_t>(model.head.vocabulary);
    const std::size_t count = name == ParameterName::table ? vocabulary * static_cast<std::size_t>(model.head.hidden)
                              : name == ParameterName::logits_bias ? vocabulary
                                                                   : values.size();
    REQUIRE(values.size() >= count);
    CHECK(deviation(values, wanted.at(label), stream_of(layer, name), count) < tolerance);
  }
}

void compare_with_pytorch(const char* name) {
  const json file = golden(name);
  const ModelSpec model = model_of(file);
  const StrategySpec cut{
      .tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 3, .recompute = RecomputeKind::full};
  const std::pair<const char*, Plan> plans[] = {
      {"one rank", plan_of(file, model, {}, 1, 1)},
      {"two stages of four ranks, two micro-batches", plan_of(file, model, cut, 2, 2)},
  };
  for (const auto& [label, plan] : plans) {
    INFO(label);
    Run got = run(file, model, plan);
    CHECK(got.outcome.copies_agree);
    CHECK(got.outcome.memory_as_planned);
    REQUIRE(got.outcome.losses.size() == file.at("steps").size());
    for (std::size_t i = 0; i < got.outcome.losses.size(); ++i) {
      INFO("step ", i);
      const json& wanted = file.at("steps").at(i);
      CHECK(got.outcome.losses[i] == doctest::Approx(wanted.at("loss").get<double>()).epsilon(1e-6));
      CHECK(got.outcome.norms[i] == doctest::Approx(wanted.at("gradient_norm").get<double>()).epsilon(2e-5));
    }
    compare("gradients of the first step", model, got.outcome.gradients, file.at("steps").front().at("gradients"),
            1e-5);
    compare("gradients of the last step", model, got.outcome.last_gradients, file.at("steps").back().at("gradients"),
            1e-4);
    // A bias of the keys shifts all scores of a query alike, which softmax ignores: its gradient is nothing but
    // rounding, which Adam makes a step of.
    json changes = file.at("changes");
    for (std::size_t i = 1; i <= model.blocks.size(); ++i) {
      changes.erase(std::to_string(i) + "/qkv_bias");
      got.changes.erase({static_cast<int>(i), ParameterName::qkv_bias});
    }
    // AdamW divides by the root of second moments: an entry whose gradient is nearly nothing takes a step of its
    // rounding. By the order in which a compiler adds, T5's differ by 0.9e-4 to 2.1e-4.
    compare("changes of the parameters", model, got.changes, changes, 4e-4);
  }
}

}  // namespace

TEST_CASE("A GPT-2 trains step for step as in PyTorch") { compare_with_pytorch("gpt2.json"); }

TEST_CASE("A Llama trains step for step as in PyTorch") { compare_with_pytorch("llama.json"); }

TEST_CASE("A BERT trains step for step as in PyTorch") { compare_with_pytorch("bert.json"); }

TEST_CASE("A ViT trains step for step as in PyTorch") { compare_with_pytorch("vit.json"); }

TEST_CASE("A Swin trains step for step as in PyTorch") { compare_with_pytorch("swin.json"); }

TEST_CASE("A T5 trains step for step as in PyTorch") { compare_with_pytorch("t5.json"); }
