// How processes that know only where rank 0 is come to be connected, each with each.
//
//   rank r     listens at a port of its own, connects to rank 0 and says: rank r, that port
//   rank 0     when all have come, tells each where the others listen
//   rank r     connects to ranks 1 .. r-1, which wait for it
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/comm/launch_environment.hpp>
#include <galvatron/comm/tcp/socket.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::tcp {

namespace detail {

/// What a rank says to one that it connects to.
struct Hello {
  static constexpr std::array<char, 8> sign = {'g', 'a', 'l', 'v', 'a', 't', 'r', '2'};
  std::array<char, 8> magic = sign;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::uint16_t port = 0;  ///< where it listens
};

/// Where a rank listens.
struct Address {
  std::array<char, 62> host{};  ///< a number that ends with a zero; none: rank 0's
  std::uint16_t port = 0;
};

/// Takes connections until all ranks in [first, env.size) have come, and notes where they listen; sends strangers away.
inline void accept_all(const Listener& listener, const LaunchEnvironment& env, int first, std::vector<Socket>& sockets,
                       std::vector<Address>& addresses, Clock::time_point deadline) {
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int r = first; r < env.size; ++r)
      if (!sockets[static_cast<std::size_t>(r)].open()) ranks.push_back(r);
    return ranks;
  };
  for (std::vector<int> waited = missing(); !waited.empty(); waited = missing()) {
    auto connection = listener.accept(deadline);
    if (!connection)
      throw PeerFailure(text_of("rank ", env.rank, " gave up at the rendezvous: ", rank_list(waited), " did not come"));
    Hello hello;
    hello.magic = {};
    // Who connects and says nothing keeps nobody waiting for long.
    const auto patience = std::min(deadline, Clock::now() + std::chrono::seconds(2));
    if (!connection->first.receive_all(std::as_writable_bytes(std::span(&hello, 1)), patience) ||
        hello.magic != Hello::sign)
      continue;
    if (hello.size != env.size)
      throw PeerFailure(text_of("rank ", hello.rank, " is of ", hello.size, " ranks, but rank ", env.rank, " of ",
                                env.size, ": two jobs have one MASTER_ADDR and MASTER_PORT"));
    if (std::ranges::find(waited, hello.rank) == waited.end())
      throw PeerFailure(text_of("rank ", hello.rank, " of ", env.size, " came to rank ", env.rank,
                                " twice: two jobs have one MASTER_ADDR and MASTER_PORT"));
    auto& [host, port] = addresses[static_cast<std::size_t>(hello.rank)];
    port = hello.port;
    // Who comes to rank 0 from within its host is found there, from everywhere.
    const std::string& from = connection->second;
    if (from != "::1" && !from.starts_with("127.") && !from.starts_with("::ffff:127."))
      from.copy(host.data(), host.size() - 1);
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
  std::vector<detail::Address> addresses(sockets.size());
  const auto table = std::as_writable_bytes(std::span(addresses));
  const detail::Hello hello{.rank = env.rank, .size = env.size, .port = listener.port()};
  const auto send = [&](int rank, std::span<const std::byte> words) {
    if (!sockets[static_cast<std::size_t>(rank)].send_all(words, deadline))
      throw PeerFailure(text_of("rank ", rank, " left the rendezvous"));
  };
  std::string why;
  if (env.rank > 0) {
    const std::string place = text_of("rank 0 at ", env.address, ":", env.port);
    sockets[0] = connect_to(env.address, env.port, deadline, why);
    if (!sockets[0].open()) throw PeerFailure(text_of("rank ", env.rank, " cannot reach ", place, ": ", why));
    if (!sockets[0].send_all(std::as_bytes(std::span(&hello, 1)), deadline) || !sockets[0].receive_all(table, deadline))
      throw PeerFailure(text_of("rank ", env.rank, " waited in vain for ", place,
                                " to tell it of the other ranks: not all have come"));
  }
  for (int r = 1; r < env.rank; ++r) {
    const auto& [host, port] = addresses[static_cast<std::size_t>(r)];
    Socket& socket = sockets[static_cast<std::size_t>(r)];
    socket = connect_to(host[0] == '\0' ? env.address : host.data(), port, deadline, why);
    if (!socket.open()) throw PeerFailure(text_of("rank ", env.rank, " cannot reach rank ", r, ": ", why));
    send(r, std::as_bytes(std::span(&hello, 1)));
  }
  detail::accept_all(listener, env, env.rank + 1, sockets, addresses, deadline);
  for (int r = 1; env.rank == 0 && r < env.size; ++r) send(r, table);
  return sockets;
}

}  // namespace galvatron::comm::tcp
