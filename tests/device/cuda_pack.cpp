// Packs: what is read is what is written, whatever an element's size, a row's end and the address.
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/core/dtype.hpp>
#include <galvatron/device/cuda/pack.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace {

using namespace galvatron;
namespace cuda = device::cuda;
namespace kernels = device::kernels;

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

template <class T>
T element(int i) {
  if constexpr (std::is_same_v<T, bfloat16>)
    return bfloat16(static_cast<float>(i) - 3.5F);
  else
    return static_cast<T>(i - 3);
}

template <class T>
bool same(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, bfloat16>)
    return a.bits == b.bits;
  else
    return a == b;
}

template <class T, int n>
void check_elements() {
  using Pack = cuda::Pack<T, n>;
  static_assert(sizeof(Pack) == n * sizeof(T) && alignof(Pack) == sizeof(Pack));
  static_assert(std::is_trivially_copyable_v<Pack>);
  alignas(16) T from[2 * n];
  alignas(16) T to[2 * n] = {};
  for (int i = 0; i < 2 * n; ++i) from[i] = element<T>(i);
  Pack pack = Pack::at(from + n);
  Pack by_element{};
  for (int j = 0; j < n; ++j) {
    CHECK(same(pack[j], from[n + j]));
    by_element.set(j, from[n + j]);
  }
  by_element.store(to + n);
  for (int j = 0; j < n; ++j) {
    CHECK(same(to[j], T{}));
    CHECK(same(to[n + j], from[n + j]));
  }
  for (int j = 0; j < n; ++j) {  // one changes, its neighbours do not
    pack.set(j, element<T>(-j));
    for (int other = 0; other < n; ++other) CHECK(same(pack[other], other <= j ? element<T>(-other) : from[n + other]));
  }
}

/// Floats as packs of T round them one by one.
template <class T, int n>
void check_floats() {
  const std::vector<float> all{1.0F,    1.00390625F, -1.01171875F, not_a_number, -infinity, infinity,
                               3.4e38F, -1.0e-40F,   0.1F,         -0.0F,        65504.0F};
  for (std::size_t first = 0; first + n <= all.size(); ++first) {
    float values[n];
    for (int j = 0; j < n; ++j) values[j] = all[first + static_cast<std::size_t>(j)];
    const auto pack = cuda::Pack<T, n>::of(values);
    for (int j = 0; j < n; ++j) {
      T one;
      kernels::put(one, values[j]);
      CHECK(std::bit_cast<std::uint32_t>(pack.get(j)) == std::bit_cast<std::uint32_t>(kernels::get(one)));
    }
  }
}

TEST_CASE_TEMPLATE("elements come back from packs of every size", T, float, bfloat16, std::int32_t) {
  check_elements<T, 1>();
  check_elements<T, 2>();
  check_elements<T, 4>();
  check_elements<T, 16 / sizeof(T)>();
}

TEST_CASE("so do those of 8 bytes and of one") {
  check_elements<double, 1>();
  check_elements<double, 2>();
  check_elements<std::uint8_t, 1>();
  check_elements<std::uint8_t, 2>();
  check_elements<std::uint8_t, 4>();
  check_elements<std::uint8_t, 16>();
}

TEST_CASE_TEMPLATE("packs round floats as elements do, NaN and infinities among them", T, float, bfloat16) {
  check_floats<T, 1>();
  check_floats<T, 2>();
  check_floats<T, 4>();
  check_floats<T, 16 / sizeof(T)>();
}

TEST_CASE_TEMPLATE("more elements than a pack has are several", T, float, bfloat16) {
  constexpr int size = 32 / sizeof(T);
  alignas(16) T from[size];
  alignas(16) T to[size];
  for (int i = 0; i < size; ++i) from[i] = element<T>(i);
  float values[size];
  cuda::get_elements(from, values);
  for (int i = 0; i < size; ++i) CHECK(values[i] == kernels::get(from[i]));
  cuda::put_elements(to, values);
  for (int i = 0; i < size; ++i) CHECK(same(to[i], from[i]));
}

TEST_CASE("addresses are aligned to what is read at once") {
  alignas(16) bfloat16 x[16];
  alignas(16) float y[8];
  CHECK(cuda::are_aligned<4>(x, y));
  CHECK(cuda::are_aligned<4>(x + 4, y + 4));
  CHECK(!cuda::are_aligned<4>(x + 2, y));
  CHECK(!cuda::are_aligned<8>(x + 4));
  CHECK(cuda::are_aligned<8>(x + 8, y + 4));  // floats: two packs
  CHECK(cuda::are_aligned<1>(x + 3, y + 1));
  CHECK(cuda::is_packed<bfloat16>(8, x, x + 8));
  CHECK(!cuda::is_packed<bfloat16>(12, x));
  CHECK(!cuda::is_packed<bfloat16>(8, x + 4));
}

TEST_CASE_TEMPLATE("a row ends inside a pack, and behind it nothing is read or written", T, float, bfloat16) {
  constexpr int size = cuda::Pack<T>::size;
  for (int count = 0; count <= 2 * size; ++count) {
    std::vector<T> row(static_cast<std::size_t>(count));  // the address sanitizer watches its ends
    for (int i = 0; i < count; ++i) row[static_cast<std::size_t>(i)] = element<T>(i + 7);
    cuda::Pack<T> packs[3];
    cuda::load_packs(false, [&](int p) { return cuda::RestOfRow<T>{row.data() + p * size, count - p * size}; }, packs);
    for (int i = 0; i < 3 * size; ++i) CHECK(same(packs[i / size][i % size], i < count ? element<T>(i + 7) : T{}));
    const cuda::Pack<T> second = cuda::load_pack(row.data(), size, count, count % size == 0);
    for (int j = 0; j < size; ++j) CHECK(same(second[j], packs[1][j]));
    std::vector<T> out(static_cast<std::size_t>(count));
    for (int p = 0; p < 3; ++p) cuda::store_pack(packs[p], out.data(), p * size, count, false);
    for (int i = 0; i < count; ++i) CHECK(same(out[static_cast<std::size_t>(i)], row[static_cast<std::size_t>(i)]));
  }
}

TEST_CASE("places without a row give zeros") {
  alignas(16) const float row[4] = {1, 2, 3, 4};
  for (const bool packed : {false, true}) {
    cuda::Pack<float> packs[2];
    cuda::load_packs(packed, [&](int p) { return cuda::RestOfRow<float>{row, p == 0 ? 0 : 4}; }, packs);
    for (int j = 0; j < 4; ++j) {
      CHECK(packs[0].get(j) == 0.0F);
      CHECK(packs[1].get(j) == row[j]);
    }
  }
}

}  // namespace
