// The report of a simulated plan: one HTML file that needs nothing else, no network and no other file.
//
// It has the timeline of the stages, memory over time, where the time goes, the plan by layers, and, if given, other
// plans beside it and a run that was measured. It follows the reader's choice of light or dark, fits wide and narrow
// screens, and prints.
#pragma once

#include <string>
#include <vector>

#include <galvatron/simulate/simulation.hpp>

#include "html.hpp"
#include "page.hpp"
#include "sections.hpp"
#include "subject.hpp"
#include "timeline.hpp"

namespace galvatron::simulate {

/// The whole file.
/// @param compared  plans to show beside `subject`
/// @param measured  a run of `subject`'s plan, or null
inline std::string report_html(const Simulated& subject, const std::vector<Simulated>& compared = {},
                               const Measured* measured = nullptr) {
  using report::escaped;
  const CriticalPath path = critical_path(subject.simulation);
  bool left_out = false;
  const std::string data = report::timeline_json(subject, path, measured, left_out);
  std::vector<const Simulated*> plans{&subject};
  for (const Simulated& other : compared) plans.push_back(&other);

  report::Colours colours{{"forward", "forward"}, {"backward", "backward"}};
  if (splits_backward(subject.plan.schedule)) colours.emplace_back("gradients of weights, deferred", "weight");
  if (subject.plan.stages.size() > 1) colours.emplace_back("moves of activations", "transfer");
  colours.emplace_back("gradient reduction", "gradients");
  colours.emplace_back("optimizer", "update");
  if (subject.plan.stages.size() > 1) colours.emplace_back("waiting", "waiting");
  colours.emplace_back("critical path", "critical");
  if (left_out) colours.emplace_back("left out of this page", "left-out");
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'\">\n<title>" +
      std::string(measured != nullptr ? "A run of " : "") +
      escaped(subject.plan.model + " on " + subject.plan.cluster) + " - galvatron</title>\n<style>" + report::style +
      "</style>\n</head>\n<body>\n<main>\n" + report::overview(subject, measured) +
      report::measurement(subject, measured);
  out += "<h2>Timeline</h2>\n<p>One iteration; numbers are micro-batches" +
         std::string(subject.plan.virtual_stages > 1 ? " and, behind the point, chunks" : "") +
         ". Grey is waiting, the stripe below a box the critical path" +
         std::string(measured != nullptr ? " of the prediction." : ".") +
         (left_out ? " There are too many instructions to show all: the middle of the iteration is left out, hatched."
                   : "") +
         "</p>\n" + report::legend(colours);
  out +=
      "<div class=\"tools\"><button id=\"in\" type=\"button\" aria-label=\"zoom in\">+</button><button id=\"out\" "
      "type=\"button\" aria-label=\"zoom out\">&minus;</button><button id=\"left\" type=\"button\" aria-label=\"go "
      "left\">&larr;</button><button id=\"right\" type=\"button\" aria-label=\"go right\">&rarr;</button><button "
      "id=\"all\" type=\"button\">all</button> <span id=\"shown\"></span> <span class=\"keys\">drag to move, Ctrl and "
      "wheel to zoom</span></div>\n<div><svg id=\"timeline\" tabindex=\"0\" role=\"img\" aria-label=\"Timeline of the "
      "stages\"></svg></div>\n<div id=\"about\">Point at a box to see what it is.</div>\n<noscript><p>The timeline is "
      "drawn by a script, which is switched off here.</p></noscript>\n";
  const std::string predicted = measured != nullptr ? "Predicted: " : "";
  out += report::comparison(plans) + report::time_section(subject, predicted) +
         report::critical_section(path, subject.simulation.iteration, predicted) +
         report::memory_section(subject, predicted) + report::layer_section(subject, predicted);
  out += "<footer>Written by galvatron from " + escaped(subject.name) +
         ". What is predicted comes of the schedule replayed with the prices of the cluster.</footer>\n</main>\n"
         "<script type=\"application/json\" id=\"data\">" +
         data + "</script>\n<script>" + report::script + "</script>\n</body>\n</html>\n";
  return out;
}

}  // namespace galvatron::simulate
