// SyntheticSamples: samples made of numbers, for models of several tasks without data at hand.
//
// Every sample is one of a few things. What a component reads of it, tokens or patches, is a function of the thing and
// of the component's seed, with noise of the sample's own, so that two towers see the same thing and can learn to
// agree, a classifier can tell which one it is, and the next token follows from those before it.
#pragma once

#include <cstdint>
#include <utility>

#include <galvatron/core/rng.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/data/task_stream.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::train {

class SyntheticSamples final : public PatchSource<SyntheticSamples> {
 public:
  static constexpr std::int64_t things = 64;

  /// @param task_seed   the same for all inputs of a task: which thing a sample is
  /// @param seed        of what this input reads of a thing
  /// @param stream      where the run is in the task's samples
  /// @param classes     targets are things, in so many classes; 0: the next token
  SyntheticSamples(std::uint64_t task_seed, std::uint64_t seed, const LayerSpec& embedding, TaskStream stream,
                   std::int64_t classes)
      : task_seed_(task_seed),
        seed_(seed),
        vocabulary_(embedding.vocabulary),
        patch_(embedding.patch_width),
        stream_(std::move(stream)),
        classes_(classes) {}

  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
              View<std::int32_t> out) override {
    each(range, samples, [&](std::int64_t row, std::int64_t token, std::int64_t i) {
      out[row] = token_of(thing(step, first + i), token);
    });
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range,
               View<std::int32_t> out) override {
    each(range, samples, [&](std::int64_t row, std::int64_t token, std::int64_t i) {
      const std::int64_t own = thing(step, first + i);
      out[row] = classes_ > 0 ? static_cast<std::int32_t>(own % classes_) : token_of(own, token + 1);
    });
  }
  template <class T>
  void cut(std::int64_t step, std::int64_t first, std::int64_t samples, SequenceRange range, View<T> out) const {
    each(range, samples, [&](std::int64_t row, std::int64_t token, std::int64_t i) {
      const std::int64_t own = thing(step, first + i);
      for (std::int64_t c = 0; c < patch_; ++c) {
        const float noise = uniform(task_seed_ + 1, stream_.samples_at(step) + first + i, token * patch_ + c);
        out[row * patch_ + c] = T(uniform(seed_, own, token * patch_ + c) + 0.2F * noise);
      }
    });
  }

 private:
  template <class F>
  static void each(SequenceRange range, std::int64_t samples, const F& f) {
    for (std::int64_t s = 0; s < range.count; ++s)
      for (std::int64_t i = 0; i < samples; ++i) f(s * samples + i, range.first + s, i);
  }
  static std::uint32_t word(std::uint64_t seed, std::int64_t a, std::int64_t b) {
    return random_block(seed, static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b))[0];
  }
  /// From -1 to 1.
  static float uniform(std::uint64_t seed, std::int64_t a, std::int64_t b) {
    return static_cast<float>(word(seed, a, b)) * 0x1p-31F - 1;
  }
  /// Samples of a batch are things that follow each other from a random one on: as few as can be are there twice.
  [[nodiscard]] std::int64_t thing(std::int64_t step, std::int64_t sample) const {
    return (word(task_seed_, step, 0) + sample) % things;
  }
  [[nodiscard]] std::int32_t token_of(std::int64_t own, std::int64_t token) const {
    return static_cast<std::int32_t>(word(seed_, own, token) % static_cast<std::uint32_t>(vocabulary_));
  }

  std::uint64_t task_seed_, seed_;
  std::int64_t vocabulary_, patch_;
  TaskStream stream_;
  std::int64_t classes_;
};

}  // namespace galvatron::train
