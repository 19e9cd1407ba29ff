// One rank of a run, on any world and device: what is behind run_plan.hpp, and alone names a runtime. Layers of cores
// and of GPUs are compiled in the libraries; on another device a unit that calls this instantiates them, which takes
// half a minute.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/rank/host_rank.hpp>
#include <galvatron/train/compiled.hpp>
#include <galvatron/train/stage.hpp>

#include "../runtime/whole_tensors.hpp"
#include "run_plan.hpp"
#include "sleeping_layers.hpp"

namespace toy {

/// Adds what a rank has of the gradients to the whole tensors.
template <class D>
void collect_gradients(D& device, const runtime::StoreView& store, Gradients& into) {
  std::vector<float> values(static_cast<std::size_t>(store.gradients.count));
  device.fetch(store.gradients, values.data());
  test::give_store(store, {values.data(), store.gradients.count},
                   [&](ParameterName name) -> std::vector<double>& { return into[{store.layer, name}]; });
}

/// The same of the parameters. The bits of an element that several ranks have are compared; of different copies the
/// smallest is taken.
template <class D>
void collect_parameters(D& device, const runtime::StoreView& store, Outcome& out) {
  std::vector<float> values(static_cast<std::size_t>(store.master.count));
  device.fetch(store.master, values.data());
  Gradients here;  // float to double and back loses no bit
  test::give_store(
      store, {values.data(), store.master.count},
      [&](ParameterName name) -> std::vector<double>& { return here[{store.layer, name}]; },
      std::numeric_limits<double>::quiet_NaN());
  for (const auto& [key, part] : here) {
    std::vector<float>& whole = out.parameters[key];
    if (whole.size() < part.size()) whole.resize(part.size(), std::numeric_limits<float>::quiet_NaN());
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (part[i] != part[i]) continue;  // another rank's
      const auto value = static_cast<float>(part[i]);
      const bool first = whole[i] != whole[i];
      if (!first && std::bit_cast<std::uint32_t>(whole[i]) != std::bit_cast<std::uint32_t>(value))
        out.copies_agree = false;
      whole[i] = first ? value : std::min(whole[i], value);  // whichever rank comes first
    }
  }
}

/// The constants of a step's update.
inline device::AdamW optimizer_of(const ModelSpec& model, const RunOptions& options, int step) {
  device::AdamW hyper;
  if (options.optimizer) hyper = options.optimizer(step);
  // At 3e-3 the images' training is rough (its gradients jump tenfold), and rounding grows with every step.
  else
    hyper.learning_rate = model.takes_images() ? 1e-3F : 3e-3F;
  hyper.step = step + 1;
  return hyper;
}

/// Trains as the calling rank, by default on one core, and writes down what it sees. Ranks of one process share `out`.
/// @tparam T  the precision of the plan
/// @param options  with a source
template <class T, class Platform = train::HostPlatform>
void run_rank(comm::World& world, const Plan& plan, const ModelSpec& model, const RunOptions& options, Outcome& out,
              std::mutex& mutex, const Platform& platform = {}) {
  using Rank = typename Platform::Rank;
  using Stage = train::Stage<typename Rank::Device, T>;
  const train::StagePlan mine = train::stage_plan(plan, model, world.rank());
  Rank rank = platform.make(train::memory_of(mine, platform.library_workspace()));
  const auto layers = train::layer_maker<InstantiatedStrategies, typename Rank::Device, T>();
  const auto make = [&](const runtime::Context<typename Rank::Device>& context, const LayerSpec& layer,
                        const runtime::LayerArguments<T>& around,
                        device::Region& states) -> std::unique_ptr<runtime::Layer<T>> {
    const BlockSleeps times = layer.kind == LayerKind::block ? options.sleeps : BlockSleeps{};
    if (!options.sleeps.computes)
      return std::make_unique<SleepingLayer<T>>(times, context.rows_local() * layer.hidden, context.rows());
    auto made = layers(context, layer, around, states);
    if (!times.any()) return made;
    return std::make_unique<PaddedLayer<T>>(std::move(made), times);
  };
  Stage stage(rank.device(), world, plan, model, rank.memory(), make);
  const comm::SendGuard guard(world);
  stage.initialise(options.initial ? options.initial : runtime::initial_values(7));
  if (!std::is_same_v<Platform, train::HostPlatform> && world.size() == 1)
    stage.autotune(0, options.source);  // changes nothing
  stage.repeat(true);
  const auto collect = [&](Gradients& gradients) {
    stage.visit([&](const runtime::StoreView& store) { collect_gradients(rank.device(), store, gradients); });
  };
  for (int step = 0; step < options.steps; ++step) {
    if (options.before_step) options.before_step(step);
    const train::StepResult result = stage.step(step, options.source, optimizer_of(model, options, step), options.clip);
    if (options.after_step) options.after_step(step);
    world.check();
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) {
      out.losses.push_back(result.loss);
      out.norms.push_back(result.gradient_norm);
    }
    if (step == 0) collect(out.gradients);
    if (step + 1 == options.steps) collect(out.last_gradients);
  }
  const std::lock_guard lock(mutex);
  stage.visit([&](const runtime::StoreView& store) { collect_parameters(rank.device(), store, out); });
  out.bytes[world.rank()] = {rank.memory().planned, rank.memory().measured()};
  out.memory_as_planned = out.memory_as_planned && rank.memory().measured() == rank.memory().planned;
}

/// The same in the precision of the plan.
template <class Platform = train::HostPlatform>
void run_rank_in_precision(comm::World& world, const Plan& plan, const ModelSpec& model, const RunOptions& options,
                           Outcome& out, std::mutex& mutex, const Platform& platform = {}) {
  if (plan.precision == Precision::fp32)
    run_rank<float>(world, plan, model, options, out, mutex, platform);
  else
    run_rank<bfloat16>(world, plan, model, options, out, mutex, platform);
}

}  // namespace toy
