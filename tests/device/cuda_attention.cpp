// The GPU's flash attention, run by the emulator, against the host's.
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/attention.hpp>

#include "emulator.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
using device::AttentionBias;
using device::AttentionShape;
namespace cuda = device::cuda;

struct Sizes {
  std::int64_t batch, queries, keys, heads, kv_heads, head_dim;
  bool causal;
  std::int64_t gap;  ///< elements between rows
  std::int64_t sliding_window = 0;
  float score_cap = 0;
};

// Queries, keys and values in rows of one projection.
template <class T>
struct Problem {
  AttentionShape shape;
  std::int64_t k_at, v_at;
  std::vector<T> qkv, d_o;
  std::vector<float> biases;
  AttentionBias bias;

  Problem(std::mt19937& random, const Sizes& s) {
    const std::int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim + s.gap;
    shape = {.batch = s.batch,
             .queries = s.queries,
             .keys = s.keys,
             .heads = s.heads,
             .kv_heads = s.kv_heads,
             .head_dim = s.head_dim,
             .causal = s.causal,
             .q_stride = width,
             .kv_stride = width,
             .out_stride = s.heads * s.head_dim + s.gap,
             .sliding_window = s.sliding_window,
             .score_cap = s.score_cap};
    k_at = s.heads * s.head_dim;
    v_at = k_at + s.kv_heads * s.head_dim;
    qkv = random_tensor<T>(random, std::max(s.queries, s.keys) * s.batch * width, 2.0F);
    d_o = random_tensor<T>(random, s.queries * s.batch * shape.out_stride);
  }
  void add_biases(std::mt19937& random, bool by_distance) {
    const std::int64_t distances = shape.queries + shape.keys - 1;
    const std::int64_t pairs = shape.queries * shape.keys;
    biases = random_tensor<float>(random, shape.heads * (by_distance ? distances : pairs), 2.0F);
    bias = by_distance ? AttentionBias{.first = shape.queries - 1, .head = distances, .query = -1}
                       : AttentionBias{.first = 0, .head = pairs, .query = shape.keys};
    bias.values = view(biases);
  }
  template <class X>
  View<X> part(std::vector<X>& x, std::int64_t from) const {
    return view(x).slice(from, static_cast<std::int64_t>(x.size()) - from);
  }
};

template <class T>
struct Outputs {
  std::vector<T> o, dqkv;
  std::vector<float> lse, delta, dbias;

  explicit Outputs(const Problem<T>& p)
      : o(p.d_o.size()),
        dqkv(p.qkv.size()),
        lse(at(p.shape.batch * p.shape.heads * p.shape.queries)),
        delta(lse.size()),
        dbias(p.biases.size(), 1.0F) {}
};

template <class T>
Outputs<T> on_host(Problem<T>& p) {
  TestHost host(2);
  Outputs<T> out(p);
  AttentionBias bias = p.bias;
  bias.gradient = view(out.dbias);
  host->attention_forward(p.shape, view(p.qkv), p.part(p.qkv, p.k_at), p.part(p.qkv, p.v_at), view(out.o),
                          view(out.lse), bias);
  host->attention_backward(p.shape, view(p.qkv), p.part(p.qkv, p.k_at), p.part(p.qkv, p.v_at), view(out.o),
                           view(out.lse), view(p.d_o), view(out.dqkv), p.part(out.dqkv, p.k_at),
                           p.part(out.dqkv, p.v_at), view(out.delta), bias);
  return out;
}

template <class T>
Outputs<T> on_gpu(Problem<T>& p, std::uint64_t seed = 1, std::int64_t scratch_bytes = 1 << 20) {
  Emulator gpu(seed);
  Outputs<T> out(p);
  std::vector<std::byte> scratch(at(scratch_bytes));
  AttentionBias bias = p.bias;
  if (!out.dbias.empty()) bias.gradient = view(out.dbias);
  cuda::attention_forward<T>(gpu, p.shape, p.qkv.data(), p.qkv.data() + p.k_at, p.qkv.data() + p.v_at, out.o.data(),
                             out.lse.data(), bias);
  cuda::attention_backward<T>(gpu, view(scratch), p.shape, p.qkv.data(), p.qkv.data() + p.k_at, p.qkv.data() + p.v_at,
                              out.o.data(), out.lse.data(), p.d_o.data(), out.dqkv.data(), out.dqkv.data() + p.k_at,
                              out.dqkv.data() + p.v_at, out.delta.data(), bias);
  return out;
}

