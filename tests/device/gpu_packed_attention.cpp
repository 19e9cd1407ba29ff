// cuDNN's attention of packed documents, against the host device.
// labels: gpu
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/cuda/document_groups.hpp>

#include "gpu_fixture.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;
using device::AttentionShape;
using device::DocumentRows;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t rows_behind = 70;  ///< of every tensor, behind the last document

/// Rows of `width` elements, `stride` apart. What lies between and behind them is NaN.
struct PackedRows {
  std::int64_t rows, width, stride;

  [[nodiscard]] std::int64_t elements() const { return (rows + rows_behind) * stride; }
  [[nodiscard]] bool inside(std::int64_t i) const { return i / stride < rows && i % stride < width; }
  /// Random elements around `mean`, as bfloat16.
  [[nodiscard]] std::vector<bfloat16> random(std::mt19937& source, float mean, float range) const {
    std::uniform_real_distribution<float> uniform(mean - range, mean + range);
    std::vector<bfloat16> out(static_cast<std::size_t>(elements()), bfloat16(nan));
    for (std::int64_t i = 0; i < elements(); ++i)
      if (inside(i)) out[static_cast<std::size_t>(i)] = bfloat16(uniform(source));
    return out;
  }
  template <class T>
  [[nodiscard]] std::vector<T> poison() const {
    return std::vector<T>(static_cast<std::size_t>(elements()), T(nan));
  }
  /// The greatest difference, over the greatest magnitude or 1e-3; infinite where an element of a row is not finite or
  /// one that is not of a row was written.
  template <class T>
  [[nodiscard]] double difference(const std::vector<T>& got, const std::vector<T>& wanted) const {
    double most = 0, magnitude = 1e-3;
    for (std::int64_t i = 0; i < elements(); ++i) {
      const auto a = static_cast<double>(static_cast<float>(got[static_cast<std::size_t>(i)]));
      const auto b = static_cast<double>(static_cast<float>(wanted[static_cast<std::size_t>(i)]));
      if (inside(i) ? !std::isfinite(a) : !std::isnan(a)) {
        MESSAGE("element " << i % stride << " of row " << i / stride << " of " << rows << " is " << a);
        return INFINITY;
      }
      if (!inside(i)) continue;
      most = std::max(most, std::abs(a - b));
      magnitude = std::max(magnitude, std::abs(b));
    }
    return most / magnitude;
  }
};

struct PackedCase {
  std::int64_t kv_heads = 4, head_dim = 64;
  float query_mean = 0, key_mean = 0;
  static constexpr std::int64_t heads = 4;

  [[nodiscard]] AttentionShape shape(std::int64_t rows) const {
    return {.batch = 1,
            .queries = rows,
            .keys = rows,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .causal = true,
            .q_stride = (heads + 2 * kv_heads) * head_dim,
            .kv_stride = kv_heads * head_dim + 8,
            .out_stride = heads * head_dim + 16,
            .dq_stride = heads * head_dim,
            .dkv_stride = 2 * kv_heads * head_dim,
            .lse_stride = rows + 5,
            .score_factor = 1.25F};
  }
};

