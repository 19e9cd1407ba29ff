// Element-wise kernels, run by the emulator, against the host device.
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/pointwise.hpp>

#include "few_blocks.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;

// `count` random elements of which the first lies `offset` elements behind a 16-byte boundary, and some that follow.
template <class T>
class Tensor {
 public:
  Tensor(std::mt19937& random, std::int64_t count, std::int64_t offset, float range = 1.0F)
      : count_(count), offset_(offset), all_(random_tensor<T>(random, count + offset + 5, range)) {}
  T* data() { return all_.data() + offset_; }
  View<T> view() { return {data(), count_}; }
  std::vector<T>& all() { return all_; }
  [[nodiscard]] std::vector<T> values() const { return {all_.begin() + offset_, all_.begin() + offset_ + count_}; }

 private:
  std::int64_t count_;
  std::int64_t offset_;
  std::vector<T> all_;
};

template <class T>
void check_sums(Emulator& emulator, std::mt19937& random, std::int64_t n, std::int64_t offset) {
  CAPTURE(n);
  CAPTURE(offset);
  FewBlocks few(emulator, 2);
  TestHost host(1);
  Tensor<T> a(random, n, offset), b(random, n, offset), out(random, n, offset);
  auto expected = out;
  cuda::map<device::kernels::Sum>(few, n, a.data(), b.data(), out.data());
  host->add(n, a.view(), b.view(), expected.view());
  CHECK(same_bits(out.all(), expected.all()));
  auto in_place = b;
  cuda::map<device::kernels::Sum>(few, n, a.data(), in_place.data(), in_place.data());
  CHECK(same_bits(in_place.values(), expected.values()));
  cuda::map<device::kernels::Product>(few, n, a.data(), b.data(), out.data());
  host->multiply(n, a.view(), b.view(), expected.view());
  CHECK(same_bits(out.all(), expected.all()));

  Tensor<float> sum(random, n, offset);
  auto expected_sum = sum;
  cuda::map<device::kernels::Sum>(few, n, a.data(), sum.data(), sum.data());
  host->accumulate(n, a.view(), expected_sum.view());
  CHECK(same_bits(sum.all(), expected_sum.all()));
}

template <class T>
void check_activation(Emulator& emulator, std::mt19937& random, ActivationKind kind, std::int64_t rows, std::int64_t n,
                      std::int64_t offset) {
  CAPTURE(rows);
  CAPTURE(n);
  CAPTURE(offset);
  CAPTURE(static_cast<int>(kind));
  FewBlocks few(emulator, 3);
  TestHost host(1);
  const std::int64_t wide = inputs_of(kind) * n;
  Tensor<T> u(random, rows * wide, offset, 6.0F), g(random, rows * n, offset), dg(random, rows * n, offset);
  auto expected_g = g;
  cuda::activation_forward(few, kind, rows, n, u.data(), g.data());
  host->activation_forward(kind, rows, n, u.view(), expected_g.view());
  CHECK(error_of(g.all(), doubles(expected_g.all())) < tolerance<T>);
  auto du = u;
  auto expected_du = u;
  cuda::activation_backward(few, kind, rows, n, du.data(), dg.data(), du.data());
  host->activation_backward(kind, rows, n, u.view(), dg.view(), expected_du.view());
  CHECK(error_of(du.all(), doubles(expected_du.all())) < tolerance<T>);
  Tensor<T> elsewhere(random, rows * wide, offset);
  cuda::activation_backward(few, kind, rows, n, u.data(), dg.data(), elsewhere.data());
  CHECK(same_bits(elsewhere.values(), du.values()));
}

struct RotaryCase {
  std::int64_t rows;
  std::int64_t b;
  std::int64_t first_position;
  std::int64_t heads;
  std::int64_t head_dim;
  std::int64_t row_stride;
  std::int64_t offset;
  std::vector<std::int32_t> tokens{}, positions{};  ///< of runs
};

