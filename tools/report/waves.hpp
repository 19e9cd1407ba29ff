// The report of a plan of waves: a Gantt chart of devices over the time of a step, coloured by component. One HTML file
// that needs nothing else, and no script: what a box is shows where one points at it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/plan/task_plan.hpp>
#include <galvatron/plan/task_program.hpp>
#include <galvatron/simulate/explain_waves.hpp>
#include <galvatron/simulate/wave_simulation.hpp>
#include <galvatron/simulate/wave_trace.hpp>
#include <galvatron/train/task_options.hpp>

#include "curves.hpp"
#include "html.hpp"
#include "page.hpp"

namespace galvatron::simulate::report {

/// The boxes of a Gantt chart, one for every run of neighbouring ranks of a span, and the lines of the ranks.
class Gantt {
 public:
  /// @param ranks  that have a line  @param step  how long the step is
  Gantt(const train::TaskPlan& plan, Seconds step) : plan_(plan), step_(step), height_(plan.ranks > 32 ? 8 : 20) {
    out_ = text_of("<svg viewBox=\"0 0 ", text(label + width + 10), " ", text(height_ * plan.ranks + 20),
                   "\" role=\"img\" aria-label=\"Devices over the time of a step\" style=\"width:100%\">\n");
    for (int rank = 0; rank < plan.ranks; ++rank)
      if (height_ >= 20 || rank % 8 == 0)
        out_ += text_of("<text x=\"0\" y=\"", text(height_ * rank + 14),
                        "\" style=\"font-size:12px;fill:currentColor\">", "rank ", rank, "</text>\n");
  }
  void add(const TaskSpan& span, std::vector<int> ranks) {
    const bool of_part = span.instruction.part >= 0;
    std::string words = span_text(plan_, span.instruction);
    std::string colour = span.instruction.op == TaskInstruction::Op::reduce ? "#aaa" : "#ccc";
    if (of_part) {
      const train::PartPlan& part = plan_.part(span.instruction.part);
      words += text_of(" in wave ", part.wave);
      colour = colour_of(charted_as(plan_, part), charted(plan_.model)) +
               (span.instruction.op == TaskInstruction::Op::forward ? "" : ";fill-opacity:0.7");
    }
    words += text_of(": ", format_seconds(span.end - span.moved));
    if (of_part)
      words += text_of(" on ", counted(std::ssize(plan_.part(span.instruction.part).where.ranks), "rank"), ", ",
                       format_seconds(span.moved - span.begin), " for what moves");
    std::ranges::sort(ranks);
    for (std::size_t i = 0, first = 0; i < ranks.size(); ++i)
      if (i + 1 == ranks.size() || ranks[i + 1] != ranks[i] + 1) {
        const int count = static_cast<int>(i - first) + 1;
        box(span.begin, span.moved, ranks[first], count, "#888", words);
        box(span.moved, span.end, ranks[first], count, colour, words);
        first = i + 1;
      }
  }
  [[nodiscard]] std::string svg() const {
    return out_ + text_of("<text x=\"", text(label), "\" y=\"", text(height_ * plan_.ranks + 15),
                          "\" style=\"font-size:12px;fill:currentColor\">0 to ", format_seconds(step_),
                          "</text>\n</svg>\n");
  }

 private:
  static constexpr double width = 1000;  // of the step
  static constexpr double label = 70;
  static std::string text(double value) { return galvatron::detail::formatted("%.2f", value); }
  void box(Seconds begin, Seconds end, int first, int count, const std::string& colour, const std::string& words) {
    const double left = label + width * (begin / step_);
    const double right = label + width * (end / step_);
    if (right <= left) return;
    out_ += text_of("<rect x=\"", text(left), "\" y=\"", text(height_ * first + 1), "\" width=\"",
                    text(std::max(right - left, 0.2)), "\" height=\"", text(height_ * count - 2),
                    "\" style=\"fill:", colour, "\"><title>", escaped(words), "</title></rect>\n");
  }

