// How many GPUs, which launcher: which kind of run.
#include <optional>
#include <string>

#include <doctest/doctest.h>

#include <galvatron/rank/placement.hpp>

using namespace galvatron;
using train::Placement;
using train::placement_of;

namespace {

using Kind = Placement::Kind;
using Job = std::optional<comm::LaunchEnvironment>;

Job job(int rank, int size, int local_rank) { return comm::LaunchEnvironment{rank, size, local_rank, "n1", 1, "srun"}; }

std::string error_of(int gpus, const Job& of, int ranks) {
  const auto placement = placement_of(gpus, of, ranks);
  if (placement) return "";
  CHECK(placement.error().kind == ErrorKind::usage);
  return placement.error().message;
}

}  // namespace

TEST_CASE("a process that is alone gives every rank a GPU where there are enough, else the first to all") {
  CHECK(placement_of(8, {}, 8) == Placement{Kind::own_gpus, 8, 0});
  CHECK(placement_of(8, {}, 3) == Placement{Kind::own_gpus, 3, 0});
  CHECK(placement_of(8, {}, 0) == Placement{Kind::own_gpus, 8, 0});
  CHECK(placement_of(8, {}, 1) == Placement{Kind::one_gpu, 1, 0});
  CHECK(placement_of(8, {}, 9) == Placement{Kind::one_gpu, 9, 0});
  CHECK(placement_of(1, {}, 4) == Placement{Kind::one_gpu, 4, 0});
  CHECK(placement_of(1, {}, 0) == Placement{Kind::one_gpu, 1, 0});
}

TEST_CASE("a process of a job is one rank, on the GPU of its number, or on the only one") {
  CHECK(placement_of(4, job(6, 8, 2), 8) == Placement{Kind::processes, 8, 2});
  CHECK(placement_of(4, job(6, 8, 2), 0) == Placement{Kind::processes, 8, 2});
  CHECK(placement_of(1, job(6, 8, 2), 8) == Placement{Kind::processes, 8, 0});
  CHECK(placement_of(8, job(1, 2, 1), 2) == Placement{Kind::processes, 2, 1});
}

TEST_CASE("jobs that cannot be placed are refused with what would do") {
  CHECK(error_of(4, job(1, 4, 1), 8) == "srun has started 4 processes for 8 ranks; start 8, or plan for 4");
  CHECK(error_of(2, job(2, 4, 2), 4) ==
        "rank 2 is process 3 of its host, which has 2 GPUs; start at most one process a GPU");
}
