// Strategy<>: how a layer is spread over ranks, as a type.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include <galvatron/core/error.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/policies.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::program {
/// The program of a layer, lowered at compile time (program/lower.hpp).
template <StrategySpec kinds, LayerSpec layer>
struct ProgramOf;
}  // namespace galvatron::program

namespace galvatron {

/// Degrees given at run time; 0 stands for "as the type says".
struct Degrees {
  int data = 0;
  int tensor = 0;
  int context = 0;
  int pipeline = 0;
  bool strided = false;  ///< of a tensor degree of run time
  int expert = 0;
  int expert_tensor = 0;     ///< of an expert degree of run time
  int expert_nodes = 0;      ///< the same
  bool even_shards = false;  ///< of Shards<by_ratio>: those of this layer are equal
};

namespace detail {

/// What the program of a layer depends on.
constexpr StrategySpec program_kinds(const LayerSpec& layer, StrategySpec spec) {
  if (layer.experts == 0) spec = spec.without_experts();
  spec.expert_nodes = 1;
  spec.zero = 0;
  spec.shard_kind = ShardKind::even;
  return spec;
}

/// The first policy of an axis, or Default.
template <Axis A, class Default, class... Policies>
struct PolicyOf {
  using type = Default;
};
template <Axis A, class Default, class First, class... Rest>
struct PolicyOf<A, Default, First, Rest...> {
  using type =
      typename std::conditional_t<First::axis == A, std::type_identity<First>, PolicyOf<A, Default, Rest...>>::type;
};

/// A degree takes room only when it is not part of the type; the axis keeps empty ones distinct.
template <Axis A, int N>
struct Degree {
  static constexpr int value = N;
};
template <Axis A>
struct Degree<A, dynamic> {
  int value = 1;
};
template <>
struct Degree<Axis::tensor, dynamic> {
  int value = 1;
  bool is_strided = false;
};
template <>
struct Degree<Axis::expert, dynamic> {
  int value = 1;
  int tensor = 0;
  int nodes = 1;
};

/// A spec that answers to `spec` and to `spec()` alike: Strategy<...>::spec is a value where everything is static.
struct StaticSpec : StrategySpec {
  constexpr StrategySpec operator()() const { return *this; }
};

/// The policies of a strategy, one per axis.
template <class... Policies>
struct Policy {
  using Data = typename PolicyOf<Axis::data, DataParallel<>, Policies...>::type;
  using Zero = typename PolicyOf<Axis::zero, ZeRO<0>, Policies...>::type;
  using Tensor = typename PolicyOf<Axis::tensor, TensorParallel<1>, Policies...>::type;
  using Sequence = typename PolicyOf<Axis::sequence, SequenceParallel<none>, Policies...>::type;
  using Context = typename PolicyOf<Axis::context, ContextParallel<1>, Policies...>::type;
  using Experts = typename PolicyOf<Axis::expert, ExpertParallel<1>, Policies...>::type;
  using Dispatch = typename PolicyOf<Axis::dispatch, ExpertDispatch<plain>, Policies...>::type;
  using Groups = typename PolicyOf<Axis::groups, SequenceGroups<fixed>, Policies...>::type;
  using Sharded = typename PolicyOf<Axis::shards, Shards<even>, Policies...>::type;
  using Stages = typename PolicyOf<Axis::pipeline, Pipeline<1>, Policies...>::type;
  using Again = typename PolicyOf<Axis::recompute, Recompute<cheap>, Policies...>::type;

  static constexpr bool is_static = Data::degree != dynamic && Tensor::degree != dynamic &&
                                    Context::degree != dynamic && Experts::degree != dynamic &&
                                    Experts::tensor != dynamic && Stages::degree != dynamic;

