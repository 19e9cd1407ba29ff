#include <doctest/doctest.h>

#include <galvatron/device/host/attention.hpp>
#include <galvatron/device/host/attention_backward.hpp>

#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
using device::AttentionShape;
using device::Isa;

/// Tensors of one attention, q, k and v in one fused projection of each row when `fused`.
template <class T>
struct Problem {
  AttentionShape shape;
  std::int64_t k_at = 0;
  std::int64_t v_at = 0;
  std::vector<T> qkv, q, kv;
  std::vector<T> d_o;
  std::vector<float> biases;   ///< where `bias` takes them from
  device::AttentionBias bias;  ///< without a gradient

  Problem(std::mt19937& random, std::int64_t batch, std::int64_t queries, std::int64_t keys, std::int64_t heads,
          std::int64_t kv_heads, std::int64_t head_dim, bool causal) {
    const std::int64_t width = (heads + 2 * kv_heads) * head_dim;
    shape = {.batch = batch,
             .queries = queries,
             .keys = keys,
             .heads = heads,
             .kv_heads = kv_heads,
             .head_dim = head_dim,
             .causal = causal,
             .q_stride = width,
             .kv_stride = width,
             .out_stride = heads * head_dim + 3};
    k_at = heads * head_dim;
    v_at = k_at + kv_heads * head_dim;
    qkv = random_tensor<T>(random, std::max(queries, keys) * batch * width, 2.0F);
    d_o = random_tensor<T>(random, queries * batch * shape.out_stride);
  }
  template <class X>
  View<X> part(std::vector<X>& x, std::int64_t at) const {
    return view(x).slice(at, static_cast<std::int64_t>(x.size()) - at);
  }
};

struct Results {
  std::vector<double> o, lse, dqkv, dbias;
};

/// Attention and its gradient by the definition, in double.
template <class T>
Results reference(const Problem<T>& p) {
  const AttentionShape& s = p.shape;
  const auto x = doubles(p.qkv);
  const auto d_o = doubles(p.d_o);
  Results r;
  r.o.assign(d_o.size(), 0.0);
  r.lse.assign(at(s.batch * s.heads * s.queries), 0.0);
  r.dqkv.assign(x.size(), 0.0);
  r.dbias.assign(p.biases.size(), 0.0);
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  std::vector<double> probability(at(s.keys));
  std::vector<double> slope(at(s.keys), 1.0);  // of soft caps
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t head = 0; head < s.heads; ++head)
      for (std::int64_t i = 0; i < s.queries; ++i) {
        const std::int64_t q = (i * s.batch + b) * s.q_stride + head * s.head_dim;
        const std::int64_t out = (i * s.batch + b) * s.out_stride + head * s.head_dim;
        const std::int64_t kv_head = head / (s.heads / s.kv_heads);
        const auto k_of = [&](std::int64_t j) {
          return p.k_at + (j * s.batch + b) * s.kv_stride + kv_head * s.head_dim;
        };
        const auto bias_of = [&p](std::int64_t a, std::int64_t query, std::int64_t key) {
          return at(p.bias.first + a * p.bias.head + query * p.bias.query + key);
        };
        const auto v_of = [&](std::int64_t j) {
          return p.v_at + (j * s.batch + b) * s.kv_stride + kv_head * s.head_dim;
        };
        const std::int64_t keys = s.causal ? i + 1 : s.keys;
        const std::int64_t first = s.sliding_window > 0 ? std::max<std::int64_t>(0, keys - s.sliding_window) : 0;
        double sum = 0;
        for (std::int64_t j = first; j < keys; ++j) {
          double score = 0;
          for (std::int64_t d = 0; d < s.head_dim; ++d) score += x[at(q + d)] * x[at(k_of(j) + d)];
          score *= scale;
          if (s.score_cap > 0) {
            const double cap = s.score_cap;
            score = cap * std::tanh(score / cap);
            slope[at(j)] = 1 - score / cap * (score / cap);
          }
          if (!p.biases.empty()) score += p.biases[bias_of(head, i, j)];
          probability[at(j)] = std::exp(score);
          sum += probability[at(j)];
        }
        r.lse[at((b * s.heads + head) * s.queries + i)] = std::log(sum);
        double delta = 0;
        for (std::int64_t j = first; j < keys; ++j) {
          probability[at(j)] /= sum;
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            r.o[at(out + d)] += probability[at(j)] * x[at(v_of(j) + d)];
          }
        }
        for (std::int64_t d = 0; d < s.head_dim; ++d) delta += r.o[at(out + d)] * d_o[at(out + d)];
        for (std::int64_t j = first; j < keys; ++j) {
          double dp = 0;
          for (std::int64_t d = 0; d < s.head_dim; ++d) dp += d_o[at(out + d)] * x[at(v_of(j) + d)];
          if (!p.biases.empty()) r.dbias[bias_of(head, i, j)] += probability[at(j)] * (dp - delta);
          const double ds = probability[at(j)] * (dp - delta) * slope[at(j)] * scale;
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            r.dqkv[at(v_of(j) + d)] += probability[at(j)] * d_o[at(out + d)];
            r.dqkv[at(q + d)] += ds * x[at(k_of(j) + d)];
            r.dqkv[at(k_of(j) + d)] += ds * x[at(q + d)];
          }
        }
      }
  return r;
}

