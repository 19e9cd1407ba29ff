// JSON lines: a file in which every line is an object with a document as its "text".
//
//   {"id": 7, "text": "The cat sat.\nThe end."}
//   {"text": "Another document", "meta": {"source": "..."}}
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>

namespace galvatron::train {

/// A name that ends in .jsonl or .ndjson is that of JSON lines.
inline bool is_json_lines_name(const std::filesystem::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".ndjson";
}

/// Reads the text of one line after the other, with memory that it keeps. Of other keys nothing is kept.
class JsonLineReader {
 public:
  /// The UTF-8 text of a line, until the next one is read. Errors (usage): a line that is not a JSON object with one
  /// string "text", in UTF-8; `file` and `number`, from 1, stand for it.
  Result<std::string_view> read(std::string_view line, std::string_view file, std::int64_t number) {
    sax_.clear();
    const std::size_t nul = line.find('\0');  // would end the input
    const bool valid = nul == std::string_view::npos &&
                       nlohmann::json::sax_parse(line.begin(), line.end(), &sax_, nlohmann::json::input_format_t::json);
    if (valid && sax_.has_text) return std::string_view(sax_.text);
    std::string at = std::string(file) + ", line " + std::to_string(number);
    if (nul != std::string_view::npos)
      return usage_error(at + ", column " + std::to_string(nul + 1) + ": a byte 0 is not valid JSON; remove it");
    if (valid)
      return usage_error(at + R"(: the key "text" is missing; every line is an object such as {"text": "..."})");
    if (sax_.column > 0) at += ", column " + std::to_string(sax_.column);
    return usage_error(at + ": " + sax_.why);
  }

 private:
  // What nlohmann-json calls for every part of a line, until one returns false.
  struct Sax {
    std::string text, why;
    std::size_t column = 0;
    int depth = 0;
    bool has_text = false;
    bool is_next = false;  // the value that comes next is that of "text"

    void clear() {
      text.clear();
      why.clear();
      column = 0;
      depth = 0;
      has_text = is_next = false;
    }
    bool other(const char* what) {
      if (depth == 0) {
        why = std::string("expected an object with the key \"text\", found ") + what;
        return false;
      }
      if (!is_next) return true;
      why = std::string("\"text\": expected a string, found ") + what;
      return false;
    }
    bool null() { return other("null"); }
    bool boolean(bool) { return other("a boolean"); }
    bool number_integer(std::int64_t) { return other("a number"); }
    bool number_unsigned(std::uint64_t) { return other("a number"); }
    bool number_float(double, const std::string&) { return other("a number"); }
    bool binary(nlohmann::json::binary_t&) { return other("bytes"); }
    bool string(std::string& value) {
      if (!is_next) return other("a string");
      text.swap(value);
      is_next = false;
      return has_text = true;
    }
    bool key(std::string& name) {
      is_next = depth == 1 && name == "text";
      if (!is_next || !has_text) return true;
      why = "the key \"text\" occurs twice; keep one of them";
      return false;
    }
    bool start_object(std::size_t) {
      if (depth > 0 && !other("an object")) return false;
      ++depth;
      return true;
    }
    bool start_array(std::size_t) {
      if (!other("an array")) return false;
      ++depth;
      return true;
    }
    bool end_object() { return --depth, true; }
    bool end_array() { return --depth, true; }
    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
      column = position;
      why = "not valid JSON: " + galvatron::detail::reason_of(error) + "; correct the line";
      return false;
    }
  };

  Sax sax_;
};

/// Calls f(line, offset of its first byte, number from 1) -> Result<void> for every line of a text that is not blank,
/// until there is an error. A line ends with its newline or with the text.
template <class F>
Result<void> for_each_line(std::string_view text, const F& f) {
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos)
      if (auto done = f(line, static_cast<std::int64_t>(begin), number); !done) return done;
    begin = end + 1;
  }
  return {};
}

}  // namespace galvatron::train
