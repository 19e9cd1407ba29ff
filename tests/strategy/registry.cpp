#include <galvatron/strategy/registry.hpp>

#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/strategy/space.hpp>

namespace galvatron {
namespace {

TEST_CASE("strategies of all kinds are instantiated, all different") {
  const std::vector<std::string> names = names_of(InstantiatedStrategies{});
  CHECK(names.size() == 4 * 5 * 4 * 2 + 2 * 4);  // and groups of every batch
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
}

TEST_CASE("every strategy of the runnable space has its instantiation, with the same spec") {
  for (const int ranks : {1, 2, 3, 4, 6, 8, 12, 64}) {
    for (const StrategySpec& spec : strategies(Space{}, ranks)) {
      CHECK(is_instantiated(InstantiatedStrategies{}, spec));
      const auto back = dispatch(InstantiatedStrategies{}, spec, [](const auto& strategy) { return strategy.spec(); });
      REQUIRE(back.has_value());
      CHECK(*back == spec);
    }
  }
}

TEST_CASE("the kinds of the type that is called are those of the spec") {
  const StrategySpec spec{
      .tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 2, .recompute = RecomputeKind::full};
  const auto called = dispatch(InstantiatedStrategies{}, spec, [](auto strategy) {
    using S = decltype(strategy);
    return S::zero == 2 && S::sequence == SequenceKind::megatron && S::recompute == RecomputeKind::full;
  });
  REQUIRE(called.has_value());
  CHECK(*called);
}

TEST_CASE("what is not instantiated is refused with the list of what is") {
  using Dense = TypeList<Strategy<>, Strategy<ZeRO<1>, TensorParallel<>>>;  // no experts
  const StrategySpec experts{.data = 2, .expert = 2};
  CHECK(is_instantiated(InstantiatedStrategies{}, experts));
  CHECK_FALSE(is_instantiated(Dense{}, experts));
  int calls = 0;
  const Error refused = dispatch(Dense{}, experts, [&calls](const auto&) { return ++calls; }).error();
  CHECK(calls == 0);
  CHECK(refused.kind == ErrorKind::usage);
  CHECK(refused.message.find("\"" + strategy_text(experts) + "\" is not instantiated") != std::string::npos);
  for (const std::string& name : names_of(Dense{})) CHECK(refused.message.find(name) != std::string::npos);
}

TEST_CASE("experts are spread as a type says, or as a degree of run time says") {
  using Fixed = Strategy<DataParallel<4>, ExpertParallel<2, 1>>;
  static_assert(Fixed::is_static && Fixed::spec.expert == 2 && Fixed::spec.expert_tensor == 1);
  CHECK(Fixed::accepts({.data = 4, .expert = 2, .expert_tensor = 1}));
  CHECK_FALSE(Fixed::accepts({.data = 4, .expert = 4, .expert_tensor = 1}));
  using AnyDegree = Strategy<ExpertParallel<>>;
  CHECK(AnyDegree::of({.data = 4, .expert = 2}).spec() == StrategySpec{.data = 4, .expert = 2});
  CHECK(StrategyOf<StrategySpec{.tensor = 2, .data = 2, .expert = 2}>::spec.expert == 2);
  // By nodes.
  constexpr StrategySpec by_nodes{.data = 4, .expert = 4, .expert_nodes = 2};
  CHECK_FALSE(Strategy<DataParallel<4>, ExpertParallel<4>>::accepts(by_nodes));
  CHECK(Strategy<DataParallel<4>, ExpertParallel<4, 0, 2>>::spec == by_nodes);
  CHECK(AnyDegree::of(by_nodes).spec() == by_nodes);
  CHECK(is_instantiated(InstantiatedStrategies{}, by_nodes));
  CHECK(StrategyOf<by_nodes>::spec == by_nodes);
  CHECK(strategy_text(by_nodes) == "dp4 ep4 nodes2");
}

TEST_CASE("how tokens go to experts is a kind of a type") {
  using Compressed = Strategy<ExpertParallel<>, ExpertDispatch<lsh>>;
  const StrategySpec spec{.data = 4, .expert = 2, .dispatch = DispatchKind::lsh};
  CHECK(Compressed::accepts(spec));
  CHECK_FALSE(Compressed::accepts({.data = 4, .expert = 2}));
  CHECK_FALSE(Strategy<ExpertParallel<>>::accepts(spec));
  CHECK(Compressed::of(spec).spec() == spec);
  CHECK(is_instantiated(InstantiatedStrategies{}, spec));
  CHECK(strategy_text(spec) == "dp4 ep2 lsh");
  CHECK(StrategyOf<StrategySpec{.data = 4, .expert = 2, .dispatch = DispatchKind::lsh}>::spec.compresses_tokens());
}

TEST_CASE("what is illegal is refused with the rule") {
  CHECK(not_instantiated<InstantiatedStrategies>({.zero = 3}).message.find("data degree of at least 2") !=
        std::string::npos);
}

TEST_CASE("a trainer that names one strategy instantiates only that") {
  using Mine = TypeList<Strategy<ZeRO<3>, TensorParallel<2>, Recompute<full>>>;
  const StrategySpec spec{.tensor = 2, .data = 2, .zero = 3, .recompute = RecomputeKind::full};
  CHECK(is_instantiated(Mine{}, spec));
  CHECK(dispatch(Mine{}, spec, [](const auto& s) { return s.ranks(); }).value() == 4);
  CHECK_FALSE(is_instantiated(Mine{}, {.tensor = 4}));
  CHECK(not_instantiated<Mine>({.tensor = 4}).message.find("instantiated are: tp2 dp* zero3 recompute-full") !=
        std::string::npos);
}

}  // namespace
}  // namespace galvatron
