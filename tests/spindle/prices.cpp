// Curves of layers: prices of strategies, and plans made of them.
#include <galvatron/spindle/prices.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include <doctest/doctest.h>

#include <galvatron/files.hpp>
#include <galvatron/spindle/solve.hpp>

TEST_CASE("the curve of a layer has the fastest strategy on each number of devices") {
  using namespace galvatron;
  const ModelSpec model = value_or_throw(load_model("gpt2-124m"));
  const Cluster cluster = value_or_throw(load_cluster("16xa100-80g"));
  const LayerSpec& block = model.blocks.front();
  for (const std::int64_t samples : {2, 32}) {
    CAPTURE(samples);
    const auto found = spindle::layer_curve(block, samples, 1024, Precision::bf16, cluster);
    REQUIRE(found);
    REQUIRE(found->strategies.size() == found->curve.size());
    CHECK(found->curve.devices.front() == 1);
    for (std::size_t i = 0; i < found->curve.size(); ++i) {
      const StrategySpec& spec = found->strategies[i];
      CHECK(spec.ranks() == found->curve.devices[i]);
      CHECK(samples % spec.data == 0);
      if (i > 0) CHECK(found->curve.seconds[i] < found->curve.seconds[i - 1]);
      double least = std::numeric_limits<double>::infinity();
      for (const StrategySpec& other : strategies(spindle::quick_space(), spec.ranks(), 8)) {
        if (!is_fit(block, other, samples, 1024)) continue;
        const cost::Batch batch{.microbatch = samples,
                                .sequence = 1024,
                                .precision = Precision::bf16,
                                .overlap = cost::can_overlap(cluster)};
        const auto seconds = cost::layer_seconds(cost::layer_counts(block, other, batch), other, Precision::bf16,
                                                 cluster, other.ranks());
        least = std::min(least, (seconds.forward + seconds.backward).value);
      }
      CHECK(found->curve.seconds[i] == doctest::Approx(least).epsilon(1e-12));
    }
    // Two samples are not enough for data ranks alone.
    if (samples == 2) CHECK(found->strategies.back().tensor * 2 >= found->curve.devices.back());
  }
}

TEST_CASE("curves of two models' layers make a plan; what no strategy fits is refused") {
  using namespace galvatron;
  const ModelSpec text = value_or_throw(load_model("gpt2-124m"));
  const ModelSpec image = value_or_throw(load_model("vit-huge-32"));
  const Cluster cluster = value_or_throw(load_cluster("16xa100-80g"));
  spindle::Problem problem{cluster.devices, {}};
  for (const auto& [model, sequence] : {std::pair(&text, std::int64_t{256}), {&image, image.positions()}})
    problem.metaops.push_back(
        {model->name,
         static_cast<int>(model->blocks.size()),
         value_or_throw(spindle::layer_curve(model->blocks.front(), 64, sequence, Precision::bf16, cluster)).curve,
         {},
         0});
  const spindle::Plan plan = spindle::best_plan(problem);
  CHECK(spindle::wrong_with(problem, plan.waves) == "");
  CHECK(plan.proven);
  Space tensor_only = spindle::quick_space();
  tensor_only.tensor.forced = 16;
  const auto none = spindle::layer_curve(text.blocks.front(), 64, 256, Precision::bf16, cluster, tensor_only);
  REQUIRE_FALSE(none);  // 12 heads
  CHECK(none.error().message.find("no strategy spreads the layer") == 0);
}
