// Training with the optimizer's moments in bfloat16: beside float, under several plans, and across checkpoints.
#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/host/host.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/train/compiled.hpp>

#include "../folder.hpp"
#include "toy_mixed.hpp"

namespace {

using namespace toy;

Plan with_moments(Plan plan, Precision moments) {
  plan.moments = moments;
  return plan;
}

std::vector<double> losses(const train::TrainReport& report) {
  std::vector<double> out;
  for (const train::StepReport& step : report.steps) out.push_back(step.loss);
  return out;
}

train::TrainReport trained(const Plan& plan, const ModelSpec& model, std::int64_t steps,
                           const train::CheckpointOptions& checkpoint = {}, const train::Checkpoint* resume = nullptr) {
  const auto source = source_of(model, plan.sequence_length);
  train::TrainOptions options;
  options.steps = steps;
  options.threads_per_rank = 1;
  options.learning_rate = {.peak = 1e-3, .floor = 1e-4, .warmup_steps = 20, .steps = 200};
  options.adam.beta2 = 0.999F;
  options.checkpoint = checkpoint;
  options.resume = resume;
  return train::train(plan, model, *source, options);
}

}  // namespace

TEST_CASE("a GPT learns with moments in bfloat16 as it does with float, in 4 bytes a parameter less") {
  const ModelSpec spec = model(false, 2);
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    if (!device::Host::supports(precision)) continue;
    const Plan plan = single_rank(spec, precision);
    const train::TrainReport full = trained(plan, spec, 200);
    const train::TrainReport half = trained(with_moments(plan, Precision::bf16), spec, 200);
    const auto end = [](const train::TrainReport& report) {
      double sum = 0;
      for (std::size_t i = report.steps.size() - 10; i < report.steps.size(); ++i) sum += report.steps[i].loss;
      return sum / 10;
    };
    MESSAGE(std::string(name_of(precision))
            << ": loss " << full.steps.front().loss << " at first; of the last 10 of 200 steps " << end(full)
            << " with moments in fp32, " << end(half) << " in bf16");
    CHECK(end(full) < 0.8 * full.steps.front().loss);
    CHECK(std::abs(end(half) / end(full) - 1) < 0.01);
    CHECK(end(half) != end(full));
    CHECK(half.measured_memory == half.planned_memory);
    // Tensors begin at multiples of the alignment.
    const Bytes saved = full.planned_memory.front().states - half.planned_memory.front().states;
    CHECK(saved.count == doctest::Approx(4.0 * static_cast<double>(parameters(spec))).epsilon(0.05));
  }
}

// Gradients of other plans differ by their rounding, and a number that lies that near to where the random bits part it
// goes the other way: a few elements in a million, by one in 256.
TEST_CASE("plans of several ranks train with moments in bfloat16 as one rank does, in the memory that was planned") {
  constexpr int steps = 20;
  const ModelSpec spec = model(true, 4);
  const Outcome reference = run(with_moments(single_rank(spec), Precision::bf16), spec, steps);
  const Outcome full = run(single_rank(spec), spec, steps);
  CHECK(full.losses != reference.losses);
  for (const Plan& plan :
       {uniform(spec, 1, {.data = 2, .zero = 1}, 2, ScheduleKind::one_f_one_b),
        uniform(spec, 1, {.data = 2, .zero = 3, .recompute = RecomputeKind::full}, 2, ScheduleKind::one_f_one_b),
        uniform(spec, 1, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 2}, 2,
                ScheduleKind::one_f_one_b),
        uniform(spec, 2, {.tensor = 2}, 2, ScheduleKind::zb_h1)}) {
    INFO(text(plan));
    const Outcome outcome = run(with_moments(plan, Precision::bf16), spec, steps);
    CHECK(difference(outcome.losses, reference.losses) < 1e-4);
    CHECK(difference(outcome.gradients, reference.gradients) < 1e-5);
    CHECK(outcome.memory_as_planned);
    const Outcome again = run(with_moments(plan, Precision::bf16), spec, steps);
    CHECK(differences(again, outcome) == "");
    CHECK(outcome.copies_agree);
  }
}

TEST_CASE("a run with moments in bfloat16 goes on from its checkpoint bit for bit, and with float moments too") {
  const galvatron::test::Folder folder;
  const ModelSpec spec = model(false, 2);
  for (const Plan& plan : {single_rank(spec), uniform(spec, 1, {.data = 2, .zero = 1}, 1, ScheduleKind::one_f_one_b)}) {
    INFO(text(plan));
    const Plan half = with_moments(plan, Precision::bf16);
    const auto path = folder.path / std::to_string(plan.ranks());
    const std::vector<double> whole = losses(trained(half, spec, 12, {.folder = path, .every = 6, .keep = 9}));
    const auto middle = value_or_throw(train::Checkpoint::open(path / "step-00000006", spec));
    CHECK(losses(trained(half, spec, 12, {}, &middle)) == std::vector<double>(whole.begin() + 6, whole.end()));
    const std::vector<double> on = losses(trained(plan, spec, 12, {}, &middle));
    CHECK(on.front() == whole[6]);
    CHECK(on != std::vector<double>(whole.begin() + 6, whole.end()));
    CHECK(std::abs(on.back() / whole.back() - 1) < 0.01);
  }
}
