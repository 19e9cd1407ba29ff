// find_waves: the fastest plan that is found for a step of a multi-task model on a cluster, as the simulation of its
// program tells, beside tasks in sequence on all devices and one group of devices for each task.
//
//     model, cluster -> prices -> MetaOps with curves -> Spindle's planner -> devices -> plan of waves -> simulation
//                       tensor degrees of components <- bound of all schedules      memory of every rank <-
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/plan/pipeline_plan.hpp>
#include <galvatron/plan/task_costs.hpp>
#include <galvatron/plan/task_plan.hpp>
#include <galvatron/plan/wave_placements.hpp>
#include <galvatron/plan/wave_problem.hpp>
#include <galvatron/simulate/wave_peaks.hpp>
#include <galvatron/simulate/wave_simulation.hpp>
#include <galvatron/spindle/place.hpp>
#include <galvatron/spindle/relaxation.hpp>
#include <galvatron/spindle/solve.hpp>

namespace galvatron::simulate {

/// In which way tasks share devices.
enum class TaskSchedule : std::uint8_t {
  fastest,   ///< what takes least
  waves,     ///< of parts, as Spindle plans them
  sequence,  ///< one after the other
  groups,    ///< each on a group of devices of its own
  pipeline,  ///< in micro-batches through groups of devices that have some layers each
};
inline constexpr std::array task_schedules{TaskSchedule::fastest, TaskSchedule::waves, TaskSchedule::sequence,
                                           TaskSchedule::groups, TaskSchedule::pipeline};
constexpr const char* name_of(TaskSchedule schedule) {
  constexpr std::array names{"fastest", "waves", "sequence", "groups", "pipeline"};
  return names[static_cast<std::size_t>(schedule)];
}

struct WaveSearchOptions {
  Precision precision = Precision::bf16;
  Bytes memory{};             ///< of each device; 0: all that it has
  bool splits_layers = true;  ///< over tensor ranks; false: data ranks alone
  TaskSchedule schedule = TaskSchedule::fastest;
  spindle::Limits limits{};
  /// These kinds alone where plans with them fit, those of the plan that runs: a new mix of tasks is planned in
  /// milliseconds.
  std::optional<WaveKinds> kinds{};
};

/// The kinds of a plan: of each component those of its widest part.
inline WaveKinds kinds_of(const MultiTaskModel& model, const std::vector<TaskGraph>& graphs, const WavePlan& plan) {
  WaveKinds out{.components = std::vector<StrategySpec>(model.components.size()), .zero = plan.zero};
  for (const WavePart& part : parts_of(plan)) {
    const TaskPass& pass = graphs[static_cast<std::size_t>(part.task)].pass(part.pass);
    StrategySpec& own = out.components[static_cast<std::size_t>(pass.component)];
    if (part.strategy.tensor < own.tensor) continue;
    own = part.strategy;
    own.data = 1;
  }
  return out;
}

struct FoundWaves {
  WavePlan plan;
  TaskOrder order = TaskOrder::in_waves;
  WaveSimulation simulation;
  Bytes peak;           ///< of the fullest rank
  Seconds bound;        ///< no schedule of the passes takes less, under the strategies that were tried
  Seconds in_waves;     ///< waves of parts; 0: none fits
  Seconds in_sequence;  ///< tasks one after the other, each pass on as many devices as pay; 0: does not fit
  Seconds by_task;      ///< a group of devices for each task; 0: does not fit, or there are more tasks than groups
  Seconds pipelined;    ///< micro-batches through stages; 0: does not fit, or no task has micro-batches
  Seconds search;       ///< what the search took
};

namespace detail {

/// What of the plans that were tried is kept.
struct TriedWaves {
  std::optional<FoundWaves> best;
  Seconds in_waves, in_sequence, by_task, pipelined;
  Bytes smallest;
  int fitting = 0;                 ///< plans that fit
  std::optional<WaveKinds> split;  ///< tensor degrees of components with the least bound
};

class WaveSearch {
 public:
  static constexpr int most_stages = 16;
  static constexpr std::int64_t replan_steps = 2'000'000;  ///< of Spindle's planner, where kinds are given
  static constexpr std::size_t most_tries = 4;             ///< placed plans that are simulated, of each sort
  static constexpr double least_beside_passes = 1.05;      ///< what a step is taken to be over its passes' bound
  static constexpr std::array by_memory{RecomputeKind::none, RecomputeKind::cheap, RecomputeKind::selective,
                                        RecomputeKind::full};

