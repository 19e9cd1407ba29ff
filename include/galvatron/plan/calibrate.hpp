// Calibration: where measured steps differ from their predictions, term by term.
//
// A run i takes T_i(f) seconds by the model of cost when every term j of its price is multiplied by a factor f_j, and
// y_i seconds were measured. The factors are those of the regularised least squares in x_j = log f_j, so that they are
// positive:
//
//     minimise   sum_i (log y_i - log T_i(exp x))^2 / (s^2 + s_i^2)   +   sum_j (x_j / (t p_j))^2
//
// p_j is the spread of the figures behind term j (spread_of), so that what the runs do not tell stays at 1, and among
// terms that they cannot tell apart the least certain one moves most; s_i is the spread of a measurement. The scale t
// of the first and the noise s are those under which the measured steps are likeliest (MacKay, "Bayesian
// Interpolation", Neural Computation 4, 1992), with log-normal priors around 1 and 2 %. Each Gauss-Newton step prices
// every run again, because what messages hide behind may change.
//
// The covariance C = (J^T J / s^2 + P)^-1 gives spreads, and R = 1 - C / (p p') in units of the prior what the runs
// say: the diagonal is 1 for a term that they determine and 0 for one that they do not touch, and an element beside it
// is large for two terms of which they know a sum only.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/cluster/calibration.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/detail/least_squares.hpp>
#include <galvatron/plan/interval.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron {

/// Steps of a plan that somebody measured.
struct MeasuredRun {
  std::string name;
  Plan plan;
  std::shared_ptr<const ModelSpec> model;
  Seconds seconds;    ///< of a step
  double spread = 0;  ///< relative standard deviation of `seconds`
};

/// How much a run has to say about a term: its part of the weights of all runs, which add up to 1.
struct RunWeight {
  std::size_t run = 0;
  double weight = 0;
};

/// What the runs say about one term.
struct TermEstimate {
  std::string name;
  std::optional<CostTerm> term{};  ///< none: the waits of pipeline stages for each other, which are no cluster's
  CalibratedTerm value;
  double share = 0;  ///< of the steps, in the mean: what a factor of 1 + e adds to their seconds is share * e
  std::vector<RunWeight> runs;  ///< those that say most, with at least a tenth of the weight

  /// 90 %.
  [[nodiscard]] double low() const {
    return value.factor * std::exp(-detail::standard_deviations_of_90_percent * value.spread);
  }
  [[nodiscard]] double high() const {
    return value.factor * std::exp(detail::standard_deviations_of_90_percent * value.spread);
  }
  [[nodiscard]] bool occurs() const { return share >= 1e-3; }
  [[nodiscard]] bool is_learned() const { return occurs() && value.resolution >= 0.9; }
  [[nodiscard]] bool is_unknown() const { return !occurs() || value.resolution < 0.5; }
};

struct RunComparison {
  Seconds predicted;   ///< by the figures
  Seconds calibrated;  ///< with the factors
  double error = 0;    ///< predicted / measured - 1
  double calibrated_error = 0;
  double held_out_error = 0;  ///< with factors of the other runs
  bool is_outlier = false;    ///< it is far from all factors, and the others are near
};

struct CalibrationReport {
  std::vector<TermEstimate> terms;
  /// Of terms, by number: the runs tell a weighted sum of the factors of each group and not the factors.
  std::vector<std::vector<std::size_t>> alike;
  std::vector<RunComparison> runs;
  double noise = 0;  ///< relative standard deviation of what the factors do not explain
  double scale = 1;  ///< of the spreads that were assumed before

  [[nodiscard]] double median_error(double RunComparison::* of) const {
    std::vector<double> sizes;
    for (const RunComparison& run : runs) sizes.push_back(std::abs(run.*of));
    const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
    std::ranges::nth_element(sizes, middle);
    return *middle;
  }
};

inline constexpr std::size_t most_measured_runs = 2000;

