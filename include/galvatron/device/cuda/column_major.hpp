// A matrix product in the words of libraries whose matrices lie column by column.
#pragma once

#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/device/product.hpp>

namespace galvatron::device::cuda {

/// Element (row, column) lies at row + column * leading.
struct ColumnMajorMatrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t leading = 0;
  Precision precision = Precision::fp32;
  friend constexpr bool operator==(const ColumnMajorMatrix&, const ColumnMajorMatrix&) = default;
};

/// d = op(x) op(y) [+ bias, one value a row], or d += op(x) op(y), where op transposes what it says; or what the
/// epilogue makes of it with a matrix u like d.
struct ColumnMajorProduct {
  ColumnMajorMatrix x{};  ///< the memory of Product's b
  ColumnMajorMatrix y{};  ///< the memory of Product's a
  ColumnMajorMatrix d{};  ///< the memory of Product's c, (n, m)
  bool x_transposed = false;
  bool y_transposed = false;
  bool bias = false;      ///< (n), of the operands' precision; with fp8 bfloat16
  bool gradient = false;  ///< fp8 only: y is float8_e5m2, x float8_e4m3
  float beta = 0;         ///< 1: d accumulates
  Epilogue epilogue = Epilogue::none;
  friend constexpr bool operator==(const ColumnMajorProduct&, const ColumnMajorProduct&) = default;
};

/// Rows are columns of the transposed matrix, so it is c^T = op(b)^T op(a)^T that the library is asked for:
///
///     nt   c^T = b   a^T    b (n, k) row by row is (k, n) column by column, and is transposed
///     nn   c^T = b^T a^T    b (k, n) is (n, k), a (m, k) is (k, m): both as they are
///     tn   c^T = b^T a      a (k, m) is (m, k), and is transposed
constexpr ColumnMajorProduct column_major(const Product& p, Epilogue epilogue = Epilogue::none) {
  ColumnMajorProduct out{.x = {.rows = p.n, .columns = p.k, .leading = p.n, .precision = p.operands},
                         .y = {.rows = p.k, .columns = p.m, .leading = p.k, .precision = p.operands},
                         .d = {.rows = p.n, .columns = p.m, .leading = p.n, .precision = p.result},
                         .x_transposed = p.kind == op::Kind::gemm_nt,
                         .y_transposed = p.kind == op::Kind::gemm_tn,
                         .bias = p.bias,
                         .gradient = p.gradient,
                         .beta = p.accumulate ? 1.0F : 0.0F,
                         .epilogue = epilogue};
  if (out.x_transposed) out.x = {.rows = p.k, .columns = p.n, .leading = p.k, .precision = p.operands};
  if (out.y_transposed) out.y = {.rows = p.m, .columns = p.k, .leading = p.m, .precision = p.operands};
  return out;
}

/// True when cuBLASLt may be asked for the product with an epilogue on u, which lies at that address. Columns of u
/// begin at multiples of 8 elements (CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) and of 16 bytes. Its GELU is the tanh
/// approximation as kernels::Gelu has it, with a tanh that is good enough for bfloat16: float goes to our own kernels.
constexpr bool takes_epilogue(const Product& p, std::uintptr_t u) {
  return p.operands == Precision::bf16 && p.result == Precision::bf16 && !p.accumulate && p.m > 0 && p.n > 0 &&
         p.k > 0 && p.n % 8 == 0 && u % 16 == 0;
}

}  // namespace galvatron::device::cuda
