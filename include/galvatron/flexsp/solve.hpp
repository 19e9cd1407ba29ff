// The solver: micro-batches, group sizes and assignment of a batch, all at once.
//
// First-fit packs all documents at once for targets (C_1, C, .., C) of the micro-batches: C_1 over the seconds at which
// the longest documents fit a smaller group, C by bisection. The published cut into parts of even tokens (blaster.hpp)
// is one more start. Local search (repair.hpp) then lowers one micro-batch's target, also at the expense of another.
// With more work, single micro-batches are solved over all their group sizes (sweep.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/flexsp/blaster.hpp>
#include <galvatron/flexsp/bound.hpp>
#include <galvatron/flexsp/packing.hpp>
#include <galvatron/flexsp/placement.hpp>
#include <galvatron/flexsp/repair.hpp>
#include <galvatron/flexsp/sweep.hpp>

namespace galvatron::flexsp {

/// What a solver may do: counts, so that a plan depends on its input and the seed alone.
struct Limits {
  std::int64_t work = 0;       ///< steps of inner loops, some nanoseconds each, for up to 512 documents
  std::int64_t most_work = 0;  ///< work grows with the square of the documents, up to this
  int starts = 0;              ///< first-fit packings with random targets
  int kept = 1;                ///< of all starts, those that local search works on
  int attempts = 0;            ///< of local search, in a row, without success
  bool sweep = false;          ///< solve single micro-batches over all their group sizes
  int bound_ranges = 0;        ///< that the lower bound may split
  int bound_steps = 0;         ///< of its multipliers in each
  std::int64_t bound_work = 0;
  std::uint64_t seed = 1;
  std::int64_t nodes = 0;  ///< of branch and bound over a micro-batch of few documents and given sizes

  [[nodiscard]] constexpr std::int64_t work_of(std::int64_t documents) const {
    const std::int64_t times = (documents + 511) / 512;
    return std::min(work * times * times, std::max(work, most_work));
  }
  /// About 10 ms for 512 documents on 64 devices.
  static constexpr Limits quick(std::uint64_t seed = 1) {
    return {2'000'000, 150'000'000, 48, 1, 10, false, 60, 50, 3'000'000, seed, 0};
  }
  /// About a second.
  static constexpr Limits thorough(std::uint64_t seed = 1) {
    return {200'000'000, 400'000'000, 12'000, 4, 60, true, 3000, 100, 350'000'000, seed, 5'000'000};
  }
};

namespace detail {

class BatchSolver {
 public:
  /// @param parts  micro-batches; 0: any number
  BatchSolver(const Instance& instance, const Limits& limits, int parts)
      : instance_(instance),
        bound_(instance),
        limits_(limits),
        wanted_(parts),
        work_(limits.work_of(instance.documents())),
        random_(limits.seed),
        powers_(has_powers_only(instance.problem())),
        all_(static_cast<std::size_t>(instance.documents())) {
    std::iota(all_.begin(), all_.end(), 0);
  }

  void operator()() {
    start_all();
    if (!found() && wanted_ == 0) start_alone();
    if (!found()) return;
    for (std::size_t k = 0; k < pool_.size(); ++k) improve(k, work_.left() / (limits_.sweep ? 2 : 1));
    settle();
    if (!can_sweep()) return;
    for (bool better = true; better && work_.is_left();) {
      const double before = seconds();
      sweep_parts();
      improve(0, work_.left());
      better = seconds() < before * (1 - 1e-9);
    }
  }

