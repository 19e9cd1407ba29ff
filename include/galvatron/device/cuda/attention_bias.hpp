// Biases of attention by the distance of key and query, from a table of buckets; and the gradients of biases by
// distance, of every pair, or in windows: sums over units in a fixed order.
//
// For those a tile of queries and keys of a head goes over a group of units and sums the gradients of its scores in
// registers, then writes them to scratch memory:
//
//   planes (groups, heads, tiles of queries, rows of a tile, keys padded)
//
// A second kernel adds the groups, a third one gives every bias the sum of its pairs. Where a plane of all heads does
// not fit, this is done for some heads, or some queries of one head, after the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include <galvatron/device/cuda/elements.hpp>
#include <galvatron/device/cuda/flash_attention.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/embedding.hpp>

namespace galvatron::device::cuda {

/// kernels::relative_bucket of the distances of a sequence. Those of near ones come from the host, whose logarithms may
/// round to another side of a bucket's bound than the GPU's; far ones need no logarithm.
class Buckets {
 public:
  explicit Buckets(const RelativePositions& relative)
      : tokens_(relative.tokens), count_(relative.buckets), one_direction_(relative.causal || relative.buckets < 2) {
    const auto bucket_of = [&](std::int64_t away) {
      return kernels::relative_bucket(-away, count_, RelativePositions::far, one_direction_);
    };
    for (std::int64_t away = 0; away < near; ++away) near_[away] = static_cast<std::int32_t>(bucket_of(away));
    last_ = bucket_of(std::max(near, count_));
    one_each_ = bucket_of(near) == near;
  }

  /// Distances [first, last) of the list, which has all from 1 - tokens on.
  struct Range {
    std::int64_t first, last;
  };

  [[nodiscard]] GALVATRON_KERNEL std::int64_t distances() const { return 2 * tokens_ - 1; }
  /// Of the distance at place i of the list.
  [[nodiscard]] GALVATRON_KERNEL std::int64_t at(std::int64_t i) const {
    const std::int64_t distance = i + 1 - tokens_;
    if (distance <= 0) return before(-distance);
    return one_direction_ ? before(0) : count_ / 2 + before(distance);
  }
  /// All distances of a bucket: buckets fall up to distance 0, and rise behind it where keys that follow have their
  /// own.
  [[nodiscard]] GALVATRON_KERNEL Range of(std::int64_t bucket) const {
    if (!one_direction_ && bucket >= count_ / 2)
      return {first_where(tokens_, distances(), [&](std::int64_t i) { return at(i) >= bucket; }),
              first_where(tokens_, distances(), [&](std::int64_t i) { return at(i) > bucket; })};
    const std::int64_t end = one_direction_ ? distances() : tokens_;
    return {first_where(0, end, [&](std::int64_t i) { return at(i) <= bucket; }),
            first_where(0, end, [&](std::int64_t i) { return at(i) < bucket; })};
  }

 private:
  static constexpr std::int64_t near = RelativePositions::far;

  /// The bucket of a key so far before the query.
  [[nodiscard]] GALVATRON_KERNEL std::int64_t before(std::int64_t away) const {
    if (away < near) return near_[away];
    return one_each_ && away < last_ ? away : last_;
  }

  std::int64_t tokens_, count_;
  std::int64_t last_;  ///< of the buckets of a direction
  bool one_direction_;
  bool one_each_;  ///< near distances have buckets of their own, and so have others up to the last
  std::int32_t near_[near];
};

/// A thread takes a distance, for all heads.
template <class T>
struct SpreadBiases {
  Buckets buckets;
  std::int64_t heads;
  const T* table;
  float* bias;

  GALVATRON_KERNEL void operator()(std::int64_t i) const {
    const T* row = table + buckets.at(i) * heads;
    for (std::int64_t a = 0; a < heads; ++a) bias[a * buckets.distances() + i] = kernels::get(row[a]);
  }
};

/// A block adds up one element of the table.
struct GatherBiases {
  static constexpr int most_threads = 128;
  Buckets buckets;
  std::int64_t elements;  ///< of the table
  std::int64_t heads;
  const float* dbias;
  float* dtable;

