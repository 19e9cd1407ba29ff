#include <galvatron/strategy/space.hpp>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/strategy/registry.hpp>

namespace galvatron {
namespace {

std::vector<StrategySpec> of(const std::string& text, int ranks) {
  const auto space = parse_space(text);
  REQUIRE(space.has_value());
  return strategies(*space, ranks);
}

TEST_CASE("the default space has every legal strategy once") {
  for (const int ranks : {1, 2, 6, 8, 16}) {
    const std::vector<StrategySpec> specs = strategies({}, ranks);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      CHECK(is_legal(specs[i]));
      CHECK(specs[i].ranks() == ranks);
      for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(specs[i] == specs[j]);
    }
    // As many as there are at all, without experts, and with Ulysses beside tensor ranks always with Megatron's.
    std::size_t legal = 0;
    for (int tensor = 1; tensor <= ranks; ++tensor)
      for (int context = 1; context <= ranks; ++context)
        for (int data = 1; data <= ranks; ++data)
          for (int kinds = 0; kinds < 5 * 4 * 4; ++kinds) {
            if (tensor > 1 && static_cast<SequenceKind>(kinds % 5) == SequenceKind::ulysses) continue;
            legal += tensor * context * data == ranks && is_legal({.tensor = tensor,
                                                                   .sequence = static_cast<SequenceKind>(kinds % 5),
                                                                   .context = context,
                                                                   .data = data,
                                                                   .zero = kinds / 5 % 4,
                                                                   .recompute = static_cast<RecomputeKind>(kinds / 20)})
                         ? 1
                         : 0;
          }
    CHECK(specs.size() == legal);
  }
  CHECK(strategies({}, 1).size() == recompute_kinds.size());
}

TEST_CASE("experts are spread over any ranks of a stage, whole or with its tensor ranks") {
  Space space;
  space.experts = 8;
  std::size_t exchanging = 0;
  for (const int ranks : {1, 2, 6, 8, 16}) {
    const std::vector<StrategySpec> specs = strategies(space, ranks);
    CHECK(specs.size() >= strategies({}, ranks).size());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      CHECK(is_legal(specs[i]));
      CHECK(is_instantiated(InstantiatedStrategies{}, specs[i]));
      CHECK(8 % specs[i].expert == 0);
      CHECK((specs[i].etp() == 1 || specs[i].etp() == specs[i].tensor));
      exchanging += specs[i].exchanges_tokens() ? 1 : 0;
      for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(specs[i] == specs[j]);
    }
  }
  CHECK(exchanging > 1000);
  const std::size_t plain = strategies(space, 8).size();
  space.dispatch = {DispatchKind::lsh};
  CHECK(strategies(space, 8).size() == plain);
  for (const StrategySpec& spec : strategies(space, 8)) {
    CHECK(is_legal(spec));
    CHECK(spec.compresses_tokens() == spec.exchanges_tokens());
  }
  const auto degrees = [](const std::string& text, int tensor, int ranks) {
    Space parsed = value_or_throw(parse_space(text));
    parsed.experts = 8;
    return detail::expert_degrees(parsed, tensor, ranks);
  };
  using Degrees = std::vector<std::pair<int, int>>;
  CHECK(degrees("all", 2, 4) == Degrees{{1, 0}, {1, 1}, {2, 1}, {4, 1}});
  CHECK(degrees("all,max-ep=2", 2, 4) == Degrees{{1, 0}, {1, 1}, {2, 0}, {2, 1}});
  CHECK(degrees("all", 3, 6) == Degrees{{1, 0}, {1, 1}, {2, 0}, {2, 1}});  // 6 does not divide 8
  CHECK(degrees("dp,tp", 2, 4) == Degrees{{1, 0}});
  CHECK(degrees("dp,tp,ep", 2, 4) == Degrees{{1, 0}, {2, 0}});
  CHECK(degrees("dp,tp,ep=4,etp=1", 2, 4) == Degrees{{4, 1}});
  CHECK(degrees("all,max-ep=2,max-etp=1", 2, 4) == Degrees{{1, 1}, {2, 1}});
  CHECK(degrees("all,ep=16", 2, 16).empty());  // of 8 experts
}