  /// A plan that is known, of whatever options.
  void offer(Packing packing, int parts) {
    const double seconds = packing.total(instance_, parts);
    const bool full = pool_.size() == static_cast<std::size_t>(limits_.kept);
    if (full && seconds >= pool_.back().seconds) return;
    if (std::ranges::any_of(pool_,
                            [&](const Candidate& one) { return std::abs(one.seconds - seconds) < 1e-9 * seconds; }))
      return;
    if (!powers_ && !can_be_placed(packing, parts)) return;
    if (full) pool_.pop_back();
    packing.sort();
    pool_.push_back({seconds, parts, std::move(packing)});
    settle();
  }
  [[nodiscard]] bool found() const { return !pool_.empty(); }
  [[nodiscard]] double seconds() const {
    return found() ? pool_.front().seconds : std::numeric_limits<double>::infinity();
  }
  [[nodiscard]] const Packing& best() const { return pool_.front().packing; }
  [[nodiscard]] int parts() const { return pool_.front().parts; }
  [[nodiscard]] const Bound& bound() const { return bound_; }
  [[nodiscard]] const Work& work() const { return work_; }

 private:
  struct Candidate {
    double seconds;
    int parts;
    Packing packing;
  };
  static constexpr int most_further = 4;  // numbers of micro-batches beyond the first that works, as published
  static constexpr int halvings = 8;
  static constexpr double nearly = 1.01;  // starts that are not much slower than the best serve as well

  void settle() { std::ranges::stable_sort(pool_, std::ranges::less(), &Candidate::seconds); }
  [[nodiscard]] bool can_be_placed(const Packing& packing, int parts) const {
    std::vector<std::vector<int>> degrees(static_cast<std::size_t>(parts));
    for (const Bin& bin : packing.bins)
      if (!bin.documents.empty()) degrees[static_cast<std::size_t>(bin.part)].push_back(instance_.degree(bin.option));
    return std::ranges::all_of(degrees, [&](std::vector<int>& part) {
      std::ranges::sort(part, std::ranges::greater());
      return place(instance_.problem(), part).has_value();
    });
  }

  // ---- starts

  void start_all() {
    const int first = wanted_ > 0 ? wanted_ : bound_.least_parts();
    const int last = wanted_ > 0 ? wanted_ : instance_.documents();
    int further = 0;
    for (int parts = first; parts <= last; ++parts) {
      if (found() && (further++ == most_further || bound_.simple(parts) >= seconds())) break;
      if (parts > 1 && parts <= instance_.documents()) start_cut(parts);
      start(parts);
      if (!found() && parts == 1 && can_sweep()) start_by_sizes();
      if (!found() && parts > 2 * first + 8) parts += parts / 4;
    }
  }

  // Packings for targets of the slowest micro-batch: where one of the longest documents fits alone in some option, and
  // random ones.
  void start(int parts) {
    constexpr int longest = 96;
    const double least = bound_.soonest();
    std::vector<double> all;
    for (int i = 0; i < std::min(instance_.documents(), longest); ++i)
      for (int o = 0; o < static_cast<int>(instance_.options()); ++o) {
        const double alone = instance_.fixed(o) + instance_.cost(o, i);
        if (instance_.tokens(i) <= instance_.capacity(o) && alone >= least) all.push_back(alone * (1 + 1e-12));
      }
    const double even = std::max(least, bound_.simple(parts) / parts);
    for (int k = 0; k <= limits_.starts; ++k) all.push_back(even * (1 + static_cast<double>(k) / limits_.starts));
    std::ranges::sort(all);
    std::vector<double> apart;
    for (const double one : all)
      if (apart.empty() || one > apart.back() * 1.005) apart.push_back(one);
    const auto most = static_cast<std::size_t>(limits_.starts);
    const std::size_t count = std::min(most, apart.size());
    for (std::size_t k = 0; k < count; ++k)
      start_from(parts, apart[count < 2 ? 0 : k * (apart.size() - 1) / (count - 1)], 0, {});
    // Half of the work is for what comes after them.
    const std::int64_t enough = limits_.work_of(instance_.documents()) / 2;
    for (int k = 0; k < limits_.starts && work_.left() > enough; ++k) {
      const double slope = parts < 3 ? 0 : draw() < 0.5 ? draw() : 0.3 * draw();
      start_from(parts, even * (1 + draw()), slope, {.headroom = 0.5 + 0.5 * draw()});
    }
  }
  // [0, 1)
  double draw() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  // The targets of the micro-batches behind the first fall from e^slope C to e^-slope C, by the same factor each; C by
  // bisection.
  void start_from(int parts, double first, double slope, const FitRule& rule) {
    std::vector<double> targets(static_cast<std::size_t>(parts), first);
    double low = instance_.least_seconds();
    double high = parts > 1 ? std::min(first, (nearly * seconds() - first) / (parts - 1)) : first;
    for (int turn = 0; turn < halvings && low < high * 0.999 && work_.is_left(); ++turn) {
      const double middle = turn == 0 ? high : (low + high) / 2;
      for (int m = 1; m < parts; ++m)
        targets[static_cast<std::size_t>(m)] =
            std::min(first, middle * std::exp(slope * (parts > 2 ? 1 - 2.0 * (m - 1) / (parts - 2) : 0)));
      const bool fits = fit(targets, rule);
      if (parts == 1 || (turn == 0 && !fits)) break;
      (fits ? high : low) = middle;
    }
  }
  // Documents that found no place are forced in, and count as over. Whether all found one.
  bool fit(std::span<const double> targets, const FitRule& rule) {
    std::vector<FreeDevices> free(targets.size(), FreeDevices(instance_.problem(), powers_));
    std::vector<int> left;
    Packing out;
    work_.take(instance_.documents() * 4);
    FirstFit(instance_, targets, free, rule, work_)(all_, out, left);
    if (!left.empty() && !force(instance_, left, targets, out, work_)) return false;
    offer(std::move(out), static_cast<int>(targets.size()));
    return left.empty();
  }

