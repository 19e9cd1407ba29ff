// What libraries are asked for in place of a row-major matrix product: interpreted naively, it is what the host device
// computes.
#include <cmath>
#include <numbers>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/kernels/activation.hpp>
#include <galvatron/device/product.hpp>

#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;
using device::Epilogue;
using device::Product;

// d = op(x) op(y) [+ bias or d], or what the epilogue makes of it, with nothing but the description's numbers.
template <class T, class C>
void interpret(const Product& product, Epilogue epilogue, const std::vector<T>& x, const std::vector<T>& y,
               const std::vector<T>& bias, std::vector<C>& u, std::vector<C>& d) {
  const cuda::ColumnMajorProduct p = cuda::column_major(product);
  const auto element = [](const cuda::ColumnMajorMatrix& m, const std::vector<T>& values, bool transposed,
                          std::int64_t row, std::int64_t column) {
    if (transposed) std::swap(row, column);
    REQUIRE(row < m.rows);
    REQUIRE(column < m.columns);
    return static_cast<double>(static_cast<float>(values.at(static_cast<std::size_t>(row + column * m.stride))));
  };
  const std::int64_t inner = p.x_transposed ? p.x.rows : p.x.columns;
  REQUIRE(inner == (p.y_transposed ? p.y.columns : p.y.rows));
  REQUIRE(p.d.rows == (p.x_transposed ? p.x.columns : p.x.rows));
  REQUIRE(p.d.columns == (p.y_transposed ? p.y.rows : p.y.columns));
  for (std::int64_t row = 0; row < p.d.rows; ++row)
    for (std::int64_t column = 0; column < p.d.columns; ++column) {
      double sum = product.bias ? static_cast<double>(static_cast<float>(bias.at(static_cast<std::size_t>(row)))) : 0.0;
      for (std::int64_t l = 0; l < inner; ++l)
        sum += element(p.x, x, p.x_transposed, row, l) * element(p.y, y, p.y_transposed, l, column);
      const auto place = static_cast<std::size_t>(row + column * p.d.rows);
      if (epilogue == Epilogue::gelu) {
        u.at(place) = C(static_cast<float>(sum));
        sum *= 0.5 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (sum + 0.044715 * sum * sum * sum)));
      }
      if (epilogue == Epilogue::gelu_gradient) {
        float slope = 0;
        device::kernels::Gelu::derivative(static_cast<float>(u.at(place)), slope);
        sum *= static_cast<double>(slope);
      }
      C& out = d.at(place);
      out = C(static_cast<float>(sum + (product.accumulate ? static_cast<double>(static_cast<float>(out)) : 0.0)));
    }
}

template <class T, class C>
void compare(const Product& product, std::uint64_t seed) {
  CAPTURE(to_string(product));
  CAPTURE(product.accumulate);
  CAPTURE(product.bias);
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto a = random_tensor<T>(random, product.m * product.k);
  const auto b = random_tensor<T>(random, product.k * product.n);
  const auto bias = random_tensor<T>(random, product.n);
  auto expected = random_tensor<C>(random, product.m * product.n);
  auto got = expected;
  TestHost host(1);
  host->gemm(product.kind, product.m, product.n, product.k, view(a), view(b), view(expected), product.accumulate,
             product.bias ? view(bias) : View<const T>{});
  std::vector<C> unused;
  interpret(product, Epilogue::none, b, a, bias, unused, got);
  CHECK(error_of(got, doubles(expected)) < tolerance<C>);
}