template <class T>
struct Outputs {
  std::vector<T> o, dqkv;
  std::vector<float> lse, dbias;
};

template <class T>
Outputs<T> compute(device::Host& host, Problem<T>& p) {
  const AttentionShape& s = p.shape;
  Outputs<T> out{std::vector<T>(p.d_o.size()), std::vector<T>(p.qkv.size()),
                 std::vector<float>(static_cast<std::size_t>(s.batch * s.heads * s.queries)),
                 std::vector<float>(p.biases.size())};
  std::vector<float> delta(out.lse.size());
  device::AttentionBias bias = p.bias;
  bias.gradient = view(out.dbias);
  host.attention_forward(s, view(p.qkv), p.part(p.qkv, p.k_at), p.part(p.qkv, p.v_at), view(out.o), view(out.lse),
                         bias);
  host.attention_backward(s, view(p.qkv), p.part(p.qkv, p.k_at), p.part(p.qkv, p.v_at), view(out.o), view(out.lse),
                          view(p.d_o), view(out.dqkv), p.part(out.dqkv, p.k_at), p.part(out.dqkv, p.v_at), view(delta),
                          bias);
  return out;
}

template <class T>
void check(std::mt19937& random, int threads, Isa isa, std::int64_t batch, std::int64_t queries, std::int64_t keys,
           std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, bool causal,
           std::int64_t sliding_window = 0, float score_cap = 0) {
  Problem<T> problem(random, batch, queries, keys, heads, kv_heads, head_dim, causal);
  problem.shape.sliding_window = sliding_window;
  problem.shape.score_cap = score_cap;
  TestHost host(threads, isa);
  const auto got = compute(*host, problem);
  const auto expected = reference(problem);
  CAPTURE(test::name_of(isa));
  CAPTURE(threads);
  CAPTURE(batch);
  CAPTURE(queries);
  CAPTURE(keys);
  CAPTURE(heads);
  CAPTURE(kv_heads);
  CAPTURE(head_dim);
  CAPTURE(causal);
  CAPTURE(sliding_window);
  CAPTURE(score_cap);
  constexpr bool single = std::is_same_v<T, float>;
  CHECK(error_of(got.o, expected.o) < (single ? 2e-6 : 1e-2));
  CHECK(error_of(got.lse, expected.lse) < 2e-6);
  CHECK(error_of(got.dqkv, expected.dqkv) < (single ? 5e-6 : 1.5e-2));
}

}  // namespace

TEST_CASE("attention equals its definition for causal and full shapes, grouped heads and odd sizes") {
  constexpr unsigned seed = 17;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const int threads : {1, 2}) {
    for (const bool causal : {true, false}) {
      check<float>(random, threads, device::best_isa(), 1, 1, 1, 1, 1, 8, causal);
      check<float>(random, threads, device::best_isa(), 2, 64, 64, 2, 2, 64, causal);
      check<float>(random, threads, device::best_isa(), 2, 77, 77, 3, 1, 20, causal);
      check<float>(random, threads, device::best_isa(), 1, 131, 131, 4, 2, 33, causal);
      check<float>(random, threads, device::best_isa(), 3, 200, 200, 1, 1, 16, causal);
      check<float>(random, threads, device::best_isa(), 1, 70, 70, 2, 1, 128, causal);
      check<float>(random, threads, device::best_isa(), 1, 66, 66, 1, 1, 256, causal);
    }
    check<float>(random, threads, device::best_isa(), 2, 5, 90, 2, 1, 32, false);
    check<float>(random, threads, device::best_isa(), 1, 90, 67, 2, 2, 48, false);
  }
}

