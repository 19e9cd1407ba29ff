// How the parameters of a layer are cut over tensor-parallel ranks and laid out in one flat run of memory.
//
// A rank keeps the parameters of a layer in flat "stores", so that ZeRO shards, reduces and updates a layer in single
// operations whatever tensors it has. Blocks have one store; embedding and head have two: the vocabulary table, which
// tied models share, and the rest. Inside a store the tensors are ordered
//
//     | decays, cut over tensor ranks | decays, whole | does not decay, whole | does not decay, cut | padding |
//                                     ^ whole_begin                           ^ whole_end
//
// "Whole" tensors are the same on every tensor-parallel rank; under Megatron sequence parallelism every rank sees only
// its own tokens, so their gradients are summed over the tensor-parallel group: one all-reduce of one run.
#pragma once

#include <array>
#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron {

/// Tensors start on multiples of this many elements: one cache line of bfloat16.
inline constexpr std::int64_t parameter_alignment = 32;
/// The vocabulary shards are padded to multiples of this many rows.
inline constexpr std::int64_t vocabulary_alignment = 64;

enum class ParameterName : std::uint8_t {
  table,       ///< (V, H): token embedding, or the head's projection
  positions,   ///< (positions, H)
  qkv_weight,  ///< (qkv, H): rows of queries, then keys, then values
  qkv_bias,
  attention_out_weight,  ///< (H, A * head_dim)
  attention_out_bias,
  mlp_in_weight,  ///< (ffn, H), or gate rows and then up rows
  mlp_in_bias,
  mlp_out_weight,  ///< (H, ffn)
  mlp_out_bias,
  norm1_gamma,
  norm1_beta,
  norm2_gamma,
  norm2_beta,
};

/// What of the whole tensor a tensor-parallel rank holds.
enum class ParameterCut : std::uint8_t {
  whole,    ///< all of it
  rows,     ///< a run of rows in each of `sections` sections (queries, keys, values; gate, up)
  columns,  ///< a run of columns
};

enum class ParameterInit : std::uint8_t { normal, zero, one };

struct ParameterTensor {
  ParameterName name{};
  std::int64_t rows = 0;     ///< local
  std::int64_t columns = 0;  ///< local
  std::int64_t offset = 0;   ///< elements from the start of the store
  ParameterCut cut = ParameterCut::whole;
  bool decays = false;
  ParameterInit init = ParameterInit::zero;
  double deviation = 0;  ///< of the normal initialisation
  /// For ParameterCut::rows: local rows of each section; sections of the whole tensor are `degree` times as long.
  std::array<std::int64_t, 3> sections{};

  [[nodiscard]] constexpr std::int64_t count() const { return rows * columns; }
};

struct ParameterLayout {
  static constexpr int capacity = 12;
  std::array<ParameterTensor, capacity> tensors{};
  int size = 0;
  std::int64_t whole_begin = 0;
  std::int64_t whole_end = 0;
  std::int64_t decay_end = 0;  ///< elements [0, decay_end) decay
  std::int64_t elements = 0;   ///< with padding; a multiple of parameter_alignment * data

  [[nodiscard]] constexpr const ParameterTensor* begin() const { return tensors.data(); }
  [[nodiscard]] constexpr const ParameterTensor* end() const { return tensors.data() + size; }
  [[nodiscard]] constexpr const ParameterTensor* find(ParameterName name) const {
    for (const ParameterTensor& tensor : *this)
      if (tensor.name == name) return &tensor;
    return nullptr;
  }
};

/// The parts of a layer's parameters: each is one store.
enum class ParameterPart : std::uint8_t { table, rest };

/// Rows of the vocabulary that each of `tensor` ranks holds, padding included.
constexpr std::int64_t vocabulary_shard(std::int64_t vocabulary, int tensor) {
  return round_up(divide_up(vocabulary, tensor), vocabulary_alignment);
}

