// Messages of MPI that were begun and may be under way.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <utility>
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
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Status status{};  ///< when it has come
};

/// Throws ConnectionFailure where nothing else is said.
class Requests {
 public:
  /// The request of a message, for the call that begins it.
  MPI_Request* add(const Message& message) { return &messages_.emplace_back(message).request; }
  void clear() { messages_.clear(); }

  [[nodiscard]] std::size_t size() const { return messages_.size(); }
  [[nodiscard]] const std::vector<Message>& messages() const { return messages_; }

  /// True if all have come and gone.
  bool done() { return std::ranges::all_of(messages_, has_gone); }
  /// The same for the way out of a failure: also true if a connection is broken.
  bool over() noexcept {
    try {
      return done();
    } catch (const ConnectionFailure&) {
      return true;
    }
  }
  /// The peers of those under way that `concern(message)` names, each once.
  template <class Concern>
  [[nodiscard]] std::vector<int> peers(Concern&& concern) {
    std::vector<int> peers;
    for (Message& message : messages_)
      if (concern(message) && !has_gone(message)) peers.push_back(message.peer);
    return each_once(std::move(peers));
  }
  void forget_done() { std::erase_if(messages_, has_gone); }

 private:
  static bool has_gone(Message& message) {
    if (message.request == MPI_REQUEST_NULL) return true;
    int flag = 0;
    require(MPI_Test(&message.request, &flag, &message.status), "MPI_Test");
    return flag != 0;
  }

  std::vector<Message> messages_;
};

}  // namespace galvatron::comm::mpi
