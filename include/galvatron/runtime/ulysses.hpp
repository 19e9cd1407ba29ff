// The attention core of Ulysses (Jacobs et al., "DeepSpeed Ulysses", arXiv 2309.14509): all-to-alls around attention.
//
//   tokens 0..S/c-1, all heads   --- all-to-all -->   tokens 0..S-1, heads 0..A/(tc)-1   --- back --> ...
//
// Towards heads a rank packs what it sends, back it unpacks what it got. Rank i's tokens are a run of the sequence, so
// that what comes from it is a run of the core's rows. Where there are fewer key/value heads than ranks, each is sent
// to c / kv_heads of them, and backward adds up the gradients of the copies.
//
// Shapes: those of attention.hpp; in the core, core_rows = S * b = rows * c, core_q = q / c, core_kv = kv / c or one
// head.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include <galvatron/runtime/attention.hpp>

namespace galvatron::runtime {

template <class D, class T>
class UlyssesExchange {
 public:
  UlyssesExchange(Context<D>& context, const LayerSpec& layer)
      : c_(context),
        heads_(layer, context.shares().heads()),
        ranks_(context.spec.context),
        copies_(std::max<std::int64_t>(ranks_ / std::max<std::int64_t>(heads_.kv_heads, 1), 1)),
        core_rows_(context.rows() * ranks_),
        core_q_(heads_.q() / ranks_),
        core_kv_(heads_.kv() * copies_ / ranks_) {}

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
  /// Queries, keys or values.
  struct Part {
    std::int64_t column;  ///< of rows of tokens: the first
    std::int64_t begin;   ///< in the core's input
    std::int64_t width;   ///< columns that every rank gets
    std::int64_t copies;  ///< ranks in a row that get the same
  };
  [[nodiscard]] std::array<Part, 3> parts() const {
    const std::int64_t keys = core_rows_ * core_q_;
    return {{{0, 0, core_q_, 1},
             {heads_.q(), keys, core_kv_, copies_},
             {heads_.q() + heads_.kv(), keys + core_rows_ * core_kv_, core_kv_, copies_}}};
  }

  // Columns of rows of `stride`; `whole` (core_rows, width).
  void to_heads(View<T> tokens, std::int64_t stride, const Part& part, View<T> packed, View<T> whole) {
    const std::int64_t size = c_.rows() * part.width;
    c_.device.copy_runs(device::Runs{.blocks = ranks_ / part.copies,
                                     .repeats = part.copies,
                                     .rows = c_.rows(),
                                     .width = part.width,
                                     .from = {.block = part.width, .repeat = 0, .row = stride},
                                     .to = {.block = part.copies * size, .repeat = size, .row = part.width}},
                        tokens, packed);
    c_.context->all_to_all(packed.slice(0, ranks_ * size), whole.slice(0, ranks_ * size));
  }
  // The way back; copies are added up.
  void to_tokens(View<T> whole, const Part& part, View<T> packed, View<T> tokens, std::int64_t stride) {
    const std::int64_t size = c_.rows() * part.width;
    c_.context->all_to_all(whole.slice(0, ranks_ * size), packed.slice(0, ranks_ * size));
    device::Runs runs{.blocks = ranks_ / part.copies,
                      .repeats = 1,
                      .rows = c_.rows(),
                      .width = part.width,
                      .from = {.block = part.copies * size, .repeat = size, .row = part.width},
                      .to = {.block = part.width, .repeat = 0, .row = stride}};
    c_.device.copy_runs(runs, packed, tokens);
    if (part.copies == 1) return;
    runs.repeats = part.copies - 1;
    c_.device.add_runs(runs, behind(packed, size), tokens);
  }

  Context<D>& c_;
  AttentionHeads heads_;
  std::int64_t ranks_;   ///< c
  std::int64_t copies_;  ///< ranks that have the same key/value head
  std::int64_t core_rows_, core_q_, core_kv_;
};

}  // namespace galvatron::runtime
