// Pieces that overlap cover a slice without taking an element twice.
#include <galvatron/checkpoint/state_images.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <vector>

using namespace galvatron;
using namespace galvatron::train;

namespace {

struct NumberedPiece {
  TensorSlice slice;
  int number = 0;
};

TensorSlice random_slice(std::mt19937& random, std::int64_t rows, std::int64_t columns) {
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  const std::int64_t row = below(rows);
  const std::int64_t column = below(columns);
  return {row, 1 + below(rows - row), column, 1 + below(columns - column)};
}

}  // namespace

TEST_CASE("a slice is covered by the first pieces that have its elements") {
  constexpr std::int64_t rows = 9, columns = 7;
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::vector<NumberedPiece> pieces(random() % 6);
    for (NumberedPiece& piece : pieces)
      piece = {random_slice(random, rows, columns), static_cast<int>(&piece - pieces.data())};
    const TensorSlice wanted = random_slice(random, rows, columns);
    std::vector<int> expected(rows * columns, -1), found(rows * columns, -1);
    std::int64_t missing = 0;
    for (std::int64_t r = wanted.row; r < wanted.row + wanted.rows; ++r)
      for (std::int64_t c = wanted.column; c < wanted.column + wanted.columns; ++c) {
        for (const NumberedPiece& piece : pieces)
          if (expected[static_cast<std::size_t>(r * columns + c)] < 0 &&
              common_part(piece.slice, {r, 1, c, 1}).count() == 1)
            expected[static_cast<std::size_t>(r * columns + c)] = piece.number;
        missing += expected[static_cast<std::size_t>(r * columns + c)] < 0 ? 1 : 0;
      }
    const std::int64_t left = cover(wanted, pieces, [&](const NumberedPiece& piece, const TensorSlice& part) {
      for (std::int64_t r = part.row; r < part.row + part.rows; ++r)
        for (std::int64_t c = part.column; c < part.column + part.columns; ++c) {
          int& at = found[static_cast<std::size_t>(r * columns + c)];
          CHECK(at == -1);
          at = piece.number;
        }
    });
    CHECK(left == missing);
    CHECK(found == expected);
  }
}
