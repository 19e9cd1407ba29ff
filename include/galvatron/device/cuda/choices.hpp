// Choices of experts counted, and put in the order of the experts by a counting sort (Knuth, The Art of Computer
// Programming, volume 3, section 5.2).
//
// Blocks have runs of choices. A block counts the choices of each expert in its run; the last block adds these counts
// up, so that every run knows where its choices of an expert begin. A second kernel goes over the runs again and puts
// every choice behind those before it. Within a run, a block takes a tile of choices at a time, one a thread, and a
// thread counts those of its expert before it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/rows.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::device::cuda {

/// Choice i of sample s is choice i % k of its row i / k, which is row (i / k) * samples + s of all.
struct Choices {
  std::int64_t rows, samples;
  std::int64_t active;   ///< k
  std::int64_t experts;  ///< E
  const std::int32_t* chosen;
  const std::int32_t* places;  ///< those below 0 do not count; null: all do
  std::int64_t first = 0;      ///< of the experts; choices of others do not count

  [[nodiscard]] std::int64_t of_sample() const { return divide_up(rows, samples) * active; }
  /// Of a choice; -1 where it does not count or does not exist.
  [[nodiscard]] GALVATRON_KERNEL int expert(std::int64_t sample, std::int64_t i) const {
    const std::int64_t at = samples == 1 ? i : (i / active * samples + sample) * active + i % active;
    if (at >= rows * active || (places != nullptr && places[at] < 0)) return -1;
    const std::int64_t expert = chosen[at] - first;
    return expert < 0 || expert >= experts ? -1 : static_cast<int>(expert);
  }
};

/// The choices of every sample in `count` runs of whole tiles.
struct ChoiceRuns {
  static constexpr int tile = 256;
  Choices choices;
  std::int64_t of_sample;  ///< choices
  std::int64_t count;      ///< runs of a sample

  [[nodiscard]] std::int64_t shared_bytes() const {
    return (tile + choices.experts) * static_cast<std::int64_t>(sizeof(std::int32_t));
  }
  /// (E) in shared memory, for over().
  [[nodiscard]] GALVATRON_KERNEL std::int32_t* counts(auto& block) const {
    return reinterpret_cast<std::int32_t*>(block.shared()) + tile;
  }
  /// Goes over the block's run: calls each(i, place) for every choice that counts, with the place counts[expert], which
  /// then grows by 1, and none(i) for the others. All threads of the block, `tile`, call it; they see the counts when
  /// it returns.
  GALVATRON_KERNEL void over(auto& block, const auto& each, const auto& none) const {
    auto* experts = reinterpret_cast<std::int32_t*>(block.shared());  // (tile)
    std::int32_t* before = counts(block);
    const std::int64_t sample = block.index() / count;
    const std::int64_t run = block.index() % count;
    const std::int64_t tiles = (of_sample + tile - 1) / tile;
    const std::int64_t end = tiles * (run + 1) / count;
    for (std::int64_t at = tiles * run / count; at < end; ++at) {
      const std::int64_t i = at * tile + block.thread();
      const int own = i < of_sample ? choices.expert(sample, i) : -1;
      experts[block.thread()] = own;
      block.sync();
      int equal_before = 0;
      int equal = 0;
      for (int j = 0; j < tile; j += 4) {
        const auto four = Pack<std::int32_t>::at(experts + j);
        for (int l = 0; l < 4; ++l) {
          const int same = four[l] == own ? 1 : 0;
          equal += same;
          equal_before += j + l < block.thread() ? same : 0;
        }
      }
      const int place = own < 0 ? 0 : before[own] + equal_before;
      block.sync();
      if (own < 0) {
        if (i < of_sample) none(i);
        continue;
      }
      each(i, place);
      if (equal == equal_before + 1) before[own] = place + 1;  // the last of its expert in the tile
    }
    block.sync();
  }
};

/// counts (blocks, E) of the runs; what Finish makes of them in the last block, finish(block, choices, runs, counts).
template <class Finish>
struct CountRuns {
  static constexpr int most_threads = ChoiceRuns::tile;
  ChoiceRuns runs;
  std::int32_t* counts;
  Finish finish;
  std::uint32_t* ticket;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const std::int64_t experts = runs.choices.experts;
    std::int32_t* own = runs.counts(block);
    for (std::int64_t e = block.thread(); e < experts; e += block.threads()) own[e] = 0;
    block.sync();
    runs.over(block, [](std::int64_t, int) {}, [](std::int64_t) {});
    for (std::int64_t e = block.thread(); e < experts; e += block.threads())
      counts[block.index() * experts + e] = own[e];
    if (is_last_block(block, ticket, block.blocks())) finish(block, runs, counts);
  }
};