template <class T>
void check_rotary(Emulator& emulator, std::mt19937& random, const RotaryCase& c) {
  CAPTURE(c.rows);
  CAPTURE(c.b);
  CAPTURE(c.first_position);
  CAPTURE(c.head_dim);
  CAPTURE(c.offset);
  TestHost host(1);
  for (const std::int64_t most_blocks : {2, 1000})
    for (const bool inverse : {false, true}) {
      FewBlocks few(emulator, most_blocks);
      Tensor<T> x(random, c.rows * c.row_stride, c.offset);
      auto expected = x;
      auto before = x;
      const cuda::NumberPairs runs{static_cast<int>(c.tokens.size()), c.tokens.data(), c.positions.data()};
      cuda::rotary(few, c.rows, c.b, c.first_position, runs, c.heads, c.head_dim, c.row_stride, 10000.0, inverse,
                   x.data());
      const device::TokenPositions positions =
          c.tokens.empty() ? device::TokenPositions(c.first_position) : device::TokenPositions(c.tokens, c.positions);
      host->rotary(c.rows, c.b, positions, c.heads, c.head_dim, c.row_stride, 10000.0, inverse, expected.view());
      CHECK(error_of(x.all(), doubles(expected.all())) < (std::is_same_v<T, float> ? 3e-7 : 8e-3));
      // What is not of a rotated head stays.
      int changed = 0;
      for (std::int64_t i = 0; i < c.rows * c.row_stride; ++i)
        if (i % c.row_stride >= c.heads * c.head_dim &&
            static_cast<float>(x.data()[i]) != static_cast<float>(before.data()[i]))
          ++changed;
      CHECK(changed == 0);
    }
}

}  // namespace

TEST_CASE("addition and accumulation on a GPU have the host's bits, wherever the elements lie") {
  constexpr unsigned seed = 431;
  CAPTURE(seed);
  std::mt19937 random(seed);
  Emulator emulator;
  for (const std::int64_t n : {0, 1, 3, 4, 8, 31, 64, 1023, 4096, 9001})
    for (const std::int64_t offset : {0, 1, 4}) {
      check_sums<float>(emulator, random, n, offset);
      check_sums<bfloat16>(emulator, random, n, offset);
    }
}

TEST_CASE("activations and their gradients on a GPU are the host's") {
  constexpr unsigned seed = 433;
  CAPTURE(seed);
  std::mt19937 random(seed);
  Emulator emulator;
  for (const ActivationKind kind : activation_kinds)
    for (const auto& [rows, n] : {std::pair{0, 8}, {1, 1}, {3, 37}, {5, 64}, {17, 200}, {2, 4100}})
      for (const std::int64_t offset : {0, 1}) {
        check_activation<float>(emulator, random, kind, rows, n, offset);
        check_activation<bfloat16>(emulator, random, kind, rows, n, offset);
      }
}

TEST_CASE("rotary embedding on a GPU is the host's, at any position") {
  constexpr unsigned seed = 439;
  CAPTURE(seed);
  std::mt19937 random(seed);
  Emulator emulator;
  for (const RotaryCase& c :
       {RotaryCase{70, 2, 0, 3, 64, 5 * 64, 0}, RotaryCase{41, 3, 131000, 2, 128, 4 * 128, 0},
        RotaryCase{9, 1, 131064, 1, 80, 80, 0}, RotaryCase{33, 1, 7, 5, 6, 40, 0}, RotaryCase{20, 4, 100, 2, 32, 65, 0},
        RotaryCase{20, 4, 100, 2, 32, 64, 1}, RotaryCase{3, 1, 5, 2, 1024, 2048, 0}, RotaryCase{200, 1, 0, 1, 2, 2, 0},
        RotaryCase{0, 1, 0, 1, 64, 64, 0}, RotaryCase{70, 1, 0, 3, 64, 5 * 64, 0, {0, 1, 40}, {6, 0, 131000}},
        RotaryCase{41, 3, 0, 2, 32, 4 * 32, 0, {0, 5}, {20, 70}}}) {
    check_rotary<float>(emulator, random, c);
    check_rotary<bfloat16>(emulator, random, c);
  }
  CHECK_THROWS_WITH_AS(cuda::rotary(emulator, 1, 1, 0, {}, 1, 8192, 8192, 10000.0, false, static_cast<float*>(nullptr)),
                       "rotary embedding takes heads of up to 4096 elements, not 8192", DeviceFailure);
}
