// How the parameters of a layer are cut over tensor-parallel ranks and laid out in one flat run of memory.
//
// A rank keeps the parameters of a layer in flat "stores", so that ZeRO shards, reduces and updates a layer in single
// operations whatever tensors it has. Blocks have one store, and a second one of experts; embedding and head have two:
// the vocabulary table, which tied models share, and the rest. Frozen parameters of the rest are a store of their own,
// which has neither gradients nor states of the optimizer. Inside a store the tensors are ordered
//
//     | decays, cut over tensor ranks | decays, whole | does not decay, whole | does not decay, cut | padding |
//                                     ^ whole_begin                           ^ whole_end
//
// The last of the whole tensors that do not decay is a router's bias, where there is one: balance_begin to whole_end.
//
// "Whole" tensors are the same on every tensor-parallel rank; under Megatron sequence parallelism every rank sees only
// its own tokens, so their gradients are summed over the tensor-parallel group: one all-reduce of one run. Those of the
// whole factors of adapters are partial sums always: A in front of split rows, B behind split columns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/core/sharding.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/forward.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/model/parameter.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/ratios.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// Tensors start on multiples of this many elements: one cache line of bfloat16.
inline constexpr std::int64_t parameter_alignment = 32;

/// What of the whole tensor a tensor-parallel rank holds.
enum class ParameterCut : std::uint8_t {
  whole,    ///< all of it
  rows,     ///< a run of rows in each of `sections` sections (queries, keys, values; gate, up)
  columns,  ///< a run of columns
};

struct ParameterTensor {
  ParameterName name{};
  std::int64_t rows = 0;         ///< local
  std::int64_t columns = 0;      ///< local
  std::int64_t all_rows = 0;     ///< of the whole tensor, without padding
  std::int64_t all_columns = 0;  ///< the same
  std::int64_t offset = 0;       ///< elements from the start of the store
  ParameterCut cut = ParameterCut::whole;
  bool decays = false;
  bool frozen = false;
  ParameterInit init = ParameterInit::zero;
  double deviation = 0;  ///< of the normal initialisation
  /// For ParameterCut::rows: local rows of each section, and where they begin in the whole matrix.
  std::array<std::int64_t, 3> sections{};
  std::array<std::int64_t, 3> begins{};
  std::int64_t first_column = 0;  ///< for ParameterCut::columns: where the local ones begin
  std::int64_t copies = 1;        ///< matrices one behind the other, each with the sections
  std::int64_t matrix_rows = 0;   ///< of one of them as a whole

  [[nodiscard]] constexpr std::int64_t count() const { return rows * columns; }
};

struct ParameterLayout {
  static constexpr int capacity = 28;
  std::array<ParameterTensor, capacity> tensors{};
  int size = 0;
  std::int64_t whole_begin = 0;
  std::int64_t whole_end = 0;
  std::int64_t decay_end = 0;      ///< elements [0, decay_end) decay
  std::int64_t balance_begin = 0;  ///< elements [balance_begin, whole_end) follow the load of experts, not a gradient
  /// Elements [0, written_end) are weights of a block whose gradients are one product each, without gaps: a micro-batch
  /// can write them, where it adds all others to zeros. See writes_gradients.
  std::int64_t written_end = 0;
  bool frozen = false;         ///< no gradients, no states of the optimizer
  bool partial_whole = false;  ///< gradients of whole tensors are sums over tensor ranks, whatever splits the sequence
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
enum class ParameterPart : std::uint8_t { table, rest, experts, frozen };
inline constexpr std::array parameter_parts{ParameterPart::table, ParameterPart::rest, ParameterPart::experts,
                                            ParameterPart::frozen};
constexpr ParameterPart part_of(const forward::WeightSpec& weight) {
  if (weight.is_table) return ParameterPart::table;
  if (weight.of_experts) return ParameterPart::experts;
  return weight.frozen ? ParameterPart::frozen : ParameterPart::rest;
}
/// True where no parameter of a part has a gradient.
constexpr bool is_frozen(const forward::Graph& graph, ParameterPart part) {
  for (int i = 0; i < graph.weight_count; ++i)
    if (part_of(graph.weight(i)) == part && !graph.weight(i).frozen) return false;
  return part != ParameterPart::rest;
}

/// What of the whole parameters of a store a rank has.
struct StorePlace {
  int tensor_rank = 0;
  int tensor_degree = 1;  ///< ranks that share rows or columns of each matrix
  int expert_rank = 0;    ///< of the ranks that share the experts: which run of them
};

/// The ranks of a stage that have parts of a store: of each matrix (tensor), of the experts, and shards of their part.
class StoreRanks {
 public:
  constexpr StoreRanks(const StrategySpec& spec, ParameterPart part)
      : layout_(part == ParameterPart::experts ? spec.expert_layout() : spec.rank_layout()),
        even_(spec.shard_kind == ShardKind::even),
        of_experts_(part == ParameterPart::experts) {}

