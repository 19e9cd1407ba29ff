// StateImages: the optimizer's state of a model in the memory of this process, as pieces that may overlap.
//
// Copies of what data ranks keep alike overlap, and so may those of ranks of two plans. A slice is put together of as
// few as need be, in the order in which they were added:
//
//   wanted        | a a a a a a a a |          rank 0's copy first, of rank 2's only what is missing
//   rank 0    | 0 0 0 0 |
//   rank 2        | 2 2 2 2 2 2 2 2 |
//   taken         | 0 0 | 2 2 2 2 2 2 |
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/checkpoint/safetensors.hpp>
#include <galvatron/checkpoint/slice.hpp>
#include <galvatron/checkpoint/state_reader.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::train {

/// What two slices of a tensor have in common; without elements where they have nothing.
constexpr TensorSlice common_part(const TensorSlice& a, const TensorSlice& b) {
  const std::int64_t row = std::max(a.row, b.row);
  const std::int64_t column = std::max(a.column, b.column);
  return {row, std::max<std::int64_t>(std::min(a.row + a.rows, b.row + b.rows) - row, 0), column,
          std::max<std::int64_t>(std::min(a.column + a.columns, b.column + b.columns) - column, 0)};
}

/// Adds to `out` what is left of a slice without `taken`, a part of it: above, below, left and right.
inline void add_rest(const TensorSlice& of, const TensorSlice& taken, std::vector<TensorSlice>& out) {
  const auto add = [&](const TensorSlice& part) {
    if (part.count() > 0) out.push_back(part);
  };
  const std::int64_t below = taken.row + taken.rows;
  const std::int64_t right = taken.column + taken.columns;
  add({of.row, taken.row - of.row, of.column, of.columns});
  add({below, of.row + of.rows - below, of.column, of.columns});
  add({taken.row, taken.rows, of.column, taken.column - of.column});
  add({taken.row, taken.rows, right, of.column + of.columns - right});
}

/// Covers a slice with pieces, none of its elements twice: calls f(piece, part) for what is taken of a piece. Returns
/// how many elements no piece has.
/// @param pieces  have a `slice`; the first ones are preferred
template <class Pieces, class F>
std::int64_t cover(const TensorSlice& wanted, const Pieces& pieces, F&& f) {
  std::vector<TensorSlice> missing{wanted};
  std::vector<TensorSlice> left;
  for (const auto& piece : pieces) {
    if (missing.empty()) break;
    left.clear();
    for (const TensorSlice& slice : missing) {
      const TensorSlice part = common_part(slice, piece.slice);
      if (part.count() == 0) {
        left.push_back(slice);
        continue;
      }
      f(piece, part);
      add_rest(slice, part, left);
    }
    missing.swap(left);
  }
  std::int64_t count = 0;
  for (const TensorSlice& slice : missing) count += slice.count();
  return count;
}

/// Which state of which parameter; the layer's number is that in the model.
using StateKey = std::tuple<int, ParameterName, StateKind>;

class StateImages : public StateReader<StateImages> {
 public:
  /// Of a model, a ModelSpec or a MultiTaskModel, without anything of its state yet.
  template <class Model>
  explicit StateImages(const Model& model) {
    for_each_parameter(model, [&](int layer, const ParameterTensor& tensor) {
      for (const StateKind state : {StateKind::master, StateKind::first_moment, StateKind::second_moment})
        tensors_[{layer, tensor.name, state}].shape = whole_shape(tensor);
    });
  }

  /// Adds a piece: the rows of a slice, one after the other. `data` outlives this.
  void add(const StateKey& key, const TensorSlice& slice, const std::byte* data) {
    tensors_.at(key).pieces.push_back({slice, data});
  }
  /// Adds all of a rank's copy (Snapshot::bytes()), which outlives this. Errors (usage): it is damaged, or of another
  /// model. @param name  for messages
  Result<void> add(std::span<const std::byte> copy, const std::string& name) {
    const auto parsed = parse_safetensors(copy, name);
    if (!parsed) return tl::unexpected<Error>(parsed.error());
    for (const SafetensorsEntry& entry : parsed->entries) {
      const auto of = parse_slice_name(entry.name);
      const auto found = of ? tensors_.find({of->layer, of->parameter, of->state}) : tensors_.end();
      if (found == tensors_.end() || entry.type != "F32" || entry.count() != of->slice.count())
        return usage_error(name + ": \"" + galvatron::detail::one_line(entry.name, 80) +
                           "\" is not a part of a parameter of this model");
      found->second.pieces.push_back({of->slice, copy.data() + parsed->data_begin + entry.begin});
    }
    return {};
  }

  /// Whether all of the state is here.
  [[nodiscard]] bool complete() const {
    return std::ranges::all_of(tensors_, [](const auto& entry) {
      const Tensor& tensor = entry.second;
      return cover({0, tensor.shape.rows, 0, tensor.shape.columns}, tensor.pieces, [](const auto&, const auto&) {}) ==
             0;
    });
  }

  [[nodiscard]] bool has(int) const { return true; }
  [[nodiscard]] TensorShape shape(int layer, ParameterName parameter) const {
    return tensors_.at({layer, parameter, StateKind::master}).shape;
  }
  /// Throws Failure (internal) when a part of the slice is not here.
  void read(int layer, ParameterName parameter, StateKind state, const TensorSlice& slice, float* out) const {
    const std::int64_t missing =
        cover(slice, tensors_.at({layer, parameter, state}).pieces, [&](const Piece& piece, const TensorSlice& part) {
          for (std::int64_t row = part.row; row < part.row + part.rows; ++row)
            std::memcpy(
                out + (row - slice.row) * slice.columns + part.column - slice.column,
                piece.data + ((row - piece.slice.row) * piece.slice.columns + part.column - piece.slice.column) * 4,
                static_cast<std::size_t>(part.columns) * 4);
        });
    if (missing > 0)
      throw Failure(ErrorKind::internal, std::to_string(missing) + " elements of " +
                                             name_text({layer, parameter, state, slice}) + " are on no rank");
  }

 private:
  struct Piece {
    TensorSlice slice;
    const std::byte* data = nullptr;
  };
  struct Tensor {
    TensorShape shape;
    std::vector<Piece> pieces;
  };
  std::map<StateKey, Tensor> tensors_;
};

}  // namespace galvatron::train
