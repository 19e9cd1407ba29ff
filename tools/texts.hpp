// Texts of a model: its tokenizer.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/data/tokenizer.hpp>
#include <galvatron/model/spec.hpp>

#include "options.hpp"
#include "output.hpp"

namespace galvatron::tools {

/// Opens the tokenizer of a folder or file. Errors (usage): those of train::open_tokenizer(), or that this build has no
/// tokenizers.
Result<std::shared_ptr<const train::Tokenizer>> opened_tokenizer(const std::filesystem::path& path);

/// The tokenizer of `path`, if that is given; else, of a model whose vocabulary is not bytes, that of the folder of its
/// config.json, or of `weights`. Null: no tokenizer was found. Throws Failure (usage), also where it is for another
/// vocabulary.
std::shared_ptr<const train::Tokenizer> tokenizer_for(const std::string& path, const std::string& model_name,
                                                      const ModelSpec& model, const std::string& weights = {});
/// The option of it.
void tokenizer_option(Options& options, std::string& path);

/// The folder of a model's files: that which is named, or that of a file which is.
std::filesystem::path folder_of(const std::string& path);

}  // namespace galvatron::tools
