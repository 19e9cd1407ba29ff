// What the tests of the host device share: a device with its workspace, random tensors, and a comparison.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <random>
#include <vector>

#include <galvatron/device/host/host.hpp>

namespace galvatron::test {

/// A host device that owns its workspace, which holds no numbers at first.
class TestHost {
 public:
  explicit TestHost(int threads, device::Isa isa = device::best_isa())
      : bytes_(static_cast<std::size_t>(device::Host::library_workspace_bytes(threads))),
        memory_(memory_without_numbers(bytes_)),
        host_(threads, View<std::byte>(memory_, static_cast<std::int64_t>(bytes_)), isa) {}
  TestHost(const TestHost&) = delete;
  TestHost& operator=(const TestHost&) = delete;
  ~TestHost() { ::operator delete(memory_, std::align_val_t(64)); }
  device::Host* operator->() { return &host_; }
  device::Host& operator*() { return host_; }

 private:
  static std::byte* memory_without_numbers(std::size_t bytes) {
    return static_cast<std::byte*>(std::memset(::operator new(bytes, std::align_val_t(64)), 0xFF, bytes));
  }

  std::size_t bytes_;
  std::byte* memory_;
  device::Host host_;
};

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

template <class T>
View<T> view(std::vector<T>& v) {
  return {v.data(), static_cast<std::int64_t>(v.size())};
}
template <class T>
View<const T> view(const std::vector<T>& v) {
  return {v.data(), static_cast<std::int64_t>(v.size())};
}

/// `count` elements uniform in [-range, range], rounded to T.
template <class T>
std::vector<T> random_tensor(std::mt19937& random, std::int64_t count, float range = 1.0F) {
  std::uniform_real_distribution<float> uniform(-range, range);
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& value : values) value = T(uniform(random));
  return values;
}

inline std::vector<std::int32_t> random_tokens(std::mt19937& random, std::int64_t count, std::int32_t vocabulary) {
  std::uniform_int_distribution<std::int32_t> uniform(0, vocabulary - 1);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (auto& token : tokens) token = uniform(random);
  return tokens;
}

template <class T>
std::vector<double> doubles(const std::vector<T>& v) {
  std::vector<double> d(v.size());
  std::transform(v.begin(), v.end(), d.begin(), [](T x) { return static_cast<double>(static_cast<float>(x)); });
  return d;
}

/// The greatest difference, relative to the greatest magnitude expected; infinite when sizes differ or a value is NaN.
template <class T>
double error_of(const std::vector<T>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double magnitude = 1e-30;
  double difference = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(static_cast<double>(static_cast<float>(got[i])) - expected[i]);
    if (std::isnan(d)) return INFINITY;
    difference = std::max(difference, d);
    magnitude = std::max(magnitude, std::abs(expected[i]));
  }
  return difference / magnitude;
}

/// |got - expected| / |expected| in the Euclidean norm; infinite when sizes differ or a value is not finite.
template <class T, class U>
double relative_difference(const std::vector<T>& got, const std::vector<U>& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double difference = 0;
  double magnitude = 1e-60;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double a = static_cast<double>(got[i]);
    const double b = static_cast<double>(expected[i]);
    if (!std::isfinite(a)) return INFINITY;
    difference += (a - b) * (a - b);
    magnitude += b * b;
  }
  return std::sqrt(difference / magnitude);
}

/// What may be the difference between two devices.
template <class T>
constexpr double between_devices = sizeof(T) == 2 ? 1e-2 : 1e-5;

/// What T's rounding allows a result of a few operations.
template <class T>
constexpr double tolerance = std::is_same_v<T, float> ? 2e-6 : 8e-3;

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

constexpr const char* name_of(device::Isa isa) {
  constexpr std::array names{"portable", "avx2", "avx512", "avx512_bf16"};
  return names[static_cast<std::size_t>(isa)];
}

/// The instruction sets that this processor can test.
inline std::vector<device::Isa> testable_isas() {
  using device::Isa;
  std::vector<Isa> all;
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16})
    if (isa <= device::best_isa()) all.push_back(isa);
  return all;
}

}  // namespace galvatron::test
