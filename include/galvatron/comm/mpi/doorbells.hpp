// Doorbells between the processes of a host: MPI has no way to sleep until a message comes, so who sends one rings.
//
//   process 0   Isend to 1 -> shared memory     ring(1)
//   process 1   look, nothing there, sleep ~~~~~~~~~~~~~~~> look again at once
//
// A sleep has an end of its own, for what comes without a ring: from other hosts, or when MPI moves a large message in
// several parts.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <thread>
#include <vector>

#include <galvatron/comm/thread/wait.hpp>

namespace galvatron::comm::mpi {

class Doorbells {
 public:
  /// Collective over `local`, which has the processes of this host; `ranks` are their world ranks, and `world` is the
  /// number of all. Where MPI has no shared memory for them nobody rings.
  Doorbells(MPI_Comm local, std::span<const int> ranks, int world) : doorbells_(static_cast<std::size_t>(world)) {
    int own = 0;
    MPI_Comm_rank(local, &own);
    void* memory = nullptr;
    MPI_Comm_set_errhandler(local, MPI_ERRORS_RETURN);
    int made = MPI_Win_allocate_shared(2 * sizeof(thread::Doorbell), 1, MPI_INFO_NULL, local, &memory, &window_) ==
               MPI_SUCCESS;
    MPI_Allreduce(MPI_IN_PLACE, &made, 1, MPI_INT, MPI_MIN, local);
    if (made == 0) return;
    own_ = new (aligned(memory)) thread::Doorbell(true);
    MPI_Barrier(local);  // nobody rings a bell that is not there yet
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      MPI_Aint size = 0;
      int unit = 0;
      if (static_cast<int>(i) != own &&
          MPI_Win_shared_query(window_, static_cast<int>(i), &size, &unit, &memory) == MPI_SUCCESS)
        doorbells_[static_cast<std::size_t>(ranks[i])] = std::launder(static_cast<thread::Doorbell*>(aligned(memory)));
    }
  }
  Doorbells(const Doorbells&) = delete;
  Doorbells& operator=(const Doorbells&) = delete;

  /// Collective over the processes of the host.
  void free() {
    if (window_ != MPI_WIN_NULL) MPI_Win_free(&window_);
  }

  /// Wakes a rank if it is of this host and sleeps.
  void ring(int rank) const {
    if (thread::Doorbell* const bell = doorbells_[static_cast<std::size_t>(rank)]; bell != nullptr) bell->ring();
  }
  /// To be called before looking for what a ring announces.
  [[nodiscard]] std::uint32_t listen() const { return own_ == nullptr ? 0 : own_->listen(); }
  /// Returns when somebody has rung since listen(), or after that time.
  void sleep(std::uint32_t heard, std::chrono::nanoseconds longest) const {
    if (own_ == nullptr)
      std::this_thread::sleep_for(longest);
    else
      own_->sleep(heard, thread::Clock::now() + longest);
  }

 private:
  // The first place in a process's part of the window where a bell may lie; the part begins at the same place modulo a
  // page in every process.
  static void* aligned(void* memory) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    return reinterpret_cast<void*>((at + alignof(thread::Doorbell) - 1) / alignof(thread::Doorbell) *
                                   alignof(thread::Doorbell));
  }

  MPI_Win window_ = MPI_WIN_NULL;
  thread::Doorbell* own_ = nullptr;
  std::vector<thread::Doorbell*> doorbells_;  // by world rank; null: another host's, or this process's own
};

}  // namespace galvatron::comm::mpi