TEST_CASE("soft-capped scores equal their definition, with the gradients of what they are made of") {
  constexpr unsigned seed = 20;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const Isa isa : testable_isas())
    for (const float cap : {0.25F, 1.0F, 50.0F})
      for (const bool causal : {true, false}) {
        check<float>(random, 1, isa, 1, 77, 77, 2, 1, 20, causal, 0, cap);
        check<float>(random, 2, isa, 1, 200, 200, 1, 1, 40, causal, causal ? 50 : 0, cap);
      }
  check<bfloat16>(random, 2, device::best_isa(), 1, 130, 130, 4, 2, 64, true, 0, 2.0F);
  check<float>(random, 1, device::best_isa(), 1, 5, 90, 2, 1, 32, false, 0, 1.5F);
  check<float>(random, 2, device::best_isa(), 1, 900, 900, 2, 1, 250, true, 0, 1.0F);  // in spans of keys
}

TEST_CASE("in a sliding window a query attends to itself and those just before it") {
  constexpr unsigned seed = 19;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const Isa isa : testable_isas())
    for (const std::int64_t window : {1, 2, 5, 6, 7, 95, 96, 97, 130, 192, 193, 200, 500}) {
      check<float>(random, 1, isa, 1, 200, 200, 2, 1, 20, true, window);
      if (isa == device::best_isa()) check<float>(random, 2, isa, 2, 289, 289, 1, 1, 40, true, window);
    }
  check<bfloat16>(random, 2, device::best_isa(), 1, 300, 300, 4, 2, 64, true, 100);
  // In spans of keys, of which a block of queries may see none of the first ones.
  for (const std::int64_t window : {50, 97, 400, 880})
    check<float>(random, 2, device::best_isa(), 1, 900, 900, 2, 1, 250, true, window);
}

TEST_CASE("attention of bfloat16 differs from its definition by rounding only") {
  constexpr unsigned seed = 23;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const Isa isa : testable_isas()) {
    for (const bool causal : {true, false}) {
      check<bfloat16>(random, 2, isa, 2, 77, 77, 4, 2, 64, causal);
      check<bfloat16>(random, 1, isa, 1, 130, 130, 2, 1, 80, causal);
      check<bfloat16>(random, 1, isa, 1, 33, 33, 1, 1, 5, causal);
      check<bfloat16>(random, 1, isa, 1, 1, 1, 1, 1, 8, causal);
      check<bfloat16>(random, 1, isa, 3, 97, 97, 2, 2, 33, causal);
      check<bfloat16>(random, 1, isa, 1, 299, 299, 1, 1, 128, causal);
      check<bfloat16>(random, 1, isa, 1, 200, 200, 1, 1, 40, causal, causal ? 51 : 0, 1.0F);
    }
    check<bfloat16>(random, 2, isa, 1, 5, 91, 2, 1, 32, false);
    check<bfloat16>(random, 2, isa, 1, 91, 5, 2, 1, 32, false);
    for (const std::int64_t window : {1, 2, 5, 6, 7, 95, 96, 97, 193})
      check<bfloat16>(random, 1, isa, 1, 200, 200, 2, 1, 20, true, window);
  }
}

TEST_CASE("gradients of queries over keys and values that are near each other are as exact as others") {
  constexpr unsigned seed = 25;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const std::int64_t tokens : {7, 40, 96}) {
    CAPTURE(tokens);
    Problem<float> p(random, 2, tokens, tokens, 2, 2, 16, false);
    const AttentionShape& s = p.shape;
    const std::int64_t width = s.heads * s.head_dim;
    for (std::int64_t row = 0; row < tokens * s.batch; ++row)
      for (const std::int64_t part : {p.k_at, p.v_at})
        for (std::int64_t i = 0; i < width; ++i) {
          float& x = p.qkv[at(row * s.q_stride + part + i)];
          x = (i % 2 == 0 ? 2.0F : -2.0F) + 0.02F * x;
        }
    TestHost host(1);
    const auto expected = reference(p);
    const auto error = [&] {  // of the queries' gradients
      const auto got = compute(*host, p);
      double away = 0;
      double greatest = 0;
      for (std::int64_t row = 0; row < tokens * s.batch; ++row)
        for (std::int64_t i = 0; i < width; ++i) {
          const std::size_t place = at(row * s.q_stride + i);
          away = std::max(away, std::abs(static_cast<double>(got.dqkv[place]) - expected.dqkv[place]));
          greatest = std::max(greatest, std::abs(expected.dqkv[place]));
        }
      return away / greatest;
    };
    const double whole = error();
    p.shape.all_keys = false;  // the parts of a ring, whose sums nobody has
    const double part = error();
    CAPTURE(whole);
    CAPTURE(part);
    CHECK(whole < 1e-4);
    CHECK(part > 5 * whole);
  }
}

