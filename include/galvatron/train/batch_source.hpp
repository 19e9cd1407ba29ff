// BatchSource: where the tokens of a training step come from.
#pragma once

#include <cstdint>

#include <galvatron/core/view.hpp>

namespace galvatron::train {

/// A part of a sequence: tokens [first, first + count) of each sample.
struct SequenceRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Asked by all ranks at once. Samples of a step are numbered 0 .. global batch - 1; a rank asks for those of
/// its own part of a micro-batch. Rows are sequence-major: row
/// (s - range.first) * samples + i is token s of sample first_sample + i.
class BatchSource {
 public:
  BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;
  virtual ~BatchSource() = default;
  /// Fills inputs (range.count * samples).
  virtual void inputs(std::int64_t step, std::int64_t first_sample, std::int64_t samples, SequenceRange range,
                      View<std::int32_t> out) = 0;
  /// Fills the tokens that follow the inputs.
  virtual void targets(std::int64_t step, std::int64_t first_sample, std::int64_t samples, SequenceRange range,
                       View<std::int32_t> out) = 0;
};

}  // namespace galvatron::train
