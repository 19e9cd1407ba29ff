// A world that counts the bytes that a rank posts to each peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/comm/communicator.hpp>

namespace galvatron::comm::metered {

class World final : public comm::World {
 public:
  explicit World(comm::World& inner)
      : comm::World(inner.rank(), inner.size()), inner_(inner), posted_(static_cast<std::size_t>(inner.size())) {}

  /// By peer; to itself, too.
  [[nodiscard]] const std::vector<std::int64_t>& posted() const { return posted_; }

  comm::Group& group(std::span<const int> ranks) override { return inner_.group(ranks); }
  comm::World& control() override { return inner_.control(); }
  void check() override { inner_.check(); }
  void withdraw() noexcept override { inner_.withdraw(); }

 private:
  void do_post(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) posted_[static_cast<std::size_t>(piece.peer)] += piece.bytes();
    inner_.post(pieces);
  }
  void do_receive(std::span<const Piece> pieces) override { inner_.receive(pieces); }
  void do_wait_sent(int lane) override { inner_.wait_sent(lane); }

  comm::World& inner_;
  std::vector<std::int64_t> posted_;
};

}  // namespace galvatron::comm::metered
