// What libraries are asked for in place of a row-major matrix product: interpreted naively, it is what the host device
// computes. And the rows of biases beside it.
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/bias.hpp>
#include <galvatron/device/cuda/column_major.hpp>

#include "emulator.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;
using device::Gemm;
using device::Product;

// d = op(x) op(y) + bias + beta d, with nothing but the description's numbers.
template <class T, class C>
void interpret(const cuda::ColumnMajorProduct& p, const std::vector<T>& x, const std::vector<T>& y,
               const std::vector<T>& bias, std::vector<C>& d) {
  const auto element = [](const cuda::ColumnMajorMatrix& m, const std::vector<T>& values, bool transposed,
                          std::int64_t row, std::int64_t column) {
    if (transposed) std::swap(row, column);
    REQUIRE(row < m.rows);
    REQUIRE(column < m.columns);
    return static_cast<double>(static_cast<float>(values.at(static_cast<std::size_t>(row + column * m.leading))));
  };
  const std::int64_t inner = p.x_transposed ? p.x.rows : p.x.columns;
  REQUIRE(inner == (p.y_transposed ? p.y.columns : p.y.rows));
  REQUIRE(p.d.rows == (p.x_transposed ? p.x.columns : p.x.rows));
  REQUIRE(p.d.columns == (p.y_transposed ? p.y.rows : p.y.columns));
  for (std::int64_t row = 0; row < p.d.rows; ++row)
    for (std::int64_t column = 0; column < p.d.columns; ++column) {
      double sum = p.bias ? static_cast<double>(static_cast<float>(bias.at(static_cast<std::size_t>(row)))) : 0.0;
      for (std::int64_t l = 0; l < inner; ++l)
        sum += element(p.x, x, p.x_transposed, row, l) * element(p.y, y, p.y_transposed, l, column);
      C& out = d.at(static_cast<std::size_t>(row + column * p.d.leading));
      out = C(static_cast<float>(sum + (p.beta == 0 ? 0.0 : static_cast<double>(p.beta) * static_cast<float>(out))));
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
  host->gemm(product.layout, product.m, product.n, product.k, view(a), view(b), view(expected), product.accumulate,
             product.bias ? view(bias) : View<const T>{});
  interpret(cuda::column_major(product), b, a, bias, got);
  CHECK(error_of(got, doubles(expected)) < tolerance<C>);
}

TEST_CASE("a column-major description computes the row-major product") {
  for (const Gemm layout : {Gemm::nt, Gemm::nn, Gemm::tn})
    for (const auto& [accumulate, bias] : {std::pair{false, false}, {true, false}, {false, true}}) {
      Product p{.layout = layout, .accumulate = accumulate, .bias = bias, .m = 7, .n = 5, .k = 11};
      compare<float, float>(p, 1);
      p.operands = Precision::bf16;
      if (device::Host::supports(Precision::bf16)) compare<bfloat16, float>(p, 2);
      p.result = Precision::bf16;
      if (device::Host::supports(Precision::bf16)) compare<bfloat16, bfloat16>(p, 3);
      compare<float, float>({.layout = layout, .accumulate = accumulate, .bias = bias, .m = 1, .n = 9, .k = 1}, 4);
    }
}

TEST_CASE("descriptions carry the formats of operands and result") {
  const auto p = cuda::column_major({.operands = Precision::bf16, .result = Precision::fp32, .m = 2, .n = 3, .k = 4});
  CHECK(p.x.precision == Precision::bf16);
  CHECK(p.y.precision == Precision::bf16);
  CHECK(p.d.precision == Precision::fp32);
}

TEST_CASE("rows of a bias, and of zeros without one") {
  Emulator emulator;
  for (const std::int64_t rows : {1, 3, 700})
    for (const std::int64_t n : {1, 5, 33}) {
      std::mt19937 random(9);
      const auto bias = random_tensor<bfloat16>(random, n);
      std::vector<float> c(static_cast<std::size_t>(rows * n), NAN);
      cuda::bias_rows(emulator, rows, n, bias.data(), c.data());
      bool equal = true;
      for (std::int64_t i = 0; i < rows * n; ++i)
        equal = equal && c[static_cast<std::size_t>(i)] == static_cast<float>(bias[static_cast<std::size_t>(i % n)]);
      CHECK(equal);
      cuda::bias_rows(emulator, rows, n, static_cast<const bfloat16*>(nullptr), c.data());
      CHECK(c == std::vector<float>(c.size(), 0.0F));
    }
}

}  // namespace
