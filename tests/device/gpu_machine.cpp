// A GPU's memory, copies, products and library attention, against the host device.
// labels: gpu
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "gpu_fixture.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
namespace cuda = device::cuda;
using device::AttentionShape;
using device::Product;

TEST_CASE("memory of a GPU has the size asked for, to the byte of cudaMalloc's blocks, and begins as zeros") {
  first_gpu();
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  constexpr std::int64_t bytes = std::int64_t{256} << 20;
  std::vector<std::byte> tail(4096);
  {
    const cuda::DeviceMemory first({bytes});  // the first allocation and copy load what they need
    cuda::check(cudaMemcpy(tail.data(), first.data(), 4096, cudaMemcpyDeviceToHost));
  }
  cuda::check(cudaMemGetInfo(&before, &total));
  {
    const cuda::DeviceMemory memory({bytes});
    cuda::check(cudaMemGetInfo(&after, &total));
    CHECK(before - after == static_cast<std::size_t>(bytes));
    CHECK(memory.size() == Bytes{bytes});
    CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % 256 == 0);
    tail.assign(4096, std::byte{1});
    cuda::check(cudaMemcpy(tail.data(), memory.data() + bytes - 4096, 4096, cudaMemcpyDeviceToHost));
    CHECK(tail == std::vector<std::byte>(4096));
  }
  cuda::check(cudaMemGetInfo(&after, &total));
  CHECK(before == after);
}

