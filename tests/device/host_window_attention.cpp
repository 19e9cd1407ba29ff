// Attention in windows, and means over tokens, of the host device against their definitions in double precision.
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/core/error.hpp>

#include "host_fixture.hpp"

using namespace galvatron;
using namespace galvatron::test;
using device::Isa;
using device::WindowShape;

namespace {

// Queries, keys and values of one token in a row, and one number more that nobody may touch.
template <class T>
struct Problem {
  WindowShape shape;
  std::vector<T> qkv, d_o, table;

  Problem(std::mt19937& random, const WindowShape& s) : shape(s) {
    const std::int64_t rows = s.tokens() * s.batch;
    qkv = random_tensor<T>(random, rows * s.stride, 2.0F);
    d_o = random_tensor<T>(random, rows * s.out_stride);
    table = random_tensor<T>(random, s.bias_rows() * s.heads, 2.0F);
  }
  [[nodiscard]] std::int64_t width() const { return shape.heads * shape.head_dim; }
};

WindowShape shape_of(std::int64_t batch, std::int64_t side, std::int64_t window, std::int64_t shift, std::int64_t heads,
                     std::int64_t head_dim) {
  return {.batch = batch,
          .side = side,
          .window = window,
          .shift = shift,
          .heads = heads,
          .head_dim = head_dim,
          .stride = 3 * heads * head_dim + 1,
          .out_stride = heads * head_dim + 1};
}

struct Results {
  std::vector<double> o, lse, dqkv, dtable;
};

// Pairs of tokens of one window whose coordinates do not wrap differently.
template <class T>
Results reference(const Problem<T>& p) {
  const WindowShape& s = p.shape;
  Results r;
  r.o.assign(p.d_o.size(), 0.0);
  r.lse.assign(at(s.batch * s.heads * s.tokens()), 0.0);
  r.dqkv.assign(p.qkv.size(), 0.0);
  r.dtable.assign(p.table.size(), 0.0);
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  // Of a coordinate: the number of its window, its place there, and whether it is over the edge.
  struct Place {
    std::int64_t window, in_window;
    bool over;
  };
  const auto place = [&](std::int64_t coordinate) {
    const std::int64_t rolled = (coordinate - s.shift + s.side) % s.side;
    return Place{rolled / s.window, rolled % s.window, rolled + s.shift >= s.side};
  };
  const auto see = [](const Place& a, const Place& b) { return a.window == b.window && a.over == b.over; };
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t head = 0; head < s.heads; ++head)
      for (std::int64_t i = 0; i < s.tokens(); ++i) {
        const std::int64_t q = (i * s.batch + b) * s.stride + head * s.head_dim;
        const std::int64_t out = (i * s.batch + b) * s.out_stride + head * s.head_dim;
        struct Key {
          std::int64_t at, entry;
          double weight;
        };
        std::vector<Key> keys;
        double sum = 0;
        for (std::int64_t j = 0; j < s.tokens(); ++j) {
          const Place y = place(i / s.side), v = place(j / s.side), x = place(i % s.side), u = place(j % s.side);
          if (!see(y, v) || !see(x, u)) continue;
          const std::int64_t k = (j * s.batch + b) * s.stride + head * s.head_dim;
          const std::int64_t distance = (y.in_window - v.in_window + s.window - 1) * (2 * s.window - 1) + x.in_window -
                                        u.in_window + s.window - 1;
          double score = 0;
          for (std::int64_t d = 0; d < s.head_dim; ++d)
            score += static_cast<double>(static_cast<float>(p.qkv[at(q + d)])) *
                     static_cast<float>(p.qkv[at(k + p.width() + d)]);
          const std::int64_t entry = distance * s.heads + head;
          keys.push_back({k, entry, std::exp(score * scale + static_cast<float>(p.table[at(entry)]))});
          sum += keys.back().weight;
        }
        r.lse[at((b * s.heads + head) * s.tokens() + i)] = std::log(sum);
        double delta = 0;
        const auto product = [&](const Key& key) {
          double dp = 0;
          for (std::int64_t d = 0; d < s.head_dim; ++d)
            dp += static_cast<double>(static_cast<float>(p.d_o[at(out + d)])) *
                  static_cast<float>(p.qkv[at(key.at + 2 * p.width() + d)]);
          return dp;
        };
        for (Key& key : keys) {
          key.weight /= sum;
          delta += key.weight * product(key);
          for (std::int64_t d = 0; d < s.head_dim; ++d)
            r.o[at(out + d)] += key.weight * static_cast<float>(p.qkv[at(key.at + 2 * p.width() + d)]);
        }
        for (const Key& key : keys) {
          const double ds = key.weight * (product(key) - delta);
          r.dtable[at(key.entry)] += ds;
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            r.dqkv[at(key.at + 2 * p.width() + d)] += key.weight * static_cast<float>(p.d_o[at(out + d)]);
            r.dqkv[at(q + d)] += ds * scale * static_cast<float>(p.qkv[at(key.at + p.width() + d)]);
            r.dqkv[at(key.at + p.width() + d)] += ds * scale * static_cast<float>(p.qkv[at(q + d)]);
          }
        }
      }
  return r;
}

