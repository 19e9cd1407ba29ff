#include <doctest/doctest.h>

#include <galvatron/device/host/pointwise.hpp>

#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;

double gelu(double u) {
  return 0.5 * u * (1.0 + std::tanh(std::sqrt(2.0 / 3.14159265358979323846) * (u + 0.044715 * u * u * u)));
}
double quick_gelu(double u) { return u / (1.0 + std::exp(-1.702 * u)); }
double exact_gelu(double u) { return 0.5 * u * std::erfc(-u / std::sqrt(2.0)); }
double squared_relu(double u) { return std::max(u, 0.0) * std::max(u, 0.0); }
double silu(double x) { return x / (1.0 + std::exp(-x)); }
double slope(double (*f)(double), double x) { return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5; }

template <class T>
void check_activations(std::mt19937& random, int threads, device::Isa isa, std::int64_t rows, std::int64_t n) {
  CAPTURE(test::name_of(isa));
  CAPTURE(rows);
  CAPTURE(n);
  TestHost host(threads, isa);
  const auto dg = random_tensor<T>(random, rows * n);
  struct Smooth {
    ActivationKind kind;
    double (*f)(double);
  };
  for (const auto& [kind, f] : {Smooth{ActivationKind::gelu, gelu},
                                {ActivationKind::quick_gelu, quick_gelu},
                                {ActivationKind::exact_gelu, exact_gelu},
                                {ActivationKind::squared_relu, squared_relu}}) {
    auto u = random_tensor<T>(random, rows * n, 6.0F);
    std::vector<T> g(u.size());
    std::vector<double> forward(u.size());
    std::vector<double> backward(u.size());
    for (std::size_t i = 0; i < u.size(); ++i) {
      forward[i] = f(static_cast<double>(u[i]));
      backward[i] = static_cast<double>(dg[i]) * slope(f, static_cast<double>(u[i]));
    }
    host->activation_forward(kind, rows, n, view(u), view(g));
    CHECK(error_of(g, forward) < tolerance<T>);
    host->activation_backward(kind, rows, n, view(u), view(dg), view(u));
    CHECK(error_of(u, backward) < tolerance<T>);
  }
  {
    auto u = random_tensor<T>(random, rows * n, 6.0F);
    std::vector<T> g(u.size());
    std::vector<double> forward(u.size());
    std::vector<double> backward(u.size());
    for (std::size_t i = 0; i < u.size(); ++i) {
      forward[i] = std::max(static_cast<double>(u[i]), 0.0);
      backward[i] = static_cast<double>(u[i]) > 0 ? static_cast<double>(dg[i]) : 0.0;
    }
    host->activation_forward(ActivationKind::relu, rows, n, view(u), view(g));
    CHECK(error_of(g, forward) == 0);
    host->activation_backward(ActivationKind::relu, rows, n, view(u), view(dg), view(u));
    CHECK(error_of(u, backward) == 0);
  }
  for (const auto& [kind, f] : {Smooth{ActivationKind::swiglu, silu}, {ActivationKind::geglu, gelu}}) {
    auto u = random_tensor<T>(random, rows * 2 * n, 6.0F);
    std::vector<T> g(dg.size());
    std::vector<double> forward(g.size());
    std::vector<double> backward(u.size());
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < n; ++i) {
        const auto gate = static_cast<double>(u[at(row * 2 * n + i)]);
        const auto up = static_cast<double>(u[at(row * 2 * n + n + i)]);
        const auto d = static_cast<double>(dg[at(row * n + i)]);
        forward[at(row * n + i)] = f(gate) * up;
        backward[at(row * 2 * n + i)] = d * up * slope(f, gate);
        backward[at(row * 2 * n + n + i)] = d * f(gate);
      }
    host->activation_forward(kind, rows, n, view(u), view(g));
    CHECK(error_of(g, forward) < tolerance<T>);
    host->activation_backward(kind, rows, n, view(u), view(dg), view(u));
    CHECK(error_of(u, backward) < tolerance<T>);
  }
}

}  // namespace

