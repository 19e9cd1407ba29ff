// The cases of a mixed cluster: pipelines whose stages are on several groups of devices.
//
// Each group that takes part has a run of stages, one behind the other, which share its devices alike; groups stand in
// any order, and may be left idle. What layers cost on a run depends on its group, its ranks and the micro-batches, not
// on the other runs: it is priced once (RunFigures). The problem of a case puts the runs' figures together, with what
// crosses the borders between them, and is made when the case is searched.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/cost/pipeline.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/mixed/group_pipelines.hpp>
#include <galvatron/mixed/run_bound.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/schedule/in_flight.hpp>
#include <galvatron/search/build_problem.hpp>
#include <galvatron/search/case.hpp>
#include <galvatron/search/choices.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/tuning.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/space.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::search {

namespace detail {

/// What layers cost on a run, whatever the other runs are.
struct RunFigures {
  Problem problem;                 // its types, moves, layouts and fixed bytes; no types: nothing fits
  std::vector<StrategySpec> like;  // of every layout
  std::vector<Terms> least;        // of every type: of a micro-batch and of an iteration
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<double>> blocks;  // RunTerms::blocks, of Slots

  // The ends of a model, their copies of a tied table on the two sides of a link.
  struct Tied {
    LayerType embedding;
    LayerType head;
    std::vector<Terms> least;  // of every type
  };
  std::map<int, Tied> tied;  // by the link: see MixedCases::link_of
};

/// What a group's devices have less than the budget, which counts as taken there, so that all stages have one budget.
inline Bytes lacks(const Cluster& group, Bytes budget) { return budget - min(budget, group.device.memory); }

}  // namespace detail

/// Cases whose runs are on two groups or more. They refer to the arguments.
template <class Executor>
class MixedCases : public CaseSource {
 public:
  /// @param options  completed; their memory may be more than some groups have
  MixedCases(const ModelSpec& model, const ClusterView& cluster, const SearchOptions& options, Executor& executor)
      : model_(model),
        cluster_(cluster),
        options_(options),
        executor_(executor),
        kinds_(model),
        pipelines_(group_pipelines(model, cluster, options)) {
    for (std::size_t pair = 0; pair < cluster.links().size(); ++pair)
      equal_link_.push_back(
          static_cast<int>(std::ranges::find(cluster.links(), cluster.links()[pair]) - cluster.links().begin()));
    price();
  }

  /// All of them, without their problems.
  [[nodiscard]] std::vector<Case> cases() {
    std::vector<Case> out;
    std::vector<std::vector<RunTerms>> terms;  // of each
    for (std::size_t i = 0; i < pipelines_.all.size(); ++i) {
      if (!is_possible(pipelines_.all[i])) continue;
      Case& one = out.emplace_back();
      one.problem.objective = objective_of(pipelines_.all[i]);
      one.schedule = pipelines_.all[i].schedule;
      one.on = pipelines_.all[i].devices();
      one.source = this;
      one.number = i;
      terms.push_back(terms_of(pipelines_.all[i]));
    }
    executor_.each(out.size(),
                   [&](std::size_t i) { out[i].bound = run_bound(out[i].problem.objective, terms[i], kinds_.of); });
    return out;
  }
  /// Micro-batches, numbers of stages or groups at once were left out.
  [[nodiscard]] bool narrowed() const { return pipelines_.narrowed; }

  [[nodiscard]] Case open(std::size_t number) const override {
    const GroupPipeline& one = pipelines_.all[number];
    Case out;
    Problem& p = out.problem;
    p = frame_of(one);
    int stage = 0;
    for (std::size_t i = 0; i < one.runs.size(); ++i) {
      Problem& own = p.on_devices.emplace_back(frame_of(one));
      const detail::RunFigures& figures = figures_of(one, i);
      own.types = figures.problem.types;
      if (const int link = link_of(one, i); link >= 0) {
        const detail::RunFigures::Tied& ends = figures.tied.at(link);
        own.types.front() = ends.embedding;
        own.types.back() = ends.head;
      }
      own.moves = figures.problem.moves;
      own.layouts = figures.problem.layouts;
      own.fixed = figures.problem.fixed;
      if (i > 0) {
        own.across_before = stage;
        add_borders(own, figures, one, i, i - 1);
      }
      stage += one.runs[i].stages;
      if (i + 1 < one.runs.size()) {
        own.across_after = stage - 1;
        add_borders(own, figures, one, i, i + 1);
      }
      p.devices_of.insert(p.devices_of.end(), static_cast<std::size_t>(one.runs[i].stages), static_cast<int>(i));
    }
    drop_dominated(p);
    out.schedule = one.schedule;
    out.specs = specs_;
    out.on = one.devices();
    return out;
  }

 private:
  using Key = std::tuple<int, int, int, bool>;  // group, stages on it, micro-batches, split backward

