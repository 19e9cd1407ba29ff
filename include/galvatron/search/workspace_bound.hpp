// A bound for problems of one stage that knows the largest workspace and the choices of the ends.
//
// A stage needs what its layers keep and the largest of their workspaces. Fast choices often have large ones (ZeRO-3
// gathers the parameters of a layer, a head its logits), which bounds that take the least of all workspaces miss. Here
// the largest is guessed: if it lies between w and w', choices beyond w' are not there, and w is taken of the memory.
// Every assignment belongs to one of the guesses, so that the least of their bounds holds. The guess with the least
// bound is cut in two until it is one size.
//
// In a guess with memory M, for any price q >= 0 of a byte, all layers take at least
//
//     sum over the layers of min over choices (seconds + q bytes) - q M
//
// where tied ends, which must go together, are a term of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <galvatron/search/problem.hpp>
#include <galvatron/search/segments.hpp>
#include <galvatron/search/ties.hpp>

namespace galvatron::search {

class WorkspaceBound {
 public:
  static constexpr double infinite = std::numeric_limits<double>::infinity();

  /// Assignments whose largest workspace of a choice is one of some sizes.
  struct Guess {
    std::int64_t least = 0;  ///< bytes, of all these sizes
    std::int64_t most = std::numeric_limits<std::int64_t>::max();
    double bound = infinite;

    /// Both together.
    [[nodiscard]] Guess with(const Guess& other) const {
      return {std::min(least, other.least), std::max(most, other.most), std::min(bound, other.bound)};
    }
  };

  /// @param problem     with one stage
  /// @param once_share  seconds per micro-batch that one second once an iteration counts for
  /// @param ends        the choices of the ends; a single one without a tag when they are not tied
  /// @param enough      the bound need not be larger
  WorkspaceBound(const Problem& problem, double once_share, const std::vector<Tie>& ends, double enough = infinite)
      : p_(problem), once_share_(once_share) {
    const bool tied = problem.tied && problem.count() > 1;
    if (tied)
      for (const Tie& both : ends) ends_.push_back(term_of(both));
    count_layers(tied ? 1 : 0);
    find_sizes();
    if (sizes_.empty() || ends.empty()) return;
    for (std::size_t k = 0; k < first_guesses; ++k)
      add(k * sizes_.size() / first_guesses, (k + 1) * sizes_.size() / first_guesses);
    for (int round = 0; round < refinements && !parts_.empty(); ++round) {
      const auto least = std::min_element(parts_.begin(), parts_.end(),
                                          [](const Part& a, const Part& b) { return a.guess.bound < b.guess.bound; });
      const std::size_t from = least->from;
      const std::size_t to = least->to;
      if (to - from < 2 || least->guess.bound >= enough) break;
      parts_.erase(least);
      add(from, (from + to) / 2);
      add((from + to) / 2, to);
    }
  }

  /// The least sum over all layers of seconds + once_share * once, or less; infinite when nothing fits.
  [[nodiscard]] double seconds() const {
    double out = infinite;
    for (const Part& part : parts_) out = std::min(out, part.guess.bound);
    return out;
  }
  /// The guesses by size, with the bounds of assignments with these ends; those without one left out.
  /// @param ends  number of the ends; not used where they are not tied
  [[nodiscard]] std::vector<Guess> guesses(std::size_t ends) const {
    std::vector<Guess> out;
    for (const Part& part : parts_) {
      Guess guess = part.guess;
      if (!ends_.empty()) guess.bound = bound_with(part, ends_[ends]);
      if (guess.bound < infinite) out.push_back(guess);
    }
    std::sort(out.begin(), out.end(), [](const Guess& a, const Guess& b) { return a.least < b.least; });
    return out;
  }

 private:
  static constexpr std::size_t first_guesses = 12;
  static constexpr int refinements = 24;

