// One rank's handle on a world of processes, and the function that runs a body on all of them.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/groups.hpp>
#include <galvatron/comm/mpi/endpoint.hpp>
#include <galvatron/comm/mpi/group.hpp>
#include <galvatron/comm/thread/channel.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::mpi {

/// A rank of a world of processes, where a lane is a tag of MPI. Used from the main thread only. When another rank has
/// failed, or has not answered within the timeout, every call throws PeerFailure. A posted block counts as sent when it
/// has been taken, or been copied by MPI.
class World final : public comm::World {
 public:
  explicit World(Endpoint& endpoint) : comm::World(endpoint.rank(), endpoint.size()), endpoint_(endpoint) {}
  ~World() override {
    withdraw();
    for (auto& [rows, type] : types_) MPI_Type_free(&type);
  }

  /// How long this rank waits for another one from now on.
  void set_timeout(std::chrono::nanoseconds timeout) { endpoint_.set_timeout(timeout); }

  Group& group(std::span<const int> ranks) override {
    return groups_.find(ranks, [&] {
      check_members(ranks, rank(), size());
      return std::make_unique<Group>(endpoint_, ranks);
    });
  }

  /// Gives blocks that are under way a moment to arrive. Nobody reads this process's memory after it ends, which it
  /// does then.
  void withdraw() noexcept override {
    Endpoint::drain(std::chrono::milliseconds(200), [&] {
      int flag = 0;
      return MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &flag, MPI_STATUSES_IGNORE) !=
                 MPI_SUCCESS ||
             flag != 0;
    });
  }

 private:
  struct Block {
    int peer;
    int lane;
  };

  void do_post(std::span<const Piece> pieces) override {
    endpoint_.check();
    for (const Piece& piece : pieces) {
      if (piece.peer == rank()) {
        own_[piece.lane].push_back(piece);
        continue;
      }
      const auto [count, type] = shape_of(piece);
      sends_.push_back({piece.peer, piece.lane});
      requests_.push_back(MPI_REQUEST_NULL);
      require(
          MPI_Isend(piece.data, count, type, piece.peer, piece.lane, endpoint_.runtime().blocks(), &requests_.back()),
          "MPI_Isend");
      endpoint_.ring(piece.peer);
    }
  }
  void do_receive(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) {
      if (piece.peer == rank())
        take_own(piece);
      else
        begin_to_take(piece);
    }
    endpoint_.wait([&] { return all_done(arrivals_); }, [&] { return peers_of(arriving_, arrivals_, every_lane); },
                   [&] { return std::string("did not send the rest of a block"); });
    for (const Block& block : arriving_) endpoint_.ring(block.peer);  // it may wait until its block has been taken
    arrivals_.clear();
    arriving_.clear();
  }
  void do_wait_sent(int lane) override {
    for (const auto& [number, pieces] : own_)
      if ((lane == every_lane || lane == number) && !pieces.empty())
        throw Failure(ErrorKind::internal,
                      "rank " + std::to_string(rank()) + " waits for a block to itself that it has not received");
    const auto late = [&] { return peers_of(sends_, requests_, lane); };
    endpoint_.wait([&] { return lane == every_lane ? all_done(requests_) : late().empty(); }, late,
                   [&] { return "did not take " + std::to_string(requests_.size()) + " blocks or fewer"; });
    forget_done();
  }

  static bool all_done(std::vector<MPI_Request>& requests) {
    int flag = 0;
    require(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &flag, MPI_STATUSES_IGNORE), "MPI_Testall");
    return flag != 0;
  }
  static bool is_done(MPI_Request& request) {
    int flag = 0;
    require(MPI_Request_get_status(request, &flag, MPI_STATUS_IGNORE), "MPI_Request_get_status");
    return flag != 0;
  }
  // The peers of blocks that are under way.
  static std::vector<int> peers_of(const std::vector<Block>& blocks, std::vector<MPI_Request>& requests, int lane) {
    std::vector<int> peers;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      if ((lane == every_lane || blocks[i].lane == lane) && !is_done(requests[i])) peers.push_back(blocks[i].peer);
    std::ranges::sort(peers);
    peers.erase(std::ranges::unique(peers).begin(), peers.end());
    return peers;
  }
  void forget_done() {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      int flag = 0;
      require(MPI_Test(&requests_[i], &flag, MPI_STATUS_IGNORE), "MPI_Test");
      if (flag != 0) continue;
      requests_[kept] = requests_[i];
      sends_[kept++] = sends_[i];
    }
    requests_.resize(kept);
    sends_.resize(kept);
  }

  void take_own(const Piece& piece) {
    auto& pieces = own_[piece.lane];
    if (pieces.empty())
      throw Failure(ErrorKind::internal,
                    "rank " + std::to_string(rank()) + " receives a block from itself that it has not posted before");
    if (thread::bytes_of(pieces.front()) != thread::bytes_of(piece))
      throw_sizes(piece, thread::bytes_of(pieces.front()));
    thread::copy_piece(pieces.front(), piece);
    pieces.pop_front();
  }

  // Waits for the beginning of a block and checks its size.
  void begin_to_take(const Piece& piece) {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    const auto there = [&] {
      int flag = 0;
      require(MPI_Improbe(piece.peer, piece.lane, endpoint_.runtime().blocks(), &flag, &message, &status),
              "MPI_Improbe");
      return flag != 0;
    };
    endpoint_.wait(
        there, [&] { return std::vector<int>{piece.peer}; },
        [&] { return "did not send a block of " + std::to_string(thread::bytes_of(piece)) + " bytes"; });
    MPI_Count sent = 0;
    require(MPI_Get_elements_x(&status, MPI_BYTE, &sent), "MPI_Get_elements_x");
    if (sent != thread::bytes_of(piece)) throw_sizes(piece, sent);
    const auto [count, type] = shape_of(piece);
    arriving_.push_back({piece.peer, piece.lane});
    arrivals_.push_back(MPI_REQUEST_NULL);
    require(MPI_Imrecv(piece.data, count, type, &message, &arrivals_.back()), "MPI_Imrecv");
    endpoint_.ring(piece.peer);  // it may wait for leave to send the rest
  }

  [[noreturn]] void throw_sizes(const Piece& piece, std::int64_t sent) const {
    throw Failure(ErrorKind::internal, "rank " + std::to_string(rank()) + " receives a block of " +
                                           std::to_string(thread::bytes_of(piece)) + " bytes, but rank " +
                                           std::to_string(piece.peer) + " sent one of " + std::to_string(sent) +
                                           " bytes");
  }

  // A block as MPI knows it: bytes in a row, or a strided type, made once for each shape.
  std::pair<int, MPI_Datatype> shape_of(const Piece& piece) {
    const std::int64_t total = thread::bytes_of(piece);
    const bool flat = piece.rows <= 1 || piece.stride_bytes == piece.row_bytes || total == 0;
    if (flat && total <= INT_MAX) return {static_cast<int>(total), MPI_BYTE};
    if (piece.rows > INT_MAX || piece.row_bytes > INT_MAX)
      throw Failure(ErrorKind::internal, "a block with a row of " + std::to_string(piece.row_bytes) +
                                             " bytes; messages between processes have rows of less than 2 GiB");
    MPI_Datatype& type =
        types_.try_emplace({piece.rows, piece.row_bytes, piece.stride_bytes}, MPI_DATATYPE_NULL).first->second;
    if (type == MPI_DATATYPE_NULL) {
      require(MPI_Type_create_hvector(static_cast<int>(piece.rows), static_cast<int>(piece.row_bytes),
                                      static_cast<MPI_Aint>(piece.stride_bytes), MPI_BYTE, &type),
              "MPI_Type_create_hvector");
      require(MPI_Type_commit(&type), "MPI_Type_commit");
    }
    return {1, type};
  }

  Endpoint& endpoint_;
  Groups<Group> groups_;
  std::vector<Block> sends_;  // posted and perhaps not taken; a request each
  std::vector<MPI_Request> requests_;
  std::vector<Block> arriving_;  // of one receive()
  std::vector<MPI_Request> arrivals_;
  std::map<int, std::deque<Piece>> own_;  // blocks to oneself, by lane
  std::map<std::array<std::int64_t, 3>, MPI_Datatype> types_;
};

/// Runs body(World&) on all processes of the job at once, each calling this with the same body, and waits until all
/// have ended. If a rank throws, the others' pending and later calls throw PeerFailure naming that rank and its
/// message. Throws nothing: how the run ended is the same for all. After a failure the process has to end.
template <class F>
Verdict outcome_of(Runtime& runtime, F&& body, const Options& options = {}) {
  Endpoint endpoint(runtime, options);
  std::exception_ptr own;
  try {
    World world(endpoint);
    body(world);
  } catch (...) {
    own = std::current_exception();
  }
  return endpoint.settle(own);
}

/// The same; throws, on every rank, what its Verdict says.
template <class F>
void run(Runtime& runtime, F&& body, const Options& options = {}) {
  if (const Verdict verdict = outcome_of(runtime, std::forward<F>(body), options); verdict.failure != nullptr)
    std::rethrow_exception(verdict.failure);
}

}  // namespace galvatron::comm::mpi
