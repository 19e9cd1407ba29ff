// Other trainers: Megatron-LM's bytes are those of its papers, and its attention is priced like the public kernel
// curve.
#include <galvatron/cost/trainer_json.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/model/zoo.hpp>

namespace {

using namespace galvatron;
using namespace galvatron::cost;

LayerCounts block_of(const std::string& model, const StrategySpec& spec, const std::string& trainer,
                     std::int64_t samples = 1) {
  const ModelSpec found = value_or_throw(find_model(model));
  const Trainer facts = value_or_throw(load_trainer(trainer));
  return layer_counts(
      found.blocks.front(), spec,
      {.microbatch = samples, .sequence = 2048, .precision = Precision::bf16, .trainer = &facts.traits});
}

}  // namespace

TEST_CASE("Megatron-LM keeps the activations of its papers' formulas") {
  // Korthikanti et al. (arXiv 2205.05198), section 4: bytes of a layer, without the statistics of norms and softmax.
  constexpr double s = 2048;
  constexpr double h = 12288;
  constexpr double a = 96;
  const auto stash = [&](const StrategySpec& spec, const std::string& trainer = "megatron-2022") {
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
  CHECK(stash({}, "megatron") == doctest::Approx(32).epsilon(0.002));  // no masks, no scores
  CHECK(stash({}, std::string("galvatron")) < 21);                     // outputs of norms and GELU come again
  const StrategySpec never{.recompute = RecomputeKind::none};
  CHECK(stash(never, std::string("galvatron")) == doctest::Approx(32).epsilon(0.002));
  for (const char* const trainer : {"megatron", "megatron-2022"}) {  // which never do
    const LayerCounts kept = block_of("gpt3-175b", never, trainer);
    const LayerCounts plain = block_of("gpt3-175b", {}, trainer);
    CHECK(kept.stash == plain.stash);
    CHECK(kept.backward_workspace == plain.backward_workspace);
    CHECK(std::equal(kept.backward.begin(), kept.backward.end(), plain.backward.begin(), plain.backward.end()));
  }
}

TEST_CASE("Megatron-LM in fp16 keeps 16 bytes of a parameter, in bf16 18") {
  const LayerCounts fp16 = block_of("gpt-6.7b", {}, "megatron-2022");
  const LayerCounts bf16 = block_of("gpt-6.7b", {}, "megatron");
  CHECK(static_cast<double>(fp16.states.count) / static_cast<double>(bf16.states.count) == doctest::Approx(16.0 / 18));
  CHECK(bf16.states == block_of("gpt-6.7b", {}, std::string("galvatron")).states);
}

TEST_CASE("full recomputation repeats the whole forward pass, and products are the same for all trainers") {
  for (const RecomputeKind recompute : {RecomputeKind::cheap, RecomputeKind::full})
    for (const std::string& name : trainer_names()) {
      const LayerCounts c = block_of("gpt-6.7b", {.recompute = recompute}, name);
      double forward = 0;
      double backward = 0;
      for (const op::Work& work : c.forward)
        if (is_gemm(work.kind)) forward += flops_of(work).count;
      for (const op::Work& work : c.backward)
        if (is_gemm(work.kind)) backward += flops_of(work).count;
      INFO(name << " recompute " << name_of(recompute));
      const bool again = recompute == RecomputeKind::full;
      if (name != "galvatron" || !again)
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
                  .kernel = op::AttentionKernel::unfused};
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
    work.dropout = false;
    work.kernel = op::AttentionKernel::device;
    CHECK(seconds() < plain / 2);
  }
}

TEST_CASE("messages of tensor parallelism hide behind products but for one piece, inside a node") {
  CHECK(beyond_products({8}, {4}, 4, 1).value == doctest::Approx(1));
  CHECK(beyond_products({4}, {8}, 4, 1).value == doctest::Approx(4 + 1));
  CHECK(beyond_products({8}, {0}, 4, 1.2).value == doctest::Approx(0));
  const Cluster h100 = value_or_throw(find_cluster("8xh100-80g"));
  const auto cut = [](int tensor) { return StrategySpec{.tensor = tensor, .sequence = SequenceKind::megatron}; };
  const LayerCounts together = block_of("gpt3-175b", cut(8), "megatron");
  LayerCounts apart = together;
  CHECK(together.tensor_pieces == 4);  // Transformer Engine's userbuffers
  apart.tensor_pieces = 0;
  const LayerSeconds fast = layer_seconds(together, cut(8), Precision::bf16, h100, 8);
  const LayerSeconds slow = layer_seconds(apart, cut(8), Precision::bf16, h100, 8);
  CHECK(fast.forward < slow.forward);
  CHECK(fast.forward > slow.forward - slow.forward_communication);
  CHECK((fast.forward - fast.forward_communication).value ==
        doctest::Approx((slow.forward - slow.forward_communication).value));
  // Over two nodes nothing hides.
  const Cluster two = value_or_throw(find_cluster("16xh100-80g"));
  const LayerCounts across = block_of("gpt3-175b", cut(16), "megatron");
  LayerCounts waiting = across;
  waiting.tensor_pieces = 0;
  CHECK(layer_seconds(across, cut(16), Precision::bf16, two, 16) ==
        layer_seconds(waiting, cut(16), Precision::bf16, two, 16));
  // Twice the tensor ranks never take less of each other's time than one rank alone does for half the samples: what is
  // hidden does not grow with them.
  double exposed = 0;
  for (const int tensor : {2, 4, 8}) {
    const LayerSeconds seconds =
        layer_seconds(block_of("gpt3-175b", cut(tensor), "megatron"), cut(tensor), Precision::bf16, h100, 8);
    const double share = seconds.forward_communication / seconds.forward;
    CHECK(share > exposed);
    exposed = share;
  }
}