  [[nodiscard]] constexpr int tensor() const { return layout_.size(RankMode::tp); }
  [[nodiscard]] constexpr int experts() const { return layout_.size(RankMode::ep); }
  [[nodiscard]] constexpr int shards() const { return layout_.size(shard_modes); }
  [[nodiscard]] constexpr int shard_stride() const { return layout_.stride(shard_modes); }
  /// Of the stage's rank `local`.
  [[nodiscard]] constexpr int shard(int local) const { return layout_.coordinate(shard_modes, local); }
  /// What the stage's rank `local` has of what tensor ranks share: of experts an equal part.
  [[nodiscard]] constexpr RankShares shares(const StrategySpec& spec, const RankRatios& ratios, int local) const {
    return of_experts_ ? RankShares::even(tensor(), layout_.coordinate(RankMode::tp, local))
                       : RankShares(spec, ratios, local);
  }
  /// How the elements of a store are cut over the ranks that have the same part of it as the stage's rank `local`.
  /// @param ratios  of states; empty, or all 0 on these ranks: equal shards
  [[nodiscard]] constexpr Sharding cut(std::int64_t elements, std::span<const int> ratios, int local) const {
    std::vector<std::int64_t> own;
    std::int64_t sum = 0;
    if (!even_ && !ratios.empty())
      for (const int rank : layout_.group(shard_modes, local))
        sum += own.emplace_back(ratios[static_cast<std::size_t>(rank)]);
    return sum == 0 ? Sharding::even(elements, shards())
                    : Sharding::by_ratios(elements, std::span<const std::int64_t>(own), parameter_alignment);
  }
  [[nodiscard]] constexpr StorePlace place(int local) const {
    return {layout_.coordinate(RankMode::tp, local), tensor(), layout_.coordinate(RankMode::ep, local)};
  }

