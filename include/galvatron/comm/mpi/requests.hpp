// Messages of MPI that were begun and may be under way.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <vector>

#include <galvatron/comm/mpi/runtime.hpp>
#include <galvatron/comm/words.hpp>

namespace galvatron::comm::mpi {

struct Message {
  int peer = 0;
  int tag = 0;
  bool incoming = false;
  bool whole = true;  ///< has exactly so many bytes
  int bytes = 0;
};

/// Throws ConnectionFailure where nothing else is said.
class Requests {
 public:
  /// The request of a message, for the call that begins it.
  MPI_Request* add(const Message& message) {
    messages_.push_back(message);
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }
  void clear() {
    requests_.clear();
    messages_.clear();
  }

  [[nodiscard]] std::size_t size() const { return requests_.size(); }
  [[nodiscard]] const std::vector<Message>& messages() const { return messages_; }
  /// Of each message, when done() was true first.
  [[nodiscard]] const std::vector<MPI_Status>& statuses() const { return statuses_; }

  /// True if all have come and gone.
  bool done() {
    statuses_.resize(size());
    int flag = 0;
    require(MPI_Testall(static_cast<int>(size()), requests_.data(), &flag, statuses_.data()), "MPI_Testall");
    return flag != 0;
  }
  /// The same for the way out of a failure: also true if a connection is broken.
  bool over() noexcept {
    int flag = 0;
    return MPI_Testall(static_cast<int>(size()), requests_.data(), &flag, MPI_STATUSES_IGNORE) != MPI_SUCCESS ||
           flag != 0;
  }
  /// The peers of those under way that `concern(message)` names, each once.
  template <class Concern>
  [[nodiscard]] std::vector<int> peers(Concern&& concern) const {
    std::vector<int> peers;
    for (std::size_t i = 0; i < size(); ++i) {
      if (!concern(messages_[i])) continue;
      int flag = 0;
      require(MPI_Request_get_status(requests_[i], &flag, MPI_STATUS_IGNORE), "MPI_Request_get_status");
      if (flag == 0) peers.push_back(messages_[i].peer);
    }
    return each_once(std::move(peers));
  }
  void forget_done() {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size(); ++i) {
      int flag = 0;
      require(MPI_Test(&requests_[i], &flag, MPI_STATUS_IGNORE), "MPI_Test");
      if (flag != 0) continue;
      requests_[kept] = requests_[i];
      messages_[kept++] = messages_[i];
    }
    requests_.resize(kept);
    messages_.resize(kept);
  }

 private:
  std::vector<MPI_Request> requests_;
  std::vector<Message> messages_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace galvatron::comm::mpi