TEST_CASE("gradients and parameters of an iteration are waited for where a trainer does not overlap them") {
  // Megatron-LM of 2021 and 2022 reduces after the last backward pass; DeepSpeed gathers at the end of the step.
  const StrategySpec zero1{.data = 8, .zero = 1};
  const auto counts = [&](const char* trainer) { return block_of("gpt-6.7b", zero1, trainer, 8); };
  CHECK_FALSE(counts("megatron-2022").overlaps_gradients);
  CHECK_FALSE(counts("megatron-2022").overlaps_parameters);
  CHECK(counts("megatron-2024").overlaps_gradients);
  CHECK(counts("megatron-2024").overlaps_parameters);
  CHECK(counts("deepspeed").overlaps_gradients);
  CHECK_FALSE(counts("deepspeed").overlaps_parameters);
  const Cluster a100 = value_or_throw(find_cluster("8xa100-80g"));
  const auto seconds = [&](const char* trainer) {
    return layer_seconds(counts(trainer), zero1, Precision::bf16, a100, 8);
  };
  CHECK(seconds("megatron-2022").synchronise > seconds("megatron-2024").synchronise);
}

TEST_CASE("states are those that each trainer documents") {
  // Bytes of a parameter of a block on 8 data ranks. Megatron-LM, dist_optimizer.md: 18, and 6 + 12 / d with the
  // distributed optimizer; DeepSpeed (arXiv 1910.02054): 16, 4 + 12 / d, 2 + 14 / d, 16 / d; FSDP (arXiv 2304.11277):
  // 16 / d of an fp32 master, its gradient and its moments.
  struct Row {
    const char* trainer;
    int zero;
    double bytes;
  };
  const double parameters = [] {
    const ModelSpec model = value_or_throw(find_model("gpt-6.7b"));
    return static_cast<double>(galvatron::parameters(model.blocks.front()));
  }();
  for (const Row& row : {Row{"megatron-2026", 0, 18},
                         {"megatron-2026", 1, 6 + 12 / 8.0},
                         {"megatron-2022", 0, 16},
                         {"megatron-deepspeed", 1, 6 + 12 / 8.0},
                         {"deepspeed", 0, 16},
                         {"deepspeed", 1, 4 + 12 / 8.0},
                         {"deepspeed", 2, 2 + 14 / 8.0},
                         {"deepspeed", 3, 16 / 8.0},
                         {"pytorch-fsdp", 3, 16 / 8.0},
                         {"torchtitan", 3, 16 / 8.0}}) {
    INFO(row.trainer << " zero " << row.zero);
    const LayerCounts counts = block_of("gpt-6.7b", {.data = 8, .zero = row.zero}, row.trainer, 8);
    CHECK(static_cast<double>(counts.states.count) / parameters == doctest::Approx(row.bytes).epsilon(0.001));
  }
}

TEST_CASE("gradients travel in the format of each trainer") {
  const auto bytes = [](const char* trainer, int zero) {
    const LayerCounts counts = block_of("gpt-6.7b", {.data = 8, .zero = zero}, trainer, 8);
    std::int64_t sum = 0;
    for (const op::WorkList* list : {&counts.backward, &counts.synchronise})
      for (const op::Work& work : *list)
        if (work.kind == op::Kind::all_reduce || work.kind == op::Kind::reduce_scatter) sum += work.m * work.times;
    return sum;
  };
  CHECK(bytes("megatron-2026", 0) == 2 * bytes("megatron-2022", 0));  // fp32 and fp16
  CHECK(bytes("torchtitan", 3) == 2 * bytes("pytorch-fsdp", 3));      // mixed_precision_reduce is float32
}

