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
#include <span>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/groups.hpp>
#include <galvatron/comm/local_gpu/group.hpp>
#include <galvatron/comm/local_gpu/kernels.hpp>
#include <galvatron/comm/local_gpu/shared.hpp>
#include <galvatron/comm/thread/world.hpp>

namespace galvatron::comm::local_gpu {

/// A world for memory of the GPU; takes none of it for itself. Calls give the streams their work and return; what the
/// rank gives its stream `compute` afterwards finds it done. Failures are those of thread::World. Not for capture into
/// a CUDA graph: ranks meet in the program.
template <Stream S>
class World final : public comm::World {
 public:
  /// All of these outlive the world. @param compute  in which the rank computes
  World(thread::World& control, Shared<S>& shared, S& compute, S& messages)
      : comm::World(control.rank(), control.size()),
        control_(control),
        shared_(shared),
        compute_(compute),
        messages_(messages) {}
  ~World() override { withdraw(); }

  /// At most most_ranks.
  Group<S>& group(std::span<const int> ranks) override {
    return groups_.find(*this, ranks, control_.group(ranks), rank(), shared_, compute_, messages_);
  }
  comm::World& control() override { return control_; }

  void withdraw() noexcept override {
    control_.withdraw();
    for (const auto& group : groups_) group->withdraw();
    for (const Target& target : targets_)
      if (target.posted) wait_or_failed([&] { target.link->taken.wait(); });
    wait_or_failed([&] { compute_.wait(); });
    wait_or_failed([&] { messages_.wait(); });
  }

 private:
  struct Target {
    int peer;
    int lane;
    typename Shared<S>::Link* link;
    bool posted;  // since the last wait
  };

  void do_post(std::span<const Piece> pieces) override {
    const typename Shared<S>::Link* last = nullptr;
    for (const Piece& piece : pieces) {
      auto* const link = target_of(piece).link;
      if (link != last) compute_.record(link->ready);
      last = link;
    }
    control_.post(pieces);
  }
  void do_receive(std::span<const Piece> pieces) override {
    control_.receive(pieces, [&](const Piece& from, const Piece& to) {
      auto& link = shared_.link(to.peer, rank(), to.lane);
      compute_.wait_for(link.ready);
      copy_block(compute_, from, to);
      compute_.record(link.taken);
    });
  }
  /// What is computed from now on may change the memory of these blocks.
  void do_wait_sent(int lane) override {
    control_.wait_sent(lane);
    for (Target& target : targets_)
      if (lane == every_lane || target.lane == lane) settle(target);
  }

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
  Groups<Group<S>> groups_;
  std::vector<Target> targets_;
};

}  // namespace galvatron::comm::local_gpu
