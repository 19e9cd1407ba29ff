// A matrix product, as a device asks its library for it; of 8-bit operands, their formats and where they lie while it
// works; and the same in the words of libraries whose matrices lie column by column.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/cost/product_8bit.hpp>
#include <galvatron/op/kind.hpp>

namespace galvatron::device {

/// Elements from one row of an operand or a result to the next, where it is columns of a wider matrix; 0: its rows
/// follow each other.
struct RowStrides {
  std::int64_t a = 0, b = 0, c = 0;
  friend constexpr auto operator<=>(const RowStrides&, const RowStrides&) = default;
};

/// c (m, n) = scale * a * b [+ bias (n)], or c += scale * a * b; row-major, operands as op::Kind says: what a library
/// prepares once.
struct Product {
  op::Kind kind = op::Kind::gemm_nt;     ///< of op::gemms
  Precision operands = Precision::fp32;  ///< of a, b and the bias; fp8: a and b are rounded, the bias is bfloat16
  Precision result = Precision::fp32;
  bool accumulate = false;
  bool bias = false;
  bool gradient = false;  ///< fp8 only: a is float8_e5m2, not float8_e4m3
  std::int64_t m = 0, n = 0, k = 0;
  float scale = 1;
  RowStrides strides{};
  friend constexpr auto operator<=>(const Product&, const Product&) = default;

  // Elements from row to row.
  [[nodiscard]] constexpr std::int64_t a_stride() const {
    return strides.a != 0 ? strides.a : kind == op::Kind::gemm_tn ? m : k;
  }
  [[nodiscard]] constexpr std::int64_t b_stride() const {
    return strides.b != 0 ? strides.b : kind == op::Kind::gemm_nt ? k : n;
  }
  [[nodiscard]] constexpr std::int64_t c_stride() const { return strides.c != 0 ? strides.c : n; }
};

/// c of type C from operands of type T.
template <class T, class C>
constexpr Product product_of(op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate = false,
                             bool bias = false) {
  return {.kind = kind,
          .operands = precision_of<T>,
          .result = precision_of<C>,
          .accumulate = accumulate,
          .bias = bias,
          .m = m,
          .n = n,
          .k = k};
}

/// Throws an internal Failure for a kind that is no matrix product.
inline void check_gemm(op::Kind kind) {
  if (!op::is_gemm(kind))
    throw Failure(
        ErrorKind::internal,
        std::string("a device multiplies matrices as gemm_nt, gemm_nn or gemm_tn, not as ") + op::name_of(kind));
}

/// What a library does with the elements of a product on their way to c, beside a matrix u like c.
enum class Epilogue : std::uint8_t {
  none,
  gelu,           ///< u = a * b [+ bias], c = gelu(u); of what u was before its rounding, or of u
  gelu_gradient,  ///< c = a * b * gelu'(u)
};

inline std::string to_string(const Product& p) {
  return std::string("matrix product ") + op::layout_of(p.kind) + " " + std::to_string(p.m) + " x " +
         std::to_string(p.n) + " x " + std::to_string(p.k) + " of " + name_of(p.operands);
}

/// Operand a of a backward product is the gradient of a layer's output, which needs range more than precision.
/// Activations and weights are float8_e4m3.
constexpr bool has_gradient(op::Kind kind) { return kind != op::Kind::gemm_nt; }

/// Calls the function template f with the format of operand a.
void with_format_of_a(op::Kind kind, const auto& f) {
  if (has_gradient(kind))
    f.template operator()<float8_e5m2>();
  else
    f.template operator()<float8_e4m3>();
}

/// The parts of the cost::buffer_bytes_8bit(m, n, k) bytes that a product gets.
struct Buffers8bit {
  View<std::uint8_t> a;                    ///< (m, k)
  View<std::uint8_t> b;                    ///< (n, k)
  View<float> unscale;                     ///< what a is multiplied with after rounding, and in [of_b] what b is
  static constexpr std::int64_t of_b = 4;  ///< cuBLASLt takes scales on 16-byte boundaries

  Buffers8bit(View<std::byte> buffer, std::int64_t m, std::int64_t n, std::int64_t k)
      : a(reinterpret_cast<std::uint8_t*>(buffer.data), m * k),
        b(a.data + aligned_bytes(m * k), n * k),
        unscale(reinterpret_cast<float*>(buffer.data + aligned_bytes(m * k) + aligned_bytes(n * k)), of_b + 1) {}
};

}  // namespace galvatron::device

namespace galvatron::device::cuda {

/// Element (row, column) lies at row + column * stride.
struct ColumnMajorMatrix {
  std::int64_t rows = 0, columns = 0;
  Precision precision = Precision::fp32;
  std::int64_t stride = rows;
  friend constexpr bool operator==(const ColumnMajorMatrix&, const ColumnMajorMatrix&) = default;
};

/// The matrices of a product d = op(x) op(y), where op transposes what it says; its bias has a value for each row of d.
struct ColumnMajorProduct {
  ColumnMajorMatrix x{};  ///< the memory of Product's b
  ColumnMajorMatrix y{};  ///< the memory of Product's a
  ColumnMajorMatrix d{};  ///< the memory of Product's c, (n, m)
  bool x_transposed = false;
  bool y_transposed = false;
};

/// Rows are columns of the transposed matrix, so it is c^T = op(b)^T op(a)^T that the library is asked for:
///
///     nt   c^T = b   a^T    b (n, k) row by row is (k, n) column by column, and is transposed
///     nn   c^T = b^T a^T    b (k, n) is (n, k), a (m, k) is (k, m): both as they are
///     tn   c^T = b^T a      a (k, m) is (m, k), and is transposed
constexpr ColumnMajorProduct column_major(const Product& p) {
  ColumnMajorProduct out{.x = {p.n, p.k, p.operands},
                         .y = {p.k, p.m, p.operands},
                         .d = {p.n, p.m, p.result},
                         .x_transposed = p.kind == op::Kind::gemm_nt,
                         .y_transposed = p.kind == op::Kind::gemm_tn};
  if (out.x_transposed) std::swap(out.x.rows, out.x.columns);
  if (out.y_transposed) std::swap(out.y.rows, out.y.columns);
  out.x.stride = p.b_stride();
  out.y.stride = p.a_stride();
  out.d.stride = p.c_stride();
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