TEST_CASE("a GPU that has not the memory says how much it has") {
  first_gpu();
  try {
    const cuda::DeviceMemory memory({std::int64_t{1} << 50});
    FAIL("no GPU has that");
  } catch (const DeviceFailure& failure) {
    CHECK(std::string(failure.what()).find("refused 1125899906842624 bytes") != std::string::npos);
    CHECK(std::string(failure.what()).find("are free") != std::string::npos);
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("pieces of all sizes go to the GPU and back, many at a time") {
  TestMachine machine;
  std::mt19937 random(3);
  constexpr std::int64_t count = 3 << 20;
  const GpuTensor<std::int32_t> target(std::vector<std::int32_t>(count, -1));
  std::vector<std::int32_t> expected(count, -1);
  std::int64_t first = 0;
  std::int32_t next = 0;
  while (first < count) {
    const auto n = std::min<std::int64_t>(std::uniform_int_distribution<std::int64_t>(1, 60000)(random), count - first);
    machine->upload(target.data() + first, n * 4, [&](std::byte* memory) {
      auto* values = reinterpret_cast<std::int32_t*>(memory);
      for (std::int64_t i = 0; i < n; ++i) expected[static_cast<std::size_t>(first + i)] = values[i] = next++;
    });
    first += n;
  }
  std::vector<std::int32_t> got(count);
  machine->fetch(target.data(), got.data(), count * 4);
  CHECK(got == expected);

  const std::int64_t large = cuda::Staging::largest / 4 + 5;
  const GpuTensor<std::int32_t> whole(std::vector<std::int32_t>(static_cast<std::size_t>(large)));
  machine->upload(whole.data(), large * 4, [&](std::byte* memory) {
    std::iota(reinterpret_cast<std::int32_t*>(memory), reinterpret_cast<std::int32_t*>(memory) + large, 7);
  });
  machine->copy(whole.data() + 5, whole.data(), 40);
  machine->zero(whole.data() + 20, 12);
  const std::vector<std::int32_t> back = whole.get();
  CHECK(back[0] == 12);
  CHECK(back[9] == 21);
  CHECK(back[19] == 26);
  CHECK(back[20] == 0);
  CHECK(back[22] == 0);
  CHECK(back[23] == 30);
  CHECK(back.back() == 7 + large - 1);
}

template <class T, class C>
void compare_product(TestMachine& machine, TestHost& host, const Product& p, std::int64_t skipped = 0) {
  CAPTURE(to_string(p));
  CAPTURE(p.accumulate);
  CAPTURE(p.bias);
  CAPTURE(skipped);
  std::mt19937 random(5);
  const auto a = random_tensor<T>(random, p.m * p.k);
  const auto b = random_tensor<T>(random, p.k * p.n);
  const auto bias = random_tensor<T>(random, p.n);
  const auto c = random_tensor<C>(random, p.m * p.n);
  auto expected = c;
  host->gemm(p.kind, p.m, p.n, p.k, view(a), view(b), view(expected), p.accumulate,
             p.bias ? view(bias) : View<const T>{});
  const GpuTensor<T> ga(a, skipped), gb(b, skipped), gbias(bias, skipped);
  std::vector<C> first;
  for (int run = 0; run < 2; ++run) {
    const GpuTensor<C> gc(c, skipped);
    machine->multiply(p, ga.data(), gb.data(), p.bias ? gbias.data() : nullptr, gc.data());
    const std::vector<C> got = gc.get();
    CHECK(relative_difference(got, expected) < between_devices<T>);
    if (run == 1) CHECK(same_bits(got, first));
    first = got;
  }
}

TEST_CASE("products are the host's, and the same bits every time") {
  TestMachine machine;
  TestHost host(2);
  for (const op::Kind kind : op::gemms)
    for (const auto& [accumulate, bias] : {std::pair{false, false}, {true, false}, {false, true}})
      for (const auto& [m, n, k] :
           {std::array<std::int64_t, 3>{128, 256, 64}, {200, 1000, 304}, {7, 5, 11}, {3, 8, 0}}) {
        Product p{.kind = kind, .accumulate = accumulate, .bias = bias, .m = m, .n = n, .k = k};
        compare_product<float, float>(machine, host, p);
        compare_product<float, float>(machine, host, p, 1);
        if (!device::Host::supports(Precision::bf16)) continue;
        p.operands = Precision::bf16;
        compare_product<bfloat16, float>(machine, host, p);
        p.result = Precision::bf16;
        compare_product<bfloat16, bfloat16>(machine, host, p);
        compare_product<bfloat16, bfloat16>(machine, host, p, 1);
      }
}

// Both of them, against the host.
void compare_activated(TestMachine& machine, TestHost& host, std::int64_t m, std::int64_t n, std::int64_t k,
                       bool biased) {
  std::mt19937 random(6);
  const auto a = random_tensor<bfloat16>(random, m * k);
  const auto b = random_tensor<bfloat16>(random, n * k);
  const auto bias = random_tensor<bfloat16>(random, n);
  std::vector<bfloat16> u(static_cast<std::size_t>(m * n)), g(u.size()), dg(u.size()), du(u.size());
  host->gemm_activation(ActivationKind::gelu, m, n, k, view(a), view(b), biased ? view(bias) : View<const bfloat16>{},
                        view(u), view(g));
  host->gemm_activation_backward(ActivationKind::gelu, m, n, k, view(a), view(b), view(u), view(dg), view(du));
  const GpuTensor<bfloat16> ga(a), gb(b), gbias(bias);
  Product p{.kind = op::Kind::gemm_nt,
            .operands = Precision::bf16,
            .result = Precision::bf16,
            .bias = biased,
            .m = m,
            .n = n,
            .k = k};
  std::vector<std::vector<bfloat16>> first;
  for (int run = 0; run < 2; ++run) {
    const GpuTensor<bfloat16> gu(std::vector<bfloat16>(u.size()));
    const GpuTensor<bfloat16> gg(std::vector<bfloat16>(u.size()));
    const GpuTensor<bfloat16> gdu(std::vector<bfloat16>(u.size()));
    p.kind = op::Kind::gemm_nt;
    p.bias = biased;
    CHECK(machine->try_multiply(p, device::Epilogue::gelu, ga.data(), gb.data(), biased ? gbias.data() : nullptr,
                                gu.data(), gg.data()));
    p.kind = op::Kind::gemm_nn;
    p.bias = false;
    CHECK(machine->try_multiply(p, device::Epilogue::gelu_gradient, ga.data(), gb.data(), nullptr, gu.data(),
                                gdu.data()));
    const std::vector<std::vector<bfloat16>> got{gu.get(), gg.get(), gdu.get()};
    CHECK(relative_difference(got[0], u) < between_devices<bfloat16>);
    CHECK(relative_difference(got[1], g) < between_devices<bfloat16>);
    CHECK(relative_difference(got[2], du) < between_devices<bfloat16>);
    if (run == 1)
      for (std::size_t i = 0; i < got.size(); ++i) CHECK(same_bits(got[i], first[i]));
    first = got;
  }
}

TEST_CASE("cuBLASLt has products with GELU and with its gradient, which are the host's") {
  if (!device::Host::supports(Precision::bf16)) return;
  TestMachine machine;
  TestHost host(2);
  if (cuda::describe_device(0).major < 9) {
    std::puts("cuBLASLt is not asked for products with GELU on a GPU before Hopper");
    return;
  }
  for (const bool biased : {true, false})
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{128, 256, 64}, {200, 1000, 304}})
      compare_activated(machine, host, m, n, k, biased);
  // What is not asked: rows of u that begin anywhere, and float.
  const GpuTensor<bfloat16> small(std::vector<bfloat16>(64));
  Product p{.operands = Precision::bf16, .result = Precision::bf16, .m = 4, .n = 5, .k = 8};
  CHECK(!machine->try_multiply(p, device::Epilogue::gelu, small.data(), small.data(), nullptr, small.data(),
                               small.data()));
  p = {.m = 4, .n = 8, .k = 4};
  CHECK(!machine->try_multiply(p, device::Epilogue::gelu, small.data(), small.data(), nullptr, small.data(),
                               small.data()));
}

