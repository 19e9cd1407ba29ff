// Sockets with time limits.
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <galvatron/comm/words.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::tcp {

using Clock = std::chrono::steady_clock;

inline std::string text_of_errno(int code) { return std::system_category().message(code); }

/// Milliseconds until then, for poll().
inline int left_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000));
}

/// Owns a socket, which blocks nobody.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int number) : number_(number) {
    ::fcntl(number_, F_SETFL, ::fcntl(number_, F_GETFL) | O_NONBLOCK);
    ::fcntl(number_, F_SETFD, FD_CLOEXEC);
    const int on = 1;
    ::setsockopt(number_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  Socket(Socket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Socket() { close(); }

  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] bool open() const { return number_ >= 0; }
  void close() {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }

  /// Bytes sent or received now, 0 when none can be, -1 when the connection is gone.
  [[nodiscard]] std::int64_t send(std::span<const std::byte> bytes) const {
    return outcome(::send(number_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  [[nodiscard]] std::int64_t receive(std::span<std::byte> bytes) const {
    const ssize_t n = ::recv(number_, bytes.data(), bytes.size(), 0);
    return n == 0 ? -1 : outcome(n);
  }

  /// Sends or receives all of it; false when the connection breaks or the time is over.
  bool send_all(std::span<const std::byte> bytes, Clock::time_point deadline) const {
    return transfer(bytes, deadline, POLLOUT, [&](auto part) { return send(part); });
  }
  bool receive_all(std::span<std::byte> bytes, Clock::time_point deadline) const {
    return transfer(bytes, deadline, POLLIN, [&](auto part) { return receive(part); });
  }
  /// The error code of the attempt to connect it, 0 for none.
  [[nodiscard]] int connect(const addrinfo& to, Clock::time_point deadline) const {
    if (::connect(number_, to.ai_addr, to.ai_addrlen) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    if (!wait(POLLOUT, deadline)) return ETIMEDOUT;
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(number_, SOL_SOCKET, SO_ERROR, &error, &length);
    return error;
  }
  /// True when there is something to do for `events` of poll() before the deadline.
  [[nodiscard]] bool wait(short events, Clock::time_point deadline) const {
    for (;;) {
      pollfd waiting{number_, events, 0};
      if (::poll(&waiting, 1, left_until(deadline)) > 0) return true;
      if (Clock::now() >= deadline) return false;
    }
  }

 private:
  static std::int64_t outcome(ssize_t n) {
    if (n >= 0) return n;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
  }
  template <class Bytes, class Transfer>
  bool transfer(Bytes bytes, Clock::time_point deadline, short events, Transfer&& some) const {
    while (!bytes.empty()) {
      const std::int64_t n = some(bytes);
      if (n < 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(n));
      if (n == 0 && !wait(events, deadline)) return false;
    }
    return true;
  }

  int number_ = -1;
};

/// Accepts connections to a port of any address of this host; port 0 is one that is free. Throws DeviceFailure.
class Listener {
 public:
  explicit Listener(std::uint16_t port) {
    const int on = 1, off = 0;
    for (const int family : {AF_INET6, AF_INET}) {  // IPv6 takes those of IPv4 too
      socket_ = Socket(::socket(family, SOCK_STREAM, 0));
      const int number = socket_.number();
      sockaddr_in6 any{};
      any.sin6_family = static_cast<sa_family_t>(family);
      any.sin6_port = htons(port);
      const socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
      ::setsockopt(number, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      if (family == AF_INET6) ::setsockopt(number, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      if (::bind(number, reinterpret_cast<sockaddr*>(&any), length) == 0 && ::listen(number, 1024) == 0) return;
    }
    throw DeviceFailure(
        text_of("cannot listen at port ", port, ": ", text_of_errno(errno), "; choose another one with MASTER_PORT"));
  }

  [[nodiscard]] std::uint16_t port() const {
    sockaddr_in6 own{};
    socklen_t length = sizeof own;
    ::getsockname(socket_.number(), reinterpret_cast<sockaddr*>(&own), &length);
    return ntohs(own.sin6_port);
  }
  /// The next connection and the number of the host that it comes from; nothing when the time is over.
  std::optional<std::pair<Socket, std::string>> accept(Clock::time_point deadline) const {
    while (socket_.wait(POLLIN, deadline)) {
      sockaddr_storage from{};
      socklen_t length = sizeof from;
      auto* const address = reinterpret_cast<sockaddr*>(&from);
      const int number = ::accept(socket_.number(), address, &length);
      if (number < 0) continue;
      char host[NI_MAXHOST] = "";
      ::getnameinfo(address, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
      return std::pair{Socket(number), std::string(host)};
    }
    return std::nullopt;
  }

 private:
  // Addresses of both families begin with it and the port.
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));

  Socket socket_;
};

/// A connection to a host, by name or number, tried again and again; nothing, and why, when the time is over. A name
/// that is not known yet may become so.
inline Socket connect_to(const std::string& host, std::uint16_t port, Clock::time_point deadline, std::string& why) {
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(200))) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
    if (status != 0) why = ::gai_strerror(status);
    for (const addrinfo* a = list; status == 0 && a != nullptr; a = a->ai_next) {
      // All addresses of the name get their turn.
      const auto turn = list->ai_next == nullptr ? deadline : Clock::now() + std::chrono::seconds(1);
      Socket socket(::socket(a->ai_family, SOCK_STREAM, 0));
      const int error = socket.connect(*a, std::min(turn, deadline));
      if (error == 0) return socket;
      why = text_of_errno(error);
    }
    if (Clock::now() + pause >= deadline) return {};
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace galvatron::comm::tcp