 private:
  RankLayout layout_;
  bool even_;
  bool of_experts_;
};

/// True when the products of a block can write the gradients of its weights: nothing but they is between them where the
/// extents that tensor ranks do not share are aligned.
constexpr bool writes_gradients(const forward::Graph& graph) {
  if (graph.layer.kind != LayerKind::block) return false;
  for (int i = 0; i < graph.weight_count; ++i)
    if (const forward::WeightSpec& w = graph.weight(i);
        w.products == 1 && !w.frozen && w.is_split() &&
        (w.rows.split ? w.columns.extent : w.rows.extent) % parameter_alignment != 0)
      return false;
  return true;
}

/// The local layout of one store of a layer on a rank that has these shares; `data` ranks (data x context) hold the
/// same and may shard it. Within a kind, tensors are in the order of the forward pass.
/// @param experts  ranks that share the experts
constexpr ParameterLayout parameter_layout(const forward::Graph& graph, ParameterPart part, const RankShares& shares,
                                           int data, int experts = 1) {
  ParameterLayout out;
  std::int64_t end = 0;
  // The tensors of a kind. Those whose gradient is one product are apart from others, as it can be written.
  const auto add = [&](bool decays, bool shared, bool is_product, bool balances = false) {
    for (int i = 0; i < graph.weight_count; ++i) {
      const forward::WeightSpec& w = graph.weight(i);
      if (part_of(w) != part || w.decays != decays || w.is_split() != shared) continue;
      if ((decays && shared && (w.products == 1) != is_product) || w.balances != balances) continue;
      ParameterTensor& t = out.tensors[static_cast<std::size_t>(out.size++)];
      const std::int64_t copies = w.of_experts ? w.copies / experts : w.copies;
      const std::int64_t matrix = w.rows.extent / w.copies;
      t = {.name = w.name,
           .rows = matrix * copies,
           .columns = w.columns.extent,
           .all_rows = w.rows.extent,
           .all_columns = w.columns.extent,
           .offset = end,
           .decays = decays,
           .frozen = w.frozen,
           .init = w.init,
           .deviation = w.deviation,
           .copies = copies,
           .matrix_rows = matrix};
      const auto own = [&shares](std::int64_t extent, const forward::Width& width) {
        return shares.of(extent, width.units(extent), width.head_groups > 0);
      };
      if (w.columns.split) {
        const Sharding::Range columns = own(w.columns.extent, w.columns);
        t.cut = ParameterCut::columns;
        t.columns = columns.count();
        t.first_column = columns.begin;
      } else if (w.over_vocabulary) {
        t.cut = ParameterCut::rows;
        t.begins[0] = shares.vocabulary(matrix).begin;
        t.rows = t.sections[0] = shares.vocabulary_rows(matrix);
      } else if (w.rows.split) {
        t.cut = ParameterCut::rows;
        const auto sections = w.rows.sections[0] > 0 ? w.rows.sections : std::array<std::int64_t, 3>{matrix, 0, 0};
        std::int64_t first = 0;
        t.rows = 0;
        for (std::size_t k = 0; k < sections.size() && sections[k] > 0; ++k) {
          const Sharding::Range rows = own(sections[k], w.rows);
          t.sections[k] = rows.count();
          t.begins[k] = first + rows.begin;
          t.rows += rows.count() * copies;
          first += sections[k];
        }
      }
      end = round_up(end + t.count(), parameter_alignment);
    }
  };
  for (int i = 0; i < graph.weight_count; ++i)
    out.partial_whole |= graph.weight(i).of_adapter && part_of(graph.weight(i)) == part;
  out.frozen = is_frozen(graph, part);
  add(true, true, true);
  if (part != ParameterPart::table && writes_gradients(graph)) out.written_end = end;
  add(true, true, false);
  out.whole_begin = end;
  add(true, false, false);
  out.decay_end = end;
  add(false, false, false);
  out.balance_begin = end;
  add(false, false, false, true);
  out.whole_end = end;
  add(false, true, false);
  out.elements = round_up(end, parameter_alignment * data);
  return out;
}
/// The same where `tensor` ranks have equal shares, on one of them.
constexpr ParameterLayout parameter_layout(const LayerSpec& layer, ParameterPart part, int tensor, int data,
                                           int experts = 1, int tensor_rank = 0) {
  return parameter_layout(forward_of(layer), part, RankShares::even(tensor, tensor_rank), data, experts);
}

/// The local layout of a store of a layer under a strategy, on the stage's rank `local`.
constexpr ParameterLayout parameter_layout(const forward::Graph& graph, ParameterPart part, const StrategySpec& spec,
                                           const RankRatios& ratios, int local) {
  const StoreRanks ranks(spec, part);
  return parameter_layout(graph, part, ranks.shares(spec, ratios, local), ranks.shards(), ranks.experts());
}

}  // namespace galvatron
