// One micro-batch by its group sizes: every multiset of options is a case, most of which a bound closes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/flexsp/assignment.hpp>
#include <galvatron/flexsp/blaster.hpp>
#include <galvatron/flexsp/bound.hpp>
#include <galvatron/flexsp/packing.hpp>

namespace galvatron::flexsp {

/// How many groups of each option a micro-batch has.
using Sizes = std::vector<int>;

/// All multisets of options whose degrees add up to N, or to less where N cannot be reached by a further group; at most
/// `most` of them, those with large groups first.
inline std::vector<Sizes> all_sizes(const Instance& instance, std::size_t most) {
  std::vector<Sizes> out;
  Sizes sizes(instance.options());
  const auto fill = [&](const auto& self, std::size_t option, int free) -> void {
    if (out.size() >= most) return;
    if (option == 0) {
      const int degree = instance.degree(0);
      sizes[0] = free / degree;
      out.push_back(sizes);
      return;
    }
    for (int count = free / instance.degree(static_cast<int>(option)); count >= 0; --count) {
      sizes[option] = count;
      self(self, option - 1, free - count * instance.degree(static_cast<int>(option)));
    }
  };
  if (instance.options() > 0) fill(fill, instance.options() - 1, instance.devices());
  return out;
}

/// Finds a fast micro-batch for all documents of an instance, and the fastest where it proves that.
///
///     every multiset of sizes       list scheduling, stopped at the best so far
///     of these, bound < best        by ascending bound: local search, some groups at a time by branch and bound
///     of these, bound < best        branch and bound of the whole
///     of these, not proven          local search anew after random exchanges
class Sweep {
 public:
  /// @param known  seconds of a micro-batch that is known: only faster ones are looked for
  Sweep(const Instance& instance, Work& work, double known = most_seconds)
      : instance_(instance), work_(work), seconds_(known) {
    documents_.resize(static_cast<std::size_t>(instance.documents()));
    std::iota(documents_.begin(), documents_.end(), 0);
  }

  /// @param attempts  of local search, in a row, without success  @param nodes  of branch and bound of a multiset
  /// @param shakes  random exchanges of documents, after each of which local search starts anew, for each multiset
  void operator()(std::mt19937_64& random, int attempts, std::int64_t nodes, int shakes = 0) {
    const std::vector<Sizes> all = all_sizes(instance_, most_sizes);
    Packing packing;
    for (const Sizes& sizes : all) {
      if (!work_.is_left()) return;
      if (may_end_within(sizes, std::min(seconds_ * nearly_one, most_seconds)) && schedule(sizes, seconds_, packing))
        offer(packing);
    }
    for (std::size_t k = 0; k < all.size() && seconds_ >= most_seconds && work_.is_left(); ++k)
      assign(all[k], nodes);  // it may fit all the same
    if (attempts == 0 || seconds_ >= most_seconds) return;
    std::vector<std::pair<double, std::size_t>> order;
    for (std::size_t k = 0; k < all.size() && work_.is_left(); ++k)
      if (const double least = bound(all[k], seconds_); least < seconds_) order.emplace_back(least, k);
    std::ranges::sort(order);
    const auto is_open = [&](double least) { return least < seconds_ * nearly_one && work_.is_left(); };
    std::vector<Packing> packings(order.size());
    for (std::size_t at = 0; at < order.size(); ++at)
      if (is_open(order[at].first) && schedule(all[order[at].second], most_seconds, packings[at]))
        improve(packings[at], random, attempts);
    for (auto& [least, k] : order) {
      Answer answer = Answer::yes;
      while (nodes > 0 && is_open(least) && answer == Answer::yes) answer = assign(all[k], nodes);
      if (answer == Answer::no) least = most_seconds;
    }
    for (std::size_t at = 0; at < order.size(); ++at)
      for (int turn = 0; turn < shakes && is_open(order[at].first); ++turn) {
        Packing shaken = packings[at];
        if (shaken.bins.size() < 2) break;
        shake(shaken, random);
        improve(shaken, random, attempts);
        if (shaken.total(instance_, 1) < packings[at].total(instance_, 1)) packings[at] = std::move(shaken);
      }
  }

  static constexpr double most_seconds = 1e30;