  /// The spec, with the most favourable value for degrees that are not known yet: what is illegal here is always so.
  static constexpr StaticSpec best_case{
      {.tensor = Tensor::degree == dynamic ? 2 : Tensor::degree,
       .sequence = Sequence::kind,
       .context = Context::degree == dynamic ? (is_split_over_context(Sequence::kind) ? 2 : 1) : Context::degree,
       .data = Data::degree != dynamic      ? Data::degree
               : Experts::degree == dynamic ? 2
                                            : 2 * Experts::degree * (Experts::tensor > 0 ? Experts::tensor : 1),
       .zero = Zero::stage,
       .expert = Experts::degree != dynamic              ? Experts::degree
                 : Dispatch::kind == DispatchKind::plain ? 1
                                                         : 2,
       .expert_tensor = Experts::tensor == dynamic ? 0 : Experts::tensor,
       .expert_nodes = Experts::nodes == dynamic ? 1 : Experts::nodes,
       .dispatch = Dispatch::kind,
       .groups = Groups::kind,
       .shard_kind = Sharded::kind,
       .recompute = Again::kind,
       .strided = Tensor::is_strided}};
};

/// Whether ratios of run time are there.
template <ShardKind Kind>
struct ShardChoice {
  [[nodiscard]] constexpr ShardKind kind() const { return Kind; }
};
template <>
struct ShardChoice<ShardKind::by_ratio> {
  bool are_even = false;
  [[nodiscard]] constexpr ShardKind kind() const { return are_even ? ShardKind::even : ShardKind::by_ratio; }
};

template <class Policy, bool IsStatic = Policy::is_static>
struct StrategyDegrees {
  static constexpr StaticSpec spec = Policy::best_case;
  static constexpr int pipeline() { return Policy::Stages::degree; }
};

template <class Policy>
struct StrategyDegrees<Policy, false> {
  [[no_unique_address]] Degree<Axis::tensor, Policy::Tensor::degree> tensor_degree{};
  [[no_unique_address]] Degree<Axis::context, Policy::Context::degree> context_degree{};
  [[no_unique_address]] Degree<Axis::data, Policy::Data::degree> data_degree{};
  [[no_unique_address]] Degree<Axis::expert, Policy::Experts::degree> expert_degree{};
  [[no_unique_address]] Degree<Axis::pipeline, Policy::Stages::degree> pipeline_degree{};
  [[no_unique_address]] ShardChoice<Policy::Sharded::kind> shard_choice{};

  [[nodiscard]] constexpr StrategySpec spec() const {
    StrategySpec out = Policy::best_case;
    out.tensor = tensor_degree.value;
    out.context = context_degree.value;
    out.data = data_degree.value;
    if constexpr (Policy::Tensor::degree == dynamic) out.strided = tensor_degree.is_strided;
    out.shard_kind = shard_choice.kind();
    out.expert = expert_degree.value;
    if constexpr (Policy::Experts::degree == dynamic) {
      out.expert_tensor = expert_degree.tensor;
      out.expert_nodes = expert_degree.nodes;
    }
    return out;
  }
  [[nodiscard]] constexpr int pipeline() const { return pipeline_degree.value; }
};

}  // namespace detail

/// How one layer is spread over the ranks of its pipeline stage, composed of policies in any order, at most one per
/// axis:
///
///     Strategy<ZeRO<3>, TensorParallel<2>, Recompute<full>>   // data degree at run time: what 2 leaves over
///     Strategy<DataParallel<4>, Pipeline<2>>                  // static: ::spec is a constant
///
/// Axes left out: data degree at run time; tensor, context, expert and pipeline degree 1; ZeRO 0; no sequence
/// parallelism; no recomputation. Combinations that make no sense do not compile; degrees given at run time are checked
/// when the object is made.
template <class... Policies>
class Strategy : public detail::StrategyDegrees<detail::Policy<Policies...>> {
  static_assert(
      (StrategyPolicy<Policies> && ...),
      "galvatron: the arguments of Strategy<> are policies: DataParallel, ZeRO, TensorParallel, "
      "SequenceParallel, ContextParallel, ExpertParallel, ExpertDispatch, SequenceGroups, Shards, Pipeline or "
      "Recompute.");
  template <Axis A>
  static constexpr bool names_once = (0 + ... + (Policies::axis == A ? 1 : 0)) <= 1;
  static_assert(names_once<Axis::data>, "galvatron: Strategy<> names DataParallel more than once.");
  static_assert(names_once<Axis::zero>, "galvatron: Strategy<> names ZeRO more than once.");
  static_assert(names_once<Axis::tensor>, "galvatron: Strategy<> names TensorParallel more than once.");
  static_assert(names_once<Axis::sequence>, "galvatron: Strategy<> names SequenceParallel more than once.");
  static_assert(names_once<Axis::context>, "galvatron: Strategy<> names ContextParallel more than once.");
  static_assert(names_once<Axis::expert>, "galvatron: Strategy<> names ExpertParallel more than once.");
  static_assert(names_once<Axis::dispatch>, "galvatron: Strategy<> names ExpertDispatch more than once.");
  static_assert(names_once<Axis::groups>, "galvatron: Strategy<> names SequenceGroups more than once.");
  static_assert(names_once<Axis::shards>, "galvatron: Strategy<> names Shards more than once.");
  static_assert(names_once<Axis::pipeline>, "galvatron: Strategy<> names Pipeline more than once.");
  static_assert(names_once<Axis::recompute>, "galvatron: Strategy<> names Recompute more than once.");

