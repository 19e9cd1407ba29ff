// From a strategy as a value to the strategy as a type: the way back from Strategy<...>::spec.
#pragma once

#include <galvatron/strategy/compose.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// The Strategy<> whose kinds and degrees are those of `spec`, which is known when the program is compiled. A spec that
/// breaks a rule does not compile, with the sentence of the rule.
///
///     constexpr auto found = search::constexpr_search<12>(block, cluster, options);
///     using Chosen = StrategyOf<found.strategies[0]>;
template <StrategySpec spec>
using StrategyOf = Strategy<DataParallel<spec.data>, ZeRO<spec.zero>, TensorParallel<spec.tensor, spec.strided>,
                            SequenceParallel<spec.sequence>, ContextParallel<spec.context>, Recompute<spec.recompute>>;

}  // namespace galvatron
