// A rank among several on one GPU, each a thread with streams of its own.
//
//   local_gpu::Shared<S> shared;
//   thread::run(ranks, [&](thread::World& control) {
//     S compute, messages;
//     local_gpu::World<S> world(control, shared, compute, messages);
//     ...
//   });
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/local_gpu/group.hpp>
#include <galvatron/comm/local_gpu/kernels.hpp>
#include <galvatron/comm/local_gpu/shared.hpp>
#include <galvatron/comm/thread/world.hpp>

namespace galvatron::comm::local_gpu {

/// Models comm::World on memory of the GPU; takes none of it for itself. Calls give the streams their work and return;
/// what the rank gives its stream `compute` afterwards finds it done. Failures are those of thread::World. Not for
/// capture into a CUDA graph: ranks meet in the program.
template <Stream S>
class World {
 public:
  using Group = local_gpu::Group<S>;
  using Control = thread::World;

  /// All of these outlive the world. @param compute  in which the rank computes
  World(thread::World& control, Shared<S>& shared, S& compute, S& messages)
      : control_(control), shared_(shared), compute_(compute), messages_(messages) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() { withdraw(); }

  [[nodiscard]] int rank() const { return control_.rank(); }
  [[nodiscard]] int size() const { return control_.size(); }

  /// The group of these world ranks, in this order; see thread::World. At most most_ranks.
  Group& group(std::span<const int> ranks) {
    for (auto& group : groups_)
      if (std::ranges::equal(group->ranks(), ranks)) return *group;
    return *groups_.emplace_back(std::make_unique<Group>(control_.group(ranks), shared_, compute_, messages_));
  }
  /// The group of all ranks.
  Group& everybody() { return group(control_.everybody().ranks()); }
  Control& control() { return control_; }

  /// Offers blocks to their peers and returns; see comm::World.
  void post(std::span<const Piece> pieces) {
    check_pieces(pieces, size());
    const typename Shared<S>::Link* last = nullptr;
    for (const Piece& piece : pieces) {
      auto* const link = target_of(piece).link;
      if (link != last) compute_.record(link->ready);
      last = link;
    }
    control_.post(pieces);
  }
  /// Takes blocks from their peers, in order, when those have posted them.
  void receive(std::span<const Piece> pieces) {
    control_.receive(pieces, [&](const Piece& from, const Piece& to) {
      auto& link = shared_.link(to.peer, rank(), to.lane);
      compute_.wait_for(link.ready);
      copy_block(compute_, from, to);
      compute_.record(link.taken);
    });
  }
  /// What is computed from now on may change the memory of posted blocks: of all, or of those of one lane.
  void wait_sent() {
    control_.wait_sent();
    for (Target& target : targets_) settle(target);
  }
  void wait_sent(int lane) {
    control_.wait_sent(lane);
    for (Target& target : targets_)
      if (target.lane == lane) settle(target);
  }

  /// Takes back blocks that nobody has taken, and returns when nobody reads or writes this rank's memory any more.
  void withdraw() noexcept {
    control_.withdraw();
    for (const auto& group : groups_) group->withdraw();
    const auto ignore_failure = [](auto&& wait) {
      try {
        wait();
      } catch (const std::exception&) {  // a device that has failed is at work no more
      }
    };
    for (const Target& target : targets_)
      if (target.posted) ignore_failure([&] { target.link->taken.wait(); });
    ignore_failure([&] { compute_.wait(); });
    ignore_failure([&] { messages_.wait(); });
  }

 private:
  struct Target {
    int peer;
    int lane;
    typename Shared<S>::Link* link;
    bool posted;  // since the last wait
  };

  // Allocates on first use of a lane to a peer only.
  Target& target_of(const Piece& piece) {
    const auto found = std::ranges::find_if(
        targets_, [&](const Target& target) { return target.peer == piece.peer && target.lane == piece.lane; });
    Target& target = found != targets_.end()
                         ? *found
                         : targets_.emplace_back(
                               Target{piece.peer, piece.lane, &shared_.link(rank(), piece.peer, piece.lane), false});
    target.posted = true;
    return target;
  }
  void settle(Target& target) {
    if (!target.posted) return;
    compute_.wait_for(target.link->taken);
    target.posted = false;
  }

  thread::World& control_;
  Shared<S>& shared_;
  S& compute_;
  S& messages_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<Target> targets_;
};

}  // namespace galvatron::comm::local_gpu