  [[nodiscard]] bool found() const { return !best_.bins.empty(); }
  [[nodiscard]] const Packing& best() const { return best_; }
  [[nodiscard]] double seconds() const { return seconds_; }

  /// Seconds that these sizes take at least: documents that fit only groups of some degree on need the device-seconds
  /// and the tokens of these groups. By bisection, as everything falls with the seconds.
  [[nodiscard]] double bound(const Sizes& sizes, double known) {
    double low = instance_.least_seconds();
    double high = known;
    if (!may_end_within(sizes, high)) return known;
    while (high - low > 1e-6 * high) {
      const double middle = (low + high) / 2;
      (may_end_within(sizes, middle) ? high : low) = middle;
    }
    return low;
  }

  /// List scheduling (longest first): each document goes where its group's end is soonest. Stops, with false, when a
  /// group ends at `known` or later.
  bool schedule(const Sizes& sizes, double known, Packing& out) {
    open(sizes, out);
    for (const int i : documents_) {
      Bin* best = nullptr;
      double soonest = known;
      work_.take(static_cast<std::int64_t>(out.bins.size()));
      for (Bin& bin : out.bins) {
        const double finish = bin.finish + instance_.cost(bin.option, i);
        if (finish < soonest && fits(instance_, bin, i)) {
          soonest = finish;
          best = &bin;
        }
      }
      if (best == nullptr) return false;
      put(instance_, *best, i);
    }
    out.sort();
    return true;
  }

 private:
  static constexpr std::size_t most_sizes = 20'000;
  static constexpr double nearly_one = 1 - 1e-9;

  void offer(const Packing& packing) {
    const double seconds = packing.total(instance_, 1);
    if (seconds >= seconds_) return;
    seconds_ = seconds;
    best_ = packing;
  }

  // Lowers the slowest groups of a packing, with some others.
  void improve(Packing& packing, std::mt19937_64& random, int attempts) {
    constexpr std::int64_t nodes = 3000;
    std::vector<std::size_t> chosen;
    std::vector<int> documents;
    std::vector<Bin> bins;
    for (int failures = 0; failures < attempts && work_.is_left();) {
      double slowest = 0;
      for (const Bin& bin : packing.bins)
        if (!bin.documents.empty()) slowest = std::max(slowest, bin.finish);
      chosen.clear();
      for (std::size_t p = 0; p < packing.bins.size(); ++p)
        if (!packing.bins[p].documents.empty() && packing.bins[p].finish >= slowest * nearly_one) chosen.push_back(p);
      chosen.assign(1, chosen[random() % chosen.size()]);
      const std::size_t wanted = std::min<std::size_t>(2 + random() % 3, packing.bins.size());
      while (chosen.size() < wanted) {
        const std::size_t p = random() % packing.bins.size();
        if (std::ranges::find(chosen, p) == chosen.end()) chosen.push_back(p);
      }
      documents.clear();
      bins.clear();
      for (const std::size_t p : chosen) {
        const Bin& bin = packing.bins[p];
        documents.insert(documents.end(), bin.documents.begin(), bin.documents.end());
        bins.push_back({bin.option, 0, instance_.fixed(bin.option), 0, {}});
      }
      std::ranges::sort(documents);
      const double target = slowest * nearly_one;
      Assignment assignment(instance_, bins, documents, std::span(&target, 1));
      const bool yes = assignment(nodes) == Answer::yes;
      work_.take((nodes - assignment.nodes_left()) * static_cast<std::int64_t>(bins.size()) +
                 static_cast<std::int64_t>(documents.size() + packing.bins.size()));
      if (yes)
        for (std::size_t k = 0; k < chosen.size(); ++k) packing.bins[chosen[k]] = std::move(bins[k]);
      failures = yes ? 0 : failures + 1;
      offer(packing);
    }
  }

  // Exchanges some documents at random where memory allows, so that local search goes on elsewhere.
  void shake(Packing& packing, std::mt19937_64& random) const {
    std::vector<Bin>& bins = packing.bins;
    for (std::size_t turn = 2 + random() % 4; turn > 0; --turn) {
      Bin& a = bins[random() % bins.size()];
      Bin& b = bins[random() % bins.size()];
      if (&a == &b || a.documents.empty() || b.documents.empty()) continue;
      const int i = take(instance_, a, random() % a.documents.size());
      const int j = take(instance_, b, random() % b.documents.size());
      const bool exchanges = fits(instance_, a, j) && fits(instance_, b, i);
      put(instance_, a, exchanges ? j : i);
      put(instance_, b, exchanges ? i : j);
    }
    packing.sort();
  }

