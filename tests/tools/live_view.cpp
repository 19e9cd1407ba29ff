// What `train --live` shows above its progress line.
#include "live_view.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using namespace galvatron;
using namespace galvatron::tools;

namespace {

std::size_t columns(const std::string& text) {  // of UTF-8
  std::size_t out = 0;
  for (const char c : text) out += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  return out;
}

train::StepReport step_of(std::int64_t step, double loss, double tokens) {
  return {
      .step = step, .loss = loss, .gradient_norm = 10 / (1.0 + static_cast<double>(step)), .tokens_per_second = tokens};
}

}  // namespace

TEST_CASE("a sparkline has the means of its columns between the lowest and the highest") {
  CHECK(sparkline({1, 2, 3, 4, 5, 6, 7, 8}, 8, true) == "▁▂▃▄▅▆▇█");
  CHECK(sparkline({1, 2, 3, 4, 5, 6, 7, 8}, 8, false) == "_.,-~=*#");
  CHECK(sparkline({0, 0, 8, 8}, 2, false) == "_#");
  CHECK(sparkline({5, 5, 5}, 10, false) == "~~~");
  CHECK(sparkline({0, std::numeric_limits<double>::quiet_NaN(), 1}, 3, false) == "_ #");
  CHECK(sparkline({}, 3, false).empty());
}

TEST_CASE("the live view fits every width") {
  LiveView view(true);
  CHECK(view.lines(80, false).empty());
  for (int step = 0; step < 5000; ++step) {
    train::StepReport report = step_of(step, 5.0 / (1 + step * 0.01), 30000 + step % 7);
    if (step == 4000) report.validation_loss = 1.5;
    if (step == 4999) report.ranks = {{1, 0.1}, {2, 0.1}, {1, 0.1}};
    view.add(report);
  }
  const auto lines = view.lines(100, false);
  REQUIRE(lines.size() == 5);
  CHECK(lines[0].starts_with("loss        █"));
  CHECK(lines[0].find(", least 0.09806 in step 5000") != std::string::npos);
  CHECK(lines[1].find("1.5 behind step 4001, least 1.5") != std::string::npos);
  CHECK(lines[2].find(" k, median 30.0 k") != std::string::npos);
  CHECK(lines[4].find("slowest 1: 2.10 s of a step, the others 1.10 s") != std::string::npos);
  for (int width = 1; width <= 200; ++width)
    for (const std::string& line : view.lines(width, false)) {
      CAPTURE(width);
      CHECK(columns(line) <= static_cast<std::size_t>(width));
    }
  CHECK(view.lines(100, true)[0].find("\x1b[36m") != std::string::npos);
  LiveView tasks(false);
  tasks.add({.step = 0, .loss = 2, .gradient_norm = 1});
  CHECK(tasks.lines(80, false).size() == 2);  // no tokens
}
