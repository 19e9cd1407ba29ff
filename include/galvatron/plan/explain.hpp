// Explain: a plan in words and a table, for people.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/sharding.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/wrapped.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/plan/interval.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/plan/stage_plan.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// The lines of explain() are no longer than this.
inline constexpr std::size_t explain_columns = 80;

namespace detail {

inline std::string wrapped(const std::string& text, std::size_t indent) {
  return galvatron::wrapped(text, explain_columns, indent) + "\n";
}

/// `tp4+sp dp64 zero1 recomp`
inline std::string short_strategy(const StrategySpec& spec) {
  std::string out;
  const auto add = [&out](const std::string& part) { out += (out.empty() ? "" : " ") + part; };
  if (spec.tensor > 1)
    add("tp" + std::to_string(spec.tensor) + (spec.cuts_over_tensor() ? "+sp" : "") + (spec.strided ? " strided" : ""));
  if (spec.context > 1) add("cp" + std::to_string(spec.context) + (spec.uses_ring() ? " ring" : " ulysses"));
  if (spec.data > 1) add("dp" + std::to_string(spec.data));
  if (spec.zero > 0) add("zero" + std::to_string(spec.zero));
  if (spec.expert > 1) add("ep" + std::to_string(spec.expert));
  if (spec.expert_tensor > 0) add("etp" + std::to_string(spec.expert_tensor));
  if (spec.expert_nodes > 1) add("n" + std::to_string(spec.expert_nodes));
  if (spec.dispatch != DispatchKind::plain) add(name_of(spec.dispatch));
  if (spec.shard_kind != ShardKind::even) add(name_of(spec.shard_kind));
  if (spec.recompute != RecomputeKind::cheap) add(std::string("recompute-") + name_of(spec.recompute));
  return out.empty() ? "one rank" : out;
}

/// Layers and strategy on the left, figures on the right.
inline std::string row(std::vector<std::string> cells) {
  cells[0].resize(8, ' ');
  cells[1].resize(27, ' ');
  std::string out = cells[0] + cells[1];
  for (std::size_t i = 2; i < cells.size(); ++i)
    out += std::string(std::max<std::size_t>(9, cells[i].size() + 1) - cells[i].size(), ' ') + cells[i].substr(0, 8);
  return out + "\n";
}

inline std::string percent(double share) { return formatted(share < 0.0995 ? "%.1f %%" : "%.0f %%", 100 * share); }

/// What `other` does worse than `best`, largest part first: "communication +12 ms, idle +3 ms".
inline std::string lost_by(const PredictedAlternative& other, const PlanCost& best) {
  std::vector<std::pair<double, std::string>> parts;
  const auto part = [&](const char* name, Seconds theirs, Seconds ours) {
    const double more = theirs.value - ours.value;
    if (std::fabs(more) < 0.002 * best.iteration.value) return;
    parts.emplace_back(more, std::string(name) + (more > 0 ? " +" : " -") + format_seconds({std::fabs(more)}));
  };
  part("compute", other.compute, best.compute);
  part("communication", other.communication, best.communication);
  part("waiting for other stages", other.idle, best.idle);
  part("gradients and optimizer", other.update, best.update);
  std::sort(parts.rbegin(), parts.rend());
  return joined(parts, ", ", &std::pair<double, std::string>::second);
}

inline std::string table(const Plan& plan, const PlanCost& cost, const ClusterView& cluster) {
  std::string out = row({"layers", "strategy", "forward", "backward", "comm", "states", "stash"});
  out += std::string(explain_columns, '-') + "\n";
  std::size_t at = 0;  // in cost.layers
  for (std::size_t i = 0; i < cost.stages.size(); ++i) {
    const PlanStageCost& stage = cost.stages[i];
    const auto print = [&](const std::string& name, const PlanLayerCost& layer) {
      out += row({name, short_strategy(layer.spec), format_seconds(layer.forward()), format_seconds(layer.backward()),
                  format_seconds(layer.communication()), format_bytes(layer.states), format_bytes(layer.stash)});
    };
    if (i == 0) print("embed", cost.layers[at++]);
    for (int layer = stage.stage.first_layer; layer <= stage.stage.last_layer;) {
      int last = layer;
      while (last < stage.stage.last_layer &&
             cost.layers[at].looks_like(cost.layers[at + static_cast<std::size_t>(last + 1 - layer)]))
        ++last;
      print(std::to_string(layer) + (last > layer ? "-" + std::to_string(last) : ""), cost.layers[at]);
      at += static_cast<std::size_t>(last + 1 - layer);
      layer = last + 1;
    }
    if (i + 1 == cost.stages.size()) print("head", cost.layers[at++]);
    const int first = stage.stage.first_rank;
    const int end = first + stage.stage.rank_count - 1;
    out += wrapped("stage " + std::to_string(i) + ", rank" + (end > first ? "s " : " ") + std::to_string(first) +
                       (end > first ? "-" + std::to_string(end) : "") +
                       (cluster.is_mixed() ? " on " + devices_text(stage.stage, cluster) : "") + ": forward " +
                       format_seconds(stage.seconds.forward) + ", backward " + format_seconds(stage.seconds.backward) +
                       " a micro-batch, update " + format_seconds(stage.seconds.synchronise + stage.seconds.update) +
                       "; peak " + format_bytes(stage.peak()) + " = states " + format_bytes(stage.memory.states) +
                       " + stash " + format_bytes(stage.memory.stash) + " (" + std::to_string(stage.slots) +
                       " in flight) + workspace " + format_bytes(stage.memory.workspace) +
                       (stage.memory.boundary.count > 0 ? " + boundary " + format_bytes(stage.memory.boundary) : "") +
                       (stage.memory.library.count > 0 ? " + library " + format_bytes(stage.memory.library) : ""),
                   2);
    out += std::string(explain_columns, '-') + "\n";
  }
  out += wrapped("Times and stash of a layer are those of one micro-batch of " + std::to_string(plan.microbatch()) +
                     " samples on one rank; comm is the part of forward and backward spent in communication.",
                 0);
  return out;
}

/// What the tensor and context ranks of a stage's first layer have of what they share by ratio: "key/value heads 2, 2,
/// 4; tokens of a sequence 96, 32".
inline std::string rank_shares(const PlanStage& stage, const StrategySpec& spec, const LayerSpec& block,
                               const ModelSpec& model, std::int64_t sequence) {
  std::string out;
  if (spec.shard_kind == ShardKind::even) return out;
  const auto add = [&](const std::vector<int>& list, const char* of, const auto& count,
                       RankModes ranks = RankMode::tp) {
    const RankLayout layout = spec.rank_layout();
    if (list.empty() || layout.size(ranks) == 1) return;
    std::vector<std::int64_t> counts;
    for (int rank = 0; rank < layout.size(ranks); ++rank)
      counts.push_back(count(RankShares(spec, stage.ratios(), layout.offset(ranks, rank))));
    out += (out.empty() ? "" : "; ") + std::string(of) + " " + joined(counts, ", ");
  };
  add(stage.head_ratios, "key/value heads", [&](const RankShares& s) { return s.heads().count(block.kv_heads); });
  add(stage.width_ratios, "hidden units", [&](const RankShares& s) { return s.widths().count(block.ffn); });
  add(stage.vocabulary_ratios, "tokens of the vocabulary",
      [&](const RankShares& s) { return s.vocabulary(model.head.vocabulary).count(); });
  const RankModes both = RankMode::tp | RankMode::cp;
  if (spec.exchanges_heads())
    add(
        stage.head_ratios, "key/value heads within attention",
        [&](const RankShares& s) { return s.core_heads().count(s.heads().count(block.kv_heads)); }, both);
  add(
      stage.token_ratios, "tokens of a sequence", [&](const RankShares& s) { return s.tokens().count(sequence); },
      spec.cuts_over_tensor() ? both : RankModes(RankMode::cp));
  return out;
}

/// How many samples of a micro-batch, how much of ZeRO's states, and how much of what tensor ranks share the ranks of
/// stages with ratios have.
inline std::string uneven_shards(const Plan& plan, const ModelSpec& model, const ClusterView& cluster) {
  std::string out;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const PlanStage& stage = plan.stages[i];
    if (!stage.has_ratios()) continue;
    const StrategySpec& spec = plan.layers[static_cast<std::size_t>(stage.first_layer)];
    const ActivationLayout layout =
        activation_layout(spec, stage.first_rank, plan.microbatch(), plan.sequence_length, stage.ratios());
    const Sharding samples = layout.samples();
    double states = 0;
    for (const int ratio : stage.state_ratios) states += ratio;
    std::map<int, std::pair<std::set<std::int64_t>, double>> groups;  // samples of data ranks, and shares of states
    for (int rank = 0; rank < stage.rank_count; ++rank) {
      auto& [own, share] = groups[stage.group_of(rank)];
      own.insert(samples.count(layout.place(stage.first_rank + rank).data));
      share += stage.state_ratios.empty() ? 1.0 / stage.rank_count
                                          : stage.state_ratios[static_cast<std::size_t>(rank)] / states;
    }
    out +=
        wrapped("stage " + std::to_string(i) + ": of " + std::to_string(plan.microbatch()) +
                    " samples of a micro-batch, a data rank has " +
                    joined(groups, "; ",
                           [&](const auto& group) {
                             const auto& [own, share] = group.second;
                             const std::string least = std::to_string(*own.begin());
                             return (own.size() > 1 ? least + " to " + std::to_string(*own.rbegin()) : least) +
                                    (cluster.is_mixed() ? " on " + cluster.group_name(group.first) : "") +
                                    (stage.state_ratios.empty() ? "" : ", with " + percent(share) + " of the states");
                           }),
                2);
    const std::string shares = rank_shares(stage, spec, model.blocks[static_cast<std::size_t>(stage.first_layer)],
                                           model, plan.sequence_length);
    if (!shares.empty()) out += wrapped("stage " + std::to_string(i) + ": ranks have " + shares, 2);
  }
  return out;
}

