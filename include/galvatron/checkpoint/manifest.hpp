// The manifest of a checkpoint: what was trained, how far, with what, and the files with their checksums.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/crc32c.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/data/task_stream.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/model/adapters.hpp>
#include <galvatron/model/difference.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::train {

inline constexpr int checkpoint_version = 1;
inline constexpr const char* manifest_name = "manifest.json";

/// A file of a checkpoint.
struct CheckpointFile {
  std::string name;  ///< in the checkpoint's folder
  std::int64_t bytes = 0;
  std::uint32_t crc32c = 0;
  friend bool operator==(const CheckpointFile&, const CheckpointFile&) = default;
};

/// How a learning rate goes on behind its warm-up.
enum class RateSchedule : std::uint8_t {
  cosine,    ///< falls along half a cosine (Loshchilov & Hutter 2017)
  linear,    ///< falls along a line
  wsd,       ///< stays, and falls along a line at the end: warm-up, stable, decay (Hu et al., arXiv 2404.06395)
  constant,  ///< stays
};
inline constexpr std::array rate_schedules = {RateSchedule::cosine, RateSchedule::linear, RateSchedule::wsd,
                                              RateSchedule::constant};
constexpr const char* name_of(RateSchedule schedule) {
  return schedule == RateSchedule::cosine   ? "cosine"
         : schedule == RateSchedule::linear ? "linear"
         : schedule == RateSchedule::wsd    ? "wsd"
                                            : "constant";
}

/// The learning rate over a run: linear warm-up, then as the schedule says.
struct LearningRate {
  double peak = 1e-3;
  double floor = 1e-4;  ///< at the last step
  std::int64_t warmup_steps = 0;
  std::int64_t steps = 1;  ///< of the whole run
  RateSchedule schedule = RateSchedule::cosine;
  std::int64_t decay_steps = 0;  ///< of `wsd`: the last ones of the run, in which the rate falls

  /// The rate of a step that counts from 0: peak * (step + 1) / warmup_steps while warming up, then from peak to floor;
  /// a constant one stays at peak.
  [[nodiscard]] double at(std::int64_t step) const {
    if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    if (schedule == RateSchedule::constant) return peak;
    // The last step with the peak.
    const std::int64_t first =
        schedule == RateSchedule::wsd ? std::max(warmup_steps, steps - 1 - decay_steps) : warmup_steps;
    if (steps <= first + 1 || step <= first) return peak;
    const double progress = std::min(static_cast<double>(step - first) / static_cast<double>(steps - first - 1), 1.0);
    if (schedule == RateSchedule::cosine)
      return floor + 0.5 * (peak - floor) * (1 + std::cos(std::numbers::pi * progress));
    return peak + (floor - peak) * progress;
  }
};

/// How a run is trained, as far as its next steps depend on it. There is no other random state: initial values and the
/// order of the data are functions of the seed, and of a step's number.
struct TrainingState {
  std::string model;            ///< a preset's name, or the path of a config.json; in the file from its own folder
  nlohmann::json architecture;  ///< of model_architecture()
  /// Of a model with adapters, whose checkpoints have these alone: the weights of its base, as --init-from has them; in
  /// the file from its own folder. Empty: the base has the initial values of the seed.
  std::string base{};
  std::int64_t step = 0;  ///< steps done; the learning rate's schedule and Adam's go on from here
  std::uint64_t seed = 0;
  std::int64_t global_batch = 0;
  std::int64_t sequence_length = 0;
  std::int64_t data_tokens = 0;  ///< of all data files together; 0: not known
  /// Of samples of the data (Data::checksum); manifests of before have none.
  std::optional<std::uint32_t> data_crc32c{};
  std::vector<TaskStream> streams{};  ///< of a model of several tasks; manifests of before have none
  Precision precision = Precision::fp32;
  LearningRate learning_rate;
  device::AdamW adam;  ///< beta1, beta2, epsilon, weight_decay and rounding of it
  double clip = 0;
  /// Samples that were read: where in the data the run is.
  [[nodiscard]] std::int64_t samples() const { return step * global_batch; }
};

struct CheckpointManifest {
  TrainingState training;
  int ranks = 1;  ///< that wrote it
  std::vector<CheckpointFile> files;
};