  const train::TaskPlan& plan_;
  Seconds step_;
  double height_;  // of a rank
  std::string out_;
};

/// Of a simulated step.
inline std::string wave_gantt(const train::TaskPlan& plan, const WaveSimulation& simulation) {
  Gantt out(plan, simulation.step);
  for (const TaskSpan& event : simulation.events) out.add(event, plan.part(event.instruction.part).where.ranks);
  std::vector<int> all(static_cast<std::size_t>(plan.ranks));
  std::iota(all.begin(), all.end(), 0);
  const Seconds reduced = simulation.passes + simulation.reduction;
  out.add({{TaskInstruction::Op::reduce, -1}, simulation.passes, simulation.passes, reduced}, all);
  out.add({{TaskInstruction::Op::update, -1}, reduced, reduced, simulation.step}, all);
  return out.svg();
}

/// A run of a plan of waves.
struct MeasuredTasks {
  schedule::MeasuredSpans<TaskSpan> step;
  std::vector<train::TaskStepReport> steps;
  std::vector<TaskSpec> tasks;  ///< of the model
  std::vector<train::MixChange> mixes;
};

/// Of a measured one.
inline std::string measured_gantt(const train::TaskPlan& plan, const schedule::MeasuredSpans<TaskSpan>& step) {
  Gantt out(plan, step.seconds);
  for (std::size_t rank = 0; rank < step.ranks.size(); ++rank)
    for (const TaskSpan& span : step.ranks[rank]) out.add(span, {static_cast<int>(rank)});
  return out.svg();
}

/// The losses of the tasks over the steps of a run, and what was measured of held-out data.
inline std::string task_curves(const std::vector<TaskSpec>& tasks, const std::vector<train::TaskStepReport>& steps) {
  std::vector<Curve> losses, held_out, retrieval;
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    Curve trained{tasks[t].name, {}}, measured{tasks[t].name, {}}, found{tasks[t].name, {}};
    const std::size_t stride = std::max<std::size_t>(steps.size() / 600, 1);  // no more points than a picture has
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto at = static_cast<double>(steps[i].step + 1);
      if (steps[i].batches[t] == 0) continue;
      if (i % stride == 0 || i + 1 == steps.size()) trained.points.emplace_back(at, steps[i].losses[t]);
      if (steps[i].held_out.empty()) continue;
      measured.points.emplace_back(at, steps[i].held_out[t].loss);
      if (steps[i].held_out[t].retrieves) found.points.emplace_back(at, steps[i].held_out[t].retrieval);
    }
    if (!trained.points.empty()) losses.push_back(std::move(trained));
    if (!measured.points.empty()) held_out.push_back(std::move(measured));
    if (!found.points.empty()) retrieval.push_back(std::move(found));
  }
  std::string out = "<h2>Losses</h2>\n" + curves_svg("losses", "Loss of each task in training, nats", losses, false);
  if (!held_out.empty()) out += curves_svg("held-out", "Loss of each task on held-out data, nats", held_out, false);
  if (!retrieval.empty())
    out += "<h2>Retrieval</h2>\n" +
           curves_svg("retrieval", "Held-out samples that find their own among all, mean of both directions", retrieval,
                      true);
  return out;
}

/// What changed while the run went on.
inline std::string mix_table(const std::vector<train::MixChange>& mixes) {
  if (mixes.empty()) return {};
  std::string out =
      "<h2>Mixes of tasks</h2>\n<p>The plan above is that of the last one.</p>\n<table>\n<tr><th>from "
      "step</th><th>tasks and samples</th><th>planned in</th><th>states moved</th><th>training stood still</th></tr>\n";
  for (const train::MixChange& mix : mixes)
    out += text_of("<tr><td>", mix.step + 1, "</td><td>",
                   escaped(joined(mix.model.tasks, ", ",
                                  [](const TaskSpec& task) { return text_of(task.name, " ", task.batch); })),
                   "</td><td>", format_seconds({mix.costs.plan_seconds}), "</td><td>",
                   format_bytes({mix.costs.moved_bytes}), "</td><td>", format_seconds({mix.costs.seconds}),
                   "</td></tr>\n");
  return out + "</table>\n";
}

/// The whole file.
/// @param summary   what the command says of the plan in words
/// @param measured  a run of it; null: none
inline std::string waves_html(const train::TaskPlan& plan, const WaveSimulation& simulation, const std::string& title,
                              const std::string& summary, const MeasuredTasks* measured = nullptr) {
  std::string out = text_of(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<meta http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>",
      escaped(title), " - galvatron</title>\n<style>", style, "</style>\n</head>\n<body>\n<main>\n<h1>", escaped(title),
      "</h1>\n<h2>Devices over the time of a step</h2>\n<p>A colour for each ",
      charts_tasks(plan.model) ? "task" : "component",
      ", paler in backward passes; dark "
      "grey is what moves between ranks, light grey the reduction of gradients and the update.</p>\n<p>");
  const std::vector<ComponentShare> shares = component_shares(plan, simulation);
  for (std::size_t c = 0; c < shares.size(); ++c)
    out += text_of("<span style=\"display:inline-block;width:1em;height:1em;background:", colour_of(c, shares.size()),
                   "\"></span> ", escaped(charted_name(plan.model, c)), " (",
                   galvatron::detail::formatted("%.1f", 100 * shares[c].devices), " % of the devices' time) ");
  out += "</p>\n" + wave_gantt(plan, simulation);
  if (measured != nullptr)
    out += text_of("<p>Measured in step ", measured->step.step + 1,
                   "; dark grey is also the wait for what a part reads.</p>\n", measured_gantt(plan, measured->step),
                   task_curves(measured->tasks, measured->steps), mix_table(measured->mixes));
  return out + "<h2>Plan</h2>\n<pre>" + escaped(summary) + "</pre>\n</main>\n</body>\n</html>\n";
}

}  // namespace galvatron::simulate::report