namespace detail {

inline constexpr std::size_t calibrated_terms = cost_term_count + 1;  // the last one: waits of pipeline stages
using TermLogs = std::array<double, calibrated_terms>;                // logarithms of factors

/// Relative standard deviation of what is assumed of a term before any run. Launches by a host vary as much as public
/// traces (5 to 10 us); the waits of a pipeline follow from the schedule and from stages that take what they should.
inline double assumed_spread(const Cluster& cluster, std::size_t term) {
  if (term == cost_term_count) return 0.10;
  const auto which = static_cast<CostTerm>(term);
  if (which == CostTerm::host) return 0.30;
  const PriceTerm price = price_term_of(which);
  return spread_of(price, source_of(cluster, price));
}

/// Prices runs with any factors. Each is on as many devices as its plan has ranks.
class RunPricer {
 public:
  RunPricer(std::span<const MeasuredRun> runs, const Cluster& cluster)
      : runs_(runs), cluster_(cluster), occurs_(runs.size()) {
    cluster_.calibration = {};
  }

  /// Whether a run waits for a term at all if that is slow enough.
  [[nodiscard]] Result<bool> occurs(std::size_t run, std::size_t term) {
    std::optional<bool>& known = occurs_[run][term];
    if (known) return *known;
    TermLogs slow{};
    slow[term] = 5;
    const auto seconds = log_seconds(run, {});
    const auto more = log_seconds(run, slow);
    if (!seconds || !more) return tl::unexpected<Error>(!seconds ? seconds.error() : more.error());
    return *(known = *more > *seconds);
  }

  [[nodiscard]] Result<double> log_seconds(std::size_t run, const TermLogs& logs) {
    const MeasuredRun& measured = runs_[run];
    Cluster& on = cluster_;
    const std::pair whole(on.devices, on.devices_per_node);
    on.devices = std::min(on.devices, measured.plan.ranks());
    on.devices_per_node = std::min(on.devices_per_node, on.devices);
    for (std::size_t j = 0; j < cost_term_count; ++j) on.calibration.terms[j].factor = std::exp(logs[j]);
    auto cost = cost_of(measured.plan, *measured.model, on);
    std::tie(on.devices, on.devices_per_node) = whole;
    if (!cost) {
      cost.error().message = measured.name + ": " + cost.error().message;
      return tl::unexpected<Error>(std::move(cost.error()));
    }
    return std::log((cost->iteration + cost->idle * (std::exp(logs.back()) - 1)).value);
  }

 private:
  std::span<const MeasuredRun> runs_;
  Cluster cluster_;
  std::vector<std::array<std::optional<bool>, calibrated_terms>> occurs_;
};

/// Logarithms of measured over predicted seconds, and what each factor changes of the predicted ones.
struct RunSlopes {
  std::vector<double> residuals;
  std::vector<TermLogs> slopes;
};
inline Result<RunSlopes> slopes_at(RunPricer& pricer, std::span<const MeasuredRun> runs, const TermLogs& logs) {
  constexpr double step = 0.02;
  RunSlopes out;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto here = pricer.log_seconds(i, logs);
    if (!here) return tl::unexpected<Error>(here.error());
    out.residuals.push_back(std::log(runs[i].seconds.value) - *here);
    TermLogs& slopes = out.slopes.emplace_back();
    for (std::size_t j = 0; j < calibrated_terms; ++j) {
      const auto occurs = pricer.occurs(i, j);
      if (!occurs) return tl::unexpected<Error>(occurs.error());
      if (!*occurs) continue;
      TermLogs there = logs;
      there[j] += step;
      const auto more = pricer.log_seconds(i, there);
      if (!more) return tl::unexpected<Error>(more.error());
      slopes[j] = std::max(0.0, (*more - *here) / step);
    }
  }
  return out;
}

