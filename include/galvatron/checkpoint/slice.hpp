// Slices: where the elements that a rank keeps lie in the whole tensors of the model; and Snapshot: a rank's part of a
// checkpoint, copied between two steps into the bytes of its file.
//
//   store of a rank   | qkv_weight ......... | attention_out_weight ... | ...     a ZeRO shard begins and ends anywhere
//                            [ own ................ )
//   whole tensor      queries  |..own..|......|     rows of a section that this tensor rank holds, and of them
//                     keys     |..own..|......|     those in the shard: rectangles, each a run of the store's memory
//                     values   |..own..|......|
//
// A checkpoint is made of such rectangles, so that any plan finds what it needs in the files of any other.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <galvatron/checkpoint/safetensors.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/sharding.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/model/parameter.hpp>
#include <galvatron/plan/stage_plan.hpp>
#include <galvatron/runtime/layer.hpp>
#include <galvatron/runtime/parameter_store.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::train {

/// Rows [row, row + rows) and columns [column, column + columns) of a whole tensor.
struct TensorSlice {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t column = 0;
  std::int64_t columns = 0;
  [[nodiscard]] constexpr std::int64_t count() const { return rows * columns; }
  friend constexpr bool operator==(const TensorSlice&, const TensorSlice&) = default;
};

struct TensorShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  [[nodiscard]] constexpr std::int64_t count() const { return rows * columns; }
  friend constexpr bool operator==(const TensorShape&, const TensorShape&) = default;
};

/// The shape of the whole tensor. Rows beyond the vocabulary are padding of a rank's memory and belong to no tensor.
constexpr TensorShape whole_shape(const ParameterTensor& tensor) { return {tensor.all_rows, tensor.all_columns}; }

/// Calls f(tensor, offset in the store, slice) for the parts of tensors that elements `range` of a store are. A slice's
/// elements follow each other in the store, row by row.
/// @param place  of the rank whose store it is
template <class F>
void for_each_slice(const ParameterLayout& layout, runtime::Range range, const StorePlace& place, F&& f) {
  for (const ParameterTensor& tensor : layout) {
    const runtime::Range part = runtime::intersection(range, {tensor.offset, tensor.offset + tensor.count()});
    if (part.count() == 0) continue;
    const std::int64_t c = tensor.columns;
    const TensorShape whole = whole_shape(tensor);
    const std::int64_t first = place.expert_rank * tensor.copies * tensor.matrix_rows;
    const std::int64_t end = part.end - tensor.offset;
    std::int64_t count = 0;  // elements of whole rows, or a part of one
    for (std::int64_t at = part.begin - tensor.offset; at < end; at += count) {
      const std::int64_t row = at / c;
      const std::int64_t column = at % c;
      const std::int64_t rows = column == 0 && end - at >= c ? (end - at) / c : 1;
      const std::int64_t columns = std::min(c - column, end - at);
      count = rows * columns;
      const auto give = [&](std::int64_t local, std::int64_t whole_row, std::int64_t n) {
        whole_row += first;
        n = std::min(n, whole.rows - whole_row);
        if (n > 0)
          f(tensor, tensor.offset + local * c + column,
            TensorSlice{whole_row, n, column + tensor.first_column, columns});
      };
      if (tensor.cut != ParameterCut::rows) {
        give(row, row, rows);
        continue;
      }
      const std::int64_t matrix = tensor.rows / tensor.copies;
      std::int64_t copy = row / matrix;
      std::int64_t section = copy * matrix;  // its first local row
      for (; section < row + rows; ++copy)
        for (std::size_t i = 0; i < tensor.sections.size(); ++i) {
          const std::int64_t held = tensor.sections[i];
          const std::int64_t from = std::max(row, section);
          const std::int64_t to = std::min(row + rows, section + held);
          if (from < to) give(from, copy * tensor.matrix_rows + tensor.begins[i] + from - section, to - from);
          section += held;
        }
    }
  }
}

/// What of a parameter a checkpoint keeps, all in fp32.
enum class StateKind : std::uint8_t { master, first_moment, second_moment };
inline constexpr std::array<std::string_view, 3> state_kind_names = {"master", "first_moment", "second_moment"};

/// A slice of one state of a parameter: `3.qkv_weight.master[0:96,0:64]` is rows 0 to 95 and columns 0 to 63.
struct SliceName {
  int layer = 0;  ///< number in the model; the embedding is 0
  ParameterName parameter{};
  StateKind state{};
  TensorSlice slice;
  friend bool operator==(const SliceName&, const SliceName&) = default;
};

inline std::string name_text(const SliceName& name) {
  const TensorSlice& s = name.slice;
  return std::to_string(name.layer) + "." + std::string(name_of(name.parameter)) + "." +
         std::string(state_kind_names[static_cast<std::size_t>(name.state)]) + "[" + std::to_string(s.row) + ":" +
         std::to_string(s.row + s.rows) + "," + std::to_string(s.column) + ":" + std::to_string(s.column + s.columns) +
         "]";
}

