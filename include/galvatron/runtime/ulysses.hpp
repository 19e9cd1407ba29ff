// The attention core of Ulysses (Jacobs et al., "DeepSpeed Ulysses", arXiv 2309.14509): all-to-alls around attention.
//
//   tokens 0..S/c-1, all heads   --- all-to-all -->   tokens 0..S-1, heads 0..A/(tc)-1   --- back --> ...
//
// Towards heads a rank packs what it sends, back it unpacks what it got. Rank i's tokens are a run of the sequence, so
// that what comes from it is a run of the core's rows. Where there are fewer key/value heads than ranks, each is sent
// to c / kv_heads of them, and backward adds up the gradients of the copies. By ratios ranks have unequal runs of
// tokens, and unequal heads in the core, key/value heads with their query heads; some have none.
//
// Shapes: those of attention.hpp; in the core, core_rows = S * b, and core_q and core_kv are of the rank's heads there:
// q / c, and kv / c or one head, where they are equal.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/program/extent.hpp>
#include <galvatron/runtime/attention.hpp>
#include <galvatron/strategy/ratios.hpp>

namespace galvatron::runtime {

template <class D, class T>
class UlyssesExchange {
 public:
  UlyssesExchange(Context<D>& context, const LayerSpec& layer)
      : c_(context),
        heads_(layer, context.shares().heads()),
        ranks_(context.spec.context),
        copies_(std::max<std::int64_t>(ranks_ / std::max<std::int64_t>(heads_.kv_heads, 1), 1)),
        core_rows_(context.batch.samples * context.batch.sequence),
        core_q_(core_of(context.shares()).heads * heads_.head_dim),
        core_kv_(core_of(context.shares()).kv_heads * heads_.head_dim) {
    const RankShares own = context.shares();
    if (!context.spec.exchanges_heads() || (own.has_even_tokens() && own.has_even_core_heads())) return;
    std::int64_t rows = 0, queries = 0, keys = 0;
    for (const RankShares& shares : context_shares(context.spec, context.ratios, context.local_rank)) {
      row_ends_.push_back(rows += shares.region_tokens().count(context.batch.sequence) * context.batch.samples);
      query_ends_.push_back(queries += core_of(shares).heads * heads_.head_dim);
      key_ends_.push_back(keys += core_of(shares).kv_heads * heads_.head_dim);
    }
    if (!own.has_even_core_heads()) copies_ = 1;
  }

  // `packed` is scratch for what an exchange sends or got; the core's input has queries (core_rows, core_q), then keys,
  // then values (core_rows, core_kv).
  void projection_to_heads(View<T> projection, View<T> packed, View<T> input) {
    for (const Part& part : parts())
      to_heads(behind(projection, part.column), heads_.qkv(), part, packed, behind(input, part.begin));
  }
  void projection_to_tokens(View<T> d_input, View<T> packed, View<T> d_qkv) {
    for (const Part& part : parts())
      to_tokens(behind(d_input, part.begin), part, packed, behind(d_qkv, part.column), heads_.qkv());
  }
  void to_heads(View<T> tokens, View<T> packed, View<T> core) {
    to_heads(tokens, heads_.q(), parts()[0], packed, core);
  }
  void to_tokens(View<T> core, View<T> packed, View<T> tokens) {
    to_tokens(core, parts()[0], packed, tokens, heads_.q());
  }
  /// What the core reads, or its gradient.
  [[nodiscard]] Projections<T> core(View<T> input) const {
    const auto [q, k, v] = parts();
    return {input, behind(input, k.begin), behind(input, v.begin), core_q_, core_kv_};
  }
  [[nodiscard]] std::int64_t heads() const { return core_q_ / heads_.head_dim; }
  [[nodiscard]] std::int64_t kv_heads() const { return core_kv_ / heads_.head_dim; }

