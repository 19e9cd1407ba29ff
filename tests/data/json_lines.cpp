#include <galvatron/data/json_lines.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "data_writers.hpp"

using namespace galvatron;
using galvatron::test::refused;

namespace {

Result<std::string> text_of_line(std::string_view line) {
  train::JsonLineReader reader;
  return reader.read(line, "a.jsonl", 17).map([](std::string_view text) { return std::string(text); });
}

}  // namespace

TEST_CASE("the text of a line is read whatever is beside it") {
  const std::vector<std::pair<const char*, std::string>> lines = {
      {R"({"text": "abc"})", "abc"},
      {R"({"text":""})", ""},
      {"  {\"text\":\"abc\"} \t\r", "abc"},
      {R"({"id": 3, "text": "abc", "meta": {"text": "inner", "more": [1, {"text": 2}]}, "last": null})", "abc"},
      {R"({"list": ["text", "x"], "text": "a\nb\t\"\\\u00e4\ud83d\ude00"})", "a\nb\t\"\\\u00e4\U0001F600"},
      {R"({"Text": "other", "text": "äöü\u0000"})", std::string("äöü\0", 7)},
  };
  for (const auto& [line, text] : lines) {
    CAPTURE(line);
    const auto read = text_of_line(line);
    REQUIRE(read.has_value());
    CHECK(*read == text);
  }
}

TEST_CASE("a reader keeps nothing of the line before") {
  train::JsonLineReader reader;
  CHECK(reader.read(R"({"text": "abc"})", "a.jsonl", 1) == "abc");
  CHECK_FALSE(reader.read(R"({"text": "abc")", "a.jsonl", 2).has_value());
  CHECK(refused(reader.read(R"({"other": "abc"})", "a.jsonl", 3)).find("line 3: the key \"text\" is missing") !=
        std::string::npos);
  CHECK(reader.read(R"({"text": "de"})", "a.jsonl", 4) == "de");
}

TEST_CASE("a line without a text is refused with its place") {
  const std::vector<std::pair<std::string, const char*>> lines = {
      {"{}", R"(a.jsonl, line 17: the key "text" is missing; every line is an object such as {"text": "..."})"},
      {R"({"meta": {"text": "a"}})", R"(a.jsonl, line 17: the key "text" is missing)"},
      {R"(["text"])", R"(a.jsonl, line 17: expected an object with the key "text", found an array)"},
      {R"("text")", R"(a.jsonl, line 17: expected an object with the key "text", found a string)"},
      {"null", R"(a.jsonl, line 17: expected an object with the key "text", found null)"},
      {"3", R"(a.jsonl, line 17: expected an object with the key "text", found a number)"},
      {R"({"text": 3})", R"(a.jsonl, line 17: "text": expected a string, found a number)"},
      {R"({"text": null})", R"(a.jsonl, line 17: "text": expected a string, found null)"},
      {R"({"text": true})", R"(a.jsonl, line 17: "text": expected a string, found a boolean)"},
      {R"({"text": ["a"]})", R"(a.jsonl, line 17: "text": expected a string, found an array)"},
      {R"({"text": {"a": "b"}})", R"(a.jsonl, line 17: "text": expected a string, found an object)"},
      {R"({"text": "a", "text": "b"})", R"(a.jsonl, line 17: the key "text" occurs twice; keep one of them)"},
      {R"({"text": "a)",
       "a.jsonl, line 17, column 12: not valid JSON: syntax error while parsing value - invalid string"},
      {R"({"text": "a"} {"text": "b"})", "a.jsonl, line 17, column 15: not valid JSON: syntax error"},
      {"{\"text\": \"a\xff\"}",
       "a.jsonl, line 17, column 12: not valid JSON: syntax error while parsing value - invalid "
       "string: ill-formed UTF-8 byte"},
      {"{\"text\": \"\xed\xa0\x80\"}", "ill-formed UTF-8 byte"},
      {R"({"text": "\ud800"})", "surrogate"},
      {std::string("{\"text\": \"a\"}\0 more", 19),
       "a.jsonl, line 17, column 14: a byte 0 is not valid JSON; remove it"},
      {"{\"text\": \"a\tb\"}", "control character"},
  };
  for (const auto& [line, message] : lines) {
    CAPTURE(line);
    const std::string found = refused(text_of_line(line));
    CAPTURE(found);
    CHECK(found.find(message) != std::string::npos);
  }
  // Depth takes no stack.
  CHECK(text_of_line("{\"text\": \"a\", \"deep\": " + std::string(1'000'000, '[') + std::string(1'000'000, ']') +
                     "}") == "a");
}

TEST_CASE("lines are numbered from 1, blank ones too, and the last needs no newline") {
  std::vector<std::string> seen;
  const auto note = [&](std::string_view line, std::int64_t begin, std::int64_t number) {
    seen.push_back(std::to_string(number) + "@" + std::to_string(begin) + ":" + std::string(line));
    return Result<void>();
  };
  CHECK(train::for_each_line("a\n\n \r\nbc\r\nd", note).has_value());
  CHECK(seen == std::vector<std::string>{"1@0:a", "4@6:bc\r", "5@10:d"});
  seen.clear();
  CHECK(train::for_each_line("", note).has_value());
  CHECK(train::for_each_line("\n", note).has_value());
  CHECK(train::for_each_line("x\n", note).has_value());
  CHECK(seen == std::vector<std::string>{"1@0:x"});
  CHECK_FALSE(train::for_each_line("x\ny\n", [](auto...) { return Result<void>(usage_error("stop")); }).has_value());
}
