#include <galvatron/plan/cost.hpp>

#include <doctest/doctest.h>

#include <string>

using namespace galvatron;

TEST_CASE("more than all of the peak says that the peak is wrong") {
  CHECK(why_impossible_mfu(0).empty());
  CHECK(why_impossible_mfu(1).empty());
  CHECK(why_impossible_mfu(1.01).find("profile again") != std::string::npos);
}
