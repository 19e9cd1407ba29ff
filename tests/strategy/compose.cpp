#include <galvatron/strategy/compose.hpp>

#include <string>
#include <type_traits>

#include <doctest/doctest.h>

namespace galvatron {
namespace {

using Zero3 = Strategy<ZeRO<3>, TensorParallel<2>, Recompute<full>>;
using Open = Strategy<DataParallel<>, TensorParallel<>, SequenceParallel<megatron>, Pipeline<>>;

TEST_CASE("policies may stand in any order") {
  using Other = Strategy<Recompute<full>, ZeRO<3>, TensorParallel<2>>;
  CHECK(Zero3({.data = 4}).spec() == Other({.data = 4}).spec());
}

TEST_CASE("run-time degrees complete those of the type") {
  const Zero3 strategy({.data = 4});
  CHECK(strategy.spec() == StrategySpec{.tensor = 2, .data = 4, .zero = 3, .recompute = RecomputeKind::full});
  CHECK(strategy.tensor() == 2);
  CHECK(strategy.data() == 4);
  CHECK(strategy.ranks() == 8);
  CHECK(strategy.pipeline() == 1);
  const Open open({.data = 2, .tensor = 4, .pipeline = 3});
  CHECK(open.ranks() == 8);
  CHECK(open.pipeline() == 3);
  CHECK(open.sequence == SequenceKind::megatron);
}

TEST_CASE("the constructor throws for degrees that make no sense") {
  CHECK_THROWS_AS(Zero3({.data = 1}), Failure);
  CHECK_THROWS_AS(Zero3({.data = 4, .tensor = 4}), Failure);
  CHECK_THROWS_AS(Open({.data = 2, .tensor = 1, .pipeline = 1}), Failure);
  CHECK_THROWS_AS(Open({.data = 2, .tensor = 4}), Failure);
  CHECK_NOTHROW(Zero3({.data = 4, .tensor = 2}));
}

TEST_CASE("the constructor tells the reason") {
  const auto reason = [](const Degrees& degrees) -> std::string {
    try {
      Zero3 made(degrees);
    } catch (const Failure& failure) {
      CHECK(failure.kind() == ErrorKind::usage);
      return failure.what();
    }
    return "";
  };
  CHECK(reason({.data = 1}).find("needs a data degree of at least 2") != std::string::npos);
  CHECK(reason({}) != "");
  CHECK(reason({.data = -2}) != "");
  CHECK(reason({.data = 2}) == "");
  CHECK(Zero3::type_text() == "tp2 dp* zero3 recompute-full");
}

TEST_CASE("a type accepts the specs of its kinds and degrees") {
  CHECK(Zero3::accepts({.tensor = 2, .data = 4, .zero = 3, .recompute = RecomputeKind::full}));
  CHECK_FALSE(Zero3::accepts({.tensor = 4, .data = 4, .zero = 3, .recompute = RecomputeKind::full}));
  CHECK_FALSE(Zero3::accepts({.tensor = 2, .data = 4, .zero = 2, .recompute = RecomputeKind::full}));
  CHECK_FALSE(Zero3::accepts({.tensor = 2, .data = 4, .zero = 3}));
  CHECK_FALSE(Zero3::accepts({.tensor = 2, .data = 1, .zero = 3, .recompute = RecomputeKind::full}));
  CHECK_FALSE(Strategy<>::accepts({.data = 4, .expert = 2}));
}

TEST_CASE("where tensor ranks lie is part of a type whose tensor degree is") {
  using Around = Strategy<TensorParallel<2, strided>>;
  const StrategySpec spec{.tensor = 2, .data = 4, .strided = true};
  const StrategySpec neighbours{.tensor = 2, .data = 4};
  CHECK(Around({.data = 4}).spec() == spec);
  CHECK(Around::accepts(spec));
  CHECK_FALSE(Around::accepts(neighbours));
  CHECK_FALSE(Strategy<TensorParallel<2>>::accepts(spec));
  CHECK(Strategy<TensorParallel<>>::accepts(spec));
  CHECK(Strategy<TensorParallel<>>::accepts(neighbours));
  CHECK_FALSE(Strategy<TensorParallel<dynamic, strided>>::accepts(neighbours));
  CHECK(Strategy<TensorParallel<dynamic, strided>>({.data = 4, .tensor = 2}).spec() == spec);
  CHECK_THROWS_AS(Around({.data = 1}), Failure);
  CHECK_THROWS_AS(Strategy<TensorParallel<>>({.data = 4, .tensor = 1, .strided = true}), Failure);
}

TEST_CASE("types have names for tables and messages") {
  CHECK(Strategy<TensorParallel<2, strided>, DataParallel<4>>::type_text() == "tp2 strided dp4");
  CHECK(Zero3::type_text() == "tp2 dp* zero3 recompute-full");
  CHECK(Strategy<DataParallel<1>>::type_text() == "single");
  CHECK(Strategy<ContextParallel<2>, SequenceParallel<ring>>::type_text() == "cp2 ring dp*");
}

}  // namespace
}  // namespace galvatron
