// What the cases of mixtures of experts share, and the answers of those with compressed dispatch.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/view.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/model/spec.hpp>

#include "cases.hpp"

namespace galvatron::tools {

template <class T>
View<T> view_of(std::vector<T>& values) {
  return {values.data(), static_cast<std::int64_t>(values.size())};
}
template <class T>
View<const T> const_view_of(const std::vector<T>& values) {
  return {values.data(), static_cast<std::int64_t>(values.size())};
}
template <class T>
View<const T> view_of(const std::vector<T>& values) {
  return const_view_of(values);
}
template <class T>
std::vector<T> zeros(std::int64_t count) {
  return std::vector<T>(static_cast<std::size_t>(count));
}

/// A device of one thread with memory of its own.
struct CaseDevice {
  device::Mapping mapping{{device::Host::library_workspace_bytes(1)}, false};
  device::Region workspace = mapping.region("library", 0, mapping.size());
  device::Host host{1, workspace.take<std::byte>(mapping.size().count)};
};

/// What a router makes of logits (T, E).
struct Choices {
  std::vector<float> weights;         ///< (T, k)
  std::vector<std::int32_t> chosen;   ///< (T, k)
  std::vector<std::int32_t> order;    ///< (T k)
  std::vector<std::int32_t> places;   ///< (T, k)
  std::vector<std::int32_t> offsets;  ///< (E + 1)
};
Choices choices_of(device::Host& host, const device::kernels::Router& router, View<const float> logits,
                   View<const float> bias, std::int64_t capacity = 0, DropOrder drops = DropOrder::position);

/// k of a case, among `experts`.
std::int64_t active_experts(const Case& one, std::int64_t experts);

/// An expert behind compressed dispatch: y, buckets, gradients and errors.
nlohmann::ordered_json answer_lsh_layer(const Case& one);
/// Experts behind compressed dispatch from several ranks.
nlohmann::ordered_json answer_lsh_ranks(const Case& one);
/// Compression rates and errors of random tokens: means over many draws.
nlohmann::ordered_json answer_lsh_statistics(const Case& one);

}  // namespace galvatron::tools