/// The groups of a mixed cluster that the plan leaves idle, and why, as far as the plan says.
inline std::string idle_groups(const Plan& plan, const ClusterView& cluster) {
  std::string out;
  for (int group = 0; group < cluster.count(); ++group) {
    if (plan.ranks_on(group) > 0) continue;
    const auto& all = plan.predicted.alternatives;
    const auto with = std::ranges::find(all, search::best_with(cluster, group), &PredictedAlternative::name);
    const std::string why = with == all.end() ? "."
                            : !with->exists   ? ": no strategy spreads the model over it."
                            : !with->fits     ? ": it has too little memory for any stage of this model."
                                              : ": with it no plan is faster.";
    std::string name = cluster.group_name(group);
    name.front() = 'G';
    out += wrapped(text_of(name, " is left idle", why), 0);
  }
  return out;
}

/// Layers that follow each other, with experts of equal numbers under equal degrees.
struct ExpertRun {
  int first;
  int last;
  const LayerSpec* layer;
  StrategySpec spec;
};
inline std::vector<ExpertRun> expert_runs(const Plan& plan, const ModelSpec& model) {
  std::vector<ExpertRun> out;
  for (int i = 0; i < static_cast<int>(plan.layers.size()); ++i) {
    const LayerSpec& layer = model.blocks[static_cast<std::size_t>(i)];
    const StrategySpec& spec = plan.layers[static_cast<std::size_t>(i)];
    if (layer.experts == 0) continue;
    if (!out.empty()) {
      ExpertRun& run = out.back();
      if (run.last + 1 == i && run.layer->experts == layer.experts &&
          run.layer->active_experts == layer.active_experts && run.spec.expert == spec.expert &&
          run.spec.etp() == spec.etp() && run.spec.dispatch == spec.dispatch &&
          run.spec.expert_nodes == spec.expert_nodes && run.spec.exchanges_tokens() == spec.exchanges_tokens()) {
        run.last = i;
        continue;
      }
    }
    out.push_back({i, i, &layer, spec});
  }
  return out;
}
inline std::string experts_text(const ExpertRun& run) {
  const StrategySpec& spec = run.spec;
  const std::string layers =
      run.first == run.last ? text_of("layer ", run.first) : text_of("layers ", run.first, "-", run.last);
  const std::string cut = spec.etp() > 1 ? text_of(", each cut over ", spec.etp(), " ranks") : ", each whole";
  const std::string way =
      spec.compresses_tokens() ? "; tokens that hash alike go there as their mean (lsh)"
      : spec.relays_tokens()
          ? text_of("; they lie in ", spec.expert_nodes, " nodes, and a token goes once to each that has some of its, ",
                    formatted("%.2g", program::nodes_of_token(*run.layer, spec.expert_nodes)), " in the mean")
      : spec.exchanges_tokens() ? ""
                                : ", and no tokens are exchanged";
  return text_of(layers, ": ", run.layer->experts, " experts, ", run.layer->active_experts, " for a token; ",
                 spec.expert == 1
                     ? "every rank has all"
                     : text_of("ep", spec.expert, ", so that a rank has ", run.layer->experts / spec.expert),
                 cut, way);
}

