// Compressed dispatch on one rank: rotations, buckets, and the gradient against finite differences.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/core/rng.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/runtime/lsh.hpp>

namespace {

using namespace galvatron;
using device::kernels::CrossPolytope;
using Floats = std::vector<float>;

template <class T>
View<T> all_of(std::vector<T>& v) {
  return {v.data(), static_cast<std::int64_t>(v.size())};
}
template <class T>
View<const T> all_of(const std::vector<T>& v) {
  return {v.data(), static_cast<std::int64_t>(v.size())};
}

// A rank with tokens (T, width) that choose k of E experts.
struct CompressingRank {
  static constexpr std::int64_t tokens = 24, width = 12, experts = 3, active = 2;
  static constexpr Bytes size{8 << 20};

  CompressingRank(runtime::Rotation kind, const device::ResidualGain& gain)
      : rotations(static_cast<std::size_t>(runtime::rotation_elements(kind, hashing, width))),
        compression(host, hashing,
                    kind == runtime::Rotation::drawn
                        ? runtime::Rotations<float>{.drawn = all_of(std::as_const(rotations))}
                        : runtime::Rotations<float>{.signs = all_of(std::as_const(rotations))},
                    width, gain) {
    runtime::draw_rotations(kind, 5, 3, all_of(rotations));
    x.resize(tokens * width);
    weights.resize(tokens * active);
    dy.resize(x.size());
    fill_normal(all_of(x), 1, 0, 0, 0.2F);
    fill_normal(all_of(weights), 1, 1, 0, 1);
    fill_normal(all_of(dy), 1, 2, 0, 1);
    for (std::int64_t t = 0; t < tokens; ++t)  // four directions
      x[static_cast<std::size_t>(t * width + t % 4)] += 2;
    std::vector<std::int32_t> chosen;
    for (std::int64_t t = 0; t < tokens; ++t) {
      chosen.push_back(static_cast<std::int32_t>(t % experts));
      chosen.push_back(static_cast<std::int32_t>((t + 1 + t % 2) % experts));
    }
    order.resize(chosen.size());
    places.resize(chosen.size());
    offsets.resize(experts + 1);
    host.order_choices(device::ChoiceOrder{.experts = experts, .active = active}, tokens, all_of(std::as_const(chosen)),
                       all_of(std::as_const(weights)), all_of(order), all_of(places), all_of(offsets));
    buckets = runtime::take_buckets(memory, experts, active, tokens * active, all_of(std::as_const(order)),
                                    all_of(std::as_const(offsets)));
    const runtime::HashingScratch scratch(memory, hashing, tokens, tokens * active);
    means.resize(order.size() * width);
    compression.compress(tokens, all_of(std::as_const(x)), scratch, buckets, all_of(means));
    means.resize(static_cast<std::size_t>(count() * width));
  }
  [[nodiscard]] std::int64_t count() const { return buckets.bounds[experts]; }

  // Experts without weights: e_i = sin((1 + expert) c_i + c_(i+1)).
  template <class F>
  void for_outputs(const F& f) const {
    for (std::int64_t e = 0; e < experts; ++e)
      for (std::int64_t j = buckets.bounds[e]; j < buckets.bounds[e + 1]; ++j)
        for (std::int64_t i = 0; i < width; ++i)
          f(static_cast<std::size_t>(j * width + i), static_cast<std::size_t>(j * width + (i + 1) % width),
            static_cast<float>(1 + e));
  }
  [[nodiscard]] Floats outputs_of(const Floats& c) const {
    Floats out(c.size());
    for_outputs([&](std::size_t i, std::size_t next, float a) { out[i] = std::sin(a * c[i] + c[next]); });
    return out;
  }
  // Of the buckets that were found: the sum of dy * y.
  double loss(const Floats& tokens_of, const Floats& weights_of) {
    Floats c(means.size());
    Floats y(x.size());
    host.bucket_sums(buckets, width, true, View<const float>{}, all_of(tokens_of), all_of(c));
    const Floats e = outputs_of(c);
    compression.decompress(tokens, buckets, all_of(std::as_const(places)), all_of(weights_of), all_of(e),
                           all_of(tokens_of), all_of(std::as_const(c)), all_of(y));
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += static_cast<double>(dy[i]) * static_cast<double>(y[i]);
    return sum;
  }