/// The regularised least squares around one set of factors, for one noise and one scale of the assumed spreads.
struct CalibrationStep {
  double noise = 0;
  double scale = 0;
  double log_evidence = 0;
  TermLogs logs{};  ///< of the factors that it says
  SymmetricMatrix<calibrated_terms> covariance{};

  CalibrationStep(const RunSlopes& at, const TermLogs& around, std::span<const MeasuredRun> runs,
                  const TermLogs& assumed, double noise_of_all, double scale_of_all)
      : noise(noise_of_all), scale(scale_of_all) {
    SymmetricMatrix<calibrated_terms> precision{};
    TermLogs pull{};
    double squares = 0;
    const auto log_normal = [](double value, double middle, double width) {
      const double away = std::log(value / middle) / width;
      return away * away;
    };
    double twice = log_normal(noise, 0.02, 0.8) + log_normal(scale, 1, 1);
    for (std::size_t j = 0; j < calibrated_terms; ++j) {
      const double width = scale * assumed[j];
      precision[j][j] += 1 / (width * width);
      twice += 2 * std::log(width);
    }
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const double variance = noise * noise + runs[i].spread * runs[i].spread;
      const TermLogs& slopes = at.slopes[i];
      const double wanted =
          at.residuals[i] + std::inner_product(slopes.begin(), slopes.end(), around.begin(), 0.0);  // of slopes * logs
      squares += wanted * wanted / variance;
      twice += std::log(variance);
      for (std::size_t j = 0; j < calibrated_terms; ++j) {
        if (slopes[j] == 0) continue;
        pull[j] += slopes[j] * wanted / variance;
        for (std::size_t k = 0; k < calibrated_terms; ++k) precision[j][k] += slopes[j] * slopes[k] / variance;
      }
    }
    const Cholesky<calibrated_terms> factor(precision);
    logs = factor.solve(pull);
    covariance = factor.inverse();
    twice += factor.log_determinant() + squares - std::inner_product(pull.begin(), pull.end(), logs.begin(), 0.0);
    log_evidence = -twice / 2;
  }

  /// The likeliest noise and scale.
  static CalibrationStep likeliest(const RunSlopes& at, const TermLogs& around, std::span<const MeasuredRun> runs,
                                   const TermLogs& assumed) {
    std::optional<CalibrationStep> best;
    for (double noise = 0.002; noise < 0.4; noise *= 1.3)
      for (double scale = 1; scale < 20; scale *= 1.4)
        if (CalibrationStep step(at, around, runs, assumed, noise, scale);
            !best || step.log_evidence > best->log_evidence)
          best = step;
    return *best;
  }

  /// What is minimised.
  [[nodiscard]] double objective(std::span<const double> residuals, const TermLogs& at,
                                 std::span<const MeasuredRun> runs, const TermLogs& assumed) const {
    double sum = 0;
    for (std::size_t i = 0; i < runs.size(); ++i)
      sum += residuals[i] * residuals[i] / (noise * noise + runs[i].spread * runs[i].spread);
    for (std::size_t j = 0; j < calibrated_terms; ++j) sum += at[j] * at[j] / std::pow(scale * assumed[j], 2);
    return sum;
  }
};