/// to (samples, E) = the counts, or grows by them.
struct PutCounts {
  float* to;
  bool adds;
  GALVATRON_KERNEL void operator()(auto& block, const ChoiceRuns& runs, const std::int32_t* counts) const {
    const std::int64_t experts = runs.choices.experts;
    for (std::int64_t i = block.thread(); i < runs.choices.samples * experts; i += block.threads()) {
      const std::int64_t sample = i / experts;
      const std::int32_t* own = counts + sample * runs.count * experts + i % experts;
      std::int32_t sum = 0;
      for (std::int64_t run = 0; run < runs.count; ++run) sum += own[run * experts];
      to[i] = (adds ? to[i] : 0.0F) + static_cast<float>(sum);
    }
  }
};

/// Counts become those of the runs before, and offsets (E + 1) the choices of the experts before.
struct PutOffsets {
  std::int32_t* offsets;
  GALVATRON_KERNEL void operator()(auto& block, const ChoiceRuns& runs, std::int32_t* counts) const {
    constexpr int at_once = 8;  // counts that a thread loads before it adds them
    const std::int64_t experts = runs.choices.experts;
    std::int32_t* totals = runs.counts(block);
    block.sync();
    for (std::int64_t e = block.thread(); e < experts; e += block.threads()) {
      std::int32_t sum = 0;
      for (std::int64_t first = 0; first < runs.count; first += at_once) {
        std::int32_t own[at_once];
        GALVATRON_UNROLL
        for (int i = 0; i < at_once; ++i) own[i] = first + i < runs.count ? counts[(first + i) * experts + e] : 0;
        GALVATRON_UNROLL
        for (int i = 0; i < at_once; ++i) {
          if (first + i < runs.count) counts[(first + i) * experts + e] = sum;
          sum += own[i];
        }
      }
      totals[e] = sum;
    }
    block.sync();
    if (block.thread() >= warp_threads) return;
    std::int32_t before = 0;
    if (block.thread() == 0) offsets[0] = 0;
    for (std::int64_t first = 0; first < experts; first += warp_threads) {
      const std::int64_t e = first + block.thread();
      const std::int32_t up_to = before + sum_of_lanes_up_to(block, e < experts ? totals[e] : 0);
      if (e < experts) offsets[e + 1] = up_to;
      before = block.shuffle(up_to, warp_threads - 1);
    }
  }
};

/// Puts the choices of a run behind those before: see Device::order_choices. `counts` of the runs before.
struct PlaceChoices {
  static constexpr int most_threads = ChoiceRuns::tile;
  ChoiceRuns runs;
  const std::int32_t* counts;
  const std::int32_t* offsets;
  std::int32_t* order;
  std::int32_t* places;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const std::int64_t experts = runs.choices.experts;
    std::int32_t* own = runs.counts(block);
    for (std::int64_t e = block.thread(); e < experts; e += block.threads())
      own[e] = counts[block.index() * experts + e] + offsets[e];
    block.sync();
    runs.over(
        block,
        [&](std::int64_t i, int place) {
          places[i] = place;
          order[place] = static_cast<std::int32_t>(i);
        },
        [&](std::int64_t i) { places[i] = -1; });
    const std::int64_t step = block.blocks() * block.threads();
    for (std::int64_t i = offsets[experts] + block.index() * block.threads() + block.thread(); i < runs.of_sample;
         i += step)
      order[i] = -1;
  }
};

/// places = -1 for the choices that an expert drops; a warp has a choice and counts those that come before it.
struct DropChoices {
  static constexpr int most_threads = 256;
  ChoiceOrder how;
  std::int64_t rows;
  const std::int32_t* chosen;
  const float* weights;
  const std::int32_t* order;
  const std::int32_t* offsets;
  std::int32_t* places;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const Teams warps{rows * how.active, warp_threads};
    for (std::int64_t at = warps.first_row(block); at < warps.rows; at += warps.row_step(block)) {
      const std::int32_t own = order[at];
      const std::int32_t* of_expert = offsets + chosen[own];
      if (of_expert[1] - of_expert[0] <= how.capacity) continue;
      int before = 0;
      for (std::int64_t i = of_expert[0] + warps.rank(block); i < of_expert[1]; i += warp_threads)
        before += comes_before(order[i], own) ? 1 : 0;
      before = warp_sum(block, before);
      if (warps.rank(block) == 0 && before >= how.capacity) places[own] = -1;
    }
  }

 private:
  [[nodiscard]] GALVATRON_KERNEL bool comes_before(std::int64_t a, std::int64_t b) const {
    if (how.drops == DropOrder::weight) return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
    return a % how.active * rows + a / how.active < b % how.active * rows + b / how.active;
  }
};

