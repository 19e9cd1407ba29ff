// The batches of a training run, step after step, from a token source.
#pragma once

#include <cstdint>

#include <galvatron/data/batch_source.hpp>
#include <galvatron/data/token_source.hpp>

namespace galvatron::train {

/// Sample i of step t is sample t * global_batch + i of the run. Ranks may share one: reading changes nothing.
class TokenBatches final : public BatchSource {
 public:
  /// `source` outlives this.
  TokenBatches(const TokenSource& source, std::int64_t global_batch) : source_(source), global_batch_(global_batch) {}

  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
              View<std::int32_t> out) override {
    source_.inputs(step * global_batch_ + first, samples, range, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<std::int32_t> out) override {
    source_.targets(step * global_batch_ + first, samples, range, out);
  }

 private:
  const TokenSource& source_;
  std::int64_t global_batch_;
};

}  // namespace galvatron::train