  CrossPolytope hashing{2, 4};
  device::Mapping mapping{{2 * size.count}, false};
  device::Region memory = mapping.region("memory", 0, size);
  device::Region library = mapping.region("library", size.count, size);
  device::Host host{1, library.take<std::byte>(device::Host::library_workspace_bytes(1))};
  Floats rotations, x, weights, dy, means;
  std::vector<std::int32_t> order, places, offsets;
  device::TokenBuckets buckets;
  runtime::Compression<device::Host, float> compression;
};

// The share of pairs of unit vectors at this angle that one hash puts together.
double share_together(runtime::Rotation kind, double angle) {
  constexpr std::int64_t width = 32;
  constexpr std::int64_t hashes = 2000;
  const CrossPolytope hashing{hashes, 8};
  Floats rotations(static_cast<std::size_t>(runtime::rotation_elements(kind, hashing, width)));
  runtime::draw_rotations(kind, 11, 0, all_of(rotations));
  std::vector<std::byte> workspace(static_cast<std::size_t>(device::Host::library_workspace_bytes(1)) + 64);
  const auto first = 64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64;
  device::Host host(1, {workspace.data() + first, device::Host::library_workspace_bytes(1)});
  Floats x(2 * width);
  x[3] = 1;
  x[width + 3] = static_cast<float>(std::cos(angle));
  x[width + 17] = static_cast<float>(std::sin(angle));
  Floats v(static_cast<std::size_t>(2 * hashing.columns()));
  std::vector<std::int32_t> codes(2 * hashes);
  if (kind == runtime::Rotation::drawn)
    host.gemm(op::Kind::gemm_nt, 2, hashing.columns(), width, all_of(std::as_const(x)),
              all_of(std::as_const(rotations)), all_of(v));
  else
    host.rotate_by_signs(hashing, 2, width, all_of(std::as_const(x)), all_of(std::as_const(rotations)), all_of(v));
  host.hash_rows(hashing, 2, all_of(std::as_const(v)), all_of(codes));
  int together = 0;
  for (std::size_t h = 0; h < hashes; ++h) together += codes[h] == codes[hashes + h] ? 1 : 0;
  return together / static_cast<double>(hashes);
}

}  // namespace

TEST_CASE("near rows hash alike more often, by either rotation") {
  for (const runtime::Rotation kind : {runtime::Rotation::drawn, runtime::Rotation::hadamard}) {
    CAPTURE(static_cast<int>(kind));
    const double near = share_together(kind, 0.2);
    const double middle = share_together(kind, 0.8);
    const double right = share_together(kind, 1.5707963);
    CHECK(near > 0.7);
    CHECK(middle < near);
    CHECK(right == doctest::Approx(1.0 / 16).epsilon(0.35));
    CHECK(share_together(kind, 3.1415927) == 0);
  }
  CHECK(share_together(runtime::Rotation::drawn, 0.5) ==
        doctest::Approx(share_together(runtime::Rotation::hadamard, 0.5)).epsilon(0.1));
}

TEST_CASE("rotations are a function of the seed and the layer") {
  for (const runtime::Rotation kind : {runtime::Rotation::drawn, runtime::Rotation::hadamard}) {
    const auto drawn = [kind](std::uint64_t seed, int layer) {
      Floats out(static_cast<std::size_t>(runtime::rotation_elements(kind, {3, 4}, 10)));
      runtime::draw_rotations(kind, seed, layer, all_of(out));
      return out;
    };
    CHECK(drawn(1, 2) == drawn(1, 2));
    CHECK(drawn(1, 2) != drawn(1, 3));
    CHECK(drawn(1, 2) != drawn(2, 2));
  }
}

