// The policies that a strategy is composed of: one per axis, each a type of its own.
//
// Kinds are template arguments because they change the code of a layer; degrees may be numbers (`TensorParallel<4>`) or
// left to run time (`TensorParallel<>`), as the extents of std::extents.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>

#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// What a policy decides. A strategy has one policy per axis.
enum class Axis : std::uint8_t {
  data,
  zero,
  tensor,
  sequence,
  context,
  expert,
  dispatch,
  groups,
  shards,
  pipeline,
  recompute
};

namespace detail {
struct NoneTag {
  constexpr operator SequenceKind() const { return SequenceKind::none; }
  constexpr operator RecomputeKind() const { return RecomputeKind::none; }
};
}  // namespace detail

/// Short names for template arguments: `Recompute<full>`, `SequenceParallel<megatron>`, `TensorParallel<dynamic>`.
inline namespace kinds {
inline constexpr detail::NoneTag none{};  ///< of sequence parallelism, and of recomputation
inline constexpr SequenceKind megatron = SequenceKind::megatron;
inline constexpr SequenceKind ulysses = SequenceKind::ulysses;
inline constexpr SequenceKind ring = SequenceKind::ring;
inline constexpr SequenceKind megatron_ulysses = SequenceKind::megatron_ulysses;
inline constexpr DispatchKind plain = DispatchKind::plain;
inline constexpr DispatchKind lsh = DispatchKind::lsh;
inline constexpr SequenceGroupKind fixed = SequenceGroupKind::fixed;
inline constexpr SequenceGroupKind per_batch = SequenceGroupKind::per_batch;
inline constexpr ShardKind even = ShardKind::even;
inline constexpr ShardKind by_ratio = ShardKind::by_ratio;
inline constexpr RecomputeKind cheap = RecomputeKind::cheap;
inline constexpr RecomputeKind selective = RecomputeKind::selective;
inline constexpr RecomputeKind full = RecomputeKind::full;
/// A degree that is known at run time.
inline constexpr int dynamic = std::numeric_limits<int>::min();
/// Where tensor-parallel ranks lie: `TensorParallel<2, strided>`.
inline constexpr bool strided = true;
}  // namespace kinds

/// A type that Strategy<> accepts.
template <class P>
concept StrategyPolicy = requires {
  { P::axis } -> std::convertible_to<Axis>;
};

/// Ranks that work on different samples. Left out of a strategy, the degree is one of run time.
template <int N = dynamic>
struct DataParallel {
  static_assert(N == dynamic || N >= 1, "galvatron: the degree of DataParallel<N> is at least 1.");
  static constexpr Axis axis = Axis::data;
  static constexpr int degree = N;
};

/// What is sharded over the data- and context-parallel ranks: nothing (0), optimizer states (1), and gradients (2), and
/// parameters (3). Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.
template <int Stage>
struct ZeRO {
  static_assert(Stage >= 0 && Stage <= 3, "galvatron: the stage of ZeRO<stage> is 0, 1, 2 or 3.");
  static constexpr Axis axis = Axis::zero;
  static constexpr int stage = Stage;
};

/// Ranks that share the heads and the MLP of a layer. Shoeybi et al., "Megatron-LM", 2019. They are neighbours, or, if
/// strided, lie around the ranks that share parameters; with a degree of run time that is said at run time too.
template <int N = dynamic, bool Strided = false>
struct TensorParallel {
  static_assert(N == dynamic || N >= 1, "galvatron: the degree of TensorParallel<N> is at least 1.");
  static constexpr Axis axis = Axis::tensor;
  static constexpr int degree = N;
  static constexpr bool is_strided = Strided;
};

/// How tokens are split: `none`, `megatron` (over the tensor-parallel ranks, and with a context degree in a ring),
/// `ulysses` or `ring` (over the context-parallel ranks), or `megatron_ulysses` (over both).
template <SequenceKind Kind>
struct SequenceParallel {
  static constexpr Axis axis = Axis::sequence;
  static constexpr SequenceKind kind = Kind;
};

/// Ranks that share the sequences.
template <int N = dynamic>
struct ContextParallel {
  static_assert(N == dynamic || N >= 1, "galvatron: the degree of ContextParallel<N> is at least 1.");
  static constexpr Axis axis = Axis::context;
  static constexpr int degree = N;
};

/// Ranks that share the experts of a layer, each with some of them, and ranks that share each expert; 0: the tensor
/// ranks. Both are chosen apart from how attention is spread over the same ranks (Liu et al., "MoE parallel folding",
/// arXiv 2504.14960). Nodes that they lie in, to each of which a token goes once; 1: it goes to each expert.
template <int N = dynamic, int Tensor = N == dynamic ? dynamic : 0, int Nodes = N == dynamic ? dynamic : 1>
struct ExpertParallel {
  static_assert(N == dynamic || N >= 1, "galvatron: the degree of ExpertParallel<N> is at least 1.");
  static_assert(Tensor == dynamic || Tensor >= 0,
                "galvatron: the tensor degree of ExpertParallel<N, Tensor> is at least 1, or 0: that of the layer.");
  static_assert((N == dynamic) == (Tensor == dynamic) && (N == dynamic) == (Nodes == dynamic),
                "galvatron: all degrees of ExpertParallel<> are of run time, or none.");
  static constexpr Axis axis = Axis::expert;
  static constexpr int degree = N;
  static constexpr int tensor = Tensor;
  static constexpr int nodes = Nodes;
};

/// How tokens go to experts on other ranks: `plain`, or `lsh`, as means of those that hash alike (Nie et al.,
/// "LSH-MoE", NeurIPS 2024).
template <DispatchKind Kind>
struct ExpertDispatch {
  static constexpr Axis axis = Axis::dispatch;
  static constexpr DispatchKind kind = Kind;
};

/// Which ranks share a packed sequence: the context ranks (`fixed`), or in every micro-batch other ones, as many as its
/// documents need (`per_batch`; Wang et al., "FlexSP", ASPLOS 2025).
template <SequenceGroupKind Kind>
struct SequenceGroups {
  static constexpr Axis axis = Axis::groups;
  static constexpr SequenceGroupKind kind = Kind;
};

/// How large the shards of ranks are: equal (`even`), or as the ratios of the plan's stage say (`by_ratio`), for ranks
/// of unequal speed (Zhang et al., "HAP", EuroSys 2024). Ratios are of run time, and equal ones are a case of them.
template <ShardKind Kind>
struct Shards {
  static constexpr Axis axis = Axis::shards;
  static constexpr ShardKind kind = Kind;
};

/// Stages of the pipeline, each with its own layers and ranks, and the order of its work.
template <int N = dynamic, ScheduleKind Schedule = ScheduleKind::one_f_one_b>
struct Pipeline {
  static_assert(N == dynamic || N >= 1, "galvatron: the degree of Pipeline<N> is at least 1.");
  static constexpr Axis axis = Axis::pipeline;
  static constexpr int degree = N;
  static constexpr ScheduleKind schedule = Schedule;
};

/// What backward recomputes instead of keeping: `none` (everything is kept), `cheap` (the outputs of norms and
/// activations; the default), `selective` (them and the attention core) or `full` (the layer).
template <RecomputeKind Kind>
struct Recompute {
  static constexpr Axis axis = Axis::recompute;
  static constexpr RecomputeKind kind = Kind;
};

}  // namespace galvatron
