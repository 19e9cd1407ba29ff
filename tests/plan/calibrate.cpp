// Calibration: factors that are put into a synthetic truth come out, and what runs cannot tell is said.
#include <galvatron/plan/calibrate.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/uniform.hpp>

using namespace galvatron;

namespace {

struct RunShape {
  int tp = 1, pp = 1, dp = 1, zero = 0;
  std::int64_t batch = 64;
  int microbatches = 8;
  std::int64_t sequence = 0;
  bool megatron_sp = true;
};

MeasuredRun run_of(const std::string& model_name, const RunShape& shape) {
  const auto model = std::make_shared<const ModelSpec>(value_or_throw(find_model(model_name)));
  StrategySpec spec{.tensor = shape.tp, .data = shape.dp, .zero = shape.zero};
  if (shape.tp > 1 && shape.megatron_sp) spec.sequence = SequenceKind::megatron;
  Plan plan;
  plan.model = model_name;
  plan.global_batch = shape.batch;
  plan.sequence_length = shape.sequence > 0 ? shape.sequence : model->positions();
  plan.precision = Precision::bf16;
  plan.microbatches = shape.microbatches;
  plan.stages = even_stages(static_cast<int>(model->blocks.size()), shape.pp, 1, shape.tp * shape.dp);
  plan.layers.assign(model->blocks.size(), spec);
  plan.embedding = plan.head = spec;
  return {"tp" + std::to_string(shape.tp) + " pp" + std::to_string(shape.pp) + " dp" + std::to_string(shape.dp),
          plan,
          model,
          {},
          0};
}

/// Runs in which compute, tensor ranks, data ranks over nodes and pipelines weigh differently.
std::vector<MeasuredRun> many_runs() {
  std::vector<MeasuredRun> runs;
  for (const RunShape& shape : {RunShape{1, 1, 8, 1}, RunShape{2, 1, 4, 1}, RunShape{4, 1, 2, 1}, RunShape{8, 1, 1, 0},
                                RunShape{1, 1, 32, 1, 64, 1}, RunShape{4, 1, 8, 1, 64, 2}, RunShape{8, 4, 1, 0, 64, 16},
                                RunShape{2, 4, 4, 1, 64, 8}, RunShape{1, 1, 8, 3, 64, 8}, RunShape{1, 1, 32, 3, 64, 1},
                                RunShape{1, 1, 8, 1, 8, 1, 512}, RunShape{8, 1, 4, 1, 16, 2, 512},
                                RunShape{4, 1, 8, 0, 64, 2, 0, false}, RunShape{8, 1, 1, 0, 16, 16, 512, false}})
    for (const char* model : {"gpt-6.7b", "llama2-7b"}) runs.push_back(run_of(model, shape));
  return runs;
}

Cluster truth_of(Cluster cluster, const std::vector<std::pair<CostTerm, double>>& factors) {
  for (const auto& [term, factor] : factors) cluster.calibration.term(term).factor = factor;
  return cluster;
}

/// Measured on a machine that is so, with an error of this relative standard deviation.
void measure(std::vector<MeasuredRun>& runs, const Cluster& truth, double noise = 0, std::uint64_t seed = 1) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
  std::normal_distribution<double> error(0, 1);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Cluster on = truth;
    on.devices = runs[i].plan.ranks();
    on.devices_per_node = std::min(on.devices, on.devices_per_node);
    const double exact = value_or_throw(cost_of(runs[i].plan, *runs[i].model, on)).iteration.value;
    runs[i].seconds = {exact * std::exp(noise * error(random))};
  }
}

const TermEstimate& estimate(const CalibrationReport& report, CostTerm term) {
  return report.terms[static_cast<std::size_t>(term)];
}

/// How many standard deviations a factor is from the truth.
double deviations(const TermEstimate& term, double truth) {
  return std::abs(std::log(term.value.factor / truth)) / term.value.spread;
}

}  // namespace

