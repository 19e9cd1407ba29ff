// Ranks as threads on one GPU against rank threads, bit for bit; and a world of one rank by NCCL.
// labels: gpu
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/comm/comm.hpp>
#include <galvatron/comm/local_gpu/world.hpp>
#include <galvatron/comm/nccl/world.hpp>
#include <galvatron/comm/tcp/world.hpp>

#include "../device/gpu_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
using comm::Piece;
using comm::ReduceOp;
using Threads = comm::thread::World;
using World = comm::local_gpu::World<device::cuda::Stream>;

template <class T>
std::vector<T> values(int rank, std::int64_t n) {
  std::vector<T> out(static_cast<std::size_t>(n));
  std::mt19937 random(static_cast<unsigned>(rank) * 7919U + static_cast<unsigned>(n));
  for (T& x : out) x = static_cast<T>(static_cast<float>(random() % 20001) / 97.0F - 100.0F);
  return out;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

void run(int ranks, const std::function<void(World&, device::cuda::Stream&)>& body) {
  first_gpu();
  std::vector<device::cuda::Event> fences(static_cast<std::size_t>(ranks));
  comm::thread::run(ranks, [&](Threads& control) {
    first_gpu();
    device::cuda::Stream compute;
    World world(control, fences, compute);
    body(world, compute);
  });
}

// Every collective, some started and finished later; the same for a group of any world.
template <class T, class G>
void all_collectives(G& group, View<T> data, View<T> other, View<T> third) {
  const std::int64_t n = data.count / group.size();
  const auto own = [&](View<T> v) { return v.slice(group.rank() * n, n); };
  auto gather = group.template start_all_gather<T>(own(third), third);
  group.template all_to_all<T>(data, other);
  group.all_reduce(other);
  auto reduce = group.start_all_reduce(data, ReduceOp::max);
  group.finish(gather);
  group.finish(reduce);
  group.template start_shift<T>(other.slice(0, n), own(third));
  group.finish_shifts();
  group.broadcast(own(data).slice(0, n / 2), group.size() - 1);
  auto scatter = group.template start_reduce_scatter<T>(third, own(third));
  group.finish(scatter);
  group.template all_gather<T>(own(third), third);
}

template <class T>
void check_collectives(int ranks, std::int64_t n) {
  using Three = std::vector<std::vector<T>>;
  std::vector<Three> right(static_cast<std::size_t>(ranks)), found = right;
  const auto start = [&](int rank) { return Three(3, values<T>(rank, n * ranks)); };
  comm::thread::run(ranks, [&](Threads& world) {
    Three& v = right[static_cast<std::size_t>(world.rank())];
    v = start(world.rank());
    const auto view = [&](int i) { return View<T>(v[static_cast<std::size_t>(i)].data(), n * ranks); };
    all_collectives(world.everybody(), view(0), view(1), view(2));
  });
  run(ranks, [&](World& world, device::cuda::Stream& stream) {
    const Three v = start(world.rank());
    const GpuTensor<T> a(v[0], n % 3), b(v[1]), c(v[2]);
    const comm::SendGuard guard(world);
    all_collectives(world.everybody(), a.view(), b.view(), c.view());
    stream.wait();
    found[static_cast<std::size_t>(world.rank())] = {a.get(), b.get(), c.get()};
  });
  for (std::size_t r = 0; r < right.size(); ++r)
    for (std::size_t i = 0; i < 3; ++i) CHECK(same_bits(found[r][i], right[r][i]));
}

}  // namespace

TEST_CASE("collectives on one GPU give the bits of rank threads") {
  for (const int ranks : {1, 2, 4, 8})
    for (const std::int64_t n : {2, 1000, 300001}) {
      check_collectives<float>(ranks, n);
      check_collectives<bfloat16>(ranks, n);
      check_collectives<double>(ranks, n);
    }
}

TEST_CASE("the same work twice gives the same bits, and rows of blocks arrive") {
  run(4, [](World& world, device::cuda::Stream& stream) {
    const int me = world.rank(), next = (me + 1) % 4, last = (me + 3) % 4;
    constexpr std::int64_t rows = 37, width = 48, stride = 80;
    const std::vector<float> mine = values<float>(me, rows * stride / 4),
                             theirs = values<float>(last, rows * stride / 4);
    const GpuTensor<float> from(mine), to(std::vector<float>(rows * width / 4));
    const comm::SendGuard guard(world);
    for (int repeat = 0; repeat < 20; ++repeat) {
      const Piece out{next, reinterpret_cast<std::byte*>(from.data()), rows, width, stride, repeat % 2};
      const Piece in{last, reinterpret_cast<std::byte*>(to.data()), 1, rows * width, rows * width, repeat % 2};
      world.post({&out, 1});
      world.receive({&in, 1});
      world.wait_sent(repeat % 2);
    }
    stream.wait();
    const std::vector<float> found = to.get();
    for (std::int64_t i = 0; i < rows * width / 4; ++i)
      REQUIRE(found[static_cast<std::size_t>(i)] == theirs[static_cast<std::size_t>(i / 12 * 20 + i % 12)]);
  });
}

TEST_CASE("a rank that fails ends the others, and their memory goes away in peace") {
  try {
    run(4, [](World& world, device::cuda::Stream&) {
      const GpuTensor<float> data(values<float>(world.rank(), 4 << 20));
      const comm::SendGuard guard(world);
      auto pending = world.everybody().start_all_reduce(data.view());
      if (world.rank() == 2) throw std::runtime_error("disk on fire");
      world.everybody().finish(pending);
      world.everybody().all_reduce(data.view());
    });
    FAIL("no exception");
  } catch (const std::runtime_error& e) {
    CHECK(std::string(e.what()) == "disk on fire");
  }
  device::cuda::check(cudaDeviceSynchronize());
}

TEST_CASE("one rank by NCCL") {
  first_gpu();
  const auto port = comm::tcp::Listener(0).port();
  comm::tcp::run({0, 1, 0, "localhost", port, "torchrun"}, [](comm::tcp::World& control) {
    device::cuda::Stream compute;
    comm::nccl::World world(control, compute);
    const std::vector<float> source = values<float>(0, 1000);
    const GpuTensor<float> a(source), b(source), c(source);
    const comm::SendGuard guard(world);
    world.everybody().template all_to_all<float>(a.view(), b.view());
    world.everybody().all_reduce(b.view());
    auto gather = world.everybody().start_all_gather<float>(b.view(), c.view());
    world.everybody().finish(gather);
    world.everybody().broadcast(c.view(), 0);
    compute.wait();
    REQUIRE(c.get() == source);
  });
}
