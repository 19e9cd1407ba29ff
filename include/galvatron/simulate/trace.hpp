// Traces in the JSON format of Chrome's tracing, which Perfetto (ui.perfetto.dev) shows too.
//
//   process            a stage that was simulated, or a rank that was measured
//   thread compute     passes with their layers, recomputation, the optimizer; waits for other stages
//   thread communication   messages from neighbours, collectives that a layer waits for, reduction of gradients
//   counter memory     bytes of states, stash, workspace, boundary tensors and library
//
// Times are microseconds to the nanosecond. On one thread slices follow each other or lie inside each other, in the
// order of their beginning. The format: "Trace Event Format", Google (2016), of which this writes complete events (X),
// counters (C) and metadata (M).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/units.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/simulate/memory.hpp>
#include <galvatron/simulate/simulation.hpp>

namespace galvatron::simulate {

/// Above as many slices of layers a trace shows instructions only.
inline constexpr std::size_t most_layer_slices = 400'000;

/// `forward 3`, `backward 3 of chunk 1`.
inline std::string instruction_text(const schedule::Instruction& instruction, bool chunks) {
  using schedule::Op;
  std::string out = schedule::name_of(instruction.op);
  std::replace(out.begin(), out.end(), '_', ' ');
  if (instruction.op == Op::reduce_gradients || instruction.op == Op::step) return out;
  out += " " + std::to_string(instruction.microbatch);
  return chunks ? out + " of chunk " + std::to_string(instruction.chunk) : out;
}

/// What a stage waits for before an instruction.
constexpr const char* wait_text(schedule::Op next) {
  using schedule::Op;
  if (next == Op::receive_activation) return "wait for an activation";
  if (next == Op::receive_gradient) return "wait for a gradient";
  return next == Op::step ? "wait for all stages" : "wait for a buffer";
}

class TraceWriter {
 public:
  enum Thread { compute = 1, communication = 2 };

  /// Names a process and its threads; processes are shown in the order in which they are named.
  void process(int id, std::string_view name) {
    const auto metadata = [&](int thread, std::string_view what, const nlohmann::json& arguments) {
      event(id, thread, 'M', what, ", \"args\": " + dumped(arguments));
    };
    metadata(0, "process_name", {{"name", name}});
    metadata(0, "process_sort_index", {{"sort_index", processes_++}});
    metadata(compute, "thread_name", {{"name", "compute"}});
    metadata(communication, "thread_name", {{"name", "communication"}});
  }
  /// A slice; nothing if it takes less than a nanosecond. Those of the communication of a process come after its
  /// others.
  /// @param within  the slice that it lies in has ended then
  void slice(int process, Thread thread, std::string_view name, std::string_view category, Seconds begin, Seconds end,
             Seconds within = {HUGE_VAL}, std::string_view arguments = {}) {
    const std::int64_t from = nanoseconds(min(begin, within));
    const std::int64_t to = nanoseconds(min(end, within));
    if (to <= from) return;
    event(process, thread, 'X', name,
          ", \"cat\": \"" + std::string(category) + "\", \"ts\": " + microseconds(from) + ", \"dur\": " +
              microseconds(to - from) + (arguments.empty() ? "" : ", \"args\": " + std::string(arguments)));
  }
  /// The value of a counter from a moment on: `series` are names and bytes.
  void counter(int process, std::string_view name, Seconds at, const nlohmann::ordered_json& series) {
    event(process, 0, 'C', name, ", \"ts\": " + microseconds(nanoseconds(at)) + ", \"args\": " + series.dump());
  }
  /// What the trace is of, for people.
  void tell(const std::string& key, std::string_view value) { told_[key] = value; }

  /// The file.
  [[nodiscard]] std::string text() {
    flush();
    return "{\"displayTimeUnit\": \"ms\",\n\"otherData\": " + dumped(told_) + ",\n\"traceEvents\": [" +
           (text_.empty() ? "" : text_.substr(1)) + "\n]}\n";
  }

 private:
  static std::int64_t nanoseconds(Seconds s) { return std::llround(s.value * 1e9); }
  static std::string microseconds(std::int64_t nanoseconds) {
    std::array<char, 40> out{};
    std::snprintf(out.data(), out.size(), "%lld.%03lld", static_cast<long long>(nanoseconds / 1000),
                  static_cast<long long>(nanoseconds % 1000));
    return out.data();
  }
  template <class Json>
  static std::string dumped(const Json& value) {
    return value.dump(-1, ' ', true, Json::error_handler_t::replace);
  }
  void event(int process, int thread, char phase, std::string_view name, const std::string& more) {
    if (phase != 'X') flush();
    (thread == communication && phase == 'X' ? later_ : text_) +=
        ",\n{\"pid\": " + std::to_string(process) + ", \"tid\": " + std::to_string(thread) + ", \"ph\": \"" + phase +
        "\", \"name\": " + dumped(nlohmann::json(name)) + more + "}";
  }
  void flush() { text_ += std::exchange(later_, {}); }