/// Moves the factors to the least squares, pricing again; the slopes there, and the step that is then left.
inline Result<std::pair<RunSlopes, CalibrationStep>> fitted(RunPricer& pricer, std::span<const MeasuredRun> runs,
                                                            const TermLogs& assumed, TermLogs& logs) {
  constexpr double largest = 4.6;  // a factor of 100
  constexpr int iterations = 20;
  auto at = slopes_at(pricer, runs, logs);
  if (!at) return tl::unexpected<Error>(at.error());
  for (int iteration = 0;; ++iteration) {
    CalibrationStep step = CalibrationStep::likeliest(*at, logs, runs, assumed);
    const double before = step.objective(at->residuals, logs, runs, assumed);
    double moved = 0;
    for (double part = 1; moved == 0 && part > 0.05 && iteration < iterations; part /= 2) {
      TermLogs there{};
      for (std::size_t j = 0; j < calibrated_terms; ++j)
        there[j] = std::clamp(logs[j] + part * (step.logs[j] - logs[j]), -largest, largest);
      std::vector<double> residuals;
      for (std::size_t i = 0; i < runs.size(); ++i) {
        const auto seconds = pricer.log_seconds(i, there);
        if (!seconds) return tl::unexpected<Error>(seconds.error());
        residuals.push_back(std::log(runs[i].seconds.value) - *seconds);
      }
      if (step.objective(residuals, there, runs, assumed) >= before) continue;
      for (std::size_t j = 0; j < calibrated_terms; ++j) moved = std::max(moved, std::abs(there[j] - logs[j]));
      logs = there;
    }
    if (moved > 0) at = slopes_at(pricer, runs, logs);
    if (!at) return tl::unexpected<Error>(at.error());
    if (moved < 1e-4) return std::pair(std::move(*at), std::move(step));
  }
}

/// What the runs say about the terms that a step leaves.
inline std::vector<TermEstimate> estimates_of(const RunSlopes& at, const CalibrationStep& step, const TermLogs& logs,
                                              const TermLogs& assumed, std::span<const MeasuredRun> runs) {
  std::vector<TermEstimate> out;
  for (std::size_t j = 0; j < calibrated_terms; ++j) {
    TermEstimate& term = out.emplace_back();
    if (j < cost_term_count) term.term = static_cast<CostTerm>(j);
    term.name = term.term ? name_of(*term.term) : "pipeline";
    const double variance = step.covariance[j][j];
    term.value = {std::exp(logs[j]), std::sqrt(variance),
                  std::clamp(1 - variance / std::pow(step.scale * assumed[j], 2), 0.0, 1.0)};
    std::vector<RunWeight> weights;
    double sum = 0;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      term.share += at.slopes[i][j] / static_cast<double>(runs.size());
      const double spread = std::hypot(step.noise, runs[i].spread);
      const TermLogs& gains = step.covariance[j];
      const double gain = std::inner_product(gains.begin(), gains.end(), at.slopes[i].begin(), 0.0) /
                          spread;  // of a standard deviation
      weights.push_back({i, gain * gain});
      sum += gain * gain;
    }
    if (!term.occurs() || sum <= 0) continue;
    std::ranges::stable_sort(weights, std::greater<>{}, &RunWeight::weight);
    for (const RunWeight& each : weights)
      if (term.runs.size() < 3 && each.weight >= 0.1 * sum) term.runs.push_back({each.run, each.weight / sum});
  }
  return out;
}

/// Groups of terms of which the runs know a weighted sum only: what they say of one of them is mostly said of another.
inline std::vector<std::vector<std::size_t>> alike_terms(const std::vector<TermEstimate>& terms,
                                                         const CalibrationStep& step, const TermLogs& assumed) {
  constexpr double least_coupling = 0.05;
  std::array<std::size_t, calibrated_terms> group{};
  std::iota(group.begin(), group.end(), std::size_t{0});
  for (std::size_t j = 0; j < calibrated_terms; ++j)
    for (std::size_t k = 0; k < j; ++k) {
      const double coupling = std::abs(step.covariance[j][k]) / (assumed[j] * assumed[k] * step.scale * step.scale);
      const double known = std::min(terms[j].value.resolution, terms[k].value.resolution);
      if (coupling < std::max(least_coupling, 0.5 * known) || !terms[j].occurs() || !terms[k].occurs()) continue;
      std::ranges::replace(group, std::size_t{group[j]}, std::size_t{group[k]});
    }
  std::vector<std::vector<std::size_t>> out;
  for (std::size_t first = 0; first < calibrated_terms; ++first) {
    std::vector<std::size_t> members;
    for (std::size_t j = 0; j < calibrated_terms; ++j)
      if (group[j] == first) members.push_back(j);
    if (members.size() > 1) out.push_back(std::move(members));
  }
  return out;
}

}  // namespace detail

