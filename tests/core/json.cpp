#include <galvatron/core/json.hpp>

#include <cstdint>
#include <random>
#include <string>

#include <doctest/doctest.h>

namespace galvatron {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string error_of(std::string_view text) {
  const auto value = parse_json(text, "a.json");
  REQUIRE_FALSE(value.has_value());
  CHECK(value.error().kind == ErrorKind::usage);
  CHECK(value.error().message.find('\n') == std::string::npos);
  return value.error().message;
}

TEST_CASE("a JSON value is parsed") {
  const auto value = parse_json(R"({"a": [1, 2.5, "x", null, true], "b": {"c": -3}})", "a.json");
  REQUIRE(value.has_value());
  CHECK((*value)["a"][1] == 2.5);
  CHECK((*value)["b"]["c"] == -3);
}

TEST_CASE("a parse error names the source, the line and the column") {
  const std::string message = error_of("{\n  \"a\": 1,\n  \"b\": }\n");
  CHECK(contains(message, "a.json: not valid JSON at line 3, column 8"));
}

TEST_CASE("truncated texts are errors at every length") {
  const std::string whole = R"({"a": [1, {"b": "c\n"}], "d": 1.5e3, "e": "é"})";
  REQUIRE(parse_json(whole, "a.json").has_value());
  for (std::size_t n = 0; n < whole.size(); ++n) CHECK_FALSE(parse_json(whole.substr(0, n), "a.json").has_value());
}

TEST_CASE("deep nesting is refused and does not overflow the stack") {
  const std::string deep(1'000'000, '[');
  CHECK(contains(error_of(deep), "nested deeper than 100 levels at line 1, column 101"));
  const std::string allowed = std::string(100, '[') + std::string(100, ']');
  CHECK(parse_json(allowed, "a.json").has_value());
  CHECK(parse_json("\"" + std::string(500, '[') + "\"", "a.json").has_value());
}

TEST_CASE("numbers beyond binary64 are refused") {
  CHECK(contains(error_of("{\"a\": 1e999}"), "a.json: not valid JSON"));
}

TEST_CASE("a key that occurs twice is refused, in one object only") {
  CHECK(contains(error_of(R"({"a": {"b": 1, "b": 2}})"), "\"b\" occurs twice"));
  CHECK(parse_json(R"({"a": {"b": 1}, "b": [{"a": 1}, {"a": 2}]})", "a.json").has_value());
}

TEST_CASE("random bytes never crash the parser and errors stay on one printable line") {
  const std::uint32_t seed = 20260731;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const std::string alphabet = "{}[]\",:0123456789.eE+-truefalsn \n\\u\xc3\x01\xff";
  for (int round = 0; round < 5000; ++round) {
    std::string text(random() % 40, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    const auto value = parse_json(text, "a.json");
    if (value) continue;
    for (const char c : value.error().message) CHECK((c >= 0x20 && c < 0x7f));
  }
}

TEST_CASE("fields are read with their types and ranges") {
  const auto value = parse_json(R"({"i": 3, "n": -4, "d": 2.5, "s": "x", "b": true, "whole": 7})", "a.json");
  REQUIRE(value.has_value());
  JsonObject fields(*value, "a.json");
  CHECK(fields.required<int>("i", 1, 8) == 3);
  CHECK(fields.required<std::int64_t>("n") == -4);
  CHECK(fields.required<double>("d") == 2.5);
  CHECK(fields.required<std::string>("s") == "x");
  CHECK(fields.required<bool>("b"));
  CHECK(fields.required<double>("whole", 0.0) == 7.0);
  CHECK(fields.optional<int>("absent", 9) == 9);
  CHECK(fields.finish().has_value());
}

TEST_CASE("nothing is narrowed, converted or out of range") {
  const auto value = parse_json(
      R"({"f": 3.0, "t": "3", "big": 5000000000, "huge": 18446744073709551615, "neg": -1, "x": 1e300, "z": 0})",
      "a.json");
  REQUIRE(value.has_value());
  const auto error_of_field = [&](auto read) {
    JsonObject fields(*value, "a.json");
    read(fields);
    const auto done = fields.finish_allowing_unknown_keys();
    REQUIRE_FALSE(done.has_value());
    return done.error().message;
  };
  CHECK(contains(error_of_field([](JsonObject& o) { o.required<int>("f"); }), "expected an integer"));
  CHECK(contains(error_of_field([](JsonObject& o) { o.required<int>("t"); }), "found the string \"3\""));
  CHECK(contains(error_of_field([](JsonObject& o) { o.required<int>("big"); }), "found 5000000000"));
  CHECK(contains(error_of_field([](JsonObject& o) { o.required<std::int64_t>("huge"); }), "18446744073709551615"));
  CHECK(contains(error_of_field([](JsonObject& o) { o.required<unsigned>("neg"); }), "found -1"));
  CHECK(contains(error_of_field([](JsonObject& o) { o.required<float>("x"); }), "expected a number"));
  CHECK(contains(error_of_field([](JsonObject& o) { o.required<int>("z", 1); }), "an integer of at least 1, found 0"));
  CHECK(contains(error_of_field([](JsonObject& o) { o.required<int>("missing"); }), "\"missing\" is missing"));
  CHECK(contains(error_of_field([](JsonObject& o) { o.required<std::string>("z"); }), "expected a string"));
  CHECK(contains(error_of_field([](JsonObject& o) { o.required<bool>("z"); }), "expected true or false"));
  CHECK(contains(error_of_field([](JsonObject& o) { o.required_array("z"); }), "expected an array"));
  CHECK(contains(error_of_field([](JsonObject& o) { o.optional<int>("t", 1); }), "expected an integer"));
}

TEST_CASE("unknown keys are named together with the known ones") {
  const auto value = parse_json(R"({"a": 1, "c": 2})", "a.json");
  REQUIRE(value.has_value());
  JsonObject fields(*value, "a.json");
  fields.required<int>("a");
  fields.optional<int>("b", 0);
  const auto done = fields.finish();
  REQUIRE_FALSE(done.has_value());
  CHECK(done.error().message == "a.json: unknown key \"c\"; known are a, b");
}

TEST_CASE("the first error wins and a wrong kind of value is no crash") {
  const auto value = parse_json("[1]", "a.json");
  REQUIRE(value.has_value());
  JsonObject fields(*value, "a.json");
  CHECK(fields.required<int>("a") == 0);
  CHECK(fields.required_array("b").empty());
  CHECK(fields.required_object("c").required<int>("d") == 0);
  const auto done = fields.finish();
  REQUIRE_FALSE(done.has_value());
  CHECK(done.error().message == "a.json: expected a JSON object, found an array of 1");
}

TEST_CASE("nested objects name their path") {
  const auto value = parse_json(R"({"outer": {"inner": "x"}})", "a.json");
  REQUIRE(value.has_value());
  JsonObject fields(*value, "a.json");
  JsonObject outer = fields.required_object("outer");
  outer.required<int>("inner");
  const auto done = outer.finish();
  REQUIRE_FALSE(done.has_value());
  CHECK(contains(done.error().message, "a.json: \"outer\": \"inner\": expected an integer"));
  CHECK(fields.finish().has_value());
}

TEST_CASE("printing never throws") {
  nlohmann::json value;
  value["bytes"] = std::string("\xff\xfe");
  CHECK(json_text(value).back() == '\n');
}

TEST_CASE("a missing file is an error with its path") {
  const auto value = read_json_file("/nowhere/a.json");
  REQUIRE_FALSE(value.has_value());
  CHECK(value.error().message == "cannot read /nowhere/a.json: No such file or directory");
}

}  // namespace
}  // namespace galvatron
