// Brings together what ranks that are processes report.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/train/gather_records.hpp>
#include <galvatron/train/recorder.hpp>
#include <galvatron/train/trainer.hpp>

namespace galvatron::train {

/// Collective, when no rank is at work: afterwards every rank's report has memory and checkpoints of all, and rank 0's
/// recorder what all have recorded.
/// @param world  for memory of the program  @param recorder  may be null  @param shares_clock  see gather_records()
template <class SharesClock>
void gather_report(comm::World& world, TrainReport& report, Recorder* recorder, SharesClock&& shares_clock) {
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
