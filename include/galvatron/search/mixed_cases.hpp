// The cases of a mixed cluster: pipelines whose stages are on several groups of devices.
//
// Each group that takes part has a run of stages, one behind the other, which share its devices alike; groups stand in
// any order, and may be left idle. What layers cost on a run depends on its group, its ranks and the micro-batches, not
// on the other runs: it is priced once (RunFigures). The problem of a case puts the runs' figures together, with what
// crosses the borders between them, and is made when the case is searched.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/cost/pipeline.hpp>
#include <galvatron/cost/plan_cost.hpp>
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

/// The stages of a pipeline on one group of devices.
struct GroupRun {
  int group = 0;
  int stages = 1;
  int ranks = 1;  ///< of each stage
  friend constexpr bool operator==(const GroupRun&, const GroupRun&) = default;
};

namespace detail {

/// What layers cost on a run, whatever the other runs are.
struct RunFigures {
  Problem problem;                 // its types, moves, layouts and fixed bytes; no types: nothing fits
  std::vector<StrategySpec> like;  // of every layout
  std::vector<Terms> least;        // of every type: of a micro-batch and of an iteration
};

/// What a group's devices have less than the budget, which counts as taken there, so that all stages have one budget.
inline Bytes lacks(const Cluster& group, Bytes budget) { return budget - min(budget, group.device.memory); }

}  // namespace detail

/// Cases whose runs are on two groups or more. They refer to the arguments.
class MixedCases : public CaseSource {
 public:
  /// @param options  completed; their memory may be more than some groups have
  template <class Executor>
  MixedCases(const ModelSpec& model, const ClusterView& cluster, const SearchOptions& options, Executor& executor)
      : model_(model), cluster_(cluster), options_(options), kinds_(model) {
    find_degrees();
    find_cases();
    price(executor);
  }

