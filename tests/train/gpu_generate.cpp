// labels: gpu
// Texts written and scored on a GPU.
#include <doctest/doctest.h>

#include <galvatron/generate/gpu.hpp>
#include <galvatron/train/gpu_compiled.hpp>

#include "../device/gpu_fixture.hpp"
#include "same_texts.hpp"

TEST_CASE("a GPU writes and scores texts as the cores do") {
  using namespace galvatron;
  const int gpu = test::first_gpu();
  test::check_same_texts([&](const ModelSpec& model, const generate::Capacity& capacity,
                             const runtime::ParameterSource& weights, Precision precision, const auto& use) {
    generate::with_gpu_language_model(model, capacity, weights, precision, gpu, use);
  });
}
