// A model that reads and writes texts: its weights, its tokenizer and what it computes on.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <galvatron/core/dtype.hpp>
#include <galvatron/data/tokenizer.hpp>
#include <galvatron/generate/language_model.hpp>
#include <galvatron/model/spec.hpp>

#include "options.hpp"
#include "output.hpp"
#include "weights.hpp"

namespace galvatron::tools {

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
void add_text_model_options(Options& options, TextModelArguments& a);
/// Throws Failure (usage).
TextModel text_model(const TextModelArguments& a);

}  // namespace galvatron::tools
