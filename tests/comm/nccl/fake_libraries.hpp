// The parts of CUDA's runtime and of NCCL that comm::nccl calls, for ranks that are threads of a program without a GPU.
//
// Streams run late, in a random order, when somebody waits or asks. As with NCCL, calls of a communicator may be under
// way for a while: the first messages between two ranks, and the first collective, get into their streams when the
// others have come. What waits in a stream for other ranks stays there until they come, or until its communicator is
// aborted. A communicator is destroyed when all members have finalized theirs, which several destroyed in one group
// wait for together; where ranks stand for processes, one that is aborted waits for them too. Include it in one file of
// a program, which links neither library.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <galvatron/comm/reduce.hpp>
#include <galvatron/device/cuda/stream.hpp>

namespace galvatron::test::fake {

inline std::mutex mutex;
inline std::mt19937_64 random{1};
inline constexpr int gpus = 8;
inline thread_local int current_gpu = 0;
inline bool ranks_are_processes = false;

struct Queue {
  struct Work {
    std::function<void()> run;
    std::function<bool()> ready;
  };
  std::deque<Work> work;
  std::uint64_t given = 0;
  std::uint64_t done = 0;
};
struct Event {
  std::shared_ptr<Queue> queue;
  std::uint64_t position = 0;
  [[nodiscard]] bool passed() const { return queue == nullptr || queue->done >= position; }
};
inline std::set<std::shared_ptr<Queue>> queues;

// All of these hold the mutex.
inline bool step() {
  std::vector<Queue*> ready;
  for (const auto& queue : queues)
    if (!queue->work.empty() && queue->work.front().ready()) ready.push_back(queue.get());
  if (ready.empty()) return false;
  Queue& queue = *ready[random() % ready.size()];
  const Queue::Work work = std::move(queue.work.front());
  queue.work.pop_front();
  work.run();
  ++queue.done;
  return true;
}
inline void give(Queue& queue, std::function<void()> run, std::function<bool()> ready = [] { return true; }) {
  queue.work.push_back({std::move(run), std::move(ready)});
  ++queue.given;
  while (random() % 3 == 0 && step()) {
  }
}
inline void wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready) {
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(30); };
  for (auto limit = soon(); !ready();) {
    if (step()) {
      limit = soon();
      continue;
    }
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (std::chrono::steady_clock::now() > limit) throw std::logic_error("the streams wait for ever");
    lock.lock();
  }
}

inline std::shared_ptr<Queue>& queue_of(cudaStream_t stream) {
  return *reinterpret_cast<std::shared_ptr<Queue>*>(stream);
}
inline Event& event_of(cudaEvent_t event) { return *reinterpret_cast<Event*>(event); }

// What the members of a communicator share.
struct Shared {
  struct Collective {
    std::vector<std::function<void()>> parts;  // of the members that have come to it in their streams
    std::vector<const void*> sources;
    std::vector<void*> targets;
    int come = 0;
    bool done = false;
  };
  struct Message {
    const void* from;
    void* to;
    std::size_t bytes;
    bool done = false;
  };
  int size = 0;
  int joined = 0;
  bool broken = false;  // a member has aborted: nobody touches the others' memory any more
  std::set<int> left;   // members that have finalized or aborted theirs
  std::vector<int> collectives_issued;
  int begun = 0;  // members that have issued their first collective
  std::map<std::int64_t, Collective> collectives;
  // By sender and receiver: issued by either side, and what has come to its stream and waits for the other side.
  std::map<std::pair<int, int>, std::array<int, 2>> issued;
  std::map<std::pair<int, int>, std::array<std::deque<std::shared_ptr<Message>>, 2>> waiting;
};
inline std::map<std::string, std::shared_ptr<Shared>> rooms;

struct Op {
  enum Kind { send, receive, all_reduce, all_gather, reduce_scatter, broadcast, reduce } kind;
  const void* from;
  void* to;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;
  cudaStream_t stream;
};
inline std::size_t bytes_of(ncclDataType_t type) {
  return type == ncclInt8 ? 1 : type == ncclBfloat16 ? 2 : type == ncclFloat64 ? 8 : 4;
}

}  // namespace galvatron::test::fake

struct ncclComm {
  std::shared_ptr<galvatron::test::fake::Shared> shared;
  int rank = 0;
  bool aborted = false;
  std::vector<galvatron::test::fake::Op> group;                // of the calls under way
  std::vector<std::vector<galvatron::test::fake::Op>> issued;  // groups that are not in their streams
};

