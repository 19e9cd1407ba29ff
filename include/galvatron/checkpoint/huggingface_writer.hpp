// Writes a checkpoint as Hugging Face transformers publishes models: config.json and safetensors. Where the parameters
// stand in them: huggingface.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/huggingface.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/checkpoint/safetensors.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::train {

namespace detail {

/// The first and last token of a text in the vocabulary of GPT-2 (also where it is padded), Llama 2 or Llama 3; null in
/// others, of bytes for one, where transformers would take the ids of a vocabulary that the model has not.
inline std::pair<nlohmann::ordered_json, nlohmann::ordered_json> text_ends(std::int64_t vocabulary,
                                                                           HuggingFaceFamily family) {
  if (family == HuggingFaceFamily::gpt2 && vocabulary >= 50257 && vocabulary <= 51200) return {50256, 50256};
  if (family == HuggingFaceFamily::llama && vocabulary == 32000) return {1, 2};
  if (family == HuggingFaceFamily::llama && vocabulary == 128256) return {128000, 128001};
  return {nullptr, nullptr};
}

/// The tensor's bytes in the file, from the checkpoint's masters.
inline std::vector<std::byte> huggingface_bytes(const Checkpoint& checkpoint, const HuggingFaceTensor& tensor,
                                                Precision precision) {
  const auto [rows, columns] = tensor.shape;
  std::vector<float> values(static_cast<std::size_t>(tensor.shape.count()));
  checkpoint.read(tensor.layer, tensor.parameter, StateKind::master, {tensor.row, rows, 0, columns}, values.data());
  const auto width = static_cast<std::size_t>(element_bytes(precision));
  std::vector<std::byte> out(values.size() * width);
  const auto put = [&](std::size_t place, float value) {
    const bfloat16 rounded(value);
    if (precision == Precision::fp32)
      std::memcpy(out.data() + place * width, &value, width);
    else
      std::memcpy(out.data() + place * width, &rounded.bits, width);
  };
  constexpr std::int64_t side = 32;  // of a square that is turned within the cache
  for (std::int64_t r = 0; r < rows; r += side)
    for (std::int64_t c = 0; c < columns; c += side)
      for (std::int64_t i = r; i < std::min(r + side, rows); ++i)
        for (std::int64_t j = c; j < std::min(c + side, columns); ++j)
          put(static_cast<std::size_t>(tensor.transposed ? j * rows + i : i * columns + j),
              values[static_cast<std::size_t>(i * columns + j)]);
  return out;
}

inline Result<void> write_huggingface_file(const std::filesystem::path& path, const Checkpoint& checkpoint,
                                           std::span<const HuggingFaceTensor> tensors, Precision precision) {
  std::vector<SafetensorsEntry> entries;
  std::int64_t end = 0;
  for (const HuggingFaceTensor& tensor : tensors) {
    const std::int64_t bytes = tensor.shape.count() * element_bytes(precision);
    entries.push_back(
        {tensor.name, precision == Precision::fp32 ? "F32" : "BF16", tensor.file_shape(), end, end + bytes});
    end += bytes;
  }
  auto file = AtomicFile::create(path);
  if (!file) return tl::unexpected<Error>(std::move(file.error()));
  if (auto done = file->write(safetensors_header(entries, {{"format", "pt"}})); !done) return done;
  for (const HuggingFaceTensor& tensor : tensors) {
    const std::vector<std::byte> bytes = huggingface_bytes(checkpoint, tensor, precision);
    if (auto done = file->write(std::span<const std::byte>(bytes)); !done) return done;
  }
  return file->commit();
}

}  // namespace detail

