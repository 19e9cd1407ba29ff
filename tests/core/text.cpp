#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <galvatron/core/text.hpp>

using galvatron::text_of;

TEST_CASE("messages are their texts and whole numbers, one behind the other") {
  const std::string owned = "rank ";
  CHECK(text_of() == "");
  CHECK(text_of(owned, 3, " of ", std::string_view("4 ranks"), ' ', true) == "rank 3 of 4 ranks321");
  CHECK(text_of(std::numeric_limits<std::int64_t>::min(), " to ", std::numeric_limits<std::uint64_t>::max()) ==
        "-9223372036854775808 to 18446744073709551615");
  CHECK(text_of(std::uint8_t{200}, std::int16_t{-7}) == "200-7");
  CHECK_THROWS_WITH_AS(galvatron::refuse("a run needs at least ", 1, " rank"), "a run needs at least 1 rank",
                       galvatron::Failure);
}