  /// @param micro  of the model, which outlives this as all arguments do
  WaveSearch(const MultiTaskModel& model, const MicroBatched& micro, const std::vector<TaskGraph>& graphs,
             const Cluster& cluster, const WaveSearchOptions& options, train::LayerCosts& layers, TriedWaves& tried)
      : model_(model),
        micro_(micro),
        cluster_(cluster),
        options_(options),
        budget_(options.memory.count > 0 ? options.memory : cluster.device.memory),
        layers_(layers),
        prices_(micro.model, graphs, cluster, layers),
        tried_(tried) {}

  /// Tries waves, tasks in sequence and in groups. True: plans of all sorts fit without recomputation.
  /// @param levels  of recomputation that are tried, at the most
  bool run(std::size_t levels = by_memory.size()) {
    if (options_.kinds) {
      const spindle::Limits limits = options_.limits;
      if (limits.steps == 0) options_.limits.steps = replan_steps;
      note_curves(*options_.kinds);
      try_all(*options_.kinds);
      if (tried_.best) return true;
      options_.limits = limits;
    }
    const WaveKinds whole = whole_components();
    note_curves(whole);
    if (!tried_.split) tried_.split = options_.splits_layers ? split_kinds(whole) : whole;
    const WaveKinds& split = *tried_.split;
    // What computes least first; then what takes less memory, until plans of all sorts fit.
    bool relaxed = false;  // some components have been tried with less recomputation than others
    bool at_once = false;
    for (std::size_t level = 0; level < std::min(levels, by_memory.size()); ++level) {
      bool fits = false;
      for (const int zero : {1, 2, 3}) {
        if (fits) break;
        const int before = tried_.fitting;
        fits = try_all(with(split, by_memory[level], zero));
        if (split.components != whole.components) fits = try_all(with(whole, by_memory[level], zero)) || fits;
        if (level > 0 && zero != 2 && tried_.fitting > before && !std::exchange(relaxed, true))
          recompute_less(with(split, by_memory[level], zero), by_memory[level - 1]);
      }
      at_once = fits && level == 0;
      if (fits) break;
    }
    for (int t = 2; !tried_.best && options_.splits_layers && t <= most_tensor(); t *= 2) {
      WaveKinds kinds = whole;
      for (StrategySpec& spec : kinds.components) spec = {.tensor = t, .sequence = SequenceKind::megatron};
      if (cluster_.devices % t != 0) continue;
      for (const int zero : {1, 3}) try_all(with(kinds, RecomputeKind::full, zero));
    }
    return at_once;
  }
  /// Of the passes, under the strategies that were tried.
  [[nodiscard]] Seconds bound() {
    for (std::size_t m = 0; m < least_.count(); ++m) {
      least_.metaops[m].curve = {};
      for (const auto& [devices, seconds] : seconds_[m]) least_.metaops[m].curve.add(devices, seconds);
    }
    return Seconds{bound_of(least_)};
  }
  /// Tries pipelines of stages on equally many devices; behind a run() of this or another search.
  void run_pipelines() {
    const WaveKinds whole = whole_components();
    for (const WaveKinds& kinds : {whole, *tried_.split}) {
      for (int stages = 2; stages <= std::min(cluster_.devices, most_stages); stages *= 2)
        for (const RecomputeKind recompute : by_memory)
          if (try_pipeline(with(kinds, recompute, 1), stages)) break;
      if (tried_.split->components == whole.components) return;
    }
  }

 private:
  // No tensor ranks, and nothing recomputed: what takes the least time on one device.
  [[nodiscard]] WaveKinds whole_components() const {
    return with({.components = std::vector<StrategySpec>(model_.components.size())}, RecomputeKind::none, 0);
  }
  [[nodiscard]] int most_tensor() const { return std::min(cluster_.devices_per_node, cluster_.devices); }

  // ---- which tensor degrees

