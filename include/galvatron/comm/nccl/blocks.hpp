// Blocks between ranks with a GPU each, by NCCL.
//
// NCCL knows no lanes: what one rank sends to another arrives in that order. So a sender announces every block through
// the control plane, and a receiver that wants a block of another lane first takes those before it into memory of the
// library, where they wait for their receive():
//
//   sender    [lane 1 | 4 KiB] [lane 3 | 8 KiB] ...    announcements
//   receiver  receive(lane 3): 4 KiB -> early[1], 8 KiB -> its place
//
// Every rank has a communicator of two and a stream for every rank that it sends to, and others for those that it
// receives from, so that no message waits for one of other ranks. It is made with the first block, and under way until
// the receiver has come for that; what is posted meanwhile waits in the program and follows as soon as it may, at the
// latest when the watch looks after it. Blocks of several rows travel packed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/local_gpu/kernels.hpp>
#include <galvatron/comm/nccl/communicator.hpp>
#include <galvatron/comm/nccl/watch.hpp>
#include <galvatron/comm/piece.hpp>
#include <galvatron/device/cuda/stream.hpp>

namespace galvatron::comm::nccl {

class Blocks {
 public:
  /// Lane of the announcements; callers of the control world have those below.
  static constexpr int control_lane = 999;

  /// @param control  the same ranks, for memory of the program
  Blocks(World& control, Watch& watch, device::cuda::Stream& compute)
      : control_(control), watch_(watch), compute_(compute) {
    keep_rooms();
    watch_.set_chore([this] {
      const std::unique_lock lock(mutex_, std::try_to_lock);  // its holder does the same
      if (lock.owns_lock()) pump();
    });
  }
  ~Blocks() { watch_.set_chore({}); }

  void post(std::span<const Piece> pieces) {
    {
      const std::scoped_lock lock(mutex_);
      std::map<Route*, Batch> batches;
      for (const Piece& piece : pieces)
        if (piece.peer != rank()) add(out_to(piece.peer), piece, batches);
      for (auto& [route, batch] : batches) {
        batch.ready.record(compute_);
        route->batches.push_back(std::move(batch));
      }
      pump();
    }
    for (const Piece& piece : pieces) {
      if (piece.peer == rank()) {
        own_.post(piece);
        continue;
      }
      announced_.push_back({piece.lane, piece.bytes(), out_.at(piece.peer).id});
      const Piece note = note_of(piece.peer, announced_.back());
      control_.post({&note, 1});
    }
  }

  void receive(std::span<const Piece> pieces) {
    std::unique_lock lock(mutex_);
    for (const Piece& piece : pieces)
      if (piece.peer == rank())
        own_.receive(piece, [&](const Piece& from, const Piece& to) { local_gpu::copy_block(compute_, from, to); });
      else
        take(piece, lock);
    pump();
  }

  void wait_sent(int lane) {
    own_.check_received(lane);
    std::unique_lock lock(mutex_);
    for (auto& [peer, route] : out_) {
      if (lane == every_lane ? std::exchange(route.posted, {}).empty() : route.posted.erase(lane) == 0) continue;
      while (!route.batches.empty()) {
        settle(route, lock);
        pump(peer, route);
      }
      route.sent.hold(compute_);
    }
    lock.unlock();
    if (lane != every_lane) return;
    control_.wait_sent(control_lane);
    announced_.clear();
  }

  /// Returns when the streams are at work no more.
  void wait() {
    for (auto& [peer, route] : out_) route.stream.wait();
    for (auto& [peer, route] : in_) route.stream.wait();
  }

 private:
  struct Announcement {
    std::int64_t lane = 0;
    std::int64_t bytes = 0;
    ncclUniqueId id{};  ///< of the communicator
  };
  // The messages of one post().
  struct Batch {
    std::vector<Piece> messages;    // flat
    std::vector<std::byte*> rooms;  // of packed blocks: memory of the library
    device::cuda::Event ready;
  };
  // Messages of one rank to another. Those to and from several neighbours and the collectives beside them must find
  // room on the GPU at once: each waits there for another rank. A block moves some 20 GB/s.
  struct Route {
    static constexpr int most_blocks = 8;
    Route(Watch& watch, const ncclUniqueId& its_id, int end)
        : id(its_id), communicator(watch, its_id, 2, end, most_blocks) {}
    ncclUniqueId id;
    device::cuda::Stream stream;
    Communicator communicator;
    std::deque<Batch> batches;  // posted; the first may have been given to NCCL
    bool sending = false;       // the first has been
    device::cuda::Event sent;   // the last that is in the stream
    std::set<int> posted;       // lanes, since wait_sent()
  };
  static constexpr int sender = 0;  // ranks of a communicator
  static constexpr int receiver = 1;

  [[nodiscard]] int rank() const { return control_.rank(); }

  static Piece note_of(int peer, Announcement& announcement) {
    return Piece::flat(peer, reinterpret_cast<std::byte*>(&announcement), sizeof(Announcement), control_lane);
  }

