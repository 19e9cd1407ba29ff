// The messages of collectives of processes, by MPI.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <galvatron/comm/mpi/endpoint.hpp>
#include <galvatron/comm/mpi/requests.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::mpi {

/// For MessageGroup, which says what the calls do.
class Messages {
 public:
  explicit Messages(Endpoint& endpoint) : endpoint_(endpoint) {}

  void send(const void* data, std::int64_t bytes, int peer, int tag) {
    begin(const_cast<void*>(data), bytes, {.peer = peer, .tag = tag});
  }
  void receive(void* data, std::int64_t bytes, int peer, int tag) {
    begin(data, bytes, {.peer = peer, .tag = tag, .incoming = true});
  }
  void receive_some(void* data, std::int64_t bytes, int peer, int tag) {
    begin(data, bytes, {.peer = peer, .tag = tag, .incoming = true, .whole = false});
  }
  template <class What>
  void finish(What&& what) {
    if (requests_.size() == 0) return;
    endpoint_.wait([&] { return requests_.done(); }, [&] { return missing(); }, what);
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const Message& message = requests_.messages()[i];
      if (!message.incoming) continue;
      if (message.whole) check(message, requests_.statuses()[i]);
      if (message.bytes > eager_bytes) endpoint_.ring(message.peer);
    }
    requests_.clear();
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

  void check(const Message& message, const MPI_Status& status) const {
    int bytes = 0;
    require(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    if (bytes != message.bytes)
      throw Failure(ErrorKind::internal, text("rank ", endpoint_.rank(), " expected a message of ", message.bytes,
                                              " bytes, but rank ", message.peer, " sent one of ", bytes, " bytes"));
  }

  // Who has not sent is late; without such, who has not received.
  [[nodiscard]] std::vector<int> missing() const {
    std::vector<int> senders = requests_.peers([](const Message& message) { return message.incoming; });
    return !senders.empty() ? senders : requests_.peers([](const Message& message) { return !message.incoming; });
  }

  Endpoint& endpoint_;
  Requests requests_;
};

}  // namespace galvatron::comm::mpi
