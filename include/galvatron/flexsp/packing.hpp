// Packing: documents in groups, groups in micro-batches, while a solver works on them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/flexsp/instance.hpp>
#include <galvatron/flexsp/placement.hpp>

namespace galvatron::flexsp {

/// A group under construction.
struct Bin {
  int option = 0;
  int part = 0;       ///< its micro-batch
  double finish = 0;  ///< seconds: fixed and those of its documents
  std::int64_t tokens = 0;
  std::vector<int> documents;
};

struct Packing {
  std::vector<Bin> bins;

  void open(const Instance& instance, int option, int part) {
    bins.push_back({option, part, instance.fixed(option), 0, {}});
  }
  /// Brings the documents of each group into ascending order of their tokens.
  void sort() {
    for (Bin& bin : bins) std::ranges::sort(bin.documents, std::ranges::greater());
  }
  /// Seconds of each micro-batch; 0 where it has no documents.
  [[nodiscard]] std::vector<double> seconds(const Instance& instance, int parts) const {
    std::vector<double> out(static_cast<std::size_t>(parts));
    for (const Bin& bin : bins)
      if (!bin.documents.empty()) {
        double& slowest = out[static_cast<std::size_t>(bin.part)];
        slowest = std::max({slowest, bin.finish, instance.problem().floor});
      }
    return out;
  }
  [[nodiscard]] double total(const Instance& instance, int parts) const {
    double out = 0;
    for (const double one : seconds(instance, parts)) out += one;
    return out;
  }
};

inline bool fits(const Instance& instance, const Bin& bin, int document) {
  return bin.tokens + instance.tokens(document) <= instance.capacity(bin.option);
}
inline void put(const Instance& instance, Bin& bin, int document) {
  bin.finish += instance.cost(bin.option, document);
  bin.tokens += instance.tokens(document);
  bin.documents.push_back(document);
}
/// Takes the document at `at` out of a group.
inline int take(const Instance& instance, Bin& bin, std::size_t at) {
  const int document = bin.documents[at];
  bin.documents.erase(bin.documents.begin() + static_cast<std::ptrdiff_t>(at));
  bin.tokens -= instance.tokens(document);
  bin.finish = instance.fixed(bin.option);  // added up anew: differences would pile up rounding
  for (const int other : bin.documents) bin.finish += instance.cost(bin.option, other);
  return document;
}

/// How first-fit chooses the degree of a group that it opens.
struct FitRule {
  double headroom = 1;  ///< the first document may take up to this share of what the target leaves, if it can
};

/// First-fit decreasing for given targets: documents in descending order, each into the first group that it fits and
/// ends within its micro-batch's target with it, else into a new group of the option in which it takes the fewest
/// device-seconds. The dual of list scheduling: targets are given, devices are what is short.
///
/// What a group can take are the documents from some number on. It waits until they come, then it is one of those that
/// can take the next one; O(n log n) but for new groups.
class FirstFit {
 public:
  /// @param targets  seconds of each micro-batch  @param free  of each micro-batch; is changed
  FirstFit(const Instance& instance, std::span<const double> targets, std::vector<FreeDevices>& free,
           const FitRule& rule, Work& work)
      : instance_(instance), targets_(targets), free_(free), rule_(rule), work_(work) {}

  /// @param documents  ascending numbers, so in descending order of tokens
  /// @param out   gets the groups, in none of which documents are yet
  /// @param left  gets the documents that found no place
  void operator()(std::span<const int> documents, Packing& out, std::vector<int>& left) {
    documents_ = documents;
    waiting_.assign(documents.size(), none);
    behind_.clear();
    able_.clear();
    for (std::size_t at = 0; at < documents.size(); ++at) {
      const int i = documents[at];
      for (std::size_t b = waiting_[at]; b != none; b = behind_[b]) push(b);
      work_.take(4);
      std::size_t to = 0;
      if (!able_.empty()) {
        to = able_.front();
      } else if (const auto [part, option] = choice(i); part >= 0) {
        free_[static_cast<std::size_t>(part)].take(instance_.degree(option));
        to = out.bins.size();
        out.open(instance_, option, part);
        behind_.push_back(none);
        push(to);
      } else {
        left.push_back(i);
        continue;
      }
      Bin& bin = out.bins[to];
      put(instance_, bin, i);
      const std::size_t next = first_that_fits(bin, at + 1);
      if (next == at + 1) continue;
      pop();
      if (next < documents.size()) behind_[to] = std::exchange(waiting_[next], to);
    }
  }

 private:
  // Of the groups that can take the next document, the first.
  void push(std::size_t bin) {
    able_.push_back(bin);
    std::ranges::push_heap(able_, std::ranges::greater());
  }
  void pop() {
    std::ranges::pop_heap(able_, std::ranges::greater());
    able_.pop_back();
  }

  // The first document from `from` on that fits a group.
  [[nodiscard]] std::size_t first_that_fits(const Bin& bin, std::size_t from) const {
    const double seconds = targets_[static_cast<std::size_t>(bin.part)] - bin.finish;
    const std::int64_t tokens = instance_.capacity(bin.option) - bin.tokens;
    const auto fits = [&](std::size_t at) {
      const int i = documents_[at];
      return instance_.tokens(i) <= tokens && instance_.cost(bin.option, i) <= seconds;
    };
    std::size_t low = from;
    std::size_t high = documents_.size();
    if (low < high && fits(low)) return low;  // as most do
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      if (fits(middle))
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }

  // The micro-batch and option of a new group for a document: -1 where there is none.
  [[nodiscard]] std::pair<int, int> choice(int i) {
    std::pair<int, int> best{-1, -1};
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t part = 0; part < targets_.size(); ++part)
      for (int o = 0; o < static_cast<int>(instance_.options()) && instance_.degree(o) <= free_[part].total(); ++o) {
        if (!instance_.fits(o, i, targets_[part]) || !free_[part].holds(instance_.degree(o))) continue;
        work_.take(1);
        // Where too little would be left for others, only if no larger group is free.
        const bool crowds = instance_.cost(o, i) > (targets_[part] - instance_.fixed(o)) * rule_.headroom;
        const double area = instance_.area(o, i) * (crowds ? crowding : 1);
        if (area < least * (1 - 1e-12)) {
          least = area;
          best = {static_cast<int>(part), o};
        }
      }
    return best;
  }
  static constexpr double crowding = 4;

  const Instance& instance_;
  std::span<const double> targets_;
  std::vector<FreeDevices>& free_;
  FitRule rule_;
  Work& work_;
  std::span<const int> documents_;
  // Groups by the first document that they can take: for each document one of them, and for each group another one.
  static constexpr auto none = static_cast<std::size_t>(-1);
  std::vector<std::size_t> waiting_, behind_;
  std::vector<std::size_t> able_;  // a heap
};

/// Puts the documents that are left where they exceed the target least. Returns false when one fits no group.
inline bool force(const Instance& instance, std::span<const int> documents, std::span<const double> targets,
                  Packing& out, Work& work) {
  for (const int i : documents) {
    Bin* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    work.take(static_cast<std::int64_t>(out.bins.size()));
    for (Bin& bin : out.bins) {
      if (!fits(instance, bin, i)) continue;
      const double above = bin.finish + instance.cost(bin.option, i) - targets[static_cast<std::size_t>(bin.part)];
      if (above < least) {
        least = above;
        best = &bin;
      }
    }
    if (best == nullptr) return false;
    put(instance, *best, i);
  }
  return true;
}

}  // namespace galvatron::flexsp
