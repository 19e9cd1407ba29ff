// What an exception must not do: free memory that a peer is still copying from.
#pragma once

namespace galvatron::comm {

/// Lives shorter than the memory of posted blocks. When it goes away, by an exception or not, it takes back the blocks
/// that nobody has taken and waits for copies in progress. After wait_sent() it does nothing. In worlds that need no
/// such care (`withdraw` does not exist) it is empty.
///
///   Arena arena(...);                  // holds activations that are sent
///   comm::SendGuard guard(world);      // destroyed first
///   ... world.post(...); ... world.wait_sent();
template <class W>
class SendGuard {
 public:
  explicit SendGuard(W& world) : world_(world) {}
  SendGuard(const SendGuard&) = delete;
  SendGuard& operator=(const SendGuard&) = delete;
  ~SendGuard() {
    if constexpr (requires { world_.withdraw(); }) world_.withdraw();
  }

 private:
  W& world_;
};

}  // namespace galvatron::comm
