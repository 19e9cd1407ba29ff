// A matrix product, as a device asks its library for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/op/kind.hpp>

namespace galvatron::device {

/// c (m, n) = a * b [+ bias (n)], or c += a * b; row-major, operands as op::Kind says: what a library prepares once.
struct Product {
  op::Kind kind = op::Kind::gemm_nt;     ///< of op::gemms
  Precision operands = Precision::fp32;  ///< of a, b and the bias; fp8: a and b are rounded, the bias is bfloat16
  Precision result = Precision::fp32;
  bool accumulate = false;
  bool bias = false;
  bool gradient = false;  ///< fp8 only: a is float8_e5m2, not float8_e4m3
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  friend constexpr bool operator==(const Product&, const Product&) = default;

  struct Hash {
    std::size_t operator()(const Product& p) const {
      auto h = std::uint64_t{op::index_in(op::gemms, p.kind)} | static_cast<std::uint64_t>(p.operands) << 2 |
               static_cast<std::uint64_t>(p.result) << 4 | static_cast<std::uint64_t>(p.accumulate) << 6 |
               static_cast<std::uint64_t>(p.bias) << 7 | static_cast<std::uint64_t>(p.gradient) << 8;
      for (const std::int64_t extent : {p.m, p.n, p.k})
        h = (h ^ static_cast<std::uint64_t>(extent)) * 0x9e3779b97f4a7c15ULL, h ^= h >> 29;
      return static_cast<std::size_t>(h);
    }
  };
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

}  // namespace galvatron::device