template <class T>
struct Outputs {
  std::vector<T> o, dqkv;
  std::vector<float> lse, dtable;
};

template <class T>
Outputs<T> compute(device::Host& host, Problem<T>& p) {
  const WindowShape& s = p.shape;
  Outputs<T> out{std::vector<T>(p.d_o.size()), std::vector<T>(p.qkv.size()),
                 std::vector<float>(at(s.batch * s.heads * s.tokens())), std::vector<float>(p.table.size())};
  const auto part = [&](std::vector<T>& all, std::int64_t number) {
    return view(all).slice(number * p.width(), static_cast<std::int64_t>(all.size()) - number * p.width());
  };
  host.window_attention_forward(s, part(p.qkv, 0), part(p.qkv, 1), part(p.qkv, 2), view(p.table), view(out.o),
                                view(out.lse));
  host.window_attention_backward(s, part(p.qkv, 0), part(p.qkv, 1), part(p.qkv, 2), view(p.table), view(out.lse),
                                 view(p.d_o), part(out.dqkv, 0), part(out.dqkv, 1), part(out.dqkv, 2),
                                 view(out.dtable));
  return out;
}

template <class T>
double error_of(const std::vector<T>& got, const std::vector<double>& wanted) {
  double error = 0;
  double greatest = 1;  // of what is added up, also where the sum is 0
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double e = std::abs(static_cast<double>(static_cast<float>(got[i])) - wanted[i]);
    error = std::isnan(e) ? INFINITY : std::max(error, e);
    greatest = std::max(greatest, std::abs(wanted[i]));
  }
  return error / greatest;
}

template <class T>
void check(std::mt19937& random, int threads, Isa isa, const WindowShape& shape, double tolerance) {
  Problem<T> problem(random, shape);
  TestHost host(threads, isa);
  const auto got = compute(*host, problem);
  const auto wanted = reference(problem);
  CAPTURE(test::name_of(isa));
  CAPTURE(threads);
  CAPTURE(shape.side);
  CAPTURE(shape.window);
  CAPTURE(shape.shift);
  CAPTURE(shape.head_dim);
  CHECK(error_of(got.o, wanted.o) < tolerance);
  CHECK(error_of(got.lse, wanted.lse) < tolerance);
  CHECK(error_of(got.dqkv, wanted.dqkv) < tolerance);
  CHECK(error_of(got.dtable, wanted.dtable) < tolerance);
}

