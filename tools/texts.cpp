// Texts of a model: its tokenizer, and the weights with which it reads and writes them.
#include "texts.hpp"

#include <system_error>
#include <utility>

#include <galvatron/checkpoint/folder.hpp>
#include <galvatron/cluster/host.hpp>
#include <galvatron/data/token_source.hpp>
#include <galvatron/files.hpp>
#include <galvatron/train/compiled.hpp>

namespace galvatron::tools {

namespace {

// The folder of a model's files: that which is named, or that of a file which is.
std::filesystem::path folder_of(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return path;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

}  // namespace

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

Weights::Weights(const std::string& option, const std::string& path, const ModelSpec& model) {
  if (train::find_checkpoint(path))
    checkpoint_ = value_of(option, train::Checkpoint::open(path, model));
  else
    huggingface_ = value_of(option, train::HuggingFaceWeights::open(path, model));
}
runtime::ParameterSource Weights::source() const {
  return checkpoint_ ? checkpoint_->weights() : huggingface_->weights();
}

std::unique_ptr<generate::LanguageModel> TextModel::made(const generate::Capacity& capacity) const {
  return generate::make_language_model(model, capacity, weights->source(), precision, threads);
}

void add_text_model_options(Options& options, TextModelArguments& a) {
  options.require(
      options.text("--checkpoint", a.checkpoint, "DIR",
                   "the weights: a folder of `galvatron train --checkpoint`, of any plan, one checkpoint of "
                   "it, or a folder of Hugging Face"));
  options.text("--model", a.model, "MODEL",
               "a preset's name, or the path of a Hugging Face config.json (default: that of the checkpoint)");
  tokenizer_option(options, a.tokenizer);
  options.choice("--precision", a.precision, {Precision::fp32, Precision::bf16}, "to compute in (default: fp32)");
  options.integer("--threads", a.threads, 1, 1024, "cores to compute with (default: all)");
}

TextModel text_model(const TextModelArguments& a) {
  std::string name = a.model;
  std::error_code ignored;
  if (name.empty()) {
    const std::filesystem::path config = folder_of(a.checkpoint) / "config.json";
    if (train::find_checkpoint(a.checkpoint))
      name = value_of("--checkpoint", train::Checkpoint::read_manifest(a.checkpoint)).training.model;
    else if (std::filesystem::is_regular_file(config, ignored))
      name = config.string();
    else
      refuse("--checkpoint: ", a.checkpoint,
             " has neither a checkpoint of ours nor a config.json of Hugging Face; name a folder that has one, or give "
             "--model beside weights without a config.json");
  }
  TextModel out;
  out.model = value_or_throw(load_model(name));
  out.precision = a.precision;
  out.threads = a.threads > 0 ? a.threads : usable_cores();
  if (const std::string why = generate::why_not_generative(out.model); !why.empty()) refuse(why);
  out.tokenizer = tokenizer_for(a.tokenizer, name, out.model, a.checkpoint);
  if (!out.tokenizer && train::is_vocabulary_of_bytes(out.model.vocabulary()))
    out.tokenizer = std::make_shared<train::ByteTokenizer>();
  out.weights = std::make_unique<Weights>("--checkpoint", a.checkpoint, out.model);
  return out;
}

}  // namespace galvatron::tools