TEST_CASE("where ranks of experts lie in several nodes, tokens may go by nodes") {
  Space space;
  space.experts = 64;
  for (const int ranks : {8, 16, 64})
    for (const int node : {0, 1, 4, 8}) {
      const std::vector<StrategySpec> specs = strategies(space, ranks, node);
      std::size_t by_nodes = 0;
      for (const StrategySpec& spec : specs) {
        REQUIRE(is_legal(spec));
        if (!spec.relays_tokens()) continue;
        ++by_nodes;
        // Ranks of a node are neighbours within one, and as many as can be.
        const int members = spec.exchange_ranks() / spec.expert_nodes;
        REQUIRE(node % members == 0);
        REQUIRE(members == std::gcd(spec.exchange_ranks(), node));
        StrategySpec direct = spec;
        direct.expert_nodes = 1;
        REQUIRE(std::ranges::count(specs, direct) == 1);
        REQUIRE(std::ranges::count(specs, spec) == 1);
      }
      CHECK((by_nodes > 0) == (node > 0 && ranks > node));
      CHECK(specs.size() == strategies(space, ranks).size() + by_nodes +
                                static_cast<std::size_t>(std::ranges::count_if(specs, &StrategySpec::strided)));
    }
  space.dispatch = {DispatchKind::lsh};
  CHECK(std::ranges::none_of(strategies(space, 16, 8), &StrategySpec::relays_tokens));
}

TEST_CASE("on stages of several nodes tensor ranks may be strided around a node's data and context ranks") {
  const auto strided = [](const std::vector<StrategySpec>& specs) {
    return std::count_if(specs.begin(), specs.end(), [](const StrategySpec& spec) { return spec.strided; });
  };
  for (const int ranks : {2, 6, 16})
    for (const int node : {1, 2, 3, 4, 8, 16}) {
      const std::vector<StrategySpec> specs = strategies({}, ranks, node);
      CHECK(specs.size() == strategies({}, ranks).size() + static_cast<std::size_t>(strided(specs)));
      for (const StrategySpec& spec : specs) {
        CHECK(is_legal(spec));
        CHECK(is_instantiated(InstantiatedStrategies{}, spec));
        CHECK(std::count(specs.begin(), specs.end(), spec) == 1);
        if (spec.strided) CHECK(node % spec.shards() == 0);
      }
      const auto both = std::count_if(specs.begin(), specs.end(), [&](const StrategySpec& spec) {
        return !spec.strided && spec.tensor > 1 && spec.shards() > 1 && node % spec.shards() == 0;
      });
      CHECK(strided(specs) == (ranks > node ? both : 0));
    }
  CHECK(strided(strategies({}, 16)) == 0);
  CHECK(strategies(parse_space("dp,tp,strided").value(), 4, 2) ==
        std::vector<StrategySpec>{
            {.data = 4}, {.tensor = 2, .data = 2}, {.tensor = 2, .data = 2, .strided = true}, {.tensor = 4}});
  CHECK(strided(strategies(parse_space("dp,tp").value(), 4, 2)) == 0);
  CHECK(strided(strategies(parse_space("all").value(), 4, 2)) > 0);
  CHECK_FALSE(parse_space("dp,strided").has_value());
}

