#include <galvatron/core/quantity.hpp>

#include <doctest/doctest.h>

using namespace galvatron;

TEST_CASE("a measurement is slower or faster than its prediction, never a signed number") {
  CHECK(against_prediction({0.0906}, {0.147}) == "62 % slower than predicted");
  CHECK(against_prediction({0.1}, {0.103}) == "3.0 % slower than predicted");
  CHECK(against_prediction({0.1}, {0.08}) == "20 % faster than predicted");
  CHECK(against_prediction({0.1}, {0.0991}) == "0.9 % faster than predicted");
  CHECK(against_prediction({0.1}, {0.10004}) == "as predicted");
  CHECK(against_prediction({0.1}, {0.29}) == "190 % slower than predicted");
  CHECK(against_prediction({0.1}, {0.34}) == "3.4 times as long as predicted");
  CHECK(against_prediction({0.1}, {3.4}) == "34 times as long as predicted");
  CHECK(against_prediction({0}, {0.1}).empty());
  CHECK(against_prediction({0.1}, {0}).empty());
}