  // The published cut, each part solved alone: by first-fit, and by its group sizes where that may be the fastest.
  void start_cut(int parts) {
    const Blast blasted = blast(instance_.lengths(), parts);
    std::vector<Instance> instances;
    double least = 0;
    std::size_t begin = 0;
    for (const std::size_t end : blasted.ends) {
      const Instance part(instance_.problem(), instance_.lengths().subspan(begin, end - begin));
      least += Bound(part).simple(1);
      instances.push_back(part);
      begin = end;
    }
    if (least >= nearly * seconds()) return;
    Packing all;
    begin = 0;
    for (int m = 0; m < parts; ++m) {
      const Instance& part = instances[static_cast<std::size_t>(m)];
      Limits limits = limits_;
      limits.kept = 1;
      limits.starts = 16;
      BatchSolver solver(part, limits, 1);
      solver.work_ = work_;
      solver.start(1);
      if (can_sweep() && solver.found()) solver.sweep_part(0, 0);
      work_ = solver.work_;
      if (!solver.found()) return;
      for (Bin bin : solver.best().bins) {
        bin.part = m;
        for (int& document : bin.documents) document += static_cast<int>(begin);
        all.bins.push_back(std::move(bin));
      }
      begin = blasted.ends[static_cast<std::size_t>(m)];
    }
    offer(all, parts);
  }