  // What the layers with open choices add at a price.
  struct Line {
    double price = 0;
    double sum = 0;
  };
  // A guess: the sizes with these numbers.
  struct Part {
    std::size_t from = 0;
    std::size_t to = 0;
    Guess guess;
    double room = 0;   // bytes for what layers keep
    double bytes = 0;  // that the open layers keep at least
    std::vector<Line> lines;
  };
  struct Term {
    double bytes = 0;
    double seconds = 0;
    std::int64_t workspace = 0;
  };

  [[nodiscard]] HullPoint point_of(const Choice& c) const {
    return {static_cast<double>(p_.slots_of(0, 0).kept(c)), c.seconds() + once_share_ * c.once()};
  }
  [[nodiscard]] Term term_of(const Tie& both) const {
    const HullPoint a = point_of(both.first);
    const HullPoint b = point_of(both.last);
    return {a.bytes + b.bytes + static_cast<double>(p_.slots_of(0, 0).flight * both.first.pass_through),
            a.seconds + b.seconds, std::max(workspace_of(both.first), workspace_of(both.last))};
  }

  // How many layers of each type are open: all but so many at both ends.
  void count_layers(int ends) {
    open_.assign(p_.types.size(), 0);
    for (int layer = ends; layer < p_.count() - ends; ++layer)
      ++open_[static_cast<std::size_t>(p_.layers[static_cast<std::size_t>(layer)])];
  }

  // The sizes that the largest workspace may have: no smaller than the least of any layer.
  void find_sizes() {
    std::int64_t needed = 0;
    for (std::size_t i = 0; i < p_.types.size(); ++i) {
      if (open_[i] == 0) continue;
      std::int64_t least = std::numeric_limits<std::int64_t>::max();
      for (const Choice& c : p_.types[i]) {
        least = std::min(least, workspace_of(c));
        sizes_.push_back(workspace_of(c));
      }
      needed = std::max(needed, least);
    }
    std::int64_t least = ends_.empty() ? 0 : std::numeric_limits<std::int64_t>::max();
    for (const Term& both : ends_) {
      least = std::min(least, both.workspace);
      sizes_.push_back(both.workspace);
    }
    needed = std::max(needed, least);
    std::erase_if(sizes_, [needed](std::int64_t size) { return size < needed; });
    std::sort(sizes_.begin(), sizes_.end());
    sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
  }

  void add(std::size_t from, std::size_t to) {
    if (from == to) return;
    Part part{from, to, {sizes_[from], sizes_[to - 1], infinite}, 0, 0, {}};
    part.room = static_cast<double>(p_.budget - p_.fixed - part.guess.least);
    std::vector<std::pair<int, std::vector<HullPoint>>> hulls;  // with the number of layers
    std::vector<double> prices{0};
    for (std::size_t i = 0; i < p_.types.size(); ++i) {
      if (open_[i] == 0) continue;
      std::vector<HullPoint> points;
      for (const Choice& c : p_.types[i])
        if (workspace_of(c) <= part.guess.most) points.push_back(point_of(c));
      if (points.empty()) return;
      auto hull = lower_hull(std::move(points));
      add_slopes(hull, prices);
      part.bytes += open_[i] * hull.front().bytes;
      hulls.emplace_back(open_[i], std::move(hull));
    }
    sort_prices(prices);
    for (const double price : prices) {
      double sum = 0;
      for (const auto& [count, hull] : hulls) sum += count * cheapest(hull, price);
      part.lines.push_back({price, sum});
    }
    if (ends_.empty())
      part.guess.bound = bound_with(part, {});
    else
      for (const Term& both : ends_) part.guess.bound = std::min(part.guess.bound, bound_with(part, both));
    parts_.push_back(std::move(part));
  }

  [[nodiscard]] static double bound_with(const Part& part, const Term& both) {
    const double room = part.room - both.bytes;
    if (both.workspace > part.guess.most || part.bytes > room) return infinite;
    double most = 0;
    for (const Line& line : part.lines) most = std::max(most, line.sum + both.seconds - line.price * room);
    return most;
  }

  const Problem& p_;
  double once_share_;
  std::vector<Term> ends_;
  std::vector<int> open_;  // layers of every type
  std::vector<std::int64_t> sizes_;
  std::vector<Part> parts_;
};

}  // namespace galvatron::search
