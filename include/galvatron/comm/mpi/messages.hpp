// Messages between this process and some others that are begun together and waited for together.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <galvatron/comm/mpi/endpoint.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::mpi {

/// Contiguous messages of collectives; ranks are of the world. Memory stays as it is until finish(). Empty messages do
/// not travel.
class Messages {
 public:
  explicit Messages(Endpoint& endpoint) : endpoint_(endpoint) {}

  void send(const void* data, std::int64_t bytes, int peer, int tag) {
    begin(const_cast<void*>(data), bytes, peer, tag, {peer, false, true});
  }
  void receive(void* data, std::int64_t bytes, int peer, int tag) { begin(data, bytes, peer, tag, {peer, true, true}); }
  /// A message of at most so many bytes.
  void receive_some(void* data, std::int64_t bytes, int peer, int tag) {
    begin(data, bytes, peer, tag, {peer, true, false});
  }

  /// Returns when all have come and gone. `what()` says what a rank that is late did not do. Throws PeerFailure, or
  /// Failure for a message of another size than expected.
  template <class What>
  void finish(What&& what) {
    if (requests_.empty()) return;
    statuses_.resize(requests_.size());
    const auto done = [&] {
      int flag = 0;
      require(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &flag, statuses_.data()),
              "MPI_Testall");
      return flag != 0;
    };
    endpoint_.wait(done, [&] { return missing(); }, what);
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      check(ends_[i], statuses_[i]);
      if (ends_[i].incoming && ends_[i].bytes > eager_bytes) endpoint_.ring(ends_[i].peer);
    }
    requests_.clear();
    ends_.clear();
  }

 private:
  static constexpr std::int64_t most_bytes = std::int64_t{1} << 30;  // an MPI count is an int
  static constexpr int eager_bytes = 4096;  // what is larger may wait at its sender until the receiver is there

  struct End {
    int peer;
    bool incoming;
    bool whole;  // exactly so many bytes
    int bytes = 0;
  };

  void begin(void* data, std::int64_t bytes, int peer, int tag, End end) {
    const MPI_Comm comm = endpoint_.runtime().collectives();
    for (std::int64_t first = 0; first < bytes; first += most_bytes) {
      auto* const place = static_cast<std::byte*>(data) + first;
      end.bytes = static_cast<int>(std::min(most_bytes, bytes - first));
      ends_.push_back(end);
      MPI_Request* const request = &requests_.emplace_back(MPI_REQUEST_NULL);
      if (end.incoming)
        require(MPI_Irecv(place, end.bytes, MPI_BYTE, peer, tag, comm, request), "MPI_Irecv");
      else
        require(MPI_Isend(place, end.bytes, MPI_BYTE, peer, tag, comm, request), "MPI_Isend");
    }
    if (bytes > eager_bytes || (bytes > 0 && !end.incoming)) endpoint_.ring(peer);
  }

  void check(const End& end, const MPI_Status& status) const {
    if (!end.incoming || !end.whole) return;
    int bytes = 0;
    require(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    if (bytes != end.bytes)
      throw Failure(ErrorKind::internal, "rank " + std::to_string(endpoint_.rank()) + " expected a message of " +
                                             std::to_string(end.bytes) + " bytes, but rank " +
                                             std::to_string(end.peer) + " sent one of " + std::to_string(bytes) +
                                             " bytes");
  }

  // Who has not sent is late; without such, who has not received.
  [[nodiscard]] std::vector<int> missing() const {
    std::vector<int> ranks;
    for (const bool incoming : {true, false}) {
      for (std::size_t i = 0; i < requests_.size(); ++i) {
        int flag = 0;
        require(MPI_Request_get_status(requests_[i], &flag, MPI_STATUS_IGNORE), "MPI_Request_get_status");
        if (flag == 0 && ends_[i].incoming == incoming) ranks.push_back(ends_[i].peer);
      }
      if (!ranks.empty()) break;
    }
    std::ranges::sort(ranks);
    ranks.erase(std::ranges::unique(ranks).begin(), ranks.end());
    return ranks;
  }

  Endpoint& endpoint_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<End> ends_;
};

}  // namespace galvatron::comm::mpi