  // yes: branch and bound found a faster micro-batch of these sizes; no: there is none.
  Answer assign(const Sizes& sizes, std::int64_t nodes) {
    Packing packing;
    open(sizes, packing);
    const double target = seconds_ * nearly_one;
    Assignment assignment(instance_, packing.bins, documents_, std::span(&target, 1));
    const Answer answer = assignment(std::min(nodes, work_.left()));
    work_.take((nodes - assignment.nodes_left()) * static_cast<std::int64_t>(packing.bins.size()));
    const double before = seconds_;
    if (answer == Answer::yes) offer(packing);
    return answer == Answer::yes && seconds_ >= before ? Answer::no : answer;
  }

  void open(const Sizes& sizes, Packing& out) const {
    out.bins.clear();
    for (int o = static_cast<int>(instance_.options()); o-- > 0;)
      for (int k = 0; k < sizes[static_cast<std::size_t>(o)]; ++k) out.open(instance_, o, 0);
  }

  [[nodiscard]] bool may_end_within(const Sizes& sizes, double seconds) {
    // From the largest option down: what is left of the device-seconds and the tokens of these groups.
    const int options = static_cast<int>(instance_.options());
    area_.assign(instance_.options(), 0);
    tokens_.assign(instance_.options(), 0);
    work_.take(instance_.documents());
    for (const int i : documents_) {
      // The least option that is there and fits, and the least area of those that do.
      int first = -1;
      double least = std::numeric_limits<double>::infinity();
      for (int o = 0; o < options; ++o) {
        if (sizes[static_cast<std::size_t>(o)] == 0 || !instance_.fits(o, i, seconds)) continue;
        if (first < 0) first = o;
        least = std::min(least, instance_.area(o, i));
      }
      if (first < 0) return false;
      area_[static_cast<std::size_t>(first)] += least;
      tokens_[static_cast<std::size_t>(first)] += instance_.tokens(i);
    }
    double area = 0;
    std::int64_t tokens = 0;
    for (int o = options; o-- > 0;) {
      const auto at = static_cast<std::size_t>(o);
      area += sizes[at] * instance_.degree(o) * std::max(0.0, seconds - instance_.fixed(o)) - area_[at];
      tokens += sizes[at] * instance_.capacity(o) - tokens_[at];
      if (area < 0 || tokens < 0) return false;
    }
    return true;
  }

  const Instance& instance_;
  Work& work_;
  double seconds_;
  Packing best_;
  std::vector<int> documents_;
  std::vector<double> area_;
  std::vector<std::int64_t> tokens_;
};

/// Seconds of a batch by what FlexSP published, with list scheduling over all group sizes for its MILP: the blaster's
/// cut into M_min to M_min + 4 parts, each part's fastest micro-batch, the best number of parts. Infinity where none
/// holds the documents.
inline double swept_seconds(const Problem& problem, std::span<const std::int64_t> lengths) {
  constexpr int further = 4;
  const Instance whole(problem, lengths);
  std::mt19937_64 random(1);
  double best = Sweep::most_seconds;
  const int least = Bound(whole).least_parts();
  int last = least + further;
  for (int parts = least; parts <= std::min(last, whole.documents()); ++parts) {
    double total = 0;
    std::size_t begin = 0;
    for (const std::size_t end : blast(whole.lengths(), parts).ends) {
      const Instance part(problem, whole.lengths().subspan(begin, end - begin));
      Work work(std::numeric_limits<std::int64_t>::max());
      Sweep sweep(part, work);
      sweep(random, 0, 0);
      total += sweep.seconds();
      begin = end;
    }
    if (total >= Sweep::most_seconds) {
      if (best >= Sweep::most_seconds) ++last;
      continue;
    }
    best = std::min(best, total);
  }
  return best >= Sweep::most_seconds ? std::numeric_limits<double>::infinity() : best;
}

}  // namespace galvatron::flexsp