/// What must be equal for weights of one model to be those of another. What only some families have is there where a
/// model has it.
template <class = void>
nlohmann::json model_architecture(const ModelSpec& model) {
  using galvatron::detail::field_text;
  const LayerSpec& block = model.blocks.empty() ? model.embedding : model.blocks.front();
  nlohmann::json out{{"layers", model.blocks.size()},
                     {"hidden", model.hidden()},
                     {"heads", block.heads},
                     {"kv_heads", block.kv_heads},
                     {"head_dim", block.head_dim},
                     {"ffn", block.ffn},
                     {"vocabulary", model.vocabulary()},
                     {"positions", model.positions()},
                     {"norm", field_text(block.norm)},
                     {"norm_epsilon", block.norm_epsilon},
                     {"activation", field_text(block.activation)},
                     {"position", field_text(block.position)},
                     {"rope_theta", block.rope_theta},
                     {"bias", block.bias},
                     {"tied", model.head.tied}};
  if (block.qkv_bias) out["qkv_bias"] = true;
  if (const RotaryScaling& scaling = block.rotary_scaling; scaling != RotaryScaling{})
    out["rotary_scaling"] = {{"factor", scaling.factor},
                             {"positions", scaling.positions},
                             {"fast", scaling.fast},
                             {"slow", scaling.slow},
                             {"amplitude", scaling.amplitude},
                             {"score_rate", scaling.score_rate},
                             {"ramp", field_text(scaling.ramp)}};
  if (block.rotary_dim != 0) out["rotary_dim"] = block.rotary_dim;
  if (std::ranges::any_of(model.blocks, [&](const LayerSpec& b) {
        return b.rope_theta != block.rope_theta || b.rotary_scaling != block.rotary_scaling;
      })) {
    nlohmann::json bases = nlohmann::json::array();
    for (const LayerSpec& b : model.blocks) bases.push_back({b.rope_theta, b.rotary_scaling.factor});
    out["rotary_bases"] = bases;
  }
  if (std::ranges::any_of(model.blocks, [](const LayerSpec& b) { return b.sliding_window > 0; })) {
    nlohmann::json windows = nlohmann::json::array();
    for (const LayerSpec& b : model.blocks) windows.push_back(b.sliding_window);
    out["sliding_windows"] = windows;
  }
  if (block.score_width != 0) out["score_width"] = block.score_width;
  if (block.score_cap != 0) out["score_cap"] = block.score_cap;
  if (model.head.logits_cap != 0) out["logits_cap"] = model.head.logits_cap;
  if (block.norm_order == NormOrder::around) out["norm_order"] = field_text(block.norm_order);
  if (block.parallel) out["parallel"] = true;
  if (model.embedding.embedding_scale != 1) out["embedding_scale"] = model.embedding.embedding_scale;
  if (model.head.logits_bias) out["logits_bias"] = true;
  if (const AdapterSpec adapters = adapters_of(model); adapters.rank > 0)
    out["lora"] = {{"rank", adapters.rank}, {"alpha", adapters.alpha}, {"targets", adapter_target_names(adapters)}};
  if (block.query_key_norm != QueryKeyNorm::none) out["query_key_norm"] = field_text(block.query_key_norm);
  if (const LatentAttention& latent = block.latent; latent.rank > 0)
    out["latent"] = {{"rank", latent.rank},
                     {"query_rank", latent.query_rank},
                     {"rotary_dim", latent.rotary_dim},
                     {"value_dim", latent.value_dim},
                     {"norm_epsilon", latent.norm_epsilon}};
  nlohmann::json blocks = nlohmann::json::array();
  const LayerSpec* experts = nullptr;
  for (std::size_t i = 0; i < model.blocks.size(); ++i)
    if (model.blocks[i].experts > 0) {
      experts = &model.blocks[i];
      blocks.push_back(i);
    }
  if (experts == nullptr) return out;
  out["experts"] = {{"blocks", blocks},
                    {"count", experts->experts},
                    {"of_a_token", experts->active_experts},
                    {"ffn", experts->ffn},
                    {"shared_ffn", experts->shared_ffn},
                    {"shared_gate", experts->shared_gate},
                    {"scores", field_text(experts->router.kind)},
                    {"renormalise", experts->router.renormalise},
                    {"scale", experts->router.scale},
                    {"groups", experts->router.groups},
                    {"groups_of_a_token", experts->router.top_groups}};
  if (experts->router.residual_gain) out["residual_gain"] = true;
  return out;
}
GALVATRON_IN_TRAINER(nlohmann::json model_architecture<>(const ModelSpec&))

/// The model with the gains of the experts' residuals (RouterSpec::residual_gain) where a checkpoint has them: they are
/// of compressed dispatch, and no field of a model's file tells of them.
inline ModelSpec with_gains_of(const TrainingState& training, ModelSpec model) {
  if (training.architecture.contains("residual_gain"))
    for (LayerSpec& block : model.blocks) block.router.residual_gain = block.experts > 0;
  return model;
}