const std::array shapes{shape_of(2, 4, 4, 0, 2, 8),  shape_of(1, 8, 4, 2, 3, 16), shape_of(2, 14, 7, 3, 2, 32),
                        shape_of(1, 6, 3, 1, 1, 5),  shape_of(3, 6, 2, 1, 2, 40), shape_of(1, 24, 12, 6, 1, 32),
                        shape_of(2, 3, 1, 0, 2, 16), shape_of(1, 2, 2, 0, 4, 64), shape_of(1, 6, 3, 2, 2, 8)};

}  // namespace

TEST_CASE("attention in windows equals its definition, shifted or not, on every instruction set") {
  std::mt19937 random(20261121);
  for (const WindowShape& shape : shapes)
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
      if (isa > device::best_isa()) continue;
      for (const int threads : {1, 3}) check<float>(random, threads, isa, shape, 5e-6);
    }
}

TEST_CASE("attention in windows of bfloat16 differs from its definition by rounding only") {
  std::mt19937 random(20261122);
  for (const WindowShape& shape : shapes) check<bfloat16>(random, 2, device::best_isa(), shape, 2e-2);
}

TEST_CASE("attention in windows gives the same bits again, and the table's gradient grows") {
  std::mt19937 random(20261123);
  Problem<float> problem(random, shape_of(4, 14, 7, 3, 3, 32));
  TestHost host(3);
  const auto first = compute(*host, problem);
  const auto second = compute(*host, problem);
  CHECK(first.o == second.o);
  CHECK(first.dqkv == second.dqkv);
  CHECK(first.dtable == second.dtable);
  TestHost alone(1);
  CHECK(compute(*alone, problem).o == first.o);
  CHECK(first.o.back() == 0);  // between rows
  Outputs<float> grown = first;
  const auto part = [&](std::vector<float>& all, std::int64_t number) {
    return view(all).slice(number * problem.width(), static_cast<std::int64_t>(all.size()) - number * problem.width());
  };
  host->window_attention_backward(problem.shape, part(problem.qkv, 0), part(problem.qkv, 1), part(problem.qkv, 2),
                                  view(problem.table), view(first.lse), view(problem.d_o), part(grown.dqkv, 0),
                                  part(grown.dqkv, 1), part(grown.dqkv, 2), view(grown.dtable));
  for (std::size_t i = 0; i < grown.dtable.size(); ++i)
    CHECK(grown.dtable[i] == doctest::Approx(2 * first.dtable[i]).epsilon(1e-6));
}

TEST_CASE("windows that are too large for the workspace are refused with their size") {
  std::mt19937 random(20261124);
  Problem<float> problem(random, shape_of(1, 40, 40, 0, 1, 8));
  TestHost host(1);
  try {
    compute(*host, problem);
    FAIL("nothing was refused");
  } catch (const DeviceFailure& failure) {
    CHECK(std::string(failure.what()).find("windows of 40 x 40 tokens") != std::string::npos);
  }
}

TEST_CASE("means over tokens, and their gradients") {
  std::mt19937 random(20261125);
  constexpr std::int64_t tokens = 37, b = 3, hidden = 50;
  const auto x = random_tensor<float>(random, tokens * b * hidden);
  for (const int threads : {1, 3}) {
    TestHost host(threads);
    std::vector<float> mean(b * hidden);
    host->pool_forward(tokens, b, hidden, 1.0F / tokens, view(x), view(mean));
    for (std::int64_t i = 0; i < b * hidden; ++i) {
      double sum = 0;
      for (std::int64_t s = 0; s < tokens; ++s) sum += x[at(s * b * hidden + i)];
      CHECK(mean[at(i)] == doctest::Approx(sum / tokens).epsilon(1e-5));
    }
    std::vector<float> spread(x.size());
    host->pool_backward(tokens, b, hidden, 0.5F, view(std::as_const(mean)), view(spread));
    for (std::size_t i = 0; i < spread.size(); ++i) CHECK(spread[i] == 0.5F * mean[i % mean.size()]);
  }
}