TEST_CASE("with a bucket for each choice compressed dispatch is plain dispatch") {
  CompressingRank rank(runtime::Rotation::drawn, {});
  rank.means.resize(rank.order.size() * CompressingRank::width);
  rank.compression.pass(all_of(std::as_const(rank.x)), rank.buckets, all_of(rank.means));
  CHECK(rank.count() == CompressingRank::tokens * CompressingRank::active);
  Floats gathered(rank.means.size());
  rank.host.gather_rows(CompressingRank::active, CompressingRank::width, static_cast<std::int64_t>(rank.order.size()),
                        all_of(std::as_const(rank.order)), all_of(std::as_const(rank.x)), all_of(gathered));
  CHECK(rank.means == gathered);
  const Floats outputs = rank.outputs_of(rank.means);
  Floats y(rank.x.size());
  rank.compression.decompress(CompressingRank::tokens, rank.buckets, all_of(std::as_const(rank.places)),
                              all_of(std::as_const(rank.weights)), all_of(outputs), all_of(std::as_const(rank.x)),
                              all_of(std::as_const(rank.means)), all_of(y));
  Floats plain(y.size());
  rank.host.combine_rows(CompressingRank::tokens, CompressingRank::active, CompressingRank::width,
                         all_of(std::as_const(rank.places)), all_of(std::as_const(rank.weights)), all_of(outputs),
                         all_of(plain));
  CHECK(y == plain);
}

TEST_CASE("rows of bfloat16 are hashed as the numbers that they are") {
  constexpr std::int64_t tokens = 1500;  // more than are rotated at a time
  constexpr std::int64_t width = 16;
  const CrossPolytope hashing{3, 4};
  device::Mapping mapping({16 << 20}, false);
  device::Region memory = mapping.region("memory", 0, mapping.size());
  device::Host host(1, memory.take<std::byte>(device::Host::library_workspace_bytes(1)));
  if (!device::Host::supports(Precision::bf16)) {
    MESSAGE("skipped: this processor multiplies no matrices of bfloat16");
    return;
  }
  const auto rounded = [](const Floats& values) { return std::vector<bfloat16>(values.begin(), values.end()); };
  Floats drawn(static_cast<std::size_t>(hashing.columns() * width));
  runtime::draw_rotations(runtime::Rotation::drawn, 3, 0, all_of(drawn));
  Floats numbers(tokens * width);
  fill_normal(all_of(numbers), 4, 0, 0, 1);
  const std::vector<bfloat16> rotations = rounded(drawn);
  const std::vector<bfloat16> x = rounded(numbers);
  std::vector<std::int32_t> order(tokens);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  const std::vector<std::int32_t> offsets{0, tokens};
  const device::TokenBuckets buckets =
      runtime::take_buckets(memory, 1, 1, tokens, all_of(std::as_const(order)), all_of(offsets));
  const runtime::HashingScratch scratch(memory, hashing, tokens, tokens);
  std::vector<bfloat16> means(x.size());
  runtime::Compression<device::Host, bfloat16> compression(host, hashing, {.drawn = all_of(rotations)}, width, {});
  compression.compress(tokens, all_of(x), scratch, buckets, all_of(means));
  int compared = 0;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t h = 0; h < hashing.hashes; ++h) {
      std::vector<std::pair<double, std::int32_t>> vertices;
      for (std::int64_t i = 0; i < hashing.width; ++i) {
        double v = 0;
        for (std::int64_t c = 0; c < width; ++c)
          v += static_cast<double>(static_cast<float>(x[static_cast<std::size_t>(t * width + c)])) *
               static_cast<double>(
                   static_cast<float>(rotations[static_cast<std::size_t>((h * hashing.width + i) * width + c)]));
        vertices.emplace_back(v, static_cast<std::int32_t>(i));
        vertices.emplace_back(-v, static_cast<std::int32_t>(hashing.width + i));
      }
      std::sort(vertices.begin(), vertices.end());
      const auto& [first, code] = vertices[vertices.size() - 1];
      if (first - vertices[vertices.size() - 2].first < 1e-3) continue;  // rounding may decide
      ++compared;
      CHECK(scratch.codes[t * hashing.hashes + h] == code);
    }
  CHECK(compared > 9 * tokens * hashing.hashes / 10);
  for (std::int64_t t = 0; t < tokens; ++t) {  // alone in its bucket, a token is its mean
    const std::int64_t j = buckets.bucket[t];
    if (buckets.begins[j + 1] - buckets.begins[j] != 1) continue;
    for (std::int64_t c = 0; c < width; ++c)
      CHECK(means[static_cast<std::size_t>(j * width + c)].bits == x[static_cast<std::size_t>(t * width + c)].bits);
  }
}

