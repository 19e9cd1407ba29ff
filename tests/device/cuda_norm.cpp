// Norms and column sums of the GPU, against those of the host.
#include <utility>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/norm.hpp>

#include "emulator.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;

/// Elements that begin `offset` elements behind a 16-byte boundary.
template <class T>
struct Shifted {
  Shifted(const std::vector<T>& values, std::int64_t offset)
      : memory(values.size() + at(offset)), offset_(offset), count_(static_cast<std::int64_t>(values.size())) {
    std::copy(values.begin(), values.end(), memory.begin() + offset);
  }
  [[nodiscard]] T* data() { return memory.data() + offset_; }
  [[nodiscard]] std::vector<T> values() const { return {memory.begin() + offset_, memory.begin() + offset_ + count_}; }
  std::vector<T> memory;

 private:
  std::int64_t offset_;
  std::int64_t count_;
};

/// A residual and the norm of the sum: in new memory, in that of x with y in that of r, and in that of r.
template <class T>
void check_sum(Emulator& emulator, std::mt19937& random, NormKind kind, std::int64_t rows, std::int64_t hidden,
               std::int64_t offset, const std::vector<T>& values, const std::vector<T>& gamma,
               const std::vector<T>& beta) {
  const T* shift = kind == NormKind::layer_norm ? beta.data() : nullptr;
  const auto more = random_tensor<T>(random, rows * hidden);
  // The two operations give the same sum, and its norm but for how a compiler contracts products and sums.
  Shifted<T> sum(values, offset);
  for (std::size_t i = 0; i < values.size(); ++i)
    device::kernels::put(sum.data()[i], device::kernels::get(values[i]) + device::kernels::get(more[i]));
  std::vector<T> y(values.size());
  std::vector<float> stats(at(2 * rows));
  cuda::norm_forward(emulator, kind, rows, hidden, 1e-5, sum.data(), gamma.data(), shift, y.data(), stats.data());
  for (const int place : {0, 1, 2}) {
    CAPTURE(place);
    Shifted<T> x(values, offset);
    Shifted<T> r(more, offset);
    Shifted<T> apart(std::vector<T>(values.size()), offset);
    Shifted<T> normalized(std::vector<T>(values.size()), offset);
    Shifted<T>& got = place == 0 ? apart : place == 1 ? x : r;
    Shifted<T>& got_y = place == 1 ? r : normalized;
    std::vector<float> got_stats(stats.size(), NAN);
    cuda::add_norm_forward(emulator, kind, rows, hidden, 1e-5, x.data(), r.data(), gamma.data(), shift, got.data(),
                           got_y.data(), got_stats.data());
    CHECK(same_bits(got.values(), sum.values()));
    CHECK(error_of(got_y.values(), doubles(y)) < tolerance<T>);
    CHECK(error_of(got_stats, doubles(stats)) < 1e-6);
  }
}