// The products with activations of an MLP.
template <class T>
void compare_activated(const Product& shape, std::uint64_t seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto a = random_tensor<T>(random, shape.m * shape.k);
  const auto b = random_tensor<T>(random, shape.n * shape.k);
  const auto bias = random_tensor<T>(random, shape.n);
  const auto like_c = [&] { return std::vector<T>(static_cast<std::size_t>(shape.m * shape.n)); };
  TestHost host(1);
  auto expected_u = like_c();
  auto expected = like_c();
  auto u = like_c();
  auto got = like_c();
  host->gemm_activation(ActivationKind::gelu, shape.m, shape.n, shape.k, view(a), view(b), view(bias), view(expected_u),
                        view(expected));
  Product product = shape;
  product.kind = op::Kind::gemm_nt;
  product.bias = true;
  interpret(product, Epilogue::gelu, b, a, bias, u, got);
  CHECK(error_of(u, doubles(expected_u)) < tolerance<T>);
  CHECK(error_of(got, doubles(expected)) < 2 * tolerance<T>);

  auto dg = like_c();
  host->gemm_activation_backward(ActivationKind::gelu, shape.m, shape.n, shape.k, view(a), view(b), view(expected_u),
                                 view(dg), view(expected));
  product.kind = op::Kind::gemm_nn;
  product.bias = false;
  interpret(product, Epilogue::gelu_gradient, b, a, bias, expected_u, got);
  CHECK(error_of(got, doubles(expected)) < 2 * tolerance<T>);
}

TEST_CASE("a description with an epilogue computes the product and its activation, or the gradient") {
  Product p{.m = 7, .n = 16, .k = 11};
  compare_activated<float>(p, 5);
  p.operands = p.result = Precision::bf16;
  if (device::Host::supports(Precision::bf16)) compare_activated<bfloat16>(p, 6);
}

TEST_CASE("products for which no epilogue is asked") {
  const Product good{.operands = Precision::bf16, .result = Precision::bf16, .bias = true, .m = 3, .n = 24, .k = 5};
  CHECK(cuda::takes_epilogue(good, 0x1000));
  CHECK(cuda::takes_epilogue(good, 0x1010));
  CHECK(!cuda::takes_epilogue(good, 0x1008));
  const auto with = [&](auto change) {
    Product p = good;
    change(p);
    return cuda::takes_epilogue(p, 0x1000);
  };
  CHECK(with([](Product& p) { p.bias = false; }));
  CHECK(!with([](Product& p) { p.n = 20; }));
  CHECK(!with([](Product& p) { p.operands = p.result = Precision::fp32; }));
  CHECK(!with([](Product& p) { p.result = Precision::fp32; }));
  CHECK(!with([](Product& p) { p.accumulate = true; }));
  CHECK(!with([](Product& p) { p.k = 0; }));
  CHECK(!with([](Product& p) { p.m = 0; }));
}

TEST_CASE("a column-major description computes the row-major product") {
  for (const op::Kind kind : op::gemms)
    for (const auto& [accumulate, bias] : {std::pair{false, false}, {true, false}, {false, true}}) {
      Product p{.kind = kind, .accumulate = accumulate, .bias = bias, .m = 7, .n = 5, .k = 11};
      compare<float, float>(p, 1);
      p.operands = Precision::bf16;
      if (device::Host::supports(Precision::bf16)) compare<bfloat16, float>(p, 2);
      p.result = Precision::bf16;
      if (device::Host::supports(Precision::bf16)) compare<bfloat16, bfloat16>(p, 3);
      compare<float, float>({.kind = kind, .accumulate = accumulate, .bias = bias, .m = 1, .n = 9, .k = 1}, 4);
    }
}

TEST_CASE("descriptions carry the formats of operands and result") {
  const auto p = cuda::column_major({.operands = Precision::bf16, .result = Precision::fp32, .m = 2, .n = 3, .k = 4});
  CHECK(p.x.precision == Precision::bf16);
  CHECK(p.y.precision == Precision::bf16);
  CHECK(p.d.precision == Precision::fp32);
}

TEST_CASE("8-bit products are asked for along the sum") {
  const auto p = cuda::column_major({.operands = Precision::fp8, .result = Precision::bf16, .m = 32, .n = 48, .k = 16});
  CHECK(p.x_transposed);
  CHECK_FALSE(p.y_transposed);
  CHECK(p.x == cuda::ColumnMajorMatrix{16, 48, Precision::fp8});
  CHECK(p.y == cuda::ColumnMajorMatrix{16, 32, Precision::fp8});
  CHECK(p.d == cuda::ColumnMajorMatrix{48, 32, Precision::bf16});
}

}  // namespace
