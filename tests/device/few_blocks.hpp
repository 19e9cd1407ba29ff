// An emulator that gives a kernel fewer blocks than it asks for: one that goes over its data in steps of the grid then
// takes several.
#pragma once

#include <algorithm>
#include <cstdint>

#include "emulator.hpp"

namespace galvatron::test {

class FewBlocks {
 public:
  FewBlocks(Emulator& emulator, std::int64_t most) : emulator_(emulator), most_(most) {}

  template <class Kernel>
  void launch(device::cuda::Geometry geometry, const Kernel& kernel) {
    geometry.blocks = std::min(geometry.blocks, most_);
    emulator_.launch(geometry, kernel);
  }

 private:
  Emulator& emulator_;
  std::int64_t most_;
};

}  // namespace galvatron::test
