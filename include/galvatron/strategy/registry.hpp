// From a strategy as a value to the strategy as a type: which instantiations a program has, and the way to them.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/strategy/compose.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/policies.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// A list of types.
template <class... Ts>
struct TypeList {
  static constexpr int size = sizeof...(Ts);
};

namespace detail {
// Megatron sequence parallelism needs tensor ranks, and ZeRO data ranks; both degrees are of run time, and that of
// context ranks wherever there may be some.
template <int Stage, SequenceKind Sequence, RecomputeKind Again, DispatchKind Dispatch>
using OfKinds = Strategy<DataParallel<>, ZeRO<Stage>, TensorParallel<>, SequenceParallel<Sequence>,
                         ContextParallel<Sequence == SequenceKind::none ? 1 : dynamic>, ExpertParallel<>,
                         ExpertDispatch<Dispatch>, Shards<by_ratio>, Recompute<Again>>;
template <SequenceKind Sequence, RecomputeKind Again>
using PerBatch = Strategy<DataParallel<>, ZeRO<3>, TensorParallel<>, SequenceParallel<Sequence>, ContextParallel<>,
                          SequenceGroups<per_batch>, Recompute<Again>>;
template <std::size_t... I, std::size_t... J>
TypeList<OfKinds<I / 20 % 4, sequence_kinds[I / 4 % 5], recompute_kinds[I % 4], dispatch_kinds[I / 80]>...,
         PerBatch<sequence_kinds[2 + J / 4], recompute_kinds[J % 4]>...>
    all_kinds(std::index_sequence<I...>, std::index_sequence<J...>);
}  // namespace detail

/// What a program instantiates that can run any plan of this version: ZeRO 0-3 x {no, Megatron, Ulysses, ring, Megatron
/// with Ulysses} sequence parallelism x {cheap, selective, full, no} recomputation x {plain, compressed} dispatch, and
/// groups for every batch with ZeRO 3 x {Ulysses, ring} x recomputation, with degrees and ratios of run time. A trainer
/// that names its strategy as a type uses `TypeList<ThatType>` instead and refuses plans with others.
using InstantiatedStrategies =
    decltype(detail::all_kinds(std::make_index_sequence<160>{}, std::make_index_sequence<8>{}));

/// The strategies of a list in words, in its order.
template <class... Strategies>
std::vector<std::string> names_of(TypeList<Strategies...> /*list*/) {
  return {Strategies::type_text()...};
}

/// True when one of the types of the list can carry `spec`.
template <class... Strategies>
constexpr bool is_instantiated(TypeList<Strategies...> /*list*/, const StrategySpec& spec) {
  return (Strategies::accepts(spec) || ...);
}

/// Why no type of `List` can carry `spec`: the rule that it breaks, or the list of what is instantiated.
template <class List>
Error not_instantiated(const StrategySpec& spec) {
  std::string message = "the strategy \"" + strategy_text(spec) + "\" ";
  if (const auto why = why_illegal(spec); !why.empty()) {
    message += "is not possible: " + std::string(why);
  } else {
    message += "is not instantiated in this program; instantiated are: " + joined(names_of(List{}));
  }
  return {ErrorKind::usage, std::move(message)};
}

/// Calls `f(strategy)` with the first Strategy<> type of the list that accepts `spec`, made of its degrees: how a
/// trainer that is compiled for types carries out a plan that it got at startup. Returns Result<R> for an f that
/// returns R, the same for all types and not void. Errors (usage): those of not_instantiated.
template <class First, class... Others, class F>
auto dispatch(TypeList<First, Others...> list, const StrategySpec& spec, F&& f) {
  Result<std::invoke_result_t<F&, First>> out = tl::unexpected<Error>(Error{});
  const auto calls = [&]<class S>(std::type_identity<S> /*type*/) {
    if (!S::accepts(spec)) return false;
    out = f(S::of(spec));
    return true;
  };
  if (!(calls(std::type_identity<First>{}) || ... || calls(std::type_identity<Others>{})))
    out = tl::unexpected<Error>(not_instantiated<decltype(list)>(spec));
  return out;
}

}  // namespace galvatron
