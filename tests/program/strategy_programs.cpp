// Programs of strategies that are types: made at compile time, under the compiler's default limits.
#include <galvatron/program/lower.hpp>

#include <doctest/doctest.h>

#include <galvatron/model/layers.hpp>
#include <galvatron/program/verify.hpp>
#include <galvatron/strategy/registry.hpp>

using namespace galvatron;

namespace {

constexpr LayerSpec gpt_block{.hidden = 128, .heads = 4, .kv_heads = 4, .head_dim = 32, .ffn = 512, .positions = 256};
constexpr LayerSpec llama_block{.hidden = 128,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 32,
                                .ffn = 384,
                                .positions = 256,
                                .norm = NormKind::rms_norm,
                                .activation = ActivationKind::swiglu,
                                .position = PositionKind::rotary,
                                .bias = false};

void check(const program::LayerProgram& made) {
  CHECK(program::why_wrong(made) == "");
  const program::LayerProgram lowered = program::lower(made.graph, made.kinds);
  CHECK(lowered.values.size == made.values.size);
  for (int phase = 0; phase < program::phases; ++phase)
    CHECK(lowered.phase[static_cast<std::size_t>(phase)].size == made.phase[static_cast<std::size_t>(phase)].size);
}

template <class S, LayerSpec layer>
void check_program() {
  constexpr const program::LayerProgram& made = S::template program<layer>;
  static_assert(made.steps(program::Phase::forward).size > 10);
  static_assert(made.kinds.sequence == S::sequence && made.kinds.recompute == S::recompute);
  check(made);
}

template <class... Strategies>
void check_all(TypeList<Strategies...> /*list*/) {
  static_assert(sizeof...(Strategies) == 168);
  (check_program<Strategies, gpt_block>(), ...);
  (check_program<Strategies, llama_block>(), ...);
}

}  // namespace

TEST_CASE("the programs of all kinds of strategies are constants") { check_all(InstantiatedStrategies{}); }
