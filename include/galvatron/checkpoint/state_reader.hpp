// StateReader: what everything that has the optimizer's state of a whole model can do for a rank, once it can read a
// slice of a tensor. A checkpoint has it in files, StateImages in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <galvatron/checkpoint/slice.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/model/parameter.hpp>
#include <galvatron/runtime/parameter_store.hpp>

namespace galvatron::train {

/// @tparam Source  derives from this, and has
///                   has(layer): whether it has a layer of the model
///                   shape(layer, parameter): of a whole parameter
///                   read(layer, parameter, state, slice, float*): writes a slice row by row; throws Failure
template <class Source>
class StateReader {
 public:
  /// The same as read() in T, float or bfloat16, rounded to the nearest: what was kept in bfloat16 comes back as it
  /// was.
  template <class T>
  void read_as(int layer, ParameterName parameter, StateKind state, const TensorSlice& slice, View<T> out) const {
    if constexpr (std::is_same_v<T, float>) {
      source().read(layer, parameter, state, slice, out.data);
    } else {
      constexpr std::int64_t most = 1 << 18;  // elements at a time
      std::vector<float> values;
      TensorSlice part = slice;
      for (std::int64_t row = 0; row < slice.rows; row += part.rows) {
        part.row = slice.row + row;
        part.rows = std::min(std::max<std::int64_t>(most / slice.columns, 1), slice.rows - row);
        values.resize(static_cast<std::size_t>(part.count()));
        source().read(layer, parameter, state, part, values.data());
        std::transform(values.begin(), values.end(), out.begin() + row * slice.columns, [](float x) { return T(x); });
      }
    }
  }

  /// The master weights, as a source of parameters. This must outlive it.
  [[nodiscard]] runtime::ParameterSource weights() const {
    return [this](int layer, const ParameterTensor& tensor, std::int64_t index, View<float> values) {
      const TensorShape whole = source().shape(layer, tensor.name);
      const std::int64_t row = index / whole.columns;
      const std::int64_t column = index % whole.columns;
      const std::int64_t width = std::min(values.count, whole.columns - column);  // of each row
      const std::int64_t rows = std::clamp<std::int64_t>(whole.rows - row, 0, values.count / width);
      if (rows > 0) source().read(layer, tensor.name, StateKind::master, {row, rows, column, width}, values.data);
      std::fill(values.begin() + rows * width, values.end(), 0.0F);  // padding of the vocabulary
    };
  }

  /// Fills the moments of a store with its part. Its parameters come from weights().
  template <class D>
  void restore_moments(D& device, const runtime::StoreView& store) const {
    for_each_slice(*store.layout, store.range, store.place,
                   [&](const ParameterTensor& tensor, std::int64_t offset, const TensorSlice& slice) {
                     const std::int64_t first = offset - store.range.begin;
                     const auto fill = [&](StateKind kind, const runtime::MomentView& moment) {
                       moment.visit(first, slice.count(), [&](auto values) {
                         device.write(values, [&](auto to) { read_as(store.layer, tensor.name, kind, slice, to); });
                       });
                     };
                     fill(StateKind::first_moment, store.first_moment);
                     fill(StateKind::second_moment, store.second_moment);
                   });
  }

 private:
  friend Source;
  StateReader() = default;
  [[nodiscard]] const Source& source() const { return static_cast<const Source&>(*this); }
};

/// Puts a rank's part of a state in its place. The plan need not be the one under which it was kept.
/// @param stage      a Stage, which has taken its memory
/// @param otherwise  the parameters of layers that the source has not, whose moments are 0, and those that are frozen
template <class Stage, class Source>
void restore(Stage& stage, const StateReader<Source>& state, const runtime::ParameterSource& otherwise = {}) {
  const auto& source = static_cast<const Source&>(state);
  const runtime::ParameterSource weights = source.weights();
  stage.initialise([&](int layer, const ParameterTensor& tensor, std::int64_t index, View<float> values) {
    (source.has(layer) && !tensor.frozen ? weights : otherwise)(layer, tensor, index, values);
  });
  stage.visit([&](const runtime::StoreView& store) {
    if (source.has(store.layer)) source.restore_moments(stage.device(), store);
  });
}

}  // namespace galvatron::train
