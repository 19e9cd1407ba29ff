#include "train_outcome.hpp"

#include <cstddef>
#include <iterator>

#include <nlohmann/json.hpp>

#include <galvatron/core/text.hpp>
#include <galvatron/files.hpp>
#include <galvatron/profile/check.hpp>

#include "adaptation.hpp"
#include "output.hpp"
#include "run_files.hpp"

namespace galvatron::tools {

namespace {

// Model FLOPs over what the plan's devices could do in the measured time; 0: the plan does not say.
double mfu_of(const TrainOutcome& o) {
  const Prediction& p = o.plan.predicted;
  return o.report.iteration_seconds > 0 ? p.mfu * p.iteration.value / o.report.iteration_seconds : 0;
}

// What dispatch to experts did in a step, as means over the steps.
struct MeanDispatch {
  double bytes = 0;
  double rate = 0;  // of compressed dispatch; 0: the plan has none
  double error = 0;
  double hashing_seconds = 0;

  explicit MeanDispatch(const train::TrainReport& report) {
    const auto steps = static_cast<double>(report.steps.size());
    for (const train::StepReport& step : report.steps) {
      bytes += step.dispatch.bytes / steps;
      rate += step.dispatch.rate() / steps;
      error += step.dispatch.error() / steps;
      hashing_seconds += step.dispatch.hashing_seconds / steps;
    }
  }
};

std::string bits_text(double loss, double tokens_per_byte) {
  if (tokens_per_byte <= 0) return "";
  return galvatron::detail::formatted(", %.4f bits per byte", train::bits_per_byte(loss, tokens_per_byte));
}

std::string_view name_of(train::SlowCause cause) {
  switch (cause) {
    case train::SlowCause::share:
      return "share";
    case train::SlowCause::passes:
      return "passes";
    case train::SlowCause::update:
      break;
  }
  return "update";
}

nlohmann::ordered_json slowest_json(const train::SlowestRank& slowest, const PlanStage& stage) {
  using Json = nlohmann::ordered_json;
  const auto known = [](double seconds) { return seconds > 0 ? Json(seconds) : Json(); };
  return {{"rank", slowest.rank},
          {"first_layer", stage.first_layer},
          {"last_layer", stage.last_layer},
          {"seconds", slowest.seconds},
          {"others_seconds", slowest.others},
          {"predicted_seconds", known(slowest.predicted)},
          {"predicted_others_seconds", known(slowest.predicted_others)},
          {"cause", name_of(slowest.cause)}};
}

std::string slowest_text(const train::SlowestRank& slowest, const PlanStage& stage) {
  const auto seconds = [](double value) { return format_seconds(Seconds{value}); };
  std::string out = text_of("rank ", slowest.rank, " (layers ", stage.first_layer, "-", stage.last_layer, ") works ",
                            seconds(slowest.seconds), " a step, the others ", seconds(slowest.others));
  if (slowest.predicted > 0)
    out += text_of(", predicted ", seconds(slowest.predicted), " and ", seconds(slowest.predicted_others));
  switch (slowest.cause) {
    case train::SlowCause::share:
      return out + ": the plan gives it more to do";
    case train::SlowCause::passes:
      return out + ": its passes take longer than its share; its cores are slower, or other programs use them";
    case train::SlowCause::update:
      break;
  }
  return out + ": its optimizer takes longer than its share; its memory is slower, or other programs use it";
}

}  // namespace

void print_outcome_json(const TrainOutcome& o, const TrainArguments& a) {
  nlohmann::ordered_json out;
  out["first_loss"] = o.report.steps.front().loss;
  out["last_loss"] = o.report.steps.back().loss;
  const auto bits_per_byte = [](double loss, double tokens_per_byte) {
    using Json = nlohmann::ordered_json;
    return tokens_per_byte > 0 ? Json(train::bits_per_byte(loss, tokens_per_byte)) : Json();
  };
  out["bits_per_byte"] = bits_per_byte(o.report.steps.back().loss, o.tokens_per_byte);
  if (const auto loss = o.validation_loss()) {
    out["validation_loss"] = *loss;
    out["validation_bits_per_byte"] = bits_per_byte(*loss, o.validation_tokens_per_byte);
    out["validation_samples"] = o.validation_samples;
  }
  out["steps"] = o.report.steps.size();
  out["tokens_per_second"] = o.tokens_per_second();
  out["predicted_iteration_seconds"] = nullptr;
  if (const double predicted = o.plan.predicted.iteration.value; predicted > 0)
    out["predicted_iteration_seconds"] = predicted;
  out["measured_iteration_seconds"] = o.report.iteration_seconds;
  out["others_share"] = nullptr;
  if (o.others) out["others_share"] = *o.others;
  out["predicted_beside_others_seconds"] = nullptr;
  if (o.others && o.plan.predicted.iteration.value > 0)
    out["predicted_beside_others_seconds"] = o.beside_others().value;
  out["slowest_rank"] = nullptr;
  if (o.slowest) out["slowest_rank"] = slowest_json(*o.slowest, o.slowest_stage);
  const MeanDispatch dispatch(o.report);
  if (!o.report.steps.back().layer_dispatch.empty()) out["dispatch_bytes"] = dispatch.bytes;
  if (dispatch.rate > 0) {
    out["lsh_rate"] = dispatch.rate;
    out["lsh_error"] = dispatch.error;
    out["hashing_seconds"] = dispatch.hashing_seconds;
  }
  if (const double mfu = mfu_of(o); mfu > 0) add_mfu(out, mfu);
  for (const Bytes bytes : o.predicted) out["predicted_peak_bytes"].push_back(bytes.count);
  for (const Bytes bytes : o.measured) out["measured_peak_bytes"].push_back(bytes.count);
  add_files_json(out, a.files, RunSummary(o.report));
  add_texts(out, {{"trace", a.trace}, {"report", a.report}});
  if (o.report.stopped != 0) out["interrupted"] = true;
  if (a.adapt.on) out["adaptations"] = adaptations_json(o.report.adaptations);
  out["plan"] = to_json(o.plan);
  print_json(out);
}

void print_outcome(const TrainOutcome& o, const TrainArguments& a) {
  const auto& steps = o.report.steps;
  const Seconds predicted = o.plan.predicted.iteration;
  const Seconds measured{o.report.iteration_seconds};
  const std::string compared = against_prediction(predicted, measured);
  const std::string busy = train::others_text(o.others.value_or(0));
  std::string out =
      text_of("Trained ", o.plan.model, " for ", counted(std::ssize(steps), "step"), " on ",
              counted(o.plan.ranks(), "rank"), " in ", name_of(o.plan.precision), ": ", plan_words(o.plan), "\n") +
      row("loss", galvatron::detail::formatted("%.4f -> %.4f", steps.front().loss, steps.back().loss),
          bits_text(steps.back().loss, o.tokens_per_byte)) +
      (o.validation_loss() ? row("validation", galvatron::detail::formatted("%.4f", *o.validation_loss()),
                                 bits_text(*o.validation_loss(), o.validation_tokens_per_byte), " on ",
                                 counted(o.validation_samples, "sample"))
                           : std::string()) +
      row("speed", format_count(o.tokens_per_second()), " tokens/s", mfu_text(mfu_of(o))) +
      row("iteration", "predicted ", predicted.value > 0 ? format_seconds(predicted) : "nothing", ", measured ",
          format_seconds(measured), compared.empty() ? "" : ": ", compared) +
      (busy.empty()
           ? std::string()
           : row("", busy, " meanwhile",
                 predicted.value > 0 ? ": on what they left " + format_seconds(o.beside_others()) + " are predicted"
                                     : "")) +
      (o.slowest ? row("slowest", slowest_text(*o.slowest, o.slowest_stage)) : std::string());
  for (const train::Adaptation& adaptation : o.report.adaptations) out += row("adapted", adaptation_text(adaptation));
  const MeanDispatch dispatch(o.report);
  if (dispatch.bytes > 0)
    out += row("dispatch", format_bytes(Bytes{static_cast<std::int64_t>(dispatch.bytes)}),
               " to experts and back in a step");
  if (dispatch.rate > 0)
    out += row("compression", percent(dispatch.rate), " of the rows were sent",
               dispatch.rate >= 1 ? text_of(": it never paid by the plan's prices")
                                  : text_of(", error ", percent(dispatch.error), ", hashing ",
                                            format_seconds(Seconds{dispatch.hashing_seconds})));
  for (std::size_t first = 0; first < o.predicted.size();) {
    std::size_t last = first;  // ranks with equal figures share a line
    while (last + 1 < o.predicted.size() && o.predicted[last + 1] == o.predicted[first] &&
           o.measured[last + 1] == o.measured[first])
      ++last;
    const std::int64_t difference = o.measured[first].count - o.predicted[first].count;
    out += row(
        first == 0 ? "peak memory" : "", first == last ? text_of("rank ", first) : text_of("ranks ", first, "-", last),
        ": predicted ", format_bytes(o.predicted[first]), ", measured ", format_bytes(o.measured[first]),
        difference == 0 ? " (equal to the byte)" : text_of(" (", difference > 0 ? "+" : "", difference, " bytes)"));
    first = last + 1;
  }
  print(out + files_text(a.files, RunSummary(o.report)) + row("trace", a.trace) + row("report", a.report) +
        row("plan", a.plan_path) + row("plan", a.save_plan) + row("cluster", a.save_cluster));
}

void print_nothing_to_do(const Plan& plan, const TrainArguments& a, const Common& common) {
  if (!common.json) return print(text_of("Nothing to do: ", a.files.resume, " has all ", a.options.steps, " steps\n"));
  print_json({{"first_loss", nullptr},
              {"last_loss", nullptr},
              {"steps", 0},
              {"tokens_per_second", nullptr},
              {"predicted_iteration_seconds", nullptr},
              {"measured_iteration_seconds", nullptr},
              {"predicted_peak_bytes", nullptr},
              {"measured_peak_bytes", nullptr},
              {"resume", a.files.resume},
              {"plan", to_json(plan)}});
}

std::vector<std::string> progress_facts(const train::StepReport& step, const std::string& validated) {
  using galvatron::detail::formatted;
  std::vector<std::string> out{formatted("loss %.3f", step.loss)};
  if (!validated.empty()) out.push_back(validated);
  out.push_back(format_count(step.tokens_per_second) + " tokens/s");
  if (step.bits_per_byte > 0) out.push_back(formatted("%.3f bits/byte", step.bits_per_byte));
  out.push_back(formatted("norm %.2f", step.gradient_norm));
  if (step.mfu > 0) out.push_back(formatted("MFU %.1f %%", 100 * step.mfu));
  return out;
}

}  // namespace galvatron::tools
