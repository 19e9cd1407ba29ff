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

constexpr op::Work product_by(Fp8Recipe recipe, std::int64_t m, std::int64_t n, std::int64_t k) {
  op::Work out = product(m, n, k, true);
  out.recipe = recipe;
  return out;
}

// Extents: Transformer Engine, fp8_blockwise_scaling.rst (128) and mxfp8.rst (32); torchao skips what is no multiple of
// 16.
static_assert(fits_8bit(128, 256, 384, Fp8Recipe::blockwise) && !fits_8bit(128, 256, 320, Fp8Recipe::blockwise));
static_assert(fits_8bit(32, 64, 96, Fp8Recipe::mxfp8) && !fits_8bit(32, 64, 80, Fp8Recipe::mxfp8));
static_assert(fits_8bit(16, 48, 80, Fp8Recipe::delayed) && fits_8bit(16, 48, 80, Fp8Recipe::rowwise));

// Scales: floats for 128 elements of activations and 128 x 128 of weights, bytes (E8M0) for 32 elements, floats of
// rows.
static_assert(scale_bytes(256, 512, 1024, Fp8Recipe::blockwise, true) == 4 * (256 * 8 + 4 * 8));
static_assert(scale_bytes(256, 512, 1024, Fp8Recipe::blockwise, false) == 4 * (256 * 8 + 512 * 8));
static_assert(scale_bytes(256, 512, 1024, Fp8Recipe::mxfp8, true) == (256 + 512) * 32);
static_assert(scale_bytes(256, 512, 1024, Fp8Recipe::rowwise, true) == 4 * (256 + 512));
static_assert(buffer_bytes_8bit(256, 512, 1024, Fp8Recipe::delayed) == buffer_bytes_8bit(256, 512, 1024));
static_assert(buffer_bytes_8bit(256, 512, 1024, Fp8Recipe::mxfp8) == (256 + 512) * (1024 + 32));

// Reads of an operand: two with current scaling, one with delayed scaling (fp8_delayed_scaling.rst); a block's
// magnitude is found while it is rounded.
static_assert(bytes_of(product_by(Fp8Recipe::delayed, 16, 32, 64), Precision::fp8) ==
              Bytes{4 * 64 * (16 + 32) + 2 * 16 * 32});
static_assert(bytes_of(product_by(Fp8Recipe::rowwise, 16, 32, 64), Precision::fp8) ==
              bytes_of(product(16, 32, 64, true), Precision::fp8));

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

TEST_CASE("a recipe with one pass less saves its bytes and launches, and scales of blocks cost theirs") {
  const Cluster b200 = value_or_throw(find_cluster("8xb200-192g"));
  const std::int64_t n = 8192;
  const auto seconds = [&](Fp8Recipe recipe, const Cluster& on) {
    return time_of(product_by(recipe, n, n, n), Precision::fp8, on).value;
  };
  const double usual = seconds(Fp8Recipe::tensorwise, b200);
  const double streaming = 8000e9 * 0.88;
  const double pass = 2 * b200.device.launch.value + 2.0 * 2 * n * n / streaming;
  // The bytes of its two scales are written and read in both.
  CHECK(usual - seconds(Fp8Recipe::delayed, b200) == doctest::Approx(pass));
  CHECK(usual - seconds(Fp8Recipe::mxfp8, b200) == doctest::Approx(pass - 2.0 * (2 * n * n / 32 - 8) / streaming));
  CHECK(usual - seconds(Fp8Recipe::blockwise, b200) ==
        doctest::Approx(pass - 2.0 * (4 * (n * n / 128 + n * n / 16384) - 8) / streaming));
  CHECK(usual - seconds(Fp8Recipe::rowwise, b200) == doctest::Approx(-2.0 * (4 * 2 * n - 8) / streaming));
  // Of a measured product the rounding is exchanged.
  Cluster measured = b200;
  measured.gemm = {{op::Kind::gemm_nt, false, Precision::fp8, 0, LogGrid<3>({{{n}, {n}, {n}}}, {3e-4})}};
  CHECK(seconds(Fp8Recipe::tensorwise, measured) == doctest::Approx(3e-4));
  CHECK(seconds(Fp8Recipe::delayed, measured) == doctest::Approx(3e-4 - pass));
}

TEST_CASE("devices have recipes") {
  const auto lack = [](const char* cluster, Fp8Recipe recipe) {
    return value_or_throw(find_cluster(cluster)).lack_of(Precision::fp8, recipe);
  };
  // Transformer Engine, support_matrix: 8.9 per tensor, 9.0 by blocks of 128, 10.0 MXFP8; torchao: rows from 9.0 on.
  for (const char* ada : {"8xl4-24g", "8xl40s-48g", "8xrtx4090-24g"}) {
    CHECK(lack(ada, Fp8Recipe::tensorwise).empty());
    CHECK(lack(ada, Fp8Recipe::delayed).empty());
    CHECK(lack(ada, Fp8Recipe::rowwise).find("no 8-bit products of the recipe rowwise") != std::string::npos);
    CHECK_FALSE(lack(ada, Fp8Recipe::blockwise).empty());
  }
  for (const char* hopper : {"8xh100-80g", "8xh200-141g"}) {
    CHECK(lack(hopper, Fp8Recipe::rowwise).empty());
    CHECK(lack(hopper, Fp8Recipe::blockwise).empty());
    CHECK(lack(hopper, Fp8Recipe::mxfp8).find("but of tensorwise, delayed, rowwise and blockwise") !=
          std::string::npos);
  }
  for (const Fp8Recipe recipe : fp8_recipes) CHECK(lack("8xb200-192g", recipe).empty());
  CHECK(lack("8xa100-80g", Fp8Recipe::tensorwise).find("have no 8-bit products;") != std::string::npos);
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
  RuntimeTraits traits = own_runtime;
  traits.fp8_recipe = Fp8Recipe::mxfp8;
  batch.trainer = &traits;
  const LayerCounts blocks = layer_counts(model.blocks[0], spec, batch);
  CHECK(blocks.forward_workspace - rounded.forward_workspace ==
        Bytes{buffer_bytes_8bit(2048, h, ffn, Fp8Recipe::mxfp8) - buffer_bytes_8bit(2048, h, ffn)});
  for (const op::Work& work : blocks.forward) CHECK(work.recipe == (work.eight_bit ? Fp8Recipe::mxfp8 : Fp8Recipe{}));
  batch.trainer = &own_runtime;
  int products = 0;
  for (const op::Work& work : rounded.forward) products += work.eight_bit ? work.times : 0;
  CHECK(products == 4);
  for (const LayerSpec& end : {model.embedding, model.head}) {
    const LayerCounts counts = layer_counts(end, spec, batch);
    for (const op::WorkList* list : {&counts.forward, &counts.backward})
      for (const op::Work& work : *list) CHECK_FALSE(work.eight_bit);
  }
}
