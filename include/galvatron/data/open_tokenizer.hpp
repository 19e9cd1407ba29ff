// The tokenizer of a model's folder, or of a file.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/data/sentencepiece.hpp>
#include <galvatron/data/tokenizer.hpp>
#include <galvatron/data/tokenizer_json.hpp>

namespace galvatron::train {

namespace detail {

/// What tokenizer_config.json says that a special token is: a text, or an object with its "content".
inline std::string named_token(const nlohmann::json& config, const char* key) {
  const auto at = config.is_object() ? config.find(key) : config.end();
  if (!config.is_object() || at == config.end()) return "";
  if (at->is_string()) return at->get<std::string>();
  const auto content = at->is_object() ? at->find("content") : at->end();
  return at->is_object() && content != at->end() && content->is_string() ? content->get<std::string>() : "";
}

}  // namespace detail

/// Opens a tokenizer.json: byte-level BPE. The token that ends a text is that of the tokenizer_config.json beside it,
/// else one with a name that is usual for it. Errors (usage): those of ByteLevelBpe::parse, and files that are not
/// JSON.
inline Result<std::shared_ptr<const Tokenizer>> open_tokenizer_json(const std::filesystem::path& path) {
  const auto value = read_json_file(path);
  if (!value) return tl::unexpected<Error>(value.error());
  auto tokenizer = ByteLevelBpe::parse(*value, path.string());
  if (!tokenizer) return tl::unexpected<Error>(std::move(tokenizer.error()));
  const std::filesystem::path beside = path.parent_path() / "tokenizer_config.json";
  std::error_code ignored;
  std::string end;
  if (std::filesystem::is_regular_file(beside, ignored)) {
    const auto config = read_json_file(beside);
    if (!config) return tl::unexpected<Error>(config.error());
    end = detail::named_token(*config, "eos_token");
  }
  ByteLevelBpe& bpe = **tokenizer;
  if (!end.empty() && bpe.token_named(end) < 0)
    return usage_error(beside.string() + ": \"eos_token\" is \"" + galvatron::detail::one_line(end, 40) +
                       "\", which is no token of " + path.string());
  for (const char* usual : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
    if (end.empty() && bpe.token_named(usual) >= 0) end = usual;
  if (!end.empty()) bpe.end_with(bpe.token_named(end));
  return std::shared_ptr<const Tokenizer>(std::move(*tokenizer));
}

/// Opens the tokenizer of a folder, tokenizer.json before models of sentencepiece, or of a file: byte-level BPE if its
/// name ends in .json, else sentencepiece. Errors (usage): no tokenizer is there; the file is damaged or of a kind that
/// is not known.
inline Result<std::shared_ptr<const Tokenizer>> open_tokenizer(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto open_file = [](const std::filesystem::path& file) -> Result<std::shared_ptr<const Tokenizer>> {
    if (file.extension() == ".json") return open_tokenizer_json(file);
    auto model = SentencePiece::open(file);
    if (!model) return tl::unexpected<Error>(std::move(model.error()));
    return std::shared_ptr<const Tokenizer>(std::move(*model));
  };
  if (!std::filesystem::is_directory(path, ignored)) return open_file(path);
  std::optional<Error> first;  // a tokenizer.json may say in another way what a model of sentencepiece beside it has
  for (const char* name : tokenizer_files) {
    if (!std::filesystem::is_regular_file(path / name, ignored)) continue;
    auto opened = open_file(path / name);
    if (opened) return opened;
    if (!first) first = std::move(opened.error());
  }
  if (first) return tl::unexpected<Error>(std::move(*first));
  return usage_error(path.string() + " has no tokenizer: neither tokenizer.json nor tokenizer.model is there");
}

}  // namespace galvatron::train