/// Nothing unless the text is one that name_text() gives, of a slice that is not empty.
inline std::optional<SliceName> parse_slice_name(const std::string& text) {
  SliceName out;
  std::array<char, 64> parameter{}, state{};
  long long row = 0, row_end = 0, column = 0, column_end = 0;
  const int found = std::sscanf(text.c_str(), "%d.%63[^.].%63[^[][%lld:%lld,%lld:%lld]", &out.layer, parameter.data(),
                                state.data(), &row, &row_end, &column, &column_end);
  const auto named = parameter_named(parameter.data());
  const auto* kind = std::ranges::find(state_kind_names, state.data());
  if (found != 7 || !named || kind == state_kind_names.end() || out.layer < 0 || row < 0 || row_end <= row ||
      column < 0 || column_end <= column)
    return std::nullopt;
  out.parameter = *named;
  out.state = static_cast<StateKind>(kind - state_kind_names.begin());
  out.slice = {row, row_end - row, column, column_end - column};
  return name_text(out) == text ? std::optional(out) : std::nullopt;
}

/// What a rank writes of a store: its own part, and of a tensor that all tensor ranks have whole only the first one's.
/// Calls f(tensor, offset in the store, slice).
template <class F>
void for_each_written_slice(const runtime::StoreView& store, F&& f) {
  if (!store.counted) return;
  for_each_slice(*store.layout, store.own, store.place,
                 [&](const ParameterTensor& tensor, std::int64_t offset, const TensorSlice& slice) {
                   if (tensor.cut != ParameterCut::whole || store.place.tensor_rank == 0) f(tensor, offset, slice);
                 });
}

/// Which part of its state a rank copies: what is its own, so that all ranks together have everything once, or all that
/// it keeps, so that a rank's copy can stand in for another's.
enum class Copied : std::uint8_t { own, everything };

/// What a rank copies of a store. Calls f(tensor, offset in the store, slice).
template <class F>
void for_each_copied_slice(const runtime::StoreView& store, Copied copied, F&& f) {
  if (copied == Copied::own)
    for_each_written_slice(store, f);
  else
    for_each_slice(*store.layout, store.range, store.place, f);
}

/// The entries of a rank's file, in the order of their bytes. They depend on the plan only, not on the step.
/// @param visit  calls its argument for every store of the rank
inline std::vector<SafetensorsEntry> shard_entries(const std::function<void(const runtime::StoreVisitor&)>& visit,
                                                   Copied copied = Copied::own) {
  std::vector<SafetensorsEntry> out;
  std::int64_t end = 0;
  visit([&](const runtime::StoreView& store) {
    for_each_copied_slice(store, copied, [&](const ParameterTensor& tensor, std::int64_t, const TensorSlice& slice) {
      for (const StateKind state : {StateKind::master, StateKind::first_moment, StateKind::second_moment}) {
        const std::int64_t bytes = slice.count() * static_cast<std::int64_t>(sizeof(float));
        out.push_back({name_text({store.layer, tensor.name, state, slice}),
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

/// Calls f(part) for the stores of a layer that are trained; a tied head's table is the embedding's.
template <class F>
void for_each_part(const LayerSpec& layer, F&& f) {
  if (!layer.frozen && (layer.kind == LayerKind::embedding || (layer.kind == LayerKind::head && !layer.tied)))
    f(ParameterPart::table);
  f(ParameterPart::rest);
  if (layer.experts > 0 && layer.kind == LayerKind::block) f(ParameterPart::experts);
}

/// The bytes of the copy that a rank of a plan takes for checkpoints, which is its file: known before anything runs.
/// They are taken beside the rank's arena.
inline Bytes snapshot_bytes(const StagePlan& stage, int rank) {
  const auto visit = [&](const runtime::StoreVisitor& visitor) {
    const int local = rank - stage.first_rank;
    for (const ChunkPlan& chunk : stage.chunks)
      for (const ChunkPlan::Entry& entry : chunk.layers)
        for_each_part(entry.layer, [&](ParameterPart part) {
          const StoreRanks ranks(entry.spec, part);
          const ParameterLayout layout =
              parameter_layout(forward_of(entry.layer), part, entry.spec, stage.ratios, local);
          runtime::StoreView view;
          view.layer = entry.number;
          view.layout = &layout;
          view.own = ranks.cut(layout.elements, stage.ratios.states, local).range(ranks.shard(local));
          view.place = ranks.place(local);
          visitor(view);
        });
  };
  const auto entries = shard_entries(visit);
  return {static_cast<std::int64_t>(safetensors_header(entries).size()) + (entries.empty() ? 0 : entries.back().end)};
}

/// A rank's file in memory: its header once and for all, its data as they were at the last take().
class Snapshot {
 public:
  /// @param stage  calls a visitor for every store of the rank
  template <class Stage>
  explicit Snapshot(Stage& stage, Copied copied = Copied::own) : copied_(copied) {
    const auto entries = shard_entries([&](const runtime::StoreVisitor& visitor) { stage.visit(visitor); }, copied);
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
      for_each_copied_slice(store, copied_, [&](const ParameterTensor&, std::int64_t offset, const TensorSlice& slice) {
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
  /// The copy without its header.
  [[nodiscard]] const std::byte* data() const { return image_.data + header_; }

 private:
  Copied copied_;
  std::int64_t header_ = 0;
  std::optional<device::Mapping> mapping_;
  View<std::byte> image_;
};

}  // namespace galvatron::train
