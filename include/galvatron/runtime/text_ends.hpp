// Where texts end, as the projection of a text tower reads it.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/core/view.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::runtime {

/// The first token of a sample with the id `end` (LayerSpec::end_token), or the first of all.
/// @param tokens  (S * samples): token s of sample i is s * samples + i
inline std::int64_t end_of_text(std::int64_t end, View<const std::int32_t> tokens, std::int64_t samples,
                                std::int64_t sample) {
  const std::int64_t sequence = tokens.count / samples;
  if (end == largest_token)
    for (std::int64_t s = 0; s < sequence; ++s) end = std::max<std::int64_t>(end, tokens[s * samples + sample]);
  for (std::int64_t s = 0; s < sequence; ++s)
    if (tokens[s * samples + sample] == end) return s;
  return 0;
}

/// Of each sample the row of this rank with which its text ends, then of each row the sample that it ends; -1: none.
/// @param tokens  of whole samples, (S * samples)
/// @param first   token of a sample that is this rank's first
/// @param out     (samples + rows of this rank)
inline void write_text_ends(std::int64_t end, View<const std::int32_t> tokens, std::int64_t samples, std::int64_t first,
                            View<std::int32_t> out) {
  std::fill_n(out.data, out.count, -1);
  const std::int64_t rows = out.count - samples;
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t row = (end_of_text(end, tokens, samples, i) - first) * samples + i;
    if (row < 0 || row >= rows) continue;
    out[i] = static_cast<std::int32_t>(row);
    out[samples + row] = static_cast<std::int32_t>(i);
  }
}

}  // namespace galvatron::runtime