namespace galvatron::test::fake {

inline thread_local int group_depth = 0;
inline thread_local std::vector<std::shared_ptr<ncclComm>> touched;
inline thread_local std::vector<std::shared_ptr<ncclComm>> ending;  // destroyed or aborted in the group
inline std::map<ncclComm_t, std::shared_ptr<ncclComm>> comms;
inline int communicators_made = 0;

template <class T>
void sum_up(Shared::Collective& c, std::size_t first, std::size_t count, ncclRedOp_t op, std::span<void* const> targets,
            std::span<const std::size_t> target_first) {
  std::vector<std::byte*> sources;
  for (const void* source : c.sources)
    sources.push_back(static_cast<std::byte*>(const_cast<void*>(source)) + first * sizeof(T));
  std::vector<T> out(count);
  std::byte* const to = reinterpret_cast<std::byte*>(out.data());
  comm::reduce(comm::element_type<T>(), sources, {&to, 1}, static_cast<std::int64_t>(count),
               op == ncclSum ? comm::ReduceOp::sum : comm::ReduceOp::max);
  for (std::size_t i = 0; i < targets.size(); ++i)
    std::memcpy(static_cast<T*>(targets[i]) + target_first[i], out.data(), count * sizeof(T));
}

inline void carry_out(Shared& shared, Shared::Collective& c, const Op& op) {
  const auto n = static_cast<std::size_t>(shared.size);
  const auto reduce = [&](std::size_t first, std::size_t count, std::span<void* const> targets) {
    const std::vector<std::size_t> at(targets.size(), 0);
    if (op.type == ncclFloat32) sum_up<float>(c, first, count, op.op, targets, at);
    if (op.type == ncclBfloat16) sum_up<bfloat16>(c, first, count, op.op, targets, at);
    if (op.type == ncclFloat64) sum_up<double>(c, first, count, op.op, targets, at);
    if (op.type == ncclInt32) sum_up<std::int32_t>(c, first, count, op.op, targets, at);
  };
  const std::size_t bytes = op.count * bytes_of(op.type);
  if (op.kind == Op::all_reduce) reduce(0, op.count, c.targets);
  if (op.kind == Op::reduce_scatter) {
    // All blocks are summed before one is written: a target may lie in its source.
    std::vector<std::vector<std::byte>> blocks;
    for (std::size_t r = 0; r < n; ++r) {
      blocks.emplace_back(bytes);
      void* const to = blocks.back().data();
      reduce(r * op.count, op.count, {&to, 1});
    }
    for (std::size_t r = 0; r < n; ++r) std::memcpy(c.targets[r], blocks[r].data(), bytes);
  }
  if (op.kind == Op::all_gather)
    for (void* target : c.targets)
      for (std::size_t r = 0; r < n; ++r)
        std::memmove(static_cast<std::byte*>(target) + r * bytes, c.sources[r], bytes);
  if (op.kind == Op::reduce) reduce(0, op.count, {&c.targets[static_cast<std::size_t>(op.peer)], 1});
  if (op.kind == Op::broadcast)
    for (void* target : c.targets)
      if (target != c.sources[static_cast<std::size_t>(op.peer)])
        std::memcpy(target, c.sources[static_cast<std::size_t>(op.peer)], bytes);
}

// Puts the kernel of a group into its stream: it begins, and ends when the others have come.
inline void enqueue(const std::shared_ptr<ncclComm>& comm, const std::vector<Op>& group) {
  const auto shared = comm->shared;
  Queue& queue = *queue_of(group.front().stream);
  if (group.front().kind > Op::receive) {
    for (const Op& op : group) {
      const int rank = comm->rank;
      const int number = shared->collectives_issued[static_cast<std::size_t>(rank)]++;
      give(queue, [shared, op, rank, number] {
        auto& c = shared->collectives[number];
        c.sources.resize(static_cast<std::size_t>(shared->size));
        c.targets.resize(static_cast<std::size_t>(shared->size));
        c.sources[static_cast<std::size_t>(rank)] = op.from;
        c.targets[static_cast<std::size_t>(rank)] = op.to;
        if (++c.come < shared->size || shared->broken) return;
        carry_out(*shared, c, op);
        c.done = true;
      });
      give(queue, [] {}, [shared, comm, number] { return comm->aborted || shared->collectives[number].done; });
    }
    return;
  }
  auto mine = std::make_shared<std::vector<std::shared_ptr<Shared::Message>>>();
  const int rank = comm->rank;
  give(queue, [shared, group, rank, mine] {
    for (const Op& op : group) {
      const bool sends = op.kind == Op::send;
      const std::pair key = sends ? std::pair{rank, op.peer} : std::pair{op.peer, rank};
      auto& waiting = shared->waiting[key];
      auto& others = waiting[sends ? 1 : 0];
      if (others.empty() || shared->broken) {
        mine->push_back(std::make_shared<Shared::Message>(Shared::Message{op.from, op.to, op.count}));
        waiting[sends ? 0 : 1].push_back(mine->back());
        continue;
      }
      const auto other = others.front();
      others.pop_front();
      if (other->bytes != op.count) throw std::logic_error("NCCL would hang: sizes differ");
      if (sends)
        std::memcpy(other->to, op.from, op.count);
      else
        std::memcpy(op.to, other->from, op.count);
      other->done = true;
    }
  });
  give(
      queue, [] {},
      [comm, mine] {
        return comm->aborted || std::ranges::all_of(*mine, [](const auto& message) { return message->done; });
      });
}

// Puts into the streams what may go there; true when nothing is left.
inline bool settle(const std::shared_ptr<ncclComm>& comm) {
  Shared& shared = *comm->shared;
  if (shared.joined < shared.size) return false;
  while (!comm->issued.empty()) {
    const auto& group = comm->issued.front();
    if (group.front().kind > Op::receive && shared.begun < shared.size) return false;
    for (const Op& op : group) {
      if (op.kind > Op::receive) continue;
      const bool sends = op.kind == Op::send;
      const std::pair key = sends ? std::pair{comm->rank, op.peer} : std::pair{op.peer, comm->rank};
      if (shared.issued[key][sends ? 1 : 0] == 0) return false;  // not connected yet
    }
    enqueue(comm, group);
    comm->issued.erase(comm->issued.begin());
  }
  return true;
}

inline ncclResult_t issue(ncclComm_t handle, const Op& op) {
  const std::scoped_lock lock(mutex);
  const auto found = comms.find(handle);
  if (found == comms.end()) return ncclInvalidArgument;
  const auto& comm = found->second;
  if (!settle(comm)) throw std::logic_error("NCCL takes no call while another one is under way");
  if (group_depth == 0) throw std::logic_error("a call outside of a group");
  if (comm->group.empty()) touched.push_back(comm);
  comm->group.push_back(op);
  return ncclSuccess;
}

// What NCCL does for those in the group that are destroyed or aborted, each in a thread of its own.
inline void finish_ending(std::unique_lock<std::mutex>& lock) {
  const auto gone = std::exchange(ending, {});
  for (const auto& comm : gone) comm->shared->left.insert(comm->rank);
  wait(lock, [&] {
    return std::ranges::all_of(gone, [](const auto& comm) {
      return (comm->aborted && !ranks_are_processes) ||
             static_cast<int>(comm->shared->left.size()) == comm->shared->size;
    });
  });
}
inline ncclResult_t end(ncclComm_t handle) {
  std::unique_lock lock(mutex);
  const auto found = comms.find(handle);
  if (found == comms.end()) return ncclInvalidArgument;
  if (!found->second->aborted && !found->second->shared->left.contains(found->second->rank))
    throw std::logic_error("a communicator is destroyed that was not finalized");
  ending.push_back(found->second);
  comms.erase(found);
  if (group_depth == 0) finish_ending(lock);
  return ncclSuccess;
}

}  // namespace galvatron::test::fake