/// What experts cost: where they lie, the messages of their tokens, and what the stated imbalance adds.
inline std::string experts(const Plan& plan, const ModelSpec& model, const PlanCost& cost, const ClusterView& cluster) {
  const std::vector<ExpertRun> runs = expert_runs(plan, model);
  if (runs.empty()) return {};
  std::string out = "\nExperts\n";
  for (const ExpertRun& run : runs) out += wrapped("- " + experts_text(run) + ".", 2);
  if (std::ranges::none_of(runs, [](const ExpertRun& run) { return run.spec.exchanges_tokens(); })) return out;
  const cost::Batch batch = batch_of(plan);
  Seconds most;  // of a stage
  for (const PlanStage& stage : plan.stages) {
    Seconds messages;
    Seconds once;  // of the layer before
    for (int i = stage.first_layer; i <= stage.last_layer; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const bool again = i > stage.first_layer && plan.layers[at] == plan.layers[at - 1] &&
                         model.blocks[at].costs_like(model.blocks[at - 1]);
      if (!again)
        once = cost::time_of(cost::expert_messages(model.blocks[at], plan.layers[at], batch), plan.precision,
                             cluster.group(stage.group),
                             cost::busy_ranks(cluster.group(stage.group), plan.ranks_on(stage.group)));
      messages += once;
    }
    most = max(most, messages * static_cast<double>(plan.microbatches));
  }
  out += wrapped("- Tokens go to the ranks of their experts and back: " + format_seconds(most) +
                     " of an iteration on the stage where it is most, " + percent(most / cost.iteration) + " of it.",
                 2);
  Plan even = plan;
  even.expert_imbalance = 1;
  const auto balanced = cost_of(even, model, cluster);
  if (!balanced) return out;
  const Seconds more = cost.iteration - balanced->iteration;
  out += wrapped("- Time and memory are for a rank whose experts get " + formatted("%.3g", plan.expert_imbalance) +
                     " times the mean of the tokens. With as many for all ranks an iteration takes " +
                     format_seconds(balanced->iteration) + ", " + format_seconds(max(more, Seconds{})) +
                     " less, and the fullest rank " + format_bytes(balanced->peak()) +
                     ". A rank that gets more than stated takes them in rounds, without more memory.",
                 2);
  return out;
}