  [[nodiscard]] static double bound_of(const spindle::Problem& problem) {
    return spindle::Relaxation(problem).bound(spindle::operators_of(problem));
  }
  /// Components one after the other take the degree and the split with which the bound of all schedules is least.
  WaveKinds split_kinds(const WaveKinds& whole) {
    WaveKinds out = whole;
    double best = bound_of(wave_problem(prices_, out).problem);
    for (std::size_t c = 0; c < out.components.size(); ++c)
      for (int t = 2; t <= most_tensor(); t *= 2)
        for (const SequenceKind sequence : {SequenceKind::none, SequenceKind::megatron}) {
          WaveKinds next = out;
          next.components[c].tensor = t;
          next.components[c].sequence = sequence;
          if (cluster_.devices % t != 0 || !splits(next, c)) continue;
          note_curves(next);
          const double bound = bound_of(wave_problem(prices_, next).problem);
          if (!(bound < best * 0.999)) continue;
          best = bound;
          out = std::move(next);
        }
    return out;
  }
  /// Whether any layer of a component is as wanted.
  [[nodiscard]] bool splits(const WaveKinds& kinds, std::size_t c) const {
    const auto number = static_cast<int>(c);
    for (int i = 0; i < std::ssize(model_.components[c].layers); ++i)
      if (prices_.kind_of(number, i, kinds.components[c]) == kinds.components[c]) return true;
    return false;
  }

  /// The best of all curves so far of each MetaOp.
  void note_curves(const WaveKinds& kinds) {
    const WaveProblem of = wave_problem(prices_, kinds, true);
    if (least_.metaops.empty()) {
      least_ = of.problem;
      seconds_.resize(of.problem.count());
    }
    for (std::size_t m = 0; m < of.problem.count(); ++m) {
      const spindle::Curve& curve = of.problem.metaops[m].curve;
      for (std::size_t i = 0; i < curve.size(); ++i) {
        const auto at = seconds_[m].emplace(curve.devices[i], curve.seconds[i]).first;
        at->second = std::min(at->second, curve.seconds[i]);
      }
    }
  }
  // ---- what is recomputed

  [[nodiscard]] static WaveKinds with(WaveKinds kinds, RecomputeKind recompute, int zero) {
    for (StrategySpec& spec : kinds.components) spec.recompute = recompute;
    kinds.zero = zero;
    return kinds;
  }
  /// Seconds of all passes through each component, on the fewest devices.
  [[nodiscard]] std::vector<double> component_seconds(const WaveKinds& kinds) {
    std::vector<double> out(kinds.components.size());
    const WaveProblem of = wave_problem(prices_, kinds);
    for (std::size_t m = 0; m < of.runs.size(); ++m)
      if (const spindle::MetaOp& metaop = of.problem.metaops[m]; metaop.curve.size() > 0)
        out[static_cast<std::size_t>(of.runs[m].component)] +=
            metaop.operators * metaop.curve.seconds.front() * metaop.curve.devices.front();
    return out;
  }
  /// Of kinds with plans that fit, components recompute as `less` says one after the other, those first that gain most,
  /// as long as plans are found that fit.
  void recompute_less(WaveKinds kinds, RecomputeKind less) {
    std::vector<double> gains = component_seconds(kinds);
    const std::vector<double> then = component_seconds(with(kinds, less, kinds.zero));
    std::vector<std::size_t> order;
    for (std::size_t c = 0; c < gains.size(); ++c) {
      gains[c] -= then[c];
      if (gains[c] > 0) order.push_back(c);
    }
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return gains[a] > gains[b]; });
    for (const std::size_t c : order) {
      WaveKinds next = kinds;
      next.components[c].recompute = less;
      const int before = tried_.fitting;
      try_all(next);
      if (tried_.fitting > before) kinds = std::move(next);
    }
  }

  // ---- plans

