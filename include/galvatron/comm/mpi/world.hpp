// One rank's handle on a world of processes, and the function that runs a body on all of them.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/message_group.hpp>
#include <galvatron/comm/mpi/endpoint.hpp>
#include <galvatron/comm/piece.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::mpi {

/// Messages for MessageGroup, which says what the calls do.
class Messages {
 public:
  explicit Messages(Endpoint& endpoint) : endpoint_(endpoint) {}

  void send(const void* data, std::int64_t bytes, int peer, int tag) {
    begin(const_cast<void*>(data), bytes, {.peer = peer, .tag = tag});
  }
  void receive(void* data, std::int64_t bytes, int peer, int tag, bool whole = true) {
    begin(data, bytes, {.peer = peer, .tag = tag, .incoming = true, .whole = whole});
  }
  template <class What>
  void finish(What&& what) {
    if (requests_.messages.empty()) return;
    endpoint_.wait([&] { return requests_.done(); }, [&] { return missing(); }, what);
    for (const Message& message : requests_.messages) {
      if (!message.incoming) continue;
      int sent = 0;
      require(MPI_Get_count(&message.status, MPI_BYTE, &sent), "MPI_Get_count");
      if (message.whole) check_sent(endpoint_.rank(), message.peer, message.bytes, sent);
      if (message.bytes > eager_bytes) endpoint_.ring(message.peer);
    }
    requests_.messages.clear();
  }

 private:
  static constexpr std::int64_t most_bytes = std::int64_t{1} << 30;  // an MPI count is an int
  static constexpr int eager_bytes = 4096;  // what is larger may wait at its sender until the receiver is there

  void begin(void* data, std::int64_t bytes, Message message) {
    const MPI_Comm comm = endpoint_.runtime().collectives();
    for (std::int64_t first = 0; first < bytes; first += most_bytes) {
      auto* const place = static_cast<std::byte*>(data) + first;
      message.bytes = static_cast<int>(std::min(most_bytes, bytes - first));
      MPI_Request* const request = requests_.add(message);
      if (message.incoming)
        require(MPI_Irecv(place, message.bytes, MPI_BYTE, message.peer, message.tag, comm, request), "MPI_Irecv");
      else
        require(MPI_Isend(place, message.bytes, MPI_BYTE, message.peer, message.tag, comm, request), "MPI_Isend");
    }
    if (bytes > eager_bytes || (bytes > 0 && !message.incoming)) endpoint_.ring(message.peer);
  }

  // Who has not sent is late; without such, who has not received.
  [[nodiscard]] std::vector<int> missing() {
    std::vector<int> senders = requests_.peers([](const Message& message) { return message.incoming; });
    return !senders.empty() ? senders : requests_.peers([](const Message& message) { return !message.incoming; });
  }

  Endpoint& endpoint_;
  Requests requests_;
};

/// A rank of a world of processes, where a lane is a tag of MPI. Used from the main thread only. A posted block counts
/// as sent when it has been taken, or been copied by MPI.
class World final : public MessageWorld<Endpoint, Messages> {
 public:
  using MessageWorld::MessageWorld;
  ~World() override {
    withdraw();
    for (auto& [rows, type] : types_) MPI_Type_free(&type);
  }

  /// Gives blocks under way a moment to arrive. Then the process ends, and nobody reads its memory after that.
  void withdraw() noexcept override {
    Endpoint::drain(endpoint_.runtime(), std::chrono::milliseconds(200), [&] { return sends_.over(); });
  }

 private:
  void do_post(std::span<const Piece> pieces) override {
    endpoint_.check();
    for (const Piece& piece : pieces) {
      if (piece.peer == rank()) {
        own_.post(piece);
        continue;
      }
      const auto [count, type] = shape_of(piece);
      require(MPI_Isend(piece.data, count, type, piece.peer, piece.lane, endpoint_.runtime().blocks(),
                        sends_.add({.peer = piece.peer, .tag = piece.lane})),
              "MPI_Isend");
      endpoint_.ring(piece.peer);
    }
  }
  void do_receive(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) {
      if (piece.peer == rank())
        own_.receive(piece, copy_piece);
      else
        begin_to_take(piece);
    }
    endpoint_.wait([&] { return arrivals_.done(); },
                   [&] { return arrivals_.peers([](const Message&) { return true; }); },
                   [&] { return std::string("did not send the rest of a block"); });
    for (const Message& block : arrivals_.messages) endpoint_.ring(block.peer);  // it may wait for that
    arrivals_.messages.clear();
  }
  void do_wait_sent(int lane) override {
    own_.check_received(lane);
    const auto late = [&] {
      return sends_.peers([&](const Message& block) { return lane == every_lane || lane == block.tag; });
    };
    endpoint_.wait([&] { return late().empty(); }, late,
                   [&] { return "did not take " + std::to_string(sends_.messages.size()) + " blocks or fewer"; });
    sends_.forget_done();
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
        [&] { return "did not send a block of " + std::to_string(piece.bytes()) + " bytes"; });
    MPI_Count sent = 0;
    require(MPI_Get_elements_x(&status, MPI_BYTE, &sent), "MPI_Get_elements_x");
    check_sent(rank(), piece, sent);
    const auto [count, type] = shape_of(piece);
    require(MPI_Imrecv(piece.data, count, type, &message, arrivals_.add({.peer = piece.peer, .tag = piece.lane})),
            "MPI_Imrecv");
    endpoint_.ring(piece.peer);  // it may wait for leave to send the rest
  }

  // A block as MPI knows it: bytes in a row, or a strided type, made once for each shape.
  std::pair<int, MPI_Datatype> shape_of(const Piece& piece) {
    const std::int64_t total = piece.bytes();
    if ((piece.is_flat() || total == 0) && total <= INT_MAX) return {static_cast<int>(total), MPI_BYTE};
    if (piece.rows > INT_MAX || piece.row_bytes > INT_MAX)
      throw Failure(ErrorKind::internal, text_of("a block with a row of ", piece.row_bytes,
                                                 " bytes; messages between processes have rows of less than 2 GiB"));
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

  Requests sends_;     // posted and perhaps not taken
  Requests arrivals_;  // of one receive()
  OwnBlocks own_{rank()};
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
  } catch (const ConnectionFailure&) {  // mostly of a death that others report, and that ends this process too
    own = std::current_exception();
    std::this_thread::sleep_for(std::chrono::seconds(3));
  } catch (...) {
    own = std::current_exception();
  }
  return endpoint.settle(own);
}

/// The same; throws, on every rank, what its Verdict says.
template <class F>
void run(Runtime& runtime, F&& body, const Options& options = {}) {
  outcome_of(runtime, std::forward<F>(body), options).rethrow();
}

}  // namespace galvatron::comm::mpi
