// The samples on which a run is validated: the first ones of a source, each once, whatever a batch has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include <galvatron/data/batch_source.hpp>

namespace galvatron::train {

/// Batch t has samples [t * global_batch, (t + 1) * global_batch) of a source; those from `samples` on have no targets.
class ValidationBatches final : public BatchSource {
 public:
  ValidationBatches(std::unique_ptr<BatchSource> source, std::int64_t global_batch, std::int64_t samples)
      : source_(std::move(source)), global_batch_(global_batch), samples_(samples) {}

  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
              View<std::int32_t> out) override {
    source_->inputs(step, first, samples, range, out);
  }
  void decoder_inputs(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
                      View<std::int32_t> out) override {
    source_->decoder_inputs(step, first, samples, range, out);
  }
  void patches(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<float> out) override {
    source_->patches(step, first, samples, range, out);
  }
  void patches(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<bfloat16> out) override {
    source_->patches(step, first, samples, range, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<std::int32_t> out) override {
    source_->targets(step, first, samples, range, out);
    const std::int64_t own = std::clamp<std::int64_t>(samples_ - step * global_batch_ - first, 0, samples);
    for (std::int64_t row = 0; row < range.count; ++row)
      std::fill(out.begin() + row * samples + own, out.begin() + (row + 1) * samples, -1);
  }

 private:
  std::unique_ptr<BatchSource> source_;
  std::int64_t global_batch_;
  std::int64_t samples_;
};

}  // namespace galvatron::train