/// Compares measured steps with their predictions. A calibration that the cluster already has is left out: factors are
/// of its figures. Errors (usage): no runs or more than most_measured_runs, seconds that are no positive number, and,
/// with the name of the run, those of cost_of.
inline Result<CalibrationReport> calibrate(std::span<const MeasuredRun> runs, const Cluster& cluster) {
  if (runs.empty() || runs.size() > most_measured_runs)
    return usage_error("there are " + std::to_string(runs.size()) + " measured runs: give 1 to " +
                       std::to_string(most_measured_runs));
  for (const MeasuredRun& run : runs)
    if (!(run.seconds.value > 0 && run.seconds.value < 1e9 && run.spread >= 0 && run.spread < 10))
      return usage_error(run.name + ": a step takes a positive number of seconds, with a spread from 0 to 10");
  detail::RunPricer pricer(runs, cluster);
  detail::TermLogs assumed{};
  for (std::size_t j = 0; j < assumed.size(); ++j) assumed[j] = detail::assumed_spread(cluster, j);
  CalibrationReport out;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto predicted = pricer.log_seconds(i, {});
    if (!predicted) return tl::unexpected<Error>(predicted.error());
    out.runs.push_back({.predicted = {std::exp(*predicted)}, .calibrated = {}});
  }
  detail::TermLogs logs{};
  const auto fit = detail::fitted(pricer, runs, assumed, logs);
  if (!fit) return tl::unexpected<Error>(fit.error());
  const auto& [at, step] = *fit;
  out.noise = step.noise;
  out.scale = step.scale;
  out.terms = detail::estimates_of(at, step, logs, assumed, runs);
  out.alike = detail::alike_terms(out.terms, step, assumed);

  std::vector<double> sizes;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    RunComparison& run = out.runs[i];
    const double variance = step.noise * step.noise + runs[i].spread * runs[i].spread;
    double leverage = 0;
    for (std::size_t j = 0; j < logs.size(); ++j)
      for (std::size_t k = 0; k < logs.size(); ++k)
        leverage += at.slopes[i][j] * step.covariance[j][k] * at.slopes[i][k] / variance;
    const double left = at.residuals[i];
    run.calibrated = {runs[i].seconds.value * std::exp(-left)};
    run.error = run.predicted / runs[i].seconds - 1;
    run.calibrated_error = std::exp(-left) - 1;
    run.held_out_error = std::exp(-left / std::max(1e-6, 1 - leverage)) - 1;
    sizes.push_back(std::abs(left));
  }
  // Six times the median is beyond four standard deviations of normal numbers.
  std::vector<double> sorted = sizes;
  std::ranges::sort(sorted);
  const double limit = std::max(0.03, 6 * sorted[sorted.size() / 2]);
  for (std::size_t i = 0; i < sizes.size(); ++i) out.runs[i].is_outlier = sizes.size() >= 5 && sizes[i] > limit;
  return out;
}

/// A cluster with what a calibration has learned; of the terms that no run touches nothing was.
/// @param date  YYYY-MM-DD  @param source  of the runs
inline Cluster calibrated_cluster(Cluster cluster, const CalibrationReport& report, std::string date,
                                  std::string trainer, std::string source) {
  cluster.calibration = {.date = std::move(date),
                         .cluster = cluster.name,
                         .trainer = std::move(trainer),
                         .runs = std::move(source),
                         .steps = static_cast<int>(report.runs.size()),
                         .noise = report.noise};
  for (const TermEstimate& each : report.terms)
    if (each.term && each.value.resolution >= 0.01) cluster.calibration.term(*each.term) = each.value;
  return cluster;
}

}  // namespace galvatron
