// LshOptions: the numbers of compressed dispatch (ExpertDispatch<lsh>), which are those of a plan.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace galvatron {

inline constexpr int most_hashes = 64;
inline constexpr int most_hash_width = 4096;

/// What of a token's distance from the mean is added to what an expert makes of the mean.
enum class ResidualKind : std::uint8_t {
  on,      ///< all of it
  off,     ///< nothing
  scaled,  ///< a share that each expert learns: a parameter of the model (RouterSpec::residual_gain)
};
inline constexpr std::array residual_kinds{ResidualKind::on, ResidualKind::off, ResidualKind::scaled};
constexpr const char* name_of(ResidualKind kind) {
  return std::array{"on", "off", "scaled"}[static_cast<std::size_t>(kind)];
}

/// Tokens of an expert that hash alike are sent as their mean (Nie et al., "LSH-MoE", NeurIPS 2024); see
/// runtime/lsh.hpp.
struct LshOptions {
  int hashes = 6;  ///< H
  int width = 4;   ///< p: a row has one of (2 p)^H tuples of codes
  ResidualKind residual = ResidualKind::on;
  double rate = 0.5;       ///< stated: buckets over choices, for which time is predicted
  std::uint64_t seed = 1;  ///< of the rotations, with the number of the layer
  double most_rate = 1;    ///< a micro-batch whose rate in a group of ranks is greater goes uncompressed
  friend constexpr bool operator==(const LshOptions&, const LshOptions&) = default;

  /// Tokens whose rotated rows are there at a time.
  static constexpr std::int64_t most_rotated = 1024;
  /// Of the rotated rows.
  [[nodiscard]] constexpr std::int64_t columns() const { return std::int64_t{hashes} * width; }
  /// Elements of a layer's rotations.
  [[nodiscard]] constexpr std::int64_t rotation_elements(std::int64_t hidden) const { return columns() * hidden; }
  /// Buckets of so many choices, at the stated rate.
  [[nodiscard]] constexpr std::int64_t buckets(std::int64_t choices) const {
    const double exact = static_cast<double>(choices) * rate;
    const auto whole = static_cast<std::int64_t>(exact);
    const std::int64_t up = static_cast<double>(whole) < exact ? whole + 1 : whole;
    return up < choices ? up : choices;
  }
  /// Places of the table in which the buckets of so many choices are searched.
  [[nodiscard]] static constexpr std::int64_t table_places(std::int64_t choices) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(2 * choices)));
  }
};

}  // namespace galvatron
