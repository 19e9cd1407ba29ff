#include "run_tasks.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "../runtime/whole_tensors.hpp"

namespace galvatron::test {

double toy_value(int layer, ParameterName name, ParameterInit init, std::int64_t index) {
  const auto words = random_block(77, static_cast<std::uint64_t>(layer) * 100 + static_cast<std::uint64_t>(name),
                                  static_cast<std::uint64_t>(index));
  const double uniform = static_cast<double>(words[0] >> 8) / static_cast<double>(1 << 24) * 2 - 1;
  const double value =
      init == ParameterInit::normal ? 0.3 * uniform : static_cast<double>(value_of(init)) + 0.2 * uniform;
  return static_cast<double>(static_cast<float>(value));
}

TaskRun run_tasks(const MultiTaskModel& model, const TaskRunOptions& options, const TaskTrainer& trainer) {
  const ToyData data(model);
  TaskRun out;
  std::mutex mutex;
  train::TaskTrainOptions train;
  train.steps = options.steps;
  train.learning_rate.peak = options.learning_rate;
  train.precision = options.precision;
  train.clip = 0;
  train.checkpoint = options.checkpoint;
  train.resume = options.resume;
  train.threads_per_rank = 1;
  train.world.timeout = std::chrono::minutes(1);
  train.on_nan = options.on_nan;
  train.mixes = options.mixes;
  train.plan_for = options.plan_for;
  train.adam.epsilon = options.epsilon;
  train.initial = [&](int layer, const ParameterTensor& tensor, std::int64_t index, View<float> values) {
    for (std::int64_t i = 0; i < values.count; ++i)
      values[i] = layer == options.broken ? std::numeric_limits<float>::quiet_NaN()
                                          : static_cast<float>(toy_value(layer, tensor.name, tensor.init, index + i));
  };
  const std::int64_t first = options.gradients_of >= 0 ? options.gradients_of : train::first_step(train);
  train.on_store = [&](std::int64_t step, const runtime::StoreView& store) {
    if (step != first && step != options.steps) return;
    const std::lock_guard lock(mutex);
    WholeTensors& to = step == first ? out.gradients : out.parameters;
    View<const float> values = step == first ? store.gradients : store.master;
    std::vector<float> fetched;
    if (options.fetch) {
      fetched.resize(static_cast<std::size_t>(values.count));
      options.fetch(values, fetched.data());
      values.data = fetched.data();
    }
    give_store(
        store, values, [&](ParameterName name) -> std::vector<double>& { return to[{store.layer, name}]; },
        std::numeric_limits<double>::quiet_NaN());
    for (const ParameterTensor& tensor : *store.layout) {  // without the padding of vocabularies
      auto& whole = to[{store.layer, tensor.name}];
      whole.resize(std::min(whole.size(), static_cast<std::size_t>(tensor.all_rows * tensor.all_columns)));
    }
  };
  const train::TaskTrainReport report = trainer(data.sources(), train);
  for (const train::TaskStepReport& step : report.steps) {
    out.losses.push_back(step.losses);
    out.loss.push_back(step.loss);
    out.norms.push_back(step.gradient_norm);
    out.batches.push_back(step.batches);
  }
  out.mixes = report.mixes;
  out.planned = report.planned_memory;
  out.measured = report.measured_memory;
  return out;
}

TaskRun run_tasks(const MultiTaskModel& model, const WavePlan& plan, TaskOrder order, const TaskRunOptions& options) {
  return run_tasks(model, options, [&](const auto& sources, const auto& train) {
    return order == TaskOrder::in_sequence ? train::train_tasks<Tasks<in_sequence>>(model, plan, sources, train)
                                           : train::train_tasks<Tasks<in_waves>>(model, plan, sources, train);
  });
}

double difference(const WholeTensors& a, const WholeTensors& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (const auto& [key, wanted] : b) {
    const auto found = a.find(key);
    if (found == a.end() || found->second.size() != wanted.size()) return INFINITY;
    double away = relative_difference(found->second, wanted);
    // The mean of (p - y) * logit over pairs: terms of up to e^logit_scale, about 14 here, which cancel.
    if (key.second == ParameterName::logit_scale) away *= std::min(1.0, std::abs(wanted.front()) / 0.14);
    worst = std::max(worst, away);
  }
  return worst;
}

}  // namespace galvatron::test
