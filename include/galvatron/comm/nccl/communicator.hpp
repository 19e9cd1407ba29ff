// A communicator of NCCL that never blocks the program for longer than its watch allows.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <source_location>
#include <thread>

#include <nccl.h>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/nccl/watch.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::comm::nccl {

constexpr ncclDataType_t type_of(ElementType type) {
  constexpr std::array types{ncclFloat32, ncclFloat64, ncclBfloat16, ncclInt32, ncclInt8, ncclInt8};
  return types[static_cast<std::size_t>(type)];
}
constexpr ncclRedOp_t operation_of(ReduceOp op) { return op == ReduceOp::sum ? ncclSum : ncclMax; }

/// A fresh identity of a communicator, made by one rank and told to the others. Throws DeviceFailure.
inline ncclUniqueId unique_id() {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id));
  return id;
}

/// The same on all members of a control group: member 0's.
inline ncclUniqueId shared_id(Group& control) {
  ncclUniqueId id{};
  if (control.rank() == 0) id = unique_id();
  control.broadcast(View<char>(id.internal, NCCL_UNIQUE_ID_BYTES), 0);
  return id;
}

/// Between two looks at something that began then: most of NCCL's calls take less time than the shortest sleep.
inline void pause(Clock::time_point begin) {
  if (Clock::now() - begin < std::chrono::microseconds(200))
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(20));
}

class Communicator {
 public:
  /// Collective; the first call() waits until all members have come. Throws DeviceFailure or PeerFailure.
  /// @param most_blocks  thread blocks of its kernels, each of which has buffers of its own; 0: as NCCL likes
  Communicator(Watch& watch, const ncclUniqueId& id, int size, int rank, int most_blocks = 0) : Communicator(watch) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (most_blocks > 0) config.maxCTAs = most_blocks;
    std::unique_lock lock(watch_.mutex());
    watch_.check();
    const ncclResult_t status = ncclCommInitRankConfig(&comm_, size, id, rank, &config);
    watch_.add(&comm_);
    if (!is_fine(status)) watch_.fail(status, comm_, lock);
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  /// When its watch has not ended it before, something went wrong.
  ~Communicator() {
    const std::scoped_lock lock(watch_.mutex());
    watch_.remove(&comm_);
    if (comm_ != nullptr) ncclCommAbort(comm_);
  }

  /// Gives NCCL the calls of `issue(ncclComm_t)` as one group, when what it was given before is on its way. They are in
  /// their stream when settle() has returned, and not always before.
  template <class F>
  void call(F&& issue, std::source_location where = std::source_location::current()) {
    std::unique_lock lock(watch_.mutex());
    wait_ready(lock);
    check(ncclGroupStart());
    ncclResult_t status = issue(comm_);
    const ncclResult_t ended = ncclGroupEnd();
    if (is_fine(status)) status = ended;
    if (!is_fine(status)) watch_.fail(status, comm_, lock, where);
  }
  /// Returns when all that NCCL was given is in its stream. For the first messages between two ranks, and for the first
  /// collective, that is when the others have come too.
  void settle() {
    std::unique_lock lock(watch_.mutex());
    wait_ready(lock);
  }
  /// True if settle() would return at once.
  [[nodiscard]] bool is_settled() {
    const std::scoped_lock lock(watch_.mutex());
    watch_.check();
    return state_of(comm_) == ncclSuccess;
  }

 private:
  explicit Communicator(Watch& watch) : watch_(watch) {}

  // Throws if there was a failure, or after the timeout.
  void wait_ready(std::unique_lock<std::mutex>& lock) {
    const auto begin = Clock::now();
    for (;;) {
      watch_.check();
      const ncclResult_t status = state_of(comm_);
      if (status == ncclSuccess) return;
      if (status != ncclInProgress) watch_.fail(status, comm_, lock);
      if (Clock::now() - begin > watch_.timeout()) {
        watch_.fail("NCCL: not all members of a group came in time");
        watch_.check();
      }
      lock.unlock();
      pause(begin);
      lock.lock();
    }
  }

  Watch& watch_;
  ncclComm_t comm_ = nullptr;  // the watch sets it to null when it aborts it
};

}  // namespace galvatron::comm::nccl