template <class T>
void check(std::mt19937& random, NormKind kind, std::int64_t rows, std::int64_t hidden, std::int64_t offset = 0,
           std::int64_t scratch_bytes = 1 << 20) {
  CAPTURE(static_cast<int>(kind));
  CAPTURE(rows);
  CAPTURE(hidden);
  CAPTURE(offset);
  CAPTURE(scratch_bytes);
  const bool layer = kind == NormKind::layer_norm;
  TestHost host(1);
  Emulator emulator(random());
  auto values = random_tensor<T>(random, rows * hidden, 2.0F);
  for (auto& value : values) value = T(static_cast<float>(value) + 0.5F);
  Shifted<T> x(values, offset);
  auto gamma = random_tensor<T>(random, hidden, 1.5F);
  auto beta = random_tensor<T>(random, hidden);
  std::vector<T> expected_y(values.size());
  std::vector<float> expected_stats(at(2 * rows));
  host->norm_forward(kind, rows, hidden, 1e-5, view(values), view(gamma), layer ? view(beta) : View<T>{},
                     view(expected_y), view(expected_stats));

  std::vector<T> y(values.size());
  std::vector<float> stats(at(2 * rows), NAN);
  const T* shift = layer ? beta.data() : nullptr;
  cuda::norm_forward(emulator, kind, rows, hidden, 1e-5, x.data(), gamma.data(), shift, y.data(), stats.data());
  CHECK(error_of(y, doubles(expected_y)) < tolerance<T>);
  CHECK(error_of(stats, doubles(expected_stats)) < 2e-6);
  std::vector<T> again(values.size());
  cuda::norm_recompute(emulator, kind, rows, hidden, x.data(), gamma.data(), shift, stats.data(), again.data());
  CHECK(same_bits(y, again));
  Shifted<T> in_place(values, offset);
  cuda::norm_forward(emulator, kind, rows, hidden, 1e-5, in_place.data(), gamma.data(), shift, in_place.data(),
                     stats.data());
  // Where x was read pack by pack, so is it now.
  CHECK(error_of(in_place.values(), doubles(expected_y)) < tolerance<T>);

  check_sum(emulator, random, kind, rows, hidden, offset, values, gamma, beta);

  const auto dy = random_tensor<T>(random, rows * hidden);
  const auto residual = random_tensor<T>(random, rows * hidden);
  const auto before_gamma = random_tensor<float>(random, hidden);
  const auto before_beta = random_tensor<float>(random, hidden);
  auto expected_dgamma = before_gamma;
  auto expected_dbeta = before_beta;
  std::vector<T> expected_dx(values.size());
  std::vector<std::byte> scratch(at(scratch_bytes));
  const auto backward = [&](const T* d_out, const T* in, const T* d_residual, T* dx) {
    auto dgamma = before_gamma;
    auto dbeta = before_beta;
    std::memset(scratch.data(), 0xff, scratch.size());
    cuda::norm_backward(emulator, view(scratch), kind, rows, hidden, d_out, in, gamma.data(), stats.data(), d_residual,
                        dx, dgamma.data(), layer ? dbeta.data() : nullptr);
    return std::pair(dgamma, dbeta);
  };
  host->norm_backward(kind, rows, hidden, view(dy), view(values), view(gamma), view(stats), View<const T>{},
                      view(expected_dx), view(expected_dgamma), layer ? view(expected_dbeta) : View<float>{});
  std::vector<T> dx(values.size());
  const auto [dgamma, dbeta] = backward(dy.data(), x.data(), nullptr, dx.data());
  CHECK(error_of(dx, doubles(expected_dx)) < tolerance<T>);
  CHECK(error_of(dgamma, doubles(expected_dgamma)) < 5e-6);
  CHECK(error_of(dbeta, doubles(expected_dbeta)) < (layer ? 5e-6 : 1e-30));

  // dx in the place of dy, with a residual gradient; of x; of the residual gradient. The same sums, bit by bit.
  auto unused_gamma = before_gamma;
  auto unused_beta = before_beta;
  host->norm_backward(kind, rows, hidden, view(dy), view(values), view(gamma), view(stats), view(residual),
                      view(expected_dx), view(unused_gamma), layer ? view(unused_beta) : View<float>{});
  for (const int place : {0, 1, 2}) {
    CAPTURE(place);
    Shifted<T> in(values, offset);
    auto d_out = dy;
    auto d_residual = residual;
    T* out = place == 0 ? d_out.data() : place == 1 ? in.data() : d_residual.data();
    const auto sums = backward(d_out.data(), in.data(), d_residual.data(), out);
    CHECK(error_of(place == 0 ? d_out : place == 1 ? in.values() : d_residual, doubles(expected_dx)) < tolerance<T>);
    CHECK(same_bits(sums.first, dgamma));
    CHECK(same_bits(sums.second, dbeta));
  }
}

}  // namespace

