// What an operation of attention is given beside its tensors: their extents and distances, documents, positions,
// windows and biases.
//
// Row s * b + i of activations is token s of sample i.
#pragma once

#include <cmath>
#include <compare>
#include <cstdint>
#include <span>

#include <galvatron/core/view.hpp>

namespace galvatron::device {

/// Attention of b samples. Queries, keys and values are columns of rows of `stride` elements each (the fused
/// projection has all three in one row); row s * b + i as above. Heads are head_dim wide and adjacent; query head a
/// reads key/value head a / (heads / kv_heads). Scores are scaled by head_dim^-1/2 and score_factor, then soft-capped.
struct AttentionShape {
  std::int64_t batch = 0;     ///< b
  std::int64_t queries = 0;   ///< query tokens per sample
  std::int64_t keys = 0;      ///< key tokens per sample
  std::int64_t heads = 0;     ///< local query heads
  std::int64_t kv_heads = 0;  ///< local key/value heads
  std::int64_t head_dim = 0;
  bool causal = true;           ///< query s sees keys 0..s (queries == keys)
  std::int64_t q_stride = 0;    ///< elements between rows of q
  std::int64_t kv_stride = 0;   ///< elements between rows of k, and of v
  std::int64_t out_stride = 0;  ///< elements between rows of the output (and of its gradient)
  // For attention to a part of the keys or of the queries; 0 is the usual.
  std::int64_t dq_stride = 0;   ///< elements between rows of the gradient of q; usually q_stride
  std::int64_t dkv_stride = 0;  ///< the same of k and of v; usually kv_stride
  std::int64_t lse_stride = 0;  ///< elements between the statistics of two heads; usually `queries`
  bool all_keys = true;         ///< false: queries attend to other keys too
  float score_factor = 1;       ///< of scores, beside head_dim^-1/2
  /// Causal only: query s sees that many keys at most, the last of those that it would see else; 0: all of these.
  std::int64_t sliding_window = 0;
  float score_cap = 0;  ///< scaled scores s become score_cap tanh(s / score_cap), without biases; 0: they stay
  friend constexpr auto operator<=>(const AttentionShape&, const AttentionShape&) = default;

  /// What scores are multiplied by.
  [[nodiscard]] float score_scale() const { return score_factor / std::sqrt(static_cast<float>(head_dim)); }
  [[nodiscard]] constexpr std::int64_t dq_row() const { return dq_stride > 0 ? dq_stride : q_stride; }
  [[nodiscard]] constexpr std::int64_t dkv_row() const { return dkv_stride > 0 ? dkv_stride : kv_stride; }
  [[nodiscard]] constexpr std::int64_t lse_row() const { return lse_stride > 0 ? lse_stride : queries; }
};

/// Documents in the rows of one sample, by their cumulative lengths from 0 to all rows, (documents + 1) each: queries
/// queries[i] .. queries[i + 1] attend to keys keys[i] .. keys[i + 1] alone, with a causal mask to those up to their
/// own place in the document, which then has as many of both, and with a sliding window to the last of these. A query
/// without keys has the output 0, the log-sum-exp -infinity and the gradient 0, as have keys without queries. Without
/// biases.
struct DocumentRows {
  std::span<const std::int32_t> queries{}, keys{};  ///< both empty: samples of one length

  [[nodiscard]] constexpr bool empty() const { return queries.empty(); }
  [[nodiscard]] constexpr std::int64_t count() const { return static_cast<std::int64_t>(queries.size()) - 1; }
};

/// Positions in their sequences of tokens 0, 1, ... of a sample: from one position on, or in runs that each begin at a
/// token with a position.
struct TokenPositions {
  std::int64_t first = 0;                               ///< of token 0, without runs
  std::span<const std::int32_t> tokens{}, positions{};  ///< of each run, the first of which begins at token 0

  constexpr TokenPositions(std::int64_t position) : first(position) {}
  constexpr TokenPositions(std::span<const std::int32_t> begins, std::span<const std::int32_t> their_positions)
      : tokens(begins), positions(their_positions) {}
};

/// Attention within square windows of square images (Liu et al. 2021). Token y * side + x of a sample is the one in row
/// y and column x. Windows tile the image, from `shift` tokens down and to the right on; those over an edge go on at
/// the opposite one, and there tokens attend to those of their own side of the edge only. Rows and heads as in
/// AttentionShape, with as many key/value heads as query heads. To a score is added the bias of the head for the
/// distance (dy, dx) from key to query: row (dy + window - 1) * (2 window - 1) + dx + window - 1 of the table.
struct WindowShape {
  std::int64_t batch = 0;   ///< b
  std::int64_t side = 0;    ///< tokens
  std::int64_t window = 0;  ///< tokens of a side; divides `side`
  std::int64_t shift = 0;   ///< less than `window`
  std::int64_t heads = 0;   ///< local heads
  std::int64_t head_dim = 0;
  std::int64_t stride = 0;      ///< elements between rows of q, of k and of v, and of their gradients
  std::int64_t out_stride = 0;  ///< elements between rows of the output, and of its gradient
  friend constexpr bool operator==(const WindowShape&, const WindowShape&) = default;

  [[nodiscard]] constexpr std::int64_t tokens() const { return side * side; }
  [[nodiscard]] constexpr std::int64_t span() const { return window * window; }  ///< tokens that see each other
  [[nodiscard]] constexpr std::int64_t windows() const { return tokens() / span(); }
  [[nodiscard]] constexpr std::int64_t bias_rows() const { return (2 * window - 1) * (2 * window - 1); }
};

/// What is added to the scores of attention after their scaling, float whatever T: of head a, query s and key k the
/// element first + a * head + s * query + k. With `query` -1 it is a function of k - s.
struct AttentionBias {
  View<const float> values{};  ///< empty: nothing is added
  View<float> gradient{};      ///< backward adds to it; with the places of `values`
  std::int64_t first = 0, head = 0, query = 0;
};

/// Biases of attention by the distance of key and query, as T5 has them (Raffel et al., 2020, section 2.1): a bucket
/// for every short distance, wider and wider ones up to 128, and the last for all beyond. Where keys may follow the
/// query, half of the buckets are for them.
struct RelativePositions {
  static constexpr std::int64_t far = 128;
  std::int64_t tokens = 0;   ///< of queries and of keys
  std::int64_t buckets = 0;  ///< rows of the table
  bool causal = false;       ///< no key follows the query

  /// Distances key - query, from 1 - tokens on.
  [[nodiscard]] constexpr std::int64_t distances() const { return 2 * tokens - 1; }
};

}  // namespace galvatron::device
