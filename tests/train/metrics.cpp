#include <galvatron/train/metrics.hpp>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <galvatron/core/file.hpp>

using namespace galvatron;

TEST_CASE("every step adds a line of JSON at once, and a new run begins anew") {
  const auto path = std::filesystem::temp_directory_path() / ("galvatron-metrics-" + std::to_string(::getpid()));
  for (int run = 0; run < 2; ++run) {
    auto metrics = train::MetricsFile::create(path);
    REQUIRE(metrics.has_value());
    for (int step = 0; step < 3; ++step) {
      REQUIRE(metrics->append({.step = step, .loss = 5.5 - step, .seconds = 0.25}).has_value());
      const std::string text = read_text_file(path).value();
      REQUIRE(text.back() == '\n');
      const auto last = text.rfind('\n', text.size() - 2);
      const auto line = nlohmann::json::parse(text.substr(last == std::string::npos ? 0 : last + 1));
      CHECK(line.at("step") == step + 1);
      CHECK(line.at("loss") == 5.5 - step);
      CHECK(line.at("seconds") == 0.25);
    }
  }
  std::filesystem::remove(path);
}

TEST_CASE("a resumed run goes on after its step, without what a crash left") {
  const auto path = std::filesystem::temp_directory_path() / ("galvatron-metrics-" + std::to_string(::getpid()));
  {
    auto metrics = train::MetricsFile::create(path);
    REQUIRE(metrics.has_value());
    for (int step = 0; step < 5; ++step) REQUIRE(metrics->append({.step = step, .loss = 1}).has_value());
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 2, \"lo";
  {
    auto metrics = train::MetricsFile::resume(path, 3);
    REQUIRE(metrics.has_value());
    REQUIRE(metrics->append({.step = 3, .loss = NAN, .mfu = 0.5, .skipped = "why"}).has_value());
  }
  std::istringstream lines(read_text_file(path).value());
  std::string line;
  for (int step = 1; step <= 4; ++step) {
    REQUIRE(std::getline(lines, line));
    const auto value = nlohmann::json::parse(line);
    CHECK(value.at("step") == step);
    CHECK(value.at("loss").is_null() == (step == 4));
    CHECK(value.at("mfu").is_null() == (step != 4));
    CHECK(value.contains("skipped") == (step == 4));
  }
  CHECK_FALSE(std::getline(lines, line));
  std::filesystem::remove(path);
  REQUIRE(train::MetricsFile::resume(path, 3).has_value());  // none yet
  std::filesystem::remove(path);
}

TEST_CASE("metrics that cannot be written are an error") {
  const auto missing = train::MetricsFile::create("/missing-folder/metrics.jsonl");
  REQUIRE(!missing.has_value());
  CHECK(missing.error().kind == ErrorKind::usage);
  auto full = train::MetricsFile::create("/dev/full");
  REQUIRE(full.has_value());
  CHECK(full->append({}).error().message == "cannot write /dev/full: No space left on device");
}