TEST_CASE("the trainer instantiates all of a space") {
  for (const int ranks : {1, 2, 6, 8})
    for (const StrategySpec& spec : strategies({}, ranks)) CHECK(is_instantiated(InstantiatedStrategies{}, spec));
  // 4 ranks: tp1 dp4: 4 stages; tp2 dp2: 2 kinds of sequence x 4 stages; tp4: 2 kinds; cp2 dp2 and cp4: 2 kinds x 4
  // stages, tp2 cp2: 3; all with four kinds of recomputation.
  CHECK(strategies(Space{}, 4).size() == 4 * (4 + 8 + 2 + 2 * 8 + 12));
  CHECK(of("runnable", 8) == strategies(Space{}, 8));
  CHECK(of("runnable,max-tp=2,recompute=full", 4).size() == 4 + 8 + 2 * 8 + 12);
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

TEST_CASE("context parallelism is named by its kind or by its degree") {
  const StrategySpec ulysses{.sequence = SequenceKind::ulysses, .context = 4};
  const StrategySpec ring{.sequence = SequenceKind::ring, .context = 4};
  CHECK(of("ulysses", 4) == std::vector<StrategySpec>{ulysses});
  CHECK(of("ring", 4) == std::vector<StrategySpec>{ring});
  CHECK(of("cp", 4) == std::vector<StrategySpec>{ulysses, ring});
  CHECK(of("ulysses,ring", 4) == of("cp", 4));
  CHECK(of("sp=ring", 4) == of("ring", 4));
  CHECK(of("sp=ulysses,sp=ring", 4) == of("cp", 4));
  CHECK(of("ring,cp=2,dp", 4) == std::vector<StrategySpec>{{.sequence = SequenceKind::ring, .context = 2, .data = 2}});
  CHECK(of("ring,zero3", 2) ==
        std::vector<StrategySpec>{{.data = 2, .zero = 3}, {.sequence = SequenceKind::ring, .context = 2, .zero = 3}});
  const StrategySpec plain{.tensor = 2, .sequence = SequenceKind::ring, .context = 2};
  const StrategySpec cut{.tensor = 2, .sequence = SequenceKind::megatron, .context = 2};
  CHECK(of("tp,ring,cp=2", 4) == std::vector<StrategySpec>{plain});
  CHECK(of("tp,sp,ring,cp=2", 4) == std::vector<StrategySpec>{cut, plain});
  CHECK(of("tp,sp=megatron,ring,cp=2", 4) == std::vector<StrategySpec>{cut});
  const StrategySpec exchanged{.tensor = 2, .sequence = SequenceKind::ulysses, .context = 2};
  const StrategySpec both{.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2};
  CHECK(of("tp,ulysses,cp=2", 4) == std::vector<StrategySpec>{exchanged});
  CHECK(of("tp,sp,ulysses,cp=2", 4) == std::vector<StrategySpec>{both});
  CHECK(of("tp,sp=megatron,ulysses,cp=2", 4) == std::vector<StrategySpec>{both});
  CHECK(of("tp,sp,cp=2", 4) == std::vector<StrategySpec>{cut, both, plain});
  CHECK(of("sp=megatron,sp=ulysses,tp,cp=4", 4) == std::vector<StrategySpec>{ulysses});
  CHECK_FALSE(parse_space("tp,cp,sp=megatron_ulysses").has_value());  // sp=megatron,sp=ulysses
  for (const StrategySpec& spec : of("all,max-cp=2", 8)) CHECK(spec.context <= 2);
  for (const StrategySpec& spec : of("all,sp=none", 8)) CHECK(spec.sequence == SequenceKind::none);
  CHECK(of("all,cp=1", 8) == of("all,sp=none,sp=megatron", 8));
}

TEST_CASE("recomputation is a choice, or the rule") {
  const auto kinds = [](const std::string& text) {
    std::vector<RecomputeKind> out;
    for (const StrategySpec& spec : of(text, 1)) out.push_back(spec.recompute);
    return out;
  };
  using enum RecomputeKind;
  CHECK(kinds("dp") == std::vector{cheap});
  CHECK(kinds("recompute") == std::vector{cheap, full});
  CHECK(kinds("selective") == std::vector{cheap, selective});
  CHECK(kinds("selective,recompute") == std::vector{cheap, selective, full});
  CHECK(kinds("recompute=selective") == std::vector{selective});
  CHECK(kinds("keep") == std::vector{cheap, none});
  CHECK(kinds("keep,recompute,selective") == std::vector{cheap, selective, full, none});
  CHECK(kinds("recompute=none") == std::vector{none});
  CHECK(kinds("all,recompute=none") == std::vector{none});
  CHECK(kinds("all") == kinds("selective,recompute,keep"));
  CHECK(kinds("runnable") == kinds("all"));
}

TEST_CASE("degrees can be forced and capped") {
  CHECK(of("dp,tp=2", 8) == std::vector<StrategySpec>{{.tensor = 2, .data = 4}});
  CHECK(of("dp,max-tp=2", 8) == std::vector<StrategySpec>{{.data = 8}, {.tensor = 2, .data = 4}});
  CHECK(of("dp=2,tp", 8) == std::vector<StrategySpec>{{.tensor = 4, .data = 2}});
  CHECK(of("dp,tp=3", 8).empty());
  for (const StrategySpec& spec : of("all,max-dp=2,recompute=cheap", 8)) {
    CHECK(spec.data <= 2);
    CHECK(spec.recompute == RecomputeKind::cheap);
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

TEST_CASE("who allows nothing but degrees is told of all") {
  const auto hint = [](const std::string& text) { return hint_at_all(parse_space(text).value()); };
  CHECK(hint("pp=8") == "--space pp=8 allows nothing else, --space all,pp=8 leaves the rest open");
  CHECK(hint("max-tp=4,dp=2").find("--space all,dp=2,max-tp=4 leaves") != std::string::npos);
  for (const char* text :
       {"all", "runnable", "all,pp=8", "dp,pp=8", "pp", "dp", "pp=8,recompute", "pp=8,keep", "tp=2,sp", "tp=2,cp=2"})
    CHECK_MESSAGE(hint(text).empty(), text);
}

TEST_CASE("uniform is one strategy for all layers, as trainers of other makers have it") {
  const auto space = [](const std::string& text) { return parse_space(text).value(); };
  using enum RecomputeKind;
  const Space all = space("uniform");
  CHECK(all.one_for_all == OneForAll::uniform);
  CHECK(all.recompute == std::vector{none, full});
  CHECK(!all.strided);
  CHECK(all.sequence == Space{}.sequence);
  CHECK(space("all").one_for_all == OneForAll::no);
  CHECK(space("uniform,all") == all);
  CHECK(space("megatron") == space("uniform,megatron"));
  CHECK(space("deepspeed,uniform").one_for_all == OneForAll::deepspeed);
  // Degrees and rules narrow it; a name of what may be used leaves the rest out.
  CHECK(space("uniform,tp=4").data.open);
  CHECK(space("uniform,tp=4").tensor.forced == 4);
  CHECK(space("uniform,pow2,max-pp=2").tensor.open);
  CHECK(space("uniform,recompute=full").recompute == std::vector{full});
  CHECK(!space("uniform,dp,tp").pipeline.open);
  CHECK(space("uniform,dp,tp").recompute == std::vector{none});
  CHECK(space("uniform,dp,recompute,selective,keep").recompute == std::vector{none, selective, full});
  for (const char* text : {"uniform,tp,strided", "megatron,torchtitan", "all,deepspeed,torchtitan"})
    CHECK_FALSE(parse_space(text).has_value());
}

TEST_CASE("bad notations are refused with the names that are valid") {
  for (const std::string& text :
       std::vector<std::string>{"", ",", "dp,", "dp,,tp", "DP", "zero4", "sdp2", "tp<4", "xp=2", "max-zero=2",
                                "sp=rings", "recompute=half", "keep=1", "=3"}) {
    INFO(text);
    const auto space = parse_space(text);
    REQUIRE_FALSE(space.has_value());
    CHECK(space.error().kind == ErrorKind::usage);
    CHECK(space.error().message.find("valid are all, runnable, dp, zero1") != std::string::npos);
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
