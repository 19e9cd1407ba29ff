// Small symmetric systems, as the normal equations of a least-squares problem with a few unknowns.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>

namespace galvatron::detail {

template <std::size_t N>
using SymmetricMatrix = std::array<std::array<double, N>, N>;

/// The factor L of a positive definite matrix A = L L^T.
template <std::size_t N>
class Cholesky {
 public:
  explicit Cholesky(const SymmetricMatrix<N>& a) {
    for (std::size_t i = 0; i < N; ++i)
      for (std::size_t j = 0; j <= i; ++j) {
        double sum = a[i][j];
        for (std::size_t k = 0; k < j; ++k) sum -= lower_[i][k] * lower_[j][k];
        lower_[i][j] = i == j ? std::sqrt(sum) : sum / lower_[j][j];
      }
  }

  /// x of A x = b.
  [[nodiscard]] std::array<double, N> solve(std::array<double, N> b) const {
    for (std::size_t i = 0; i < N; ++i) {
      for (std::size_t k = 0; k < i; ++k) b[i] -= lower_[i][k] * b[k];
      b[i] /= lower_[i][i];
    }
    for (std::size_t i = N; i-- > 0;) {
      for (std::size_t k = i + 1; k < N; ++k) b[i] -= lower_[k][i] * b[k];
      b[i] /= lower_[i][i];
    }
    return b;
  }
  [[nodiscard]] SymmetricMatrix<N> inverse() const {
    SymmetricMatrix<N> out{};
    for (std::size_t i = 0; i < N; ++i) {
      std::array<double, N> unit{};
      unit[i] = 1;
      out[i] = solve(unit);
    }
    return out;
  }
  [[nodiscard]] double log_determinant() const {
    double sum = 0;
    for (std::size_t i = 0; i < N; ++i) sum += 2 * std::log(lower_[i][i]);
    return sum;
  }

 private:
  SymmetricMatrix<N> lower_{};
};

}  // namespace galvatron::detail
