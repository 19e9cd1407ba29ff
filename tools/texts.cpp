#include "texts.hpp"

#include <system_error>

#include <galvatron/data/token_source.hpp>

namespace galvatron::tools {

std::filesystem::path folder_of(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return path;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

void tokenizer_option(Options& options, std::string& path) {
  options.text("--tokenizer", path, "PATH",
               "the tokenizer of texts: a tokenizer.json of byte-level BPE, a model of sentencepiece, or a folder with "
               "one (default: that of the model's folder; models of bytes need none)");
}

std::shared_ptr<const train::Tokenizer> tokenizer_for(const std::string& path, const std::string& model_name,
                                                      const ModelSpec& model, const std::string& weights) {
  std::shared_ptr<const train::Tokenizer> out;
  std::error_code ignored;
  if (!path.empty()) {
    out = value_of("--tokenizer", opened_tokenizer(path));
  } else if (!train::is_vocabulary_of_bytes(model.vocabulary())) {
    for (const std::string& place : {model_name, weights})
      if (!out && !place.empty() && std::filesystem::exists(place, ignored) && train::has_tokenizer(folder_of(place)))
        out = value_or_throw(opened_tokenizer(folder_of(place)));
  }
  if (out) value_or_throw(train::check_vocabulary(*out, model.vocabulary(), "the model " + model.name));
  return out;
}

}  // namespace galvatron::tools