TEST_CASE("activations and their gradients equal their definitions on every instruction set") {
  constexpr unsigned seed = 211;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const device::Isa isa : testable_isas()) {
    check_activations<float>(random, 1, isa, 3, 37);
    check_activations<float>(random, 2, isa, 65, 1024);
    check_activations<bfloat16>(random, 2, isa, 33, 1030);
  }
}

TEST_CASE("activations saturate without overflow") {
  TestHost host(1);
  const std::vector<float> u{-1e4F, -60.0F, 0.0F, 60.0F, 1e4F};
  const std::vector<float> ones(5, 1.0F);
  std::vector<float> g(5);
  std::vector<float> du(5);
  for (const ActivationKind kind : {ActivationKind::gelu, ActivationKind::quick_gelu, ActivationKind::exact_gelu}) {
    host->activation_forward(kind, 1, 5, view(u), view(g));
    host->activation_backward(kind, 1, 5, view(u), view(ones), view(du));
    CHECK(g[0] == doctest::Approx(0.0));
    CHECK(g[1] == doctest::Approx(0.0));
    CHECK(g[2] == 0.0F);
    CHECK(g[3] == 60.0F);
    CHECK(g[4] == 1e4F);
    CHECK(du[0] == doctest::Approx(0.0));
    CHECK(du[2] == doctest::Approx(0.5));
    CHECK(du[4] == doctest::Approx(1.0));
  }
}

TEST_CASE("addition and accumulation take every element, in place too") {
  std::mt19937 random(223);
  for (const int threads : {1, 2}) {
    TestHost host(threads);
    for (const std::int64_t n : {1, 63, 64, 65, 100003}) {
      auto a = random_tensor<float>(random, n);
      const auto b = random_tensor<float>(random, n);
      const auto h = random_tensor<bfloat16>(random, n);
      auto sum = h;
      std::vector<double> expected(at(n)), doubled(at(n));
      for (std::size_t i = 0; i < at(n); ++i) {
        expected[i] = static_cast<double>(a[i]) + static_cast<double>(b[i]) + static_cast<double>(h[i]);
        doubled[i] = 2.0 * static_cast<double>(h[i]);
      }
      std::vector<double> products(at(n));
      for (std::size_t i = 0; i < at(n); ++i) products[i] = static_cast<double>(a[i]) * static_cast<double>(b[i]);
      auto product = b;
      host->multiply(n, view(a), view(product), view(product));
      CHECK(error_of(product, products) < 3e-7);
      host->add(n, view(a), view(b), view(a));
      host->accumulate(n, view(h), view(a));
      host->add(n, view(h), view(sum), view(sum));
      CHECK(error_of(a, expected) < 3e-7);
      CHECK(error_of(sum, doubled) == 0.0);
    }
  }
}

TEST_CASE("bfloat16 results round to the nearest even as the type itself does") {
  TestHost host(1);
  std::mt19937 random(227);
  auto a = random_tensor<float>(random, 4096, 3.0F);
  a.insert(a.end(), {INFINITY, -INFINITY, 1.00390625F, 1.01171875F, 0.0F, -0.0F, 3.4e38F, 1e-40F});
  std::vector<bfloat16> expected;
  for (const float x : a) expected.push_back(bfloat16(x));
  a.push_back(NAN);
  std::vector<bfloat16> rounded(a.size());
  auto m = std::vector<float>(a.size());
  auto v = m;
  const std::vector<float> g(a.size());
  const device::AdamW still{.learning_rate = 0.0F, .weight_decay = 0.0F};
  const std::vector<float> scale{1.0F};
  host->begin_update(still);
  host->adamw(static_cast<std::int64_t>(a.size()), {}, view(scale), view(a), view(g), view(m), view(v), view(rounded));
  CHECK(std::isnan(static_cast<float>(rounded.back())));
  rounded.pop_back();
  CHECK(same_bits(rounded, expected));
}

