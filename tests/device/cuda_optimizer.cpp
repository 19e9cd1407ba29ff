// Gradient norms, their scale and AdamW, run by the emulator, against doubles and the host device.
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/optimizer.hpp>

#include "few_blocks.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;

/// Parameters of type T with what AdamW keeps for them, moments as M; the arrays begin `offset` elements behind a
/// boundary.
template <class T, class M = float>
struct Parameters {
  Parameters(std::mt19937& random, std::int64_t count, std::int64_t first)
      : n(count),
        offset(first),
        master(random_tensor<float>(random, count + first + 3)),
        g(random_tensor<float>(random, count + first + 3, 0.01F)),
        m(random_tensor<M>(random, count + first + 3, 0.01F)),
        v(random_tensor<M>(random, count + first + 3, 0.01F)),
        working(random_tensor<T>(random, count + first + 3)) {
    for (M& x : v) x = M(std::abs(static_cast<float>(x)));
  }
  template <class L>
  void step_on_gpu(L& launcher, const device::AdamW& adam, float scale, const device::AdamWPart& part = {}) {
    const device::kernels::AdamWStep constants(adam);
    cuda::adamw(launcher, n, &constants, part, &scale, master.data() + offset, g.data() + offset, m.data() + offset,
                v.data() + offset, working.data() + offset);
  }
  void step_on_host(const device::AdamW& adam, float scale, const device::AdamWPart& part = {}) {
    TestHost host(2);
    host->begin_update(adam);
    host->adamw(n, part, View<const float>(&scale, 1), of(master), of(g), of(m), of(v), of(working));
  }
  template <class U>
  View<U> of(std::vector<U>& all) {
    return {all.data() + offset, n};
  }

  std::int64_t n;
  std::int64_t offset;
  std::vector<float> master, g;
  std::vector<M> m, v;
  std::vector<T> working;
};

template <class T, class M>
bool same_parameters(const Parameters<T, M>& a, const Parameters<T, M>& b) {
  return same_bits(a.master, b.master) && same_bits(a.m, b.m) && same_bits(a.v, b.v) && same_bits(a.working, b.working);
}

template <class T, class M>
void check_adamw(Emulator& emulator, std::mt19937& random, std::int64_t n, std::int64_t offset) {
  CAPTURE(n);
  CAPTURE(offset);
  FewBlocks few(emulator, 2);
  const device::AdamW adam{.learning_rate = 3e-3F, .weight_decay = 0.2F, .step = 3};
  Parameters<T, M> got(random, n, offset);
  const Parameters<T, M> before = got;
  Parameters<T, M> expected = got;
  got.step_on_gpu(few, adam, 0.5F);
  expected.step_on_host(adam, 0.5F);
  CHECK(error_of(got.master, doubles(expected.master)) < 1e-6);
  CHECK(error_of(got.m, doubles(expected.m)) < tolerance<M> / 10);
  CHECK(error_of(got.v, doubles(expected.v)) < tolerance<M> / 10);
  CHECK(error_of(got.working, doubles(expected.working)) < tolerance<T>);
  CHECK(same_bits(got.g, before.g));
  int wrong = 0;
  for (std::int64_t i = offset; i < offset + n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (static_cast<float>(got.working[at]) != static_cast<float>(T(got.master[at]))) ++wrong;
  }
  CHECK(wrong == 0);
  for (const float scale : {NAN, INFINITY, -INFINITY}) {
    auto still = before;
    still.step_on_gpu(few, adam, scale);
    CHECK(same_parameters(still, before));
  }
}

/// A step of the whole is that of two parts, of which the second, or the whole, begins anywhere.
template <class T, class M>
void check_parts(Emulator& emulator, const Parameters<T, M>& before, const device::AdamW& adam,
                 device::AdamWPart part) {
  for (const std::uint64_t first : {100, 102})
    for (const std::int64_t split : {3, 8, 1001, 1002}) {
      CAPTURE(first);
      CAPTURE(split);
      part.first = first;
      auto once = before;
      once.step_on_gpu(emulator, adam, 1.0F, part);
      auto parts = before;
      const float scale = 1.0F;
      const device::kernels::AdamWStep constants(adam);
      const auto step = [&](std::int64_t from, std::int64_t count) {
        part.first = first + static_cast<std::uint64_t>(from);
        cuda::adamw(emulator, count, &constants, part, &scale, parts.master.data() + from, parts.g.data() + from,
                    parts.m.data() + from, parts.v.data() + from, parts.working.data() + from);
      };
      step(0, split);
      step(split, before.n - split);
      CHECK(same_parameters(parts, once));
    }
}

}  // namespace

