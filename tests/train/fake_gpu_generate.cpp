// Texts written and scored with the GPU's kernels, emulated.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>

#include "fake_gpu_compiled.hpp"
#include "same_texts.hpp"

TEST_CASE("the GPU's kernels write and score texts as the cores do") {
  using namespace galvatron;
  const std::uint64_t seed = std::random_device{}();
  INFO("seed ", seed);
  test::check_same_texts([&](const ModelSpec& model, const generate::Capacity& capacity,
                             const runtime::ParameterSource& weights, Precision precision, const auto& use) {
    if (!device::Host::supports(precision)) {  // the emulation multiplies matrices as the host does
      MESSAGE("skipped: this processor has no bf16 arithmetic");
      return;
    }
    test::on_fake_gpu(1, seed, [&](auto& world, const auto& platform) {
      generate::with_language_model(world, platform, model, capacity, weights, precision, use);
    });
  });
}
