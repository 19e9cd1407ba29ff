// Attention of packed documents on the host, beside the same documents one call after the other and padded to the
// longest.
//
//   benchmark_packed_attention LENGTHS [--documents N] [--longest L] [--heads A] [--kv-heads K] [--head-dim D]
//                              [--precision fp32|bf16] [--threads T] [--rounds R]
//
// LENGTHS has the tokens of documents, one number a line; the first N of at most L tokens are packed. Prints medians of
// forward and backward, each way once in every round. benchmarks/peers/packed_attention.py does the same in PyTorch.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <galvatron/cluster/host.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/host/host.hpp>

#include "guarded.hpp"
#include "packed_rows.hpp"

namespace {

using namespace galvatron;
using device::AttentionShape;

struct Arguments {
  std::string lengths;
  std::int64_t documents = 64;
  std::int64_t longest = 8192;
  std::int64_t heads = 8;
  std::int64_t kv_heads = 8;
  std::int64_t head_dim = 64;
  std::string precision = "fp32";
  int threads = 2;
  int rounds = 7;
};

void options(CLI::App& app, Arguments& a) {
  app.add_option("lengths", a.lengths, "file of lengths in tokens, one a line")->required();
  app.add_option("--documents", a.documents, "of the packed sequence")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--longest", a.longest, "tokens; longer ones are left out")->capture_default_str();
  app.add_option("--heads", a.heads, "of queries")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--kv-heads", a.kv_heads, "of keys and values")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--head-dim", a.head_dim, "elements")->capture_default_str()->check(CLI::Range(1, 256));
  app.add_option("--precision", a.precision)->capture_default_str()->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--threads", a.threads)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--rounds", a.rounds, "of which the median counts")->capture_default_str()->check(CLI::PositiveNumber);
}

/// Tensors of a fused projection and what attention makes of them.
template <class T>
struct Tensors {
  std::vector<T> qkv, d_qkv, o, d_o;
  std::vector<float> lse, delta;

  Tensors(const AttentionShape& s) {
    const std::int64_t rows = s.batch * s.queries;
    const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    qkv.resize(size(rows * s.q_stride));
    d_qkv.resize(qkv.size());
    o.resize(size(rows * s.out_stride));
    d_o.resize(o.size());
    lse.resize(size(rows * s.heads));
    delta.resize(lse.size());
    std::mt19937 random(7);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (T& x : qkv) x = T(uniform(random));
    for (T& x : d_o) x = T(uniform(random));
  }
};

template <class T>
View<T> from(std::vector<T>& x, std::int64_t first) {
  return {x.data() + first, static_cast<std::int64_t>(x.size()) - first};
}

AttentionShape shape_of(const Arguments& a, std::int64_t batch, std::int64_t tokens) {
  return bench::fused_attention(batch, tokens, a.heads, a.kv_heads, a.head_dim);
}

/// Forward or backward of a shape's rows, from a row of the tensors on.
template <class T>
void attend(device::Host& host, bool backward, Tensors<T>& t, const AttentionShape& s, std::int64_t row,
            const device::DocumentRows& documents) {
  const std::int64_t at = row * s.q_stride;
  const std::int64_t k = at + s.heads * s.head_dim;
  const std::int64_t v = k + s.kv_heads * s.head_dim;
  const std::int64_t out = row * s.out_stride;
  if (backward)
    host.attention_backward(s, from(t.qkv, at), from(t.qkv, k), from(t.qkv, v), from(t.o, out),
                            from(t.lse, row * s.heads), from(t.d_o, out), from(t.d_qkv, at), from(t.d_qkv, k),
                            from(t.d_qkv, v), from(t.delta, row * s.heads), device::AttentionBias{}, documents);
  else
    host.attention_forward(s, from(t.qkv, at), from(t.qkv, k), from(t.qkv, v), from(t.o, out),
                           from(t.lse, row * s.heads), device::AttentionBias{}, documents);
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

template <class T>
int measure(const Arguments& a) {
  const std::vector<std::int32_t> rows = bench::packed_rows(a.lengths, a.documents, a.longest);
  std::int64_t longest = 0;
  for (std::size_t i = 0; i + 1 < rows.size(); ++i) longest = std::max<std::int64_t>(longest, rows[i + 1] - rows[i]);
  const Bytes bytes{device::Host::library_workspace_bytes(a.threads)};
  const device::Mapping mapping(bytes, false);
  device::Host host(a.threads, mapping.region("workspace", 0, bytes).take<std::byte>(bytes.count));
  const AttentionShape packed = shape_of(a, 1, rows.back());
  const AttentionShape padded = shape_of(a, a.documents, longest);
  Tensors<T> tensors(packed), of_padded(padded);

  struct Way {
    const char* name;
    std::function<void(bool)> run;
    std::vector<double> seconds[2] = {};
  };
  std::vector<Way> ways;
  ways.push_back({"packed", [&](bool backward) { attend(host, backward, tensors, packed, 0, {rows, rows}); }});
  ways.push_back({"one by one", [&](bool backward) {
                    for (std::size_t i = 0; i + 1 < rows.size(); ++i)
                      attend(host, backward, tensors, shape_of(a, 1, rows[i + 1] - rows[i]), rows[i], {});
                  }});
  ways.push_back({"padded", [&](bool backward) { attend(host, backward, of_padded, padded, 0, {}); }});
  for (int round = 0; round <= a.rounds; ++round)
    for (Way& way : ways)
      for (const bool backward : {false, true}) {
        const double began = steady_seconds();
        way.run(backward);
        if (round > 0) way.seconds[backward].push_back(steady_seconds() - began);
      }
  std::printf("%lld documents, %d tokens, the longest %lld, %lld/%lld heads of %lld, %s, %d threads\n",
              static_cast<long long>(a.documents), rows.back(), static_cast<long long>(longest),
              static_cast<long long>(a.heads), static_cast<long long>(a.kv_heads), static_cast<long long>(a.head_dim),
              a.precision.c_str(), a.threads);
  for (const Way& way : ways) {
    const double forward = 1e3 * median(way.seconds[0]);
    const double backward = 1e3 * median(way.seconds[1]);
    std::printf("%-12s forward %8.2f ms   backward %8.2f ms   both %8.2f ms\n", way.name, forward, backward,
                forward + backward);
  }
  return 0;
}

int report(const Arguments& a) { return a.precision == "fp32" ? measure<float>(a) : measure<bfloat16>(a); }

}  // namespace

int main(int argc, char** argv) {
  return guarded("benchmark_packed_attention", "Attention of packed documents.", argc, argv, options, report);
}
