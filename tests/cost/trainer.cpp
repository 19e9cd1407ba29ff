// Other trainers: Megatron-LM's bytes are those of its papers, and its attention is priced like the public kernel
// curve.
#include <galvatron/cost/trainer.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/model/zoo.hpp>

namespace {

using namespace galvatron;
using namespace galvatron::cost;

LayerCounts block_of(const std::string& model, const StrategySpec& spec, Trainer trainer, std::int64_t samples = 1) {
  const ModelSpec found = value_or_throw(find_model(model));
  return layer_counts(found.blocks.front(), spec,
                      {.microbatch = samples, .sequence = 2048, .precision = Precision::bf16, .trainer = trainer});
}

}  // namespace

TEST_CASE("Megatron-LM keeps the activations of its papers' formulas") {
  // Korthikanti et al. (arXiv 2205.05198), section 4: bytes of a layer, without the statistics of norms and softmax.
  constexpr double s = 2048;
  constexpr double h = 12288;
  constexpr double a = 96;
  const auto stash = [&](const StrategySpec& spec, Trainer trainer = Trainer::megatron_2022) {
    return static_cast<double>(block_of("gpt3-175b", spec, trainer).stash.count) / (s * h);
  };
  CHECK(stash({}) == doctest::Approx(34 + 5 * a * s / h).epsilon(0.002));
  CHECK(stash({.tensor = 8}) == doctest::Approx(10 + 24 / 8.0 + 5 * a * s / h / 8).epsilon(0.002));
  const StrategySpec cut{.tensor = 8, .sequence = SequenceKind::megatron};
  CHECK(stash(cut) == doctest::Approx((34 + 5 * a * s / h) / 8).epsilon(0.002));
  StrategySpec selective = cut;
  selective.recompute = RecomputeKind::selective;
  CHECK(stash(selective) == doctest::Approx(34 / 8.0).epsilon(0.002));
  CHECK(stash({.recompute = RecomputeKind::full}) == doctest::Approx(2).epsilon(0.002));
  CHECK(stash({}, Trainer::megatron) == doctest::Approx(32).epsilon(0.002));  // no masks, no scores
  CHECK(stash({}, Trainer::galvatron) < 21);                                  // outputs of norms and GELU come again
  const StrategySpec never{.recompute = RecomputeKind::none};
  CHECK(stash(never, Trainer::galvatron) == doctest::Approx(32).epsilon(0.002));
  for (const Trainer trainer : {Trainer::megatron, Trainer::megatron_2022}) {  // which never do
    const LayerCounts kept = block_of("gpt3-175b", never, trainer);
    const LayerCounts plain = block_of("gpt3-175b", {}, trainer);
    CHECK(kept.stash == plain.stash);
    CHECK(kept.backward_workspace == plain.backward_workspace);
    CHECK(std::equal(kept.backward.begin(), kept.backward.end(), plain.backward.begin(), plain.backward.end()));
  }
}

TEST_CASE("Megatron-LM in fp16 keeps 16 bytes of a parameter, in bf16 18") {
  const LayerCounts fp16 = block_of("gpt-6.7b", {}, Trainer::megatron_2022);
  const LayerCounts bf16 = block_of("gpt-6.7b", {}, Trainer::megatron);
  CHECK(static_cast<double>(fp16.states.count) / static_cast<double>(bf16.states.count) == doctest::Approx(16.0 / 18));
  CHECK(bf16.states == block_of("gpt-6.7b", {}, Trainer::galvatron).states);
}

TEST_CASE("full recomputation repeats the whole forward pass, and products are the same for all trainers") {
  for (const RecomputeKind recompute : {RecomputeKind::cheap, RecomputeKind::full})
    for (const Trainer trainer : trainers) {
      const LayerCounts c = block_of("gpt-6.7b", {.recompute = recompute}, trainer);
      double forward = 0;
      double backward = 0;
      for (const op::Work& work : c.forward)
        if (is_gemm(work.kind)) forward += flops_of(work).count;
      for (const op::Work& work : c.backward)
        if (is_gemm(work.kind)) backward += flops_of(work).count;
      const std::string name(name_of(trainer));
      INFO(name << " recompute " << name_of(recompute));
      const bool again = recompute == RecomputeKind::full;
      if (trainer != Trainer::galvatron || !again)
        CHECK(backward == doctest::Approx((again ? 3 : 2) * forward));
      else
        CHECK(backward < 3 * forward);  // the last product of a layer is not needed
    }
}

TEST_CASE("attention that is not fused stands to the public curve of an A100 as its kernels do") {
  // FlashAttention-2's benchmark of PyTorch's own attention: hidden size 2048, head dim 128, causal, 16k tokens;
  // TFLOP/s of forward and backward together, causal FLOPs counted as half. It scales, masks, and rounds the softmax in
  // kernels of their own, about 34 bytes for each score; with a softmax that does all of it, there are 10, with
  // dropout 20.
  const Cluster a100 = value_or_throw(find_cluster("8xa100-80g"));
  struct Row {
    std::int64_t tokens;
    double tflops;
  };
  for (const Row& row : {Row{1024, 28}, {2048, 32}, {4096, 32}, {8192, 34}}) {
    op::Work work{.kind = op::Kind::attention_forward,
                  .m = 16384 / row.tokens * 16,
                  .n = row.tokens,
                  .k = row.tokens,
                  .l = 128,
                  .causal = true,
                  .unfused = true};
    const double flops = 3.5 * flops_of(work).count;
    const double scores = static_cast<double>(work.m * work.n * work.k);
    const auto seconds = [&] {
      work.kind = op::Kind::attention_forward;
      const double forward = time_of(work, Precision::bf16, a100).value;
      work.kind = op::Kind::attention_backward;
      return forward + time_of(work, Precision::bf16, a100).value;
    };
    const double plain = seconds();
    INFO(row.tokens << " tokens: " << flops / plain / 1e12 << " TFLOP/s");
    const double passes = (34 - 10) * scores / (a100.device.memory_bandwidth * a100.device.memory_share);
    CHECK(flops / (plain + passes) / 1e12 == doctest::Approx(row.tflops).epsilon(0.15));
    work.dropout = true;
    CHECK(seconds() > plain);
    CHECK(seconds() < plain + passes);
    work.unfused = work.dropout = false;
    CHECK(seconds() < plain / 2);
  }
}

TEST_CASE("messages of tensor parallelism hide behind products but for one piece") {
  CHECK(beyond_products({8}, {4}, 4, 1).value == doctest::Approx(1));
  CHECK(beyond_products({4}, {8}, 4, 1).value == doctest::Approx(4 + 1));
  CHECK(beyond_products({8}, {0}, 4, 1.2).value == doctest::Approx(0));
  const Cluster h100 = value_or_throw(find_cluster("8xh100-80g"));
  const StrategySpec cut{.tensor = 8, .sequence = SequenceKind::megatron};
  const LayerCounts together = block_of("gpt3-175b", cut, Trainer::megatron);
  LayerCounts apart = together;
  CHECK(together.overlaps_tensor);
  apart.overlaps_tensor = false;
  const LayerSeconds fast = layer_seconds(together, cut, Precision::bf16, h100, 8);
  const LayerSeconds slow = layer_seconds(apart, cut, Precision::bf16, h100, 8);
  CHECK(fast.forward < slow.forward);
  CHECK(fast.forward > slow.forward - slow.forward_communication);
  CHECK((fast.forward - fast.forward_communication).value ==
        doctest::Approx((slow.forward - slow.forward_communication).value));
}