TEST_CASE("AdamW on a GPU steps as the host does, and not at all when the scale is no number") {
  constexpr unsigned seed = 443;
  CAPTURE(seed);
  std::mt19937 random(seed);
  Emulator emulator;
  for (const std::int64_t n : {0, 1, 4, 7, 128, 1030, 5000})
    for (const std::int64_t offset : {0, 1, 4}) {
      check_adamw<float, float>(emulator, random, n, offset);
      check_adamw<bfloat16, float>(emulator, random, n, offset);
      check_adamw<float, bfloat16>(emulator, random, n, offset);
      check_adamw<bfloat16, bfloat16>(emulator, random, n, offset);
    }
}

TEST_CASE("the working parameters of AdamW may be the masters") {
  std::mt19937 random(449);
  Emulator emulator;
  const device::AdamW adam{.step = 2};
  for (const std::int64_t n : {3, 1001}) {
    Parameters<float> apart(random, n, 0);
    auto same = apart;
    const float scale = 1.0F;
    apart.step_on_gpu(emulator, adam, scale);
    const device::kernels::AdamWStep constants(adam);
    cuda::adamw(emulator, n, &constants, {}, &scale, same.master.data(), same.g.data(), same.m.data(), same.v.data(),
                same.master.data());
    CHECK(same_bits(same.master, apart.master));
    CHECK(same_bits(same.m, apart.m));
    CHECK(same_bits(same.v, apart.v));
  }
}

TEST_CASE("stochastic rounding of working parameters has the master as its mean and belongs to the parameter") {
  constexpr unsigned seed = 457;
  CAPTURE(seed);
  std::mt19937 random(seed);
  Emulator emulator;
  const device::AdamW adam{.learning_rate = 1e-3F, .rounding = device::Rounding::stochastic, .seed = 5};
  const device::AdamW to_nearest{.learning_rate = 1e-3F};
  constexpr std::int64_t n = 4003;
  const Parameters<bfloat16> before(random, n, 0);
  auto whole = before;
  const device::AdamWPart place{.stream = 7, .first = 100};
  whole.step_on_gpu(emulator, adam, 1.0F, place);
  auto nearest = before;
  nearest.step_on_gpu(emulator, to_nearest, 1.0F);
  CHECK(same_bits(whole.master, nearest.master));
  double bias = 0;
  int outside = 0;
  int other_than_nearest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double step = std::abs(static_cast<double>(whole.master[i])) / 128;  // at least the distance of neighbours
    const double error =
        static_cast<double>(static_cast<float>(whole.working[i])) - static_cast<double>(whole.master[i]);
    if (std::abs(error) > step) ++outside;
    bias += error / step;
    other_than_nearest += whole.working[i].bits != nearest.working[i].bits ? 1 : 0;
  }
  CHECK(outside == 0);
  CHECK(std::abs(bias / n) < 0.02);
  CHECK(other_than_nearest > n / 8);
  CHECK(other_than_nearest < n / 2);

  check_parts(emulator, before, adam, place);
  auto on_host = before;
  on_host.master = whole.master;  // on which the two agree to rounding only
  on_host.step_on_host({.learning_rate = 0, .rounding = device::Rounding::stochastic, .seed = 5}, 0.0F, place);
  CHECK(same_bits(on_host.master, whole.master));
  CHECK(same_bits(on_host.working, whole.working));
  auto other_stream = before;
  other_stream.step_on_gpu(emulator, adam, 1.0F, {.stream = 8, .first = 100});
  CHECK_FALSE(same_bits(other_stream.working, whole.working));
  device::AdamW next = adam;
  next.step = 2;
  auto other_step = before;
  other_step.master = whole.master;
  next.learning_rate = 0;
  other_step.step_on_gpu(emulator, next, 0.0F, place);
  CHECK(same_bits(other_step.master, whole.master));
  CHECK_FALSE(same_bits(other_step.working, whole.working));
}

