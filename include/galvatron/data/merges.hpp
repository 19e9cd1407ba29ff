// Byte-pair encoding (Sennrich et al., 2016): the merges of a vocabulary, and the tokens that they make of a word.
//
// Of all neighbours in a word the pair that was learned first is merged, of equal ones the leftmost, until no pair is
// left that was learned:
//
//   l o w e r      e r (rank 0), l o (rank 3), lo w (rank 5)
//   l o w er  ->  lo w er  ->  low er
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <tuple>
#include <vector>

namespace galvatron::train {

/// What becomes of two neighbours: a hash table with open addressing, at most half full.
class Merges {
 public:
  struct Merge {
    std::int32_t rank = none;  ///< the order in which merges were learned; `none`: the two are not merged
    std::int32_t token = -1;
  };
  static constexpr std::int32_t none = std::int32_t{1} << 30;

  Merges() : Merges(0) {}
  explicit Merges(std::size_t count) : slots_(std::bit_ceil(std::max<std::size_t>(2 * count, 16))) {}

  /// A pair that is there already gets the new merge.
  void add(std::int32_t left, std::int32_t right, const Merge& merge) {
    Slot& slot = slots_[place(key(left, right))];
    slot = {key(left, right), merge};
  }
  [[nodiscard]] Merge find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t wanted = key(left, right);
    const Slot& slot = slots_[place(wanted)];
    return slot.key == wanted ? slot.merge : Merge{};
  }

  /// Merges the tokens of a word in place.
  void apply(std::vector<std::int32_t>& word) const { word.size() <= short_word ? scan(word) : with_queue(word); }

 private:
  static constexpr std::size_t short_word = 48;
  static constexpr std::uint64_t free = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = free;
    Merge merge;
  };

  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  [[nodiscard]] std::size_t place(std::uint64_t wanted) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = static_cast<std::size_t>((wanted * 0x9E3779B97F4A7C15U) >> 20U) & mask;
    while (slots_[at].key != free && slots_[at].key != wanted) at = (at + 1) & mask;
    return at;
  }

  // Looks at all pairs for every merge; of each pair the merge is kept.
  void scan(std::vector<std::int32_t>& word) const {
    std::size_t count = word.size();
    if (count < 2) return;
    Merge merges[short_word];
    for (std::size_t i = 0; i + 1 < count; ++i) merges[i] = find(word[i], word[i + 1]);
    while (count > 1) {
      std::size_t best = 0;
      for (std::size_t i = 1; i + 1 < count; ++i)
        if (merges[i].rank < merges[best].rank) best = i;
      if (merges[best].rank == none) break;
      word[best] = merges[best].token;
      std::copy(word.begin() + static_cast<std::ptrdiff_t>(best) + 2, word.begin() + static_cast<std::ptrdiff_t>(count),
                word.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      if (best + 2 < count) std::copy(merges + best + 2, merges + count - 1, merges + best + 1);
      --count;
      if (best > 0) merges[best - 1] = find(word[best - 1], word[best]);
      if (best + 1 < count) merges[best] = find(word[best], word[best + 1]);
    }
    word.resize(count);
  }

  // A queue of pairs and a linked list of tokens: n log n for words that may be as long as a text without spaces.
  void with_queue(std::vector<std::int32_t>& word) const {
    const auto count = static_cast<std::int32_t>(word.size());
    std::vector<std::int32_t> next(word.size()), before(word.size());
    for (std::int32_t i = 0; i < count; ++i) {
      next[static_cast<std::size_t>(i)] = i + 1;
      before[static_cast<std::size_t>(i)] = i - 1;
    }
    const auto at = [](auto& list, std::int32_t i) -> auto& { return list[static_cast<std::size_t>(i)]; };
    using Pair = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // rank, place, token
    std::priority_queue<Pair, std::vector<Pair>, std::greater<>> pairs;
    const auto look_at = [&](std::int32_t i) {
      if (i < 0 || at(next, i) >= count) return;
      const Merge merge = find(at(word, i), at(word, at(next, i)));
      if (merge.rank != none) pairs.emplace(merge.rank, i, merge.token);
    };
    for (std::int32_t i = 0; i < count; ++i) look_at(i);
    constexpr std::int32_t gone = -1;
    while (!pairs.empty()) {
      const auto [rank, i, token] = pairs.top();
      pairs.pop();
      if (at(word, i) == gone || at(next, i) >= count) continue;
      const std::int32_t j = at(next, i);
      if (const Merge now = find(at(word, i), at(word, j)); now.rank != rank || now.token != token) continue;
      at(word, i) = token;
      at(word, j) = gone;
      at(next, i) = at(next, j);
      if (at(next, i) < count) at(before, at(next, i)) = i;
      look_at(at(before, i));
      look_at(i);
    }
    std::erase(word, gone);
  }

  std::vector<Slot> slots_;
};

}  // namespace galvatron::train
