// The batches of a masked language model (Devlin et al., 2019): some tokens of a sample are hidden, and those are to be
// found out.
//
//   text     t h e   c a t   s a t          15 of 100 tokens of every sample: 80 of 100 of them become the mask token,
//   inputs   t h e   # a t   s x t          10 any token, 10 stay as they are
//   targets  - - - - c - - - - a -          - has no target
//
// Which tokens, and what becomes of them, is a function of (seed, sample): any rank can tell for any sample, and a
// sample that comes again in the next epoch is masked anew.
#pragma once

#include <cstdint>

#include <galvatron/core/rng.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/data/token_source.hpp>
#include <galvatron/model/predictions.hpp>

namespace galvatron::train {

struct MaskOptions {
  std::int64_t vocabulary = 0;
  std::int32_t mask_token = 0;  ///< below the vocabulary
  std::uint64_t seed = 0;
};

/// Sample i of step t is sample t * global_batch + i of the run. Ranks may share one: reading changes nothing.
class MaskedBatches final : public BatchSource {
 public:
  /// `source` outlives this.
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

}  // namespace galvatron::train
