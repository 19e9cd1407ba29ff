// Quantities with a unit are distinct types: bytes never add to seconds.
#pragma once

#include <compare>
#include <cstdint>
#include <ctime>

namespace galvatron {

/// A number of bytes.
struct Bytes {
  std::int64_t count = 0;

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes other) {
    count += other.count;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes other) {
    count -= other.count;
    return *this;
  }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return {a.count - b.count}; }
  friend constexpr Bytes operator*(Bytes a, std::int64_t n) { return {a.count * n}; }
  friend constexpr Bytes operator*(std::int64_t n, Bytes a) { return {a.count * n}; }
};

/// A duration in seconds.
struct Seconds {
  double value = 0;

  constexpr auto operator<=>(const Seconds&) const = default;
  constexpr Seconds& operator+=(Seconds other) {
    value += other.value;
    return *this;
  }
  friend constexpr Seconds operator+(Seconds a, Seconds b) { return {a.value + b.value}; }
  friend constexpr Seconds operator-(Seconds a, Seconds b) { return {a.value - b.value}; }
  friend constexpr Seconds operator*(Seconds a, double n) { return {a.value * n}; }
  friend constexpr Seconds operator*(double n, Seconds a) { return {a.value * n}; }
  friend constexpr double operator/(Seconds a, Seconds b) { return a.value / b.value; }
};

/// A number of floating-point operations; a multiply-add counts as two.
struct Flops {
  double count = 0;

  constexpr auto operator<=>(const Flops&) const = default;
  constexpr Flops& operator+=(Flops other) {
    count += other.count;
    return *this;
  }
  friend constexpr Flops operator+(Flops a, Flops b) { return {a.count + b.count}; }
  friend constexpr Flops operator*(Flops a, double n) { return {a.count * n}; }
};

/// Seconds that a clock of the system shows.
inline double clock_seconds(clockid_t clock) {
  std::timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
/// Those of the steady clock; only differences count.
inline double steady_seconds() { return clock_seconds(CLOCK_MONOTONIC); }

constexpr Bytes max(Bytes a, Bytes b) { return a < b ? b : a; }
constexpr Bytes min(Bytes a, Bytes b) { return a < b ? a : b; }
constexpr Seconds max(Seconds a, Seconds b) { return a < b ? b : a; }
constexpr Seconds min(Seconds a, Seconds b) { return a < b ? a : b; }

/// `n / d`, rounded up; both positive.
constexpr std::int64_t divide_up(std::int64_t n, std::int64_t d) { return (n + d - 1) / d; }
/// The smallest multiple of `d` that is at least `n`.
constexpr std::int64_t round_up(std::int64_t n, std::int64_t d) { return divide_up(n, d) * d; }

/// Every tensor starts on such a boundary: a cache line, and an AVX-512 register.
inline constexpr std::int64_t tensor_alignment = 64;
/// The bytes that a tensor of `count` bytes takes in an arena.
constexpr std::int64_t aligned_bytes(std::int64_t count) { return round_up(count, tensor_alignment); }

inline namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return {static_cast<std::int64_t>(n)}; }
constexpr Bytes operator""_KiB(unsigned long long n) { return {static_cast<std::int64_t>(n) << 10}; }
constexpr Bytes operator""_MiB(unsigned long long n) { return {static_cast<std::int64_t>(n) << 20}; }
constexpr Bytes operator""_GiB(unsigned long long n) { return {static_cast<std::int64_t>(n) << 30}; }
}  // namespace literals

}  // namespace galvatron