  [[nodiscard]] bool ties() const { return model_.head.tied; }
  [[nodiscard]] static Key key_of(const GroupPipeline& one, std::size_t i) {
    return {one.runs[i].group, one.runs[i].stages, one.microbatches, splits_backward(one.schedule)};
  }
  // The link to the group at the other end of the pipeline (the first pair of groups that has an equal one) where a
  // table of run i is tied to one there; -1: none.
  [[nodiscard]] int link_of(const GroupPipeline& one, std::size_t i) const {
    if (!ties() || (i > 0 && i + 1 < one.runs.size())) return -1;
    return nth(equal_link_, static_cast<int>(pair_index(one.runs.front().group, one.runs.back().group)));
  }
  [[nodiscard]] const detail::RunFigures& figures_of(const GroupPipeline& one, std::size_t i) const {
    return figures_.at(key_of(one, i));
  }
  [[nodiscard]] Objective objective_of(const GroupPipeline& one) const {
    Objective out;
    out.stages = one.stages();
    out.microbatches = one.microbatches;
    out.weights = cost::pipeline_weights(one.schedule, out.stages, out.microbatches);
    return out;
  }
  // All of a problem but what depends on devices.
  [[nodiscard]] Problem frame_of(const GroupPipeline& one) const {
    Problem p;
    p.objective = objective_of(one);
    p.layers = kinds_.of;
    p.leading = p.trailing = 1;
    p.tied = ties();
    p.budget = options_.memory.count;
    for (int stage = 0; stage < p.stages(); ++stage) p.slots.push_back(slots_of(one, p.stages(), stage));
    return p;
  }

  // Whether every run has a strategy for its layers, whatever the memory.
  [[nodiscard]] bool is_possible(const GroupPipeline& one) const {
    for (std::size_t i = 0; i < one.runs.size(); ++i)
      if (figures_of(one, i).least.empty()) return false;
    return true;
  }
  // Of one that is. Of memory, what blocks keep counts; changes of layout do not.
  [[nodiscard]] std::vector<RunTerms> terms_of(const GroupPipeline& one) {
    std::vector<RunTerms> runs;
    const int stages = one.stages();
    int end = 0;
    for (std::size_t i = 0; i < one.runs.size(); ++i) {
      detail::RunFigures& figures = figures_.at(key_of(one, i));
      Slots slots{unlimited, unlimited};  // the least of a stage
      for (const int begin = end; end < begin + one.runs[i].stages; ++end)
        slots = min(slots, slots_of(one, stages, end));
      const auto [found, is_new] = figures.blocks.try_emplace({slots.flight, slots.deferred});
      if (is_new) found->second = block_seconds(figures.problem, kinds_.of, slots);
      const int link = link_of(one, i);
      runs.push_back({one.runs[i].stages, link < 0 ? figures.least : figures.tied.at(link).least, found->second});
    }
    return runs;
  }
  [[nodiscard]] static Slots slots_of(const GroupPipeline& one, int stages, int stage) {
    return {microbatches_in_flight(one.schedule, stages, stage, one.microbatches),
            microbatches_deferred(one.schedule, stage, one.microbatches)};
  }

  // What stages of run `i` receive from a stage of run `other`.
  void add_borders(Problem& p, const detail::RunFigures& figures, const GroupPipeline& one, std::size_t i,
                   std::size_t other) const {
    const GroupRun& run = one.runs[i];
    const GroupRun& peer = one.runs[other];
    const cost::Batch batch = batch_of(one.microbatches, false);
    const auto seconds = [&](std::int64_t elements) {
      const cost::MovePricer price(batch, elements, cluster_.group(run.group), run.stages * run.ranks);
      std::vector<double> out;
      for (const StrategySpec& spec : figures.like)
        out.push_back(price.receive_over(cluster_.link(run.group, peer.group), spec, peer.ranks).value);
      return out;
    };
    for (std::size_t type = 0; type < p.moves.size(); ++type) {
      const LayerSpec& layer = kinds_.programs[type].layer();
      if (other < i)
        p.moves[type].input_across = seconds(layer.input_elements(options_.sequence));
      else
        p.moves[type].output_across = seconds(layer.output_elements(options_.sequence));
    }
  }
  [[nodiscard]] cost::Batch batch_of(int microbatches, bool splits) const {
    // Of any pipeline of several stages: the last one is not the first.
    cost::Batch batch =
        detail::batch_for(options_, microbatches, 2, splits, std::ranges::all_of(cluster_.groups(), cost::can_overlap));
    batch.last_first_rank = 1;
    return batch;
  }