void compare_packed_documents(TestMachine& machine, TestHost& host, const PackedCase& of,
                              const std::vector<std::int32_t>& lengths, bool deterministic) {
  std::vector<std::int32_t> ends{0};
  for (const std::int32_t length : lengths) ends.push_back(ends.back() + length);
  const DocumentRows documents{ends, ends};
  const AttentionShape s = of.shape(ends.back());
  CAPTURE(cuda::cudnn::to_string(s, true));
  CAPTURE(lengths.size());
  CAPTURE(deterministic);

  const auto rows = [&](std::int64_t heads, std::int64_t stride) {
    return PackedRows{s.queries, heads * s.head_dim, stride};
  };
  const PackedRows of_q = rows(s.heads, s.q_stride), of_kv = rows(s.kv_heads, s.kv_stride);
  const PackedRows of_o = rows(s.heads, s.out_stride), of_dq = rows(s.heads, s.dq_row());
  const PackedRows of_dkv = rows(s.kv_heads, s.dkv_row());
  std::mt19937 random(11);
  const std::vector<bfloat16> q = of_q.random(random, of.query_mean, 1), k = of_kv.random(random, of.key_mean, 1);
  const std::vector<bfloat16> v = of_kv.random(random, 0, 1), d_o = of_o.random(random, 0, 1);
  const std::vector<float> poison(static_cast<std::size_t>(s.heads * s.lse_row()), nan);

  std::vector<bfloat16> o = of_o.poison<bfloat16>(), dq = of_dq.poison<bfloat16>();
  std::vector<bfloat16> dk = of_dkv.poison<bfloat16>(), dv = dk;
  std::vector<float> lse = poison, delta = poison;
  host->attention_forward(s, view(q), view(k), view(v), view(o), view(lse), device::AttentionBias{}, documents);
  host->attention_backward(s, view(q), view(k), view(v), view(std::as_const(o)), view(std::as_const(lse)), view(d_o),
                           view(dq), view(dk), view(dv), view(delta), device::AttentionBias{}, documents);

  const cuda::DocumentGroups groups(s, documents);
  const GpuTensor<std::byte> tables(std::vector<std::byte>(static_cast<std::size_t>(groups.bytes())));
  machine->upload(tables.data(), groups.bytes(), [&](std::byte* to) { groups.write(to); });
  const GpuTensor<bfloat16> gq(q), gk(k), gv(v), gd_o(d_o);
  const auto took = [&](bool done) {
    if (!done)
      for (const std::string& line : machine->attention_refusals()) MESSAGE(line);
    return done;
  };
  std::vector<std::vector<bfloat16>> first;
  for (int run = 0; run < 2; ++run) {
    const GpuTensor<bfloat16> go(of_o.poison<bfloat16>()), gdq(of_dq.poison<bfloat16>());
    const GpuTensor<bfloat16> gdk(of_dkv.poison<bfloat16>()), gdv(of_dkv.poison<bfloat16>());
    const GpuTensor<float> glse(poison);
    REQUIRE(
        took(machine->attention(s, groups, tables.data(), gq.data(), gk.data(), gv.data(), go.data(), glse.data())));
    CHECK(of_o.difference(go.get(), o) < 1e-2);
    const std::vector<float> got = glse.get();
    bool same = true;
    for (std::size_t i = 0; i < got.size(); ++i)
      same =
          same && (std::isnan(lse[i]) ? std::isnan(got[i]) : std::abs(got[i] - lse[i]) < 2e-3 * (1 + std::abs(lse[i])));
    CHECK(same);
    REQUIRE(took(machine->attention(s, groups, tables.data(), gq.data(), gk.data(), gv.data(), go.data(), glse.data(),
                                    gd_o.data(), gdq.data(), gdk.data(), gdv.data())));
    // Of keys with a mean, what the rounding of the scores' gradients leaves of it: these sum to 0.
    CHECK(of_dq.difference(gdq.get(), dq) < (of.key_mean != 0 ? 4e-2 : 2e-2));
    CHECK(of_dkv.difference(gdk.get(), dk) < 2e-2);
    CHECK(of_dkv.difference(gdv.get(), dv) < 2e-2);
    if (run == 1 && deterministic) {
      CHECK(same_bits(gdq.get(), first[0]));
      CHECK(same_bits(gdk.get(), first[1]));
      CHECK(same_bits(gdv.get(), first[2]));
    }
    first = {gdq.get(), gdk.get(), gdv.get()};
  }
}

/// Whether cuDNN is asked for packed documents; says so where it is not.
bool has_ragged_attention() {
  const int major = cuda::describe_device(first_gpu()).major;
  if (major == 9) return true;
  MESSAGE("skipped: cuDNN is asked for packed documents on Hopper only, not on compute capability " << major);
  return false;
}

const std::vector<std::int32_t> mixed{700, 313, 129, 128, 64, 6, 5, 2, 1, 1, 150, 300};

