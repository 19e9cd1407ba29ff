// The report of a plan of waves: a Gantt chart of devices over the time of a step, coloured by component. One HTML file
// that needs nothing else, and no script: what a box is shows where one points at it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/plan/task_plan.hpp>
#include <galvatron/simulate/explain_waves.hpp>
#include <galvatron/simulate/wave_simulation.hpp>

#include "html.hpp"
#include "page.hpp"

namespace galvatron::simulate::report {

/// A colour for each component, as far apart as there are components.
inline std::string component_colour(std::size_t component, std::size_t components) {
  return text_of("hsl(", 360 * component / std::max<std::size_t>(components, 1), " 60% ", component % 2 == 0 ? 45 : 60,
                 "%)");
}

/// The boxes of a Gantt chart, one for every run of neighbouring ranks of an instruction, and the lines of the ranks.
inline std::string wave_gantt(const train::TaskPlan& plan, const WaveSimulation& simulation) {
  constexpr double width = 1000;  // of the step
  constexpr double label = 70;
  const double height = plan.ranks > 32 ? 8 : 20;  // of a rank
  const auto number = [](double value) { return galvatron::detail::formatted("%.2f", value); };
  const auto x = [&](Seconds at) { return label + width * (at / simulation.step); };
  std::string out = text_of("<svg viewBox=\"0 0 ", number(label + width + 10), " ", number(height * plan.ranks + 20),
                            "\" role=\"img\" aria-label=\"Devices over the time of a step\" style=\"width:100%\">\n");
  const auto box = [&](double left, double right, int first, int count, const std::string& colour,
                       const std::string& words) {
    out += text_of("<rect x=\"", number(left), "\" y=\"", number(height * first + 1), "\" width=\"",
                   number(std::max(right - left, 0.2)), "\" height=\"", number(height * count - 2),
                   "\" style=\"fill:", colour, "\"><title>", escaped(words), "</title></rect>\n");
  };
  for (int rank = 0; rank < plan.ranks; ++rank)
    if (height >= 20 || rank % 8 == 0)
      out += text_of("<text x=\"0\" y=\"", number(height * rank + 14), "\" style=\"font-size:12px;fill:currentColor\">",
                     "rank ", rank, "</text>\n");
  for (const WaveEvent& event : simulation.events) {
    const train::PartPlan& part = plan.part(event.instruction.part);
    const auto component = static_cast<std::size_t>(component_of(plan, part));
    const bool forward = event.instruction.op == TaskInstruction::Op::forward;
    const std::string words =
        text_of(plan.model.components[component].name, " of ", plan.model.task(part.where.task).name, ", layers ",
                part.where.first, "-", part.where.last, ", ", forward ? "forward" : "backward", " in wave ", part.wave,
                ": ", format_seconds(event.end - event.moved), " on ", counted(std::ssize(part.where.ranks), "rank"),
                ", ", format_seconds(event.moved - event.begin), " for what moves");
    std::vector<int> ranks = part.where.ranks;
    std::ranges::sort(ranks);
    for (std::size_t i = 0, first = 0; i < ranks.size(); ++i)
      if (i + 1 == ranks.size() || ranks[i + 1] != ranks[i] + 1) {
        const int count = static_cast<int>(i - first) + 1;
        box(x(event.begin), x(event.moved), ranks[first], count, "#888", words);
        box(x(event.moved), x(event.end), ranks[first], count,
            component_colour(component, plan.model.components.size()) + (forward ? "" : ";fill-opacity:0.7"), words);
        first = i + 1;
      }
  }
  box(x(simulation.passes), x(simulation.step), 0, plan.ranks, "#aaa",
      text_of("gradients ", format_seconds(simulation.reduction), ", update ", format_seconds(simulation.update)));
  return out + text_of("<text x=\"", number(label), "\" y=\"", number(height * plan.ranks + 15),
                       "\" style=\"font-size:12px;fill:currentColor\">0 to ", format_seconds(simulation.step),
                       "</text>\n</svg>\n");
}

/// The whole file. @param summary  what the command says of the plan in words
inline std::string waves_html(const train::TaskPlan& plan, const WaveSimulation& simulation, const std::string& title,
                              const std::string& summary) {
  std::string out = text_of(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<meta http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>",
      escaped(title), " - galvatron</title>\n<style>", style, "</style>\n</head>\n<body>\n<main>\n<h1>", escaped(title),
      "</h1>\n<h2>Devices over the time of a step</h2>\n<p>A colour for each component, paler in backward passes; dark "
      "grey is what moves between ranks, light grey the reduction of gradients and the update.</p>\n<p>");
  const std::vector<ComponentShare> shares = component_shares(plan, simulation);
  for (std::size_t c = 0; c < shares.size(); ++c)
    out += text_of("<span style=\"display:inline-block;width:1em;height:1em;background:",
                   component_colour(c, shares.size()), "\"></span> ", escaped(plan.model.components[c].name), " (",
                   galvatron::detail::formatted("%.1f", 100 * shares[c].devices), " % of the devices' time) ");
  return out + "</p>\n" + wave_gantt(plan, simulation) + "<h2>Plan</h2>\n<pre>" + escaped(summary) +
         "</pre>\n</main>\n</body>\n</html>\n";
}

}  // namespace galvatron::simulate::report