namespace fake = galvatron::test::fake;

extern "C" {

const char* cudaGetErrorName(cudaError_t) { return "cudaErrorUnknown"; }
const char* cudaGetErrorString(cudaError_t) { return "unknown error"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = fake::gpus;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = fake::current_gpu;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  fake::current_gpu = device;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const std::scoped_lock lock(fake::mutex);
  auto* queue = new std::shared_ptr<fake::Queue>(std::make_shared<fake::Queue>());
  fake::queues.insert(*queue);
  *stream = reinterpret_cast<cudaStream_t>(queue);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::unique_lock lock(fake::mutex);
  const auto queue = fake::queue_of(stream);
  fake::wait(lock, [&] { return queue->done == queue->given; });
  fake::queues.erase(queue);
  delete &fake::queue_of(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  std::unique_lock lock(fake::mutex);
  const auto queue = fake::queue_of(stream);
  const std::uint64_t position = queue->given;
  fake::wait(lock, [&] { return queue->done >= position; });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new fake::Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &fake::event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::scoped_lock lock(fake::mutex);
  fake::event_of(event) = {fake::queue_of(stream), fake::queue_of(stream)->given};
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::unique_lock lock(fake::mutex);
  const fake::Event at = fake::event_of(event);
  fake::wait(lock, [&] { return at.passed(); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::scoped_lock lock(fake::mutex);
  return fake::event_of(event).passed() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::scoped_lock lock(fake::mutex);
  fake::give(*fake::queue_of(stream), [] {}, [at = fake::event_of(event)] { return at.passed(); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const std::scoped_lock lock(fake::mutex);
  fake::give(*fake::queue_of(stream), [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t*, int) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t) {
  *memory = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  const std::scoped_lock lock(fake::mutex);
  fake::give(*fake::queue_of(stream), [=] { std::free(memory); });
  return cudaSuccess;
}

const char* ncclGetErrorString(ncclResult_t status) { return status == ncclSuccess ? "no error" : "some error"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::scoped_lock lock(fake::mutex);
  std::memset(id, 0, sizeof *id);
  const std::string name = "id " + std::to_string(++fake::communicators_made);
  std::copy(name.begin(), name.end(), id->internal);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const std::scoped_lock lock(fake::mutex);
  if (config->blocking != 0) return ncclInvalidArgument;
  auto& shared = fake::rooms[id.internal];
  if (shared == nullptr) shared = std::make_shared<fake::Shared>();
  shared->size = size;
  shared->collectives_issued.resize(static_cast<std::size_t>(size));
  ++shared->joined;
  const auto comm = std::make_shared<ncclComm>();
  comm->shared = shared;
  comm->rank = rank;
  fake::comms[comm.get()] = comm;
  *out = comm.get();
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* status) {
  const std::scoped_lock lock(fake::mutex);
  *status = fake::settle(fake::comms.at(handle)) ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  const std::scoped_lock lock(fake::mutex);
  const auto& comm = fake::comms.at(handle);
  if (!fake::settle(comm) || !comm->shared->left.insert(comm->rank).second) return ncclInvalidArgument;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t handle) { return fake::end(handle); }
ncclResult_t ncclCommAbort(ncclComm_t handle) {
  {
    const std::scoped_lock lock(fake::mutex);
    fake::comms.at(handle)->aborted = true;
    fake::comms.at(handle)->shared->broken = true;
  }
  return fake::end(handle);
}
ncclResult_t ncclGroupStart() {
  ++fake::group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  std::unique_lock lock(fake::mutex);
  if (--fake::group_depth > 0) return ncclSuccess;
  fake::finish_ending(lock);
  bool all = true;
  for (const auto& comm : std::exchange(fake::touched, {})) {
    for (const fake::Op& op : comm->group) {
      if (op.kind > fake::Op::receive) continue;
      const bool sends = op.kind == fake::Op::send;
      ++comm->shared->issued[sends ? std::pair{comm->rank, op.peer} : std::pair{op.peer, comm->rank}][sends ? 0 : 1];
    }
    const bool collective = comm->group.front().kind > fake::Op::receive;
    if (collective && comm->shared->collectives_issued[static_cast<std::size_t>(comm->rank)] == 0)
      ++comm->shared->begun;
    comm->issued.push_back(std::exchange(comm->group, {}));
    all = fake::settle(comm) && all;
  }
  return all ? ncclSuccess : ncclInProgress;
}
ncclResult_t ncclSend(const void* from, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return fake::issue(comm, {fake::Op::send, from, nullptr, n, type, ncclSum, peer, stream});
}
ncclResult_t ncclRecv(void* to, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return fake::issue(comm, {fake::Op::receive, nullptr, to, n, type, ncclSum, peer, stream});
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return fake::issue(comm, {fake::Op::all_reduce, from, to, n, type, op, 0, stream});
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return fake::issue(comm, {fake::Op::all_gather, from, to, n, type, ncclSum, 0, stream});
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return fake::issue(comm, {fake::Op::reduce_scatter, from, to, n, type, op, 0, stream});
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return fake::issue(comm, {fake::Op::broadcast, from, to, n, type, ncclSum, root, stream});
}
ncclResult_t ncclReduce(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return fake::issue(comm, {fake::Op::reduce, from, to, n, type, op, root, stream});
}

}  // extern "C"

namespace galvatron::device::cuda {

/// Kernels without barriers, thread after thread.
template <class Kernel>
void Stream::launch(const Geometry& geometry, const Kernel& kernel) {
  const std::scoped_lock lock(fake::mutex);
  fake::give(*fake::queue_of(stream_.get()), [geometry, kernel] {
    struct Block {
      const Geometry& geometry;
      std::int64_t block;
      int number;
      [[nodiscard]] std::int64_t index() const { return block; }
      [[nodiscard]] std::int64_t blocks() const { return geometry.blocks; }
      [[nodiscard]] int thread() const { return number; }
      [[nodiscard]] int threads() const { return geometry.threads; }
    };
    for (std::int64_t block = 0; block < geometry.blocks; ++block)
      for (int thread = 0; thread < geometry.threads; ++thread) {
        Block here{geometry, block, thread};
        kernel(here);
      }
  });
}

}  // namespace galvatron::device::cuda
