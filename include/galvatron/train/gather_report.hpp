// Brings together what ranks that are processes report and have recorded: the latter on rank 0's clock.
//
// Processes of one host read the same steady clock. The clock of another host is compared in messages there and back:
//
//   rank 0   asked ----.                .---> answered       their clocks differ by there - (asked + answered) / 2,
//   rank r              `---> there ---'                     give or take half of the way there and back
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/schedule/replay.hpp>
#include <galvatron/train/recorder.hpp>
#include <galvatron/train/trainer.hpp>

namespace galvatron::train {

namespace detail {

/// `count` values to or from a rank.
template <class T>
comm::Piece piece_of(int peer, T* data, std::size_t count = 1) {
  static_assert(std::is_trivially_copyable_v<T>);
  return comm::Piece::flat(peer, reinterpret_cast<std::byte*>(data), static_cast<std::int64_t>(count * sizeof(T)));
}
template <class T>
void send(comm::World& world, int peer, T* data, std::size_t count = 1) {
  const comm::Piece piece = piece_of(peer, data, count);
  world.post({&piece, 1});
  world.wait_sent();
}
template <class T>
void receive(comm::World& world, int peer, T* data, std::size_t count = 1) {
  const comm::Piece piece = piece_of(peer, data, count);
  world.receive({&piece, 1});
}

/// Throws Failure (usage) when the job has another number of processes than the plan has ranks.
inline void require_ranks(const Plan& plan, int processes, const std::string& found, const std::string& way = {}) {
  if (plan.ranks() == processes) return;
  const std::string ranks = std::to_string(plan.ranks());
  const std::string there = std::to_string(processes);
  throw Failure(ErrorKind::usage, "the plan has " + ranks + " ranks, but " + found + " " + there +
                                      " processes: start " + ranks + way + ", or make a plan for " + there);
}

}  // namespace detail

/// Seconds by which the clock of `peer` is ahead of rank 0's, as rank 0 finds out: the best of several exchanges.
/// Called by both; the peer gets 0.
/// @param now  reads this rank's clock
template <class Now>
double clock_offset(comm::World& world, int peer, Now&& now) {
  double offset = 0;
  double shortest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 20; ++i) {
    double there = 0;
    if (world.rank() != 0) {
      detail::receive(world, 0, &there);
      there = now();
      detail::send(world, 0, &there);
      continue;
    }
    const double asked = now();
    detail::send(world, peer, &there);
    detail::receive(world, peer, &there);
    const double answered = now();
    if (answered - asked >= shortest) continue;
    shortest = answered - asked;
    offset = there - (asked + answered) / 2;
  }
  return offset;
}

/// Collective, when no rank is at work: afterwards rank 0's recorder has the records of all ranks.
/// @param shares_clock  whether rank 0 and a rank, one of which is the caller, are on one host
template <class Span, class SharesClock>
void gather_records(comm::World& world, SpanRecorder<Span>& recorder, SharesClock&& shares_clock) {
  struct Head {
    std::int64_t step;
    double began;
    std::int64_t spans;
  };
  if (world.rank() != 0) {
    if (!shares_clock(0)) clock_offset(world, 0, steady_seconds);
    RecordedSpans<Span>& own = recorder.rank(world.rank());
    Head head{own.step, own.began, static_cast<std::int64_t>(own.spans.size())};
    detail::send(world, 0, &head);
    detail::send(world, 0, own.spans.data(), own.spans.size());
    return;
  }
  for (int rank = 1; rank < world.size(); ++rank) {
    const Seconds offset{shares_clock(rank) ? 0 : clock_offset(world, rank, steady_seconds)};
    Head head{};
    detail::receive(world, rank, &head);
    RecordedSpans<Span>& record = recorder.rank(rank);
    record.step = head.step;
    record.began = head.began - offset.value;
    record.spans.resize(static_cast<std::size_t>(head.spans));
    detail::receive(world, rank, record.spans.data(), record.spans.size());
    for (Span& span : record.spans) span.shift(Seconds{-offset.value});
  }
}

/// Collective, when no rank is at work: afterwards every rank's report has memory and checkpoints of all, and rank 0's
/// recorder what all have recorded. Steps and iteration_seconds are on rank 0 only.
/// @param world  for memory of the program  @param recorder  may be null  @param shares_clock  see gather_records()
/// @tparam Report  TrainReport, or TaskTrainReport
template <class Report, class Span, class SharesClock>
void gather_report(comm::World& world, Report& report, SpanRecorder<Span>* recorder, SharesClock&& shares_clock) {
  const auto gather = [&]<class Fact>(std::vector<Fact>& facts) {
    const View<Fact> all(facts.data(), static_cast<std::int64_t>(facts.size()));
    world.everybody().all_gather(all.slice(world.rank(), 1), all);
  };
  gather(report.planned_memory);
  gather(report.measured_memory);
  gather(report.checkpoints);
  if (recorder != nullptr) gather_records(world, *recorder, std::forward<SharesClock>(shares_clock));
}

}  // namespace galvatron::train