TEST_CASE("moments of bfloat16 have those of float as their mean, and their rounding belongs to the parameter") {
  constexpr unsigned seed = 467;
  CAPTURE(seed);
  std::mt19937 random(seed);
  Emulator emulator;
  const device::AdamW adam{.learning_rate = 1e-3F, .beta2 = 0.999F, .seed = 9};
  constexpr std::int64_t n = 4003;
  const device::AdamWPart place{.stream = 7, .first = 100};
  const Parameters<float, bfloat16> before(random, n, 0);
  Parameters<float> exact(random, n, 0);
  exact.master = before.master;
  exact.g = before.g;
  exact.m.assign(before.m.begin(), before.m.end());
  exact.v.assign(before.v.begin(), before.v.end());
  exact.step_on_gpu(emulator, adam, 1.0F);
  auto whole = before;
  whole.step_on_gpu(emulator, adam, 1.0F, place);
  CHECK(same_bits(whole.master, exact.master));  // of moments before their rounding
  int outside = 0;
  const auto bias = [&](const std::vector<bfloat16>& kept, const std::vector<float>& of) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double step = std::abs(static_cast<double>(of[i])) / 128;  // at least the distance of neighbours
      const double error = static_cast<double>(static_cast<float>(kept[i])) - static_cast<double>(of[i]);
      if (std::abs(error) > step) ++outside;
      sum += error / step;
    }
    return sum / n;
  };
  CHECK(std::abs(bias(whole.m, exact.m)) < 0.02);
  CHECK(std::abs(bias(whole.v, exact.v)) < 0.02);
  CHECK(outside == 0);
  // Variances change by a thousandth: less than half of any distance, yet some of them move.
  int moved = 0;
  for (std::size_t i = 0; i < n; ++i) moved += whole.v[i].bits != before.v[i].bits ? 1 : 0;
  CHECK(moved > n / 50);
  CHECK(moved < n / 2);

  check_parts(emulator, before, adam, place);
  // The host rounds by the same bits: here both round the same numbers.
  auto on_gpu = before;
  on_gpu.m.assign(on_gpu.m.size(), bfloat16(0.0F));
  auto on_host = on_gpu;
  on_gpu.step_on_gpu(emulator, adam, 1.0F, place);
  on_host.step_on_host(adam, 1.0F, place);
  CHECK(same_bits(on_gpu.m, on_host.m));
  auto other_stream = before;
  other_stream.step_on_gpu(emulator, adam, 1.0F, {.stream = 8, .first = 100});
  CHECK_FALSE(same_bits(other_stream.m, whole.m));
}

TEST_CASE("the sum of squares on a GPU is that of doubles, comes on top, and is the same every time") {
  constexpr unsigned seed = 461;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<double> memory(2048, NAN);
  const auto scratch = [&](std::int64_t bytes) {
    return View<std::byte>(reinterpret_cast<std::byte*>(memory.data()), bytes);
  };
  for (const std::int64_t n : {0, 1, 5, 1024, 4099, 20001})
    for (const std::int64_t offset : {0, 1}) {
      CAPTURE(n);
      CAPTURE(offset);
      const auto x = random_tensor<float>(random, n + offset, 100.0F);
      double expected = 0.25;
      for (std::size_t i = static_cast<std::size_t>(offset); i < x.size(); ++i)
        expected += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      for (const std::int64_t bytes : {16384, 24}) {
        if (bytes == 24 && n > 5000) continue;
        std::vector<double> sums;
        for (const std::uint64_t order : {1, 2}) {
          Emulator emulator(order);
          sums.push_back(0.25);
          std::uint32_t ticket = 0;
          cuda::norm_squared(emulator, scratch(bytes), &ticket, n, x.data() + offset, &sums.back());
          CHECK(ticket == 0);
        }
        CHECK(sums[0] == doctest::Approx(expected).epsilon(1e-12));
        CHECK(sums[0] == sums[1]);
      }
    }
  Emulator emulator;
  const float one = 1.0F;
  double sum = 0;
  CHECK_THROWS_WITH_AS(cuda::norm_squared(emulator, scratch(7), nullptr, 1, &one, &sum),
                       "a sum of squares needs 8 bytes of scratch memory at least, not 7", DeviceFailure);
}

TEST_CASE("the scale of a gradient on a GPU is the host's") {
  Emulator emulator;
  TestHost host(1);
  for (const double loss : {3.0, static_cast<double>(NAN)})
    for (const double squares : {16.0, 0.0, HUGE_VAL})
      for (const double clip : {0.0, 1.0, 5.0}) {
        const std::vector<double> sums{loss, squares};
        std::vector<float> scale(1), expected(1);
        cuda::clip_scale(emulator, sums.data(), clip, scale.data());
        host->clip_scale(view(sums), clip, view(expected));
        CHECK((scale[0] == expected[0] || (std::isnan(scale[0]) && std::isnan(expected[0]))));
      }
}