TEST_CASE("factors of a synthetic truth are recovered") {
  using enum CostTerm;
  const Cluster cluster = value_or_throw(find_cluster("32xa100-80g"));
  std::vector<MeasuredRun> runs = many_runs();
  const Cluster truth =
      truth_of(cluster, {{products, 1.25}, {gather_in_node, 1.6}, {all_reduce_across_nodes, 2}, {optimizer, 0.7}});
  measure(runs, truth);
  const CalibrationReport report = value_or_throw(calibrate(runs, cluster));
  for (const TermEstimate& term : report.terms) {
    CAPTURE(term.name);
    const double factor = term.term ? truth.calibration.factor(*term.term) : 1;
    CHECK(deviations(term, factor) < 2);
    if (term.is_learned()) CHECK(term.value.factor == doctest::Approx(factor).epsilon(0.01));
    if (term.is_learned()) CHECK_FALSE(term.runs.empty());
  }
  CHECK(estimate(report, products).is_learned());
  CHECK(estimate(report, gather_in_node).is_learned());
  CHECK(estimate(report, all_reduce_across_nodes).is_learned());
  CHECK_FALSE(estimate(report, all_to_all_in_node).occurs());
  CHECK_FALSE(estimate(report, host).occurs());  // this library's runtime has no such floor
  CHECK(report.median_error(&RunComparison::error) > 0.15);
  CHECK(report.median_error(&RunComparison::calibrated_error) < 0.001);
  CHECK(report.median_error(&RunComparison::held_out_error) < 0.002);
  for (const RunComparison& run : report.runs) CHECK_FALSE(run.is_outlier);
}

TEST_CASE("measurements with errors give factors within their spreads, and the noise that they have") {
  using enum CostTerm;
  const Cluster cluster = value_or_throw(find_cluster("32xa100-80g"));
  const Cluster truth = truth_of(cluster, {{products, 1.15}, {gather_in_node, 1.3}, {gather_across_nodes, 0.8}});
  int far = 0;
  int all = 0;
  const std::uint64_t first = std::random_device()();
  CAPTURE(first);
  for (std::uint64_t seed = first; seed < first + 3; ++seed) {
    std::vector<MeasuredRun> runs = many_runs();
    measure(runs, truth, 0.02, seed);
    const CalibrationReport report = value_or_throw(calibrate(runs, cluster));
    CHECK(report.noise > 0.008);
    CHECK(report.noise < 0.045);
    for (const TermEstimate& term : report.terms) {
      if (!term.occurs()) continue;
      ++all;
      far += deviations(term, term.term ? truth.calibration.factor(*term.term) : 1) > 3 ? 1 : 0;
    }
    CHECK(estimate(report, products).value.factor == doctest::Approx(1.15).epsilon(0.06));
    CHECK(report.median_error(&RunComparison::held_out_error) < report.median_error(&RunComparison::error));
  }
  CHECK(far * 10 <= all);
}

TEST_CASE("a machine that is as its figures say changes nothing") {
  const Cluster cluster = value_or_throw(find_cluster("32xh100-80g"));
  std::vector<MeasuredRun> runs = many_runs();
  measure(runs, cluster);
  const CalibrationReport report = value_or_throw(calibrate(runs, cluster));
  for (const TermEstimate& term : report.terms) {
    CAPTURE(term.name);
    CHECK(term.value.factor == doctest::Approx(1).epsilon(1e-6));
  }
  CHECK(report.scale == 1);
}

TEST_CASE("terms that the runs cannot tell apart are named, and keep the sum that is known") {
  using enum CostTerm;
  const Cluster cluster = value_or_throw(find_cluster("8xa100-80g"));
  // One model on one device with micro-batches of one size: all terms grow with their number, but for the optimizer.
  std::vector<MeasuredRun> runs;
  for (const int microbatches : {4, 8, 16, 32})
    runs.push_back(run_of("gpt2-350m", {.batch = 4 * microbatches, .microbatches = microbatches}));
  measure(runs, truth_of(cluster, {{products, 1.4}}));
  const CalibrationReport report = value_or_throw(calibrate(runs, cluster));
  REQUIRE_FALSE(report.alike.empty());
  const auto& group = report.alike.front();
  const auto has = [&](CostTerm term) { return std::ranges::count(group, static_cast<std::size_t>(term)) == 1; };
  CHECK(has(products));
  CHECK(has(attention));
  CHECK(has(memory_bound));
  // Most of the deviation goes where most of the time does, and the interval knows that it may be elsewhere.
  CHECK(estimate(report, memory_bound).is_unknown());
  CHECK(estimate(report, attention).is_unknown());
  CHECK(estimate(report, products).low() < 1.4);
  CHECK(estimate(report, products).high() > 1.4);
  CHECK(estimate(report, products).value.spread > 0.03);
  CHECK(report.median_error(&RunComparison::calibrated_error) < 0.02);
  for (const CostTerm never : {gather_in_node, send_across_nodes, all_reduce_across_nodes}) {
    CHECK_FALSE(estimate(report, never).occurs());
    CHECK(estimate(report, never).value.factor == doctest::Approx(1));
    CHECK(estimate(report, never).value.resolution < 0.01);
    CHECK(estimate(report, never).runs.empty());
  }
}