TEST_CASE("AdamW follows its definition over several steps") {
  std::mt19937 random(229);
  for (const int threads : {1, 2}) {
    TestHost host(threads);
    for (const std::int64_t n : {1, 17, 20001}) {
      auto master = random_tensor<float>(random, n);
      std::vector<float> m(at(n)), v(at(n));
      std::vector<bfloat16> working(at(n));
      auto w = doubles(master);
      std::vector<double> dm(at(n)), dv(at(n));
      for (int step = 1; step <= 3; ++step) {
        const device::AdamW adam{.learning_rate = 3e-3F, .weight_decay = 0.2F, .step = step};
        const std::vector<float> scale{0.5F};
        const auto g = random_tensor<float>(random, n, 0.01F);
        host->begin_update(adam);
        if (step == 2)
          host->adamw(n, {}, view(scale), view(master), view(g), view(m), view(v), view(master));
        else
          host->adamw(n, {}, view(scale), view(master), view(g), view(m), view(v), view(working));
        for (std::size_t i = 0; i < at(n); ++i) {
          const double gradient = 0.5 * static_cast<double>(g[i]);
          const double b1 = static_cast<double>(adam.beta1);
          const double b2 = static_cast<double>(adam.beta2);
          dm[i] = b1 * dm[i] + (1 - b1) * gradient;
          dv[i] = b2 * dv[i] + (1 - b2) * gradient * gradient;
          const double rate = static_cast<double>(adam.learning_rate);
          const double update = dm[i] / (1 - std::pow(b1, step)) /
                                (std::sqrt(dv[i] / (1 - std::pow(b2, step))) + static_cast<double>(adam.epsilon));
          w[i] -= rate * (update + static_cast<double>(adam.weight_decay) * w[i]);
        }
      }
      CHECK(error_of(master, w) < 1e-6);
      CHECK(error_of(working, w) < 8e-3);
      CHECK(error_of(m, dm) < 1e-6);
      CHECK(error_of(v, dv) < 1e-6);
    }
  }
}

TEST_CASE("a parameter that has seen no gradient only decays") {
  TestHost host(1);
  std::vector<float> w{2.0F}, m(1), v(1);
  const std::vector<float> g(1);
  const device::AdamW adam{.learning_rate = 0.1F, .weight_decay = 0.5F};
  const std::vector<float> scale{1.0F};
  host->begin_update(adam);
  host->adamw(1, {}, view(scale), view(w), view(g), view(m), view(v), view(w));
  CHECK(w[0] == doctest::Approx(1.9));
}

TEST_CASE("the scale of a gradient bounds its norm, and a step whose sums are no numbers changes nothing") {
  TestHost host(1);
  const auto scale_of = [&](double loss, double squares, double clip) {
    const std::vector<double> sums{loss, squares};
    std::vector<float> scale(1);
    host->clip_scale(view(sums), clip, view(scale));
    return scale;
  };
  CHECK(scale_of(3.0, 16.0, 1.0)[0] == 0.25F);
  CHECK(scale_of(3.0, 16.0, 5.0)[0] == 1.0F);
  CHECK(scale_of(3.0, 16.0, 0.0)[0] == 1.0F);
  const device::AdamW adam{.learning_rate = 0.1F, .weight_decay = 0.5F};
  for (const auto& [loss, squares] : {std::pair<double, double>{NAN, 1.0}, {1.0, HUGE_VAL}}) {
    std::vector<float> w{2.0F}, m{0.5F}, v{0.25F};
    const std::vector<float> g{1.0F};
    host->begin_update(adam);
    host->adamw(1, {}, view(scale_of(loss, squares, 1.0)), view(w), view(g), view(m), view(v), view(w));
    CHECK(w[0] == 2.0F);
    CHECK(m[0] == 0.5F);
    CHECK(v[0] == 0.25F);
  }
}