/// See Device::choose_nodes; a thread a row and a node.
struct ChooseNodes {
  std::int64_t experts;  ///< of a node
  std::int64_t nodes, active;
  const std::int32_t* chosen;
  const std::int32_t* places;
  std::int32_t* chosen_nodes;
  std::int32_t* kept;
  GALVATRON_KERNEL void operator()(std::int64_t row, std::int64_t node) const {
    std::int32_t found = -1;
    for (std::int64_t i = row * active; i < (row + 1) * active; ++i) {
      const std::int32_t expert = places[i] < 0 ? -1 : chosen[i];
      if (expert >= node * experts && expert < (node + 1) * experts) found = static_cast<std::int32_t>(node);
      if (node == 0) kept[i] = expert;
    }
    chosen_nodes[row * nodes + node] = found;
  }
};

inline void choose_nodes(auto& launcher, std::int64_t experts, std::int64_t nodes, std::int64_t active,
                         std::int64_t rows, const std::int32_t* chosen, const std::int32_t* places,
                         std::int32_t* chosen_nodes, std::int32_t* kept) {
  for_rows(launcher, rows, nodes, ChooseNodes{experts, nodes, active, chosen, places, chosen_nodes, kept});
}

/// Counts the choices in runs, as many as keep a GPU busy, and lets Finish go on. `then(geometry, runs, counts)`.
template <class Finish>
void sum_choices(auto& launcher, View<std::byte> scratch, std::uint32_t* tickets, const Choices& choices,
                 const Finish& finish, const auto& then) {
  constexpr std::int64_t most_runs = 128;
  const std::int64_t bytes = choices.experts * choices.samples * static_cast<std::int64_t>(sizeof(std::int32_t));
  const std::int64_t wanted = std::min(divide_up(choices.of_sample(), ChoiceRuns::tile), most_runs / choices.samples);
  const ChoiceRuns runs{choices, choices.of_sample(),
                        partials_within(scratch, bytes, std::max<std::int64_t>(wanted, 1))};
  const Geometry geometry{
      .blocks = runs.count * choices.samples, .threads = ChoiceRuns::tile, .shared_bytes = runs.shared_bytes()};
  auto* counts = reinterpret_cast<std::int32_t*>(scratch.data);
  launcher.launch(geometry, CountRuns<Finish>{runs, counts, finish, tickets});
  then(geometry, runs, counts);
}
template <class Finish>
void sum_choices(auto& launcher, View<std::byte> scratch, std::uint32_t* tickets, const Choices& choices,
                 const Finish& finish) {
  sum_choices(launcher, scratch, tickets, choices, finish, [](const auto&...) {});
}

/// Throws DeviceFailure when the counts of one run exceed the scratch memory.
inline void add_loads(auto& launcher, View<std::byte> scratch, std::uint32_t* tickets, std::int64_t choices,
                      std::int64_t experts, const std::int32_t* chosen, float* loads) {
  if (choices > 0)
    sum_choices(launcher, scratch, tickets, {choices, 1, 1, experts, chosen, nullptr}, PutCounts{loads, true});
}

/// Where experts drop choices, all choices are put in order first, then those that stay.
inline void order_choices(auto& launcher, View<std::byte> scratch, std::uint32_t* tickets, const ChoiceOrder& how,
                          std::int64_t rows, const std::int32_t* chosen, const float* weights, std::int32_t* order,
                          std::int32_t* places, std::int32_t* offsets) {
  const auto put_in_order = [&](const std::int32_t* kept) {
    sum_choices(launcher, scratch, tickets, {rows, 1, how.active, how.experts, chosen, kept, how.first},
                PutOffsets{offsets}, [&](const Geometry& geometry, const ChoiceRuns& runs, const std::int32_t* counts) {
                  launcher.launch(geometry, PlaceChoices{runs, counts, offsets, order, places});
                });
  };
  put_in_order(nullptr);
  if (how.capacity == 0 || rows == 0) return;
  launcher.launch(in_blocks(rows * how.active, warp_threads, DropChoices::most_threads / warp_threads, 2048).geometry,
                  DropChoices{how, rows, chosen, weights, order, offsets, places});
  put_in_order(places);
}

}  // namespace galvatron::device::cuda
