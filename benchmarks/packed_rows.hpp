// Documents of a file, packed for attention.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::bench {

/// Cumulative lengths, from 0, of the first `documents` documents of at most `longest` tokens, the longest first as
/// training packs them. The file has a length a line. Throws Failure where there are not so many.
inline std::vector<std::int32_t> packed_rows(const std::string& path, std::int64_t documents, std::int64_t longest) {
  std::vector<std::int32_t> lengths;
  std::ifstream file(path);
  for (std::int64_t length = 0; std::ssize(lengths) < documents && file >> length;)
    if (length >= 1 && length <= longest) lengths.push_back(static_cast<std::int32_t>(length));
  if (std::ssize(lengths) < documents)
    throw Failure(ErrorKind::usage, path + ": " + std::to_string(lengths.size()) + " documents of 1 to " +
                                        std::to_string(longest) + " tokens, not " + std::to_string(documents));
  std::ranges::sort(lengths, std::ranges::greater());
  std::vector<std::int32_t> rows{0};
  for (const std::int32_t length : lengths) rows.push_back(rows.back() + length);
  return rows;
}

/// Causal, with queries, keys and values in the rows of one tensor.
inline device::AttentionShape fused_attention(std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                                              std::int64_t kv_heads, std::int64_t head_dim) {
  const std::int64_t stride = (heads + 2 * kv_heads) * head_dim;
  return {.batch = batch,
          .queries = tokens,
          .keys = tokens,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .causal = true,
          .q_stride = stride,
          .kv_stride = stride,
          .out_stride = heads * head_dim};
}

}  // namespace galvatron::bench
