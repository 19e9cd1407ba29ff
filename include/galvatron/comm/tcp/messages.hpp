// The messages of collectives of processes, by TCP.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/comm/tcp/endpoint.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::tcp {

/// For MessageGroup, which says what the calls do. What is sent leaves at once, as a copy.
class Messages {
 public:
  explicit Messages(Endpoint& endpoint) : endpoint_(endpoint) {}

  void send(const void* data, std::int64_t bytes, int peer, int tag) {
    const auto* const first = static_cast<const std::byte*>(data);
    if (bytes > 0) endpoint_.send(peer, lane_of(tag), {first, first + bytes});
  }
  void receive(void* data, std::int64_t bytes, int peer, int tag) { expect(data, bytes, peer, tag, true); }
  void receive_some(void* data, std::int64_t bytes, int peer, int tag) { expect(data, bytes, peer, tag, false); }
  template <class What>
  void finish(What&&) {
    for (const Expected& expected : std::exchange(expected_, {})) {
      const Endpoint::Bytes bytes = endpoint_.receive(expected.peer, lane_of(expected.tag));
      const auto size = static_cast<std::int64_t>(bytes.size());
      if (expected.whole ? size != expected.bytes : size > expected.bytes)
        throw Failure(ErrorKind::internal, text("the members of a group disagree: rank ", endpoint_.rank(), " takes ",
                                                expected.bytes, " bytes, but was sent ", size));
      std::ranges::copy(bytes, expected.data);
    }
  }

 private:
  struct Expected {
    std::byte* data;
    std::int64_t bytes;
    int peer;
    int tag;
    bool whole;  // exactly so many bytes
  };

  // Those of blocks are not negative.
  static std::int64_t lane_of(int tag) { return -1 - tag; }
  void expect(void* data, std::int64_t bytes, int peer, int tag, bool whole) {
    if (bytes > 0) expected_.push_back({static_cast<std::byte*>(data), bytes, peer, tag, whole});
  }

  Endpoint& endpoint_;
  std::vector<Expected> expected_;
};

}  // namespace galvatron::comm::tcp
