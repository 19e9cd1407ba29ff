#include <galvatron/train/metrics.hpp>

#include <unistd.h>

#include <filesystem>
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

TEST_CASE("metrics that cannot be written are an error") {
  const auto missing = train::MetricsFile::create("/missing-folder/metrics.jsonl");
  REQUIRE(!missing.has_value());
  CHECK(missing.error().kind == ErrorKind::usage);
  auto full = train::MetricsFile::create("/dev/full");
  REQUIRE(full.has_value());
  CHECK(full->append({}).error().message == "cannot write /dev/full: No space left on device");
}
