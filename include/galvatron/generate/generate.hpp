// Texts that a model writes: a prompt, and tokens that follow it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/generate/language_model.hpp>
#include <galvatron/generate/sampler.hpp>

namespace galvatron::generate {

struct Request {
  std::vector<std::int32_t> prompt;  ///< at least one token
  std::int64_t tokens = 0;           ///< to follow at most
  std::int64_t samples = 1;          ///< texts that begin with the prompt; text i is drawn with the number i
  std::int32_t end_token = -1;       ///< ends a text; below 0: none does
  std::int32_t start_token = 0;  ///< of a model with an encoder, which reads the prompt: what the decoder begins with
  Sampling sampling{};
  /// Called with each token of text 0 as soon as it is there.
  std::function<void(std::int32_t)> on_token{};
};

/// What a model has to be made for. Errors (usage): a prompt without tokens, or with others than the model's; more
/// tokens than the model has positions.
inline Result<Capacity> capacity_for(const ModelSpec& model, const Request& request) {
  const auto prompt = std::ssize(request.prompt);
  if (prompt < 1) return usage_error("the prompt has no token; give a text");
  for (const std::int32_t token : request.prompt)
    if (token < 0 || token >= model.vocabulary())
      return usage_error(text_of("the prompt has the token ", token, ", and the vocabulary of ", model.name, " is ",
                                 model.vocabulary(), "; give the model's tokenizer with --tokenizer"));
  if (model.is_encoder_decoder()) {
    if (request.start_token < 0 || request.start_token >= model.vocabulary())
      return usage_error(text_of("the token ", request.start_token, " that the decoder of ", model.name,
                                 " is to begin with is not of its vocabulary of ", model.vocabulary()));
    if (std::max<std::int64_t>(prompt, request.tokens) > model.positions())
      return usage_error(text_of("the prompt has ", prompt, " tokens and the text ", request.tokens, ", and ",
                                 model.name, " has ", model.positions(), " positions for each; give fewer"));
    return Capacity{.samples = request.samples, .tokens = prompt, .cached = std::max<std::int64_t>(request.tokens, 1)};
  }
  if (prompt + request.tokens > model.positions() + 1)
    return usage_error(text_of("the prompt has ", prompt, " tokens, and with ", request.tokens,
                               " more the text is longer ", "than the ", model.positions(), " positions of ",
                               model.name, "; ask for ", std::max<std::int64_t>(model.positions() + 1 - prompt, 0),
                               " at most"));
  return Capacity{
      .samples = request.samples, .tokens = prompt, .cached = prompt + std::max<std::int64_t>(request.tokens - 1, 0)};
}

/// The tokens that follow the prompt in each text, the end token among them where a text has one.
/// @param model  made for capacity_for(request)
inline std::vector<std::vector<std::int32_t>> generate(LanguageModel& model, const Request& request) {
  const auto samples = static_cast<std::size_t>(request.samples);
  const auto vocabulary = static_cast<std::size_t>(model.vocabulary());
  std::vector<std::vector<std::int32_t>> out(samples);
  std::vector<char> ended(samples);
  std::vector<std::int32_t> next;
  for (const std::int32_t token : request.prompt) next.insert(next.end(), samples, token);
  model.restart();
  if (model.has_encoder()) {
    model.read(next);
    next.assign(samples, request.start_token);
  }
  for (std::int64_t t = 0; t < request.tokens; ++t) {
    const std::span<const float> logits = model.go_on(next);
    next.resize(samples);
    for (std::size_t i = 0; i < samples; ++i) {
      next[i] = choose_token(logits.subspan(i * vocabulary, vocabulary), request.sampling, static_cast<std::int64_t>(i),
                             std::ssize(request.prompt) + t);
      if (ended[i] != 0) continue;
      out[i].push_back(next[i]);
      ended[i] = next[i] == request.end_token ? 1 : 0;
      if (i == 0 && request.on_token) request.on_token(next[i]);
    }
    if (std::ranges::all_of(ended, [](char is) { return is != 0; })) break;
  }
  return out;
}

}  // namespace galvatron::generate
