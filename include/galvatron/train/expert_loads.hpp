// Loads of experts: how often the routers of a step chose each of them, dropped choices included.
//
//   memory of the device, float   | layer 1: expert 0, 1, .. | layer 2: expert 0, 1, .. | ..     layers with experts
//
// Every rank counts the choices of its own tokens in the layers that it has; one sum over all ranks then has them all.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/core/view.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::train {

/// The choices of the experts of one layer in a step of the whole job.
struct ExpertLoads {
  int layer = 0;                      ///< counts blocks from 0
  std::vector<std::int64_t> choices;  ///< of each expert; they add up to k * tokens of the step

  /// The largest load over the mean: 1 where all are equal.
  [[nodiscard]] double imbalance() const {
    std::int64_t sum = 0;
    for (const std::int64_t count : choices) sum += count;
    if (sum == 0) return 1;
    return static_cast<double>(std::ranges::max(choices)) * static_cast<double>(choices.size()) /
           static_cast<double>(sum);
  }
};

/// Where the loads of a model's layers lie.
class LoadPlaces {
 public:
  LoadPlaces() = default;
  explicit LoadPlaces(const ModelSpec& model) {
    for (const LayerSpec& block : model.blocks) {
      begins_.push_back(count());
      experts_.push_back(block.experts);
    }
  }

  /// Of all layers together; 0: no layer has experts.
  [[nodiscard]] std::int64_t count() const { return begins_.empty() ? 0 : begins_.back() + experts_.back(); }
  /// Whether a device has room for them.
  [[nodiscard]] bool fit() const { return count() <= device::most_loads; }
  /// @param layer  0 is the embedding, as in ModelSpec::layer(); empty for one without experts
  [[nodiscard]] View<float> of(View<float> all, int layer) const {
    const auto block = static_cast<std::size_t>(layer) - 1;
    if (all.empty() || layer < 1 || block >= experts_.size() || experts_[block] == 0) return {};
    return all.slice(begins_[block], experts_[block]);
  }
  [[nodiscard]] std::vector<ExpertLoads> loads(const std::vector<float>& all) const {
    std::vector<ExpertLoads> out;
    for (std::size_t block = 0; block < experts_.size() && !all.empty(); ++block) {
      if (experts_[block] == 0) continue;
      ExpertLoads one{static_cast<int>(block), {}};
      for (std::int64_t e = 0; e < experts_[block]; ++e)
        one.choices.push_back(std::llround(all[static_cast<std::size_t>(begins_[block] + e)]));
      out.push_back(std::move(one));
    }
    return out;
  }

 private:
  std::vector<std::int64_t> begins_;   ///< of each block
  std::vector<std::int64_t> experts_;  ///< 0: it has none
};

}  // namespace galvatron::train