TEST_CASE("operations that are not fused go over memory several times") {
  const auto times = [](const char* trainer, op::Kind kind) {
    const LayerCounts counts = block_of("llama2-7b", {.recompute = RecomputeKind::none}, trainer);
    std::int64_t sum = 0;
    for (const op::Work& work : counts.forward)
      if (work.kind == kind) sum += work.times;
    return sum;
  };
  // transformers' LlamaRMSNorm has four kernels, rotary five; torch.compile has one.
  for (const auto& [kind, more] :
       {std::pair(op::Kind::norm_forward, 4), {op::Kind::rotary, 5}, {op::Kind::activation_forward, 2}}) {
    CHECK(times("pytorch-fsdp", kind) == more * times("pytorch-fsdp-compiled", kind));
    CHECK(times("megatron", kind) == times("pytorch-fsdp-compiled", kind));
  }
}

TEST_CASE("the host's time of operations is a floor under that of the devices") {
  const Cluster h100 = value_or_throw(find_cluster("1xh100-80g"));
  LayerCounts small = block_of("gpt2-124m", {}, "megatron");
  std::int64_t operations = 0;
  for (const op::Work& work : small.forward) operations += work.times;
  small.host = {1e-3};
  CHECK(layer_seconds(small, {}, Precision::bf16, h100, 1).forward.value ==
        doctest::Approx(1e-3 * static_cast<double>(operations)));
  LayerCounts large = block_of("gpt3-175b", {}, "megatron", 8);
  const LayerSeconds before = layer_seconds(large, {}, Precision::bf16, h100, 1);
  large.host = {};
  CHECK(before == layer_seconds(large, {}, Precision::bf16, h100, 1));
}

TEST_CASE("synchronous ranks wait for the slowest device, more of them a little longer") {
  // The means of the largest of n standard normal numbers: 1.42, 2.37 and 3.24 (Harter 1961); to first order.
  CHECK(expected_largest(1) == 0);
  CHECK(expected_largest(8) == doctest::Approx(1.42).epsilon(0.15));
  CHECK(expected_largest(64) == doctest::Approx(2.37).epsilon(0.1));
  CHECK(expected_largest(1024) == doctest::Approx(3.24).epsilon(0.05));
  const LayerCounts counts = block_of("gpt3-175b", {}, "megatron");
  const auto forward = [&](const char* cluster) {
    return layer_seconds(counts, {}, Precision::bf16, value_or_throw(find_cluster(cluster)), 1).forward.value;
  };
  const double growth = forward("1024xh100-80g") / forward("8xh100-80g");
  CHECK(growth > 1.015);
  CHECK(growth < 1.04);
}

TEST_CASE("kernels of attention stand to each other as published") {
  const auto forward = [](op::AttentionKernel kernel, const char* cluster, std::int64_t head_dim = 128) {
    const op::Work work{.kind = op::Kind::attention_forward,
                        .m = 128,
                        .n = 4096,
                        .k = 4096,
                        .l = head_dim,
                        .causal = true,
                        .kernel = kernel};
    return time_of(work, Precision::bf16, value_or_throw(find_cluster(cluster))).value;
  };
  using op::AttentionKernel;
  for (const char* const cluster : {"8xa100-80g", "8xh100-80g"}) {
    const double fa2 = forward(AttentionKernel::fa2, cluster);
    CHECK(forward(AttentionKernel::fa1, cluster) == doctest::Approx(2 * fa2));
    CHECK(forward(AttentionKernel::fa1_triton, cluster) == doctest::Approx(1.8 * fa2));
  }
  CHECK(forward(AttentionKernel::cudnn, "8xa100-80g") == forward(AttentionKernel::fa2, "8xa100-80g"));
  CHECK(forward(AttentionKernel::device, "8xh100-80g") == forward(AttentionKernel::cudnn, "8xh100-80g"));
  CHECK(forward(AttentionKernel::fa3, "8xh100-80g") == forward(AttentionKernel::cudnn, "8xh100-80g"));
  // FlashAttention-2 on an H100, both passes, head dim 128, causal, hidden 2048, 16k tokens: TFLOP/s by length.
  const Cluster h100 = value_or_throw(find_cluster("8xh100-80g"));
  for (const auto& [tokens, tflops] :
       {std::pair(std::int64_t{1024}, 221), {2048, 265}, {4096, 294}, {8192, 308}, {16384, 328}}) {
    op::Work work{.kind = op::Kind::attention_forward,
                  .m = 16384 / tokens * 16,
                  .n = tokens,
                  .k = tokens,
                  .l = 128,
                  .causal = true,
                  .kernel = AttentionKernel::fa2};
    const double flops = 3.5 * flops_of(work).count;
    double seconds = time_of(work, Precision::bf16, h100).value;
    work.kind = op::Kind::attention_backward;
    seconds += time_of(work, Precision::bf16, h100).value;
    INFO(tokens << " tokens: " << flops / seconds / 1e12);
    CHECK(flops / seconds / 1e12 == doctest::Approx(tflops).epsilon(0.12));
  }
}