 private:
  using Ends = std::vector<std::int64_t>;
  /// Queries, keys or values.
  struct Part {
    std::int64_t column;  ///< of rows of tokens: the first
    std::int64_t begin;   ///< in the core's input
    std::int64_t width;   ///< columns that this rank gets
    std::int64_t copies;  ///< ranks in a row that get the same
    const Ends& ends;     ///< of the columns that ranks get; empty: equally many
  };
  [[nodiscard]] program::CoreHeads core_of(const RankShares& shares) const {
    return {shares, heads_.heads, heads_.kv_heads, ranks_};
  }
  [[nodiscard]] std::array<Part, 3> parts() const {
    const std::int64_t keys = core_rows_ * core_q_;
    return {{{0, 0, core_q_, 1, query_ends_},
             {heads_.q(), keys, core_kv_, copies_, key_ends_},
             {heads_.q() + heads_.kv(), keys + core_rows_ * core_kv_, core_kv_, copies_, key_ends_}}};
  }

  // Columns of rows of `stride`; `whole` (core_rows, width).
  void to_heads(View<T> tokens, std::int64_t stride, const Part& part, View<T> packed, View<T> whole) {
    for_each_block(
        part, [&](std::int64_t column, std::int64_t begin, const device::Runs::Distances& block, device::Runs runs) {
          runs.repeats = part.copies;
          runs.from = {.block = runs.width, .repeat = 0, .row = stride};
          runs.to = block;
          c_.device.copy_runs(runs, behind(tokens, column), behind(packed, begin));
        });
    c_.context->all_to_all(packed.slice(0, packed_count(part)), whole.slice(0, core_rows_ * part.width), row_ends_,
                           part.ends);
  }
  // The way back; copies are added up.
  void to_tokens(View<T> whole, const Part& part, View<T> packed, View<T> tokens, std::int64_t stride) {
    c_.context->all_to_all(whole.slice(0, core_rows_ * part.width), packed.slice(0, packed_count(part)), part.ends,
                           row_ends_);
    for_each_block(
        part, [&](std::int64_t column, std::int64_t begin, const device::Runs::Distances& block, device::Runs runs) {
          runs.from = block;
          runs.to = {.block = runs.width, .repeat = 0, .row = stride};
          c_.device.copy_runs(runs, behind(packed, begin), behind(tokens, column));
          if (part.copies == 1) return;
          runs.repeats = part.copies - 1;
          c_.device.add_runs(runs, behind(packed, begin + block.repeat), behind(tokens, column));
        });
  }
  // The columns that ranks get, and their blocks (rows, width) one after the other: equal ones at once.
  // f(first column, first element of the blocks, distances of these, runs of a row's columns)
  template <class F>
  void for_each_block(const Part& part, const F& f) const {
    const std::int64_t rows = c_.rows();
    if (rows == 0) return;
    if (part.ends.empty() || c_.shares().has_even_core_heads()) {
      const std::int64_t size = rows * part.width;
      return f(0, 0, {.block = part.copies * size, .repeat = size, .row = part.width},
               {.blocks = ranks_ / part.copies, .rows = rows, .width = part.width});
    }
    std::int64_t column = 0;
    for (const std::int64_t end : part.ends) {
      const std::int64_t width = end - column;
      if (width > 0) f(column, rows * column, {.row = width}, {.rows = rows, .width = width});
      column = end;
    }
  }
  [[nodiscard]] std::int64_t packed_count(const Part& part) const {
    return c_.rows() * (part.ends.empty() ? ranks_ * part.width : part.ends.back());
  }

  Context<D>& c_;
  AttentionHeads heads_;
  std::int64_t ranks_;   ///< c
  std::int64_t copies_;  ///< ranks that have the same key/value head
  std::int64_t core_rows_, core_q_, core_kv_;
  Ends row_ends_, query_ends_, key_ends_;  ///< of what context ranks have, where some of it is by ratio; else empty
};

}  // namespace galvatron::runtime
