// Sizes, durations and counts as people write and read them.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/names.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron {

namespace detail {
__extension__ typedef unsigned __int128 WideUnsigned;
/// As std::printf would write it, up to 63 characters.
template <class... Values>
std::string formatted(const char* format, Values... values) {
  std::array<char, 64> out{};
  std::snprintf(out.data(), out.size(), format, values...);
  return out.data();
}
/// Three significant digits, never an exponent below 1e15.
inline std::string three_digits(double x) {
  const double size = std::fabs(x);
  return formatted(size < 9.995 ? "%.2f" : size < 99.95 ? "%.1f" : "%.0f", x);
}
/// In the smallest of the units, each `base` of the one before, in which three digits do.
inline std::string in_units(double value, double base, const std::array<const char*, 7>& units) {
  std::size_t unit = 0;
  for (; std::fabs(value) >= base - 0.5 && unit + 1 < units.size(); ++unit) value /= base;
  return (std::fabs(value) >= base - 0.5 ? formatted("%.3g", value) : three_digits(value)) + units[unit];
}
/// The shortest text that reads back as the same number; infinities and NaN become 0, which JSON can say.
inline std::string shortest_text(double x) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), std::isfinite(x) ? x : 0.0).ptr;
  return {digits.data(), end};
}

/// The parts of a text between separators.
inline std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

std::vector<std::string_view> parts_of(std::string&&, char) = delete;  // the views would dangle

/// A number at the beginning of a text; nothing for another word or one above 2^63 - 1.
inline std::optional<std::int64_t> leading_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  std::int64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc{} || end == text.data() || number < 0) return std::nullopt;
  return number;
}

}  // namespace detail

/// `16GiB`, `36GB`, `512MiB`, `1.5GiB`, or plain bytes (`1048576`, `10B`). Binary (KiB, MiB, GiB, TiB, PiB) and decimal
/// (kB, MB, GB, TB, PB) units in any case, an optional space before them; a fraction of a byte is dropped. Errors
/// (usage): no number, a sign, an unknown unit, more than 2^63 - 1 bytes.
template <class = void>
Result<Bytes> parse_bytes(std::string_view text) {
  const auto refuse = [text](const std::string& why) {
    return usage_error("bad size \"" + std::string(text.substr(0, 40)) + "\": " + why +
                       "; write a size as 16GiB, 36GB, 512MiB or a number of bytes");
  };
  if (!text.empty() && text.front() == '-') return refuse("it is negative");
  constexpr std::uint64_t limit = std::numeric_limits<std::int64_t>::max();
  std::uint64_t whole = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (failure == std::errc::invalid_argument) return refuse("it does not begin with a digit");
  if (failure != std::errc{} || whole > limit) return refuse("it is larger than 2^63 - 1 bytes");
  auto at = static_cast<std::size_t>(end - text.data());
  detail::WideUnsigned digits = whole;  // the number without its point
  detail::WideUnsigned scale = 1;       // ten to the number of digits after the point
  const bool fraction = at < text.size() && text[at] == '.';
  if (fraction) {
    const std::size_t point = at++;
    for (; at < text.size() && detail::is_digit(text[at]); ++at)
      if (digits < limit && scale < 1'000'000'000'000'000'000) {  // what follows is less than a byte
        digits = digits * 10 + static_cast<unsigned>(text[at] - '0');
        scale *= 10;
      }
    if (at == point + 1) return refuse("digits must follow the point");
  }
  const std::string number(text.substr(0, std::min<std::size_t>(at, 20)));
  if (at < text.size() && text[at] == ' ') ++at;

  const std::string unit = detail::lower_case(text.substr(at));
  detail::WideUnsigned factor = 1;
  if (unit.empty() || unit == "b") {
    if (fraction) return refuse("a fraction needs a unit");
  } else {
    constexpr std::string_view letters = "kmgtp";
    const std::size_t power = letters.find(unit.front());
    const std::string_view rest = std::string_view(unit).substr(1);
    if (power != std::string_view::npos && (rest.empty() || rest == "i")) {
      const std::string letter(1, power == 0 ? 'k' : static_cast<char>(unit.front() - 'a' + 'A'));
      const std::string binary = number + (power == 0 ? "K" : letter) + "iB";
      if (rest == "i") return refuse("it lacks a B: " + binary);
      return refuse(letter + " may be the binary or the decimal unit: " + binary + " or " + number + letter + "B");
    }
    if (power == std::string_view::npos || (rest != "b" && rest != "ib"))
      return refuse("unknown unit \"" + std::string(text.substr(at).substr(0, 16)) + "\"");
    for (std::size_t i = 0; i <= power; ++i) factor *= rest == "ib" ? 1024 : 1000;
  }
  const detail::WideUnsigned count = digits * factor / scale;
  if (count > limit) return refuse("it is larger than 2^63 - 1 bytes");
  return Bytes{static_cast<std::int64_t>(count)};
}
GALVATRON_IN_PLANNER(Result<Bytes> parse_bytes<>(std::string_view))