  GALVATRON_KERNEL void operator()(auto& block) const {
    for (std::int64_t element = block.index(); element < elements; element += block.blocks()) {
      const Buckets::Range range = buckets.of(element / heads);
      const float* row = dbias + element % heads * buckets.distances();
      float sum = 0;
      for (std::int64_t i = range.first + block.thread(); i < range.last; i += block.threads()) sum += row[i];
      sum = block_sum(block, sum);
      if (block.thread() == 0) dtable[element] += sum;
    }
  }
};

template <class T>
void relative_bias_forward(auto& launcher, const RelativePositions& relative, std::int64_t heads, const T* table,
                           float* bias) {
  for_each(launcher, relative.distances(), SpreadBiases<T>{Buckets(relative), heads, table, bias});
}

void relative_bias_backward(auto& launcher, const RelativePositions& relative, std::int64_t heads, const float* dbias,
                            float* dtable) {
  const std::int64_t elements = relative.buckets * heads;
  if (elements == 0 || relative.tokens == 0) return;
  launcher.launch(over_rows(elements, relative.distances(), GatherBiases::most_threads),
                  GatherBiases{Buckets(relative), elements, heads, dbias, dtable});
}

/// Part of the queries and heads of a problem, and how its sums lie in memory.
struct BiasPart {
  float* sums;
  int first_head = 0, heads = 0;
  int tiles = 0, tile_rows = 0;  ///< of queries
  int keys = 0;                  ///< padded to tiles
  int groups = 0;
  int first_query = 0, last_query = 0;  ///< one behind

  [[nodiscard]] constexpr std::int64_t plane() const {
    return static_cast<std::int64_t>(heads) * tiles * tile_rows * keys;
  }
  /// Of a head and query, both counted from the first of the part.
  [[nodiscard]] GALVATRON_KERNEL float* row(int group, int head, int query) const {
    return sums + group * plane() + (static_cast<std::int64_t>(head) * tiles * tile_rows + query) * keys;
  }
};

/// The sums of the gradients of scores over groups of units.
template <class T, int D>
struct FlashScoreGradient {
  using Tiles = BackwardTiles<T, D>;
  static constexpr int most_threads = Tiles::threads;
  static constexpr int least_blocks = 1;
  FlashProblem<T> problem;
  BiasPart part;

  [[nodiscard]] Geometry geometry() const {
    return Tiles::geometry(static_cast<std::int64_t>(part.heads) * part.tiles * part.groups * part.keys /
                           Tiles::columns);
  }

  GALVATRON_KERNEL void operator()(auto& block) const {
    const Tiles tiles(block.shared());
    const int key_tiles = part.keys / Tiles::columns;
    const int first_key = static_cast<int>(block.index() % key_tiles) * Tiles::columns;
    const auto rest = static_cast<int>(block.index() / key_tiles);
    const int group = rest % part.groups;
    const int tile = rest / part.groups % part.tiles;
    const int own_head = rest / part.groups / part.tiles;
    const int head = part.first_head + own_head;
    const int kv_head = head / problem.group();
    const int first_query = part.first_query + tile * Tiles::rows;
    const int warp = block.thread() / warp_threads;
    const int lane = block.thread() % warp_threads;

    float sums[Tiles::pieces][4] = {};
    const auto first = static_cast<int>(static_cast<std::int64_t>(problem.units) * group / part.groups);
    const auto last = static_cast<int>(static_cast<std::int64_t>(problem.units) * (group + 1) / part.groups);
    const bool seen = !problem.causal || first_key < first_query + Tiles::rows;
    for (int unit = problem.first_unit + first; seen && unit < problem.first_unit + last; ++unit) {
      block.sync();
      problem.template load_queries<D>(block, unit, head, first_query, Tiles::rows, tiles.keeps(0), tiles.keeps(1),
                                       tiles.row_marks());
      problem.template load_keys<D>(block, unit, kv_head, first_key, Tiles::columns, tiles.passes(0), tiles.passes(1),
                                    tiles.column_marks());
      problem.load_statistics(block, unit, head, first_query, Tiles::rows, tiles.of_queries());
      block.sync();
      float p[Tiles::pieces][4] = {}, ds[Tiles::pieces][4] = {};
      differentiate<D, false>(block, problem, tiles, head, first_query + 16 * warp, first_key, p, ds);
      GALVATRON_UNROLL
      for (int j = 0; j < Tiles::pieces; ++j)
        for (int i = 0; i < 4; ++i) sums[j][i] += ds[j][i];
    }
    GALVATRON_UNROLL
    for (int j = 0; j < Tiles::pieces; ++j)
      for (int i = 0; i < 4; ++i)
        part.row(group, own_head,
                 tile * Tiles::rows + 16 * warp + lane / 4 + i / 2 * 8)[first_key + 8 * j + lane % 4 * 2 + i % 2] =
            sums[j][i];
  }
};

/// The first plane takes in the others, in order.
struct AddPlanes {
  BiasPart part;
  GALVATRON_KERNEL void operator()(std::int64_t i) const {
    float sum = part.sums[i];
    for (int group = 1; group < part.groups; ++group) sum += part.sums[group * part.plane() + i];
    part.sums[i] = sum;
  }
};

/// Biases of pairs: element i is a head, query and key of the part.
struct AddPairs {
  BiasPart part;
  int keys;
  float* gradient;  ///< of head 0, query 0 and key 0
  std::int64_t head_stride, query_stride;
  [[nodiscard]] std::int64_t count() const {
    return static_cast<std::int64_t>(part.heads) * (part.last_query - part.first_query) * keys;
  }
  GALVATRON_KERNEL void operator()(std::int64_t i) const {
    const auto key = static_cast<int>(i % keys);
    const auto row = static_cast<int>(i / keys);
    const int queries = part.last_query - part.first_query;
    const int head = row / queries;
    const int query = row % queries;
    gradient[(part.first_head + head) * head_stride + (part.first_query + query) * query_stride + key] +=
        part.row(0, head, query)[key];
  }
};

/// Biases by distance: element i is a head and a distance from key to query.
struct AddDistances {
  BiasPart part;
  int queries, keys;
  float* gradient;  ///< of head 0 and distance 0
  std::int64_t head_stride;
  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(part.heads) * (queries + keys - 1); }
  GALVATRON_KERNEL void operator()(std::int64_t i) const {
    const int distances = queries + keys - 1;
    const auto head = static_cast<int>(i / distances);
    const int distance = static_cast<int>(i % distances) - (queries - 1);
    const int first = -distance > part.first_query ? -distance : part.first_query;
    const int last = keys - distance < part.last_query ? keys - distance : part.last_query;
    if (first >= last) return;
    float sum = 0;
    for (int query = first; query < last; ++query) sum += part.row(0, head, query - part.first_query)[query + distance];
    gradient[(part.first_head + head) * head_stride + distance] += sum;
  }
};

