#include "weights.hpp"

#include <galvatron/checkpoint/folder.hpp>
#include <galvatron/checkpoint/merged.hpp>

namespace galvatron::tools {

Weights::Weights(const std::string& option, const std::string& path, const ModelSpec& model,
                 const std::string& adapter) {
  if (!adapter.empty()) {
    peft_ = value_of("--adapter", train::PeftAdapter::open(adapter, model));
    base_ = std::make_unique<Weights>(option, path, model);
    return;
  }
  if (!train::find_checkpoint(path)) {
    huggingface_ = value_of(option, train::HuggingFaceWeights::open(path, model));
    return;
  }
  const auto training = value_of(option, train::Checkpoint::read_manifest(path)).training;
  // Gains of residuals stay: they are of compressed dispatch, without which the residual of a token is 0.
  adapted_ = value_of(option, train::with_adapters_of(training, train::with_gains_of(training, model)));
  checkpoint_ = value_of(option, train::Checkpoint::open(path, adapted_));
  if (adapters_of(adapted_).rank > 0 && !training.base.empty())
    base_ = std::make_unique<Weights>(option, training.base, model);
}
runtime::ParameterSource Weights::source() const {
  if (peft_) return train::merged_weights(peft_->model(), base_->source(), peft_->weights());
  if (huggingface_) return huggingface_->weights();
  if (adapters_of(adapted_).rank == 0) return checkpoint_->weights();
  return train::merged_weights(
      adapted_,
      base_ ? base_->source() : train::named_initial_values(without_adapters(adapted_), checkpoint_->training().seed),
      train::adapters_in(*checkpoint_));
}

void adapter_option(Options& options, std::string& adapter, const std::string& what) {
  options.text("--adapter", adapter, "DIR", "a LoRA adapter of peft, a folder with adapter_config.json: " + what);
}

}  // namespace galvatron::tools
