#include <galvatron/strategy/space.hpp>

#include <vector>

#include <doctest/doctest.h>

namespace galvatron {
namespace {

TEST_CASE("divisors ascend") {
  CHECK(divisors(1) == std::vector<int>{1});
  CHECK(divisors(12) == std::vector<int>{1, 2, 3, 4, 6, 12});
  CHECK(divisors(36) == std::vector<int>{1, 2, 3, 4, 6, 9, 12, 18, 36});
  CHECK(divisors(12, true) == std::vector<int>{1, 2, 4});
  CHECK(divisors(2147483647).size() == 2);
}

}  // namespace
}  // namespace galvatron