/// What of a model with adapters is trained.
inline std::string adapters_text(const ModelSpec& model) {
  const AdapterSpec adapters = adapters_of(model);
  if (adapters.rank == 0) return {};
  const std::int64_t all = parameters(model);
  const std::int64_t trained = all - parameters(without_adapters(model));
  return wrapped("It trains adapters of rank " + std::to_string(adapters.rank) + " and alpha " +
                     shortest_text(adapters.alpha) + " of " + adapter_target_names(adapters) + ": " +
                     std::to_string(trained) + " of " + std::to_string(all) + " parameters, " +
                     percent(static_cast<double>(trained) / static_cast<double>(all)) + ". The others are frozen.",
                 0);
}

inline std::string reasons(const Plan& plan, const PlanCost& cost) {
  const Prediction& p = plan.predicted;
  if (p.alternatives.empty()) return {};
  const std::string own = "best with pipeline " + std::to_string(plan.stages.size());
  std::vector<const PredictedAlternative*> slower;
  std::vector<const PredictedAlternative*> larger;
  std::vector<std::string> impossible;
  for (const PredictedAlternative& a : p.alternatives) {
    if (a.strategy.empty() && a.exists) continue;  // a group that nothing fits: see idle_groups
    if (!a.exists) {
      impossible.push_back(a.name);
    } else if (!a.fits) {
      larger.push_back(&a);
    } else if (a.name != own && a.iteration.value > cost.iteration.value * (1 + 1e-9)) {
      slower.push_back(&a);
    }
  }
  // A plain scheme may also be the best of its pipeline degree: once is enough.
  const auto is_scheme = [](const PredictedAlternative& a) { return !a.name.starts_with("best with pipeline"); };
  const std::vector<const PredictedAlternative*> all = slower;
  std::erase_if(slower, [&](const PredictedAlternative* a) {
    const auto same = [&](const PredictedAlternative* b) {
      return is_scheme(*b) && a->strategy == b->strategy && a->iteration == b->iteration;
    };
    return !is_scheme(*a) && std::any_of(all.begin(), all.end(), same);
  });
  std::sort(slower.begin(), slower.end(), [](const auto* a, const auto* b) {
    return a->iteration != b->iteration ? a->iteration < b->iteration : a->name < b->name;
  });
  std::string out = "\nWhy this plan\n";
  bool first = true;
  for (const PredictedAlternative* a : slower) {
    const double more = a->iteration / cost.iteration - 1;
    const std::string by = lost_by(*a, cost);
    out += wrapped("- " + std::string(first ? "The runner-up, " : "") + a->name + " (" + a->strategy + "), takes " +
                       format_seconds(a->iteration) + ", " + percent(more) + " longer" +
                       (by.empty() ? "." : ": " + by + "."),
                   2);
    first = false;
  }
  for (const PredictedAlternative* a : larger)
    out += wrapped("- " + a->name + " (" + a->strategy + ") does not fit: it needs " + format_bytes(a->peak) +
                       " a device, the budget is " + format_bytes(p.budget) + ".",
                   2);
  if (!impossible.empty())
    out += wrapped("- Impossible here, whatever the memory: " + joined(impossible) +
                       " (the batch, the heads or the layers do not divide, or --space leaves it out).",
                   2);
  if (slower.empty() && larger.empty()) out += "- Nothing else was possible.\n";
  return out;
}

}  // namespace detail

