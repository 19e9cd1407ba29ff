// WaveSimulation: the other interpreter of a multi-task model's program (plan/wave_plan.hpp): when every part runs, by
// the prices of its layers and of what moves to it, and how long a step takes. Ranks are the cluster's devices in their
// order; on a mixed cluster a part takes as long as on the slowest of its ranks' devices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/plan/task_costs.hpp>
#include <galvatron/plan/task_plan.hpp>
#include <galvatron/plan/task_program.hpp>

namespace galvatron::simulate {

struct WaveSimulation {
  std::vector<TaskSpan> events;  ///< in the order of the program
  std::vector<Seconds> busy;     ///< of each rank: in parts, in reductions and in the update
  Seconds passes;                ///< until the last backward pass has ended
  Seconds reduction;             ///< of gradients over the ranks that keep them, on the last rank to end it
  Seconds update;                ///< on the rank that keeps most
  Seconds step;

  /// The share of all ranks' time in which they are busy.
  [[nodiscard]] double utilisation() const {
    double sum = 0;
    for (const Seconds seconds : busy) sum += seconds.value;
    return sum / (step.value * static_cast<double>(busy.size()));
  }
};

namespace detail {

/// The devices of ranks, as their collectives see them.
class RankDevices {
 public:
  RankDevices(const ClusterView& cluster, int ranks) : cluster_(cluster) {
    for (int rank = 0; rank < ranks; ++rank) groups_.push_back(cluster.group_of(rank));
  }
  [[nodiscard]] int group_of(int rank) const { return groups_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const Cluster& of(int rank) const { return cluster_.group(group_of(rank)); }
  /// How many of all ranks are on a group.
  [[nodiscard]] int ranks_on(int group) const { return static_cast<int>(std::ranges::count(groups_, group)); }
  /// The node of a rank's group.
  [[nodiscard]] int node_of(int rank) const {
    return (rank - cluster_.first_device(group_of(rank))) / of(rank).devices_per_node;
  }
  /// The devices of group `a` where they exchange messages with those of group `b`.
  [[nodiscard]] Cluster beside(int a, int b) const { return beside_others(cluster_, {{a, 1}, {b, 1}}, a); }
  /// The devices of each group that some of these ranks are on, by the group's number.
  const std::map<int, const Cluster*>& of_all(const std::vector<int>& ranks) {
    std::map<int, int> counts;
    for (const int rank : ranks) ++counts[group_of(rank)];
    const auto [known, is_new] = together_.try_emplace(counts);
    if (!is_new) return known->second;
    for (const auto& [group, count] : counts)
      known->second[group] =
          counts.size() == 1
              ? &cluster_.group(group)
              : &made_.emplace(std::pair(counts, group), beside_others(cluster_, counts, group)).first->second;
    return known->second;
  }

 private:
  ClusterView cluster_;
  std::vector<int> groups_;
  std::map<std::map<int, int>, std::map<int, const Cluster*>> together_;  // by ranks on each group
  std::map<std::pair<std::map<int, int>, int>, Cluster> made_;
};

class WaveClock {
 public:
  WaveClock(const train::TaskPlan& plan, const train::TaskCosts& costs, const ClusterView& cluster, Precision precision)
      : plan_(plan),
        costs_(costs),
        devices_(cluster, plan.ranks),
        precision_(precision),
        clocks_(static_cast<std::size_t>(plan.ranks)) {
    out_.busy.resize(clocks_.size());
    for (std::size_t p = 0; p < plan.parts.size(); ++p) {
      const train::PartPlan& part = plan.parts[p];
      Part& own = parts_.emplace_back();
      own.forward_end.resize(at(part.microbatches));
      own.backward_end.resize(at(part.microbatches));
      own.ranks = ranks_of(part);
      for (const auto& [group, on] : devices_.of_all(part.where.ranks)) {
        const int busy = std::min(busy_in(part, group), on->devices_per_node);
        const auto seconds = [&](const op::WorkList& work) { return cost::time_of(work, precision_, *on, busy); };
        Seconds forward, backward, all_forward, all_backward;
        for (std::size_t i = 0; i < part.layers.size(); ++i) {
          const cost::LayerCounts* counts = costs.passes[p][i];
          if (i == 0 || counts != costs.passes[p][i - 1]) {
            forward = seconds(counts->forward);
            backward = seconds(counts->backward);
          }
          all_forward += forward;
          all_backward += backward;
        }
        own.forward = max(own.forward, all_forward);
        own.backward = max(own.backward, all_backward + seconds(border_work(part)));
      }
    }
  }

  WaveSimulation run() {
    for (const TaskInstruction& instruction : plan_.program) step(instruction);
    out_.passes = latest();
    reduce();
    out_.reduction = latest() - out_.passes;
    update();
    out_.step = latest();
    return std::move(out_);
  }

