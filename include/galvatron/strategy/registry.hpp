// The types of strategies that a program instantiates, and which of them carries a strategy that is a value.
#pragma once

#include <cstddef>
#include <string>
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
template <int Stage, SequenceKind Sequence, RecomputeKind Again>
using OfKinds = Strategy<DataParallel<>, ZeRO<Stage>, TensorParallel<>, SequenceParallel<Sequence>,
                         ContextParallel<Sequence == SequenceKind::none ? 1 : dynamic>, Recompute<Again>>;
template <std::size_t... I>
TypeList<OfKinds<I / 16, sequence_kinds[I / 4 % 4], recompute_kinds[I % 4]>...> all_kinds(std::index_sequence<I...>);
}  // namespace detail

/// What a program instantiates that can run any plan of this version: ZeRO 0-3 x {no, Megatron, Ulysses, ring} sequence
/// parallelism x {cheap, selective, full, no} recomputation, with degrees of run time. A trainer that names its
/// strategy as a type uses `TypeList<ThatType>` instead and compiles only it.
using InstantiatedStrategies = decltype(detail::all_kinds(std::make_index_sequence<64>{}));

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

}  // namespace galvatron