  void price() {
    for (const GroupPipeline& one : pipelines_.all)
      for (std::size_t i = 0; i < one.runs.size(); ++i) {
        detail::RunFigures& figures = figures_[key_of(one, i)];
        if (const int link = link_of(one, i); link >= 0) figures.tied[link];
      }
    // A setting for each group and number of stages on it.
    std::map<std::pair<int, int>, std::size_t> numbers;
    std::vector<std::pair<int, int>> wanted;
    for (const auto& [key, ignored] : figures_)
      if (numbers.try_emplace({std::get<0>(key), std::get<1>(key)}, wanted.size()).second)
        wanted.emplace_back(std::get<0>(key), std::get<1>(key));
    settings_.resize(wanted.size());
    executor_.each(wanted.size(), [&](std::size_t i) {
      const auto [group, stages] = wanted[i];
      const Cluster& cluster = cluster_.group(group);
      std::vector<StrategySpec> specs = strategies(options_.space, cluster.devices / stages, cluster.devices_per_node);
      detail::keep_fit(specs, kinds_, options_, 2, true);
      settings_[i] = detail::StageSetting(stages, cluster.devices / stages, std::move(specs));
    });
    number_specs();
    kinds_.lower(options_, settings_, false);
    if (std::ranges::any_of(pipelines_.all, [](const GroupPipeline& one) { return splits_backward(one.schedule); }))
      kinds_.lower(options_, settings_, true);
    // Runs whose ranks have equally many samples, where the degrees of tensor and context are equal, share prices.
    struct Wanted {
      const Key* key;
      detail::RunFigures* figures;
    };
    std::map<Key, std::vector<Wanted>> alike;
    for (auto& [key, figures] : figures_) {
      const auto& [group, stages, microbatches, splits] = key;
      const int divisor = std::gcd(stages, microbatches);
      alike[{group, stages / divisor, microbatches / divisor, splits}].push_back({&key, &figures});
    }
    std::vector<const std::vector<Wanted>*> open;
    for (const auto& [ignored, runs] : alike) open.push_back(&runs);
    executor_.each(open.size(), [&](std::size_t i) {
      const int group = std::get<0>(*open[i]->front().key);
      std::vector<int> counts;
      for (const Wanted& run : *open[i]) counts.push_back(std::get<2>(*run.key));
      detail::CommonPrices prices(kinds_, counts, options_.precision, cluster_.group(group),
                                  cluster_.group(group).devices);
      for (const auto& [key, figures] : *open[i])
        price_run(*key, numbers.at({group, std::get<1>(*key)}), prices, *figures);
    });
  }
  // One number for a strategy, whatever the group.
  void number_specs() {
    std::map<int, std::vector<int>> of_ranks;
    for (const detail::StageSetting& setting : settings_) {
      std::vector<int>& known = of_ranks[setting.ranks];
      std::vector<int>& tags = tags_.emplace_back();
      for (const StrategySpec& spec : setting.specs) {
        const auto same = std::ranges::find_if(known, [&](int tag) { return nth(specs_, tag) == spec; });
        tags.push_back(same == known.end() ? static_cast<int>(specs_.size()) : *same);
        if (same != known.end()) continue;
        known.push_back(tags.back());
        specs_.push_back(spec);
      }
    }
  }
  void price_run(const Key& key, std::size_t setting_number, detail::CommonPrices& prices,
                 detail::RunFigures& out) const {
    if (options_.interrupted()) return;
    const auto& [group, stages, microbatches, splits] = key;
    const Cluster& cluster = cluster_.group(group);
    const detail::StageSetting& setting = settings_[setting_number];
    const cost::Batch batch = batch_of(microbatches, splits);
    std::vector<detail::TiedPrices> tied;
    for (const auto& [link, ignored] : out.tied)
      tied.push_back({&cluster_.links()[static_cast<std::size_t>(link)], {}, {}});
    Problem& p = out.problem;
    std::vector<std::span<const int>> same;
    for (const int layout : detail::price_layers(p, same, kinds_, cluster, options_, setting, batch, prices, tied))
      out.like.push_back(nth(setting.like, layout));
    if (p.types.empty()) return;
    p.budget = options_.memory.count;
    p.fixed = (cluster.device.library_workspace + detail::lacks(cluster, options_.memory)).count;
    for (auto over = tied.begin(); auto& [ignored, ends] : out.tied) {
      const auto tie = [](LayerType type, const std::vector<double>& synchronise) {
        for (std::size_t i = 0; i < type.size(); ++i) type[i].synchronise = synchronise[i];
        return type;
      };
      ends.embedding = tie(p.types.front(), over->embedding);
      ends.head = tie(p.types.back(), over->head);
      ++over;
    }
    const auto finish = [&tags = tags_[setting_number], splits = splits](LayerType& type) {
      for (Choice& choice : type) choice.tag = nth(tags, choice.tag);
      std::ranges::sort(type, {}, &Choice::tag);
      Terms least{infinite, infinite, infinite, infinite, ~std::uint64_t{0}};
      for (const Choice& c : type)
        least = min(least, {c.seconds(), c.seconds() - (splits ? 2 * c.weights : 0), c.per_iteration(), 0, 0});
      return least;
    };
    for (LayerType& type : p.types) out.least.push_back(finish(type));
    for (auto& [ignored, ends] : out.tied) {
      ends.least = out.least;
      ends.least.front() = finish(ends.embedding);
      ends.least.back() = finish(ends.head);
    }
  }

  const ModelSpec& model_;
  ClusterView cluster_;
  const SearchOptions& options_;
  Executor& executor_;
  detail::LayerKinds kinds_;
  GroupPipelines pipelines_;
  std::vector<int> equal_link_;  // of every pair of groups, the first pair that has this link
  std::vector<detail::StageSetting> settings_;
  std::vector<std::vector<int>> tags_;  // (settings, specs) in specs_
  std::vector<StrategySpec> specs_;
  std::map<Key, detail::RunFigures> figures_;
};

}  // namespace galvatron::search
