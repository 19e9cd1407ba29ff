// Sizes, durations and counts as people write and read them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron {

namespace detail {
__extension__ typedef unsigned __int128 WideUnsigned;
}  // namespace detail

/// `16GiB`, `36GB`, `512MiB`, `1.5GiB`, or plain bytes (`1048576`, `10B`). Binary (KiB, MiB, GiB, TiB, PiB) and decimal
/// (kB, MB, GB, TB, PB) units in any case, an optional space before them; a fraction of a byte is dropped. Errors
/// (usage): no number, a sign, an unknown unit, more than 2^63 - 1 bytes.
inline Result<Bytes> parse_bytes(std::string_view text) {
  const auto refuse = [text](const std::string& why) {
    return usage_error("bad size \"" + std::string(text.substr(0, 40)) + "\": " + why +
                       "; write a size as 16GiB, 36GB, 512MiB or a number of bytes");
  };
  if (!text.empty() && text.front() == '-') return refuse("it is negative");
  std::size_t at = 0;
  const auto is_digit = [&] { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
  detail::WideUnsigned digits = 0;  // the number without its point
  detail::WideUnsigned scale = 1;   // ten to the number of digits after the point
  constexpr auto limit = static_cast<detail::WideUnsigned>(std::numeric_limits<std::int64_t>::max());
  bool any = false;
  for (; is_digit(); ++at, any = true) {
    digits = digits * 10 + static_cast<unsigned>(text[at] - '0');
    if (digits > limit) return refuse("it is larger than 2^63 - 1 bytes");
  }
  bool fraction = false;
  if (any && at < text.size() && text[at] == '.') {
    ++at;
    for (; is_digit(); ++at, fraction = true)
      if (digits < limit && scale < 1'000'000'000'000'000'000) {  // what follows is less than a byte
        digits = digits * 10 + static_cast<unsigned>(text[at] - '0');
        scale *= 10;
      }
    if (!fraction) return refuse("digits must follow the point");
  }
  if (!any) return refuse("it does not begin with a digit");
  const std::string number(text.substr(0, std::min<std::size_t>(at, 20)));
  if (at < text.size() && text[at] == ' ') ++at;

  std::string unit;
  for (const char c : text.substr(at)) unit += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
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

namespace detail {
/// Three significant digits, never an exponent below 1e15.
inline std::string three_digits(double x) {
  std::array<char, 64> out{};
  const double size = std::fabs(x);
  std::snprintf(out.data(), out.size(), size < 9.995 ? "%.2f" : size < 99.95 ? "%.1f" : "%.0f", x);
  return out.data();
}
}  // namespace detail

/// `512 B`, `1.50 GiB`: binary units, three significant digits.
inline std::string format_bytes(Bytes bytes) {
  constexpr std::array<const char*, 7> units{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes.count > -1024 && bytes.count < 1024) return std::to_string(bytes.count) + " B";
  auto value = static_cast<double>(bytes.count);
  std::size_t unit = 0;
  while (std::fabs(value) >= 1023.5 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return detail::three_digits(value) + " " + units[unit];
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
  std::array<char, 64> out{};
  if (s >= 1e15) {
    std::snprintf(out.data(), out.size(), "%.3g d", s / 86400);
    return out.data();
  }
  const auto whole = static_cast<long long>(std::llround(s));
  if (whole < 3600)
    std::snprintf(out.data(), out.size(), "%lld min %02lld s", whole / 60, whole % 60);
  else if (whole < 86400)
    std::snprintf(out.data(), out.size(), "%lld h %02lld min", whole / 3600, whole % 3600 / 60);
  else
    std::snprintf(out.data(), out.size(), "%lld d %02lld h", whole / 86400, whole % 86400 / 3600);
  return out.data();
}

/// `950`, `12.3 k`, `124 M`, `6.74 G`, `1.01 T`: decimal prefixes, three significant digits.
inline std::string format_count(double count) {
  constexpr std::array<const char*, 7> prefixes{"", " k", " M", " G", " T", " P", " E"};
  if (!std::isfinite(count)) return std::isnan(count) ? "unknown" : count > 0 ? "infinite" : "-infinite";
  std::array<char, 64> out{};
  if (std::fabs(count) < 999.5) {
    std::snprintf(out.data(), out.size(), "%.3g", count);
    return out.data();
  }
  std::size_t prefix = 0;
  while (std::fabs(count) >= 999.5 && prefix + 1 < prefixes.size()) {
    count /= 1000;
    ++prefix;
  }
  if (std::fabs(count) >= 999.5) {
    std::snprintf(out.data(), out.size(), "%.3g E", count);
    return out.data();
  }
  return detail::three_digits(count) + prefixes[prefix];
}

/// `1 rank`, `2 ranks`.
inline std::string counted(std::int64_t n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

}  // namespace galvatron
