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
  for (const ParameterTensor& tensor : *store.layout)
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      const std::int64_t place = tensor.offset + i;
      if (place < store.range.begin || place >= store.range.end) continue;
      std::vector<double>& whole = whole_of(tensor.name);
      const std::int64_t first = runtime::whole_run(tensor, store.place, i / tensor.columns).index;
      const auto index = static_cast<std::size_t>(first + i % tensor.columns);
      if (whole.size() <= index) whole.resize(index + 1, missing);
      whole[index] = values[place - store.range.begin];
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
