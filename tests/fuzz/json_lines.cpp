// Any bytes given as JSON lines end in documents whose texts can all be read again, or in a one-line error. What is
// accepted is what parse_json reads of every line.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <galvatron/core/json.hpp>
#include <galvatron/data/document_source.hpp>

#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galvatron;
  train::DocumentFile file;
  file.kind = train::DocumentFileKind::json_lines;
  file.name = "input.jsonl";
  file.tokens = {std::as_bytes(std::span(data, size)).data(), static_cast<std::int64_t>(size), 1};
  const train::DocumentOptions options{.vocabulary = 256, .skip_empty = true};
  const auto found = train::find_documents_of_json_lines(file, options);
  if (!found) {
    require_one_line(found.error());
    return 0;
  }
  std::vector<std::string> texts;  // of the lines, as another reader sees them
  train::JsonLineReader reader;
  const auto done = train::for_each_line(file.text(), [&](std::string_view line, std::int64_t, std::int64_t number) {
    const auto value = parse_json(line, "line");
    const auto text = reader.read(line, "input.jsonl", number);
    require(text.has_value());
    if (value)
      require(value->at("text").get_ref<const std::string&>() == *text);  // else a key beside it is there twice
    if (text->size() >= 2) texts.emplace_back(*text);
    return Result<void>();
  });
  require(done.has_value());
  require(file.count == static_cast<std::int64_t>(texts.size()));
  for (std::int64_t i = 0; i < file.count; ++i) {
    const auto entry = file.table[i];
    const std::string_view rest = file.text().substr(static_cast<std::size_t>(entry.begin));
    const auto text = reader.read(rest.substr(0, rest.find('\n')), "input.jsonl", 0);
    require(text.has_value() && *text == texts[static_cast<std::size_t>(i)]);
    require(entry.length == static_cast<std::int64_t>(text->size()));
  }
  return 0;
}
