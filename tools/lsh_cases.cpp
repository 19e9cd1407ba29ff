// Cases of compressed dispatch (runtime/lsh.hpp), in fp32 on this machine's cores.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/rng.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/runtime/lsh.hpp>

#include "moe_cases.hpp"

namespace galvatron::tools {

namespace {

using device::kernels::CrossPolytope;
using nlohmann::ordered_json;
using Floats = std::vector<float>;
using Numbers = std::vector<std::int32_t>;

Numbers numbers_up_to(std::int64_t count) {
  Numbers out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

// E(c) = w2 silu(w1 c), by the operations of SwiGLU with ones for the up projection.
class SiluExpert {
 public:
  /// @param w1, w2  (f, d) and (d, f)
  SiluExpert(device::Host& host, std::int64_t d, View<const float> w1, View<const float> w2)
      : host_(host),
        d_(d),
        f_(w1.count / d),
        w1_(w1),
        w2_(w2),
        d_w1(zeros<float>(w1.count)),
        d_w2(zeros<float>(w2.count)) {}

  /// c (rows, d) -> (rows, d).
  Floats forward(View<const float> c) {
    const std::int64_t rows = c.count / d_;
    Floats a = zeros<float>(rows * f_);
    host_.gemm(op::Kind::gemm_nt, rows, f_, d_, c, w1_, view_of(a));
    u_.assign(static_cast<std::size_t>(2 * rows * f_), 1.0F);
    host_.copy_runs(device::Runs{.rows = rows, .width = f_, .from = {.row = f_}, .to = {.row = 2 * f_}},
                    const_view_of(a), view_of(u_));
    g_ = std::move(a);
    host_.activation_forward(ActivationKind::swiglu, rows, f_, const_view_of(u_), view_of(g_));
    Floats y = zeros<float>(rows * d_);
    host_.gemm(op::Kind::gemm_nt, rows, d_, f_, const_view_of(g_), w2_, view_of(y));
    return y;
  }
  /// dc (rows, d) from c and dy; gradients of the weights are added. After forward(c).
  Floats backward(View<const float> c, View<const float> dy) {
    const std::int64_t rows = c.count / d_;
    Floats dg = zeros<float>(rows * f_);
    Floats du = zeros<float>(2 * rows * f_);
    Floats dc = zeros<float>(rows * d_);
    host_.gemm(op::Kind::gemm_tn, d_, f_, rows, dy, const_view_of(g_), view_of(d_w2), true);
    host_.gemm(op::Kind::gemm_nn, rows, f_, d_, dy, w2_, view_of(dg));
    host_.activation_backward(ActivationKind::swiglu, rows, f_, const_view_of(u_), const_view_of(dg), view_of(du));
    host_.copy_runs(device::Runs{.rows = rows, .width = f_, .from = {.row = 2 * f_}, .to = {.row = f_}},
                    const_view_of(du), view_of(dg));
    host_.gemm(op::Kind::gemm_tn, f_, d_, rows, const_view_of(dg), c, view_of(d_w1), true);
    host_.gemm(op::Kind::gemm_nn, rows, d_, f_, const_view_of(dg), w1_, view_of(dc));
    return dc;
  }

 private:
  device::Host& host_;
  std::int64_t d_, f_;
  View<const float> w1_, w2_;
  Floats u_, g_;

 public:
  Floats d_w1, d_w2;
};

// The tokens of a rank, their buckets and means.
class CompressedTokens {
 public:
  using Compression = runtime::Compression<device::Host, float>;

  /// @param order, offsets  of `active` choices of each token, which must outlive it
  CompressedTokens(device::Host& host, const CrossPolytope& hashing, View<const float> rotations, std::int64_t d,
                   std::int64_t experts, std::int64_t active, View<const std::int32_t> order,
                   View<const std::int32_t> offsets)
      : compression_(host, hashing, {.drawn = rotations}, d, {}), tokens_(order.count / active), d_(d) {
    const auto take = [&](device::Region& region) {
      const runtime::HashingScratch scratch(region, hashing, tokens_, order.count);
      buckets_ = runtime::take_buckets(region, experts, active, order.count, order, offsets);
      return scratch;
    };
    device::Region measure("compression", nullptr, std::numeric_limits<std::int64_t>::max() / 2);
    static_cast<void>(take(measure));
    mapping_ = std::make_unique<device::Mapping>(Bytes{measure.low()}, false);
    device::Region region = mapping_->region("compression", 0, mapping_->size());
    scratch_ = std::make_unique<runtime::HashingScratch>(take(region));
  }

  void compress(View<const float> x) {
    x_ = x;
    means_.resize(static_cast<std::size_t>(buckets_.rows * d_));
    compression_.compress(tokens_, x, *scratch_, buckets_, view_of(means_));
    means_.resize(static_cast<std::size_t>(count() * d_));
  }
  [[nodiscard]] const device::TokenBuckets& buckets() const { return buckets_; }
  [[nodiscard]] std::int64_t count() const { return buckets_.bounds[buckets_.experts]; }
  [[nodiscard]] View<const std::int32_t> codes() const { return scratch_->codes; }
  [[nodiscard]] View<const float> means() const { return view_of(means_); }
  /// The rows of expert e among some of all buckets (buckets, d).
  template <class T>
  [[nodiscard]] View<T> of_expert(View<T> rows, std::int64_t e) const {
    return rows.slice(buckets_.bounds[e] * d_, (buckets_.bounds[e + 1] - buckets_.bounds[e]) * d_);
  }

  // @param places, weights  (tokens, k); no weights: 1
  Floats decompress(View<const std::int32_t> places, View<const float> weights, const Floats& outputs) {
    Floats y = zeros<float>(tokens_ * d_);
    compression_.decompress(tokens_, buckets_, places, weights, view_of(outputs), x_, means(), view_of(y));
    return y;
  }
  Floats compress_gradient(View<const float> weights, View<const float> dy) {
    Floats sums = zeros<float>(count() * d_);
    compression_.compress_gradient(buckets_, weights, dy, view_of(sums));
    return sums;
  }
  Floats weights_backward(View<const std::int32_t> places, const Floats& outputs, View<const float> dy) {
    Floats out = zeros<float>(tokens_ * buckets_.active);
    compression_.weights_backward(tokens_, buckets_, places, view_of(outputs), x_, means(), dy, view_of(out));
    return out;
  }
  Floats decompress_gradient(View<const std::int32_t> places, View<const float> weights, View<const float> dy,
                             const Floats& d_means, const Floats& sums) {
    Floats dx = zeros<float>(tokens_ * d_);
    compression_.decompress_gradient(tokens_, buckets_, places, weights, dy, view_of(d_means), view_of(sums),
                                     view_of(dx));
    return dx;
  }

 private:
  Compression compression_;
  std::int64_t tokens_, d_;
  device::TokenBuckets buckets_;
  std::unique_ptr<device::Mapping> mapping_;
  std::unique_ptr<runtime::HashingScratch> scratch_;
  View<const float> x_;
  Floats means_;
};

// |a - b| over all elements.
double distance(View<const float> a, View<const float> b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.count; ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return std::sqrt(sum);
}
double norm(View<const float> a) {
  double sum = 0;
  for (const float value : a) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}
// Row by row what the bucket of a token has (buckets, d).
Floats spread(const device::TokenBuckets& buckets, std::int64_t d, View<const float> rows) {
  Floats out;
  for (const std::int32_t j : buckets.bucket) out.insert(out.end(), rows.begin() + j * d, rows.begin() + (j + 1) * d);
  return out;
}

// Rotations (H, d, p) of a case as rows (H p, d).
Floats rotations_of(const Array& rotations) {
  const std::int64_t d = rotations.extent(1);
  const std::int64_t p = rotations.extent(2);
  Floats out;
  for (std::int64_t h = 0; h < rotations.extent(0); ++h)
    for (std::int64_t i = 0; i < p; ++i)
      for (std::int64_t c = 0; c < d; ++c) out.push_back(rotations.view()[(h * d + c) * p + i]);
  return out;
}

// All tokens for one expert, each chosen once.
struct OneExpert {
  explicit OneExpert(std::int64_t tokens)
      : order(numbers_up_to(tokens)), offsets{0, static_cast<std::int32_t>(tokens)} {}
  Numbers order;  // and places
  Numbers offsets;
};

// What the mean of its bucket instead of a token costs: lengths over all tokens.
struct Errors {
  double rate = 0;              // buckets / tokens
  double residual = 0;          // |x - c|
  double with_residual = 0;     // |E(c) + x - c - E(x)| / |E(x)|
  double without_residual = 0;  // |E(c) - E(x)| / |E(x)|
};
Errors errors_of(const CompressedTokens& tokens, SiluExpert& expert, std::int64_t d, View<const float> x,
                 View<const float> y, View<const float> outputs) {
  const Floats exact = expert.forward(x);
  const double size = norm(view_of(exact));
  return {static_cast<double>(tokens.count() * d) / static_cast<double>(x.count),
          distance(x, const_view_of(spread(tokens.buckets(), d, tokens.means()))), distance(y, view_of(exact)) / size,
          distance(const_view_of(spread(tokens.buckets(), d, outputs)), view_of(exact)) / size};
}

}  // namespace

ordered_json answer_lsh_layer(const Case& one) {
  const Array x = one.array("x", {-1, -1});
  const std::int64_t n = x.extent(0);
  const std::int64_t d = x.extent(1);
  const Array rotations = one.array("rotations", {-1, d, -1});
  const CrossPolytope hashing{rotations.extent(0), rotations.extent(2)};
  const Array w1 = one.array("w1", {-1, d});
  const std::int64_t f = w1.extent(0);
  const Array w2 = one.array("w2", {d, f});
  const Array grad_y = one.array("grad_y", {n, d});

  CaseDevice device;
  const Floats drawn = rotations_of(rotations);
  const OneExpert all(n);
  CompressedTokens tokens(device.host, hashing, view_of(drawn), d, 1, 1, view_of(all.order), view_of(all.offsets));
  SiluExpert expert(device.host, d, w1.view(), w2.view());
  tokens.compress(x.view());
  const Floats outputs = expert.forward(tokens.means());
  const Floats y = tokens.decompress(view_of(all.order), {}, outputs);
  const Floats sums = tokens.compress_gradient({}, grad_y.view());
  const Floats d_means = expert.backward(tokens.means(), view_of(sums));
  const Floats dx = tokens.decompress_gradient(view_of(all.order), {}, grad_y.view(), d_means, sums);
  const Errors errors = errors_of(tokens, expert, d, x.view(), view_of(y), view_of(outputs));

  ordered_json out;
  out["codes"] = nested({n, hashing.hashes}, tokens.codes());
  out["bucket"] = nested({n}, tokens.buckets().bucket);
  out["buckets"] = tokens.count();
  out["compression_rate"] = errors.rate;
  out["centroids"] = one.reals("centroids", {tokens.count(), d}, tokens.means());
  out["y"] = one.reals("y", {n, d}, view_of(y));
  out["grad_x"] = one.reals("grad_x", {n, d}, view_of(dx));
  out["grad_w1"] = one.reals("grad_w1", {f, d}, view_of(expert.d_w1));
  out["grad_w2"] = one.reals("grad_w2", {d, f}, view_of(expert.d_w2));
  out["relative_residual"] = one.real("relative_residual", errors.residual / norm(x.view()));
  out["error_with_residual"] = one.real("error_with_residual", errors.with_residual);
  out["error_without_residual"] = one.real("error_without_residual", errors.without_residual);
  return out;
}

ordered_json answer_lsh_ranks(const Case& one) {
  const auto ranks = one.required<std::int64_t>("ranks", 1, 1 << 16);
  const auto experts = one.required<std::int64_t>("experts", 1, 1 << 20);
  const std::int64_t k = active_experts(one, experts);
  const Array x = one.array("x", {ranks, -1, -1});
  const std::int64_t n = x.extent(1);
  const std::int64_t d = x.extent(2);
  const Array gate = one.array("gate", {experts, d});
  const Array rotations = one.array("rotations", {-1, d, -1});
  const CrossPolytope hashing{rotations.extent(0), rotations.extent(2)};
  const Array w1 = one.array("w1", {experts, -1, d});
  const std::int64_t f = w1.extent(1);
  const Array w2 = one.array("w2", {experts, d, f});
  const Array grad_y = one.array("grad_y", {ranks, n, d});

  CaseDevice device;
  device::Host& host = device.host;
  const Floats drawn = rotations_of(rotations);
  const device::kernels::Router router{.experts = experts, .active = k};
  const auto part = [&](const Array& of, std::int64_t rank) { return of.view().slice(rank * n * d, n * d); };
  struct Source {
    Floats logits;
    Choices routed;
    std::unique_ptr<CompressedTokens> tokens;
    Floats outputs, sums, d_means;  // (buckets, d)
  };
  std::vector<Source> sources(static_cast<std::size_t>(ranks));
  for (std::int64_t r = 0; r < ranks; ++r) {
    Source& source = sources[static_cast<std::size_t>(r)];
    source.logits = zeros<float>(n * experts);
    host.gemm(op::Kind::gemm_nt, n, experts, d, part(x, r), gate.view(), view_of(source.logits));
    source.routed = choices_of(host, router, const_view_of(source.logits), {});
    source.tokens =
        std::make_unique<CompressedTokens>(host, hashing, view_of(drawn), d, experts, k,
                                           const_view_of(source.routed.order), const_view_of(source.routed.offsets));
    source.tokens->compress(part(x, r));
    source.sums = source.tokens->compress_gradient(view_of(source.routed.weights), part(grad_y, r));
    source.outputs = source.d_means = zeros<float>(source.tokens->count() * d);
  }
  for (std::int64_t e = 0; e < experts; ++e) {
    SiluExpert expert(host, d, w1.view().slice(e * f * d, f * d), w2.view().slice(e * d * f, d * f));
    const auto gathered = [&](const auto& rows_of) {  // from all ranks
      Floats out;
      for (const Source& source : sources) {
        const View<const float> rows = source.tokens->of_expert(rows_of(source), e);
        out.insert(out.end(), rows.begin(), rows.end());
      }
      return out;
    };
    const auto scattered = [&](const Floats& rows, Floats Source::* to) {  // to all ranks
      const float* next = rows.data();
      for (Source& source : sources) {
        const View<float> own = source.tokens->of_expert(view_of(source.*to), e);
        std::copy_n(next, own.count, own.begin());
        next += own.count;
      }
    };
    const Floats means = gathered([](const Source& source) { return source.tokens->means(); });
    const Floats sums = gathered([](const Source& source) { return view_of(source.sums); });
    scattered(expert.forward(view_of(means)), &Source::outputs);
    scattered(expert.backward(view_of(means), view_of(sums)), &Source::d_means);
  }

  ordered_json out;
  std::int64_t sent = 0;
  Floats y, grad_x;
  for (std::int64_t r = 0; r < ranks; ++r) {
    Source& source = sources[static_cast<std::size_t>(r)];
    const Choices& routed = source.routed;
    ordered_json tokens = ordered_json::array();
    ordered_json centroids = ordered_json::array();
    const device::TokenBuckets& buckets = source.tokens->buckets();
    for (std::int64_t e = 0; e < experts; ++e) {
      tokens.push_back(buckets.offsets[e + 1] - buckets.offsets[e]);
      centroids.push_back(buckets.bounds[e + 1] - buckets.bounds[e]);
    }
    out["tokens_per_source_and_expert"].push_back(std::move(tokens));
    out["centroids_per_source_and_expert"].push_back(std::move(centroids));
    sent += source.tokens->count();

    const Floats own_y = source.tokens->decompress(view_of(routed.places), view_of(routed.weights), source.outputs);
    y.insert(y.end(), own_y.begin(), own_y.end());
    const Floats d_weights = source.tokens->weights_backward(view_of(routed.places), source.outputs, part(grad_y, r));
    Floats d_logits = zeros<float>(n * experts);
    host.route_backward(router, n, 1, const_view_of(source.logits), view_of(routed.chosen), view_of(d_weights),
                        View<const float>{}, device::RouterLoss{}, view_of(d_logits));
    Floats dx = source.tokens->decompress_gradient(view_of(routed.places), view_of(routed.weights), part(grad_y, r),
                                                   source.d_means, source.sums);
    host.gemm(op::Kind::gemm_nn, n, d, experts, const_view_of(d_logits), gate.view(), view_of(dx), true);
    grad_x.insert(grad_x.end(), dx.begin(), dx.end());
  }
  out["rows_sent_without_compression"] = ranks * n * k;
  out["rows_sent"] = sent;
  out["y"] = one.reals("y", {ranks, n, d}, view_of(y));
  out["grad_x"] = one.reals("grad_x", {ranks, n, d}, view_of(grad_x));
  return out;
}

ordered_json answer_lsh_statistics(const Case& one) {
  const auto n = one.required<std::int64_t>("tokens", 1, 1 << 20);
  const auto d = one.required<std::int64_t>("dim", 1, 1 << 14);
  const auto kind = one.required<std::string>("kind");
  if (kind != "random" && kind != "clustered" && kind != "zipf")
    one.refuse_key("kind",
                   text_of("unknown value \"", detail::one_line(kind, 40), "\"; known are random, clustered and zipf"));
  const bool has_centres = kind != "random";
  const auto clusters = one.required<std::int64_t>("clusters", has_centres ? 1 : 0, 1 << 20);
  const auto sigma = one.required<float>("sigma", 0, 1e6F);
  const CrossPolytope hashing{one.required<std::int64_t>("hashes", 1, 1 << 10),
                              one.required<std::int64_t>("vertices_half", 1, 1 << 14)};
  constexpr std::int64_t most_numbers = std::int64_t{1} << 26;  // of an array
  for (const auto& [key, rows] :
       {std::pair("tokens", std::max(n, d)), {"clusters", clusters}, {"hashes", hashing.columns()}})
    if (rows > most_numbers / (2 * d))
      one.refuse_key(key, text_of(rows, " rows of ", d, " numbers are too many here; make the case smaller"));
  constexpr int runs = 64;
  const std::int64_t f = 2 * d;

  // The probability that a centre is one of those up to each.
  std::vector<double> shares(static_cast<std::size_t>(clusters));
  double sum = 0;
  for (std::size_t i = 0; i < shares.size(); ++i)
    shares[i] = sum += kind == "zipf" ? 1 / static_cast<double>(i + 1) : 1;

  CaseDevice device;
  const OneExpert all(n);
  Floats rotations = zeros<float>(hashing.columns() * d);
  CompressedTokens tokens(device.host, hashing, const_view_of(rotations), d, 1, 1, view_of(all.order),
                          view_of(all.offsets));
  Floats x = zeros<float>(n * d);
  Floats centres = zeros<float>(clusters * d);
  Floats w1 = zeros<float>(f * d);
  Floats w2 = zeros<float>(d * f);
  Errors mean;
  for (int run = 0; run < runs; ++run) {
    auto draw = [run, stream = std::uint64_t{0}](Floats& to, double deviation) mutable {
      fill_normal(view_of(to), static_cast<std::uint64_t>(run), stream++, 0, static_cast<float>(deviation));
    };
    draw(rotations, 1);
    draw(w1, 1 / std::sqrt(static_cast<double>(d)));
    draw(w2, 1 / std::sqrt(static_cast<double>(f)));
    draw(x, has_centres ? static_cast<double>(sigma) : 1);
    draw(centres, 1);
    constexpr std::uint64_t stream_of_choices = 100;
    for (std::int64_t t = 0; has_centres && t < n; ++t) {
      const double place =
          sum * static_cast<double>(uniform_of(
                    bits_at(static_cast<std::uint64_t>(run), stream_of_choices, static_cast<std::uint64_t>(t))));
      const auto centre =
          std::min<std::int64_t>(std::ranges::upper_bound(shares, place) - shares.begin(), clusters - 1);
      for (std::int64_t i = 0; i < d; ++i)
        x[static_cast<std::size_t>(t * d + i)] += centres[static_cast<std::size_t>(centre * d + i)];
    }
    SiluExpert expert(device.host, d, const_view_of(w1), const_view_of(w2));
    tokens.compress(const_view_of(x));
    const Floats outputs = expert.forward(tokens.means());
    const Floats y = tokens.decompress(view_of(all.order), {}, outputs);
    const Errors errors = errors_of(tokens, expert, d, const_view_of(x), view_of(y), view_of(outputs));
    Floats middle = zeros<float>(d);  // the mean of all tokens
    for (std::size_t i = 0; i < x.size(); ++i) middle[i % middle.size()] += x[i] / static_cast<float>(n);
    double spread_of_all = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto away = static_cast<double>(x[i] - middle[i % middle.size()]);
      spread_of_all += away * away;
    }
    mean.rate += errors.rate / runs;
    mean.residual += errors.residual / std::sqrt(spread_of_all) / runs;
    mean.with_residual += errors.with_residual / runs;
    mean.without_residual += errors.without_residual / runs;
  }
  return {{"rate", one.real("rate", mean.rate)},
          {"residual", one.real("residual", mean.residual)},
          {"error_with_residual", one.real("error_with_residual", mean.with_residual)},
          {"error_without_residual", one.real("error_without_residual", mean.without_residual)}};
}

}  // namespace galvatron::tools
