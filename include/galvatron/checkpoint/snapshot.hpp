// Snapshot: a rank's part of a checkpoint, copied between two steps into the bytes of its file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <galvatron/checkpoint/safetensors.hpp>
#include <galvatron/checkpoint/slice.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/sharding.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/plan/stage_plan.hpp>
#include <galvatron/runtime/layer.hpp>
#include <galvatron/runtime/store_view.hpp>

namespace galvatron::train {

/// What a rank writes of a store: its own part, and of a tensor that all tensor ranks have whole only the first one's.
/// Calls f(tensor, offset in the store, slice).
template <class F>
void for_each_written_slice(const runtime::StoreView& store, std::int64_t vocabulary, F&& f) {
  if (!store.counted) return;
  for_each_slice(*store.layout, store.own, store.tensor_rank, store.tensor_degree, vocabulary,
                 [&](const ParameterTensor& tensor, std::int64_t offset, const TensorSlice& slice) {
                   if (tensor.cut != ParameterCut::whole || store.tensor_rank == 0) f(tensor, offset, slice);
                 });
}

/// The entries of a rank's file, in the order of their bytes. They depend on the plan only, not on the step.
/// @param visit  calls its argument for every store of the rank
inline std::vector<SafetensorsEntry> shard_entries(const std::function<void(const runtime::StoreVisitor&)>& visit,
                                                   std::int64_t vocabulary) {
  std::vector<SafetensorsEntry> out;
  std::int64_t end = 0;
  visit([&](const runtime::StoreView& store) {
    for_each_written_slice(
        store, vocabulary, [&](const ParameterTensor& tensor, std::int64_t, const TensorSlice& slice) {
          for (const StateKind state : {StateKind::master, StateKind::first_moment, StateKind::second_moment}) {
            const std::int64_t bytes = slice.count() * static_cast<std::int64_t>(sizeof(float));
            out.push_back({text_of({store.layer, tensor.name, state, slice}),
                           "F32",
                           {slice.rows, slice.columns},
                           end,
                           end + bytes});
            end += bytes;
          }
        });
  });
  return out;
}

/// The bytes of the copy that a rank of a plan takes for checkpoints, which is its file: known before anything runs.
/// They are taken beside the rank's arena.
inline Bytes snapshot_bytes(const StagePlan& stage, const ModelSpec& model, int rank) {
  const auto visit = [&](const runtime::StoreVisitor& visitor) {
    const auto store = [&](const ChunkPlan::Entry& entry, ParameterPart part) {
      const int t = entry.spec.tensor;
      const int copies = entry.spec.shards();
      const ParameterLayout layout = parameter_layout(entry.layer, part, t, copies);
      const int local = rank - stage.first_rank;
      const Sharding::Range own = Sharding::even(layout.elements, copies).range(entry.spec.shard(local));
      runtime::StoreView view;
      view.layer = entry.number;
      view.layout = &layout;
      view.own = {own.begin, own.end};
      view.tensor_rank = entry.spec.tensor_rank(local);
      view.tensor_degree = t;
      visitor(view);
    };
    for (const ChunkPlan& chunk : stage.chunks)
      for (const ChunkPlan::Entry& entry : chunk.layers) {
        const bool table =
            entry.layer.kind == LayerKind::embedding || (entry.layer.kind == LayerKind::head && !entry.layer.tied);
        if (table) store(entry, ParameterPart::table);
        store(entry, ParameterPart::rest);
      }
  };
  const auto entries = shard_entries(visit, model.vocabulary());
  return {static_cast<std::int64_t>(safetensors_header(entries).size()) + (entries.empty() ? 0 : entries.back().end)};
}

/// A rank's file in memory: its header once and for all, its data as they were at the last take().
class Snapshot {
 public:
  /// @param stage  calls a visitor for every store of the rank
  template <class Stage>
  Snapshot(Stage& stage, std::int64_t vocabulary) : vocabulary_(vocabulary) {
    const auto entries = shard_entries([&](const runtime::StoreVisitor& visitor) { stage.visit(visitor); }, vocabulary);
    const std::string header = safetensors_header(entries);
    header_ = static_cast<std::int64_t>(header.size());
    const std::int64_t size = header_ + (entries.empty() ? 0 : entries.back().end);
    mapping_.emplace(Bytes{aligned_bytes(size)}, false);
    image_ = mapping_->region("checkpoint copy", 0, mapping_->size()).template take<std::byte>(size);
    std::memcpy(image_.data, header.data(), header.size());
  }

  /// Copies the state as it is now, with the device that owns it. Another thread may compute beside it, and change
  /// neither masters nor moments.
  template <class D, class Stage>
  void take(D& device, Stage& stage) {
    std::int64_t at = header_;
    const auto copy = [&]<class T>(View<T> values) {
      auto* to = reinterpret_cast<float*>(image_.data + at);
      if constexpr (std::is_same_v<T, bfloat16>) {
        // Into the upper half of their place, from where every one widens to what no other needs any more.
        auto* half = reinterpret_cast<bfloat16*>(to) + values.count;
        device.fetch(View<const T>(values), half);
        for (std::int64_t i = 0; i < values.count; ++i) {
          const float wide = half[i];
          std::memcpy(to + i, &wide, sizeof wide);
        }
      } else {
        device.fetch(View<const float>(values), to);
      }
      at += values.count * static_cast<std::int64_t>(sizeof(float));
    };
    stage.visit([&](const runtime::StoreView& store) {
      for_each_written_slice(store, vocabulary_,
                             [&](const ParameterTensor&, std::int64_t offset, const TensorSlice& slice) {
                               const std::int64_t first = offset - store.range.begin;
                               copy(store.master.slice(first, slice.count()));
                               store.first_moment.visit(first, slice.count(), copy);
                               store.second_moment.visit(first, slice.count(), copy);
                             });
    });
  }

  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {image_.data, static_cast<std::size_t>(image_.count)};
  }

 private:
  std::int64_t vocabulary_;
  std::int64_t header_ = 0;
  std::optional<device::Mapping> mapping_;
  View<std::byte> image_;
};

}  // namespace galvatron::train