/// `512 B`, `1.50 GiB`: binary units, three significant digits.
inline std::string format_bytes(Bytes bytes) {
  if (bytes.count > -1024 && bytes.count < 1024) return std::to_string(bytes.count) + " B";
  return detail::in_units(static_cast<double>(bytes.count), 1024,
                          {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"});
}

/// `12.3 us`, `4.56 ms`, `7.89 s`, `3 min 20 s`, `2 h 05 min`, `4 d 03 h`.
inline std::string format_seconds(Seconds seconds) {
  const double s = seconds.value;
  if (!std::isfinite(s)) return std::isnan(s) ? "unknown" : s > 0 ? "forever" : "-forever";
  if (s < 0) return "-" + format_seconds({-s});
  if (s == 0) return "0 s";
  if (s < 999.5e-9) return detail::three_digits(s * 1e9) + " ns";
  if (s < 999.5e-6) return detail::three_digits(s * 1e6) + " us";
  if (s < 999.5e-3) return detail::three_digits(s * 1e3) + " ms";
  if (s < 99.95) return detail::three_digits(s) + " s";
  if (s >= 1e15) return detail::formatted("%.3g d", s / 86400);
  const auto whole = static_cast<long long>(std::llround(s));
  if (whole < 3600) return detail::formatted("%lld min %02lld s", whole / 60, whole % 60);
  if (whole < 86400) return detail::formatted("%lld h %02lld min", whole / 3600, whole % 3600 / 60);
  return detail::formatted("%lld d %02lld h", whole / 86400, whole % 86400 / 3600);
}

/// `950`, `12.3 k`, `124 M`, `6.74 G`, `1.01 T`: decimal prefixes, three significant digits.
inline std::string format_count(double count) {
  if (!std::isfinite(count)) return std::isnan(count) ? "unknown" : count > 0 ? "infinite" : "-infinite";
  if (std::fabs(count) < 999.5) return detail::formatted("%.3g", count);
  return detail::in_units(count, 1000, {"", " k", " M", " G", " T", " P", " E"});
}

/// What was measured against what was predicted: "62 % slower than predicted", "3.4 % faster than predicted" (per cent
/// of the predicted time), "as predicted" when they differ by less than 0.05 %, "34 times as long as predicted" from
/// three times on. Empty unless both are known.
inline std::string against_prediction(Seconds predicted, Seconds measured) {
  if (!(predicted.value > 0) || !(measured.value > 0)) return {};
  const double ratio = measured / predicted;
  const double percent = 100 * std::fabs(ratio - 1);
  if (ratio >= 3)
    return detail::formatted(ratio < 9.95 ? "%.1f times as long as predicted" : "%.0f times as long as predicted",
                             ratio);
  if (percent < 0.05) return "as predicted";
  return detail::formatted(percent < 9.95 ? "%.1f %% %s than predicted" : "%.0f %% %s than predicted", percent,
                           ratio > 1 ? "slower" : "faster");
}

/// `1 rank`, `2 ranks`.
inline std::string counted(std::int64_t n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

}  // namespace galvatron