TEST_CASE("every instruction set computes attention") {
  std::mt19937 random(29);
  for (const Isa isa : testable_isas()) {
    check<float>(random, 2, isa, 2, 99, 99, 4, 2, 40, true);
    check<float>(random, 1, isa, 1, 65, 65, 1, 1, 96, false);
    check<bfloat16>(random, 1, isa, 1, 70, 70, 2, 1, 64, true);
  }
}

TEST_CASE("a sequence longer than the workspace holds is done in spans") {
  std::mt19937 random(31);
  // 256 wide heads: forward packs 4 MiB / 128 KiB = 28 blocks of 64 keys, backward 4 MiB / 320 KiB = 11.
  check<float>(random, 1, device::best_isa(), 1, 3, 2000, 1, 1, 256, false);
  check<float>(random, 2, device::best_isa(), 1, 900, 900, 1, 1, 250, true);
  check<bfloat16>(random, 1, device::best_isa(), 1, 760, 760, 1, 1, 250, true);
}

TEST_CASE("biases are added to the scores, and get their gradients, of every pair and by distance") {
  constexpr unsigned seed = 33;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const bool by_distance : {false, true})
    for (const bool causal : {false, true})
      for (const std::int64_t tokens : {1, 7, 96, 205}) {
        Problem<float> p(random, 3, tokens, tokens, 4, 2, 24, causal);
        const std::int64_t distances = 2 * tokens - 1;
        p.biases = random_tensor<float>(random, 4 * (by_distance ? distances : tokens * tokens), 2.0F);
        p.bias = by_distance ? device::AttentionBias{.first = tokens - 1, .head = distances, .query = -1}
                             : device::AttentionBias{.first = 0, .head = tokens * tokens, .query = tokens};
        p.bias.values = view(p.biases);
        CAPTURE(by_distance);
        CAPTURE(causal);
        CAPTURE(tokens);
        TestHost one(1);
        TestHost two(2);
        const auto got = compute(*one, p);
        const auto expected = reference(p);
        CHECK(error_of(got.o, expected.o) < 2e-6);
        CHECK(error_of(got.lse, expected.lse) < 2e-6);
        if (tokens > 1) CHECK(error_of(got.dqkv, expected.dqkv) < 5e-6);
        if (tokens > 1) CHECK(error_of(got.dbias, expected.dbias) < 5e-6);
        CHECK(same_bits(got.dbias, compute(*two, p).dbias));
      }
}

TEST_CASE("distances share T5's buckets") {
  using device::kernels::relative_bucket;
  // As transformers' T5Attention._relative_position_bucket has them, with 32 buckets up to a distance of 128.
  const std::pair<std::int64_t, std::int64_t> both_ways[] = {
      {0, 0},     {-1, 1},     {-7, 7},   {-8, 8},   {-11, 8},  {-12, 9},  {-15, 9},  {-16, 10}, {-22, 10},
      {-23, 11},  {-31, 11},   {-32, 12}, {-45, 12}, {-46, 13}, {-63, 13}, {-64, 14}, {-90, 14}, {-91, 15},
      {-128, 15}, {-5000, 15}, {1, 17},   {7, 23},   {8, 24},   {32, 28},  {91, 31},  {5000, 31}};
  for (const auto& [distance, bucket] : both_ways) CHECK(relative_bucket(distance, 32, 128, false) == bucket);
  const std::pair<std::int64_t, std::int64_t> backward[] = {{0, 0},     {5, 0},     {-1, 1},    {-15, 15},  {-16, 16},
                                                            {-18, 16},  {-19, 17},  {-32, 21},  {-64, 26},  {-112, 30},
                                                            {-113, 31}, {-127, 31}, {-128, 31}, {-5000, 31}};
  for (const auto& [distance, bucket] : backward) CHECK(relative_bucket(distance, 32, 128, true) == bucket);
}

