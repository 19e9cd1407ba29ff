// Texts written and scored by a model on another device are those of this machine's cores.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/generate/generate.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/train/compiled.hpp>

namespace galvatron::test {

/// @param with_model  with_model(model, capacity, weights, precision, use) calls use(LanguageModel&) on the device
void check_same_texts(const auto& with_model) {
  // Larger than those of a new model, so that places and positions matter.
  const runtime::ParameterSource weights = [values = runtime::initial_values(5)](int layer,
                                                                                 const ParameterTensor& tensor,
                                                                                 std::int64_t index, View<float> to) {
    values(layer, tensor, index, to);
    if (tensor.init == ParameterInit::normal)
      for (float& x : to) x *= 5;
  };
  const auto away = [](std::span<const float> a, std::span<const float> b) {
    double difference = 0, all = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      difference += std::pow(double{a[i]} - double{b[i]}, 2);
      all += std::pow(double{a[i]}, 2);
    }
    return std::sqrt(difference / all);
  };
  for (const char* name : {"gpt2-tiny", "llama-tiny", "moe-tiny"})
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      CAPTURE(std::string(name));
      CAPTURE(name_of(precision));
      const double tolerance = precision == Precision::fp32 ? 1e-5 : 3e-2;
      ModelSpec model = value_or_throw(find_model(name));
      model.blocks.resize(2);
      const generate::Request request{
          .prompt = {72, 101, 108, 108, 111}, .tokens = 6, .samples = 2, .sampling = {.temperature = 0}};
      const generate::Capacity capacity = value_or_throw(generate::capacity_for(model, request));
      const auto cores = generate::make_language_model(model, capacity, weights, Precision::fp32, 1);
      std::vector<std::int32_t> prompt;
      for (const std::int32_t token : request.prompt) prompt.insert(prompt.end(), {token, token + 1});
      const std::vector<std::int32_t> next{9, 10};
      with_model(model, capacity, weights, precision, [&](generate::LanguageModel& device) {
        for (int time = 0; time < 2; ++time) {  // nothing is left of the texts before
          cores->restart();
          device.restart();
          CHECK(away(cores->go_on(prompt), device.go_on(prompt)) < tolerance);
          for (int i = 0; i < 3; ++i) CHECK(away(cores->go_on(next), device.go_on(next)) < tolerance);
        }
        if (precision == Precision::fp32)
          CHECK(generate::generate(*cores, request) == generate::generate(device, request));
      });
      const std::vector<std::int32_t> first{3, 1, 4, 1, 5, 9, 2, 6}, second{2, 7, 1};
      const std::vector<std::span<const std::int32_t>> texts{first, second};
      const generate::Capacity scoring{.samples = 1, .tokens = 12};
      const auto expected = generate::make_language_model(model, scoring, weights, Precision::fp32, 1)->score(texts);
      with_model(model, scoring, weights, precision, [&](generate::LanguageModel& device) {
        const auto scores = device.score(texts);
        REQUIRE(scores.size() == 2);
        for (std::size_t text = 0; text < 2; ++text) {
          REQUIRE(scores[text].size() == texts[text].size() - 1);
          for (std::size_t t = 0; t < scores[text].size(); ++t)
            CHECK(std::abs(scores[text][t].loss - expected[text][t].loss) <
                  10 * tolerance * (1 + expected[text][t].loss));
        }
      });
    }
}

}  // namespace galvatron::test