TEST_CASE("head dimensions are filled up to those that kernels are compiled for") {
  using galvatron::cost::detail::computed_head_dim;
  using op::AttentionKernel;
  CHECK(computed_head_dim(AttentionKernel::fa1, 80) == 128);  // csrc of FlashAttention 1: 32, 64, 128
  CHECK(computed_head_dim(AttentionKernel::fa2, 80) == 96);   // of 2: multiples of 32
  CHECK(computed_head_dim(AttentionKernel::fa2, 128) == 128);
  CHECK(computed_head_dim(AttentionKernel::cudnn, 100) == 104);
  const Cluster a100 = value_or_throw(find_cluster("8xa100-80g"));
  const auto unfused = [&](std::int64_t head_dim) {
    const op::Work work{.kind = op::Kind::attention_forward,
                        .m = 64,
                        .n = 2048,
                        .k = 2048,
                        .l = head_dim,
                        .kernel = AttentionKernel::unfused};
    return time_of(work, Precision::bf16, a100).value;
  };
  CHECK(unfused(100) > 1.1 * unfused(104));
}

TEST_CASE("a cap on power lowers the clock by its third root") {
  Cluster h100 = value_or_throw(find_cluster("8xh100-80g"));
  const op::Work work{.kind = op::Kind::gemm_nt, .m = 16384, .n = 16384, .k = 16384};
  const double full = time_of(work, Precision::bf16, h100).value;
  h100.device.power = 0.5;
  CHECK(time_of(work, Precision::bf16, h100).value / full == doctest::Approx(std::cbrt(2.0)).epsilon(0.01));
}

TEST_CASE("Megatron-LM of 2021 sends a part of the activation from each tensor rank") {
  const Cluster a100 = value_or_throw(find_cluster("64xa100-80g"));
  const StrategySpec spec{.tensor = 8};
  const std::int64_t elements = std::int64_t{2048} * 12288;
  const auto seconds = [&](const char* trainer) {
    const Trainer facts = value_or_throw(load_trainer(trainer));
    const Batch batch{.microbatch = 1, .sequence = 2048, .precision = Precision::bf16, .trainer = &facts.traits};
    return MovePricer(batch, elements, a100, 64).receive(spec).value;
  };
  const double whole = seconds("galvatron");
  const double parts = seconds("megatron-2021");
  const op::Work gather{.kind = op::Kind::all_gather, .m = 2 * elements, .n = 8};
  const double send = time_of({.kind = op::Kind::send, .m = 2 * elements / 8, .n = 1}, Precision::bf16, a100).value;
  CHECK(parts == doctest::Approx(send + time_of(gather, Precision::bf16, a100, 8).value));
  CHECK(parts < whole / 3);
}

TEST_CASE("trainer files are read, and what is wrong with them is said") {
  const auto read = [](const std::string& text) {
    return trainer_from_json(value_or_throw(parse_json(text, "t")), "t");
  };
  const std::string head = R"({"format": "galvatron-trainer", "version": 1, "name": "ours", )";
  const auto ours = read(head + R"("like": "megatron-2026", "overlap": {"tensor_pieces": 0},
                                   "sources": {"overlap": ["a", "b"]}})");
  REQUIRE(ours);
  const Trainer megatron = *find_trainer("megatron");
  CHECK(megatron.traits == find_trainer("megatron-2026")->traits);
  CHECK(ours->traits.tensor_pieces == 0);
  CHECK(ours->traits.gradient_bytes == megatron.traits.gradient_bytes);
  CHECK(ours->expressible == megatron.expressible);
  const auto says = [&](const std::string& text, const std::string& what) {
    const auto wrong = read(text);
    REQUIRE_FALSE(wrong);
    INFO(wrong.error().message);
    CHECK(wrong.error().message.find(what) != std::string::npos);
  };
  says(head + R"("overlaps": {}, "sources": {}})", "unknown key \"overlaps\"");
  says(head + R"("overlap": {"tensor": 1}, "sources": {"overlap": "x"}})", "unknown key \"tensor\"");
  says(head + R"("overlap": {"gradients": true}, "sources": {}})", "the section \"overlap\" has no source");
  says(head + R"("attention": {"kernel": "fa4"}, "sources": {"attention": "x"}})", "unknown value \"fa4\"");
  says(head + R"("like": "megatron-1999", "sources": {}})", "unknown trainer \"megatron-1999\"");
  says(head + R"("expresses": {"schedules": ["dualpipe"]}, "sources": {"expresses": "x"}})", "schedules");
  for (const std::string& name : trainer_names()) {
    const Trainer trainer = *find_trainer(name);
    CHECK(trainer.name == name);
    CHECK(trainer.is_own() == (name == "galvatron"));
    CHECK((trainer.is_own() || !trainer.sources.empty()));
  }
}
