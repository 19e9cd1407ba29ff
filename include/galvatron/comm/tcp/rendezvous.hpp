// How processes that know only where rank 0 is come to be connected, each with each.
//
//   rank r     listens at a port of its own, connects to rank 0 and says: rank r, that port
//   rank 0     when all have come, tells each where the others listen
//   rank r     connects to ranks 1 .. r-1, which wait for it
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <galvatron/comm/launch_environment.hpp>
#include <galvatron/comm/tcp/socket.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::tcp {

namespace detail {

/// What a rank says to one that it connects to.
struct Hello {
  static constexpr std::array<char, 8> sign = {'g', 'a', 'l', 'v', 'a', 't', 'r', '1'};
  std::array<char, 8> magic = sign;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::uint16_t port = 0;  ///< where it listens
};

/// Takes connections until every rank in [first, env.size) has come; strangers are sent away.
template <class Came>
void accept_all(const Listener& listener, const LaunchEnvironment& env, int first, std::vector<Socket>& sockets,
                Clock::time_point deadline, Came&& came) {
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int r = first; r < env.size; ++r)
      if (!sockets[static_cast<std::size_t>(r)].open()) ranks.push_back(r);
    return ranks;
  };
  for (std::vector<int> waited = missing(); !waited.empty(); waited = missing()) {
    auto connection = listener.accept(deadline);
    if (!connection)
      throw PeerFailure(text("rank ", env.rank, " gave up at the rendezvous: ", rank_list(waited), " did not come"));
    Hello hello;
    hello.magic = {};
    // Who connects and says nothing keeps nobody waiting for long.
    const auto patience = std::min(deadline, Clock::now() + std::chrono::seconds(2));
    if (!connection->first.receive_all(std::as_writable_bytes(std::span(&hello, 1)), patience) ||
        hello.magic != Hello::sign)
      continue;
    if (hello.size != env.size)
      throw PeerFailure(text("rank ", hello.rank, " is of ", hello.size, " ranks, but rank ", env.rank, " of ",
                             env.size, ": two jobs have one MASTER_ADDR and MASTER_PORT"));
    if (hello.rank < first || hello.rank >= env.size || sockets[static_cast<std::size_t>(hello.rank)].open())
      throw PeerFailure(text("rank ", hello.rank, " of ", env.size, " came to rank ", env.rank,
                             " twice: two jobs have one MASTER_ADDR and MASTER_PORT"));
    connection->second.set_port(hello.port);
    came(hello.rank, connection->second);
    sockets[static_cast<std::size_t>(hello.rank)] = std::move(connection->first);
  }
}

}  // namespace detail

/// Connects this rank with all others: a socket for each, none for itself. Throws PeerFailure or DeviceFailure, within
/// the time limit, with who did not come.
inline std::vector<Socket> rendezvous(const LaunchEnvironment& env, std::chrono::nanoseconds limit) {
  const Listener listener(env.rank == 0 ? env.port : std::uint16_t{0});
  const auto deadline = Clock::now() + limit;
  std::vector<Socket> sockets(static_cast<std::size_t>(env.size));
  std::vector<Address> addresses(sockets.size());
  const auto table = std::as_writable_bytes(std::span(addresses));
  const auto self = [&] { return "rank " + std::to_string(env.rank); };
  if (env.rank == 0) {
    detail::accept_all(listener, env, 1, sockets, deadline,
                       [&](int rank, const Address& address) { addresses[static_cast<std::size_t>(rank)] = address; });
    for (int r = 1; r < env.size; ++r)
      if (!sockets[static_cast<std::size_t>(r)].send_all(table, deadline))
        throw PeerFailure("rank " + std::to_string(r) + " left the rendezvous");
    return sockets;
  }
  const detail::Hello hello{.rank = env.rank, .size = env.size, .port = listener.port()};
  const auto words = std::as_bytes(std::span(&hello, 1));
  const std::string place = "rank 0 at " + env.address + ":" + std::to_string(env.port);
  std::string why;
  sockets[0] = connect_to(env.address, env.port, deadline, why);
  if (!sockets[0].open()) throw PeerFailure(self() + " cannot reach " + place + ": " + why);
  if (!sockets[0].send_all(words, deadline) || !sockets[0].receive_all(table, deadline))
    throw PeerFailure(self() + " waited in vain for " + place + " to tell it of the other ranks: not all have come");
  for (int r = 1; r < env.rank; ++r) {
    Socket& socket = sockets[static_cast<std::size_t>(r)];
    const Address& address = addresses[static_cast<std::size_t>(r)];
    // Who came to rank 0 from within its host is found there, from everywhere.
    socket = address.is_loopback() ? connect_to(env.address, address.port(), deadline, why)
                                   : connect_to(address, deadline, why);
    if (!socket.open()) throw PeerFailure(text(self(), " cannot reach rank ", r, ": ", why));
    if (!socket.send_all(words, deadline)) throw PeerFailure("rank " + std::to_string(r) + " left the rendezvous");
  }
  detail::accept_all(listener, env, env.rank + 1, sockets, deadline, [](int, const Address&) {});
  return sockets;
}

}  // namespace galvatron::comm::tcp
