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
  CHECK(names.size() == 4 * 4 * 4);
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
}

TEST_CASE("every strategy of the runnable space has its instantiation, with the same spec") {
  for (const int ranks : {1, 2, 3, 4, 6, 8, 12, 64}) {
    for (const StrategySpec& spec : strategies(runnable_space(), ranks)) {
      CHECK(is_instantiated(InstantiatedStrategies{}, spec));
      const auto back = dispatch<InstantiatedStrategies>(spec, [](const auto& strategy) { return strategy.spec(); });
      REQUIRE(back.has_value());
      CHECK(*back == spec);
    }
  }
}

TEST_CASE("the kinds of the type that is called are those of the spec") {
  const StrategySpec spec{
      .tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 2, .recompute = RecomputeKind::full};
  const auto called = dispatch<InstantiatedStrategies>(spec, [](auto strategy) {
    using S = decltype(strategy);
    return S::zero == 2 && S::sequence == SequenceKind::megatron && S::recompute == RecomputeKind::full;
  });
  REQUIRE(called.has_value());
  CHECK(*called);
}

TEST_CASE("what is not instantiated is refused with the list of what is") {
  const StrategySpec experts{.data = 2, .expert = 2};
  int calls = 0;
  const auto refused = dispatch<InstantiatedStrategies>(experts, [&calls](const auto&) { ++calls; });
  REQUIRE_FALSE(refused.has_value());
  CHECK(calls == 0);
  CHECK(refused.error().kind == ErrorKind::usage);
  CHECK(refused.error().message.find("\"" + strategy_text(experts) + "\" is not instantiated") != std::string::npos);
  for (const std::string& name : names_of(InstantiatedStrategies{}))
    CHECK(refused.error().message.find(name) != std::string::npos);
}

TEST_CASE("what is illegal is refused with the rule") {
  const auto refused = dispatch<InstantiatedStrategies>({.zero = 3}, [](const auto&) {});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message.find("data degree of at least 2") != std::string::npos);
}

TEST_CASE("a trainer that names one strategy instantiates only that") {
  using Mine = TypeList<Strategy<ZeRO<3>, TensorParallel<2>, Recompute<full>>>;
  const StrategySpec spec{.tensor = 2, .data = 2, .zero = 3, .recompute = RecomputeKind::full};
  CHECK(dispatch<Mine>(spec, [](const auto& s) { return s.ranks(); }).value() == 4);
  const auto refused = dispatch<Mine>({.tensor = 4}, [](const auto& s) { return s.ranks(); });
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message.find("instantiated are: tp2 dp* zero3 recompute-full") != std::string::npos);
}

TEST_CASE("results of the function pass through") {
  const auto failing =
      dispatch<InstantiatedStrategies>({}, [](const auto&) -> Result<int> { return usage_error("no"); });
  static_assert(std::is_same_v<decltype(failing), const Result<int>>);
  REQUIRE_FALSE(failing.has_value());
  CHECK(failing.error().message == "no");
}

}  // namespace
}  // namespace galvatron
