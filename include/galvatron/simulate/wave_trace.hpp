// Traces of steps of several tasks, as those of simulate/trace.hpp: a process for every rank, simulated or measured, on
// one thread the parts and on the other what moves to them, the reduction of gradients and the update.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/plan/task_plan.hpp>
#include <galvatron/plan/task_program.hpp>
#include <galvatron/simulate/explain_waves.hpp>
#include <galvatron/simulate/trace.hpp>
#include <galvatron/simulate/wave_simulation.hpp>

namespace galvatron::simulate {

/// `vision of text-vision, layers 0-2, forward`.
inline std::string span_text(const train::TaskPlan& plan, const TaskInstruction& instruction) {
  if (instruction.part < 0) return instruction.op == TaskInstruction::Op::reduce ? "gradients" : "update";
  const train::PartPlan& part = plan.part(instruction.part);
  return text_of(plan.model.component(component_of(plan, part)).name, " of ", plan.model.task(part.where.task).name,
                 ", layers ", part.where.first, "-", part.where.last, ", ", name_of(instruction.op),
                 part.microbatches > 1 ? text_of(", micro-batch ", instruction.microbatch) : "");
}

/// Adds what a rank did as process `process`.
inline void add_rank(TraceWriter& out, int process, const std::string& name, const train::TaskPlan& plan,
                     std::span<const TaskSpan> spans) {
  out.process(process, name);
  for (const TaskSpan& span : spans) {
    const std::string text = span_text(plan, span.instruction);
    const bool computes = span.instruction.op != TaskInstruction::Op::reduce;
    if (span.instruction.part >= 0)
      out.slice(process, TraceWriter::communication, "inputs of " + text, "move", span.begin, span.moved);
    out.slice(process, computes ? TraceWriter::compute : TraceWriter::communication, text, name_of(span.instruction.op),
              span.moved, span.end);
  }
}

/// What each rank does in a simulated step.
inline std::vector<std::vector<TaskSpan>> spans_of_ranks(const train::TaskPlan& plan,
                                                         const WaveSimulation& simulation) {
  std::vector<std::vector<TaskSpan>> out(static_cast<std::size_t>(plan.ranks));
  for (const TaskSpan& event : simulation.events)
    for (const int rank : plan.part(event.instruction.part).where.ranks)
      out[static_cast<std::size_t>(rank)].push_back(event);
  const Seconds reduced = simulation.passes + simulation.reduction;
  for (auto& spans : out) {
    spans.push_back({{TaskInstruction::Op::reduce, -1}, simulation.passes, simulation.passes, reduced});
    spans.push_back({{TaskInstruction::Op::update, -1}, reduced, reduced, simulation.step});
  }
  return out;
}

/// Adds the ranks of a simulated step as processes `first_process`, ...
inline void add_waves(TraceWriter& out, const train::TaskPlan& plan, const WaveSimulation& simulation,
                      int first_process = 0) {
  const auto spans = spans_of_ranks(plan, simulation);
  for (std::size_t rank = 0; rank < spans.size(); ++rank)
    add_rank(out, first_process + static_cast<int>(rank), text_of("rank ", rank, " simulated"), plan, spans[rank]);
}

}  // namespace galvatron::simulate
