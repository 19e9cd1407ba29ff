// Weights of a model, and what reads and writes texts with them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <galvatron/checkpoint/huggingface.hpp>
#include <galvatron/checkpoint/peft_adapter.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/data/tokenizer.hpp>
#include <galvatron/generate/language_model.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/runtime/layer.hpp>

#include "options.hpp"
#include "output.hpp"

namespace galvatron::tools {

/// Weights of a checkpoint of ours, or of Hugging Face; of adapters, merged with those of their base. On these weights
/// may be an adapter of peft.
class Weights {
 public:
  /// Throws Failure (usage), with the option that named them.
  /// @param model    without adapters
  /// @param adapter  the folder of an adapter of peft; empty: none
  Weights(const std::string& option, const std::string& path, const ModelSpec& model, const std::string& adapter = "");
  /// This must outlive it.
  [[nodiscard]] runtime::ParameterSource source() const;

 private:
  std::optional<train::Checkpoint> checkpoint_;
  ModelSpec adapted_;              ///< of the checkpoint
  std::unique_ptr<Weights> base_;  ///< of its adapters; null: the initial values of its seed
  std::optional<train::HuggingFaceWeights> huggingface_;
  std::optional<train::PeftAdapter> peft_;  ///< on the base
};

/// What reads and writes texts has: a model, its weights and its tokenizer.
struct TextModel {
  ModelSpec model;
  std::unique_ptr<Weights> weights;
  bool trained_here = false;                          ///< weights of a checkpoint of ours
  std::shared_ptr<const train::Tokenizer> tokenizer;  ///< null: only files of tokens can be read
  Precision precision = Precision::fp32;
  int threads = 1;
  bool on_gpu = false;

  /// Calls use(language model). Throws as generate::RankLanguageModel does.
  void made(const generate::Capacity& capacity, Common& common,
            const std::function<void(generate::LanguageModel&)>& use) const;
};

struct TextModelArguments {
  std::string model;
  std::string checkpoint;
  std::string adapter;
  std::string tokenizer;
  Precision precision = Precision::fp32;
  int threads = 0;  ///< 0: all cores
  std::string device = "host";
};
/// Declares --adapter, of peft.
void adapter_option(Options& options, std::string& adapter, const std::string& what);
void add_text_model_options(Options& options, TextModelArguments& a);
/// Throws Failure (usage).
TextModel text_model(const TextModelArguments& a);

}  // namespace galvatron::tools