TEST_CASE("norms and their gradients equal the host's for rows of any length") {
  constexpr unsigned seed = 501;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm, NormKind::rms_norm_from_one}) {
    check<float>(random, kind, 1, 8);
    check<float>(random, kind, 13, 5);         // not packed
    check<float>(random, kind, 9, 256);        // a warp a row
    check<float>(random, kind, 5, 516);        // a block a row
    check<float>(random, kind, 3, 516, 1);     // not packed
    check<bfloat16>(random, kind, 17, 768);    // a warp a row forward, two backward
    check<bfloat16>(random, kind, 3, 33);      // not packed
    check<bfloat16>(random, kind, 5, 1032);    // a block a row
    check<bfloat16>(random, kind, 4, 640, 3);  // not packed
  }
}

TEST_CASE("rows beyond the registers of a block") {
  std::mt19937 random(503);
  const auto beyond = []<class K>(K) { return std::int64_t{K::most_threads} * K::kept + 3; };
  check<float>(random, NormKind::layer_norm, 2, 4 * beyond(cuda::Norm<float, false, 8>{}));
  // Backward keeps their sums in shared memory, or where they are many in memory; packs, and single elements.
  check<bfloat16>(random, NormKind::rms_norm, 2, 8 * beyond(cuda::NormBackward<bfloat16>{}));
  check<bfloat16>(random, NormKind::layer_norm, 2, 8 * 1537, 0, 8 * 8 * 1537);
  check<bfloat16>(random, NormKind::layer_norm, 2, 12295, 0, 8 * 12295);
}

TEST_CASE("blocks go on with further rows where the scratch memory holds few partial sums") {
  std::mt19937 random(505);
  check<float>(random, NormKind::layer_norm, 29, 32, 0, 2 * 2 * 32 * 4);
  check<bfloat16>(random, NormKind::layer_norm, 11, 1032, 0, 3 * 2 * 1032 * 4);
  check<float>(random, NormKind::rms_norm, 7, 129, 0, 2 * 129 * 4 + 100);
}

TEST_CASE("the teams of a block add their sums") {
  std::mt19937 random(509);
  check<bfloat16>(random, NormKind::layer_norm, 300, 136, 0, 3 * 2 * 136 * 4);  // a warp a row
  check<bfloat16>(random, NormKind::layer_norm, 400, 520);                      // two warps
  check<bfloat16>(random, NormKind::rms_norm, 300, 776, 0, 5 * 776 * 4);
  check<float>(random, NormKind::layer_norm, 270, 387, 1, 4 * 2 * 387 * 4);  // not packed
}

TEST_CASE("what is no number stays in its row") {
  Emulator emulator;
  const std::int64_t hidden = 64;
  std::vector<float> x(at(3 * hidden), 1.0F);
  for (std::int64_t i = 0; i < hidden; ++i) x[at(2 * hidden + i)] = static_cast<float>(i);
  x[at(hidden + 7)] = NAN;
  const std::vector<float> gamma(at(hidden), 1.0F);
  std::vector<float> y(x.size());
  std::vector<float> stats(6);
  cuda::norm_forward<float>(emulator, NormKind::rms_norm, 3, hidden, 1e-5, x.data(), gamma.data(), nullptr, y.data(),
                            stats.data());
  for (std::int64_t i = 0; i < hidden; ++i) {
    CHECK(std::isfinite(y[at(i)]));
    CHECK(std::isnan(y[at(hidden + i)]));
    CHECK(std::isfinite(y[at(2 * hidden + i)]));
  }
}

