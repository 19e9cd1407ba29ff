// KeptBuffers: the memory of a micro-batch in a layer, from one phase of its program to another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <galvatron/core/view.hpp>
#include <galvatron/program/program.hpp>

namespace galvatron::runtime {

/// What a micro-batch keeps between phases: buffers of the program by number.
template <class T>
struct KeptBuffers {
  std::array<std::byte*, program::LayerProgram::most_buffers> buffers{};
  View<std::int32_t> tokens;                       ///< of an embedding, those of the target last; targets of a head
  std::array<View<T>, most_parts> pass_through{};  ///< what a stage keeps once for several layers
  View<T> replicated;                              ///< replicated parameters, for the phase of weight gradients
  View<float> d_replicated;                        ///< and their gradients
};

}  // namespace galvatron::runtime
