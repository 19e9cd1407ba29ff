// labels: ranks
// Mixes of tasks that change while a run goes on: the losses, gradients and parameters of one rank that does the same
// steps in runs of one mix each, with a checkpoint between them.
// GALVATRON_TASK_MIXES=N tries so many cases; GALVATRON_RANDOM_SEED=N others, and repeats a run.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/data/task_data.hpp>
#include <galvatron/data/task_stream.hpp>
#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/model/task_mix.hpp>

#include "../folder.hpp"
#include "../says.hpp"
#include "random_tasks.hpp"
#include "run_tasks.hpp"
#include "setting.hpp"

using namespace galvatron;

namespace {

constexpr std::uint64_t mix_seed = 20261202;
constexpr std::int64_t mix_steps = 6;
// With so large an epsilon an update is a smooth function of the gradient, so that runs stay as close as their sums.
constexpr float mix_epsilon = 0.1F;

std::uint64_t mix_cases() { return static_cast<std::uint64_t>(toy::setting("GALVATRON_TASK_MIXES", 16)); }

/// Every mix in a run of its own on one rank, task after task.
test::TaskRun one_mix_after_the_other(const MultiTaskModel& model, const std::vector<TaskMix>& mixes,
                                      const std::filesystem::path& folder, float learning_rate) {
  test::TaskRun out;
  std::optional<train::Checkpoint> before;
  for (std::size_t i = 0; i <= mixes.size(); ++i) {
    const std::int64_t first = i == 0 ? 0 : mixes[i - 1].step;
    const std::int64_t end = i == mixes.size() ? mix_steps : mixes[i].step;
    const MultiTaskModel now = value_or_throw(model_at(model, mixes, first));
    const WavePlan plan = plan_in_sequence(now, value_or_throw(task_graphs(now)), {});
    test::TaskRun run =
        test::run_tasks(model, plan, in_sequence,
                        {.steps = end,
                         .learning_rate = learning_rate,
                         .checkpoint = {.folder = folder / std::to_string(i)},
                         .resume = before ? &*before : nullptr,
                         .mixes = std::vector<TaskMix>(mixes.begin(), mixes.begin() + static_cast<std::ptrdiff_t>(i)),
                         .gradients_of = end - 1,
                         .epsilon = mix_epsilon});
    out.losses.insert(out.losses.end(), run.losses.begin(), run.losses.end());
    out.norms.insert(out.norms.end(), run.norms.begin(), run.norms.end());
    out.batches.insert(out.batches.end(), run.batches.begin(), run.batches.end());
    out.gradients = std::move(run.gradients);
    out.parameters = std::move(run.parameters);
    before = value_or_throw(train::Checkpoint::open(folder / std::to_string(i), now));
  }
  return out;
}

// Without layers that no task of the last mix uses: nothing is computed of them.
test::WholeTensors used_gradients(const test::TaskRun& run, const MultiTaskModel& last, const WavePlan& plan) {
  const auto places = value_or_throw(layer_ranks(last, value_or_throw(task_graphs(last)), plan));
  test::WholeTensors out = run.gradients;
  std::erase_if(out, [&](const auto& entry) { return places[static_cast<std::size_t>(entry.first.first)].idle; });
  return out;
}

}  // namespace