TEST_CASE("a run that no factor explains is pointed out") {
  const Cluster cluster = value_or_throw(find_cluster("32xa100-80g"));
  std::vector<MeasuredRun> runs = many_runs();
  measure(runs, cluster);
  runs[3].seconds = runs[3].seconds * 2.0;
  const CalibrationReport report = value_or_throw(calibrate(runs, cluster));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    CAPTURE(runs[i].name);
    CHECK(report.runs[i].is_outlier == (i == 3));
  }
}

TEST_CASE("a calibrated cluster prices as the report says, with narrower intervals") {
  using enum CostTerm;
  const Cluster cluster = value_or_throw(find_cluster("32xa100-80g"));
  std::vector<MeasuredRun> runs = many_runs();
  measure(runs, truth_of(cluster, {{products, 1.25}, {gather_in_node, 1.6}}));
  const CalibrationReport report = value_or_throw(calibrate(runs, cluster));
  const Cluster learned = calibrated_cluster(cluster, report, "2026-01-02", "galvatron", "runs.csv");
  CHECK(learned.device == cluster.device);  // figures stay
  CHECK(learned.calibration.steps == static_cast<int>(runs.size()));
  const MeasuredRun& run = runs[10];
  REQUIRE(run.plan.ranks() == 32);
  const PlanCost before = value_or_throw(cost_of(run.plan, *run.model, cluster));
  const PlanCost after = value_or_throw(cost_of(run.plan, *run.model, learned));
  CHECK(after.iteration.value == doctest::Approx(run.seconds.value).epsilon(0.005));
  const auto wide = value_or_throw(interval_of(run.plan, *run.model, cluster, before));
  const auto narrow = value_or_throw(interval_of(run.plan, *run.model, learned, after));
  CHECK(narrow.high / narrow.low < wide.high / wide.low);
  for (const TermSpread& term : narrow.terms)
    if (term.term == PriceTerm::products) CHECK(term.source == FigureSource::calibrated);
  // Calibrating again is of the figures, not of what was learned before.
  const CalibrationReport again = value_or_throw(calibrate(runs, learned));
  CHECK(estimate(again, products).value == estimate(report, products).value);
}

TEST_CASE("runs that cannot be compared are refused in one line") {
  const Cluster cluster = value_or_throw(find_cluster("8xa100-80g"));
  const auto refused = [&](std::vector<MeasuredRun> runs) {
    const auto report = calibrate(runs, cluster);
    REQUIRE_FALSE(report);
    CHECK(report.error().kind == ErrorKind::usage);
    CHECK(report.error().message.find('\n') == std::string::npos);
    return report.error().message;
  };
  CHECK(refused({}).find("0 measured runs") != std::string::npos);
  MeasuredRun run = run_of("gpt2-350m", {.dp = 8});
  CHECK(refused({run}).starts_with("tp1 pp1 dp8: "));  // no seconds
  run.seconds = {1};
  run.spread = -1;
  CHECK(refused({run}).starts_with("tp1 pp1 dp8: "));
  run = run_of("gpt2-350m", {.dp = 16, .batch = 128});
  run.seconds = {1};
  CHECK(refused({run}).find("16 devices") != std::string::npos);
}

TEST_CASE("the factor of a positive definite matrix solves and inverts it") {
  const detail::SymmetricMatrix<3> a{{{4, 2, 0.5}, {2, 5, 1}, {0.5, 1, 3}}};
  const detail::Cholesky<3> factor(a);
  const std::array<double, 3> x = factor.solve({1, -2, 3});
  const auto inverse = factor.inverse();
  for (std::size_t i = 0; i < 3; ++i) {
    double product = 0;
    for (std::size_t k = 0; k < 3; ++k) product += a[i][k] * x[k];
    CHECK(product == doctest::Approx(std::array{1.0, -2.0, 3.0}[i]));
    for (std::size_t j = 0; j < 3; ++j) {
      double cell = 0;
      for (std::size_t k = 0; k < 3; ++k) cell += a[i][k] * inverse[k][j];
      CHECK(cell == doctest::Approx(i == j ? 1 : 0));
    }
  }
  CHECK(factor.log_determinant() == doctest::Approx(std::log(4 * 14 - 2 * 5.5 + 0.5 * -0.5)));
}