void compare_all_packed(bool deterministic, std::initializer_list<PackedCase> cases) {
  if (!has_ragged_attention()) return;
  TestMachine machine(deterministic);
  TestHost host(2);
  for (const PackedCase& of : cases) {
    compare_packed_documents(machine, host, of, mixed, deterministic);
    compare_packed_documents(machine, host, of, {1}, deterministic);
    compare_packed_documents(machine, host, of, {512, 511, 513}, deterministic);
  }
  std::vector<std::int32_t> many(70, 3);
  many.push_back(1000);
  compare_packed_documents(machine, host, *cases.begin(), many, deterministic);
  for (const std::string& line : machine->attention_refusals()) MESSAGE(line);
  CHECK(machine->attention_refusals().empty());
}

TEST_CASE("cuDNN's attention of packed documents is the host's") {
  compare_all_packed(true, {{.kv_heads = 4, .head_dim = 64},
                            {.kv_heads = 1, .head_dim = 64},
                            {.kv_heads = 4, .head_dim = 128},
                            {.kv_heads = 2, .head_dim = 128}});
}
TEST_CASE("cuDNN's attention of packed documents that is not deterministic is the host's") {
  compare_all_packed(false, {{.kv_heads = 2, .head_dim = 64}, {.kv_heads = 4, .head_dim = 128}});
}

TEST_CASE("cuDNN's attention of packed documents whose log-sum-exps are far from zero") {
  if (!has_ragged_attention()) return;
  TestHost host(2);
  for (const bool deterministic : {true, false}) {
    TestMachine machine(deterministic);
    for (const float mean : {-4.0F, 4.0F}) {  // scores of about -160 or 160
      CAPTURE(mean);
      compare_packed_documents(machine, host, {.query_mean = 4, .key_mean = mean}, mixed, deterministic);
      compare_packed_documents(machine, host, {.query_mean = 4, .key_mean = mean}, {64, 192, 320}, deterministic);
    }
  }
}

TEST_CASE("cuDNN's attention of packed documents some slots and heads at a time") {
  if (!has_ragged_attention()) return;
  TestHost host(2);
  cuda::Stream stream;
  const cuda::DeviceMemory memory({std::int64_t{3} << 20});
  cuda::Attention small(stream, {memory.data(), memory.size().count}, 9);
  TestMachine machine;
  // Five documents of up to 512 tokens in 16 slots: 512 KiB of dS for each head of each.
  const std::vector<std::int32_t> ends{0, 300, 812, 1200, 1600, 2000};
  const DocumentRows documents{ends, ends};
  const AttentionShape s = PackedCase{.kv_heads = 2}.shape(ends.back());
  const cuda::DocumentGroups groups(s, documents);
  const GpuTensor<std::byte> tables(std::vector<std::byte>(static_cast<std::size_t>(groups.bytes())));
  machine->upload(tables.data(), groups.bytes(), [&](std::byte* to) { groups.write(to); });
  machine->stream().wait();
  std::mt19937 random(7);
  const auto tensor = [&](std::int64_t stride) { return random_tensor<bfloat16>(random, s.queries * stride); };
  const GpuTensor<bfloat16> q(tensor(s.q_stride)), k(tensor(s.kv_stride)), v(tensor(s.kv_stride));
  const GpuTensor<bfloat16> d_o(tensor(s.out_stride)), o(tensor(s.out_stride));
  const GpuTensor<float> lse(std::vector<float>(static_cast<std::size_t>(s.heads * s.lse_row())));
  REQUIRE(machine->attention(s, groups, tables.data(), q.data(), k.data(), v.data(), o.data(), lse.data()));
  machine->stream().wait();
  const auto gradients = [&](auto&& differentiate) {
    const auto zeros = [&](std::int64_t stride) {
      return std::vector<bfloat16>(static_cast<std::size_t>(s.queries * stride));
    };
    const GpuTensor<bfloat16> dq(zeros(s.dq_row())), dk(zeros(s.dkv_row())), dv(zeros(s.dkv_row()));
    REQUIRE(differentiate(s, groups, tables.data(), q.data(), k.data(), v.data(), o.data(), lse.data(), d_o.data(),
                          dq.data(), dk.data(), dv.data()));
    return std::vector{dq.get(), dk.get(), dv.get()};
  };
  const auto whole = gradients([&](const auto&... a) { return machine->attention(a...); });
  const auto parts = gradients([&](const auto&... a) { return small.compute(a...); });
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(relative_difference(parts[i], whole[i]) < 1e-3);
}

}  // namespace
