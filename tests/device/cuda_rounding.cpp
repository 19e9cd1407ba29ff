// Tensors rounded to 8 bits by kernels, in the emulator: the host's codes and scale.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/rounding.hpp>
#include <galvatron/device/host/gemm.hpp>

#include "emulator.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;

// The kernels that round have loops over the grid; those that look for the greatest leave a figure a block.
struct FewToRound {
  Emulator& emulator;

  template <class Kernel>
  void launch(device::cuda::Geometry geometry, const Kernel& kernel) {
    if (launches++ % 2 == 1) geometry.blocks = std::min<std::int64_t>(geometry.blocks, 2);
    emulator.launch(geometry, kernel);
  }
  int launches = 0;
};

template <class F>
void check(Emulator& emulator, const std::vector<bfloat16>& x, std::int64_t rows, std::int64_t columns,
           std::int64_t offset) {
  CAPTURE(rows);
  CAPTURE(columns);
  CAPTURE(offset);
  const std::int64_t n = rows * columns;
  std::vector<std::uint8_t> expected(static_cast<std::size_t>(n));
  const float unscale = device::host::round_to_8bit<F>({}, n, x.data() + offset, expected.data());
  std::vector<std::uint32_t> scratch(1024);
  const View<std::byte> bytes(reinterpret_cast<std::byte*>(scratch.data()), 4096);
  for (const bool transposed : {false, true}) {
    CAPTURE(transposed);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n), 0xaa);
    float got = -1;
    FewToRound launcher{emulator};
    cuda::round_to_8bit<F>(launcher, bytes, rows, columns, transposed, x.data() + offset, codes.data(), &got);
    CHECK((got == unscale || (std::isnan(got) && std::isnan(unscale))));
    if (!transposed) {
      CHECK(codes == expected);
      continue;
    }
    bool equal = true;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        equal = equal &&
                codes[static_cast<std::size_t>(c * rows + r)] == expected[static_cast<std::size_t>(r * columns + c)];
    CHECK(equal);
  }
}

TEST_CASE("kernels round tensors to the host's codes, as they are and transposed") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed ", seed);
  Emulator emulator(seed);
  std::mt19937 random(static_cast<unsigned>(seed));
  for (const auto& [rows, columns] :
       {std::pair<std::int64_t, std::int64_t>{16, 16}, {16, 208}, {144, 64}, {128, 80}, {272, 336}})
    for (const std::int64_t offset : {0, 3}) {
      auto x = random_tensor<bfloat16>(random, rows * columns + offset, 0.02F);
      // The greatest where one block or lane after another has it.
      x[static_cast<std::size_t>(offset + static_cast<std::int64_t>(random()) % (rows * columns))] = bfloat16(-3.0F);
      check<float8_e4m3>(emulator, x, rows, columns, offset);
      check<float8_e5m2>(emulator, x, rows, columns, offset);
    }
}

TEST_CASE("what is not finite and what is all zeros rounds on kernels as on the host") {
  Emulator emulator(5);
  std::mt19937 random(5);
  for (const float special : {0.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto x = random_tensor<bfloat16>(random, 48 * 32);
    if (special == 0) std::fill(x.begin(), x.end(), bfloat16(0.0F));
    x[711] = bfloat16(special);
    check<float8_e4m3>(emulator, x, 48, 32, 0);
    check<float8_e5m2>(emulator, x, 48, 32, 0);
  }
}

}  // namespace