void compare_attention(TestMachine& machine, TestHost& host, const AttentionShape& s, bool deterministic = true) {
  CAPTURE(cuda::cudnn::to_string(s, true));
  std::mt19937 random(7);
  const auto q = random_tensor<bfloat16>(random, s.queries * s.batch * s.q_stride);
  const auto kv = random_tensor<bfloat16>(random, s.keys * s.batch * s.kv_stride * 2);
  const std::int64_t half = s.keys * s.batch * s.kv_stride;
  const auto d_o = random_tensor<bfloat16>(random, s.queries * s.batch * s.out_stride);
  const std::vector<bfloat16> none(d_o.size());
  const std::vector<float> rows(static_cast<std::size_t>(s.batch * s.heads * s.lse_row()), 0.5F);

  auto o = none;
  auto lse = rows;
  auto delta = rows;
  std::vector<bfloat16> dq(q.size()), dk(static_cast<std::size_t>(half)), dv(static_cast<std::size_t>(half));
  const auto all = view(kv);
  host->attention_forward(s, view(q), all.slice(0, half), all.slice(half, half), view(o), view(lse));
  host->attention_backward(s, view(q), all.slice(0, half), all.slice(half, half), view(std::as_const(o)),
                           view(std::as_const(lse)), view(d_o), view(dq), view(dk), view(dv), view(delta));

  const GpuTensor<bfloat16> gq(q), gkv(kv), gd_o(d_o);
  std::vector<bfloat16> first;
  for (int run = 0; run < 2; ++run) {
    const GpuTensor<bfloat16> go(none), gdq(std::vector<bfloat16>(q.size())), gdk(std::vector<bfloat16>(dk.size())),
        gdv(std::vector<bfloat16>(dv.size()));
    const GpuTensor<float> glse(rows);
    REQUIRE(machine->attention(s, Precision::bf16, gq.data(), gkv.data(), gkv.data() + half, go.data(), glse.data()));
    CHECK(relative_difference(go.get(), o) < 1e-2);
    CHECK(relative_difference(glse.get(), lse) < 1e-3);
    REQUIRE(machine->attention(s, Precision::bf16, gq.data(), gkv.data(), gkv.data() + half, go.data(), glse.data(),
                               gd_o.data(), gdq.data(), gdk.data(), gdv.data()));
    CHECK(relative_difference(gdq.get(), dq) < 1e-2);
    CHECK(relative_difference(gdk.get(), dk) < 1e-2);
    CHECK(relative_difference(gdv.get(), dv) < 1e-2);
    if (run == 1 && deterministic) CHECK(same_bits(gdq.get(), first));
    first = gdq.get();
  }
}

