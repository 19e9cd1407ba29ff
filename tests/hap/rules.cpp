// Rules of operations with experts and of convolutions: what devices compute from shards are shards of the result.
#include <galvatron/hap/rules.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/hap/check.hpp>

namespace {

using namespace galvatron;
using hap::Layout;
using hap::Operation;

constexpr int devices = 2;

struct Array {
  std::vector<std::int64_t> shape;
  std::vector<double> values;

  explicit Array(std::vector<std::int64_t> of) : shape(std::move(of)), values(static_cast<std::size_t>(count())) {}
  [[nodiscard]] std::int64_t count() const {
    std::int64_t out = 1;
    for (const std::int64_t extent : shape) out *= extent;
    return out;
  }
  /// By one index for each dimension.
  double& at(std::initializer_list<std::int64_t> index) {
    std::int64_t place = 0;
    std::size_t d = 0;
    for (const std::int64_t i : index) place = place * shape[d++] + i;
    return values[static_cast<std::size_t>(place)];
  }
};

Array random_array(std::mt19937& random, std::vector<std::int64_t> shape) {
  Array out(std::move(shape));
  for (double& value : out.values) value = std::uniform_real_distribution<double>(-1, 1)(random);
  return out;
}

// Elements before a dimension, and of one index of it.
std::pair<std::int64_t, std::int64_t> around(const Array& a, int dimension) {
  std::int64_t before = 1;
  std::int64_t behind = 1;
  for (int d = 0; d < static_cast<int>(a.shape.size()); ++d)
    (d < dimension ? before : behind) *= d == dimension ? 1 : a.shape[static_cast<std::size_t>(d)];
  return {before, behind};
}
Array half(const Array& whole, int dimension, int device) {
  std::vector<std::int64_t> shape = whole.shape;
  const std::int64_t all = shape[static_cast<std::size_t>(dimension)];
  REQUIRE(all % devices == 0);
  const std::int64_t own = shape[static_cast<std::size_t>(dimension)] = all / devices;
  Array out(std::move(shape));
  const auto [before, behind] = around(whole, dimension);
  for (std::int64_t i = 0; i < before; ++i)
    std::copy_n(whole.values.begin() + (i * all + device * own) * behind, own * behind,
                out.values.begin() + i * own * behind);
  return out;
}
// What a device has of an operand.
Array local(std::mt19937 random, const Array& whole, Layout layout, int device) {
  if (layout == hap::replicate) return whole;
  if (layout.is_shard()) return half(whole, layout.code, device);
  Array part = random_array(random, whole.shape);  // the same on both devices
  if (device == 1)
    for (std::size_t i = 0; i < part.values.size(); ++i) part.values[i] = whole.values[i] - part.values[i];
  return part;
}

// The expert of a token, and its slot among the expert's; -1: there is none left. Every sample has slots of its own.
std::vector<std::pair<std::int64_t, std::int64_t>> places(Array& scores, std::int64_t slots) {
  const std::int64_t b = scores.shape[0];
  const std::int64_t e = scores.shape[2];
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  for (std::int64_t i = 0; i < b; ++i) {
    std::vector<std::int64_t> used(static_cast<std::size_t>(e), 0);
    for (std::int64_t t = 0; t < scores.shape[1]; ++t) {
      std::int64_t best = 0;
      for (std::int64_t x = 1; x < e; ++x)
        if (scores.at({i, t, x}) > scores.at({i, t, best})) best = x;
      std::int64_t& next = used[static_cast<std::size_t>(best)];
      out.emplace_back(best, next < slots / b ? i * (slots / b) + next++ : -1);
    }
  }
  return out;
}

// @param first  expert, of the slots here
// @param slots  of an expert, on this device
Array computed(Operation operation, std::vector<Array>& in, std::int64_t slots, std::int64_t first) {
  Array& x = in[0];
  switch (operation) {
    case Operation::dispatch: {
      Array& scores = in[1];
      Array out({scores.shape[2], slots, x.shape[2]});
      const auto at = places(scores, slots);
      for (std::int64_t i = 0; i < x.shape[0] * x.shape[1]; ++i)
        for (std::int64_t j = 0; j < x.shape[2]; ++j)
          if (const auto [expert, slot] = at[static_cast<std::size_t>(i)]; slot >= 0)
            out.at({expert, slot, j}) = x.values[static_cast<std::size_t>(i * x.shape[2] + j)];
      return out;
    }
    case Operation::combine: {
      Array& scores = in[1];
      Array out({scores.shape[0], scores.shape[1], x.shape[2]});
      const auto at = places(scores, slots);
      for (std::int64_t i = 0; i < scores.shape[0] * scores.shape[1]; ++i)
        for (std::int64_t j = 0; j < x.shape[2]; ++j) {
          const auto [expert, slot] = at[static_cast<std::size_t>(i)];
          if (slot < 0 || expert < first || expert >= first + x.shape[0]) continue;
          out.values[static_cast<std::size_t>(i * x.shape[2] + j)] =
              scores.values[static_cast<std::size_t>(i * scores.shape[2] + expert)] * x.at({expert - first, slot, j});
        }
      return out;
    }
    case Operation::expert_linear: {
      Array& w = in[1];
      Array out({x.shape[0], x.shape[1], w.shape[1]});
      for (std::int64_t e = 0; e < x.shape[0]; ++e)
        for (std::int64_t c = 0; c < x.shape[1]; ++c)
          for (std::int64_t o = 0; o < w.shape[1]; ++o)
            for (std::int64_t i = 0; i < x.shape[2]; ++i) out.at({e, c, o}) += x.at({e, c, i}) * w.at({e, o, i});
      return out;
    }
    case Operation::convolution: {  // of 2 x 2 places that do not overlap
      Array& w = in[1];
      Array out({x.shape[0], w.shape[0], x.shape[2] / 2, x.shape[3] / 2});
      for (std::int64_t b = 0; b < out.shape[0]; ++b)
        for (std::int64_t o = 0; o < out.shape[1]; ++o)
          for (std::int64_t i = 0; i < x.shape[1]; ++i)
            for (std::int64_t p = 0; p < x.shape[2]; ++p)
              for (std::int64_t q = 0; q < x.shape[3]; ++q)
                out.at({b, o, p / 2, q / 2}) += x.at({b, i, p, q}) * w.at({o, i, p % 2, q % 2});
      return out;
    }
    case Operation::pool: {
      Array out({x.shape[0], x.shape[1], x.shape[2] / 2, x.shape[3] / 2});
      std::ranges::fill(out.values, -2);
      for (std::int64_t b = 0; b < x.shape[0]; ++b)
        for (std::int64_t c = 0; c < x.shape[1]; ++c)
          for (std::int64_t p = 0; p < x.shape[2]; ++p)
            for (std::int64_t q = 0; q < x.shape[3]; ++q) {
              double& most = out.at({b, c, p / 2, q / 2});
              most = std::max(most, x.at({b, c, p, q}));
            }
      return out;
    }
    default: {
      Array out({x.shape[0], x.count() / x.shape[0]});
      out.values = x.values;
      return out;
    }
  }
}

void check_rules(Operation operation, const std::vector<std::vector<std::int64_t>>& shapes, std::int64_t slots,
                 std::size_t rules) {
  std::mt19937 random(7);
  hap::Graph graph;
  std::vector<int> ids;
  std::vector<Array> operands;
  for (const auto& shape : shapes) {
    ids.push_back(graph.add(Operation::placeholder, {}, "t" + std::to_string(ids.size()), shape));
    operands.push_back(random_array(random, shape));
  }
  const Array whole = computed(operation, operands, slots, 0);
  graph.loss = graph.add(operation, ids, "y", whole.shape);
  CHECK(hap::problem_of(graph) == "");
  const std::vector<hap::Rule> all = hap::rules_of(graph, graph.nodes.back(), hap::Dialect::paper);
  CHECK(all.size() == rules);
  CHECK(hap::rules_of(graph, graph.nodes.back(), hap::Dialect::released).empty());
  for (const hap::Rule& rule : all) {
    INFO(std::string(hap::row_of(operation).name), ", result ", name_of(rule.result));
    for (int device = 0; device < devices; ++device) {
      std::vector<Array> own;
      for (std::size_t i = 0; i < operands.size(); ++i)
        own.push_back(local(random, operands[i], rule.operands[i], device));
      const bool of_experts = operation == Operation::combine && rule.operands[0] == hap::shard(0);
      const bool of_samples = rule.result == hap::shard(operation == Operation::dispatch ? 1 : 0) &&
                              (operation == Operation::dispatch || operation == Operation::combine);
      const std::int64_t first = of_experts ? device * own[0].shape[0] : 0;
      const Array got = computed(operation, own, of_samples ? slots / devices : slots, first);
      if (rule.result == hap::partial_sums) {
        if (device == 0) continue;
        std::vector<Array> other;
        for (std::size_t i = 0; i < operands.size(); ++i)
          other.push_back(local(random, operands[i], rule.operands[i], 0));
        const Array rest = computed(operation, other, slots, 0);
        REQUIRE(got.shape == whole.shape);
        for (std::size_t i = 0; i < whole.values.size(); ++i)
          CHECK(got.values[i] + rest.values[i] == doctest::Approx(whole.values[i]).epsilon(1e-12));
        continue;
      }
      const Array expected = rule.result == hap::replicate ? whole : half(whole, rule.result.code, device);
      REQUIRE(got.shape == expected.shape);
      for (std::size_t i = 0; i < expected.values.size(); ++i)
        CHECK(got.values[i] == doctest::Approx(expected.values[i]).epsilon(1e-12));
    }
  }
}

}  // namespace

TEST_CASE("shards of tokens, slots and experts give shards of what the whole operations give") {
  check_rules(Operation::dispatch, {{4, 6, 8}, {4, 6, 2}}, 16, 3);
  check_rules(Operation::expert_linear, {{2, 4, 6}, {2, 8, 6}}, 4, 5);
  check_rules(Operation::combine, {{2, 16, 8}, {4, 6, 2}}, 16, 5);
}

TEST_CASE("shards of samples and channels give shards of what convolutions give") {
  check_rules(Operation::convolution, {{2, 4, 4, 6}, {6, 4, 2, 2}}, 0, 4);
  check_rules(Operation::pool, {{2, 4, 4, 6}}, 0, 3);
  check_rules(Operation::flatten, {{2, 4, 4, 6}}, 0, 4);
}
