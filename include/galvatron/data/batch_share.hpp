// BatchShare: some samples of each global batch as a source of their own.
#pragma once

#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/data/batch_source.hpp>

namespace galvatron::train {

/// The samples of `all` from `offset` on: sample i is sample offset + i of the same step. Not of packed documents.
class BatchShare final : public BatchSource {
 public:
  /// @param all  outlives this
  BatchShare(BatchSource& all, std::int64_t offset) : all_(all), offset_(offset) {}

  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
              View<std::int32_t> out) override {
    all_.inputs(step, offset_ + first, samples, range, out);
  }
  void patches(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<float> out) override {
    all_.patches(step, offset_ + first, samples, range, out);
  }
  void patches(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<bfloat16> out) override {
    all_.patches(step, offset_ + first, samples, range, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<std::int32_t> out) override {
    all_.targets(step, offset_ + first, samples, range, out);
  }

 private:
  BatchSource& all_;
  std::int64_t offset_;
};

}  // namespace galvatron::train
