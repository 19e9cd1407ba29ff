// Slices: where the elements that a rank keeps lie in the whole tensors of the model.
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
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <galvatron/runtime/parameter_store.hpp>
#include <galvatron/strategy/parameter_names.hpp>
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

/// The shape of the whole tensor of which `tensor` is the part of one of `degree` tensor ranks. Rows beyond the
/// vocabulary are padding of a rank's memory and belong to no tensor.
constexpr TensorShape whole_shape(const ParameterTensor& tensor, int degree, std::int64_t vocabulary) {
  if (tensor.name == ParameterName::table || tensor.name == ParameterName::logits_bias)
    return {vocabulary, tensor.columns};
  return {tensor.cut == ParameterCut::rows ? tensor.rows * degree : tensor.rows,
          tensor.cut == ParameterCut::columns ? tensor.columns * degree : tensor.columns};
}

namespace detail {

/// Calls f(offset in the store, slice) for local rows [first, last) and columns [begin, end) of a tensor.
template <class F>
void place_block(const ParameterTensor& tensor, TensorShape whole, int rank, int degree, std::int64_t first,
                 std::int64_t last, std::int64_t begin, std::int64_t end, F&& f) {
  const std::int64_t shift = tensor.cut == ParameterCut::columns ? rank * tensor.columns : 0;
  const auto give = [&](std::int64_t local, std::int64_t row, std::int64_t rows) {
    rows = std::min(rows, whole.rows - row);
    if (rows > 0) f(tensor.offset + local * tensor.columns + begin, TensorSlice{row, rows, begin + shift, end - begin});
  };
  if (tensor.cut != ParameterCut::rows) return give(first, first, last - first);
  std::int64_t section = 0;  // its first local row
  for (const std::int64_t rows : tensor.sections) {
    const std::int64_t from = std::max(first, section);
    const std::int64_t to = std::min(last, section + rows);
    if (from < to) give(from, section * degree + rank * rows + from - section, to - from);
    section += rows;
  }
}

}  // namespace detail

/// Calls f(tensor, offset in the store, slice) for the parts of tensors that elements `range` of a store are. A slice's
/// elements follow each other in the store, row by row.
/// @param rank, degree  the tensor rank whose store it is
template <class F>
void for_each_slice(const ParameterLayout& layout, runtime::Range range, int rank, int degree, std::int64_t vocabulary,
                    F&& f) {
  for (const ParameterTensor& tensor : layout) {
    const runtime::Range part = runtime::intersection(range, {tensor.offset, tensor.offset + tensor.count()});
    if (part.count() == 0) continue;
    const std::int64_t c = tensor.columns;
    const std::int64_t begin = part.begin - tensor.offset;
    const std::int64_t end = part.end - tensor.offset;
    const TensorShape whole = whole_shape(tensor, degree, vocabulary);
    const auto block = [&](std::int64_t first, std::int64_t last, std::int64_t from, std::int64_t to) {
      if (first < last && from < to)
        detail::place_block(tensor, whole, rank, degree, first, last, from, to,
                            [&](std::int64_t offset, const TensorSlice& slice) { f(tensor, offset, slice); });
    };
    if (begin / c == (end - 1) / c && end - begin < c) {  // within a row
      block(begin / c, begin / c + 1, begin % c, begin % c + end - begin);
      continue;
    }
    if (begin % c != 0) block(begin / c, begin / c + 1, begin % c, c);
    block((begin + c - 1) / c, end / c, 0, c);
    if (end % c != 0) block(end / c, end / c + 1, 0, end % c);
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

inline std::string text_of(const SliceName& name) {
  const TensorSlice& s = name.slice;
  return std::to_string(name.layer) + "." + std::string(name_of(name.parameter)) + "." +
         std::string(state_kind_names[static_cast<std::size_t>(name.state)]) + "[" + std::to_string(s.row) + ":" +
         std::to_string(s.row + s.rows) + "," + std::to_string(s.column) + ":" + std::to_string(s.column + s.columns) +
         "]";
}

/// Nothing unless the text is one that text_of() gives, of a slice that is not empty.
inline std::optional<SliceName> parse_slice_name(std::string_view text) {
  SliceName out;
  const auto number = [&](auto& value, char after) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end == text.data() + text.size() || *end != after || value < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
    return true;
  };
  const auto word = [&](char after) {
    const std::size_t at = text.find(after);
    const std::string_view found = text.substr(0, at);
    text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
    return found;
  };
  if (!number(out.layer, '.')) return std::nullopt;
  const auto parameter = parameter_named(word('.'));
  const auto* state = std::ranges::find(state_kind_names, word('['));
  std::int64_t row_end = 0;
  std::int64_t column_end = 0;
  if (!parameter || state == state_kind_names.end() || !number(out.slice.row, ':') || !number(row_end, ',') ||
      !number(out.slice.column, ':') || !number(column_end, ']') || !text.empty())
    return std::nullopt;
  out.parameter = *parameter;
  out.state = static_cast<StateKind>(state - state_kind_names.begin());
  out.slice.rows = row_end - out.slice.row;
  out.slice.columns = column_end - out.slice.column;
  if (out.slice.rows <= 0 || out.slice.columns <= 0) return std::nullopt;
  return out;
}

}  // namespace galvatron::train
