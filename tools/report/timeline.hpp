// The data of a report's timeline: what the script draws.
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

#include "html.hpp"
#include "subject.hpp"

namespace galvatron::simulate::report {

/// Of one iteration a timeline holds so many instructions; of longer ones it has the begin and the end.
inline constexpr std::size_t most_spans = 120'000;

/// The JSON that the script reads.
class TimelineData {
 public:
  /// @param length  of the time axis
  explicit TimelineData(Seconds length) : length_(length) {}

  /// @param brief  name for narrow screens
  /// @param end  of the iteration, behind which there is nothing
  /// @param critical  marks of the spans on the critical path, or nothing
  /// @param most  instructions that are kept; a span of the kind left_out stands for the others
  /// @param gaps  spans before which instructions are missing, in ascending order; for these stands such a span, too
  void track(const std::string& name, const std::string& brief, Seconds end, int chunks, std::span<const Span> spans,
             const std::vector<bool>& critical, std::size_t most, std::span<const std::size_t> gaps = {}) {
    std::vector<std::int64_t> values;
    std::int64_t now = 0;
    const auto add = [&](Seconds from, Seconds to, int kind, std::int64_t microbatch, std::int64_t chunk) {
      const std::int64_t begin = ticks(from);
      const std::int64_t behind = ticks(to);
      if (behind <= begin) return;
      values.insert(values.end(), {begin - now, behind - begin, kind, microbatch, chunk});
      now = behind;
    };
    // Spans [dropped, kept) are left out, in the middle or so that the last gap is among them.
    const std::size_t count = spans.size() > most ? spans.size() - most : 0;
    const std::size_t middle = count > 0 ? most / 2 : spans.size();
    const std::size_t dropped =
        count > 0 && !gaps.empty() ? std::clamp(middle + count, gaps.back(), gaps.back() + count) - count : middle;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if ((count > 0 && i == dropped) || std::ranges::find(gaps, i) != gaps.end()) {
        const Seconds from = i == 0 ? Seconds{} : spans[i - 1].end;
        if (i == dropped) i += count;
        add(from, i < spans.size() ? spans[i].begin : end, left_out, 0, 0);
        if (i == spans.size()) break;
      }
      const schedule::Instruction& instruction = spans[i].instruction;
      add(spans[i].begin, spans[i].end, static_cast<int>(instruction.op) + (!critical.empty() && critical[i] ? 16 : 0),
          instruction.microbatch, instruction.chunk);
    }
    tracks_.push_back({{"name", name}, {"brief", brief}, {"end", ticks(end)}, {"chunks", chunks}, {"spans", values}});
  }

  /// Fit to stand in a script element: no text in it can end the element.
  [[nodiscard]] std::string json() const {
    std::vector<std::string> kinds;
    for (int op = 0; op <= static_cast<int>(schedule::Op::step); ++op) {
      kinds.emplace_back(schedule::name_of(static_cast<schedule::Op>(op)));
      std::ranges::replace(kinds.back(), '_', ' ');
    }
    kinds.emplace_back("left out");
    const nlohmann::ordered_json whole{
        {"length", resolution}, {"seconds", length_.value}, {"kinds", kinds}, {"tracks", tracks_}};
    std::string out;
    for (const char c : whole.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace))
      out += c == '<' ? std::string("\\u003c") : std::string(1, c);
    return out;
  }

  /// The kind of the span that stands for the instructions which a track lacks.
  static constexpr int left_out = static_cast<int>(schedule::Op::step) + 1;
  static_assert(left_out < 16);

 private:
  static constexpr std::int64_t resolution = 4'000'000;
  [[nodiscard]] std::int64_t ticks(Seconds at) const {
    return std::llround(static_cast<double>(resolution) * (length_.value > 0 ? at / length_ : 0));
  }

  Seconds length_;
  nlohmann::ordered_json tracks_ = nlohmann::ordered_json::array();
};

/// The stages of a plan, each above its first rank's measurement if there is one. `left_out` says whether tracks lack
/// instructions in their middle.
inline std::string timeline_json(const Simulated& subject, const CriticalPath& path, const Measured* measured,
                                 bool& left_out) {
  const Simulation& simulation = subject.simulation;
  const std::size_t stages = simulation.spans.size();
  TimelineData data(measured != nullptr ? max(simulation.iteration, measured->step.seconds) : simulation.iteration);
  std::vector<std::vector<bool>> critical(stages);
  for (std::size_t s = 0; s < stages; ++s) critical[s].resize(simulation.spans[s].size());
  for (const schedule::SpanIndex& step : path.steps) critical[step.stage][step.span] = true;
  const std::size_t most = most_spans / (stages * (measured != nullptr ? 2 : 1));
  left_out = !simulation.repetitions.empty();
  for (std::size_t s = 0; s < stages; ++s) {
    const std::string n = std::to_string(s);
    left_out = left_out || simulation.spans[s].size() > most;
    std::vector<std::size_t> gaps;
    for (const Repetition& repetition : simulation.repetitions) gaps.push_back(repetition.first[s]);
    data.track("stage " + n + (measured != nullptr ? ", predicted" : ""),
               (measured != nullptr ? "pred. " : "stage ") + n, simulation.iteration, subject.plan.virtual_stages,
               simulation.spans[s], critical[s], most, gaps);
    if (measured == nullptr) continue;
    const auto rank = static_cast<std::size_t>(subject.plan.stages[s].first_rank);
    if (rank >= measured->step.ranks.size()) continue;
    left_out = left_out || measured->step.ranks[rank].size() > most;
    data.track("rank " + std::to_string(rank) + ", measured", "rank " + std::to_string(rank), measured->step.seconds,
               subject.plan.virtual_stages, measured->step.ranks[rank], {}, most);
  }
  return data.json();
}

}  // namespace galvatron::simulate::report
