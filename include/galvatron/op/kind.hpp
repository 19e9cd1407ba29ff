// The operations of a training step: one list of kinds for devices, tables of clusters, profiles and prices.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace galvatron::op {

/// Extents are (m, n, k, l) of Work; all row-major. Files know the kinds by these names.
enum class Kind : std::uint8_t {
  gemm_nt,              ///< (m, k) x (n, k)^T -> (m, n): a linear layer forward
  gemm_nn,              ///< (m, k) x (k, n) -> (m, n): its input gradient
  gemm_tn,              ///< (k, m)^T x (k, n) += (m, n) in fp32: its weight gradient; see Work::writes_one_in
  attention_forward,    ///< m = batch * query heads, n = query tokens, k = key tokens, l = head dim; causal counts half
  attention_backward,   ///< the same extents
  norm_forward,         ///< m rows of n
  add_norm_forward,     ///< m rows of n: a residual is added, and the sum normalised
  norm_backward,        ///< m rows of n
  activation_forward,   ///< m rows of n outputs
  activation_backward,  ///< m rows of n outputs
  rotary,               ///< m rows of n rotated elements
  add,                  ///< m elements: two read, one written (residuals, gradient accumulation)
  bias_gradient,        ///< column sums of m rows of n
  embedding_forward,    ///< m rows of n
  embedding_backward,   ///< m rows of n
  softmax_statistics,   ///< m rows of n logits read
  softmax_backward,     ///< m rows of n logits read and written
  adamw,                ///< m parameters
  adamw_bf16,           ///< m parameters, with moments in bfloat16
  norm_squared,         ///< m elements read: a part of the gradient norm
  fill,                 ///< m bytes written
  copy,                 ///< m bytes read and written
  gelu_in_product,      ///< m rows of n outputs: activation_forward of GELU fused with the GEMM before it
  gelu_gradient_in_product,  ///< m rows of n outputs: activation_backward of GELU fused with the GEMM before it
  all_reduce,                ///< m bytes per rank, n ranks
  all_gather,                ///< m bytes gathered in all, n ranks
  reduce_scatter,            ///< m bytes per rank before, n ranks
  broadcast,                 ///< m bytes, n ranks
  send,        ///< m bytes to one peer; n pieces; k ranks of the group inside which peers are, 0: anywhere
  all_to_all,  ///< m bytes per rank before (= after), n ranks: each gets 1/n from each
};
inline constexpr int kinds = static_cast<int>(Kind::all_to_all) + 1;

constexpr const char* name_of(Kind kind) {
  constexpr std::array<const char*, kinds> names = {"gemm_nt",
                                                    "gemm_nn",
                                                    "gemm_tn",
                                                    "attention_forward",
                                                    "attention_backward",
                                                    "norm_forward",
                                                    "add_norm_forward",
                                                    "norm_backward",
                                                    "activation_forward",
                                                    "activation_backward",
                                                    "rotary",
                                                    "add",
                                                    "bias_gradient",
                                                    "embedding_forward",
                                                    "embedding_backward",
                                                    "softmax_statistics",
                                                    "softmax_backward",
                                                    "adamw",
                                                    "adamw_bf16",
                                                    "norm_squared",
                                                    "fill",
                                                    "copy",
                                                    "gelu_in_product",
                                                    "gelu_gradient_in_product",
                                                    "all_reduce",
                                                    "all_gather",
                                                    "reduce_scatter",
                                                    "broadcast",
                                                    "send",
                                                    "all_to_all"};
  static_assert(names.back() != nullptr);
  return names[static_cast<std::size_t>(kind)];
}

/// The kinds from one to another.
template <Kind first, Kind last>
constexpr auto kinds_between() {
  std::array<Kind, static_cast<std::size_t>(last) - static_cast<std::size_t>(first) + 1> out{};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<Kind>(static_cast<std::size_t>(first) + i);
  return out;
}
/// Four groups that have every kind once. A cluster has a sort of table for each.
inline constexpr auto gemms = kinds_between<Kind::gemm_nt, Kind::gemm_tn>();
inline constexpr auto attentions = kinds_between<Kind::attention_forward, Kind::attention_backward>();
/// Their time follows the elements that they touch.
inline constexpr auto memory_bound = kinds_between<Kind::norm_forward, Kind::gelu_gradient_in_product>();
inline constexpr auto communications = kinds_between<Kind::all_reduce, Kind::all_to_all>();

constexpr bool is_gemm(Kind kind) { return kind <= gemms.back(); }
constexpr bool is_attention(Kind kind) { return kind == Kind::attention_forward || kind == Kind::attention_backward; }
constexpr bool is_communication(Kind kind) { return kind >= communications.front(); }
constexpr bool is_in_product(Kind kind) {
  return kind == Kind::gelu_in_product || kind == Kind::gelu_gradient_in_product;
}

/// Of memory-bound kinds: true for operations on rows, whose width matters; the others are flat.
constexpr bool has_rows(Kind kind) {
  constexpr std::array flat{Kind::add, Kind::adamw, Kind::adamw_bf16, Kind::norm_squared, Kind::fill, Kind::copy};
  return std::find(flat.begin(), flat.end(), kind) == flat.end();
}

/// activation_forward or activation_backward of GELU as a part of the GEMM before it.
constexpr Kind in_product(Kind activation) {
  return activation == Kind::activation_forward ? Kind::gelu_in_product : Kind::gelu_gradient_in_product;
}
/// The operation of its own that replaces a part of a GEMM; other kinds are that already.
constexpr Kind unfused(Kind kind) {
  if (!is_in_product(kind)) return kind;
  return kind == Kind::gelu_in_product ? Kind::activation_forward : Kind::activation_backward;
}

/// The word for the operands of a GEMM: nt, nn or tn.
constexpr const char* layout_of(Kind gemm) { return name_of(gemm) + sizeof("gemm_") - 1; }
/// The word for the pass of attention: forward or backward.
constexpr const char* pass_of(Kind attention) { return name_of(attention) + sizeof("attention_") - 1; }

}  // namespace galvatron::op
