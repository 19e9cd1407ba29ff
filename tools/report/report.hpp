// The report of a simulated plan: one HTML file that needs nothing else, no network and no other file.
//
// It has the timeline of the stages, memory over time, where the time goes, the plan by layers, and, if given, other
// plans beside it and a run that was measured. It follows the reader's choice of light or dark, fits wide and narrow
// screens, and prints.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/units.hpp>
#include <galvatron/schedule/program.hpp>
#include <galvatron/simulate/simulation.hpp>

#include "../simulations.hpp"
#include "html.hpp"
#include "packed_section.hpp"
#include "page.hpp"
#include "sections.hpp"

namespace galvatron::simulate::report {

/// Of one iteration a timeline holds so many instructions; of longer ones it has the begin and the end.
inline constexpr std::size_t most_spans = 120'000;

/// The JSON that the script reads, fit to stand in a script element: the stages of a plan, each above its first rank's
/// measurement if there is one. `left_out` says whether tracks lack instructions in their middle.
inline std::string timeline_json(const Simulated& subject, const CriticalPath& path, const Measured* measured,
                                 bool& left_out) {
  const Simulation& simulation = subject.simulation;
  const std::size_t stages = simulation.spans.size();
  const Seconds length = measured != nullptr ? max(simulation.iteration, measured->step.seconds) : simulation.iteration;
  constexpr std::int64_t resolution = 4'000'000;
  const auto ticks = [&](Seconds at) {
    return std::llround(static_cast<double>(resolution) * (length.value > 0 ? at / length : 0));
  };
  // The kind of the span that stands for the instructions which a track lacks.
  constexpr int kind_left_out = static_cast<int>(schedule::Op::step) + 1;
  static_assert(kind_left_out < 16);
  const std::size_t most = most_spans / (stages * (measured != nullptr ? 2 : 1));
  left_out = !simulation.repetitions.empty();
  nlohmann::ordered_json tracks;
  // @param brief  name for narrow screens  @param end  of the iteration, behind which there is nothing
  // @param critical  marks of the spans on the critical path, or nothing
  // @param gaps  spans before which instructions are missing, in ascending order
  const auto add_track = [&](const std::string& name, const std::string& brief, Seconds end,
                             std::span<const Span> spans, const std::vector<bool>& critical,
                             std::span<const std::size_t> gaps) {
    left_out = left_out || spans.size() > most;
    std::vector<std::int64_t> values;
    std::int64_t now = 0;
    const auto add = [&](Seconds from, Seconds to, int kind, std::int64_t microbatch, std::int64_t chunk) {
      const std::int64_t begin = ticks(from);
      const std::int64_t behind = ticks(to);
      if (behind <= begin) return;
      values.insert(values.end(), {begin - now, behind - begin, kind, microbatch, chunk});
      now = behind;
    };
    // Spans [dropped, dropped + count) are left out, in the middle or so that the last gap is among them.
    const std::size_t count = spans.size() > most ? spans.size() - most : 0;
    const std::size_t middle = count > 0 ? most / 2 : spans.size();
    const std::size_t dropped =
        count > 0 && !gaps.empty() ? std::clamp(middle + count, gaps.back(), gaps.back() + count) - count : middle;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if ((count > 0 && i == dropped) || std::ranges::find(gaps, i) != gaps.end()) {
        const Seconds from = i == 0 ? Seconds{} : spans[i - 1].end;
        if (i == dropped) i += count;
        add(from, i < spans.size() ? spans[i].begin : end, kind_left_out, 0, 0);
        if (i == spans.size()) break;
      }
      const schedule::Instruction& instruction = spans[i].instruction;
      add(spans[i].begin, spans[i].end, static_cast<int>(instruction.op) + (!critical.empty() && critical[i] ? 16 : 0),
          instruction.microbatch, instruction.chunk);
    }
    tracks.push_back({{"name", name},
                      {"brief", brief},
                      {"end", ticks(end)},
                      {"chunks", subject.plan.virtual_stages},
                      {"spans", values}});
  };
  std::vector<std::vector<bool>> critical(stages);
  for (std::size_t s = 0; s < stages; ++s) critical[s].resize(simulation.spans[s].size());
  for (const schedule::SpanIndex& step : path.steps) critical[step.stage][step.span] = true;
  for (std::size_t s = 0; s < stages; ++s) {
    std::vector<std::size_t> gaps;
    for (const Repetition& repetition : simulation.repetitions) gaps.push_back(repetition.first[s]);
    add_track(text_of("stage ", s, measured != nullptr ? ", predicted" : ""),
              text_of(measured != nullptr ? "pred. " : "stage ", s), simulation.iteration, simulation.spans[s],
              critical[s], gaps);
    const auto rank = static_cast<std::size_t>(subject.plan.stages[s].first_rank);
    if (measured != nullptr && rank < measured->step.ranks.size())
      add_track(text_of("rank ", rank, ", measured"), text_of("rank ", rank), measured->step.seconds,
                measured->step.ranks[rank], {}, {});
  }
  std::vector<std::string> kinds;
  for (int op = 0; op < kind_left_out; ++op) {
    kinds.emplace_back(schedule::name_of(static_cast<schedule::Op>(op)));
    std::ranges::replace(kinds.back(), '_', ' ');
  }
  kinds.emplace_back("left out");
  const nlohmann::ordered_json whole{
      {"length", resolution}, {"seconds", length.value}, {"kinds", kinds}, {"tracks", tracks}};
  std::string out;
  for (const char c : whole.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace))
    out += c == '<' ? std::string("\\u003c") : std::string(1, c);  // no text in it can end the element
  return out;
}

}  // namespace galvatron::simulate::report

