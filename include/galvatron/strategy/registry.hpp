// From a strategy as a value to the strategy as a type: which instantiations a program has, and the way to them.
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/strategy/compose.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/policies.hpp>
#include <galvatron/strategy/spec.hpp>
#include <galvatron/strategy/text.hpp>

namespace galvatron {

/// A list of types.
template <class... Ts>
struct TypeList {
  static constexpr int size = sizeof...(Ts);
};

/// The lists one after the other.
template <class... Lists>
struct JoinedLists;
template <class... Ts>
struct JoinedLists<TypeList<Ts...>> {
  using type = TypeList<Ts...>;
};
template <class... As, class... Bs, class... Rest>
struct JoinedLists<TypeList<As...>, TypeList<Bs...>, Rest...> {
  using type = typename JoinedLists<TypeList<As..., Bs...>, Rest...>::type;
};
template <class... Lists>
using Joined = typename JoinedLists<Lists...>::type;

namespace detail {
// Megatron sequence parallelism needs tensor ranks, and ZeRO data ranks; both degrees are of run time, and that of
// context ranks wherever there may be some.
template <int Stage, SequenceKind Sequence, RecomputeKind Again>
using OfKinds = Strategy<DataParallel<>, ZeRO<Stage>, TensorParallel<>, SequenceParallel<Sequence>,
                         ContextParallel<Sequence == SequenceKind::none ? 1 : dynamic>, Recompute<Again>>;
template <int Stage, SequenceKind Sequence>
using OfSequence = TypeList<OfKinds<Stage, Sequence, RecomputeKind::cheap>, OfKinds<Stage, Sequence, selective>,
                            OfKinds<Stage, Sequence, full>, OfKinds<Stage, Sequence, RecomputeKind::none>>;
template <int Stage>
using OfStage = Joined<OfSequence<Stage, SequenceKind::none>, OfSequence<Stage, megatron>, OfSequence<Stage, ulysses>,
                       OfSequence<Stage, ring>>;
}  // namespace detail

/// What a program instantiates that can run any plan of this version: ZeRO 0-3 x {no, Megatron, Ulysses, ring} sequence
/// parallelism x {cheap, selective, full, no} recomputation, with degrees of run time. A trainer that names its
/// strategy as a type uses `TypeList<ThatType>` instead and compiles only it.
using InstantiatedStrategies = Joined<detail::OfStage<0>, detail::OfStage<1>, detail::OfStage<2>, detail::OfStage<3>>;

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

namespace detail {

template <class R>
struct ResultOf {
  using type = Result<R>;
};
template <class R>
struct ResultOf<Result<R>> {
  using type = Result<R>;
};

template <class List>
struct FirstOf;
template <class First, class... Rest>
struct FirstOf<TypeList<First, Rest...>> {
  using type = First;
};

template <class Out, class S, class F>
Out call_with(const StrategySpec& spec, F& f) {
  if constexpr (std::is_void_v<std::invoke_result_t<F&, S>>) {
    f(S::of(spec));
    return Out{};
  } else {
    return Out(f(S::of(spec)));
  }
}

template <class Out, class F>
bool try_each(TypeList<> /*list*/, const StrategySpec& /*spec*/, F& /*f*/, Out& /*out*/) {
  return false;
}
template <class Out, class F, class S, class... Rest>
bool try_each(TypeList<S, Rest...> /*list*/, const StrategySpec& spec, F& f, Out& out) {
  if (!S::accepts(spec)) return try_each(TypeList<Rest...>{}, spec, f, out);
  out = call_with<Out, S>(spec, f);
  return true;
}

}  // namespace detail

/// Why no type of `List` can carry `spec`: the rule that it breaks, or the list of what is instantiated.
template <class List>
Error not_instantiated(const StrategySpec& spec) {
  std::string message = "the strategy \"" + strategy_text(spec) + "\" ";
  if (const auto why = why_illegal(spec); !why.empty()) {
    message += "is not possible: " + std::string(why);
  } else {
    message += "is not instantiated in this program; instantiated are:";
    const char* separator = " ";
    for (const std::string& name : names_of(List{})) {
      message += separator + name;
      separator = ", ";
    }
  }
  return {ErrorKind::usage, std::move(message)};
}

/// Calls `f(strategy)` with the first Strategy<> type of `List` that accepts `spec`, made of its degrees. Returns
/// Result<R> for an f that returns R, void or Result<R> (the same R for all types). Errors (usage): those of
/// not_instantiated, and those of f.
template <class List, class F>
auto dispatch(const StrategySpec& spec, F&& f) {
  static_assert(List::size > 0, "galvatron: dispatch needs a list of at least one Strategy<>.");
  using R = std::invoke_result_t<F&, typename detail::FirstOf<List>::type>;
  using Out = typename detail::ResultOf<R>::type;
  Out out = tl::unexpected<Error>(Error{});
  if (!detail::try_each(List{}, spec, f, out)) out = tl::unexpected<Error>(not_instantiated<List>(spec));
  return out;
}

}  // namespace galvatron
