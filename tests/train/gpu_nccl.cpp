// labels: gpu gpus
// Training with a GPU for each rank, by NCCL: the losses of one rank, the same bits twice, and a failure that ends all.
#include <chrono>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/rank/gpu_world.hpp>
#include <galvatron/train/gpu_compiled.hpp>

#include "../device/gpu_fixture.hpp"
#include "check_plan.hpp"
#include "run_rank.hpp"
#include "toy.hpp"

namespace {

using namespace galvatron;
using namespace toy;

void train_on(int ranks, const Plan& plan, const ModelSpec& spec, const RunOptions& options, Outcome& out,
              const std::function<void(int)>& before = {}) {
  std::mutex mutex;
  train::detail::on_own_gpus(
      ranks, std::chrono::seconds(60), [&](comm::World& world, int ordinal, device::cuda::Stream& compute) {
        if (before) before(world.rank());
        run_rank<float>(world, plan, spec, options, out, mutex, train::CudaPlatform{ordinal, &compute});
      });
}
Outcome on_gpus(const Plan& plan, const ModelSpec& spec, RunOptions options) {
  Outcome out;
  Tokens source(plan.sequence_length);
  options.source = &source;
  train_on(plan.ranks(), plan, spec, options, out);
  return out;
}

// Fails the rank whose thread has called arm(), in the second step.
class Failing final : public train::BatchSource {
 public:
  static void arm() { armed() = true; }
  void inputs(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
              View<std::int32_t> out) override {
    if (armed() && step == 1) throw std::runtime_error("disk on fire");
    tokens_.inputs(step, first, samples, range, out);
  }
  void targets(std::int64_t step, std::int64_t first, std::int64_t samples, train::SequenceRange range,
               View<std::int32_t> out) override {
    tokens_.targets(step, first, samples, range, out);
  }

 private:
  static bool& armed() {
    static thread_local bool armed = false;
    return armed;
  }
  Tokens tokens_{sequence};
};

}  // namespace

TEST_CASE("ranks with a GPU each train as one does") {
  const int gpus = test::several_gpus();
  constexpr int steps = 5;
  for (const bool llama : {false, true}) {
    const ModelSpec spec = model(llama, 4);
    const Outcome reference = on_gpus(single_rank(spec), spec, {steps});
    CHECK(difference(reference.losses, run(single_rank(spec), spec, steps).losses) < 1e-4);
    for (int n = 2; n <= gpus && n <= 8; n *= 2) {
      const auto one_f_one_b = ScheduleKind::one_f_one_b;
      for (int zero = 0; zero <= 3; ++zero)
        check_plan(uniform(spec, 1, {.data = n, .zero = zero}, 1, ScheduleKind::gpipe), spec, reference, on_gpus);
      for (const SequenceKind kind : {SequenceKind::none, SequenceKind::megatron})
        check_plan(uniform(spec, 1, {.tensor = 2, .sequence = kind, .data = n / 2}, 2, one_f_one_b), spec, reference,
                   on_gpus);
      for (const SequenceKind kind : {SequenceKind::ulysses, SequenceKind::ring})
        check_plan(uniform(spec, 1, {.sequence = kind, .context = 2, .data = n / 2, .zero = 2}, 1, one_f_one_b), spec,
                   reference, on_gpus);
      for (const ScheduleKind schedule : {ScheduleKind::gpipe, one_f_one_b, ScheduleKind::zb_h1})
        check_plan(uniform(spec, 2, {.data = n / 2, .zero = 3}, 2, schedule), spec, reference, on_gpus);
    }
  }
}

TEST_CASE("the same plan twice over NCCL gives the same bits") {
  test::several_gpus();
  const ModelSpec spec = model(true, 4);
  const Plan plan = uniform(spec, 1, {.data = 2, .zero = 3}, 2, ScheduleKind::one_f_one_b);
  check_same_bits(plan, spec, 5, on_gpus);
}

TEST_CASE("a rank that fails in a step ends the kernels that wait for it") {
  test::several_gpus();
  const ModelSpec spec = model(false, 4);
  Failing source;
  for (const Plan& plan :
       {uniform(spec, 1, {.data = 2}, 1, ScheduleKind::gpipe), uniform(spec, 2, {}, 2, ScheduleKind::one_f_one_b)}) {
    Outcome out;
    std::string said;
    const auto begin = std::chrono::steady_clock::now();
    try {
      train_on(2, plan, spec, {.steps = 3, .source = &source}, out, [](int rank) {
        if (rank == 0) Failing::arm();
      });
    } catch (const std::exception& e) {
      said = e.what();
    }
    CHECK(said == "disk on fire");
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
  }
}