  /// Waves, tasks in sequence and tasks in groups under some kinds, with ZeRO-0 and ZeRO-1; whether all sorts fit. With
  /// ZeRO-2 and 3, which take less memory, there are only tasks in sequence.
  bool try_all(WaveKinds kinds) {
    if (kinds.zero >= 2) {  // all parts of a layer are on the same devices
      const WaveProblem of = wave_problem(prices_, kinds);
      const auto placed = in_order_on_equal_devices(of);
      if (placed) try_plan(of, kinds, *placed, TaskSchedule::sequence, tried_.in_sequence);
      return false;
    }
    kinds.zero = 1;
    const WaveProblem of = wave_problem(prices_, kinds);
    bool fits = try_plan(of, kinds, in_order(of), TaskSchedule::sequence, tried_.in_sequence);
    if (const auto grouped = in_groups(of, model_.tasks.size()))
      fits = try_plan(of, kinds, *grouped, TaskSchedule::groups, tried_.by_task) && fits;
    return (cannot_win(kinds) || try_waves(of, kinds)) && fits;
  }
  /// Whether the bound of all schedules under some kinds says that none of them is faster than the best plan by more
  /// than what moves, reductions and the update are taken to add. More recomputation is slower still.
  bool cannot_win(const WaveKinds& kinds) {
    if (!tried_.best) return false;
    WaveProblem of = wave_problem(prices_, kinds, true);
    for (std::size_t m = 0; m < of.runs.size(); ++m)
      of.problem.metaops[m].operators *= micro_.counts[static_cast<std::size_t>(of.runs[m].task)];
    return bound_of(of.problem) * least_beside_passes >= tried_.best->simulation.step.value;
  }

  /// Spindle's plans: on any numbers of devices; on powers of two, whose devices can be blocks; and with every pass
  /// whole. Gradients are reduced over the union of a layer's parts' devices: unions of blocks are closer together, and
  /// those of whole passes the same for all layers of a component. So they are, too, where gradients weigh more than
  /// their bytes.
  bool try_waves(const WaveProblem& any, const WaveKinds& kinds) {
    if (std::ranges::any_of(any.problem.metaops, [](const spindle::MetaOp& m) { return m.curve.size() == 0; }))
      return false;
    const auto plans_of = [&](const WaveProblem& of) {
      return spindle::plans_to_place(of.problem, of.terms, options_.limits);
    };
    const spindle::PlansToPlace plans = plans_of(any);
    bool fits = try_spindle(any, kinds, plans, false, 1);
    const WaveProblem powers = on_powers_of_two(any);
    const bool same = std::ranges::equal(
        any.problem.metaops, powers.problem.metaops, {}, [](const spindle::MetaOp& m) { return m.curve.size(); },
        [](const spindle::MetaOp& m) { return m.curve.size(); });
    const spindle::PlansToPlace on_powers = same ? plans : plans_of(powers);
    for (const double weight : {1.0, 8.0}) fits = try_spindle(powers, kinds, on_powers, true, weight) || fits;
    const WaveProblem passes = with_whole_passes(powers);
    return try_spindle(passes, kinds, plans_of(passes), true, 1) || fits;
  }
  /// @param in_blocks  parts are on blocks of devices  @param weight  of gradients
  bool try_spindle(const WaveProblem& of, const WaveKinds& kinds, const spindle::PlansToPlace& plans, bool in_blocks,
                   double weight) {
    spindle::Terms terms = of.terms;
    for (spindle::Sizes& sizes : terms.sizes) sizes.gradient_bytes *= weight;
    // A rough price of memory; that of try_plan is exact.
    terms.memory = static_cast<double>((budget_ - cluster_.device.library_workspace).count);
    bool fits = false;
    std::size_t tries = 0;
    for (spindle::PlacedPlan& placed : spindle::placed_plans(of.problem, terms, plans)) {
      if (tries++ == most_tries) break;
      if (in_blocks) place_in_blocks(of.problem.devices, placed.placement);
      fits = try_plan(of, kinds, {placed.plan.waves, placed.placement}, TaskSchedule::waves, tried_.in_waves) || fits;
    }
    return fits;
  }
  /// Keeps the plan if it is the fastest of those asked for that fits, with ZeRO-0 too where the kinds have ZeRO-1;
  /// whether it fits.
  bool try_plan(const WaveProblem& of, const WaveKinds& kinds, const PlacedWaves& placed, TaskSchedule schedule,
                Seconds& fastest) {
    WavePlan plan = wave_plan_of(prices_, kinds, of, placed.waves, placed.placement);
    bool fits = false;
    if (kinds.zero == 1) {
      plan.zero = 0;
      fits = try_plan(plan, kinds, schedule, fastest);
      plan.zero = 1;
    }
    return try_plan(std::move(plan), kinds, schedule, fastest) || fits;
  }
  bool try_plan(WavePlan waves, const WaveKinds& kinds, TaskSchedule schedule, Seconds& fastest) {
    const TaskOrder order = schedule == TaskSchedule::sequence ? TaskOrder::in_sequence : TaskOrder::in_waves;
    if (std::ranges::any_of(micro_.counts, [](int count) { return count > 1; })) waves.microbatches = micro_.counts;
    auto made = train::task_plan(model_, waves, order);
    if (!made && kinds.zero >= 2) return false;  // some layers have not the devices of the others
    const train::TaskPlan plan = value_or_throw(std::move(made));
    const train::TaskCosts costs(plan, layers_);
    const Bytes peak = std::ranges::max(peaks_of(plan, costs, options_.precision, cluster_));
    if (tried_.smallest.count == 0 || peak < tried_.smallest) tried_.smallest = peak;
    if (peak > budget_) return false;
    ++tried_.fitting;
    WaveSimulation simulation = simulate_waves(plan, costs, cluster_, options_.precision);
    if (fastest.value == 0 || simulation.step < fastest) fastest = simulation.step;
    const bool asked = options_.schedule == TaskSchedule::fastest || options_.schedule == schedule;
    if (asked && (!tried_.best || simulation.step < tried_.best->simulation.step))
      tried_.best = FoundWaves{std::move(waves), order, std::move(simulation), peak, {}, {}, {}, {}, {}, {}};
    return true;
  }

