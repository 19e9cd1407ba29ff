// labels: ranks
// Several pipelines of unequal numbers of stages over one model: the losses and gradients of one rank that trains the
// whole batch, and the checkpoints of the model.
// GALVATRON_PIPELINES=N tries so many random plans; GALVATRON_RANDOM_SEED=N others, and repeats a run.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <galvatron/checkpoint/reader.hpp>

#include "../folder.hpp"
#include "../says.hpp"
#include "random_pipelines.hpp"
#include "setting.hpp"

using namespace galvatron;

namespace {

unsigned pipelines_seed() { return static_cast<unsigned>(toy::setting("GALVATRON_RANDOM_SEED", 20261128)); }

test::TaskRun run_pipelines(const test::RandomPipelines& of, const test::TaskRunOptions& options = {}) {
  const test::SharedBatch batch(of);
  return test::run_tasks(of.model, options, [&](const auto& /*toys*/, const train::TaskTrainOptions& train) {
    return train::train_tasks<Tasks<in_waves>>(of.model, of.plan, batch.sources(), train);
  });
}

// The whole batch on one rank, by the trainer of models of one task.
toy::Outcome run_single(const test::RandomPipelines& of) {
  Plan plan = toy::single_rank(of.single);
  plan.global_batch = of.global_batch();
  toy::RunOptions options{.clip = 0};
  options.initial = [](int layer, const ParameterTensor& tensor, std::int64_t index, View<float> values) {
    for (std::int64_t i = 0; i < values.count; ++i)
      values[i] = static_cast<float>(test::toy_value(layer, tensor.name, tensor.init, index + i));
  };
  return toy::run(plan, of.single, options);
}

std::string text(const test::RandomPipelines& of) {
  std::string out = of.single.name + " ZeRO-" + std::to_string(of.plan.zero);
  for (std::size_t k = 0; k < of.samples.size(); ++k)
    out += ", " + std::to_string(of.samples[k]) + " samples in " + std::to_string(of.plan.microbatches[k]) +
           " through " + std::to_string(of.stages[k]) + " stages";
  return out;
}

}  // namespace

TEST_CASE("random pipelines of unequal stages and shares train as one rank does, in the bytes that were predicted") {
  const auto cases = static_cast<int>(toy::setting("GALVATRON_PIPELINES", 120));
  MESSAGE("GALVATRON_RANDOM_SEED=", pipelines_seed());
  std::mt19937 random(pipelines_seed());
  double worst = 0;
  int unequal = 0, piped = 0;
  for (int i = 0; i < cases; ++i) {
    const test::RandomPipelines of = test::random_pipelines(random);
    INFO("case ", i, ": ", text(of));
    toy::Outcome one = run_single(of);
    const test::TaskRun many = run_pipelines(of);
    for (auto& [key, whole] : one.gradients)  // without the padding of vocabularies
      if (const auto own = many.gradients.find(key); own != many.gradients.end()) whole.resize(own->second.size());
    CHECK(many.loss[0] == doctest::Approx(one.losses[0]).epsilon(1e-5));
    CHECK(many.norms[0] == doctest::Approx(one.norms[0]).epsilon(1e-5));
    const double away = test::difference(many.gradients, one.gradients);
    CHECK(away < 1e-5);
    worst = std::max(worst, away);
    for (std::size_t rank = 0; rank < many.planned.size(); ++rank) {
      CHECK(many.planned[rank].states == many.measured[rank].states);
      CHECK(many.planned[rank].stash == many.measured[rank].stash);
      if (of.plan.zero < 2) CHECK(many.planned[rank].workspace == many.measured[rank].workspace);
      CHECK(many.planned[rank].workspace >= many.measured[rank].workspace);
    }
    unequal += std::set(of.stages.begin(), of.stages.end()).size() > 1 ? 1 : 0;
    piped += std::ranges::max(of.stages) > 1 && std::ranges::max(of.plan.microbatches) > 1 && of.plan.in_flight > 1;
  }
  MESSAGE("gradients differ by ", worst, " at most; ", unequal, " plans of unequal stages, ", piped, " of 1F1B");
  CHECK(unequal * 2 > cases);
  CHECK(piped * 3 > cases);
}

