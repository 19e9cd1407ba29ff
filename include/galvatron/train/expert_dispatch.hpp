// What dispatch to experts did in a step: bytes that were sent, and of compressed dispatch rates, distances and time.
//
//   memory of the device, double  | sums of layer 1 | of layer 2 | .. | bytes of layer 1, 2, ..     layers with experts
//
// Every rank adds up what it does in the layers that it has; one sum over all ranks then has them all.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/core/view.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/runtime/context.hpp>

namespace galvatron::train {

/// A step of the whole job, in one layer or in several.
struct DispatchSums {
  double squared_distances = 0;  ///< of tokens from the means that were sent for them
  double squared_tokens = 0;
  double rows = 0;             ///< choices of compressed layers
  double buckets = 0;          ///< means that were sent for them
  double hashing_seconds = 0;  ///< a rank's, as mean of the layer's ranks: finding buckets and their means
  double bytes = 0;            ///< that all ranks sent to others, for experts and back, forward and backward

  [[nodiscard]] bool is_compressed() const { return rows > 0; }
  /// 0 where nothing is compressed, as is error().
  [[nodiscard]] double rate() const { return rows > 0 ? buckets / rows : 0; }
  /// The root of the squared distances over that of the squared tokens.
  [[nodiscard]] double error() const { return squared_tokens > 0 ? std::sqrt(squared_distances / squared_tokens) : 0; }

  DispatchSums& operator+=(const DispatchSums& other) {
    squared_distances += other.squared_distances;
    squared_tokens += other.squared_tokens;
    rows += other.rows;
    buckets += other.buckets;
    hashing_seconds += other.hashing_seconds;
    bytes += other.bytes;
    return *this;
  }
};

struct LayerDispatch {
  int layer = 0;  ///< counts blocks from 0
  DispatchSums sums{};
};
inline DispatchSums total(const std::vector<LayerDispatch>& layers) {
  DispatchSums out;
  for (const LayerDispatch& layer : layers) out += layer.sums;
  return out;
}

/// Where the sums of a plan's layers lie.
class DispatchPlaces {
 public:
  DispatchPlaces() = default;
  DispatchPlaces(const Plan& plan, const ModelSpec& model) {
    for (std::size_t block = 0; block < model.blocks.size(); ++block) {
      if (model.blocks[block].experts == 0) continue;
      const StrategySpec& strategy = plan.layers[block];
      layers_.push_back({static_cast<int>(block), static_cast<double>(strategy.ranks())});
      exchanges_ = exchanges_ || strategy.exchanges_tokens();
    }
  }

  /// Elements of all layers; 0: no layer sends tokens to other ranks, or there are more layers than places.
  [[nodiscard]] std::int64_t count() const {
    const std::int64_t all = size() * (device::dispatch_sums + 1);
    return exchanges_ && all <= device::most_layer_sums ? all : 0;
  }
  /// @param all    of the device; empty: nothing is added up
  /// @param bytes  (layers), of this rank
  /// @param layer  0 is the embedding, as in ModelSpec::layer()
  [[nodiscard]] runtime::DispatchCounts of(View<double> all, std::vector<std::int64_t>& bytes, int layer) const {
    const auto found = std::ranges::find(layers_, layer - 1, &Entry::layer);
    if (all.empty() || found == layers_.end()) return {};
    const auto at = found - layers_.begin();
    return {all.slice(at * device::dispatch_sums, device::dispatch_sums), &bytes[static_cast<std::size_t>(at)]};
  }
  /// The places of the bytes.
  [[nodiscard]] View<double> bytes(View<double> all) const { return all.slice(size() * device::dispatch_sums, size()); }
  /// @param all  of all ranks
  [[nodiscard]] std::vector<LayerDispatch> layers(const std::vector<double>& all) const {
    std::vector<LayerDispatch> out;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      LayerDispatch& one = out.emplace_back(LayerDispatch{layers_[i].layer, {}});
      if (all.empty()) continue;
      const double* sums = all.data() + i * device::dispatch_sums;
      const double* buckets = sums + device::bucket_sums;
      one.sums = {buckets[0],
                  buckets[1],
                  buckets[2],
                  buckets[3],
                  sums[device::hashing_seconds] / layers_[i].ranks,
                  all[layers_.size() * device::dispatch_sums + i]};
    }
    return out;
  }

 private:
  struct Entry {
    int layer = 0;
    double ranks = 1;
  };
  [[nodiscard]] std::int64_t size() const { return std::ssize(layers_); }

  std::vector<Entry> layers_;  ///< with experts
  bool exchanges_ = false;
};

}  // namespace galvatron::train