TEST_CASE("biases by distance come from a table, and their gradients go there") {
  constexpr std::int64_t tokens = 40;
  constexpr std::int64_t heads = 3;
  std::mt19937 random(35);
  auto table = random_tensor<bfloat16>(random, 8 * heads);
  for (const bool causal : {false, true}) {
    const device::RelativePositions relative{.tokens = tokens, .buckets = 8, .causal = causal};
    TestHost host(1);
    std::vector<float> bias(at(heads * relative.distances()));
    std::vector<float> dtable(table.size(), 1.0F);
    host->relative_bias_forward(relative, heads, view(table), view(bias));
    host->relative_bias_backward(relative, heads, view(bias), view(dtable));
    std::vector<double> sums(table.size(), 1.0);
    for (std::int64_t i = 0; i < relative.distances(); ++i)
      for (std::int64_t a = 0; a < heads; ++a) {
        const auto entry = at(device::kernels::relative_bucket(i - tokens + 1, 8, 128, causal) * heads + a);
        CHECK(bias[at(a * relative.distances() + i)] == static_cast<float>(table[entry]));
        sums[entry] += static_cast<double>(static_cast<float>(table[entry]));
      }
    CHECK(error_of(dtable, sums) < 1e-6);
  }
}

TEST_CASE("large scores neither overflow nor lose the probabilities") {
  std::mt19937 random(37);
  Problem<float> problem(random, 1, 80, 80, 1, 1, 32, true);
  for (std::size_t i = 0; i < problem.qkv.size(); ++i)
    if (i % 96 < 64) problem.qkv[i] *= 10.0F;  // scores of several hundreds
  TestHost host(1);
  const auto got = compute(*host, problem);
  const auto expected = reference(problem);
  CHECK(error_of(got.o, expected.o) < 2e-4);
  CHECK(error_of(got.lse, expected.lse) < 2e-6);
}

TEST_CASE("attention of the same threads gives the same bits, and forward does not depend on the threads") {
  std::mt19937 random(41);
  Problem<float> problem(random, 2, 150, 150, 3, 3, 24, true);
  TestHost one(1);
  TestHost two(2);
  const auto a = compute(*two, problem);
  const auto b = compute(*two, problem);
  const auto c = compute(*one, problem);
  CHECK(same_bits(a.o, b.o));
  CHECK(same_bits(a.dqkv, b.dqkv));
  CHECK(same_bits(a.o, c.o));
  CHECK(same_bits(a.lse, c.lse));
}

