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

/// Where a socket may be connected to.
struct Address {
  sockaddr_storage storage{};
  std::uint32_t length = 0;

  // Both families have the port in the same place.
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  void set_port(std::uint16_t port) { reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port); }
  [[nodiscard]] std::uint16_t port() const { return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port); }
  [[nodiscard]] bool is_loopback() const {
    if (storage.ss_family == AF_INET)
      return ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24 == 127;
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
  }
};

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
    for (const int family : {AF_INET6, AF_INET}) {  // IPv6 takes those of IPv4 too
      const int number = ::socket(family, SOCK_STREAM, 0);
      if (number < 0) continue;
      socket_ = Socket(number);
      const int on = 1, off = 0;
      ::setsockopt(number, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      Address any;
      any.storage.ss_family = static_cast<sa_family_t>(family);
      any.length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
      any.set_port(port);
      if (family == AF_INET6) ::setsockopt(number, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      if (::bind(number, reinterpret_cast<sockaddr*>(&any.storage), any.length) == 0 && ::listen(number, 1024) == 0)
        return;
      error_ = errno;
    }
    throw DeviceFailure(
        text("cannot listen at port ", port, ": ", text_of_errno(error_), "; choose another one with MASTER_PORT"));
  }

  [[nodiscard]] std::uint16_t port() const {
    Address own;
    socklen_t length = sizeof own.storage;
    ::getsockname(socket_.number(), reinterpret_cast<sockaddr*>(&own.storage), &length);
    return own.port();
  }
  /// The next connection and where it comes from; nothing when the time is over.
  std::optional<std::pair<Socket, Address>> accept(Clock::time_point deadline) const {
    while (socket_.wait(POLLIN, deadline)) {
      Address from;
      socklen_t length = sizeof from.storage;
      const int number = ::accept(socket_.number(), reinterpret_cast<sockaddr*>(&from.storage), &length);
      from.length = length;
      if (number >= 0) return std::pair{Socket(number), from};
    }
    return std::nullopt;
  }

 private:
  Socket socket_;
  int error_ = 0;
};

/// A connection to the address, tried again and again; nothing, and why, when the time is over.
inline Socket connect_to(const Address& address, Clock::time_point deadline, std::string& why) {
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(200))) {
    Socket socket(::socket(address.storage.ss_family, SOCK_STREAM, 0));
    int error = 0;
    if (::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0)
      error = errno;
    if (error == EINPROGRESS) {
      socklen_t length = sizeof error;
      if (!socket.wait(POLLOUT, deadline))
        error = ETIMEDOUT;
      else
        ::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0) return socket;
    why = text_of_errno(error);
    if (Clock::now() + pause >= deadline) return {};
    std::this_thread::sleep_for(pause);
  }
}

/// The same by name; a name that is not known yet may become so.
inline Socket connect_to(const std::string& host, std::uint16_t port, Clock::time_point deadline, std::string& why) {
  for (;;) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, [](addrinfo* p) {
      if (p != nullptr) ::freeaddrinfo(p);
    });
    if (status != 0) why = ::gai_strerror(status);
    for (const addrinfo* a = list; status == 0 && a != nullptr; a = a->ai_next) {
      Address address;
      std::copy_n(reinterpret_cast<const std::byte*>(a->ai_addr), a->ai_addrlen,
                  reinterpret_cast<std::byte*>(&address.storage));
      address.length = a->ai_addrlen;
      // All addresses of the name get their turn.
      const auto turn =
          a->ai_next == nullptr && list->ai_next == nullptr ? deadline : Clock::now() + std::chrono::seconds(1);
      if (Socket socket = connect_to(address, std::min(turn, deadline), why); socket.open()) return socket;
    }
    if (Clock::now() + std::chrono::milliseconds(100) >= deadline) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace galvatron::comm::tcp
