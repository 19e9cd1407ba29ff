#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <galvatron/core/dtype.hpp>
#include "../counting_world.hpp"

using namespace galvatron;
using comm::Piece;
using op::Work;

namespace {
Work work_of(op::Kind kind, std::int64_t m, std::int64_t n, int stride = 1) {
  Work work;
  work.kind = kind;
  work.m = m;
  work.n = n;
  work.stride = stride;
  return work;
}
}  // namespace

TEST_CASE("collectives are counted in bytes, with no data at all") {
  std::vector<Work> log;
  comm::counting::World world(/*rank=*/5, /*size=*/1024, &log);
  auto& group = world.group(std::vector<int>{4, 5, 6, 7});
  CHECK(group.rank() == 1);
  CHECK(group.size() == 4);
  group.all_reduce(View<float>(nullptr, 10));
  group.all_reduce(View<bfloat16>(nullptr, 10), comm::ReduceOp::max);
  group.all_gather(View<const float>(nullptr, 3), View<float>(nullptr, 12));
  group.reduce_scatter(View<double>(nullptr, 12), View<double>(nullptr, 3));
  group.broadcast(View<std::int32_t>(nullptr, 7), 0);
  group.all_to_all(View<const float>(nullptr, 8), View<float>(nullptr, 8));
  group.start_shift(View<const float>(nullptr, 5), View<float>(nullptr, 5));
  group.finish_shifts();
  group.barrier();
  CHECK(log == std::vector<Work>{work_of(op::Kind::all_reduce, 40, 4), work_of(op::Kind::all_reduce, 20, 4),
                                 work_of(op::Kind::all_gather, 48, 4), work_of(op::Kind::reduce_scatter, 96, 4),
                                 work_of(op::Kind::broadcast, 28, 4), work_of(op::Kind::all_to_all, 32, 4),
                                 Work{.kind = op::Kind::send, .m = 20, .n = 1, .k = 4}});
}

TEST_CASE("a group counts how far apart its ranks are") {
  std::vector<Work> log;
  comm::counting::World world(8, 16, &log);
  world.group(std::vector<int>{0, 8}).all_reduce(View<float>(nullptr, 1));
  world.group(std::vector<int>{8, 7}).all_reduce(View<float>(nullptr, 1));
  world.everybody().all_reduce(View<float>(nullptr, 1));
  CHECK(log == std::vector<Work>{work_of(op::Kind::all_reduce, 4, 2, 8), work_of(op::Kind::all_reduce, 4, 2),
                                 work_of(op::Kind::all_reduce, 4, 16)});
}

TEST_CASE("a group of one says nothing") {
  std::vector<Work> log;
  comm::counting::World world(2, 4, &log);
  auto& group = world.group(std::vector<int>{2});
  CHECK(&group == &world.group(std::vector<int>{2}));
  group.all_reduce(View<float>(nullptr, 10));
  group.all_gather(View<const float>(nullptr, 12), View<float>(nullptr, 12));
  group.broadcast(View<float>(nullptr, 1), 0);
  CHECK(log.empty());
}

TEST_CASE("blocks are one message a peer and call, and none to oneself") {
  std::vector<Work> log;
  comm::counting::World world(1, 4, &log);
  const std::vector<Piece> pieces = {
      {2, nullptr, 10, 8, 64}, {1, nullptr, 1, 999, 999}, {3, nullptr, 1, 5, 5}, {2, nullptr, 1, 20, 20}};
  world.post(pieces);
  world.receive(pieces);
  world.wait_sent();
  CHECK(log == std::vector<Work>{work_of(op::Kind::send, 100, 1), work_of(op::Kind::send, 5, 1)});
  world.post({});
  CHECK(log.size() == 2);
}

TEST_CASE("shapes and ranks that do not fit are refused as in a real world") {
  std::vector<Work> log;
  comm::counting::World world(1, 4, &log);
  CHECK_THROWS_AS(world.group(std::vector<int>{0, 2}), Failure);
  CHECK_THROWS_AS(world.group(std::vector<int>{1, 4}), Failure);
  CHECK_THROWS_AS(world.everybody().all_gather(View<const float>(nullptr, 3), View<float>(nullptr, 13)), Failure);
  CHECK_THROWS_AS(world.everybody().all_to_all(View<const float>(nullptr, 6), View<float>(nullptr, 6)), Failure);
  CHECK_THROWS_AS(comm::counting::World(4, 4, &log), Failure);
}