/// A plan in words and a table of at most 80 columns: what it does, where time and memory go, and why it won. The
/// figures are computed anew; the alternatives are those that the file keeps. Errors (usage): those of cost_of.
inline Result<std::string> explain(const Plan& plan, const ModelSpec& model, const ClusterView& cluster) {
  auto priced = cost_of(plan, model, cluster);
  if (!priced) return tl::unexpected<Error>(std::move(priced.error()));
  const PlanCost& cost = *priced;
  const int stages = static_cast<int>(plan.stages.size());
  std::string out = detail::wrapped(
      plan.model + " on " + plan.cluster + ": " + std::to_string(plan.ranks()) + " ranks in " + std::to_string(stages) +
          (stages == 1 ? " stage" : " pipeline stages") + ", " + precision_text(plan) +
          (plan.moments == Precision::fp32 ? "" : std::string(" with moments in ") + name_of(plan.moments)) + ", " +
          batch_text(plan) + " in " + std::to_string(plan.microbatches) +
          (plan.microbatches == 1 ? " micro-batch" : " micro-batches") +
          (stages > 1 ? ", schedule " + std::string(name_of(plan.schedule)) : "") + ".",
      0);
  out += detail::adapters_text(model);
  const auto share = [&](Seconds part) { return detail::percent(part / cost.iteration); };
  if (plan.packed)
    out += detail::wrapped(
        "Documents of any length are packed into these sequences" +
            (plan.predicted.iteration.value > 0
                 ? "; for those that it was searched for a step takes " + format_seconds(plan.predicted.iteration) +
                       ", " + format_count(plan.predicted.tokens_per_second) + " tokens/s"
                 : std::string()) +
            ". What follows is for sequences of one document each, which take longest: `galvatron explain --lengths` "
            "shows a step with other documents.",
        0);
  out += detail::wrapped(
      (plan.packed ? "With those a step takes " : "An iteration takes ") + format_seconds(cost.iteration) + ": " +
          format_count(cost.samples_per_second) + " samples/s, " + format_count(cost.tokens_per_second) + " tokens/s" +
          (cost.mfu > 0 ? ", " + detail::percent(cost.mfu) + " of the peak arithmetic" : "") +
          (cost.mfu > 1 ? " (" + why_impossible_mfu(cost.mfu) + ")" : "") + ". On the slowest stage: compute " +
          share(cost.compute) + ", communication " + share(cost.communication) + ", gradients and optimizer " +
          share(cost.update) + ", waiting for other stages " + share(cost.idle) + ".",
      0);
  if (const auto interval = interval_of(plan, model, cluster, cost); interval && !plan.packed)
    out += detail::wrapped("With 90 % it takes " + format_seconds(interval->low) + " to " +
                               format_seconds(interval->high) + "; what narrows this most is " +
                               what_to_measure(interval->narrows_most().term) + ".",
                           0);
  const PlanStageCost& fullest = cost.stages[fullest_stage(plan, cost, cluster)];
  const Bytes budget = budget_of(plan, cluster, fullest.group);
  const Bytes reserve = reserve_of(plan, cluster.group(fullest.group));
  out += detail::wrapped("The fullest rank needs " + format_bytes(fullest.peak()) + " of " + format_bytes(budget) +
                             (cluster.is_mixed() ? " on " + cluster.group_name(fullest.group) : "") + "." +
                             (fullest.peak() <= budget ? "" : " It does not fit.") +
                             (reserve.count == 0 ? ""
                                                 : " Of each device " + format_bytes(reserve) + " are left free" +
                                                       (plan.reserve ? "." : ", for " + plan.trainer.name + ".")),
                         0);
  out += detail::uneven_shards(plan, model, cluster);
  out += detail::idle_groups(plan, cluster);
  out += "\n" + detail::table(plan, cost, cluster) + detail::experts(plan, model, cost, cluster) +
         detail::reasons(plan, cost);
  return out;
}

}  // namespace galvatron
