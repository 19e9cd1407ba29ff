// Ranks on GPUs: with one each, as threads of a process or processes of one or several machines; or threads on one GPU.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <type_traits>
#include <vector>

#include <galvatron/comm/local_gpu/world.hpp>
#include <galvatron/comm/nccl/world.hpp>
#include <galvatron/comm/thread/world.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/device/cuda/devices.hpp>
#include <galvatron/device/cuda/stream.hpp>

namespace galvatron::train {

/// What is left of a GPU's memory for NCCL when ranks have GPUs of their own: buffers of its communicators, which are
/// in no arena. By its sources (2.28) about 10 MiB for each block of a message's kernel on the receiving side and 2 MiB
/// on the sending one (96 MiB for each neighbour), 290 MiB for a ring of a group, and 256 MiB where a switch adds: two
/// neighbours, three groups and the switch. An allowance, not a measurement.
inline constexpr Bytes nccl_allowance{std::int64_t{1344} << 20};

/// Where a rank computes.
struct Seat {
  std::array<char, 36> host{};  ///< the same for ranks that share a kernel, and its clocks
  std::array<char, 16> gpu{};
  [[nodiscard]] bool same_host(const Seat& other) const { return host == other.host; }
};
static_assert(std::is_trivially_copyable_v<Seat>);

/// This process's seat on GPU `ordinal`. Throws DeviceFailure.
inline Seat seat_on(int ordinal) {
  Seat seat;
  std::string host;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> host;  // as long as the kernel runs, of no other machine
  std::copy_n(host.begin(), std::min(host.size(), seat.host.size()), seat.host.begin());
  seat.gpu = device::cuda::describe_device(ordinal).identity;
  return seat;
}

/// Collective: the seats of all ranks. Throws Failure (usage) when two have the same GPU, which NCCL refuses.
inline std::vector<Seat> take_seats(comm::World& world, const Seat& own) {
  std::vector<Seat> seats(static_cast<std::size_t>(world.size()));
  world.everybody().all_gather<Seat>(View<const Seat>(&own, 1),
                                     View<Seat>(seats.data(), static_cast<std::int64_t>(seats.size())));
  for (std::size_t b = 0; b < seats.size(); ++b)
    for (std::size_t a = 0; a < b; ++a)
      if (seats[a].same_host(seats[b]) && seats[a].gpu == seats[b].gpu)
        throw Failure(ErrorKind::usage, "ranks " + std::to_string(a) + " and " + std::to_string(b) +
                                            " are processes on the same GPU, and NCCL takes one of them; start at most "
                                            "one process a GPU, or one process alone for all ranks");
  return seats;
}

/// Ranks of a host when every host has as many, one host's after another's; else all, as if they shared one.
inline int ranks_a_host(const std::vector<Seat>& seats) {
  std::size_t first = 1;
  while (first < seats.size() && seats[first].same_host(seats[0])) ++first;
  bool regular = seats.size() % first == 0;
  for (std::size_t b = 0; b < seats.size(); ++b)
    for (std::size_t a = 0; a < b; ++a) regular &= seats[a].same_host(seats[b]) == (a / first == b / first);
  return static_cast<int>(regular ? first : seats.size());
}

namespace detail {

/// Calls body(world, ordinal, compute stream) as the rank of `control`, on GPU `ordinal`, the calling thread's.
template <class Body>
void on_own_gpu(comm::World& control, int ordinal, std::chrono::nanoseconds timeout, const Body& body) {
  device::cuda::use_device(ordinal);
  device::cuda::Stream compute;
  comm::nccl::World world(control, compute, timeout);
  body(world, ordinal, compute);
}

/// The same on a thread for each of `ranks` ranks, rank r on GPU r; throws what failed first.
template <class Body>
void on_own_gpus(int ranks, std::chrono::nanoseconds timeout, const Body& body) {
  comm::thread::run(ranks, [&](comm::World& control) { on_own_gpu(control, control.rank(), timeout, body); },
                    {.timeout = timeout});
}

/// The same, all of them on GPU `ordinal`.
template <class Body>
void on_one_gpu(int ranks, int ordinal, const comm::thread::Options& options, const Body& body) {
  device::cuda::use_device(ordinal);
  std::vector<device::cuda::Event> fences(static_cast<std::size_t>(ranks));
  const auto rank_main = [&](comm::thread::World& control) {
    device::cuda::use_device(ordinal);
    device::cuda::Stream compute;
    comm::local_gpu::World<device::cuda::Stream> world(control, fences, compute);
    body(world, ordinal, compute);
  };
  comm::thread::run(ranks, rank_main, options);
}

}  // namespace detail

}  // namespace galvatron::train
