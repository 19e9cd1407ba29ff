// What a stage tells about its instructions while it carries them out.
#pragma once

#include <cstdint>

#include <galvatron/schedule/program.hpp>

namespace galvatron::train {

/// Called on the thread of the rank, around every instruction.
class InstructionObserver {
 public:
  virtual ~InstructionObserver() = default;
  virtual void step_begins(std::int64_t step) = 0;
  virtual void begins() = 0;
  virtual void ended(const schedule::Instruction& instruction) = 0;
};

}  // namespace galvatron::train
