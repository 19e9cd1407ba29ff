// Whole tensors from the parts that ranks hold, and how far two differ.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/core/view.hpp>
#include <galvatron/runtime/parameter_store.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::test {

/// Writes what a rank has of a store, its masters or its gradients, at the places in the whole tensors.
/// @param values  of store.range
/// @param whole_of  the whole tensor (a std::vector<double>&) of a ParameterName; it grows as needed
/// @param missing  the value of elements that no rank has written
void give_store(const runtime::StoreView& store, View<const float> values, auto whole_of, double missing = 0) {
  for (const ParameterTensor& tensor : *store.layout) {
    const std::int64_t end = std::min(tensor.offset + tensor.count(), store.range.end);
    std::int64_t place = std::max(tensor.offset, store.range.begin);
    if (place >= end) continue;
    std::vector<double>& whole = whole_of(tensor.name);
    while (place < end) {  // by runs of rows that lie together in both
      const std::int64_t row = (place - tensor.offset) / tensor.columns;
      const std::int64_t column = (place - tensor.offset) % tensor.columns;
      const runtime::WholeRun run = runtime::whole_run(tensor, store.place, row);
      const std::int64_t count = std::min(run.rows * tensor.columns - column, end - place);
      const std::int64_t first = run.index + column;
      if (std::ssize(whole) < first + count) whole.resize(static_cast<std::size_t>(first + count), missing);
      std::copy_n(values.data + (place - store.range.begin), count, whole.data() + first);
      place += count;
    }
  }
}

/// |x - y| / |y| of a tensor, in L2 norms; 0 for equal tensors, infinite where an element is not a number. What one of
/// the two does not have is 0: padding, which the other has.
inline double relative_difference(const std::vector<double>& x, const std::vector<double>& y) {
  double square = 0;
  double sum = 0;
  for (std::size_t i = 0; i < std::max(x.size(), y.size()); ++i) {
    const double a = i < x.size() ? x[i] : 0;
    const double b = i < y.size() ? y[i] : 0;
    square += (a - b) * (a - b);
    sum += b * b;
  }
  if (square == 0) return 0;
  return std::isnan(square) ? INFINITY : std::sqrt(square / sum);
}

}  // namespace galvatron::test
