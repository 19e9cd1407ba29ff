// The tokens of the benchmarks.
#pragma once

#include <cstdint>

#include <galvatron/data/batch_source.hpp>

/// Tokens that cost nothing to make.
class CheapTokens final : public galvatron::train::BatchSource {
 public:
  explicit CheapTokens(std::int64_t vocabulary) : vocabulary_(vocabulary) {}
  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, galvatron::train::SequenceRange range,
              galvatron::View<std::int32_t> out) override {
    fill(step, first, samples, range, 0, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, galvatron::train::SequenceRange range,
               galvatron::View<std::int32_t> out) override {
    fill(step, first, samples, range, 1, out);
  }

 private:
  void fill(std::int64_t step, std::int64_t first, std::int64_t samples, galvatron::train::SequenceRange range,
            std::int64_t ahead, galvatron::View<std::int32_t> out) const {
    for (std::int64_t s = 0; s < range.count; ++s)
      for (std::int64_t i = 0; i < samples; ++i)
        out[s * samples + i] =
            static_cast<std::int32_t>(((step * 131 + first + i) * 7919 + (range.first + s + ahead) * 31) % vocabulary_);
  }
  std::int64_t vocabulary_;
};
