// Trains a multi-task model on rank threads: a plan of waves, a model and options in; losses, whole gradients and
// parameters, and memory out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/rng.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/data/batch_source.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/plan/wave_plan.hpp>
#include <galvatron/train/compiled.hpp>

namespace galvatron::test {

/// Data of an input that are a function of seed, step, sample and place.
class ToyInput final : public train::BatchSource {
 public:
  ToyInput(std::uint64_t seed, const LayerSpec& embedding, std::int64_t classes)
      : seed_(seed), vocabulary_(embedding.vocabulary), patch_(embedding.patch_width), classes_(classes) {}

  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
              View<std::int32_t> out) override {
    each(range, samples, [&](std::int64_t row, std::int64_t token, std::int64_t i) {
      out[row] = number(step, first + i, token, vocabulary_);
    });
  }
  /// The token that follows; every fifth place has no target. Of images, and where classes are asked for, classes.
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<std::int32_t> out) override {
    each(range, samples, [&](std::int64_t row, std::int64_t token, std::int64_t i) {
      const bool none = classes_ == 0 && (first + i + token) % 5 == 4;
      out[row] = none ? -1 : number(step, first + i, token + 1, classes_ > 0 ? classes_ : vocabulary_);
    });
  }
  void patches(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<float> out) override {
    fill(step, first, samples, range, out);
  }
  void patches(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<bfloat16> out) override {
    fill(step, first, samples, range, out);
  }

 private:
  template <class T>
  void fill(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
            View<T> out) const {
    each(range, samples, [&](std::int64_t row, std::int64_t token, std::int64_t i) {
      for (std::int64_t c = 0; c < patch_; ++c)
        out[row * patch_ + c] = T(static_cast<float>(number(step, first + i, token * patch_ + c, 2001) - 1000) * 1e-3F);
    });
  }
  template <class F>
  static void each(train::SequenceRange range, std::int64_t samples, const F& f) {
    for (std::int64_t s = 0; s < range.count; ++s)
      for (std::int64_t i = 0; i < samples; ++i) f(s * samples + i, range.first + s, i);
  }
  [[nodiscard]] std::int32_t number(std::int64_t step, std::int64_t sample, std::int64_t place, std::int64_t n) const {
    const auto words =
        random_block(seed_, static_cast<std::uint64_t>(step * 100003 + sample), static_cast<std::uint64_t>(place));
    return static_cast<std::int32_t>(words[0] % static_cast<std::uint64_t>(n));
  }

  std::uint64_t seed_;
  std::int64_t vocabulary_, patch_, classes_;
};

/// Such data for all tasks.
struct ToyData {
  std::vector<std::vector<std::unique_ptr<ToyInput>>> inputs;

  explicit ToyData(const MultiTaskModel& model, std::uint64_t seed = 5) {
    for (const TaskSpec& task : model.tasks) {
      auto& own = inputs.emplace_back();
      const LayerSpec& head = model.component(model.find(task.loss)).layers.back();
      for (const TaskInput& input : task.inputs)
        own.push_back(std::make_unique<ToyInput>(seed + 1000 * inputs.size() + own.size(),
                                                 model.component(model.find(input.component)).layers.front(),
                                                 head.head == HeadKind::classifier ? head.vocabulary : 0));
    }
  }
  [[nodiscard]] std::vector<train::TaskSources> sources() const {
    std::vector<train::TaskSources> out;
    for (const auto& task : inputs) {
      out.emplace_back();
      for (const auto& input : task) out.back().push_back(input.get());
    }
    return out;
  }
};

/// Whole tensors of a model, by the layer's number and the parameter's name.
using WholeTensors = std::map<std::pair<int, ParameterName>, std::vector<double>>;

/// An initial value of every parameter that makes all gradients matter.
double toy_value(int layer, ParameterName name, ParameterInit init, std::int64_t index);

struct TaskRun {
  std::vector<std::vector<double>> losses;  ///< [step][task]
  std::vector<double> loss;                 ///< [step]
  std::vector<double> norms;
  WholeTensors gradients;   ///< of the first step, or of gradients_of
  WholeTensors parameters;  ///< after the last
  std::vector<cost::StageMemory> planned, measured;
  std::vector<std::vector<std::int64_t>> batches;  ///< [step][task]
  std::vector<train::MixChange> mixes;
};

struct TaskRunOptions {
  std::int64_t steps = 1;
  float learning_rate = 1e-2F;
  Precision precision = Precision::fp32;
  train::CheckpointOptions checkpoint{};
  const train::Checkpoint* resume = nullptr;
  train::OnNan on_nan = train::OnNan::stop;
  int broken = -1;  ///< a layer that begins with parameters that are not numbers
  std::vector<TaskMix> mixes{};
  std::function<Result<train::PlannedMix>(const MultiTaskModel& mixed, int ranks)> plan_for{};
  std::int64_t gradients_of = -1;  ///< a step; negative: the first
  float epsilon = 1e-8F;           ///< of AdamW
  /// From the memory of the ranks' device, where that is not the program's.
  std::function<void(View<const float> from, float* to)> fetch{};
};

/// On rank threads.
TaskRun run_tasks(const MultiTaskModel& model, const WavePlan& plan, TaskOrder order,
                  const TaskRunOptions& options = {});

using TaskTrainer = std::function<train::TaskTrainReport(const std::vector<train::TaskSources>& sources,
                                                         const train::TaskTrainOptions& options)>;
/// The same by a trainer of another kind of ranks; what this process has of gradients and parameters.
TaskRun run_tasks(const MultiTaskModel& model, const TaskRunOptions& options, const TaskTrainer& trainer);

/// The largest relative L2 difference of a tensor; that of a contrastive loss's factor is relative to a hundredth of
/// its terms, if they are not more. Infinite where the two have other tensors.
double difference(const WholeTensors& a, const WholeTensors& b);

}  // namespace galvatron::test
