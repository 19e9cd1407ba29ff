// Ranks that fail in the way that the first argument names. The process that reports prints the message and a line
// with how long the others waited; the exit code is that of the failure.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <galvatron/comm/mpi/world.hpp>

using namespace galvatron;
using comm::Piece;
using comm::mpi::World;

namespace {

comm::mpi::Options options;

void sum(World& world, std::int64_t count) {
  std::vector<float> data(static_cast<std::size_t>(count), 1.0F);
  world.everybody().all_reduce(View<float>(data.data(), count));
}

Piece piece(int peer, std::vector<std::byte>& data) {
  const auto bytes = static_cast<std::int64_t>(data.size());
  return {peer, data.data(), 1, bytes, bytes};
}

const std::map<std::string, std::function<void(World&)>> ways{
    {"none", [](World& world) { sum(world, 100); }},
    {"throw",
     [](World& world) {
       sum(world, 100);
       if (world.rank() == 2) throw Failure(ErrorKind::infeasible, "the third rank has had enough");
       sum(world, 100000);
     }},
    {"all",
     [](World& world) {
       sum(world, 100);
       throw Failure(ErrorKind::usage, "everybody dislikes this");
     }},
    {"logic",
     [](World& world) {
       if (world.rank() == 0) throw std::logic_error("rank 0 is confused");
       sum(world, 1);
     }},
    {"busy",  // rank 0 computes for longer than anybody waits for it
     [](World& world) {
       if (world.rank() == 1) throw Failure(ErrorKind::machine, "a device melted");
       if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(60));
       sum(world, 1);
     }},
    {"disagree", [](World& world) { sum(world, world.rank() == 1 ? 30000 : 12); }},
    {"early",
     [](World& world) {
       if (world.rank() != 1) sum(world, 12);
     }},
    {"late",
     [](World& world) {
       if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
       sum(world, 12);
     }},
    {"sizes",
     [](World& world) {
       std::vector<std::byte> data(world.rank() == 0 ? 10 : 12);
       const Piece block = piece(1 - world.rank(), data);
       if (world.rank() == 0) world.post({&block, 1});
       if (world.rank() == 1) world.receive({&block, 1});
       if (world.rank() < 2) world.wait_sent();
     }},
    {"untaken",
     [](World& world) {
       std::vector<std::byte> data(10'000'000);
       const Piece block = piece(1, data);
       if (world.rank() == 0) world.post({&block, 1});
       world.wait_sent();
     }},
};

}  // namespace

int main(int count, char** values) {
  const auto way = ways.find(count > 1 ? values[1] : "");
  if (way == ways.end()) return 1;
  if (way->first == "late") options.timeout = std::chrono::milliseconds(700);
  comm::mpi::Runtime runtime;
  const comm::Verdict verdict = comm::mpi::outcome_of(runtime, way->second, options);
  if (verdict.failure == nullptr) return 0;
  if (verdict.reports) std::printf("%s\n", comm::message_of(verdict.failure).c_str());
  std::fflush(stdout);
  comm::mpi::conclude(runtime, verdict.reports);
  return static_cast<int>(verdict.error);
}
