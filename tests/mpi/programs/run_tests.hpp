// The main function of test programs that mpirun starts: every process runs every case, the first one speaks.
#pragma once

#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <random>

#include <doctest/doctest.h>

#include <galvatron/comm/mpi/world.hpp>

namespace programs {

/// GALVATRON_RANDOM_SEED, or a new one.
inline unsigned chosen_seed() {
  const char* text = std::getenv("GALVATRON_RANDOM_SEED");
  return text == nullptr ? std::random_device{}() : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

/// Runs all cases; 0 if they pass on this process.
/// @param begin  is given the runtime and a seed that all processes have alike: rank 0's `seed`
template <class Begin>
int run_tests(int count, char** values, Begin&& begin, unsigned seed = chosen_seed()) {
  using namespace galvatron;
  auto runtime = std::make_unique<comm::mpi::Runtime>();
  int failed = 1;
  try {
    comm::mpi::run(*runtime, [&](comm::mpi::World& world) {
      auto number = static_cast<std::int32_t>(seed);
      world.everybody().broadcast(View<std::int32_t>(&number, 1), 0);
      seed = static_cast<unsigned>(number);
    });
    if (runtime->rank() == 0) std::printf("seed %u\n", seed);
    begin(*runtime, seed);
    doctest::Context context(count, values);
    if (runtime->rank() != 0) context.setOption("minimal", true);
    failed = context.run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  if (runtime->abandoned()) comm::mpi::conclude(*runtime, true);
  return failed;
}

}  // namespace programs
