// Interpolation of measured times.
#include <galvatron/cluster/spec.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>

using galvatron::LogGrid;

TEST_CASE("a grid gives its own values at its points") {
  const LogGrid<3> grid({{{16, 64, 1024}, {8, 128}, {32, 64}}},
                        {1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 6e-6, 7e-6, 8e-6, 9e-6, 1e-5, 1.1e-5, 1.2e-5});
  CHECK(grid({16, 8, 32}, {1, 1, 1}) == doctest::Approx(1e-6).epsilon(1e-12));
  CHECK(grid({64, 8, 64}, {1, 1, 1}) == doctest::Approx(6e-6).epsilon(1e-12));
  CHECK(grid({1024, 128, 64}, {1, 1, 1}) == doctest::Approx(1.2e-5).epsilon(1e-12));
}

TEST_CASE("a power law is met between the points and beyond the last, and small extents cost the first value") {
  const auto law = [](double x) { return 1e-9 * std::pow(x, 1.5); };
  const LogGrid<1> grid({{{10, 100, 10000}}}, {law(10), law(100), law(10000)});
  for (const double x : {10.0, 37.0, 2000.0, 1e6}) CHECK(grid({x}, {1.5}) == doctest::Approx(law(x)).epsilon(1e-9));
  CHECK(grid({1}, {1.5}) == doctest::Approx(law(10)));
}

TEST_CASE("times never fall with an extent, however noisy the measurements") {
  const unsigned seed = 20240713;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> noise(0.1, 10.0);
  for (int round = 0; round < 20; ++round) {
    std::vector<double> seconds(4 * 3 * 3);
    for (double& s : seconds) s = 1e-6 * noise(random);
    const LogGrid<3> grid({{{1, 4, 32, 100}, {8, 16, 64}, {2, 20, 200}}}, seconds);
    for (int step = 0; step < 200; ++step) {
      std::array<double, 3> a{};
      for (double& x : a) x = std::exp(noise(random) * 0.7);
      for (int d = 0; d < 3; ++d) {
        std::array<double, 3> b = a;
        b[d] *= 1 + noise(random);
        CHECK(grid(a, {1, 1, 1}) > 0);
        CHECK(grid(b, {1, 1, 1}) >= grid(a, {1, 1, 1}) * (1 - 1e-12));
      }
    }
  }
}

TEST_CASE("a bad grid is described in words") {
  using Grid = LogGrid<1>;
  CHECK(Grid::problem({{{1, 2}}}, {1, 2}).empty());
  CHECK(Grid::problem({{{}}}, {}).find("0 points") != std::string::npos);
  CHECK(Grid::problem({{{2, 2}}}, {1, 2}).find("must rise") != std::string::npos);
  CHECK(Grid::problem({{{0, 2}}}, {1, 2}).find("at least 1") != std::string::npos);
  CHECK(Grid::problem({{{1, 2}}}, {1}).find("2 points and there are 1 values") != std::string::npos);
  CHECK(Grid::problem({{{1}}}, {0}).find("between") != std::string::npos);
  CHECK(Grid::problem({{{1}}}, {std::nan("")}).find("between") != std::string::npos);
}
