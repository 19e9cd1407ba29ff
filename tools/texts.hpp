// Texts of a model: its tokenizer, and the weights with which it reads and writes them.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <galvatron/checkpoint/huggingface.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/data/tokenizer.hpp>
#include <galvatron/generate/language_model.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/runtime/layer.hpp>

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

/// Weights of a checkpoint of ours, or of Hugging Face.
class Weights {
 public:
  /// Throws Failure (usage), with the option that named them.
  Weights(const std::string& option, const std::string& path, const ModelSpec& model);
  /// This must outlive it.
  [[nodiscard]] runtime::ParameterSource source() const;

 private:
  std::optional<train::Checkpoint> checkpoint_;
  std::optional<train::HuggingFaceWeights> huggingface_;
};

/// What reads and writes texts has: a model, its weights and its tokenizer.
struct TextModel {
  ModelSpec model;
  std::unique_ptr<Weights> weights;
  std::shared_ptr<const train::Tokenizer> tokenizer;  ///< null: only files of tokens can be read
  Precision precision = Precision::fp32;
  int threads = 1;

  /// Throws as generate::make_language_model() does, and Infeasible when this machine has not the memory.
  [[nodiscard]] std::unique_ptr<generate::LanguageModel> made(const generate::Capacity& capacity) const;
};

struct TextModelArguments {
  std::string model;
  std::string checkpoint;
  std::string tokenizer;
  Precision precision = Precision::fp32;
  int threads = 0;  ///< 0: all cores
};
void add_text_model_options(Options& options, TextModelArguments& a);
/// Throws Failure (usage).
TextModel text_model(const TextModelArguments& a);

}  // namespace galvatron::tools
