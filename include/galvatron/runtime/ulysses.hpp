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
#include <cstdint>

#include <galvatron/runtime/attention.hpp>

namespace galvatron::runtime {

template <class D, class T>
class UlyssesExchange {
 public:
  UlyssesExchange(Context<D>& context, const LayerSpec& layer)
      : c_(context),
        heads_(layer, context.spec.tensor),
        ranks_(context.spec.context),
        copies_(std::max<std::int64_t>(ranks_ / heads_.kv_heads, 1)),
        core_rows_(context.rows() * ranks_),
        core_q_(heads_.q() / ranks_),
        core_kv_(heads_.kv() * copies_ / ranks_) {}

  // `packed` is scratch for what an exchange sends or got; the core's input has queries (core_rows, core_q), then keys,
  // then values (core_rows, core_kv).
  void projection_to_heads(View<T> projection, View<T> packed, View<T> input) {
    const std::int64_t stride = heads_.qkv();
    to_heads(projection, stride, core_q_, 1, packed, q_of(input));
    to_heads(from(projection, heads_.q()), stride, core_kv_, copies_, packed, k_of(input));
    to_heads(from(projection, heads_.q() + heads_.kv()), stride, core_kv_, copies_, packed, v_of(input));
  }
  void projection_to_tokens(View<T> d_input, View<T> packed, View<T> d_qkv) {
    const std::int64_t stride = heads_.qkv();
    to_tokens(q_of(d_input), core_q_, 1, packed, d_qkv, stride);
    to_tokens(k_of(d_input), core_kv_, copies_, packed, from(d_qkv, heads_.q()), stride);
    to_tokens(v_of(d_input), core_kv_, copies_, packed, from(d_qkv, heads_.q() + heads_.kv()), stride);
  }
  void to_heads(View<T> tokens, View<T> packed, View<T> core) {
    to_heads(tokens, heads_.q(), core_q_, 1, packed, core);
  }
  void to_tokens(View<T> core, View<T> packed, View<T> tokens) {
    to_tokens(core, core_q_, 1, packed, tokens, heads_.q());
  }
  /// What the core reads, or its gradient.
  [[nodiscard]] Projections<T> core(View<T> input) const {
    return {q_of(input), k_of(input), v_of(input), core_q_, core_kv_};
  }
  [[nodiscard]] std::int64_t heads() const { return core_q_ / heads_.head_dim; }
  [[nodiscard]] std::int64_t kv_heads() const { return core_kv_ / heads_.head_dim; }

 private:
  // `tokens`: columns of rows of `stride`, of which every rank gets `width`, each part `copies` times in a row; `whole`
  // (core_rows, width).
  void to_heads(View<T> tokens, std::int64_t stride, std::int64_t width, std::int64_t copies, View<T> packed,
                View<T> whole) {
    const std::int64_t part = c_.rows() * width;
    c_.device.copy_runs(device::Runs{.blocks = ranks_ / copies,
                                     .repeats = copies,
                                     .rows = c_.rows(),
                                     .width = width,
                                     .from = {.block = width, .repeat = 0, .row = stride},
                                     .to = {.block = copies * part, .repeat = part, .row = width}},
                        tokens, packed);
    c_.context.all_to_all(packed.slice(0, ranks_ * part), whole);
  }
  // The way back; copies are added up.
  void to_tokens(View<T> whole, std::int64_t width, std::int64_t copies, View<T> packed, View<T> tokens,
                 std::int64_t stride) {
    const std::int64_t part = c_.rows() * width;
    c_.context.all_to_all(whole, packed.slice(0, ranks_ * part));
    device::Runs runs{.blocks = ranks_ / copies,
                      .repeats = 1,
                      .rows = c_.rows(),
                      .width = width,
                      .from = {.block = copies * part, .repeat = part, .row = width},
                      .to = {.block = width, .repeat = 0, .row = stride}};
    c_.device.copy_runs(runs, packed, tokens);
    if (copies == 1) return;
    runs.repeats = copies - 1;
    c_.device.add_runs(runs, from(packed, part), tokens);
  }

  static View<T> from(View<T> all, std::int64_t first) { return all.slice(first, all.count - first); }
  View<T> q_of(View<T> input) const { return input.slice(0, core_rows_ * core_q_); }
  View<T> k_of(View<T> input) const { return input.slice(core_rows_ * core_q_, core_rows_ * core_kv_); }
  View<T> v_of(View<T> input) const { return input.slice(core_rows_ * (core_q_ + core_kv_), core_rows_ * core_kv_); }

  Context<D>& c_;
  AttentionHeads heads_;
  std::int64_t ranks_;   ///< c
  std::int64_t copies_;  ///< ranks that have the same key/value head
  std::int64_t core_rows_, core_q_, core_kv_;
};

}  // namespace galvatron::runtime
