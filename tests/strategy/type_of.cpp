// StrategyOf: from a spec that is known when compiling to its type.
#include <doctest/doctest.h>

#include <type_traits>

#include <galvatron/strategy/compose.hpp>

using namespace galvatron;

namespace {
constexpr StrategySpec all{
    .tensor = 4, .sequence = SequenceKind::megatron, .data = 2, .zero = 3, .recompute = RecomputeKind::full};
static_assert(StrategyOf<all>::spec == all);
static_assert(StrategyOf<all>::is_static);
static_assert(StrategyOf<StrategySpec{}>::spec == StrategySpec{});
static_assert(!std::is_same_v<StrategyOf<all>, StrategyOf<StrategySpec{}>>);
static_assert(StrategyOf<StrategySpec{.tensor = 2, .data = 2, .strided = true}>::spec.strided);
static_assert(StrategyOf<StrategySpec{.sequence = SequenceKind::ring, .context = 2}>::spec.context == 2);
}  // namespace

TEST_CASE("the type of a spec carries that spec") {
  CHECK(StrategyOf<all>{}.spec() == all);
  CHECK(StrategyOf<all>::accepts(all));
  CHECK_FALSE(StrategyOf<all>::accepts({}));
  StrategySpec strided = all;
  strided.strided = true;
  CHECK_FALSE(StrategyOf<all>::accepts(strided));
  CHECK(StrategyOf<StrategySpec{.tensor = 2, .data = 2, .strided = true}>::accepts(
      {.tensor = 2, .data = 2, .strided = true}));
}