/// Biases of windows: element i is a head and a row of the table.
struct AddWindowPairs {
  BiasPart part;
  int window, table_heads;
  float* gradient;  ///< (bias rows, table_heads)
  [[nodiscard]] std::int64_t count() const {
    return static_cast<std::int64_t>(part.heads) * (2 * window - 1) * (2 * window - 1);
  }
  GALVATRON_KERNEL void operator()(std::int64_t i) const {
    const int wide = 2 * window - 1;
    const auto entry = static_cast<int>(i % (wide * wide));
    const auto head = static_cast<int>(i / (wide * wide));
    const int dy = entry / wide - (window - 1);
    const int dx = entry % wide - (window - 1);
    float sum = 0;
    for (int query = part.first_query; query < part.last_query; ++query) {
      const int y = query / window - dy;
      const int x = query % window - dx;
      if (y < 0 || y >= window || x < 0 || x >= window) continue;
      sum += part.row(0, head, query - part.first_query)[y * window + x];
    }
    gradient[static_cast<std::int64_t>(entry) * table_heads + part.first_head + head] += sum;
  }
};

/// Calls give(part) with the gradients of all scores, part after part. Throws DeviceFailure.
template <class T>
void flash_bias(auto& launcher, View<float> scratch, const FlashProblem<T>& problem, const auto& give) {
  if (problem.keys == 0) return;
  with_head_width(problem.head_dim, [&]<int D>() {
    using Tiles = BackwardTiles<T, D>;
    const auto all_tiles = static_cast<int>(divide_up(problem.queries, Tiles::rows));
    const std::int64_t keys = round_up(problem.keys, Tiles::columns);
    const std::int64_t fit = scratch.count / (Tiles::rows * keys);  // tiles of queries
    if (fit == 0)
      throw DeviceFailure("the gradients of attention's biases have no room for " + std::to_string(problem.keys) +
                          " keys in " + std::to_string(scratch.count * 4) + " bytes; choose shorter sequences");
    const auto tiles = static_cast<int>(std::min<std::int64_t>(fit, all_tiles));
    const auto heads = static_cast<int>(std::clamp<std::int64_t>(fit / tiles, 1, problem.heads));
    for (int head = 0; head < problem.heads; head += heads)
      for (int tile = 0; tile < all_tiles; tile += tiles) {
        BiasPart part{.sums = scratch.data,
                      .first_head = head,
                      .heads = std::min(heads, problem.heads - head),
                      .tiles = std::min(tiles, all_tiles - tile),
                      .tile_rows = Tiles::rows,
                      .keys = static_cast<int>(keys),
                      .first_query = tile * Tiles::rows};
        part.last_query = std::min(problem.queries, part.first_query + part.tiles * Tiles::rows);
        // As many groups as keep the GPU busy.
        const std::int64_t of_a_group = static_cast<std::int64_t>(part.heads) * part.tiles;
        part.groups = static_cast<int>(std::min({static_cast<std::int64_t>(problem.units), fit / of_a_group,
                                                 divide_up(most_blocks, of_a_group * (keys / Tiles::columns))}));
        const FlashScoreGradient<T, D> kernel{problem, part};
        launcher.launch(kernel.geometry(), kernel);
        if (part.groups > 1) for_each(launcher, part.plane(), AddPlanes{part});
        give(part);
      }
  });
}

}  // namespace galvatron::device::cuda
