// Plans of waves in words: when each rank works on which component, and which component limits the step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/plan/task_plan.hpp>
#include <galvatron/plan/task_program.hpp>
#include <galvatron/simulate/wave_simulation.hpp>

namespace galvatron::simulate {

/// Forward and backward seconds of each part, transfers left out, in the order of the waves.
inline std::vector<Seconds> part_seconds(const train::TaskPlan& plan, const WaveSimulation& simulation) {
  std::vector<Seconds> out(plan.parts.size());
  for (const TaskSpan& event : simulation.events)
    out[static_cast<std::size_t>(event.instruction.part)] += event.end - event.moved;
  return out;
}

/// Of each wave: its longest part.
inline std::vector<Seconds> wave_seconds(const train::TaskPlan& plan, const WaveSimulation& simulation) {
  const std::vector<Seconds> parts = part_seconds(plan, simulation);
  std::vector<Seconds> out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto wave = static_cast<std::size_t>(plan.parts[i].wave);
    if (out.size() <= wave) out.resize(wave + 1);
    out[wave] = max(out[wave], parts[i]);
  }
  return out;
}

/// The component of a part.
inline int component_of(const train::TaskPlan& plan, const train::PartPlan& part) {
  int c = 0;
  while (plan.model.first_layer(c + 1) <= part.number) ++c;
  return c;
}

/// What charts tell apart: components, or the tasks of a model of one component, as several pipelines have it.
inline bool charts_tasks(const MultiTaskModel& model) { return model.components.size() == 1; }
inline std::size_t charted(const MultiTaskModel& model) {
  return charts_tasks(model) ? model.tasks.size() : model.components.size();
}
inline const std::string& charted_name(const MultiTaskModel& model, std::size_t number) {
  return charts_tasks(model) ? model.tasks[number].name : model.components[number].name;
}
inline std::size_t charted_as(const train::TaskPlan& plan, const train::PartPlan& part) {
  return static_cast<std::size_t>(charts_tasks(plan.model) ? part.where.task : component_of(plan, part));
}

/// What a component takes of a step, or of a model of one component a task.
struct ComponentShare {
  double longest = 0;  ///< of the seconds of all waves: those in which one of its parts is the longest
  double devices = 0;  ///< of all devices' time
};
inline std::vector<ComponentShare> component_shares(const train::TaskPlan& plan, const WaveSimulation& simulation) {
  std::vector<ComponentShare> out(charted(plan.model));
  const std::vector<Seconds> parts = part_seconds(plan, simulation);
  const std::vector<Seconds> waves = wave_seconds(plan, simulation);
  double all = 0;
  for (const Seconds wave : waves) all += wave.value;
  std::vector<char> told(waves.size(), 0);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const train::PartPlan& part = plan.parts[i];
    const auto wave = static_cast<std::size_t>(part.wave);
    ComponentShare& share = out[charted_as(plan, part)];
    share.devices += parts[i].value * static_cast<double>(part.where.ranks.size()) /
                     (simulation.step.value * static_cast<double>(plan.ranks));
    if (parts[i] == waves[wave] && told[wave]++ == 0) share.longest += parts[i].value / all;
  }
  return out;
}

/// A Gantt chart of characters: devices x time, a letter for each component, or task of a model of one, a dot where a
/// rank waits, an equals sign while gradients are reduced and parameters updated. Ranks with equal lines share one.
/// @param columns  characters of the step
inline std::string wave_chart(const train::TaskPlan& plan, const WaveSimulation& simulation, int columns = 72) {
  const auto letter = [](std::size_t number) {
    const auto i = static_cast<int>(number % 52);
    return static_cast<char>((i < 26 ? 'A' : 'a' - 26) + i);
  };
  const double width = simulation.step.value / columns;
  std::vector<std::string> lines(static_cast<std::size_t>(plan.ranks));
  for (std::string& line : lines)
    for (int i = 0; i < columns; ++i) line += (i + 0.5) * width < simulation.passes.value ? '.' : '=';
  for (const TaskSpan& event : simulation.events) {
    const train::PartPlan& part = plan.part(event.instruction.part);
    for (int i = 0; i < columns; ++i)
      if (const double middle = (i + 0.5) * width; middle >= event.begin.value && middle < event.end.value)
        for (const int rank : part.where.ranks)
          lines[static_cast<std::size_t>(rank)][static_cast<std::size_t>(i)] = letter(charted_as(plan, part));
  }
  std::string out;
  for (std::size_t first = 0, last = 0; first < lines.size(); first = last + 1) {
    last = first;
    while (last + 1 < lines.size() && lines[last + 1] == lines[first]) ++last;
    std::string name = first == last ? text_of("rank ", first) : text_of("ranks ", first, "-", last);
    name.resize(std::max<std::size_t>(name.size() + 1, 14), ' ');
    out += "  " + name + lines[first] + "\n";
  }
  for (std::size_t c = 0; c < charted(plan.model); ++c)
    out += text_of(c == 0 ? "  " : ", ", std::string(1, letter(c)), " ", charted_name(plan.model, c));
  return out + "; = gradients and update, . waiting\n";
}

}  // namespace galvatron::simulate
