// Hetu-Galvatron's cost model: its formulas worked out by hand on a small synthetic profile.
#include <galvatron/compat/hetu/cost.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

namespace galvatron::cost::hetu {

namespace {

// 8 devices, 16 samples of 1024 tokens of width 512: an activation of one sample is 1 MB in bf16.
Job small_job() {
  Job job;
  job.devices = 8;
  job.global_batch = 16;
  job.hidden = 512;
  job.sequence = 1024;
  job.layers = 4;
  job.memory_gigabytes = 8;
  return job;
}

Hardware small_hardware() {
  Hardware out;
  for (const int g : {2, 4, 8}) {
    out.bandwidth[{g, true}] = 100;
    if (g < 8) out.bandwidth[{g, false}] = 50;
    out.between_stages[g] = 10;
    out.all_reduce[g] = message_times({{1, 0.5}, {2, 0.8}, {4, 1.6}});
    out.all_to_all[g] = message_times({{1, 0.25}, {2, 0.5}, {4, 1}});
  }
  out.overlap = 1.25;
  return out;
}

ModelProfile small_profile() {
  ModelProfile out;
  out.layer = {4, 1};
  out.ends = {2, 0.5};
  out.parameters = 100;
  out.checkpoint = 8;
  for (const int q : {1, 2, 4, 8}) {
    out.activation[q] = 64.0 / q;
    out.whole.states[q] = 400.0 / q;
    out.whole.activation[q] = 32.0 / q;
    out.first.states[q] = 200.0 / q;
    out.first.activation[q] = 10.0 / q;
    out.last.states[q] = 208.0 / q;
    out.last.activation[q] = 20.0 / q;
  }
  return out;
}

Model small_model(const Job& job = small_job()) { return {job, small_hardware(), small_profile()}; }

Cost layer_cost(const Model& model, const LayerStrategy& s, int p, int m) { return model.layer(s, p, m); }

}  // namespace

TEST_CASE("a data-parallel layer") {
  // b = 16 / 8 = 2; F = 4 * 2 + 1 = 9, backward 18; N = 2 * 7/8 * 100 / 2 = 87.5 MB at 1/100 ms
  const Cost cost = layer_cost(small_model(), {}, 1, 1);
  CHECK(cost.no_sync == doctest::Approx(27));
  const double n = 87.5 / 100;  // less than backward: it slows backward down by what it takes
  CHECK(cost.sync == doctest::Approx(9 + n * 1.25 + (18 - n)));
  CHECK(cost.states == doctest::Approx(400 * (7 * (1.0 / 8 + 0.003) / 8 + 1.0 / 8)));
  CHECK(cost.activation == doctest::Approx(128));
}

TEST_CASE("gradients that take longer than backward") {
  Hardware slow = small_hardware();
  slow.bandwidth[{8, true}] = 1;
  const Model model(small_job(), slow, small_profile());
  // Backward slowed down takes 22.5 ms, in which 18 MB go; the other 69.5 MB follow at full speed.
  CHECK(layer_cost(model, {}, 1, 1).sync == doctest::Approx(9 + 22.5 + 69.5));
  // ZeRO-3 gathers half of N in forward, and not only in the last micro-batch.
  const Cost sharded = layer_cost(model, {1, 1, true, false}, 1, 1);
  CHECK(sharded.sync == doctest::Approx(9 + 22.5 + 69.5 + 43.75));
  CHECK(sharded.no_sync == doctest::Approx(27 + 43.75));
}

TEST_CASE("tensor and Ulysses parallelism and recomputation") {
  const Model model = small_model();
  // tp 4, d 2, b = 8: F = 4 * 8/4 + 1 = 9; messages of 8 MB by the line through (1, .5), (2, .8), (4, 1.6).
  const double all_reduce = message_times({{1, 0.5}, {2, 0.8}, {4, 1.6}}).at(8);
  CHECK(all_reduce == doctest::Approx(43.0 / 14));
  CHECK(layer_cost(model, {4, 1, false, false}, 1, 1).no_sync == doctest::Approx(27 + 3 * all_reduce));
  CHECK(layer_cost(model, {4, 1, false, true}, 1, 1).no_sync == doctest::Approx(36 + 4.5 * all_reduce));
  CHECK(layer_cost(model, {1, 4, false, false}, 1, 1).no_sync == doctest::Approx(27 + 4 * 2));
  // With one micro-batch of 4, b = 2 is in the table.
  CHECK(layer_cost(model, {4, 1, false, false}, 1, 4).no_sync == doctest::Approx(3 * (4 * 2.0 / 4 + 1) + 3 * 0.8));
  // Tensor parallelism reduces over strided ranks, 50 GB/s; Ulysses over all ranks of the stage.
  const double n = 2 * 0.5 * 100 / 4 / 2 / 50;
  const Cost tensor = layer_cost(model, {4, 1, false, false}, 1, 1);
  CHECK(tensor.sync - tensor.no_sync == doctest::Approx(n * 0.25));
  const Cost ulysses = layer_cost(model, {1, 4, false, false}, 1, 1);
  CHECK(ulysses.sync - ulysses.no_sync == doctest::Approx(0.875 * 0.25));
  CHECK(ulysses.states == doctest::Approx(400 * (7 * 0.128 / 8 + 0.125)));
  CHECK(tensor.states == doctest::Approx(100 * (7 * 0.503 / 8 + 0.125)));
  CHECK(layer_cost(model, {4, 1, false, true}, 1, 1).activation == doctest::Approx(8.0 / 4 * 8));
  // Data-parallel degree 1: nothing is reduced, states are whole.
  const Cost alone = layer_cost(model, {8, 1, false, false}, 1, 1);
  CHECK(alone.sync == alone.no_sync);
  CHECK(alone.states == doctest::Approx(50));
}

TEST_CASE("the share of the states") {
  Job job = small_job();
  const double z = 1.0 / 8 + 0.003;
  const auto share = [&](bool zero3, int m) {
    return layer_cost(small_model(job), {1, 1, zero3, false}, 1, m).states / 400;
  };
  CHECK(share(true, 1) == doctest::Approx(z));
  CHECK(share(false, 2) == doctest::Approx(6 * z / 8 + 2.0 / 8));
  CHECK(share(true, 2) == doctest::Approx(7 * z / 8 + 1.0 / 8));
  job.overlapped_reduce = false;
  CHECK(share(true, 2) == doctest::Approx(5 * z / 4));
  CHECK(share(false, 2) == doctest::Approx(1.25 * (7 * z / 8 + 1.0 / 8)));
  job.precision = Precision::fp32;
  CHECK(share(false, 1) == doctest::Approx(3 * z / 4 + 1.0 / 4));
  job.overlapped_reduce = true;
  CHECK(share(false, 2) == doctest::Approx(z / 2 + 1.0 / 2));
  CHECK(share(true, 2) == doctest::Approx(3 * z / 4 + 1.0 / 4));
  job.data = DataKind::ddp;
  CHECK(share(false, 2) == doctest::Approx(1));
}

TEST_CASE("embedding and head") {
  const Model model = small_model();
  // Degree 1 on one stage: b = 2, f = 2 * 2 + 0.5 = 4.5; states 400 / 4 / 2 = 50 MB, 7/8 of it at 1/100 ms.
  const Cost whole = model.end({1, false, false}, End::whole, 1, 1);
  CHECK(whole.no_sync == doctest::Approx(13.5));
  CHECK(whole.activation == doctest::Approx(64));
  const double half = 0.4375 / 2;
  const Cost sharded = model.end({1, false, true}, End::whole, 1, 1);
  CHECK(sharded.no_sync == doctest::Approx((half + (4.5 * 1.25 - half) / 1.25) + (half + (9 * 1.25 - half) / 1.25)));
  CHECK(sharded.states == doctest::Approx(400 * 0.128));
  // On one stage tensor parallelism gathers twice: d = 4, b = 4, f = 2 * 4/2 + 0.5, messages of 4 MB take 1.6 / 2.
  const Cost split = model.end({2, false, false}, End::whole, 1, 1);
  CHECK(split.no_sync == doctest::Approx(3 * 4.5 + 2 * 0.8));
  CHECK(split.forward == doctest::Approx(4.5 + 0.8));
  // Two stages: half the time on each end, and one gather: the embedding's in backward, the head's in forward.
  const Cost first = model.end({2, false, false}, End::first, 2, 4);
  // d = 2, b = 2: f = (2 * 2/2 + 0.5) / 2; messages of 2 MB take 0.8 / 2.
  CHECK(first.no_sync == doctest::Approx(3 * 1.25 + 0.4));
  CHECK(first.forward == doctest::Approx(1.25));
  const Cost head = model.end({2, false, false}, End::last, 2, 4);
  CHECK(head.no_sync == doctest::Approx(3 * 1.25 + 0.4));
  CHECK(head.forward == doctest::Approx(1.25 + 0.4));
  const Cost last = model.end({2, true, false}, End::last, 2, 4);
  CHECK(last.no_sync == doctest::Approx(3 * 1.25));
  CHECK(last.states == doctest::Approx(208 * (6 * (0.25 + 0.003) / 8 + 0.25)));
  CHECK(last.activation == doctest::Approx(20));
}

TEST_CASE("the pipeline looks at first and last stage") {
  const std::vector<StageTime> stages{{10, 12}, {20, 21}, {30, 31}};
  // m = 4: max(60 + 3 * 30, max(2 * 10, 50) + 10 * 2) = 150; overhangs 2, -9, -29
  CHECK(iteration_time(stages, 4) == doctest::Approx(152));
  const std::vector<StageTime> one{{10, 13}};
  CHECK(iteration_time(one, 4) == doctest::Approx(43));
}

TEST_CASE("a plan's price adds up") {
  Job job = small_job();
  const Model model = small_model(job);
  Plan plan;
  plan.pipeline = 2;
  plan.microbatches = 4;
  plan.division = {2, 2};
  plan.layers = {{1, 1, false, true}, {1, 1, true, false}, {2, 1, false, false}, {1, 2, false, false}};
  plan.ends = {2, false, false};
  const PlanPrice priced = value_or_throw(price(model, plan));
  std::vector<StageTime> times(2);
  std::vector<double> megabytes(2);
  for (std::size_t i = 0; i < 4; ++i) {
    const Cost cost = layer_cost(model, plan.layers[i], 2, 4);
    times[i / 2].no_sync += cost.no_sync;
    times[i / 2].sync += cost.sync;
    megabytes[i / 2] += std::ceil(cost.states + cost.activation * (i < 2 ? 2 : 1));
  }
  const Cost first = model.end(plan.ends, End::first, 2, 4);
  const Cost last = model.end(plan.ends, End::last, 2, 4);
  times[0].no_sync += first.no_sync;
  times[1].no_sync += last.no_sync;
  megabytes[0] += std::ceil(first.states + 2 * first.activation + 1024) + 2;  // buffer: 4 / (4/2) samples of 1 MB
  megabytes[1] += std::ceil(last.states + last.activation + 1024) + 2;
  CHECK(priced.iteration.value * 1000 == doctest::Approx(iteration_time(times, 4)));
  CHECK(priced.samples_per_second == doctest::Approx(16 / priced.iteration.value));
  REQUIRE(priced.stages.size() == 2);
  CHECK(priced.stages[0].megabytes == doctest::Approx(megabytes[0]).epsilon(1e-12));
  CHECK(priced.stages[1].megabytes == doctest::Approx(megabytes[1]).epsilon(1e-12));
  CHECK((priced.stages[1].forward + priced.stages[1].backward).value * 1000 == doctest::Approx(times[1].no_sync));
  CHECK(priced.stages[1].first_layer == 2);
  CHECK(priced.stages[1].last_layer == 3);
  CHECK(priced.stages[1].devices == 4);
}

TEST_CASE("plans that do not suit the job are refused") {
  const Model model = small_model();
  Plan plan;
  plan.division = {4};
  plan.layers.assign(4, {});
  CHECK(price(model, plan).has_value());
  const auto refused = [&](Plan bad, const std::string& cause) {
    const auto priced = price(model, bad);
    REQUIRE(!priced);
    CAPTURE(priced.error().message);
    CHECK(priced.error().kind == ErrorKind::usage);
    CHECK(priced.error().message.find(cause) != std::string::npos);
  };
  Plan bad = plan;
  bad.layers.pop_back();
  refused(bad, "3 layers");
  bad = plan;
  bad.division = {2, 2};
  refused(bad, "divided into 2 stages");
  bad.pipeline = 3;
  refused(bad, "3 stages do not divide 8 devices");
  bad = plan;
  bad.microbatches = 3;
  refused(bad, "do not divide a batch");
  bad = plan;
  bad.microbatches = 4;
  refused(bad, "less than one for each of 8");
  bad = plan;
  bad.layers[2].tensor = 16;
  refused(bad, "layer 2: degree 16");
  bad = plan;
  bad.layers[2] = {2, 2, false, false};
  refused(bad, "both");
  bad = plan;
  bad.ends.degree = 3;
  refused(bad, "embedding and head: degree 3");

  Hardware lacking = small_hardware();
  lacking.bandwidth.erase({8, true});
  const auto priced = price(Model(small_job(), lacking, small_profile()), plan);
  REQUIRE(!priced);
  CHECK(priced.error().message.find("allreduce_size_8_consec_1") != std::string::npos);
}

TEST_CASE("budgets above 20 GB lose a fifth, and the smallest budget inverts that") {
  CHECK(Model::usable_megabytes(16) == 16384);
  CHECK(Model::usable_megabytes(36) == doctest::Approx(29491.2));
  for (const double megabytes : {1.0, 1000.5, 20480.0, 20480.5, 16384.25, 29491.2, 81920.0, 1e9}) {
    const double bytes = Model::budget_bytes(megabytes);
    CHECK(Model::usable_megabytes(bytes / (1 << 30)) >= megabytes);
    CHECK(Model::usable_megabytes((bytes - 2) / (1 << 30)) < megabytes);
  }
}

TEST_CASE("times are fitted as the profile's mode says") {
  std::vector<TimePoint> points;
  for (int b = 1; b <= 8; ++b) points.push_back({b, 2048, 4.0 + 3.0 / b});  // b * ms = 4 b + 3
  const Line batch = value_or_throw(time_line(points, TimeMode::batch, 2048, true, "file"));
  CHECK(batch.slope == doctest::Approx(4));
  CHECK(batch.intercept == doctest::Approx(3));
  points.pop_back();
  const auto few = time_line(points, TimeMode::batch, 2048, true, "file");
  REQUIRE(!few);
  CHECK(few.error().message.find("at least 8") != std::string::npos);
  CHECK(value_or_throw(time_line(points, TimeMode::fixed, 2048, true, "file")).slope == doctest::Approx(4 + 3.0 / 7));
  CHECK(!time_line(points, TimeMode::fixed, 4096, true, "file"));

  std::vector<TimePoint> lengths;
  for (const int s : {4096, 8192, 16384, 32768}) {
    const double x = s / 1000.0;
    lengths.push_back({1, s, 2 + 3 * x + 0.5 * x * x});
  }
  const Line sequence = value_or_throw(time_line(lengths, TimeMode::sequence, 10000, true, "file"));
  CHECK(sequence.slope == doctest::Approx(2 + 30 + 50));
  CHECK(sequence.intercept == 0);
  lengths.resize(2);
  CHECK(!time_line(lengths, TimeMode::sequence, 10000, true, "file"));
  CHECK(time_line(lengths, TimeMode::sequence, 10000, false, "file").has_value());
}

}  // namespace galvatron::cost::hetu