TEST_CASE("bias gradients are column sums that accumulate, in the same bits every time") {
  constexpr unsigned seed = 507;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{1, 5}, {7, 1}, {130, 515}, {260, 64}, {150, 136}})
    for (const std::int64_t scratch_bytes : {n * 4, n * 4 * 3 + 1, std::int64_t{1} << 20}) {
      CAPTURE(rows);
      CAPTURE(n);
      CAPTURE(scratch_bytes);
      const auto dy = random_tensor<float>(random, rows * n);
      Shifted<bfloat16> half(random_tensor<bfloat16>(random, rows * n), n % 2);
      const auto before = random_tensor<float>(random, n);
      auto expected = doubles(before);
      for (std::int64_t i = 0; i < rows * n; ++i)
        expected[at(i % n)] += static_cast<double>(dy[at(i)]) + static_cast<double>(static_cast<float>(half.data()[i]));
      std::vector<std::vector<float>> results;
      for (const unsigned order : {1U, 2U}) {
        Emulator emulator(order);
        std::vector<std::byte> scratch(at(scratch_bytes), std::byte{0xff});
        std::vector<std::uint32_t> tickets(at(cuda::most_tickets));
        auto db = before;
        cuda::bias_gradient(emulator, view(scratch), tickets.data(), rows, n, dy.data(), db.data());
        cuda::bias_gradient(emulator, view(scratch), tickets.data(), rows, n, half.data(), db.data());
        CHECK(error_of(db, expected) < 5e-6);
        CHECK(std::count(tickets.begin(), tickets.end(), 0U) == cuda::most_tickets);
        results.push_back(db);
      }
      CHECK(same_bits(results[0], results[1]));
    }
}

TEST_CASE("no rows: nothing is launched") {
  Emulator emulator;
  std::vector<std::byte> scratch(64);
  std::vector<float> gamma(8, 1.0F), sums(8, 3.0F);
  float* none = nullptr;
  cuda::norm_forward<float>(emulator, NormKind::rms_norm, 0, 8, 1e-5, none, gamma.data(), nullptr, none, none);
  cuda::add_norm_forward<float>(emulator, NormKind::rms_norm, 0, 8, 1e-5, none, none, gamma.data(), nullptr, none, none,
                                none);
  cuda::norm_backward<float>(emulator, view(scratch), NormKind::rms_norm, 0, 8, none, none, gamma.data(), none, nullptr,
                             none, sums.data(), nullptr);
  cuda::bias_gradient<float>(emulator, view(scratch), nullptr, 0, 8, none, sums.data());
  CHECK(emulator.launches() == 0);
  CHECK(sums[0] == 3.0F);
}

TEST_CASE("column sums of rows that exceed the scratch memory are refused with the numbers") {
  Emulator emulator;
  const std::vector<float> dy(100);
  std::vector<float> db(100);
  std::vector<std::byte> scratch(399);
  CHECK_THROWS_WITH_AS(cuda::bias_gradient(emulator, view(scratch), nullptr, 1, 100, dy.data(), db.data()),
                       doctest::Contains("need 400 bytes of the GPU's workspace, there are 399"), DeviceFailure);
}

TEST_CASE("kernels keep rows in registers and leave no thread without work") {
  // 4 packs a thread, 128 threads a block of several teams.
  const auto warps = cuda::share_rows(1000, 96, true, 4, 512);
  CHECK(warps.teams.threads == 32);
  CHECK(warps.geometry == cuda::Geometry{.blocks = 250, .threads = 128});
  const auto blocks = cuda::share_rows(500, 512, true, 4, 512);
  CHECK(blocks.teams.threads == 128);
  CHECK(blocks.geometry == cuda::Geometry{.blocks = 500, .threads = 128});
  CHECK(cuda::share_rows(1 << 20, 512, true, 4, 512).geometry.blocks == 132 * 4);
  // As many blocks as multiprocessors have room for, whether or not that fills them.
  CHECK(cuda::share_rows(1 << 20, 320, true, 2, 512).geometry == cuda::Geometry{.blocks = 132 * 3, .threads = 160});
  CHECK(cuda::share_rows(1 << 20, 640, true, 2, 512).geometry == cuda::Geometry{.blocks = 132, .threads = 320});
  CHECK(cuda::share_rows(1, 1 << 20, true, 4, 512).geometry.threads == 512);
  CHECK(cuda::share_rows(1, 1, false, 4, 512).teams.threads == 32);
  CHECK(cuda::in_blocks(1 << 20, 64, 8, 512).geometry == cuda::Geometry{.blocks = 132, .threads = 512});
  CHECK(cuda::in_blocks(100, 64, 2, 512).geometry == cuda::Geometry{.blocks = 50, .threads = 128});
}