template <class T>
void compare(const Outputs<T>& got, const Outputs<T>& wanted) {
  constexpr bool single = std::is_same_v<T, float>;
  CHECK(error_of(got.o, doubles(wanted.o)) < (single ? 4e-6 : 1e-2));
  CHECK(error_of(got.lse, doubles(wanted.lse)) < 4e-6);
  CHECK(error_of(got.delta, doubles(wanted.delta)) < (single ? 1e-5 : 1e-2));
  CHECK(error_of(got.dqkv, doubles(wanted.dqkv)) < (single ? 1e-5 : 2e-2));
  if (!wanted.dbias.empty()) CHECK(error_of(got.dbias, doubles(wanted.dbias)) < (single ? 1e-5 : 2e-2));
}

template <class T>
void check(std::mt19937& random, const Sizes& s) {
  CAPTURE(s.batch);
  CAPTURE(s.queries);
  CAPTURE(s.keys);
  CAPTURE(s.heads);
  CAPTURE(s.kv_heads);
  CAPTURE(s.head_dim);
  CAPTURE(s.causal);
  CAPTURE(s.gap);
  CAPTURE(s.sliding_window);
  CAPTURE(s.score_cap);
  Problem<T> p(random, s);
  compare(on_gpu(p), on_host(p));
}

}  // namespace

TEST_CASE("attention of floats on a GPU is that of the host: grouped heads, odd sizes, many tiles") {
  std::mt19937 random(17);
  for (const bool causal : {true, false}) {
    check<float>(random, {1, 1, 1, 1, 1, 8, causal, 0});
    check<float>(random, {1, 131, 131, 2, 1, 20, causal, 0});
    check<float>(random, {1, 70, 70, 4, 2, 33, causal, 3});
    check<float>(random, {1, 64, 64, 1, 1, 128, causal, 4});
    check<float>(random, {1, 37, 37, 1, 1, 200, causal, 0});
  }
  check<float>(random, {2, 5, 90, 2, 1, 32, false, 0});
  check<float>(random, {1, 90, 67, 2, 2, 63, false, 1});
}

TEST_CASE("soft-capped scores on a GPU are those of the host, with their gradients") {
  std::mt19937 random(83);
  for (const float cap : {0.25F, 1.0F, 50.0F})
    for (const bool causal : {false, true}) {
      check<float>(random, {1, 75, 75, 4, 2, 16, causal, 0, causal ? 17 : 0, cap});
      check<bfloat16>(random, {2, 33, 33, 2, 1, 72, causal, 8, 0, cap});
    }
  check<float>(random, {1, 20, 90, 1, 1, 132, false, 0, 0, 1.5F});
}

TEST_CASE("a sliding window on a GPU is that of the host, whatever tiles it begins and ends in") {
  std::mt19937 random(19);
  for (const std::int64_t window : {1, 2, 15, 16, 17, 63, 64, 65, 100, 128, 190, 300}) {
    check<float>(random, {1, 199, 199, 2, 1, 16, true, 0, window});
    if (window % 2 == 1) check<bfloat16>(random, {1, 150, 150, 2, 1, 72, true, 8, window});
  }
  check<float>(random, {1, 131, 131, 1, 1, 136, true, 0, 40});
}

