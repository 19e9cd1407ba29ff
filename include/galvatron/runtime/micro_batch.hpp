// The tokens that a layer computes on at once, and in which rows they lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/core/document.hpp>

namespace galvatron::runtime {

/// One rank's samples of a micro-batch. Of equal sequences token t of sample i is row t * samples + i; a packed
/// sequence is one sample, in whose rows its documents follow each other.
struct MicroBatch {
  std::int64_t samples = 0;               ///< b
  std::int64_t sequence = 0;              ///< S: tokens of a sample; of a layer, its own
  std::span<const Document> documents{};  ///< empty: equal sequences
  std::int64_t first = 0;                 ///< position of the first token, of equal sequences

  /// The rows before each document, and all rows: (documents + 1); none for equal sequences.
  [[nodiscard]] std::vector<std::int32_t> cumulative_rows() const {
    std::vector<std::int32_t> out;
    if (documents.empty()) return out;
    out.reserve(documents.size() + 1);
    for (const Document& document : documents) out.push_back(static_cast<std::int32_t>(document.first));
    out.push_back(static_cast<std::int32_t>(sequence));
    return out;
  }

  /// Calls f(first row, rows, position of the first row) for the runs of rows whose positions follow each other, of the
  /// `rows` rows from token `begin` of every sample on: one for each document, else one. Rows count from the first.
  template <class F>
  void for_each_run(std::int64_t begin, std::int64_t rows, const F& f) const {
    if (documents.empty()) return f(std::int64_t{0}, rows, first + begin);
    for (const Document& document : documents) {
      const std::int64_t from = std::max(document.first, begin);
      const std::int64_t to = std::min(document.first + document.rows, begin + rows);
      if (from < to) f(from - begin, to - from, from - document.first);
    }
  }
};

}  // namespace galvatron::runtime