  /// All of them, without their problems.
  [[nodiscard]] std::vector<Case> cases() const {
    std::vector<Case> out;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (bound(i) == infinite) continue;
      Case one;
      one.problem.objective = objective_of(all_[i]);
      one.schedule = all_[i].schedule;
      one.on = devices_of(all_[i]);
      one.source = this;
      one.number = i;
      out.push_back(std::move(one));
    }
    return out;
  }
  /// Micro-batches, numbers of stages or groups at once were left out.
  [[nodiscard]] bool narrowed() const { return narrowed_; }

  [[nodiscard]] Case open(std::size_t number) const override {
    const Layout& one = all_[number];
    Case out;
    Problem& p = out.problem;
    p = frame_of(one);
    int stage = 0;
    for (std::size_t i = 0; i < one.runs.size(); ++i) {
      Problem& own = p.on_devices.emplace_back(frame_of(one));
      const detail::RunFigures& figures = figures_of(one, i);
      own.types = figures.problem.types;
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
    out.on = devices_of(one);
    return out;
  }

  /// With multipliers l_i of the runs, sum over runs of stages_i l_i = 1, the slowest stage takes at least the sum over
  /// layers of the least l_i t_i of any run; memory does not count.
  [[nodiscard]] double bound(std::size_t number) const override {
    const Layout& one = all_[number];
    const Objective objective = objective_of(one);
    std::vector<const std::vector<Terms>*> least;
    for (std::size_t i = 0; i < one.runs.size(); ++i) {
      least.push_back(&figures_of(one, i).least);
      if (least.back()->empty()) return infinite;
    }
    std::vector<double> multipliers;
    double speed = 0;
    for (std::size_t i = 0; i < one.runs.size(); ++i) {
      double blocks = 0;
      for (const int layer : blocks_) blocks += nth(*least[i], layer).time;
      multipliers.push_back(1 / std::max(blocks, 1e-300));
      speed += one.runs[i].stages * multipliers.back();
    }
    Terms all;
    const auto add = [&](std::size_t i, int type, Terms& to) {
      const Terms& terms = nth(*least[i], type);
      to = min(to, {multipliers[i] / speed * terms.time, terms.fill, terms.per_iteration, 0, 0});
    };
    constexpr Terms none{infinite, infinite, infinite, 0, 0};
    for (std::size_t layer = 0; layer < kinds_.of.size(); ++layer) {
      Terms terms = none;
      if (layer == 0)
        add(0, kinds_.of[layer], terms);
      else if (layer + 1 == kinds_.of.size())
        add(one.runs.size() - 1, kinds_.of[layer], terms);
      else
        for (std::size_t i = 0; i < one.runs.size(); ++i) add(i, kinds_.of[layer], terms);
      all += terms;
    }
    all.per_iteration /= objective.stages;
    return objective(all);
  }

 private:
  // A case: which groups, in which order, with how many stages each.
  struct Layout {
    std::vector<GroupRun> runs;
    std::size_t microbatches = 0;  // number in counts_
    ScheduleKind schedule = ScheduleKind::one_f_one_b;

    [[nodiscard]] int stages() const {
      int sum = 0;
      for (const GroupRun& run : runs) sum += run.stages;
      return sum;
    }
  };
  // Group, stages on it, micro-batches (number in counts_), split backward, and the group at the other end of the
  // pipeline where a table of this run is tied to one there; -1: none.
  using Key = std::tuple<int, int, std::size_t, bool, int>;

  [[nodiscard]] bool ties() const { return model_.head.tied; }
  [[nodiscard]] Key key_of(const Layout& one, std::size_t i) const {
    const GroupRun& run = one.runs[i];
    int other = -1;
    if (ties() && i == 0) other = one.runs.back().group;
    if (ties() && i + 1 == one.runs.size()) other = one.runs.front().group;
    return {run.group, run.stages, one.microbatches, splits_backward(one.schedule), other};
  }
  [[nodiscard]] const detail::RunFigures& figures_of(const Layout& one, std::size_t i) const {
    return figures_.at(key_of(one, i));
  }
  [[nodiscard]] std::vector<StageDevices> devices_of(const Layout& one) const {
    std::vector<StageDevices> out;
    for (const GroupRun& run : one.runs)
      out.insert(out.end(), static_cast<std::size_t>(run.stages), {run.group, run.ranks});
    return out;
  }
  [[nodiscard]] Objective objective_of(const Layout& one) const {
    Objective out;
    out.stages = one.stages();
    out.microbatches = counts_[one.microbatches];
    out.weights = cost::pipeline_weights(one.schedule, out.stages, out.microbatches);
    return out;
  }
  // All of a problem but what depends on devices.
  [[nodiscard]] Problem frame_of(const Layout& one) const {
    Problem p;
    p.objective = objective_of(one);
    p.layers = kinds_.of;
    p.leading = p.trailing = 1;
    p.tied = ties();
    p.budget = options_.memory.count;
    for (int stage = 0; stage < p.stages(); ++stage)
      p.slots.push_back({microbatches_in_flight(one.schedule, p.stages(), stage, p.objective.microbatches),
                         microbatches_deferred(one.schedule, stage, p.objective.microbatches)});
    return p;
  }

  // What stages of run `i` receive from a stage of run `other`.
  void add_borders(Problem& p, const detail::RunFigures& figures, const Layout& one, std::size_t i,
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
  [[nodiscard]] cost::Batch batch_of(std::size_t microbatches, bool splits) const {
    // Of any pipeline of several stages: the last one is not the first.
    cost::Batch batch = detail::batch_for(options_, counts_[microbatches], 2, splits,
                                          std::ranges::all_of(cluster_.groups(), cost::can_overlap));
    batch.last_first_rank = 1;
    return batch;
  }

  void find_degrees() {
    const int layers = static_cast<int>(model_.blocks.size());
    for (const int m : divisors(static_cast<int>(options_.global_batch)))
      if (options_.microbatches == 0 || options_.microbatches == m) counts_.push_back(m);
    for (int group = 0; group < cluster_.count(); ++group) {
      degrees_.emplace_back();
      if (!cluster_.group(group).lack_of(options_.precision).empty()) continue;
      degrees_.back() = divisors(cluster_.group(group).devices, options_.space.powers_of_two);
      std::erase_if(degrees_.back(), [&](int stages) { return stages >= layers; });
    }
    for (const ScheduleKind kind : {ScheduleKind::zb_h1, ScheduleKind::one_f_one_b, ScheduleKind::gpipe})
      if (std::ranges::find(options_.schedules, kind) != options_.schedules.end())
        // On devices of their own GPipe is never faster than 1F1B and never smaller.
        if (kind != ScheduleKind::gpipe || schedules_.empty() || schedules_.back() != ScheduleKind::one_f_one_b)
          schedules_.push_back(kind);
    most_at_once_ = cluster_.count();
    const std::array<std::function<void()>, 3> narrow{
        [this] { counts_ = some_of(counts_, tuning::few); },
        [this] {
          for (std::vector<int>& degrees : degrees_) degrees = some_of(degrees, tuning::few / 2);
        },
        [this] { most_at_once_ = std::min(most_at_once_, 3); },
    };
    for (const auto& less : narrow) {
      if (most_cases() <= static_cast<double>(tuning::most_mixed_cases) * options_.effort / options_.shares) return;
      less();
      narrowed_ = true;
    }
  }
  // Of the groups in all orders.
  [[nodiscard]] double most_cases() const {
    std::vector<double> ways{1};  // of so many groups, without an order
    for (const std::vector<int>& degrees : degrees_) {
      ways.push_back(0);
      for (std::size_t k = ways.size(); --k > 0;) ways[k] += ways[k - 1] * static_cast<double>(degrees.size());
    }
    double sum = 0;
    double orders = 1;
    for (int k = 1; k <= most_at_once_; ++k) {
      orders *= k;
      sum += k > 1 ? orders * nth(ways, k) : 0;
    }
    return sum * static_cast<double>(counts_.size() * schedules_.size());
  }

  // A group like another one before it, with the same links, stands behind it where both take part.
  [[nodiscard]] std::vector<int> twins() const {
    std::vector<int> out;
    const auto is_twin = [&](int a, int b) {
      Cluster like = cluster_.group(a);
      like.name = cluster_.group(b).name;
      if (!(like == cluster_.group(b))) return false;
      for (int other = 0; other < cluster_.count(); ++other)
        if (other != a && other != b && !(cluster_.link(a, other) == cluster_.link(b, other))) return false;
      return true;
    };
    for (int b = 0; b < cluster_.count(); ++b) {
      int a = b;
      while (a-- > 0 && !is_twin(a, b)) continue;
      out.push_back(a);
    }
    return out;
  }

  void find_cases() {
    const int layers = static_cast<int>(model_.blocks.size());
    const std::vector<int> twin = twins();
    Layout one;
    const auto uses = [&](int group) {
      return std::ranges::any_of(one.runs, [=](const GroupRun& run) { return run.group == group; });
    };
    const std::function<void(int)> extend = [&](int stages) {
      if (one.runs.size() > 1) add_cases(one);
      if (static_cast<int>(one.runs.size()) == most_at_once_) return;
      for (int group = 0; group < cluster_.count(); ++group) {
        if (uses(group) || (nth(twin, group) >= 0 && !uses(nth(twin, group)))) continue;
        for (const int own : nth(degrees_, group)) {
          if (stages + own > layers) break;
          one.runs.push_back({group, own, cluster_.group(group).devices / own});
          extend(stages + own);
          one.runs.pop_back();
        }
      }
    };
    extend(0);
  }
  // All micro-batches and schedules.
  void add_cases(Layout one) {
    if (!options_.space.pipeline.allows(one.stages())) return;
    // A tied table has one strategy at both ends, so that these have equally many ranks.
    if (ties() && one.runs.front().ranks != one.runs.back().ranks) return;
    for (std::size_t m = 0; m < counts_.size(); ++m)
      for (const ScheduleKind schedule : schedules_) {
        one.microbatches = m;
        one.schedule = schedule;
        all_.push_back(one);
      }
  }

  template <class Executor>
  void price(Executor& executor) {
    for (const Layout& one : all_)
      for (std::size_t i = 0; i < one.runs.size(); ++i) figures_.try_emplace(key_of(one, i));
    // A setting for each group and number of stages on it.
    std::map<std::pair<int, int>, std::size_t> numbers;
    std::vector<std::pair<int, int>> wanted;
    for (const auto& [key, ignored] : figures_)
      if (numbers.try_emplace({std::get<0>(key), std::get<1>(key)}, wanted.size()).second)
        wanted.emplace_back(std::get<0>(key), std::get<1>(key));
    settings_.resize(wanted.size());
    executor.each(wanted.size(), [&](std::size_t i) {
      const auto [group, stages] = wanted[i];
      const Cluster& cluster = cluster_.group(group);
      std::vector<StrategySpec> specs = strategies(options_.space, cluster.devices / stages, cluster.devices_per_node);
      detail::keep_fit(specs, kinds_, options_, 2, true);
      settings_[i] = detail::StageSetting(stages, cluster.devices / stages, std::move(specs));
    });
    number_specs();
    kinds_.lower(options_, settings_, false);
    if (std::ranges::any_of(schedules_, [](ScheduleKind kind) { return splits_backward(kind); }))
      kinds_.lower(options_, settings_, true);
    std::vector<std::pair<const Key*, detail::RunFigures*>> open;
    for (auto& [key, figures] : figures_) open.emplace_back(&key, &figures);
    executor.each(open.size(), [&](std::size_t i) {
      const Key& key = *open[i].first;
      price_run(key, numbers.at({std::get<0>(key), std::get<1>(key)}), *open[i].second);
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
  void price_run(const Key& key, std::size_t setting_number, detail::RunFigures& out) const {
    if (options_.interrupted()) return;
    const auto& [group, stages, microbatches, splits, other] = key;
    const Cluster& cluster = cluster_.group(group);
    const detail::StageSetting& setting = settings_[setting_number];
    const cost::Batch batch = batch_of(microbatches, splits);
    cost::WorkPrices prices(batch.precision, cluster, cost::busy_ranks(cluster, cluster.devices),
                            other < 0 ? nullptr : &cluster_.link(group, other));
    Problem& p = out.problem;
    std::vector<std::span<const int>> same;
    for (const int layout : detail::price_layers(p, same, kinds_, cluster, options_, setting, batch, prices))
      out.like.push_back(nth(setting.like, layout));
    p.fixed = (cluster.device.library_workspace + detail::lacks(cluster, options_.memory)).count;
    for (LayerType& type : p.types) {
      for (Choice& choice : type) choice.tag = nth(tags_[setting_number], choice.tag);
      std::ranges::sort(type, {}, &Choice::tag);
      Terms least{infinite, infinite, infinite, infinite, ~std::uint64_t{0}};
      for (const Choice& c : type)
        least = min(least, {c.seconds(), c.seconds() - (splits ? 2 * c.weights : 0), c.per_iteration(), 0, 0});
      out.least.push_back(least);
    }
  }

  const ModelSpec& model_;
  ClusterView cluster_;
  const SearchOptions& options_;
  detail::LayerKinds kinds_;
  std::vector<int> blocks_ = std::vector<int>(kinds_.of.begin() + 1, kinds_.of.end() - 1);  // their types
  std::vector<int> counts_;                                                                 // of micro-batches
  std::vector<std::vector<int>> degrees_;  // (groups) numbers of stages on each; none: the group is of no use
  std::vector<ScheduleKind> schedules_;
  int most_at_once_ = 0;  // groups
  bool narrowed_ = false;
  std::vector<Layout> all_;
  std::vector<detail::StageSetting> settings_;
  std::vector<std::vector<int>> tags_;  // (settings, specs) in specs_
  std::vector<StrategySpec> specs_;
  std::map<Key, detail::RunFigures> figures_;
};

}  // namespace galvatron::search