  // All documents in one micro-batch, where first-fit packs no others.
  void start_by_sizes() {
    Work work(work_.left() / 2);
    const std::int64_t before = work.left();
    Sweep sweep(instance_, work);
    sweep(random_, limits_.attempts, 200'000);
    work_.take(before - work.left());
    if (sweep.found()) offer(sweep.best(), 1);
  }

  // Every document in a micro-batch of its own: what is left where memory is short.
  void start_alone() {
    Packing out;
    for (int i = 0; i < instance_.documents(); ++i) {
      int best = -1;
      for (int o = 0; o < static_cast<int>(instance_.options()); ++o)
        if (instance_.tokens(i) <= instance_.capacity(o) &&
            (best < 0 || instance_.fixed(o) + instance_.cost(o, i) < instance_.fixed(best) + instance_.cost(best, i)))
          best = o;
      if (best < 0) return;
      out.open(instance_, best, i);
      put(instance_, out.bins.back(), i);
    }
    offer(out, instance_.documents());
  }

  // ---- local search

  // Lowers the targets of a candidate's micro-batches, by ever smaller steps.
  void improve(std::size_t candidate, std::int64_t steps) {
    const std::int64_t end = work_.left() - steps;
    Candidate& one = pool_[candidate];
    const auto is_left = [&] { return work_.is_left() && work_.left() > end; };
    for (double step = 0.02; step > 1e-4 && is_left();) {
      const double before = one.seconds;
      for (int m = 0; m < one.parts; ++m)
        for (int k = -1; k < one.parts && is_left(); ++k)
          if (k != m) lower(one, m, k, step * one.seconds);
      if (one.seconds >= before) step /= 2;
    }
  }
  // Lowers micro-batch m, at the expense of k unless that is -1.
  void lower(Candidate& one, int m, int k, double amount) {
    std::vector<double> targets = one.packing.seconds(instance_, one.parts);
    double& lowered = targets[static_cast<std::size_t>(m)];
    lowered -= (k < 0 ? 1 : 2) * amount;
    if (k >= 0) targets[static_cast<std::size_t>(k)] += amount;
    if (lowered <= instance_.least_seconds()) return;
    Packing packing = one.packing;
    work_.take(static_cast<std::int64_t>(packing.bins.size()) * 16 + instance_.documents());  // the copy
    if (Repair(instance_, packing, targets, random_, work_)(limits_.attempts)) replace(one, std::move(packing));
  }
  void replace(Candidate& one, Packing packing) const {
    const double seconds = packing.total(instance_, one.parts);
    if (seconds >= one.seconds || (!powers_ && !can_be_placed(packing, one.parts))) return;
    one.seconds = seconds;
    one.packing = std::move(packing);
  }

  // ---- group sizes

  // Multisets of any degrees, or of many devices, are too many.
  [[nodiscard]] bool can_sweep() const { return limits_.sweep && powers_ && instance_.options() <= 7; }

  void sweep_parts() {
    for (int m = 0; m < parts() && work_.is_left(); ++m)
      sweep_part(m, instance_.documents() <= 128 ? 4 * limits_.attempts : limits_.attempts / 4);
  }
  // Solves micro-batch m of the best candidate anew over all its group sizes.
  void sweep_part(int m, int attempts) {
    constexpr int few = 64;
    Candidate& one = pool_.front();
    std::vector<int> documents;
    Packing packing;
    for (const Bin& bin : one.packing.bins)
      if (bin.part == m)
        documents.insert(documents.end(), bin.documents.begin(), bin.documents.end());
      else
        packing.bins.push_back(bin);
    if (documents.empty()) return;
    std::ranges::sort(documents);
    std::vector<std::int64_t> lengths;
    for (const int i : documents) lengths.push_back(instance_.tokens(i));
    const Instance part(instance_.problem(), lengths);
    Work work(work_.left() / (one.parts - m));
    const std::int64_t before = work.left();
    Sweep sweep(part, work, one.packing.seconds(instance_, one.parts)[static_cast<std::size_t>(m)]);
    const bool small = part.documents() <= few;
    sweep(random_, attempts, small ? limits_.nodes : 0, small && attempts > 0 ? limits_.attempts / 8 : 0);
    work_.take(before - work.left());
    if (!sweep.found()) return;
    for (Bin bin : sweep.best().bins) {
      bin.part = m;
      for (int& document : bin.documents) document = documents[static_cast<std::size_t>(document)];
      packing.bins.push_back(std::move(bin));
    }
    replace(one, std::move(packing));
  }

  const Instance& instance_;
  Bound bound_;
  Limits limits_;
  int wanted_;
  Work work_;
  std::mt19937_64 random_;
  bool powers_;
  std::vector<int> all_;         // documents
  std::vector<Candidate> pool_;  // the fastest first
};

}  // namespace detail

/// The plan of a packing. Micro-batches without documents are left out, and groups.
inline BatchPlan plan_of(const Instance& instance, const Packing& packing, int parts) {
  BatchPlan out;
  std::vector<MicroBatch> microbatches(static_cast<std::size_t>(parts));
  for (const Bin& bin : packing.bins) {
    if (bin.documents.empty()) continue;
    Group group{.option = bin.option, .lengths = {}, .seconds = 0};
    for (const int i : bin.documents) group.lengths.push_back(instance.tokens(i));
    std::ranges::sort(group.lengths, std::ranges::greater());
    const GroupOption& option = instance.problem().options[static_cast<std::size_t>(bin.option)];
    group.seconds = group_seconds(option, group.lengths);
    MicroBatch& one = microbatches[static_cast<std::size_t>(bin.part)];
    one.seconds = std::max({one.seconds, group.seconds, instance.problem().floor});
    one.groups.push_back(std::move(group));
  }
  for (MicroBatch& one : microbatches) {
    if (one.groups.empty()) continue;
    std::ranges::stable_sort(one.groups, [&](const Group& a, const Group& b) {
      const int degree_a = instance.degree(a.option);
      const int degree_b = instance.degree(b.option);
      return degree_a != degree_b ? degree_a > degree_b : a.lengths > b.lengths;
    });
    out.seconds += one.seconds;
    out.microbatches.push_back(std::move(one));
  }
  return out;
}

/// Makes a plan a packing of an instance of a problem with the same options and more.
inline Packing packing_of(const Instance& instance, const Problem& of_plan, const BatchPlan& plan) {
  Packing out;
  std::vector<bool> taken(static_cast<std::size_t>(instance.documents()));
  for (std::size_t m = 0; m < plan.microbatches.size(); ++m)
    for (const Group& group : plan.microbatches[m].groups) {
      const GroupOption& wanted = of_plan.options[static_cast<std::size_t>(group.option)];
      const auto& options = instance.problem().options;
      const auto at = std::ranges::find_if(options, [&](const GroupOption& option) {
        return option.degree == wanted.degree && option.sequence == wanted.sequence;
      });
      out.open(instance, static_cast<int>(at - options.begin()), static_cast<int>(m));
      for (const std::int64_t tokens : group.lengths) {
        const auto lengths = instance.lengths();
        auto i = static_cast<std::size_t>(std::ranges::lower_bound(lengths, tokens, std::ranges::greater()) -
                                          lengths.begin());
        while (taken[i]) ++i;
        taken[i] = true;
        put(instance, out.bins.back(), static_cast<int>(i));
      }
    }
  out.sort();
  return out;
}

/// A fast plan for a batch, with a bound of how fast any could be; nothing where a document fits no group, or where
/// there are none. Deterministic.
/// @param lengths  tokens of each document, each of [1, longest_document]
/// @param microbatches  how many; 0: any number
/// A template, so that a program may take it compiled (flexsp/compiled.hpp).
template <class = void>
std::optional<BatchPlan> solve(const Problem& problem, std::span<const std::int64_t> lengths,
                               const Limits& limits = Limits::quick(), int microbatches = 0) {
  if (lengths.empty() || *std::ranges::max_element(lengths) > problem.longest()) return std::nullopt;
  const Instance instance(problem, lengths);
  detail::BatchSolver solver(instance, limits, microbatches);
  // Any degrees are no worse than powers of two alone, which are easier to search.
  if (const Problem simpler = powers_of(problem); simpler.options.size() < problem.options.size()) {
    const Instance powers(simpler, lengths);
    detail::BatchSolver first(powers, limits, microbatches);
    if (*std::ranges::max_element(lengths) <= simpler.longest()) first();
    if (first.found()) {
      const BatchPlan plan = plan_of(powers, first.best(), first.parts());
      solver.offer(packing_of(instance, simpler, plan), static_cast<int>(plan.microbatches.size()));
    }
  }
  solver();
  if (!solver.found()) return std::nullopt;
  BatchPlan out = plan_of(instance, solver.best(), solver.parts());
  const Bound& bound = solver.bound();
  out.bound = std::min(
      out.seconds, microbatches > 0 ? bound.simple(microbatches)
                                    : bound(out.seconds, limits.bound_ranges, limits.bound_steps, limits.bound_work));
  return out;
}

}  // namespace galvatron::flexsp
