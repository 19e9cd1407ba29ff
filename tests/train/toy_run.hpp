// One rank of a toy run, on any world. Layers of cores and of GPUs are compiled in the libraries; on another device
// what calls it instantiates them, which takes half a minute.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <type_traits>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/nn/compiled.hpp>
#include <galvatron/train/host_rank.hpp>
#include <galvatron/train/stage.hpp>

#include "toy.hpp"

namespace toy {

/// Adds what a rank has of the gradients to the whole tensors.
template <class D>
void collect(D& device, Gradients& into, const nn::StoreView& store, const StrategySpec& spec, int tensor_rank) {
  std::vector<float> gradients(static_cast<std::size_t>(store.gradients.count));
  device.fetch(store.gradients, gradients.data());
  for (const ParameterTensor& tensor : *store.layout) {
    const std::int64_t cut = tensor.cut == ParameterCut::whole ? 1 : spec.tensor;
    std::vector<double>& whole = into[{store.layer, tensor.name}];
    whole.resize(std::max<std::size_t>(whole.size(), static_cast<std::size_t>(tensor.count() * cut)));
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      const std::int64_t place = tensor.offset + i;
      if (place < store.range.begin || place >= store.range.end) continue;
      const std::int64_t row = nn::whole_index(tensor, tensor_rank, spec.tensor, i / tensor.columns);
      whole[static_cast<std::size_t>(row + i % tensor.columns)] =
          gradients[static_cast<std::size_t>(place - store.range.begin)];
    }
  }
}

/// Trains as the calling rank, by default on one core, and notes what it sees: the steps' numbers on rank 0, its part
/// of the first step's gradients, and whether its memory was as planned.
/// @tparam T  the precision of the plan
template <class T, class Platform = train::HostPlatform>
void run_rank(comm::World& world, const Plan& plan, const ModelSpec& model, train::BatchSource& source, int steps,
              Outcome& out, std::mutex& mutex, const Platform& platform = {}) {
  using Rank = typename Platform::Rank;
  const train::StagePlan mine = train::stage_plan(plan, model, world.rank());
  Rank rank = platform.make(train::memory_of(mine, platform.library_workspace()));
  train::Stage<typename Rank::Device, T> stage(rank.device(), world, plan, model, rank.memory());
  const comm::SendGuard guard(world);
  stage.initialise(nn::initial_values(7));
  if (!std::is_same_v<Platform, train::HostPlatform> && world.size() == 1)
    stage.rehearse(0, &source);  // changes nothing
  stage.repeat(true);
  device::AdamW hyper;
  // At 3e-3 the images' training is rough (its gradients jump tenfold), and rounding grows with every step.
  hyper.learning_rate = model.takes_images() ? 1e-3F : 3e-3F;
  for (int step = 0; step < steps; ++step) {
    hyper.step = step + 1;
    const train::StepResult result = stage.step(step, &source, hyper, 1.0);
    world.check();
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) {
      out.losses.push_back(result.loss);
      out.norms.push_back(result.gradient_norm);
    }
    if (step > 0) continue;
    stage.visit([&](const nn::StoreView& store) {
      for (const train::ChunkPlan& chunk : mine.chunks)
        for (const train::ChunkPlan::Entry& entry : chunk.layers)
          if (entry.number == store.layer ||
              (entry.layer.kind == LayerKind::head && entry.layer.tied && store.layer == 0)) {
            collect(rank.device(), out.gradients, store, entry.spec,
                    entry.spec.tensor_rank(world.rank() - mine.first_rank));
            return;
          }
    });
  }
  const std::lock_guard lock(mutex);
  out.memory_as_planned = out.memory_as_planned && rank.memory().measured() == rank.memory().planned;
}

}  // namespace toy
