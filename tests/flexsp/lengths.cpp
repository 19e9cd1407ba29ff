// Lengths of documents, coefficients, and homogeneous plans.
#include <galvatron/flexsp/lengths.hpp>

#include <galvatron/flexsp/baselines.hpp>
#include <galvatron/flexsp/coefficients.hpp>
#include <galvatron/flexsp/json.hpp>

#include "random_problem.hpp"

namespace galvatron::flexsp {
namespace {

TEST_CASE("lengths are read line by line, and what is wrong is told with its line") {
  const auto read = lengths_from_text("12\r\n2147483648\n3", "file");
  REQUIRE(read.has_value());
  CHECK(*read == std::vector<std::int64_t>{12, 2147483648, 3});
  for (const auto& [text, words] : {std::pair("1\n0\n", "line 2: \"0\""),
                                    {"1\n2147483649\n", "line 2: \"2147483649\""},
                                    {"99999999999999999999", "line 1"},
                                    {"-4", "line 1: \"-4\""},
                                    {"1\n\n2", "line 2: nothing"},
                                    {"1 2", "\"1 2\""},
                                    {"1.5", "\"1.5\""},
                                    {"", "it is empty"}}) {
    CAPTURE(text);
    const auto bad = lengths_from_text(text, "file");
    REQUIRE_FALSE(bad.has_value());
    CHECK(bad.error().kind == ErrorKind::usage);
    CHECK(bad.error().message.find(words) != std::string::npos);
    CHECK(bad.error().message.find('\n') == std::string::npos);
  }
}

TEST_CASE("lengths are padded as the release does") {
  const std::vector<std::int64_t> lengths{1, 128, 129, 63'872, 63'873, 500'000};
  CHECK(released_lengths(lengths, 64'000) == std::vector<std::int64_t>{128, 128, 256, 63'872});
}

TEST_CASE("drawn lengths have the body of Wikipedia's and the tail that is asked for") {
  std::mt19937_64 random(1);
  const TailedLengths lengths{.tail = 0.016, .exponent = 1.77};
  std::vector<std::int64_t> all;
  for (int i = 0; i < 100'000; ++i) all.push_back(lengths.draw(random));
  std::ranges::sort(all);
  CHECK(all.front() >= 1);
  const auto percentile = [&](double p) { return static_cast<double>(all[static_cast<std::size_t>(p * 1e5)]); };
  CHECK(percentile(0.25) == doctest::Approx(146).epsilon(0.25));
  CHECK(percentile(0.5) == doctest::Approx(347).epsilon(0.15));
  CHECK(percentile(0.9) == doctest::Approx(2112).epsilon(0.15));
  CHECK(percentile(0.999) == doctest::Approx(37'367).epsilon(0.25));
}

TEST_CASE("options of the released coefficients are the published formula") {
  const auto coefficients = released_coefficients("gpt-7b", 64, 192'000);
  REQUIRE(coefficients.has_value());
  CHECK(coefficients->device_capacity == 6449);
  CHECK(released_coefficients("gpt-30b", 64, 384'000)->device_capacity == 6538);
  CHECK(released_coefficients("gpt-7b", 16, 64'000)->device_capacity == 8967);
  CHECK_FALSE(released_coefficients("gpt-8b", 64, 192'000).has_value());
  const Problem problem = problem_of(*coefficients);
  REQUIRE(problem.options.size() == 7);
  const GroupOption& sixteen = problem.options[4];
  CHECK(sixteen.degree == 16);
  CHECK(sixteen.capacity == 16 * 6449);
  const double s = 4096;
  // 16 L h s / 2^20 = 16 * 32 * 4096 * s / 2^20 = 2 s MB
  const double messages = 2 * (2 * s / (16 * 10.33));
  CHECK(group_seconds(sixteen, {4096, 4096}) * 1e3 ==
        doctest::Approx(629.3563 + 2 * (5.128e-6 * s * s + .1839576 * s) / 16 + messages).epsilon(1e-12));
  const Problem any = problem_of(*coefficients, 8, true);
  CHECK(any.options.size() > problem.options.size());
  for (const GroupOption& option : any.options) CHECK((option.degree <= 8 || option.degree % 8 == 0));
}

TEST_CASE("coefficients are read strictly") {
  nlohmann::json problem{{"devices", 8},
                         {"alpha1", 5e-6},
                         {"alpha2", 0.18},
                         {"beta1", 629.0},
                         {"layers", 32},
                         {"hidden", 4096},
                         {"memory_gb", 36},
                         {"token_mb", 4.480441895},
                         {"states_mb", 13576.53125},
                         {"alltoall_gb_per_s", {{"2", 119.5}, {"4", 104.0}, {"8", 96.5}}}};
  const auto read = coefficients_from_json(problem, "file");
  REQUIRE(read.has_value());
  CHECK(read->device_capacity == 5197);
  CHECK(read->all_to_all.size() == 3);
  problem["device_token_capacity"] = 100;
  CHECK(coefficients_from_json(problem, "file")->device_capacity == 100);
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json bad = problem;
    bad[key] = value;
    const auto result = coefficients_from_json(bad, "file");
    REQUIRE_FALSE(result.has_value());
    CHECK(result.error().kind == ErrorKind::usage);
    CHECK(result.error().message.find(key) != std::string::npos);
  };
  refused("devices", 0);
  refused("alpha1", -1);
  refused("layers", "many");
  refused("alltoall_gb_per_s", 3);
  refused("alltoall_gb_per_s", {{"two", 1.0}});
  refused("alltoall_gb_per_s", {{"1", 1.0}});
  refused("alltoall_gb_per_s", {{"2", 0.0}});
  refused("alltoall_gb_per_s", {{"2", 1.0}, {"02", 2.0}});
}

TEST_CASE("one degree for all: best-fit decreasing, empty groups get a document") {
  Problem problem{.devices = 4, .node_devices = 4, .options = {}};
  for (const int d : {1, 2, 4})
    problem.options.push_back({.degree = d, .capacity = 100 * d, .fixed = 10, .seconds = [d](std::int64_t tokens) {
                                 return static_cast<double>(tokens) / d;
                               }});
  // Two groups of two devices, of 180 tokens each (0.9 of 200): 120 + 60 | 100 + 70 are two bins.
  const auto two = homogeneous_plan(problem, std::vector<std::int64_t>{70, 120, 60, 100}, 1);
  REQUIRE(two.has_value());
  REQUIRE(two->microbatches.size() == 1);
  CHECK(two->seconds == doctest::Approx(10 + 90.0));
  // One document alone: the second group is empty.
  CHECK(homogeneous_plan(problem, std::vector<std::int64_t>{50}, 1)->seconds == doctest::Approx(35));
  CHECK_FALSE(homogeneous_plan(problem, std::vector<std::int64_t>{201}, 1).has_value());
  const auto best = adaptive_plan(problem, std::vector<std::int64_t>{201});
  REQUIRE(best.has_value());
  CHECK(best->option == 2);
  CHECK_FALSE(adaptive_plan(problem, std::vector<std::int64_t>{401}).has_value());
}

}  // namespace
}  // namespace galvatron::flexsp