  using Policy = detail::Policy<Policies...>;
  using Base = detail::StrategyDegrees<Policy>;
  static constexpr StrategySpec best_case = Policy::best_case;
#define GALVATRON_ASSERT_RULE(broken, sentence) static_assert(!(broken), "galvatron: " sentence);
  GALVATRON_STRATEGY_RULES(GALVATRON_ASSERT_RULE, best_case)
#undef GALVATRON_ASSERT_RULE

 public:
  static constexpr int zero = Policy::Zero::stage;
  static constexpr SequenceKind sequence = Policy::Sequence::kind;
  static constexpr DispatchKind dispatch = Policy::Dispatch::kind;
  static constexpr SequenceGroupKind groups = Policy::Groups::kind;
  static constexpr ShardKind shards = Policy::Sharded::kind;
  static constexpr RecomputeKind recompute = Policy::Again::kind;
  static constexpr ScheduleKind schedule = Policy::Stages::schedule;
  /// True when every degree is part of the type; `spec` is then a static constant (and still answers to `spec()`).
  static constexpr bool is_static = Policy::is_static;

  /// The program of a layer under this strategy, made at compile time: include galvatron/program/lower.hpp. That of a
  /// strategy with other ZeRO stages is the same.
  template <LayerSpec layer>
  static constexpr auto program =
      ::galvatron::program::ProgramOf<detail::program_kinds(layer, best_case), layer>::value;

  /// Every degree is part of the type.
  constexpr Strategy()
    requires is_static
  = default;
  /// Degrees that are not part of the type; those that are may be repeated. Throws Failure (usage) with the sentence of
  /// the rule that the degrees break, which in a constant expression is a compile error.
  constexpr explicit Strategy(const Degrees& degrees) {
    if (const char* refused = refusal(degrees)) throw_error(Error{ErrorKind::usage, refused});
    assign(degrees);
  }

  /// True when `spec` is of these kinds and, where degrees are static, of these degrees in these places.
  static constexpr bool accepts(const StrategySpec& spec) {
    const auto same = [](int given, int fixed) { return fixed == dynamic || fixed == given; };
    return spec.zero == zero && spec.sequence == sequence && spec.recompute == recompute && spec.dispatch == dispatch &&
           spec.groups == groups && (spec.shard_kind == shards || (shards == by_ratio && !is_static)) &&
           same(spec.tensor, Policy::Tensor::degree) && same(spec.context, Policy::Context::degree) &&
           same(spec.data, Policy::Data::degree) && same(spec.expert, Policy::Experts::degree) &&
           same(spec.expert_tensor, Policy::Experts::tensor) && same(spec.expert_nodes, Policy::Experts::nodes) &&
           (spec.strided == Policy::Tensor::is_strided ||
            (Policy::Tensor::degree == dynamic && !Policy::Tensor::is_strided)) &&
           is_legal(spec);
  }
  /// The strategy that `spec` describes; `accepts(spec)` must hold.
  static constexpr Strategy of(const StrategySpec& spec) {
    return Strategy(Degrees{.data = spec.data,
                            .tensor = spec.tensor,
                            .context = spec.context,
                            .pipeline = Policy::Stages::degree == dynamic ? 1 : 0,
                            .strided = spec.strided,
                            .expert = spec.expert,
                            .expert_tensor = spec.expert_tensor,
                            .expert_nodes = spec.expert_nodes,
                            .even_shards = spec.shard_kind == even});
  }

  [[nodiscard]] constexpr int tensor() const { return this->spec().tensor; }
  [[nodiscard]] constexpr int context() const { return this->spec().context; }
  [[nodiscard]] constexpr int data() const { return this->spec().data; }
  /// Ranks of a stage.
  [[nodiscard]] constexpr int ranks() const { return this->spec().ranks(); }

