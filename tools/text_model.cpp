#include "text_model.hpp"

#include <filesystem>
#include <system_error>

#include <galvatron/checkpoint/folder.hpp>
#include <galvatron/cluster/host.hpp>
#include <galvatron/data/token_source.hpp>
#include <galvatron/files.hpp>
#include <galvatron/train/compiled.hpp>

#include "launcher.hpp"
#include "texts.hpp"

namespace galvatron::tools {

void TextModel::made(const generate::Capacity& capacity, Common& common,
                     const std::function<void(generate::LanguageModel&)>& use) const {
  if (!on_gpu) return use(*generate::make_language_model(model, capacity, weights->source(), precision, threads));
  run_on_gpus(common, [&](Launcher& gpus) { gpus.write_texts(model, capacity, weights->source(), precision, use); });
}

void add_text_model_options(Options& options, TextModelArguments& a) {
  options.require(
      options.text("--checkpoint", a.checkpoint, "DIR",
                   "the weights: a folder of `galvatron train --checkpoint`, of any plan, one checkpoint of "
                   "it, or a folder of Hugging Face"));
  options.text("--model", a.model, "MODEL",
               "a preset's name, or the path of a Hugging Face config.json (default: that of the checkpoint)");
  adapter_option(options, a.adapter, "added to these weights");
  tokenizer_option(options, a.tokenizer);
  options.choice("--precision", a.precision, {Precision::fp32, Precision::bf16}, "to compute in (default: fp32)");
  options.choice("--device", a.device, {"host", "cuda"},
                 "what to compute on (default: host); cuda: the first GPU that the process may use");
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
  out.on_gpu = a.device == "cuda";
  out.threads = a.threads > 0 ? a.threads : usable_cores();
  if (const std::string why = generate::why_not_generative(out.model); !why.empty()) refuse(why);
  out.tokenizer = tokenizer_for(a.tokenizer, name, out.model, a.checkpoint);
  if (!out.tokenizer && train::is_vocabulary_of_bytes(out.model.vocabulary()))
    out.tokenizer = std::make_shared<train::ByteTokenizer>();
  out.trained_here = train::find_checkpoint(a.checkpoint).has_value();
  out.weights = std::make_unique<Weights>("--checkpoint", a.checkpoint, out.model, a.adapter);
  return out;
}

}  // namespace galvatron::tools