  // ---- pipelines

  /// Whether it fits.
  bool try_pipeline(const WaveKinds& kinds, int stages) {
    auto plan = pipeline_plan(prices_, kinds, micro_, stages);
    return plan && try_plan(std::move(*plan), kinds, TaskSchedule::pipeline, tried_.pipelined);
  }

  const MultiTaskModel& model_;
  const MicroBatched& micro_;
  const Cluster& cluster_;
  WaveSearchOptions options_;
  Bytes budget_;
  train::LayerCosts& layers_;
  WavePrices prices_;
  TriedWaves& tried_;
  spindle::Problem least_;                      // with the best of all curves
  std::vector<std::map<int, double>> seconds_;  // of each MetaOp and number of devices
};

}  // namespace detail

/// The fastest plan that was found, never slower than tasks in sequence unless another schedule is asked for. The
/// answer depends on the arguments alone. Errors (usage): those of checked(); (infeasible): nothing fits into the
/// memory of the devices.
inline Result<FoundWaves> find_waves(const MultiTaskModel& model, const Cluster& cluster,
                                     const WaveSearchOptions& options = {}) {
  const auto begin = std::chrono::steady_clock::now();
  const auto graphs = task_graphs(model);
  if (!graphs) return tl::unexpected<Error>(graphs.error());
  train::LayerCosts layers(options.precision);
  detail::TriedWaves tried;
  std::optional<Seconds> bound;
  std::vector<int> counts;
  bool enough = false;  // plans fit in which nothing is recomputed: smaller micro-batches save nothing
  for (const int most : {1, 2, 8}) {
    const auto micro = MicroBatched::of(model, *graphs, most);
    if (micro.counts == counts) continue;
    counts = micro.counts;
    detail::WaveSearch search(model, micro, *graphs, cluster, options, layers, tried);
    // Smaller micro-batches instead of much recomputation, where something fits at all.
    if (!enough) enough = most > 1 && tried.best ? search.run(2) : search.run();
    if (!bound) bound = search.bound();
    if (most > 2 && cluster.devices > 1 && tried.split) search.run_pipelines();
  }
  if (!tried.best) {
    const Bytes budget = options.memory.count > 0 ? options.memory : cluster.device.memory;
    const bool other = tried.smallest.count > 0 && tried.smallest <= budget;
    return tl::unexpected<Error>(Error{
        ErrorKind::infeasible,
        other ? std::string("no plan of the schedule ") + name_of(options.schedule) + " was found for " +
                    std::to_string(model.tasks.size()) + " tasks on " + std::to_string(cluster.devices) +
                    " devices, and one of another schedule was; take that, or more devices"
              : "no plan of waves was found that fits into " + format_bytes(budget) + " a device; the smallest takes " +
                    format_bytes(tried.smallest) + ", take more devices, smaller batches or more memory"});
  }
  FoundWaves out = std::move(*tried.best);
  out.bound = std::min(*bound, out.simulation.step);
  out.in_waves = tried.in_waves;
  out.in_sequence = tried.in_sequence;
  out.by_task = tried.by_task;
  out.pipelined = tried.pipelined;
  out.search = {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
  return out;
}

}  // namespace galvatron::simulate