 private:
  struct Part {
    Seconds forward, backward;
    std::vector<Seconds> forward_end, backward_end;  // of each micro-batch
    std::vector<int> ranks;                          // that take part
  };
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] Seconds latest() const { return *std::ranges::max_element(clocks_); }
  /// What a rank does in a backward pass with the gradients at its part's borders: it adds those that readers of its
  /// output send, and keeps those that it sends.
  [[nodiscard]] op::WorkList border_work(const train::PartPlan& part) const {
    const std::int64_t e = element_bytes(precision_);
    op::WorkList out;
    const auto keep = [&](std::int64_t elements) {
      if (elements > 0) out.push({.kind = op::Kind::copy, .m = elements * e});
    };
    const auto memory = std::ranges::find_if(part.reads, [&](int edge) { return plan_.edge(edge).memory; });
    if (memory != part.reads.end()) {
      out.push({.kind = op::Kind::fill, .m = part.border(0) * e});
      keep(plan_.edge(*memory).elements(part, 0));
    }
    for (std::size_t reader = 1; reader < part.feeds.size(); ++reader)
      out.push({.kind = op::Kind::add, .m = part.elements(0, part.output())});
    if (part.layers.front().kind != LayerKind::embedding) keep(part.elements(0, part.layers.front().before(0)));
    return out;
  }
  /// Ranks of a group that work while the part does.
  [[nodiscard]] int busy_in(const train::PartPlan& part, int group) const {
    if (std::ranges::any_of(plan_.parts, [](const train::PartPlan& other) { return other.slots > 1; }))
      return devices_.ranks_on(group);  // a pipeline
    std::ptrdiff_t ranks = 0;
    for (const train::PartPlan& other : plan_.parts)
      if (&other == &part || (plan_.order == TaskOrder::in_waves && other.wave == part.wave))
        ranks += std::ranges::count_if(other.where.ranks, [&](int rank) { return devices_.group_of(rank) == group; });
    return static_cast<int>(ranks);
  }

  void step(const TaskInstruction& instruction) {
    const bool forward = instruction.op == TaskInstruction::Op::forward;
    const train::PartPlan& part = plan_.part(instruction.part);
    Part& own = parts_[at(instruction.part)];
    TaskSpan event{.instruction = instruction, .begin = {}, .moved = {}, .end = {}};
    for (const int rank : own.ranks) event.begin = max(event.begin, clocks_[at(rank)]);
    event.moved = event.begin;
    for (const int number : forward ? part.reads : part.feeds) {
      const train::PartEdge& edge = plan_.edge(number);
      const Part& other = parts_[at(forward ? edge.from : edge.to)];
      event.begin = max(event.begin, (forward ? other.forward_end : other.backward_end)[at(instruction.microbatch)]);
    }
    event.moved = event.begin;
    for (const int number : forward ? part.reads : part.feeds) event.moved += move(number, forward);
    event.end = event.moved + (forward ? own.forward : own.backward);
    (forward ? own.forward_end : own.backward_end)[at(instruction.microbatch)] = event.end;
    for (const int rank : own.ranks) take(rank, event.begin, event.end);
    out_.events.push_back(event);
  }
  /// The ranks of a part, and others that its layers' shards are on (ZeRO-2/3): they take part in every gathering.
  [[nodiscard]] std::vector<int> ranks_of(const train::PartPlan& part) const {
    std::vector<int> out = part.where.ranks;
    for (std::size_t i = 0; i < part.layers.size(); ++i)
      for (const auto& list : plan_.places[static_cast<std::size_t>(part.number) + i].by_tensor)
        for (const int rank : list)
          if (plan_.assists(part, i, rank) && std::ranges::find(out, rank) == out.end()) out.push_back(rank);
    return out;
  }
  /// What the rank that gets most of a value waits for; what ranks have already they copy.
  [[nodiscard]] Seconds move(int number, bool forward) {
    const auto [known, is_new] = moves_.try_emplace({number, forward});
    if (!is_new) return known->second;
    const train::PartEdge& edge = plan_.edge(number);
    const PlacedValue from = forward ? plan_.written(edge) : plan_.read(edge);
    const PlacedValue to = forward ? plan_.read(edge) : plan_.written(edge);
    const std::int64_t token = edge.width * element_bytes(precision_);
    const std::vector<Region> given = from.regions();
    const std::vector<Region> wanted = to.regions();
    Seconds most;
    for (int receiver = 0; receiver < to.layout.ranks(); ++receiver) {
      const int at = to.world(receiver);
      op::Work copy{.kind = op::Kind::copy};
      std::map<int, op::Work> sends;  // by the sender's group
      for (int sender = 0; sender < from.layout.ranks(); ++sender) {
        if (intersection(given[static_cast<std::size_t>(sender)], wanted[static_cast<std::size_t>(receiver)]).empty())
          continue;
        const Region moved = moved_between(from, to, sender, receiver);
        if (moved.empty()) continue;
        const int of = from.world(sender);
        if (of == at) {
          copy.m += moved.tokens() * token;
          continue;
        }
        op::Work& send =
            sends.try_emplace(devices_.group_of(of), op::Work{.kind = op::Kind::send, .k = 2}).first->second;
        send.m += moved.tokens() * token;
        ++send.n;
        // k = 2: in a node.
        if (devices_.group_of(of) != devices_.group_of(at) || devices_.node_of(of) != devices_.node_of(at)) send.k = 0;
      }
      Seconds length = cost::time_of(copy, precision_, devices_.of(at));
      for (const auto& [group, send] : sends) length += received(send, group, at);
      most = max(most, length);
    }
    return known->second = most;
  }
  /// What a rank takes to receive messages from ranks of a group.
  [[nodiscard]] Seconds received(const op::Work& send, int group, int rank) {
    const int own = devices_.group_of(rank);
    if (own == group) return cost::time_of(send, precision_, devices_.of(rank));
    const auto [pair, is_new] = pairs_.try_emplace({own, group});
    if (is_new) pair->second = devices_.beside(own, group);
    return cost::time_of(send, precision_, pair->second);
  }
  /// A rank is busy until `end`.
  void take(int rank, Seconds begin, Seconds end) {
    clocks_[at(rank)] = end;
    out_.busy[at(rank)] += end - begin;
  }

