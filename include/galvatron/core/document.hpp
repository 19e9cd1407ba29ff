// Documents in packed sequences: tokens of several of them follow each other in one sequence.
#pragma once

#include <cstdint>

namespace galvatron {

/// A run of tokens of a packed sequence that attend to each other and to no others; its positions begin with 0.
struct Document {
  std::int64_t first = 0;  ///< token of the sequence
  std::int64_t tokens = 0;
};

}  // namespace galvatron
