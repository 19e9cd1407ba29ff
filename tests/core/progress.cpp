#include <galvatron/core/progress.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

using namespace galvatron;

namespace {

/// A progress display with a clock that the test turns.
struct Shown {
  explicit Shown(ProgressStyle style)
      : progress(
            "train", style, [this](std::string_view text) { writes.emplace_back(text); }, [this] { return now; }) {}
  double now = 100;
  std::vector<std::string> writes;
  Progress progress;
};

ProgressStyle style_of(ProgressStyle::Kind kind, int width = 80) {
  ProgressStyle style;
  style.kind = kind;
  style.width = width;
  return style;
}

/// The columns that a redrawn line takes.
std::size_t columns(std::string text) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      while (i < text.size() && text[i] != 'm' && text[i] != 'K') ++i;
    } else if (text[i] != '\r') {
      ++count;
    }
  }
  return count;
}

}  // namespace

TEST_CASE("a redrawn line has the place, a bar, the facts and the time left") {
  Shown shown(style_of(ProgressStyle::Kind::redrawn, 100));
  shown.now += 30;
  shown.progress.update(0.25, "100/400", {"loss 2.91", "14.2 k tokens/s"});
  REQUIRE(shown.writes.size() == 1);
  const std::string& line = shown.writes[0];
  CHECK(line.front() == '\r');
  CHECK(line.find("train 100/400 [") != std::string::npos);
  CHECK(line.find("=>") != std::string::npos);
  CHECK(line.find(" 25%  loss 2.91  14.2 k tokens/s  90.0 s left\x1b[K") != std::string::npos);
  CHECK(line.find("\x1b[32m") == std::string::npos);
}

TEST_CASE("a redrawn line is never wider than the terminal") {
  for (int width = 1; width <= 130; ++width) {
    auto style = style_of(ProgressStyle::Kind::redrawn, width);
    style.color = width % 2 == 0;
    Shown shown(style);
    shown.now += 1000;
    shown.progress.update(0.999, "999999/1000000", {"loss 12.91", "14.2 k tokens/s", "step 3.51 s"});
    CAPTURE(width);
    REQUIRE(shown.writes.size() == 1);
    CHECK(columns(shown.writes[0]) <= static_cast<std::size_t>(std::max(width - 1, 1)));
  }
}

TEST_CASE("a narrow terminal loses the bar first and then the last facts") {
  Shown shown(style_of(ProgressStyle::Kind::redrawn, 45));
  shown.now += 10;
  shown.progress.update(0.5, "5/10", {"loss 2.91", "14.2 k tokens/s"});
  CHECK(shown.writes.back() == "\rtrain 5/10 50%  loss 2.91  14.2 k tokens/s\x1b[K");
}

TEST_CASE("a terminal is redrawn ten times a second at most and cleared at the end") {
  Shown shown(style_of(ProgressStyle::Kind::redrawn));
  shown.now += 1;
  for (int i = 0; i < 1000; ++i) {
    shown.now += 0.001;
    shown.progress.update(i / 1000.0, "x");
  }
  CHECK(shown.writes.size() <= 11);
  shown.progress.finish();
  CHECK(shown.writes.back() == "\r\x1b[K");
  const auto count = shown.writes.size();
  shown.progress.update(1, "y");
  shown.progress.finish();
  CHECK(shown.writes.size() == count);
}

TEST_CASE("short work shows nothing") {
  for (const auto kind : {ProgressStyle::Kind::redrawn, ProgressStyle::Kind::lines}) {
    Shown shown(style_of(kind));
    shown.now += 0.4;
    shown.progress.update(0.9, "9/10");
    shown.progress.finish();
    CHECK(shown.writes.empty());
  }
}