  void reduce() {
    for (const int number : plan_.reductions) {
      const auto layer = static_cast<std::size_t>(number);
      const LayerRanks& place = plan_.places[layer];
      op::WorkList work;
      for (op::Work each : costs_.parameters[layer]->synchronise) {
        if (each.parameters) each.stride = stride_of(place.by_tensor.front());
        work.push(each);
      }
      Seconds length;
      for (const auto& ranks : place.by_tensor)
        for (const auto& [group, on] : devices_.of_all(ranks))
          length = max(length, cost::time_of(work, precision_, *on, on->devices_per_node));
      Seconds begin;
      for (const auto& ranks : place.by_tensor)
        for (const int rank : ranks) begin = max(begin, clocks_[at(rank)]);
      for (const auto& ranks : place.by_tensor)
        for (const int rank : ranks) take(rank, begin, begin + length);
    }
  }
  /// How far apart neighbours of a group are, on average: of ranks of several nodes at least so far that they are not
  /// taken for those of one.
  [[nodiscard]] static int stride_of(const std::vector<int>& ranks) {
    if (ranks.size() < 2) return 1;
    const int distance = ranks.back() - ranks.front();
    const auto gaps = static_cast<int>(ranks.size()) - 1;
    return std::max((distance + gaps - 1) / gaps, 1);
  }
  void update() {
    const op::Work losses{.kind = op::Kind::fill, .m = std::ssize(plan_.model.tasks) * 8};
    std::vector<Seconds> lengths;
    for (int rank = 0; rank < plan_.ranks; ++rank)
      lengths.push_back(cost::time_of(losses, precision_, devices_.of(rank)));
    std::map<int, Seconds> seconds;  // of a layer, by group
    for (std::size_t layer = 0; layer < plan_.layers.size(); ++layer) {
      if (layer > 0 && costs_.parameters[layer] != costs_.parameters[layer - 1]) seconds.clear();
      if (plan_.places[layer].idle) continue;
      for (const auto& ranks : plan_.places[layer].by_tensor)
        for (const int rank : ranks) {
          const auto [known, is_new] = seconds.try_emplace(devices_.group_of(rank));
          const Cluster& on = devices_.of(rank);
          if (is_new)
            known->second = cost::time_of(costs_.parameters[layer]->update, precision_, on, on.devices_per_node);
          lengths[at(rank)] += known->second;
        }
    }
    const Seconds begin = latest();  // the gradient's norm is that of all ranks
    for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
      take(static_cast<int>(rank), begin, begin + lengths[rank]);
      out_.update = max(out_.update, lengths[rank]);
    }
  }

  const train::TaskPlan& plan_;
  const train::TaskCosts& costs_;
  RankDevices devices_;
  Precision precision_;
  std::map<std::pair<int, bool>, Seconds> moves_;  // of edges, forward or backward
  std::map<std::pair<int, int>, Cluster> pairs_;   // of groups: the first one's devices beside one of the second
  std::vector<Part> parts_;
  std::vector<Seconds> clocks_;  ///< of each rank: when it is free
  WaveSimulation out_;
};

}  // namespace detail

/// A step of a plan of waves on a cluster of at least as many devices: ranks are its devices in their order.
/// @param costs  of the plan
inline WaveSimulation simulate_waves(const train::TaskPlan& plan, const train::TaskCosts& costs,
                                     const ClusterView& cluster, Precision precision) {
  return detail::WaveClock(plan, costs, cluster, precision).run();
}
inline WaveSimulation simulate_waves(const train::TaskPlan& plan, const ClusterView& cluster,
                                     Precision precision = Precision::bf16) {
  train::LayerCosts layers(precision);
  return simulate_waves(plan, train::TaskCosts(plan, layers), cluster, precision);
}

}  // namespace galvatron::simulate
