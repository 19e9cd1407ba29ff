// What precision fp8 costs: products with the rounding before them, everything else as bf16, and room in the workspace.
#include <galvatron/cost/product_8bit.hpp>

#include <string>

#include <doctest/doctest.h>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/model/zoo.hpp>

namespace {

using namespace galvatron;
using namespace galvatron::cost;

constexpr op::Work product(std::int64_t m, std::int64_t n, std::int64_t k, bool eight_bit) {
  return {.kind = op::Kind::gemm_nt, .m = m, .n = n, .k = k, .eight_bit = eight_bit};
}

static_assert(bytes_of(product(16, 32, 64, true), Precision::fp8) == Bytes{6 * 64 * (16 + 32) + 2 * 16 * 32},
              "operands of 2 bytes are read twice, written as one and read; the result has 2");

}  // namespace

TEST_CASE("an 8-bit product costs itself and the passes that round its operands") {
  const Cluster h100 = value_or_throw(find_cluster("8xh100-80g"));
  const std::int64_t n = 8192;
  const double together = time_of(product(n, n, n, true), Precision::fp8, h100).value;
  const double alone = cost::detail::gemm_model_seconds(product(n, n, n, true), Precision::fp8, h100.device);
  const double passes = 4 * h100.device.launch.value + 5.0 * 2 * n * n / (3350e9 * 0.89);
  CHECK(together == doctest::Approx(alone + passes).epsilon(1e-9));
  CHECK(together < 0.75 * time_of(product(n, n, n, false), Precision::bf16, h100).value);
  // Small ones are not worth it.
  CHECK(time_of(product(256, 256, 256, true), Precision::fp8, h100) >
        time_of(product(256, 256, 256, false), Precision::bf16, h100));
}

TEST_CASE("what has no 8-bit operands costs in fp8 what it costs in bf16") {
  const Cluster h100 = value_or_throw(find_cluster("8xh100-80g"));
  for (const op::Work& work :
       {product(4096, 4096, 4096, false), op::Work{.kind = op::Kind::norm_forward, .m = 4096, .n = 4096},
        op::Work{.kind = op::Kind::attention_forward, .m = 64, .n = 1024, .k = 1024, .l = 64},
        op::Work{.kind = op::Kind::adamw, .m = 1 << 20}})
    CHECK(time_of(work, Precision::fp8, h100) == time_of(work, Precision::bf16, h100));
}

TEST_CASE("a table of fp8 has whole operations, rounding included") {
  Cluster host = host_cluster(2, 2);
  host.gemm = {{op::Kind::gemm_nt, false, Precision::fp8, 2, LogGrid<3>({{{16, 256}, {256}, {16}}}, {1e-3, 2e-3})}};
  CHECK(time_of(product(16, 256, 16, true), Precision::fp8, host).value == doctest::Approx(1e-3));
  CHECK(time_of(product(16, 256, 16, false), Precision::fp8, host).value < 1e-4);
}

TEST_CASE("fp8 keeps what bf16 keeps, and has room for rounded operands while layers work") {
  const ModelSpec model = value_or_throw(find_model("gpt-6.7b"));
  const StrategySpec spec{.tensor = 2, .data = 4, .zero = 1};
  Batch batch{.microbatch = 4, .sequence = 2048, .precision = Precision::bf16};
  const LayerCounts plain = layer_counts(model.blocks[0], spec, batch);
  batch.precision = Precision::fp8;
  const LayerCounts rounded = layer_counts(model.blocks[0], spec, batch);
  CHECK(rounded.states == plain.states);
  CHECK(rounded.stash == plain.stash);
  CHECK(rounded.forward.flops() == plain.forward.flops());
  const std::int64_t h = 4096;
  const std::int64_t ffn = 4 * h / 2;
  // At the peak of forward lie the hidden units and the operands of the product behind them.
  CHECK(rounded.forward_workspace - plain.forward_workspace == Bytes{buffer_bytes_8bit(2048, h, ffn)});
  CHECK(rounded.backward_workspace > plain.backward_workspace);
  int products = 0;
  for (const op::Work& work : rounded.forward) products += work.eight_bit ? work.times : 0;
  CHECK(products == 4);
  for (const LayerSpec& end : {model.embedding, model.head}) {
    const LayerCounts counts = layer_counts(end, spec, batch);
    for (const op::WorkList* list : {&counts.forward, &counts.backward})
      for (const op::Work& work : *list) CHECK_FALSE(work.eight_bit);
  }
}
