// RankMemory: the arena of a rank, of exactly the size that the memory formulas give its stage.
#pragma once

#include <cstdint>

#include <galvatron/cost/memory.hpp>
#include <galvatron/device/arena.hpp>

namespace galvatron::train {

struct RankMemory {
  /// @param memory  of plan.total() bytes, which must outlive this: device::Mapping or its like of a device
  template <class Memory>
  RankMemory(const cost::StageMemory& plan, const Memory& memory) : planned(plan) {
    std::int64_t first = 0;
    const auto next = [&](const char* name, Bytes bytes) {
      const device::Region region = memory.region(name, first, bytes);
      first += bytes.count;
      return region;
    };
    states = next("states", planned.states);
    stash = next("stash", planned.stash);
    boundary = next("boundary", planned.boundary);
    workspace = next("workspace", planned.workspace);
    library = next("library", planned.library);
  }

  /// What was in use at the peak of each region. The library's scratch counts whole: it belongs to the device.
  [[nodiscard]] cost::StageMemory measured() const {
    return {states.peak(), stash.peak(), boundary.peak(), workspace.peak(), library.peak()};
  }

  cost::StageMemory planned;
  device::Region states;
  device::Region stash;
  device::Region boundary;
  device::Region workspace;
  device::Region library;
};

}  // namespace galvatron::train