/// The config.json of a model, as Hugging Face transformers and load_model() read it. It was trained without dropout,
/// which transformers adds to a GPT-2 that does not say so.
inline nlohmann::ordered_json huggingface_config(const ModelSpec& model, HuggingFaceFamily family,
                                                 Precision precision) {
  const LayerSpec& block = model.blocks.front();
  const auto [first, last] = detail::text_ends(model.vocabulary(), family);
  const char* type = precision == Precision::fp32 ? "float32" : "bfloat16";
  if (family == HuggingFaceFamily::gpt2)
    return {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"n_embd", model.hidden()},
            {"n_layer", model.blocks.size()},
            {"n_head", block.heads},
            {"n_inner", block.ffn},
            {"n_positions", model.positions()},
            {"vocab_size", model.vocabulary()},
            {"layer_norm_epsilon", block.norm_epsilon},
            {"activation_function", "gelu_new"},
            {"embd_pdrop", 0.0},
            {"attn_pdrop", 0.0},
            {"resid_pdrop", 0.0},
            {"summary_first_dropout", 0.0},
            {"bos_token_id", first},
            {"eos_token_id", last},
            {"tie_word_embeddings", model.head.tied},
            {"torch_dtype", type}};
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", model.hidden()},
          {"num_hidden_layers", model.blocks.size()},
          {"num_attention_heads", block.heads},
          {"num_key_value_heads", block.kv_heads},
          {"head_dim", block.head_dim},
          {"intermediate_size", block.ffn},
          {"max_position_embeddings", model.positions()},
          {"vocab_size", model.vocabulary()},
          {"rms_norm_eps", block.norm_epsilon},
          {"rope_theta", block.rope_theta},
          {"hidden_act", "silu"},
          {"attention_dropout", 0.0},
          {"bos_token_id", first},
          {"eos_token_id", last},
          {"attention_bias", block.bias},
          {"mlp_bias", block.bias},
          {"tie_word_embeddings", model.head.tied},
          {"torch_dtype", type}};
}

/// Writes config.json and the weights of a checkpoint of `model` to a folder: model.safetensors, or, when they are more
/// than `largest` bytes, files of at most that (but for a larger tensor) and model.safetensors.index.json. The names of
/// the files that were written, config.json first. Errors (usage): a model of another family; what the system says.
inline Result<std::vector<std::string>> write_huggingface(const std::filesystem::path& folder,
                                                          const Checkpoint& checkpoint, const ModelSpec& model,
                                                          Precision precision, Bytes largest = {5'000'000'000}) {
  const auto family = huggingface_family(model);
  if (!family) return tl::unexpected<Error>(family.error());
  if (auto made = galvatron::detail::make_folder(folder); !made) return tl::unexpected<Error>(std::move(made.error()));
  const std::vector<HuggingFaceTensor> tensors = huggingface_tensors(model, *family);
  std::vector<std::size_t> starts{0};  // of the files
  std::int64_t total = 0;
  std::int64_t in_file = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t bytes = tensors[i].shape.count() * element_bytes(precision);
    if (in_file > 0 && in_file + bytes > largest.count) {
      starts.push_back(i);
      in_file = 0;
    }
    in_file += bytes;
    total += bytes;
  }
  std::vector<std::string> written{"config.json"};
  if (auto done =
          write_file_atomically(folder / written.front(), huggingface_config(model, *family, precision).dump(2) + "\n");
      !done)
    return tl::unexpected<Error>(std::move(done.error()));
  nlohmann::ordered_json index{{"metadata", {{"total_size", total}}}, {"weight_map", nlohmann::ordered_json::object()}};
  for (std::size_t k = 0; k < starts.size(); ++k) {
    const std::size_t end = k + 1 < starts.size() ? starts[k + 1] : tensors.size();
    char name[64] = "model.safetensors";
    if (starts.size() > 1) std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", k + 1, starts.size());
    written.emplace_back(name);
    const std::span part = std::span(tensors).subspan(starts[k], end - starts[k]);
    for (const HuggingFaceTensor& tensor : part) index["weight_map"][tensor.name] = name;
    if (auto done = detail::write_huggingface_file(folder / name, checkpoint, part, precision); !done)
      return tl::unexpected<Error>(std::move(done.error()));
  }
  if (starts.size() == 1) return written;
  written.emplace_back("model.safetensors.index.json");
  if (auto done = write_file_atomically(folder / written.back(), index.dump(2) + "\n"); !done)
    return tl::unexpected<Error>(std::move(done.error()));
  return written;
}

}  // namespace galvatron::train
