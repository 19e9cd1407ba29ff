// The published two steps before the solver: which documents train together, and which count as equally long.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace galvatron::flexsp {

/// A cut of documents in descending order into consecutive parts.
struct Blast {
  std::int64_t largest_tokens = 0;  ///< of a part
  std::vector<std::size_t> ends;    ///< of each part, past its last document
};

/// Cuts documents into `parts` with the smallest largest sum of tokens (FlexSP's "blaster"):
/// DP[k][i] = min over j of max(DP[k - 1][j], tokens of documents j + 1 to i). Of equally good cuts, the parts begin
/// earliest: from the last part on, j is the smallest. O(parts n log n), as the first term rises with j and the second
/// falls.
/// @param lengths  descending; at least as many as parts
inline Blast blast(std::span<const std::int64_t> lengths, int parts) {
  const std::size_t n = lengths.size();
  std::vector<std::int64_t> sums(n + 1);
  for (std::size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + lengths[i];
  // best[k][i]: the first i documents in k + 1 parts, each of at least one.
  constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  std::vector<std::vector<std::int64_t>> best(static_cast<std::size_t>(parts), std::vector<std::int64_t>(n + 1, none));
  for (std::size_t i = 1; i <= n; ++i) best[0][i] = sums[i];
  const auto largest = [&](std::size_t k, std::size_t j, std::size_t i) {
    return std::max(best[k - 1][j], sums[i] - sums[j]);
  };
  // The smallest j of the best: behind the first j where the earlier parts are the larger, nothing is better.
  const auto cut = [&](std::size_t k, std::size_t i) {
    std::size_t low = k;
    std::size_t high = i - 1;
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      if (best[k - 1][middle] >= sums[i] - sums[middle])
        high = middle;
      else
        low = middle + 1;
    }
    if (low > k && largest(k, low - 1, i) <= largest(k, low, i)) --low;
    // Equal values further left: only where the earlier parts decide, which stay as large.
    const std::int64_t value = largest(k, low, i);
    std::size_t first = k;
    std::size_t last = low;
    while (first < last) {  // the last part's tokens fall with j: the first j where they are not above the value
      const std::size_t middle = first + (last - first) / 2;
      if (sums[i] - sums[middle] <= value)
        last = middle;
      else
        first = middle + 1;
    }
    return first;
  };
  for (std::size_t k = 1; k < best.size(); ++k)
    for (std::size_t i = k + 1; i <= n; ++i) best[k][i] = largest(k, cut(k, i), i);
  Blast out{.largest_tokens = best.back()[n], .ends = std::vector<std::size_t>(best.size())};
  std::size_t end = n;
  for (std::size_t k = best.size(); k-- > 0;) {
    out.ends[k] = end;
    if (k > 0) end = cut(k, end);
  }
  return out;
}

/// Documents that count as if they were as long as their longest.
struct Bucket {
  std::int64_t longest = 0;
  std::int64_t count = 0;
};

/// Puts documents into at most `buckets` with the least padding (FlexSP, section 4.3):
/// err[q][i] = min over j of err[q - 1][j] + sum over documents j + 1 to i of (longest - tokens). O(buckets u^2) for u
/// different lengths.
inline std::vector<Bucket> buckets_of(std::span<const std::int64_t> lengths, int buckets) {
  std::vector<std::int64_t> sorted(lengths.begin(), lengths.end());
  std::ranges::sort(sorted);
  std::vector<Bucket> distinct;
  for (const std::int64_t tokens : sorted) {
    if (distinct.empty() || distinct.back().longest != tokens) distinct.push_back({tokens, 0});
    ++distinct.back().count;
  }
  const std::size_t u = distinct.size();
  std::vector<std::int64_t> counts(u + 1);
  for (std::size_t i = 0; i < u; ++i) counts[i + 1] = counts[i] + distinct[i].count;
  // padded[q][i]: tokens that the first i lengths count in q + 1 buckets. Padding is that less the tokens, so the same
  // cut is best.
  const std::size_t most = std::min(static_cast<std::size_t>(buckets), u);
  std::vector<std::vector<std::int64_t>> padded(most, std::vector<std::int64_t>(u + 1));
  std::vector<std::vector<std::size_t>> from(most, std::vector<std::size_t>(u + 1));
  for (std::size_t i = 1; i <= u; ++i) padded[0][i] = counts[i] * distinct[i - 1].longest;
  for (std::size_t q = 1; q < most; ++q)
    for (std::size_t i = 1; i <= u; ++i) {
      padded[q][i] = padded[q - 1][i];
      from[q][i] = from[q - 1][i];
      for (std::size_t j = 1; j < i; ++j) {
        const std::int64_t value = padded[q - 1][j] + (counts[i] - counts[j]) * distinct[i - 1].longest;
        if (value < padded[q][i]) {
          padded[q][i] = value;
          from[q][i] = j;
        }
      }
    }
  std::vector<Bucket> out;
  std::size_t end = u;
  for (std::size_t q = most; end > 0;) {
    --q;
    while (q > 0 && padded[q - 1][end] == padded[q][end]) --q;
    const std::size_t begin = q == 0 ? 0 : from[q][end];
    out.push_back({distinct[end - 1].longest, counts[end] - counts[begin]});
    end = begin;
  }
  std::ranges::reverse(out);
  return out;
}

/// Tokens that buckets add to the documents.
inline std::int64_t padding_of(std::span<const std::int64_t> lengths, std::span<const Bucket> buckets) {
  std::int64_t out = 0;
  for (const Bucket& bucket : buckets) out += bucket.longest * bucket.count;
  for (const std::int64_t tokens : lengths) out -= tokens;
  return out;
}

}  // namespace galvatron::flexsp
