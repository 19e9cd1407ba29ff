#include <galvatron/strategy/space.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace galvatron {
namespace {

std::vector<StrategySpec> of(const std::string& text, int ranks) {
  const auto space = parse_space(text);
  REQUIRE(space.has_value());
  return strategies(*space, ranks);
}

TEST_CASE("the default space has every legal strategy of the runtime once") {
  for (const int ranks : {1, 2, 6, 8, 16}) {
    const std::vector<StrategySpec> specs = strategies({}, ranks);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      CHECK(is_legal(specs[i]));
      CHECK(specs[i].ranks() == ranks);
      for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(specs[i] == specs[j]);
    }
  }
  CHECK(strategies({}, 1).size() == 2);
  // 4 ranks: tp1 dp4: 4 stages; tp2 dp2: 2 kinds of sequence x 4 stages; tp4: 2 kinds; all with and without recompute.
  CHECK(strategies({}, 4).size() == 2 * (4 + 8 + 2));
}

TEST_CASE("a space names what may be used") {
  CHECK(of("dp", 4) == std::vector<StrategySpec>{{.data = 4}});
  CHECK(of("zero2", 4) == std::vector<StrategySpec>{{.data = 4, .zero = 2}});
  CHECK(of("sdp", 4) == of("zero3", 4));
  CHECK(of("tp", 4) == std::vector<StrategySpec>{{.tensor = 4}});
  CHECK(of("dp,zero1,tp", 4) == std::vector<StrategySpec>{{.data = 4},
                                                          {.data = 4, .zero = 1},
                                                          {.tensor = 2, .data = 2},
                                                          {.tensor = 2, .data = 2, .zero = 1},
                                                          {.tensor = 4}});
  CHECK(of("tp,sp", 2).size() == 2);
  CHECK(of("tp,sp=megatron", 2) == std::vector<StrategySpec>{{.tensor = 2, .sequence = SequenceKind::megatron}});
  CHECK(of("dp,recompute=full", 2) == std::vector<StrategySpec>{{.data = 2, .recompute = RecomputeKind::full}});
  CHECK(of("all", 8) == strategies({}, 8));
}

TEST_CASE("degrees can be forced and capped") {
  CHECK(of("dp,tp=2", 8) == std::vector<StrategySpec>{{.tensor = 2, .data = 4}});
  CHECK(of("dp,max-tp=2", 8) == std::vector<StrategySpec>{{.data = 8}, {.tensor = 2, .data = 4}});
  CHECK(of("dp=2,tp", 8) == std::vector<StrategySpec>{{.tensor = 4, .data = 2}});
  CHECK(of("dp,tp=3", 8).empty());
  for (const StrategySpec& spec : of("all,max-dp=2,recompute=none", 8)) {
    CHECK(spec.data <= 2);
    CHECK(spec.recompute == RecomputeKind::none);
  }
}

TEST_CASE("pipeline degrees follow the space") {
  CHECK(pipeline_degrees({}, 12) == std::vector<int>{1, 2, 3, 4, 6, 12});
  CHECK(pipeline_degrees(parse_space("dp").value(), 12) == std::vector<int>{1});
  CHECK(pipeline_degrees(parse_space("dp,pp,pow2").value(), 12) == std::vector<int>{1, 2, 4});
  CHECK(pipeline_degrees(parse_space("dp,pp=3").value(), 12) == std::vector<int>{3});
  CHECK(pipeline_degrees(parse_space("dp,max-pp=4").value(), 12) == std::vector<int>{1, 2, 3, 4});
  for (const StrategySpec& spec : strategies(parse_space("all,pow2").value(), 12)) CHECK(spec.tensor == 1);
}

TEST_CASE("bad notations are refused with the names that are valid") {
  for (const std::string& text :
       std::vector<std::string>{"", ",", "dp,", "dp,,tp", "DP", "zero4", "sdp2", "tp<4", "ep=2", "max-zero=2",
                                "sp=ring", "recompute=selective", "=3"}) {
    INFO(text);
    const auto space = parse_space(text);
    REQUIRE_FALSE(space.has_value());
    CHECK(space.error().kind == ErrorKind::usage);
    CHECK(space.error().message.find("valid are all, dp, zero1") != std::string::npos);
  }
  for (const std::string& text :
       std::vector<std::string>{"tp=", "tp=0", "tp=-2", "tp=2x", "dp=99999999999", "max-pp=0"}) {
    INFO(text);
    const auto space = parse_space(text);
    REQUIRE_FALSE(space.has_value());
    CHECK(space.error().message.find("degree of at least 1") != std::string::npos);
  }
  CHECK_FALSE(parse_space("dp,sp").has_value());
}

}  // namespace
}  // namespace galvatron
