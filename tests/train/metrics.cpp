#include <galvatron/train/metrics.hpp>

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <galvatron/core/file.hpp>
#include <galvatron/train/metrics.hpp>

#include "../folder.hpp"

using namespace galvatron;

TEST_CASE("every step adds a line of JSON at once, and a new run begins anew") {
  const auto path = std::filesystem::temp_directory_path() / ("galvatron-metrics-" + std::to_string(::getpid()));
  for (int run = 0; run < 2; ++run) {
    auto metrics = train::MetricsFile::resume(path);
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
    auto metrics = train::MetricsFile::resume(path);
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

TEST_CASE("lines that are not metrics stay, and a file without any metrics is refused") {
  const test::Folder folder;
  const auto line = [](std::int64_t step) { return train::metrics_line({.step = step - 1, .loss = 1}); };
  const std::string foreign = "# my notes\n\n{\"step\": 9, \"event\": \"lr changed\"}\n{\"step\":9,\"loss\":1}\n[1]\n";
  const auto path = folder.write("m.jsonl", "first\n" + line(1) + foreign + line(2) + line(3) + "the end, unfinished");
  REQUIRE(train::MetricsFile::resume(path, 2)->append({.step = 2, .loss = 4}).has_value());
  const std::string kept = "first\n" + line(1) + foreign + line(2) + "the end, unfinished\n";
  CHECK(read_text_file(path).value() == kept + train::metrics_line({.step = 2, .loss = 4}));
  CHECK(train::MetricsFile::resume(path).has_value());
  CHECK(read_text_file(path).value() == "first\n" + foreign + "the end, unfinished\n");

  const auto notes = folder.write("notes.txt", foreign);
  for (const auto& result :
       {train::MetricsFile::check(notes).has_value(), train::MetricsFile::resume(notes).has_value(),
        train::MetricsFile::resume(notes, 3).has_value()})
    CHECK_FALSE(result);
  CHECK(train::MetricsFile::check(notes).error().message ==
        notes.string() + " has 5 lines, which are not metrics of a run; name another file");
  CHECK(read_text_file(notes).value() == foreign);
  for (const char* good : {"", "{\"st", "{\"step\":4,\"lo"})  // new, or cut short by a crash
    CHECK(train::MetricsFile::check(folder.write("cut.jsonl", good)).has_value());
  CHECK(train::MetricsFile::check(folder.path / "missing").has_value());
}

TEST_CASE("a full disk leaves whole lines and whole events only") {
  const test::Folder folder;
  auto metrics = train::MetricsFile::resume(folder.path / "m.jsonl");
  auto events = train::TensorBoardFile::create(folder.path / "tb", 1);
  REQUIRE((metrics.has_value() && events.has_value()));
  const std::vector<train::Scalar> scalars{{"a-name-that-takes-some-room/loss", 1.0}};
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit limit = before;
  limit.rlim_cur = 1000;  // bytes of a file
  ::setrlimit(RLIMIT_FSIZE, &limit);
  int lines = 0;
  int records = 0;
  Result<void> line;
  Result<void> record;
  for (line = metrics->append({}); line && lines < 100; line = metrics->append({})) ++lines;
  for (record = events->append(1, scalars); record && records < 100; record = events->append(1, scalars)) ++records;
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  REQUIRE((!line && !record));
  CHECK(line.error().message == "cannot write " + (folder.path / "m.jsonl").string() + ": File too large");
  CHECK(record.error().message == "cannot write " + events->path().string() + ": File too large");
  const std::string text = read_text_file(folder.path / "m.jsonl").value();
  CHECK(text.size() == static_cast<std::size_t>(lines) * train::metrics_line({}).size());
  const std::string one = train::tensorboard_record(train::scalars_event(0.1, 1, scalars));
  CHECK(std::filesystem::file_size(events->path()) > static_cast<std::size_t>(records) * one.size());
  const auto size = std::filesystem::file_size(events->path());
  REQUIRE(events->append(1, scalars).has_value());
  CHECK(std::filesystem::file_size(events->path()) == size + one.size());
}

TEST_CASE("metrics that cannot be written are an error") {
  const auto missing = train::MetricsFile::resume("/missing-folder/metrics.jsonl");
  REQUIRE(!missing.has_value());
  CHECK(missing.error().kind == ErrorKind::usage);
  auto full = train::MetricsFile::resume("/dev/full");
  REQUIRE(full.has_value());
  CHECK(full->append({}).error().message == "cannot write /dev/full: No space left on device");
}