TEST_CASE("random mixes of tasks change while runs go on, as on one rank in runs of one mix each") {
  const auto seed = static_cast<std::uint64_t>(toy::setting("GALVATRON_RANDOM_SEED", static_cast<double>(mix_seed)));
  MESSAGE("GALVATRON_RANDOM_SEED=", seed);
  std::int64_t moved = 0;
  int idle = 0;
  double worst = 0;
  for (std::uint64_t i = 0; i < mix_cases(); ++i) {
    test::RandomTasks random(seed + i);
    const MultiTaskModel model = random.model();
    const int ranks = std::vector{2, 4, 6, 8, 1}[i % 5];
    const WavePlan plan = random.plan(model, ranks);
    const std::vector<TaskMix> mixes = random.mixes(model, mix_steps);
    INFO("case ", i, ", ", model.tasks.size(), " tasks and ", mixes.size(), " mixes on ", ranks, " ranks");
    const auto plan_for = [&](const MultiTaskModel& mixed, int) -> Result<train::PlannedMix> {
      return train::PlannedMix{random.plan(mixed, ranks), random.flip() ? in_waves : in_sequence};
    };
    const auto run_both = [&](float rate) {
      const test::Folder folder;
      return std::pair(one_mix_after_the_other(model, mixes, folder.path, rate),
                       test::run_tasks(model, plan, in_waves,
                                       {.steps = mix_steps,
                                        .learning_rate = rate,
                                        .mixes = mixes,
                                        .plan_for = plan_for,
                                        .gradients_of = mix_steps - 1,
                                        .epsilon = mix_epsilon}));
    };
    const auto [one, many] = run_both(1e-2F);
    REQUIRE(many.losses.size() == mix_steps);
    REQUIRE(many.mixes.size() == mixes.size());
    CHECK(many.batches == one.batches);
    for (std::size_t step = 0; step < mix_steps; ++step) {
      CHECK(many.norms[step] == doctest::Approx(one.norms[step]).epsilon(1e-5));
      for (std::size_t task = 0; task < model.tasks.size(); ++task)
        CHECK(many.losses[step][task] == doctest::Approx(one.losses[step][task]).epsilon(1e-5));
    }
    const train::MixChange& last = many.mixes.back();
    const auto of_last = [&](const test::TaskRun& run) { return used_gradients(run, last.model, last.plan.waves); };
    // Gradients of equal parameters: updates of other roundings have not moved them apart.
    const auto [still, moved_still] = run_both(0);
    const auto of_still = [&](const test::TaskRun& run) {
      return used_gradients(run, moved_still.mixes.back().model, moved_still.mixes.back().plan.waves);
    };
    const double away = test::difference(of_still(still), of_still(moved_still));
    worst = std::max(worst, away);
    CHECK(away < 1e-5);
    CHECK(test::difference(one.parameters, many.parameters) < 1e-5);
    for (std::size_t rank = 0; rank < many.planned.size(); ++rank) {
      CHECK(many.planned[rank].states == many.measured[rank].states);
      CHECK(many.planned[rank].stash == many.measured[rank].stash);
      CHECK(many.planned[rank].workspace >= many.measured[rank].workspace);
    }
    for (std::size_t k = 0; k < mixes.size(); ++k) {
      CHECK(many.mixes[k].step == mixes[k].step);
      moved += many.mixes[k].costs.moved_bytes;
      if (ranks == 1) CHECK(many.mixes[k].costs.moved_bytes == 0);
    }
    idle += one.gradients.size() == of_last(one).size() ? 0 : 1;
  }
  MESSAGE("gradients differ by ", worst, " at most");
  MESSAGE(moved, " bytes moved, ", idle, " last mixes with idle components");
  CHECK(moved > 0);
  CHECK(idle > 0);
}

TEST_CASE("a run whose mix changes goes on from a checkpoint under the mix of its step, bit for bit") {
  const MultiTaskModel model = value_or_throw(find_multi_task_model("clip-toy"));
  const std::vector<TaskMix> mixes{{2, {{"text-vision", 6}, {"vision-depth", 2}}}, {4, {{"text-audio", 8}}}};
  const auto plan_of = [](const MultiTaskModel& now) {
    return plan_by_levels(now, value_or_throw(task_graphs(now)), 4);
  };
  const test::Folder folder;
  const test::TaskRun whole =
      test::run_tasks(model, plan_of(model), in_waves,
                      {.steps = 6, .checkpoint = {.folder = folder.path, .every = 1, .keep = 9}, .mixes = mixes});
  for (const std::int64_t done : {1, 2, 3, 4, 5}) {
    INFO("after step ", done);
    const auto saved = value_or_throw(train::Checkpoint::open(folder.path / train::checkpoint_name(done), model));
    const MultiTaskModel now = value_or_throw(model_at(model, mixes, done));
    const test::TaskRun rest =
        test::run_tasks(model, plan_of(now), in_waves, {.steps = 6, .resume = &saved, .mixes = mixes});
    REQUIRE(std::ssize(rest.losses) == 6 - done);
    for (std::size_t i = 0; i < rest.losses.size(); ++i)
      CHECK(rest.losses[i] == whole.losses[static_cast<std::size_t>(done) + i]);
    CHECK(rest.parameters == whole.parameters);
  }
}