void compare_attentions(bool deterministic) {
  TestMachine machine(deterministic);
  TestHost host(2);
  for (const bool causal : {false, true})
    for (const std::int64_t kv_heads : {4, 2, 1})
      for (const std::int64_t head_dim : {64, 128})
        for (const std::int64_t tokens : {causal ? 64 : 128, 200})  // 64 keys without a mask: see cudnn::unsuited
          compare_attention(machine, host,
                            {.batch = 2,
                             .queries = tokens,
                             .keys = tokens,
                             .heads = 4,
                             .kv_heads = kv_heads,
                             .head_dim = head_dim,
                             .causal = causal,
                             .q_stride = 4 * head_dim + 16,
                             .kv_stride = kv_heads * head_dim + 8,
                             .out_stride = 4 * head_dim},
                            deterministic);
  compare_attention(machine, host,
                    {.batch = 1,
                     .queries = 72,
                     .keys = 120,
                     .heads = 2,
                     .kv_heads = 2,
                     .head_dim = 64,
                     .causal = false,
                     .q_stride = 128,
                     .kv_stride = 128,
                     .out_stride = 128,
                     .lse_stride = 75},
                    deterministic);
  for (const std::string& line : machine->attention_refusals()) MESSAGE(line);
}

TEST_CASE("cuDNN's attention is the host's") { compare_attentions(true); }
TEST_CASE("cuDNN's attention that is not deterministic is the host's") { compare_attentions(false); }

TEST_CASE("cuDNN's backward attention a part of the heads at a time") {
  const AttentionShape s{.batch = 2,
                         .queries = 512,
                         .keys = 512,
                         .heads = 8,
                         .kv_heads = 4,
                         .head_dim = 64,
                         .causal = true,
                         .q_stride = 512,
                         .kv_stride = 256,
                         .out_stride = 512};
  first_gpu();
  cuda::Stream stream;
  const cuda::DeviceMemory memory({std::int64_t{3} << 20});  // two of eight query heads at a time
  TestMachine machine;
  cuda::Attention small(stream, {memory.data(), memory.size().count}, cuda::describe_device(0).major);
  std::mt19937 random(7);
  const GpuTensor<bfloat16> q(random_tensor<bfloat16>(random, 2 * 512 * 512));
  const GpuTensor<bfloat16> k(random_tensor<bfloat16>(random, 2 * 512 * 256));
  const GpuTensor<bfloat16> v(random_tensor<bfloat16>(random, 2 * 512 * 256));
  const GpuTensor<bfloat16> d_o(random_tensor<bfloat16>(random, 2 * 512 * 512));
  const GpuTensor<float> lse(std::vector<float>(2 * 8 * 512));
  const auto zeros = [](const GpuTensor<bfloat16>& like) { return std::vector<bfloat16>(like.get().size()); };
  const GpuTensor<bfloat16> o(zeros(q)), dq(zeros(q)), dk(zeros(k)), dv(zeros(v));
  const GpuTensor<bfloat16> part_dq(zeros(q)), part_dk(zeros(k)), part_dv(zeros(v));
  REQUIRE(machine->attention(s, Precision::bf16, q.data(), k.data(), v.data(), o.data(), lse.data()));
  REQUIRE(machine->attention(s, Precision::bf16, q.data(), k.data(), v.data(), o.data(), lse.data(), d_o.data(),
                             dq.data(), dk.data(), dv.data()));
  machine->stream().wait();
  REQUIRE(small.compute(s, Precision::bf16, q.data(), k.data(), v.data(), o.data(), lse.data(), d_o.data(),
                        part_dq.data(), part_dk.data(), part_dv.data()));
  CHECK(relative_difference(part_dq.get(), dq.get()) < 1e-3);
  CHECK(relative_difference(part_dk.get(), dk.get()) < 1e-3);
  CHECK(relative_difference(part_dv.get(), dv.get()) < 1e-3);
}

}  // namespace
