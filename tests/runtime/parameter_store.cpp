// A parameter store's step: the same parameters on every data rank, however the optimizer's states are cut.
#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/comm/thread/world.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/runtime/parameter_store.hpp>

#include "../device/host_fixture.hpp"

namespace {

using namespace galvatron;

constexpr int ranks = 2;
constexpr int steps = 3;

/// The working parameters that every rank has in the end.
std::array<std::vector<bfloat16>, ranks> train(int zero, const LayerSpec& layer, const device::AdamW& constants,
                                               std::uint64_t seed, Precision moments) {
  std::array<std::vector<bfloat16>, ranks> out;
  comm::thread::run(ranks, [&](comm::thread::World& world) {
    using Context = runtime::Context<device::Host>;
    const StrategySpec spec{.data = ranks, .zero = zero};
    const ParameterLayout layout = parameter_layout(layer, ParameterPart::rest, 1, ranks);
    const device::Mapping mapping({64 * layout.elements + (1 << 20)}, false);
    device::Region states = mapping.region("states", 0, {32 * layout.elements});
    device::Region workspace = mapping.region("workspace", 32 * layout.elements, {32 * layout.elements});
    test::TestHost host(1);
    Context context = runtime::make_context(*host, workspace, world, 0, spec, 1, 8, false, false, moments);
    runtime::ParameterStore<device::Host, bfloat16> store(context, states, ParameterPart::rest, layout, 3);
    store.initialise(runtime::initial_values(seed));
    host->gradient_scale()[0] = 0.5F;
    device::AdamW step = constants;
    for (step.step = 1; step.step <= steps; ++step.step) {
      const device::Scope scope(workspace);
      store.zero_gradients();
      const View<float> gradients = store.open_gradients();
      fill_normal(gradients, seed, static_cast<std::uint64_t>(100 * step.step + world.rank()), 0, 0.1F);
      store.close_gradients(gradients);
      store.synchronise();
      host->begin_update(step);
      store.update();
    }
    const device::Scope scope(workspace);
    const View<const bfloat16> all = store.acquire();
    out[static_cast<std::size_t>(world.rank())].assign(all.begin(), all.end());
  });
  return out;
}

}  // namespace

TEST_CASE("parameters and moments round alike on all data ranks and under every ZeRO stage") {
  constexpr std::uint64_t seed = 463;
  CAPTURE(seed);
  const LayerSpec layer = value_or_throw(find_model("gpt2-tiny")).blocks.front();
  std::vector<std::vector<bfloat16>> results;
  using device::Rounding;
  for (const auto& [rounding, moments, number] : {std::tuple{Rounding::nearest, Precision::fp32, 0U},
                                                  {Rounding::stochastic, Precision::fp32, 1U},
                                                  {Rounding::stochastic, Precision::fp32, 2U},
                                                  {Rounding::nearest, Precision::bf16, 1U},
                                                  {Rounding::stochastic, Precision::bf16, 1U}}) {
    const device::AdamW constants{.learning_rate = 1e-4F, .rounding = rounding, .seed = number};
    const auto whole = train(0, layer, constants, seed, moments);
    CHECK(test::same_bits(whole[1], whole[0]));
    for (const auto& cut : {train(1, layer, constants, seed, moments), train(2, layer, constants, seed, moments),
                            train(3, layer, constants, seed, moments)})
      for (const auto& parameters : cut) CHECK(test::same_bits(parameters, whole[0]));
    for (const auto& other : results) CHECK_FALSE(test::same_bits(whole[0], other));
    results.push_back(whole[0]);
  }
}

TEST_CASE("several threads draw the initial values that one does") {
  const ParameterLayout layout =
      parameter_layout(value_or_throw(find_model("gpt2-tiny")).blocks.front(), ParameterPart::rest, 1, 1);
  const runtime::ParameterSource one = runtime::initial_values(11);
  const runtime::ParameterSource several = runtime::initial_values(11, 3);
  for (const ParameterTensor& tensor : layout)
    for (const std::int64_t count : {0, 1, (1 << 13) - 1, 1 << 13, (5 << 13) + 3}) {
      std::vector<float> expected(static_cast<std::size_t>(count) + 1, -9.0F);
      std::vector<float> found = expected;
      one(5, tensor, 1001, {expected.data(), count});
      several(5, tensor, 1001, {found.data(), count});
      CHECK(test::same_bits(found, expected));
      CHECK(found.back() == -9.0F);
    }
}
