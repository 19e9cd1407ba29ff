// A rank's own work is the time outside of calls of the communicator.
#include <galvatron/comm/call_clock.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include <galvatron/comm/thread/world.hpp>

using namespace galvatron;

TEST_CASE("waiting for a rank that is late is no work") {
  comm::thread::run(2, [](comm::thread::World& world) {
    world.everybody().barrier();
    const comm::WorkWatch watch;
    const double before = comm::CallClock::seconds();
    const double began = steady_seconds();
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(80));
    world.everybody().barrier();
    const double all = steady_seconds() - began;
    const double calls = comm::CallClock::seconds() - before;
    if (world.rank() == 0) CHECK(watch.seconds() >= 0.08);
    if (world.rank() == 1) CHECK(calls >= 0.04);  // it may have come to the barrier late itself
    CHECK(calls <= all);
    CHECK(watch.seconds() >= 0);
  });
}

TEST_CASE("calls within calls count once") {
  const double before = comm::CallClock::seconds();
  const double began = steady_seconds();
  {
    const comm::CallClock outer;
    const comm::CallClock inner;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const double calls = comm::CallClock::seconds() - before;
  CHECK(calls >= 0.01);
  CHECK(calls <= steady_seconds() - began);
}
