// The sections of a report that are text and tables.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/host.hpp>
#include <galvatron/plan.hpp>
#include <galvatron/simulate/memory.hpp>
#include <galvatron/simulate/simulation.hpp>
#include <galvatron/simulate/trace.hpp>

#include "../simulations.hpp"
#include "html.hpp"

namespace galvatron::simulate::report {

inline std::string seconds(Seconds s) { return s.value > 0 ? format_seconds(s) : "-"; }
inline std::string bytes(Bytes b) { return b.count > 0 ? format_bytes(b) : "-"; }

/// A figure, what it is, and beneath, if given, what was predicted for it.
inline std::string tile(const std::string& figure, const std::string& what, const std::string& beneath = {}) {
  return "<div class=\"tile\"><b>" + figure + "</b><span>" + what + "</span>" +
         (beneath.empty() ? "" : "<small>" + beneath + "</small>") + "</div>";
}

/// Key figures: those of a run above what was predicted for them, or what is predicted.
inline std::string tiles(const Simulated& s, const Measured* measured) {
  const Simulation& sim = s.simulation;
  const double speed = measured != nullptr ? sim.iteration / measured->iteration : 1;
  const auto beneath = [&](const std::string& predicted) {
    return measured != nullptr ? predicted + " predicted" : "";
  };
  std::string out;
  Bytes peak = s.peak();
  if (measured != nullptr) {
    out = tile(
        format_seconds(measured->iteration), "an iteration, the median of the run&#39;s steps",
        text_of(against_prediction(sim.iteration, measured->iteration), " (", format_seconds(sim.iteration), ", ",
                format_seconds(s.at(s.interval.low)), " to ", format_seconds(s.at(s.interval.high)), " with 90 %)"));
    peak = {};
    for (const Bytes bytes : measured->peaks) peak = max(peak, bytes);
  } else {
    out = tile(format_seconds(sim.iteration), "an iteration, simulated",
               text_of(format_seconds(s.at(s.interval.low)), " to ", format_seconds(s.at(s.interval.high)),
                       " with 90 %")) +
          tile(format_seconds(sim.cost.iteration), "by the planner&#39;s formula");
  }
  for (const auto& [rate, what] : {std::pair(s.tokens_per_second(), "tokens/s"), {s.samples_per_second(), "samples/s"}})
    out += tile(format_count(rate * speed), what, beneath(format_count(rate)));
  if (const double mfu = s.mfu() * speed; mfu > 0) {
    const std::string why = why_impossible_mfu(mfu);
    out += tile(percent(mfu), text_of("of the peak arithmetic (MFU)", why.empty() ? "" : ": ", why),
                beneath(percent(s.mfu())));
  }
  if (measured == nullptr) out += tile(percent(sim.bubble_fraction()), "of the stages&#39; time is waiting");
  return out + tile(format_bytes(peak),
                    text_of("peak of the fullest ", measured != nullptr ? "rank" : "device", ", of ",
                            format_bytes(s.budget())),
                    beneath(format_bytes(s.peak())));
}

/// Headline, key figures (those of the run, if there is one), and a warning when the plan does not fit.
inline std::string overview(const Simulated& s, const Measured* measured) {
  const Plan& plan = s.plan;
  std::string out =
      text_of("<h1>", measured != nullptr ? "A run of " : "", escaped(plan.model), " on ", escaped(plan.cluster),
              "</h1>\n<p class=\"lead\">", escaped(plan_words(plan)), " &middot; ", counted(plan.ranks(), "rank"),
              " in ", counted(std::ssize(plan.stages), "stage"),
              plan.virtual_stages > 1 ? text_of(" of ", plan.virtual_stages, " chunks") : "", " &middot; ",
              precision_text(plan), " &middot; ", batch_text(plan), " in ", plan.microbatches,
              plan.microbatches == 1 ? " micro-batch" : " micro-batches",
              plan.stages.size() > 1 ? text_of(" &middot; schedule ", name_of(plan.schedule)) : "", "</p>\n");
  if (!s.fits())
    out += "<div class=\"banner\"><span class=\"bad\">This plan does not fit.</span> Its fullest device needs " +
           format_bytes(s.peak()) + ", and the budget is " + format_bytes(s.budget()) + " (" +
           format_bytes(s.peak() - s.budget()) +
           " too much). The timeline shows how long it would take with memory enough.</div>\n";
  if (measured != nullptr && measured->others >= disturbing_share)
    out += "<div class=\"banner\"><span class=\"bad\">The machine was busy.</span> Other programs took " +
           percent(measured->others) + " of its cores while this run was measured.</div>\n";
  return out + "<div class=\"tiles\">" + tiles(s, measured) + "</div>\n";
}

/// Where the time goes on every stage.
/// @param predicted  what stands before the headline of what was predicted and not measured
inline std::string time_section(const Simulated& s, const std::string& predicted) {
  const Simulation& sim = s.simulation;
  std::string out = "<h2>" + predicted +
                    "Where the time goes</h2>\n<p>Seconds of one iteration on a rank of each stage. Communication "
                    "counts only while computation waits for it.</p>\n" +
                    legend(activity_colours());
  std::vector<std::pair<std::string, StageSeconds>> rows;
  Table table({"stage", "compute", "recompute", "in layers", "moves", "gradients", "optimizer", "waiting", "busy"});
  for (std::size_t i = 0; i < sim.stages.size(); ++i) {
    rows.emplace_back("stage " + std::to_string(i), sim.stages[i]);
    std::vector<std::string> cells{std::to_string(i)};
    for (const Seconds part : sim.stages[i].by_activity) cells.push_back(seconds(part));
    cells.push_back(percent(sim.stages[i].busy() / sim.iteration));
    table.row(cells);
  }
  return out + bars(rows, sim.iteration) + table.html();
}

/// How sure the prediction is: what each kind of figures adds to its interval.
inline std::string interval_section(const Simulated& s, const std::string& predicted) {
  const auto bounds = [&](double deviations) { return percent(std::exp(deviations) - 1); };
  const double width = std::log(s.interval.high / s.interval.low) / 2;
  const TermSpread& next = s.interval.narrows_most();
  Table table({"figures", "known from", "standard deviation of the iteration", "once measured"});
  for (const TermSpread& term : s.interval.terms)
    table.row({term.term == PriceTerm::trainer ? "the trainer" : escaped(name_of(term.term)),
               term.term == PriceTerm::trainer ? "assumed" : name_of(term.source), percent(term.relative),
               percent(term.measured)});
  return "<h2>" + predicted + "How sure this is</h2>\n<p>With 90 % an iteration takes " +
         format_seconds(s.at(s.interval.low)) + " to " + format_seconds(s.at(s.interval.high)) + ", " + bounds(width) +
         " more or less. What narrows this most, to " + bounds(std::log(s.interval.ratio_after(next)) / 2) + ", is " +
         escaped(what_to_measure(next.term)) + ".</p>\n" + table.html();
}

inline std::string critical_section(const CriticalPath& path, Seconds iteration, const std::string& predicted) {
  if (path.stage_seconds.size() < 2) return {};
  std::string stages;
  for (std::size_t i = 0; i < path.stage_seconds.size(); ++i)
    if (path.stage_seconds[i] / iteration >= 0.005)
      stages += text_of(stages.empty() ? "" : ", ", "stage ", i, " ", percent(path.stage_seconds[i] / iteration));
  return "<h2>" + predicted +
         "Critical path</h2>\n<p>The chain of instructions that makes the iteration as long as it is: what shortens "
         "none of them shortens nothing. It changes stages " +
         counted(static_cast<std::int64_t>(path.segments.size()) - 1, "time") + ". Its time: " + stages + ".</p>\n" +
         bars({{"the path", path.seconds}}, iteration);
}

inline std::string memory_section(const Simulated& s, const std::string& predicted) {
  const Simulation& sim = s.simulation;
  std::string out =
      "<h2>" + predicted +
      "Memory over time</h2>\n<p>Bytes in use on a rank of each stage over one iteration. The dotted line is what a "
      "rank reserves, the dashed one the budget of " +
      format_bytes(s.budget()) + " a device" +
      (s.budget() < s.group().device.memory ? " (it has " + format_bytes(s.group().device.memory) + ")" : "") +
      ".</p>\n" +
      legend({{"states, boundary, library", "kept"},
              {"stash of micro-batches in flight", "stash"},
              {"workspace of the running pass", "workspace"}}) +
      "<div class=\"charts\">\n";
  for (std::size_t i = 0; i < sim.spans.size(); ++i) {
    const PlanStageCost& stage = sim.cost.stages[i];
    const std::vector<MemoryPoint> points = memory_over_time(stage, sim.spans[i], sim.repetitions, i);
    const int in_flight = std::ranges::max(points, {}, &MemoryPoint::in_flight).in_flight;
    const Bytes total = stage.memory.total();
    out += text_of(
        "<div class=\"chart\"><h3>Stage ", i, ": ", format_bytes(total),
        total > s.budget()                ? " <span class=\"bad\">over the budget</span>"
        : shows_budget(stage, s.budget()) ? ""
                                          : ", the budget is far above",
        "</h3>", memory_chart(stage, points, sim.iteration, s.budget()), "<small>states ",
        format_bytes(stage.memory.states), ", stash ", format_bytes(stage.memory.stash), " (", in_flight,
        s.plan.virtual_stages > 1 ? " passes" : "", " in flight), workspace ", format_bytes(stage.memory.workspace),
        stage.memory.boundary.count > 0 ? ", boundary " + format_bytes(stage.memory.boundary) : "",
        stage.memory.library.count > 0 ? ", library " + format_bytes(stage.memory.library) : "", "</small></div>\n");
  }
  return out + "</div>\n";
}

/// The plan layer by layer; neighbours that are alike share a row.
inline std::string layer_section(const Simulated& s, const std::string& predicted) {
  Table table({"stage", "layers", "strategy", "forward", "backward", "of it recompute", "collectives", "moves",
               "states", "stash"},
              2);
  const PlanCost& cost = s.simulation.cost;
  const int blocks = static_cast<int>(s.plan.layers.size());
  const auto priced = [&](int layer) -> const PlanLayerCost& { return cost.layers[static_cast<std::size_t>(layer)]; };
  const auto alike = [&](int a, int b) { return a > 0 && b <= blocks && priced(a).looks_like(priced(b)); };
  const std::size_t stages = cost.stages.size();
  for (std::size_t v = 0; v < stages * static_cast<std::size_t>(s.plan.virtual_stages); ++v) {
    const auto stage = static_cast<std::size_t>(
        stage_of_virtual_stage(s.plan.schedule, static_cast<int>(stages), static_cast<int>(v)));
    const PlanChunkCost& chunk = cost.stages[stage].chunks[v / stages];
    for (int i = chunk.first; i < chunk.end;) {
      int last = i;
      while (last + 1 < chunk.end && alike(i, last + 1)) ++last;
      const PlanLayerCost& l = priced(i);
      const std::string name =
          last > i ? text_of("layers ", i - 1, "-", last - 1) : simulate::detail::layer_text(i, s.plan.layers.size());
      table.row({text_of(stage, s.plan.virtual_stages > 1 ? text_of(".", v / stages) : ""), name,
                 escaped(galvatron::detail::short_strategy(l.spec)), seconds(l.forward()), seconds(l.backward()),
                 seconds(l.recompute), seconds(l.seconds.forward_communication + l.seconds.backward_communication),
                 seconds(l.relayout()), bytes(l.states), bytes(l.stash)});
      i = last + 1;
    }
  }
  return "<h2>" + predicted +
         "The plan, layer by layer</h2>\n<p>Seconds and stash of one layer for one micro-batch of " +
         counted(s.plan.microbatch(), "sample") + ", bytes of one rank." +
         (s.plan.virtual_stages > 1 ? " Stage 1.2 is chunk 2 of stage 1." : "") + "</p>\n" + table.html();
}

/// Plans side by side; the first is the report's own.
inline std::string comparison(const std::vector<const Simulated*>& plans) {
  if (plans.size() < 2) return {};
  std::vector<std::string> heads{""};
  for (const Simulated* s : plans) heads.push_back(escaped(s->name));
  Table table(heads, plans.size(), "side");
  const auto row = [&](const std::string& name, auto&& cell) {
    std::vector<std::string> cells{name};
    for (const Simulated* s : plans) cells.push_back(cell(*s));
    table.row(cells);
  };
  const Seconds own = plans.front()->simulation.iteration;
  row("model", [](const Simulated& s) { return escaped(s.plan.model); });
  row("cluster", [](const Simulated& s) { return escaped(s.plan.cluster); });
  row("plan", [](const Simulated& s) { return escaped(plan_words(s.plan)); });
  row("schedule", [](const Simulated& s) { return std::string(name_of(s.plan.schedule)); });
  row("global batch", [](const Simulated& s) { return std::to_string(s.plan.global_batch); });
  row("iteration", [](const Simulated& s) { return format_seconds(s.simulation.iteration); });
  row("against the first", [&](const Simulated& s) {
    const double more = s.simulation.iteration / own - 1;
    return &s == plans.front() ? std::string("-") : (more > 0 ? "+" : "") + percent(more);
  });
  row("tokens/s", [](const Simulated& s) { return format_count(s.tokens_per_second()); });
  row("MFU", [](const Simulated& s) {
    const std::string why = why_impossible_mfu(s.mfu());
    return s.mfu() > 0 ? percent(s.mfu()) + (why.empty() ? "" : " (" + why + ")") : std::string("-");
  });
  row("waiting", [](const Simulated& s) { return percent(s.simulation.bubble_fraction()); });
  row("peak memory", [](const Simulated& s) { return format_bytes(s.peak()); });
  row("budget", [](const Simulated& s) {
    return format_bytes(s.budget()) + (s.fits() ? "" : " <span class=\"bad\">too small</span>");
  });
  std::vector<std::pair<std::string, StageSeconds>> rows;
  Seconds longest;
  for (const Simulated* s : plans) {
    StageSeconds mean;
    const double stages = static_cast<double>(s->simulation.stages.size());
    for (const StageSeconds& stage : s->simulation.stages)
      for (std::size_t a = 0; a < activities; ++a) mean.by_activity[a] += stage.by_activity[a] * (1 / stages);
    longest = max(longest, s->simulation.iteration);
    rows.emplace_back(s->name, mean);
  }
  return "<h2>Compared plans</h2>\n" + table.html() + "<p>An iteration of each, the mean of its stages:</p>\n" +
         legend(activity_colours()) + bars(rows, longest);
}

/// What was predicted beside what a run took, a row for the first rank of every stage.
inline std::string measurement(const Simulated& s, const Measured* measured) {
  if (measured == nullptr) return {};
  using schedule::Op;
  const auto sum = [](const std::vector<Span>& spans, std::span<const Repetition> repetitions, const auto& ops) {
    Seconds out;
    for_each_share(spans, repetitions, [&](const Span& span, Seconds lasted) {
      if (std::ranges::find(ops, span.instruction.op) != ops.end()) out += lasted;
    });
    return out;
  };
  Table table({"stage", "rank", "forwards", "measured", "backwards", "measured", "receives, waits", "measured",
               "gradients, step", "measured", "peak", "measured"});
  for (std::size_t i = 0; i < s.plan.stages.size(); ++i) {
    const auto rank = static_cast<std::size_t>(s.plan.stages[i].first_rank);
    if (rank >= measured->step.ranks.size()) continue;
    const std::vector<Span>& own = s.simulation.followed_spans()[i];
    const std::vector<Span>& real = measured->step.ranks[rank];
    std::vector<std::string> cells{std::to_string(i), std::to_string(rank)};
    const auto pair = [&](std::initializer_list<Op> ops, Seconds waits = {}) {
      cells.push_back(seconds(sum(own, s.simulation.repetitions, ops) + waits));
      cells.push_back(seconds(sum(real, {}, ops)));
    };
    pair({Op::forward});
    pair({Op::backward, Op::backward_input, Op::backward_weight});
    pair({Op::receive_activation, Op::receive_gradient}, s.simulation.stages[i][Activity::waiting]);
    pair({Op::reduce_gradients, Op::step});
    cells.push_back(bytes(s.simulation.cost.stages[i].memory.total()));
    cells.push_back(rank < measured->peaks.size() ? bytes(measured->peaks[rank]) : "-");
    table.row(cells);
  }
  const Seconds predicted = s.simulation.iteration;
  const auto against = [&](Seconds real) {
    const std::string words = against_prediction(predicted, real);
    return words.empty() ? "" : " (" + words + ")";
  };
  return text_of(
      "<h2>Predicted and measured</h2>\n<p>The run&#39;s median iteration took ", format_seconds(measured->iteration),
      against(measured->iteration), ", step ", measured->step.step + 1, ", which the timeline shows, ",
      format_seconds(measured->step.seconds), against(measured->step.seconds), "; ", format_seconds(predicted),
      " were predicted. A rank measures its waits as part of what it waits for: receives, passes whose buffer "
      "is still full, and the step.</p>\n",
      table.html());
}

/// Loads of the experts of each layer in the run's last step, over their mean: a square each, darker with more.
inline std::string loads_section(const Measured* measured) {
  if (measured == nullptr || measured->loads.empty()) return {};
  std::size_t most = 0;  // experts of a layer
  double highest = 1;
  for (const train::ExpertLoads& layer : measured->loads) {
    most = std::max(most, layer.choices.size());
    highest = std::max(highest, layer.imbalance());
  }
  const double side = std::clamp(900.0 / static_cast<double>(most), 3.0, 18.0);
  const double left = 110;
  const double right = 60;  // for the figure behind a row
  std::string squares;
  double y = 0;
  for (const train::ExpertLoads& layer : measured->loads) {
    const double height = std::max(side, 12.0);
    double sum = 0;
    for (const std::int64_t count : layer.choices) sum += static_cast<double>(count);
    squares += text_of("<text x=\"0\" y=\"", number(y + height - 2), "\">layer ", layer.layer, "</text>");
    for (std::size_t e = 0; e < layer.choices.size(); ++e) {
      const double load =
          sum > 0 ? static_cast<double>(layer.choices[e]) * static_cast<double>(layer.choices.size()) / sum : 0;
      squares +=
          text_of("<rect x=\"", number(left + side * static_cast<double>(e)), "\" y=\"", number(y), "\" width=\"",
                  number(side - 0.5), "\" height=\"", number(height - 1), "\" fill=\"currentColor\" fill-opacity=\"",
                  number(load / highest), "\"><title>layer ", layer.layer, ", expert ", e, ": ", layer.choices[e],
                  " choices, ", number(load), " times the mean</title></rect>");
    }
    squares += text_of("<text x=\"", number(left + side * static_cast<double>(layer.choices.size()) + 6), "\" y=\"",
                       number(y + height - 2), "\">", number(layer.imbalance()), "</text>");
    y += height;
  }
  const double width = left + side * static_cast<double>(most) + right;
  return text_of("<h2>Loads of experts</h2>\n<p>How often step ", measured->step.step + 1,
                 " chose each expert of a layer, dropped choices included: the darkest square is ", number(highest),
                 " times the mean of its layer. Behind a row is its largest load over the mean.</p>\n<div "
                 "class=\"scroll\"><svg role=\"img\" aria-label=\"Loads of experts\" font-size=\"11\" width=\"",
                 number(width), "\" height=\"", number(y), "\"><g fill=\"currentColor\">", squares,
                 "</g></svg></div>\n");
}

/// What compressed dispatch did in the run's last step.
inline std::string dispatch_section(const Measured* measured) {
  if (measured == nullptr) return {};
  const train::DispatchSums all = train::total(measured->dispatch);
  if (!all.is_compressed()) return {};
  Table table({"Layer", "Rows sent", "Error", "Hashing", "To experts and back"});
  const auto row = [&table](const std::string& name, const train::DispatchSums& sums) {
    const bool is = sums.is_compressed();
    table.row({name, is ? percent(sums.rate()) : "all", is ? percent(sums.error()) : "-",
               is ? seconds(Seconds{sums.hashing_seconds}) : "-", bytes(Bytes{static_cast<std::int64_t>(sums.bytes)})});
  };
  for (const train::LayerDispatch& layer : measured->dispatch) row(text_of(layer.layer), layer.sums);
  row("all", all);
  return text_of(
      "<h2>Compressed dispatch</h2>\n<p>Tokens that hash alike go to experts as their mean. In step ",
      measured->step.step + 1,
      ": the means that were sent over the choices of tokens, the distances of tokens from their means (the "
      "root of the sum of squares over that of the tokens), a rank&#39;s time for hashing, and the bytes that "
      "all ranks sent to others.</p>\n",
      table.html());
}

}  // namespace galvatron::simulate::report