TEST_CASE("the sum of squares is that of doubles and does not depend on the threads") {
  std::mt19937 random(233);
  TestHost one(1);
  TestHost two(2);
  for (const std::int64_t n : {0, 1, 4095, 4097, 300001, 1048576}) {
    const auto x = random_tensor<float>(random, n, 100.0F);
    double expected = 0;
    for (const float value : x) expected += static_cast<double>(value) * static_cast<double>(value);
    double sum = 0;
    double same = 0;
    one->norm_squared(n, view(x), {&sum, 1});
    two->norm_squared(n, view(x), {&same, 1});
    CHECK(sum == doctest::Approx(expected).epsilon(1e-12));
    CHECK(sum == same);
  }
}

TEST_CASE("fills and copies touch their bytes and no others") {
  for (const int threads : {1, 2}) {
    TestHost host(threads);
    for (const std::int64_t n : {0, 1, 4097, 200001}) {
      std::vector<std::byte> from(at(n), std::byte{7});
      std::vector<std::byte> to(at(n + 2), std::byte{1});
      host->copy(View<const std::byte>(from.data(), n), View<std::byte>(to.data() + 1, n));
      CHECK(std::count(to.begin(), to.end(), std::byte{7}) == n);
      CHECK(to.front() == std::byte{1});
      CHECK(to.back() == std::byte{1});
      host->zero(View<std::byte>(to.data() + 1, n));
      CHECK(std::count(to.begin(), to.end(), std::byte{0}) == n);
      CHECK(to.back() == std::byte{1});
    }
  }
}

TEST_CASE("runs are copied and added from and to anywhere, with one rounding, in the order of blocks and repeats") {
  constexpr unsigned seed = 233;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto check = [&]<class A, class B>(A, B, int threads, const device::Runs& runs) {
    TestHost host(threads);
    const auto from = random_tensor<A>(random, 60000);
    const auto before = random_tensor<B>(random, 60000);
    auto copied = before;
    auto added = before;
    auto expected_copy = before;
    auto expected_sum = before;
    const auto place = [](const device::Runs::Distances& d, std::int64_t block, std::int64_t repeat, std::int64_t row) {
      return block * d.block + repeat * d.repeat + row * d.row;
    };
    for (std::int64_t block = 0; block < runs.blocks; ++block)
      for (std::int64_t repeat = 0; repeat < runs.repeats; ++repeat)
        for (std::int64_t row = 0; row < runs.rows; ++row)
          for (std::int64_t i = 0; i < runs.width; ++i) {
            const auto source = static_cast<float>(from[at(place(runs.from, block, repeat, row) + i)]);
            const std::size_t target = at(place(runs.to, block, repeat, row) + i);
            expected_copy[target] = B(source);
            expected_sum[target] = B(static_cast<float>(expected_sum[target]) + source);
          }
    host->copy_runs(runs, view(from), view(copied));
    host->add_runs(runs, view(from), view(added));
    CHECK(same_bits(copied, expected_copy));
    CHECK(same_bits(added, expected_sum));
  };
  const device::Runs scattered{.blocks = 3,
                               .repeats = 2,
                               .rows = 100,
                               .width = 37,
                               .from = {.block = 40, .repeat = 0, .row = 130},
                               .to = {.block = 2 * 3700, .repeat = 3700, .row = 37}};
  const device::Runs summed{.blocks = 2,
                            .repeats = 3,
                            .rows = 100,
                            .width = 40,
                            .from = {.block = 12000, .repeat = 4000, .row = 40},
                            .to = {.block = 40, .repeat = 0, .row = 200}};
  for (const int threads : {1, 2})
    for (const device::Runs& runs :
         {scattered, summed, device::Runs{.width = 60000}, device::Runs{.rows = 0, .width = 5}}) {
      check(float{}, float{}, threads, runs);
      check(bfloat16{}, bfloat16{}, threads, runs);
      check(bfloat16{}, float{}, threads, runs);
      check(float{}, bfloat16{}, threads, runs);
    }
}
