// The GPU's attention within windows, run by the emulator, against the host's.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/attention.hpp>

#include "emulator.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
using device::WindowShape;
namespace cuda = device::cuda;

WindowShape shape_of(std::int64_t batch, std::int64_t side, std::int64_t window, std::int64_t shift, std::int64_t heads,
                     std::int64_t head_dim, std::int64_t gap = 0) {
  return {.batch = batch,
          .side = side,
          .window = window,
          .shift = shift,
          .heads = heads,
          .head_dim = head_dim,
          .stride = 3 * heads * head_dim + gap,
          .out_stride = heads * head_dim + gap};
}

template <class T>
struct Problem {
  WindowShape shape;
  std::vector<T> qkv, d_o, table;

  Problem(std::mt19937& random, const WindowShape& s)
      : shape(s),
        qkv(random_tensor<T>(random, s.tokens() * s.batch * s.stride, 2.0F)),
        d_o(random_tensor<T>(random, s.tokens() * s.batch * s.out_stride)),
        table(random_tensor<T>(random, s.bias_rows() * s.heads, 2.0F)) {}
  [[nodiscard]] std::int64_t width() const { return shape.heads * shape.head_dim; }
};

template <class T>
struct Outputs {
  std::vector<T> o, dqkv;
  std::vector<float> lse, dtable;

  explicit Outputs(const Problem<T>& p)
      : o(p.d_o.size()),
        dqkv(p.qkv.size()),
        lse(at(p.shape.batch * p.shape.heads * p.shape.tokens())),
        dtable(p.table.size(), 1.0F) {}
};

template <class T>
Outputs<T> on_host(const Problem<T>& p) {
  TestHost host(2);
  Outputs<T> out(p);
  const auto part = [&](auto& all, std::int64_t number) {
    return view(all).slice(number * p.width(), static_cast<std::int64_t>(all.size()) - number * p.width());
  };
  host->window_attention_forward(p.shape, part(p.qkv, 0), part(p.qkv, 1), part(p.qkv, 2), view(p.table), view(out.o),
                                 view(out.lse));
  host->window_attention_backward(p.shape, part(p.qkv, 0), part(p.qkv, 1), part(p.qkv, 2), view(p.table), view(out.lse),
                                  view(p.d_o), part(out.dqkv, 0), part(out.dqkv, 1), part(out.dqkv, 2),
                                  view(out.dtable));
  return out;
}

template <class T>
Outputs<T> on_gpu(const Problem<T>& p, std::uint64_t seed = 1, std::int64_t scratch_bytes = 1 << 20) {
  Emulator gpu(seed);
  Outputs<T> out(p);
  std::vector<std::byte> scratch(at(scratch_bytes));
  const T* qkv = p.qkv.data();
  T* dqkv = out.dqkv.data();
  cuda::window_attention_forward<T>(gpu, p.shape, qkv, qkv + p.width(), qkv + 2 * p.width(), p.table.data(),
                                    out.o.data(), out.lse.data());
  cuda::window_attention_backward<T>(gpu, view(scratch), p.shape, qkv, qkv + p.width(), qkv + 2 * p.width(),
                                     p.table.data(), out.lse.data(), p.d_o.data(), dqkv, dqkv + p.width(),
                                     dqkv + 2 * p.width(), out.dtable.data());
  return out;
}

template <class T>
void compare(const WindowShape& shape, const Outputs<T>& got, const Outputs<T>& wanted) {
  CAPTURE(shape.side);
  CAPTURE(shape.window);
  CAPTURE(shape.shift);
  CAPTURE(shape.head_dim);
  constexpr bool single = std::is_same_v<T, float>;
  const double tolerance = single ? 1e-5 : 2e-2;
  CHECK(error_of(got.o, doubles(wanted.o)) < tolerance);
  CHECK(error_of(got.lse, doubles(wanted.lse)) < 5e-6);
  CHECK(error_of(got.dqkv, doubles(wanted.dqkv)) < tolerance);
  CHECK(error_of(got.dtable, doubles(wanted.dtable)) < tolerance);
}

}  // namespace

TEST_CASE("attention in windows on a GPU is that of the host, shifted or not") {
  std::mt19937 random(20261121);
  for (const WindowShape& shape :
       {shape_of(2, 4, 4, 0, 2, 8), shape_of(1, 8, 4, 2, 3, 16), shape_of(1, 14, 7, 3, 1, 32),
        shape_of(1, 6, 3, 1, 1, 5, 1), shape_of(1, 6, 2, 1, 2, 40), shape_of(1, 20, 10, 5, 1, 36),
        shape_of(2, 3, 1, 0, 2, 16), shape_of(1, 6, 3, 2, 2, 8, 3)}) {
    const Problem<float> p(random, shape);
    compare(shape, on_gpu(p), on_host(p));
  }
}

TEST_CASE("attention in windows of bfloat16 on a GPU differs from the host's by rounding only") {
  std::mt19937 random(20261122);
  for (const WindowShape& shape :
       {shape_of(1, 14, 7, 3, 1, 16), shape_of(1, 6, 3, 1, 2, 8), shape_of(1, 9, 9, 0, 1, 12, 1)}) {
    const Problem<bfloat16> p(random, shape);
    compare(shape, on_gpu(p), on_host(p));
  }
}

TEST_CASE("windows that do not fit into scratch memory at once follow each other, or are refused with their size") {
  std::mt19937 random(20261123);
  const Problem<float> p(random, shape_of(2, 9, 3, 1, 2, 8));
  const auto wanted = on_host(p);
  // Tiles of 64 queries and 32 keys take 8 KiB a head, which is half of the scratch memory; so does delta of 128
  // windows and heads of 16 tokens.
  compare(p.shape, on_gpu(p, 1, 16 << 10), wanted);
  const Problem<float> many(random, shape_of(3, 16, 4, 2, 3, 4));
  compare(many.shape, on_gpu(many, 1, 16 << 10), on_host(many));
  try {
    on_gpu(p, 1, 100);
    FAIL("nothing was refused");
  } catch (const DeviceFailure& failure) {
    CHECK(std::string(failure.what()).find("windows of 3 x 3 tokens") != std::string::npos);
  }
  CHECK_THROWS_AS(on_gpu(p, 1, 15 << 10), DeviceFailure);
}

TEST_CASE("attention in windows on a GPU gives the same bits in whatever order threads run") {
  std::mt19937 random(20261124);
  const Problem<float> p(random, shape_of(1, 14, 7, 3, 1, 16));
  const auto a = on_gpu(p, 3);
  const auto b = on_gpu(p, 4);
  CHECK(same_bits(a.o, b.o));
  CHECK(same_bits(a.dqkv, b.dqkv));
  CHECK(same_bits(a.dtable, b.dtable));
}