TEST_CASE("data of tasks go on where each has been read, whatever the mixes were") {
  const MultiTaskModel model = value_or_throw(find_multi_task_model("clip-toy"));
  auto data = train::TaskData::synthetic(model, 1);
  data.follow({{3, {{"text-vision", 5}}}, {5, {{"text-vision", 7}, {"text-audio", 2}}}});
  const auto& streams = data.streams();
  const auto stream = [&](const char* name) { return *std::ranges::find(streams, name, &train::TaskStream::task); };
  const std::int64_t batch = model.tasks[0].batch;
  CHECK(stream("text-vision").samples_at(3) == 3 * batch);
  CHECK(stream("text-vision").samples_at(4) == 3 * batch + 5);
  CHECK(stream("text-vision").samples_at(8) == 3 * batch + 10 + 21);
  CHECK(stream("vision-depth").samples_at(100) == stream("vision-depth").samples_at(3));
  CHECK(stream("vision-depth").batch_at(3) == 0);
  CHECK(stream("text-audio").samples_at(6) == stream("text-audio").samples_at(3) + 2);
  CHECK(stream("text-audio").batch_at(2) > 0);
  // A run that goes on behind step 4 reads the same.
  auto later = train::TaskData::synthetic(model, 1);
  std::vector<train::TaskStream> saved;
  for (const train::TaskStream& own : streams)
    saved.push_back({.task = own.task, .batch = own.batch_at(3), .samples = own.samples_at(4), .step = 4});
  REQUIRE(later.go_on(saved, 4).has_value());
  later.follow({{3, {{"text-vision", 5}}}, {5, {{"text-vision", 7}, {"text-audio", 2}}}});
  for (std::size_t i = 0; i < streams.size(); ++i)
    for (const std::int64_t steps : {4, 5, 6, 9})
      CHECK(later.streams()[i].samples_at(steps) == streams[i].samples_at(steps));
}

TEST_CASE("mixes that make no sense are refused with their cause") {
  const MultiTaskModel model = value_or_throw(find_multi_task_model("clip-toy"));
  const auto refused = [&](const std::vector<TaskMix>& mixes) {
    const auto wrong = check_mixes(model, mixes, 10);
    REQUIRE_FALSE(wrong.has_value());
    CHECK_FALSE(says(wrong.error().message, "\n"));
    return wrong.error().message;
  };
  CHECK(says(refused({{3, {{"vision-smell", 4}}}}), "no task \"vision-smell\""));
  CHECK(says(refused({{3, {{"text-vision", 0}}}}), "batch of 0"));
  CHECK(says(refused({{3, {{"text-vision", 1 << 30}}}}), "16777216"));
  CHECK(says(refused({{3, {{"text-vision", 2}, {"text-vision", 3}}}}), "twice"));
  CHECK(says(refused({{3, {}}}), "without tasks"));
  CHECK(says(refused({{10, {{"text-vision", 2}}}}), "steps 1 to 10"));
  CHECK(says(refused({{-1, {{"text-vision", 2}}}}), "steps 1 to 10"));
  CHECK(says(refused({{3, {{"text-vision", 2}}}, {3, {{"text-vision", 4}}}}), "follows"));
  for (const char* text : {"", "5", "5:", ":a=1", "x:a=1", "5:a", "5:a=", "5:=1", "5:a=x", "5:a=1,", "5:a=1,,b=2",
                           "5.0:a=1", "99999999999999999999:a=1", "5:a=99999999999999999999"}) {
    const auto wrong = parse_task_mix(text);
    CHECK_MESSAGE(!wrong.has_value(), std::string(text));
    if (!wrong) CHECK(says(wrong.error().message, "as in"));
  }
  const TaskMix right = value_or_throw(parse_task_mix("5:a=1,b=c=22"));
  CHECK(right.step == 4);
  CHECK(right.tasks == std::vector<TaskBatch>{{"a", 1}, {"b=c", 22}});
}