// A causal square of two halves is two causal squares and one square of the second queries and the first keys:
//
//     [ c ]
//     [ x ][ c ]
TEST_CASE("attention to parts of the queries and keys, merged, is attention to all of them") {
  constexpr unsigned seed = 43;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const int threads : {1, 2})
    for (const std::int64_t half : {3, 48, 70, 130}) {
      CAPTURE(half);
      Problem<float> p(random, 2, 2 * half, 2 * half, 4, 2, 24, true);
      const auto expected = reference(p);
      const AttentionShape& s = p.shape;
      TestHost host(threads);
      const auto later = [](auto all, std::int64_t skip) { return all.slice(skip, all.count - skip); };
      // The second half of the rows of a tensor.
      const auto second = [&](auto rows, std::int64_t stride) { return later(rows, half * s.batch * stride); };
      const std::int64_t width = s.heads * s.head_dim;
      const std::int64_t kv_width = s.kv_heads * s.head_dim;
      AttentionShape part = s;
      part.queries = part.keys = half;
      part.lse_stride = 2 * half;
      part.all_keys = false;
      part.dq_stride = width;
      part.dkv_stride = 2 * kv_width;
      AttentionShape cross = part;
      cross.causal = false;

      std::vector<float> o(p.d_o.size()), o_part(p.d_o.size());
      std::vector<float> lse(at(s.batch * s.heads * 2 * half)), lse_part(lse.size()), delta(lse.size());
      const View<float> q = view(p.qkv), k = p.part(p.qkv, p.k_at), v = p.part(p.qkv, p.v_at);
      const auto q2 = second(q, s.q_stride);
      const auto k2 = second(k, s.kv_stride);
      const auto v2 = second(v, s.kv_stride);
      const View<float> o2 = second(view(o), s.out_stride), d_o = view(p.d_o), d_o2 = second(d_o, s.out_stride);
      const View<float> lse2 = later(view(lse), half), delta2 = later(view(delta), half);
      host->attention_forward(part, q, k, v, view(o), view(lse));
      host->attention_forward(part, q2, k2, v2, o2, lse2);
      const View<float> o_part2 = second(view(o_part), s.out_stride), lse_part2 = later(view(lse_part), half);
      host->attention_forward(cross, q2, k, v, o_part2, lse_part2);
      host->attention_merge(cross, o_part2, lse_part2, o2, lse2);
      CHECK(error_of(o, expected.o) < 2e-6);
      CHECK(error_of(lse, expected.lse) < 2e-6);

      // Gradients of the parts, in rows of their own, are added to those of the whole.
      std::vector<float> sum(p.qkv.size()), dq(at(half * s.batch * width)), dkv(at(half * s.batch * 2 * kv_width));
      const View<float> dk = view(dkv), dv = later(view(dkv), kv_width);
      const auto add = [&](View<float> from, std::int64_t columns, std::int64_t stride, View<float> to) {
        host->add_runs(
            device::Runs{.rows = half * s.batch, .width = columns, .from = {.row = stride}, .to = {.row = s.q_stride}},
            from, to);
      };
      const View<float> dqkv = view(sum), dqkv2 = second(dqkv, s.q_stride);
      const auto collect = [&](View<float> queries, View<float> keys) {
        add(view(dq), width, width, queries);
        add(dk, 2 * kv_width, 2 * kv_width, later(keys, p.k_at));
      };
      host->attention_backward(part, q, k, v, view(o), view(lse), d_o, view(dq), dk, dv, view(delta));
      collect(dqkv, dqkv);
      host->attention_backward(part, q2, k2, v2, o2, lse2, d_o2, view(dq), dk, dv, delta2);
      collect(dqkv2, dqkv2);
      host->attention_backward(cross, q2, k, v, o2, lse2, d_o2, view(dq), dk, dv, delta2);
      collect(dqkv2, dqkv);
      CHECK(error_of(sum, expected.dqkv) < 5e-6);
    }
}

TEST_CASE("results of bfloat16 are merged in float") {
  std::mt19937 random(47);
  Problem<bfloat16> p(random, 1, 40, 100, 2, 1, 16, false);
  const auto expected = reference(p);
  TestHost host(1);
  AttentionShape first = p.shape;
  first.keys = 60;
  AttentionShape rest = p.shape;
  rest.keys = 40;
  std::vector<bfloat16> part(p.d_o.size());
  std::vector<float> sum(part.size()), lse(80), lse_part(80);
  const auto from = [&](std::int64_t place, std::int64_t key) {
    return p.part(p.qkv, place + key * p.shape.kv_stride);
  };
  host->attention_forward(first, view(p.qkv), from(p.k_at, 0), from(p.v_at, 0), view(part), view(lse));
  host->copy_runs(device::Runs{.width = static_cast<std::int64_t>(part.size())}, view(part), view(sum));
  host->attention_forward(rest, view(p.qkv), from(p.k_at, 60), from(p.v_at, 60), view(part), view(lse_part));
  host->attention_merge(rest, view(part), view(lse_part), view(sum), view(lse));
  CHECK(error_of(sum, expected.o) < 1e-2);
  CHECK(error_of(lse, expected.lse) < 2e-6);
}

TEST_CASE("heads that are too wide are refused with their width") {
  TestHost host(1);
  std::vector<float> x(3 * 300);
  std::vector<float> lse(1);
  const AttentionShape shape{.batch = 1,
                             .queries = 1,
                             .keys = 1,
                             .heads = 1,
                             .kv_heads = 1,
                             .head_dim = 300,
                             .causal = true,
                             .q_stride = 900,
                             .kv_stride = 900,
                             .out_stride = 300};
  std::vector<float> o(300);
  CHECK_THROWS_WITH_AS(host->attention_forward(shape, view(x), view(x), view(x), view(o), view(lse)),
                       "the host's attention has heads of at most 256 elements, not 300", DeviceFailure);
}
