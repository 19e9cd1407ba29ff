// Repeated work: done, recorded, and done from the record with the data and constants of every time.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/gpu.hpp>

#include "emulated_machine.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
using EmulatedGpu = device::cuda::Gpu<EmulatedMachine>;

constexpr std::int64_t length = 70;

/// A step that brings data, computes with all kinds of operations and changes parameters; the same on any device.
struct Steps {
  std::vector<float> data = std::vector<float>(length);
  std::vector<float> master = std::vector<float>(length, 1.0F);
  std::vector<float> m = std::vector<float>(length);
  std::vector<float> v = std::vector<float>(length);
  std::vector<float> product = std::vector<float>(49);
  std::vector<float> scale{1.0F};

  /// @param extra  operations that other steps do not have
  template <class D>
  void ask(D& d, int step, int extra = 0) {
    d.clear_sums();
    d.write(view(data), [&](View<float> to) {
      for (std::int64_t i = 0; i < length; ++i)
        to[i] = static_cast<float>(std::sin(step * 100.0 + static_cast<double>(i)));
    });
    for (int i = 0; i <= extra; ++i) d.add(length, view(data), view(data), view(data));
    d.gemm(op::Kind::gemm_nt, 7, 7, 10, View<const float>(view(data)), View<const float>(view(data)), view(product),
           false, View<const float>{});
    d.norm_squared(length, View<const float>(view(data)), d.sums().slice(device::gradient_squares, 1));
    d.clip_scale(View<const double>(d.sums()), 1.0, d.gradient_scale());
    d.begin_update({.learning_rate = 0.01F * static_cast<float>(step), .step = step});
    d.adamw(length, {}, View<const float>(d.gradient_scale()), view(master), View<const float>(view(data)), view(m),
            view(v), view(master));
  }
  template <class U>
  static View<U> view(std::vector<U>& all) {
    return {all.data(), static_cast<std::int64_t>(all.size())};
  }
};

void check_same(const Steps& a, const Steps& b) {
  CHECK(error_of(a.data, doubles(b.data)) < 1e-6);
  CHECK(error_of(a.product, doubles(b.product)) < 1e-5);
  CHECK(error_of(a.master, doubles(b.master)) < 1e-5);
  CHECK(error_of(a.v, doubles(b.v)) < 1e-5);
}

}  // namespace

TEST_CASE("a repeated step does what it does on the cores, with the data and constants of every step") {
  TestHost host(1);
  EmulatedMachine machine;
  EmulatedGpu gpu(machine);
  Steps on_host;
  Steps on_gpu;
  for (int step = 1; step <= 5; ++step) {
    CAPTURE(step);
    on_host.ask(*host, step);
    gpu.repeat(0, [&] { on_gpu.ask(gpu, step); });
    check_same(on_gpu, on_host);
    CHECK((gpu.graph_replay().recorded() > 0) == (step > 1));
  }
  CHECK(gpu.graph_replay().refusal().empty());
}

TEST_CASE("what is asked for is not done while it is recorded or compared, but once afterwards") {
  EmulatedMachine machine;
  EmulatedGpu gpu(machine);
  std::vector<float> sum(length);
  const std::vector<float> one(length, 1.0F);
  for (int time = 1; time <= 4; ++time) {
    gpu.repeat(7, [&] {
      gpu.accumulate(length, View<const float>(one.data(), length), View<float>(sum.data(), length));
      CHECK(sum[0] == static_cast<float>(time == 1 ? 1 : time - 1));
    });
    CHECK(std::all_of(sum.begin(), sum.end(), [&](float x) { return x == static_cast<float>(time); }));
  }
}

