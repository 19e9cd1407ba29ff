// The lengths of documents: read from text, padded, cut into batches, drawn at random.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/flexsp/problem.hpp>

namespace galvatron::flexsp {

/// Tokens of documents, one number a line. Errors (usage): a line that is no number of [1, longest_document], no lines.
/// @param source  opens the messages: a file's name
inline Result<std::vector<std::int64_t>> lengths_from_text(std::string_view text, std::string_view source) {
  std::vector<std::int64_t> out;
  std::int64_t line = 0;
  while (!text.empty()) {
    ++line;
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view number = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (number.ends_with('\r')) number.remove_suffix(1);
    std::int64_t tokens = 0;
    const auto [rest, code] = std::from_chars(number.data(), number.data() + number.size(), tokens);
    const bool is_number = code != std::errc::invalid_argument && rest == number.data() + number.size();
    if (!is_number || code == std::errc::result_out_of_range || tokens < 1 || tokens > longest_document)
      return usage_error(text_of(
          source, ": line ", line, ": ",
          number.empty() ? std::string("nothing") : "\"" + galvatron::detail::one_line(number, 40) + "\"",
          " is no length of a document; write a whole number of 1 to ", longest_document, " tokens on each line"));
    out.push_back(tokens);
  }
  if (out.empty())
    return usage_error(text_of(source, ": it is empty; write the tokens of each document, one number a line"));
  return out;
}

/// Lengths rounded up to a multiple, without those beyond `limit` after that, in their order.
inline std::vector<std::int64_t> padded(std::span<const std::int64_t> lengths, std::int64_t multiple,
                                        std::int64_t limit) {
  std::vector<std::int64_t> out;
  for (const std::int64_t tokens : lengths)
    if (const std::int64_t whole = (tokens + multiple - 1) / multiple * multiple; whole <= limit) out.push_back(whole);
  return out;
}

/// As FlexSP's data loader has them: multiples of 128, those above limit - 128 dropped.
inline std::vector<std::int64_t> released_lengths(std::span<const std::int64_t> lengths, std::int64_t limit) {
  return padded(lengths, 128, limit - 128);
}

/// A distribution of lengths with a long tail: exp(N(5.95, 1.258)), at most 8192, and with some probability
/// 8192 u^(-1 / exponent) instead. Fitted to the lengths of Wikipedia's documents, and for other corpora to the times
/// that FlexSP's paper gives for them.
struct TailedLengths {
  double tail = 0;      ///< probability
  double exponent = 1;  ///< of the tail

  /// @param random  a generator of 64 bits
  [[nodiscard]] std::int64_t draw(std::mt19937_64& random) const {
    const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
    constexpr double border = 8192;
    if (uniform() < tail) return static_cast<std::int64_t>(std::min(border * std::pow(uniform(), -1 / exponent), 1e9));
    constexpr double two_pi = 6.283185307179586;
    const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(two_pi * uniform());
    return static_cast<std::int64_t>(std::max(1.0, std::min(std::exp(5.95 + 1.258 * normal), border)));
  }
};
inline constexpr TailedLengths github_lengths{.tail = 0.11, .exponent = 1.3};
inline constexpr TailedLengths common_crawl_lengths{.tail = 0.115, .exponent = 1.5};

}  // namespace galvatron::flexsp