  friend constexpr bool operator==(const Strategy& a, const Strategy& b) {
    return a.spec() == b.spec() && a.pipeline() == b.pipeline();
  }
  /// `zero3 tp2 dp* recompute-full`: the kinds and degrees of the type, a star for a degree of run time.
  static std::string type_text() {
    StrategySpec spec = best_case;
    if (Policy::Experts::degree == dynamic) spec.expert = 1;
    return strategy_text(spec, Policy::Tensor::degree == dynamic, Policy::Context::degree == dynamic,
                         Policy::Data::degree == dynamic);
  }

 private:
  static constexpr int pick(int given, int fixed) { return fixed == dynamic ? given : fixed; }
  static constexpr const char* refusal(const Degrees& given) {
    const auto differs = [](int value, int fixed) { return fixed != dynamic && value != 0 && value != fixed; };
    if (differs(given.data, Policy::Data::degree)) return "the data degree differs from that of the strategy's type.";
    if (differs(given.tensor, Policy::Tensor::degree))
      return "the tensor degree differs from that of the strategy's type.";
    if (differs(given.context, Policy::Context::degree))
      return "the context degree differs from that of the strategy's type.";
    if (differs(given.expert, Policy::Experts::degree) || differs(given.expert_tensor, Policy::Experts::tensor) ||
        differs(given.expert_nodes, Policy::Experts::nodes))
      return "the expert degrees differ from those of the strategy's type.";
    if (differs(given.pipeline, Policy::Stages::degree))
      return "the pipeline degree differs from that of the strategy's type.";
    if (pick(given.pipeline, Policy::Stages::degree) < 1) return "the pipeline degree is at least 1.";
    StrategySpec spec = best_case;
    spec.data = pick(given.data, Policy::Data::degree);
    spec.tensor = pick(given.tensor, Policy::Tensor::degree);
    spec.context = pick(given.context, Policy::Context::degree);
    if (Policy::Tensor::degree == dynamic) spec.strided = spec.strided || given.strided;
    if (Policy::Experts::degree == dynamic) {
      spec.expert = given.expert == 0 ? 1 : given.expert;
      spec.expert_tensor = given.expert_tensor;
      spec.expert_nodes = given.expert_nodes == 0 ? 1 : given.expert_nodes;
    }
    const std::string_view why = why_illegal(spec);
    return why.empty() ? nullptr : why.data();  // the sentences are literals
  }
  constexpr void assign(const Degrees& given) {
    if constexpr (!is_static) {
      if constexpr (Policy::Tensor::degree == dynamic)
        this->tensor_degree = {given.tensor, best_case.strided || given.strided};
      if constexpr (Policy::Context::degree == dynamic) this->context_degree.value = given.context;
      if constexpr (Policy::Data::degree == dynamic) this->data_degree.value = given.data;
      if constexpr (Policy::Experts::degree == dynamic)
        this->expert_degree = {given.expert == 0 ? 1 : given.expert, given.expert_tensor,
                               given.expert_nodes == 0 ? 1 : given.expert_nodes};
      if constexpr (Policy::Stages::degree == dynamic) this->pipeline_degree.value = given.pipeline;
      if constexpr (shards == by_ratio) this->shard_choice.are_even = given.even_shards;
    }
  }
};

template <class S>
inline constexpr bool is_strategy = false;
template <class... Policies>
inline constexpr bool is_strategy<Strategy<Policies...>> = true;

/// A Strategy<> type: what the layers of runtime/ are written against.
template <class S>
concept StrategyType = is_strategy<std::remove_cvref_t<S>>;

/// The Strategy<> whose kinds and degrees are those of `spec`, which is known when the program is compiled. A spec that
/// breaks a rule does not compile, with the sentence of the rule.
///
///     constexpr auto found = search::constexpr_search<12>(block, cluster, options);
///     using Chosen = StrategyOf<found.strategies[0]>;
template <StrategySpec spec>
using StrategyOf =
    Strategy<DataParallel<spec.data>, ZeRO<spec.zero>, TensorParallel<spec.tensor, spec.strided>,
             SequenceParallel<spec.sequence>, ContextParallel<spec.context>,
             ExpertParallel<spec.expert, spec.expert_tensor, spec.expert_nodes>, ExpertDispatch<spec.dispatch>,
             SequenceGroups<spec.groups>, Shards<spec.shard_kind>, Recompute<spec.recompute>>;

}  // namespace galvatron
