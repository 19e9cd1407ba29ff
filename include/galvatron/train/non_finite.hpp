// Where a step's numbers stopped being numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/plan/stage_plan.hpp>
#include <galvatron/runtime/layer.hpp>

namespace galvatron::train {

/// The layer and the rank where an infinity or a NaN was seen first; equal on all ranks.
struct NonFinite {
  enum class Where : std::uint8_t { output, loss, gradient };
  Where where = Where::gradient;
  int layer = 0;   ///< number in the model; the embedding is 0
  int layers = 0;  ///< of the model, embedding and head included
  int rank = 0;
};

/// `the output of layer 3 (the blocks are 1 to 12) on rank 2`.
inline std::string place_text(const NonFinite& found) {
  const std::string layer = found.layer == 0 ? "the embedding (layer 0)"
                            : found.layer + 1 == found.layers
                                ? "the head (layer " + std::to_string(found.layer) + ")"
                                : "layer " + std::to_string(found.layer) + " (blocks are layers 1 to " +
                                      std::to_string(found.layers - 2) + ")";
  const char* what = found.where == NonFinite::Where::output ? "the output of "
                     : found.where == NonFinite::Where::loss ? "the loss in "
                                                             : "the gradients of the parameters of ";
  return what + layer + " on rank " + std::to_string(found.rank);
}

namespace detail {

/// True when the device's sums are numbers.
template <class D>
bool finite_sums(D& device) {
  double sums[device::step_sums];
  device.fetch(View<const double>(device.sums()), sums);
  return std::isfinite(sums[device::loss_sum]) && std::isfinite(sums[device::gradient_squares]);
}

/// True when no element is infinite or NaN. Works in what is free of the workspace, and in the device's sums.
template <class D, class T>
bool all_finite(D& device, device::Region& workspace, View<const T> values) {
  const device::Scope scope(workspace);
  const std::int64_t room = (workspace.capacity() - workspace.low() - workspace.high()) / 64 * 16;
  const std::int64_t run = std::min<std::int64_t>(room, 1 << 16);
  if (run == 0) return true;
  const View<float> scratch = workspace.template take<float>(run);
  for (std::int64_t first = 0; first < values.count; first += run) {
    const std::int64_t n = std::min(run, values.count - first);
    const View<float> part = scratch.slice(0, n);
    device.zero(raw_bytes(part));
    device.accumulate(n, values.slice(first, n), part);
    device.clear_sums();
    device.norm_squared(n, View<const float>(part), device.sums().slice(device::gradient_squares, 1));
    if (!finite_sums(device)) return false;
  }
  return true;
}

}  // namespace detail

/// One rank's search for where a step that gave a loss or gradient norm that is not finite went wrong. The inputs of
/// blocks that the stash still has tell the first layer whose output was not finite; else the gradients tell the last
/// layer in which backward left one, which is where it came upon it first. Of several ranks the lowest is named.
class NonFiniteSearch {
 public:
  /// Looks at a chunk of layers.
  /// @param sent  what the chunk has in its buffers for the next one
  template <class D, class T>
  void look(D& device, device::Region& workspace, const ChunkPlan& plan,
            const std::vector<std::unique_ptr<runtime::Layer<T>>>& layers, std::span<const View<const T>> sent) {
    for (const View<const T>& output : sent)
      if (!detail::all_finite(device, workspace, output))
        seen_.input = std::min(seen_.input, plan.layers.back().number + 1);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const ChunkPlan::Entry& entry = plan.layers[i];
      if (entry.layer.kind == LayerKind::head) seen_.layers = entry.number + 1;
      if (entry.layer.kind == LayerKind::block)
        for (int slot = 0; slot < plan.slots; ++slot)
          if (!detail::all_finite(device, workspace, View<const T>(layers[i]->input(slot))))
            seen_.input = std::min(seen_.input, entry.number);
      device.clear_sums();
      layers[i]->for_each_store([](runtime::Store& store) { store.add_gradient_squares(); });
      if (!detail::finite_sums(device)) seen_.gradient = std::max(seen_.gradient, entry.number);
    }
  }

  /// Collective: what all ranks found.
  [[nodiscard]] NonFinite agree(comm::Group& everybody) const {
    std::vector<Seen> all(static_cast<std::size_t>(everybody.size()));
    everybody.all_gather(View<const Seen>(&seen_, 1), View<Seen>(all.data(), everybody.size()));
    const int layers = std::ranges::max(all, {}, &Seen::layers).layers;
    const auto first = std::ranges::min_element(all, {}, &Seen::input);
    if (first->input != nowhere)  // an input is the output of the layer before
      return {NonFinite::Where::output, first->input - 1, layers, static_cast<int>(first - all.begin())};
    const auto last = std::ranges::max_element(all, {}, &Seen::gradient);
    if (last->gradient >= 0)
      return {NonFinite::Where::gradient, last->gradient, layers, static_cast<int>(last - all.begin())};
    return {NonFinite::Where::loss, layers - 1, layers, 0};
  }

 private:
  static constexpr int nowhere = std::numeric_limits<int>::max();

  /// By a rank.
  struct Seen {
    int input = nowhere;  ///< the first layer whose input is not finite
    int gradient = -1;    ///< the last layer whose gradient is not
    int layers = 0;       ///< of the model, where its head is
  };
  Seen seen_;
};

}  // namespace galvatron::train