TEST_CASE("attention of bfloat16 on a GPU is that of the host up to rounding") {
  std::mt19937 random(23);
  for (const bool causal : {true, false}) {
    check<bfloat16>(random, {1, 1, 1, 1, 1, 8, causal, 0});
    check<bfloat16>(random, {1, 131, 131, 2, 1, 16, causal, 0});
    check<bfloat16>(random, {1, 70, 70, 1, 1, 50, causal, 3});
    check<bfloat16>(random, {1, 68, 68, 1, 1, 128, causal, 8});
    check<bfloat16>(random, {1, 37, 37, 1, 1, 184, causal, 0});
  }
  check<bfloat16>(random, {1, 7, 75, 2, 1, 24, false, 0});
}

TEST_CASE("biases of attention on a GPU, and their gradients, also where scratch memory has few of them") {
  std::mt19937 random(29);
  for (const bool by_distance : {true, false})
    for (const bool causal : {true, false}) {
      CAPTURE(by_distance);
      CAPTURE(causal);
      Problem<float> p(random, {2, 75, 75, 2, 1, 12, causal, 0});
      p.add_biases(random, by_distance);
      const auto wanted = on_host(p);
      compare(on_gpu(p), wanted);
      if (causal) continue;
      // A tile of 64 queries and 96 keys takes 24 KiB.
      compare(on_gpu(p, 1, 25 << 10), wanted);
      CHECK_THROWS_AS(on_gpu(p, 1, 23 << 10), DeviceFailure);
    }
  Problem<bfloat16> p(random, {2, 40, 70, 2, 2, 16, false, 0});
  p.add_biases(random, true);
  compare(on_gpu(p), on_host(p));
  p.bias.query = 0;
  CHECK_THROWS_AS(on_gpu(p), DeviceFailure);
}

TEST_CASE("attention on a GPU gives the same bits in whatever order threads run") {
  std::mt19937 random(31);
  Problem<float> p(random, {2, 70, 70, 2, 1, 16, true, 0});
  p.add_biases(random, true);
  const auto a = on_gpu(p, 5);
  const auto b = on_gpu(p, 6);
  CHECK(same_bits(a.o, b.o));
  CHECK(same_bits(a.lse, b.lse));
  CHECK(same_bits(a.dqkv, b.dqkv));
  CHECK(same_bits(a.dbias, b.dbias));
}

TEST_CASE("large scores neither overflow nor lose the probabilities on a GPU") {
  std::mt19937 random(37);
  Problem<float> p(random, {1, 80, 80, 1, 1, 32, true, 0});
  for (std::size_t i = 0; i < p.qkv.size(); ++i)
    if (i % 96 < 64) p.qkv[i] *= 10.0F;
  const auto got = on_gpu(p);
  const auto wanted = on_host(p);
  CHECK(error_of(got.o, doubles(wanted.o)) < 2e-4);
  CHECK(error_of(got.lse, doubles(wanted.lse)) < 2e-6);
}