/// The model with the adapters of a checkpoint, whose weights are these alone. Errors (usage): those of
/// with_adapters(), and of a manifest that was changed.
inline Result<ModelSpec> with_adapters_of(const TrainingState& training, ModelSpec model) {
  if (!training.architecture.contains("lora")) return model;
  AdapterSpec adapters;
  JsonObject fields(training.architecture.at("lora"), "architecture: lora");
  fields.field("rank", adapters.rank, 1, most_adapter_rank);
  fields.field("alpha", adapters.alpha, 1e-9, 1e9);
  const auto targets = fields.required<std::string>("targets");
  if (auto done = fields.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
  return with_adapter_targets(adapters, targets).and_then([&](const AdapterSpec& named) {
    return with_adapters(std::move(model), named);
  });
}

/// Why a checkpoint's weights are not those of `model`; empty when they are.
inline std::string why_other_model(const TrainingState& training, const ModelSpec& model) {
  const nlohmann::json here = model_architecture(model);
  for (const auto& [key, value] : here.items()) {
    const bool known = training.architecture.contains(key);
    if (!known || training.architecture.at(key) != value)
      return "it is of the model " + training.model + " with " + key + " " +
             (known ? training.architecture.at(key).dump() : "unknown") + ", and " + model.name + " has " +
             value.dump();
  }
  for (const auto& [key, value] : training.architecture.items())
    if (!here.contains(key))
      return "it is of the model " + training.model + " with " + key + " " + value.dump() + ", which " + model.name +
             " has not";
  return "";
}

namespace detail {
inline std::uint32_t manifest_checksum(nlohmann::json manifest) {
  manifest.erase("crc32c");
  return crc32c(manifest.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}
}  // namespace detail

/// The text of the manifest's file. Its own checksum is of the compact text of the other keys in alphabetic order.
template <class = void>
std::string manifest_text(const CheckpointManifest& manifest) {
  const TrainingState& t = manifest.training;
  nlohmann::json out{{"format", "galvatron-checkpoint"},
                     {"version", checkpoint_version},
                     {"model", t.model},
                     {"architecture", t.architecture},
                     {"step", t.step},
                     {"samples", t.samples()},
                     {"seed", t.seed},
                     {"global_batch", t.global_batch},
                     {"sequence_length", t.sequence_length},
                     {"data_tokens", t.data_tokens},
                     {"precision", name_of(t.precision)},
                     {"ranks", manifest.ranks},
                     {"learning_rate",
                      {{"peak", t.learning_rate.peak},
                       {"floor", t.learning_rate.floor},
                       {"warmup_steps", t.learning_rate.warmup_steps},
                       {"steps", t.learning_rate.steps}}},
                     {"adamw",
                      {{"beta1", t.adam.beta1},
                       {"beta2", t.adam.beta2},
                       {"epsilon", t.adam.epsilon},
                       {"weight_decay", t.adam.weight_decay},
                       {"rounding", device::name_of(t.adam.rounding)}}},
                     {"clip", t.clip},
                     {"files", nlohmann::json::array()}};
  if (t.data_crc32c) out["data_crc32c"] = *t.data_crc32c;
  if (!t.base.empty()) out["base"] = t.base;
  for (const TaskStream& stream : t.streams) {
    nlohmann::json own{
        {"task", stream.task}, {"batch", stream.batch_at(t.step - 1)}, {"samples", stream.samples_at(t.step)}};
    if (stream.crc32c) own["crc32c"] = *stream.crc32c;
    out["streams"].push_back(std::move(own));
  }
  if (t.learning_rate.schedule != RateSchedule::cosine) {
    out["learning_rate"]["schedule"] = name_of(t.learning_rate.schedule);
    out["learning_rate"]["decay_steps"] = t.learning_rate.decay_steps;
  }
  for (const CheckpointFile& file : manifest.files)
    out["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"crc32c", file.crc32c}});
  out["crc32c"] = detail::manifest_checksum(out);
  return json_text(out);
}
GALVATRON_IN_TRAINER(std::string manifest_text<>(const CheckpointManifest&))

/// The manifest in a text; `name` stands for its file in messages. Errors (usage): malformed, of another version,
/// changed since it was written.
template <class = void>
Result<CheckpointManifest> parse_manifest(std::string_view text, const std::string& name) {
  const auto value = parse_json(text, name);
  if (!value) return tl::unexpected<Error>(value.error());
  JsonObject fields(*value, name);
  if (const auto format = fields.required<std::string>("format"); !fields.failed() && format != "galvatron-checkpoint")
    fields.fail(name + " is not the manifest of a galvatron checkpoint: its format is \"" +
                galvatron::detail::one_line(format, 40) + "\"");
  if (const auto version = fields.required<int>("version"); !fields.failed() && version != checkpoint_version)
    fields.fail(name + " has version " + std::to_string(version) + "; this galvatron reads version " +
                std::to_string(checkpoint_version));
  CheckpointManifest out;
  TrainingState& t = out.training;
  t.model = fields.required<std::string>("model");
  t.architecture = fields.any("architecture") != nullptr ? *fields.any("architecture") : nlohmann::json();
  if (!t.architecture.is_object()) fields.fail(fields.name("architecture") + ": expected a JSON object");
  constexpr std::int64_t most = std::int64_t{1} << 40;
  t.step = fields.required<std::int64_t>("step", 0, most);
  const auto samples = fields.required<std::int64_t>("samples", 0);
  t.seed = fields.required<std::uint64_t>("seed");
  t.global_batch = fields.required<std::int64_t>("global_batch", 1, std::int64_t{1} << 22);
  t.sequence_length = fields.required<std::int64_t>("sequence_length", 1);
  t.data_tokens = fields.required<std::int64_t>("data_tokens", 0);
  if (fields.contains("base")) t.base = fields.required<std::string>("base");
  if (fields.contains("data_crc32c")) t.data_crc32c = fields.required<std::uint32_t>("data_crc32c");
  if (fields.contains("streams"))
    fields.list("streams", t.streams, [&t](JsonObject& own, TaskStream& stream) {
      own.field("task", stream.task);
      own.field("batch", stream.batch, std::int64_t{0}, std::int64_t{1} << 24);
      own.field("samples", stream.samples, std::int64_t{0}, std::int64_t{1} << 62);
      if (own.contains("crc32c")) stream.crc32c = own.required<std::uint32_t>("crc32c");
      stream.step = t.step;
    });
  fields.word("precision", t.precision, precisions, [](Precision p) { return name_of(p); });
  out.ranks = fields.required<int>("ranks", 1);
  JsonObject rate = fields.required_object("learning_rate");
  t.learning_rate = {.peak = rate.required<double>("peak"),
                     .floor = rate.required<double>("floor"),
                     .warmup_steps = rate.required<std::int64_t>("warmup_steps", 0),
                     .steps = rate.required<std::int64_t>("steps", 1),
                     .decay_steps = rate.optional<std::int64_t>("decay_steps", 0, 0)};
  if (rate.contains("schedule"))
    rate.word("schedule", t.learning_rate.schedule, rate_schedules, [](RateSchedule s) { return name_of(s); });
  JsonObject adam = fields.required_object("adamw");
  t.adam.beta1 = adam.required<float>("beta1");
  t.adam.beta2 = adam.required<float>("beta2");
  t.adam.epsilon = adam.required<float>("epsilon");
  t.adam.weight_decay = adam.required<float>("weight_decay");
  const auto rounding = adam.optional<std::string>("rounding", device::name_of(device::Rounding::nearest));
  t.adam.rounding = device::rounding_of(rounding);
  if (!adam.failed() && rounding != device::name_of(t.adam.rounding))
    adam.fail(adam.name("rounding") + ": expected nearest or stochastic");
  t.clip = fields.required<double>("clip", 0);
  const nlohmann::json& files = fields.required_array("files");
  const auto checksum = fields.required<std::uint32_t>("crc32c");
  if (auto done = fields.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
  if (auto done = rate.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
  if (auto done = adam.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
  for (std::size_t i = 0; i < files.size(); ++i) {
    JsonObject file(files[i], name + ": files[" + std::to_string(i) + "]");
    out.files.push_back({file.required<std::string>("name"), file.required<std::int64_t>("bytes", 0),
                         file.required<std::uint32_t>("crc32c")});
    if (auto done = file.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
    const std::string& path = out.files.back().name;
    if (path.empty() || path.front() == '.' || path.find('/') != std::string::npos)
      return usage_error(name + ": files[" + std::to_string(i) + "]: \"" + galvatron::detail::one_line(path, 60) +
                         "\" is not the name of a file in the checkpoint's folder");
  }
  if (const std::uint32_t found = detail::manifest_checksum(*value); found != checksum)
    return usage_error(name + " is damaged: its checksum is " + std::to_string(found) + ", it should be " +
                       std::to_string(checksum));
  if (samples != t.samples())
    return usage_error(name + ": " + std::to_string(samples) + " samples are not " + std::to_string(t.step) +
                       " steps of " + std::to_string(t.global_batch));
  return out;
}
GALVATRON_IN_TRAINER(Result<CheckpointManifest> parse_manifest<>(std::string_view, const std::string&))

}  // namespace galvatron::train
