#include <galvatron/core/quantity.hpp>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

namespace galvatron {
namespace {

TEST_CASE("sizes are read in binary and decimal units") {
  const std::vector<std::pair<std::string, std::int64_t>> table{
      {"0", 0},
      {"4096", 4096},
      {"10B", 10},
      {"16GiB", std::int64_t{16} << 30},
      {"36GB", 36'000'000'000},
      {"512MiB", std::int64_t{512} << 20},
      {"1.5GiB", std::int64_t{3} << 29},
      {"2 KiB", 2048},
      {"3kB", 3000},
      {"1gib", std::int64_t{1} << 30},
      {"0.1TB", 100'000'000'000},
      {"0.0001KiB", 0},
      {"1.999999999999999999999999999KiB", 2047},
      {"7PiB", std::int64_t{7} << 50},
      {"9223372036854775807", std::numeric_limits<std::int64_t>::max()},
  };
  for (const auto& [text, count] : table) {
    INFO(text);
    const auto bytes = parse_bytes(text);
    REQUIRE(bytes.has_value());
    CHECK(bytes->count == count);
  }
}

TEST_CASE("what is not a size is refused with the way out") {
  for (const std::string& text : std::vector<std::string>{"",        " ",
                                                          "GiB",     "-1GiB",
                                                          "+1GiB",   "1.GiB",
                                                          ".5GiB",   "1.5",
                                                          "1.5B",    "16G",
                                                          "16GiBs",  "16 GiB ",
                                                          "1e9",     "0x10",
                                                          "16  GiB", "9223372036854775808",
                                                          "9000PiB", "99999999999999999999999999999999999999999GiB",
                                                          "nan",     "inf",
                                                          "1,5GiB",  "16iB",
                                                          "16XB",    std::string(10000, '9')}) {
    INFO(text.substr(0, 50));
    const auto bytes = parse_bytes(text);
    REQUIRE_FALSE(bytes.has_value());
    CHECK(bytes.error().kind == ErrorKind::usage);
    CHECK(bytes.error().message.find("16GiB") != std::string::npos);
    CHECK(bytes.error().message.size() < 250);
  }
  CHECK(parse_bytes("80G").error().message.find("80GiB or 80GB") != std::string::npos);
  CHECK(parse_bytes("1.5 t").error().message.find("1.5TiB or 1.5TB") != std::string::npos);
  CHECK(parse_bytes("64k").error().message.find("64KiB or 64kB") != std::string::npos);
  CHECK(parse_bytes("80Gi").error().message.find("80GiB;") != std::string::npos);
}

TEST_CASE("plain numbers of bytes survive the round trip") {
  const std::uint32_t seed = 7;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 1000; ++i) {
    const auto count = static_cast<std::int64_t>(random() >> (1 + random() % 60));
    CHECK(parse_bytes(std::to_string(count)).value().count == count);
  }
}

TEST_CASE("sizes are printed with three digits") {
  CHECK(format_bytes({0}) == "0 B");
  CHECK(format_bytes({1023}) == "1023 B");
  CHECK(format_bytes({1024}) == "1.00 KiB");
  CHECK(format_bytes({3LL << 29}) == "1.50 GiB");
  CHECK(format_bytes({(1LL << 30) - 1}) == "1.00 GiB");
  CHECK(format_bytes({-(3LL << 29)}) == "-1.50 GiB");
  CHECK(format_bytes({std::numeric_limits<std::int64_t>::max()}) == "8.00 EiB");
  CHECK(format_bytes({std::numeric_limits<std::int64_t>::min()}) == "-8.00 EiB");
}

TEST_CASE("durations are printed for people") {
  CHECK(format_seconds({0}) == "0 s");
  CHECK(format_seconds({1.5e-9}) == "1.50 ns");
  CHECK(format_seconds({12.34e-6}) == "12.3 us");
  CHECK(format_seconds({4.56e-3}) == "4.56 ms");
  CHECK(format_seconds({0.9999}) == "1.00 s");
  CHECK(format_seconds({7.891}) == "7.89 s");
  CHECK(format_seconds({200}) == "3 min 20 s");
  CHECK(format_seconds({3599.7}) == "1 h 00 min");
  CHECK(format_seconds({7500}) == "2 h 05 min");
  CHECK(format_seconds({4 * 86400.0 + 3 * 3600}) == "4 d 03 h");
  CHECK(format_seconds({-2.5}) == "-2.50 s");
  CHECK(format_seconds({std::numeric_limits<double>::infinity()}) == "forever");
  CHECK(format_seconds({std::numeric_limits<double>::quiet_NaN()}) == "unknown");
  CHECK(format_seconds({1e300}).find(" d") != std::string::npos);
}

TEST_CASE("counts are printed with decimal prefixes") {
  CHECK(format_count(0) == "0");
  CHECK(format_count(950) == "950");
  CHECK(format_count(999.9) == "1.00 k");
  CHECK(format_count(12345) == "12.3 k");
  CHECK(format_count(124'439'808) == "124 M");
  CHECK(format_count(6'738'415'616) == "6.74 G");
  CHECK(format_count(-2e12) == "-2.00 T");
  CHECK(format_count(1e30).find(" E") != std::string::npos);
}

}  // namespace
}  // namespace galvatron
