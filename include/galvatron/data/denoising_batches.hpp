// Batches of models that are trained to restore a text of which a part is hidden: masked language models and
// encoder-decoder models.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/rng.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/data/token_source.hpp>
#include <galvatron/model/predictions.hpp>

namespace galvatron::train {

// The batches of a masked language model (Devlin et al., 2019): some tokens of a sample are hidden, and those are to be
// found out.
//
//   text     t h e   c a t   s a t          15 of 100 tokens of every sample: 80 of 100 of them become the mask token,
//   inputs   t h e   # a t   s x t          10 any token, 10 stay as they are
//   targets  - - - - c - - - - a -          - has no target
//
// Which tokens, and what becomes of them, is a function of (seed, sample): any rank can tell for any sample, and a
// sample that comes again in the next epoch is masked anew.

struct MaskOptions {
  std::int64_t vocabulary = 0;
  std::int32_t mask_token = 0;  ///< below the vocabulary
  std::uint64_t seed = 0;
};

class MaskedBatches final : public BatchSource {
 public:
  MaskedBatches(const TokenSource& source, std::int64_t global_batch, const MaskOptions& options)
      : source_(source), global_batch_(global_batch), options_(options) {}

  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
              View<std::int32_t> out) override {
    const std::int64_t from = step * global_batch_ + first;
    source_.inputs(from, samples, range, out);
    for_each_masked(
        from, samples, range,
        [&](std::int64_t sample, std::int64_t token, std::int32_t& place) {
          // Sequences are at most 2^24 tokens.
          const auto block = static_cast<std::uint64_t>(sample) << 24U | static_cast<std::uint64_t>(token);
          const auto words = random_block(options_.seed, stream, block);
          const float what = uniform_of(words[0]);
          if (what < 0.8F)
            place = options_.mask_token;
          else if (what < 0.9F)
            place = static_cast<std::int32_t>(words[1] * static_cast<std::uint64_t>(options_.vocabulary) >> 32U);
        },
        out);
  }
  /// The tokens that were there where something is masked, -1 elsewhere.
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<std::int32_t> out) override {
    const std::int64_t from = step * global_batch_ + first;
    source_.inputs(from, samples, range, out);
    const auto marked = [](std::int32_t token) { return -2 - token; };  // its own inverse
    for_each_masked(
        from, samples, range, [&](std::int64_t, std::int64_t, std::int32_t& place) { place = marked(place); }, out);
    for (std::int32_t& token : out) token = token < 0 ? marked(token) : -1;
  }

 private:
  static constexpr std::uint64_t stream = 0x6d61736b00000000U;  // apart from the streams of the weights and the order

  // Calls f(sample of the run, token of the sequence, its place in `out`) for the masked tokens of a range of
  // samples [first, first + samples).
  template <class F>
  void for_each_masked(std::int64_t first, std::int64_t samples, SequenceRange range, const F& f,
                       View<std::int32_t> out) const {
    for (std::int64_t i = 0; i < samples; ++i)
      for (std::int64_t j = 0; j < masked_tokens(source_.sequence()); ++j) {
        const std::int64_t token = shuffled(options_.seed ^ stream, first + i, j, source_.sequence());
        const std::int64_t place = token - range.first;
        if (place >= 0 && place < range.count) f(first + i, token, out[place * samples + i]);
      }
  }

  const TokenSource& source_;
  std::int64_t global_batch_;
  MaskOptions options_;
};

// The batches of an encoder-decoder model on text (T5, Raffel et al., 2020): spans of a sample are cut out, and those
// are to be told.
//
//   text     t h e   c a t   s a t   o n   t h e   m a t
//   encoder  t h e   <A> t   s a t   o n   <B>   m a t </s>            a span becomes one token of its own
//   decoder  <pad> <A> c a <B> t h e                                   what is to be predicted, one token later
//   targets  <A>   c a <B> t h e </s>  -  -                            - has no target
//
// 15 of 100 tokens are in spans, of 3 tokens on average; a text begins outside of one and ends inside. The tokens of
// spans are the last of the vocabulary, counted down; <pad> is token 0 and </s> token 1, as T5 has them. Where the
// spans lie is a function of (seed, sample): any rank can tell for any sample, and a sample that comes again in the
// next epoch is cut anew.