/// The local layout of one store of a layer under `tensor` tensor-parallel ranks; `data` ranks (data x context) hold
/// the same and may shard it.
/// Initialisation follows GPT-2: normal(0, 0.02), residual projections divided by sqrt(2 L), norms 1, biases 0.
constexpr ParameterLayout parameter_layout(const LayerSpec& layer, ParameterPart part, int tensor, int data) {
  ParameterLayout out;
  const std::int64_t h = layer.hidden;
  std::int64_t end = 0;
  const auto add = [&](ParameterName name, std::int64_t rows, std::int64_t columns, ParameterCut cut, bool decays,
                       ParameterInit init, double deviation, std::array<std::int64_t, 3> sections) {
    ParameterTensor& t = out.tensors[out.size++];
    t = {name, rows, columns, end, cut, decays, init, deviation, sections};
    end = round_up(end + rows * columns, parameter_alignment);
  };
  const auto weight = [&](ParameterName name, std::int64_t rows, std::int64_t columns, ParameterCut cut,
                          double deviation = 0.02, std::array<std::int64_t, 3> sections = {}) {
    if (cut == ParameterCut::rows && sections[0] == 0) sections[0] = rows;
    add(name, rows, columns, cut, true, ParameterInit::normal, deviation, sections);
  };
  const auto vector = [&](ParameterName name, std::int64_t n, ParameterCut cut, ParameterInit init,
                          std::array<std::int64_t, 3> sections = {}) {
    add(name, n, 1, cut, false, init, 0, sections);
  };
  // 1 / sqrt(2 L) by Newton's iteration: std::sqrt is not constexpr.
  double residual = 1;
  for (int i = 0; i < 64; ++i) residual = 0.5 * (residual + 1.0 / (2.0 * layer.layers * residual));
  const double residual_deviation = 0.02 * residual;

  const std::int64_t q = layer.heads / tensor * layer.head_dim;
  const std::int64_t kv = layer.kv_heads / tensor * layer.head_dim;
  const std::int64_t f = layer.ffn / tensor;
  const bool gated = layer.activation == ActivationKind::swiglu;
  const std::array<std::int64_t, 3> qkv_sections{q, kv, kv};
  const std::array<std::int64_t, 3> mlp_sections{f, gated ? f : 0, 0};

  // Decays, cut.
  if (part == ParameterPart::table) {
    weight(ParameterName::table, vocabulary_shard(layer.vocabulary, tensor), h, ParameterCut::rows);
  } else if (layer.kind == LayerKind::block) {
    weight(ParameterName::qkv_weight, q + 2 * kv, h, ParameterCut::rows, 0.02, qkv_sections);
    weight(ParameterName::attention_out_weight, h, q, ParameterCut::columns, residual_deviation);
    weight(ParameterName::mlp_in_weight, gated ? 2 * f : f, h, ParameterCut::rows, 0.02, mlp_sections);
    weight(ParameterName::mlp_out_weight, h, f, ParameterCut::columns, residual_deviation);
  }
  out.whole_begin = end;
  // Decays, whole.
  if (part == ParameterPart::rest && layer.kind == LayerKind::embedding && layer.position == PositionKind::learned)
    weight(ParameterName::positions, layer.positions, h, ParameterCut::whole);
  out.decay_end = end;
  // Does not decay, whole.
  const bool beta = layer.norm == NormKind::layer_norm;
  if (part == ParameterPart::rest && layer.kind != LayerKind::embedding) {
    vector(ParameterName::norm1_gamma, h, ParameterCut::whole, ParameterInit::one);
    if (beta) vector(ParameterName::norm1_beta, h, ParameterCut::whole, ParameterInit::zero);
    if (layer.kind == LayerKind::block) {
      vector(ParameterName::norm2_gamma, h, ParameterCut::whole, ParameterInit::one);
      if (beta) vector(ParameterName::norm2_beta, h, ParameterCut::whole, ParameterInit::zero);
      if (layer.bias) {
        vector(ParameterName::attention_out_bias, h, ParameterCut::whole, ParameterInit::zero);
        vector(ParameterName::mlp_out_bias, h, ParameterCut::whole, ParameterInit::zero);
      }
    }
  }
  out.whole_end = end;
  // Does not decay, cut.
  if (part == ParameterPart::rest && layer.kind == LayerKind::block && layer.bias) {
    vector(ParameterName::qkv_bias, q + 2 * kv, ParameterCut::rows, ParameterInit::zero, qkv_sections);
    vector(ParameterName::mlp_in_bias, gated ? 2 * f : f, ParameterCut::rows, ParameterInit::zero, mlp_sections);
  }
  out.elements = round_up(end, parameter_alignment * data);
  return out;
}

}  // namespace galvatron
