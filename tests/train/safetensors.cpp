// safetensors: what is written is read back, and what is damaged is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <galvatron/checkpoint/safetensors.hpp>

using namespace galvatron;
using namespace galvatron::train;

namespace {

Result<Safetensors> parse(const std::string& file) { return parse_safetensors(std::as_bytes(std::span(file)), "f"); }

std::string file_of(const std::string& header, const std::string& data) {
  std::uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header + data;
}

void check_refused(const std::string& file, const std::string& cause) {
  const auto result = parse(file);
  REQUIRE_FALSE(result.has_value());
  CAPTURE(result.error().message);
  CHECK(result.error().kind == ErrorKind::usage);
  CHECK(result.error().message.find(cause) != std::string::npos);
  CHECK(result.error().message.find('\n') == std::string::npos);
}

}  // namespace

TEST_CASE("a header is read as it was written") {
  const std::vector<SafetensorsEntry> entries{
      {"a", "F32", {2, 3}, 0, 24}, {"nothing", "BF16", {0, 7}, 24, 24}, {"scalar \"x\"", "F16", {}, 24, 26}};
  const std::string header = safetensors_header(entries, {{"format", "pt"}});
  CHECK(header.size() % 64 == 0);
  const auto parsed = parse(header + std::string(26, 'x'));
  REQUIRE(parsed.has_value());
  CHECK(parsed->entries == entries);
  CHECK(parsed->metadata.at("format") == "pt");
  CHECK(parsed->data_begin == static_cast<std::int64_t>(header.size()));
  const auto find = [&](std::string_view name) {
    return std::ranges::find(parsed->entries, name, &SafetensorsEntry::name);
  };
  REQUIRE(find("scalar \"x\"") != parsed->entries.end());
  CHECK(find("scalar \"x\"")->count() == 1);
  CHECK(find("b") == parsed->entries.end());
  const auto empty = parse(safetensors_header({}));
  REQUIRE(empty.has_value());
  CHECK(empty->entries.empty());
}

TEST_CASE("entries may stand in any order") {
  const auto parsed = parse(file_of(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},)"
                                    R"("a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})",
                                    "xyz"));
  REQUIRE(parsed.has_value());
  CHECK(parsed->entries.front().name == "a");
}

TEST_CASE("what is damaged is refused with the reason") {
  const std::string good = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  REQUIRE(parse(file_of(good, "xy")).has_value());
  check_refused("abc", "it has 3 bytes");
  check_refused(std::string(16, '\x7f'), "header length");
  check_refused(file_of(good, "xy").substr(0, 20), "cut short");
  check_refused(file_of(good, "x"), "cut short");
  check_refused(file_of(good, "xyz"), "its tensors end at byte 2 of 3");
  check_refused(file_of("[1]", ""), "JSON object");
  check_refused(file_of("{", ""), "not valid JSON");
  check_refused(file_of(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,2]}})", "xy"), "make 3");
  check_refused(file_of(R"({"a":{"dtype":"X8","shape":[2],"data_offsets":[0,2]}})", "xy"), "X8");
  check_refused(file_of(R"({"a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}})", "xy"), "shape");
  check_refused(file_of(R"({"a":{"dtype":"U8","shape":[4611686018427387904,4],"data_offsets":[0,2]}})", "xy"),
                "more bytes than a file can have");
  check_refused(file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", "xy"), "damaged");
  check_refused(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xy"), "begins at byte 1");
  check_refused(file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                        R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                        "xy"),
                "ends at 2");
  check_refused(file_of(R"({"a":{"dtype":"U8","shape":[2]}})", "xy"), "data_offsets");
  check_refused(file_of(R"({"__metadata__":{"a":1}})", ""), "not a string");
}