TEST_CASE("without a terminal there are plain lines, every few seconds or tenth of the work") {
  Shown shown(style_of(ProgressStyle::Kind::lines));
  for (int i = 1; i <= 1000; ++i) {  // 100 s
    shown.now += 0.1;
    shown.progress.update(i / 1000.0, std::to_string(i) + "/1000", {"loss 2"});
  }
  CHECK(shown.writes.size() >= 10);
  CHECK(shown.writes.size() <= 31);
  for (const std::string& line : shown.writes) {
    CHECK(line.back() == '\n');
    CHECK(line.find_first_of("\r\x1b") == std::string::npos);
    CHECK(line.find("loss 2") != std::string::npos);
  }
  CHECK(shown.writes.back().find("train 1000/1000, 100%, loss 2, 0 s left") == 0);
  shown.progress.finish();
  CHECK(shown.writes.back().back() == '\n');
}

TEST_CASE("work of unknown length shows the time that it took so far") {
  Shown shown(style_of(ProgressStyle::Kind::lines));
  shown.now += 7;
  shown.progress.update(-1, "searching");
  CHECK(shown.writes.back() == "train searching, 7.00 s\n");
}

TEST_CASE("a line in between clears the bar") {
  Shown shown(style_of(ProgressStyle::Kind::redrawn));
  shown.now += 1;
  shown.progress.update(0.5, "1/2");
  shown.progress.say("hello");
  REQUIRE(shown.writes.size() == 3);
  CHECK(shown.writes[1] == "\r\x1b[K");
  CHECK(shown.writes[2] == "hello\n");
}

TEST_CASE("quiet is quiet") {
  Shown shown(style_of(ProgressStyle::Kind::silent));
  shown.now += 100;
  shown.progress.update(0.5, "1/2");
  shown.progress.say("hello");
  shown.progress.finish();
  CHECK(shown.writes.empty());
  CHECK(progress_style(2, true).kind == ProgressStyle::Kind::silent);
}

TEST_CASE("a descriptor that is no terminal gets lines without color") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const ProgressStyle style = progress_style(ends[1]);
  CHECK(style.kind == ProgressStyle::Kind::lines);
  CHECK(!style.color);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("lines above the bar are redrawn with it, as many as the terminal has place for") {
  auto style = style_of(ProgressStyle::Kind::redrawn, 60);
  Shown shown(style);
  std::vector<std::string> lines{"first", "second"};
  shown.progress.lines_above([&](int width, bool color) {
    CHECK(width == 59);
    CHECK_FALSE(color);
    return lines;
  });
  shown.now += 10;
  shown.progress.update(0.5, "5/10");
  CHECK(shown.writes.back().starts_with("\rfirst\x1b[K\nsecond\x1b[K\ntrain 5/10"));
  CHECK(shown.writes.back().ends_with("\x1b[K"));
  lines = {"one"};
  shown.now += 10;
  shown.progress.update(0.6, "6/10");
  CHECK(shown.writes.back().starts_with("\r\x1b[2Aone\x1b[K\ntrain 6/10"));
  CHECK(shown.writes.back().ends_with("\x1b[J"));  // the second line of before is gone
  shown.progress.say("a remark");
  CHECK(shown.writes[shown.writes.size() - 2] == "\r\x1b[1A\x1b[J");
  CHECK(shown.writes.back() == "a remark\n");
  shown.now += 10;
  shown.progress.update(0.7, "7/10");
  CHECK(shown.writes.back().starts_with("\rone"));
  shown.progress.finish();
  CHECK(shown.writes.back() == "\r\x1b[1A\x1b[J");

  style.height = 3;
  Shown low(style);
  low.progress.lines_above([](int, bool) { return std::vector<std::string>(5, "line"); });
  low.now += 10;
  low.progress.update(0.5, "5/10");
  CHECK(std::ranges::count(low.writes.back(), '\n') == 2);
  Shown plain(style_of(ProgressStyle::Kind::lines));
  plain.progress.lines_above([](int, bool) { return std::vector<std::string>(5, "line"); });
  plain.now += 10;
  plain.progress.update(0.5, "5/10");
  CHECK(plain.writes.back().starts_with("train 5/10"));
}