TEST_CASE("pipelines write the model's checkpoints: they go on under the same plan, another, and a plan of one chain") {
  MESSAGE("GALVATRON_RANDOM_SEED=", pipelines_seed());
  std::mt19937 random(pipelines_seed() + 1);
  for (int i = 0; i < 4; ++i) {
    const test::RandomPipelines of = test::random_pipelines(random);
    INFO("case ", i, ": ", text(of));
    const test::Folder folder;
    const test::SharedBatch batch(of);
    train::TaskTrainOptions options{.steps = 6, .seed = 5, .single = &of.single};
    options.learning_rate = {.peak = 3e-3, .floor = 3e-3, .steps = 6};
    options.threads_per_rank = 1;
    const auto losses = [&](const test::RandomPipelines& by, const train::TaskTrainOptions& with) {
      std::vector<double> out;
      for (const auto& step :
           train::train_tasks<Tasks<in_waves>>(by.model, by.plan, test::SharedBatch(by).sources(), with).steps)
        out.push_back(step.loss);
      return out;
    };
    options.checkpoint = {.folder = folder.path, .every = 3, .keep = 9};
    const std::vector<double> whole = losses(of, options);
    options.checkpoint = {};
    const auto middle = value_or_throw(train::Checkpoint::open(folder.path / train::checkpoint_name(3), of.single));
    CHECK(middle.training().global_batch == of.global_batch());
    options.resume = &middle;
    CHECK(losses(of, options) == std::vector<double>(whole.begin() + 3, whole.end()));
    // Another plan for the same model and batch.
    test::RandomPipelines other = of;
    other.samples = {of.global_batch()};
    other.model = value_or_throw(pipelines_of(of.single, other.samples, of.sequence()));
    other.plan = plan_in_sequence(other.model, value_or_throw(task_graphs(other.model)), {});
    const std::vector<double> alone = losses(other, options);
    Plan plan = toy::single_rank(of.single);
    plan.global_batch = of.global_batch();
    train::TrainOptions chain{.steps = 6, .learning_rate = options.learning_rate, .seed = 5};
    chain.threads_per_rank = 1;
    chain.resume = &middle;
    const train::TrainReport report = train::train(plan, of.single, *batch.all, chain);
    REQUIRE(report.steps.size() == 3);
    for (std::size_t step = 0; step < 3; ++step) {
      CHECK(alone[step] == doctest::Approx(whole[step + 3]).epsilon(1e-4));
      CHECK(report.steps[step].loss == doctest::Approx(whole[step + 3]).epsilon(1e-4));
    }
    // And from a checkpoint of one chain.
    const test::Folder back;
    chain.resume = nullptr;
    chain.checkpoint = {.folder = back.path, .every = 3, .keep = 9};
    const train::TrainReport first = train::train(plan, of.single, *batch.all, chain);
    const auto of_chain = value_or_throw(train::Checkpoint::open(back.path / train::checkpoint_name(3), of.single));
    options.resume = &of_chain;
    CHECK(losses(of, options)[0] == doctest::Approx(first.steps[3].loss).epsilon(1e-4));
  }
}

TEST_CASE("models and shares that several pipelines cannot have are refused in one line") {
  const auto refused = [](const ModelSpec& model, const std::vector<std::int64_t>& samples, std::int64_t sequence) {
    const auto wrong = pipelines_of(model, samples, sequence);
    REQUIRE_FALSE(wrong.has_value());
    CHECK(wrong.error().message.find('\n') == std::string::npos);
    return wrong.error().message;
  };
  const ModelSpec llama = toy::model(true, 2);
  CHECK(says(refused(toy::model(false, 2), {4, 4}, 16), "tied tables"));
  CHECK(says(refused(toy::bert(2), {4, 4}, 16), "tied tables"));
  CHECK(says(refused(llama, {4, 0}, 16), "batch of 0"));
  CHECK(says(refused(llama, {}, 16), "no tasks"));
  CHECK(says(refused(llama, {4, 4}, 33), "33 tokens"));
  CHECK(pipelines_of(llama, {4, 4}, 16).has_value());
}
