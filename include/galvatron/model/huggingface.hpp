// Reading the config.json of a Hugging Face model.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/model/detail/huggingface_readers.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/model/zoo.hpp>

namespace galvatron {

/// The model types that parse_huggingface_config knows.
inline constexpr std::string_view huggingface_model_types =
    "gpt2, llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3_text, phi, phi3, bert, vit, t5, umt5, swin, "
    "mixtral, qwen2_moe, qwen3_moe, olmoe, deepseek_v2, deepseek_v3";

/// The model that a Hugging Face config.json describes, of one of huggingface_model_types. `name` becomes its name and
/// opens the messages. Dropout rates and generation settings are not read. Errors (usage): malformed JSON, a missing or
/// impossible value, a model type or a feature that has no implementation here.
template <class = void>
Result<ModelSpec> parse_huggingface_config(std::string_view text, const std::string& name) {
  const auto value = parse_json(text, name);
  if (!value) return tl::unexpected<Error>(value.error());
  JsonObject fields(*value, name);
  const auto type = fields.required<std::string>("model_type");
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(std::move(done.error()));
  struct Reader {
    std::string_view type;
    Result<ModelSpec> (*read)(JsonObject& fields, std::string name);
  };
  constexpr Reader readers[] = {{"gpt2", detail::gpt2_from},
                                {"llama", detail::llama_from},
                                {"mistral", detail::mistral_from},
                                {"qwen2", detail::qwen2_from},
                                {"qwen3", detail::qwen3_from},
                                {"gemma", detail::gemma_from},
                                {"gemma2", detail::gemma2_from},
                                {"gemma3_text", detail::gemma3_from},
                                {"phi", detail::phi_from},
                                {"phi3", detail::phi3_from},
                                {"bert", detail::bert_from},
                                {"vit", detail::vit_from},
                                {"t5", detail::t5_from},
                                {"umt5", detail::t5_from},
                                {"swin", detail::swin_from},
                                {"mixtral", detail::mixtral_from},
                                {"qwen2_moe", detail::qwen2_moe_from},
                                {"qwen3_moe", detail::qwen3_moe_from},
                                {"olmoe", detail::olmoe_from},
                                {"deepseek_v2", detail::deepseek_v2_from},
                                {"deepseek_v3", detail::deepseek_v3_from}};
  for (const Reader& reader : readers)
    if (reader.type == type) return reader.read(fields, name);
  if (type == "gemma3")
    return usage_error(name +
                       " describes a Gemma 3 that reads images too; give the config.json of its text model, whose "
                       "model_type is gemma3_text (the object \"text_config\" is one)");
  if (type == "clip")
    return usage_error(name +
                       " describes a CLIP, which is a model of two towers and their loss: see docs/multitask.md");
  return usage_error(fields.name("model_type") + ": \"" + detail::one_line(type, 40) +
                     "\" is not supported; supported are " + std::string(huggingface_model_types));
}
GALVATRON_IN_PLANNER(Result<ModelSpec> parse_huggingface_config<>(std::string_view, const std::string&))

/// A model by preset name, or by the path of a Hugging Face config.json or of a folder that has one; a model that was
/// read from a file has the path as its name. Errors (usage): an unknown name, with the nearest ones; an unreadable
/// file; those of parse_huggingface_config.
inline Result<ModelSpec> load_model(std::string_view name_or_path) {
  auto preset = find_model(name_or_path);
  if (preset) return preset;
  std::filesystem::path path(name_or_path);
  std::error_code ignored;
  const bool looks_like_path = (name_or_path.find('/') != std::string_view::npos || path.extension() == ".json") &&
                               detail::hub_model(name_or_path).empty();
  if (name_or_path.empty() || (!looks_like_path && !std::filesystem::exists(path, ignored))) return preset;
  if (std::filesystem::is_directory(path, ignored)) path /= "config.json";
  const auto text = read_text_file(path, std::int64_t{16} << 20);
  if (!text) return tl::unexpected<Error>(text.error());
  return parse_huggingface_config(*text, path.string());
}

}  // namespace galvatron