namespace galvatron::simulate {

/// The whole file, with plans to compare, and a run of `subject`'s plan or null.
inline std::string report_html(const Simulated& subject, const std::vector<Simulated>& compared = {},
                               const Measured* measured = nullptr) {
  using report::escaped;
  const CriticalPath path = critical_path(subject.simulation);
  bool left_out = false;
  const std::string data = report::timeline_json(subject, path, measured, left_out);
  std::vector<const Simulated*> plans{&subject};
  for (const Simulated& other : compared) plans.push_back(&other);

  const bool several = subject.plan.stages.size() > 1;
  report::Colours colours{{"forward", "forward"}, {"backward", "backward"}};
  if (splits_backward(subject.plan.schedule)) colours.emplace_back("gradients of weights, deferred", "weight");
  if (several) colours.emplace_back("moves of activations", "transfer");
  colours.insert(colours.end(), {{"gradient reduction", "gradients"}, {"optimizer", "update"}});
  if (several) colours.emplace_back("waiting", "waiting");
  colours.emplace_back("critical path", "critical");
  if (left_out) colours.emplace_back("left out of this page", "left-out");
  std::string out = text_of(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'\">\n<title>",
      measured != nullptr ? "A run of " : "", escaped(subject.plan.model + " on " + subject.plan.cluster),
      " - galvatron</title>\n<style>", report::style, "</style>\n</head>\n<body>\n<main>\n",
      report::overview(subject, measured), report::measurement(subject, measured), report::loads_section(measured),
      report::dispatch_section(measured), report::step_section(subject),
      "<h2>Timeline</h2>\n<p>One iteration; numbers are micro-batches",
      subject.plan.virtual_stages > 1 ? " and, behind the point, chunks" : "",
      ". Grey is waiting, the stripe below a box the critical path", measured != nullptr ? " of the prediction." : ".",
      left_out ? " There are too many instructions to show all: the middle of the iteration is left out, hatched." : "",
      "</p>\n", report::legend(colours));
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
         report::interval_section(subject, predicted) +
         report::critical_section(path, subject.simulation.iteration, predicted) +
         report::memory_section(subject, predicted) + report::layer_section(subject, predicted);
  out += "<footer>Written by galvatron from " + escaped(subject.name) +
         ". What is predicted comes of the schedule replayed with the prices of the cluster.</footer>\n</main>\n"
         "<script type=\"application/json\" id=\"data\">" +
         data + "</script>\n<script>" + report::script + "</script>\n</body>\n</html>\n";
  return out;
}

}  // namespace galvatron::simulate
