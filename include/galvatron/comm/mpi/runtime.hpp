// The MPI library of this process, from MPI_Init to MPI_Finalize, and where the process stands among the others.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sched.h>
#include <sys/prctl.h>

#include <galvatron/cluster/host.hpp>
#include <galvatron/comm/status.hpp>
#include <galvatron/comm/thread/wait.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::mpi {

/// An MPI call that did not work, which mostly means that a connection broke because a peer is gone.
class ConnectionFailure : public PeerFailure {
 public:
  using PeerFailure::PeerFailure;
};

/// Throws ConnectionFailure unless `code` is MPI_SUCCESS.
inline void require(int code, const char* call, std::source_location where = std::source_location::current()) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw ConnectionFailure(std::string(call) + ": " + text, where);
}

/// Doorbells between the processes of a host: MPI has no way to sleep until a message comes, so who sends one rings.
///
///   process 0   Isend to 1 -> shared memory     ring(1)
///   process 1   look, nothing there, sleep ~~~~~~~~~~~~~~~> look again at once
///
/// A sleep has an end of its own, for what comes without a ring: from other hosts, or the later parts of a message.
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
    own_ = new (place_in(memory)) thread::Doorbell(true);
    MPI_Barrier(local);  // nobody rings a bell that is not there yet
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      MPI_Aint size = 0;
      int unit = 0;
      if (static_cast<int>(i) != own &&
          MPI_Win_shared_query(window_, static_cast<int>(i), &size, &unit, &memory) == MPI_SUCCESS)
        doorbells_[static_cast<std::size_t>(ranks[i])] = std::launder(static_cast<thread::Doorbell*>(place_in(memory)));
    }
  }

  /// Collective over the processes of the host.
  void free() {
    if (window_ != MPI_WIN_NULL) MPI_Win_free(&window_);
  }

  /// Wakes a rank if it is of this host and sleeps.
  void ring(int rank) const {
    if (thread::Doorbell* const bell = doorbells_[static_cast<std::size_t>(rank)]; bell != nullptr) bell->ring();
  }
  /// To be called before looking for what a ring announces.
  [[nodiscard]] std::uint32_t listen() const { return own_->listen(); }
  /// Returns when somebody has rung since listen(), or after that time.
  void sleep(std::uint32_t heard, std::chrono::nanoseconds longest) const {
    own_->sleep(heard, thread::Clock::now() + longest);
  }

 private:
  // The first place for a bell in a process's part of the window, which begins at one place of a page in all of them.
  static void* place_in(void* memory) {
    std::size_t room = 2 * sizeof(thread::Doorbell);
    return std::align(alignof(thread::Doorbell), sizeof(thread::Doorbell), memory, room);
  }

  MPI_Win window_ = MPI_WIN_NULL;
  thread::Doorbell unheard_;  // where there is no shared memory
  thread::Doorbell* own_ = &unheard_;
  std::vector<thread::Doorbell*> doorbells_;  // by world rank; null: another host's, or this process's own
};

/// Initialises MPI; one object for each process, in its main thread, which makes all calls. Collective: every process
/// of the job constructs it. The destructor finalises MPI, unless abandon() was called. Throws ConnectionFailure.
class Runtime {
 public:
  Runtime() {
    // Calls that block inside of the library (only at the beginning and the end) leave the core to others.
    ::setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    int level = 0;
    require(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    require(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    require(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
    for (MPI_Comm* comm : {&collectives_, &blocks_, &news_}) {
      require(MPI_Comm_dup(MPI_COMM_WORLD, comm), "MPI_Comm_dup");
      MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
    }
    ::prctl(PR_SET_TIMERSLACK, 1000);  // a back-off of a few microseconds shall not last 50 longer
    find_place();
  }
  ~Runtime() {
    if (abandoned_) return;
    doorbells_->free();
    MPI_Finalize();
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// This process's number among those of its host, and how many they are.
  [[nodiscard]] int local_rank() const { return local_rank_; }
  [[nodiscard]] int local_size() const { return local_size_; }
  /// World ranks of the processes on this host.
  [[nodiscard]] const std::vector<int>& local_ranks() const { return local_ranks_; }
  /// True if mpirun tied the processes of this host to cores of their own.
  [[nodiscard]] bool bound() const { return bound_; }
  /// Cores of a rank: those of its host, shared evenly by its ranks; the least of all hosts, and at least 1.
  [[nodiscard]] int cores_per_rank() const { return cores_per_rank_; }

  /// Communicators of the same processes, so that messages of different purpose never meet.
  [[nodiscard]] MPI_Comm collectives() const { return collectives_; }
  [[nodiscard]] MPI_Comm blocks() const { return blocks_; }
  [[nodiscard]] MPI_Comm news() const { return news_; }

  [[nodiscard]] const Doorbells& doorbells() const { return *doorbells_; }

  /// The process will end without MPI_Finalize, which would wait for ranks that are gone.
  void abandon() { abandoned_ = true; }
  [[nodiscard]] bool abandoned() const { return abandoned_; }

  /// Once this is not 0 ranks of the job are gone without a word: waits end with PeerFailure. Null: nobody tells.
  void watch(const std::atomic<int>* lost) { lost_ = lost; }
  [[nodiscard]] bool lost_ranks() const { return lost_ != nullptr && lost_->load(std::memory_order_relaxed) != 0; }

  /// Number of the run that begins; runs are counted alike on all ranks.
  int next_run() { return ++runs_; }
  /// Statuses of a later run that arrived early, with the rank that sent them.
  std::vector<std::pair<int, Status>> early;

 private:
  void find_place() {
    MPI_Comm local = MPI_COMM_NULL;
    require(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local), "MPI_Comm_split");
    require(MPI_Comm_rank(local, &local_rank_), "MPI_Comm_rank");
    require(MPI_Comm_size(local, &local_size_), "MPI_Comm_size");
    local_ranks_.resize(static_cast<std::size_t>(local_size_));
    require(MPI_Allgather(&rank_, 1, MPI_INT, local_ranks_.data(), 1, MPI_INT, local), "MPI_Allgather");
    doorbells_.emplace(local, local_ranks_, size_);
    const int own = usable_cores();
    int here = own;
    cpu_set_t mask;
    CPU_ZERO(&mask);
    if (::sched_getaffinity(0, sizeof mask, &mask) == 0) {
      const int count = CPU_COUNT(&mask);
      cpu_set_t all = mask;
      require(MPI_Allreduce(&mask, &all, static_cast<int>(sizeof mask), MPI_BYTE, MPI_BOR, local), "MPI_Allreduce");
      bound_ = CPU_COUNT(&all) > count;
      if (own == count) here = CPU_COUNT(&all);  // otherwise a quota is the limit, and the processes share it
    }
    const int mine = std::max(1, here / local_size_);
    require(MPI_Allreduce(&mine, &cores_per_rank_, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD), "MPI_Allreduce");
    MPI_Comm_free(&local);
  }

  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
  std::vector<int> local_ranks_;
  bool bound_ = false;
  int cores_per_rank_ = 1;
  bool abandoned_ = false;
  const std::atomic<int>* lost_ = nullptr;
  int runs_ = 0;
  MPI_Comm collectives_ = MPI_COMM_NULL;
  MPI_Comm blocks_ = MPI_COMM_NULL;
  MPI_Comm news_ = MPI_COMM_NULL;
  std::optional<Doorbells> doorbells_;
};

}  // namespace galvatron::comm::mpi
