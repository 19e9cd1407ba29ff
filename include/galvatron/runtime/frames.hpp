// Frames: where the transient buffers of a program lie in the frame of their phase.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <galvatron/program/allocate.hpp>
#include <galvatron/program/program.hpp>

namespace galvatron::runtime {

class Frames {
 public:
  /// @param size     bytes of a buffer
  /// @param between  bytes that a step takes between the two ends of its frame's stack
  template <class Size, class Between>
  Frames(const program::LayerProgram& program, const Size& size, const Between& between) {
    for (const program::Phase phase : {program::Phase::forward, program::Phase::backward, program::Phase::weights})
      bytes_[at(static_cast<int>(phase))] = program::frame_bytes(program, phase, size, between);
    for (int b = 0; b < program.buffer_count; ++b)
      if (const int phase = program.buffer(b).phase; phase >= 0)
        offsets_[at(b)] = program::frame_offset(program, b, bytes_[at(phase)], size);
  }

  /// Of the frame of a phase.
  [[nodiscard]] std::int64_t bytes(program::Phase phase) const { return bytes_[at(static_cast<int>(phase))]; }
  /// Of a buffer in its frame.
  [[nodiscard]] std::int64_t offset(int buffer) const { return offsets_[at(buffer)]; }
  /// Where the low end of the stack is while a step of a phase works.
  template <class Size>
  [[nodiscard]] std::int64_t low_end(const program::LayerProgram& program, program::Phase phase, int step,
                                     const Size& size) const {
    std::int64_t low = 0;
    for (int b = 0; b < program.buffer_count; ++b) {
      const program::Buffer& buffer = program.buffer(b);
      const bool lives = buffer.phase == static_cast<int>(phase) && buffer.first <= step && step <= buffer.last;
      if (lives && !buffer.high) low = std::max(low, offsets_[at(b)] + size(buffer));
    }
    return low;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  std::array<std::int64_t, program::phases> bytes_{};
  std::array<std::int64_t, program::LayerProgram::most_buffers> offsets_{};
};

}  // namespace galvatron::runtime
