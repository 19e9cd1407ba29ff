// Numbers that an operation brings to the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::device::cuda {

/// Two lists of `count` numbers in memory of the device.
struct NumberPairs {
  int count = 0;
  const std::int32_t *first = nullptr, *second = nullptr;
};

/// Writes lists of equal length to the beginning of `scratch`, where they stay until it serves another operation.
/// Throws DeviceFailure where they are longer than it holds; `what` names their elements.
NumberPairs write_pairs(auto& machine, View<std::byte> scratch, std::span<const std::int32_t> first,
                        std::span<const std::int32_t> second, const char* what) {
  if (first.empty()) return {};
  const auto bytes = static_cast<std::int64_t>(first.size_bytes());
  if (2 * bytes > scratch.count)
    throw DeviceFailure("the GPU's scratch memory holds " +
                        std::to_string(scratch.count / static_cast<std::int64_t>(2 * sizeof(std::int32_t))) + " " +
                        what + " at a time, not " + std::to_string(first.size()));
  machine.upload(scratch.data, 2 * bytes, [&](std::byte* to) {
    std::memcpy(to, first.data(), first.size_bytes());
    std::memcpy(to + bytes, second.data(), second.size_bytes());
  });
  const auto* const table = reinterpret_cast<const std::int32_t*>(scratch.data);
  return {static_cast<int>(first.size()), table, table + first.size()};
}

}  // namespace galvatron::device::cuda