TEST_CASE("the gradient of compressed dispatch is exact, whatever is done with the residual") {
  Floats gains{0.5F, 0.0F, -1.5F};
  for (const runtime::Rotation kind : {runtime::Rotation::drawn, runtime::Rotation::hadamard})
    for (const device::ResidualGain& gain : {device::ResidualGain{1, {}}, device::ResidualGain{0, {}},
                                             device::ResidualGain{1, all_of(std::as_const(gains))}}) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(gain.of_all);
      CompressingRank rank(kind, gain);
      CHECK(rank.count() > CompressingRank::experts);
      CHECK(rank.count() < CompressingRank::tokens * CompressingRank::active);

      const View<const std::int32_t> places = all_of(std::as_const(rank.places));
      const View<const float> weights = all_of(std::as_const(rank.weights));
      const View<const float> dy = all_of(std::as_const(rank.dy));
      const Floats outputs = rank.outputs_of(rank.means);
      Floats sums(rank.means.size());
      rank.compression.compress_gradient(rank.buckets, weights, dy, all_of(sums));
      Floats d_means(sums.size());
      rank.for_outputs([&](std::size_t i, std::size_t next, float a) {
        const float slope = std::cos(a * rank.means[i] + rank.means[next]) * sums[i];
        d_means[i] += a * slope;
        d_means[next] += slope;
      });
      Floats dx(rank.x.size());
      rank.compression.decompress_gradient(CompressingRank::tokens, rank.buckets, places, weights, dy,
                                           all_of(std::as_const(d_means)), all_of(std::as_const(sums)), all_of(dx));
      Floats d_weights(rank.weights.size());
      rank.compression.weights_backward(CompressingRank::tokens, rank.buckets, places, all_of(outputs),
                                        all_of(std::as_const(rank.x)), all_of(std::as_const(rank.means)), dy,
                                        all_of(d_weights));

      Floats d_gains(CompressingRank::experts);
      rank.compression.gain_backward(rank.buckets, weights, all_of(std::as_const(rank.x)),
                                     all_of(std::as_const(rank.means)), dy, all_of(d_gains));
      Floats x = rank.x;
      Floats w = rank.weights;
      constexpr float step = 0x1p-5F;
      const auto check = [&](Floats& values, const Floats& gradient, std::size_t every) {
        for (std::size_t i = 0; i < values.size(); i += every) {
          CAPTURE(i);
          const float before = values[i];
          values[i] = before + step;
          const double above = rank.loss(x, w);
          values[i] = before - step;
          const double below = rank.loss(x, w);
          values[i] = before;
          CHECK((above - below) / (2 * static_cast<double>(step)) ==
                doctest::Approx(static_cast<double>(gradient[i])).epsilon(1e-3).scale(5));
        }
      };
      check(x, dx, 5);
      check(w, d_weights, 5);
      if (!gain.of_expert.empty()) check(gains, d_gains, 1);
    }
}
