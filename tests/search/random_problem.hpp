// Random small search problems and their solution by brute force.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include <galvatron/schedule/in_flight.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/strategy/schedule_kind.hpp>

namespace galvatron::search::testing {

struct Shape {
  int most_stages = 3;
  int most_layers = 6;  ///< beside the ends
  int most_choices = 3;
  bool further_terms = true;  ///< a shared link, and a price of every kind
};

inline Problem random_problem(std::mt19937& random, const Shape& shape = {}) {
  const auto upto = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  Problem p;
  p.leading = upto(1);
  p.trailing = upto(1);
  p.layouts = 1 + upto(2);
  int movable = 1 + upto(shape.most_layers - 1);
  p.objective.stages = 1 + upto(std::min(movable, shape.most_stages) - 1);
  p.objective.microbatches = 1 + upto(5);
  const int stages = p.objective.stages;
  const ScheduleKind kind = schedule_kinds[static_cast<std::size_t>(upto(3))];
  if (kind == ScheduleKind::interleaved && stages > 1 && 2 * stages <= shape.most_layers) {
    p.chunks = 2;
    movable = 2 * stages + upto(shape.most_layers - 2 * stages);
    p.objective.microbatches = stages * (1 + upto(2));
  }
  p.objective.weights = cost::pipeline_weights(kind, stages, p.objective.microbatches, p.chunks);
  if (cost::is_followed_on_shared_cores(kind)) {
    p.objective.shared = upto(3) == 0;
    p.objective.alone = p.objective.shared ? 1.0 / (1 + upto(stages - 1)) : 1.0;
  }
  // Small integers make ties, larger ones make rich Pareto sets.
  const int scale = upto(1) == 0 ? 4 : 60;
  const auto by_layout = [&](int most) {
    std::vector<std::int64_t> out;
    for (int i = 0; i < p.layouts; ++i) out.push_back(upto(most));
    return out;
  };
  const int types = 1 + upto(1);
  const auto make_type = [&] {
    LayerType type;
    const auto input = by_layout(scale);
    const auto activation = by_layout(scale);
    const auto pass_through = by_layout(upto(1) * scale / 4);
    const int choices = 1 + upto(shape.most_choices - 1);
    for (int i = 0; i < choices; ++i) {
      Choice c;
      c.forward = upto(scale);
      c.backward = upto(scale);
      c.weights = std::min(c.forward, c.backward / 2) * upto(2) / 2;
      c.synchronise = upto(scale);
      c.update = upto(scale);
      c.states = upto(scale);
      c.stash = upto(scale);
      if (splits_backward(kind)) c.deferred = upto(scale);
      c.forward_workspace = upto(1) * upto(2 * scale);
      c.backward_workspace = upto(2 * scale);
      c.layout = upto(p.layouts - 1);
      const auto layout = static_cast<std::size_t>(c.layout);
      c.input = input[layout];
      c.activation = activation[layout];
      c.pass_through = pass_through[layout];
      c.tag = i;
      type.push_back(c);
    }
    return type;
  };
  for (int i = 0; i < types; ++i) p.types.push_back(make_type());
  if (p.leading > 0) {
    p.layers.push_back(static_cast<int>(p.types.size()));
    p.types.push_back(make_type());
  }
  for (int i = 0; i < movable; ++i) p.layers.push_back(upto(types - 1));
  if (p.trailing > 0) {
    p.layers.push_back(static_cast<int>(p.types.size()));
    p.types.push_back(make_type());
  }
  p.tied = p.leading > 0 && p.trailing > 0 && upto(2) == 0;
  for (int stage = 0; stage < stages; ++stage)
    for (int chunk = 0; chunk < p.chunks; ++chunk)
      p.slots.push_back({microbatches_in_flight(kind, stages, stage, p.objective.microbatches, p.chunks, chunk),
                         microbatches_deferred(kind, stage, p.objective.microbatches)});
  if (p.chunks > 1) {
    if (p.leading > 0) p.in_chunk.push_back(0);
    for (int stage = 0; stage < stages; ++stage) {
      p.cuts.push_back(stage == 0 ? 0 : static_cast<int>(p.in_chunk.size()));
      for (int chunk = 0; chunk < p.chunks; ++chunk) {
        const auto first = [&](int index) { return first_layer_of_virtual_stage(movable, stages * p.chunks, index); };
        const int index = chunk * stages + stage;
        for (int i = first(index); i < first(index + 1); ++i) p.in_chunk.push_back(chunk);
      }
    }
    if (p.trailing > 0) p.in_chunk.push_back(p.chunks - 1);
    p.cuts.push_back(p.count());
  }
  for (std::size_t type = 0; type < p.types.size(); ++type) {
    Moves moves;
    for (int i = 0; i < p.layouts; ++i)
      for (int j = 0; j < p.layouts; ++j) moves.relayout.push_back(i == j ? 0 : upto(scale / 4));
    for (int i = 0; i < p.layouts; ++i) moves.input.push_back(upto(scale / 4));
    for (int i = 0; i < p.layouts; ++i) moves.output.push_back(upto(scale / 4));
    p.moves.push_back(std::move(moves));
  }
  p.fixed = upto(scale);
  p.budget = upto(scale * p.count() * 4);
  if (!shape.further_terms) return p;
  p.objective.has_link = upto(3) == 0;
  p.objective.kind_seconds = upto(3) == 0 ? upto(2 * scale) : 0;
  for (LayerType& type : p.types)
    for (Choice& c : type) {
      c.kind = std::uint64_t{1} << c.tag;
      if (p.objective.has_link) c.link = upto(scale);
    }
  return p;
}

/// The problem with up to three kinds of devices, whose choices differ in figures and number, and stages on any of
/// them.
inline Problem on_unequal_devices(Problem p, std::mt19937& random) {
  const auto upto = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  const int kinds = 1 + upto(2);
  std::vector<Problem> all;
  for (int kind = 0; kind < kinds; ++kind) {
    Problem& own = all.emplace_back(p);
    own.fixed += upto(10);
    for (LayerType& type : own.types) {
      while (type.size() > 1 && upto(3) == 0) type.erase(type.begin() + upto(static_cast<int>(type.size()) - 1));
      for (Choice& c : type) {
        for (double* seconds : {&c.forward, &c.backward, &c.synchronise, &c.update}) *seconds += upto(40);
        for (std::int64_t* bytes : {&c.states, &c.stash, &c.forward_workspace, &c.backward_workspace})
          *bytes += upto(20);
      }
    }
    own.across_after = upto(p.stages() - 1) - 1;  // not the last stage, or none
    own.across_before = upto(p.stages() - 1);     // not the first
    if (own.across_before == 0) own.across_before = -1;
    for (Moves& moves : own.moves) {
      moves.input_across = moves.input;
      moves.output_across = moves.output;
      for (auto* border : {&moves.input, &moves.output, &moves.input_across, &moves.output_across})
        for (double& seconds : *border) seconds += upto(30);
    }
  }
  for (int stage = 0; stage < p.stages(); ++stage) p.devices_of.push_back(upto(kinds - 1));
  p.on_devices = std::move(all);
  p.types.clear();
  p.moves.clear();
  return p;
}

/// One that fits, if a few throws find one: equal stages but for one layer, any choices, of one tag at tied ends.
inline std::optional<Assignment> random_assignment(const Problem& p, std::mt19937& random) {
  const auto upto = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  for (int attempt = 0; attempt < 20; ++attempt) {
    Assignment out{p.cuts.empty() ? even_cuts(p) : p.cuts, {}};
    if (p.cuts.empty() && p.stages() > 1) {
      const auto moved = 1 + static_cast<std::size_t>(upto(p.stages() - 2));
      const int place = out.first[moved] + upto(2) - 1;
      const int least = out.first[moved - 1] + 1 + (moved == 1 ? p.leading : 0);
      const int most = out.first[moved + 1] - 1 - (moved + 1 == out.first.size() - 1 ? p.trailing : 0);
      if (place >= least && place <= most) out.first[moved] = place;
    }
    for (int layer = 0; layer < p.count(); ++layer)
      out.choice.push_back(upto(
          static_cast<int>(p.types[static_cast<std::size_t>(p.layers[static_cast<std::size_t>(layer)])].size()) - 1));
    if (p.tied && p.choice(0, out.choice.front()).tag != p.choice(p.count() - 1, out.choice.back()).tag) continue;
    if (evaluate(p, out).peak <= p.budget) return out;
  }
  return std::nullopt;
}

/// Calls `visit` with every assignment.
inline void for_every_assignment(const Problem& p, const std::function<void(const Assignment&)>& visit) {
  Assignment plan;
  plan.choice.assign(static_cast<std::size_t>(p.count()), 0);
  const std::function<void(int)> choose = [&](int layer) {
    if (layer == p.count()) {
      const Problem& last = p.on(p.stages() - 1);
      if (p.tied && p.on(0).choice(0, plan.choice.front()).tag != last.choice(p.count() - 1, plan.choice.back()).tag)
        return;
      visit(plan);
      return;
    }
    int stage = 0;
    while (nth(plan.first, stage + 1) <= layer) ++stage;
    const LayerType& type = p.on(stage).type_of(layer);
    for (std::size_t i = 0; i < type.size(); ++i) {
      plan.choice[static_cast<std::size_t>(layer)] = static_cast<int>(i);
      choose(layer + 1);
    }
  };
  const std::function<void(int)> cut = [&](int stage) {
    if (stage == p.stages()) {
      plan.first.push_back(p.count());
      choose(0);
      plan.first.pop_back();
      return;
    }
    const int after = plan.first.back() + (stage == 1 ? p.leading : 0);
    for (int first = after + 1; first <= p.count() - p.trailing - (p.stages() - stage); ++first) {
      plan.first.push_back(first);
      cut(stage + 1);
      plan.first.pop_back();
    }
  };
  if (!p.cuts.empty()) {
    plan.first = p.cuts;
    choose(0);
    return;
  }
  plan.first.push_back(0);
  cut(1);
}

struct BruteForce {
  double seconds = std::numeric_limits<double>::infinity();      ///< within the budget
  std::int64_t peak = std::numeric_limits<std::int64_t>::max();  ///< of any
};

inline BruteForce brute_force(const Problem& p) {
  BruteForce out;
  for_every_assignment(p, [&](const Assignment& plan) {
    const Evaluation e = evaluate(p, plan);
    out.peak = std::min(out.peak, e.peak);
    if (e.peak <= p.budget) out.seconds = std::min(out.seconds, e.seconds);
  });
  return out;
}

}  // namespace galvatron::search::testing
