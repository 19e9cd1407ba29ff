// Weights of a model: of a checkpoint of ours or of Hugging Face, with adapters.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <galvatron/checkpoint/huggingface.hpp>
#include <galvatron/checkpoint/peft_adapter.hpp>
#include <galvatron/checkpoint/reader.hpp>
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

/// Declares --adapter, of peft.
void adapter_option(Options& options, std::string& adapter, const std::string& what);

}  // namespace galvatron::tools
