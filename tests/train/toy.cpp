// Toy runs of rank threads.
#include <chrono>
#include <mutex>

#include <galvatron/comm/thread/thread.hpp>

#include "toy_mixed.hpp"
#include "toy_run.hpp"

namespace toy {

Outcome run(const Plan& plan, const ModelSpec& model, int steps) {
  Outcome out;
  std::mutex mutex;
  const auto source = source_of(model, plan.sequence_length);
  comm::thread::Options options;
  options.timeout = std::chrono::seconds(60);
  comm::thread::run(
      plan.ranks(),
      [&](comm::thread::World& world) {
        if (plan.precision == Precision::fp32)
          run_rank<float>(world, plan, model, *source, steps, out, mutex);
        else
          run_rank<bfloat16>(world, plan, model, *source, steps, out, mutex);
      },
      options);
  return out;
}

}  // namespace toy