  std::string text_;   // events, each behind a comma
  std::string later_;  // of the process that is being written
  nlohmann::ordered_json told_ = nlohmann::ordered_json::object();
  int processes_ = 0;
};

namespace detail {

constexpr TraceWriter::Thread thread_of(schedule::Op op) {
  using schedule::Op;
  const bool computes = op == Op::forward || op == Op::backward || op == Op::backward_input ||
                        op == Op::backward_weight || op == Op::step;
  return computes ? TraceWriter::compute : TraceWriter::communication;
}

inline std::string layer_text(int number, std::size_t layers) {
  if (number == 0) return "embedding";
  return number > static_cast<int>(layers) ? "head" : "layer " + std::to_string(number - 1);
}

inline void add_instruction(TraceWriter& out, int process, const Span& span, bool chunks) {
  out.slice(process, thread_of(span.instruction.op), instruction_text(span.instruction, chunks),
            schedule::name_of(span.instruction.op), span.begin, span.end, {HUGE_VAL},
            "{\"microbatch\": " + std::to_string(span.instruction.microbatch) +
                ", \"chunk\": " + std::to_string(span.instruction.chunk) + "}");
}

// The layers of a pass, one after the other.
inline void add_layers(TraceWriter& out, int process, const PlanCost& cost, std::size_t stage, const Span& span) {
  const std::size_t layers = cost.layers.size() - 2;  // blocks
  const std::vector<Piece> pieces = pieces_of(cost, stage, span.instruction);
  const Seconds whole = seconds_of(cost, stage, span.instruction);
  const double stretch = whole.value > 0 ? (span.end - span.begin) / whole : 0;
  Seconds at = span.begin;
  for (std::size_t i = 0; i < pieces.size();) {
    std::size_t next = i;
    Seconds end = at;
    while (next < pieces.size() && pieces[next].layer == pieces[i].layer) end += pieces[next++].seconds * stretch;
    const std::string name = layer_text(pieces[i].layer, layers);
    out.slice(process, TraceWriter::compute, name, "layer", at, end, span.end);
    for (; i < next; ++i) {
      const Piece& piece = pieces[i];
      const Seconds then = at + piece.seconds * stretch;
      if (piece.activity == Activity::communication || piece.activity == Activity::transfer)
        out.slice(process, TraceWriter::communication,
                  name + (piece.activity == Activity::transfer ? " re-layout" : " collectives"),
                  name_of(piece.activity), at, then, span.end);
      if (piece.activity == Activity::recompute)
        out.slice(process, TraceWriter::compute, "recompute", "recompute", at, then, min(end, span.end));
      at = then;
    }
  }
}

inline void add_memory(TraceWriter& out, int process, const PlanStageCost& stage, std::span<const Span> spans,
                       std::span<const Repetition> repetitions = {}, std::size_t index = 0) {
  const cost::StageMemory& m = stage.memory;
  for (const MemoryPoint& point : memory_over_time(stage, spans, repetitions, index))
    out.counter(process, "memory", point.at,
                {{"states", m.states.count},
                 {"stash", point.stash.count},
                 {"workspace", point.workspace.count},
                 {"boundary", m.boundary.count},
                 {"library", m.library.count}});
}

}  // namespace detail

/// Adds the stages of a simulated plan as processes `first_process`, ...
inline void add_simulation(TraceWriter& out, const Plan& plan, const Simulation& simulation, int first_process = 0) {
  std::size_t slices = 0;
  for (std::size_t s = 0; s < simulation.spans.size(); ++s)
    for (const Span& span : simulation.spans[s])
      if (detail::thread_of(span.instruction.op) == TraceWriter::compute)
        slices += 2 * simulation.cost.stages[s].chunks[static_cast<std::size_t>(span.instruction.chunk)].size();
  const bool with_layers = slices <= most_layer_slices;
  if (!with_layers) out.tell("layers", "left out: there would be more than " + std::to_string(most_layer_slices));
  const bool chunks = plan.virtual_stages > 1;
  for (std::size_t s = 0; s < simulation.spans.size(); ++s) {
    const int process = first_process + static_cast<int>(s);
    const PlanStage& where = plan.stages[s];
    const std::vector<Span>& spans = simulation.spans[s];
    out.process(process, "stage " + std::to_string(s) + " simulated, ranks " + std::to_string(where.first_rank) + "-" +
                             std::to_string(where.first_rank + where.rank_count - 1));
    Seconds now;
    const auto wait = [&](const std::string& name, const char* category, Seconds until) {
      out.slice(process, TraceWriter::compute, name, category, now, until);
      now = until;
    };
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const Span& span = spans[i];
      for (const Repetition& repetition : simulation.repetitions)
        if (repetition.first[s] == i)
          wait(std::to_string(repetition.microbatches) + " micro-batches like those before, left out", "left out",
               now + repetition.lasted());
      wait(wait_text(span.instruction.op), "waiting", span.begin);
      now = span.end;
      detail::add_instruction(out, process, span, chunks);
      if (with_layers && detail::thread_of(span.instruction.op) == TraceWriter::compute &&
          span.instruction.op != schedule::Op::step)
        detail::add_layers(out, process, simulation.cost, s, span);
    }
    wait("wait for the last stage", "waiting", simulation.iteration);
    detail::add_memory(out, process, simulation.cost.stages[s], spans, simulation.repetitions, s);
  }
}

/// Adds a rank that was measured as process `process`.
/// @param spans  times count from the beginning of the step
/// @param stage  of the rank, for its memory; null: without
inline void add_measured(TraceWriter& out, int process, const std::string& name, std::span<const Span> spans,
                         const PlanStageCost* stage, bool chunks) {
  out.process(process, name);
  for (const Span& span : spans) detail::add_instruction(out, process, span, chunks);
  if (stage != nullptr) detail::add_memory(out, process, *stage, spans);
}

/// The trace of a simulated plan.
inline std::string trace_text(const Plan& plan, const Simulation& simulation) {
  TraceWriter out;
  out.tell("model", plan.model);
  out.tell("cluster", plan.cluster);
  add_simulation(out, plan, simulation);
  return out.text();
}

}  // namespace galvatron::simulate