// The second half of the queries sees the first half of the keys whole, and the second causally.
TEST_CASE("attention to parts of the keys on a GPU, with strides of their own, is merged and differentiated") {
  std::mt19937 random(43);
  for (const std::int64_t half : {3, 66}) {
    CAPTURE(half);
    Problem<float> p(random, {2, 2 * half, 2 * half, 4, 2, 24, true, 0});
    const auto wanted = on_host(p);
    Emulator gpu;
    const std::int64_t width = p.shape.heads * p.shape.head_dim;
    const std::int64_t kv_width = p.shape.kv_heads * p.shape.head_dim;
    AttentionShape own = p.shape;
    own.queries = own.keys = half;
    own.lse_stride = 2 * half;
    own.all_keys = false;
    own.dq_stride = width + 4;
    own.dkv_stride = 2 * kv_width;
    AttentionShape cross = own;
    cross.causal = false;
    const std::int64_t rows = half * p.shape.batch;
    const float* q = p.qkv.data() + rows * p.shape.q_stride;
    const float* k = p.qkv.data() + p.k_at;
    const float* v = p.qkv.data() + p.v_at;
    std::vector<float> o(at(rows * width)), o_part(o.size());
    std::vector<float> lse(at(p.shape.batch * p.shape.heads * 2 * half)), lse_part(lse.size()), delta(lse.size());
    std::vector<std::byte> scratch(64);
    float* lse2 = lse.data() + half;
    const std::int64_t later = rows * p.shape.kv_stride;
    cuda::attention_forward(gpu, own, q, k + later, v + later, o.data(), lse2, {});
    cuda::attention_forward(gpu, cross, q, k, v, o_part.data(), lse_part.data() + half, {});
    cuda::attention_merge(gpu, cross, o_part.data(), lse_part.data() + half, o.data(), lse2);
    const auto second = [&](const std::vector<float>& all) {
      return doubles(std::vector<float>(all.end() - static_cast<std::ptrdiff_t>(o.size()), all.end()));
    };
    CHECK(error_of(o, second(wanted.o)) < 4e-6);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(lse.size()); ++i) {
      if (i % (2 * half) < half)
        CHECK(lse[at(i)] == 0);
      else
        CHECK(lse[at(i)] == doctest::Approx(wanted.lse[at(i)]).epsilon(4e-6));
    }

    const float* d_o = p.d_o.data() + p.d_o.size() - o.size();
    std::vector<float> dq(at(rows * own.dq_stride)), dkv(at(rows * 2 * kv_width)), sum(at(rows * width));
    for (const bool is_own : {true, false}) {
      const std::int64_t from = is_own ? later : 0;
      cuda::attention_backward<float>(gpu, view(scratch), is_own ? own : cross, q, k + from, v + from, o.data(), lse2,
                                      d_o, dq.data(), dkv.data(), dkv.data() + kv_width, delta.data() + half, {});
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < width; ++i) sum[at(r * width + i)] += dq[at(r * own.dq_stride + i)];
      if (!is_own) continue;
      // Only the second queries see the second keys.
      std::vector<float> other;
      for (std::int64_t r = rows; r < 2 * rows; ++r)
        other.insert(other.end(), wanted.dqkv.begin() + r * p.shape.q_stride + p.k_at,
                     wanted.dqkv.begin() + r * p.shape.q_stride + p.k_at + 2 * kv_width);
      CHECK(error_of(dkv, doubles(other)) < 1e-5);
    }
    std::vector<float> other;
    for (std::int64_t r = rows; r < 2 * rows; ++r)
      other.insert(other.end(), wanted.dqkv.begin() + r * p.shape.q_stride,
                   wanted.dqkv.begin() + r * p.shape.q_stride + width);
    CHECK(error_of(sum, doubles(other)) < 1e-5);
  }
}

TEST_CASE("results of attention are merged in float on a GPU, whatever the width of heads") {
  std::mt19937 random(47);
  for (const std::int64_t head_dim : {5, 16, 64, 136, 256}) {
    CAPTURE(head_dim);
    const AttentionShape shape{.batch = 3,
                               .queries = 7,
                               .keys = 1,
                               .heads = 3,
                               .kv_heads = 3,
                               .head_dim = head_dim,
                               .causal = false,
                               .out_stride = 3 * head_dim,
                               .lse_stride = 9};
    const auto part = random_tensor<bfloat16>(random, 21 * shape.out_stride);
    const auto lse_part = random_tensor<float>(random, 9 * 9, 5.0F);
    auto o = random_tensor<float>(random, 21 * shape.out_stride);
    auto lse = random_tensor<float>(random, 9 * 9, 5.0F);
    auto host_o = o;
    auto host_lse = lse;
    TestHost host(1);
    host->attention_merge(shape, view(part), view(lse_part), view(host_o), view(host_lse));
    Emulator gpu;
    cuda::attention_merge(gpu, shape, part.data(), lse_part.data(), o.data(), lse.data());
    CHECK(error_of(o, doubles(host_o)) < 1e-6);
    CHECK(error_of(lse, doubles(host_lse)) < 1e-6);
  }
}

TEST_CASE("heads that are too wide are refused with their width on a GPU") {
  std::mt19937 random(53);
  Problem<float> p(random, {1, 1, 1, 1, 1, 300, true, 0});
  CHECK_THROWS_WITH_AS(on_gpu(p), "the GPU's attention has heads of at most 256 elements, not 300", DeviceFailure);
}
