#include <doctest/doctest.h>

#include <memory>

#include <galvatron/device/host/host.hpp>

#include "host_fixture.hpp"

using namespace galvatron;
using namespace galvatron::test;
using device::Host;

static_assert(device::Device<Host>);
static_assert(!Host::counts_only);
static_assert(Host::library_workspace_bytes(2) == 2 * Host::workspace_bytes_per_thread);
static_assert(Host::library_workspace_bytes(1) % tensor_alignment == 0);

TEST_CASE("a host device refuses a workspace that is too small or askew, and no threads") {
  std::vector<std::byte> memory(static_cast<std::size_t>(Host::library_workspace_bytes(1)) + 128);
  void* aligned = memory.data();
  std::size_t space = memory.size();
  std::align(64, static_cast<std::size_t>(Host::library_workspace_bytes(1)), aligned, space);
  auto* start = static_cast<std::byte*>(aligned);
  CHECK_NOTHROW(Host(1, View<std::byte>(start, Host::library_workspace_bytes(1))));
  CHECK_THROWS_AS(Host(2, View<std::byte>(start, Host::library_workspace_bytes(1))), DeviceFailure);
  CHECK_THROWS_AS(Host(1, View<std::byte>(start + 4, Host::library_workspace_bytes(1))), DeviceFailure);
  CHECK_THROWS_AS(Host(0, View<std::byte>(start, Host::library_workspace_bytes(1))), DeviceFailure);
}

TEST_CASE("a host device says its threads and formats") {
  TestHost host(2);
  CHECK(host->threads() == 2);
  CHECK(host->isa() == device::best_isa());
  CHECK(Host::supports(Precision::fp32));
}

TEST_CASE("runs of threads cover every index once and start on their unit") {
  for (const int threads : {1, 2, 3, 7}) {
    const device::Team team{threads, device::Isa::portable, {}};
    for (const std::int64_t n : {0, 1, 63, 64, 65, 1000}) {
      std::vector<int> seen(static_cast<std::size_t>(n));
      device::for_runs(team, n, 64, 1 << 20, [&](std::int64_t first, std::int64_t last, int) {
        CHECK(first % 64 == 0);
        for (std::int64_t i = first; i < last; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      CHECK(std::count(seen.begin(), seen.end(), 1) == n);
    }
  }
}
