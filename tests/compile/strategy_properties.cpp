// What is true of strategy types, asserted at compile time.
#include <type_traits>

#include <galvatron/strategy/compose.hpp>
#include <galvatron/strategy/registry.hpp>

using namespace galvatron;

// Static: a constant, no storage.
using Static = Strategy<DataParallel<4>, TensorParallel<2>, ZeRO<1>, SequenceParallel<megatron>, Pipeline<2>>;
static_assert(Static::is_static && std::is_empty_v<Static> && std::is_trivially_copyable_v<Static>);
static_assert(Static::spec == StrategySpec{.tensor = 2, .sequence = SequenceKind::megatron, .data = 4, .zero = 1});
static_assert(Static::spec() == Static{}.spec());
static_assert(Static::pipeline() == 2 && Static{}.ranks() == 8);
template <StrategySpec Spec>
struct CarriesSpec {
  static constexpr int ranks = Spec.ranks();
};
static_assert(CarriesSpec<Static::spec()>::ranks == 8);

// Run-time degrees: one number each.
using Named = Strategy<ZeRO<3>, TensorParallel<2>, Recompute<full>>;
static_assert(!Named::is_static && sizeof(Named) == sizeof(int));
static_assert(!std::is_default_constructible_v<Named>);
static_assert(Named({.data = 4}).spec() ==
              StrategySpec{.tensor = 2, .data = 4, .zero = 3, .recompute = RecomputeKind::full});
static_assert(sizeof(Strategy<DataParallel<>, TensorParallel<dynamic>, Pipeline<>>) == 4 * sizeof(int));
static_assert(Strategy<DataParallel<4>, TensorParallel<2, strided>>::spec ==
              StrategySpec{.tensor = 2, .data = 4, .strided = true});

// Defaults.
static_assert(Strategy<Pipeline<2>>::schedule == ScheduleKind::one_f_one_b);
static_assert(Strategy<Pipeline<2, ScheduleKind::gpipe>>::schedule == ScheduleKind::gpipe);
static_assert(Strategy<>({.data = 3}).spec() == StrategySpec{.data = 3});
static_assert(std::is_same_v<TensorParallel<>, TensorParallel<dynamic>>);
static_assert(Strategy<SequenceParallel<none>, Recompute<cheap>>::recompute == RecomputeKind::cheap);
static_assert(Strategy<Recompute<none>>::recompute == RecomputeKind::none);

static_assert(StrategyType<Named> && StrategyType<const Named&> && !StrategyType<StrategySpec>);
static_assert(StrategyPolicy<ZeRO<1>> && !StrategyPolicy<int>);
static_assert(InstantiatedStrategies::size == 168);
static_assert(is_instantiated(InstantiatedStrategies{}, Static::spec));
static_assert(is_instantiated(InstantiatedStrategies{}, {.sequence = SequenceKind::ring, .context = 2}));
static_assert(is_instantiated(InstantiatedStrategies{},
                              {.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2}));
static_assert(is_instantiated(InstantiatedStrategies{}, {.data = 2, .expert = 2}));
static_assert(why_illegal({.zero = 3}).size() > 10 && is_legal({.data = 2, .zero = 3}));
