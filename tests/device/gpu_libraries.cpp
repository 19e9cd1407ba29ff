// What can be known of CUDA's libraries without a GPU: messages, descriptions of products, graphs of attention.
#include <string>
#include <tuple>
#include <utility>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/cudnn_attention.hpp>
#include <galvatron/device/cuda/devices.hpp>
#include <galvatron/device/cuda/gemm.hpp>

#include "described_device.hpp"

namespace {

using namespace galvatron;
namespace cuda = device::cuda;
namespace cudnn = device::cuda::cudnn;
using device::AttentionShape;
using device::Product;

TEST_CASE("whatever the reason that there is no GPU, it is one line with a way out") {
  for (const auto& [status, word] : {std::pair{cudaErrorNoDevice, "CUDA_VISIBLE_DEVICES"},
                                     {cudaErrorInsufficientDriver, "driver"},
                                     {cudaErrorStubLibrary, "stub"},
                                     {cudaErrorUnknown, "nvidia-smi"},
                                     {cudaSuccess, "nvidia-smi"}}) {
    const Result<int> found = cuda::devices_found(status, 0);
    REQUIRE(!found);
    CAPTURE(found.error().message);
    CHECK(found.error().kind == ErrorKind::machine);
    CHECK(found.error().message.starts_with("no CUDA device: "));
    CHECK(found.error().message.find(word) != std::string::npos);
    CHECK(found.error().message.find("--device host") != std::string::npos);
    CHECK(found.error().message.find('\n') == std::string::npos);
  }
  CHECK(cuda::devices_found(cudaSuccess, 3).value() == 3);
}

TEST_CASE("on a machine without a GPU, everything says so and nothing else fails") {
  const Result<int> count = cuda::device_count();
  if (count) {
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK_THROWS_WITH_AS(cuda::use_device(*count),
                         doctest::Contains(("no CUDA device " + std::to_string(*count)).c_str()), DeviceFailure);
    return;
  }
  CHECK_THROWS_WITH_AS(cuda::use_device(0), count.error().message.c_str(), DeviceFailure);
  CHECK_THROWS_AS(cuda::Stream(), DeviceFailure);
  CHECK_THROWS_WITH_AS(cuda::DeviceMemory({1 << 20}), doctest::Contains("CUDA: "), DeviceFailure);
  CHECK_THROWS_AS(cuda::PinnedMemory({1 << 20}), DeviceFailure);
  CHECK(cuda::DeviceMemory({1 << 20}, true).data() == nullptr);
  CHECK(cuda::DeviceMemory({1 << 20}, true).size() == 1_MiB);
}

template <class V, class Get>
V attribute(const Get& get) {
  V value{};
  std::size_t written = 0;
  REQUIRE(get(&value, sizeof value, &written) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(written == sizeof value);
  return value;
}
template <class V>
V of_layout(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t which) {
  return attribute<V>([&](void* value, std::size_t size, std::size_t* written) {
    return cublasLtMatrixLayoutGetAttribute(layout, which, value, size, written);
  });
}
template <class V>
V of_product(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t which) {
  return attribute<V>([&](void* value, std::size_t size, std::size_t* written) {
    return cublasLtMatmulDescGetAttribute(description, which, value, size, written);
  });
}

TEST_CASE("cuBLASLt's objects hold what the column-major description says") {
  for (const op::Kind kind : op::gemms)
    for (const bool bias : {false, true}) {
      const Product p{.kind = kind,
                      .operands = Precision::bf16,
                      .result = bias ? Precision::bf16 : Precision::fp32,
                      .bias = bias,
                      .m = 3,
                      .n = 5,
                      .k = 7};
      const cuda::ColumnMajorProduct asked = cuda::column_major(p);
      const cuda::ProductObjects made(p);
      const auto check = [](const cuda::ColumnMajorMatrix& matrix, cublasLtMatrixLayout_t its) {
        CHECK(of_layout<std::uint64_t>(its, CUBLASLT_MATRIX_LAYOUT_ROWS) == static_cast<std::uint64_t>(matrix.rows));
        CHECK(of_layout<std::uint64_t>(its, CUBLASLT_MATRIX_LAYOUT_COLS) == static_cast<std::uint64_t>(matrix.columns));
        CHECK(of_layout<std::int64_t>(its, CUBLASLT_MATRIX_LAYOUT_LD) == matrix.stride);
        CHECK(of_layout<std::int32_t>(its, CUBLASLT_MATRIX_LAYOUT_ORDER) == CUBLASLT_ORDER_COL);
        CHECK(of_layout<std::uint32_t>(its, CUBLASLT_MATRIX_LAYOUT_TYPE) ==
              static_cast<std::uint32_t>(matrix.precision == Precision::bf16 ? CUDA_R_16BF : CUDA_R_32F));
      };
      check(asked.x, made.x.get());
      check(asked.y, made.y.get());
      check(asked.d, made.d.get());
      CHECK((of_product<std::int32_t>(made.description.get(), CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T) ==
            asked.x_transposed);
      CHECK((of_product<std::int32_t>(made.description.get(), CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T) ==
            asked.y_transposed);
      CHECK(of_product<std::int32_t>(made.description.get(), CUBLASLT_MATMUL_DESC_COMPUTE_TYPE) == CUBLAS_COMPUTE_32F);
      CHECK(of_product<std::uint32_t>(made.description.get(), CUBLASLT_MATMUL_DESC_EPILOGUE) ==
            static_cast<std::uint32_t>(bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT));
    }
}

TEST_CASE("cuBLASLt's objects hold the epilogue, and the distance of u's columns") {
  const Product p{.operands = Precision::bf16, .result = Precision::bf16, .m = 3, .n = 16, .k = 7};
  for (const auto& [epilogue, bias, expected] :
       {std::tuple{device::Epilogue::gelu, true, CUBLASLT_EPILOGUE_GELU_AUX_BIAS},
        {device::Epilogue::gelu, false, CUBLASLT_EPILOGUE_GELU_AUX},
        {device::Epilogue::gelu_gradient, false, CUBLASLT_EPILOGUE_DGELU}}) {
    Product asked = p;
    asked.bias = bias;
    const cuda::ProductObjects made(asked, epilogue);
    CHECK(of_product<std::uint32_t>(made.description.get(), CUBLASLT_MATMUL_DESC_EPILOGUE) ==
          static_cast<std::uint32_t>(expected));
    CHECK(of_product<std::int64_t>(made.description.get(), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) == p.n);
  }
}

TEST_CASE("cuBLASLt's objects of 8-bit products have their formats, and sum gradients exactly") {
  for (const bool gradient : {false, true})
    for (const Precision result : {Precision::bf16, Precision::fp32}) {
      const bool bias = result == Precision::bf16;
      const Product p{
          .operands = Precision::fp8, .result = result, .bias = bias, .gradient = gradient, .m = 32, .n = 48, .k = 16};
      cuda::ProductObjects made(p);
      const auto type = [](cublasLtMatrixLayout_t its) {
        return of_layout<std::uint32_t>(its, CUBLASLT_MATRIX_LAYOUT_TYPE);
      };
      CHECK(type(made.x.get()) == static_cast<std::uint32_t>(CUDA_R_8F_E4M3));
      CHECK(type(made.y.get()) == static_cast<std::uint32_t>(gradient ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3));
      CHECK(type(made.d.get()) == static_cast<std::uint32_t>(bias ? CUDA_R_16BF : CUDA_R_32F));
      const auto of = [&]<class V>(cublasLtMatmulDescAttributes_t which) {
        return of_product<V>(made.description.get(), which);
      };
      CHECK(of.operator()<std::int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM) == (gradient ? 0 : 1));
      CHECK(cuda::adds_bias(p) == bias);
      if (bias)
        CHECK(of.operator()<std::int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE) ==
              static_cast<std::int32_t>(CUDA_R_16BF));
      const float scales[2] = {};
      made.set_scales(scales + 1, scales);
      CHECK(of.operator()<const float*>(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER) == scales + 1);
      CHECK(of.operator()<const float*>(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER) == scales);
    }
}

TEST_CASE("GPUs from Ada on multiply 8-bit numbers") {
  CHECK_FALSE(cuda::has_8bit_products({.name = "", .major = 8, .minor = 0}));
  CHECK_FALSE(cuda::has_8bit_products({.name = "", .major = 8, .minor = 6}));
  CHECK(cuda::has_8bit_products({.name = "", .major = 8, .minor = 9}));
  CHECK(cuda::has_8bit_products({.name = "", .major = 9, .minor = 0}));
}

TEST_CASE("shapes that cuDNN is not asked about") {
  AttentionShape s{.batch = 1,
                   .queries = 8,
                   .keys = 8,
                   .heads = 1,
                   .kv_heads = 1,
                   .head_dim = 64,
                   .q_stride = 64,
                   .kv_stride = 64,
                   .out_stride = 64};
  CHECK(cudnn::unsuited(s, true, 9).empty());
  s.kv_stride = 65;
  CHECK(!cudnn::unsuited(s, true, 9).empty());
  s.kv_stride = 64;
  s.head_dim = 20;
  CHECK(!cudnn::unsuited(s, true, 9).empty());
  s.head_dim = 192;
  CHECK(cudnn::unsuited(s, true, 9).empty());
  CHECK(cudnn::unsuited(s, false, 8).empty());
  CHECK(!cudnn::unsuited(s, true, 8).empty());
  s.head_dim = 64;
  CHECK(cudnn::unsuited(s, true, 8).empty());
  s.lse_stride = 16;  // log-sum-exps of a head lie apart from those of the next
  CHECK(!cudnn::unsuited(s, true, 8).empty());
  CHECK(cudnn::unsuited(s, false, 8).empty());
  CHECK(cudnn::unsuited(s, true, 9).empty());
  CHECK(cudnn::unsuited_documents(s, true, 9).empty());
  CHECK(!cudnn::unsuited_documents(s, true, 8).empty());
  CHECK(!cudnn::unsuited_documents(s, false, 10).empty());
  s.keys = 1;
  CHECK(cudnn::unsuited(s, false, 9).empty());
  CHECK(!cudnn::unsuited(s, true, 9).empty());
  // Tiles of Hopper's backward that are not full and that no mask covers.
  for (const auto& [queries, keys, causal, good] : {std::tuple{128, 128, false, true},
                                                    {128, 192, false, false},
                                                    {192, 192, true, true},
                                                    {114, 512, false, false},
                                                    {197, 197, false, true},
                                                    {64, 512, false, true}}) {
    s.queries = queries;
    s.keys = keys;
    s.causal = causal;
    CHECK(cudnn::unsuited(s, true, 9).empty() == good);
    CHECK(cudnn::unsuited(s, false, 9).empty());
    CHECK(cudnn::unsuited(s, false, 10).empty());
  }
}

TEST_CASE("a description that cuDNN cannot read is refused in its own words") {
  CHECK_THROWS_WITH_AS(test::described_device("{}"), doctest::Contains("maxGridSize"), cudnn::Unsupported);
}

}  // namespace