  // CUDA's pool, of which rooms are, gives nothing back to the GPU between two of them.
  static void keep_rooms() {
    int device = 0;
    cudaMemPool_t pool = nullptr;
    auto most = ~std::uint64_t{0};
    device::cuda::check(cudaGetDevice(&device));
    device::cuda::check(cudaDeviceGetDefaultMemPool(&pool, device));
    device::cuda::check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most));
  }
  static Piece take_room(device::cuda::Stream& stream, int peer, std::int64_t bytes) {
    void* memory = nullptr;
    if (bytes > 0) device::cuda::check(cudaMallocAsync(&memory, static_cast<std::size_t>(bytes), stream.get()));
    return Piece::flat(peer, static_cast<std::byte*>(memory), bytes);
  }
  static void free_room(device::cuda::Stream& stream, std::byte* room) {
    if (room != nullptr) device::cuda::check(cudaFreeAsync(room, stream.get()));
  }

  Route& out_to(int peer) {
    const auto found = out_.find(peer);
    return found != out_.end() ? found->second : out_.try_emplace(peer, watch_, unique_id(), sender).first->second;
  }
  void add(Route& route, const Piece& piece, std::map<Route*, Batch>& batches) {
    Batch& batch = batches[&route];
    route.posted.insert(piece.lane);
    Piece message = Piece::flat(piece.peer, piece.data, piece.bytes());
    if (!piece.is_flat()) {
      message = take_room(compute_, piece.peer, piece.bytes());
      batch.rooms.push_back(message.data);
      local_gpu::copy_block(compute_, piece, message);
    }
    batch.messages.push_back(message);
  }
  // Does what can be done without waiting. All of these hold the mutex.
  void pump() {
    for (auto& [peer, route] : out_) pump(peer, route);
  }
  void pump(int peer, Route& route) {
    while (!route.batches.empty() && route.communicator.is_settled()) {
      Batch& batch = route.batches.front();
      if (route.sending) {
        for (std::byte* room : batch.rooms) free_room(route.stream, room);
        route.sent.record(route.stream);
        look_after(route, rank(), peer);
        route.batches.pop_front();
        route.sending = false;
        continue;
      }
      batch.ready.hold(route.stream);
      route.communicator.call([&](ncclComm_t comm) {
        for (const Piece& message : batch.messages) {
          if (message.bytes() == 0) continue;
          const ncclResult_t status = ncclSend(message.data, static_cast<std::size_t>(message.bytes()), ncclInt8,
                                               receiver, comm, route.stream.get());
          if (!is_fine(status)) return status;
        }
        return ncclSuccess;
      });
      route.sending = true;
    }
  }
  // Waits until NCCL takes more calls.
  void settle(Route& route, std::unique_lock<std::mutex>& lock) {
    for (const auto begin = Clock::now(); !route.communicator.is_settled();) {
      if (Clock::now() - begin > watch_.timeout()) route.communicator.settle();  // which says what is wrong
      lock.unlock();
      pause(begin);
      lock.lock();
    }
  }
  void look_after(Route& route, int from, int to) {
    const std::scoped_lock lock(watch_.mutex());
    watch_.started(route.stream, "message from rank " + std::to_string(from) + " to rank " + std::to_string(to));
  }

  void receive_into(const Piece& to, Route& route, std::unique_lock<std::mutex>& lock) {
    if (to.bytes() == 0) return;
    settle(route, lock);
    route.communicator.call([&](ncclComm_t comm) {
      return ncclRecv(to.data, static_cast<std::size_t>(to.bytes()), ncclInt8, sender, comm, route.stream.get());
    });
    settle(route, lock);
    look_after(route, to.peer, rank());
  }

  void take(const Piece& piece, std::unique_lock<std::mutex>& lock) {
    auto& early = early_[{piece.peer, piece.lane}];
    ready_.record(compute_);
    while (early.empty()) {
      Announcement next;
      const Piece note = note_of(piece.peer, next);
      lock.unlock();
      control_.receive({&note, 1});
      lock.lock();
      // The first block brings the identity of the communicator.
      Route& route = in_.try_emplace(piece.peer, watch_, next.id, receiver).first->second;
      if (next.lane == piece.lane) {
        check_sent(rank(), piece, next.bytes);
        ready_.hold(route.stream);
        if (piece.is_flat()) {
          receive_into(Piece::flat(piece.peer, piece.data, next.bytes), route, lock);
          return arrived(route);
        }
      }
      const Piece room = take_room(route.stream, piece.peer, next.bytes);
      receive_into(room, route, lock);
      early_[{piece.peer, static_cast<int>(next.lane)}].push_back(room);
    }
    Route& route = in_.at(piece.peer);
    const Piece room = early.front();
    check_sent(rank(), piece, room.bytes());
    early.pop_front();
    ready_.hold(route.stream);
    local_gpu::copy_block(route.stream, room, piece);
    free_room(route.stream, room.data);
    arrived(route);
  }
  // What is computed from now on finds what has been taken.
  void arrived(Route& route) {
    ready_.record(route.stream);
    ready_.hold(compute_);
  }

  World& control_;
  Watch& watch_;
  device::cuda::Stream& compute_;
  std::mutex mutex_;  // of the routes; the watch does what waits in them
  std::map<int, Route> out_;
  std::map<int, Route> in_;
  device::cuda::Event ready_;
  std::deque<Announcement> announced_;  // stay until they are taken
  OwnBlocks own_{rank()};
  std::map<std::pair<int, int>, std::deque<Piece>> early_;  // by peer and lane
};

}  // namespace galvatron::comm::nccl
