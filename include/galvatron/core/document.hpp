// Documents in packed sequences: rows of several of them follow each other in one sequence.
#pragma once

#include <cstdint>

namespace galvatron {

/// Rows of a packed sequence that attend to each other and to no others; their positions begin with 0.
struct Document {
  static constexpr std::int64_t padding = -1;

  std::int64_t first = 0;  ///< row of the sequence
  std::int64_t rows = 0;
  std::int64_t sample = padding;  ///< number in the batch; or padding, which stands behind all documents

  friend bool operator==(const Document&, const Document&) = default;
};

}  // namespace galvatron