struct SpanOptions {
  std::int64_t sequence = 0;    ///< tokens of the encoder
  std::int64_t vocabulary = 0;  ///< with the tokens of spans
  SpanCorruption corruption;
  std::uint64_t seed = 0;

  /// Errors (usage): a sequence that holds no span, a vocabulary without room for the tokens of spans.
  [[nodiscard]] Result<void> check() const {
    if (sequence < least_corrupted_sequence)
      return usage_error("an encoder-decoder model is trained on sequences of at least " +
                         std::to_string(least_corrupted_sequence) + " tokens, not " + std::to_string(sequence));
    if (corruption.spans + 2 > vocabulary)
      return usage_error("sequences of " + std::to_string(sequence) + " tokens have " +
                         std::to_string(corruption.spans) + " spans, and so many tokens of the vocabulary of " +
                         std::to_string(vocabulary) + " are theirs; give shorter sequences or a larger vocabulary");
    return {};
  }
};

class SpanBatches final : public BatchSource {
 public:
  static constexpr std::int32_t pad = 0;
  static constexpr std::int32_t end = 1;

  /// The samples of `source` are texts of options.corruption.text tokens.
  SpanBatches(const TokenSource& source, std::int64_t global_batch, const SpanOptions& options)
      : source_(source), global_batch_(global_batch), options_(options) {}

  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
              View<std::int32_t> out) override {
    fill(Side::encoder, 0, pad, step, first, samples, range, out);
  }
  void decoder_inputs(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
                      View<std::int32_t> out) override {
    fill(Side::decoder, 1, pad, step, first, samples, range, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<std::int32_t> out) override {
    fill(Side::decoder, 0, -1, step, first, samples, range, out);
  }

 private:
  using Tokens = std::vector<std::int32_t>;
  static constexpr std::uint64_t stream = 0x7370616e00000000U;  // apart from those of the weights and the order

  enum class Side : std::uint8_t { encoder, decoder };

  // The tokens of a side, `later` places behind, in rows of a range; `none` where there are none.
  void fill(Side side, std::int64_t later, std::int32_t none, std::int64_t step, std::int64_t first,
            std::int64_t samples, SequenceRange range, View<std::int32_t> out) const {
    for (std::int64_t i = 0; i < samples; ++i) {
      const Tokens tokens = tokens_of(side, step * global_batch_ + first + i);
      for (std::int64_t s = 0; s < range.count; ++s) {
        const std::int64_t at = range.first + s - later;
        out[s * samples + i] = at >= 0 && at < std::ssize(tokens) ? tokens[static_cast<std::size_t>(at)] : none;
      }
    }
  }

  // What the encoder reads of a sample, or what the decoder is to predict.
  Tokens tokens_of(Side side, std::int64_t sample) const {
    const SpanCorruption& c = options_.corruption;
    Tokens text(static_cast<std::size_t>(c.text));
    source_.inputs(sample, 1, {0, c.text}, View<std::int32_t>(text.data(), c.text));
    const auto kept = lengths(2 * sample, c.text - c.noise, c.spans);
    const auto noise = lengths(2 * sample + 1, c.noise, c.spans);
    Tokens out;
    auto at = text.begin();
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const auto span = at + kept[i];
      const auto behind = span + noise[i];
      if (side == Side::encoder) out.insert(out.end(), at, span);
      out.push_back(static_cast<std::int32_t>(options_.vocabulary - 1 - static_cast<std::int64_t>(i)));  // the span's
      if (side == Side::decoder) out.insert(out.end(), span, behind);
      at = behind;
    }
    out.push_back(end);
    return out;
  }

  // `parts` lengths of at least 1 that are `whole` together; all such are equally likely.
  std::vector<std::int64_t> lengths(std::int64_t number, std::int64_t whole, std::int64_t parts) const {
    std::vector<std::int64_t> ends{whole};
    for (std::int64_t i = 0; i + 1 < parts; ++i)
      ends.push_back(1 + shuffled(options_.seed ^ stream, number, i, whole - 1));
    std::ranges::sort(ends);
    for (std::size_t i = ends.size(); i-- > 1;) ends[i] -= ends[i - 1];
    return ends;
  }

  const TokenSource& source_;
  std::int64_t global_batch_;
  SpanOptions options_;
};

}  // namespace galvatron::train