TEST_CASE("a step that asks for other operations is recorded anew, also when it brings more data") {
  TestHost host(1);
  EmulatedMachine machine;
  EmulatedGpu gpu(machine);
  Steps on_host;
  Steps on_gpu;
  std::vector<float> more(200);
  int step = 0;
  for (const int extra : {0, 0, 0, 2, 2, 1, 0}) {
    ++step;
    CAPTURE(step);
    on_host.ask(*host, step, extra);
    gpu.repeat(0, [&] {
      on_gpu.ask(gpu, step, extra);
      if (extra > 1) gpu.write(Steps::view(more), [&](View<float> to) { std::fill_n(to.data, to.count, 1.0F * step); });
    });
    check_same(on_gpu, on_host);
    if (extra > 1) CHECK(more.back() == static_cast<float>(step));
  }
  CHECK(gpu.graph_replay().refusal().empty());
}

TEST_CASE("work that cannot be recorded is done without, and the reason is kept") {
  for (const int operations : {0, 3, 6}) {
    CAPTURE(operations);
    TestHost host(1);
    EmulatedMachine machine;
    machine.recorder().refuse_after(operations);
    EmulatedGpu gpu(machine);
    Steps on_host;
    Steps on_gpu;
    for (int step = 1; step <= 4; ++step) {
      on_host.ask(*host, step);
      gpu.repeat(0, [&] { on_gpu.ask(gpu, step); });
      check_same(on_gpu, on_host);
    }
    CHECK(gpu.graph_replay().recorded() == 0);
    CHECK(gpu.graph_replay().refusal() == "this cannot be recorded");
  }
}

TEST_CASE("numbers have recordings of their own") {
  EmulatedMachine machine;
  EmulatedGpu gpu(machine);
  std::vector<float> sum(length);
  std::vector<float> other(length);
  const std::vector<float> one(length, 1.0F);
  for (int time = 1; time <= 4; ++time) {
    gpu.repeat(0,
               [&] { gpu.accumulate(length, View<const float>(one.data(), length), View<float>(sum.data(), length)); });
    gpu.repeat(
        1, [&] { gpu.accumulate(length, View<const float>(sum.data(), length), View<float>(other.data(), length)); });
  }
  CHECK(sum[length - 1] == 4.0F);
  CHECK(other[length - 1] == 10.0F);
  CHECK(gpu.graph_replay().recorded() == 2);
}

TEST_CASE("repeated work neither fetches nor waits, and leaves no recording behind when it fails") {
  EmulatedMachine machine;
  EmulatedGpu gpu(machine);
  float value = 0;
  const std::vector<float> one(length, 1.0F);
  std::vector<float> sum(length);
  const auto add = [&] {
    gpu.accumulate(length, View<const float>(one.data(), length), View<float>(sum.data(), length));
  };
  gpu.repeat(0, add);
  CHECK_THROWS_AS(gpu.repeat(0,
                             [&] {
                               add();
                               gpu.fetch(View<const float>(one.data(), 1), &value);
                             }),
                  std::logic_error);
  CHECK_FALSE(machine.recorder().records());
  CHECK_THROWS_AS(gpu.repeat(0, [&] { gpu.wait(); }), std::logic_error);
  CHECK_THROWS_AS(gpu.repeat(0, [&] { throw Failure(ErrorKind::machine, "the data end here"); }), Failure);
  CHECK_FALSE(machine.recorder().records());
  CHECK(sum[0] == 1.0F);
  gpu.repeat(0, add);
  gpu.repeat(0, add);
  CHECK(sum[0] == 3.0F);
  gpu.fetch(View<const float>(sum.data(), 1), &value);
  CHECK(value == 3.0F);
}

TEST_CASE("another thread may fetch while work is repeated") {
  EmulatedMachine machine;
  EmulatedGpu gpu(machine);
  const std::vector<float> one(length, 1.0F);
  std::vector<float> sum(length);
  float fetched = 0;
  std::thread other;
  for (int time = 1; time <= 3; ++time) {
    gpu.repeat(0, [&] {
      gpu.accumulate(length, View<const float>(one.data(), length), View<float>(sum.data(), length));
      other = std::thread([&] { gpu.fetch(View<const float>(one.data(), 1), &fetched); });
      if (time != 2) other.join();  // while work is recorded it waits
    });
    if (time == 2) other.join();
  }
  CHECK(fetched == 1.0F);
  CHECK(sum[0] == 3.0F);
}
