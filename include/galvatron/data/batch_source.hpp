// BatchSource: where the tokens or images of a training step come from.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/data/packing.hpp>

namespace galvatron::train {

/// A part of a sequence: tokens [first, first + count) of each sample.
struct SequenceRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Asked by all ranks at once. Samples of a step are numbered 0 .. global batch - 1; a rank asks for those of
/// its own part of a micro-batch: (step, first_sample, samples, range, out). Rows are sequence-major: row
/// (s - range.first) * samples + i is token s of sample first_sample + i.
/// Those of this folder read from a source that outlives them, where sample i of step t is sample t * global_batch + i
/// of the run; ranks may share one, as reading changes nothing.
class BatchSource {
 public:
  BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;
  virtual ~BatchSource() = default;
  /// How the documents of a step are packed, the same on all ranks: samples are packed sequences then, by
  /// Packing::number(). Null: all samples have the plan's sequence length.
  virtual std::shared_ptr<const Packing> packing(std::int64_t /*step*/) { return nullptr; }
  /// Packs a step without groups of its own instead: a process that calls this does so before it reads of the step.
  virtual void pack_fixed(std::int64_t /*step*/) {}
  /// Whether packing() returns at once.
  virtual bool is_packed(std::int64_t /*step*/) { return true; }
  /// Seconds that a rank of this process has waited for the packing of one of the last steps.
  virtual double waited(std::int64_t /*step*/) { return 0; }
  /// Fills inputs (range.count * samples).
  virtual void inputs(std::int64_t, std::int64_t, std::int64_t, SequenceRange, View<std::int32_t>) {
    throw Failure(ErrorKind::internal, "this source has no tokens");
  }
  /// Fills what the decoder of an encoder-decoder model reads: what is to be predicted, one token later.
  virtual void decoder_inputs(std::int64_t, std::int64_t, std::int64_t, SequenceRange, View<std::int32_t>) {
    throw Failure(ErrorKind::internal, "this source has nothing for a decoder");
  }
  /// Fills rows (range.count * samples, P) with these patches of images.
  virtual void patches(std::int64_t, std::int64_t, std::int64_t, SequenceRange, View<float>) {
    throw Failure(ErrorKind::internal, "this source has no images");
  }
  virtual void patches(std::int64_t, std::int64_t, std::int64_t, SequenceRange, View<bfloat16>) {
    throw Failure(ErrorKind::internal, "this source has no images in bf16");
  }
  /// Fills what is to be predicted, below 0 where nothing is: for every token the one that follows, or that it hides;
  /// of images, whose range is one, their classes.
  virtual void targets(std::int64_t step, std::int64_t first_sample, std::int64_t samples, SequenceRange range,
                       View<std::int32_t> out) = 0;
};

/// A source of images. Derived::cut(step, first_sample, samples, range, out) fills patches in either type.
template <class Derived>
class PatchSource : public BatchSource {
 public:
  void patches(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<float> out) final {
    static_cast<Derived&>(*this).cut(step, first, samples, range, out);
  }
  void patches(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<bfloat16> out) final {
    static_cast<Derived&>(*this).cut(step, first, samples, range, out);
  }
};

/// The data of a task of a model of several: a source for each of its inputs, which outlive the training.
using TaskSources = std::vector<BatchSource*>;

}  // namespace galvatron::train
