// labels: gpu
// Training on a GPU: the loss curves of the cores, every strategy on several ranks that share the card, memory as
// predicted, and the same bits twice.
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/train/gpus.hpp>

#include "../device/gpu_fixture.hpp"
#include "check_plan.hpp"
#include "random_plan.hpp"
#include "same_training.hpp"
#include "toy_mixed.hpp"
#include "toy_run.hpp"

namespace {

using namespace galvatron;
using namespace toy;

Outcome on_gpu(const Plan& plan, const ModelSpec& model, int steps) {
  Outcome out;
  std::mutex mutex;
  const auto source = source_of(model, plan.sequence_length);
  train::detail::on_one_gpu(plan.ranks(), test::first_gpu(), {},
                            [&](train::OneGpuWorld& world, const train::CudaPlatform& platform) {
                              if (plan.precision == Precision::fp32)
                                run_rank<float>(world, plan, model, *source, steps, out, mutex, platform);
                              else
                                run_rank<bfloat16>(world, plan, model, *source, steps, out, mutex, platform);
                            });
  return out;
}

std::vector<ModelSpec> models() {
  return {model(false, 4), model(true, 4), bert(4), vit(4), t5(4), swin({1, 1, 2, 1})};
}

}  // namespace

TEST_CASE("the loss curves of 20 steps are those of the cores") {
  for (const ModelSpec& spec : models()) {
    CAPTURE(spec.name);
    const int steps = spec.takes_images() ? 10 : 20;
    const Outcome cores = run(single_rank(spec), spec, steps);
    const Outcome gpu = on_gpu(single_rank(spec), spec, steps);
    CHECK(difference(gpu.losses, cores.losses) < 1e-4);
    CHECK(difference(gpu.gradients, cores.gradients) < 1e-5);
    CHECK(gpu.memory_as_planned);
    const Outcome rounded = on_gpu(single_rank(spec, Precision::bf16), spec, steps);
    CHECK(difference(rounded.losses, cores.losses) < 2e-2);
    CHECK(rounded.memory_as_planned);
  }
}

TEST_CASE("every strategy that 4 and 8 ranks allow trains as one rank does") {
  constexpr int steps = 3;
  for (const bool llama : {false, true}) {
    const ModelSpec spec = model(llama, 4);
    const Outcome reference = on_gpu(single_rank(spec), spec, steps);
    for (const int ranks : {4, 8})
      for (const Plan& plan : combinations(spec, ranks)) check_plan(plan, spec, reference, on_gpu);
  }
}

TEST_CASE("random plans on up to 16 ranks train as one rank does") {
  const auto seed = static_cast<unsigned>(std::random_device{}());
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  constexpr int steps = 2;
  for (const ModelSpec& spec : random_plan_models()) {
    const Outcome reference = on_gpu(single_rank(spec), spec, steps);
    for (int checked = 0; checked < 10;)
      if (const auto plan = random_plan(random, spec)) {
        check_plan(*plan, spec, reference, on_gpu);
        ++checked;
      }
  }
}

TEST_CASE("the same plan twice gives the same bits") {
  const ModelSpec spec = model(true, 4);
  const Plan plan = uniform(spec, 2, {.tensor = 2, .data = 2, .zero = 3}, 2, ScheduleKind::one_f_one_b);
  const Outcome first = on_gpu(plan, spec, 5);
  const Outcome second = on_gpu(plan, spec, 5);
  CHECK(first.losses == second.losses);
  CHECK(first.norms == second.norms);
  CHECK(first.gradients == second.gradients);
}
