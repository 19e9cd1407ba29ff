// Infinities and NaN: the run stops with step, layer and rank, or leaves the step out.
// labels: tsan
#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <galvatron/train/compiled.hpp>

#include "toy.hpp"
#include "toy_mixed.hpp"

using namespace galvatron;
using namespace galvatron::train;

namespace {

/// Initial values, but for one element of a parameter.
runtime::ParameterSource broken(int in_layer, ParameterName in, float value) {
  return [=, good = runtime::initial_values(1)](int layer, const ParameterTensor& tensor, std::int64_t index,
                                                View<float> values) {
    good(layer, tensor, index, values);
    if (layer == in_layer && tensor.name == in && index == 0) values[0] = value;
  };
}

std::string message_of(const Plan& plan, const ModelSpec& model, const TrainOptions& options) {
  toy::Tokens tokens(plan.sequence_length);
  try {
    train::train(plan, model, tokens, options);
  } catch (const Failure& failure) {
    CHECK(failure.kind() == ErrorKind::machine);
    return failure.what();
  }
  return "";
}

void check_found(const Plan& plan, const ModelSpec& model, const runtime::ParameterSource& source,
                 const std::string& part) {
  TrainOptions options;
  options.steps = 2;
  options.threads_per_rank = 1;
  options.initial = source;
  const std::string message = message_of(plan, model, options);
  CAPTURE(message);
  CHECK(message.find("step 1 gave") != std::string::npos);
  CHECK(message.find(part) != std::string::npos);
  CHECK(message.find("it is not the learning rate") != std::string::npos);  // nothing was updated
  CHECK(message.find('\n') == std::string::npos);
}

}  // namespace

TEST_CASE("the step, the layer and the rank are named") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const ModelSpec model = toy::model(false, 4);
  const Plan one = toy::single_rank(model);
  const Plan four =
      toy::uniform(model, 2, {.tensor = 1, .data = 2, .zero = 2}, 2, ScheduleKind::one_f_one_b);  // ranks 0, 1 | 2, 3
  check_found(one, model, broken(2, ParameterName::mlp_out_bias, nan),
              "first seen in the output of layer 2 (blocks are layers 1 to 4) on rank 0");
  check_found(one, model, broken(0, ParameterName::positions, INFINITY),
              "first seen in the output of the embedding (layer 0) on rank 0");
  check_found(one, model, broken(5, ParameterName::norm1_gamma, nan), "(layer 5) on rank 0");
  check_found(four, model, broken(1, ParameterName::attention_out_bias, nan), "the output of layer 1 (");
  check_found(four, model, broken(2, ParameterName::mlp_out_bias, nan),
              "the output of layer 2 (blocks are layers 1 to 4) on rank 0");
  check_found(four, model, broken(3, ParameterName::norm2_beta, nan),
              "the output of layer 3 (blocks are layers 1 to 4) on rank 2");
  // A router whose scores are no numbers still chooses experts.
  const ModelSpec experts = toy::experts(4);
  const Plan spread = toy::uniform(experts, 1, {.data = 4, .expert = 4}, 1, ScheduleKind::one_f_one_b);
  for (const Plan& plan : {toy::single_rank(experts), spread})
    check_found(plan, experts, broken(2, ParameterName::router, nan),
                "the gradients of the parameters of layer 2 (blocks are layers 1 to 4) on rank 0");
}

TEST_CASE("steps are left out when asked, and change nothing") {
  const ModelSpec model = toy::model(false, 2);
  const Plan plan = toy::uniform(model, 1, {.data = 2, .zero = 2}, 1, ScheduleKind::one_f_one_b);
  TrainOptions options;
  options.steps = 3;
  options.threads_per_rank = 1;
  options.on_nan = OnNan::skip;
  options.initial = broken(1, ParameterName::mlp_out_bias, std::numeric_limits<float>::infinity());
  const auto folder = std::filesystem::temp_directory_path() / ("galvatron_skip_" + std::to_string(::getpid()));
  options.checkpoint.folder = folder;
  toy::Tokens tokens(plan.sequence_length);
  const TrainReport report = train::train(plan, model, tokens, options);
  REQUIRE(report.steps.size() == 3);
  for (const StepReport& step : report.steps) {
    CHECK_FALSE(std::isfinite(step.loss));
    CHECK(step.skipped.find("the output of layer 1") != std::string::npos);
  }
  const auto checkpoint = Checkpoint::open(folder, model);
  REQUIRE(checkpoint.has_value());
  for_each_parameter(model, [&](int layer, const ParameterTensor& tensor) {
    const TensorShape shape = checkpoint->shape(layer, tensor.name);
    std::vector<float> now(static_cast<std::size_t>(shape.columns));
    std::vector<float> start(now.size());
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      checkpoint->read(layer, tensor.name, StateKind::master, {row, 1, 0, shape.columns}, now.data());
      options.initial(layer, tensor, row * shape.columns, {start.data(), shape.columns});
      CHECK(now == start);
      checkpoint->read(layer, tensor.name, StateKind::second_moment, {row, 1, 0, shape.columns}, now.data());
      CHECK(std::ranges::all_of(now, [](float x) { return x == 0; }));
    }
  });
  std::filesystem::remove_all(folder);
}
