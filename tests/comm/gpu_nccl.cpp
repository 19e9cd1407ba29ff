// What of NCCL's communicators can be known without a GPU: their failures. With several GPUs: their results.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/comm/comm.hpp>
#include <galvatron/comm/nccl/world.hpp>
#include <galvatron/comm/tcp/world.hpp>
#include <galvatron/device/cuda/devices.hpp>

namespace {

using namespace galvatron;
namespace nccl = comm::nccl;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Failure& e) {
    CHECK(e.kind() == ErrorKind::machine);
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("statuses that are no failure, a peer's, a device's") {
  CHECK(nccl::is_fine(ncclSuccess));
  CHECK(nccl::is_fine(ncclInProgress));
  nccl::check(ncclInProgress);
  CHECK_THROWS_AS(nccl::check(ncclRemoteError), PeerFailure);
  CHECK_THROWS_AS(nccl::check(ncclSystemError), PeerFailure);
  CHECK_THROWS_AS(nccl::check(ncclUnhandledCudaError), DeviceFailure);
  const std::string text = message_of([] { nccl::check(ncclInvalidUsage); });
  CHECK(text.starts_with("NCCL: invalid usage"));
  CHECK(text.find("(gpu_nccl.cpp:") != std::string::npos);
  CHECK(text.find('\n') == std::string::npos);
}

TEST_CASE("a communicator that cannot be made says so in a line, and leaves nothing behind") {
  if (device::cuda::device_count()) return;  // a GPU: see below
  for (int repeat = 0; repeat < 3; ++repeat) {
    const std::string text = message_of([] {
      comm::thread::run(1, [](comm::thread::World& control) {
        nccl::Watch watch(control, std::chrono::seconds(5));
        nccl::Communicator(watch, nccl::unique_id(), 1, 0).settle();
      });
    });
    CHECK(text.starts_with("NCCL: "));
    CHECK(text.find('\n') == std::string::npos);
    MESSAGE(text);
  }
}

TEST_CASE("a world without a GPU says so, and a rank that fails meanwhile ends the others") {
  if (device::cuda::device_count()) return;
  CHECK(message_of([] { const device::cuda::Stream compute; }).starts_with("CUDA: "));
}

TEST_CASE("a watch hears of a failure and tells it to who asks") {
  std::atomic<bool> burns{false};
  const auto run = [&] {
    comm::thread::run(2, [&](comm::thread::World& control) {
      if (control.rank() == 1) {
        while (!burns) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        throw std::runtime_error("disk on fire");
      }
      nccl::Watch watch(control, std::chrono::seconds(5));
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      CHECK(!watch.failed());
      burns = true;
      for (int i = 0; i < 100 && !watch.failed(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      REQUIRE(watch.failed());
      const std::scoped_lock lock(watch.mutex());
      CHECK(message_of([&] { watch.check(); }) == "rank 1 failed: disk on fire");
    });
  };
  CHECK_THROWS_WITH(run(), "disk on fire");
}
